/* Bytes -> splitter -> on_line() -> l->out -> write_out(): one write for all lines of a call (or
 * for BATCH_BYTES of them), to the newest segment, which was opened with O_APPEND.
 *
 * A write that fails leaves whole lines only: what was written of another is cut off again, and
 * where even that fails the segment is left alone and a new one begun. From then on records are
 * counted, not written, until a record that tells the loss could be written; that is tried once in
 * LOGS_RETRY_MS, so that a full disk costs one system call a second whatever the guest prints.
 *
 * Only logs_create removes what it finds, and only it may write: another daemon may be writing the
 * folder that logs_open reads. What that finds torn or foreign it leaves where it is.
 *
 * Refused: a folder `log` that is a symlink or no folder. Files whose names are not those of
 * segments are left alone.
 */
#include "host/worker/logs.h"

#include <assert.h>
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
#include "base/mem.h"
#include "base/str.h"
#include "host/worker/logs_priv.h"
#include "wire/json.h"

#define LOG_DIR	    "log"
#define BATCH_BYTES (128u << 10)

void logs_segment_name(uint64_t base, char ret[static LOGS_NAME_LEN])
{
	snprintf(ret, LOGS_NAME_LEN, "%020" PRIu64 ".jsonl", base);
}

/* --- segments --- */

static struct segment *newest(struct logs *l)
{
	return l->n_segs ? &l->segs[l->n_segs - 1] : NULL;
}

