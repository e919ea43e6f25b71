/* channel - the two ends of an engine's one-way channels, by which files travel.
 *
 * A reference (struct bus_channel_ref) names a channel; each end can be taken once in its life. All
 * callbacks come from the loop; in them every call is allowed. Memory is bounded on both ends: a
 * reader that is paused stops its socket, a writer takes one chunk at a time.
 *
 * A reader sees a Close frame as the end and anything else as a break. It cannot tell a sender that
 * finished from one that died: the engine closes both the same way.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "host/bus/bus.h"

#define CHANNEL_CHUNK_MAX 65536 /* bytes of one binary frame; iii clients send no larger ones */
#define CHANNEL_TEXT_MAX  65536 /* bytes of a text frame; a reader skips longer ones */

struct channel_reader;
struct channel_writer;

enum channel_end {
	CHANNEL_END,	     /* reader: all was read; writer: all was sent and the Close frame */
	CHANNEL_REFUSED,     /* the engine does not know the id or the key */
	CHANNEL_UNREACHABLE, /* no connection to the engine */
	CHANNEL_STALLED,     /* nothing moved for too long */
	CHANNEL_BROKEN,	     /* the connection ended in the middle */
};

struct channel_reader_events {
	/* Never empty. After channel_reader_pause() one more may come. */
	void (*data)(struct channel_reader *r, const uint8_t *data, size_t len, void *user);
	/* A text frame, not NUL-terminated, any bytes. NULL: they are ignored. */
	void (*text)(struct channel_reader *r, const char *text, size_t len, void *user);
	/* The last one; r is gone when it returns. */
	void (*end)(struct channel_reader *r, enum channel_end end, const char *why, void *user);
};

/* Opens the read end. It ends with CHANNEL_STALLED when no bytes come for idle_ms (before the
 * first, too; text is not counted; time while paused is not counted). `ev` must outlive it. */
struct channel_reader *channel_read(struct bus *b, const struct bus_channel_ref *ref,
	unsigned idle_ms, const struct channel_reader_events *ev, void *user);
void channel_reader_pause(struct channel_reader *r);
void channel_reader_resume(struct channel_reader *r);
/* Gives it up without another event. NULL allowed. */
void channel_reader_close(struct channel_reader *r);

struct channel_writer_events {
	/* The engine has accepted it. Not needed for writing. May be NULL. */
	void (*open)(struct channel_writer *w, void *user);
	/* The chunk is out: another one is taken. May be NULL. */
	void (*drain)(struct channel_writer *w, void *user);
	/* The last one; w is gone when it returns. */
	void (*end)(struct channel_writer *w, enum channel_end end, const char *why, void *user);
};

/* Opens the write end. The first chunk can be given at once, the next ones after `drain`. It ends
 * with CHANNEL_STALLED when what was given makes no progress for stall_ms. */
struct channel_writer *channel_write_open(struct bus *b, const struct bus_channel_ref *ref,
	unsigned stall_ms, const struct channel_writer_events *ev, void *user);

/* One binary frame of up to CHANNEL_CHUNK_MAX bytes (0 bytes: nothing is sent). 0, -EAGAIN (wait
 * for drain), -EMSGSIZE, or -EPIPE (finished, or ending). */
int channel_write(struct channel_writer *w, const void *data, size_t len);
/* One text frame of up to CHANNEL_TEXT_MAX bytes, made valid UTF-8; behind a chunk that still
 * waits, too, but only one. */
int channel_write_text(struct channel_writer *w, const char *text, size_t len);

/* Sends what was given, then a Close frame, also when nothing was given; `end` follows once the
 * engine has taken it, or with what came in between. */
void channel_writer_finish(struct channel_writer *w);
/* Breaks it off without another event: the reader sees what arrived before. NULL allowed. */
void channel_writer_close(struct channel_writer *w);
