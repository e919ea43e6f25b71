/* Folder by folder, names in byte order, everything is looked at with *at() calls below the
 * source's descriptor. What it is goes into a tree in memory (host/image/tree.h, 150 MB a million
 * names), what is in files goes once into scratch files without a name (host/image/body.h); from
 * both the writer of the images' disks makes the result.
 *
 * The host may change the tree meanwhile:
 *   gone            left out, with a note
 *   another type    left out, with a note (a symlink in place of a folder is never followed)
 *   changed         the size is taken when a file is opened. Bytes beyond it are not read, missing
 *                   ones are zeros. A file whose size or time changed while it was read is read
 *                   again, as long as RETRY_BYTES_MAX lasts; what the disk says is its time is the
 *                   one before the reading, so that the next start sees that it changed.
 *
 * Refused (S500): what cannot be read, and trees over the limits of source.h. Recursion goes down
 * folders only, SOURCE_DEPTH_MAX at most, with one descriptor and one list of names each.
 */
#include "host/worker/source.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/image/body.h"
#include "host/image/erofs.h"
#include "host/image/tree.h"
#include "host/worker/stamp.h"

#define FORMAT "sandbox-libkrun/worker-source/v1"
#define PIECE  (256u << 10)
/* Bytes of files read again because they changed: bounds what a busy tree costs. */
#define RETRY_BYTES_MAX (256ull << 20)
/* A file that changes all the time is taken as it is after so many readings. */
#define READINGS_MAX 3
/* Of the disk beyond the contents: inodes, names, filling of blocks. */
#define DISK_META_MAX (6ull << 30)

#define FOLDER_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define FILE_FLAGS   (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

struct source {
	const struct source_job *j;
	struct tree *tree;
	struct body_sink bodies;
	struct stamp stamp; /* of a bundle; else without context */
	uint64_t bytes, retry_left;
	uint32_t entries, notes;
	uint8_t *buf; /* PIECE */
	size_t path_len;
	char path[SOURCE_PATH_MAX + 1]; /* of the entry at hand, "" for the source itself */
};

/* --- what goes wrong --- */

static const char *shown_path(const struct source *s)
{
	return log_quote(s->path_len ? s->path : ".");
}

static int read_error(const struct source *s, int r, struct err *e)
{
	/* Of this program, not of the source. */
	if (r == -EMFILE || r == -ENFILE || r == -ENOMEM)
		return err_set(e, "S504", -r, "reading the source %s: %s", log_quote(s->j->path),
			err_str(r));
	return err_set(e, "S500", -r, "cannot read %s of the source %s: %s%s", shown_path(s),
		log_quote(s->j->path), err_str(r),
		r == -EACCES ? "; let this program's user read it, or move it elsewhere" : "");
}

static int disk_error(int r, struct err *e)
{
	if (r == -ECANCELED)
		return err_set(e, "", ECANCELED, "cancelled");
	if (r == -ENOSPC || r == -EDQUOT)
		return err_set(e, "S504", -r,
			"no space left for the disk of the source (%s): free some or move "
			"III_SANDBOX_STATE_DIR",
			err_str(r));
	return err_set(e, "S504", -r, "writing the disk of the source: %s", err_str(r));
}

static int limit_error(const struct source *s, const char *what, uint64_t limit, struct err *e)
{
	return err_set(e, "S500", E2BIG,
		"the source %s has more than %" PRIu64 " %s (at %s): move what the worker does not "
		"need elsewhere",
		log_quote(s->j->path), limit, what, shown_path(s));
}

static void note(struct source *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct source *s, const char *fmt, ...)
{
	char what[128], line[1280];
	va_list ap;

	if (!s->j->note || s->notes++ >= SOURCE_NOTES_MAX)
		return;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	snprintf(line, sizeof(line), "%s %s", shown_path(s), what);
	s->j->note(line, s->j->user);
}

static void note_rest(struct source *s)
{
	char line[128];

	if (!s->j->note || s->notes <= SOURCE_NOTES_MAX)
		return;
	snprintf(line, sizeof(line), "%u more entries of the source were left out or changed",
		s->notes - SOURCE_NOTES_MAX);
	s->j->note(line, s->j->user);
}

/* Whether an entry is no longer what it was when its folder was listed. Said in a note. */
static bool slipped_away(struct source *s, int r)
{
	switch (r) {
	case -ENOENT:
	case -ESTALE:
		note(s, "left out: it vanished while the source was read");
		return true;
	case -ELOOP:
	case -ENOTDIR:
	case -ENXIO:
	case -EINVAL:
		note(s, "left out: it became something else while the source was read");
		return true;
	default:
		return false;
	}
}

