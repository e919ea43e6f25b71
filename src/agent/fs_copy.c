/* fs_tree_copy of fs_tree.h.
 *
 * The source is walked (walk.h); the copy is built beside it, one directory open at a time: down by
 * its name, up by "..". A directory gets its owner, mode and times when everything in it is there.
 * Files with several names are copied once and linked again by a table of what was seen.
 *
 * Left out: extended attributes that the target's file system does not know.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "agent/fs_error.h"
#include "agent/fs_job.h"
#include "agent/fs_tree.h"
#include "agent/walk.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define CHUNK (256u << 10)

/* A file with several names: where its copy is, from the copy's root. */
struct seen {
	dev_t dev;
	ino_t ino;
	char *path;
};

struct copy {
	const char *src;
	int root_fd;	     /* of the copy; -1 when it is no directory */
	int dir_fd;	     /* where the walk is, in the copy */
	struct seen *links;  /* open addressing */
	size_t n_links, cap; /* cap: a power of two */
	char *chunk;
};

/* --- one file --- */

static int copy_range(struct copy *c, int from, int to, off_t at, off_t end)
{
	while (at < end) {
		size_t want = MIN((size_t)(end - at), (size_t)CHUNK);
		ssize_t n = pread(from, c->chunk, want, at);
		int r;

		if (fs_cancelled())
			return -ECANCELED;
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : 0;
		r = fd_pwrite_all(to, c->chunk, (size_t)n, (uint64_t)at);
		if (r < 0)
			return r;
		at += n;
	}
	return 0;
}

/* Data runs only, as far as the file system tells them; a file that does not know its size (below
 * /proc) is read to its end. */
static int copy_data(struct copy *c, int from, int to, off_t size)
{
	off_t at = 0;

	if (!size)
		return copy_range(c, from, to, 0, INT64_MAX);
	if (ftruncate(to, size) < 0)
		return -errno;
	while (at < size) {
		off_t data = lseek(from, at, SEEK_DATA), hole;
		int r;

		if (data < 0 && errno == ENXIO)
			return 0;
		if (data < 0)
			return copy_range(c, from, to, at, size);
		hole = lseek(from, data, SEEK_HOLE);
		r = copy_range(c, from, to, data, hole < 0 ? size : hole);
		if (r < 0)
			return r;
		at = hole < 0 ? size : hole;
	}
	return 0;
}

static int copy_xattr(int from, int to, const char *name)
{
	char value[4096];
	cleanup_free char *big = NULL;
	char *v = value;
	ssize_t n = fgetxattr(from, name, value, sizeof(value));

	if (n < 0 && errno == ERANGE) {
		v = big = xmalloc(XATTR_SIZE_MAX);
		n = fgetxattr(from, name, big, XATTR_SIZE_MAX);
	}
	if (n < 0)
		return errno == ENODATA ? 0 : -errno;
	if (fsetxattr(to, name, v, (size_t)n, 0) == 0 || errno == EOPNOTSUPP)
		return 0;
	return -errno;
}

int fs_copy_xattrs(int from, int to)
{
	cleanup_free char *names = NULL;
	ssize_t len = flistxattr(from, NULL, 0);
	int r = 0;

	if (len <= 0)
		return len < 0 && errno != EOPNOTSUPP ? -errno : 0;
	names = xmalloc(XATTR_LIST_MAX);
	len = flistxattr(from, names, XATTR_LIST_MAX);
	for (ssize_t at = 0; r == 0 && at < len; at += (ssize_t)strlen(names + at) + 1)
		r = copy_xattr(from, to, names + at);
	return r;
}

/* Owner before mode: it clears set-id bits and capabilities. */
static int copy_facts(int from, int to, const struct stat *st)
{
	const struct timespec times[2] = {st->st_atim, st->st_mtim};
	int r;

	if (fchown(to, st->st_uid, st->st_gid) < 0)
		return -errno;
	r = from >= 0 ? fs_copy_xattrs(from, to) : 0;
	if (r < 0)
		return r;
	return fchmod(to, st->st_mode & 07777) < 0 || futimens(to, times) < 0 ? -errno : 0;
}

