/* host/vm/upper: disks that e2fsck calls clean, that share nothing, and that have no name. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "host/vm/lib.h"
#include "host/vm/upper.h"

#define MIB ((uint64_t)1 << 20)

/* Not /tmp: it may be a tmpfs. */
static char dir[] = "/var/tmp/test_upper.XXXXXX";

static int setup(void **state)
{
	(void)state;
	if (!mkdtemp(dir))
		return -1;
	setenv("III_SANDBOX_CACHE_DIR", dir, 1);
	setenv("III_SANDBOX_STATE_DIR", dir, 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return path_remove_at(AT_FDCWD, dir);
}

/* Exit status of a program on the disk as its descriptor 3. */
static int run_on(int fd, const char *name, const char *option)
{
	cleanup_free char *prog = lib_find_program(name);
	char *argv[] = {(char *)name, (char *)option, (char *)"/proc/self/fd/3", NULL},
	     *env[] = {NULL};
	posix_spawn_file_actions_t fa;
	int status;
	pid_t pid;

	assert_non_null(prog);
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_addopen(&fa, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_adddup2(&fa, 1, 2);
	posix_spawn_file_actions_adddup2(&fa, fd, 3);
	assert_int_equal(posix_spawn(&pid, prog, &fa, NULL, argv, env), 0);
	posix_spawn_file_actions_destroy(&fa);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_disk(void **state)
{
	cleanup_fd int a = -1, b = -1;
	struct err e = ERR_INIT;
	struct stat sa, sb;
	char byte = 'x';

	(void)state;
	for (int i = 0; i < 2; i++) {
		if (upper_new(UPPER_SIZE_DEFAULT, i ? &b : &a, &e) < 0)
			fail_msg("%s", e.text);
	}
	assert_int_equal(fstat(a, &sa), 0);
	assert_int_equal(fstat(b, &sb), 0);
	assert_int_equal(sa.st_size, UPPER_SIZE_DEFAULT);
	assert_int_equal(sa.st_nlink, 0);
	assert_int_not_equal(sa.st_ino, sb.st_ino);
	assert_int_equal(sa.st_mode & 0777, 0600);
	/* A few hundred KiB of 8 GiB. */
	assert_true(sa.st_blocks < 8192);
	assert_true(fcntl(a, F_GETFD) & FD_CLOEXEC);
	/* What one VM writes is on no other's disk. */
	assert_int_equal(run_on(a, "e2fsck", "-fn"), 0);
	assert_int_equal(fd_pwrite_all(a, &byte, 1, 1024 + 56), 0);
	assert_int_not_equal(run_on(a, "e2fsck", "-fn"), 0);
	assert_int_equal(run_on(b, "e2fsck", "-fn"), 0);
}

static void test_sizes(void **state)
{
	static const uint64_t good[] = {UPPER_SIZE_MIN, 100 * MIB, 3072 * MIB},
			      bad[] = {0, UPPER_SIZE_MIN - MIB, UPPER_SIZE_MIN + 1,
				      UPPER_SIZE_MAX + MIB, UINT64_MAX};
	struct err e = ERR_INIT;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		cleanup_fd int fd = -1;
		struct stat st;

		if (upper_new(good[i], &fd, &e) < 0)
			fail_msg("%s", e.text);
		assert_int_equal(fstat(fd, &st), 0);
		assert_int_equal(st.st_size, good[i]);
		assert_int_equal(run_on(fd, "e2fsck", "-fn"), 0);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		int fd = -1;

		assert_int_equal(upper_new(bad[i], &fd, &e), -EINVAL);
		assert_int_equal(fd, -1);
		assert_string_equal(e.code, "S300");
	}
}

static int entries(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *de;
	int n = 0;

	assert_non_null(d);
	while ((de = readdir(d)))
		n += strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0;
	closedir(d);
	return n;
}

/* Templates are all that is left, one for each size; the disks have no names. */
static void test_nothing_left(void **state)
{
	cleanup_free char *cache = path_join(dir, "upper");
	int before, fd;

	(void)state;
	assert_int_equal(upper_new(64 * MIB, &fd, NULL), 0);
	close(fd);
	before = entries(cache);
	assert_int_equal(upper_new(64 * MIB, &fd, NULL), 0);
	assert_int_equal(entries(cache), before);
	assert_int_equal(entries(dir), 1);
	close(fd);
}

static void test_damaged_template(void **state)
{
	cleanup_free char *path = path_join(dir, "upper/ext4-1-65M");
	struct err e = ERR_INIT;
	int fd;

	(void)state;
	assert_int_equal(upper_new(65 * MIB, &fd, &e), 0);
	close(fd);
	assert_int_equal(truncate(path, 5), 0);
	assert_int_equal(upper_new(65 * MIB, &fd, &e), -EIO);
	assert_non_null(strstr(e.text, "ext4-1-65M"));
	assert_non_null(strstr(e.text, "remove it"));
}

static void test_no_mke2fs(void **state)
{
	/* Found in PATH or in the two places outside it, so it can only be hidden by a failure. */
	cleanup_free char *bin = path_join(dir, "bin"), *fake = path_join(bin, "mke2fs");
	cleanup_free char *path = xstrdup(getenv("PATH"));
	cleanup_fd int out = -1;
	struct err e = ERR_INIT;
	int fd;

	(void)state;
	assert_int_equal(mkdir(bin, 0755), 0);
	out = open(fake, O_WRONLY | O_CREAT | O_EXCL, 0755);
	assert_true(out >= 0);
	assert_int_equal(fd_write_all(out, "#!/bin/sh\necho no room >&2\nexit 8\n", 34), 0);
	fd_close(&out);
	setenv("PATH", bin, 1);
	assert_int_equal(upper_new(66 * MIB, &fd, &e), -EIO);
	setenv("PATH", path, 1);
	assert_non_null(strstr(e.text, "status 8"));
	assert_non_null(strstr(e.text, "no room"));
	assert_int_equal(path_remove_at(AT_FDCWD, bin), 0);
	/* The failure left no template. */
	assert_int_equal(upper_new(66 * MIB, &fd, &e), 0);
	assert_int_equal(run_on(fd, "e2fsck", "-fn"), 0);
	close(fd);
}

static void test_tmpfs(void **state)
{
	char shm[] = "/dev/shm/test_upper.XXXXXX";
	struct err e = ERR_INIT;
	int fd;

	(void)state;
	if (!mkdtemp(shm)) {
		print_message("skipped: no /dev/shm\n");
		skip();
	}
	setenv("III_SANDBOX_STATE_DIR", shm, 1);
	assert_int_equal(upper_new(64 * MIB, &fd, &e), -ENOTSUP);
	assert_non_null(strstr(e.text, "tmpfs"));
	assert_non_null(strstr(e.text, "III_SANDBOX_STATE_DIR"));
	setenv("III_SANDBOX_ALLOW_TMPFS", "1", 1);
	assert_int_equal(upper_new(64 * MIB, &fd, &e), 0);
	close(fd);
	unsetenv("III_SANDBOX_ALLOW_TMPFS");
	setenv("III_SANDBOX_STATE_DIR", dir, 1);
	assert_int_equal(path_remove_at(AT_FDCWD, shm), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_disk),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_nothing_left),
		cmocka_unit_test(test_damaged_template),
		cmocka_unit_test(test_no_mke2fs),
		cmocka_unit_test(test_tmpfs),
	};

	return cmocka_run_group_tests_name("upper", tests, setup, teardown);
}
