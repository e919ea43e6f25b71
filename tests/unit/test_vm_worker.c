/* host/vm/vm and host/vm/boot as worker VMs need them: the job and its phases, the log, the
 * attribution of an end, and a disk that is kept. What runs in the VMM's place is a plain function
 * (vm_harness.h). */
#include "vm_harness.h"

#include "host/vm/control.h"
#include "host/vm/logpipe.h"

static struct worker_job job = {.kind = WORKER_LOCAL,
	.name = (char *)"web",
	.install = (char *)"npm ci",
	.run = (char *)"node x.js",
	.install_digest = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
	.nofile = 65536};

static int vmm_pid, boot_pid;

static int begin(void **state)
{
	(void)state;
	use_job = &job;
	use_callbacks = &worker_callbacks;
	return 0;
}

/* --- job and phases --- */

static void test_job(void **state)
{
	struct run r = {0};
	char text[4096];

	(void)state;
	init_logs(&r);
	start(&r, &steady, "worker", 0);
	assert_int_equal(vm_pid(r.vm), child_of(getpid()));
	read_agent(&r, text, sizeof(text), "\n");
	assert_non_null(
		strstr(text, "\"worker\":{\"name\":\"web\",\"kind\":\"local\",\"setup\":null,"
			     "\"install\":\"npm ci\",\"run\":\"node x.js\""));
	finish(&r);
	expect(&r, VM_END_CLEAN, 0, 42, "status 42");
	assert_int_equal(r.x.guest_status, 42);
	assert_string_equal(r.phases, "023");
	assert_string_equal((char *)r.logs[VM_STREAM_CONSOLE].data, "worker's words\n");
	assert_string_equal(
		(char *)r.logs[VM_STREAM_HOST].data, "the VM starts: steady, 1 vCPUs, 64 MiB\n");
	free_logs(&r);
}

static void test_phases_out_of_turn(void **state)
{
	static const char *const names[] = {"phase_back", "phase_twice", "phase_early"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct run r = {0};

		init_logs(&r);
		run(&r, &steady, names[i], 0);
		expect(&r, VM_END_GUEST_CRASH, SIGKILL, 0, "a phase out of turn");
		free_logs(&r);
	}
}

/* A sandbox has none. */
static void test_phase_without_job(void **state)
{
	struct run r = {0};

	(void)state;
	use_job = NULL;
	use_callbacks = &callbacks;
	run(&r, &steady, "worker", 0);
	expect(&r, VM_END_GUEST_CRASH, SIGKILL, 0, "a phase out of turn");
}

static void test_bad_job(void **state)
{
	struct worker_job bad = job;
	cleanup_fd int upper = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	struct run r = {0};
	struct err e = ERR_INIT;

	(void)state;
	bad.run = (char *)"";
	use_job = &bad;
	assert_true(start_with(&r, &steady, "worker", upper, 0, &e) < 0);
	assert_string_equal(e.code, "S300");
	assert_non_null(strstr(e.text, "worker: run"));
}

/* --- how it ended --- */

static void then_kill(struct run *r)
{
	char text[64];

	read_agent(r, text, sizeof(text), "said\n");
	vm_kill(r->vm);
}

static void test_attribution(void **state)
{
	struct run r = {.then = then_kill};

	(void)state;
	init_logs(&r);
	/* What the guest said counts more than the signal behind it. */
	run(&r, &steady, "says_exit", 0);
	expect(&r, VM_END_STOPPED, SIGKILL, 0, "as asked");
	assert_int_equal(r.x.guest_status, 5);
	free_logs(&r);
	r = (struct run){0};
	init_logs(&r);
	run(&r, &steady, "exit3", 0);
	expect(&r, VM_END_VMM_FAILED, 0, 3, "status 3");
	assert_int_equal(r.x.guest_status, -1);
	assert_non_null(strstr((char *)r.logs[VM_STREAM_HOST].data, "boom: no such device\n"));
	free_logs(&r);
	r = (struct run){0};
	init_logs(&r);
	run(&r, &steady, "exit0", 0);
	expect(&r, VM_END_GUEST_CRASH, 0, 0, "without notice");
	assert_int_equal(r.x.guest_status, -1);
	free_logs(&r);
}