static int unlink_segment(struct logs *l, uint64_t base)
{
	char name[LOGS_NAME_LEN];

	logs_segment_name(base, name);
	return unlinkat(l->dir, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

static void forget_oldest(struct logs *l)
{
	logs_readers_lose(l, l->segs[0].base);
	l->n_segs--;
	memmove(l->segs, l->segs + 1, l->n_segs * sizeof(l->segs[0]));
}

static int begin_segment(struct logs *l, uint64_t base)
{
	char name[LOGS_NAME_LEN];

	fd_close(&l->fd);
	/* First, because it may be what makes room. What cannot be unlinked is left to the next
	 * logs_create. */
	if (l->n_segs == LOGS_SEGMENTS_MAX) {
		unlink_segment(l, l->segs[0].base);
		forget_oldest(l);
	}
	logs_segment_name(base, name);
	l->fd = openat(l->dir, name,
		O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (l->fd < 0)
		return -errno;
	l->sealed = false;
	l->segs[l->n_segs++] = (struct segment){.base = base};
	return 0;
}

/* Makes l->fd the segment that the next lines belong to. */
static int ensure_segment(struct logs *l)
{
	char name[LOGS_NAME_LEN];

	if (!newest(l) || l->sealed || newest(l)->size >= LOGS_SEGMENT_MAX)
		return begin_segment(l, l->out_from);
	if (l->fd >= 0)
		return 0;
	logs_segment_name(newest(l)->base, name);
	l->fd = openat(l->dir, name, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (l->fd >= 0)
		return 0;
	l->sealed = true; /* somebody took it away: go on in another */
	return begin_segment(l, l->out_from);
}

/* Writes as much as can be; the count and, when it is not all, *ret_why. */
static size_t write_some(int fd, const uint8_t *data, size_t len, int *ret_why)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = write(fd, data + done, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			*ret_why = n < 0 ? errno : EIO;
			break;
		}
		done += n;
	}
	return done;
}

/* --- loss --- */

static void lose(struct logs *l, uint64_t records, uint64_t from, int why, uint64_t now_ms)
{
	if (l->lost.records == 0)
		l->lost.from = from;
	l->lost.records += records;
	l->lost.why = why;
	l->lost.retry_ms = now_ms + LOGS_RETRY_MS;
}

static uint64_t count_lines(const uint8_t *p, size_t len)
{
	uint64_t n = 0;

	for (size_t i = 0; i < len; i++)
		n += p[i] == '\n';
	return n;
}

/* Offset behind the last whole line of those bytes. */
static uint64_t last_cursor(const uint8_t *p, size_t len)
{
	const uint8_t *start = len > 1 ? memrchr(p, '\n', len - 1) : NULL;
	uint64_t cursor = 0;

	start = start ? start + 1 : p;
	logrec_cursor((const char *)start, p + len - 1 - start, &cursor);
	return cursor;
}

static void write_out(struct logs *l, uint64_t now_ms)
{
	size_t done = 0, keep;
	const uint8_t *nl;
	int why = 0;

	if (!l->out.len)
		return;
	why = -ensure_segment(l);
	if (!why)
		done = write_some(l->fd, l->out.data, l->out.len, &why);
	nl = done ? memrchr(l->out.data, '\n', done) : NULL;
	keep = nl ? (size_t)(nl + 1 - l->out.data) : 0;
	if (keep) {
		newest(l)->size += keep;
		l->news = true;
	}
	if (done > keep && ftruncate(l->fd, (off_t)newest(l)->size) < 0)
		l->sealed = true;
	if (keep < l->out.len)
		lose(l, count_lines(l->out.data + keep, l->out.len - keep),
			keep ? last_cursor(l->out.data, keep) : l->out_from, why, now_ms);
	buf_clear(&l->out);
}

/* Adds one record to l->out; its offsets are [end - raw, end). */
static int add_record(struct logs *l, struct logrec *rec, size_t raw)
{
	int r;

	if (l->out.len == 0)
		l->out_from = l->end;
	rec->cursor = l->end + raw;
	rec->instance = l->instance;
	r = logrec_encode(rec, &l->out);
	l->end += raw;
	if (r < 0)
		return r;
	r = buf_add(&l->out, "\n", 1);
	assert(r == 0); /* logrec_encode asked for more room than it took */
	return 0;
}

/* Tells a loss, when the disk takes it. */
static void tell_loss(struct logs *l, uint64_t now_ms)
{
	struct logrec rec = {.ts_ms = now_ms, .stream = LOG_HOST};
	uint64_t end = l->end, records = l->lost.records, from = l->lost.from;
	cleanup_free char *text = NULL;

	text = xasprintf("%" PRIu64 " log records (%" PRIu64 " bytes) were lost: the log could not "
			 "be written (%s)",
		records, end - from, err_str(l->lost.why));
	rec.line = text;
	rec.len = strlen(text);
	l->lost.records = 0;
	if (add_record(l, &rec, rec.len + 1) == 0)
		write_out(l, now_ms);
	else
		lose(l, 1, end, ENOMEM, now_ms);
	if (!l->lost.records)
		return;
	/* Nobody has seen it, so it takes no place. */
	l->end = end;
	l->lost.records = records;
	l->lost.from = from;
}

static void try_again(struct logs *l, uint64_t now_ms)
{
	bool clock_went_back = now_ms + LOGS_RETRY_MS < l->lost.retry_ms;

	if (l->lost.records && (now_ms >= l->lost.retry_ms || clock_went_back))
		tell_loss(l, now_ms);
}

/* --- adding --- */

struct adding {
	struct logs *l;
	enum log_stream stream;
	uint64_t ts_ms, now_ms;
	size_t made; /* bytes of records */
};

static void on_line(const char *text, size_t len, size_t raw, bool partial, void *user)
{
	struct adding *a = user;
	struct logs *l = a->l;
	struct logrec rec = {.ts_ms = a->ts_ms,
		.stream = a->stream,
		.line = text,
		.len = len,
		.partial = partial};
	size_t before;
	int r;

	if (l->lost.records) {
		l->end += raw;
		l->lost.records++;
		return;
	}
	before = l->out.len;
	r = add_record(l, &rec, raw);
	a->made += l->out.len - before;
	if (r < 0) {
		write_out(l, a->now_ms);
		lose(l, 1, l->end - raw, -r, a->now_ms);
		return;
	}
	if (l->out.len >= BATCH_BYTES ||
		(newest(l) && newest(l)->size + l->out.len >= LOGS_SEGMENT_MAX))
		write_out(l, a->now_ms);
}

static void tell_readers(struct logs *l)
{
	if (!l->news)
		return;
	l->news = false;
	logs_readers_wake(l);
}

size_t logs_add(
	struct logs *l, enum log_stream stream, const void *data, size_t len, uint64_t now_ms)
{
	struct adding a = {.l = l, .stream = stream, .ts_ms = now_ms, .now_ms = now_ms};

	if (!len)
		return 0;
	try_again(l, now_ms);
	l->streams[stream].last_ms = now_ms;
	logrec_split(&l->streams[stream].split, data, len, on_line, &a);
	write_out(l, now_ms);
	tell_readers(l);
	return a.made;
}

void logs_say(struct logs *l, uint64_t now_ms, const char *fmt, ...)
{
	struct adding a = {.l = l, .stream = LOG_HOST, .ts_ms = now_ms, .now_ms = now_ms};
	struct logrec_splitter *s = &l->streams[LOG_HOST].split;
	cleanup_free char *text = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		mem_exhausted();
	try_again(l, now_ms);
	/* Ends a line of the VMM that is not ended yet. */
	if (s->len || s->open)
		logrec_split(s, "\n", 1, on_line, &a);
	logrec_split(s, text, n, on_line, &a);
	logrec_split(s, "\n", 1, on_line, &a);
	write_out(l, now_ms);
	tell_readers(l);
}

static void flush_stream(
	struct logs *l, enum log_stream stream, enum logrec_flush how, uint64_t now)
{
	struct logs_stream *s = &l->streams[stream];
	struct adding a = {.l = l, .stream = stream, .ts_ms = s->last_ms, .now_ms = now};

	logrec_flush(&s->split, how, on_line, &a);
}

void logs_tick(struct logs *l, uint64_t now_ms)
{
	try_again(l, now_ms);
	for (int i = 0; i < LOG_STREAMS; i++) {
		uint64_t last = l->streams[i].last_ms;

		if (now_ms < last || now_ms - last >= LOGS_TAIL_MS)
			flush_stream(l, (enum log_stream)i, LOGREC_PAUSE, now_ms);
	}
	write_out(l, now_ms);
	buf_done(&l->out); /* a flood's memory */
	tell_readers(l);
}

void logs_end(struct logs *l, uint64_t now_ms)
{
	if (l->lost.records)
		tell_loss(l, now_ms);
	for (int i = 0; i < LOG_STREAMS; i++)
		flush_stream(l, (enum log_stream)i, LOGREC_END, now_ms);
	write_out(l, now_ms);
	buf_done(&l->out);
	fd_close(&l->fd);
	l->ended = true;
	l->news = false;
	logs_readers_wake(l);
}

/* --- opening --- */

static int by_base(const void *a, const void *b)
{
	const struct segment *x = a, *y = b;

	return x->base < y->base ? -1 : x->base > y->base;
}

static bool segment_base(const char *name, uint64_t *ret)
{
	char digits[21], again[LOGS_NAME_LEN];

	snprintf(digits, sizeof(digits), "%.20s", name);
	if (str_u64(digits, ret) < 0)
		return false;
	logs_segment_name(*ret, again);
	return str_eq(name, again);
}

/* Calls `take` for each segment of the folder. */
static int each_segment(struct logs *l, int (*take)(struct logs *l, uint64_t base, uint64_t size))
{
	int fd = openat(l->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;
	struct stat st;
	int r = 0;

	if (!dir) {
		r = -errno;
		fd_close(&fd);
		return r;
	}
	while (r == 0 && (d = readdir(dir))) {
		uint64_t base;

		if (segment_base(d->d_name, &base) &&
			fstatat(l->dir, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
			S_ISREG(st.st_mode))
			r = take(l, base, (uint64_t)st.st_size);
	}
	closedir(dir);
	return r;
}

/* The newest LOGS_SEGMENTS_MAX are kept in mind. */
static int keep_segment(struct logs *l, uint64_t base, uint64_t size)
{
	if (l->n_segs == LOGS_SEGMENTS_MAX) {
		if (base < l->segs[0].base)
			return 0;
		l->n_segs--;
		memmove(l->segs, l->segs + 1, l->n_segs * sizeof(l->segs[0]));
	}
	l->segs[l->n_segs++] = (struct segment){.base = base, .size = size};
	qsort(l->segs, l->n_segs, sizeof(l->segs[0]), by_base);
	return 0;
}

static int remove_segment(struct logs *l, uint64_t base, uint64_t size)
{
	(void)size;
	return unlink_segment(l, base);
}

/* Finds the last whole record of the only segment: 1 with the record in *last, 0 when there is
 * none. What is behind it does not count. */
static int find_last(struct logs *l, struct buf *last)
{
	struct logs_reader *r = logs_reader_new(l, 0, true, NULL, NULL);
	uint64_t size = 0;
	const char *text;
	size_t len;
	int rc;

	buf_clear(last);
	while ((rc = logs_reader_next(r, &text, &len)) == 1) {
		buf_clear(last);
		if (buf_add(last, text, len) < 0 || logrec_cursor(text, len, &l->end) < 0) {
			rc = -ENOMEM;
			break;
		}
		size = logs_reader_offset(r);
	}
	logs_reader_free(r);
	if (rc != -ENODATA)
		return rc;
	l->segs[0].size = size;
	return last->len > 0;
}

static uint64_t record_instance(const struct buf *json)
{
	cleanup_json json_object *o = NULL;
	uint64_t instance = 0;

	if (json_parse_object((const char *)json->data, json->len, &o, NULL) == 0)
		json_get_u64(o, "instance", JSON_REQUIRED, &instance, NULL);
	return instance;
}

/* Where the writer stopped. Segments without a record, from the newest on, do not count. */
static int settle(struct logs *l)
{
	struct segment segs[LOGS_SEGMENTS_MAX];
	cleanup_buf struct buf last;
	size_t n;
	int r = each_segment(l, keep_segment);

	buf_init(&last, LOGREC_JSON_MAX);
	memcpy(segs, l->segs, sizeof(segs));
	n = l->n_segs;
	while (r == 0 && n > 0) {
		/* A reader of the newest alone. */
		l->segs[0] = segs[n - 1];
		l->n_segs = 1;
		r = find_last(l, &last);
		segs[n - 1] = l->segs[0];
		if (r == 0)
			n--;
	}
	if (r < 0)
		return r;
	memcpy(l->segs, segs, sizeof(segs));
	l->n_segs = n;
	if (n > 0 && record_instance(&last) != l->instance) {
		l->n_segs = 0;
		l->end = 0;
	}
	return 0;
}

static struct logs *logs_new(int vm_dirfd, uint64_t instance)
{
	struct logs *l = xcalloc(1, sizeof(*l));

	l->fd = -1;
	l->instance = instance;
	buf_init(&l->out, 2 * BATCH_BYTES + LOGREC_JSON_MAX);
	l->dir = openat(vm_dirfd, LOG_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return l;
}

int logs_open(int vm_dirfd, uint64_t instance, struct logs **ret, struct err *e)
{
	struct logs *l = logs_new(vm_dirfd, instance);
	int r = 0;

	l->ended = true;
	if (l->dir >= 0)
		r = settle(l);
	else if (errno != ENOENT) /* its boot never came to a log */
		r = -errno;
	if (r == 0) {
		*ret = l;
		return 0;
	}
	logs_free(l);
	return err_set(e, "S504", -r, "cannot open the log of the worker VM: %s", err_str(r));
}

int logs_create(int vm_dirfd, uint64_t instance, struct logs **ret, struct err *e)
{
	struct logs *l = NULL;
	int r = 0;

	if (mkdirat(vm_dirfd, LOG_DIR, 0700) < 0 && errno != EEXIST)
		r = -errno;
	if (r == 0) {
		l = logs_new(vm_dirfd, instance);
		r = l->dir < 0 ? -errno : each_segment(l, remove_segment);
	}
	if (r == 0) {
		*ret = l;
		return 0;
	}
	logs_free(l);
	return err_set(e, "S504", -r, "cannot make the log of the worker VM: %s", err_str(r));
}

void logs_retire(struct logs *l)
{
	fd_close(&l->fd);
	l->ended = true;
	l->retired = true;
	logs_readers_wake(l);
}

void logs_free(struct logs *l)
{
	if (!l)
		return;
	assert(!l->readers);
	fd_close(&l->fd);
	fd_close(&l->dir);
	buf_done(&l->out);
	free(l);
}
