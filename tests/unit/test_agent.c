/* agent: exec by the real program, over a socketpair. */
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

static void a_deadline_tells_the_end_of_what_was_dropped(void **state)
{
	static const char *const argv[] = {"sh", "-c",
		"head -c 3000000 /dev/zero | tr '\\0' x; printf 'last words'; printf oops >&2; "
		"sleep 60",
		NULL};
	json_object *head = exec_head(argv);
	struct call k;
	const char *tail;

	json_add_u64(head, "deadline_ms", 3000);
	json_add_u64(head, "stdout_cap", 1 << 20);
	call_begin(&k, &agent, "/exec", head);
	call_complete(&k);
	call_wait(&k);
	assert_true(end_bool(&k, "timed_out"));
	assert_int_equal(end_int(&k, "stdout_dropped"), 3000010 - (1 << 20));
	tail = end_str(&k, "stdout_tail");
	assert_int_equal(strlen(tail), 2 * GUEST_TAIL_MAX);
	assert_true(str_starts(tail, "7878"));
	assert_true(str_ends(tail, "78786c61737420776f726473"));
	assert_string_equal(end_str(&k, "stderr_tail"), ""); /* nothing was dropped of it */
	assert_err(&k, "oops");
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

#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(exit_codes_and_both_outputs_arrive),
		T(signals_are_128_plus_n),
		T(programs_get_a_clean_start),
		T(environment_is_defaults_base_then_exec),
		T(big_environments_and_arguments_pass),
		T(workdir_is_entered),
		T(programs_that_cannot_start_are_normal_replies),
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
		T(a_deadline_tells_the_end_of_what_was_dropped),
		cmocka_unit_test(without_cgroups_a_deadline_kills_the_process_group),
		T(deadline_kills_everything),
		T(deadline_kills_setsid_children),
		T(deadline_kills_a_fork_bomb),
		T(deadline_zero_counts_as_one),
		T(reset_kills),
		T(reset_during_output_kills),
	};

	return cmocka_run_group_tests_name("agent", tests, NULL, NULL);
}
