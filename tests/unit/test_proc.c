/* proc: a helper program runs, is limited, is stopped, and never outlives us. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/image/proc.h"

#define HANG_GUARD_S 120

static char *root;

static int setup(void **state)
{
	char template[] = "/var/tmp/test_proc.XXXXXX";

	alarm(HANG_GUARD_S);
	assert_non_null(mkdtemp(template));
	root = xstrdup(template);
	return 0;
}

static int teardown(void **state)
{
	assert_int_equal(path_remove_at(AT_FDCWD, root), 0);
	free(root);
	alarm(0);
	return 0;
}

/* Runs `sh -c script` in root. */
static int sh(const char *script, size_t out_max, int (*tick)(void *, struct err *),
	struct proc_result *res, struct err *e)
{
	cleanup_fd int dir = path_open_dir(root, NULL);
	char *argv[] = {(char *)"sh", (char *)"-c", (char *)script, NULL};
	struct proc p = {.argv = argv, .cwd_fd = dir, .out_max = out_max, .tick = tick};

	*e = ERR_INIT;
	return proc_run(&p, res, e);
}

static void output_and_status_come_back(void **state)
{
	struct proc_result res;
	struct err e;

	assert_int_equal(
		sh("echo out; echo err >&2; pwd; read x || echo eof; exit 7", 1000, NULL, &res, &e),
		0);
	assert_int_equal(res.status, 7);
	assert_true(str_starts((char *)res.out.data, "out\n"));
	assert_non_null(strstr((char *)res.out.data, root));
	assert_non_null(strstr((char *)res.out.data, "eof")); /* stdin is empty */
	assert_string_equal((char *)res.errors.data, "err\n");
	proc_result_done(&res);
	assert_int_equal(sh("kill -TERM $$", 10, NULL, &res, &e), 0);
	assert_int_equal(res.status, 128 + SIGTERM);
	proc_result_done(&res);
	assert_int_equal(sh("exec >&- 2>&-; exit 3", 10, NULL, &res, &e), 0);
	assert_int_equal(res.status, 3);
	proc_result_done(&res);
}

static void stdout_has_a_ceiling_and_stderr_a_tail(void **state)
{
	struct proc_result res;
	struct err e;

	assert_int_equal(sh("head -c 1000 /dev/zero", 1000, NULL, &res, &e), 0);
	assert_int_equal(res.out.len, 1000);
	proc_result_done(&res);
	assert_int_equal(
		sh("head -c 1001 /dev/zero; exec sleep 1000", 1000, NULL, &res, &e), -EFBIG);
	assert_int_equal(sh("yes | head -c 3000000 >&2; echo the end >&2", 10, NULL, &res, &e), 0);
	assert_int_equal(res.errors.len, PROC_STDERR_KEPT);
	assert_true(str_ends((char *)res.errors.data, "y\nthe end\n"));
	proc_result_done(&res);
}

static void signals_and_descriptors_start_clean(void **state)
{
	struct proc_result res;
	struct err e;
	sigset_t block, before;
	int ours = fcntl(1, F_DUPFD_CLOEXEC, 100);
	cleanup_free char *shown = xasprintf("\n%d\n", ours);

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&block);
	sigaddset(&block, SIGTERM);
	sigprocmask(SIG_BLOCK, &block, &before);
	assert_int_equal(sh("grep -E '^Sig(Ign|Blk):' /proc/self/status; ls /proc/self/fd", 4096,
				 NULL, &res, &e),
		0);
	assert_int_equal(res.status, 0);
	assert_non_null(strstr((char *)res.out.data, "SigBlk:\t0000000000000000"));
	assert_non_null(strstr((char *)res.out.data, "SigIgn:\t0000000000000000"));
	assert_null(strstr((char *)res.out.data, shown));
	proc_result_done(&res);
	/* and ours are as before */
	sigprocmask(SIG_SETMASK, &before, &block);
	assert_int_equal(sigismember(&block, SIGTERM), 1);
	signal(SIGPIPE, SIG_DFL);
	close(ours);
}

