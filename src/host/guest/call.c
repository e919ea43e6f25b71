/* How it works: the mux calls with bytes of a stream, wire/guest cuts them into records, and the
 * family's ops judge them. Whatever the agent does against its protocol (order, sizes, JSON,
 * fields, a second result, an end without result) is a breach: guest_breach() loses the whole
 * connection, because an agent that once lied is not asked again. A reset stream only fails its
 * call.
 *
 * A result counts when the stream has ended behind it: nothing can follow any more.
 */
#include "host/guest/call.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"

#define H2_REFUSED_STREAM 7 /* RFC 9113 §7 */

static struct err *err_dup(const struct err *e)
{
	struct err *copy = xmalloc(sizeof(*copy));

	*copy = *e;
	return copy;
}

static void call_unref(struct guest_call *c)
{
	if (--c->refs > 0)
		return;
	guest_reader_done(&c->reader);
	json_object_put(c->head);
	json_object_put(c->result);
	free(c->failed);
	free(c->late);
	buf_done(&c->out);
	free(c);
}

/* Takes the call out of guest and mux. The stream is given up unless both sides have ended. */
static void call_detach(struct guest_call *c, bool peer_ended)
{
	c->ended = true;
	guest_unlink_call(c->g, c);
	if (c->stream) {
		mux_stream_set_user(c->stream, NULL);
		if (!peer_ended || !c->out_ended)
			mux_stream_reset(c->stream);
		c->stream = NULL;
		guest_kick(c->g);
	}
}

static void call_end(struct guest_call *c, const struct err *why, bool peer_ended)
{
	assert(!c->ended);
	call_detach(c, peer_ended);
	c->ops->done(c, why);
	call_unref(c);
}

void guest_call_finish(struct guest_call *c, const struct err *why)
{
	call_end(c, why, false);
}

void guest_call_lose(struct guest_call *c, const struct err *why)
{
	struct err e = *why;

	memcpy(e.code, c->ops->lost_code, strlen(c->ops->lost_code) + 1);
	err_wrap(&e, "%s", c->ops->name);
	guest_call_finish(c, &e);
}

void guest_call_cancel(struct guest_call *c)
{
	if (c->ended)
		return;
	call_detach(c, false);
	call_unref(c);
}

/* --- what comes --- */

static bool code_is_sound(const char *code)
{
	return code[0] == '\0' ||
	       (code[0] == 'S' && strspn(code + 1, "0123456789") == 3 && code[4] == '\0');
}

/* {"code":"S211","errno":2,"message":"…"} */
static int read_error(struct guest_call *c, json_object *o, struct err *e)
{
	const char *code, *message;
	uint32_t no;

	if (json_get_str(o, "code", JSON_REQUIRED, &code, e) < 0 ||
		json_get_u32(o, "errno", JSON_REQUIRED, &no, e) < 0 ||
		json_get_str(o, "message", JSON_REQUIRED, &message, e) < 0)
		return -EPROTO;
	if (!code_is_sound(code) || no > 4095)
		return err_set(e, "", EPROTO, "an error without a sound code");
	c->failed = xcalloc(1, sizeof(*c->failed));
	err_set(c->failed, code, (int)no, "%s", message);
	err_code(c->failed, c->ops->lost_code);
	/* An error is one line, whatever the guest's file names hold. */
	for (char *p = c->failed->text; *p; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	}
	return 0;
}

static int read_result(struct guest_call *c, struct err *e)
{
	json_object *error = NULL;
	int rc = json_get_object(c->result, "error", JSON_OPTIONAL, &error, e);

	if (rc < 0)
		return rc;
	return rc ? read_error(c, error, e) : c->ops->on_result(c, c->result, e);
}

static int read_json(
	struct guest_call *c, enum guest_rec type, const char *text, size_t len, struct err *e)
{
	json_object **o = type == GUEST_REC_HEAD ? &c->head : &c->result;
	int rc;

