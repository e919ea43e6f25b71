/* sandbox-agent: PID 1 of every sandbox.
 *
 * As PID 1 it takes no arguments: what the kernel or a VMM puts on the command line of init is not
 * for us, and nothing there may change what the guest is. As any other process it serves the same
 * operations on an inherited socket, for tests (refused to a PID 1, which would mount and reboot):
 *
 *   sandbox-agent --serve FD [--env FILE] [--cgroup FOLDER]
 *
 * One thread, one loop. libuv's thread pool is never started (no uv_fs_*, no uv_getaddrinfo) and
 * uv_spawn is never used: reap.c waits for all children.
 *
 * PID 1 cannot be chosen by the kernel's out-of-memory killer, so nothing is done about that.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "agent/cgroup.h"
#include "agent/console.h"
#include "agent/control.h"
#include "agent/drain.h"
#include "agent/env.h"
#include "agent/exec.h"
#include "agent/hello.h"
#include "agent/init.h"
#include "agent/poweroff.h"
#include "agent/provision.h"
#include "agent/reap.h"
#include "agent/serve.h"
#include "agent/spawn.h"
#include "agent/workspace.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define HEAP_KEEP (256 * 1024) /* freed memory that is kept; more goes back to the kernel */

/* Every signal as the kernel gives it to a new program, then SIGPIPE ignored: writing to a pipe
 * nobody reads is an error code here. spawn.c puts that one back. */
static void reset_signals(void)
{
	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		if (sig != SIGKILL && sig != SIGSTOP)
			signal(sig, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_IGN);
}

static void prepare(void)
{
	reset_signals();
	umask(022);
	/* Fixed thresholds: by default one large request would teach malloc to keep as much. */
	mallopt(M_MMAP_THRESHOLD, HEAP_KEEP);
	mallopt(M_TRIM_THRESHOLD, HEAP_KEEP);
}

static void on_reaped(bool orphans, bool none_left, void *user)
{
	/* An orphan may have been the last of a leaf that its exec had to leave behind. */
	if (orphans)
		cgroup_sweep();
}

static void start_cgroups(int cgroup_fd)
{
	int r = cgroup_start(cgroup_fd);

	if (r < 0 && cgroup_fd >= 0)
		console_say("no cgroups for programs (%s): a deadline kills only their process "
			    "group",
			err_str(r));
}

/* What both ways of running have in common. Returns the failed step, or NULL. Nothing of it serves
 * before the loop runs. */
static const char *start_service(uv_loop_t *loop, const struct serve_config *config)
{
	drain_start(loop);
	reap_on_round(on_reaped, NULL);
	if (spawn_start() < 0)
		return "prepare for programs";
	if (reap_start(loop) < 0)
		return "take SIGCHLD";
	if (serve_start(loop, config) < 0)
		return "serve on the port iii.agent";
	hello_ready();
	return NULL;
}

/* --- PID 1 --- */

_Noreturn static void fail_boot(int control_fd, const char *why)
{
	console_say("%s", why);
	if (control_fd >= 0)
		control_say_failed(control_fd, why);
	poweroff_now();
}

static void on_command(enum control_cmd cmd, uint64_t grace_ms)
{
	if (cmd == CONTROL_SHUTDOWN && !provision_shutdown(grace_ms))
		poweroff_begin(grace_ms, 0);
	else if (cmd == CONTROL_ACK)
		poweroff_ack();
}

static int bring_source(
	void *user, const struct worker_job *job, struct sync_counts *ret, struct err *e)
{
	return workspace_bring(user, job, ret, e);
}

/* The worker is over: nothing else is left to do in this VM. */
static void on_worker_end(int status, void *user)
{
	poweroff_begin(0, status);
}

static void on_worker_phase(const char *phase, void *user)
{
	control_say_phase(phase);
}

static void start_worker(uv_loop_t *loop, struct init_result *boot)
{
	const struct provision_config config = {.job = &boot->frame.worker,
		.env = boot->frame.env,
		.workdir = WORKSPACE_PATH,
		.root_fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
		.console_fd = console_open(),
		.bring = bring_source,
		.on_phase = on_worker_phase,
		.on_end = on_worker_end,
		.user = boot->source};

	provision_start(loop, &config);
}

