/* host/vm/vm and host/vm/boot: how a VM ends, what is told of it, and what its VMM gets to see.
 *
 * The daemon's side and the supervisor are the real ones; only what runs in the VMM's place is a
 * plain function (vm_harness.h). Real VMs are the e2e tests' business.
 */
#include "vm_harness.h"

static void then_shutdown(struct run *r)
{
	vm_shutdown(r->vm, GUARD_MS);
}
static void then_shutdown_soon(struct run *r)
{
	vm_shutdown(r->vm, 50);
}
static void then_kill(struct run *r)
{
	vm_kill(r->vm);
	vm_kill(r->vm);
}

static void test_clean(void **state)
{
	struct run r = {.then = then_shutdown};
	char text[4096];
	int before;

	(void)state;
	/* The loop and this module's statics have their descriptors after a first VM. */
	run(&r, &steady, "leaves_by_itself", 0);
	before = count_fds();
	r = (struct run){.then = then_shutdown};
	start(&r, &steady, "good", 0);
	assert_string_equal(vm_backend_name(r.vm), "steady");
	read_agent(&r, text, sizeof(text), "\n");
	assert_non_null(strstr(text,
		"{\"env\":[\"A=b\",\"SECRET=hunter2\"],\"hostname\":\"sandbox\",\"time_ns\":"));
	finish(&r);
	assert_true(r.ready);
	expect(&r, VM_END_CLEAN, 0, 7, "status 7");
	assert_string_equal(r.tail, "console: hello from the guest\n");
	assert_int_equal(count_fds(), before);
}

static void test_leaves_by_itself(void **state)
{
	struct run r = {0};

	(void)state;
	run(&r, &steady, "leaves_by_itself", 0);
	expect(&r, VM_END_CLEAN, 0, 0, "powered off");
}

static void test_cannot_start(void **state)
{
	struct run r = {0};

	(void)state;
	run(&r, &steady, "cannot_start", 0);
	assert_false(r.ready);
	expect(&r, VM_END_GUEST_CRASH, SIGKILL, 0,
		"the guest could not start: cannot mount?the base disk");
	assert_string_equal(r.tail, "console: something about disks\n");
}

static void test_stream_ends_with_vm(void **state)
{
	struct run r = {0};
	cleanup_fd int agent = -1;
	char c;

	(void)state;
	start(&r, &shaky, "leaves_by_itself", 0);
	agent = dup(r.agent);
	finish(&r);
	assert_int_equal(read(agent, &c, 1), 0);
}

static void test_failures(void **state)
{
	static const struct {
		const char *vmm;
		enum vm_end end;
		int signal, status;
		const char *why, *tail;
	} cases[] = {
		{"exit3", VM_END_VMM_FAILED, 0, 3, "status 3", "steady: boom: no such device\n"},
		{"unknown", VM_END_VMM_FAILED, 0, 125, "no way to enter unknown", ""},
		{"segv", VM_END_VMM_KILLED, SIGSEGV, 0, "signal 11", "console: about to fall\n"},
		{"exit0", VM_END_GUEST_CRASH, 0, 0, "while booting",
			"console: Kernel panic - not syncing\n"},
		{"exit0_running", VM_END_GUEST_CRASH, 0, 0, "while running", ""},
		{"bad_line", VM_END_GUEST_CRASH, SIGKILL, 0, "boot_us", ""},
		{"long_line", VM_END_GUEST_CRASH, SIGKILL, 0, "512 bytes", ""},
		{"many_lines", VM_END_GUEST_CRASH, SIGKILL, 0, "64 lines", ""},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct run r = {0};

		run(&r, &steady, cases[i].vmm, 0);
		expect(&r, cases[i].end, cases[i].signal, cases[i].status, cases[i].why);
		assert_string_equal(r.tail, cases[i].tail);
	}
}

