/* Channels: a queue of whole frames between two sockets. The writer's socket is not read while the
 * queue is full; the reader's gets the next frame when it has taken the one before. Each end can be
 * taken once; a second taker gets a Close frame at once. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/bus/engine_priv.h"

#define QUEUE_BYTES_MAX (8u << 20)   /* a full queue, whatever its frames count */
#define AHEAD_MAX	(256u << 10) /* bytes given to the reader's socket ahead of its reading */
#define GOODBYE_MS	2000

struct frame {
	struct frame *next;
	bool text;
	size_t len;
	uint8_t bytes[];
};

struct engine_channel {
	struct engine *engine;
	struct engine_channel *prev, *next;
	struct bus_channel_ref ref;
	uint64_t created_at; /* uv_now() */

	struct ws *writer, *reader; /* NULL: not there yet, or gone */
	bool writer_taken, reader_taken, writer_done, reader_gone, ending;
	bool paused;

	struct buf in; /* the writer's message being read */
	struct frame *first, *last;
	size_t count, bytes, size;
};

static void channel_free(struct engine_channel *c)
{
	struct engine *e = c->engine;

	if (c->prev)
		c->prev->next = c->next;
	else
		e->channels = c->next;
	if (c->next)
		c->next->prev = c->prev;
	e->channel_count--;
	ws_drop(STEAL(c->writer));
	ws_drop(STEAL(c->reader));
	while (c->first) {
		struct frame *f = c->first;

		c->first = f->next;
		free(f);
	}
	buf_done(&c->in);
	free(c);
}

static void maybe_free(struct engine_channel *c)
{
	if (c->writer_taken && c->reader_taken && !c->writer && !c->reader)
		channel_free(c);
}

static bool is_full(const struct engine_channel *c)
{
	return c->count >= c->size || c->bytes >= QUEUE_BYTES_MAX;
}

/* Gives the reader what it can take; ends it when all was given and the writer is done. */
static void pump(struct engine_channel *c)
{
	while (c->reader && c->first && ws_queued(c->reader) < AHEAD_MAX) {
		struct frame *f = c->first;

		if (ws_send(c->reader, f->text, f->bytes, f->len) < 0)
			return;
		c->first = f->next;
		if (!c->first)
			c->last = NULL;
		c->count--;
		c->bytes -= f->len;
		free(f);
	}
	if (c->paused && !is_full(c) && c->writer) {
		c->paused = false;
		ws_resume(c->writer);
	}
	if (c->reader && !c->first && c->writer_done && !c->ending) {
		c->ending = true;
		ws_close(c->reader, 0, GOODBYE_MS);
	}
}

/* --- writer ------------------------------------------------------------------------------------
 */

static void push(struct engine_channel *c, bool text, const void *data, size_t len)
{
	struct frame *f = xmalloc(sizeof(*f) + len);

	*f = (struct frame){.text = text, .len = len};
	if (len)
		memcpy(f->bytes, data, len);
	if (c->last)
		c->last->next = f;
	else
		c->first = f;
	c->last = f;
	c->count++;
	c->bytes += len;
	if (is_full(c) && !c->paused) {
		c->paused = true;
		ws_pause(c->writer);
	}
}

static void writer_is_done(struct engine_channel *c)
{
	c->writer = NULL;
	c->writer_done = true;
	pump(c);
	maybe_free(c);
}

static void on_writer_data(
	struct ws *ws, const uint8_t *data, size_t len, unsigned flags, void *user)
{
	struct engine_channel *c = user;

	if (c->reader_gone) {
		ws_drop(ws);
		writer_is_done(c);
		return;
	}
	if ((flags & WS_FIRST) && (flags & WS_LAST)) {
		push(c, flags & WS_TEXT, data, len);
		pump(c);
		return;
	}
	if (flags & WS_FIRST)
		buf_clear(&c->in);
	if (buf_add(&c->in, data, len) < 0) {
		log_warn("engine: a channel frame is over the limit", "limit=%u", BUS_MESSAGE_MAX);
		ws_drop(ws);
		writer_is_done(c);
		return;
	}
	if (!(flags & WS_LAST))
		return;
	push(c, flags & WS_TEXT, c->in.data, c->in.len);
	buf_done(&c->in);
	pump(c);
}

