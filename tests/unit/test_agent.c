/* agent: the real program, driven over a socketpair. */
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
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent_client.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"

static struct client agent;

static const char ENV[] = "{\"env\":[\"FROM=base\",\"OVER=base\",\"no_equals\",\"=x\"],"
			  "\"hostname\":\"test\",\"time_ns\":0}";

static int start(void **state)
{
	client_start(&agent, ENV);
	return 0;
}

/* Whatever a test did, nothing may be left of it. */
static int stop(void **state)
{
	assert_int_equal(agent.calls, 0);
	assert_int_equal(client_stop(&agent), 0);
	return 0;
}

#define assert_out(k, text) assert_text(&(k)->out, text)
#define assert_err(k, text) assert_text(&(k)->err, text)

static void assert_text(const struct buf *b, const char *want)
{
	assert_string_equal(b->data ? (const char *)b->data : "", want);
}

static void begin_exec(struct call *k, const char *script, uint64_t deadline_ms)
{
	const char *const argv[] = {"sh", "-c", script, NULL};
	json_object *head = exec_head(argv);

	json_add_u64(head, "deadline_ms", deadline_ms);
	call_begin(k, &agent, "/exec", head);
}

/* A word no other process has on its command line. */
static const char *fresh_marker(void)
{
	static char marker[64];
	static unsigned n;

	snprintf(marker, sizeof(marker), "7%d.%u", (int)getpid(), ++n);
	return marker;
}

static bool no_marked_process(void *marker)
{
	return processes_with(marker) == 0;
}

/* Waits until at least n processes have the marker. */
static void wait_for_processes(const char *marker, size_t n)
{
	for (int i = 0; processes_with(marker) < n; i++) {
		if (i == GUARD_MS / 5)
			fail_msg("%zu processes did not start", n);
		client_run_for(&agent, 5);
	}
}

static bool fds_are_back(void *count)
{
	return agent_fd_count(&agent) == *(size_t *)count;
}

/* --- hello --- */

static void hello_tells_version_and_memory(void **state)
{
	struct call k;

	call_begin(&k, &agent, "/hello", json_object_new_object());
	call_complete(&k);
	call_wait(&k);
	assert_string_equal(end_str(&k, "agent_version"), "0.2.2");
	assert_true(end_int(&k, "boot_us") > 0);
	assert_true(end_int(&k, "rss_kib") > 100);
	call_done(&k);
}

/* --- exit --- */

static void exit_codes_and_both_outputs_arrive(void **state)
{
	static const int codes[] = {0, 1, 7, 127, 255};
	struct call k;

	for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
		cleanup_free char *script = xasprintf("echo out; echo err >&2; exit %d", codes[i]);

		call_shell(&k, &agent, script);
		assert_int_equal(end_int(&k, "exit_code"), codes[i]);
		assert_int_equal(end_int(&k, "signal"), 0);
		assert_false(end_bool(&k, "timed_out"));
		assert_string_equal(end_str(&k, "start_error"), "");
		assert_out(&k, "out\n");
		assert_err(&k, "err\n");
		call_done(&k);
	}
}

static void signals_are_128_plus_n(void **state)
{
	static const int signals[] = {SIGKILL, SIGTERM, SIGSEGV, SIGPIPE};
	struct call k;

	for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
		cleanup_free char *script = xasprintf("ulimit -c 0; kill -%d $$", signals[i]);

		call_shell(&k, &agent, script);
		assert_int_equal(end_int(&k, "exit_code"), 128 + signals[i]);
		assert_int_equal(end_int(&k, "signal"), signals[i]);
		call_done(&k);
	}
}

/* --- what a program finds --- */

static void programs_get_a_clean_start(void **state)
{
	struct call k;

	call_shell(&k, &agent,
		"ls /proc/self/fd | wc -l; umask; pwd; grep -E '^Sig(Blk|Ign)' /proc/self/status");
	/* 0, 1, 2 and the folder that ls reads */
	assert_out(&k, "4\n0022\n/\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
	call_done(&k);
	call_shell(&k, &agent, "yes | head -n 1");
	assert_out(&k, "y\n");
	call_done(&k);
	/* pid, process group and session are one number; there is no terminal. */
	const char *const argv[] = {
		"awk", "{print $1 == $5, $1 == $6, $7}", "/proc/self/stat", NULL};

	call_begin(&k, &agent, "/exec", exec_head(argv));
	call_complete(&k);
	call_wait(&k);
	assert_out(&k, "1 1 0\n");
	call_done(&k);
}

static void environment_is_defaults_base_then_exec(void **state)
{
	const char *const argv[] = {"env", NULL};
	const char *const env[] = {"OVER=exec", "NEW=a=b", "OVER=last", "bad", "=bad", NULL};
	json_object *head = exec_head(argv);
	struct call k;

	json_add_strv(head, "env", (char *const *)env);
	call_begin(&k, &agent, "/exec", head);
	call_complete(&k);
	call_wait(&k);
	assert_out(&k, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
		       "HOME=/root\nFROM=base\nNEW=a=b\nOVER=last\n");
	call_done(&k);
}

static void big_environments_and_arguments_pass(void **state)
{
	cleanup_free char *big = xmalloc(100001);
	char **argv = NULL, **env = NULL;
	json_object *head = json_object_new_object();
	struct call k;

	memset(big, 'x', 100000);
	big[100000] = '\0';
	strv_add(&argv, "sh");
	strv_add(&argv, "-c");
	strv_add(&argv, "printf %s \"$1\" | wc -c; env | wc -l; printf %s \"$ODD\"");
	strv_add(&argv, "sh");
	strv_add(&argv, big);
	for (int i = 0; i < 5000; i++) {
		cleanup_free char *entry = xasprintf("VARIABLE_%d=%d", i, i);

		strv_add(&env, entry);
	}
	strv_add(&env, "ODD=a\nb\"c\\d\xc3\xa9'");
	json_add_strv(head, "argv", argv);
	json_add_strv(head, "env", env);
	json_add_u64(head, "deadline_ms", 60000);
	call_begin(&k, &agent, "/exec", head);
	call_complete(&k);
	call_wait(&k);
	assert_int_equal(end_int(&k, "exit_code"), 0);
	/* PATH, HOME, FROM, OVER, PWD, ODD (two lines) and the 5000 */
	assert_out(&k, "100000\n5007\na\nb\"c\\d\xc3\xa9'");
	call_done(&k);
	strv_free(argv);
	strv_free(env);
}

static void workdir_is_entered(void **state)
{
	static const char *const rows[][2] = {
		{"/usr", "/usr\n"}, {"", "/\n"}, {"tmp", "/tmp\n"}, {NULL, "/\n"}};
	const char *const argv[] = {"pwd", NULL};
	struct call k;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		json_object *head = exec_head(argv);

		if (rows[i][0])
			json_add_str(head, "workdir", rows[i][0]);
		call_begin(&k, &agent, "/exec", head);
		call_complete(&k);
		call_wait(&k);
		assert_out(&k, rows[i][1]);
		call_done(&k);
	}
}

