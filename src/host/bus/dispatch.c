/* How it works: three tables on top of conn.h. Functions are replayed at every connection. A call
 * being served is a bus_call in `calls` and remembers the connection it came by; its answer goes to
 * that one or nowhere, since the next connection's engine has forgotten it. A call of our own is a
 * bus_invoke in `invokes` with a timer; it ends by its answer, its timer, or the connection's end.
 *
 * Ids in both directions may be equal (a call to ourselves comes back with the id we gave it), so
 * the tables never look into each other.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/bus/bus_priv.h"
#include "host/bus/conn.h"
#include "wire/json.h"

struct function {
	char *id, *description;
	json_object *request, *response;
	bus_handler handler;
	void *user;
};

struct bus_call {
	struct bus *bus; /* NULL once that is closed */
	struct bus_call *prev, *next;
	uint64_t generation;
	char *invocation_id; /* NULL: nobody waits */
	char *function_id, *traceparent, *baggage;
};

struct bus_invoke {
	struct bus *bus;
	struct bus_invoke *prev, *next;
	uv_timer_t timer;
	bool sent; /* else it only waits to report that it was lost */
	char id[37];
	const char *lost_why;
	bus_answered cb;
	void *user;
};

struct config_read {
	bus_configured cb;
	void *user;
	bool busy;
};

struct bus {
	uv_loop_t *loop;
	struct ws_hub *hub;
	struct conn *conn;
	const struct bus_events *ev;
	void *user;
	bool was_up, closing;

	struct function *functions;
	size_t function_count;
	struct bus_call *calls;
	size_t call_count;
	struct bus_invoke *invokes;
	size_t invoke_count;
	struct config_read config;

	void (*closed)(void *user);
	void *closed_user;
};

uv_loop_t *bus_loop(const struct bus *b)
{
	return b->loop;
}

struct ws_hub *bus_hub(const struct bus *b)
{
	return b->hub;
}

const char *bus_url_text(const struct bus *b)
{
	return conn_url(b->conn);
}

const char *bus_token(const struct bus *b)
{
	return conn_token(b->conn);
}

bool bus_is_up(const struct bus *b)
{
	return !b->closing && conn_is_up(b->conn);
}

/* --- functions ---------------------------------------------------------------------------------
 */

static struct function *find_function(struct bus *b, const char *id)
{
	for (size_t i = 0; i < b->function_count; i++)
		if (str_eq(b->functions[i].id, id))
			return &b->functions[i];
	return NULL;
}

static void send_registration(struct bus *b, const struct function *f)
{
	conn_send(b->conn,
		bus_new_register(f->id, f->description, json_object_get(f->request),
			json_object_get(f->response)),
		false, NULL);
}

static int parse_schema(
	const char *id, const char *which, const char *text, json_object **ret, struct err *e)
{
	int rc = text ? json_parse_object(text, strlen(text), ret, e) : 0;

	if (rc < 0)
		err_wrap(e, "%s schema of %s", which, id);
	return rc;
}

int bus_register(struct bus *b, const struct bus_function *f, struct err *e)
{
	cleanup_json json_object *request = NULL, *response = NULL;
	struct function *slot;
	int rc;

	if (find_function(b, f->id))
		return err_set(e, "", EEXIST, "function %s is already registered", f->id);
	rc = parse_schema(f->id, "request", f->request_schema, &request, e);
	if (rc == 0)
		rc = parse_schema(f->id, "response", f->response_schema, &response, e);
	if (rc < 0)
		return rc;
	b->functions = xrealloc(b->functions, b->function_count + 1, sizeof(*b->functions));
	slot = &b->functions[b->function_count++];
	*slot = (struct function){
		.id = xstrdup(f->id),
		.description = xstrdup(f->description),
		.request = STEAL(request),
		.response = STEAL(response),
		.handler = f->handler,
		.user = f->user,
	};
	if (bus_is_up(b))
		send_registration(b, slot);
	return 0;
}

/* --- calls that are served ---------------------------------------------------------------------
 */

const char *bus_call_function(const struct bus_call *c)
{
	return c->function_id;
}

const char *bus_call_traceparent(const struct bus_call *c)
{
	return c->traceparent;
}

const char *bus_call_baggage(const struct bus_call *c)
{
	return c->baggage;
}

bool bus_call_is_gone(const struct bus_call *c)
{
	return !c->bus || !bus_is_up(c->bus) || c->generation != conn_generation(c->bus->conn);
}

static struct bus_call *call_new(struct bus *b, const char *invocation_id, const char *function_id)
{
	struct bus_call *c = xcalloc(1, sizeof(*c));

