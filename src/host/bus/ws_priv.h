/* ws_priv - what ws.c and ws_connect.c share. */
#pragma once

#include <libwebsockets.h>

#include "host/bus/ws.h"

struct ws_piece { /* a queued message; bytes[] has LWS_PRE bytes of headroom */
	struct ws_piece *next;
	size_t len, sent;
	bool text;
	uint8_t bytes[];
};

struct ws_hub {
	uv_loop_t *loop;
	struct lws_context *lws; /* libwebsockets sets it to NULL when it has freed it */
	struct lws_vhost *client4, *client6;
	bool tls; /* OpenSSL is set up */
	struct lws_vhost *listener;
	const struct ws_server *server;
	void *server_user;

	struct ws *sockets; /* every one that is not freed */
	uv_timer_t later;   /* work that must not happen inside a call */
	bool closing;
	unsigned teardown_step;
	void (*closed)(void *user);
	void *closed_user;
};

enum ws_state {
	WS_RESOLVING,
	WS_CONNECTING,
	WS_OPEN,
	WS_GONE, /* only its timer and name look-up are left */
};

struct ws {
	struct ws_hub *hub;
	struct ws *prev, *next;
	const struct ws_events *ev; /* NULL after ws_drop() */
	void *user;
	enum ws_state state;
	struct lws *wsi; /* NULL before connecting and after the end */
	uv_timer_t timer;
	bool timer_closed;

	/* connecting */
	struct bus_url url;
	char *bearer, *host_header;
	uv_getaddrinfo_t lookup;
	bool looking_up;
	struct addrinfo *addrs, *addr; /* all, and the next to try */
	bool retry;
	bool read_only;

	/* sending */
	struct ws_piece *out, *out_last;
	size_t queued, queue_max, frame_max;
	bool drained_told, ping_due, close_due, close_sent;
	unsigned close_code, close_wait_ms;

	/* ending */
	bool failed; /* why it is being killed is already known */
	bool close_seen;
	enum ws_end end;
	int status;
	char why[256];
};

/* A new socket in the hub's list, its timer initialised. */
struct ws *ws_new(struct ws_hub *h, const struct ws_events *ev, void *user);

/* The end of a socket: tells the user and frees it when nothing uses it any more. */
void ws_finish(struct ws *w, enum ws_end end, int status, const char *why);
void ws_maybe_free(struct ws *w);

/* Kills an established or connecting socket; ws_finish() follows from its last callback. */
void ws_kill(struct ws *w, enum ws_end end, const char *why);

/* Runs hub_later() soon, outside of any call. */
void ws_hub_kick(struct ws_hub *h);

/* What every vhost is made with: our callback, and no pings of the library's own. */
extern const struct lws_protocols ws_protocols[];
extern const lws_retry_bo_t ws_no_pings;

/* ws_connect.c: tries the next address; reports when there is none. */
void ws_connect_next(struct ws *w);
void ws_connect_failed(struct ws *w, struct lws *wsi, const char *why);
int ws_add_headers(struct ws *w, struct lws *wsi, uint8_t **p, uint8_t *end);
