/* How it works: nghttp2 keeps the session; this file gives it limits and turns its frames into the
 * callbacks of mux.h. A request is `POST PATH`, scheme http, authority guest; the server answers
 * `200` at once, so that both bodies flow from the start. Bodies are pulled (data providers);
 * a provider that has nothing is deferred until mux_stream_resume().
 *
 * Flow control: a stream's window opens only as its reader consumes. The connection's window is
 * given back as bytes arrive: it bounds one burst, while the memory of slow readers is bounded by
 * their own windows. Otherwise sixteen stalled streams would stop all others.
 *
 * A stream begins with 64 KiB. One whose reader has taken BULK_FROM is a bulk stream, whose window
 * grows up to MUX_WINDOW_MAX, quickly less when there are more of them: a reader that stalls from
 * the start never holds more, one bulk stream fills a slow pipe, and beside many of them a small
 * call waits as little as with 64 KiB (docs/decisions/0004-windows.md).
 *
 * Bodies are pulled straight into `out`: nghttp2 is told that they are not its to copy, and gives
 * only their frame headers.
 *
 * A breach that ends the connection: nghttp2 queues a GOAWAY and ignores what follows, without
 * telling the caller of mem_recv. So mux_feed() serialises what is queued besides DATA (the data
 * provider answers "pause") and finds the GOAWAY there. That takes at most about MUX_OUT_MAX bytes;
 * behind a peer that does not read, nghttp2's own ceiling on unsent acknowledgements holds, and
 * mux_pull() finds the GOAWAY later.
 *
 * Floods: a client looks at the header of every frame that arrives (nghttp2 does not show those it
 * ignores). Frames that move nothing (PING, SETTINGS, PRIORITY, WINDOW_UPDATE, RST_STREAM of old
 * streams, empty or padded DATA, unknown types, …) draw on a credit that only useful frames fill up
 * again; DATA for streams that were given up may come to what their windows allowed. There is no
 * clock here, so the limit is a ratio: a server can make its client work at most a constant factor
 * more than the streams are worth. The server trusts its client, whose PINGs are all that an idle
 * connection carries, and leaves it at nghttp2's own limits.
 */
#include "mux/mux.h"

#include <assert.h>
#include <errno.h>
#include <nghttp2/nghttp2.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

#define CONNECTION_WINDOW (2 << 20)
/* Acknowledgements of PING and SETTINGS that may wait unsent; one more ends the connection. */
#define UNSENT_ACKS_MAX 128
/* Frames that move nothing the peer may be ahead of the useful ones; one more ends the
 * connection. */
#define IDLE_FRAMES_MAX 1000
/* What one frame of ours is worth: the peer answers it with a reply and a WINDOW_UPDATE. */
#define CREDIT_SENT 3
/* What a piece of a body is worth, its own header included. */
#define CREDIT_DATA 2
/* What a stream begins with, and what each of many bulk streams has. */
#define STREAM_WINDOW 65535
/* What the only bulk stream has; of n each has the n²th part, as far as that is more. */
#define BULK_WINDOW ((int32_t)MUX_WINDOW_MAX)
/* A stream whose reader has taken so much is a bulk one. */
#define BULK_FROM (128 << 10)
#define FRAME_HDR 9
/* Of one DATA frame. Longer ones cost less, but a stream whose first bytes these are is likely to
 * end soon, and needs no buffer for more. */
#define FRAME_BODY_MAX	 (256 << 10)
#define FIRST_BODIES_MAX (16 << 10)
/* What a pull gives, and a frame, while several streams are open: a small one waits for no more. */
#define SHARED_OUT_MAX	(64u << 10)
#define SHARED_BODY_MAX (16 << 10)
/* A DATA frame with less room for its body waits for the next mux_pull(). */
#define FRAME_BODY_MIN 2048

/* Streams that a client may open and reset; more end the connection. Cancelling is what the host
 * does with every exec whose input outlives it, so this is far above nghttp2's 1000 and 33. */
#define RESETS_BURST_MAX 20000
#define RESETS_PER_S_MAX 2000

