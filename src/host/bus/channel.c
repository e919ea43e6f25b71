#include "host/bus/channel.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "host/bus/bus_priv.h"

/* What both ends have: a socket that is NULL once it ended, and a timer against standstill. */
struct end {
	struct ws *ws;
	uv_timer_t timer;
	unsigned limit_ms;
	void *user;
};

struct channel_reader {
	struct end end; /* first: freed by the address of its timer's owner */
	const struct channel_reader_events *ev;
	bool open, paused;
	struct buf text;
	bool skip_text;
};

struct channel_writer {
	struct end end;
	const struct channel_writer_events *ev;
	bool finished, text_waits;
};

static enum channel_end end_of(enum ws_end end, bool writer)
{
	switch (end) {
	case WS_END_CLOSE:
		/* A writer's peer that closes first has not taken everything. */
		return writer ? CHANNEL_BROKEN : CHANNEL_END;
	case WS_END_LOCAL:
		return CHANNEL_END;
	case WS_END_REFUSED:
		return CHANNEL_REFUSED;
	case WS_END_UNREACHABLE:
		return CHANNEL_UNREACHABLE;
	case WS_END_STALLED:
		return CHANNEL_STALLED;
	case WS_END_BROKEN:
		return CHANNEL_BROKEN;
	}
	return CHANNEL_BROKEN;
}

static void end_open(struct end *end, struct bus *b, const struct bus_channel_ref *ref, bool write,
	const struct ws_events *ev)
{
	cleanup_free char *text = bus_channel_url(bus_url_text(b), ref, write);
	struct bus_url url = {0};
	struct err e = ERR_INIT;

	uv_timer_init(bus_loop(b), &end->timer);
	end->timer.data = end;
	/* The engine's URL was valid and ids are encoded; only its length may now be too much. */
	if (bus_url_parse(text, &url, &e) < 0)
		return;
	end->ws = ws_connect(bus_hub(b),
		&(struct ws_target){
			.url = &url,
			.bearer = bus_token(b),
			.queue_max = CHANNEL_CHUNK_MAX + CHANNEL_TEXT_MAX,
			.read_only = !write,
		},
		ev, end);
	bus_url_done(&url);
}

static void timer_closed(uv_handle_t *handle)
{
	free(handle->data);
}

/* --- reader ------------------------------------------------------------------------------------
 */

static void reader_free(struct channel_reader *r)
{
	buf_done(&r->text);
	uv_close((uv_handle_t *)&r->end.timer, timer_closed);
}

static void reader_end(struct channel_reader *r, enum channel_end end, const char *why)
{
	const struct channel_reader_events *ev = r->ev;

	uv_timer_stop(&r->end.timer);
	ev->end(r, end, why, r->end.user);
	reader_free(r);
}

static void reader_idle(uv_timer_t *timer)
{
	struct channel_reader *r = timer->data;
	char why[96];

	if (!r->end.ws) {
		reader_end(r, CHANNEL_UNREACHABLE, "the channel's URL is too long");
		return;
	}
	ws_drop(STEAL(r->end.ws));
	snprintf(why, sizeof(why), "no bytes came through the channel for %u ms", r->end.limit_ms);
	reader_end(r, CHANNEL_STALLED, why);
}

static void reader_wait(struct channel_reader *r)
{
	if (!r->paused)
		uv_timer_start(&r->end.timer, reader_idle, r->end.limit_ms, 0);
}

static void on_reader_open(struct ws *ws, void *user)
{
	struct channel_reader *r = user;

	r->open = true;
	if (r->paused)
		ws_pause(ws);
}

static void reader_text(struct channel_reader *r, const uint8_t *data, size_t len, unsigned flags)
{
	if (!r->ev->text)
		return;
	if (flags & WS_FIRST) {
		buf_clear(&r->text);
		r->skip_text = false;
	}
	r->skip_text = r->skip_text || buf_add(&r->text, data, len) < 0;
	if ((flags & WS_LAST) && !r->skip_text)
		r->ev->text(r, (const char *)r->text.data, r->text.len, r->end.user);
}

static void on_reader_data(
	struct ws *ws, const uint8_t *data, size_t len, unsigned flags, void *user)
{
	struct channel_reader *r = user;

	(void)ws;
	if (flags & WS_TEXT) {
		reader_text(r, data, len, flags);
		return;
	}
	if (len == 0)
		return;
	reader_wait(r);
	r->ev->data(r, data, len, r->end.user);
}

static void on_reader_closed(
	struct ws *ws, enum ws_end end, int status, const char *why, void *user)
{
	struct channel_reader *r = user;

	(void)ws;
	(void)status;
	r->end.ws = NULL;
	reader_end(r, end_of(end, false), why);
}

static const struct ws_events reader_events = {
	.open = on_reader_open,
	.data = on_reader_data,
	.closed = on_reader_closed,
};

