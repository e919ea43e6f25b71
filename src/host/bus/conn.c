/* How it works: one WebSocket at a time. When it ends, whatever the reason, `retry` makes the next
 * one after a pause that doubles; the pause starts small again once an engine has welcomed us
 * (workerregistered) or a connection has held for a while, so that an engine that accepts and drops
 * us is not hammered.
 *
 * `tick` sends a ping and notices silence. Reading never stops: an engine that waits for us to read
 * while we wait for it would hang both of us.
 *
 * A message over the limit is read to its end but only its beginning is kept, in which its ids can
 * be found; the connection, and everybody else's calls, survive it.
 */
#include "host/bus/conn.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "wire/json.h"

#define PREFIX_MAX   (64u << 10)  /* kept of a message that is too long */
#define KEEP_MAX     (256u << 10) /* of the receive buffer between messages */
#define TOKEN_MAX    2048	  /* bytes; longer ones are refused */
#define GOODBYE_MS   1000	  /* wait for the engine's Close frame */
#define STEADY_MS    30000	  /* a connection that held this long resets the pause */
#define RETRY_JITTER 30		  /* per cent, both ways */

struct conn {
	uv_loop_t *loop;
	struct ws_hub *hub;
	const struct conn_events *ev;
	void *user;

	char *url_text, *token, *name, *ns, *isolation, *version, *description;
	struct bus_url url;
	struct bus_options times; /* its numbers only */

	struct ws *ws;
	bool open;
	uint64_t generation;
	char *worker_id, *reattach_token;

	struct buf in;
	bool too_long; /* the message being read is over the limit */

	uv_timer_t retry, tick;
	unsigned attempts;
	bool stopped, overflow;
	uint64_t opened_at, heard_at; /* uv_now() */

	bool closing;
	unsigned handles;
	void (*closed)(void *user);
	void *closed_user;
};

uint64_t conn_generation(const struct conn *c)
{
	return c->generation;
}

bool conn_is_up(const struct conn *c)
{
	return c->open && !c->closing;
}

const char *conn_url(const struct conn *c)
{
	return c->url_text;
}

const char *conn_token(const struct conn *c)
{
	return c->token;
}

void conn_stop_retrying(struct conn *c)
{
	c->stopped = true;
	uv_timer_stop(&c->retry);
}

static void tick(uv_timer_t *timer);

/* --- sending -----------------------------------------------------------------------------------
 */

int conn_send(struct conn *c, json_object *taken, bool bulk, size_t *ret_len)
{
	cleanup_json json_object *o = taken;
	cleanup_free char *repaired = NULL;
	size_t len;
	const char *text;
	int rc;

	if (ret_len)
		*ret_len = 0;
	if (!conn_is_up(c))
		return -ENOTCONN;
	text = json_text(o, &len);
	if (!utf8_valid(text, len))
		text = repaired = utf8_lossy(text, len, &len);
	if (ret_len)
		*ret_len = len;
	if (len > BUS_MESSAGE_MAX)
		return -EMSGSIZE;
	if (bulk && ws_queued(c->ws) > 0 && ws_queued(c->ws) + len > BUS_QUEUE_MAX)
		return -ENOBUFS;
	rc = ws_send(c->ws, true, text, len);
	if (rc == -ENOBUFS) {
		/* Not here: the caller's calls must not end inside its call. */
		c->overflow = true;
		uv_timer_start(&c->tick, tick, 0, 0);
		return -ENOTCONN;
	}
	return rc;
}

static void announce(struct conn *c)
{
	struct utsname u;
	cleanup_free char *os = NULL, *language = NULL;
	const char *lang = getenv("LANG");

	if (uname(&u) == 0)
		os = xasprintf("%s %s (%s)", u.sysname, u.release, u.machine);
	if (lang && *lang)
		language = xstrndup(lang, strcspn(lang, ".@"));
	conn_send(c,
		bus_new_announce(&(struct bus_identity){
			.name = c->name,
			.version = c->version,
			.description = c->description,
			.os = os,
			.language = language,
			.ns = c->ns,
			.isolation = c->isolation,
			.pid = (uint32_t)getpid(),
		}),
		false, NULL);
}

/* --- the pause between attempts ----------------------------------------------------------------
 */

static unsigned pause_ms(struct conn *c)
{
	uint64_t ms = c->times.retry_ms;
	uint32_t random = 0;

	for (unsigned i = 0; i < c->attempts && ms < c->times.retry_max_ms; i++)
		ms *= 2;
	ms = MIN(ms, (uint64_t)c->times.retry_max_ms);
	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
		random = (uint32_t)uv_hrtime();
	return (unsigned)(ms * (100 - RETRY_JITTER + random % (2 * RETRY_JITTER + 1)) / 100);
}

static void connect_now(uv_timer_t *timer);

