/* fs::write: one file, from the request itself or from a channel (sandbox contract §5.7).
 *
 * From memory ("put"): the bytes wait in the request and go as fast as the guest takes them.
 *
 * From a channel ("upload"): reader -> guest, with back-pressure: what the guest does not take at
 * once is kept (one piece) and the reader paused. The end of the channel ends the file; anything
 * else gives the guest's write up, whose temporary file vanishes, and is S218. When the guest fails
 * first, the channel is closed.
 *
 * Limits: no size; FS_WRITE_IDLE_MS without bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/api/api_priv.h"
#include "host/bus/channel.h"

/* A channel that brings no bytes for this long: the upload is given up with S218. */
#define FS_WRITE_IDLE_MS 5000
/* Bytes that came after the reader was told to pause. */
#define LEFT_MAX (4u << 20)

/* --- from memory --- */

struct put {
	struct pool_entry *x;
	struct guest_call *call;
	const uint8_t *data;
	size_t len, sent;
	put_finished cb;
	void *user;
};

static void put_push(struct put *p)
{
	while (p->sent < p->len) {
		size_t n = guest_write_data(p->call, p->data + p->sent, p->len - p->sent);

		if (!n)
			return; /* put_room comes */
		p->sent += n;
	}
	guest_write_end(p->call);
}

static void put_room(struct guest_call *call, void *user)
{
	struct put *p = user;

	(void)call;
	if (p->sent < p->len)
		put_push(p);
}

static void put_done(
	struct guest_call *call, uint64_t bytes_written, const struct err *why, void *user)
{
	struct put *p = user;
	struct err e = ERR_INIT;

	(void)call;
	if (why) {
		e = *why;
		pool_explain(p->x, POOL_FS, &e);
	}
	pool_end(p->x, POOL_FS);
	p->cb(bytes_written, why ? &e : NULL, p->user);
	free(p);
}

int put_start(
	struct pool_entry *x, const struct put_spec *s, put_finished cb, void *user, struct err *e)
{
	static const struct guest_write_callbacks guest_cb = {
		.on_ready = put_room, .on_done = put_done};
	struct put *p;
	int r = pool_begin(x, POOL_FS, e);

	if (r < 0)
		return r;
	p = xcalloc(1, sizeof(*p));
	*p = (struct put){.x = x, .data = s->data, .len = s->len, .cb = cb, .user = user};
	r = guest_write(pool_guest(x),
		&(struct guest_write_req){.path = s->path, .mode = s->mode, .parents = s->parents},
		&guest_cb, p, &p->call, e);
	if (r < 0) {
		err_code(e, "S216");
		pool_end(x, POOL_FS);
		free(p);
		return r;
	}
	put_push(p);
	return 0;
}

/* --- the request --- */

struct write_request {
	struct text path, mode;
	bool parents;
	struct text content; /* s == NULL: not that way */
	bool has_ref;
	struct bus_channel_ref ref;
	uint8_t *bytes; /* of content_b64; NULL: not that way */
	size_t n_bytes;
};

/* Either a text or a reference to a channel. */
static int read_content(json_object *o, struct write_request *w, struct err *e)
{
	json_object *v = NULL;

	if (!json_object_object_get_ex(o, "content", &v) || !v)
		return 0;
	if (json_object_is_type(v, json_type_string))
		return request_text(o, "content", JSON_NULLABLE, &w->content, e);
	if (!json_object_is_type(v, json_type_object))
		return err_set(e, "S001", EINVAL,
			"field `content`: expected a string or a StreamChannelRef object");
	if (bus_channel_ref_read(v, &w->ref, NULL, e) < 0) {
		err_wrap(e, "field `content`");
		err_code(e, "S001");
		return -EINVAL;
	}
	w->has_ref = true;
	return 0;
}