/* --- cannot start --- */

static void start_failure(const char *program, const char *workdir, int code, const char *text)
{
	const char *const argv[] = {program, NULL};
	json_object *head = exec_head(argv);
	struct call k;

	if (workdir)
		json_add_str(head, "workdir", workdir);
	call_begin(&k, &agent, "/exec", head);
	call_complete(&k);
	call_wait(&k);
	assert_string_equal(end_error(&k), "");
	assert_string_equal(end_str(&k, "start_error"), text);
	assert_int_equal(end_int(&k, "exit_code"), code);
	assert_int_equal(k.out.len + k.err.len, 0);
	call_done(&k);
}

static void programs_that_cannot_start_are_normal_replies(void **state)
{
	char dir[] = "/tmp/sandbox-agent-XXXXXX";

	assert_non_null(mkdtemp(dir));
	cleanup_fd int d = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_free char *plain = path_join(dir, "plain"), *text = path_join(dir, "text");
	cleanup_free char *loop = path_join(dir, "loop"), *interp = path_join(dir, "interp");
	cleanup_free char *plain_err = xasprintf("exec: %s: permission denied", plain);
	cleanup_free char *dir_err = xasprintf("exec: %s: permission denied", dir);
	cleanup_free char *text_err = xasprintf("exec: %s: Exec format error", text);
	cleanup_free char *loop_err =
		xasprintf("exec: %s: Too many levels of symbolic links", loop);
	cleanup_free char *interp_err = xasprintf("exec: %s: not found", interp);
	cleanup_free char *under = xasprintf("%s/x", plain);
	cleanup_free char *under_err = xasprintf("exec: %s: not found", under);
	cleanup_free char *work_err = xasprintf("exec: workdir %s: not found", plain);
	char name[300];

	fd_publish_at(d, "plain", "x", 1, 0644);
	fd_publish_at(d, "text", "echo hi\n", 8, 0755);
	fd_publish_at(d, "interp", "#!/no/such\n", 11, 0755);
	assert_int_equal(symlinkat("loop", d, "loop"), 0);
	memset(name, 'n', 299);
	name[299] = '\0';
	cleanup_free char *name_err = xasprintf("exec: %s: File name too long", name);

	start_failure("no-such-program", NULL, 127, "exec: no-such-program: not found");
	start_failure("/no/such", NULL, 127, "exec: /no/such: not found");
	start_failure("", NULL, 127, "exec: : not found");
	start_failure(under, NULL, 127, under_err);
	start_failure(plain, NULL, 126, plain_err);
	start_failure(dir, NULL, 126, dir_err);
	start_failure(text, NULL, 126, text_err);
	start_failure(loop, NULL, 126, loop_err);
	start_failure(interp, NULL, 127, interp_err);
	start_failure(name, NULL, 126, name_err);
	start_failure("true", "/no/such", 127, "exec: workdir /no/such: not found");
	start_failure("true", plain, 127, work_err);
	path_remove_at(AT_FDCWD, dir);
}

static void arguments_too_big_for_the_kernel_are_126(void **state)
{
	cleanup_free char *big = xmalloc(200001);
	const char *argv[] = {"true", big, NULL};
	struct call k;

	memset(big, 'x', 200000); /* one string may have 128 KiB */
	big[200000] = '\0';
	call_begin(&k, &agent, "/exec", exec_head(argv));
	call_complete(&k);
	call_wait(&k);
	assert_int_equal(end_int(&k, "exit_code"), 126);
	assert_string_equal(end_str(&k, "start_error"), "exec: true: Argument list too long");
	call_done(&k);
}

/* --- output --- */

static void output_is_cut_at_the_cap_and_counted(void **state)
{
	static const struct {
		const char *script;
		uint64_t cap, out, dropped;
	} rows[] = {
		{"head -c 50000000 /dev/zero", 1 << 20, 1 << 20, 50000000 - (1 << 20)},
		{"head -c 1048576 /dev/zero", 1 << 20, 1 << 20, 0},
		{"head -c 1048577 /dev/zero", 1 << 20, 1 << 20, 1},
		{"head -c 10 /dev/zero", 0, 0, 10},
		{"head -c 50000000 /dev/zero", UINT64_MAX, 50000000, 0},
	};
	struct call k;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		cleanup_free char *script = xasprintf("%s; echo done >&2; exit 7", rows[i].script);
		const char *const argv[] = {"sh", "-c", script, NULL};
		json_object *head = exec_head(argv);

		json_add_u64(head, "stdout_cap", rows[i].cap);
		call_begin(&k, &agent, "/exec", head);
		call_complete(&k);
		call_wait(&k);
		assert_int_equal(end_int(&k, "exit_code"), 7);
		assert_int_equal(k.out.len, rows[i].out);
		assert_int_equal(end_int(&k, "stdout_dropped"), rows[i].dropped);
		assert_int_equal(end_int(&k, "stderr_dropped"), 0);
		assert_err(&k, "done\n");
		call_done(&k);
	}
}

