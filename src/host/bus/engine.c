/* How it works: every WebSocket on "/" is a worker. Its registrations wait until it has said which
 * namespace it is in, or for the grace time. A call is looked up by (namespace, id) and forwarded
 * under the id its caller chose; `calls` remembers who gets the answer and from whom.
 *
 * Refused: frames and messages over the limits (the connection ends), messages that cannot be
 * decoded or whose ids are no UUIDs (dropped), an id that is already in use (an error).
 */
#include "host/bus/engine_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "wire/json.h"

#define SHED_CHECK  4096 /* smaller messages do not make the sum of all queues be looked at */
#define FORWARD_MAX (BUS_MESSAGE_MAX + (1u << 20)) /* a forwarded call grows by the caller's id */

/* --- sending -----------------------------------------------------------------------------------
 */

static void worker_gone(struct engine_worker *w);

static void drop_for_not_reading(struct engine_worker *w)
{
	log_warn("engine: a worker does not read and is dropped", "worker=%s name=%s queued=%zu",
		w->id, log_quote(w->name), ws_queued(w->ws));
	ws_drop(STEAL(w->ws));
	worker_gone(w);
}

/* All queues together are over their limit: the longest one pays. */
static void shed(struct engine *e)
{
	for (;;) {
		struct engine_worker *longest = NULL;
		size_t total = 0;

		for (struct engine_worker *w = e->workers; w; w = w->next) {
			if (!w->ws)
				continue;
			total += ws_queued(w->ws);
			if (!longest || ws_queued(w->ws) > ws_queued(longest->ws))
				longest = w;
		}
		if (total <= ENGINE_QUEUES_MAX)
			return;
		drop_for_not_reading(longest);
	}
}

void engine_send(struct engine_worker *w, json_object *taken)
{
	cleanup_json json_object *o = taken;
	cleanup_buf struct buf text;

	buf_init(&text, FORWARD_MAX);
	if (!w->ws)
		return;
	if (bus_text_sorted(o, &text) < 0) {
		log_warn("engine: a message is too large to forward", "worker=%s", w->id);
		return;
	}
	if (ws_send(w->ws, true, text.data, text.len) == -ENOBUFS)
		drop_for_not_reading(w);
	else if (text.len > SHED_CHECK)
		shed(w->engine);
}

void engine_answer(const struct engine_request *r, json_object *result)
{
	if (r->wanted)
		engine_send(
			r->caller, bus_new_result(r->m->invocation_id, r->m->function_id, result));
	else
		json_object_put(result);
}

void engine_fail(const struct engine_request *r, const char *code, const char *message)
{
	if (r->wanted)
		engine_send(r->caller,
			bus_new_error(r->m->invocation_id, r->m->function_id, code, message, NULL));
}

/* --- functions ---------------------------------------------------------------------------------
 */

static struct engine_function *find_function(const struct engine *e, const char *ns, const char *id)
{
	for (struct engine_function *f = e->functions; f; f = f->next)
		if (str_eq(f->id, id) && str_eq(f->owner->ns, ns))
			return f;
	return NULL;
}

static void function_unlist(struct engine_function *f)
{
	struct engine *e = f->owner->engine;

	if (!f->listed)
		return;
	if (f->prev)
		f->prev->next = f->next;
	else
		e->functions = f->next;
	if (f->next)
		f->next->prev = f->prev;
	f->listed = false;
	f->prev = f->next = NULL;
}

static void function_free(struct engine_function *f)
{
	function_unlist(f);
	free(f->id);
	free(f->description);
	json_object_put(f->metadata);
	free(f);
}

static void function_forget(struct engine_worker *w, const char *id)
{
	for (struct engine_function **p = &w->functions; *p; p = &(*p)->sibling) {
		if (str_eq((*p)->id, id)) {
			struct engine_function *f = *p;

			*p = f->sibling;
			w->function_count--;
			function_free(f);
			return;
		}
	}
}

/* The worker's namespace is known: the function becomes visible, or the rejection goes out and the
 * function is forgotten. */
static void function_publish(struct engine_function *f)
{
	struct engine_worker *w = f->owner;
	struct engine *e = w->engine;
	struct engine_function *other = find_function(e, w->ns, f->id);
	bool reserved = str_starts(f->id, "engine::") ||
			(str_starts(f->id, "configuration::") && str_eq(w->ns, "default"));

	if (other || reserved) {
		cleanup_free char *id = xstrdup(f->id);

		function_forget(w, id);
		engine_send(w, bus_new_function_rejected(w->ns, id, other ? other->owner->id : ""));
		return;
	}
	f->listed = true;
	f->next = e->functions;
	if (f->next)
		f->next->prev = f;
	e->functions = f;
}

