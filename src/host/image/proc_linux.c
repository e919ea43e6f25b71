/* proc for Linux.
 *
 * Why vfork and not posix_spawn: the child must set a parent-death signal between its birth and
 * exec, which posix_spawn cannot be told. vfork costs the same (no page table is copied, however
 * big the daemon is). The child runs on our memory until exec, so it makes system calls only, on
 * values prepared before; all signals are blocked meanwhile, so no handler of ours runs in it, and
 * are reset to default before they are unblocked.
 *
 * The end is learned from a pidfd, in one poll with both pipes: no SIGCHLD, no thread, and a pid
 * that was reused is never signalled.
 */
#include "host/image/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define CHUNK 65536

struct child {
	pid_t pid;
	int pidfd;
	int out, err; /* our ends of its pipes; -1 after end of file */
};

/* Where execvp would find the program; the caller frees it. NULL: nowhere. */
static char *find_program(const char *name)
{
	const char *path = getenv("PATH");

	if (strchr(name, '/'))
		return xstrdup(name);
	if (!path || !*path)
		path = "/usr/local/bin:/usr/bin:/bin";
	while (*path) {
		size_t len = strcspn(path, ":");
		cleanup_free char *full = xasprintf("%.*s/%s", (int)len, path, name);

		/* An empty or relative entry would run what lies in the working folder. */
		if (*path == '/' && access(full, X_OK) == 0)
			return STEAL(full);
		path += len + (path[len] == ':');
	}
	return NULL;
}

/* What the child needs, all made before vfork. */
struct launch {
	const char *file;
	char *const *argv;
	int null_fd, out_fd, err_fd, cwd_fd;
	pid_t parent;
	int failed; /* errno of the step that failed; written by the child on our memory */
};

static _Noreturn void run_child(volatile struct launch *l)
{
	sigset_t none;

	/* In this order: a parent that died before prctl is seen by the comparison. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != l->parent)
		goto fail;
	if (setpgid(0, 0) < 0 || (l->cwd_fd >= 0 && fchdir(l->cwd_fd) < 0))
		goto fail;
	if (dup2(l->null_fd, 0) < 0 || dup2(l->out_fd, 1) < 0 || dup2(l->err_fd, 2) < 0)
		goto fail;
	for (int sig = 1; sig < NSIG; sig++) {
		struct sigaction sa = {.sa_handler = SIG_DFL};

		sigaction(sig, &sa, NULL); /* fails for SIGKILL, SIGSTOP and libc's own */
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execv(l->file, l->argv);
fail:
	l->failed = errno ? errno : ECHILD;
	_exit(127);
}

static int launch(volatile struct launch *l, pid_t *ret)
{
	sigset_t all, before;
	pid_t pid;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid = vfork();
	if (pid == 0)
		run_child(l);
	if (pid < 0)
		l->failed = errno;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!l->failed) {
		*ret = pid;
		return 0;
	}
	if (pid > 0)
		waitpid(pid, NULL, 0);
	return -l->failed;
}

/* A pipe whose ends are close-on-exec; descriptors 0-2 are never among them, so that the child's
 * dup2 calls cannot step on one. */
