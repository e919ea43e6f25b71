/* host/vm/qemu: the command line as data. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/vm/qemu.h"

static const struct vmm_ends ends = {
	.agent = 4, .env = 20, .control = 21, .console = 22, .net = 24};
static const int readable[PLAN_DISKS_MAX] = {-1, -1, 23, -1, -1};

static struct plan make_plan(void)
{
	return (struct plan){
		.label = "sb",
		.backend = "qemu",
		.vmm = xstrdup("/opt/a,b/qemu-system-x86_64"),
		.vcpus = 2,
		.mem_mib = 768,
		.boot_timeout_ms = 1000,
		.tsc_khz = 1996250,
		.kernel_fd = 6,
		.hostname = "host,name",
		.env = strv_dup((char *[]){(char *)"A=b,c", (char *)"SECRET=hunter2", NULL}),
		.disks = {{"boot", "boot", 7, true, false}, {"base", "111", 8, true, false},
			{"upper", "222", 9, false, true}},
		.n_disks = 3,
	};
}

/* Where the pair of words stands in the list, or -1. */
static int find(char *const *v, const char *option, const char *value)
{
	for (int i = 0; v[i] && v[i + 1]; i++) {
		if (str_eq(v[i], option) && str_eq(v[i + 1], value))
			return i;
	}
	return -1;
}

static void expect(char *const *v, const char *option, const char *value)
{
	if (find(v, option, value) < 0)
		fail_msg("no %s %s", option, value);
}

