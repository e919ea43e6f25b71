#include "host/vm/vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "host/vm/confine.h"

/* The child's ends of what connects it to its supervisor. */
struct far_ends {
	struct vmm_ends ports;
	int messages, failure, report;
};

static void far_init(struct far_ends *f)
{
	*f = (struct far_ends){.ports = {.agent = PLAN_FD_AGENT,
				       .env = -1,
				       .control = -1,
				       .console = -1,
				       .net = -1},
		.messages = -1,
		.failure = -1,
		.report = -1};
}

static void far_done(struct far_ends *f)
{
	fd_close(&f->ports.env);
	fd_close(&f->ports.control);
	fd_close(&f->ports.console);
	fd_close(&f->ports.net);
	fd_close(&f->messages);
	fd_close(&f->failure);
	fd_close(&f->report);
}

static int make_pipe(int *ret_near, int *ret_far)
{
	int p[2], r;

	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	*ret_near = p[0];
	*ret_far = p[1];
	r = fd_set_nonblock(p[0], true);
	return r;
}

static int make_socket(int *ret_near, int *ret_far)
{
	int s[2], r = fd_socketpair(s);

	if (r < 0)
		return r;
	*ret_near = s[0];
	*ret_far = s[1];
	return fd_set_nonblock(s[0], true);
}

static int connect_ends(struct vmm *v, struct far_ends *f, bool net, struct err *e)
{
	int r;

	if ((r = make_pipe(&v->console, &f->ports.console)) < 0 ||
		(r = make_pipe(&v->messages, &f->messages)) < 0 ||
		(r = make_pipe(&v->failure, &f->failure)) < 0 ||
		(r = make_pipe(&v->report, &f->report)) < 0 ||
		(r = make_socket(&v->env, &f->ports.env)) < 0 ||
		(r = make_socket(&v->control, &f->ports.control)) < 0 ||
		(net && (r = make_socket(&v->net, &f->ports.net)) < 0))
		return err_set(e, "S300", r, "cannot connect the VMM: %s", err_str(r));
	v->env_guest = fcntl(f->ports.env, F_DUPFD_CLOEXEC, 3);
	v->console_guest = fcntl(f->ports.console, F_DUPFD_CLOEXEC, 3);
	return v->env_guest < 0 || v->console_guest < 0
		       ? err_set(e, "S300", errno, "dup: %s", err_str(errno))
		       : 0;
}

static int use_streams(const struct far_ends *f, struct err *e)
{
	cleanup_fd int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (null < 0 || dup2(null, 0) < 0 || dup2(f->messages, 1) < 0 || dup2(f->messages, 2) < 0)
		return err_set(
			e, "S300", errno, "cannot set up the VMM's streams: %s", err_str(errno));
	return 0;
}

/* PLAN_FD_LIFE stays open over exec on purpose: its end of file is the VMM's death for the daemon.
 */
