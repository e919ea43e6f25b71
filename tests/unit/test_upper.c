/* host/vm/upper: disks that e2fsck calls clean, that share nothing, and that have no name; or one
 * that stays. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
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

/* --- disks with a name --- */

#define KEPT ((uint64_t)16 << 30)

static int open_kept(const char *folder, int *ret, struct err *e)
{
	cleanup_fd int d = path_open_dir(folder, e);

	assert_true(d >= 0);
	return upper_open_named(d, "upper.ext4", KEPT, "iii-upper", ret, e);
}

static char *new_folder(const char *name)
{
	char *path = path_join(dir, name);

	assert_int_equal(mkdir(path, 0700), 0);
	return path;
}

static void test_named(void **state)
{
	cleanup_free char *folder = new_folder("kept"), *file = path_join(folder, "upper.ext4");
	cleanup_fd int a = -1, b = -1;
	struct err e = ERR_INIT;
	struct stat sa, sb;
	char label[17] = "", byte = 'x';

	(void)state;
	if (open_kept(folder, &a, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(fstat(a, &sa), 0);
	assert_int_equal(sa.st_size, KEPT);
	assert_int_equal(sa.st_nlink, 1);
	assert_int_equal(sa.st_mode, S_IFREG | 0600);
	assert_true(sa.st_blocks < 32768); /* 16 MiB of 16 GiB */
	assert_true(fcntl(a, F_GETFD) & FD_CLOEXEC);
	assert_false(fcntl(a, F_GETFL) & O_NONBLOCK);
	assert_int_equal(entries(folder), 1);
	assert_int_equal(run_on(a, "e2fsck", "-fn"), 0);
	/* s_volume_name */
	assert_int_equal(fd_pread_full(a, label, 16, 1024 + 120), 16);
	assert_string_equal(label, "iii-upper");
	/* The same one again, with what is on it. */
	assert_int_equal(fd_pwrite_all(a, &byte, 1, KEPT - 1), 0);
	assert_int_equal(open_kept(folder, &b, &e), 0);
	assert_int_equal(fstat(b, &sb), 0);
	assert_int_equal(sa.st_ino, sb.st_ino);
	byte = 0;
	assert_int_equal(fd_pread_full(b, &byte, 1, KEPT - 1), 1);
	assert_int_equal(byte, 'x');
	assert_int_equal(fcntl(b, F_GETFL) & O_ACCMODE, O_RDWR);
	/* Removed, it is made anew. */
	assert_int_equal(unlink(file), 0);
	fd_close(&b);
	assert_int_equal(open_kept(folder, &b, &e), 0);
	assert_int_equal(fd_pread_full(b, &byte, 1, KEPT - 1), 1);
	assert_int_equal(byte, 0);
}

static void refused(const char *folder, const char *says)
{
	struct err e = ERR_INIT;
	int fd = -1;

	assert_true(open_kept(folder, &fd, &e) < 0);
	assert_int_equal(fd, -1);
	assert_string_equal(e.code, "S504");
	if (!strstr(e.text, says) || !strstr(e.text, "upper.ext4"))
		fail_msg("\"%s\" does not name %s", e.text, says);
}

/* Whatever is there and is no disk of ours stays as it is. */
static void test_named_refused(void **state)
{
	cleanup_free char *folder = new_folder("strange"), *file = path_join(folder, "upper.ext4"),
			  *target = path_join(folder, "target");
	cleanup_fd int d = path_open_dir(folder, NULL), fd = -1;
	struct err e = ERR_INIT;
	struct stat st;

	(void)state;
	assert_int_equal(symlink("target", file), 0);
	refused(folder, "symbolic link");
	assert_int_equal(access(target, F_OK), -1);
	assert_int_equal(unlink(file), 0);
	assert_int_equal(mkfifo(file, 0600), 0);
	refused(folder, "regular file");
	assert_int_equal(unlink(file), 0);
	assert_int_equal(mkdir(file, 0700), 0);
	refused(folder, "upper.ext4");
	assert_int_equal(rmdir(file), 0);
	fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_int_equal(fd_write_all(fd, "precious", 8), 0);
	refused(folder, "8 bytes");
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 8);
	if (geteuid() == 0) {
		assert_int_equal(ftruncate(fd, (off_t)KEPT), 0);
		assert_int_equal(fchown(fd, 65534, 65534), 0);
		refused(folder, "of this user");
	}
	fd_close(&fd);
	assert_int_equal(upper_open_named(d, "x", KEPT + 1, "l", &fd, &e), -EINVAL);
	assert_int_equal(upper_open_named(d, "x", KEPT, "", &fd, &e), -EINVAL);
	assert_int_equal(upper_open_named(d, "x", KEPT, "a/b", &fd, &e), -EINVAL);
	assert_int_equal(upper_open_named(d, "x", KEPT, "12345678901234567", &fd, &e), -EINVAL);
	assert_int_equal(entries(folder), 1);
}

/* Several at once make one disk, and all get it. */
static void test_named_race(void **state)
{
	cleanup_free char *folder = new_folder("race"), *file = path_join(folder, "upper.ext4");
	ino_t inode[4];
	struct stat st;
	int told[2];

	(void)state;
	assert_int_equal(pipe(told), 0);
	for (size_t i = 0; i < ARRAY_LEN(inode); i++) {
		if (fork() == 0) {
			struct err e = ERR_INIT;
			int fd = -1;

			if (open_kept(folder, &fd, &e) < 0 || fstat(fd, &st) < 0)
				_exit(1);
			_exit(fd_write_all(told[1], &st.st_ino, sizeof(st.st_ino)) < 0);
		}
	}
	close(told[1]);
	assert_int_equal(fd_read_full(told[0], inode, sizeof(inode)), sizeof(inode));
	close(told[0]);
	while (wait(NULL) > 0)
		;
	assert_int_equal(stat(file, &st), 0);
	for (size_t i = 0; i < ARRAY_LEN(inode); i++)
		assert_true(inode[i] == st.st_ino);
	assert_int_equal(entries(folder), 1);
}

static int write_file(const char *path, const char *text)
{
	cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);

	return fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
}

