/* How it works: libwebsockets drives everything by one callback (on_event), which finds our
 * struct by the socket's opaque pointer. Sending happens only in its "writeable" reason.
 *
 * libwebsockets 4.1 on a foreign libuv loop needs help in four places:
 *  - A timer that is set from outside its own callbacks is not armed until the next I/O:
 *    lws_cancel_service() wakes it.
 *  - Its own closing sequence gives up after 5 s, too early for a slow reader. Close frames are
 *    therefore written by us, and the waiting is our timer's.
 *  - Idle sockets get its pings after 300 s and are dropped without an answer, and channel ends do
 *    not answer: a policy of zeros turns that off.
 *  - Freeing a context takes two calls with turns of the loop between them, so that its handles
 *    are closed before their memory goes: hub_teardown().
 *
 * It parses frames without checking that a server's are unmasked; a masked one is read garbled or
 * not depending on its key, and then fails as JSON.
 */
#include "host/bus/ws.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/bus/ws_priv.h"

#define SERVICE_BYTES (64u << 10) /* read at once */
#define HEADERS_MAX   8192	  /* of an upgrade request or answer; larger ones fail */
/* The library's own name for this kind of frame is not in its public headers; the number is the
 * same from 4.0 to 5.0, and test_bus_channel sees what goes out. */
#define WRITE_CLOSE    ((enum lws_write_protocol)4)
#define TEARDOWN_STEPS 8 /* turns of the loop between the two halves of freeing */

/* --- hub ---------------------------------------------------------------------------------------
 */

static void hub_freed(uv_handle_t *handle)
{
	struct ws_hub *h = handle->data;
	void (*closed)(void *) = h->closed;
	void *user = h->closed_user;

	free(h);
	if (closed)
		closed(user);
}

static void hub_teardown(struct ws_hub *h)
{
	if (h->teardown_step++ == 0)
		lws_context_destroy(h->lws);
	if (h->sockets || h->teardown_step <= TEARDOWN_STEPS)
		return;
	if (h->lws)
		lws_context_destroy(h->lws);
	uv_close((uv_handle_t *)&h->later, hub_freed);
}

static void hub_later(uv_timer_t *timer)
{
	struct ws_hub *h = timer->data;
	bool again = true;

	if (h->closing) {
		hub_teardown(h);
		return;
	}
	while (again) {
		again = false;
		for (struct ws *w = h->sockets; w; w = w->next) {
			if (w->retry) {
				w->retry = false;
				ws_connect_next(w);
				again = true; /* an event may have changed the list */
				break;
			}
		}
	}
}

void ws_hub_kick(struct ws_hub *h)
{
	if (!h->closing)
		uv_timer_start(&h->later, hub_later, 0, 0);
}

static void library_says(int level, const char *line)
{
	cleanup_free char *text = xstrndup(line, strcspn(line, "\n"));

	(void)level;
	log_debug("libwebsockets", "text=%s", log_quote(text));
}

/* The library's tables have this many places. It indexes them by descriptor when they are as large
 * as the process's limit of descriptors, which may be raised later: so always fewer. */
static unsigned table_size(void)
{
	long descriptors = sysconf(_SC_OPEN_MAX);
	unsigned wanted = WS_SOCKETS_MAX + 24;

	return descriptors > 1 && descriptors <= (long)wanted ? (unsigned)descriptors - 1 : wanted;
}

struct ws_hub *ws_hub_new(uv_loop_t *loop, bool tls, struct err *e)
{
	struct ws_hub *h = xcalloc(1, sizeof(*h));
	void *loops[] = {loop};
	struct lws_context_creation_info info = {
		.options = LWS_SERVER_OPTION_LIBUV | LWS_SERVER_OPTION_EXPLICIT_VHOSTS,
		.foreign_loops = loops,
		.pcontext = &h->lws,
		.pt_serv_buf_size = SERVICE_BYTES,
		.max_http_header_data = HEADERS_MAX,
		.fd_limit_per_thread = table_size(),
		.timeout_secs = WS_CONNECT_MS / 1000,
		.port = CONTEXT_PORT_NO_LISTEN,
	};

