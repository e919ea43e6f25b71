/* mux - many streams over one ordered byte pipe: HTTP/2 (RFC 9113) by nghttp2, both roles.
 *
 * No descriptor, no clock, no log line: bytes that arrived go in with mux_feed(), bytes to send
 * come out of mux_pull(), and callbacks tell what happened. The host is the client and trusts
 * nothing the agent sends; the agent is the server.
 *
 * Limits: windows of 64 KiB per stream, up to MUX_WINDOW_MAX for one that is read steadily, and 2
 * MiB for the connection; MUX_STREAMS_MAX
 * streams at once; header lists of at most MUX_HEADERS_MAX bytes; floods of SETTINGS, PING and
 * RST_STREAM end the connection. Flow control is end to end: a reader that does not call
 * mux_stream_consume() stops its peer, and nobody else.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define MUX_STREAMS_MAX                                                                            \
	256 /* a client's further opens are queued by nghttp2; a peer's are refused */
#define MUX_HEADERS_MAX 4096	     /* bytes of one header list; longer resets the stream */
#define MUX_WINDOW_MAX	(1u << 20)   /* bytes a reader may be sent after it stopped consuming */
#define MUX_OUT_MAX	(128u << 10) /* mux_pull gives at most about this much at once */

enum mux_role {
	MUX_CLIENT,
	MUX_SERVER,
};

struct mux;
struct mux_stream;

/* All callbacks run inside mux_feed() or mux_pull(). They may call any stream function, but not
 * mux_feed, mux_pull or mux_free. */
struct mux_callbacks {
	/* Server: the peer opened a stream for `path`. Return 0 and set the stream's user with
	 * mux_stream_set_user(), or a negative errno to refuse it. NULL for clients. */
	int (*on_open)(struct mux *m, struct mux_stream *s, const char *path, void *mux_user);
	/* Bytes arrived. The receiver owes mux_stream_consume() of the same total, now or later.
	 * A negative return resets the stream. */
	int (*on_data)(struct mux_stream *s, const uint8_t *data, size_t len, void *user);
	/* The peer will send no more on this stream. */
	void (*on_end)(struct mux_stream *s, void *user);
	/* The stream is gone, for whatever reason; the last call about it. `h2_error` is 0
	 * (NO_ERROR) when both sides had ended. Also called for every stream by mux_free(). */
	void (*on_close)(struct mux_stream *s, uint32_t h2_error, void *user);
	/* Fill buf with up to cap bytes to send. Return the count and set *ret_eof with the last
	 * ones (0 with *ret_eof ends an empty body); 0 without eof means "nothing now", after
	 * which mux_stream_resume() is owed; negative resets the stream. */
	ssize_t (*on_pull)(
		struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof, void *user);
	/* The peer answered mux_ping(). May be NULL. */
	void (*on_pong)(struct mux *m, void *mux_user);
};

/* `cb` must outlive the mux. */
struct mux *mux_new(enum mux_role role, const struct mux_callbacks *cb, void *mux_user);
void mux_free(struct mux *m); /* NULL allowed; closes every stream with CANCEL first */

/* Takes bytes that arrived. 0, or a negative errno with the reason: the connection is dead, send
 * what mux_pull still gives (it may hold a GOAWAY) and drop it. */
int mux_feed(struct mux *m, const uint8_t *data, size_t len, struct err *e);

/* Bytes to send now: count and *ret (valid until the next call on this mux), 0 for none,
 * negative errno when the session failed. */
ssize_t mux_pull(struct mux *m, const uint8_t **ret, struct err *e);

/* True when mux_pull() might give something. */
bool mux_wants_write(const struct mux *m);

/* Streams that are open now. */
size_t mux_stream_count(const struct mux *m);

/* Client: opens a stream. Its body is pulled by on_pull. NULL when the connection is closing. */
struct mux_stream *mux_open(struct mux *m, const char *path, void *user);

void mux_stream_set_user(struct mux_stream *s, void *user);
void *mux_stream_user(const struct mux_stream *s);
struct mux *mux_stream_mux(const struct mux_stream *s);

/* The reader took n bytes: the peer may send as many more. */
void mux_stream_consume(struct mux_stream *s, size_t n);
/* on_pull has something again. */
void mux_stream_resume(struct mux_stream *s);
/* Gives the stream up in both directions: RST_STREAM with CANCEL (0x8). on_close follows. */
void mux_stream_reset(struct mux_stream *s);

/* Liveness: sends a PING; on_pong follows. */
int mux_ping(struct mux *m);
