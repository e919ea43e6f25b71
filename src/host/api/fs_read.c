/* fs::read: a file as text in the reply and as bytes in a channel (sandbox contract §5.8).
 *
 *   HEAD      the guest opens the file
 *   COLLECT   a small file is read into memory, at most INLINE_MAX bytes; a large one is not begun
 *   CHANNEL   the engine makes the channel; the guest is paused
 *   PUMP      answered; what was collected, then what follows, goes through the channel in frames
 *             of CHANNEL_CHUNK_MAX, one at a time
 *
 * Before PUMP every failure is the answer. In PUMP it is a text frame {"error","code"} at the end
 * of the channel. Nobody may ever read that channel: the engine then stops taking frames, the guest
 * stays paused, and FS_READ_STALL_MS ends it. Such a pump holds at most what was collected, and
 * does not count as activity.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "host/api/api_priv.h"
#include "host/bus/channel.h"

#define INLINE_MAX	  (1u << 20) /* a file of that size or more has no `body` */
#define FS_READ_STALL_MS  (10 * 60 * 1000)
#define FS_READ_CREATE_MS 30000 /* for the engine to make a channel; then S216 */
#define FRAMES_BUFFERED	  64	/* by the engine, asked for */
/* Beyond the ceiling: what is under way when the guest is paused. */
#define COLLECT_SLACK (GUEST_READ_LATE_MAX + (256u << 10))

enum phase {
	HEAD,
	COLLECT,
	CHANNEL,
	PUMP,
};

struct fs_read {
	struct api_transfer transfer;
	struct api *a;
	struct bus_call *c; /* NULL once answered */
	struct pool_entry *x;
	enum pool_work work; /* what x is held for */
	enum phase phase;
	char *path;
	struct guest_call *call; /* NULL once the guest has ended it */
	struct guest_read_head head;
	struct buf data;
	bool has_body;
	struct err failed; /* in PUMP; text "" is none */
	struct bus_invoke *invoke;
	struct channel_writer *writer;
};

static void fs_read_free(struct fs_read *f)
{
	if (f->call)
		guest_call_cancel(f->call);
	bus_invoke_cancel(f->invoke);
	channel_writer_close(f->writer);
	api_remove_transfer(f->a, &f->transfer);
	pool_end(f->x, f->work);
	buf_done(&f->data);
	free(f->path);
	free(f);
}

static void fail(struct fs_read *f, const struct err *why)
{
	struct err e = *why;

	pool_explain(f->x, POOL_FS, &e);
	reply_err(f->c, &e);
	fs_read_free(f);
}

static void on_abort(struct api_transfer *t)
{
	struct fs_read *f = CONTAINER_OF(t, struct fs_read, transfer);
	struct err e = ERR_INIT;

	err_set(&e, "S216", ESHUTDOWN, "the adapter is shutting down");
	if (f->c)
		reply_err(f->c, &e);
	fs_read_free(f);
}

/* --- pumping --- */

/* The reason as the last thing in the channel: readers of bytes skip it. */
static void write_failure(struct fs_read *f)
{
	cleanup_json json_object *o = reply_object();
	const char *text;
	size_t len;

	json_add_str(o, "code", f->failed.code);
	json_add_str(o, "error", f->failed.text);
	text = json_text(o, &len);
	channel_write_text(f->writer, text, len);
}

/* The next frame; behind the last one the end. */
static void pump(struct fs_read *f)
{
	size_t n = MIN(f->data.len, (size_t)CHANNEL_CHUNK_MAX);

	if (n) {
		if (channel_write(f->writer, f->data.data, n) == 0)
			buf_drop(&f->data, n);
	} else if (!f->call) {
		if (f->failed.text[0])
			write_failure(f);
		channel_writer_finish(f->writer);
	}
	if (f->call && f->data.len < CHANNEL_CHUNK_MAX)
		guest_read_pause(f->call, false);
}

static void on_drain(struct channel_writer *w, void *user)
{
	struct fs_read *f = user;

	(void)w;
	pool_touch(f->x);
	pump(f);
}

static void on_writer_end(
	struct channel_writer *w, enum channel_end end, const char *why, void *user)
{
	struct fs_read *f = user;

	(void)w;
	f->writer = NULL;
	if (end != CHANNEL_END)
		log_debug("channel of fs::read ended early", "sandbox=%s why=%s", pool_id(f->x),
			log_quote(why));
	fs_read_free(f);
}

/* --- answering --- */

static void answer(struct fs_read *f, const struct bus_channel_ref *ref)
{
	json_object *reply = reply_object();
	char mode[8];

	snprintf(mode, sizeof(mode), "%04o", f->head.mode & 07777);
	if (f->has_body)
		json_add_strn(
			reply, "body", f->data.len ? (const void *)f->data.data : "", f->data.len);
	reply_add(reply, "content", bus_channel_ref_new(ref, false));
	json_add_str(reply, "mode", mode);
	json_add_i64(reply, "mtime", f->head.mtime);
	json_add_u64(reply, "size", f->head.size);
	reply_ok(STEAL(f->c), reply);
}