static void output_of_an_ending_program_is_whole(void **state)
{
	struct call k;

	for (int i = 0; i < 100; i++) {
		call_shell(&k, &agent, "seq 1 20000; seq 1 5000 >&2");
		assert_int_equal(k.out.len, 108894);
		assert_int_equal(k.err.len, 23893);
		call_done(&k);
	}
}

static void slow_reader_stops_the_program_and_loses_nothing(void **state)
{
	struct call k, other;

	begin_exec(&k, "head -c 3000000 /dev/zero; exit 3", 60000);
	call_complete(&k);
	call_pause(&k, true);
	client_run_for(&agent, 300);
	assert_true(k.out.len <= 64 << 10);
	/* Nobody else is held up by it. */
	call_shell(&other, &agent, "echo ok");
	assert_out(&other, "ok\n");
	call_done(&other);
	call_pause(&k, false);
	call_wait(&k);
	assert_int_equal(k.out.len, 3000000);
	assert_int_equal(end_int(&k, "exit_code"), 3);
	call_done(&k);
}

static void what_was_written_before_the_exit_survives_a_slow_reader(void **state)
{
	const char *marker = fresh_marker();
	cleanup_free char *script =
		xasprintf("head -c 100000 /dev/zero; sleep %s & exit 0", marker);
	struct call k;

	/* The window is shut and the pipe holds the rest when the program ends; a background child
	 * keeps the pipe open, and the reader sleeps longer than the grace. */
	begin_exec(&k, script, 60000);
	call_complete(&k);
	call_pause(&k, true);
	client_run_for(&agent, 1800);
	call_pause(&k, false);
	call_wait(&k);
	assert_int_equal(k.out.len, 100000);
	call_done(&k);
	assert_int_equal(kill_processes_with(marker), 1);
	client_run_until(&agent, no_marked_process, (void *)marker);
	client_run_until_idle(&agent);
}

/* --- stdin --- */

static void stdin_of_8_mib_comes_through(void **state)
{
	size_t len = 8 << 20;
	cleanup_free uint8_t *data = xmalloc(len);
	struct call k;

	for (size_t i = 0; i < len; i++)
		data[i] = (uint8_t)(i * 2654435761u >> 13);
	begin_exec(&k, "cat", 60000);
	call_data(&k, data, len);
	call_complete(&k);
	call_wait(&k);
	assert_int_equal(k.out.len, len);
	assert_memory_equal(k.out.data, data, len);
	call_done(&k);
}

static void stdin_ends_when_there_is_none(void **state)
{
	struct call k;

	call_shell(&k, &agent, "cat; echo end");
	assert_out(&k, "end\n");
	call_done(&k);
}

static void stdin_nobody_reads_holds_nothing_up(void **state)
{
	static const char *const scripts[] = {
		"true", "exec 0<&-; sleep 0.2; exit 0", "head -c 10 >/dev/null", "sleep 0.3"};
	size_t len = 1 << 20;
	cleanup_free uint8_t *data = xcalloc(1, len);
	struct call k;

	for (size_t i = 0; i < ARRAY_LEN(scripts); i++) {
		begin_exec(&k, scripts[i], 60000);
		call_data(&k, data, len);
		call_complete(&k);
		call_wait(&k);
		assert_int_equal(end_int(&k, "exit_code"), 0);
		call_done(&k);
	}
}

static void exit_wins_over_open_stdin(void **state)
{
	struct call k;

	begin_exec(&k, "echo gone", 60000);
	/* Never completed by us: on_end of the test client does it when the answer is there. */
	call_wait(&k);
	assert_int_equal(end_int(&k, "exit_code"), 0);
	assert_out(&k, "gone\n");
	call_done(&k);
}

static bool has_eight_bytes(void *user)
{
	return ((struct call *)user)->out.len >= 8;
}

static void stdin_is_answered_in_dialogue(void **state)
{
	struct call k;

	begin_exec(&k, "while read x; do echo got $x; done", 60000);
	call_data(&k, "one\n", 4);
	client_run_until(&agent, has_eight_bytes, &k);
	call_data(&k, "two\n", 4);
	call_complete(&k);
	call_wait(&k);
	assert_out(&k, "got one\ngot two\n");
	call_done(&k);
}

/* --- background children --- */

static void background_child_does_not_hold_the_answer(void **state)
{
	const char *marker = fresh_marker();
	cleanup_free char *script = xasprintf("sleep %s & echo hi", marker);
	struct call k;

	call_shell(&k, &agent, script);
	assert_out(&k, "hi\n");
	assert_int_equal(end_int(&k, "exit_code"), 0);
	call_done(&k);
	assert_int_equal(processes_with(marker), 1);
	if (client_has_cgroup(&agent))
		assert_int_equal(agent_leaves(&agent), 1);
	assert_int_equal(kill_processes_with(marker), 1);
	client_run_until(&agent, no_marked_process, (void *)marker);
	client_run_until_idle(&agent);
}

