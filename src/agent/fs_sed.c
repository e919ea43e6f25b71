/* fs_sed - "/fs/sed": replaces in files, line by line (sandbox contract §5.13).
 *
 *   request  {"files":["/abs"…] | "path":"/abs","recursive":true,
 *             "include_glob":[…],"exclude_glob":[…],"pattern":"…","replacement":"…","regex":true,"first_only":false,"ignore_case":false}
 *   reply    {"results":[{"error"?,"path","replacements","success"}…],"total_replacements":N}
 *
 * How a file is rewritten: its lines are read once. At the first line that changes an unnamed file
 * (O_TMPFILE) is made in the same folder, what was read so far is copied to it, and everything
 * after goes there, too. At the end it gets the old file's owner, mode and extended attributes, is
 * synced, linked to a temporary name and renamed over the old one. So a file is old or new, whole
 * either way, and a process that is killed leaves nothing (where the file system has no O_TMPFILE,
 * a file .iii-sed-*.tmp). A link stays; what it points to is rewritten. Other hard links of the
 * file keep the old content.
 *
 * A file fails by itself, without the rest, when it is not valid UTF-8, no regular file, has a line
 * over LINES_LONG_MAX (or one that would become longer than SED_LINE_MAX), or cannot be written.
 * The path form is walked twice, the first time to see whether the reply will have room.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fs_error.h"
#include "agent/fs_job.h"
#include "agent/fs_reply.h"
#include "agent/fs_select.h"
#include "agent/fs_tree.h"
#include "agent/lines.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "wire/rx_replace.h"

#define SED_LINE_MAX (64u << 20) /* bytes of a line after replacing; more fails the file */

/* Of a result besides its path, an error text included. */
#define RESULT_BYTES 400

#define OUT_BUFFER (256u << 10)

struct sed {
	struct rx *rx;
	struct rx_template *with;
	bool first_only;
	struct lines lines;
	struct buf line; /* one, after replacing */
	struct buf *reply;
	uint64_t total;
	bool any;      /* a result is in the reply */
	uint64_t room; /* first walk: bytes the results will take */
};

/* The new content of a file. */
struct rewrite {
	int dir_fd, fd;		      /* fd -1: nothing has changed so far */
	char temp[FS_TEMP_NAME_SIZE]; /* "": no name (yet) */
	struct buf out;
};

/* --- the new file --- */

