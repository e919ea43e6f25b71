/* vmm - one VMM process as __vm-boot sees it: forked, its streams, its death.
 *
 * Its user has to keep SIGCHLD blocked but inside ppoll(), and then asks vmm_ended().
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "host/vm/backend.h"

#define VMM_EXIT_FAILED 125 /* status of a VMM child whose backend's enter() came back */

struct vmm {
	pid_t pid;	   /* 0: none */
	int console;	   /* hvc0; read, non-blocking … */
	int console_guest; /* … and the VMM's end of it, to say how it is written */
	int messages;	   /* the VMM's stdout and stderr; read, non-blocking */
	int failure;	   /* why enter() came back, as text; read, non-blocking */
	int report;	   /* which layers of confinement hold; read, non-blocking */
	int env;	   /* iii.env, read and written, non-blocking … */
	int env_guest; /* … and the guest's end of it, to see whether the guest has read any */
	int control;   /* iii.control; read and written, non-blocking */
	int net;       /* frames of the guest's interface, non-blocking; -1: it has none */
};

#define VMM_INIT                                                                                   \
	((struct vmm){.console = -1,                                                               \
		.console_guest = -1,                                                               \
		.messages = -1,                                                                    \
		.failure = -1,                                                                     \
		.report = -1,                                                                      \
		.env = -1,                                                                         \
		.env_guest = -1,                                                                   \
		.control = -1,                                                                     \
		.net = -1})

/* Forks the VMM. `plan` names descriptors that are open here. */
int vmm_start(const struct vm_backend *be, const struct plan *plan, struct vmm *ret, struct err *e);

/* True when the child is dead; it is then collected and *ret_status is what waitpid says. */
bool vmm_ended(struct vmm *v, int *ret_status);

/* True once, when the child is confined and about to become the VMM. */
bool vmm_confined(struct vmm *v, struct confine_report *ret);

void vmm_kill(struct vmm *v);

/* Closes what is left. A running child is killed and collected. */
void vmm_done(struct vmm *v);

/* What is known of a signal that a VMM died of, for the end of a sentence; `failure`: what its
 * stream of that name said. May be "". */
void vmm_cause_of(int signal, const char *failure, char *dst, size_t size);
