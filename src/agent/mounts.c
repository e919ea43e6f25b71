#include "agent/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

#define NOTHING_SPECIAL (MS_NOSUID | MS_NODEV | MS_NOEXEC)

struct mount_row {
	const char *path; /* below the root; a row's parents stand before it */
	const char *type;
	unsigned long flags;
	const char *options;
	bool optional; /* not every kernel has it */
};

static const struct mount_row ROWS[] = {
	{"proc", "proc", NOTHING_SPECIAL, NULL, false},
	{"sys", "sysfs", NOTHING_SPECIAL, NULL, false},
	{"sys/fs/cgroup", "cgroup2", NOTHING_SPECIAL, NULL, true},
	{"dev", "devtmpfs", MS_NOSUID, "mode=0755", false},
	{"dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666", true},
	{"dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", false},
	{"tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", false},
	{"run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755", false},
};

static const struct {
	const char *target, *path;
} LINKS[] = {
	{"/proc/self/fd", "dev/fd"},
	{"/proc/self/fd/0", "dev/stdin"},
	{"/proc/self/fd/1", "dev/stdout"},
	{"/proc/self/fd/2", "dev/stderr"},
};

static int open_in_root(int root_fd, const char *path)
{
	struct open_how how = {
		.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
	};

	return (int)syscall(SYS_openat2, root_fd, path, &how, sizeof(how));
}

/* Opens the folder that holds `path`, also inside the root: *ret_name is the last component. */
static int open_parent(int root_fd, const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	char parent[64] = ".";

	*ret_name = slash ? slash + 1 : path;
	if (slash)
		snprintf(parent, sizeof(parent), "%.*s", (int)(slash - path), path);
	return open_in_root(root_fd, parent);
}

/* Makes `path` a folder, in place of whatever is not one. */
static void make_point(int root_fd, const char *path)
{
	const char *name;
	cleanup_fd int parent = open_parent(root_fd, path, &name);

	if (parent < 0)
		return;
	if (mkdirat(parent, name, 0755) < 0 && errno == EEXIST && unlinkat(parent, name, 0) == 0)
		mkdirat(parent, name, 0755);
}

int mounts_open_point(int root_fd, const char *path, struct err *e)
{
	int fd = open_in_root(root_fd, path);

	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)) {
		make_point(root_fd, path);
		fd = open_in_root(root_fd, path);
	}
	if (fd < 0)
		return err_set(e, "S300", errno, "cannot make the mount point /%s: %s", path,
			err_str(errno));
	return fd;
}

static int make_link(int root_fd, const char *target, const char *path, struct err *e)
{
	const char *name;
	cleanup_fd int parent = open_parent(root_fd, path, &name);

	if (parent < 0 || (symlinkat(target, parent, name) < 0 && errno != EEXIST))
		return err_set(
			e, "S300", errno, "cannot make the link /%s: %s", path, err_str(errno));
	return 0;
}

static int mount_row(int root_fd, const struct mount_row *row, struct err *e)
{
	cleanup_fd int point = mounts_open_point(root_fd, row->path, e);
	char through[64];

	if (point < 0)
		return row->optional ? 0 : point;
	snprintf(through, sizeof(through), "/proc/self/fd/%d", point);
	if (mount(row->type, through, row->type, row->flags, row->options) < 0 && !row->optional)
		return err_set(e, "S300", errno, "cannot mount %s on /%s: %s", row->type, row->path,
			err_str(errno));
	return 0;
}

static int open_cgroup(int root_fd)
{
	cleanup_fd int point = open_in_root(root_fd, "sys/fs/cgroup");

	if (point < 0 || faccessat(point, "cgroup.procs", F_OK, 0) < 0)
		return -1;
	return openat(point, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int mounts_make(const char *root, int *ret_cgroup_fd, struct err *e)
{
	cleanup_fd int root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (root_fd < 0)
		return err_set(e, "S300", errno, "cannot open %s: %s", root, err_str(errno));
	for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
		int r = mount_row(root_fd, &ROWS[i], e);

		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < ARRAY_LEN(LINKS); i++) {
		int r = make_link(root_fd, LINKS[i].target, LINKS[i].path, e);

		if (r < 0)
			return r;
	}
	*ret_cgroup_fd = open_cgroup(root_fd);
	return 0;
}