static void test_boot_timeout(void **state)
{
	struct run r = {0};

	(void)state;
	run(&r, &steady, "silent", 100);
	assert_false(r.ready);
	expect(&r, VM_END_BOOT_TIMEOUT, SIGKILL, 0, "within 100 ms");
	assert_string_equal(r.tail, "console: Booting\nconsole: still booting\n");
}

static void test_deaf(void **state)
{
	struct run r = {.then = then_shutdown_soon};

	(void)state;
	run(&r, &steady, "deaf", 0);
	assert_true(r.ready);
	expect(&r, VM_END_STOPPED, SIGKILL, 0, "did not leave");
}

static void test_kill(void **state)
{
	struct run r = {.then = then_kill};

	(void)state;
	run(&r, &steady, "pids", 0);
	expect(&r, VM_END_STOPPED, SIGKILL, 0, "as asked");
	r = (struct run){0};
	start(&r, &steady, "silent", 0);
	vm_kill(r.vm); /* before anything was heard of it */
	finish(&r);
	expect(&r, VM_END_STOPPED, SIGKILL, 0, "killed");
	assert_false(r.ready);
}

static void test_misfire(void **state)
{
	struct run r = {.then = then_shutdown};
	cleanup_fd int upper = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char text[4096], boots;

	(void)state;
	assert_int_equal(start_with(&r, &shaky, "misfire", upper, 0, NULL), 0);
	read_agent(&r, text, sizeof(text), "\n");
	assert_non_null(strstr(text, "hunter2"));
	finish(&r);
	expect(&r, VM_END_CLEAN, 0, 7, "status 7");
	assert_int_equal(fd_pread_full(upper, &boots, 1, 0), 1);
	assert_int_equal(boots, 2);
}

/* Once only, and only when the guest has seen nothing. */
static void test_misfire_limits(void **state)
{
	static const struct {
		const char *vmm;
		const struct vm_backend *be;
		char boots;
	} cases[] = {
		{"misfire_twice", &shaky, 2},
		{"misfire_late", &shaky, 1},
		{"misfire_twice", &steady, 1},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_fd int upper = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		struct run r = {0};
		char boots = 0;

		assert_int_equal(start_with(&r, cases[i].be, cases[i].vmm, upper, 0, NULL), 0);
		finish(&r);
		expect(&r, VM_END_GUEST_CRASH, 0, 0, "while booting");
		assert_int_equal(fd_pread_full(upper, &boots, 1, 0), 1);
		assert_int_equal(boots, cases[i].boots);
	}
}

static long memory_kib(pid_t pid, const char *name)
{
	cleanup_free char *text = NULL;
	char path[64];
	const char *at;
	long kib;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	assert_int_equal(fd_slurp_at(AT_FDCWD, path, 65536, &text, NULL), 0);
	at = strstr(text, name);
	assert_non_null(at);
	assert_int_equal(sscanf(at + strlen(name), " %ld", &kib), 1);
	return kib;
}

static long boot_rss_kib, boot_data_kib;

static void then_measure(struct run *r)
{
	char text[64];
	int boot;

	read_agent(r, text, sizeof(text), "\n");
	boot = child_of(getpid());
	boot_rss_kib = memory_kib(boot, "VmRSS:");
	boot_data_kib = memory_kib(boot, "RssAnon:");
	vm_shutdown(r->vm, GUARD_MS);
}

static void test_flood(void **state)
{
	struct run r = {.then = then_measure};

	(void)state;
	run(&r, &steady, "flood", 0);
	expect(&r, VM_END_CLEAN, 0, 0, "powered off");
	assert_non_null(strstr(r.tail, "console: last words\n"));
	assert_non_null(strstr(r.tail, "steady: xxx"));
	assert_non_null(strstr(r.tail, "bytes before this]"));
	assert_true(strlen(r.tail) < 2 * VM_CONSOLE_TAIL + 4096);
	print_message("supervisor after the flood: %ld KiB, %ld of them its own\n", boot_rss_kib,
		boot_data_kib);
#ifndef __SANITIZE_ADDRESS__
	assert_true(boot_rss_kib <= 3072);
#endif
}

