/* host/vm/kvm_probe, host/vm/child, and the choice of a backend. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "host/vm/backend.h"
#include "host/vm/child.h"
#include "host/vm/kvm_probe.h"

static void test_judge(void **state)
{
	struct kvm_probe p;

	(void)state;
	kvm_probe_judge(&p, 40, NULL, 0);
	assert_int_equal(p.verdict, KVM_USABLE);
	assert_string_equal(p.why.text, "");
	kvm_probe_judge(&p, KVM_PROBE_SLOW_US, NULL, 0);
	assert_int_equal(p.verdict, KVM_USABLE);
	kvm_probe_judge(&p, KVM_PROBE_SLOW_US + 1, NULL, 0);
	assert_int_equal(p.verdict, KVM_SLOW);
	assert_non_null(strstr(p.why.text, "5001 us"));
	assert_string_equal(p.why.code, "S300");
	kvm_probe_judge(&p, 0, "open /dev/kvm", ENOENT);
	assert_int_equal(p.verdict, KVM_ABSENT);
	kvm_probe_judge(&p, 0, "open /dev/kvm", EACCES);
	assert_int_equal(p.verdict, KVM_FORBIDDEN);
	assert_non_null(strstr(p.why.text, "group kvm"));
	kvm_probe_judge(&p, 0, "KVM_RUN", EINVAL);
	assert_int_equal(p.verdict, KVM_BROKEN);
	assert_non_null(strstr(p.why.text, "KVM_RUN"));
	kvm_probe_judge(&p, 0, "the probe", ETIMEDOUT);
	assert_int_equal(p.verdict, KVM_SLOW);
}

/* Whatever this host has, the probe comes to a verdict with a reason, twice the same. */
static void test_probe(void **state)
{
	const struct kvm_probe *p = kvm_probe();
	enum kvm_verdict first = p->verdict;

	(void)state;
	print_message("verdict %d, best %u us: %s\n", (int)first, p->best_us, p->why.text);
	assert_int_equal(kvm_probe()->verdict, first);
	assert_int_equal(first == KVM_USABLE, p->why.text[0] == '\0');
	if (access("/dev/kvm", F_OK) < 0)
		assert_int_equal(first, KVM_ABSENT);
	else
		assert_int_not_equal(first, KVM_ABSENT);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

static int say_hello(int out, void *arg)
{
	return fd_write_all(out, arg, strlen(arg));
}
static int say_and_fail(int out, void *arg)
{
	fd_write_all(out, arg, strlen(arg));
	return 3;
}
static _Noreturn int hang(int out, void *arg)
{
	(void)out;
	(void)arg;
	for (;;)
		pause();
}
static _Noreturn int close_and_hang(int out, void *arg)
{
	close(out);
	(void)arg;
	for (;;)
		pause();
}
static int die(int out, void *arg)
{
	(void)out;
	(void)arg;
	raise(SIGKILL);
	return 0;
}
static int flood(int out, void *arg)
{
	char chunk[4096];

	(void)arg;
	memset(chunk, 'x', sizeof(chunk));
	for (int i = 0; i < 1000; i++)
		fd_write_all(out, chunk, sizeof(chunk));
	return 0;
}

static void test_child(void **state)
{
	char out[8];

	(void)state;
	assert_int_equal(child_run(say_hello, (char *)"hello", 30000, out, sizeof(out)), 0);
	assert_string_equal(out, "hello");
	assert_int_equal(child_run(say_and_fail, (char *)"why", 30000, out, sizeof(out)), -ECHILD);
	assert_string_equal(out, "why");
	assert_int_equal(child_run(die, NULL, 30000, out, sizeof(out)), -ECHILD);
	assert_int_equal(child_run(flood, NULL, 30000, out, sizeof(out)), 0);
	assert_string_equal(out, "xxxxxxx");
	assert_int_equal(child_run(hang, NULL, 50, out, sizeof(out)), -ETIMEDOUT);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void test_child_closes(void **state)
{
	char out[8];

	(void)state;
	assert_int_equal(child_run(close_and_hang, NULL, 50, out, sizeof(out)), -ETIMEDOUT);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void test_choose(void **state)
{
	const struct vm_backend *be = NULL;
	struct err e = ERR_INIT;
	enum kvm_verdict v = kvm_probe()->verdict;

	(void)state;
	unsetenv("III_SANDBOX_KERNEL");
	setenv("III_SANDBOX_LIBKRUN", "/nonexistent/libkrun.so.1", 1);
	assert_true(vm_backend_choose(VM_BACKEND_KRUN, &be, &e) < 0);
	assert_null(be);
	assert_string_equal(e.code, "S300");
	assert_non_null(strstr(e.text, "--vmm qemu"));
	assert_non_null(strstr(e.text, "III_SANDBOX_VMM"));
	assert_non_null(strstr(e.text, v == KVM_USABLE ? "/nonexistent" : "/dev/kvm"));
	/* Without a library, auto is emulation, or an error that tells of both. */
	if (vm_backend_choose(VM_BACKEND_AUTO, &be, &e) == 0) {
		assert_string_equal(be->name, "qemu");
		assert_int_equal(be->tier, VM_TIER_EMULATED);
	} else {
		assert_non_null(strstr(e.text, "qemu"));
	}
	/* The operator's own kernel takes a slow KVM, but never none. */
	setenv("III_SANDBOX_KERNEL", "/some/kernel", 1);
	assert_true(vm_backend_choose(VM_BACKEND_KRUN, &be, &e) < 0);
	assert_non_null(
		strstr(e.text, v == KVM_USABLE || v == KVM_SLOW ? "/nonexistent" : "/dev/kvm"));
	setenv("PATH", "/nonexistent", 1);
	unsetenv("III_SANDBOX_KERNEL");
	assert_true(vm_backend_choose(VM_BACKEND_QEMU, &be, &e) < 0);
	assert_non_null(strstr(e.text, "install the package"));
}

static void test_parse(void **state)
{
	enum vm_backend_choice c;

	(void)state;
	assert_int_equal(vm_backend_parse("krun", &c), 0);
	assert_int_equal(c, VM_BACKEND_KRUN);
	assert_int_equal(vm_backend_parse("auto", &c), 0);
	assert_int_equal(c, VM_BACKEND_AUTO);
	assert_int_equal(vm_backend_parse("KRUN", &c), -EINVAL);
	assert_int_equal(vm_backend_parse("", &c), -EINVAL);
	assert_int_equal(vm_backend_parse(NULL, &c), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_judge),
		cmocka_unit_test(test_probe),
		cmocka_unit_test(test_child),
		cmocka_unit_test(test_child_closes),
		cmocka_unit_test(test_choose),
		cmocka_unit_test(test_parse),
	};

	return cmocka_run_group_tests_name("kvm_probe", tests, NULL, NULL);
}
