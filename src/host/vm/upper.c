#include "host/vm/upper.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/vm/lib.h"

#define MIB		((uint64_t)1 << 20)
#define MKE2FS_SAYS_MAX 512

/* One inode for this much disk (mke2fs would make twice as many), and never fewer than … */
#define BYTES_PER_INODE 32768
#define INODES_MIN	16384

/* Named one by one, because a host's mke2fs.conf may know some that the guest's kernel does not. */
#define FEATURES                                                                                   \
	"none,has_journal,ext_attr,dir_index,filetype,sparse_super,large_file,extent,huge_file,"   \
	"flex_bg,metadata_csum,64bit,dir_nlink,extra_isize"

/* Lazy tables and packed metadata: 180 KiB of blocks instead of 200 MiB, 24 ms instead of 44. The
 * number of inodes and the file follow. */
#define EXTENDED                                                                                   \
	"lazy_itable_init=1,lazy_journal_init=1,nodiscard,packed_meta_blocks=1,root_owner=0:0"

static const char *const mke2fs_args[] = {"mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-I",
	"256", "-J", "size=16", "-m", "0", "-O", FEATURES, "-E", EXTENDED, "-N"};

/* Runs mke2fs on the file; what it says goes into the error. label "": none. */
static int run_mke2fs(const char *prog, int fd, uint64_t size, const char *label, struct err *e)
{
	const char *env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C",
		"MKE2FS_SKIP_CHECK_MSG=1", "MKE2FS_CONFIG=/dev/null", NULL};
	char *argv[ARRAY_LEN(mke2fs_args) + 5], inodes[24], says[MKE2FS_SAYS_MAX];
	size_t argc = ARRAY_LEN(mke2fs_args);
	cleanup_fd int in = -1, out = -1;
	posix_spawn_file_actions_t fa;
	int pipefd[2], r, status;
	ssize_t n;
	pid_t pid;

	if (pipe2(pipefd, O_CLOEXEC) < 0)
		return err_set(e, "S300", errno, "pipe: %s", err_str(errno));
	in = pipefd[0];
	out = pipefd[1];
	for (size_t i = 0; i < argc; i++)
		argv[i] = (char *)mke2fs_args[i];
	snprintf(inodes, sizeof(inodes), "%" PRIu64,
		MAX(size / BYTES_PER_INODE, (uint64_t)INODES_MIN));
	argv[argc++] = inodes;
	argv[argc++] = (char *)"-L";
	argv[argc++] = (char *)label;
	argv[argc++] = (char *)"/proc/self/fd/3";
	argv[argc] = NULL;
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&fa, out, 1);
	posix_spawn_file_actions_adddup2(&fa, out, 2);
	posix_spawn_file_actions_adddup2(&fa, fd, 3);
	r = posix_spawn(&pid, prog, &fa, NULL, argv, (char **)env);
	posix_spawn_file_actions_destroy(&fa);
	if (r > 0)
		return err_set(e, "S300", r, "cannot run %s: %s", prog, err_str(r));
	fd_close(&out);
	n = fd_read_full(in, says, sizeof(says) - 1);
	says[n > 0 ? n : 0] = '\0';
	fd_close(&in);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	for (char *p = says; *p; p++) {
		if (*p == '\n')
			*p = ' ';
	}
	return err_set(e, "S300", EIO, "%s failed (status %d): %s", prog,
		WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), says);
}

/* An unnamed file in the folder. Where the file system has no such files it gets the name `temp`,
 * in the place of one that was left behind by a crash. *ret_named: it has that name. */