	if (tls)
		info.options |= LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT;
	h->tls = tls;
	lws_set_log_level(LLL_ERR | LLL_WARN, library_says);
	h->loop = loop;
	h->lws = lws_create_context(&info);
	if (!h->lws) {
		free(h);
		err_set(e, "", ENOSYS,
			"libwebsockets cannot run on libuv here: install its libuv event library "
			"(package libwebsockets-evlib-uv)");
		return NULL;
	}
	uv_timer_init(loop, &h->later);
	h->later.data = h;
	return h;
}

void ws_hub_close(struct ws_hub *h, void (*closed)(void *user), void *user)
{
	h->closing = true;
	h->closed = closed;
	h->closed_user = user;
	for (struct ws *w = h->sockets, *next; w; w = next) {
		next = w->next;
		ws_drop(w);
	}
	uv_timer_start(&h->later, hub_later, 0, 1);
}

/* --- life of a socket --------------------------------------------------------------------------
 */

struct ws *ws_new(struct ws_hub *h, const struct ws_events *ev, void *user)
{
	struct ws *w = xcalloc(1, sizeof(*w));

	w->hub = h;
	w->ev = ev;
	w->user = user;
	w->drained_told = true;
	uv_timer_init(h->loop, &w->timer);
	w->timer.data = w;
	w->next = h->sockets;
	if (w->next)
		w->next->prev = w;
	h->sockets = w;
	return w;
}

static void free_queue(struct ws *w)
{
	while (w->out) {
		struct ws_piece *p = w->out;

		w->out = p->next;
		free(p);
	}
	w->out_last = NULL;
	w->queued = 0;
}

static void timer_closed(uv_handle_t *handle)
{
	struct ws *w = handle->data;

	w->timer_closed = true;
	ws_maybe_free(w);
}

void ws_maybe_free(struct ws *w)
{
	if (w->state != WS_GONE || w->looking_up)
		return;
	if (!w->timer_closed) {
		if (!uv_is_closing((uv_handle_t *)&w->timer))
			uv_close((uv_handle_t *)&w->timer, timer_closed);
		return;
	}
	if (w->prev)
		w->prev->next = w->next;
	else
		w->hub->sockets = w->next;
	if (w->next)
		w->next->prev = w->prev;
	free_queue(w);
	if (w->addrs)
		uv_freeaddrinfo(w->addrs);
	bus_url_done(&w->url);
	free(w->bearer);
	free(w->host_header);
	free(w);
}

void ws_finish(struct ws *w, enum ws_end end, int status, const char *why)
{
	const struct ws_events *ev = w->ev;

	if (w->state == WS_GONE)
		return;
	w->state = WS_GONE;
	w->retry = false;
	w->ev = NULL;
	if (w->wsi)
		lws_set_opaque_user_data(STEAL(w->wsi), NULL);
	free_queue(w);
	uv_timer_stop(&w->timer);
	if (ev && ev->closed)
		ev->closed(w, end, status, why, w->user);
	ws_maybe_free(w);
}

