/* disk_lock - one VM a disk.
 *
 * The lock belongs to the open file, which the VMM inherits, and so lasts as long as anything of
 * the VM does.
 */
#pragma once

#include "base/err.h"
#include "host/vm/plan.h"

/* A kept disk may still be held by a VM that is about to be gone. */
#define DISK_LOCK_WAIT_MS 2000

/* Locks every writable disk of the plan. S300 naming the disk: another VM uses it (a kept one after
 * DISK_LOCK_WAIT_MS), or -ECANCELED: something came on `stop_fd` meanwhile, which is left there.
 * Whatever the daemon says so early (kill, shut down), or its end, is the end of a VM that has not
 * begun. */
int disk_lock_all(const struct plan *p, int stop_fd, struct err *e);
