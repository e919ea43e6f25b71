/* stamp - the SHA-256 of a list of fields, so that no two lists look alike: every field has its
 * length in front.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "wire/worker.h"

struct stamp {
	void *ctx; /* of OpenSSL */
};

void stamp_init(struct stamp *s);
void stamp_done(struct stamp *s); /* also of one that is zeroed */

void stamp_bytes(struct stamp *s, const void *data, size_t len);
void stamp_text(struct stamp *s, const char *text); /* NULL is "" */
void stamp_u64(struct stamp *s, uint64_t v);

/* A field that comes in pieces: its length first. */
void stamp_begin(struct stamp *s, uint64_t len);
void stamp_piece(struct stamp *s, const void *data, size_t len);
void stamp_zeros(struct stamp *s, uint64_t len);

/* Ends it; stamp_init() begins another. Lower-case hex. */
void stamp_end(struct stamp *s, char ret[static WORKER_DIGEST_LEN + 1]);