static void on_register(struct engine_worker *w, const struct bus_msg *m)
{
	struct engine_function *f;

	function_forget(w, m->id);
	if (w->function_count >= ENGINE_FUNCTIONS_MAX) {
		log_warn("engine: a worker registers too many functions", "worker=%s limit=%d",
			w->id, ENGINE_FUNCTIONS_MAX);
		return;
	}
	f = xcalloc(1, sizeof(*f));
	f->owner = w;
	f->id = xstrdup(m->id);
	f->description = xstrdup(m->description);
	f->metadata = json_object_get(m->metadata);
	f->sibling = w->functions;
	w->functions = f;
	w->function_count++;
	if (w->resolved)
		function_publish(f);
}

/* --- workers -----------------------------------------------------------------------------------
 */

bool engine_worker_resolve(struct engine_worker *w, const char *ns, const char *name)
{
	if (w->resolved) {
		if (!str_eq(w->ns, ns))
			log_warn("engine: a worker announced itself too late for its namespace",
				"worker=%s namespace=%s stays_in=%s", w->id, log_quote(ns),
				log_quote(w->ns));
		ns = w->ns;
	}
	for (struct engine_worker *o = w->engine->workers; name && o; o = o->next) {
		if (o == w || !o->ws || !o->resolved || !str_eq(o->ns, ns) ||
			!str_eq(o->name, name))
			continue;
		engine_send(w, bus_new_worker_rejected(ns, name, o->id));
		if (w->ws)
			ws_close(w->ws, 0, 1000);
		return false;
	}
	if (name) {
		free(w->name);
		w->name = xstrdup(name);
	}
	if (w->resolved)
		return true;
	w->resolved = true;
	w->ns = xstrdup(ns);
	uv_timer_stop(&w->grace);
	for (struct engine_function *f = w->functions, *next; f && w->ws; f = next) {
		next = f->sibling;
		function_publish(f);
	}
	return true;
}

static void grace_over(uv_timer_t *timer)
{
	engine_worker_resolve(timer->data, "default", NULL);
}

static void call_free(struct engine *e, struct engine_call *c)
{
	if (c->prev)
		c->prev->next = c->next;
	else
		e->calls = c->next;
	if (c->next)
		c->next->prev = c->prev;
	e->call_count--;
	free(c->function_id);
	free(c);
}

/* The worker has no socket any more: its calls end. Answering may drop further workers, so the
 * list is looked through again each time. */
static void end_calls(struct engine_worker *w)
{
	struct engine *e = w->engine;
	struct engine_call *c = e->calls;

	while (c) {
		if (c->caller == w)
			c->caller = NULL;
		if (c->executor != w) {
			c = c->next;
			continue;
		}
		struct engine_worker *caller = c->caller;
		json_object *o = bus_new_error(
			c->id, c->function_id, "invocation_stopped", "Invocation stopped", NULL);

		call_free(e, c);
		if (caller)
			engine_send(caller, o);
		else
			json_object_put(o);
		c = e->calls;
	}
}

static void engine_maybe_closed(struct engine *e);

static void worker_free(uv_handle_t *handle)
{
	struct engine_worker *w = handle->data;
	struct engine *e = w->engine;

	if (w->prev)
		w->prev->next = w->next;
	else
		e->workers = w->next;
	if (w->next)
		w->next->prev = w->prev;
	e->worker_count--;
	buf_done(&w->in);
	free(w->ns);
	free(w->name);
	free(w->version);
	free(w->runtime);
	free(w->os);
	free(w->description);
	free(w->isolation);
	free(w);
	engine_maybe_closed(e);
}

static void worker_gone(struct engine_worker *w)
{
	if (uv_is_closing((uv_handle_t *)&w->grace))
		return;
	uv_close((uv_handle_t *)&w->grace, worker_free);
	while (w->functions) {
		struct engine_function *f = w->functions;

		w->functions = f->sibling;
		function_free(f);
	}
	w->function_count = 0;
	end_calls(w);
	log_info("engine: worker gone", "worker=%s name=%s", w->id, log_quote(w->name));
}

