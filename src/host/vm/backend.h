/* backend - what can run a VM: one table entry each.
 *
 * A backend is asked twice. In the daemon, `probe` says whether this host can use it and `vmm`
 * which file does the work. In the VMM child (forked by __vm-boot for this one VM), `enter` becomes
 * the VMM and returns only when it could not.
 */
#pragma once

#include <uv.h>

#include "base/err.h"
#include "host/vm/confine.h"
#include "host/vm/plan.h"
#include "host/vm/vm.h"

/* The VMM child's descriptors beside those of the plan. 0 is /dev/null, 1 and 2 are the stream that
 * __vm-boot collects as the VMM's own messages. */
struct vmm_ends {
	int agent;   /* stream socket: port iii.agent */
	int env;     /* stream socket: port iii.env */
	int control; /* stream socket: port iii.control */
	int console; /* write end of a pipe: hvc0 */
	int net;     /* stream socket: frames (net_relay.h); -1 where the plan has no network */
};

struct vm_backend {
	const char *name;
	enum vm_tier tier;
	/* 0 when a VM can be started here, else S300 with what is missing and what to do. Cheap
	 * when asked again. May be NULL: always. */
	int (*probe)(struct err *e);
	/* The library or program as a new string, or NULL with S300. */
	char *(*vmm)(struct err *e);
	/* Whether the guest's kernel may die before its first process for reasons that are the
	 * VMM's: then one such boot is repeated. */
	bool boot_may_misfire;
	/* In the VMM child, while the host's files are still there: what has to be loaded. May be
	 * NULL. */
	int (*prepare)(const struct plan *p, const struct vmm_ends *ends, struct err *e);
	/* What enter needs when all else is taken away. NULL: its descriptors. */
	void (*needs)(const struct plan *p, struct confine_policy *policy);
	/* Confined by now. Returns a negative errno with the failed call in *e; on success never.
	 */
	int (*enter)(const struct plan *p, const struct vmm_ends *ends, struct err *e);
};

extern const struct vm_backend vm_backend_krun, vm_backend_qemu;

/* NULL-terminated; what vm_boot_main and vm_start know. */
extern const struct vm_backend *const vm_backends[];
const struct vm_backend *vm_backend_find(const struct vm_backend *const *list, const char *name);

/* The backend for a choice, probed. */
int vm_backend_choose(enum vm_backend_choice choice, const struct vm_backend **ret, struct err *e);

/* vm_start on a given backend, not probed. Tests run a plain program in the VMM's place so. */
int vm_start_on(const struct vm_backend *be, uv_loop_t *loop, const struct vm_spec *spec,
	const struct vm_callbacks *cb, void *user, struct vm **ret, struct err *e);