_Noreturn static void run_as_init(void)
{
	static uv_loop_t loop;
	static struct init_result boot; /* its env is used until the end */
	struct err e = ERR_INIT;
	const char *failed;

	reboot(RB_DISABLE_CAD);
	if (init_boot(&boot, &e) < 0)
		fail_boot(boot.control_fd, e.text);
	if (uv_loop_init(&loop) < 0)
		fail_boot(boot.control_fd, "cannot make an event loop");
	poweroff_init(&loop, boot.upper_fd);
	failed = start_service(
		&loop, &(struct serve_config){.fd = boot.agent_fd, .env = boot.frame.env});
	if (!failed && control_start(&loop, boot.control_fd, on_command) < 0)
		failed = "listen on the port iii.control";
	if (failed) {
		snprintf(e.text, sizeof(e.text), "cannot %s", failed);
		fail_boot(boot.control_fd, e.text);
	}
	control_say_ready(hello_boot_us());
	init_finish(&boot);
	start_cgroups(boot.cgroup_fd);
	if (boot.frame.has_worker)
		start_worker(&loop, &boot);
	for (;;)
		uv_run(&loop, UV_RUN_DEFAULT);
}

/* --- tests --- */

struct test_mode {
	uv_loop_t loop;
	bool over;
};

static void on_peer_gone(void *user)
{
	struct test_mode *t = user;

	t->over = true;
	uv_stop(&t->loop);
}

static int usage(void)
{
	fprintf(stderr,
		"usage: sandbox-agent --serve FD [--env FILE] [--cgroup FOLDER]\n"
		"       sandbox-agent --version\n"
		"As PID 1 this is the init of a sandbox; elsewhere it serves on an inherited "
		"socket.\n");
	return 2;
}

static int load_env(const char *file, struct env_frame *ret)
{
	static const char nothing[] = "{\"env\":[]}";
	cleanup_free char *text = NULL;
	struct err e = ERR_INIT;
	size_t len;
	int r;

	if (!file)
		return env_frame_parse(nothing, sizeof(nothing) - 1, ret, NULL);
	r = fd_slurp_at(AT_FDCWD, file, ENV_FRAME_MAX, &text, &len);
	if (r < 0)
		err_set(&e, "", -r, "%s", err_str(r));
	else
		r = env_frame_parse(text, len, ret, &e);
	if (r < 0)
		fprintf(stderr, "sandbox-agent: %s: %s\n", file, e.text);
	return r;
}

/* Ends what still runs, so that a leak checker finds nothing that is merely late. */
static void wind_down(struct test_mode *t)
{
	serve_stop();
	while (exec_count() > 0)
		uv_run(&t->loop, UV_RUN_ONCE);
	drain_stop();
	reap_stop();
	spawn_stop();
	cgroup_stop();
	uv_run(&t->loop, UV_RUN_DEFAULT);
	uv_loop_close(&t->loop);
}

static int run_for_test(int fd, const char *env_file, const char *cgroup)
{
	static struct test_mode t;
	struct env_frame frame;
	const char *failed;
	int cgroup_fd = -1;

	if (fd_set_nonblock(fd, true) < 0 || fd_set_cloexec(fd, true) < 0) {
		fprintf(stderr, "sandbox-agent: descriptor %d is not open\n", fd);
		return 2;
	}
	if (load_env(env_file, &frame) < 0)
		return 2;
	if (cgroup) {
		cgroup_fd = open(cgroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (cgroup_fd < 0) {
			fprintf(stderr, "sandbox-agent: %s: %s\n", cgroup, err_str(errno));
			return 2;
		}
	}
	/* PID 1 gets orphans by nature; a test wants them too. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (chdir("/") < 0 || uv_loop_init(&t.loop) < 0)
		return 1;
	start_cgroups(cgroup_fd);
	failed = start_service(&t.loop, &(struct serve_config){.fd = fd,
						.is_socket = true,
						.env = frame.env,
						.on_lost = on_peer_gone,
						.user = &t});
	if (failed) {
		fprintf(stderr, "sandbox-agent: cannot %s\n", failed);
		return 1;
	}
	while (!t.over)
		uv_run(&t.loop, UV_RUN_DEFAULT);
	wind_down(&t);
	env_frame_done(&frame);
	return 0;
}

int main(int argc, char **argv)
{
	const char *env_file = NULL, *cgroup = NULL;
	uint32_t fd = UINT32_MAX;

	prepare();
	if (getpid() == 1) {
		if (argc > 1 && str_eq(argv[1], "--serve"))
			return usage();
		console_start();
		run_as_init();
	}
	for (int i = 1; i < argc; i++) {
		if (str_eq(argv[i], "--version")) {
			printf("sandbox-agent %s\n", AGENT_VERSION);
			return 0;
		}
		if (i + 1 == argc)
			return usage();
		if (str_eq(argv[i], "--serve") && str_u32(argv[i + 1], &fd) == 0)
			i++;
		else if (str_eq(argv[i], "--env"))
			env_file = argv[++i];
		else if (str_eq(argv[i], "--cgroup"))
			cgroup = argv[++i];
		else
			return usage();
	}
	if (fd <= STDERR_FILENO || fd > INT32_MAX)
		return usage();
	return run_for_test((int)fd, env_file, cgroup);
}
