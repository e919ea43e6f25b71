/* boot - __vm-boot, the supervisor process of one VM.
 *
 * Reads the plan from stdin (plan.h), starts the VMM, keeps the end of what it prints, talks with
 * the agent on iii.control and with the daemon on PLAN_FD_CONTROL (control.h), and reports how the
 * VM ended. It holds the lock on the writable disk, and hands on what is printed where the plan
 * names a log (logpipe.h). Any end of the daemon, of this process or of the VMM ends the other
 * two's interest in the VM: nothing stays behind.
 */
#pragma once

#include "host/vm/backend.h"

#define BOOT_ENTRY "__vm-boot" /* argv[1] of such a process; argv[2] is a label for `ps` */

/* Kept of a shutdown's grace for the way there and back: so much, a quarter at most. */
#define BOOT_GRACE_KEPT_MS 250
#define BOOT_ORPHAN_MS	   1000	 /* grace of a guest with a kept disk whose daemon has died */
#define BOOT_POWER_OFF_MS  30000 /* the guest said it would leave and has not: it is killed */

/* main() of such a process; returns its exit status. */
int vm_boot_main(int argc, char **argv);

/* The same with other backends (tests). */
int vm_boot_run(int argc, char **argv, const struct vm_backend *const *backends);