static int stopped(const struct source *s, struct err *e)
{
	if (s->j->stop && s->j->stop(s->j->user))
		return err_set(e, "", ECANCELED, "cancelled");
	return 0;
}

/* --- entries --- */

/* Reading is no use of the file: only its owner may ask for that. */
static int open_quietly(int dir_fd, const char *name, int flags)
{
	int fd = openat(dir_fd, name, flags | O_NOATIME);

	if (fd < 0 && errno == EPERM)
		fd = openat(dir_fd, name, flags);
	return fd < 0 ? -errno : fd;
}

/* What the disk says of an entry but for its content. */
static struct tree_attr attr_of(const struct stat *st)
{
	return (struct tree_attr){
		.mode = (uint16_t)(st->st_mode & ~(mode_t)(S_ISUID | S_ISGID)),
		.mtime = st->st_mtim.tv_sec,
		.mtime_ns = (uint32_t)st->st_mtim.tv_nsec,
	};
}

/* content: what the target or the file's bytes come to; "" for a folder. */
static void stamp_entry(struct source *s, const struct tree_attr *a, const char *content)
{
	if (!s->stamp.ctx)
		return;
	stamp_bytes(&s->stamp, s->path, s->path_len);
	stamp_u64(&s->stamp, a->mode);
	stamp_u64(&s->stamp, (uint64_t)a->mtime);
	stamp_u64(&s->stamp, a->mtime_ns);
	stamp_text(&s->stamp, content);
}

static int put(struct source *s, const struct tree_attr *a, const char *content, struct err *e)
{
	int r = tree_put(s->tree, s->path, a, e);

	if (r < 0) {
		err_wrap(e, "%s of the source %s", shown_path(s), log_quote(s->j->path));
		err_code(e, "S500");
		return r;
	}
	stamp_entry(s, a, content);
	return 0;
}

static int put_symlink(
	struct source *s, int dir_fd, const char *name, const struct stat *st, struct err *e)
{
	struct tree_attr a = attr_of(st);
	char target[TREE_TARGET_MAX + 2];
	ssize_t n = readlinkat(dir_fd, name, target, sizeof(target) - 1);

	if (n < 0)
		return slipped_away(s, -errno) ? 0 : read_error(s, -errno, e);
	target[n] = '\0';
	a.mode |= 0777;
	a.target = target;
	return put(s, &a, target, e);
}

/* The next run of data at `at`: *len bytes after *hole bytes of nothing. A file system that knows
 * no holes says that all is data. */
static int next_run(int fd, uint64_t at, uint64_t size, uint64_t *hole, uint64_t *len)
{
	off_t data = lseek(fd, (off_t)at, SEEK_DATA), end;

	if (data < 0 && errno == ENXIO) {
		*hole = size - at;
		*len = 0;
		return 0;
	}
	if (data < 0)
		return -errno;
	end = lseek(fd, data, SEEK_HOLE);
	if (end < 0)
		return errno == ENXIO ? -EAGAIN : -errno;
	*hole = MIN((uint64_t)data, size) - at;
	*len = MIN((uint64_t)end, size) - at - *hole;
	return 0;
}

/* Copies `len` bytes of data; *ret is less when the file ends before. */
static int copy_run(struct source *s, struct stamp *sum, int fd, uint64_t at, uint64_t len,
	uint64_t *ret, struct err *e)
{
	*ret = 0;
	while (*ret < len) {
		ssize_t n = fd_pread_full(fd, s->buf, MIN(len - *ret, (uint64_t)PIECE), at + *ret);
		int r = stopped(s, e);

		if (r < 0)
			return r;
		if (n < 0)
			return read_error(s, (int)n, e);
		if (n == 0)
			return 0;
		r = body_data(&s->bodies, s->buf, (size_t)n);
		if (r < 0)
			return disk_error(r, e);
		if (sum->ctx)
			stamp_piece(sum, s->buf, (size_t)n);
		*ret += (uint64_t)n;
	}
	return 0;
}

static int skip_run(struct source *s, struct stamp *sum, uint64_t len, struct err *e)
{
	int r = body_hole(&s->bodies, len);

	if (r < 0)
		return disk_error(r, e);
	if (sum->ctx)
		stamp_zeros(sum, len);
	return 0;
}

/* Copies one content of `size` bytes, holes as holes. */
static int copy_content(struct source *s, struct stamp *sum, int fd, uint64_t size, bool holes,
	struct tree_body *ret, struct err *e)
{
	uint64_t at = 0;
	int r = body_begin(&s->bodies, size, 0, 0);