static int read_body(json_object *o, struct write_request *w, struct err *e)
{
	struct text b64 = {0};
	bool has_content;

	if (read_content(o, w, e) < 0 || request_text(o, "content_b64", JSON_NULLABLE, &b64, e) < 0)
		return -EINVAL;
	has_content = w->content.s || w->has_ref;
	if (has_content && b64.s)
		return err_set(e, "S001", EINVAL,
			"both content and content_b64 are set: pass exactly one of them");
	if (!has_content && !b64.s)
		return err_set(e, "S001", EINVAL,
			"missing file body: pass content (text or a channel) or content_b64");
	return b64.s ? request_base64("content_b64", &b64, &w->bytes, &w->n_bytes, e) : 0;
}

static int read_write(struct api *a, json_object *o, struct write_request *w,
	struct pool_entry **ret, struct err *e)
{
	struct text id;

	w->mode = (struct text){"0644", 4};
	if (request_id_text(o, &id, e) < 0 ||
		request_text(o, "path", JSON_REQUIRED, &w->path, e) < 0 ||
		request_text(o, "mode", JSON_OPTIONAL, &w->mode, e) < 0 ||
		request_bool(o, "parents", JSON_OPTIONAL, &w->parents, e) < 0 ||
		read_body(o, w, e) < 0)
		return -EINVAL;
	return api_find(a, o, ret, e);
}

/* --- one call --- */

struct write {
	struct api_transfer transfer; /* an upload */
	struct api *a;
	struct bus_call *c;
	json_object *request; /* path and content point into it */
	const char *path;
	bool parents;
	uint8_t *bytes;
	/* an upload */
	struct pool_entry *x;
	struct guest_call *call;
	struct channel_reader *reader; /* NULL once it ended */
	struct buf left;
};

static void write_free(struct write *w)
{
	json_object_put(w->request);
	free(w->bytes);
	buf_done(&w->left);
	free(w);
}

static void answer(struct write *w, uint64_t bytes_written, const struct err *why)
{
	json_object *reply;

	if (why) {
		reply_failed(
			w->c, &(struct reply_failure){.e = why,
				      .parent_missing = !w->parents && str_eq(why->code, "S211")});
	} else {
		reply = reply_object();
		json_add_u64(reply, "bytes_written", bytes_written);
		json_add_str(reply, "path", w->path);
		reply_ok(w->c, reply);
	}
	write_free(w);
}

static void on_put(uint64_t bytes_written, const struct err *why, void *user)
{
	answer(user, bytes_written, why);
}

/* --- from a channel --- */

static void upload_end(struct write *w, uint64_t bytes_written, const struct err *why)
{
	channel_reader_close(STEAL(w->reader));
	api_remove_transfer(w->a, &w->transfer);
	pool_end(STEAL(w->x), POOL_FS);
	answer(w, bytes_written, why);
}

static void upload_fail(struct write *w, const struct err *why)
{
	if (w->call)
		guest_call_cancel(STEAL(w->call));
	upload_end(w, 0, why);
}

static void upload_abort(struct api_transfer *t)
{
	struct write *w = CONTAINER_OF(t, struct write, transfer);
	struct err e = ERR_INIT;

	err_set(&e, "S218", ESHUTDOWN, "the adapter is shutting down: the channel was given up");
	upload_fail(w, &e);
}

static void on_upload_done(
	struct guest_call *call, uint64_t bytes_written, const struct err *why, void *user)
{
	struct write *w = user;
	struct err e = ERR_INIT;

	(void)call;
	w->call = NULL;
	if (why) {
		e = *why;
		pool_explain(w->x, POOL_FS, &e);
	}
	upload_end(w, bytes_written, why ? &e : NULL);
}

/* Gives the guest what waits; then the reader goes on, or the file ends. */
static void push_left(struct write *w)
{
	while (w->left.len) {
		size_t n = guest_write_data(w->call, w->left.data, w->left.len);

		if (!n)
			return; /* on_upload_room comes */
		buf_drop(&w->left, n);
	}
	if (w->reader)
		channel_reader_resume(w->reader);
	else
		guest_write_end(w->call);
}