static int copy_regular(struct copy *c, int from_dir, const char *from_name, int to_dir,
	const char *to_name, const struct stat *st)
{
	cleanup_fd int from = -1, to = -1;
	int r;

	from = openat(from_dir, from_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (from < 0)
		return -errno;
	to = openat(to_dir, to_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (to < 0)
		return -errno;
	r = copy_data(c, from, to, st->st_size);
	return r < 0 ? r : copy_facts(from, to, st);
}

static int copy_special(
	int from_dir, const char *from_name, int to_dir, const char *to_name, const struct stat *st)
{
	const struct timespec times[2] = {st->st_atim, st->st_mtim};
	char target[PATH_MAX + 1];
	ssize_t n;

	if (S_ISLNK(st->st_mode)) {
		n = readlinkat(from_dir, from_name, target, sizeof(target) - 1);
		if (n < 0)
			return -errno;
		target[n] = '\0';
		if (symlinkat(target, to_dir, to_name) < 0)
			return -errno;
	} else if (mknodat(to_dir, to_name, st->st_mode & (S_IFMT | 07777), st->st_rdev) < 0) {
		return -errno;
	}
	if (fchownat(to_dir, to_name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (!S_ISLNK(st->st_mode) &&
		fchmodat(to_dir, to_name, st->st_mode & 07777, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	return utimensat(to_dir, to_name, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int copy_one(struct copy *c, int from_dir, const char *from_name, int to_dir,
	const char *to_name, const struct stat *st)
{
	if (S_ISREG(st->st_mode))
		return copy_regular(c, from_dir, from_name, to_dir, to_name, st);
	return copy_special(from_dir, from_name, to_dir, to_name, st);
}

/* --- files with several names --- */

static struct seen *find_seen(struct seen *table, size_t cap, dev_t dev, ino_t ino)
{
	size_t i = (size_t)(ino * 0x9e3779b97f4a7c15u + dev) & (cap - 1);

	while (table[i].path && (table[i].dev != dev || table[i].ino != ino))
		i = (i + 1) & (cap - 1);
	return &table[i];
}

static void grow_links(struct copy *c)
{
	size_t cap = c->cap ? c->cap * 2 : 64;
	struct seen *table = xcalloc(cap, sizeof(*table));

	for (size_t i = 0; i < c->cap; i++)
		if (c->links[i].path)
			*find_seen(table, cap, c->links[i].dev, c->links[i].ino) = c->links[i];
	free(c->links);
	c->links = table;
	c->cap = cap;
}

/* Links to the copy of a file that was met before: 1 when done, 0 when it has to be copied. */
static int link_seen(struct copy *c, const struct walk_entry *w, const struct stat *st)
{
	struct seen *s;

	/* A longer path could not be named in a link. */
	if (S_ISDIR(st->st_mode) || st->st_nlink < 2 || w->path_len >= PATH_MAX)
		return 0;
	if (c->n_links * 2 >= c->cap)
		grow_links(c);
	s = find_seen(c->links, c->cap, st->st_dev, st->st_ino);
	if (s->path)
		return linkat(c->root_fd, s->path, c->dir_fd, w->name, 0) == 0;
	*s = (struct seen){st->st_dev, st->st_ino, xstrndup(w->path, w->path_len)};
	c->n_links++;
	return 0;
}

/* --- the tree --- */

static int fail(const struct copy *c, const struct walk_entry *w, int no, struct err *e)
{
	cleanup_free char *path =
		xasprintf("%s/%.*s", c->src, (int)MIN(w->path_len, (size_t)PATH_MAX), w->path);

	if (no == ECANCELED)
		return fs_stop(e);
	return fs_error(e, no, "cannot copy", path);
}

static int enter(struct copy *c, const struct walk_entry *w)
{
	int fd;

	if (mkdirat(c->dir_fd, w->name, 0700) < 0)
		return -errno;
	fd = openat(c->dir_fd, w->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	fd_close(&c->dir_fd);
	c->dir_fd = fd;
	return 0;
}

static int on_entry(const struct walk_entry *w, void *user, struct err *e)
{
	struct copy *c = user;
	struct stat st;
	int r;

	if (w->type == DT_DIR) {
		r = enter(c, w);
		if (r == 0)
			r = fs_copy_xattrs(w->fd, c->dir_fd);
		return r < 0 ? fail(c, w, -r, e) : WALK_ON;
	}
	if (fstatat(w->dir_fd, w->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? WALK_ON : fail(c, w, errno, e);
	r = link_seen(c, w, &st);
	if (r == 0)
		r = copy_one(c, w->dir_fd, w->name, c->dir_fd, w->name, &st);
	return r < 0 ? fail(c, w, -r, e) : WALK_ON;
}

static int on_leave(const struct walk_entry *w, void *user, struct err *e)
{
	struct copy *c = user;
	struct stat st;
	int r, up;

	if (fstatat(w->dir_fd, w->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return fail(c, w, errno, e);
	up = openat(c->dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (up < 0)
		return fail(c, w, errno, e);
	r = copy_facts(-1, c->dir_fd, &st);
	fd_close(&c->dir_fd);
	c->dir_fd = up;
	return r < 0 ? fail(c, w, -r, e) : 0;
}

static int on_error(const struct walk_entry *w, int r, void *user, struct err *e)
{
	return fail(user, w, -r, e);
}

static int copy_folder(struct copy *c, const char *dst, const struct stat *st, struct err *e)
{
	static const struct walk_callbacks callbacks = {on_entry, on_leave, on_error};
	int r, from = open(c->src, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (from < 0)
		return fs_error(e, errno, "cannot copy", c->src);
	if (mkdir(dst, 0700) == 0)
		c->root_fd = open(dst, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (c->root_fd < 0) {
		r = fs_error(e, errno, "cannot make", dst);
		fd_close(&from);
		return r;
	}
	r = fs_copy_xattrs(from, c->root_fd);
	c->dir_fd = fcntl(c->root_fd, F_DUPFD_CLOEXEC, 3);
	if (r < 0 || c->dir_fd < 0) {
		fd_close(&from);
		return fs_error(e, r < 0 ? -r : errno, "cannot copy", c->src);
	}
	r = walk(from, WALK_SORTED, &callbacks, c, e);
	if (r == 0)
		r = copy_facts(-1, c->root_fd, st);
	if (r == 0 && syncfs(c->root_fd) < 0)
		r = -errno;
	if (r < 0 && e && !e->text[0])
		fs_error(e, -r, "cannot finish", dst);
	return r;
}

static int copy_file(struct copy *c, const char *dst, const struct stat *st, struct err *e)
{
	cleanup_fd int fd = -1;
	int r = copy_one(c, AT_FDCWD, c->src, AT_FDCWD, dst, st);

	if (r == 0 && S_ISREG(st->st_mode)) {
		fd = open(dst, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
		r = fd < 0 || fsync(fd) < 0 ? -errno : 0;
	}
	if (r == -ECANCELED)
		return fs_stop(e);
	return r < 0 ? fs_error(e, -r, "cannot copy", c->src) : 0;
}

void fs_temp_name(char dst[static FS_TEMP_NAME_SIZE], const char *kind)
{
	char id[37];

	str_uuid4(id);
	snprintf(dst, FS_TEMP_NAME_SIZE, ".iii-%.5s-%.18s.tmp", kind, id);
}

int fs_tree_copy(const char *src, const char *dst, struct err *e)
{
	struct copy c = {.src = src, .root_fd = -1, .dir_fd = -1};
	struct stat st;
	int r;

	if (lstat(src, &st) < 0)
		return fs_error(e, errno, "cannot copy", src);
	c.chunk = xmalloc(CHUNK);
	r = S_ISDIR(st.st_mode) ? copy_folder(&c, dst, &st, e) : copy_file(&c, dst, &st, e);
	for (size_t i = 0; i < c.cap; i++)
		free(c.links[i].path);
	free(c.links);
	free(c.chunk);
	fd_close(&c.root_fd);
	fd_close(&c.dir_fd);
	return r;
}