	while (r == 0 && at < size) {
		uint64_t hole = 0, len = size - at, got;

		if (holes && (next_run(fd, at, size, &hole, &len) < 0 || hole + len == 0)) {
			/* Nothing is said of holes, or nonsense. */
			holes = false;
			hole = 0;
			len = size - at;
		}
		r = stopped(s, e);
		if (r == 0)
			r = skip_run(s, sum, hole, e);
		if (r < 0)
			return r;
		at += hole;
		r = copy_run(s, sum, fd, at, len, &got, e);
		if (r < 0)
			return r;
		at += got;
		if (got < len) {
			r = skip_run(s, sum, size - at, e);
			if (r < 0)
				return r;
			break;
		}
	}
	r = body_end(&s->bodies, ret);
	return r < 0 ? disk_error(r, e) : 0;
}

static bool same_content(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* One reading of an open file. *ret_changed: somebody wrote to it meanwhile. */
static int read_once(struct source *s, int fd, const struct stat *st, struct tree_attr *a,
	char digest[WORKER_DIGEST_LEN + 1], bool *ret_changed, struct err *e)
{
	uint64_t size = (uint64_t)st->st_size;
	bool holes = (uint64_t)st->st_blocks * 512 < size;
	struct stamp sum = {0};
	struct stat after;
	int r;

	digest[0] = '\0';
	if (s->stamp.ctx)
		stamp_init(&sum);
	r = copy_content(s, &sum, fd, size, holes, &a->body, e);
	if (r == 0 && sum.ctx)
		stamp_end(&sum, digest);
	stamp_done(&sum);
	if (r < 0)
		return r;
	if (fstat(fd, &after) < 0)
		return read_error(s, -errno, e);
	*ret_changed = !same_content(st, &after);
	return 0;
}

static int put_file(struct source *s, int dir_fd, const char *name, struct err *e)
{
	cleanup_fd int fd = open_quietly(dir_fd, name, FILE_FLAGS);
	char digest[WORKER_DIGEST_LEN + 1];
	struct tree_attr a;
	bool changed = true;

	if (fd < 0)
		return slipped_away(s, fd) ? 0 : read_error(s, fd, e);
	for (unsigned i = 0; changed && i < READINGS_MAX; i++) {
		struct stat st;
		uint64_t size;
		int r;

		if (fstat(fd, &st) < 0)
			return read_error(s, -errno, e);
		if (!S_ISREG(st.st_mode)) {
			slipped_away(s, -ENXIO);
			return 0;
		}
		size = (uint64_t)st.st_size;
		if (i > 0 && size > s->retry_left)
			break;
		if (size > SOURCE_BYTES_MAX - s->bytes)
			return limit_error(s, "bytes", SOURCE_BYTES_MAX, e);
		if (i > 0)
			s->retry_left -= size;
		a = attr_of(&st);
		r = read_once(s, fd, &st, &a, digest, &changed, e);
		if (r < 0)
			return r;
	}
	if (changed)
		note(s, "changed while it was read: the worker may see a part of the change");
	s->bytes += a.body.size;
	return put(s, &a, digest, e);
}

/* --- folders --- */

struct names {
	char **v;
	size_t n, cap;
};

static void names_done(struct names *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
}

static int name_cmp(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names of a folder that are wanted, sorted. */
static int list_names(struct source *s, DIR *dir, struct names *l, struct err *e)
{
	struct dirent *d;

	for (;;) {
		errno = 0;
		d = readdir(dir);
		if (!d)
			break;
		if (str_eq(d->d_name, ".") || str_eq(d->d_name, "..") ||
			(s->j->kind == WORKER_LOCAL && worker_is_artefact(d->d_name)))
			continue;
		if (++s->entries > SOURCE_ENTRIES_MAX)
			return limit_error(s, "entries", SOURCE_ENTRIES_MAX, e);
		if (l->n == l->cap) {
			l->cap = MAX(l->cap * 2, (size_t)32);
			l->v = xrealloc(l->v, l->cap, sizeof(*l->v));
		}
		l->v[l->n++] = xstrdup(d->d_name);
	}
	if (errno)
		return read_error(s, -errno, e);
	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), name_cmp);
	return 0;
}

static int put_folder(
	struct source *s, int dir_fd, const char *name, unsigned depth, struct err *e);

static int put_entry(struct source *s, int dir_fd, const char *name, unsigned depth, struct err *e)
{
	struct stat st;
	int r = stopped(s, e);

	if (r < 0)
		return r;
	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return slipped_away(s, -errno) ? 0 : read_error(s, -errno, e);
	switch (st.st_mode & S_IFMT) {
	case S_IFREG:
		return put_file(s, dir_fd, name, e);
	case S_IFDIR:
		return put_folder(s, dir_fd, name, depth, e);
	case S_IFLNK:
		return put_symlink(s, dir_fd, name, &st, e);
	case S_IFSOCK:
		note(s, "left out: a socket");
		return 0;
	case S_IFIFO:
		note(s, "left out: a FIFO");
		return 0;
	default:
		note(s, "left out: a device");
		return 0;
	}
}

