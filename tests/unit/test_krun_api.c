/* host/vm/krun: the real library, up to the call that would enter the VM. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/child.h"
#include "host/vm/krun.h"
#include "host/vm/lib.h"

static char *library(void)
{
	struct err e = ERR_INIT;
	char *lib = lib_find("III_SANDBOX_LIBKRUN", "libkrun.so.1", &e);

	if (!lib) {
		print_message("skipped: %s\n", e.text);
		skip();
	}
	return lib;
}

/* A kernel file as libkrun wants it: it looks at nothing before it enters. */
static struct plan make_plan(char *lib)
{
	return (struct plan){
		.label = "sb",
		.backend = "krun",
		.vmm = lib,
		.vcpus = 2,
		.mem_mib = 256,
		.boot_timeout_ms = 1000,
		.kernel_fd = fd_sealed("kernel", "ELF", 3),
		.hostname = "sandbox",
		/* Where libkrun cannot, it is no failure. */
		.nested_virt = true,
		.hyperthreads = true,
		.disks = {{"boot", "boot", fd_sealed("boot", "x", 1), true, false},
			{"upper", "222", fd_sealed("upper", "x", 1), false, true}},
		.n_disks = 2,
	};
}

static int configure(int out, void *arg)
{
	struct plan p = make_plan(arg);
	int agent[2], env[2], control[2], console[2], net[2];
	struct vmm_ends ends;
	struct err e = ERR_INIT;
	struct krun_api k;
	uint32_t ctx = 77;
	int r;

	if (fd_socketpair(agent) < 0 || fd_socketpair(env) < 0 || fd_socketpair(control) < 0 ||
		fd_socketpair(net) < 0 || pipe(console) < 0)
		return 2;
	p.net.passt = (char *)"/usr/bin/passt";
	ends = (struct vmm_ends){agent[1], env[1], control[1], console[1], net[1]};
	r = krun_load(p.vmm, &k, &e);
	if (r == 0)
		r = krun_configure(&k, &p, &ends, &ctx, &e);
	if (r < 0) {
		fd_write_all(out, e.text, strlen(e.text));
		return 1;
	}
	/* The context is real: it can be given back once, and only once. */
	if (k.free_ctx(ctx) != 0 || k.free_ctx(ctx) != -ENOENT)
		return 3;
	return fd_write_all(out, "ok", 2);
}

/* Every call of the sequence is made and checked; in a child, since the library is for one VM. */
static void test_sequence(void **state)
{
	cleanup_free char *lib = library();
	char said[1024];

	(void)state;
	assert_int_equal(child_run(configure, lib, 60000, said, sizeof(said)), 0);
	assert_string_equal(said, "ok");
}

/* A library built without networks serves VMs without. */
static int configure_without_net(int out, void *arg)
{
	struct plan p = make_plan(arg);
	struct vmm_ends ends = {0, 0, 0, 1, -1};
	struct err e = ERR_INIT;
	struct krun_api k;
	uint32_t ctx;

	p.net.passt = (char *)"/usr/bin/passt";
	if (krun_load(p.vmm, &k, &e) < 0)
		return 1;
	k.add_net_unixstream = NULL;
	if (krun_configure(&k, &p, &ends, &ctx, &e) != -ENOSYS)
		return 2;
	return fd_write_all(out, e.text, strlen(e.text));
}

static void test_no_net(void **state)
{
	cleanup_free char *lib = library();
	char said[1024];

	(void)state;
	assert_int_equal(child_run(configure_without_net, lib, 60000, said, sizeof(said)), 0);
	assert_non_null(strstr(said, "NET=1"));
}

static int configure_without_disk(int out, void *arg)
{
	struct plan p = make_plan(arg);
	struct vmm_ends ends = {0, 0, 0, 1};
	struct err e = ERR_INIT;
	struct krun_api k;
	uint32_t ctx;

	p.vcpus = 256;
	if (krun_load(p.vmm, &k, &e) < 0 || krun_configure(&k, &p, &ends, &ctx, &e) != -EINVAL)
		return 1;
	fd_write_all(out, e.text, strlen(e.text));
	/* Zero vCPUs get as far as libkrun, which says no. */
	p.vcpus = 0;
	if (krun_configure(&k, &p, &ends, &ctx, &e) >= 0)
		return 2;
	fd_write_all(out, " | ", 3);
	fd_write_all(out, e.text, strlen(e.text));
	return 0;
}

static void test_failed_call_is_named(void **state)
{
	cleanup_free char *lib = library();
	char said[1024];

	(void)state;
	assert_int_equal(child_run(configure_without_disk, lib, 60000, said, sizeof(said)), 0);
	assert_non_null(strstr(said, "255 vCPUs"));
	assert_non_null(strstr(said, "krun_set_vm_config"));
}

static int load(int out, void *arg)
{
	struct krun_api k;
	struct err e = ERR_INIT;

	if (krun_load(arg, &k, &e) == 0)
		return 1;
	return fd_write_all(out, e.text, strlen(e.text));
}

static void test_not_libkrun(void **state)
{
	char said[1024];

	(void)state;
	assert_int_equal(child_run(load, (char *)"/nonexistent.so", 60000, said, sizeof(said)), 0);
	assert_non_null(strstr(said, "/nonexistent.so"));
	/* A library without any of the functions: the first missing one is named. */
	assert_int_equal(child_run(load, (char *)"libm.so.6", 60000, said, sizeof(said)), 0);
	assert_non_null(strstr(said, "krun_set_log_level"));
	assert_non_null(strstr(said, "1.17"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sequence),
		cmocka_unit_test(test_no_net),
		cmocka_unit_test(test_failed_call_is_named),
		cmocka_unit_test(test_not_libkrun),
	};

	return cmocka_run_group_tests_name("krun_api", tests, NULL, NULL);
}