void ws_kill(struct ws *w, enum ws_end end, const char *why)
{
	if (!w->failed) {
		w->failed = true;
		w->end = end;
		snprintf(w->why, sizeof(w->why), "%s", why);
	}
	if (!w->wsi)
		return;
	lws_set_timeout(w->wsi, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
	lws_cancel_service(w->hub->lws);
}

void ws_drop(struct ws *w)
{
	if (!w)
		return;
	w->ev = NULL;
	w->retry = false;
	free_queue(w);
	uv_timer_stop(&w->timer);
	if (w->wsi) {
		ws_kill(w, WS_END_BROKEN, "given up");
		return;
	}
	if (w->looking_up)
		uv_cancel((uv_req_t *)&w->lookup);
	ws_finish(w, WS_END_BROKEN, 0, "given up");
}

/* --- sending -----------------------------------------------------------------------------------
 */

int ws_send(struct ws *w, bool text, const void *data, size_t len)
{
	struct ws_piece *p;

	if (w->state == WS_GONE || w->close_due || w->close_sent || w->close_seen || w->failed)
		return -ENOTCONN;
	if (w->out && (len > w->queue_max || w->queued > w->queue_max - len))
		return -ENOBUFS;
	p = xmalloc(sizeof(*p) + LWS_PRE + len);
	*p = (struct ws_piece){.len = len, .text = text};
	if (len)
		memcpy(p->bytes + LWS_PRE, data, len);
	if (w->out_last)
		w->out_last->next = p;
	else
		w->out = p;
	w->out_last = p;
	w->queued += len;
	w->drained_told = false;
	if (w->state == WS_OPEN)
		lws_callback_on_writable(w->wsi);
	return 0;
}

size_t ws_queued(const struct ws *w)
{
	return w->queued;
}

int ws_ping(struct ws *w)
{
	if (w->state != WS_OPEN || w->close_sent || w->close_seen || w->failed)
		return -ENOTCONN;
	w->ping_due = true;
	lws_callback_on_writable(w->wsi);
	return 0;
}

void ws_pause(struct ws *w)
{
	if (w->state == WS_OPEN && w->wsi)
		lws_rx_flow_control(w->wsi, 0);
}

void ws_resume(struct ws *w)
{
	if (w->state == WS_OPEN && w->wsi) {
		lws_rx_flow_control(w->wsi, 1);
		lws_cancel_service(w->hub->lws);
	}
}

static void close_waited(uv_timer_t *timer)
{
	struct ws *w = timer->data;

	ws_kill(w, w->close_sent ? WS_END_LOCAL : WS_END_STALLED,
		"the peer does not take our data");
}

/* The time is for the queue, too: a peer that reads nothing must not keep the socket for ever. */
static void start_closing(struct ws *w)
{
	uv_timer_start(&w->timer, close_waited, w->close_wait_ms, 0);
	lws_callback_on_writable(w->wsi);
}

void ws_close(struct ws *w, unsigned code, unsigned wait_ms)
{
	if (w->state == WS_GONE || w->close_due || w->close_sent)
		return;
	w->close_due = true;
	w->close_code = code;
	w->close_wait_ms = wait_ms;
	if (w->state == WS_OPEN)
		start_closing(w);
}

/* One frame of the first message. The mask and the next header overwrite what was sent. */
static int send_frame(struct ws *w)
{
	struct ws_piece *p = w->out;
	size_t n = MIN(p->len - p->sent, (size_t)WS_FRAME);
	int how = LWS_WRITE_CONTINUATION;

	if (p->sent == 0)
		how = p->text ? LWS_WRITE_TEXT : LWS_WRITE_BINARY;
	if (p->sent + n < p->len)
		how |= LWS_WRITE_NO_FIN;
	if (lws_write(w->wsi, p->bytes + LWS_PRE + p->sent, n, (enum lws_write_protocol)how) < 0)
		return -1;
	p->sent += n;
	w->queued -= n;
	if (w->close_due)
		uv_timer_start(&w->timer, close_waited, w->close_wait_ms, 0);
	if (p->sent < p->len)
		return 0;
	w->out = p->next;
	if (!w->out)
		w->out_last = NULL;
	free(p);
	return 0;
}

static int send_close(struct ws *w)
{
	uint8_t frame[LWS_PRE + 2];
	size_t len = w->close_code ? 2 : 0;

	frame[LWS_PRE] = (uint8_t)(w->close_code >> 8);
	frame[LWS_PRE + 1] = (uint8_t)w->close_code;
	w->close_due = false;
	w->close_sent = true;
	uv_timer_start(&w->timer, close_waited, w->close_wait_ms, 0);
	return lws_write(w->wsi, frame + LWS_PRE, len, WRITE_CLOSE) < 0 ? -1 : 0;
}

static int send_ping(struct ws *w)
{
	uint8_t frame[LWS_PRE + 1];

	w->ping_due = false;
	return lws_write(w->wsi, frame + LWS_PRE, 0, LWS_WRITE_PING) < 0 ? -1 : 0;
}

/* The socket takes bytes: gives it some until it has enough. -1 ends the socket. */
static int on_writable(struct ws *w)
{
	while (w->ev && !w->close_sent && !w->close_seen) {
		int rc = 0;

		if (w->ping_due)
			rc = send_ping(w);
		else if (w->out)
			rc = send_frame(w);
		else if (w->close_due)
			return send_close(w);
		else if (!w->drained_told) {
			w->drained_told = true;
			if (w->ev->drained)
				w->ev->drained(w, w->user);
			continue;
		} else {
			return 0;
		}
		if (rc < 0)
			return -1;
		if (lws_send_pipe_choked(w->wsi)) {
			lws_callback_on_writable(w->wsi);
			return 0;
		}
	}
	return 0;
}

/* --- receiving ---------------------------------------------------------------------------------
 */

/* -1 ends the socket. */
static int on_data(struct ws *w, struct lws *wsi, const uint8_t *data, size_t len)
{
	unsigned flags = 0;

	if (!w->ev || !w->ev->data || w->close_sent || w->failed)
		return 0;
	/* With the first piece of a frame this is its whole length. */
	if (w->frame_max && len + lws_remaining_packet_payload(wsi) > w->frame_max) {
		w->failed = true;
		w->end = WS_END_BROKEN;
		snprintf(w->why, sizeof(w->why), "a frame of more than %zu bytes", w->frame_max);
		return -1;
	}
	if (!lws_frame_is_binary(wsi))
		flags |= WS_TEXT;
	if (lws_is_first_fragment(wsi))
		flags |= WS_FIRST;
	if (lws_is_final_fragment(wsi))
		flags |= WS_LAST;
	w->ev->data(w, data, len, flags, w->user);
	return 0;
}

/* Non-zero ends the TCP connection at once; else libwebsockets answers the Close first. */
static int on_peer_close(struct ws *w, const uint8_t *in, size_t len)
{
	w->close_seen = true;
	w->status = len >= 2 ? in[0] << 8 | in[1] : 0;
	return w->close_sent || w->read_only || !w->ev ? -1 : 0;
}

static void on_closed(struct ws *w)
{
	if (w->failed)
		ws_finish(w, w->end, 0, w->why);
	else if (w->close_sent)
		ws_finish(w, WS_END_LOCAL, 0, "closed by us");
	else if (w->close_seen)
		ws_finish(w, WS_END_CLOSE, w->status, "closed by the peer");
	else
		ws_finish(w, WS_END_BROKEN, 0, "the connection broke");
}

/* --- server ------------------------------------------------------------------------------------
 */

struct ws_request {
	struct lws *wsi;
	char path[1024];
	char origin[256];
	char arg[1024];
};

const char *ws_request_path(const struct ws_request *r)
{
	return r->path;
}

const char *ws_request_origin(const struct ws_request *r)
{
	return r->origin;
}

const char *ws_request_arg(struct ws_request *r, const char *name)
{
	cleanup_free char *prefix = xasprintf("%s=", name);
	size_t len = strlen(prefix);

	for (int i = 0; lws_hdr_copy_fragment(r->wsi, r->arg, sizeof(r->arg) - 1,
				WSI_TOKEN_HTTP_URI_ARGS, i) >= 0;
		i++)
		if (strncmp(r->arg, prefix, len) == 0)
			return r->arg + len;
	return NULL;
}

/* Answers and ends the connection. The library's own answer would claim to be HTTP/1.0, which some
 * clients do not take. Returns what the callback returns. */
static int refuse(struct lws *wsi, int status, const char *body)
{
	static const struct {
		int status;
		const char *text;
	} texts[] = {{400, "Bad Request"}, {403, "Forbidden"}, {404, "Not Found"},
		{503, "Service Unavailable"}};
	const char *text = "Refused";
	uint8_t answer[LWS_PRE + 512];
	int len;

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		if (texts[i].status == status)
			text = texts[i].text;
	if (!body)
		body = text;
	len = snprintf((char *)answer + LWS_PRE, sizeof(answer) - LWS_PRE,
		"HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n"
		"Connection: close\r\n\r\n%s",
		status, text, strlen(body), body);
	if (len > 0 && len < (int)(sizeof(answer) - LWS_PRE))
		lws_write(wsi, answer + LWS_PRE, (size_t)len, LWS_WRITE_HTTP);
	return -1;
}

static int on_upgrade(struct ws_hub *h, struct lws *wsi)
{
	struct ws_request r = {.wsi = wsi};
	struct ws *w;
	const char *body = NULL;
	int status;

	if (lws_hdr_copy(wsi, r.path, sizeof(r.path), WSI_TOKEN_GET_URI) <= 0)
		return refuse(wsi, 404, NULL);
	if (lws_hdr_copy(wsi, r.origin, sizeof(r.origin), WSI_TOKEN_ORIGIN) < 0)
		return refuse(wsi, 403, NULL);
	w = ws_new(h, NULL, NULL);
	w->queue_max = h->server->queue_max;
	w->frame_max = h->server->frame_max;
	w->state = WS_CONNECTING;
	status = h->server->accept(w, &r, &w->ev, &w->user, &body, h->server_user);
	if (status) {
		w->ev = NULL;
		ws_finish(w, WS_END_REFUSED, status, "refused");
		return refuse(wsi, status, body);
	}
	w->wsi = wsi;
	lws_set_opaque_user_data(wsi, w);
	return 0;
}

int ws_listen(struct ws_hub *h, uint16_t port, const struct ws_server *server, void *user,
	uint16_t *ret_port, struct err *e)
{
	struct lws_context_creation_info info = {
		.options = LWS_SERVER_OPTION_DISABLE_IPV6,
		.port = port,
		.iface = "127.0.0.1",
		.protocols = ws_protocols,
		.vhost_name = "engine",
		.user = h,
		.retry_and_idle_policy = &ws_no_pings,
		.timeout_secs = WS_CONNECT_MS / 1000,
	};
	int got;

	h->server = server;
	h->server_user = user;
	h->listener = lws_create_vhost(h->lws, &info);
	got = h->listener ? lws_get_vhost_listen_port(h->listener) : -1;
	if (got <= 0)
		return err_set(e, "", EADDRINUSE,
			"cannot listen on 127.0.0.1:%u: is an engine running there already? Give "
			"another port",
			port);
	*ret_port = (uint16_t)got;
	return 0;
}

/* --- the callback ------------------------------------------------------------------------------
 */

/* Reasons that need no socket of ours. Returns false when there is something else to do. */
static bool without_socket(
	struct ws_hub *h, struct lws *wsi, enum lws_callback_reasons reason, int *ret)
{
	switch (reason) {
	case LWS_CALLBACK_HTTP_CONFIRM_UPGRADE:
		*ret = h->closing ? -1 : on_upgrade(h, wsi);
		return true;
	case LWS_CALLBACK_HTTP:
		*ret = refuse(wsi, 404, NULL); /* a request without an upgrade */
		return true;
	default:
		return false;
	}
}

static int on_event(
	struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
	struct lws_vhost *vhost = lws_get_vhost(wsi);
	struct ws_hub *h = vhost ? lws_get_vhost_user(vhost) : NULL;
	struct ws *w;
	int rc = 0;

	(void)user;
	if (h && without_socket(h, wsi, reason, &rc))
		return rc;
	w = h ? lws_get_opaque_user_data(wsi) : NULL;
	if (!w)
		return 0;
	switch (reason) {
	case LWS_CALLBACK_CLIENT_APPEND_HANDSHAKE_HEADER:
		return ws_add_headers(w, wsi, in, *(uint8_t **)in + len);
	case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
		ws_connect_failed(w, wsi, in && len ? in : "connection refused");
		return 0;
	case LWS_CALLBACK_CLIENT_ESTABLISHED:
	case LWS_CALLBACK_ESTABLISHED:
		w->state = WS_OPEN;
		uv_timer_stop(&w->timer);
		if (w->out)
			lws_callback_on_writable(wsi);
		if (w->close_due)
			start_closing(w);
		if (w->ev && w->ev->open)
			w->ev->open(w, w->user);
		break;
	case LWS_CALLBACK_CLIENT_RECEIVE:
	case LWS_CALLBACK_RECEIVE:
		rc = on_data(w, wsi, in, len);
		break;
	case LWS_CALLBACK_CLIENT_RECEIVE_PONG:
	case LWS_CALLBACK_RECEIVE_PONG:
		if (w->ev && w->ev->pong)
			w->ev->pong(w, w->user);
		break;
	case LWS_CALLBACK_CLIENT_WRITEABLE:
	case LWS_CALLBACK_SERVER_WRITEABLE:
		rc = on_writable(w);
		break;
	case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE:
		return on_peer_close(w, in, len);
	case LWS_CALLBACK_CLIENT_CLOSED:
	case LWS_CALLBACK_CLOSED:
	case LWS_CALLBACK_WSI_DESTROY:
		on_closed(w);
		return 0;
	default:
		return 0;
	}
	return w->ev ? rc : -1;
}

const lws_retry_bo_t ws_no_pings = {0};

const struct lws_protocols ws_protocols[] = {
	{.name = "iii",
		.callback = on_event,
		.rx_buffer_size = SERVICE_BYTES,
		.tx_packet_size = SERVICE_BYTES + 64},
	{0},
};