/* Mounts that nobody else sees; who is not root becomes it in a namespace. */
static int own_mounts(void)
{
	cleanup_free char *uid = xasprintf("0 %u 1", geteuid()),
			  *gid = xasprintf("0 %u 1", getegid());

	if (geteuid() != 0 &&
		(unshare(CLONE_NEWUSER) < 0 || write_file("/proc/self/setgroups", "deny") < 0 ||
			write_file("/proc/self/gid_map", gid) < 0 ||
			write_file("/proc/self/uid_map", uid) < 0))
		return -EPERM;
	if (unshare(CLONE_NEWNS) < 0)
		return -errno;
	return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ? -errno : 0;
}

/* In a process of its own: exit status 0 when the disk was refused as it should. The template is
 * there, so that the copy is what fails. */
static int full_disk(void)
{
	char shm[] = "/dev/shm/test_upper.XXXXXX";
	struct err e = ERR_INIT;
	int fd = -1, r;

	setenv("III_SANDBOX_ALLOW_TMPFS", "1", 1);
	if (!mkdtemp(shm))
		return 77;
	if (mount("none", shm, "tmpfs", 0, "size=64k") < 0) {
		rmdir(shm);
		return 77;
	}
	r = open_kept(shm, &fd, &e);
	if (r != -ENOSPC || fd >= 0 || strcmp(e.code, "S504") != 0 ||
		!strstr(e.text, "upper.ext4") || !strstr(e.text, "No space"))
		r = fprintf(stderr, "%d %s %s\n", r, e.code, e.text);
	else if (entries(shm) != 0)
		r = fprintf(stderr, "something was left\n");
	else if (mount("none", shm, "tmpfs", MS_REMOUNT, "size=64m") < 0 ||
		 open_kept(shm, &fd, &e) < 0 || entries(shm) != 1)
		r = fprintf(stderr, "not made when there was room: %s\n", e.text);
	else
		r = 0;
	fd_close(&fd);
	umount2(shm, MNT_DETACH);
	rmdir(shm);
	return r ? 1 : 0;
}

static void test_named_full_disk(void **state)
{
	cleanup_free char *folder = new_folder("template");
	struct err e = ERR_INIT;
	int fd = -1, status;
	pid_t pid;

	(void)state;
	assert_int_equal(open_kept(folder, &fd, &e), 0);
	fd_close(&fd);
	pid = fork();
	if (pid == 0) {
		if (own_mounts() < 0)
			_exit(77);
		_exit(full_disk());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77) {
		print_message("skipped: no tmpfs can be mounted here\n");
		skip();
	}
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* A limit on the size of files. */
static void test_named_too_large(void **state)
{
	cleanup_free char *folder = new_folder("limit");
	int status;
	pid_t pid;

	(void)state;
	pid = fork();
	if (pid == 0) {
		struct rlimit l = {1 << 30, 1 << 30};
		struct err e = ERR_INIT;
		int fd = -1, r;

		signal(SIGXFSZ, SIG_IGN);
		setrlimit(RLIMIT_FSIZE, &l);
		r = open_kept(folder, &fd, &e);
		_exit(r != -EFBIG || strcmp(e.code, "S504") != 0 || entries(folder) != 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
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
		cmocka_unit_test(test_named),
		cmocka_unit_test(test_named_refused),
		cmocka_unit_test(test_named_race),
		cmocka_unit_test(test_named_full_disk),
		cmocka_unit_test(test_named_too_large),
	};

	return cmocka_run_group_tests_name("upper", tests, setup, teardown);
}
