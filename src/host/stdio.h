/* stdio - the program's own stdin, stdout and stderr on an event loop, without blocking it and
 * without changing them for others.
 *
 * Non-blocking mode belongs to the open file description, which a shell or the next program in a
 * pipeline shares; so each stream is opened anew where the kernel allows (pipes, terminals) and put
 * back at the end where it does not (sockets). Regular files and /dev/null are read and written
 * directly: they cannot be polled and do not wait.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/buf.h"

#define STDIO_PENDING_MAX (4u << 20) /* bytes a sink keeps while its reader is slow */
#define STDIO_CHUNK	  65536u     /* bytes a source reads at once */

struct stdio_fd {
	int fd, original;
	int flags; /* to put back, or -1 */
	bool pollable;
	bool polling;
	uv_poll_t poll;
};

/* Writes go to a sink; when it is "full" the producer should pause until on_drained. */
struct stdio_sink {
	struct stdio_fd io;
	struct buf pending;
	bool broken; /* nobody reads any more (EPIPE) or writing failed; writes are dropped */
	/* Pending bytes have all been written after stdio_sink_write() had said 1. */
	void (*on_drained)(struct stdio_sink *s);
	/* `no` is the positive errno. */
	void (*on_broken)(struct stdio_sink *s, int no);
	void *user;
};

void stdio_sink_init(struct stdio_sink *s, uv_loop_t *loop, int fd);
/* 0: written; 1: some is pending, pause; -ENOBUFS: pending is full and the bytes are lost. */
int stdio_sink_write(struct stdio_sink *s, const void *data, size_t len);
void stdio_sink_done(struct stdio_sink *s); /* closes the poll handle: run the loop once more */

/* Reads chunks only while it is wanted. */
struct stdio_source {
	struct stdio_fd io;
	bool ended;
	/* Up to STDIO_CHUNK bytes, or len 0 at the end (also after a read error). */
	void (*on_data)(struct stdio_source *s, const uint8_t *data, size_t len);
	void *user;
};

void stdio_source_init(struct stdio_source *s, uv_loop_t *loop, int fd);
/* Delivers the next chunk when there is one: one on_data per call, which may come at once. */
void stdio_source_want(struct stdio_source *s);
void stdio_source_done(struct stdio_source *s);