static int rewrite_begin(struct rewrite *w, int from, uint64_t upto)
{
	cleanup_free char *chunk = NULL;
	uint64_t at = 0;

	w->fd = openat(w->dir_fd, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	if (w->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
		fs_temp_name(w->temp, "sed");
		w->fd = openat(w->dir_fd, w->temp,
			O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	}
	if (w->fd < 0) {
		w->temp[0] = '\0';
		return -errno;
	}
	chunk = xmalloc(OUT_BUFFER);
	while (at < upto) {
		ssize_t n = fd_pread_full(from, chunk, MIN(upto - at, (uint64_t)OUT_BUFFER), at);
		int r = n > 0 ? fd_write_all(w->fd, chunk, (size_t)n) : n < 0 ? (int)n : -EIO;

		if (r < 0)
			return r;
		at += (uint64_t)n;
	}
	return 0;
}

static int rewrite_flush(struct rewrite *w)
{
	int r = fd_write_all(w->fd, w->out.data, w->out.len);

	buf_clear(&w->out);
	return r;
}

static int rewrite_add(struct rewrite *w, const void *data, size_t len)
{
	int r;

	if (w->out.len + len > OUT_BUFFER) {
		r = rewrite_flush(w);
		if (r < 0)
			return r;
	}
	if (len > OUT_BUFFER)
		return fd_write_all(w->fd, data, len);
	return buf_add(&w->out, data, len);
}

/* Gives an unnamed file a temporary name, for only a rename can replace another file. */
static int give_name(struct rewrite *w)
{
	char proc[32];

	if (w->temp[0])
		return 0;
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", w->fd);
	fs_temp_name(w->temp, "sed");
	if (linkat(AT_FDCWD, proc, w->dir_fd, w->temp, AT_SYMLINK_FOLLOW) == 0)
		return 0;
	w->temp[0] = '\0';
	return -errno;
}

static int rewrite_publish(struct rewrite *w, int old_fd, const char *name)
{
	struct stat st;
	int r = rewrite_flush(w);

	if (r < 0)
		return r;
	if (fstat(old_fd, &st) < 0 || fchown(w->fd, st.st_uid, st.st_gid) < 0)
		return -errno;
	r = fs_copy_xattrs(old_fd, w->fd);
	if (r < 0)
		return r;
	if (fchmod(w->fd, st.st_mode & 07777) < 0 || fsync(w->fd) < 0)
		return -errno;
	r = give_name(w);
	if (r < 0)
		return r;
	if (renameat(w->dir_fd, w->temp, w->dir_fd, name) < 0)
		return -errno;
	w->temp[0] = '\0';
	return 0;
}

static void rewrite_done(struct rewrite *w)
{
	if (w->temp[0])
		unlinkat(w->dir_fd, w->temp, 0);
	fd_close(&w->fd);
	buf_done(&w->out);
}

/* --- lines --- */

/* Length of the line's text: without LF or CR LF. */
static size_t text_len(const char *line, size_t len)
{
	if (!len || line[len - 1] != '\n')
		return len;
	len--;
	return len && line[len - 1] == '\r' ? len - 1 : len;
}

/* One line with its terminator, which begins at byte `at` of the file. */
static int do_line(struct sed *s, struct rewrite *w, int fd, const char *line, size_t len,
	uint64_t at, uint64_t *count)
{
	size_t text = text_len(line, len);
	bool changed;
	ssize_t n;
	int r;

	buf_clear(&s->line);
	n = rx_replace(s->rx, s->with, line, text, s->first_only, &s->line);
	if (n < 0)
		return n == -ENOBUFS ? -EFBIG : (int)n;
	*count += (uint64_t)n;
	changed = n && (s->line.len != text || (text && memcmp(s->line.data, line, text) != 0));
	if (changed && w->fd < 0) {
		r = rewrite_begin(w, fd, at);
		if (r < 0)
			return r;
	}
	if (w->fd < 0)
		return 0;
	r = changed ? rewrite_add(w, s->line.data, s->line.len) : rewrite_add(w, line, text);
	return r < 0 ? r : rewrite_add(w, line + text, len - text);
}

/* A block that no line of matches: copied as it is, if anything is copied at all. */
static int do_quiet(struct rewrite *w, const char *block, size_t len)
{
	if (!utf8_valid(block, len))
		return -EILSEQ;
	return w->fd < 0 ? 0 : rewrite_add(w, block, len);
}

static int do_block(struct sed *s, struct rewrite *w, int fd, const char *block, size_t len,
	uint64_t at, uint64_t *count)
{
	size_t from = 0, hit = 0;

	while (from < len) {
		const char *line, *lf;
		size_t line_at, end;
		int r;

		if (!rx_scan(s->rx, block, len, from, &hit) ||
			hit >= len + (block[len - 1] != '\n'))
			return do_quiet(w, block + from, len - from);
		line = memrchr(block + from, '\n', hit - from);
		line_at = line ? (size_t)(line + 1 - block) : from;
		lf = memchr(block + hit, '\n', len - hit);
		end = lf ? (size_t)(lf + 1 - block) : len;
		r = do_quiet(w, block + from, line_at - from);
		if (r == 0 && !utf8_valid(block + line_at, end - line_at))
			r = -EILSEQ;
		if (r == 0)
			r = do_line(s, w, fd, block + line_at, end - line_at, at + line_at, count);
		if (r < 0)
			return r;
		from = end;
	}
	return 0;
}

static int do_lines(struct sed *s, struct rewrite *w, int fd, bool skip_binary, uint64_t *count)
{
	uint64_t at = 0;
	int r;

	lines_start(&s->lines, fd, 0);
	r = skip_binary ? lines_is_binary(&s->lines) : 0;
	if (r != 0)
		return r < 0 ? r : -ENOEXEC;
	for (;;) {
		const char *block;
		size_t len;

		if (fs_cancelled())
			return -ECANCELED;
		r = lines_next(&s->lines, &block, &len);
		if (r == 2)
			return -EFBIG;
		if (r <= 0)
			return r;
		r = do_block(s, w, fd, block, len, at, count);
		if (r < 0)
			return r;
		at += len;
	}
}

/* --- one file --- */

/* Rewrites the file if need be. -ENOEXEC: binary, and not to be reported. */
static int do_file(struct sed *s, const struct fs_selected *f, bool skip_binary, uint64_t *count)
{
	struct rewrite w = {.dir_fd = f->dir_fd, .fd = -1};
	cleanup_fd int fd = -1;
	size_t size;
	int r;

	fd = fs_selected_open(f, &size);
	if (fd < 0)
		return fd;
	buf_init(&w.out, OUT_BUFFER);
	r = do_lines(s, &w, fd, skip_binary, count);
	if (r == 0 && w.fd >= 0)
		r = rewrite_publish(&w, fd, f->name);
	rewrite_done(&w);
	return r;
}

/* The same for a path, whose own link is followed. */
static int do_path(struct sed *s, const char *path, bool skip_binary, uint64_t *count)
{
	char real[PATH_MAX];
	cleanup_fd int dir_fd = -1;
	struct fs_selected f = {.is_root = true, .path = path, .path_len = strlen(path)};
	struct stat st;
	char *slash;

	if (path[0] != '/')
		return -EDESTADDRREQ;
	if (!realpath(path, real))
		return -errno;
	slash = strrchr(real, '/');
	if (!slash[1])
		return -EISDIR;
	*slash = '\0';
	dir_fd = open(slash == real ? "/" : real, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0)
		return -errno;
	f.dir_fd = dir_fd;
	f.name = slash + 1;
	/* Not a link any more, so the type can be seen before anything is opened. */
	if (fstatat(dir_fd, f.name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	f.is_root = false;
	return do_file(s, &f, skip_binary, count);
}

static const char *reason(int r)
{
	switch (-r) {
	case EILSEQ:
		return "it is not valid UTF-8";
	case EFBIG:
		return "a line is or would become too long";
	case EISDIR:
		return "it is a folder";
	case EINVAL:
		return "it is not a regular file";
	case EDESTADDRREQ:
		return "its path is not absolute";
	default:
		return err_str(r);
	}
}

static int add_result(struct sed *s, const char *path, size_t path_len, int r, uint64_t count)
{
	char text[256];
	int w = buf_add_str(s->reply, s->any ? ",{" : "{");

	s->any = true;
	if (r < 0) {
		snprintf(text, sizeof(text), "cannot edit the file: %s", reason(r));
		count = 0;
		if (w == 0)
			w = buf_add_str(s->reply, "\"error\":");
		if (w == 0)
			w = fs_reply_str(s->reply, text, strlen(text));
		if (w == 0)
			w = buf_add_str(s->reply, ",");
	}
	s->total += count;
	if (w == 0)
		w = buf_add_str(s->reply, "\"path\":");
	if (w == 0)
		w = fs_reply_str(s->reply, path, path_len);
	return w < 0 ? w
		     : buf_printf(s->reply, ",\"replacements\":%" PRIu64 ",\"success\":%s}", count,
			       r < 0 ? "false" : "true");
}

/* --- the two forms --- */

static int too_many(struct err *e)
{
	return err_set(e, "S216", EFBIG,
		"the results of so many files do not fit into one reply (%u MiB); no file was "
		"changed: name fewer, or narrow path and globs",
		FS_REPLY_MAX >> 20);
}

static int measure(const struct fs_selected *f, void *user, struct err *e)
{
	struct sed *s = user;

	/* A byte of a path takes up to six in JSON (\u0001). */
	s->room += f->path_len * 6 + RESULT_BYTES;
	return s->room > FS_REPLY_MAX ? too_many(e) : 0;
}

static int edit(const struct fs_selected *f, void *user, struct err *e)
{
	struct sed *s = user;
	uint64_t count = 0;
	int r = f->is_root ? do_path(s, f->path, true, &count) : do_file(s, f, true, &count);

	if (r == -ECANCELED)
		return fs_stop(e);
	if (r == -ENOEXEC || (r == -ENOENT && !f->is_root)) /* binary; vanished */
		return 0;
	return add_result(s, f->path, f->path_len, r, count);
}

static int sed_below(struct sed *s, const struct fs_select *sel, struct err *e)
{
	int r = fs_select_each(sel, measure, s, e);

	return r < 0 ? r : fs_select_each(sel, edit, s, e);
}

static int sed_files(struct sed *s, char *const *files, struct err *e)
{
	for (size_t i = 0; files[i]; i++) {
		s->room += strlen(files[i]) * 6 + RESULT_BYTES;
		if (s->room > FS_REPLY_MAX)
			return too_many(e);
	}
	for (size_t i = 0; files[i]; i++) {
		uint64_t count = 0;
		int r = do_path(s, files[i], false, &count);

		if (r == -ECANCELED || fs_cancelled())
			return fs_stop(e);
		r = add_result(s, files[i], strlen(files[i]), r, count);
		if (r < 0)
			return r;
	}
	return 0;
}

/* --- the request --- */

static int get_rule(struct sed *s, json_object *req, struct err *e)
{
	const char *pattern, *replacement;
	size_t pattern_len, replacement_len;
	bool regex = true, ignore_case = false;
	unsigned flags;
	int r;

	if (fs_text_get(req, "pattern", &pattern, &pattern_len, e) < 0 ||
		fs_text_get(req, "replacement", &replacement, &replacement_len, e) < 0 ||
		fs_bool_get(req, "regex", &regex, e) < 0 ||
		fs_bool_get(req, "first_only", &s->first_only, e) < 0 ||
		fs_bool_get(req, "ignore_case", &ignore_case, e) < 0)
		return -EINVAL;
	if (!regex && !pattern_len)
		return err_set(e, "S210", EINVAL, "pattern is empty, and regex is false");
	flags = (regex ? 0 : RX_LITERAL) | (ignore_case ? RX_IGNORE_CASE : 0);
	r = rx_new(pattern, pattern_len, flags, &s->rx, e);
	if (r == 0)
		s->with = rx_template_new(s->rx, replacement, replacement_len, flags);
	return r;
}

static int sed(struct sed *s, json_object *req, char ***files, struct fs_select *sel, struct err *e)
{
	int r = json_get_strv(req, "files", JSON_OPTIONAL, files, e);

	if (r < 0) {
		err_code(e, "S210");
		return r;
	}
	if (!*files || !**files) {
		r = fs_select_init(sel, req, e);
		if (r == 0)
			r = fs_select_check_recursive(sel, e);
	}
	if (r >= 0)
		r = get_rule(s, req, e);
	if (r < 0)
		return r;
	r = buf_add_str(s->reply, "{\"results\":[");
	if (r < 0)
		return r;
	return *files && **files ? sed_files(s, *files, e) : sed_below(s, sel, e);
}

int fs_sed(json_object *req, struct buf *reply, struct err *e)
{
	struct sed s = {.reply = reply};
	struct fs_select sel = {0};
	char **files = NULL;
	int r;

	buf_init(&s.line, SED_LINE_MAX);
	r = sed(&s, req, &files, &sel, e);
	if (r == 0)
		r = buf_printf(reply, "],\"total_replacements\":%" PRIu64 "}", s.total);
	fs_select_done(&sel);
	strv_free(files);
	lines_done(&s.lines);
	buf_done(&s.line);
	rx_template_free(s.with);
	rx_free(s.rx);
	return r;
}
