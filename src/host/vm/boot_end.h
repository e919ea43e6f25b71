/* boot_end - what a VM's end means, from what its supervisor saw of it. */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "host/vm/control.h"

struct boot_end_facts {
	const char *backend;
	bool booting;	       /* the agent had not said "ready" */
	int wait_status;       /* of the VMM, as waitpid gives it */
	const char *failure;   /* what the VMM's process left to say before it was a VMM; "" */
	bool announced;	       /* the guest said that it leaves, … */
	int guest_status;      /* … and with which status */
	bool decided;	       /* the supervisor ended it, … */
	enum vm_end end;       /* … for this … */
	const struct err *why; /* … reason */
};

/* Fills the end, signal, status and why of an event. A decision of our own comes first, so that the
 * death that follows it is never taken for a crash. */
void boot_end_judge(const struct boot_end_facts *f, struct control_event *ev);
