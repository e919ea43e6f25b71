/* call - inside host/guest: what all operations share.
 *
 * An operation embeds a struct guest_call as its first thought: it is allocated by its family,
 * opened by guest_call_open(), and ends exactly once:
 *
 *   open -> ended   by result (END record and end of stream), failure, deadline, loss,
 * guest_free(): ops->done is called by guest_call_cancel(): nothing is called
 *
 * Memory goes when the last reference does: the list of calls under way holds one, and each
 * callback of the mux one while it runs, so that a user may cancel or free from any callback.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "host/guest/guest.h"
#include "mux/mux.h"
#include "wire/guest.h"
#include "wire/json.h"

#define GUEST_QUEUE_MAX (128u << 10) /* bytes of stdin or file that wait in a call; then "full" */
#define GUEST_JSON_MAX	8192 /* HEAD or END of a reply, besides names that the request gave */

struct guest_call_ops {
	const char *path;
	const char *name;      /* for messages: "exec" */
	const char *lost_code; /* S-code of a failure of agent or connection */
	/* The HEAD or END of the reply, valid until the call ends. NULL: no such record is legal.
	 * Negative with *e: a breach of protocol. */
	int (*on_head)(struct guest_call *c, json_object *o, struct err *e);
	int (*on_result)(struct guest_call *c, json_object *o, struct err *e);
	/* A piece of DATA, OUT or ERR. NULL: none is legal. */
	int (*on_bytes)(struct guest_call *c, enum guest_rec type, const uint8_t *data, size_t len,
		struct err *e);
	/* guest_call_send() takes more again. May be NULL. */
	void (*on_room)(struct guest_call *c);
	/* The end: why == NULL is success, and on_result was called before. */
	void (*done)(struct guest_call *c, const struct err *why);
};

struct guest_call {
	struct guest *g;
	const struct guest_call_ops *ops;
	struct guest_call *prev, *next;
	unsigned refs;
	bool ended;
	struct mux_stream *stream; /* NULL once the call ended or the stream closed */
	uint32_t close_error;	   /* then: how it closed */
	uint64_t give_up_ms; /* guest_now_ms() at which the host gives up; UINT64_MAX: never */
	struct err *late;    /* what is said then */

	/* what comes */
	struct guest_reader reader;
	size_t owed; /* bytes not yet consumed */
	bool paused;
	json_object *head, *result;
	struct err *failed; /* the agent's {"error":…} */

	/* what goes */
	struct buf out; /* records; the first out_off bytes are sent */
	size_t out_off;
	uint64_t out_bytes; /* payload taken by guest_call_send() */
	bool out_end;	    /* nothing will be added */
	bool out_ended;	    /* the last byte and the end of stream are with the mux */
	bool out_full;	    /* on_room is owed */
};

/* Milliseconds of the monotonic clock, never stale. */
uint64_t guest_now_ms(void);

/* Opens the stream with HEAD `request` (taken, also on failure). `c` was allocated with xcalloc and
 * begins the family's struct; on failure it is freed. `names` is the length of the strings of the
 * request that the agent may quote in its reply. */
int guest_call_open(struct guest *g, struct guest_call *c, const struct guest_call_ops *ops,
	json_object *request, size_t names, struct err *e);
/* The host gives up at that distance from now, and says so. */
void guest_call_set_deadline(struct guest_call *c, uint64_t after_ms, const struct err *late);
/* Queues payload of DATA; how much was taken. */
size_t guest_call_send(struct guest_call *c, const void *data, size_t len);
void guest_call_send_end(struct guest_call *c);
void guest_call_pause(struct guest_call *c, bool paused);

/* --- between guest.c and call.c --- */

extern const struct mux_callbacks guest_mux_callbacks;

/* Ends the call: unlinks it, gives the stream up, calls ops->done. */
void guest_call_finish(struct guest_call *c, const struct err *why);
/* As guest_call_finish, with `why` and the code of the operation. */
void guest_call_lose(struct guest_call *c, const struct err *why);

/* The stream of the call closed before its end, and the connection is sound. */
void guest_call_fail_closed(struct guest_call *c);
/* Some stream did: the calls without one are to be failed when the mux is left. */
void guest_stream_closed(struct guest *g);

/* NULL with *e when the connection is lost. */
struct mux_stream *guest_open_stream(
	struct guest *g, const char *path, struct guest_call *c, struct err *e);
void guest_link_call(struct guest *g, struct guest_call *c);
void guest_unlink_call(struct guest *g, struct guest_call *c);
/* There is something to send; the loop will. */
void guest_kick(struct guest *g);
/* A deadline was set. */
void guest_arm_timer(struct guest *g);
/* The agent broke the protocol: the connection is lost as soon as the mux is left. */
void guest_breach(struct guest *g, const char *what, const struct err *e);
bool guest_is_broken(const struct guest *g);
