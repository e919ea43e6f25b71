/* How it works
 *
 * Two walks (walk.h), each followed in the other tree by one descriptor that goes down by name and
 * up by "..":
 *
 *   prune   over the target: what the source has not is removed, before space is needed
 *   copy    over the source: what differs is made; a folder gets its mode and times when it is left
 *
 * In a part of the target that the source has not (`lost` levels deep) there is nothing to follow:
 * everything goes but artefacts, and then the folder itself unless they keep it.
 *
 * A file that differs is unlinked and made anew, its times last: a file that has them is whole, as
 * long as no crash of the machine comes between (trust_times).
 */
#include "agent/sync.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fs_tree.h"
#include "agent/walk.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "wire/worker.h"

#define MODE_BITS 01777	     /* without set-id */
#define SMALL_MAX (64 << 10) /* bytes */

/* Bytes of paths kept to link the names of one file again; beyond, names become files of their own.
 */
#define LINKS_MAX (16u << 20)

/* A file with several names: where its copy is, from the target's root. */
struct seen {
	dev_t dev;
	ino_t ino;
	char *path;
};

struct sync {
	const struct sync_options *o;
	struct sync_counts counts;
	int src_fd, dst_fd;  /* the roots */
	int here;	     /* where the walk is, in the tree that it does not walk; -1: lost */
	unsigned lost;	     /* prune: levels below the last folder that both trees have */
	struct seen *links;  /* open addressing */
	size_t n_links, cap; /* cap: a power of two */
	size_t link_bytes;
};

static int fail(const struct walk_entry *w, int no, const char *what, struct err *e)
{
	return err_set(e, "S300", no, "%s %.*s: %s", what, (int)MIN(w->path_len, (size_t)PATH_MAX),
		w->path, err_str(no));
}

static int begin_changes(struct sync *s, struct err *e)
{
	if (s->counts.changed)
		return 0;
	s->counts.changed = true;
	return s->o->before_changes ? s->o->before_changes(s->o->user, e) : 0;
}