static int new_file(int dir, const char *temp, bool *ret_named)
{
	int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	*ret_named = false;
	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
		return fd >= 0 ? fd : -errno;
	if (unlinkat(dir, temp, 0) < 0 && errno != ENOENT)
		return -errno;
	fd = openat(dir, temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	*ret_named = fd >= 0;
	return fd < 0 ? -errno : fd;
}

/* One that is never to have a name. */
static int unnamed_file(int dir)
{
	char name[48], id[37];
	bool named;
	int fd;

	str_uuid4(id);
	snprintf(name, sizeof(name), ".upper-%s", id);
	fd = new_file(dir, name, &named);
	if (named)
		unlinkat(dir, name, 0);
	return fd;
}

/* Makes the template without a name and links it when it is whole: nothing half-made is ever seen
 * or left behind. Where the file system cannot do that, it is made anew for every disk. */
static int make_template(
	int dir, const char *name, uint64_t size, const char *label, int *ret_fd, struct err *e)
{
	cleanup_free char *prog = lib_find_program("mke2fs");
	cleanup_fd int fd = -1;
	char self[48];
	int r;

	if (!prog)
		return err_set(e, "S300", ENOENT,
			"mke2fs is not installed: it is in the package e2fsprogs");
	fd = unnamed_file(dir);
	if (fd < 0)
		return err_set(e, "S300", fd, "cannot make a disk template: %s", err_str(fd));
	if (ftruncate(fd, (off_t)size) < 0)
		return err_set(e, "S300", errno, "cannot make a disk of %" PRIu64 " MiB: %s",
			size / MIB, err_str(errno));
	if ((r = run_mke2fs(prog, fd, size, label, e)) < 0)
		return r;
	if (fsync(fd) < 0)
		return err_set(e, "S300", errno, "disk template: %s", err_str(errno));
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	if (linkat(AT_FDCWD, self, dir, name, AT_SYMLINK_FOLLOW) < 0 && errno != EEXIST &&
		errno != ENOENT && errno != EOPNOTSUPP)
		return err_set(
			e, "S300", errno, "cannot keep the disk template: %s", err_str(errno));
	*ret_fd = STEAL_FD(fd);
	return 0;
}

static int open_template(uint64_t size, const char *label, int *ret_fd, struct err *e)
{
	cleanup_free char *path = path_cache_dir("upper", e);
	cleanup_fd int dir = path ? path_open_dir(path, e) : -1;
	char name[48 + UPPER_LABEL_MAX];
	struct stat st;
	int fd;

	if (dir < 0) {
		err_code(e, "S300");
		return -EIO;
	}
	snprintf(name, sizeof(name), "ext4-1-%" PRIu64 "M%s%s", size / MIB, *label ? "-" : "",
		label);
	fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return make_template(dir, name, size, label, ret_fd, e);
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(
			e, "S300", errno, "disk template %s/%s: %s", path, name, err_str(errno));
	if ((uint64_t)st.st_size != size) {
		fd_close(&fd);
		return err_set(e, "S300", EIO,
			"the disk template %s/%s is damaged: remove it, it is made again", path,
			name);
	}
	*ret_fd = fd;
	return 0;
}

static int refuse_tmpfs(int dir, const char *path, struct err *e)
{
	const char *allow = getenv("III_SANDBOX_ALLOW_TMPFS");
	struct statfs fs;

	if (fstatfs(dir, &fs) < 0)
		return err_set(e, "S300", errno, "%s: %s", path, err_str(errno));
	if ((fs.f_type != TMPFS_MAGIC && fs.f_type != RAMFS_MAGIC) || str_eq(allow, "1"))
		return 0;
	return err_set(e, "S300", ENOTSUP,
		"%s is on a tmpfs, where a sandbox's disk would fill this host's memory: set "
		"III_SANDBOX_STATE_DIR to a folder on a disk (III_SANDBOX_ALLOW_TMPFS=1 allows it)",
		path);
}

static int check_size(uint64_t size, struct err *e)
{
	if (size < UPPER_SIZE_MIN || size > UPPER_SIZE_MAX || size % MIB)
		return err_set(e, "S300", EINVAL,
			"a writable disk of %" PRIu64 " bytes: has to be whole MiB from 64 MiB to "
			"1 TiB",
			size);
	return 0;
}

int upper_new(uint64_t size_bytes, int *ret_fd, struct err *e)
{
	cleanup_free char *path = NULL;
	cleanup_fd int dir = -1, template = -1, fd = -1;
	int r;

	if ((r = check_size(size_bytes, e)) < 0)
		return r;
	path = path_state_dir(NULL, e);
	dir = path ? path_open_dir(path, e) : -1;
	if (dir < 0) {
		err_code(e, "S300");
		return -EIO;
	}
	if ((r = refuse_tmpfs(dir, path, e)) < 0 ||
		(r = open_template(size_bytes, "", &template, e)) < 0)
		return r;
	fd = unnamed_file(dir);
	r = fd < 0 ? fd : fd_copy_sparse(template, fd);
	if (r < 0)
		return err_set(
			e, "S300", r, "cannot make a writable disk in %s: %s", path, err_str(r));
	*ret_fd = STEAL_FD(fd);
	return 0;
}

/* --- disks with a name --- */

#define LABEL_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

/* What messages call it. */
static char *disk_path(int dir, const char *name)
{
	char link[48], folder[512];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
	n = readlink(link, folder, sizeof(folder) - 1);
	folder[n > 0 ? n : 0] = '\0';
	return path_join(folder, name);
}

/* -ENOENT, without a text, when there is none. */
static int open_existing(
	int dir, const char *name, const char *path, uint64_t size, int *ret_fd, struct err *e)
{
	/* Not to hang on a FIFO that somebody put there. */
	cleanup_fd int fd =
		openat(dir, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st;
	int r;

	if (fd < 0 && errno == ENOENT)
		return -ENOENT;
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(e, "S504", errno, "%s: %s", path,
			errno == ELOOP ? "is a symbolic link, not the VM's disk" : err_str(errno));
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
		return err_set(e, "S504", EPERM, "%s is not a regular file of this user", path);
	if ((uint64_t)st.st_size != size)
		return err_set(e, "S504", EIO,
			"%s has %" PRIu64 " bytes where a VM's disk has %" PRIu64
			": it is damaged; destroying the VM removes it",
			path, (uint64_t)st.st_size, size);
	if ((r = fd_set_nonblock(fd, false)) < 0)
		return err_set(e, "S504", r, "%s: %s", path, err_str(r));
	*ret_fd = STEAL_FD(fd);
	return 0;
}

/* -EEXIST when somebody else was quicker. It is this very file that gets the name, whatever has
 * become of a temporary one meanwhile. */
static int give_name(int dir, int fd, const char *name)
{
	char self[48];

	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	if (linkat(AT_FDCWD, self, dir, name, AT_SYMLINK_FOLLOW) < 0)
		return -errno;
	return fsync(dir) < 0 ? -errno : 0;
}

static int make_named(
	int dir, const char *name, uint64_t size, const char *label, int *ret_fd, struct err *e)
{
	cleanup_free char *temp = xasprintf(".%s.partial", name);
	cleanup_fd int template = -1, fd = -1;
	bool named = false;
	int r = open_template(size, label, &template, e);

	if (r < 0)
		return r;
	fd = new_file(dir, temp, &named);
	r = fd < 0 ? fd : fd_copy_sparse(template, fd);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (r == 0)
		r = give_name(dir, fd, name);
	if (named)
		unlinkat(dir, temp, 0);
	if (r < 0)
		return err_set(e, "S504", r, "cannot make it: %s", err_str(r));
	*ret_fd = STEAL_FD(fd);
	return 0;
}

int upper_open_named(int dirfd, const char *name, uint64_t size_bytes, const char *label,
	int *ret_fd, struct err *e)
{
	cleanup_free char *path = disk_path(dirfd, name);
	int r = check_size(size_bytes, e);

	if (r == 0 && (!*label || strlen(label) > UPPER_LABEL_MAX ||
			      strspn(label, LABEL_LETTERS) != strlen(label)))
		r = err_set(e, "S300", EINVAL, "\"%.40s\" cannot be the label of a disk", label);
	if (r < 0)
		return r;
	r = open_existing(dirfd, name, path, size_bytes, ret_fd, e);
	if (r != -ENOENT)
		return r;
	r = refuse_tmpfs(dirfd, path, e);
	if (r == 0)
		r = make_named(dirfd, name, size_bytes, label, ret_fd, e);
	if (r == -EEXIST)
		return open_existing(dirfd, name, path, size_bytes, ret_fd, e);
	if (r < 0)
		err_wrap(e, "the disk %s", path);
	/* A missing program is the host's lack; all else is a disk that fails. */
	if (r < 0 && r != -ENOENT && e)
		snprintf(e->code, sizeof(e->code), "S504");
	return r;
}
