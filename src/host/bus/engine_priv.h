/* engine_priv - what the engine's files share. engine.c: workers and calls; engine_builtin.c: its
 * own functions; engine_channel.c: channels. */
#pragma once

#include <stdbool.h>

#include "base/buf.h"
#include "host/bus/engine.h"
#include "host/bus/ws.h"
#include "wire/bus.h"

struct engine_worker;

struct engine_function {
	struct engine_function *prev, *next; /* in the engine's list */
	struct engine_worker *owner;
	bool listed; /* its namespace is known and it is in the list; else it waits */
	char *id, *description;
	json_object *metadata;
	struct engine_function *sibling; /* the owner's next one */
};

struct engine_worker {
	struct engine *engine;
	struct engine_worker *prev, *next;
	struct ws *ws; /* NULL once it ended */
	char id[37], token[37];
	struct buf in;
	bool too_long;

	bool resolved; /* ns is final */
	char *ns;
	uv_timer_t grace;
	struct engine_function *functions;
	size_t function_count;

	char *name, *version, *runtime, *os, *description, *isolation;
	uint32_t pid;
	bool has_pid;
	uint64_t connected_at_ms; /* since the epoch */
};

struct engine_call {
	struct engine_call *prev, *next;
	char id[BUS_ID_MAX + 1];
	char *function_id;
	struct engine_worker *caller;	/* NULL: nobody waits */
	struct engine_worker *executor; /* never NULL */
};

struct engine_channel;

struct engine_config {
	struct engine_config *next;
	char *id;
	json_object *value;
};

struct engine {
	uv_loop_t *loop;
	struct ws_hub *hub;
	uint16_t port;
	struct engine_options options;

	struct engine_worker *workers;
	size_t worker_count;
	struct engine_function *functions;
	struct engine_call *calls;
	size_t call_count;
	struct engine_config *configs;

	struct engine_channel *channels;
	size_t channel_count;
	uv_timer_t sweep;

	bool closing;
	void (*closed)(void *user);
	void *closed_user;
};

/* A call as the built-ins see it: answered at most once, with nothing when nobody waits. */
struct engine_request {
	struct engine_worker *caller;
	const struct bus_msg *m;
	bool wanted;
};

/* Takes o. Drops the worker when it does not read. */
void engine_send(struct engine_worker *w, json_object *o);
void engine_answer(const struct engine_request *r, json_object *result); /* takes */
void engine_fail(const struct engine_request *r, const char *code, const char *message);

/* Puts the worker into namespace `ns` under `name` (may be NULL): releases what waited. False when
 * another worker has the name; the rejection was sent and the worker is leaving. */
bool engine_worker_resolve(struct engine_worker *w, const char *ns, const char *name);

/* True when the function is one of the engine's own; it was answered. */
bool engine_builtin(const struct engine_request *r);

/* Channels. */
json_object *engine_channel_create(struct engine *e, uint64_t buffer_size); /* NULL: too many */
/* An upgrade of /ws/channels/`id`: as ws_server.accept. */
int engine_channel_accept(struct engine *e, struct ws *ws, struct ws_request *r, const char *id,
	const struct ws_events **ret_ev, void **ret_user, const char **ret_body);
void engine_channels_sweep(struct engine *e);
void engine_channels_drop(struct engine *e);