/* Goes to the folder `name` below where we are; a failure leaves us there. */
static int go_down(struct sync *s, const char *name)
{
	int fd = openat(s->here, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	fd_close(&s->here);
	s->here = fd;
	return 0;
}

static int go_up(struct sync *s)
{
	return go_down(s, "..");
}

/* --- prune --- */

/* DT_* of what the source has under this name and we take over, else 0. */
static int type_in_source(const struct sync *s, const char *name)
{
	struct stat st;

	if (fstatat(s->here, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT || errno == ENAMETOOLONG ? 0 : -errno;
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode))
		return 0;
	return IFTODT(st.st_mode);
}

static int prune_unlink(struct sync *s, const struct walk_entry *w, struct err *e)
{
	int r = begin_changes(s, e);

	if (r < 0)
		return r;
	if (unlinkat(w->dir_fd, w->name, 0) < 0)
		return fail(w, errno, "cannot remove", e);
	s->counts.removed++;
	return WALK_ON;
}

static int prune_entry(const struct walk_entry *w, void *user, struct err *e)
{
	struct sync *s = user;
	int r, type;

	if (worker_is_artefact(w->name))
		return WALK_PRUNE;
	type = s->lost ? 0 : type_in_source(s, w->name);
	if (type < 0)
		return fail(w, -type, "cannot look at", e);
	if (w->type != DT_DIR)
		return type ? WALK_ON : prune_unlink(s, w, e);
	if (type && type != DT_DIR)
		return WALK_PRUNE; /* replaced when the other is copied */
	if (!type) {
		s->lost++;
		return WALK_ON;
	}
	r = go_down(s, w->name);
	return r < 0 ? fail(w, -r, "cannot enter", e) : WALK_ON;
}

static int prune_leave(const struct walk_entry *w, void *user, struct err *e)
{
	struct sync *s = user;
	int r;

	if (!s->lost) {
		r = go_up(s);
		return r < 0 ? fail(w, -r, "cannot leave", e) : 0;
	}
	s->lost--;
	/* Whether it is empty is only known by trying, and trying is no change. */
	if (unlinkat(w->dir_fd, w->name, AT_REMOVEDIR) == 0) {
		s->counts.removed++;
		return begin_changes(s, e);
	}
	return errno == ENOTEMPTY || errno == EEXIST ? 0 : fail(w, errno, "cannot remove", e);
}

static int on_error(const struct walk_entry *w, int r, void *user, struct err *e)
{
	return fail(w, -r, "cannot read", e);
}

/* --- files with several names --- */

static struct seen *find_seen(struct seen *table, size_t cap, dev_t dev, ino_t ino)
{
	size_t i = (size_t)(ino * 0x9e3779b97f4a7c15u + dev) & (cap - 1);

	while (table[i].path && (table[i].dev != dev || table[i].ino != ino))
		i = (i + 1) & (cap - 1);
	return &table[i];
}

static void grow_links(struct sync *s)
{
	size_t cap = s->cap ? s->cap * 2 : 64;
	struct seen *table = xcalloc(cap, sizeof(*table));

	for (size_t i = 0; i < s->cap; i++)
		if (s->links[i].path)
			*find_seen(table, cap, s->links[i].dev, s->links[i].ino) = s->links[i];
	free(s->links);
	s->links = table;
	s->cap = cap;
}

/* The path of its copy when another name of this file is there already; else this name is noted. */
static const char *seen_before(struct sync *s, const struct walk_entry *w, const struct stat *st)
{
	struct seen *found;

	if (st->st_nlink < 2)
		return NULL;
	if (s->n_links * 2 >= s->cap)
		grow_links(s);
	found = find_seen(s->links, s->cap, st->st_dev, st->st_ino);
	if (found->path)
		return found->path;
	/* A longer path could not be named in a link. */
	if (w->path_len >= PATH_MAX || s->link_bytes + w->path_len > LINKS_MAX)
		return NULL;
	*found = (struct seen){st->st_dev, st->st_ino, xstrndup(w->path, w->path_len)};
	s->n_links++;
	s->link_bytes += w->path_len;
	return NULL;
}

/* --- copy --- */

static mode_t mode_of(const struct stat *st)
{
	return st->st_mode & MODE_BITS;
}

static bool same_time(const struct stat *a, const struct stat *b)
{
	return a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static bool is_ours(const struct stat *st)
{
	return st->st_uid == geteuid() && st->st_gid == getegid();
}

/* Owner before mode, and times last: each clears or moves what stands before it. */
static int settle(int fd, const struct stat *src)
{
	const struct timespec times[2] = {{0, UTIME_OMIT}, src->st_mtim};
	struct stat st;

	if (fstat(fd, &st) < 0 || (!is_ours(&st) && fchown(fd, geteuid(), getegid()) < 0) ||
		fchmod(fd, mode_of(src)) < 0 || futimens(fd, times) < 0)
		return -errno;
	return 0;
}

/* Most files are small: one read and one write. Larger ones keep their holes. */
static int copy_bytes(int from, int to, off_t size)
{
	static char piece[SMALL_MAX];
	ssize_t n;

	if (size > SMALL_MAX)
		return fd_copy_sparse(from, to);
	n = fd_read_full(from, piece, (size_t)size);
	return n < 0 ? (int)n : fd_write_all(to, piece, (size_t)n);
}

static int copy_file(struct sync *s, const struct walk_entry *w, const struct stat *src)
{
	const char *link = seen_before(s, w, src);
	cleanup_fd int from = -1, to = -1;
	int r;

	if (link && linkat(s->dst_fd, link, s->here, w->name, 0) == 0)
		return 0;
	from = openat(w->dir_fd, w->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (from < 0)
		return -errno;
	to = openat(s->here, w->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (to < 0)
		return -errno;
	r = copy_bytes(from, to, src->st_size);
	return r < 0 ? r : settle(to, src);
}

static int copy_link(struct sync *s, const struct walk_entry *w, const struct stat *src)
{
	const struct timespec times[2] = {{0, UTIME_OMIT}, src->st_mtim};
	char target[PATH_MAX + 1];
	ssize_t n = readlinkat(w->dir_fd, w->name, target, sizeof(target) - 1);

	if (n < 0)
		return -errno;
	target[n] = '\0';
	if (symlinkat(target, s->here, w->name) < 0 ||
		utimensat(s->here, w->name, times, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	return 0;
}

static bool same_target(const struct sync *s, const struct walk_entry *w)
{
	char a[PATH_MAX], b[PATH_MAX];
	ssize_t n = readlinkat(w->dir_fd, w->name, a, sizeof(a));

	return n >= 0 && n == readlinkat(s->here, w->name, b, sizeof(b)) && memcmp(a, b, n) == 0;
}

/* `dst` is no more to be copied; only mode and owner may be off. */
static int adjust_file(struct sync *s, const struct walk_entry *w, const struct stat *src,
	const struct stat *dst, struct err *e)
{
	int r = 0;

	if (mode_of(src) == (dst->st_mode & 07777) && is_ours(dst))
		return 0;
	r = begin_changes(s, e);
	if (r < 0)
		return r;
	if ((!is_ours(dst) && fchownat(s->here, w->name, geteuid(), getegid(), 0) < 0) ||
		fchmodat(s->here, w->name, mode_of(src), 0) < 0)
		return fail(w, errno, "cannot set the mode of", e);
	return 0;
}

/* Makes the name free. `dst`: what is there. */
static int clear_name(
	struct sync *s, const struct walk_entry *w, const struct stat *dst, struct err *e)
{
	cleanup_free char *shown = NULL;

	if (!S_ISDIR(dst->st_mode))
		return unlinkat(s->here, w->name, 0) < 0 ? fail(w, errno, "cannot replace", e) : 0;
	shown = xstrndup(w->path, MIN(w->path_len, (size_t)PATH_MAX));
	return fs_tree_remove_at(s->here, w->name, shown, e);
}

static int copy_leaf(struct sync *s, const struct walk_entry *w, const struct stat *src,
	const struct stat *dst, struct err *e)
{
	int r;

	if (dst && S_ISREG(src->st_mode) && S_ISREG(dst->st_mode) && s->o->trust_times &&
		src->st_size == dst->st_size && same_time(src, dst)) {
		seen_before(s, w, src);
		return adjust_file(s, w, src, dst, e);
	}
	if (dst && S_ISLNK(src->st_mode) && S_ISLNK(dst->st_mode) && same_time(src, dst) &&
		is_ours(dst) && same_target(s, w))
		return 0;
	r = begin_changes(s, e);
	if (r == 0 && dst)
		r = clear_name(s, w, dst, e);
	if (r < 0)
		return r;
	r = S_ISREG(src->st_mode) ? copy_file(s, w, src) : copy_link(s, w, src);
	if (r < 0)
		return fail(w, -r, "cannot copy", e);
	s->counts.copied++;
	return 0;
}

static int enter_folder(
	struct sync *s, const struct walk_entry *w, const struct stat *dst, struct err *e)
{
	int r = 0;

	if (!dst || !S_ISDIR(dst->st_mode)) {
		r = begin_changes(s, e);
		if (r == 0 && dst)
			r = clear_name(s, w, dst, e);
		if (r < 0)
			return r;
		if (mkdirat(s->here, w->name, 0700) < 0)
			return fail(w, errno, "cannot make", e);
		s->counts.copied++;
	}
	r = go_down(s, w->name);
	return r < 0 ? fail(w, -r, "cannot enter", e) : WALK_ON;
}

static int copy_entry(const struct walk_entry *w, void *user, struct err *e)
{
	struct sync *s = user;
	struct stat src, dst;
	bool exists;
	int r;

	if (s->o->leave_out_artefacts && worker_is_artefact(w->name))
		return WALK_PRUNE;
	if (w->type != DT_DIR && w->type != DT_REG && w->type != DT_LNK) {
		s->counts.left_out++;
		return WALK_ON;
	}
	if (fstatat(w->dir_fd, w->name, &src, AT_SYMLINK_NOFOLLOW) < 0)
		return fail(w, errno, "cannot look at", e);
	exists = fstatat(s->here, w->name, &dst, AT_SYMLINK_NOFOLLOW) == 0;
	if (!exists && errno != ENOENT)
		return fail(w, errno, "cannot look at the copy of", e);
	if (w->type == DT_DIR)
		return enter_folder(s, w, exists ? &dst : NULL, e);
	r = copy_leaf(s, w, &src, exists ? &dst : NULL, e);
	return r < 0 ? r : WALK_ON;
}

/* The folder where we are gets what belongs to it once everything in it is done. */
static int settle_folder(struct sync *s, const struct stat *src, struct err *e)
{
	struct stat dst;
	int r;

	if (fstat(s->here, &dst) < 0)
		return -errno;
	if (mode_of(src) == (dst.st_mode & 07777) && is_ours(&dst) && same_time(src, &dst))
		return 0;
	r = begin_changes(s, e);
	return r < 0 ? r : settle(s->here, src);
}

static int copy_leave(const struct walk_entry *w, void *user, struct err *e)
{
	struct sync *s = user;
	struct stat src;
	int r;

	if (fstatat(w->dir_fd, w->name, &src, AT_SYMLINK_NOFOLLOW) < 0)
		return fail(w, errno, "cannot look at", e);
	r = settle_folder(s, &src, e);
	if (r == 0)
		r = go_up(s);
	if (r < 0 && !(e && e->text[0]))
		fail(w, -r, "cannot finish", e);
	return r;
}

/* --- both --- */

/* Walks `walked`, following in `followed`. */
static int pass(
	struct sync *s, int walked, int followed, const struct walk_callbacks *cb, struct err *e)
{
	int r, root = openat(walked, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	s->here = openat(followed, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0 || s->here < 0) {
		r = err_set(e, "S300", errno, "cannot open the root of a tree: %s", err_str(errno));
		fd_close(&root);
		return r;
	}
	return walk(root, WALK_SORTED, cb, s, e);
}

static int settle_root(struct sync *s, struct err *e)
{
	struct stat src;
	int r = fstat(s->src_fd, &src) < 0 ? -errno : settle_folder(s, &src, e);

	if (r < 0 && !(e && e->text[0]))
		err_set(e, "S300", -r, "cannot set mode and times of the root: %s", err_str(r));
	return r;
}

int sync_tree(int src_fd, int dst_fd, const struct sync_options *o, struct sync_counts *ret,
	struct err *e)
{
	static const struct walk_callbacks pruning = {prune_entry, prune_leave, on_error};
	static const struct walk_callbacks copying = {copy_entry, copy_leave, on_error};
	struct err unasked = ERR_INIT;
	struct sync s = {.o = o, .src_fd = src_fd, .dst_fd = dst_fd, .here = -1};
	int r;

	if (!e)
		e = &unasked;
	r = pass(&s, dst_fd, src_fd, &pruning, e);
	fd_close(&s.here);
	if (r == 0)
		r = pass(&s, src_fd, dst_fd, &copying, e);
	if (r == 0)
		r = settle_root(&s, e);
	fd_close(&s.here);
	for (size_t i = 0; i < s.cap; i++)
		free(s.links[i].path);
	free(s.links);
	*ret = s.counts;
	return r;
}
