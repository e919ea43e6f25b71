/* How it works
 *
 * A stack of frames, one a directory on the way down; each holds the names that are still to come.
 * The frames of the first WALK_FDS_MAX levels keep their descriptors, so there is always a place to
 * go back to when a deep tree is moved about while it is walked: then what is below that place and
 * not yet visited is skipped (on_error with -ESTALE).
 */
#include "agent/walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fs_job.h"
#include "agent/names.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"

/* Names read at once when removing: in upper levels, and far down where there may be very many. */
#define PORTION	     (32u << 10)
#define PORTION_DEEP 1024

#define PATH_BYTES_MAX (64u << 20) /* of one path below the root */

struct frame {
	struct names names;
	size_t next; /* name to look at */
	int fd;	     /* -1: closed, to be found again by ".." from below */
	dev_t dev;
	ino_t ino;
	size_t path_len; /* of the directory's own path */
	size_t name_at;	 /* where its name begins in the path */
};

struct walker {
	enum walk_order order;
	const struct walk_callbacks *cb;
	void *user;
	struct err *e;
	struct frame *frames;
	size_t depth, cap;
	struct buf path; /* of the directory on top; names are put behind it */
	size_t waiting;	 /* bytes of names in all frames */
};

static struct frame *top(struct walker *w)
{
	return &w->frames[w->depth - 1];
}

static struct walk_entry entry_of_dir(struct walker *w, size_t i, int fd)
{
	struct frame *f = &w->frames[i];
	const char *path = (char *)w->path.data;

	return (struct walk_entry){.dir_fd = i ? w->frames[i - 1].fd : -1,
		.name = path + f->name_at,
		.path = path,
		.path_len = f->path_len,
		.type = DT_DIR,
		.fd = fd};
}

static void path_cut(struct walker *w, size_t len)
{
	w->path.len = len;
	w->path.data[len] = 0;
}

/* Reads the names of the directory on top; 0, or what on_error says. */
static int read_names(struct walker *w)
{
	struct frame *f = top(w);
	size_t before = names_bytes(&f->names);
	struct walk_entry dir;
	int r;

	if (w->order == WALK_SORTED) {
		r = names_read(&f->names, f->fd, WALK_NAMES_MAX - w->waiting);
		names_sort(&f->names);
		if (r == -EFBIG)
			return err_set(w->e, "S216", EFBIG,
				"the tree has too many names at once (%u MiB) below %s",
				WALK_NAMES_MAX >> 20, f->path_len ? (char *)w->path.data : ".");
	} else {
		names_clear(&f->names);
		f->next = 0;
		r = lseek(f->fd, 0, SEEK_SET) < 0
			    ? -errno
			    : names_read_some(&f->names, f->fd,
				      w->depth < WALK_FDS_MAX ? PORTION : PORTION_DEEP);
	}
	w->waiting += names_bytes(&f->names) - before;
	if (r == 0)
		return 0;
	dir = entry_of_dir(w, w->depth - 1, f->fd);
	return w->cb->on_error(&dir, r, w->user, w->e);
}

static int push(struct walker *w, int fd, size_t name_at)
{
	struct stat st = {0};
	struct frame *f;

	if (w->depth == w->cap) {
		w->cap = w->cap ? w->cap * 2 : 16;
		w->frames = xrealloc(w->frames, w->cap, sizeof(*w->frames));
	}
	/* Far down only the last two stay open: the one on top, and its parent until then. */
	if (w->depth > WALK_FDS_MAX)
		fd_close(&top(w)->fd);
	/* Who it is matters only where its descriptor may be closed. */
	if (w->depth >= WALK_FDS_MAX)
		fstat(fd, &st);
	f = &w->frames[w->depth++];
	*f = (struct frame){.fd = fd,
		.dev = st.st_dev,
		.ino = st.st_ino,
		.path_len = w->path.len,
		.name_at = name_at};
	return read_names(w);
}

static void drop_top(struct walker *w)
{
	struct frame *f = top(w);

	w->waiting -= names_bytes(&f->names);
	names_done(&f->names);
	fd_close(&f->fd);
	w->depth--;
}