/* The entry `name` of the folder at hand, with the path made longer meanwhile. */
static int put_below(struct source *s, int dir_fd, const char *name, unsigned depth, struct err *e)
{
	size_t before = s->path_len, len = strlen(name);
	int r;

	if (before + 1 + len > SOURCE_PATH_MAX)
		return limit_error(s, "bytes in a path", SOURCE_PATH_MAX, e);
	if (before)
		s->path[s->path_len++] = '/';
	memcpy(s->path + s->path_len, name, len + 1);
	s->path_len += len;
	r = depth > SOURCE_DEPTH_MAX ? limit_error(s, "names in a path", SOURCE_DEPTH_MAX, e)
				     : put_entry(s, dir_fd, name, depth, e);
	s->path_len = before;
	s->path[before] = '\0';
	return r;
}

/* A folder, opened by its name, and all below. depth: names in its path. */
static int put_folder(struct source *s, int dir_fd, const char *name, unsigned depth, struct err *e)
{
	cleanup_fd int fd = open_quietly(dir_fd, name, FOLDER_FLAGS);
	struct names names = {0};
	struct tree_attr a;
	struct stat st;
	DIR *dir;
	int r;

	if (fd < 0)
		return depth && slipped_away(s, fd) ? 0 : read_error(s, fd, e);
	if (fstat(fd, &st) < 0)
		return read_error(s, -errno, e);
	a = attr_of(&st);
	r = put(s, &a, "", e);
	if (r < 0)
		return r;
	dir = fdopendir(fd);
	if (!dir)
		return read_error(s, -errno, e);
	STEAL_FD(fd);
	r = list_names(s, dir, &names, e);
	for (size_t i = 0; r == 0 && i < names.n; i++)
		r = put_below(s, dirfd(dir), names.v[i], depth + 1, e);
	names_done(&names);
	closedir(dir);
	return r;
}

/* --- the disk --- */

static bool stop_of(void *user)
{
	const struct source_job *j = user;

	return j->stop && j->stop(j->user);
}

/* The same file again, so that nobody who gets the descriptor can write to it. */
static int reopen_read_only(int fd)
{
	char path[32];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDONLY | O_CLOEXEC);
	return again < 0 ? -errno : again;
}

static int write_disk(struct source *s, int *ret_fd, struct err *e)
{
	struct erofs_source from = {s->bodies.data_fd, s->bodies.tail_fd};
	cleanup_fd int out = body_scratch_file(s->j->scratch_dirfd);
	struct erofs_write w = {.tree = s->tree,
		.sources = &from,
		.n_sources = 1,
		.out_fd = out,
		.bytes_max = SOURCE_BYTES_MAX + DISK_META_MAX,
		.stop = stop_of,
		.user = (void *)s->j};
	int r;

	if (out < 0)
		return disk_error(out, e);
	r = erofs_write(&w, NULL, NULL);
	if (r == 0)
		r = reopen_read_only(out);
	if (r < 0)
		return disk_error(r, e);
	*ret_fd = r;
	return 0;
}

static int read_tree(struct source *s, struct err *e)
{
	int r = body_sink_open(&s->bodies, s->j->scratch_dirfd, NULL);

	if (r < 0)
		return disk_error(r, e);
	tree_begin_layer(s->tree);
	if (s->j->kind == WORKER_BUNDLE) {
		stamp_init(&s->stamp);
		stamp_text(&s->stamp, FORMAT);
		stamp_text(&s->stamp, s->j->path);
	}
	r = put_folder(s, s->j->dir_fd, ".", 0, e);
	if (r < 0)
		return r;
	note_rest(s);
	r = body_sink_finish(&s->bodies);
	return r < 0 ? disk_error(r, e) : 0;
}

int source_write(
	const struct source_job *j, int *ret_fd, char digest[WORKER_DIGEST_LEN + 1], struct err *e)
{
	struct source *s = xcalloc(1, sizeof(*s));
	char sum[WORKER_DIGEST_LEN + 1] = "";
	int r;

	s->j = j;
	s->bodies = BODY_SINK_INIT;
	s->retry_left = RETRY_BYTES_MAX;
	s->tree = tree_new();
	s->buf = xmalloc(PIECE);
	r = read_tree(s, e);
	if (r == 0 && s->stamp.ctx)
		stamp_end(&s->stamp, sum);
	if (r == 0)
		r = write_disk(s, ret_fd, e);
	if (r == 0)
		memcpy(digest, sum, sizeof(sum));
	stamp_done(&s->stamp);
	body_sink_done(&s->bodies);
	tree_free(s->tree);
	free(s->buf);
	free(s);
	return r;
}
