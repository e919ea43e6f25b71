/* Another user than the host's root, and no capabilities.
 *
 * A daemon that root runs gives every VMM a user id of its own, which owns nothing on the host.
 * But a VMM opens its disks and its kernel again by /proc/self/fd/N, and these are root's files. So
 * each is shown to it through a mount that maps its owner to that user (an idmapped mount, Linux
 * 5.12, which leaves the file itself as it is); a read-only disk also through a read-only mount,
 * through which it can neither be opened for writing nor changed in its mode.
 *
 * The original descriptor of the writable disk stays open: the lock on the disk belongs to it.
 *
 * Where any of that does not work the VMM stays root by number: without a capability, in namespaces
 * of its own, but with root's files if it ever got out of those.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "host/vm/confine_priv.h"

/* Holds a user namespace open until its parent has got hold of it. */
static _Noreturn void hold_namespace(int said, int may_go)
{
	char c = 1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (unshare(CLONE_NEWUSER) == 0 && write(said, &c, 1) == 1) {
		while (read(may_go, &c, 1) < 0 && errno == EINTR)
			;
	}
	_exit(0);
}

static int map_one(pid_t pid, const char *file, unsigned from, unsigned to)
{
	char path[64], text[48];
	cleanup_fd int fd = -1;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	snprintf(text, sizeof(text), "%u %u 1", from, to);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	return fd < 0 || write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

int confine_uid_map(uid_t uid)
{
	int said[2], go[2], r, fd = -1;
	char path[64], c;
	pid_t pid;

	if (pipe2(said, O_CLOEXEC) < 0)
		return -errno;
	if (pipe2(go, O_CLOEXEC) < 0) {
		r = -errno;
		fd_close(&said[0]);
		fd_close(&said[1]);
		return r;
	}
	pid = fork();
	if (pid == 0) {
		close(said[0]);
		close(go[1]);
		hold_namespace(said[1], go[0]);
	}
	fd_close(&said[1]);
	fd_close(&go[0]);
	r = pid < 0 ? -EAGAIN : 0;
	if (r == 0 && fd_read_full(said[0], &c, 1) != 1)
		r = -EPERM;
	if (r == 0)
		r = map_one(pid, "uid_map", geteuid(), uid);
	if (r == 0)
		r = map_one(pid, "gid_map", getegid(), uid);
	if (r == 0) {
		snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		r = fd < 0 ? -errno : fd;
	}
	fd_close(&go[1]);
	fd_close(&said[0]);
	while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return r;
}

/* The plan's files, the kernel first. */
static int file_of(const struct plan *p, size_t i, bool *ret_readonly)
{
	*ret_readonly = i == 0 || p->disks[i - 1].readonly;
	return i == 0 ? p->kernel_fd : p->disks[i - 1].fd;
}

/* Opens the file behind fd through a mount that shows it as the user's. */
static int open_mapped(int fd, bool readonly, int map_fd)
{
	struct mount_attr a = {
		.attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
			    MOUNT_ATTR_NOEXEC | (readonly ? MOUNT_ATTR_RDONLY : 0),
		.userns_fd = (uint64_t)map_fd,
	};
	cleanup_fd int tree = (int)syscall(
		SYS_open_tree, fd, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	char path[32];
	int r;

	if (tree < 0 || syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &a, sizeof(a)) < 0)
		return -errno;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", tree);
	r = open(path, (readonly ? O_RDONLY : O_RDWR) | O_CLOEXEC);
	return r < 0 ? -errno : r;
}

void confine_uid_swap(
	const struct confine *c, const struct plan *p, int console, struct confine_uid_swap *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(ret->original); i++) {
		cleanup_fd int mapped = -1;
		bool readonly;
		int fd;

		ret->original[i] = -1;
		if (i > p->n_disks || (fd = file_of(p, i, &readonly)) < 0)
			continue;
		mapped = open_mapped(fd, readonly, c->map_fd);
		if (mapped < 0)
			continue;
		/* Over an execve too: of the writable disk it is the lock. */
		ret->original[i] = fcntl(fd, F_DUPFD, 3);
		if (ret->original[i] >= 0)
			dup3(mapped, fd, O_CLOEXEC);
	}
	if (console >= 0 && fchown(console, c->uid, c->uid) < 0)
		return; /* then it cannot be opened, and confine_uid_drop says so */
}

