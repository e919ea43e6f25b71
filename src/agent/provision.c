/* How it moves
 *
 * One child at a time, watched through reap.c; on_child_exit() decides what comes next. Nothing
 * here blocks the loop: syncing and the marker's syncfs are children too, so that a shutdown is
 * heard meanwhile.
 *
 * A shutdown signals the group, not the cgroup: that is what a terminal or a supervisor does, and a
 * worker that put helpers into sessions of their own ends them by itself. When the leader (often a
 * shell that does not wait) is gone the others of the group still have their time; then the cgroup
 * is killed, and with it whatever escaped the group.
 *
 * The marker's child is left to finish: it is short, and what it notes has been done.
 */
#include "agent/provision.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/console.h"
#include "agent/env.h"
#include "agent/marker.h"
#include "agent/reap.h"
#include "agent/spawn.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define SHELL	   "/bin/sh"
#define KILL_MS	   2000 /* what does not die of SIGKILL in this time is left to power-off */
#define NR_OPEN	   "/proc/sys/fs/nr_open"
#define NUMBER_MAX 64 /* bytes of a number in /proc */

enum step {
	STEP_NONE,
	STEP_SYNC,
	STEP_SETUP,
	STEP_INSTALL,
	STEP_MARK,
	STEP_RUN,
	STEP_OVER,
};

static const char *const names[] = {
	[STEP_SYNC] = "sync",
	[STEP_SETUP] = "setup",
	[STEP_INSTALL] = "install",
	[STEP_MARK] = "mark",
	[STEP_RUN] = "run",
};

enum stopping {
	STOPPING_NOT,
	STOPPING_TERM, /* SIGTERM was sent */
	STOPPING_KILL, /* SIGKILL was sent */
};

static struct {
	struct provision_config config;
	enum step step;
	struct reap_slot child;
	pid_t pid; /* of the step's process, also its group; 0: it has ended */
	pid_t group;
	unsigned report_slot;
	int cgroup_fd;	 /* -1: none */
	uint64_t nofile; /* 0: as other programs */
	struct marker_verdict todo;
	enum stopping stopping;
	uv_timer_t timer;
	uint64_t until; /* loop time of SIGKILL */
	int status;	/* of the end, once the step's process has ended while stopping */
} prov;

static bool is_script(enum step step)
{
	return step == STEP_SETUP || step == STEP_INSTALL || step == STEP_RUN;
}

static void end(int status)
{
	prov.step = STEP_OVER;
	uv_timer_stop(&prov.timer);
	if (prov.cgroup_fd >= 0)
		cgroup_worker_kill(prov.cgroup_fd);
	else if (prov.group)
		kill(-prov.group, SIGKILL);
	prov.config.on_end(status, prov.config.user);
}

/* --- children of our own --- */

static int sync_child(void *arg)
{
	struct sync_counts counts = {0};
	struct err e = ERR_INIT;

	setsid();
	if (prov.config.bring(prov.config.user, prov.config.job, &counts, &e) < 0) {
		console_say("worker %s: sync: %s", prov.config.job->name, e.text);
		return 1;
	}
	if (counts.left_out)
		console_say("worker %s: sync: %llu entries are neither files nor folders nor "
			    "links and are left out",
			prov.config.job->name, (unsigned long long)counts.left_out);
	return 0;
}

static int mark_child(void *arg)
{
	struct err e = ERR_INIT;

	setsid();
	if (marker_write(prov.config.root_fd, prov.config.job, &e) == 0)
		return 0;
	console_say("worker %s: %s: setup and install will run again at the next start",
		prov.config.job->name, e.text);
	return 1;
}

/* --- scripts --- */

static int start_script(const char *text)
{
	char *with_e[] = {(char *)SHELL, (char *)"-e", (char *)"-c", (char *)text, NULL};
	char *without[] = {(char *)SHELL, (char *)"-c", (char *)text, NULL};
	cleanup_free char **env = env_for_worker(prov.config.env);
	cleanup_fd int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int out = prov.config.console_fd >= 0 ? prov.config.console_fd : null;

	if (null < 0)
		return -errno;
	return spawn_program(
		&(struct spawn_request){.argv = prov.step == STEP_RUN ? without : with_e,
			.env = env,
			.workdir = prov.config.workdir,
			.in = null,
			.out = out,
			.err = out,
			.cgroup_fd = prov.cgroup_fd,
			.nofile = prov.nofile},
		&prov.report_slot);
}