	c->bus = b;
	c->generation = conn_generation(b->conn);
	c->invocation_id = xstrdup(invocation_id);
	c->function_id = xstrdup(function_id);
	c->next = b->calls;
	if (c->next)
		c->next->prev = c;
	b->calls = c;
	b->call_count++;
	return c;
}

static void call_unlink(struct bus_call *c)
{
	if (c->prev)
		c->prev->next = c->next;
	else
		c->bus->calls = c->next;
	if (c->next)
		c->next->prev = c->prev;
	c->bus->call_count--;
	c->bus = NULL;
	c->prev = c->next = NULL;
}

static void call_free(struct bus_call *c)
{
	if (c->bus)
		call_unlink(c);
	free(c->invocation_id);
	free(c->function_id);
	free(c->traceparent);
	free(c->baggage);
	free(c);
}

static void answer_error(struct bus *b, const char *invocation_id, const char *function_id,
	const char *code, const char *message)
{
	if (invocation_id)
		conn_send(b->conn, bus_new_error(invocation_id, function_id, code, message, NULL),
			false, NULL);
}

void bus_reply_error(struct bus_call *c, const char *code, const char *message)
{
	if (!bus_call_is_gone(c))
		answer_error(c->bus, c->invocation_id, c->function_id, code, message);
	call_free(c);
}

void bus_reply(struct bus_call *c, json_object *result)
{
	cleanup_free char *why = NULL;
	size_t len;
	int rc;

	if (!c->invocation_id || bus_call_is_gone(c)) {
		json_object_put(result);
		call_free(c);
		return;
	}
	rc = conn_send(
		c->bus->conn, bus_new_result(c->invocation_id, c->function_id, result), true, &len);
	if (rc != -EMSGSIZE && rc != -ENOBUFS) {
		call_free(c);
		return;
	}
	if (rc == -EMSGSIZE)
		why = xasprintf(
			"the result of %s would be a message of %zu bytes, over the limit of %u",
			c->function_id, len, BUS_MESSAGE_MAX);
	else
		why = xasprintf(
			"the result of %s (%zu bytes) cannot be sent: the engine has not taken "
			"what was sent before",
			c->function_id, len);
	log_warn("a result is replaced by an error", "function=%s bytes=%zu", c->function_id, len);
	bus_reply_error(c, "invocation_failed", why);
}

static void on_invoke(struct bus *b, struct bus_msg *m)
{
	const struct function *f = find_function(b, m->function_id);
	struct bus_call *c;

	if (!f) {
		answer_error(b, m->invocation_id, m->function_id, "function_not_found",
			"Function not found");
		return;
	}
	if (b->call_count >= BUS_CALLS_MAX) {
		log_warn("too many calls at once", "function=%s limit=%d", f->id, BUS_CALLS_MAX);
		answer_error(b, m->invocation_id, m->function_id, "invocation_failed",
			"too many calls at once: try again when some have ended");
		return;
	}
	c = call_new(b, m->invocation_id, m->function_id);
	c->traceparent = xstrdup(m->traceparent);
	c->baggage = xstrdup(m->baggage);
	log_debug("call", "function=%s invocation=%s traceparent=%s", f->id,
		log_quote(m->invocation_id), log_quote(m->traceparent));
	f->handler(c, m->data, f->user);
}

static void on_broken_call(struct bus *b, const struct bus_salvage *s, const struct err *why)
{
	if (!s->invocation_id[0])
		return;
	if (!b->ev->bad_call || !s->function_id[0] || b->call_count >= BUS_CALLS_MAX) {
		answer_error(b, s->invocation_id, s->function_id, "invocation_failed", why->text);
		return;
	}
	b->ev->bad_call(call_new(b, s->invocation_id, s->function_id), why, b->user);
}

/* --- calls of our own --------------------------------------------------------------------------
 */

static void invoke_freed(uv_handle_t *handle)
{
	free(handle->data);
}

static void invoke_end(struct bus_invoke *i)
{
	if (i->prev)
		i->prev->next = i->next;
	else
		i->bus->invokes = i->next;
	if (i->next)
		i->next->prev = i->prev;
	i->bus->invoke_count--;
	uv_close((uv_handle_t *)&i->timer, invoke_freed);
}

void bus_invoke_cancel(struct bus_invoke *i)
{
	if (i)
		invoke_end(i);
}

/* Ends i, then tells. */
static void invoke_tell(struct bus_invoke *i, const struct bus_answer *a)
{
	bus_answered cb = i->cb;
	void *user = i->user;

	invoke_end(i);
	cb(a, user);
}