static void on_reattach(struct engine_worker *w, const struct bus_msg *m)
{
	for (struct engine_worker *o = w->engine->workers; o; o = o->next) {
		if (o == w || !o->ws || !str_eq(o->id, m->worker_id) ||
			!str_eq(o->token, m->reattach_token))
			continue;
		ws_drop(STEAL(o->ws));
		worker_gone(o);
		return;
	}
}

/* --- calls -------------------------------------------------------------------------------------
 */

/* 8-4-4-4-12 hex digits. */
static bool is_uuid(const char *s)
{
	if (!s || strlen(s) != 36)
		return false;
	for (size_t i = 0; i < 36; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;

		if (dash ? s[i] != '-' : !strchr("0123456789abcdefABCDEF", s[i]))
			return false;
	}
	return true;
}

static struct engine_call *find_call(const struct engine *e, const char *id)
{
	for (struct engine_call *c = e->calls; c; c = c->next)
		if (str_eq(c->id, id))
			return c;
	return NULL;
}

static void fail_not_found(const struct engine_request *r, const char *ns)
{
	cleanup_free char *message =
		xasprintf("Function %s not found in namespace %s.", r->m->function_id, ns);
	const char *lead = " It is registered in namespace(s): ";

	for (struct engine_function *f = r->caller->engine->functions; f; f = f->next) {
		char *longer;

		if (!str_eq(f->id, r->m->function_id))
			continue;
		longer = xasprintf("%s%s%s", message, lead, f->owner->ns);
		free(message);
		message = longer;
		lead = ", ";
	}
	engine_fail(r, "function_not_found", message);
}

static void forward(const struct engine_request *r, struct engine_worker *executor)
{
	struct engine *e = executor->engine;
	struct engine_call *c = xcalloc(1, sizeof(*c));
	const struct bus_msg *m = r->m;

	if (m->invocation_id)
		snprintf(c->id, sizeof(c->id), "%s", m->invocation_id);
	else
		str_uuid4(c->id);
	c->function_id = xstrdup(m->function_id);
	c->caller = r->wanted ? r->caller : NULL;
	c->executor = executor;
	c->next = e->calls;
	if (c->next)
		c->next->prev = c;
	e->calls = c;
	e->call_count++;
	if (json_object_is_type(m->data, json_type_object))
		json_add_str(m->data, "_caller_worker_id", r->caller->id);
	engine_send(executor, bus_new_call(&(struct bus_call_envelope){
				      .invocation_id = c->id,
				      .function_id = c->function_id,
				      .data = json_object_get(m->data),
				      .traceparent = m->traceparent,
				      .baggage = m->baggage,
				      .metadata = json_object_get(m->metadata),
			      }));
}

static void on_invoke(struct engine_worker *w, const struct bus_msg *m)
{
	const char *ns = m->ns ? m->ns : "default";
	struct engine_request r = {
		.caller = w,
		.m = m,
		.wanted = m->invocation_id && m->action != BUS_ACTION_VOID,
	};
	struct engine_function *f;

	if (!m->has_data || (m->invocation_id && !is_uuid(m->invocation_id))) {
		log_warn("engine: a call is dropped", "worker=%s why=%s", w->id,
			m->has_data ? "its id is no UUID" : "it has no member `data`");
		return;
	}
	if (ns[strspn(ns, " \t\r\n")] == '\0') {
		engine_fail(&r, "INVALID_NAMESPACE", "the namespace must not be blank");
		return;
	}
	if (m->action == BUS_ACTION_OTHER) {
		engine_fail(&r, "enqueue_error", "this engine has no queues");
		return;
	}
	if (str_eq(ns, "default") && engine_builtin(&r))
		return;
	f = find_function(w->engine, ns, m->function_id);
	if (!f)
		fail_not_found(&r, ns);
	else if (m->invocation_id && find_call(w->engine, m->invocation_id))
		engine_fail(&r, "invocation_error", "another call with this id has no answer yet");
	else if (w->engine->call_count >= ENGINE_PENDING_MAX)
		engine_fail(&r, "invocation_error", "too many calls without an answer");
	else
		forward(&r, f->owner);
}