#define PATH_HEADER   ":path"
#define METHOD_HEADER ":method"
#define STATUS_HEADER ":status"

struct mux_stream {
	struct mux *mux;
	struct mux_stream *prev, *next;
	void *user;
	char *path; /* server: from the request's headers until on_open */
	int32_t id;
	size_t header_bytes;
	size_t unconsumed; /* passed to on_data, not yet consumed */
	uint64_t consumed, sent;
	int32_t window;	       /* of what comes, as it is set now */
	int32_t window_most;   /* the largest that it ever was */
	bool is_post, is_ok;   /* server: the method is POST; client: the status is 200 */
	bool open;	       /* the user knows it: on_close is owed */
	bool bulk;	       /* its reader has taken BULK_FROM */
	bool ended;	       /* the peer has sent its last byte */
	bool reset;	       /* given up here: no callback but on_close any more */
	bool pulling, resumed; /* inside on_pull; mux_stream_resume() was called there */
};

struct mux {
	enum mux_role role;
	const struct mux_callbacks *cb;
	void *user;
	nghttp2_session *session;
	struct mux_stream *streams;
	size_t stream_count; /* those with `open` */
	size_t bulk_count;   /* those with `bulk` */
	struct buf out;	     /* serialised, not yet given to the caller of mux_pull */
	bool out_given;	     /* all of `out` was given: drop it at the next call */
	bool busy;	     /* inside mux_feed or mux_pull */
	bool control_only;   /* DATA must wait for mux_pull */
	int credit;
	int64_t late_bytes; /* DATA that may still come for streams given up here */
	uint8_t frame_hdr[FRAME_HDR];
	size_t frame_hdr_len;
	uint32_t frame_left; /* payload of the frame that is arriving */
	unsigned pings;	     /* sent and not answered */
	int dead;	     /* negative errno once the connection failed */
	char why[160];
};

/* --- state --- */

__attribute__((format(printf, 3, 4))) static void mux_fail(
	struct mux *m, int error, const char *fmt, ...)
{
	va_list ap;

	if (m->dead)
		return;
	m->dead = error;
	va_start(ap, fmt);
	vsnprintf(m->why, sizeof(m->why), fmt, ap);
	va_end(ap);
}

static int mux_dead(const struct mux *m, struct err *e)
{
	return err_set(e, "", -m->dead, "%s", m->why);
}

/* nghttp2 reports nothing but memory here: every argument is ours. */
static void must(int rc)
{
	if (rc == NGHTTP2_ERR_NOMEM)
		mem_exhausted();
}

/* --- windows --- */

static void stream_set_window(struct mux_stream *s, int32_t window)
{
	if (s->window == window || s->reset || s->ended)
		return;
	s->window = window;
	s->window_most = MAX(s->window_most, window);
	/* A smaller one withholds updates until the peer has used up the difference. */
	must(nghttp2_session_set_local_window_size(
		s->mux->session, NGHTTP2_FLAG_NONE, s->id, window));
}

static void mux_share_window(struct mux *m)
{
	int32_t n = (int32_t)m->bulk_count, share;

	/* n is at most MUX_STREAMS_MAX. */
	share = MAX(n ? BULK_WINDOW / (n * n) : 0, STREAM_WINDOW);
	for (struct mux_stream *s = m->streams; s; s = s->next) {
		if (s->bulk)
			stream_set_window(s, share);
	}
}

static void stream_join_bulk(struct mux_stream *s)
{
	s->bulk = true;
	s->mux->bulk_count++;
	mux_share_window(s->mux);
}

static void stream_leave_bulk(struct mux_stream *s)
{
	if (!s->bulk)
		return;
	s->bulk = false;
	s->mux->bulk_count--;
	if (!s->mux->dead)
		mux_share_window(s->mux);
}

/* --- state of streams --- */

static struct mux_stream *stream_new(struct mux *m, int32_t id)
{
	struct mux_stream *s = xcalloc(1, sizeof(*s));