static void invoke_timer(uv_timer_t *timer)
{
	struct bus_invoke *i = timer->data;

	if (i->sent)
		invoke_tell(
			i, &(struct bus_answer){BUS_TIMEOUT, NULL, "TIMEOUT", "no answer in time"});
	else
		invoke_tell(i, &(struct bus_answer){BUS_LOST, NULL, "LOST", i->lost_why});
}

struct bus_invoke *bus_invoke(struct bus *b, const char *function_id, json_object *data,
	unsigned timeout_ms, const struct bus_call *on_behalf_of, bus_answered cb, void *user)
{
	struct bus_invoke *i = xcalloc(1, sizeof(*i));
	json_object *message;
	int rc = -EAGAIN;

	assert(!b->closing);
	i->bus = b;
	i->cb = cb;
	i->user = user;
	str_uuid4(i->id);
	uv_timer_init(b->loop, &i->timer);
	i->timer.data = i;
	message = bus_new_call(&(struct bus_call_envelope){
		.invocation_id = i->id,
		.function_id = function_id,
		.data = data,
		.traceparent = on_behalf_of ? on_behalf_of->traceparent : NULL,
		.baggage = on_behalf_of ? on_behalf_of->baggage : NULL,
	});
	if (b->invoke_count < BUS_INVOKES_MAX)
		rc = conn_send(b->conn, message, true, NULL);
	else
		json_object_put(message);
	i->sent = rc == 0;
	i->lost_why = rc == -EAGAIN	? "too many calls without an answer"
		      : rc == -EMSGSIZE ? "the request is too large for one message"
					: "not connected to the engine";
	uv_timer_start(&i->timer, invoke_timer, i->sent ? timeout_ms : 0, 0);
	i->next = b->invokes;
	if (i->next)
		i->next->prev = i;
	b->invokes = i;
	b->invoke_count++;
	return i;
}

static void on_result(struct bus *b, const struct bus_msg *m)
{
	for (struct bus_invoke *i = b->invokes; i; i = i->next) {
		if (!i->sent || !str_eq(i->id, m->invocation_id))
			continue;
		if (m->failed)
			invoke_tell(i, &(struct bus_answer){BUS_FAILED, NULL, m->code, m->message});
		else
			invoke_tell(
				i, &(struct bus_answer){.outcome = BUS_OK, .result = m->result});
		return;
	}
}

static void on_broken_result(struct bus *b, const struct bus_salvage *s, const struct err *why)
{
	for (struct bus_invoke *i = b->invokes; i; i = i->next) {
		if (!i->sent || !str_eq(i->id, s->invocation_id))
			continue;
		invoke_tell(i,
			&(struct bus_answer){BUS_FAILED, NULL, "deserialization_error", why->text});
		return;
	}
}

/* Callbacks may make new calls; those are not sent and report by themselves. */
static void lose_invokes(struct bus *b)
{
	struct bus_invoke *i = b->invokes;

	while (i) {
		if (!i->sent) {
			i = i->next;
			continue;
		}
		invoke_tell(i, &(struct bus_answer){BUS_LOST, NULL, "LOST",
				       "the connection to the engine ended"});
		i = b->invokes;
	}
}

/* --- configuration -----------------------------------------------------------------------------
 */

static void config_tell(
	struct bus *b, enum bus_config_outcome outcome, json_object *value, const char *why)
{
	b->config.busy = false;
	b->config.cb(outcome, value, why, b->config.user);
}

static void config_answered(const struct bus_answer *a, void *user)
{
	struct bus *b = user;
	cleanup_free char *why = NULL;
	json_object *value;

	switch (a->outcome) {
	case BUS_LOST:
		config_tell(b, BUS_CONFIG_LOST, NULL, a->message);
		return;
	case BUS_OK:
		if (!json_object_is_type(a->result, json_type_object) ||
			!json_object_object_get_ex(a->result, "value", &value))
			config_tell(b, BUS_CONFIG_FAILED, NULL,
				"configuration::get answered without a member `value`");
		else if (!value)
			config_tell(b, BUS_CONFIG_ABSENT, NULL, "");
		else
			config_tell(b, BUS_CONFIG_VALUE, value, "");
		return;
	case BUS_FAILED:
	case BUS_TIMEOUT:
		if (str_eq(a->code, "NOT_FOUND")) {
			config_tell(b, BUS_CONFIG_ABSENT, NULL, "");
			return;
		}
		why = xasprintf("configuration::get failed: %s: %s", a->code, a->message);
		config_tell(b, BUS_CONFIG_FAILED, NULL, why);
		return;
	}
}

int bus_config_get(
	struct bus *b, const char *id, unsigned timeout_ms, bus_configured cb, void *user)
{
	json_object *data;

