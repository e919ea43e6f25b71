/* agent: what a worker VM does by itself, with real scripts on plain folders. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#include "agent/cgroup.h"
#include "agent/provision.h"
#include "agent/reap.h"
#include "agent/spawn.h"
#include "agent/workspace.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"

#define GUARD_MS 60000 /* a test that takes longer hangs */

static struct {
	uv_loop_t loop;
	uv_timer_t guard, later;
	char dir[64];
	char *workspace, *output;
	int src_fd;
	struct worker_job job;
	char **env;
	struct buf phases;
	int status; /* -1: not over */
	int (*bring)(
		void *user, const struct worker_job *job, struct sync_counts *ret, struct err *e);
	/* When the output holds this text … */
	const char *when;
	/* … shutdown is asked for with these graces, one at each turn. */
	uint64_t graces[4];
	size_t n_graces, asked;
	int console_fd;
} rig;

static char *at(const char *path)
{
	return path_join(rig.dir, path);
}

static void put(const char *path, const char *text)
{
	cleanup_free char *whole = at(path);
	cleanup_fd int fd = open(whole, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

static char *output(void)
{
	char *text = NULL;

	assert_int_equal(fd_slurp_at(AT_FDCWD, rig.output, 1 << 20, &text, NULL), 0);
	return text;
}

static void assert_output(const char *want)
{
	cleanup_free char *text = output();

	assert_string_equal(text, want);
}

static int setup(void **state)
{
	static const char *const folders[] = {"src", "root"};

	memset(&rig, 0, sizeof(rig));
	/* Each test syncs often; a real disk would wait for everybody's data. */
	snprintf(rig.dir, sizeof(rig.dir), "%s/test_agent_prov.XXXXXX",
		access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	assert_non_null(mkdtemp(rig.dir));
	for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
		cleanup_free char *path = at(folders[i]);

		assert_int_equal(mkdir(path, 0755), 0);
	}
	cleanup_free char *src = at("src");
	rig.src_fd = open(src, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	rig.workspace = at("root/workspace");
	rig.output = at("output");
	put("output", "");
	put("src/file", "from the host\n");
	rig.job = (struct worker_job){
		.kind = WORKER_LOCAL, .name = (char *)"unit", .run = (char *)"echo run"};
	memset(rig.job.setup_digest, 'a', WORKER_DIGEST_LEN);
	memset(rig.job.install_digest, 'b', WORKER_DIGEST_LEN);
	strv_add(&rig.env, "PATH=/usr/local/bin:/usr/bin:/bin");
	buf_init(&rig.phases, 4096);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	uv_loop_init(&rig.loop);
	return 0;
}

static void close_handle(uv_handle_t *h, void *user)
{
	if (!uv_is_closing(h))
		uv_close(h, NULL);
}

static int teardown(void **state)
{
	uv_walk(&rig.loop, close_handle, NULL);
	uv_run(&rig.loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&rig.loop), 0);
	fd_close(&rig.src_fd);
	assert_int_equal(path_remove_at(AT_FDCWD, rig.dir), 0);
	free(rig.workspace);
	free(rig.output);
	strv_free(rig.env);
	buf_done(&rig.phases);
	return 0;
}

static int bring(void *user, const struct worker_job *job, struct sync_counts *ret, struct err *e)
{
	cleanup_free char *root = at("root");
	cleanup_fd int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return workspace_update(fd, rig.src_fd, job, ret, e);
}

static void on_phase(const char *phase, void *user)
{
	buf_printf(&rig.phases, "%s ", phase);
}

static void on_end(int status, void *user)
{
	assert_int_equal(rig.status, -1);
	rig.status = status;
	uv_stop(&rig.loop);
}

static void on_guard(uv_timer_t *timer)
{
	fail_msg("hung");
}

static void on_later(uv_timer_t *timer)
{
	cleanup_free char *text = output();

	if (!strstr(text, rig.when))
		return;
	if (rig.asked == rig.n_graces)
		uv_timer_stop(timer);
	else
		assert_true(provision_shutdown(rig.graces[rig.asked++]));
}

/* Runs the job to its end; the status. */
static int run(void)
{
	cleanup_free char *root = at("root");
	struct provision_config config = {.job = &rig.job,
		.env = rig.env,
		.workdir = rig.workspace,
		.root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
		.console_fd = open(rig.output, O_WRONLY | O_APPEND | O_CLOEXEC),
		.bring = rig.bring ? rig.bring : bring,
		.on_phase = on_phase,
		.on_end = on_end};

	assert_int_equal(spawn_start(), 0);
	assert_int_equal(reap_start(&rig.loop), 0);
	rig.status = -1;
	rig.asked = 0;
	buf_clear(&rig.phases);
	buf_add_str(&rig.phases, "");
	uv_timer_init(&rig.loop, &rig.guard);
	uv_timer_start(&rig.guard, on_guard, GUARD_MS, 0);
	if (rig.when) {
		uv_timer_init(&rig.loop, &rig.later);
		uv_timer_start(&rig.later, on_later, 10, 10);
	}
	provision_start(&rig.loop, &config);
	while (rig.status < 0)
		uv_run(&rig.loop, UV_RUN_DEFAULT);
	assert_false(provision_shutdown(0));
	provision_stop();
	reap_stop();
	spawn_stop();
	close_handle((uv_handle_t *)&rig.guard, NULL);
	if (rig.when)
		close_handle((uv_handle_t *)&rig.later, NULL);
	uv_run(&rig.loop, UV_RUN_NOWAIT);
	return rig.status;
}

static void assert_phases(const char *want)
{
	assert_string_equal(rig.phases.data ? (char *)rig.phases.data : "", want);
}

/* --- the order of things --- */

static void everything_once_then_only_run(void **state)
{
	rig.job.setup = (char *)"echo setup; cat file";
	rig.job.install = (char *)"echo install; mkdir node_modules";
	rig.job.run = (char *)"echo run; ls; exit 7";
	assert_int_equal(run(), 7);
	assert_phases("sync setup install run ");
	assert_output("setup\nfrom the host\ninstall\nrun\nfile\nnode_modules\n");
	put("output", "");
	assert_int_equal(run(), 7);
	assert_phases("sync run ");
	assert_output("run\nfile\nnode_modules\n");
	/* Another lock file: install only. */
	put("output", "");
	memset(rig.job.install_digest, 'c', WORKER_DIGEST_LEN);
	rig.job.install = (char *)"echo install again";
	assert_int_equal(run(), 7);
	assert_phases("sync install run ");
	/* Another setup: both. */
	memset(rig.job.setup_digest, 'd', WORKER_DIGEST_LEN);
	assert_int_equal(run(), 7);
	assert_phases("sync setup install run ");
}

static void failing_scripts_end_it_and_leave_the_marker(void **state)
{
	rig.job.setup = (char *)"echo one\nfalse\necho two";
	rig.job.install = (char *)"echo install";
	assert_int_equal(run(), 1);
	assert_phases("sync setup ");
	assert_output("one\n");
	rig.job.setup = (char *)"true";
	rig.job.install = (char *)"exit 42";
	assert_int_equal(run(), 42);
	assert_phases("sync setup install ");
	rig.job.install = (char *)"kill -SEGV $$";
	assert_int_equal(run(), 128 + SIGSEGV);
	rig.job.install = (char *)"true";
	assert_int_equal(run(), 0);
	assert_phases("sync setup install run ");
	/* The worker's own command does not stop at a failing line. */
	rig.job.run = (char *)"false\necho went on\nkill -SEGV $$";
	put("output", "");
	assert_int_equal(run(), 128 + SIGSEGV);
	assert_output("went on\n");
	assert_phases("sync run ");
}

static void scripts_get_what_they_should(void **state)
{
	struct rlimit files;
	cleanup_free char *text = NULL;

	strv_add(&rig.env, "HOME=/home/of/the/host");
	strv_add(&rig.env, "TMPDIR=/no/such");
	strv_add(&rig.env, "SHELL=/bin/no-such-shell");
	strv_add(&rig.env, "MINE=yes 'quoted'");
	rig.job.nofile = 777;
	rig.job.run = (char *)"pwd; echo $HOME $LANG \"$TMPDIR\" \"$MINE\"; env | grep -c SHELL; "
			      "ulimit -Sn; ulimit -Hn; readlink /proc/self/fd/0; "
			      "ps -o sid= -p $$ | tr -d ' ' | grep -qx $$ && echo leader; "
			      "ls /proc/$$/fd | wc -l; echo err >&2; "
			      "trap | wc -l; kill -PIPE $$; echo no";
	assert_int_equal(run(), 128 + SIGPIPE);
	text = xasprintf(
		"%s\n/root C.UTF-8  yes 'quoted'\n0\n777\n777\n/dev/null\nleader\n", rig.workspace);
	cleanup_free char *have = output();
	assert_true(str_starts(have, text));
	assert_non_null(strstr(have, "err\n"));
	assert_null(strstr(have, "no\n"));
	/* 0: as every program of the guest. */
	rig.job.nofile = 0;
	put("output", "");
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	rig.job.run = (char *)"ulimit -Sn";
	assert_int_equal(run(), 0);
	assert_output("1024\n");
}

static void more_files_than_the_kernel_allows(void **state)
{
	cleanup_free char *most = NULL, *want = NULL, *got = NULL;
	struct rlimit files;

	assert_int_equal(fd_slurp_at(AT_FDCWD, "/proc/sys/fs/nr_open", 64, &most, NULL), 0);
	most[strcspn(most, "\n")] = '\0';
	rig.job.nofile = UINT64_MAX / 2;
	rig.job.run = (char *)"ulimit -Hn";
	assert_int_equal(run(), 0);
	want = xasprintf("%s\n", most);
	got = output();
	/* Without the right to raise it, what there is. */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	free(STEAL(most));
	most = xasprintf("%llu\n", (unsigned long long)files.rlim_max);
	if (!str_eq(got, want))
		assert_string_equal(got, most);
}

static int bring_fails(
	void *user, const struct worker_job *job, struct sync_counts *ret, struct err *e)
{
	return err_set(e, "S300", EIO, "cannot copy a/b: %s", err_str(EIO));
}

static int bring_crashes(
	void *user, const struct worker_job *job, struct sync_counts *ret, struct err *e)
{
	raise(SIGKILL);
	return 0;
}

static void failures_of_ours_are_125(void **state)
{
	rig.bring = bring_fails;
	assert_int_equal(run(), PROVISION_FAILED);
	assert_phases("sync ");
	rig.bring = bring_crashes;
	assert_int_equal(run(), PROVISION_FAILED);
	assert_phases("sync ");
}

static void a_folder_that_is_gone(void **state)
{
	rig.workspace[strlen(rig.workspace) - 1] = '\0';
	assert_int_equal(run(), 127);
	assert_phases("sync run ");
}

static void a_marker_that_cannot_be_written_is_no_end(void **state)
{
	cleanup_free char *path = at("root/var");

	/* A folder stands where the marker should be. */
	assert_int_equal(mkdir(path, 0755), 0);
	free(STEAL(path));
	path = at("root/var/.iii-prepared");
	assert_int_equal(mkdir(path, 0755), 0);
	rig.job.install = (char *)"echo install";
	assert_int_equal(run(), 0);
	assert_phases("sync install run ");
	assert_int_equal(run(), 0);
	assert_phases("sync install run ");
	assert_output("install\nrun\ninstall\nrun\n");
}

/* --- the end --- */

/* Nothing of the group is left. */
static void background_ends_with_the_worker(void **state)
{
	cleanup_free char *text = NULL;
	uint32_t pid = 0;

	rig.job.run = (char *)"sleep 1000 & echo $!; exit 3";
	assert_int_equal(run(), 3);
	text = output();
	text[strcspn(text, "\n")] = '\0';
	assert_int_equal(str_u32(text, &pid), 0);
	assert_true(pid > 1);
	for (int i = 0; i < 1000 && kill((pid_t)pid, 0) == 0; i++) {
		reap_now();
		uv_sleep(10);
	}
	assert_int_equal(kill((pid_t)pid, 0), -1);
}

static void shutdown_is_heard(void **state)
{
	rig.job.run =
		(char *)"trap 'echo term; exit 0' TERM; echo up; while :; do sleep 0.05; done";
	rig.when = "up";
	rig.graces[rig.n_graces++] = 50000;
	assert_int_equal(run(), 0);
	/* The shell may say that its sleep was terminated. */
	cleanup_free char *text = output();
	assert_non_null(strstr(text, "term\n"));
}

static void shutdown_is_heard_once(void **state)
{
	/* A worker that takes a second SIGTERM as "at once" does not get one. */
	rig.job.run = (char *)"n=0; trap 'n=$((n+1))' TERM; echo up; "
			      "while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; exit $n";
	rig.when = "up";
	rig.graces[0] = 50000;
	rig.graces[1] = 40000;
	rig.graces[2] = 45000;
	rig.n_graces = 3;
	assert_int_equal(run(), 1);
}

static void deaf_workers_are_killed(void **state)
{
	rig.job.run = (char *)"trap '' TERM; echo up; while :; do sleep 0.05; done";
	rig.when = "up";
	rig.graces[rig.n_graces++] = 100;
	assert_int_equal(run(), 128 + SIGKILL);
}

static void a_shorter_grace_shortens(void **state)
{
	rig.job.run = (char *)"trap '' TERM; echo up; while :; do sleep 0.05; done";
	rig.when = "up";
	rig.graces[rig.n_graces++] = UINT64_MAX;
	rig.graces[rig.n_graces++] = 50;
	rig.graces[rig.n_graces++] = 1000000;
	assert_int_equal(run(), 128 + SIGKILL);
}

static void no_grace_at_all(void **state)
{
	rig.job.run = (char *)"trap '' TERM; echo up; while :; do sleep 0.05; done";
	rig.when = "up";
	rig.graces[rig.n_graces++] = 0;
	assert_int_equal(run(), 128 + SIGKILL);
}

static void the_group_has_its_time_after_the_shell(void **state)
{
	/* The shell dies at once; what it started ends in order. */
	rig.job.run = (char *)"sh -c 'trap \"sleep 0.3; echo ended in order; exit 0\" TERM; "
			      "echo up; while :; do sleep 0.05; done' ; echo not reached";
	rig.when = "up";
	rig.graces[rig.n_graces++] = 50000;
	assert_int_equal(run(), 128 + SIGTERM);
	cleanup_free char *text = output();
	assert_non_null(strstr(text, "ended in order\n"));
	assert_null(strstr(text, "not reached"));
}

static void shutdown_while_installing(void **state)
{
	rig.job.install = (char *)"echo up; while :; do sleep 0.05; done";
	rig.when = "up";
	rig.graces[rig.n_graces++] = 50000;
	assert_int_equal(run(), 128 + SIGTERM);
	assert_phases("sync install ");
	/* It was not done. */
	rig.when = NULL;
	rig.job.install = (char *)"true";
	assert_int_equal(run(), 0);
	assert_phases("sync install run ");
}

static int bring_waits(
	void *user, const struct worker_job *job, struct sync_counts *ret, struct err *e)
{
	put("output", "up");
	pause();
	return -EINTR;
}

static void shutdown_while_syncing(void **state)
{
	rig.bring = bring_waits;
	rig.when = "up";
	rig.graces[rig.n_graces++] = 50000;
	assert_int_equal(run(), 128 + SIGTERM);
	assert_phases("sync ");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(everything_once_then_only_run, setup, teardown),
		cmocka_unit_test_setup_teardown(
			failing_scripts_end_it_and_leave_the_marker, setup, teardown),
		cmocka_unit_test_setup_teardown(scripts_get_what_they_should, setup, teardown),
		cmocka_unit_test_setup_teardown(more_files_than_the_kernel_allows, setup, teardown),
		cmocka_unit_test_setup_teardown(failures_of_ours_are_125, setup, teardown),
		cmocka_unit_test_setup_teardown(a_folder_that_is_gone, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_marker_that_cannot_be_written_is_no_end, setup, teardown),
		cmocka_unit_test_setup_teardown(background_ends_with_the_worker, setup, teardown),
		cmocka_unit_test_setup_teardown(shutdown_is_heard, setup, teardown),
		cmocka_unit_test_setup_teardown(shutdown_is_heard_once, setup, teardown),
		cmocka_unit_test_setup_teardown(deaf_workers_are_killed, setup, teardown),
		cmocka_unit_test_setup_teardown(a_shorter_grace_shortens, setup, teardown),
		cmocka_unit_test_setup_teardown(no_grace_at_all, setup, teardown),
		cmocka_unit_test_setup_teardown(
			the_group_has_its_time_after_the_shell, setup, teardown),
		cmocka_unit_test_setup_teardown(shutdown_while_installing, setup, teardown),
		cmocka_unit_test_setup_teardown(shutdown_while_syncing, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
