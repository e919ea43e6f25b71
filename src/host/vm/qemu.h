/* qemu - the command line of the software-emulation backend, as data.
 * The backend itself is vm_backend_qemu (backend.h). */
#pragma once

#include "base/err.h"
#include "host/vm/backend.h"

/* The whole argument list (NULL-terminated, strv_free). No string of a user or a guest is in it:
 * disks, kernel and ports are descriptors, the rest is ours. `readable` has, for each writable
 * disk, a second descriptor that is open for reading only. */
int qemu_args(const struct plan *p, const struct vmm_ends *ends,
	const int readable[static PLAN_DISKS_MAX], char ***ret, struct err *e);

/* Rate of the time-stamp counter that an emulated guest sees, measured once in about 10 ms; 0 where
 * it cannot be known or does not hold still. */
uint32_t qemu_tsc_khz(void);