static void background_child_is_never_hit_by_sigpipe(void **state)
{
	char dir[] = "/tmp/sandbox-agent-XXXXXX";

	assert_non_null(mkdtemp(dir));
	/* Writes far more than a pipe holds, after the answer, and then says that it lived. */
	cleanup_free char *script = xasprintf(
		"(sleep 1.5; head -c 1000000 /dev/zero; echo $? > %s/alive) & exit 0", dir);
	cleanup_free char *file = path_join(dir, "alive");
	cleanup_free char *text = NULL;
	struct call k;

	call_shell(&k, &agent, script);
	assert_int_equal(k.out.len, 0);
	call_done(&k);
	for (int i = 0; i < 1000 && access(file, F_OK) < 0; i++)
		client_run_for(&agent, 20);
	client_run_for(&agent, 50);
	assert_int_equal(fd_slurp_at(AT_FDCWD, file, 100, &text, NULL), 0);
	assert_string_equal(text, "0\n");
	path_remove_at(AT_FDCWD, dir);
}

static void nohup_child_survives_its_exec(void **state)
{
	const char *marker = fresh_marker();
	cleanup_free char *script =
		xasprintf("setsid nohup sleep %s >/dev/null 2>&1 </dev/null & exit 0", marker);
	struct call k;

	call_shell(&k, &agent, script);
	call_done(&k);
	client_run_for(&agent, 200);
	assert_int_equal(processes_with(marker), 1);
	assert_int_equal(kill_processes_with(marker), 1);
	client_run_until(&agent, no_marked_process, (void *)marker);
}

static void pipes_of_background_programs_are_given_back(void **state)
{
	enum { N = 40 };
	const char *marker = fresh_marker();
	cleanup_free char *script = xasprintf("sleep %s & exit 0", marker);
	size_t fds = agent_fd_count(&agent);
	struct call k[N];

	for (size_t i = 0; i < N; i++) {
		begin_exec(&k[i], script, 60000);
		call_complete(&k[i]);
	}
	for (size_t i = 0; i < N; i++) {
		call_wait(&k[i]);
		assert_int_equal(end_int(&k[i], "exit_code"), 0);
		call_done(&k[i]);
	}
	assert_int_equal(agent_fd_count(&agent), fds + 2 * N);
	assert_int_equal(kill_processes_with(marker), N);
	client_run_until_idle(&agent);
	client_run_until(&agent, fds_are_back, &fds);
}

static void closed_outputs_do_not_end_a_program(void **state)
{
	struct call k;

	call_shell(&k, &agent, "echo a; exec >&- 2>&-; sleep 0.3; exit 5");
	assert_int_equal(end_int(&k, "exit_code"), 5);
	assert_out(&k, "a\n");
	call_done(&k);
}

/* --- deadline, reset --- */

static void deadline_comes_also_while_nobody_reads(void **state)
{
	const char *marker = fresh_marker();
	cleanup_free char *script = xasprintf("yes %s", marker);
	struct call k;

	begin_exec(&k, script, 300);
	call_complete(&k);
	call_pause(&k, true);
	wait_for_processes(marker, 1);
	client_run_until(&agent, no_marked_process, (void *)marker);
	call_pause(&k, false);
	call_wait(&k);
	assert_true(end_bool(&k, "timed_out"));
	assert_int_equal(end_int(&k, "exit_code"), 137);
	call_done(&k);
	client_run_until_idle(&agent);
}

static void without_cgroups_a_deadline_kills_the_process_group(void **state)
{
	const char *marker = fresh_marker();
	cleanup_free char *script = xasprintf("sleep %s & trap '' TERM; sleep %s", marker, marker);
	struct client plain;
	const char *const argv[] = {"sh", "-c", script, NULL};
	json_object *head = exec_head(argv);
	struct call k;

	client_start_without_cgroup(&plain);
	json_add_u64(head, "deadline_ms", 300);
	call_begin(&k, &plain, "/exec", head);
	call_complete(&k);
	call_wait(&k);
	assert_int_equal(processes_with(marker), 0);
	assert_true(end_bool(&k, "timed_out"));
	call_done(&k);
	client_run_until_idle(&plain);
	assert_int_equal(client_stop(&plain), 0);
}

static void deadline_kills_everything(void **state)
{
	static const char *const scripts[] = {
		"echo before; sleep $1",
		"trap '' TERM INT HUP ALRM; echo before; sleep $1; sleep $1",
		"echo before; sleep $1 & sleep $1 & wait",
		"echo before; kill -STOP $$; sleep $1",
	};
	struct call k;

	for (size_t i = 0; i < ARRAY_LEN(scripts); i++) {
		const char *marker = fresh_marker();
		const char *const argv[] = {"sh", "-c", scripts[i], "sh", marker, NULL};
		json_object *head = exec_head(argv);

		json_add_u64(head, "deadline_ms", 300);
		call_begin(&k, &agent, "/exec", head);
		call_complete(&k);
		call_wait(&k);
		assert_int_equal(processes_with(marker), 0);
		assert_true(end_bool(&k, "timed_out"));
		assert_int_equal(end_int(&k, "exit_code"), 137);
		assert_out(&k, "before\n");
		call_done(&k);
	}
}

static void deadline_kills_setsid_children(void **state)
{
	const char *marker = fresh_marker();
	cleanup_free char *script = xasprintf(
		"setsid sh -c 'setsid sleep %s & sleep %s' & (setsid sleep %s &) ; sleep %s",
		marker, marker, marker, marker);
	struct call k;

	if (!client_has_cgroup(&agent)) {
		print_message("skipped: no cgroup v2 folder may be made here\n");
		skip();
	}
	begin_exec(&k, script, 500);
	call_complete(&k);
	call_wait(&k);
	/* Before the loop ran again: nothing of it may be alive when the answer is out. */
	assert_int_equal(processes_with(marker), 0);
	assert_true(end_bool(&k, "timed_out"));
	call_done(&k);
	assert_int_equal(agent_leaves(&agent), 0);
}

static void deadline_kills_a_fork_bomb(void **state)
{
	const char *marker = fresh_marker();
	cleanup_free char *script = xasprintf(
		"f() { sh -c 'sleep %s' & sh -c 'sleep %s' & }; i=0; while [ $i -lt 200 ]; do f; "
		"i=$((i+1)); done; sleep %s",
		marker, marker, marker);
	struct call k;

	begin_exec(&k, script, 400);
	call_complete(&k);
	call_wait(&k);
	assert_int_equal(processes_with(marker), 0);
	assert_true(end_bool(&k, "timed_out"));
	call_done(&k);
}

