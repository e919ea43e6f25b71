/* host/vm/vm and host/vm/boot: whoever of daemon, supervisor and VMM dies, nothing is left behind.
 */
#include "vm_harness.h"

static int vmm_pid, boot_pid;

static void then_shutdown(struct run *r)
{
	vm_shutdown(r->vm, GUARD_MS);
}
static void then_kill9_vmm(struct run *r)
{
	read_pids(r, &vmm_pid, &boot_pid);
	kill(vmm_pid, SIGKILL);
}
static void then_kill9_boot(struct run *r)
{
	read_pids(r, &vmm_pid, &boot_pid);
	kill(boot_pid, SIGKILL);
}
static void then_stop_boot_and_kill(struct run *r)
{
	read_pids(r, &vmm_pid, &boot_pid);
	kill(boot_pid, SIGSTOP);
	vm_kill(r->vm);
}

static void test_kill9_vmm(void **state)
{
	struct run r = {.then = then_kill9_vmm};

	(void)state;
	run(&r, &steady, "pids", 0);
	expect(&r, VM_END_VMM_KILLED, SIGKILL, 0, "signal 9");
	assert_true(is_dead(vmm_pid));
	assert_true(is_dead(boot_pid));
}

static void test_kill9_boot(void **state)
{
	struct run r = {.then = then_kill9_boot};

	(void)state;
	run(&r, &steady, "pids", 0);
	expect(&r, VM_END_BOOT_LOST, SIGKILL, 0, "signal 9");
	/* on_exit waited until the VMM had let go of all it had open. */
	expect_death(vmm_pid);
}

/* A supervisor that does not move is killed behind its back. */
static void test_stopped_boot(void **state)
{
	struct run r = {.then = then_stop_boot_and_kill};

	(void)state;
	run(&r, &steady, "pids", 0);
	expect(&r, VM_END_STOPPED, SIGKILL, 0, "killed");
	assert_true(is_dead(boot_pid));
	expect_death(vmm_pid);
}

/* The daemon dies at once: a process that runs a VM is killed by force. */
static void test_kill9_daemon(void **state)
{
	int told[2], pids[2];
	pid_t daemon;

	(void)state;
	assert_int_equal(pipe(told), 0);
	daemon = fork();
	if (daemon == 0) {
		struct run r = {0};

		uv_loop_init(&loop);
		start(&r, &steady, "pids", 0);
		read_pids(&r, &pids[0], &pids[1]);
		fd_write_all(told[1], pids, sizeof(pids));
		uv_run(&loop, UV_RUN_DEFAULT);
		_exit(1);
	}
	assert_int_equal(fd_read_full(told[0], pids, sizeof(pids)), sizeof(pids));
	assert_false(is_dead(pids[0]));
	assert_false(is_dead(pids[1]));
	kill(daemon, SIGKILL);
	assert_int_equal(waitpid(daemon, NULL, 0), daemon);
	expect_death(pids[0]);
	expect_death(pids[1]);
	close(told[0]);
	close(told[1]);
}

static void no_ready(struct vm *vm, void *user)
{
	(void)vm;
	(void)user;
}
static void no_exit(struct vm *vm, const struct vm_exit *x, void *user)
{
	(void)vm;
	(void)x;
	*(bool *)user = true;
}

static void test_vm_free(void **state)
{
	static const struct vm_callbacks cb = {.on_ready = no_ready, .on_exit = no_exit};
	cleanup_fd int upper = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	cleanup_fd int base = file_of("base", "base", 4, O_RDONLY);
	struct vm_spec s = {.label = "test",
		.vcpus = 1,
		.mem_mib = 64,
		.base_fd = base,
		.upper_fd = upper,
		.env = no_env};
	struct run r = {0};
	bool called = false;
	struct vm *vm;

	(void)state;
	vm_free(NULL);
	chosen = "pids";
	assert_int_equal(vm_start_on(&steady, &loop, &s, &cb, &called, &vm, NULL), 0);
	r.agent = vm_take_agent_fd(vm);
	read_pids(&r, &vmm_pid, &boot_pid);
	close(r.agent);
	vm_free(vm);
	uv_run(&loop, UV_RUN_DEFAULT); /* ends, since nothing is left in it */
	assert_false(called);
	assert_true(is_dead(boot_pid));
	expect_death(vmm_pid);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void then_free(struct run *r)
{
	read_pids(r, &vmm_pid, &boot_pid);
	vm_free(r->vm);
	uv_close((uv_handle_t *)&r->guard, NULL);
}

static void test_vm_free_in_callback(void **state)
{
	struct run r = {.then = then_free};

	(void)state;
	start(&r, &steady, "pids", 0);
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_true(r.ready);
	assert_false(r.ended);
	assert_true(is_dead(boot_pid));
	expect_death(vmm_pid);
	fd_close(&r.agent);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void test_one_disk_one_vm(void **state)
{
	cleanup_fd int first = file_of("kept", "disk", 4, O_RDWR),
		       second = file_of("kept", "disk", 4, O_RDWR);
	struct run a = {0}, b = {0};

	(void)state;
	assert_int_equal(start_with(&a, &steady, "pids", first, 0, NULL), 0);
	/* Ours does not keep the lock: it belongs to the VM. */
	read_pids(&a, &vmm_pid, &boot_pid);
	assert_int_equal(start_with(&b, &steady, "pids", second, 0, NULL), 0);
	while (!b.ended)
		uv_run(&loop, UV_RUN_ONCE);
	expect(&b, VM_END_VMM_FAILED, 0, 0, "another VM still uses the disk upper");
	vm_kill(a.vm);
	finish(&a);
	fd_close(&b.agent);
	fd_close(&first);
	/* And is free when the VM is gone. */
	b = (struct run){.then = then_shutdown};
	assert_int_equal(start_with(&b, &steady, "good", second, 0, NULL), 0);
	finish(&b);
	expect(&b, VM_END_CLEAN, 0, 7, "status 7");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kill9_vmm),
		cmocka_unit_test(test_kill9_boot),
		cmocka_unit_test(test_stopped_boot),
		cmocka_unit_test(test_kill9_daemon),
		cmocka_unit_test(test_vm_free),
		cmocka_unit_test(test_vm_free_in_callback),
		cmocka_unit_test(test_one_disk_one_vm),
	};

	VM_HARNESS_MAIN(argc, argv);
	return cmocka_run_group_tests_name("vm_death", tests, setup, teardown);
}