/* Opens the parent of the directory on top again, if it was closed. */
static int reopen_parent(struct walker *w)
{
	struct frame *f = top(w), *parent = f - 1;
	struct stat st;

	if (w->depth < 2 || parent->fd >= 0)
		return 0;
	parent->fd = openat(f->fd, "..", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (parent->fd < 0)
		return -errno;
	if (fstat(parent->fd, &st) == 0 && st.st_dev == parent->dev && st.st_ino == parent->ino)
		return 0;
	fd_close(&parent->fd);
	return -ESTALE;
}

/* The directory on top has been gone through. */
static int leave(struct walker *w)
{
	struct walk_entry dir;
	int r = reopen_parent(w);

	if (r < 0) {
		dir = entry_of_dir(w, w->depth - 1, -1);
		r = w->cb->on_error(&dir, r, w->user, w->e);
		while (w->depth > 1 && w->frames[w->depth - 2].fd < 0)
			drop_top(w);
		drop_top(w);
		path_cut(w, top(w)->path_len);
		return r;
	}
	fd_close(&top(w)->fd);
	if (w->depth > 1 && w->cb->on_leave) {
		dir = entry_of_dir(w, w->depth - 1, -1);
		r = w->cb->on_leave(&dir, w->user, w->e);
	}
	drop_top(w);
	if (w->depth)
		path_cut(w, top(w)->path_len);
	return r;
}

/* DT_*, or a negative errno. */
static int type_of(int dir_fd, const char *name, unsigned char type)
{
	struct stat st;

	if (type != DT_UNKNOWN)
		return type;
	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	return IFTODT(st.st_mode);
}

static int enter(struct walker *w, struct walk_entry *entry, size_t name_at)
{
	int r, fd = openat(entry->dir_fd, entry->name,
		       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC);

	if (fd < 0 && errno == EPERM) /* O_NOATIME is the owner's */
		fd = openat(entry->dir_fd, entry->name,
			O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		r = errno == ENOENT ? 0 : w->cb->on_error(entry, -errno, w->user, w->e);
		path_cut(w, top(w)->path_len);
		return r;
	}
	entry->fd = fd;
	r = w->cb->on_entry(entry, w->user, w->e);
	if (r == WALK_ON)
		return push(w, fd, name_at);
	fd_close(&fd);
	path_cut(w, top(w)->path_len);
	return r < 0 ? r : 0;
}

static int visit(struct walker *w, const char *name, unsigned char type)
{
	struct frame *f = top(w);
	struct walk_entry entry = {.dir_fd = f->fd, .fd = -1};
	size_t name_at;
	int r, dt = type_of(f->fd, name, type);

	if (f->path_len && buf_add_str(&w->path, "/") < 0)
		return err_set(w->e, "S216", ENAMETOOLONG, "the tree is too deep");
	name_at = w->path.len;
	if (buf_add_str(&w->path, name) < 0)
		return err_set(w->e, "S216", ENAMETOOLONG, "the tree is too deep");
	entry.path = (char *)w->path.data;
	entry.path_len = w->path.len;
	entry.name = entry.path + name_at;
	entry.type = dt < 0 ? DT_UNKNOWN : (unsigned char)dt;
	if (dt == DT_DIR)
		return enter(w, &entry, name_at);
	if (dt >= 0)
		r = w->cb->on_entry(&entry, w->user, w->e);
	else
		r = dt == -ENOENT ? 0 : w->cb->on_error(&entry, dt, w->user, w->e);
	path_cut(w, f->path_len);
	return MIN(r, 0);
}

static int run(struct walker *w)
{
	int r = 0;

	while (r >= 0 && w->depth) {
		struct frame *f = top(w);

		if (fs_cancelled())
			return fs_stop(w->e);
		if (f->next < f->names.n) {
			size_t i = f->next++;

			r = visit(w, names_at(&f->names, i), f->names.refs[i].type);
			continue;
		}
		if (w->order == WALK_REMOVING && f->names.n) {
			r = read_names(w);
			if (r < 0 || f->names.n)
				continue;
		}
		r = leave(w);
	}
	return MIN(r, 0);
}

int walk(int root_fd, enum walk_order order, const struct walk_callbacks *cb, void *user,
	struct err *e)
{
	struct walker w = {.order = order, .cb = cb, .user = user, .e = e};
	int r;

	buf_init(&w.path, PATH_BYTES_MAX);
	buf_add(&w.path, "", 0); /* a text from the start */
	r = push(&w, root_fd, 0);
	if (r >= 0)
		r = run(&w);
	while (w.depth)
		drop_top(&w);
	free(w.frames);
	buf_done(&w.path);
	return r;
}
