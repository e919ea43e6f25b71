#include "host/vm/boot_end.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>

#include "host/vm/vmm.h"

void boot_end_judge(const struct boot_end_facts *f, struct control_event *ev)
{
	const char *when = f->booting ? "while booting" : "while running";
	const int status = f->wait_status;
	char cause[128];

	ev->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	ev->guest_status = f->announced ? f->guest_status : -1;
	ev->status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
	if (f->decided) {
		ev->end = f->end;
		ev->why = *f->why;
	} else if (WIFSIGNALED(status)) {
		ev->end = VM_END_VMM_KILLED;
		vmm_cause_of(ev->signal, f->failure, cause, sizeof(cause));
		err_set(&ev->why, "S300", EIO, "the VMM (%s) was killed by signal %d (%s) %s%s",
			f->backend, ev->signal, strsignal(ev->signal), when, cause);
	} else if (f->announced) {
		ev->end = VM_END_CLEAN;
		ev->status = f->guest_status;
		err_set(&ev->why, "S300", EIO, "the guest powered off (status %d)", ev->status);
	} else if (f->failure[0]) {
		ev->end = VM_END_VMM_FAILED;
		err_set(&ev->why, "S300", EIO, "%s", f->failure);
	} else if (ev->status == 0) {
		ev->end = VM_END_GUEST_CRASH;
		err_set(&ev->why, "S300", EIO,
			"the guest ended without notice %s: its kernel panicked or was reset "
			"(backend %s)",
			when, f->backend);
	} else {
		ev->end = VM_END_VMM_FAILED;
		err_set(&ev->why, "S300", EIO, "the VMM (%s) ended with status %d %s", f->backend,
			ev->status, when);
	}
}
