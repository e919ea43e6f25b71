/* ws - WebSockets on a libuv loop: the one place that knows libwebsockets.
 *
 * A hub is one libwebsockets context on a loop. A socket made or accepted in it is a `struct ws`,
 * which lives until its `closed` event returns or until ws_drop(); nobody else frees it.
 * Events come from the loop, never from inside a call of this module. In an event every call is
 * allowed. Everything happens on the loop's thread.
 *
 * Messages are handed on in pieces as they arrive; what is queued to be sent is bounded by the
 * socket's ceiling. Sent messages are cut into frames of at most WS_FRAME bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "wire/bus.h"

#define WS_FRAME       (64u << 10) /* payload of one frame that is sent */
#define WS_SOCKETS_MAX 1000	   /* of a hub; one more fails to connect or is not accepted */
#define WS_CONNECT_MS  10000	   /* name, TCP, TLS and upgrade together */

struct ws_hub;
struct ws;

/* NULL with a reason when libwebsockets or its libuv glue cannot be loaded. `tls`: wss:// targets
 * may come. */
struct ws_hub *ws_hub_new(uv_loop_t *loop, bool tls, struct err *e);

/* Drops every socket without an event and then frees the hub; `closed` is called from the loop,
 * which must run until then. */
void ws_hub_close(struct ws_hub *h, void (*closed)(void *user), void *user);

/* How a socket ended. */
enum ws_end {
	WS_END_CLOSE,	    /* the peer sent a Close frame */
	WS_END_LOCAL,	    /* ws_close(): all that was queued was sent, then our Close frame */
	WS_END_REFUSED,	    /* the server answered the upgrade with another status */
	WS_END_UNREACHABLE, /* no such name, no listener, TLS failed, too slow */
	WS_END_STALLED,	    /* ws_close(): the peer did not take what was queued */
	WS_END_BROKEN,	    /* the connection ended without a Close frame */
};

enum {
	WS_TEXT = 1,  /* a text message, else binary */
	WS_FIRST = 2, /* the first piece of a message */
	WS_LAST = 4,  /* the last one; a message may be one piece, and that may be empty */
};

/* Any may be NULL. */
struct ws_events {
	void (*open)(struct ws *w, void *user);
	void (*data)(struct ws *w, const uint8_t *data, size_t len, unsigned flags, void *user);
	void (*pong)(struct ws *w, void *user);
	/* All that was queued is in the kernel's hands. */
	void (*drained)(struct ws *w, void *user);
	/* The last event. `status` is the HTTP status of a refusal or the Close code (0: none);
	 * `why` is for people. */
	void (*closed)(struct ws *w, enum ws_end end, int status, const char *why, void *user);
};

struct ws_target {
	const struct bus_url *url;
	const char *bearer;  /* token for the Authorization header, or NULL */
	unsigned timeout_ms; /* 0: WS_CONNECT_MS */
	size_t queue_max;    /* bytes that may wait to be sent */
	size_t frame_max;    /* 0: any; a longer frame breaks the connection */
	bool read_only;	     /* the far end does not read: send nothing, do not answer a Close */
};

/* Connects; everything is copied. Failure is an event, too. */
struct ws *ws_connect(
	struct ws_hub *h, const struct ws_target *t, const struct ws_events *ev, void *user);

/* Queues a message, also before the socket is open: 0, -ENOTCONN (closing or ended) or -ENOBUFS
 * (over the ceiling; nothing was queued). A message is always taken when nothing is queued. */
int ws_send(struct ws *w, bool text, const void *data, size_t len);
size_t ws_queued(const struct ws *w);
int ws_ping(struct ws *w); /* 0 or -ENOTCONN; `pong` follows */

/* Stops and restarts `data` events; one more may come from what was already read. */
void ws_pause(struct ws *w);
void ws_resume(struct ws *w);

/* Sends what is queued (once the socket is open), then a Close frame with this code (0: none), then
 * waits for the peer's; gives up when nothing moves for wait_ms. `closed` follows with WS_END_LOCAL
 * once the frame was sent, with WS_END_STALLED before, or with what came in between. */
void ws_close(struct ws *w, unsigned code, unsigned wait_ms);

/* Gives the socket up: no event follows and w is invalid for the caller. NULL allowed. */
void ws_drop(struct ws *w);

/* --- server ---------------------------------------------------------------------------------- */

struct ws_request;
const char *ws_request_path(const struct ws_request *r);   /* decoded, without the query */
const char *ws_request_origin(const struct ws_request *r); /* "" when there is none */
/* The decoded argument of the query, or NULL; lives until the next call. */
const char *ws_request_arg(struct ws_request *r, const char *name);

struct ws_server {
	/* An upgrade: 0 with *ret_ev and *ret_user to accept it (open follows unless the peer
	 * leaves; then closed), else the HTTP status to refuse it with and *ret_body. */
	int (*accept)(struct ws *w, struct ws_request *r, const struct ws_events **ret_ev,
		void **ret_user, const char **ret_body, void *user);
	size_t queue_max, frame_max; /* as in struct ws_target, for every accepted socket */
};

/* Listens on 127.0.0.1. port 0 takes a free one; *ret_port says which. A hub listens once. */
int ws_listen(struct ws_hub *h, uint16_t port, const struct ws_server *server, void *user,
	uint16_t *ret_port, struct err *e);