static void on_writer_closed(
	struct ws *ws, enum ws_end end, int status, const char *why, void *user)
{
	(void)ws;
	(void)end;
	(void)status;
	(void)why;
	writer_is_done(user);
}

static const struct ws_events writer_events = {
	.data = on_writer_data,
	.closed = on_writer_closed,
};

/* --- reader ------------------------------------------------------------------------------------
 */

static void on_reader_ready(struct ws *ws, void *user)
{
	(void)ws;
	pump(user);
}

static void on_reader_closed(
	struct ws *ws, enum ws_end end, int status, const char *why, void *user)
{
	struct engine_channel *c = user;

	(void)ws;
	(void)end;
	(void)status;
	(void)why;
	c->reader = NULL;
	c->reader_gone = true;
	/* The writer learns of it with its next frame, so it must be read. */
	if (c->paused && c->writer) {
		c->paused = false;
		ws_resume(c->writer);
	}
	maybe_free(c);
}

static const struct ws_events reader_events = {
	.open = on_reader_ready,
	.drained = on_reader_ready,
	.closed = on_reader_closed,
};

/* --- taking an end -----------------------------------------------------------------------------
 */

static void on_taken_open(struct ws *ws, void *user)
{
	(void)user;
	ws_close(ws, 0, GOODBYE_MS);
}

static const struct ws_events taken_events = {.open = on_taken_open};

static struct engine_channel *find(const struct engine *e, const char *id)
{
	for (struct engine_channel *c = e->channels; c; c = c->next)
		if (str_eq(c->ref.id, id))
			return c;
	return NULL;
}

int engine_channel_accept(struct engine *e, struct ws *ws, struct ws_request *r, const char *id,
	const struct ws_events **ret_ev, void **ret_user, const char **ret_body)
{
	struct engine_channel *c = find(e, id);
	const char *arg = ws_request_arg(r, "key");
	bool write, key_ok;

	if (!arg)
		return 400;
	key_ok = c && str_eq(arg, c->ref.key);
	arg = ws_request_arg(r, "dir");
	if (!str_eq(arg, "read") && !str_eq(arg, "write"))
		return 400;
	write = str_eq(arg, "write");
	if (!key_ok) {
		*ret_body = "Channel not found";
		return 404;
	}
	if (write ? c->writer_taken : c->reader_taken) {
		*ret_ev = &taken_events;
		return 0;
	}
	*ret_user = c;
	if (write) {
		c->writer_taken = true;
		c->writer = ws;
		*ret_ev = &writer_events;
	} else {
		c->reader_taken = true;
		c->reader = ws;
		*ret_ev = &reader_events;
	}
	return 0;
}

json_object *engine_channel_create(struct engine *e, uint64_t buffer_size)
{
	json_object *result;
	struct engine_channel *c;

	if (e->channel_count >= ENGINE_CHANNELS_MAX)
		return NULL;
	c = xcalloc(1, sizeof(*c));
	c->engine = e;
	c->created_at = uv_now(e->loop);
	c->size = buffer_size;
	str_uuid4(c->ref.id);
	str_uuid4(c->ref.key);
	buf_init(&c->in, BUS_MESSAGE_MAX);
	c->next = e->channels;
	if (c->next)
		c->next->prev = c;
	e->channels = c;
	e->channel_count++;
	result = json_object_new_object();
	if (!result ||
		json_object_object_add(result, "reader", bus_channel_ref_new(&c->ref, false)) ||
		json_object_object_add(result, "writer", bus_channel_ref_new(&c->ref, true)))
		mem_exhausted();
	return result;
}

/* A reader left alone sees an ordinary end, a writer is dropped. */
void engine_channels_sweep(struct engine *e)
{
	for (struct engine_channel *c = e->channels, *next; c; c = next) {
		next = c->next;
		if (uv_now(e->loop) - c->created_at < e->options.sweep_ms ||
			(c->writer_taken && c->reader_taken))
			continue;
		if (c->reader && !c->ending) {
			c->ending = c->writer_taken = c->writer_done = true;
			ws_close(c->reader, 0, GOODBYE_MS);
		} else if (!c->reader) {
			channel_free(c);
		}
	}
}

void engine_channels_drop(struct engine *e)
{
	while (e->channels)
		channel_free(e->channels);
}
