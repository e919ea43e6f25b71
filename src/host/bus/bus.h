/* bus - this program as a worker of an iii engine: functions it serves and calls it makes.
 *
 * One `struct bus` is one worker identity with one connection, which is made again whenever it
 * ends (1 s, doubling to 30 s, ±30 %), with the announcement and all registrations repeated.
 * Everything happens on one libuv loop and thread. Callbacks never come from inside a call of this
 * module, and in a callback every call is allowed, bus_close() included.
 *
 * What a peer can do is bounded: messages of BUS_MESSAGE_MAX bytes, BUS_CALLS_MAX calls at once,
 * BUS_QUEUE_MAX bytes waiting to be sent. What is sent is made valid UTF-8.
 *
 * The protocol is that of iii engines 0.21.8 to 0.26. The process must ignore SIGPIPE.
 */
#pragma once

#include <json-c/json_object.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "wire/bus.h"

#define BUS_CALLS_MAX	4096 /* calls being served; one more gets an error at once */
#define BUS_INVOKES_MAX 4096 /* calls of our own without an answer; one more fails at once */
#define BUS_QUEUE_MAX                                                                              \
	(160u << 20) /* bytes that the engine has not taken; a result beyond it becomes an error   \
		      */
#define BUS_QUEUE_HARD_MAX                                                                         \
	(176u << 20) /* for those errors and the like; beyond it the connection is made again, and \
			callers get "invocation stopped" */
#define BUS_URL_DEFAULT "ws://127.0.0.1:49134"

struct bus;	   /* the worker */
struct bus_call;   /* one call that somebody waits for */
struct bus_invoke; /* one call of our own */

/* Times in ms; 0 takes the default in brackets. All strings are copied. */
struct bus_options {
	const char *url;       /* NULL: BUS_URL_DEFAULT */
	const char *token;     /* bearer token, also for channels; NULL or "": none */
	const char *name;      /* the worker's name; must be given */
	const char *ns;	       /* namespace; NULL or "": the engine's default */
	const char *isolation; /* reported as it is; NULL or "": left out */
	const char *version, *description;
	unsigned connect_ms;   /* a connection attempt [10 s] */
	unsigned ping_ms;      /* between pings [20 s] */
	unsigned dead_ms;      /* silence after which the link is dead [60 s] */
	unsigned retry_ms;     /* first pause before connecting again [1 s] */
	unsigned retry_max_ms; /* longest pause [30 s] */
};

/* url, token, name, ns and isolation from III_URL, III_TOKEN, III_WORKER_NAME, III_NAMESPACE and
 * III_ISOLATION, where these are set and not empty. The strings belong to the environment. */
void bus_options_from_env(struct bus_options *o);

/* The engine took our name or one of our functions away. */
struct bus_rejection {
	const char *code;	 /* WORKER_NAMESPACE_CONFLICT, FUNCTION_NAMESPACE_CONFLICT, other */
	const char *function_id; /* NULL unless it is about a function */
	const char *worker_name; /* NULL unless it is about the worker */
	const char *ns, *owner;	 /* may be "" */
	bool fatal;		 /* the worker is out and will not connect again */
};

/* Any may be NULL. */
struct bus_events {
	/* Connected and announced; `again` from the second time on. Calls of our own work now. */
	void (*up)(struct bus *b, bool again, void *user);
	/* The connection ended, or an attempt failed; the bus will try again by itself. */
	void (*down)(struct bus *b, const char *why, void *user);
	void (*rejected)(struct bus *b, const struct bus_rejection *r, void *user);
	/* Somebody called `bus_call_function(c)` with something that is not JSON as this program
	 * takes it (`why` says what). The callee answers c as a handler does. NULL: the answer is
	 * code "invocation_failed" with `why`. */
	void (*bad_call)(struct bus_call *c, const struct err *why, void *user);
};

/* `ev` must outlive the bus. NULL with a reason: a URL that is none, a token
 * that fits no header, libwebsockets missing.
 * Connecting starts at once and never stops trying. */