	if (type == GUEST_REC_HEAD && !c->ops->on_head)
		return err_set(e, "", EPROTO, "a HEAD that has no place in it");
	rc = json_parse_object(text, len, o, e);
	if (rc < 0)
		return rc;
	return type == GUEST_REC_HEAD ? c->ops->on_head(c, *o, e) : read_result(c, e);
}

/* Every path out of a callback of the reader: a breach is reported with its reason, an ended call
 * stops the reader quietly. */
static int judge(struct guest_call *c, int rc, const struct err *e)
{
	if (c->ended)
		return -ECANCELED;
	if (rc < 0)
		guest_breach(c->g, c->ops->name, e);
	return rc < 0 ? -EPROTO : 0;
}

static int on_json(void *user, enum guest_rec type, const char *text, size_t len)
{
	struct guest_call *c = user;
	struct err e = ERR_INIT;
	int rc = read_json(c, type, text, len, &e);

	return judge(c, rc, &e);
}

static int on_bytes(void *user, enum guest_rec type, const uint8_t *data, size_t len)
{
	struct guest_call *c = user;
	struct err e = ERR_INIT;
	int rc;

	if (c->ops->on_bytes)
		rc = c->ops->on_bytes(c, type, data, len, &e);
	else
		rc = err_set(&e, "", EPROTO, "data that has no place in it");
	return judge(c, rc, &e);
}

static const struct guest_reader_callbacks reader_callbacks = {on_json, on_bytes};

static int mux_on_data(struct mux_stream *s, const uint8_t *data, size_t len, void *user)
{
	struct guest_call *c = user;
	struct err e = ERR_INIT;

	if (!c || guest_is_broken(c->g))
		return 0;
	c->refs++;
	c->owed += len;
	if (guest_reader_feed(&c->reader, data, len) < 0 && !c->ended) {
		err_set(&e, "", EPROTO, "a record of wrong type, order or size");
		/* A reason that was found before stands. */
		guest_breach(c->g, c->ops->name, &e);
	}
	if (!c->ended && !c->paused) {
		mux_stream_consume(s, c->owed);
		c->owed = 0;
	}
	call_unref(c);
	return 0;
}

static void mux_on_end(struct mux_stream *s, void *user)
{
	struct guest_call *c = user;
	struct err e = ERR_INIT;

	if (!c || guest_is_broken(c->g))
		return;
	if (guest_reader_eof(&c->reader) < 0) {
		err_set(&e, "", EPROTO, "the reply ended without a result");
		guest_breach(c->g, c->ops->name, &e);
		return;
	}
	call_end(c, c->failed, true);
}

static void mux_on_close(struct mux_stream *s, uint32_t h2_error, void *user)
{
	struct guest_call *c = user;

	if (!c || c->ended)
		return;
	/* Why is known when the mux is left: its streams also close when the connection breaks. */
	c->stream = NULL;
	c->close_error = h2_error;
	guest_stream_closed(c->g);
}

void guest_call_fail_closed(struct guest_call *c)
{
	struct err e = ERR_INIT;

	if (c->close_error == H2_REFUSED_STREAM)
		err_set(&e, "", EBUSY, "the VM's agent refused the operation");
	else
		err_set(&e, "", ECONNABORTED,
			"the VM's agent gave the operation up (HTTP/2 error %u)", c->close_error);
	guest_call_lose(c, &e);
}

/* --- what goes --- */

static ssize_t mux_on_pull(
	struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof, void *user)
{
	struct guest_call *c = user;
	size_t n;

	if (!c)
		return -ECANCELED;
	n = MIN(cap, c->out.len - c->out_off);
	if (n)
		memcpy(buf, c->out.data + c->out_off, n);
	c->out_off += n;
	if (c->out_off == c->out.len) {
		/* A big HEAD gives its memory back; a queue in use keeps its own. */
		if (c->out.cap > 2 * GUEST_QUEUE_MAX || c->out_end)
			buf_done(&c->out);
		else
			buf_clear(&c->out);
		c->out_off = 0;
	}
	c->out_ended = *ret_eof = c->out_end && c->out.len == 0;
	if (c->out_full && !c->out_end && c->out.len - c->out_off <= GUEST_QUEUE_MAX / 2) {
		c->out_full = false;
		c->refs++;
		if (c->ops->on_room)
			c->ops->on_room(c);
		call_unref(c);
	}
	return n;
}