static void test_inventory(void **state)
{
	struct run r = {.then = then_kill};
	cleanup_fd int extra = open("/dev/zero", O_RDONLY); /* inheritable on purpose */
	char text[16384];
	size_t fds = 0;

	(void)state;
	assert_true(extra >= 0);
	start(&r, &steady, "inventory", 0);
	read_agent(&r, text, sizeof(text), "end\n");
	finish(&r);
	for (const char *p = text; (p = strstr(p, "fd ")); p++)
		fds++;
	/* 0-2, agent, life, env, control, console, failure, kernel, boot, base, upper; and for root
	 * the lock on upper, which is shown to another user. */
	if (fds != (geteuid() == 0 ? 14 : 13) || strstr(text, "/dev/zero"))
		fail_msg("%zu descriptors:\n%s", fds, text);
	assert_non_null(strstr(text, "fd 0 /dev/null\n"));
	assert_null(strstr(text, "\nenv "));
	assert_non_null(strstr(text, "core 0 nofile 256 nnp 1 umask 077 pdeathsig 9 chld 0\n"));
}

static void test_bad_spec(void **state)
{
	cleanup_fd int upper = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	cleanup_fd int base = file_of("base", "base", 4, O_RDONLY);
	const struct vm_spec good = {.label = "test",
		.vcpus = 1,
		.mem_mib = 64,
		.base_fd = base,
		.upper_fd = upper,
		.env = no_env};
	struct vm_spec bad[8];
	static const char *const says[] = {"label", "label", "vcpus", "mem_mib", "base", "hostname",
		"NAME=value", "told apart"};
	static char *const bad_env[] = {(char *)"=x", NULL};
	int before = count_fds();

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		bad[i] = good;
	bad[0].label = "a b";
	bad[1].label = "0123456789012345678901234567890123456789012345678901234567890123456789";
	bad[2].vcpus = VM_VCPUS_MAX + 1;
	bad[3].mem_mib = VM_MEM_MIB_MIN - 1;
	bad[4].base_fd = -1;
	bad[5].hostname = "a/b";
	bad[6].env = bad_env;
	bad[7].upper_fd = base;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct err e = ERR_INIT;
		struct vm *vm = NULL;

		assert_true(vm_start_on(&steady, &loop, &bad[i], &callbacks, NULL, &vm, &e) < 0);
		assert_null(vm);
		assert_string_equal(e.code, "S300");
		if (!strstr(e.text, says[i]))
			fail_msg("\"%s\" does not name %s", e.text, says[i]);
	}
	assert_int_equal(count_fds(), before);
}

/* __vm-boot as somebody's own idea. */
static void test_boot_by_hand(void **state)
{
	int status, in[2];
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(in), 0);
	pid = fork();
	if (pid == 0) {
		dup2(in[0], 0);
		close(in[0]);
		close(in[1]);
		close(2);
		execl("/proc/self/exe", "x", BOOT_ENTRY, "test", (char *)NULL);
		_exit(99);
	}
	close(in[0]);
	assert_int_equal(fd_write_all(in[1], "\0\0\0\2{}", 6), 0);
	close(in[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_clean),
		cmocka_unit_test(test_leaves_by_itself),
		cmocka_unit_test(test_cannot_start),
		cmocka_unit_test(test_stream_ends_with_vm),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_boot_timeout),
		cmocka_unit_test(test_deaf),
		cmocka_unit_test(test_kill),
		cmocka_unit_test(test_misfire),
		cmocka_unit_test(test_misfire_limits),
		cmocka_unit_test(test_flood),
		cmocka_unit_test(test_inventory),
		cmocka_unit_test(test_bad_spec),
		cmocka_unit_test(test_boot_by_hand),
	};

	VM_HARNESS_MAIN(argc, argv);
	return cmocka_run_group_tests_name("vm_boot", tests, setup, teardown);
}