	s->mux = m;
	s->id = id;
	s->window = s->window_most = STREAM_WINDOW;
	s->next = m->streams;
	if (s->next)
		s->next->prev = s;
	m->streams = s;
	return s;
}

static void stream_free(struct mux_stream *s)
{
	stream_leave_bulk(s);
	if (s->prev)
		s->prev->next = s->next;
	else
		s->mux->streams = s->next;
	if (s->next)
		s->next->prev = s->prev;
	free(s->path);
	free(s);
}

static void stream_open(struct mux_stream *s)
{
	s->open = true;
	s->mux->stream_count++;
}

static void stream_close(struct mux_stream *s, uint32_t h2_error)
{
	if (s->open) {
		s->mux->stream_count--;
		s->mux->cb->on_close(s, h2_error, s->user);
	}
	stream_free(s);
}

/* The peer may send what its window still allows until it hears of it. */
static void stream_give_up(struct mux_stream *s)
{
	s->reset = true;
	s->mux->late_bytes += s->window_most;
	stream_leave_bulk(s);
}

static void stream_reset(struct mux_stream *s, uint32_t h2_error)
{
	if (s->reset)
		return;
	stream_give_up(s);
	must(nghttp2_submit_rst_stream(s->mux->session, NGHTTP2_FLAG_NONE, s->id, h2_error));
}

/* --- sending --- */

static size_t out_max(const struct mux *m)
{
	return m->stream_count > 1 ? SHARED_OUT_MAX : MUX_OUT_MAX;
}

/* How long the body of the next DATA frame may be: so much that `out` becomes exactly full, which
 * suits a pipe that takes pieces of 32 KiB. */
static ssize_t body_length(nghttp2_session *session, uint8_t frame_type, int32_t id,
	int32_t connection_window, int32_t stream_window, uint32_t frame_max, void *user)
{
	const struct mux_stream *s = nghttp2_session_get_stream_user_data(session, id);
	struct mux *m = user;
	size_t n = FRAME_BODY_MAX, most = out_max(m);

	if (m->stream_count > 1)
		n = SHARED_BODY_MAX;
	else if (s && s->sent < FIRST_BODIES_MAX)
		n = FIRST_BODIES_MAX;
	n = MIN(n, most - MIN(m->out.len + FRAME_HDR, most - FRAME_BODY_MIN));
	n = MIN(n, (size_t)frame_max);
	/* nghttp2 asks only while there is something of both. */
	return MIN((ssize_t)n, (ssize_t)MIN(connection_window, stream_window));
}

/* Asks for up to `cap` bytes of the stream's body; *ret_eof with the last ones. */
static ssize_t pull_body(struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof)
{
	ssize_t n;

	s->pulling = true;
	do {
		s->resumed = false;
		n = s->mux->cb->on_pull(s, buf, cap, ret_eof, s->user);
		/* Resumed from inside: nghttp2 does not know yet that it sleeps, so ask again. */
	} while (n == 0 && !*ret_eof && s->resumed && !s->reset);
	s->pulling = false;
	assert(n < 0 || (size_t)n <= cap);
	return n;
}

/* nghttp2 wants up to `cap` bytes of a stream's body. They are put into `out` right away, behind
 * the room for the header that send_body() gets next. */
static ssize_t read_body(nghttp2_session *session, int32_t id, uint8_t *unused, size_t cap,
	uint32_t *flags, nghttp2_data_source *source, void *user)
{
	struct mux_stream *s = source->ptr;
	struct mux *m = user;
	bool eof = false;
	uint8_t *room;
	ssize_t n;

	if (m->control_only || m->out.len + FRAME_HDR + FRAME_BODY_MIN > out_max(m))
		return NGHTTP2_ERR_PAUSE;
	if (s->reset)
		return NGHTTP2_ERR_DEFERRED;
	room = buf_room(&m->out, FRAME_HDR + cap);
	if (!room)
		mem_exhausted();
	n = pull_body(s, room + FRAME_HDR, cap, &eof);
	if (s->reset)
		return NGHTTP2_ERR_DEFERRED;
	if (n < 0) {
		stream_give_up(s);
		return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
	}
	if (n == 0 && !eof)
		return NGHTTP2_ERR_DEFERRED;
	s->sent += (uint64_t)n;
	*flags |= NGHTTP2_DATA_FLAG_NO_COPY | (eof ? NGHTTP2_DATA_FLAG_EOF : 0);
	return n;
}