size_t guest_call_send(struct guest_call *c, const void *data, size_t len)
{
	size_t queued = c->out.len - c->out_off, n;

	assert(!c->out_end);
	if (!c->stream)
		return 0;
	n = queued < GUEST_QUEUE_MAX ? MIN(len, GUEST_QUEUE_MAX - queued) : 0;
	c->out_full = n < len;
	if (n == 0)
		return 0;
	if (c->out_off > 0) {
		buf_drop(&c->out, c->out_off);
		c->out_off = 0;
	}
	if (guest_rec_add(&c->out, GUEST_REC_DATA, data, n) < 0)
		mem_exhausted();
	c->out_bytes += n;
	mux_stream_resume(c->stream);
	guest_kick(c->g);
	return n;
}

void guest_call_send_end(struct guest_call *c)
{
	assert(!c->out_end);
	c->out_end = true;
	if (!c->stream)
		return;
	mux_stream_resume(c->stream);
	guest_kick(c->g);
}

void guest_call_pause(struct guest_call *c, bool paused)
{
	c->paused = paused;
	if (paused || !c->stream || c->owed == 0)
		return;
	mux_stream_consume(c->stream, c->owed);
	c->owed = 0;
	guest_kick(c->g);
}

/* --- life --- */

const struct mux_callbacks guest_mux_callbacks = {
	.on_data = mux_on_data,
	.on_end = mux_on_end,
	.on_close = mux_on_close,
	.on_pull = mux_on_pull,
};

int guest_call_open(struct guest *g, struct guest_call *c, const struct guest_call_ops *ops,
	json_object *request, size_t names, struct err *e)
{
	cleanup_json json_object *owned = request;
	size_t len;
	const char *text = json_text(owned, &len);
	int rc = 0;

	c->g = g;
	c->ops = ops;
	c->refs = 1;
	c->give_up_ms = UINT64_MAX;
	/* JSON may write one byte of a name as six, and a reply may hold it twice. */
	guest_reader_init(&c->reader, GUEST_SIDE_HOST,
		MIN(GUEST_JSON_MAX + 12 * MIN(names, (size_t)GUEST_REC_JSON_MAX),
			(size_t)GUEST_REC_JSON_MAX),
		&reader_callbacks, c);
	buf_init(&c->out, GUEST_REC_JSON_MAX + 3 * (size_t)GUEST_QUEUE_MAX);
	if (guest_rec_add(&c->out, GUEST_REC_HEAD, text, len) < 0)
		rc = err_set(e, "", E2BIG,
			"%s: a request of %zu bytes is more than the %u MiB that "
			"can be sent to the VM",
			ops->name, len, GUEST_REC_JSON_MAX >> 20);
	if (rc == 0) {
		c->stream = guest_open_stream(g, ops->path, c, e);
		rc = c->stream ? 0 : -ENOTCONN;
		if (rc < 0 && e)
			memcpy(e->code, ops->lost_code, strlen(ops->lost_code) + 1);
	}
	if (rc < 0) {
		c->ended = true;
		call_unref(c);
		return rc;
	}
	guest_link_call(g, c);
	return 0;
}

void guest_call_set_deadline(struct guest_call *c, uint64_t after_ms, const struct err *late)
{
	uint64_t now = guest_now_ms();

	c->give_up_ms = after_ms < UINT64_MAX - now ? now + after_ms : UINT64_MAX;
	c->late = err_dup(late);
	guest_arm_timer(c->g);
}
