/* agent: the real program as a service: many calls, bad ones, scarce resources. */
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

#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(hello_tells_version_and_memory),
		T(thousands_of_short_execs_leave_nothing),
		T(orphans_are_reaped),
		T(two_hundred_at_once_work),
		T(bad_requests_are_answered),
		T(broken_records_are_answered),
		T(garbage_does_not_end_the_agent),
		cmocka_unit_test(pid_1_does_not_serve_tests),
		T(no_descriptors_is_an_error_reply),
	};

	return cmocka_run_group_tests_name("agent_service", tests, NULL, NULL);
}
