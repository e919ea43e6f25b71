/* Landlock: files, TCP and signals once more, by a mechanism that needs no namespace. Where
 * namespaces are refused it is the only limit on files beside the user's own rights.
 *
 * The tables are our own, since the headers of a build machine know less than the kernel that the
 * program meets: a right is asked for from the ABI on that has it. What the VMM has open already
 * is not touched by landlock, but opening it again through /proc/self/fd is, and is judged by the
 * file behind it: so a read-only disk cannot become a writable one. Descriptors without a place in
 * any tree (pipes, memory files) are exempt by landlock's own rules.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "host/vm/confine_priv.h"

#ifndef __NR_landlock_create_ruleset
#define __NR_landlock_create_ruleset 444
#define __NR_landlock_add_rule	     445
#define __NR_landlock_restrict_self  446
#endif

#define CREATE_VERSION 1u
#define RULE_PATH      1

enum {
	FS_EXECUTE = 1u << 0,
	FS_WRITE_FILE = 1u << 1,
	FS_READ_FILE = 1u << 2,
	FS_READ_DIR = 1u << 3,
	FS_ABI1 = (1u << 13) - 1, /* and what makes, moves and removes names */
	FS_REFER = 1u << 13,	  /* ABI 2 */
	FS_TRUNCATE = 1u << 14,	  /* ABI 3 */
	FS_IOCTL_DEV = 1u << 15,  /* ABI 5 */
	NET_TCP = 3u,		  /* ABI 4: bind, connect */
	SCOPE_ABSTRACT = 1u,	  /* ABI 6: unix sockets without a path … */
	SCOPE_SIGNAL = 2u,	  /* … and signals to processes outside */
	FS_OF_FILES = FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV,
};

struct ruleset_attr {
	uint64_t fs, net, scope;
};

struct path_attr {
	uint64_t allowed;
	int32_t fd;
} __attribute__((packed));

static uint64_t handled_fs(int abi)
{
	return FS_ABI1 | (abi >= 2 ? FS_REFER : 0) | (abi >= 3 ? FS_TRUNCATE : 0) |
	       (abi >= 5 ? FS_IOCTL_DEV : 0);
}

static int allow_fd(int ruleset, int fd, uint64_t rights)
{
	struct path_attr a = {.allowed = rights, .fd = fd};

	/* EBADFD: a file that is in no tree, which landlock does not look at. */
	if (syscall(__NR_landlock_add_rule, ruleset, RULE_PATH, &a, 0) < 0 && errno != EBADFD)
		return -errno;
	return 0;
}

static int allow_path(int ruleset, const char *path, uint64_t rights)
{
	cleanup_fd int fd = open(path, O_PATH | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? 0 : -errno;
	return allow_fd(ruleset, fd, S_ISDIR(st.st_mode) ? rights : rights & FS_OF_FILES);
}

static int allow_needs(
	int ruleset, uint64_t fs, const struct confine_policy *policy, const struct plan *p)
{
	static const char *const devices[] = {"/dev/null", "/dev/urandom"};
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(devices) && r == 0; i++)
		r = allow_path(ruleset, devices[i], FS_READ_FILE);
	for (size_t i = 0; i < CONFINE_PATHS_MAX && policy->paths[i] && r == 0; i++)
		r = allow_path(ruleset, policy->paths[i], FS_READ_FILE | FS_READ_DIR | FS_EXECUTE);
	if (r == 0 && policy->kvm)
		r = allow_path(
			ruleset, "/dev/kvm", fs & (FS_READ_FILE | FS_WRITE_FILE | FS_IOCTL_DEV));
	if (r == 0 && p->kernel_fd > 0)
		r = allow_fd(ruleset, p->kernel_fd, FS_READ_FILE);
	for (size_t i = 0; i < p->n_disks && r == 0; i++)
		r = allow_fd(ruleset, p->disks[i].fd,
			FS_READ_FILE | (p->disks[i].readonly ? 0 : FS_WRITE_FILE));
	return r;
}

static int make_ruleset(uint64_t scope, struct ruleset_attr *ret, int *ret_abi)
{
	int abi = (int)syscall(__NR_landlock_create_ruleset, NULL, 0, CREATE_VERSION), fd;

	if (abi < 1)
		return abi < 0 ? -errno : -ENOSYS;
	*ret = (struct ruleset_attr){.fs = handled_fs(abi),
		.net = abi >= 4 ? NET_TCP : 0,
		.scope = abi >= 6 ? scope : 0};
	*ret_abi = abi;
	/* Old kernels refuse a longer structure unless what they do not know is 0. */
	fd = (int)syscall(__NR_landlock_create_ruleset, ret, sizeof(*ret), 0);
	return fd < 0 ? -errno : fd;
}

static int restrict_self(int ruleset)
{
	return syscall(__NR_landlock_restrict_self, ruleset, 0) < 0 ? -errno : 0;
}

int confine_landlock(const struct confine_policy *policy, const struct plan *p, uint8_t *ret_abi)
{
	struct ruleset_attr a;
	int abi, r;
	cleanup_fd int ruleset = make_ruleset(SCOPE_ABSTRACT | SCOPE_SIGNAL, &a, &abi);

	if (ruleset < 0)
		return ruleset;
	if ((r = allow_needs(ruleset, a.fs, policy, p)) < 0 || (r = restrict_self(ruleset)) < 0)
		return r;
	*ret_abi = (uint8_t)abi;
	return 0;
}

int confine_landlock_waiter(void)
{
	struct ruleset_attr a;
	int abi;
	/* Signals stay: the VMM is in another domain than this, and is to be killed. */
	cleanup_fd int ruleset = make_ruleset(SCOPE_ABSTRACT, &a, &abi);

	return ruleset < 0 ? ruleset : restrict_self(ruleset);
}