static void deadline_zero_counts_as_one(void **state)
{
	struct call k;

	begin_exec(&k, "sleep 1000", 0);
	call_complete(&k);
	call_wait(&k);
	assert_true(end_bool(&k, "timed_out"));
	call_done(&k);
}

static void reset_kills(void **state)
{
	const char *marker = fresh_marker();
	cleanup_free char *script = xasprintf("sleep %s & sleep %s", marker, marker);
	struct call k;

	begin_exec(&k, script, 60000);
	wait_for_processes(marker, 3);
	call_reset(&k);
	call_wait(&k);
	call_done(&k);
	client_run_until(&agent, no_marked_process, (void *)marker);
	client_run_until_idle(&agent);
}

static bool has_a_mebibyte(void *user)
{
	return ((struct call *)user)->out.len >= 1 << 20;
}

static void reset_during_output_kills(void **state)
{
	const char *marker = fresh_marker();
	cleanup_free char *script = xasprintf("yes; sleep %s", marker);
	struct call k;

	begin_exec(&k, script, 60000);
	call_complete(&k);
	client_run_until(&agent, has_a_mebibyte, &k);
	call_reset(&k);
	call_wait(&k);
	call_done(&k);
	client_run_until(&agent, no_marked_process, (void *)marker);
}

/* --- many --- */

static void thousands_of_short_execs_leave_nothing(void **state)
{
	enum { ALL = 2000, AT_ONCE = 4 };
	const char *const argv[] = {"true", NULL};
	struct call k[AT_ONCE];
	size_t fds = agent_fd_count(&agent), done = 0, begun = 0;

	for (; begun < AT_ONCE; begun++) {
		call_begin(&k[begun], &agent, "/exec", exec_head(argv));
		call_complete(&k[begun]);
	}
	while (done < ALL) {
		for (size_t i = 0; i < AT_ONCE; i++) {
			if (!k[i].client || !k[i].closed)
				continue;
			assert_int_equal(end_int(&k[i], "exit_code"), 0);
			call_done(&k[i]);
			k[i].client = NULL;
			done++;
			if (begun < ALL) {
				call_begin(&k[i], &agent, "/exec", exec_head(argv));
				call_complete(&k[i]);
				begun++;
			}
		}
		client_run_for(&agent, 1);
		assert_false(agent.broken);
	}
	client_run_until_idle(&agent);
	client_run_until(&agent, fds_are_back, &fds);
}

static void orphans_are_reaped(void **state)
{
	struct call k;

	call_shell(&k, &agent,
		"i=0; while [ $i -lt 50 ]; do (sleep 0.2 >/dev/null 2>&1 &); i=$((i+1)); done");
	call_done(&k);
	client_run_until_idle(&agent);
}

static void two_hundred_at_once_work(void **state)
{
	enum { N = 200 };
	struct call *k = xcalloc(N, sizeof(*k));
	size_t fds = agent_fd_count(&agent);

	for (size_t i = 0; i < N; i++) {
		cleanup_free char *script = xasprintf("sleep 0.5; echo %zu; exit %zu", i, i % 100);

		begin_exec(&k[i], script, 60000);
		call_complete(&k[i]);
	}
	for (size_t i = 0; i < N; i++) {
		cleanup_free char *want = xasprintf("%zu\n", i);

		call_wait(&k[i]);
		assert_out(&k[i], want);
		assert_int_equal(end_int(&k[i], "exit_code"), i % 100);
		call_done(&k[i]);
	}
	free(k);
	client_run_until(&agent, fds_are_back, &fds);
}

/* --- bad requests --- */

static void bad_request(const char *path, const char *head, const char *code, const char *text)
{
	struct call k;

	call_begin(&k, &agent, path, NULL);
	guest_rec_add(&k.request, GUEST_REC_HEAD, head, strlen(head));
	call_complete(&k);
	call_wait(&k);
	assert_string_equal(end_error(&k), code);
	if (!strstr(end_error_text(&k), text))
		fail_msg("\"%s\" is not in \"%s\"", text, end_error_text(&k));
	call_done(&k);
}

static void bad_requests_are_answered(void **state)
{
	bad_request("/nope", "{}", "S219", "supervisor");
	bad_request("/exec", "{", "", "/exec");
	bad_request("/exec", "[]", "", "object");
	bad_request("/exec", "{}", "S001", "argv");
	bad_request("/exec", "{\"argv\":[],\"deadline_ms\":1}", "S001", "argv");
	bad_request("/exec", "{\"argv\":[1],\"deadline_ms\":1}", "S001", "argv");
	bad_request("/exec", "{\"argv\":[\"a\\u0000\"],\"deadline_ms\":1}", "S001", "argv");
	bad_request("/exec", "{\"argv\":[\"true\"]}", "S001", "deadline_ms");
	bad_request("/fs/read", "{\"path\":7}", "S210", "path");
	bad_request("/fs/write", "{\"path\":\"/tmp/x\",\"mode\":4096}", "S210", "mode");
}

static void broken_records_are_answered(void **state)
{
	static const char *const rows[] = {
		"\x02\x00\x00\x00\x01x", "\x09zzzzzzzz", "\x01\xff\xff\xff\xff", "\x01\x00", ""};
	static const size_t lens[] = {6, 9, 5, 2, 0};
	struct call k;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		call_begin(&k, &agent, "/exec", NULL);
		buf_add(&k.request, rows[i], lens[i]);
		call_complete(&k);
		call_wait(&k);
		assert_non_null(k.end);
		assert_true(strlen(end_error_text(&k)) > 0);
		call_done(&k);
	}
	/* A second head in the middle of a running exec. */
	begin_exec(&k, "sleep 1000", 60000);
	guest_rec_add(&k.request, GUEST_REC_HEAD, "{}", 2);
	call_complete(&k);
	call_wait(&k);
	assert_true(strlen(end_error_text(&k)) > 0);
	call_done(&k);
	client_run_until_idle(&agent);
}