static void on_result(struct engine_worker *w, const struct bus_msg *m)
{
	struct engine_call *c = find_call(w->engine, m->invocation_id);
	struct engine_worker *caller;

	if (!c || c->executor != w)
		return;
	caller = c->caller;
	if (caller && m->failed)
		engine_send(caller,
			bus_new_error(c->id, c->function_id, m->code, m->message, m->stacktrace));
	else if (caller)
		engine_send(
			caller, bus_new_result(c->id, c->function_id, json_object_get(m->result)));
	/* The send may have dropped workers, and their calls with them. */
	c = find_call(w->engine, m->invocation_id);
	if (c && c->executor == w)
		call_free(w->engine, c);
}

/* --- messages ----------------------------------------------------------------------------------
 */

static void on_message(struct engine_worker *w, struct bus_msg *m)
{
	switch (m->type) {
	case BUS_REATTACH:
		on_reattach(w, m);
		break;
	case BUS_REGISTER_FUNCTION:
		on_register(w, m);
		break;
	case BUS_UNREGISTER_FUNCTION:
		function_forget(w, m->id);
		break;
	case BUS_REGISTER_TRIGGER:
		engine_send(w, bus_new_trigger_refused(m, "this engine has no triggers"));
		break;
	case BUS_INVOKE:
		on_invoke(w, m);
		break;
	case BUS_RESULT:
		on_result(w, m);
		break;
	case BUS_PING:
		engine_send(w, bus_new_bare("pong"));
		break;
	default:
		break;
	}
}

/* Nobody waits for ever for what was lost with it, if its id can still be read. */
static void on_broken(struct engine_worker *w, const struct err *why)
{
	struct bus_salvage s;
	struct engine_call *c;

	bus_salvage((const char *)w->in.data, w->in.len, &s);
	log_warn("engine: a message cannot be decoded", "worker=%s invocation=%s why=%s", w->id,
		log_quote(s.invocation_id), log_quote(why->text));
	if (!is_uuid(s.invocation_id))
		return;
	c = find_call(w->engine, s.invocation_id);
	if (s.type == BUS_INVOKE && !c) {
		engine_send(w, bus_new_error(s.invocation_id, s.function_id, "invocation_error",
				       why->text, NULL));
	} else if (s.type == BUS_RESULT && c && c->executor == w) {
		if (c->caller)
			engine_send(
				c->caller, bus_new_error(c->id, c->function_id, "invocation_error",
						   "the answer cannot be decoded", NULL));
		c = find_call(w->engine, s.invocation_id);
		if (c && c->executor == w)
			call_free(w->engine, c);
	}
}

static void on_worker_data(
	struct ws *ws, const uint8_t *data, size_t len, unsigned flags, void *user)
{
	struct engine_worker *w = user;
	struct err e = ERR_INIT;
	struct bus_msg m;

	if (flags & WS_FIRST)
		buf_clear(&w->in);
	if (buf_add(&w->in, data, len) < 0) {
		log_warn("engine: a message is over the limit", "worker=%s limit=%u", w->id,
			BUS_MESSAGE_MAX);
		w->ws = NULL;
		ws_drop(ws);
		worker_gone(w);
		return;
	}
	if (!(flags & WS_LAST) || w->in.len == 0)
		return;
	if (bus_decode((const char *)w->in.data, w->in.len, &m, &e) < 0) {
		on_broken(w, &e);
	} else {
		on_message(w, &m);
		bus_msg_done(&m);
	}
	if (w->in.len > (256u << 10))
		buf_done(&w->in);
}

static void on_worker_open(struct ws *ws, void *user)
{
	struct engine_worker *w = user;

	(void)ws;
	uv_timer_start(&w->grace, grace_over, w->engine->options.grace_ms, 0);
	engine_send(w, bus_new_worker_registered(w->id, w->token));
}

static void on_worker_closed(
	struct ws *ws, enum ws_end end, int status, const char *why, void *user)
{
	struct engine_worker *w = user;

	(void)ws;
	(void)end;
	(void)status;
	log_debug("engine: worker connection ended", "worker=%s why=%s", w->id, log_quote(why));
	w->ws = NULL;
	worker_gone(w);
}

static const struct ws_events worker_events = {
	.open = on_worker_open,
	.data = on_worker_data,
	.closed = on_worker_closed,
};

static const struct ws_events discard_events = {0};