static void test_args(void **state)
{
	cleanup_plan struct plan p = make_plan();
	char **v;

	(void)state;
	assert_int_equal(qemu_args(&p, &ends, readable, &v, NULL), 0);
	/* A comma in the program's own path is no option syntax. */
	assert_string_equal(v[0], "/opt/a,b/qemu-system-x86_64");
	expect(v, "-m", "768M");
	expect(v, "-smp", "2");
	expect(v, "-accel", "tcg,thread=single,tb-size=256");
	expect(v, "-kernel", "/proc/self/fd/6");
	expect(v, "-sandbox",
		"on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
	expect(v, "-add-fd", "fd=7,set=1");
	expect(v, "-drive",
		"if=none,id=d1,file=/dev/fdset/1,format=raw,readonly=on,file.locking=off");
	expect(v, "-device", "virtio-blk-device,drive=d1,serial=boot");
	expect(v, "-device", "virtio-blk-device,drive=d2,serial=111");
	expect(v, "-add-fd", "fd=9,set=3");
	expect(v, "-add-fd", "fd=23,set=3");
	expect(v, "-drive",
		"if=none,id=d3,file=/dev/fdset/3,format=raw,cache=unsafe,discard=unmap,"
		"detect-zeroes=unmap,file.locking=off,werror=report");
	expect(v, "-chardev", "file,id=con,path=/dev/fdset/4,append=on");
	expect(v, "-add-fd", "fd=22,set=4");
	expect(v, "-chardev", "socket,id=agent,fd=4");
	expect(v, "-device", "virtserialport,chardev=agent,name=iii.agent");
	expect(v, "-chardev", "socket,id=control,fd=21");
	expect(v, "-device", "virtserialport,chardev=env,name=iii.env");
	/* /dev/vda is the disk that comes first. */
	assert_true(find(v, "-device", "virtio-blk-device,drive=d1,serial=boot") <
		    find(v, "-device", "virtio-blk-device,drive=d2,serial=111"));
	strv_free(v);
}

static void test_extras(void **state)
{
	cleanup_plan struct plan p = make_plan();
	char **v;

	(void)state;
	p.vcpus = 4;
	p.hyperthreads = true;
	assert_int_equal(qemu_args(&p, &ends, readable, &v, NULL), 0);
	expect(v, "-smp", "4,sockets=1,cores=2,threads=2");
#ifdef __x86_64__
	expect(v, "-cpu", "max,-svm,-erms,-fsrm");
#endif
	strv_free(v);
	p.vcpus = 3;
	p.nested_virt = true;
	assert_int_equal(qemu_args(&p, &ends, readable, &v, NULL), 0);
	expect(v, "-smp", "3");
#ifdef __x86_64__
	expect(v, "-cpu", "max,-erms,-fsrm");
#endif
	strv_free(v);
}

static void test_net(void **state)
{
	cleanup_plan struct plan p = make_plan();
	char **v;

	(void)state;
	assert_int_equal(qemu_args(&p, &ends, readable, &v, NULL), 0);
	for (int i = 0; v[i]; i++)
		assert_false(str_eq(v[i], "-netdev") || strstr(v[i], "virtio-net"));
	strv_free(v);
	p.net.passt = xstrdup("/usr/bin/passt");
	assert_int_equal(qemu_args(&p, &ends, readable, &v, NULL), 0);
	expect(v, "-netdev", "stream,id=net,server=off,addr.type=fd,addr.str=24");
	expect(v, "-device", "virtio-net-device,netdev=net,mac=02:6d:73:00:00:02");
	strv_free(v);
}

static void test_no_user_text(void **state)
{
	cleanup_plan struct plan p = make_plan();
	char **v;

	(void)state;
	assert_int_equal(qemu_args(&p, &ends, readable, &v, NULL), 0);
	for (int i = 1; v[i]; i++) {
		if (strstr(v[i], "hunter2") || strstr(v[i], "host,name") || strstr(v[i], "b,c"))
			fail_msg("text of a user in argument %d: %s", i, v[i]);
	}
	strv_free(v);
}

static void test_kept_disk(void **state)
{
	cleanup_plan struct plan p = make_plan();
	char **v;

	(void)state;
	p.disks[2].throwaway = false;
	assert_int_equal(qemu_args(&p, &ends, readable, &v, NULL), 0);
	expect(v, "-drive",
		"if=none,id=d3,file=/dev/fdset/3,format=raw,cache=writeback,discard=unmap,"
		"detect-zeroes=unmap,file.locking=off,werror=report");
	strv_free(v);
}

static const char *append_of(char *const *v)
{
	for (int i = 0; v[i]; i++) {
		if (str_eq(v[i], "-append"))
			return v[i + 1];
	}
	return "";
}

static void test_tsc(void **state)
{
	cleanup_plan struct plan p = make_plan();
	char **v;

	(void)state;
	assert_int_equal(qemu_args(&p, &ends, readable, &v, NULL), 0);
	assert_non_null(strstr(append_of(v), " tsc_early_khz=1996250 tsc=reliable "));
#if defined(__x86_64__)
	/* Else a busy host makes the kernel give up on its timer. */
	assert_non_null(strstr(append_of(v), " no_timer_check "));
#endif
	assert_non_null(strstr(append_of(v), " iii.base=111 iii.upper=222"));
	strv_free(v);
	p.tsc_khz = 0;
	assert_int_equal(qemu_args(&p, &ends, readable, &v, NULL), 0);
	assert_null(strstr(append_of(v), "tsc"));
	strv_free(v);
}

#if defined(__x86_64__)
/* The measured rate against what a second measurement of another kind says. */
static void test_tsc_measured(void **state)
{
	uint32_t khz = qemu_tsc_khz();

	(void)state;
	assert_int_equal(khz, qemu_tsc_khz());
	/* 0 is "does not hold still"; else anything that was ever sold. */
	assert_true(khz == 0 || (khz > 500000 && khz < 10000000));
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_args),
		cmocka_unit_test(test_extras),
		cmocka_unit_test(test_net),
		cmocka_unit_test(test_no_user_text),
		cmocka_unit_test(test_kept_disk),
		cmocka_unit_test(test_tsc),
#if defined(__x86_64__)
		cmocka_unit_test(test_tsc_measured),
#endif
	};

	return cmocka_run_group_tests_name("qemu_args", tests, NULL, NULL);
}