	if (b->config.busy)
		return -EBUSY;
	data = json_object_new_object();
	if (!data)
		mem_exhausted();
	json_add_str(data, "id", id);
	b->config = (struct config_read){.cb = cb, .user = user, .busy = true};
	bus_invoke(b, "configuration::get", data, timeout_ms, NULL, config_answered, b);
	return 0;
}

/* --- connection --------------------------------------------------------------------------------
 */

static void on_up(void *user)
{
	struct bus *b = user;
	bool again = b->was_up;

	b->was_up = true;
	for (size_t i = 0; i < b->function_count; i++)
		send_registration(b, &b->functions[i]);
	if (b->ev->up)
		b->ev->up(b, again, b->user);
}

static void on_down(const char *why, void *user)
{
	struct bus *b = user;

	lose_invokes(b);
	if (b->ev->down && !b->closing)
		b->ev->down(b, why, b->user);
}

static void on_rejected(struct bus *b, const struct bus_msg *m)
{
	struct bus_rejection r = {
		.code = m->code,
		.function_id = m->function_id,
		.worker_name = m->worker_name,
		.ns = m->ns ? m->ns : "",
		.owner = m->owner ? m->owner : "",
		.fatal = !str_eq(m->code, "FUNCTION_NAMESPACE_CONFLICT"),
	};

	if (r.fatal)
		conn_stop_retrying(b->conn);
	if (b->ev->rejected)
		b->ev->rejected(b, &r, b->user);
	else
		log_error("the engine rejects a registration",
			"code=%s function=%s worker=%s owner=%s", log_quote(r.code),
			log_quote(r.function_id), log_quote(r.worker_name), log_quote(r.owner));
}

static void on_message(struct bus_msg *m, void *user)
{
	struct bus *b = user;

	if (b->closing)
		return;
	if (m->type == BUS_INVOKE)
		on_invoke(b, m);
	else if (m->type == BUS_RESULT)
		on_result(b, m);
	else if (m->type == BUS_REGISTRATION_REJECTED)
		on_rejected(b, m);
}

static void on_broken(const struct bus_salvage *s, const struct err *why, void *user)
{
	struct bus *b = user;

	if (b->closing)
		return;
	if (s->type == BUS_INVOKE)
		on_broken_call(b, s, why);
	else
		on_broken_result(b, s, why);
}

static const struct conn_events conn_events = {
	.up = on_up,
	.down = on_down,
	.message = on_message,
	.broken = on_broken,
};

/* --- life --------------------------------------------------------------------------------------
 */

static const char *env_or(const char *name, const char *fallback)
{
	const char *s = getenv(name);

	return s && *s ? s : fallback;
}

void bus_options_from_env(struct bus_options *o)
{
	o->url = env_or("III_URL", o->url);
	o->token = env_or("III_TOKEN", o->token);
	o->name = env_or("III_WORKER_NAME", o->name);
	o->ns = env_or("III_NAMESPACE", o->ns);
	o->isolation = env_or("III_ISOLATION", o->isolation);
}

static void hub_only_closed(void *user)
{
	(void)user;
}

struct bus *bus_new(uv_loop_t *loop, const struct bus_options *o, const struct bus_events *ev,
	void *user, struct err *e)
{
	bool tls = o->url && strncasecmp(o->url, "wss:", 4) == 0;
	struct ws_hub *hub = ws_hub_new(loop, tls, e);
	struct bus *b;

	if (!hub)
		return NULL;
	b = xcalloc(1, sizeof(*b));
	b->conn = conn_new(loop, hub, o, &conn_events, b, e);
	if (!b->conn) {
		ws_hub_close(hub, hub_only_closed, NULL);
		free(b);
		return NULL;
	}
	b->loop = loop;
	b->hub = hub;
	b->ev = ev;
	b->user = user;
	return b;
}

static void hub_closed(void *user)
{
	struct bus *b = user;
	void (*closed)(void *) = b->closed;
	void *closed_user = b->closed_user;

	free(b);
	if (closed)
		closed(closed_user);
}

static void conn_closed(void *user)
{
	struct bus *b = user;

	ws_hub_close(b->hub, hub_closed, b);
}

void bus_close(struct bus *b, void (*closed)(void *user), void *user)
{
	assert(!b->closing);
	b->closing = true;
	b->closed = closed;
	b->closed_user = user;
	while (b->calls)
		call_unlink(b->calls);
	while (b->invokes)
		invoke_end(b->invokes);
	for (size_t i = 0; i < b->function_count; i++) {
		free(b->functions[i].id);
		free(b->functions[i].description);
		json_object_put(b->functions[i].request);
		json_object_put(b->functions[i].response);
	}
	free(b->functions);
	b->functions = NULL;
	b->function_count = 0;
	conn_close(b->conn, conn_closed, b);
}