/* The socket is gone. */
static void go_down(struct conn *c, const char *why)
{
	bool was_open = c->open;

	c->ws = NULL;
	c->open = c->overflow = c->too_long = false;
	uv_timer_stop(&c->tick);
	buf_done(&c->in);
	if (c->closing)
		return;
	if (was_open && uv_now(c->loop) - c->opened_at > STEADY_MS)
		c->attempts = 0;
	if (!c->stopped) {
		unsigned ms = pause_ms(c);

		c->attempts++;
		uv_timer_start(&c->retry, connect_now, ms, 0);
		log_info("not connected to the engine", "url=%s why=%s retry_ms=%u",
			log_quote(c->url_text), log_quote(why), ms);
	}
	c->ev->down(why, c->user);
}

static void give_up(struct conn *c, const char *why)
{
	ws_drop(STEAL(c->ws));
	go_down(c, why);
}

static void tick(uv_timer_t *timer)
{
	struct conn *c = timer->data;

	if (!c->open)
		return;
	if (c->overflow) {
		log_warn("the engine does not take what is sent", "queued_bytes=%zu limit=%u",
			ws_queued(c->ws), BUS_QUEUE_HARD_MAX);
		give_up(c, "the engine does not take what is sent to it");
		return;
	}
	if (uv_now(c->loop) - c->heard_at >= c->times.dead_ms) {
		give_up(c, "nothing was heard from the engine for too long");
		return;
	}
	ws_ping(c->ws);
	uv_timer_start(&c->tick, tick, MIN(c->times.ping_ms, c->times.dead_ms), 0);
}

/* --- receiving ---------------------------------------------------------------------------------
 */

static void welcomed(struct conn *c, const struct bus_msg *m)
{
	free(c->worker_id);
	free(c->reattach_token);
	c->worker_id = xstrdup(m->worker_id);
	c->reattach_token = xstrdup(m->reattach_token);
	c->attempts = 0;
	log_info("welcomed by the engine", "worker_id=%s", log_quote(c->worker_id));
}

static void on_message(struct conn *c, struct bus_msg *m)
{
	switch (m->type) {
	case BUS_WORKER_REGISTERED:
		welcomed(c, m);
		break;
	case BUS_PING:
		conn_send(c, bus_new_bare("pong"), false, NULL);
		break;
	case BUS_ERROR:
		log_error("the engine refuses this worker", "code=%s message=%s",
			log_quote(m->code), log_quote(m->message));
		break;
	case BUS_INVOKE:
	case BUS_RESULT:
	case BUS_REGISTRATION_REJECTED:
		c->ev->message(m, c->user);
		break;
	default:
		break;
	}
}

static bool is_blank(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!memchr(" \t\r\n", text[i], 4))
			return false;
	return true;
}

/* c->in holds a message, or the beginning of one that was too long. The callbacks may send, but
 * never end the connection's memory: conn_close() only starts the end. */
static void take_message(struct conn *c)
{
	const char *text = c->in.data ? (const char *)c->in.data : "";
	struct err e = ERR_INIT;
	struct bus_salvage s;
	struct bus_msg m;

	if (c->too_long)
		err_set(&e, "", EINVAL, "a message of more than %u bytes is over the limit",
			BUS_MESSAGE_MAX);
	else if (is_blank(text, c->in.len))
		return;
	else if (bus_decode(text, c->in.len, &m, &e) == 0) {
		/* A big text is not needed beside its tree. */
		if (c->in.len > KEEP_MAX)
			buf_done(&c->in);
		on_message(c, &m);
		bus_msg_done(&m);
		return;
	}
	bus_salvage(text, c->in.len, &s);
	log_warn("a message cannot be decoded", "why=%s invocation=%s function=%s",
		log_quote(e.text), log_quote(s.invocation_id), log_quote(s.function_id));
	if (s.type == BUS_INVOKE || s.type == BUS_RESULT)
		c->ev->broken(&s, &e, c->user);
}

static void collect(struct conn *c, const uint8_t *data, size_t len)
{
	struct buf prefix;

	if (c->too_long || buf_add(&c->in, data, len) == 0)
		return;
	c->too_long = true;
	buf_init(&prefix, BUS_MESSAGE_MAX);
	if (buf_add(&prefix, c->in.data, MIN(c->in.len, (size_t)PREFIX_MAX)) < 0)
		mem_exhausted();
	buf_done(&c->in);
	c->in = prefix;
}

static void on_data(struct ws *w, const uint8_t *data, size_t len, unsigned flags, void *user)
{
	struct conn *c = user;
	size_t size;

	(void)w;
	c->heard_at = uv_now(c->loop);
	if (flags & WS_FIRST) {
		buf_clear(&c->in);
		c->too_long = false;
	}
	collect(c, data, len);
	if (!(flags & WS_LAST))
		return;
	size = c->too_long ? BUS_MESSAGE_MAX : c->in.len;
	if (!c->closing)
		take_message(c);
	if (size > KEEP_MAX) {
		buf_done(&c->in);
		malloc_trim(0); /* its tree, too, goes back to the system */
	}
}

static void on_pong(struct ws *w, void *user)
{
	struct conn *c = user;

	(void)w;
	c->heard_at = uv_now(c->loop);
}