static int child_setup(
	const struct plan *p, const struct far_ends *f, const struct confine *c, struct err *e)
{
	int keep[10 + PLAN_DISKS_MAX] = {f->ports.agent, f->ports.env, f->ports.control,
		f->ports.console, f->ports.net, f->failure, f->report, PLAN_FD_LIFE, p->kernel_fd,
		c->map_fd};
	size_t n = 10;
	sigset_t none;
	int r;

	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		return err_set(e, "S300", errno, "PR_SET_PDEATHSIG: %s", err_str(errno));
	if ((r = use_streams(f, e)) < 0)
		return r;
	for (size_t i = 0; i < p->n_disks; i++)
		keep[n++] = p->disks[i].fd;
	if ((r = confine_fds(keep, n, e)) < 0)
		return r;
	fd_set_cloexec(PLAN_FD_LIFE, false);
	clearenv();
	signal(SIGCHLD, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* SIGPIPE stays ignored: a closed port must not kill a VMM. */
	return 0;
}

static int child_confine(const struct vm_backend *be, const struct plan *p, struct far_ends *f,
	struct confine *c, bool required, struct err *e)
{
	struct confine_policy policy = {0};
	int r;

	if (be->needs)
		be->needs(p, &policy);
	r = confine_vmm(c, &policy, p, f->ports.console, f->failure, required, e);
	confine_policy_done(&policy);
	if (r == 0 && fd_write_all(f->report, &c->report, sizeof(c->report)) < 0)
		r = err_set(e, "S300", EPIPE, "the supervisor is gone");
	fd_close(&f->report);
	return r;
}

static _Noreturn void child_main(
	const struct vm_backend *be, const struct plan *p, struct far_ends *f, struct confine *c)
{
	const char *word = getenv(CONFINE_REQUIRE);
	bool required = word && str_eq(word, "1");
	struct err e = ERR_INIT;

	if (child_setup(p, f, c, &e) == 0 && (!be->prepare || be->prepare(p, &f->ports, &e) >= 0) &&
		child_confine(be, p, f, c, required, &e) == 0)
		be->enter(p, &f->ports, &e);
	fd_write_all(f->failure, e.text, strlen(e.text));
	_exit(VMM_EXIT_FAILED);
}

int vmm_start(const struct vm_backend *be, const struct plan *plan, struct vmm *ret, struct err *e)
{
	struct vmm v = VMM_INIT;
	struct far_ends far;
	struct confine c = {.map_fd = -1};
	int r;

	far_init(&far);
	r = connect_ends(&v, &far, plan->net.passt != NULL, e);
	if (r == 0) {
		v.pid = confine_fork(&c);
		if (v.pid == 0)
			child_main(be, plan, &far, &c);
		if (v.pid < 0) {
			r = err_set(e, "S300", errno, "cannot fork the VMM: %s", err_str(errno));
			v.pid = 0;
		}
	}
	confine_release(&c);
	far_done(&far);
	if (r < 0)
		vmm_done(&v);
	else
		*ret = v;
	return r;
}

bool vmm_confined(struct vmm *v, struct confine_report *ret)
{
	ssize_t n = v->report < 0 ? 0 : read(v->report, ret, sizeof(*ret));

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	fd_close(&v->report);
	return n == (ssize_t)sizeof(*ret);
}

bool vmm_ended(struct vmm *v, int *ret_status)
{
	pid_t pid;

	if (v->pid <= 0)
		return false;
	pid = waitpid(v->pid, ret_status, WNOHANG);
	if (pid != v->pid)
		return false;
	v->pid = 0;
	return true;
}

void vmm_kill(struct vmm *v)
{
	/* Not yet waited for, so the pid is still its own. */
	if (v->pid > 0)
		kill(v->pid, SIGKILL);
}

void vmm_done(struct vmm *v)
{
	vmm_kill(v);
	while (v->pid > 0 && waitpid(v->pid, NULL, 0) < 0 && errno == EINTR)
		;
	v->pid = 0;
	fd_close(&v->console);
	fd_close(&v->console_guest);
	fd_close(&v->messages);
	fd_close(&v->failure);
	fd_close(&v->report);
	fd_close(&v->env);
	fd_close(&v->env_guest);
	fd_close(&v->control);
	fd_close(&v->net);
}

void vmm_cause_of(int signal, const char *failure, char *dst, size_t size)
{
	const size_t len = sizeof(CONFINE_FORBIDDEN) - 1;
	const char *name = NULL;
	uint32_t nr;

	dst[0] = '\0';
	if (signal == SIGKILL)
		snprintf(dst, size, ": perhaps the host is out of memory");
	if (signal != SIGSYS)
		return;
	if (!str_starts(failure, CONFINE_FORBIDDEN) || str_u32(failure + len, &nr) < 0) {
		snprintf(dst, size, ": it made a system call that is forbidden to it");
		return;
	}
	name = confine_syscall_name((int)nr);
	snprintf(dst, size, ": the VMM made a forbidden system call %u%s%s%s", nr, name ? " (" : "",
		name ? name : "", name ? ")" : "");
}