struct bus *bus_new(uv_loop_t *loop, const struct bus_options *o, const struct bus_events *ev,
	void *user, struct err *e);

/* Sends a Close frame (waiting at most 1 s for the engine's), then frees the bus and calls `closed`
 * from the loop, which must run until then. No other callback follows, but every bus_invoke is
 * dropped without one. Calls that are still open stay valid; answering one only frees it.
 * Channels (channel.h) must have been closed before. */
void bus_close(struct bus *b, void (*closed)(void *user), void *user);

bool bus_is_up(const struct bus *b);

/* --- serving -----------------------------------------------------------------------------------
 */

/* `data` is what the caller sent (NULL for null and for nothing) and is valid until the handler
 * returns; json_object_get() keeps it. The handler owes `c` one answer, now or later. */
typedef void (*bus_handler)(struct bus_call *c, json_object *data, void *user);

struct bus_function {
	const char *id, *description;
	const char *request_schema, *response_schema; /* JSON texts, or NULL */
	bus_handler handler;
	void *user;
};

/* Registers, now and after every reconnect; copied. -EINVAL when a schema is not JSON, -EEXIST. */
int bus_register(struct bus *b, const struct bus_function *f, struct err *e);

const char *bus_call_function(const struct bus_call *c);
/* The caller's trace context for the log and for calls on its behalf; NULL when there is none. */
const char *bus_call_traceparent(const struct bus_call *c);
const char *bus_call_baggage(const struct bus_call *c);
/* Nobody waits for the answer any more: its connection is gone. It must still be given. */
bool bus_call_is_gone(const struct bus_call *c);

/* The answer; frees c. `result` is taken; NULL stands for null. An answer whose connection is gone
 * is dropped silently; one of more than BUS_MESSAGE_MAX bytes, or over BUS_QUEUE_MAX with all that
 * waits, becomes an error that says so. */
void bus_reply(struct bus_call *c, json_object *result);
void bus_reply_error(struct bus_call *c, const char *code, const char *message);

/* --- calling -----------------------------------------------------------------------------------
 */

enum bus_outcome {
	BUS_OK,	     /* result */
	BUS_FAILED,  /* code and message came back */
	BUS_TIMEOUT, /* no answer in time; one that comes later is ignored */
	BUS_LOST,    /* not connected, or the connection ended before the answer */
};

struct bus_answer {
	enum bus_outcome outcome;
	json_object *result; /* BUS_OK; NULL for null; valid in the callback */
	const char *code,
		*message; /* never NULL unless BUS_OK; code is TIMEOUT or LOST where we say so */
};

typedef void (*bus_answered)(const struct bus_answer *a, void *user);

/* Calls a function; `data` is taken. cb comes exactly once, unless bus_invoke_cancel() or
 * bus_close() come first; the returned handle is valid until then. `on_behalf_of` (may be NULL)
 * lends its trace context. Nothing is queued while disconnected: the outcome is then BUS_LOST. */
struct bus_invoke *bus_invoke(struct bus *b, const char *function_id, json_object *data,
	unsigned timeout_ms, const struct bus_call *on_behalf_of, bus_answered cb, void *user);
void bus_invoke_cancel(struct bus_invoke *i); /* NULL allowed */

/* --- configuration ------------------------------------------------------------------------------
 */

enum bus_config_outcome {
	BUS_CONFIG_VALUE,  /* value */
	BUS_CONFIG_ABSENT, /* no such entry, or its value is null */
	BUS_CONFIG_FAILED, /* why: code and message of the engine, or a reply of the wrong shape */
	BUS_CONFIG_LOST,   /* the connection ended first: ask again after the next `up` */
};

/* value is valid in the callback; why is "" for VALUE and ABSENT. */
typedef void (*bus_configured)(
	enum bus_config_outcome outcome, json_object *value, const char *why, void *user);

/* Reads entry `id` with configuration::get; cb comes once. -EBUSY while another read is under way.
 */
int bus_config_get(
	struct bus *b, const char *id, unsigned timeout_ms, bus_configured cb, void *user);
