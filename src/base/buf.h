/* buf - a byte buffer that grows up to a ceiling given at its birth.
 *
 * Everything whose size somebody else decides (a message, a manifest, output of a child) is
 * collected in one of these, so that no peer can make the process grow without bound.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct buf {
	uint8_t *data; /* len bytes are valid, one NUL behind them once anything was added */
	size_t len;
	size_t cap;
	size_t max; /* ceiling of len */
};

#define cleanup_buf __attribute__((cleanup(buf_done)))

void buf_init(struct buf *b, size_t max);
void buf_done(struct buf *b);  /* frees the bytes; the buf may be initialised again */
void buf_clear(struct buf *b); /* keeps the memory */

/* 0, or -ENOBUFS (nothing added) when the ceiling would be passed, or -ENOMEM. */
int buf_add(struct buf *b, const void *data, size_t len);
int buf_add_str(struct buf *b, const char *s);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Makes room for `len` more bytes and returns where to put them, or NULL (ceiling, no memory);
 * buf_added() then says how many were put. */
void *buf_room(struct buf *b, size_t len);
void buf_added(struct buf *b, size_t len);

/* Drops the first n bytes. */
void buf_drop(struct buf *b, size_t n);

/* The text, NUL-terminated, handed over to the caller, who frees it; the buf is empty afterwards.
 */
char *buf_steal(struct buf *b);
