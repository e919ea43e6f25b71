/* engine - a small iii engine on the loopback, for trying and for tests (design.md §5).
 *
 * Workers connect to it by WebSocket as to the real one, this program's own adapter included. It
 * routes calls between them, keeps channels, and has the built-in functions that SDKs and the
 * adapter need: engine::workers::register and ::list, engine::functions::list,
 * engine::channels::create, configuration::get and ::list, engine::log::* and engine::baggage::*.
 * It has no triggers, no queues and no access control; who can reach the loopback can call
 * everything. Requests that come from a web page of another site are refused.
 *
 * Like the real engine it forwards payloads with their members sorted, drops without an answer what
 * it cannot decode, and drops a connection that sends frames or messages over the limits. Unlike
 * it, it takes an answer only from the worker that was asked, and drops a worker that does not read
 * rather than make the others wait.
 */
#pragma once

#include <json-c/json_object.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"

#define ENGINE_PORT_DEFAULT  49134
#define ENGINE_WORKERS_MAX   256   /* one more is refused with HTTP status 503 */
#define ENGINE_FUNCTIONS_MAX 4096  /* of one worker; further ones are ignored with a warning */
#define ENGINE_PENDING_MAX   16384 /* calls without an answer; one more fails */
#define ENGINE_CHANNELS_MAX  1024  /* one more fails to be created */
#define ENGINE_QUEUE_MAX     (80u << 20)  /* bytes a worker has not read; beyond, it is dropped */
#define ENGINE_QUEUES_MAX    (256u << 20) /* of all workers together, likewise */

struct engine;

struct engine_options {
	uint16_t port; /* 0: a free one */
	unsigned
		grace_ms; /* a worker that has not announced itself by then is in `default` [5 s] */
	unsigned sweep_ms; /* a channel with an end nobody took is removed after this [300 s] */
};

/* Listens on 127.0.0.1. NULL with a reason when the port is taken. */
struct engine *engine_new(uv_loop_t *loop, const struct engine_options *o, struct err *e);
uint16_t engine_port(const struct engine *e);

/* What configuration::get answers for `id` from now on; `value` is taken; NULL is null. */
void engine_set_config(struct engine *e, const char *id, json_object *value);

/* Drops everybody and frees; `closed` comes from the loop, which must run until then. */
void engine_close(struct engine *e, void (*closed)(void *user), void *user);