/* The header of the body that read_body() has just put into `out`. */
static int send_body(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *header,
	size_t len, nghttp2_data_source *source, void *user)
{
	struct mux *m = user;
	uint8_t *room = buf_room(&m->out, FRAME_HDR + len);

	/* Neither is padding asked for, nor did anything come between. */
	assert(room && frame->data.padlen == 0);
	memcpy(room, header, FRAME_HDR);
	buf_added(&m->out, FRAME_HDR + len);
	return 0;
}

static nghttp2_nv header(const char *name, const char *value)
{
	/* nghttp2 copies both; its struct is not const-correct. */
	return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name),
		strlen(value), NGHTTP2_NV_FLAG_NONE};
}

struct mux_stream *mux_open(struct mux *m, const char *path, void *user)
{
	nghttp2_nv headers[] = {header(METHOD_HEADER, "POST"), header(":scheme", "http"),
		header(":authority", "guest"), header(PATH_HEADER, path)};
	struct mux_stream *s;

	assert(m->role == MUX_CLIENT && path[0] == '/');
	if (m->dead || !nghttp2_session_check_request_allowed(m->session))
		return NULL;
	s = stream_new(m, 0);
	s->user = user;
	s->id = nghttp2_submit_request(m->session, NULL, headers, ARRAY_LEN(headers),
		&(nghttp2_data_provider){.source.ptr = s, .read_callback = read_body}, s);
	if (s->id < 0) {
		must(s->id);
		stream_free(s);
		return NULL;
	}
	stream_open(s);
	return s;
}

static void earn(struct mux *m, int credit)
{
	m->credit = MIN(m->credit + credit, IDLE_FRAMES_MAX);
}

static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
	struct mux *m = user;

	if (frame->hd.type == NGHTTP2_GOAWAY && frame->goaway.error_code != NGHTTP2_NO_ERROR)
		/* The debug data of our own GOAWAY is nghttp2's reason. */
		mux_fail(m, -EPROTO, "the peer broke the HTTP/2 protocol: %s%s%.*s",
			nghttp2_http2_strerror(frame->goaway.error_code),
			frame->goaway.opaque_data_len ? ": " : "",
			(int)MIN(frame->goaway.opaque_data_len, (size_t)100),
			(const char *)frame->goaway.opaque_data);
	if (frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS ||
		frame->hd.type == NGHTTP2_RST_STREAM ||
		(frame->hd.type == NGHTTP2_PING && !(frame->hd.flags & NGHTTP2_FLAG_ACK)))
		earn(m, CREDIT_SENT);
	return 0;
}

/* Serialises frames into `out` until there are none, or about MUX_OUT_MAX bytes. */
static void mux_fill(struct mux *m)
{
	while (m->out.len < MUX_OUT_MAX) {
		const uint8_t *data;
		ssize_t n = nghttp2_session_mem_send(m->session, &data);

		if (n == 0)
			return;
		if (n < 0) {
			must(n);
			mux_fail(m, -EPROTO, "HTTP/2 session failed: %s", nghttp2_strerror(n));
			return;
		}
		if (buf_add(&m->out, data, n) < 0)
			mem_exhausted();
	}
}

static void mux_drop_given(struct mux *m)
{
	if (!m->out_given)
		return;
	m->out_given = false;
	buf_clear(&m->out);
}

ssize_t mux_pull(struct mux *m, const uint8_t **ret, struct err *e)
{
	assert(!m->busy);
	mux_drop_given(m);
	m->busy = true;
	mux_fill(m);
	m->busy = false;
	if (m->out.len == 0) {
		/* An idle connection keeps no buffer. */
		if (m->stream_count == 0)
			buf_done(&m->out);
		return m->dead ? mux_dead(m, e) : 0;
	}
	m->out_given = true;
	*ret = m->out.data;
	return m->out.len;
}