static void swap_back(const struct plan *p, int console, struct confine_uid_swap *s)
{
	if (console >= 0 && fchown(console, geteuid(), getegid()) < 0)
		return; /* it was not changed either */
	for (size_t i = 0; i <= p->n_disks; i++) {
		bool readonly;

		if (s->original[i] >= 0)
			dup3(s->original[i], file_of(p, i, &readonly), O_CLOEXEC);
		fd_close(&s->original[i]);
	}
}

/* Of the originals only the lock is kept. */
static void swap_keep(const struct plan *p, struct confine_uid_swap *s)
{
	for (size_t i = 0; i <= p->n_disks; i++) {
		bool readonly;

		file_of(p, i, &readonly);
		if (readonly)
			fd_close(&s->original[i]);
	}
}

static int try_open(const char *path, int flags)
{
	cleanup_fd int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);

	return fd < 0 ? -errno : 0;
}

static int try_fd(int fd, int flags)
{
	char path[32];

	if (fd < 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return try_open(path, flags);
}

/* With the file rights of the user: what the VMM is going to open. */
static int try_all(const struct plan *p, bool kvm, int console)
{
	int r = kvm && access("/dev/kvm", F_OK) == 0 ? try_open("/dev/kvm", O_RDWR) : 0;

	for (size_t i = 0; i <= p->n_disks && r == 0; i++) {
		bool readonly;
		int fd = file_of(p, i, &readonly);

		r = try_fd(fd, readonly ? O_RDONLY : O_RDWR);
	}
	return r == 0 ? try_fd(console, O_WRONLY) : r;
}

/* Who has no CAP_SETPCAP need not drop from the bounding set: with no_new_privs there is no way
 * from there to a capability. */
static void bound_caps(void)
{
	const int bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
			 SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
			 SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;

	for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
	prctl(PR_SET_SECUREBITS, bits, 0, 0, 0);
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}

int confine_uid_drop(const struct confine *c, const struct plan *p, bool kvm, int console,
	struct confine_uid_swap *swap)
{
	int r;

	/* The kernel takes root's rights to files away with root's fsuid. */
	setfsgid(c->uid);
	setfsuid(c->uid);
	r = try_all(p, kvm, console);
	setfsuid(geteuid());
	setfsgid(getegid());
	if (r < 0) {
		swap_back(p, console, swap);
		return r;
	}
	swap_keep(p, swap);
	bound_caps();
	if (setgroups(0, NULL) < 0 || setresgid(c->uid, c->uid, c->uid) < 0 ||
		setresuid(c->uid, c->uid, c->uid) < 0)
		return -errno;
	return 0;
}

int confine_caps_drop(void)
{
	struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {0}, now[2] = {0};

	bound_caps();
	if (syscall(SYS_capset, &h, none) < 0 || syscall(SYS_capget, &h, now) < 0)
		return -errno;
	for (size_t i = 0; i < ARRAY_LEN(now); i++) {
		if (now[i].effective | now[i].permitted | now[i].inheritable)
			return -EPERM;
	}
	return 0;
}

int confine_caps_waiter(void)
{
	struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct d[2] = {0};
	const uint32_t kill = 1u << CAP_KILL;

	if (syscall(SYS_capget, &h, d) < 0)
		return -errno;
	d[0].effective &= kill;
	d[0].permitted &= kill;
	d[0].inheritable = 0;
	d[1] = (struct __user_cap_data_struct){0};
	return syscall(SYS_capset, &h, d) < 0 ? -errno : 0;
}
