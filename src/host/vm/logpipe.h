/* logpipe - what a VM prints, on its way from __vm-boot to the daemon.
 *
 *   chunk := stream (1 byte, enum vm_stream) · length (3 bytes, big-endian) · bytes
 *
 * One pipe a VM. The writer keeps at most one chunk that did not fit; while there is one its user
 * takes in nothing more, so that a daemon which is slow slows the VM and no byte is lost. The
 * reader keeps nothing but the header that it is in.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/vm/vm.h"

#define LOGPIPE_CHUNK_MAX 16384 /* bytes of a chunk; the length 0 is illegal too */
#define LOGPIPE_HDR	  4
/* Asked for; the kernel may give less, and does when a user's pipes together have more than 64 MiB
 * (pipe-user-pages-soft). */
#define LOGPIPE_SIZE (256 << 10)

/* Near (read, non-blocking) and far end (write, non-blocking), close-on-exec. */
int logpipe_new(int ret[2]);

/* --- the writer --- */

struct logpipe_writer {
	int fd; /* owned; -1: nobody reads, and everything is dropped */
	size_t len, sent;
	uint8_t chunk[LOGPIPE_HDR + LOGPIPE_CHUNK_MAX];
};

void logpipe_writer_init(struct logpipe_writer *w, int fd);
void logpipe_writer_done(struct logpipe_writer *w);
/* Whether a chunk may be put. */
bool logpipe_idle(const struct logpipe_writer *w);
/* Idle, and 0 < len <= LOGPIPE_CHUNK_MAX. Writes what the pipe takes. */
void logpipe_put(struct logpipe_writer *w, enum vm_stream stream, const void *data, size_t len);
/* Writes what the pipe takes of the waiting chunk. */
void logpipe_push(struct logpipe_writer *w);
/* Until it is idle, which may mean that the reader has gone; -ETIMEDOUT after timeout_ms. */
int logpipe_flush(struct logpipe_writer *w, int timeout_ms);

/* --- the reader --- */

/* Zeroed at the start. */
struct logpipe_reader {
	uint8_t hdr[LOGPIPE_HDR];
	size_t hdr_len;
	size_t left; /* bytes of the chunk that are still to come */
};

/* Calls on_bytes for every piece of every chunk in `data`. 0, or -EPROTO. */
int logpipe_feed(struct logpipe_reader *r, const void *data, size_t len,
	void (*on_bytes)(enum vm_stream stream, const void *data, size_t len, void *user),
	void *user);