struct channel_reader *channel_read(struct bus *b, const struct bus_channel_ref *ref,
	unsigned idle_ms, const struct channel_reader_events *ev, void *user)
{
	struct channel_reader *r = xcalloc(1, sizeof(*r));

	r->ev = ev;
	r->end.user = user;
	r->end.limit_ms = idle_ms;
	buf_init(&r->text, CHANNEL_TEXT_MAX);
	end_open(&r->end, b, ref, false, &reader_events);
	if (r->end.ws)
		reader_wait(r);
	else
		uv_timer_start(&r->end.timer, reader_idle, 0, 0);
	return r;
}

void channel_reader_pause(struct channel_reader *r)
{
	if (r->paused)
		return;
	r->paused = true;
	uv_timer_stop(&r->end.timer);
	if (r->open)
		ws_pause(r->end.ws);
}

void channel_reader_resume(struct channel_reader *r)
{
	if (!r->paused)
		return;
	r->paused = false;
	reader_wait(r);
	if (r->open)
		ws_resume(r->end.ws);
}

void channel_reader_close(struct channel_reader *r)
{
	if (!r)
		return;
	ws_drop(STEAL(r->end.ws));
	reader_free(r);
}

/* --- writer ------------------------------------------------------------------------------------
 */

static void writer_end(struct channel_writer *w, enum channel_end end, const char *why)
{
	uv_timer_stop(&w->end.timer);
	w->ev->end(w, end, why, w->end.user);
	uv_close((uv_handle_t *)&w->end.timer, timer_closed);
}

static void writer_stalled(uv_timer_t *timer)
{
	struct channel_writer *w = timer->data;
	char why[96];

	if (!w->end.ws) {
		writer_end(w, CHANNEL_UNREACHABLE, "the channel's URL is too long");
		return;
	}
	ws_drop(STEAL(w->end.ws));
	snprintf(why, sizeof(why), "the channel took nothing for %u ms", w->end.limit_ms);
	writer_end(w, CHANNEL_STALLED, why);
}

static void on_writer_open(struct ws *ws, void *user)
{
	struct channel_writer *w = user;

	(void)ws;
	if (w->ev->open)
		w->ev->open(w, w->end.user);
}

static void on_writer_drained(struct ws *ws, void *user)
{
	struct channel_writer *w = user;

	(void)ws;
	w->text_waits = false;
	if (w->finished)
		return;
	uv_timer_stop(&w->end.timer);
	if (w->ev->drain)
		w->ev->drain(w, w->end.user);
}

static void on_writer_closed(
	struct ws *ws, enum ws_end end, int status, const char *why, void *user)
{
	struct channel_writer *w = user;

	(void)ws;
	(void)status;
	w->end.ws = NULL;
	writer_end(w, end_of(end, true), why);
}

static const struct ws_events writer_events = {
	.open = on_writer_open,
	.drained = on_writer_drained,
	.closed = on_writer_closed,
};

struct channel_writer *channel_write_open(struct bus *b, const struct bus_channel_ref *ref,
	unsigned stall_ms, const struct channel_writer_events *ev, void *user)
{
	struct channel_writer *w = xcalloc(1, sizeof(*w));

	w->ev = ev;
	w->end.user = user;
	w->end.limit_ms = stall_ms;
	end_open(&w->end, b, ref, true, &writer_events);
	if (!w->end.ws)
		uv_timer_start(&w->end.timer, writer_stalled, 0, 0);
	return w;
}

static int writer_send(struct channel_writer *w, bool text, const void *data, size_t len)
{
	int rc = w->end.ws ? ws_send(w->end.ws, text, data, len) : -ENOTCONN;

	if (rc < 0)
		return rc == -ENOBUFS ? -EAGAIN : -EPIPE;
	if (!uv_is_active((uv_handle_t *)&w->end.timer))
		uv_timer_start(&w->end.timer, writer_stalled, w->end.limit_ms, 0);
	return 0;
}

int channel_write(struct channel_writer *w, const void *data, size_t len)
{
	if (len > CHANNEL_CHUNK_MAX)
		return -EMSGSIZE;
	if (w->finished || !w->end.ws)
		return -EPIPE;
	if (ws_queued(w->end.ws) > 0)
		return -EAGAIN;
	return len ? writer_send(w, false, data, len) : 0;
}

int channel_write_text(struct channel_writer *w, const char *text, size_t len)
{
	cleanup_free char *repaired = NULL;
	int rc;

	if (len > CHANNEL_TEXT_MAX)
		return -EMSGSIZE;
	if (w->finished || !w->end.ws)
		return -EPIPE;
	if (w->text_waits)
		return -EAGAIN;
	if (!utf8_valid(text, len))
		text = repaired = utf8_lossy(text, len, &len);
	rc = writer_send(w, true, text, len);
	w->text_waits = rc == 0;
	return rc;
}

void channel_writer_finish(struct channel_writer *w)
{
	if (w->finished)
		return;
	w->finished = true;
	if (!w->end.ws)
		return; /* the timer reports it */
	uv_timer_stop(&w->end.timer);
	ws_close(w->end.ws, 1000, w->end.limit_ms);
}

void channel_writer_close(struct channel_writer *w)
{
	if (!w)
		return;
	ws_drop(STEAL(w->end.ws));
	uv_close((uv_handle_t *)&w->end.timer, timer_closed);
}