static void what_is_not_installed_is_said(void **state)
{
	char *argv[] = {(char *)"no-such-program", NULL};
	struct proc p = {.argv = argv, .cwd_fd = -1};
	struct proc_result res;
	struct err e = ERR_INIT;

	assert_int_equal(proc_run(&p, &res, &e), -ENOENT);
	assert_non_null(strstr(e.text, "no-such-program is not installed"));
	argv[0] = (char *)"/no/such/program";
	assert_int_equal(proc_run(&p, &res, &e), -ENOENT);
	argv[0] = root; /* a folder */
	assert_int_equal(proc_run(&p, &res, &e), -EACCES);
}

static bool alive(pid_t pid)
{
	cleanup_free char *path = xasprintf("/proc/%d/stat", pid), *text = NULL;
	const char *state;

	if (fd_slurp_at(AT_FDCWD, path, 4096, &text, NULL) < 0)
		return false;
	state = strrchr(text, ')');
	return state && state[2] != 'Z' && state[2] != 'X';
}

static void wait_until_gone(pid_t pid)
{
	while (alive(pid))
		poll(NULL, 0, 10); /* the alarm is the limit */
}

/* The number in root/name, once the script has written it. */
static pid_t await_pid(const char *name)
{
	cleanup_free char *path = path_join(root, name);

	for (;;) {
		cleanup_free char *text = NULL;
		size_t len;

		if (fd_slurp_at(AT_FDCWD, path, 100, &text, &len) == 0 && len &&
			text[len - 1] == '\n') {
			uint32_t pid = 0;

			text[len - 1] = '\0';
			assert_int_equal(str_u32(text, &pid), 0);
			return (pid_t)pid;
		}
		poll(NULL, 0, 10);
	}
}

static int stop_when_started(void *user, struct err *e)
{
	cleanup_free char *path = path_join(root, "pid2");
	struct stat st;

	if (stat(path, &st) < 0 || !st.st_size)
		return 0;
	return err_set(e, "", ECANCELED, "cancelled");
}

static void a_stop_takes_helpers_along(void **state)
{
	struct proc_result res;
	struct err e;

	assert_int_equal(sh("trap '' TERM INT; echo $$ >pid; sleep 1000 & echo $! >pid2; wait", 10,
				 stop_when_started, &res, &e),
		-ECANCELED);
	assert_string_equal(e.text, "cancelled");
	wait_until_gone(await_pid("pid"));
	wait_until_gone(await_pid("pid2"));
}

static void a_helper_left_behind_does_not_hold_us_up(void **state)
{
	struct proc_result res;
	struct err e;

	assert_int_equal(sh("sleep 1000 & echo $! >pid; echo done", 10, NULL, &res, &e), 0);
	assert_string_equal((char *)res.out.data, "done\n");
	proc_result_done(&res);
	wait_until_gone(await_pid("pid"));
}

static void it_dies_with_us(void **state)
{
	pid_t us = fork(), helper;
	struct proc_result res;
	struct err e;

	if (us == 0) {
		sh("echo $$ >pid; exec sleep 1000", 10, NULL, &res, &e);
		_exit(0);
	}
	helper = await_pid("pid");
	assert_true(alive(helper));
	kill(us, SIGKILL);
	waitpid(us, NULL, 0);
	wait_until_gone(helper);
}

static void no_descriptor_is_left(void **state)
{
	struct proc_result res;
	struct err e;
	int before = dup(0), after;

	close(before);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(sh("true", 10, NULL, &res, &e), 0);
		proc_result_done(&res);
	}
	after = dup(0);
	close(after);
	assert_int_equal(before, after);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(output_and_status_come_back),
		TEST(stdout_has_a_ceiling_and_stderr_a_tail),
		TEST(signals_and_descriptors_start_clean),
		TEST(what_is_not_installed_is_said),
		TEST(a_stop_takes_helpers_along),
		TEST(a_helper_left_behind_does_not_hold_us_up),
		TEST(it_dies_with_us),
		TEST(no_descriptor_is_left),
	};

	return cmocka_run_group_tests_name("proc", tests, NULL, NULL);
}