static void garbage_does_not_end_the_agent(void **state)
{
	const char *marker = fresh_marker();
	cleanup_free char *script = xasprintf("sleep %s", marker);
	char noise[5000];
	struct call k;

	begin_exec(&k, script, 60000);
	wait_for_processes(marker, 1);
	memset(noise, 0x5a, sizeof(noise));
	assert_int_equal(fd_write_all(agent.fd, noise, sizeof(noise)), 0);
	/* The connection is over, its exec killed. */
	for (int i = 0; processes_with(marker); i++) {
		if (i == GUARD_MS / 5)
			fail_msg("the exec of a broken connection lives on");
		poll(NULL, 0, 5);
	}
	assert_int_equal(kill(agent.agent, 0), 0);
	mux_free(agent.mux);
	agent.mux = NULL;
	call_done(&k);
	client_reconnect(&agent);
	call_shell(&k, &agent, "echo again");
	assert_out(&k, "again\n");
	call_done(&k);
}

static void pid_1_does_not_serve_tests(void **state)
{
	int status = agent_as_pid1();

	if (status < 0) {
		print_message("skipped: no pid namespace may be made here\n");
		skip();
	}
	assert_int_equal(status, 2);
}

/* --- resources --- */

static void no_descriptors_is_an_error_reply(void **state)
{
	struct rlimit old, tight;
	struct call k;

	assert_int_equal(prlimit(agent.agent, RLIMIT_NOFILE, NULL, &old), 0);
	tight = (struct rlimit){agent_fd_count(&agent) + 2, old.rlim_max};
	assert_int_equal(prlimit(agent.agent, RLIMIT_NOFILE, &tight, NULL), 0);
	call_shell(&k, &agent, "true");
	assert_string_equal(end_error(&k), "S300");
	assert_non_null(strstr(end_error_text(&k), "Too many open files"));
	call_done(&k);
	assert_int_equal(prlimit(agent.agent, RLIMIT_NOFILE, &old, NULL), 0);
	call_shell(&k, &agent, "echo fine");
	assert_out(&k, "fine\n");
	call_done(&k);
}

/* --- files --- */

static void write_file(
	struct call *k, const char *path, uint32_t mode, bool parents, const void *data, size_t len)
{
	json_object *head = json_object_new_object();

	json_add_str(head, "path", path);
	json_add_u64(head, "mode", mode);
	json_add_bool(head, "parents", parents);
	call_begin(k, &agent, "/fs/write", head);
	call_data(k, data, len);
	call_complete(k);
	call_wait(k);
}

static void read_file(struct call *k, const char *path)
{
	json_object *head = json_object_new_object();

	json_add_str(head, "path", path);
	call_begin(k, &agent, "/fs/read", head);
	call_complete(k);
	call_wait(k);
}

static void write_fails(const char *path, bool parents, const char *code, const char *text)
{
	struct call k;

	write_file(&k, path, 0644, parents, "data", 4);
	assert_string_equal(end_error(&k), code);
	if (!strstr(end_error_text(&k), text))
		fail_msg("\"%s\" is not in \"%s\"", text, end_error_text(&k));
	call_done(&k);
}

static void read_fails(const char *path, const char *code)
{
	struct call k;

	read_file(&k, path);
	assert_null(k.head);
	assert_string_equal(end_error(&k), code);
	assert_true(strlen(end_error_text(&k)) > 0);
	call_done(&k);
}

static char scratch[64];

static int make_scratch(void **state)
{
	snprintf(scratch, sizeof(scratch), "/tmp/sandbox-agent-XXXXXX");
	return mkdtemp(scratch) ? start(state) : -1;
}

static int drop_scratch(void **state)
{
	path_remove_at(AT_FDCWD, scratch);
	return stop(state);
}

static size_t names_in_scratch(void)
{
	struct call k;
	cleanup_free char *script = xasprintf("ls -A %s | wc -l", scratch);
	uint32_t n = 0;

	call_shell(&k, &agent, script);
	assert_true(k.out.len > 1);
	k.out.data[k.out.len - 1] = '\0';
	assert_int_equal(str_u32((char *)k.out.data, &n), 0);
	call_done(&k);
	return n;
}

static void wait_for_names(size_t n)
{
	for (int i = 0; names_in_scratch() != n; i++) {
		if (i == GUARD_MS / 10)
			fail_msg("the folder never had %zu names", n);
		client_run_for(&agent, 10);
	}
}

static void files_are_written_and_read_back(void **state)
{
	static const size_t sizes[] = {0, 1, 4096, 65531, 65536, 5 << 20};
	cleanup_free char *path = path_join(scratch, "f");
	struct call k;
	struct stat st;

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		cleanup_free uint8_t *data = xmalloc(sizes[i] + 1);

		for (size_t j = 0; j < sizes[i]; j++)
			data[j] = (uint8_t)(j * 2654435761u >> 11);
		write_file(&k, path, 04751, false, data, sizes[i]);
		assert_int_equal(end_int(&k, "bytes_written"), sizes[i]);
		call_done(&k);
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_mode & 07777, 04751);
		read_file(&k, path);
		assert_non_null(k.head);
		uint64_t size = 0, mode = 0;
		int64_t mtime = 0;
		json_get_u64(k.head, "size", JSON_REQUIRED, &size, NULL);
		json_get_u64(k.head, "mode", JSON_REQUIRED, &mode, NULL);
		json_get_i64(k.head, "mtime", JSON_REQUIRED, &mtime, NULL);
		assert_int_equal(size, sizes[i]);
		assert_int_equal(mode, 04751);
		assert_int_equal(mtime, st.st_mtime);
		assert_int_equal(k.data.len, sizes[i]);
		if (sizes[i])
			assert_memory_equal(k.data.data, data, sizes[i]);
		assert_string_equal(end_error(&k), "");
		call_done(&k);
	}
	assert_int_equal(names_in_scratch(), 1);
}

