/* Namespaces, and the file tree that the VMM sees.
 *
 * The tree is a tmpfs of a few names, read-only once it is made:
 *
 *   /proc/self/fd     the VMM's own descriptors and nothing else of /proc: VMMs open their disks by
 *                     such names. A mount of the folder alone needs no right to mount a procfs,
 *                     which containers refuse, and shows no other process.
 *   /dev/null, urandom, and kvm for who needs it
 *   the policy's paths, read-only; symbolic links on the way are made as they are on the host
 *
 * All is collected as detached mounts first (open_tree) and put into the tmpfs then, so that
 * nothing depends on where the tmpfs covers the host's tree for a moment. Needs Linux 5.12 for
 * mount_setattr; an older kernel does without this layer.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/confine_priv.h"

/* <sys/mount.h> cannot stand beside <linux/mount.h> everywhere. */
#define MOUNT_DETACH 2

#define ITEMS_MAX (CONFINE_PATHS_MAX + 4)
#define COVER	  "/proc" /* where the new tree lies over the old one for a moment */
#define TREE_DATA "size=256k,nr_inodes=256,mode=0755"

#define ATTR_QUIET (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)

static int write_map(const char *path, const char *text)
{
	cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

int confine_ns_map(uid_t own_uid, gid_t own_gid)
{
	char uid[48], gid[48];
	int r;

	snprintf(uid, sizeof(uid), "%u %u 1", own_uid, own_uid);
	snprintf(gid, sizeof(gid), "%u %u 1", own_gid, own_gid);
	r = write_map("/proc/self/setgroups", "deny");
	if (r == 0)
		r = write_map("/proc/self/gid_map", gid);
	return r == 0 ? write_map("/proc/self/uid_map", uid) : r;
}

/* Something of the host's to be shown. */
struct item {
	int mount; /* detached, or -1: `link` is the text of a symbolic link, or a device is made */
	bool folder;
	char path[128]; /* where, without the / in front */
	char link[PATH_MAX];
};

struct tree {
	struct item *items;
	size_t n;
};

static void tree_done(struct tree *t)
{
	for (size_t i = 0; i < t->n; i++)
		fd_close(&t->items[i].mount);
	free(t->items);
}
#define cleanup_tree __attribute__((cleanup(tree_done)))

static bool known(const struct tree *t, const char *path)
{
	for (size_t i = 0; i < t->n; i++) {
		size_t len = strlen(t->items[i].path);

		if (strncmp(t->items[i].path, path, len) == 0 &&
			(path[len] == '\0' || path[len] == '/'))
			return true;
	}
	return false;
}

/* Takes a clone of what is at `path`. 0 also when there is nothing. */
static int take(struct tree *t, const char *path, uint64_t attr)
{
	struct item *it = &t->items[t->n];
	struct mount_attr a = {.attr_set = attr};
	struct stat st;
	ssize_t n;

	if (t->n == ITEMS_MAX || strlen(path) > sizeof(it->path) || known(t, path + 1))
		return 0;
	*it = (struct item){.mount = -1};
	snprintf(it->path, sizeof(it->path), "%s", path + 1);
	if (lstat(path, &st) < 0)
		return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? 0 : -errno;
	if (S_ISLNK(st.st_mode)) {
		if ((n = readlink(path, it->link, sizeof(it->link) - 1)) < 0)
			return -errno;
		it->link[n] = '\0';
		t->n++;
		return 0;
	}
	it->folder = S_ISDIR(st.st_mode);
	/* What is mounted below comes along: a kernel that hides something by a mount insists. */
	it->mount = (int)syscall(SYS_open_tree, AT_FDCWD, path,
		OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (it->folder ? AT_RECURSIVE : 0));
	if (it->mount < 0)
		return -errno;
	t->n++;
	if (syscall(SYS_mount_setattr, it->mount, "",
		    AT_EMPTY_PATH | (it->folder ? AT_RECURSIVE : 0), &a, sizeof(a)) < 0)
		return -errno;
	return 0;
}

static int take_all(struct tree *t, const struct confine *c, const struct confine_policy *policy)
{
	const uint64_t device = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC;
	int r;

	t->items = xcalloc(ITEMS_MAX, sizeof(*t->items));
	if ((r = take(t, "/proc/self/fd", ATTR_QUIET | MOUNT_ATTR_NOEXEC)) < 0 ||
		(r = take(t, "/dev/null", device)) < 0 || (r = take(t, "/dev/urandom", device)) < 0)
		return r;
	if (policy->kvm && !c->uid && (r = take(t, "/dev/kvm", device)) < 0)
		return r;
	for (size_t i = 0; i < CONFINE_PATHS_MAX && policy->paths[i]; i++) {
		if ((r = take(t, policy->paths[i], ATTR_QUIET | MOUNT_ATTR_RDONLY)) < 0)
			return r;
	}
	return 0;
}

/* The folders above a path, then the place for it itself. */
static int make_place(int root, const struct item *it)
{
	char path[sizeof(it->path)];
	int fd;

	snprintf(path, sizeof(path), "%s", it->path);
	for (char *s = strchr(path, '/'); s; s = strchr(s + 1, '/')) {
		*s = '\0';
		if (mkdirat(root, path, 0755) < 0 && errno != EEXIST)
			return -errno;
		*s = '/';
	}
	if (it->mount < 0)
		return symlinkat(it->link, root, path) < 0 ? -errno : 0;
	if (it->folder)
		return mkdirat(root, path, 0755) < 0 && errno != EEXIST ? -errno : 0;
	fd = openat(root, path, O_CREAT | O_WRONLY | O_CLOEXEC, 0444);
	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

/* A node of its own, which nobody but this VMM sees, is open to the user that it becomes; the
 * host's may be root's alone. Where nodes cannot be made, the host's is shown. */
static int make_kvm(int root)
{
	struct stat st;
	int tree;

	if (stat("/dev/kvm", &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (mkdirat(root, "dev", 0755) < 0 && errno != EEXIST)
		return -errno;
	if (mknodat(root, "dev/kvm", S_IFCHR | 0666, st.st_rdev) == 0)
		return fchmodat(root, "dev/kvm", 0666, 0) < 0 ? -errno : 0;
	tree = (int)syscall(
		SYS_open_tree, AT_FDCWD, "/dev/kvm", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	if (tree < 0)
		return -errno;
	close(openat(root, "dev/kvm", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	if (syscall(SYS_move_mount, tree, "", root, "dev/kvm", MOVE_MOUNT_F_EMPTY_PATH) < 0) {
		int r = -errno;

		close(tree);
		return r;
	}
	close(tree);
	return 0;
}

static int fill(int root, const struct tree *t)
{
	for (size_t i = 0; i < t->n; i++) {
		const struct item *it = &t->items[i];
		int r = make_place(root, it);

		if (r < 0)
			return r;
		if (it->mount >= 0 && syscall(SYS_move_mount, it->mount, "", root, it->path,
					      MOVE_MOUNT_F_EMPTY_PATH) < 0)
			return -errno;
	}
	return 0;
}

/* In: the new tree lies over COVER and `root` is its top. Out: it is all there is. */
static int change_root(int root)
{
	struct mount_attr a = {.attr_set = ATTR_QUIET | MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC};

	/* A node of ours is in it, if any. */
	a.attr_set &= ~(uint64_t)MOUNT_ATTR_NODEV;
	if (syscall(SYS_mount_setattr, root, "", AT_EMPTY_PATH, &a, sizeof(a)) < 0)
		return -errno;
	if (fchdir(root) < 0)
		return -errno;
	/* The old root is put over the new one, and taken away from there. */
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		return -errno;
	if (syscall(SYS_umount2, ".", MOUNT_DETACH) < 0 || chdir("/") < 0)
		return -errno;
	return 0;
}

int confine_ns_root(const struct confine *c, const struct confine_policy *policy)
{
	cleanup_tree struct tree t = {0};
	cleanup_fd int root = -1;
	mode_t mask;
	struct mount_attr private = {.propagation = MS_PRIVATE};
	int r;

	if (unshare(CLONE_NEWNS) < 0)
		return -errno;
	if (syscall(SYS_mount_setattr, AT_FDCWD, "/", AT_RECURSIVE, &private, sizeof(private)) < 0)
		return -errno;
	if ((r = take_all(&t, c, policy)) < 0)
		return r;
	if (syscall(SYS_mount, "tmpfs", COVER, "tmpfs", MS_NOSUID, TREE_DATA) < 0)
		return -errno;
	mask = umask(0); /* another user will walk here */
	root = open(COVER, O_PATH | O_DIRECTORY | O_CLOEXEC);
	r = root < 0 ? -errno : 0;
	if (r == 0 && policy->kvm && c->uid)
		r = make_kvm(root);
	if (r == 0)
		r = fill(root, &t);
	if (r == 0)
		r = change_root(root);
	umask(mask);
	if (r < 0)
		syscall(SYS_umount2, COVER, MOUNT_DETACH);
	return r;
}