bool mux_wants_write(const struct mux *m)
{
	return (m->out.len > 0 && !m->out_given) || nghttp2_session_want_write(m->session);
}

/* --- receiving --- */

/* Client: charges for one frame. */
static void meter_frame(struct mux *m, const uint8_t hdr[static FRAME_HDR])
{
	uint32_t len = (uint32_t)hdr[0] << 16 | (uint32_t)hdr[1] << 8 | hdr[2];
	int32_t id = (int32_t)((hdr[5] & 0x7fu) << 24 | (uint32_t)hdr[6] << 16 |
			       (uint32_t)hdr[7] << 8 | hdr[8]);
	const struct mux_stream *s = nghttp2_session_get_stream_user_data(m->session, id);

	m->frame_left = len;
	if (hdr[3] == NGHTTP2_DATA && len > 0 && (!s || s->reset))
		m->late_bytes -= len;
	else
		m->credit--;
}

/* Client: looks at the header of every frame in these bytes, before nghttp2 does. */
static void meter(struct mux *m, const uint8_t *data, size_t len)
{
	while (len > 0) {
		size_t n;

		if (m->frame_left > 0) {
			n = MIN(len, (size_t)m->frame_left);
			m->frame_left -= n;
		} else {
			n = MIN(len, FRAME_HDR - m->frame_hdr_len);
			memcpy(m->frame_hdr + m->frame_hdr_len, data, n);
			m->frame_hdr_len += n;
			if (m->frame_hdr_len == FRAME_HDR) {
				m->frame_hdr_len = 0;
				meter_frame(m, m->frame_hdr);
			}
		}
		data += n;
		len -= n;
	}
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
	struct mux *m = user;

	if (m->role != MUX_SERVER || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
		return 0;
	must(nghttp2_session_set_stream_user_data(
		session, frame->hd.stream_id, stream_new(m, frame->hd.stream_id)));
	return 0;
}

static bool equals(const uint8_t *p, size_t len, const char *s)
{
	return len == strlen(s) && memcmp(p, s, len) == 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
	size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags, void *user)
{
	struct mux_stream *s = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);

	if (!s)
		return 0;
	/* RFC 9113 §6.5.2: the size of a list counts 32 for each field. */
	s->header_bytes += name_len + value_len + 32;
	if (s->header_bytes > MUX_HEADERS_MAX) {
		stream_give_up(s);
		return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
	}
	if (equals(name, name_len, METHOD_HEADER))
		s->is_post = equals(value, value_len, "POST");
	else if (equals(name, name_len, STATUS_HEADER))
		s->is_ok = equals(value, value_len, "200");
	else if (!s->path && equals(name, name_len, PATH_HEADER))
		s->path = xstrndup((const char *)value, value_len);
	return 0;
}

/* Server: all headers of a request are there. */
static void on_request(struct mux *m, struct mux_stream *s)
{
	nghttp2_nv status = header(STATUS_HEADER, "200");
	int rc;

	if (!s->is_post || !s->path || s->path[0] != '/') {
		stream_reset(s, NGHTTP2_PROTOCOL_ERROR);
		return;
	}
	stream_open(s);
	rc = m->cb->on_open(m, s, s->path, m->user);
	free(STEAL(s->path));
	if (rc < 0) {
		/* The user never had it: on_close would be about nothing. */
		s->open = false;
		m->stream_count--;
		stream_reset(s, NGHTTP2_REFUSED_STREAM);
		return;
	}
	if (s->reset)
		return;
	must(nghttp2_submit_response(m->session, s->id, &status, 1,
		&(nghttp2_data_provider){.source.ptr = s, .read_callback = read_body}));
}

