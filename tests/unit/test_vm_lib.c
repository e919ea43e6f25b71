/* host/vm/lib: which file wins, and what the error lists. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "host/vm/lib.h"

#define ENV	  "TEST_VM_LIB"
#define FILE_NAME "libnothing-has-this-name.so.9"

static char dir[] = "/tmp/test_vm_lib.XXXXXX";

static int setup(void **state)
{
	(void)state;
	unsetenv("LD_LIBRARY_PATH");
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return path_remove_at(AT_FDCWD, dir);
}

/* An empty file at dir/sub/name, and its path. */
static char *put(const char *sub, const char *name, mode_t mode)
{
	cleanup_free char *folder = path_join(dir, sub);
	char *path = path_join(folder, name);
	cleanup_fd int fd = -1;

	assert_int_equal(path_mkdirs(folder, NULL), 0);
	fd = open(path, O_WRONLY | O_CREAT, mode);
	assert_true(fd >= 0);
	return path;
}

static void expect(const char *want)
{
	struct err e = ERR_INIT;
	cleanup_free char *got = lib_find(ENV, FILE_NAME, &e);

	if (!got)
		fail_msg("%s", e.text);
	assert_string_equal(got, want);
}

static void test_order(void **state)
{
	cleanup_free char *ld = put("ld", FILE_NAME, 0644), *data_dir = path_join(dir, "data");
	cleanup_free char *ld_dir = path_join(dir, "ld"), *list = NULL, *data = NULL, *given = NULL;

	(void)state;
	/* Relative and missing folders of the list are passed over. */
	list = xasprintf(":ld:/nonexistent:%s", ld_dir);
	setenv("LD_LIBRARY_PATH", list, 1);
	setenv("XDG_DATA_HOME", data_dir, 1);
	expect(ld);
	data = put("data/sandbox-libkrun/lib", FILE_NAME, 0644);
	expect(data);
	given = put("given", "any-name", 0644);
	setenv(ENV, given, 1);
	expect(given);
	unsetenv(ENV);
}

static void test_errors(void **state)
{
	struct err e = ERR_INIT;

	(void)state;
	setenv(ENV, "/nonexistent/x.so", 1);
	assert_null(lib_find(ENV, FILE_NAME, &e));
	assert_non_null(strstr(e.text, ENV "=/nonexistent/x.so"));
	setenv(ENV, "x.so", 1);
	assert_null(lib_find(ENV, FILE_NAME, &e));
	assert_non_null(strstr(e.text, "absolute path"));
	unsetenv(ENV);
	setenv("LD_LIBRARY_PATH", "/nonexistent", 1);
	setenv("XDG_DATA_HOME", "/nonexistent/data", 1);
	assert_null(lib_find(ENV, FILE_NAME, &e));
	assert_string_equal(e.code, "S300");
	assert_non_null(strstr(e.text, FILE_NAME));
	assert_non_null(strstr(e.text, "/nonexistent/data/sandbox-libkrun/lib"));
	assert_non_null(strstr(e.text, "/usr/lib"));
	assert_non_null(strstr(e.text, ENV "=FILE"));
}

static void test_program(void **state)
{
	cleanup_free char *plain = put("p1", "a-program", 0644),
			  *want = put("p2", "a-program", 0755);
	cleanup_free char *path = xasprintf("relative:%s/p1:%s/p2", dir, dir), *got = NULL;

	(void)state;
	/* Root may do anything but run a file without any x. */
	assert_non_null(plain);
	setenv("PATH", path, 1);
	got = lib_find_program("a-program");
	assert_non_null(got);
	assert_string_equal(got, want);
	assert_null(lib_find_program("no-such-program"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_program),
	};

	return cmocka_run_group_tests_name("vm_lib", tests, setup, teardown);
}