static void on_upload_room(struct guest_call *call, void *user)
{
	struct write *w = user;

	(void)call;
	if (w->left.len)
		push_left(w);
}

static void on_data(struct channel_reader *r, const uint8_t *data, size_t len, void *user)
{
	struct write *w = user;
	struct err e = ERR_INIT;
	size_t n = w->left.len ? 0 : guest_write_data(w->call, data, len);

	pool_touch(w->x);
	if (n == len)
		return;
	channel_reader_pause(r);
	if (buf_add(&w->left, data + n, len - n) < 0) {
		err_set(&e, "S218", ENOBUFS, "the channel sends although it was paused");
		upload_fail(w, &e);
	}
}

static void on_channel_end(
	struct channel_reader *r, enum channel_end end, const char *why, void *user)
{
	struct write *w = user;
	struct err e = ERR_INIT;

	(void)r;
	w->reader = NULL;
	if (end == CHANNEL_END) {
		push_left(w);
		return;
	}
	err_set(&e, "S218", end == CHANNEL_STALLED ? ETIMEDOUT : EPIPE,
		"the channel with the content of %s %s: %s; nothing was written", w->path,
		end == CHANNEL_STALLED	     ? "stalled"
		: end == CHANNEL_REFUSED     ? "is not known to the engine"
		: end == CHANNEL_UNREACHABLE ? "cannot be reached"
					     : "broke",
		why);
	upload_fail(w, &e);
}

static int upload_start(struct write *w, struct pool_entry *x, uint32_t mode,
	const struct bus_channel_ref *ref, struct err *e)
{
	static const struct guest_write_callbacks guest_cb = {
		.on_ready = on_upload_room, .on_done = on_upload_done};
	static const struct channel_reader_events reader_ev = {
		.data = on_data, .end = on_channel_end};
	int r = pool_begin(x, POOL_FS, e);

	if (r < 0)
		return r;
	r = guest_write(pool_guest(x),
		&(struct guest_write_req){.path = w->path, .mode = mode, .parents = w->parents},
		&guest_cb, w, &w->call, e);
	if (r < 0) {
		err_code(e, "S216");
		pool_end(x, POOL_FS);
		return r;
	}
	w->x = x;
	buf_init(&w->left, LEFT_MAX);
	w->reader = channel_read(w->a->bus, ref, FS_WRITE_IDLE_MS, &reader_ev, w);
	api_add_transfer(w->a, &w->transfer, upload_abort);
	return 0;
}

/* --- the function --- */

static int start(
	struct write *w, const struct write_request *rq, struct pool_entry *x, struct err *e)
{
	struct put_spec put = {.data = rq->bytes ? (const void *)rq->bytes : rq->content.s,
		.len = rq->bytes ? rq->n_bytes : rq->content.len};
	uint32_t mode;

	if (request_mode("mode", &rq->mode, &mode, e) < 0 ||
		request_guest_path("path", &rq->path, e) < 0)
		return -EINVAL;
	w->path = rq->path.s;
	w->parents = rq->parents;
	if (rq->has_ref)
		return upload_start(w, x, mode, &rq->ref, e);
	put.path = w->path;
	put.mode = mode;
	put.parents = w->parents;
	return put_start(x, &put, on_put, w, e);
}

void api_fs_write(struct api *a, struct bus_call *c, json_object *request)
{
	struct write *w = xcalloc(1, sizeof(*w));
	struct write_request rq = {0};
	struct pool_entry *x;
	struct err e = ERR_INIT;
	int r = read_write(a, request, &rq, &x, &e);

	*w = (struct write){.a = a, .c = c, .request = json_object_get(request), .bytes = rq.bytes};
	if (r == 0)
		r = start(w, &rq, x, &e);
	if (r < 0) {
		reply_err(c, &e);
		write_free(w);
	}
}