static int make_pipe(int *ret_read, int *ret_write)
{
	int fds[2], high[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	for (int i = 0; i < 2; i++) {
		high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
		close(fds[i]);
	}
	if (high[0] < 0 || high[1] < 0) {
		fd_close(&high[0]);
		fd_close(&high[1]);
		return -EMFILE;
	}
	*ret_read = high[0];
	*ret_write = high[1];
	return fd_set_nonblock(high[0], true);
}

static int start(const struct proc *p, const char *file, struct child *c)
{
	cleanup_fd int out = -1, err = -1, low = open("/dev/null", O_RDWR | O_CLOEXEC), null = -1;
	struct launch l = {.file = file, .argv = p->argv, .cwd_fd = p->cwd_fd, .parent = getpid()};
	int r = make_pipe(&c->out, &out);

	if (r == 0)
		r = make_pipe(&c->err, &err);
	if (r < 0)
		return r;
	null = fcntl(low, F_DUPFD_CLOEXEC, 3);
	if (null < 0)
		return -errno;
	l.null_fd = null;
	l.out_fd = out;
	l.err_fd = err;
	r = launch(&l, &c->pid);
	if (r < 0)
		return r;
	c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
	if (c->pidfd < 0) {
		r = -errno;
		kill(c->pid, SIGKILL); /* not reaped yet, so the pid is still its own */
		waitpid(c->pid, NULL, 0);
		return r;
	}
	return 0;
}

/* Takes what is there. stdout: -EFBIG beyond the ceiling; stderr: only the tail is kept. */
static int drain(int *fd, struct buf *to, bool tail_only)
{
	char chunk[CHUNK / 8];
	ssize_t n = read(*fd, chunk, sizeof(chunk));

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if (n == 0) {
		fd_close(fd);
		return 0;
	}
	if (tail_only && to->len + (size_t)n > to->max)
		buf_drop(to, MIN(to->len, to->len + (size_t)n - to->max));
	return buf_add(to, chunk, (size_t)n) < 0 ? -EFBIG : 0;
}

/* Until the program has ended and what it wrote is read. */
static int watch(const struct proc *p, struct child *c, struct proc_result *res, struct err *e)
{
	uint64_t next_tick = (uint64_t)clock_ms();

	for (;;) {
		struct pollfd fds[] = {{.fd = c->pidfd, .events = POLLIN},
			{.fd = c->out, .events = POLLIN}, {.fd = c->err, .events = POLLIN}};
		uint64_t now = (uint64_t)clock_ms();
		int r = 0;

		if (p->tick && now >= next_tick) {
			r = p->tick(p->user, e);
			if (r < 0)
				return r;
			next_tick = now + PROC_TICK_MS;
		}
		if (poll(fds, ARRAY_LEN(fds), PROC_TICK_MS) < 0 && errno != EINTR)
			return err_set(e, "", errno, "poll: %s", err_str(errno));
		if (fds[1].revents)
			r = drain(&c->out, &res->out, false);
		if (r == 0 && fds[2].revents)
			r = drain(&c->err, &res->errors, true);
		if (r < 0)
			return err_set(e, "", -r, "%s printed more than %zu bytes", p->argv[0],
				p->out_max);
		/* A grandchild may hold the pipes open: its output is not waited for. */
		if (fds[0].revents && !fds[1].revents && !fds[2].revents)
			return 0;
	}
}

/* Ends what still runs of the program's group (itself, credential helpers) and collects it. It is
 * not reaped before, so the group is still its own. */
static int reap(struct child *c)
{
	int status = 0;

	kill(-c->pid, SIGKILL);
	while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int proc_run(const struct proc *p, struct proc_result *ret, struct err *e)
{
	cleanup_free char *file = find_program(p->argv[0]);
	struct child c = {.pidfd = -1, .out = -1, .err = -1};
	struct proc_result res = {0};
	int r;

	if (!file)
		return err_set(e, "", ENOENT, "%s is not installed: install the package %s",
			p->argv[0], p->argv[0]);
	buf_init(&res.out, p->out_max);
	buf_init(&res.errors, PROC_STDERR_KEPT);
	r = start(p, file, &c);
	if (r < 0) {
		err_set(e, "", -r, "cannot start %s: %s", file, err_str(r));
	} else {
		r = watch(p, &c, &res, e);
		res.status = reap(&c);
	}
	fd_close(&c.pidfd);
	fd_close(&c.out);
	fd_close(&c.err);
	if (r < 0) {
		proc_result_done(&res);
		return r;
	}
	*ret = res;
	return 0;
}

void proc_result_done(struct proc_result *r)
{
	buf_done(&r->out);
	buf_done(&r->errors);
}