static void on_open(struct ws *w, void *user)
{
	struct conn *c = user;

	(void)w;
	c->open = true;
	c->generation++;
	c->opened_at = c->heard_at = uv_now(c->loop);
	uv_timer_start(&c->tick, tick, MIN(c->times.ping_ms, c->times.dead_ms), 0);
	if (c->worker_id)
		conn_send(c, bus_new_reattach(c->worker_id, c->reattach_token), false, NULL);
	announce(c);
	log_info("connected to the engine", "url=%s name=%s namespace=%s", log_quote(c->url_text),
		log_quote(c->name), log_quote(c->ns));
	c->ev->up(c->user);
}

static void maybe_free(struct conn *c);

static void on_closed(struct ws *w, enum ws_end end, int status, const char *why, void *user)
{
	struct conn *c = user;

	(void)w;
	(void)end;
	(void)status;
	go_down(c, why);
	if (c->closing)
		maybe_free(c);
}

static const struct ws_events socket_events = {
	.open = on_open,
	.data = on_data,
	.pong = on_pong,
	.closed = on_closed,
};

static void connect_now(uv_timer_t *timer)
{
	struct conn *c = timer->data;

	c->ws = ws_connect(c->hub,
		&(struct ws_target){
			.url = &c->url,
			.bearer = c->token,
			.timeout_ms = c->times.connect_ms,
			.queue_max = BUS_QUEUE_HARD_MAX,
		},
		&socket_events, c);
}

/* --- life --------------------------------------------------------------------------------------
 */

static unsigned or_default(unsigned v, unsigned fallback)
{
	return v ? v : fallback;
}

static char *dup_or_null(const char *s)
{
	return s && *s ? xstrdup(s) : NULL;
}

/* The token without blanks around it, or NULL for none; it must fit into one header line. */
static int take_token(const char *s, char **ret, struct err *e)
{
	size_t len;

	s = s ? s + strspn(s, " \t\r\n") : "";
	for (len = strlen(s); len > 0 && strchr(" \t\r\n", s[len - 1]); len--)
		;
	for (size_t i = 0; i < len; i++)
		if (s[i] <= ' ' || s[i] > '~')
			return err_set(e, "", EINVAL,
				"the token (III_TOKEN) has a blank, a control character or a byte "
				"outside "
				"ASCII at position %zu: take it out",
				i);
	if (len > TOKEN_MAX)
		return err_set(
			e, "", EINVAL, "the token (III_TOKEN) has more than %d bytes", TOKEN_MAX);
	*ret = len ? xstrndup(s, len) : NULL;
	return 0;
}

struct conn *conn_new(uv_loop_t *loop, struct ws_hub *hub, const struct bus_options *o,
	const struct conn_events *ev, void *user, struct err *e)
{
	struct conn *c = xcalloc(1, sizeof(*c));

	c->url_text = xstrdup(o->url && *o->url ? o->url : BUS_URL_DEFAULT);
	if (bus_url_parse(c->url_text, &c->url, e) < 0 || take_token(o->token, &c->token, e) < 0) {
		bus_url_done(&c->url);
		free(c->url_text);
		free(c);
		return NULL;
	}
	c->loop = loop;
	c->hub = hub;
	c->ev = ev;
	c->user = user;
	c->name = xstrdup(o->name);
	c->ns = dup_or_null(o->ns);
	c->isolation = dup_or_null(o->isolation);
	c->version = dup_or_null(o->version);
	c->description = dup_or_null(o->description);
	c->times.connect_ms = or_default(o->connect_ms, WS_CONNECT_MS);
	c->times.ping_ms = or_default(o->ping_ms, 20000);
	c->times.dead_ms = or_default(o->dead_ms, 60000);
	c->times.retry_ms = or_default(o->retry_ms, 1000);
	c->times.retry_max_ms = or_default(o->retry_max_ms, 30000);
	buf_init(&c->in, BUS_MESSAGE_MAX);
	uv_timer_init(loop, &c->retry);
	uv_timer_init(loop, &c->tick);
	c->handles = 2;
	c->retry.data = c->tick.data = c;
	uv_timer_start(&c->retry, connect_now, 0, 0);
	return c;
}

static void handle_closed(uv_handle_t *handle)
{
	struct conn *c = handle->data;

	c->handles--;
	maybe_free(c);
}

static void maybe_free(struct conn *c)
{
	if (c->ws)
		return;
	if (c->handles > 0) {
		if (!uv_is_closing((uv_handle_t *)&c->retry)) {
			uv_close((uv_handle_t *)&c->retry, handle_closed);
			uv_close((uv_handle_t *)&c->tick, handle_closed);
		}
		return;
	}
	buf_done(&c->in);
	bus_url_done(&c->url);
	free(c->url_text);
	free(c->token);
	free(c->name);
	free(c->ns);
	free(c->isolation);
	free(c->version);
	free(c->description);
	free(c->worker_id);
	free(c->reattach_token);
	c->closed(c->closed_user);
	free(c);
}

void conn_close(struct conn *c, void (*closed)(void *user), void *user)
{
	c->closing = true;
	c->closed = closed;
	c->closed_user = user;
	conn_stop_retrying(c);
	uv_timer_stop(&c->tick);
	if (c->ws && c->open)
		ws_close(c->ws, 1000, GOODBYE_MS);
	else
		ws_drop(STEAL(c->ws));
	maybe_free(c);
}