/* Why the script did not even begin; its status. */
static int say_not_started(const struct spawn_report *report)
{
	bool missing = report->no == ENOENT || report->no == ENOTDIR;
	const char *what = SHELL;

	if (report->step == SPAWN_STEP_SETUP) {
		console_say("worker %s: %s: the guest cannot prepare the process: %s",
			prov.config.job->name, names[prov.step], err_str(report->no));
		return PROVISION_FAILED;
	}
	if (report->step == SPAWN_STEP_WORKDIR)
		what = prov.config.workdir;
	console_say("worker %s: %s: cannot start the script: %s: %s%s", prov.config.job->name,
		names[prov.step], what, err_str(report->no),
		missing && what[0] == '/' && str_eq(what, SHELL)
			? " (an image for workers needs a shell)"
			: "");
	return missing ? 127 : 126;
}

/* --- the order of steps --- */

static int launch(void)
{
	const struct worker_job *job = prov.config.job;

	switch (prov.step) {
	case STEP_SYNC:
		return spawn_function(sync_child, NULL);
	case STEP_SETUP:
		return start_script(job->setup);
	case STEP_INSTALL:
		return start_script(job->install);
	case STEP_MARK:
		return spawn_function(mark_child, NULL);
	case STEP_RUN:
		return start_script(job->run);
	default:
		return -EINVAL;
	}
}

static void begin(enum step step)
{
	int r;

	prov.step = step;
	if (step != STEP_MARK)
		console_say("worker %s: %s", prov.config.job->name, names[step]);
	r = launch();
	if (r < 0) {
		console_say("worker %s: %s: cannot start a process: %s", prov.config.job->name,
			names[step], err_str(r));
		end(PROVISION_FAILED);
		return;
	}
	prov.pid = prov.group = r;
	reap_watch(&prov.child, r);
	if (step != STEP_MARK)
		prov.config.on_phase(names[step], prov.config.user);
}

static bool is_needed(enum step step)
{
	switch (step) {
	case STEP_SETUP:
		return prov.todo.setup;
	case STEP_INSTALL:
		return prov.todo.install;
	case STEP_MARK:
		return prov.todo.write;
	default:
		return true;
	}
}

static void next_step(void)
{
	enum step next = prov.step + 1;
	struct marker have;

	if (prov.step == STEP_SYNC) {
		marker_read(prov.config.root_fd, &have);
		prov.todo = marker_compare(&have, prov.config.job);
	}
	while (!is_needed(next))
		next++;
	begin(next);
}

/* --- stopping --- */

/* The group has one process less: is it empty? Zombies that were ours have been waited for. */
static void look_at_group(void)
{
	if (prov.stopping == STOPPING_NOT || prov.step == STEP_OVER || prov.pid)
		return;
	if (prov.step == STEP_MARK || (kill(-prov.group, 0) < 0 && errno == ESRCH))
		end(prov.status);
}

static void signal_group(int sig)
{
	/* Between its birth and setsid() the child is in our group. */
	if (kill(-prov.group, sig) < 0 && errno == ESRCH && prov.pid)
		kill(prov.pid, sig);
}

static void on_killed_too_long(uv_timer_t *timer)
{
	console_say("worker %s: a process does not die", prov.config.job->name);
	end(prov.pid ? 128 + SIGKILL : prov.status);
}

static void on_grace_over(uv_timer_t *timer)
{
	prov.stopping = STOPPING_KILL;
	signal_group(SIGKILL);
	if (prov.cgroup_fd >= 0)
		cgroup_worker_kill(prov.cgroup_fd);
	uv_timer_start(&prov.timer, on_killed_too_long, KILL_MS, 0);
	reap_now();
}

bool provision_shutdown(uint64_t grace_ms)
{
	uint64_t until;

	if (prov.step == STEP_NONE || prov.step == STEP_OVER)
		return false;
	uv_update_time(prov.timer.loop);
	grace_ms = MIN(grace_ms, PROVISION_GRACE_MAX_MS);
	until = uv_now(prov.timer.loop) + grace_ms;
	if (prov.stopping == STOPPING_KILL ||
		(prov.stopping == STOPPING_TERM && until >= prov.until))
		return true;
	prov.until = until;
	uv_timer_start(&prov.timer, on_grace_over, grace_ms, 0);
	if (prov.stopping == STOPPING_NOT) {
		console_say("worker %s: stopping (%s)", prov.config.job->name, names[prov.step]);
		prov.stopping = STOPPING_TERM;
		if (prov.step != STEP_MARK) {
			signal_group(SIGTERM);
			signal_group(SIGCONT);
		}
	}
	return true;
}