static void on_headers(struct mux *m, struct mux_stream *s, const nghttp2_frame *frame)
{
	s->header_bytes = 0;
	if (frame->headers.cat == NGHTTP2_HCAT_REQUEST)
		on_request(m, s);
	else if (frame->headers.cat == NGHTTP2_HCAT_RESPONSE && !s->is_ok)
		stream_reset(s, NGHTTP2_PROTOCOL_ERROR);
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
	struct mux *m = user;
	struct mux_stream *s;

	switch (frame->hd.type) {
	case NGHTTP2_PING:
		if ((frame->hd.flags & NGHTTP2_FLAG_ACK) && m->pings > 0) {
			m->pings--;
			if (m->cb->on_pong)
				m->cb->on_pong(m, m->user);
		}
		return 0;
	case NGHTTP2_GOAWAY:
		/* Also the polite one: neither role of ours ever says it. */
		mux_fail(m, -ECONNRESET, "the peer gave the connection up: %s",
			nghttp2_http2_strerror(frame->goaway.error_code));
		return 0;
	case NGHTTP2_HEADERS:
	case NGHTTP2_DATA:
		break;
	default:
		return 0;
	}
	s = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
	if (!s)
		return 0;
	if (frame->hd.type == NGHTTP2_HEADERS)
		on_headers(m, s, frame);
	if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) && s->open && !s->reset) {
		earn(m, 1);
		s->ended = true;
		stream_leave_bulk(s);
		m->cb->on_end(s, s->user);
	}
	return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
	size_t len, void *user)
{
	struct mux_stream *s = nghttp2_session_get_stream_user_data(session, id);
	struct mux *m = user;

	must(nghttp2_session_consume_connection(session, len));
	earn(m, CREDIT_DATA);
	if (!s || !s->open || s->reset)
		return 0;
	s->unconsumed += len;
	if (m->cb->on_data(s, data, len, s->user) < 0)
		stream_reset(s, NGHTTP2_CANCEL);
	return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t h2_error, void *user)
{
	struct mux_stream *s = nghttp2_session_get_stream_user_data(session, id);

	if (s) {
		must(nghttp2_session_set_stream_user_data(session, id, NULL));
		stream_close(s, h2_error);
	}
	return 0;
}

int mux_feed(struct mux *m, const uint8_t *data, size_t len, struct err *e)
{
	ssize_t n;

	assert(!m->busy);
	mux_drop_given(m);
	if (m->dead)
		return mux_dead(m, e);
	m->busy = true;
	if (m->role == MUX_CLIENT)
		meter(m, data, len);
	n = nghttp2_session_mem_recv(m->session, data, len);
	if (n < 0) {
		must(n);
		mux_fail(m, -EPROTO, "the peer broke the HTTP/2 protocol: %s", nghttp2_strerror(n));
		must(nghttp2_session_terminate_session(m->session, NGHTTP2_PROTOCOL_ERROR));
	} else if (m->credit < 0 || m->late_bytes < 0) {
		mux_fail(m, -EPROTO,
			"the peer floods the connection with HTTP/2 frames that move nothing");
		must(nghttp2_session_terminate_session(m->session, NGHTTP2_ENHANCE_YOUR_CALM));
	}
	m->control_only = true;
	mux_fill(m);
	m->control_only = false;
	m->busy = false;
	return m->dead ? mux_dead(m, e) : 0;
}

/* --- life --- */