static void then_term_boot(struct run *r)
{
	read_pids(r, &vmm_pid, &boot_pid);
	kill(boot_pid, SIGTERM);
}

static void test_boot_lost(void **state)
{
	struct run r = {.then = then_term_boot};

	(void)state;
	init_logs(&r);
	run(&r, &steady, "pids", 0);
	expect(&r, VM_END_BOOT_LOST, SIGTERM, 0, "signal 15");
	assert_int_equal(r.x.guest_status, -1);
	expect_death(vmm_pid);
	free_logs(&r);
}

/* --- shutdown --- */

static void then_shorten(struct run *r)
{
	vm_shutdown(r->vm, GUARD_MS * 10);
	vm_shutdown(r->vm, 50);
}
static void then_lengthen(struct run *r)
{
	vm_shutdown(r->vm, 50);
	vm_shutdown(r->vm, GUARD_MS * 10);
}
static void then_shutdown_and_kill(struct run *r)
{
	vm_shutdown(r->vm, GUARD_MS * 10);
	vm_kill(r->vm);
}

static void test_shutdown_again(void **state)
{
	static const struct {
		void (*then)(struct run *r);
		const char *why;
	} cases[] = {
		{then_shorten, "did not leave"},
		{then_lengthen, "did not leave"},
		{then_shutdown_and_kill, "as asked"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct run r = {.then = cases[i].then};

		init_logs(&r);
		run(&r, &steady, "deaf", 0);
		expect(&r, VM_END_STOPPED, SIGKILL, 0, cases[i].why);
		free_logs(&r);
	}
}

static void then_ask(struct run *r)
{
	vm_shutdown(r->vm, 100);
}

/* What is left of the grace is the guest's; then it has the time to sync. */
static void test_grace(void **state)
{
	struct run r = {.then = then_ask};
	char text[256] = "";
	cleanup_fd int upper = file_of("upper.ext4", "\0", 1, O_RDWR);

	(void)state;
	init_logs(&r);
	assert_int_equal(start_with(&r, &steady, "saves_late", upper, 0, NULL), 0);
	finish(&r);
	expect(&r, VM_END_CLEAN, 0, 0, "powered off");
	assert_true(fd_pread_full(upper, text, sizeof(text) - 1, 0) > 0);
	assert_string_equal(text, "{\"cmd\":\"shutdown\",\"grace_ms\":75}");
	free_logs(&r);
}

/* --- the log --- */

/* All lines of `every` numbers, in order, with `last` behind them. */
static void check_count(const struct buf *log, unsigned every, const char *first, const char *last)
{
	const char *p = (const char *)log->data;
	char line[64];

	assert_true(str_starts(p, first));
	p += strlen(first);
	for (unsigned i = 0; i < COUNT_TO; i += every) {
		int n = snprintf(line, sizeof(line), "line %u of the console\n", i);

		if (strncmp(p, line, (size_t)n) != 0)
			fail_msg("\"%.40s\" where line %u should be", p, i);
		p += n;
	}
	assert_string_equal(p, last);
}

static long boot_rss_kib;

static void measure(void)
{
	cleanup_free char *text = NULL;
	char path[64];
	const char *at;
	long kib;

	snprintf(path, sizeof(path), "/proc/%d/status", boot_pid);
	if (fd_slurp_at(AT_FDCWD, path, 65536, &text, NULL) < 0 ||
		!(at = strstr(text, "RssAnon:")) || sscanf(at + 8, " %ld", &kib) != 1)
		return; /* it has ended */
	boot_rss_kib = MAX(boot_rss_kib, kib);
}

/* Slower than the VM is. */
static void dawdle(void)
{
	measure();
	poll(NULL, 0, 1);
}

static void then_find_boot(struct run *r)
{
	boot_pid = vm_pid(r->vm);
}

static void test_log_is_whole(void **state)
{
	struct run r = {.then = then_find_boot, .slow = dawdle};

	(void)state;
	init_logs(&r);
	run(&r, &steady, "counts", 0);
	expect(&r, VM_END_CLEAN, 0, 0, "powered off");
	check_count(&r.logs[VM_STREAM_CONSOLE], 1, "", "the end");
	check_count(&r.logs[VM_STREAM_HOST], 16, "the VM starts: steady, 1 vCPUs, 64 MiB\n", "");
	/* The tail is kept all the same. */
	assert_non_null(strstr(r.tail, "console: the end\n"));
	print_message("supervisor with a slow reader: %ld KiB of its own\n", boot_rss_kib);
#ifndef __SANITIZE_ADDRESS__
	assert_true(boot_rss_kib > 0 && boot_rss_kib <= 1024);
#endif
	free_logs(&r);
}

static size_t in_this_turn;
static struct run *paced;

static void new_turn(uv_prepare_t *p)
{
	(void)p;
	in_this_turn = 0;
}

static void count_turn(void)
{
	static size_t before;
	size_t all = paced->logs[VM_STREAM_CONSOLE].len + paced->logs[VM_STREAM_HOST].len;

	in_this_turn += all - MIN(before, all);
	before = all;
	assert_true(in_this_turn <= LOGPIPE_CHUNK_MAX);
	if (all < (4u << 20))
		poll(NULL, 0, 1); /* so that there is always more to read */
	else if (all / LOGPIPE_CHUNK_MAX % 64 == 0)
		vm_log_pause(paced->vm, 1);
}

/* A flood leaves the loop to others after each chunk, and a pause loses nothing. */
static void test_log_in_turns(void **state)
{
	struct run r = {.slow = count_turn};
	uv_prepare_t turn;

	(void)state;
	paced = &r;
	init_logs(&r);
	uv_prepare_init(&loop, &turn);
	uv_prepare_start(&turn, new_turn);
	uv_unref((uv_handle_t *)&turn);
	run(&r, &steady, "counts", 0);
	expect(&r, VM_END_CLEAN, 0, 0, "powered off");
	check_count(&r.logs[VM_STREAM_CONSOLE], 1, "", "the end");
	check_count(&r.logs[VM_STREAM_HOST], 16, "the VM starts: steady, 1 vCPUs, 64 MiB\n", "");
	free_logs(&r);
	uv_close((uv_handle_t *)&turn, NULL);
	uv_run(&loop, UV_RUN_NOWAIT);
}

static void then_leave_loop(struct run *r)
{
	read_pids(r, &vmm_pid, &boot_pid);
	uv_stop(&loop);
}

/* A daemon that stands still: the VM waits for it, and ends without it. */
static void test_log_nobody_reads(void **state)
{
	int told[2], pids[2], status;
	pid_t daemon;

	(void)state;
	assert_int_equal(pipe(told), 0);
	daemon = fork();
	if (daemon == 0) {
		struct run r = {.then = then_leave_loop};

		uv_loop_init(&loop);
		init_logs(&r);
		start(&r, &steady, "counts", 0);
		uv_run(&loop, UV_RUN_DEFAULT);
		fd_write_all(told[1], (int[]){vmm_pid, boot_pid}, sizeof(pids));
		wait_for_ever();
	}
	assert_int_equal(fd_read_full(told[0], pids, sizeof(pids)), sizeof(pids));
	/* It fills every pipe on the way and sticks there. */
	for (int i = 0; i < 30; i++) {
		poll(NULL, 0, 10);
		assert_false(is_dead(pids[0]));
	}
	kill(pids[0], SIGKILL);
	expect_death(pids[0]);
	expect_death(pids[1]);
	kill(daemon, SIGKILL);
	assert_int_equal(waitpid(daemon, &status, 0), daemon);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	close(told[0]);
	close(told[1]);
}

static size_t heard;

static void count_bytes(enum vm_stream stream, const void *data, size_t len, void *user)
{
	assert_true(stream == VM_STREAM_CONSOLE || stream == VM_STREAM_HOST);
	assert_non_null(data);
	assert_true(len > 0 && len <= LOGPIPE_CHUNK_MAX);
	assert_null(user);
	heard += len;
}

static void test_log_frames(void **state)
{
	static const uint8_t good[] = {0, 0, 0, 2, 'a', 'b', 1, 0, 0, 1, 'c', 0, 0};
	static const uint8_t bad[][LOGPIPE_HDR] = {{2, 0, 0, 1}, {0, 0, 0, 0}, {1, 0, 0x40, 1},
		{0, 1, 0, 0}, {0xff, 0xff, 0xff, 0xff}};

	(void)state;
	for (size_t piece = 1; piece <= sizeof(good); piece++) {
		struct logpipe_reader lr = {0};

		heard = 0;
		for (size_t at = 0; at < sizeof(good); at += piece)
			assert_int_equal(logpipe_feed(&lr, good + at, MIN(piece, sizeof(good) - at),
						 count_bytes, NULL),
				0);
		assert_int_equal(heard, 3);
		assert_int_equal(lr.hdr_len, 2);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct logpipe_reader lr = {0};

		assert_int_equal(
			logpipe_feed(&lr, bad[i], sizeof(bad[i]), count_bytes, NULL), -EPROTO);
	}
}

static void test_log_writer(void **state)
{
	static struct logpipe_writer w;
	char chunk[LOGPIPE_CHUNK_MAX];
	int ends[2];

	(void)state;
	memset(chunk, 'x', sizeof(chunk));
	assert_int_equal(logpipe_new(ends), 0);
	logpipe_writer_init(&w, ends[1]);
	for (size_t i = 0; i <= LOGPIPE_SIZE / sizeof(chunk) && logpipe_idle(&w); i++)
		logpipe_put(&w, VM_STREAM_CONSOLE, chunk, sizeof(chunk));
	assert_false(logpipe_idle(&w));
	assert_int_equal(logpipe_flush(&w, 10), -ETIMEDOUT);
	close(ends[0]);
	/* The reader has gone: nothing waits for it. */
	assert_int_equal(logpipe_flush(&w, GUARD_MS), 0);
	assert_int_equal(w.fd, -1);
	logpipe_put(&w, VM_STREAM_HOST, chunk, 1);
	assert_true(logpipe_idle(&w));
}

/* --- a disk that is kept --- */

static int kept_disk(void)
{
	return file_of("upper.ext4", "\0", 1, O_RDWR);
}

static void expect_saved(int fd, int grace_ms)
{
	char text[256] = "", want[64];

	assert_true(fd_pread_full(fd, text, sizeof(text) - 1, 0) > 0);
	snprintf(want, sizeof(want), "{\"cmd\":\"shutdown\",\"grace_ms\":%d}",
		grace_ms - BOOT_GRACE_KEPT_MS);
	assert_string_equal(text, want);
}

/* Kills a daemon that runs a VM with a kept disk; returns when all of it is gone. held: somebody
 * else has its sockets open. */
static void orphan(const char *vmm, bool held)
{
	int told[2], pids[3];
	pid_t daemon;

	assert_int_equal(pipe(told), 0);
	daemon = fork();
	if (daemon == 0) {
		struct run r = {.then = then_leave_loop};
		struct err e = ERR_INIT;
		int upper = kept_disk();
		pid_t holder = 0;

		uv_loop_init(&loop);
		init_logs(&r);
		if (start_with(&r, &steady, vmm, upper, 0, &e) < 0)
			_exit(1);
		uv_run(&loop, UV_RUN_DEFAULT);
		if (held && (holder = fork()) == 0)
			wait_for_ever();
		fd_write_all(told[1], (int[]){vmm_pid, boot_pid, holder}, sizeof(pids));
		wait_for_ever();
	}
	assert_int_equal(fd_read_full(told[0], pids, sizeof(pids)), sizeof(pids));
	assert_false(is_dead(pids[0]));
	assert_false(is_dead(pids[1]));
	kill(daemon, SIGKILL);
	assert_int_equal(waitpid(daemon, NULL, 0), daemon);
	expect_death(pids[0]);
	expect_death(pids[1]);
	if (held)
		kill(pids[2], SIGKILL);
	close(told[0]);
	close(told[1]);
}

/* The guest has the time to sync, and not for ever. */
static void test_daemon_dies(void **state)
{
	cleanup_fd int upper = kept_disk();

	(void)state;
	orphan("saves", false);
	expect_saved(upper, BOOT_ORPHAN_MS);
	orphan("pids", false);
}

/* The signal alone is enough. */
static void test_daemon_dies_by_signal(void **state)
{
	cleanup_fd int upper = kept_disk();

	(void)state;
	orphan("saves", true);
	expect_saved(upper, BOOT_ORPHAN_MS);
}

static void then_hang_up(struct run *r)
{
	pid_t somebody;

	read_pids(r, &vmm_pid, &boot_pid);
	somebody = fork();
	if (somebody == 0) {
		kill(boot_pid, SIGHUP);
		_exit(0);
	}
	assert_int_equal(waitpid(somebody, NULL, 0), somebody);
	for (int i = 0; i < 30; i++)
		poll(NULL, 0, 10);
	vm_shutdown(r->vm, GUARD_MS);
}

/* It is not for the supervisor. */
static void test_hang_up(void **state)
{
	struct run r = {.then = then_hang_up};
	cleanup_fd int upper = kept_disk();

	(void)state;
	init_logs(&r);
	assert_int_equal(start_with(&r, &steady, "saves", upper, 0, NULL), 0);
	finish(&r);
	expect(&r, VM_END_CLEAN, 0, 0, "powered off");
	expect_saved(upper, GUARD_MS);
	free_logs(&r);
}

/* A VM that is about to be gone is waited for. */
static void test_disk_is_waited_for(void **state)
{
	cleanup_fd int first = kept_disk(), second = kept_disk();
	struct run a = {0}, b = {0};

	(void)state;
	use_callbacks = &callbacks;
	assert_int_equal(start_with(&a, &steady, "pids", first, 0, NULL), 0);
	read_pids(&a, &vmm_pid, &boot_pid);
	fd_close(&first);
	assert_int_equal(start_with(&b, &steady, "leaves_by_itself", second, 0, NULL), 0);
	vm_kill(a.vm);
	while (!a.ended || !b.ended)
		uv_run(&loop, UV_RUN_ONCE);
	finish(&a);
	finish(&b);
	expect(&b, VM_END_CLEAN, 0, 0, "powered off");
}

static void test_disk_in_use(void **state)
{
	cleanup_fd int first = kept_disk(), second = kept_disk();
	struct run a = {0}, b = {0}, c = {0};

	(void)state;
	use_callbacks = &callbacks;
	assert_int_equal(start_with(&a, &steady, "pids", first, 0, NULL), 0);
	read_pids(&a, &vmm_pid, &boot_pid);
	assert_int_equal(start_with(&b, &steady, "good", second, 0, NULL), 0);
	assert_int_equal(start_with(&c, &steady, "good", second, 0, NULL), 0);
	vm_kill(c.vm); /* while it waits */
	while (!b.ended || !c.ended)
		uv_run(&loop, UV_RUN_ONCE);
	expect(&b, VM_END_VMM_FAILED, 0, 0,
		"another VM still uses the disk upper (/var/tmp/test_vm_boot.");
	expect(&c, VM_END_STOPPED, 0, 0, "told to end");
	fd_close(&b.agent);
	fd_close(&c.agent);
	vm_kill(a.vm);
	finish(&a);
}

int main(int argc, char **argv)
{
#define WORKER_TEST(f) cmocka_unit_test_setup(f, begin)
	const struct CMUnitTest tests[] = {
		WORKER_TEST(test_job),
		WORKER_TEST(test_phases_out_of_turn),
		WORKER_TEST(test_phase_without_job),
		WORKER_TEST(test_bad_job),
		WORKER_TEST(test_attribution),
		WORKER_TEST(test_boot_lost),
		WORKER_TEST(test_shutdown_again),
		WORKER_TEST(test_grace),
		WORKER_TEST(test_log_is_whole),
		WORKER_TEST(test_log_in_turns),
		WORKER_TEST(test_log_nobody_reads),
		WORKER_TEST(test_log_frames),
		WORKER_TEST(test_log_writer),
		WORKER_TEST(test_daemon_dies),
		WORKER_TEST(test_daemon_dies_by_signal),
		WORKER_TEST(test_hang_up),
		WORKER_TEST(test_disk_is_waited_for),
		WORKER_TEST(test_disk_in_use),
	};

	VM_HARNESS_MAIN(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests_name("vm_worker", tests, setup, teardown);
}