static void write_replaces_links_and_makes_parents(void **state)
{
	cleanup_free char *target = path_join(scratch, "target"), *link = path_join(scratch, "ln");
	cleanup_free char *deep = path_join(scratch, "a/b/c.txt"), *a = path_join(scratch, "a");
	cleanup_free char *text = NULL;
	struct stat st;
	struct call k;

	write_file(&k, target, 0644, false, "old", 3);
	call_done(&k);
	assert_int_equal(symlink(target, link), 0);
	write_file(&k, link, 0600, false, "new", 3);
	assert_int_equal(end_int(&k, "bytes_written"), 3);
	call_done(&k);
	assert_int_equal(lstat(link, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	assert_int_equal(fd_slurp_at(AT_FDCWD, target, 10, &text, NULL), 0);
	assert_string_equal(text, "old");
	write_fails(deep, false, "S211", "parent not found");
	write_file(&k, deep, 0644, true, "z", 1);
	assert_int_equal(end_int(&k, "bytes_written"), 1);
	call_done(&k);
	assert_int_equal(stat(a, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
}

static void write_refuses_what_it_must(void **state)
{
	cleanup_free char *fifo = path_join(scratch, "fifo"), *dir = path_join(scratch, "dir");
	cleanup_free char *file = path_join(scratch, "file");
	cleanup_free char *slash = xasprintf("%s/none/", scratch), *dslash = xasprintf("%s/", dir);
	cleanup_free char *below = xasprintf("%s/x", file), *dots = xasprintf("%s/..", dir);
	char *longest = xasprintf("%s/%0255d", scratch, 1);
	char *too_long = xasprintf("%s/%0256d", scratch, 1);
	size_t before;
	struct call k;

	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(mkdir(dir, 0755), 0);
	write_file(&k, file, 0644, false, "keep", 4);
	call_done(&k);
	before = names_in_scratch();
	write_fails(fifo, false, "S212", fifo);
	write_fails(dir, false, "S212", dir);
	write_fails(dslash, false, "S212", dir);
	write_fails(dots, false, "S212", dir);
	write_fails("/", false, "S212", "/");
	write_fails("/dev/null", false, "S212", "/dev/null");
	write_fails(slash, true, "S210", slash);
	write_fails("relative", false, "S210", "path");
	write_fails("", false, "S210", "path");
	write_fails(below, false, "S212", file);
	write_fails(below, true, "S212", file);
	write_fails(too_long, false, "S210", "too long");
	if (access("/proc/sys", F_OK) == 0)
		write_fails("/proc/no-such-file-here", false, "S211", "/proc");
	assert_int_equal(names_in_scratch(), before);
	write_file(&k, longest, 0644, false, "x", 1);
	assert_int_equal(end_int(&k, "bytes_written"), 1);
	call_done(&k);
	free(longest);
	free(too_long);
}

static void interrupted_writes_leave_the_old_file(void **state)
{
	cleanup_free char *path = path_join(scratch, "f"), *text = NULL;
	cleanup_free uint8_t *big = xcalloc(1, 300000);
	json_object *head = json_object_new_object();
	struct call k;

	write_file(&k, path, 0644, false, "old", 3);
	call_done(&k);
	json_add_str(head, "path", path);
	call_begin(&k, &agent, "/fs/write", head);
	call_data(&k, big, 300000);
	wait_for_names(2);
	call_reset(&k);
	call_wait(&k);
	call_done(&k);
	wait_for_names(1);
	/* Cut in the middle of a record: refused, not published. */
	head = json_object_new_object();
	json_add_str(head, "path", path);
	call_begin(&k, &agent, "/fs/write", head);
	buf_add(&k.request,
		"\x02\x00\x00\x00\x0a"
		"12345",
		10);
	call_complete(&k);
	call_wait(&k);
	assert_true(strlen(end_error_text(&k)) > 0);
	call_done(&k);
	assert_int_equal(names_in_scratch(), 1);
	assert_int_equal(fd_slurp_at(AT_FDCWD, path, 10, &text, NULL), 0);
	assert_string_equal(text, "old");
}

static void a_full_disk_is_reported_and_cleaned_up(void **state)
{
	cleanup_free uint8_t *big = xcalloc(1, 1 << 20);
	cleanup_free char *mount_it = xasprintf("mount -t tmpfs -o size=256k none %s", scratch);
	cleanup_free char *unmount = xasprintf("umount %s", scratch);
	cleanup_free char *path = path_join(scratch, "big");
	struct call k;

	call_shell(&k, &agent, mount_it);
	bool mounted = end_int(&k, "exit_code") == 0;
	call_done(&k);
	if (!mounted) {
		print_message("skipped: no right to mount a tmpfs here\n");
		skip();
	}
	write_file(&k, path, 0644, false, big, 1 << 20);
	cleanup_free char *code = xstrdup(end_error(&k));
	cleanup_free char *text = xstrdup(end_error_text(&k));
	call_done(&k);
	size_t left = names_in_scratch();
	call_shell(&k, &agent, unmount);
	call_done(&k);
	assert_string_equal(code, "S216");
	assert_non_null(strstr(text, "No space left"));
	assert_int_equal(left, 0);
}

static void concurrent_writers_never_mix(void **state)
{
	enum { N = 64, LEN = 200000 };
	cleanup_free char *path = path_join(scratch, "f"), *text = NULL;
	struct call *k = xcalloc(N, sizeof(*k));
	cleanup_free uint8_t *data = xmalloc(LEN);
	size_t len;

	for (size_t i = 0; i < N; i++) {
		json_object *head = json_object_new_object();

		memset(data, 'A' + (int)i % 26, LEN);
		json_add_str(head, "path", path);
		call_begin(&k[i], &agent, "/fs/write", head);
		call_data(&k[i], data, LEN);
		call_complete(&k[i]);
	}
	for (size_t i = 0; i < N; i++) {
		call_wait(&k[i]);
		assert_int_equal(end_int(&k[i], "bytes_written"), LEN);
		call_done(&k[i]);
	}
	free(k);
	assert_int_equal(fd_slurp_at(AT_FDCWD, path, LEN, &text, &len), 0);
	assert_int_equal(len, LEN);
	for (size_t i = 1; i < LEN; i++)
		assert_int_equal(text[i], text[0]);
	assert_int_equal(names_in_scratch(), 1);
}

static void read_refuses_what_is_no_file(void **state)
{
	cleanup_free char *fifo = path_join(scratch, "fifo"), *dangling = path_join(scratch, "ln");
	cleanup_free char *self = path_join(scratch, "self");

	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(symlink("/no/such", dangling), 0);
	assert_int_equal(symlink("self", self), 0);
	read_fails(scratch, "S212");
	read_fails(fifo, "S212");
	read_fails("/dev/zero", "S212");
	read_fails("/no/such", "S211");
	read_fails(dangling, "S211");
	read_fails(self, "S216");
	read_fails("relative", "S210");
	read_fails("/etc/passwd/", "S212");
}

static void read_follows_links_and_trusts_no_size(void **state)
{
	cleanup_free char *link = path_join(scratch, "ln"), *f = path_join(scratch, "f");
	struct call k;
	uint64_t size = 1;

	write_file(&k, f, 0640, false, "text", 4);
	call_done(&k);
	assert_int_equal(symlink("f", link), 0);
	read_file(&k, link);
	assert_text(&k.data, "text");
	call_done(&k);
	read_file(&k, "/proc/version");
	assert_int_equal(json_get_u64(k.head, "size", JSON_REQUIRED, &size, NULL), 1);
	assert_int_equal(size, 0);
	assert_true(k.data.len > 10);
	call_done(&k);
}

static void unread_files_hold_nobody_up(void **state)
{
	enum { N = 20 };
	cleanup_free char *path = path_join(scratch, "big");
	cleanup_free uint8_t *big = xcalloc(1, 5 << 20);
	struct call k[N], other;
	json_object *head;

	write_file(&other, path, 0644, false, big, 5 << 20);
	call_done(&other);
	for (size_t i = 0; i < N; i++) {
		head = json_object_new_object();
		json_add_str(head, "path", path);
		call_begin(&k[i], &agent, "/fs/read", head);
		call_complete(&k[i]);
		call_pause(&k[i], true);
	}
	client_run_for(&agent, 200);
	call_shell(&other, &agent, "echo ok");
	assert_out(&other, "ok\n");
	call_done(&other);
	for (size_t i = 0; i < N; i++) {
		call_reset(&k[i]);
		call_wait(&k[i]);
		call_done(&k[i]);
	}
}

#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)
#define F(f) cmocka_unit_test_setup_teardown(f, make_scratch, drop_scratch)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(hello_tells_version_and_memory),
		T(exit_codes_and_both_outputs_arrive),
		T(signals_are_128_plus_n),
		T(programs_get_a_clean_start),
		T(environment_is_defaults_base_then_exec),
		T(big_environments_and_arguments_pass),
		T(workdir_is_entered),
		F(programs_that_cannot_start_are_normal_replies),
		T(arguments_too_big_for_the_kernel_are_126),
		T(output_is_cut_at_the_cap_and_counted),
		T(output_of_an_ending_program_is_whole),
		T(slow_reader_stops_the_program_and_loses_nothing),
		T(what_was_written_before_the_exit_survives_a_slow_reader),
		T(stdin_of_8_mib_comes_through),
		T(stdin_ends_when_there_is_none),
		T(stdin_nobody_reads_holds_nothing_up),
		T(exit_wins_over_open_stdin),
		T(stdin_is_answered_in_dialogue),
		T(background_child_does_not_hold_the_answer),
		T(background_child_is_never_hit_by_sigpipe),
		T(nohup_child_survives_its_exec),
		T(pipes_of_background_programs_are_given_back),
		T(closed_outputs_do_not_end_a_program),
		T(deadline_comes_also_while_nobody_reads),
		cmocka_unit_test(without_cgroups_a_deadline_kills_the_process_group),
		T(deadline_kills_everything),
		T(deadline_kills_setsid_children),
		T(deadline_kills_a_fork_bomb),
		T(deadline_zero_counts_as_one),
		T(reset_kills),
		T(reset_during_output_kills),
		T(thousands_of_short_execs_leave_nothing),
		T(orphans_are_reaped),
		T(two_hundred_at_once_work),
		T(bad_requests_are_answered),
		T(broken_records_are_answered),
		T(garbage_does_not_end_the_agent),
		cmocka_unit_test(pid_1_does_not_serve_tests),
		T(no_descriptors_is_an_error_reply),
		F(files_are_written_and_read_back),
		F(write_replaces_links_and_makes_parents),
		F(write_refuses_what_it_must),
		F(interrupted_writes_leave_the_old_file),
		F(a_full_disk_is_reported_and_cleaned_up),
		F(concurrent_writers_never_mix),
		F(read_refuses_what_is_no_file),
		F(read_follows_links_and_trusts_no_size),
		F(unread_files_hold_nobody_up),
	};

	return cmocka_run_group_tests_name("agent", tests, NULL, NULL);
}