static nghttp2_session *session_new(struct mux *m)
{
	nghttp2_session_callbacks *cbs = NULL;
	nghttp2_option *opt = NULL;
	nghttp2_session *session = NULL;

	must(nghttp2_session_callbacks_new(&cbs));
	must(nghttp2_option_new(&opt));
	nghttp2_session_callbacks_set_on_begin_headers_callback(cbs, on_begin_headers);
	nghttp2_session_callbacks_set_on_header_callback(cbs, on_header);
	nghttp2_session_callbacks_set_on_frame_recv_callback(cbs, on_frame_recv);
	nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cbs, on_data);
	nghttp2_session_callbacks_set_on_stream_close_callback(cbs, on_stream_close);
	nghttp2_session_callbacks_set_on_frame_send_callback(cbs, on_frame_send);
	nghttp2_session_callbacks_set_data_source_read_length_callback(cbs, body_length);
	nghttp2_session_callbacks_set_send_data_callback(cbs, send_body);
	nghttp2_option_set_no_auto_window_update(opt, 1);
	nghttp2_option_set_peer_max_concurrent_streams(opt, MUX_STREAMS_MAX);
	nghttp2_option_set_max_reserved_remote_streams(opt, 0);
	nghttp2_option_set_no_closed_streams(opt, 1);
	nghttp2_option_set_max_outbound_ack(opt, UNSENT_ACKS_MAX);
	nghttp2_option_set_stream_reset_rate_limit(opt, RESETS_BURST_MAX, RESETS_PER_S_MAX);
	if (m->role == MUX_CLIENT)
		must(nghttp2_session_client_new2(&session, cbs, m, opt));
	else
		must(nghttp2_session_server_new2(&session, cbs, m, opt));
	nghttp2_option_del(opt);
	nghttp2_session_callbacks_del(cbs);
	return session;
}

struct mux *mux_new(enum mux_role role, const struct mux_callbacks *cb, void *mux_user)
{
	const nghttp2_settings_entry settings[] = {
		{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, MUX_STREAMS_MAX},
		{NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, MUX_HEADERS_MAX},
		{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW},
		{NGHTTP2_SETTINGS_MAX_FRAME_SIZE, FRAME_BODY_MAX},
		/* Only a client may send this one: no pushes. */
		{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
	};
	struct mux *m = xcalloc(1, sizeof(*m));

	m->role = role;
	m->cb = cb;
	m->user = mux_user;
	m->credit = IDLE_FRAMES_MAX;
	/* mux_fill stops at MUX_OUT_MAX; the last frame may pass it. */
	buf_init(&m->out, MUX_OUT_MAX + (1 << 17));
	m->session = session_new(m);
	must(nghttp2_submit_settings(m->session, NGHTTP2_FLAG_NONE, settings,
		ARRAY_LEN(settings) - (role == MUX_SERVER)));
	must(nghttp2_session_set_local_window_size(
		m->session, NGHTTP2_FLAG_NONE, 0, CONNECTION_WINDOW));
	return m;
}

void mux_free(struct mux *m)
{
	if (!m)
		return;
	assert(!m->busy);
	/* Callbacks of the closing streams find a dead connection: nothing new is opened. */
	mux_fail(m, -ECONNRESET, "the connection was closed");
	while (m->streams)
		stream_close(m->streams, NGHTTP2_CANCEL);
	nghttp2_session_del(m->session);
	buf_done(&m->out);
	free(m);
}

size_t mux_stream_count(const struct mux *m)
{
	return m->stream_count;
}

/* --- streams --- */

void mux_stream_set_user(struct mux_stream *s, void *user)
{
	s->user = user;
}

void *mux_stream_user(const struct mux_stream *s)
{
	return s->user;
}

struct mux *mux_stream_mux(const struct mux_stream *s)
{
	return s->mux;
}

void mux_stream_consume(struct mux_stream *s, size_t n)
{
	assert(n <= s->unconsumed);
	s->unconsumed -= n;
	s->consumed += n;
	if (s->reset)
		return;
	must(nghttp2_session_consume_stream(s->mux->session, s->id, n));
	if (!s->bulk && !s->ended && s->consumed >= BULK_FROM)
		stream_join_bulk(s);
}

void mux_stream_resume(struct mux_stream *s)
{
	s->resumed = true;
	if (!s->pulling && !s->reset)
		must(nghttp2_session_resume_data(s->mux->session, s->id));
}

void mux_stream_reset(struct mux_stream *s)
{
	stream_reset(s, NGHTTP2_CANCEL);
}

int mux_ping(struct mux *m)
{
	if (m->dead)
		return m->dead;
	must(nghttp2_submit_ping(m->session, NGHTTP2_FLAG_NONE, NULL));
	m->pings++;
	return 0;
}