static struct engine_worker *worker_new(struct engine *e, struct ws *ws)
{
	struct engine_worker *w = xcalloc(1, sizeof(*w));
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	w->engine = e;
	w->ws = ws;
	w->connected_at_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	str_uuid4(w->id);
	str_uuid4(w->token);
	buf_init(&w->in, BUS_MESSAGE_MAX);
	uv_timer_init(e->loop, &w->grace);
	w->grace.data = w;
	w->next = e->workers;
	if (w->next)
		w->next->prev = w;
	e->workers = w;
	e->worker_count++;
	return w;
}

/* A browser sends the site its page came from; only pages of this host may connect. */
static bool origin_is_local(const char *origin)
{
	static const char *const hosts[] = {"localhost", "127.0.0.1", "[::1]"};
	const char *host = strstr(origin, "://");

	if (!*origin)
		return true;
	for (size_t i = 0; host && i < ARRAY_LEN(hosts); i++) {
		size_t len = strlen(hosts[i]);

		if (strncmp(host + 3, hosts[i], len) == 0 &&
			(host[3 + len] == '\0' || host[3 + len] == ':'))
			return true;
	}
	return false;
}

static int on_accept(struct ws *ws, struct ws_request *r, const struct ws_events **ret_ev,
	void **ret_user, const char **ret_body, void *user)
{
	struct engine *e = user;
	const char *path = ws_request_path(r);

	if (!origin_is_local(ws_request_origin(r))) {
		*ret_body = "This engine does not serve pages of other sites";
		return 403;
	}
	if (str_starts(path, "/ws/channels/"))
		return engine_channel_accept(
			e, ws, r, path + strlen("/ws/channels/"), ret_ev, ret_user, ret_body);
	if (str_eq(path, "/otel")) {
		*ret_ev = &discard_events;
		return 0;
	}
	if (!str_eq(path, "/"))
		return 404;
	if (e->worker_count >= ENGINE_WORKERS_MAX) {
		*ret_body = "Too many workers";
		return 503;
	}
	*ret_ev = &worker_events;
	*ret_user = worker_new(e, ws);
	return 0;
}

/* --- life --------------------------------------------------------------------------------------
 */

static const struct ws_server server = {
	.accept = on_accept,
	.queue_max = ENGINE_QUEUE_MAX,
	.frame_max = BUS_FRAME_MAX,
};

static void sweep(uv_timer_t *timer)
{
	engine_channels_sweep(timer->data);
}

struct engine *engine_new(uv_loop_t *loop, const struct engine_options *o, struct err *err)
{
	struct engine *e;
	struct ws_hub *hub = ws_hub_new(loop, false, err);

	if (!hub)
		return NULL;
	e = xcalloc(1, sizeof(*e));
	e->loop = loop;
	e->hub = hub;
	e->options = *o;
	if (!e->options.grace_ms)
		e->options.grace_ms = 5000;
	if (!e->options.sweep_ms)
		e->options.sweep_ms = 300000;
	if (ws_listen(hub, o->port, &server, e, &e->port, err) < 0) {
		ws_hub_close(hub, NULL, NULL);
		free(e);
		return NULL;
	}
	uv_timer_init(loop, &e->sweep);
	e->sweep.data = e;
	uv_timer_start(&e->sweep, sweep, e->options.sweep_ms / 5, e->options.sweep_ms / 5);
	return e;
}

uint16_t engine_port(const struct engine *e)
{
	return e->port;
}

static void hub_closed(void *user)
{
	struct engine *e = user;
	void (*closed)(void *) = e->closed;
	void *closed_user = e->closed_user;

	free(e);
	if (closed)
		closed(closed_user);
}

static void sweep_closed(uv_handle_t *handle)
{
	struct engine *e = handle->data;

	ws_hub_close(e->hub, hub_closed, e);
}

static void engine_maybe_closed(struct engine *e)
{
	if (!e->closing || e->workers || uv_is_closing((uv_handle_t *)&e->sweep))
		return;
	uv_close((uv_handle_t *)&e->sweep, sweep_closed);
}

void engine_close(struct engine *e, void (*closed)(void *user), void *user)
{
	e->closing = true;
	e->closed = closed;
	e->closed_user = user;
	for (struct engine_worker *w = e->workers; w; w = w->next) {
		ws_drop(STEAL(w->ws));
		worker_gone(w);
	}
	engine_channels_drop(e);
	while (e->configs) {
		struct engine_config *c = e->configs;

		e->configs = c->next;
		free(c->id);
		json_object_put(c->value);
		free(c);
	}
	engine_maybe_closed(e);
}