static int read_channel(const struct bus_answer *a, struct bus_channel_ref *ret, struct err *e)
{
	json_object *reader = NULL;

	if (a->outcome != BUS_OK)
		return err_set(e, "S216", EIO, "the engine made no channel for the content: %s: %s",
			a->code, a->message);
	if (!json_object_is_type(a->result, json_type_object) ||
		!json_object_object_get_ex(a->result, "reader", &reader) || !reader)
		return err_set(e, "S216", EPROTO,
			"the engine made no channel for the content: its reply has no reader");
	if (bus_channel_ref_read(reader, ret, NULL, e) < 0) {
		err_wrap(e, "the engine made no channel for the content");
		err_code(e, "S216");
		return -EPROTO;
	}
	return 0;
}

static void on_channel(const struct bus_answer *a, void *user)
{
	static const struct channel_writer_events ev = {.drain = on_drain, .end = on_writer_end};
	struct fs_read *f = user;
	struct bus_channel_ref ref;
	struct err e = ERR_INIT;
	int r = read_channel(a, &ref, &e);

	f->invoke = NULL;
	if (r == 0)
		r = pool_begin(f->x, POOL_PUMP, &e);
	if (r < 0) {
		fail(f, &e);
		return;
	}
	pool_end(f->x, POOL_FS);
	f->work = POOL_PUMP;
	f->phase = PUMP;
	answer(f, &ref);
	f->writer = channel_write_open(f->a->bus, &ref, FS_READ_STALL_MS, &ev, f);
	pump(f);
}

static void make_channel(struct fs_read *f)
{
	json_object *data = reply_object();

	json_add_u64(data, "buffer_size", FRAMES_BUFFERED);
	f->phase = CHANNEL;
	if (f->call)
		guest_read_pause(f->call, true);
	f->invoke = bus_invoke(f->a->bus, "engine::channels::create", data, FS_READ_CREATE_MS, f->c,
		on_channel, f);
}

/* --- the guest --- */

static void on_head(struct guest_call *call, const struct guest_read_head *h, void *user)
{
	struct fs_read *f = user;

	(void)call;
	f->head = *h;
	f->phase = COLLECT;
	if (h->size >= INLINE_MAX)
		make_channel(f);
}

static void on_data(struct guest_call *call, const uint8_t *data, size_t len, void *user)
{
	struct fs_read *f = user;
	struct err e = ERR_INIT;

	if (buf_add(&f->data, data, len) < 0) {
		err_set(&e, "S216", ENOBUFS, "%s: the guest sends although it was paused", f->path);
		if (f->c) {
			fail(f, &e);
			return;
		}
		f->failed = e;
		guest_call_cancel(STEAL(f->call));
	} else if (f->phase == COLLECT && f->data.len >= INLINE_MAX) {
		make_channel(f);
		return;
	} else if (f->phase == PUMP && f->data.len >= CHANNEL_CHUNK_MAX) {
		guest_read_pause(call, true);
	}
	if (f->phase == PUMP)
		pump(f);
}

static void on_done(struct guest_call *call, const struct err *why, void *user)
{
	struct fs_read *f = user;

	(void)call;
	f->call = NULL;
	if (why && f->phase != PUMP) {
		fail(f, why);
	} else if (f->phase == COLLECT) {
		f->has_body = utf8_valid(f->data.data, f->data.len);
		make_channel(f);
	} else if (f->phase == PUMP) {
		if (why) {
			f->failed = *why;
			pool_explain(f->x, POOL_FS, &f->failed);
		}
		pump(f);
	}
}

static int start(struct fs_read *f, struct pool_entry *x, const struct text *path, struct err *e)
{
	static const struct guest_read_callbacks guest_cb = {
		.on_head = on_head, .on_data = on_data, .on_done = on_done};
	int r = request_guest_path("path", path, e);

	if (r == 0)
		r = pool_begin(x, POOL_FS, e);
	if (r < 0)
		return r;
	r = guest_read(pool_guest(x), path->s, &guest_cb, f, &f->call, e);
	if (r < 0) {
		err_code(e, "S216");
		pool_end(x, POOL_FS);
		return r;
	}
	f->x = x;
	f->work = POOL_FS;
	f->path = xstrdup(path->s);
	buf_init(&f->data, INLINE_MAX + COLLECT_SLACK);
	api_add_transfer(f->a, &f->transfer, on_abort);
	return 0;
}

void api_fs_read(struct api *a, struct bus_call *c, json_object *request)
{
	struct fs_read *f = xcalloc(1, sizeof(*f));
	struct pool_entry *x;
	struct text path;
	struct err e = ERR_INIT;
	int r = request_text(request, "path", JSON_REQUIRED, &path, &e);

	f->a = a;
	f->c = c;
	if (r >= 0)
		r = api_find(a, request, &x, &e);
	if (r == 0)
		r = start(f, x, &path, &e);
	if (r < 0) {
		reply_err(c, &e);
		free(f);
	}
}
