/* conn - the worker's connection to its engine: made, announced, kept alive, made again.
 *
 * Messages go out as JSON objects and come in decoded; what cannot be decoded comes in as the ids
 * that were saved of it. Used by dispatch.c only.
 */
#pragma once

#include <json-c/json_object.h>

#include "host/bus/bus.h"
#include "host/bus/ws.h"

struct conn;

struct conn_events {
	/* Open; reattach and announcement are queued in front of what is sent from here on. */
	void (*up)(void *user);
	void (*down)(const char *why, void *user); /* also after an attempt that failed */
	/* A call, an answer, or a rejection; `m` belongs to the caller. */
	void (*message)(struct bus_msg *m, void *user);
	void (*broken)(const struct bus_salvage *s, const struct err *why, void *user);
};

/* `o` is copied. Connects at once. */
struct conn *conn_new(uv_loop_t *loop, struct ws_hub *hub, const struct bus_options *o,
	const struct conn_events *ev, void *user, struct err *e);

/* Says goodbye and frees; `closed` comes from the loop. No other event follows. */
void conn_close(struct conn *c, void (*closed)(void *user), void *user);

/* No connection any more after this one ends. */
void conn_stop_retrying(struct conn *c);

/* Counts the connections that were made. An answer belongs to the one that its call came by. */
uint64_t conn_generation(const struct conn *c);
bool conn_is_up(const struct conn *c);
const char *conn_url(const struct conn *c);
const char *conn_token(const struct conn *c); /* or NULL */

/* Takes o. 0, -ENOTCONN, -EMSGSIZE (too long for a message) or -ENOBUFS (too much waits already);
 * *ret_len (may be NULL) is the length of the text, 0 when not connected. Messages that are not
 * `bulk` (errors, registrations) may use the space up to the hard limit; beyond that the connection
 * ends. */
int conn_send(struct conn *c, json_object *o, bool bulk, size_t *ret_len);
