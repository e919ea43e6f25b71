/* How a program is started
 *
 * clone3 puts the child into its cgroup at birth, so not even its first instruction runs outside;
 * writing cgroup.procs afterwards would also wait for an RCU grace period. The child is a copy of
 * the agent (no CLONE_VM): between clone and execve it may be held up for ever, by a folder on a
 * hung file system for instance, and then only that one exec waits for its deadline.
 *
 * Between clone3 and execve only async-signal-safe calls are made. What the agent changed about
 * itself is put back: SIGPIPE (the only ignored signal), the mask, and the limit of open files.
 * Dispositions need no more than that since the agent has no signal handlers (main.c resets all of
 * them first).
 */
#include "agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/lookup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

/* Open files of the agent: three pipes an exec, the pipes kept for background programs. */
#define AGENT_FILES_MAX 8192
/* Open files of a program: the usual soft limit of services (select() works, and programs that
 * close everything do not loop over a million), and a hard one that they may raise it to. */
#define PROGRAM_FILES_SOFT 1024
#define PROGRAM_FILES_HARD 524288

static struct {
	struct spawn_report *reports; /* SPAWN_SLOTS_MAX, shared with children */
	bool used[SPAWN_SLOTS_MAX];
	struct rlimit files;
} spawn;

int spawn_start(void)
{
	struct rlimit mine;
	void *p = mmap(NULL, SPAWN_SLOTS_MAX * sizeof(*spawn.reports), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return -errno;
	spawn.reports = p;
	spawn.files = (struct rlimit){PROGRAM_FILES_SOFT, PROGRAM_FILES_HARD};
	if (getrlimit(RLIMIT_NOFILE, &mine) < 0)
		return -errno;
	if (mine.rlim_max < PROGRAM_FILES_HARD) {
		struct rlimit raised = {
			MAX(mine.rlim_cur, (rlim_t)AGENT_FILES_MAX), PROGRAM_FILES_HARD};

		/* Without the right to raise it (a test), programs get what there is. */
		if (setrlimit(RLIMIT_NOFILE, &raised) < 0)
			spawn.files = (struct rlimit){
				MIN(mine.rlim_max, PROGRAM_FILES_SOFT), mine.rlim_max};
		getrlimit(RLIMIT_NOFILE, &mine);
	}
	mine.rlim_cur = MIN(mine.rlim_max, AGENT_FILES_MAX);
	return setrlimit(RLIMIT_NOFILE, &mine) < 0 ? -errno : 0;
}

void spawn_stop(void)
{
	munmap(spawn.reports, SPAWN_SLOTS_MAX * sizeof(*spawn.reports));
	spawn.reports = NULL;
}

static int try_execve(const char *file, void *user)
{
	const struct spawn_request *req = user;

	execve(file, req->argv, req->env);
	return errno;
}

static void give_up(struct spawn_report *report, enum spawn_step step, int no)
{
	report->no = no;
	report->step = step;
	_exit(127);
}

static int enter_cgroup(int cgroup_fd)
{
	int fd = openat(cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);

	return fd < 0 || write(fd, "0", 1) < 0 ? -1 : 0;
}

/* Without the right to raise the hard limit (a test), as many as it allows. */
static void limit_files(uint64_t wanted)
{
	struct rlimit files = wanted ? (struct rlimit){wanted, wanted} : spawn.files, mine;

	if (setrlimit(RLIMIT_NOFILE, &files) == 0 || getrlimit(RLIMIT_NOFILE, &mine) < 0)
		return;
	files.rlim_max = mine.rlim_max;
	files.rlim_cur = MIN(files.rlim_cur, files.rlim_max);
	setrlimit(RLIMIT_NOFILE, &files);
}

/* The child. Never returns. */
static void run_child(const struct spawn_request *req, bool in_cgroup, struct spawn_report *report)
{
	sigset_t none;

	if (req->cgroup_fd >= 0 && !in_cgroup && enter_cgroup(req->cgroup_fd) < 0)
		give_up(report, SPAWN_STEP_SETUP, errno);
	if (setsid() < 0 || dup2(req->in, 0) < 0 || dup2(req->out, 1) < 0 || dup2(req->err, 2) < 0)
		give_up(report, SPAWN_STEP_SETUP, errno);
	/* Now and not at execve, which may be long in coming: the write ends of other programs'
	 * stdin are among them. */
	syscall(SYS_close_range, 3, ~0U, 0);
	limit_files(req->nofile);
	if (chdir(req->workdir) < 0)
		give_up(report, SPAWN_STEP_WORKDIR, errno);
	signal(SIGPIPE, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	give_up(report, SPAWN_STEP_PROGRAM,
		lookup_program(
			req->argv[0], strv_env_get(req->env, "PATH"), try_execve, (void *)req));
}

/* 0 in the child, the pid in the agent. *ret_in_cgroup says whether the child is born there. */
static pid_t clone_child(int cgroup_fd, bool *ret_in_cgroup)
{
	struct clone_args args = {
		.flags = cgroup_fd >= 0 ? CLONE_INTO_CGROUP : 0,
		.exit_signal = SIGCHLD,
		.cgroup = cgroup_fd >= 0 ? (uint64_t)cgroup_fd : 0,
	};
	pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));

	*ret_in_cgroup = cgroup_fd >= 0;
	/* Some container runtimes, in which tests run, refuse clone3 this way. */
	if (pid < 0 && errno == ENOSYS) {
		*ret_in_cgroup = false;
		pid = fork();
	}
	return pid;
}

pid_t spawn_program(const struct spawn_request *req, unsigned *ret_slot)
{
	bool in_cgroup;
	unsigned slot;
	pid_t pid;

	for (slot = 0; slot < SPAWN_SLOTS_MAX && spawn.used[slot]; slot++)
		;
	if (slot == SPAWN_SLOTS_MAX)
		return -EAGAIN;
	spawn.reports[slot] = (struct spawn_report){SPAWN_STARTED, 0};
	pid = clone_child(req->cgroup_fd, &in_cgroup);
	if (pid < 0)
		return -errno;
	if (pid == 0)
		run_child(req, in_cgroup, &spawn.reports[slot]);
	spawn.used[slot] = true;
	*ret_slot = slot;
	return pid;
}

struct spawn_report spawn_report_take(unsigned slot)
{
	spawn.used[slot] = false;
	return spawn.reports[slot];
}

void spawn_keep_only(int fd)
{
	if (fd > 0)
		syscall(SYS_close_range, 0, fd - 1, 0);
	syscall(SYS_close_range, fd + 1, ~0U, 0);
}

pid_t spawn_function(int (*fn)(void *arg), void *arg)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(fn(arg) & 255);
	return pid < 0 ? -errno : pid;
}