/* --- events --- */

static int status_of(int wait_status)
{
	return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

/* Says how a step ended. Returns the status that ends the VM, or -1 to go on. */
static int judge(int wait_status)
{
	const char *worker = prov.config.job->name;
	int status = status_of(wait_status);

	if (is_script(prov.step)) {
		struct spawn_report report = spawn_report_take(prov.report_slot);

		if (report.step != SPAWN_STARTED)
			return say_not_started(&report);
	}
	if (WIFSIGNALED(wait_status))
		console_say("worker %s: %s: ended by signal %d (%s)", worker, names[prov.step],
			WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
	else if (is_script(prov.step) && (status || prov.step == STEP_RUN))
		console_say(
			"worker %s: %s: ended with status %d", worker, names[prov.step], status);
	if (prov.step == STEP_RUN)
		return status;
	/* Nothing is undone without the marker: the scripts run again. */
	if (!status || prov.step == STEP_MARK)
		return -1;
	return prov.step == STEP_SYNC && prov.stopping == STOPPING_NOT ? PROVISION_FAILED : status;
}

static void on_child_exit(struct reap_slot *slot, int wait_status)
{
	int status = judge(wait_status);

	prov.pid = 0;
	if (prov.step == STEP_OVER)
		return;
	if (prov.stopping == STOPPING_NOT) {
		if (status < 0)
			next_step();
		else
			end(status);
		return;
	}
	/* Asked to end between two steps: as if the signal had ended the next one. */
	if (prov.step == STEP_MARK || prov.step == STEP_SYNC)
		prov.status = status < 0 ? 128 + SIGTERM : status;
	else
		prov.status = status < 0 ? 0 : status;
}

static void on_round(bool orphans, bool none_left, void *user)
{
	look_at_group();
}

/* --- the start --- */

static void limit_files(void)
{
	cleanup_free char *text = NULL;
	uint64_t most = 0;

	prov.nofile = prov.config.job->nofile;
	if (!prov.nofile || fd_slurp_at(AT_FDCWD, NR_OPEN, NUMBER_MAX, &text, NULL) < 0)
		return;
	text[strcspn(text, "\n")] = '\0';
	if (str_u64(text, &most) < 0 || prov.nofile <= most)
		return;
	console_say("worker %s: %llu open files are more than this kernel allows (%s): it gets %s",
		prov.config.job->name, (unsigned long long)prov.nofile, NR_OPEN, text);
	prov.nofile = most;
}

static void make_cgroup(void)
{
	const struct worker_job *job = prov.config.job;
	int r;

	prov.cgroup_fd = cgroup_worker_new();
	if (prov.cgroup_fd < 0) {
		console_say("worker %s: no cgroup (%s): its memory is not limited", job->name,
			err_str(prov.cgroup_fd));
		prov.cgroup_fd = -1;
		return;
	}
	r = job->memory_max_bytes ? cgroup_worker_limit(prov.cgroup_fd, job->memory_max_bytes) : 0;
	if (r < 0)
		console_say("worker %s: this kernel does not limit its memory (%s)", job->name,
			err_str(r));
}

void provision_start(uv_loop_t *loop, const struct provision_config *config)
{
	prov.config = *config;
	prov.step = STEP_NONE;
	prov.stopping = STOPPING_NOT;
	prov.child = (struct reap_slot){.on_exit = on_child_exit};
	prov.pid = prov.group = 0;
	uv_timer_init(loop, &prov.timer);
	reap_on_round(on_round, NULL);
	make_cgroup();
	limit_files();
	if (config->console_fd < 0)
		console_say("worker %s: no console for its output: %s", config->job->name,
			err_str(config->console_fd));
	next_step();
}

void provision_stop(void)
{
	uv_close((uv_handle_t *)&prov.timer, NULL);
	fd_close(&prov.cgroup_fd);
	fd_close(&prov.config.console_fd);
	fd_close(&prov.config.root_fd);
	prov.step = STEP_NONE;
}
