/* stream - a layer's blob, read once, as the tar that is in it.
 *
 * Tells gzip, zstd and plain tar by their first bytes, whatever the media type says. Hashes both
 * sides on the way: the blob and the tar, each to its very end, also what no tar reader looks at.
 *
 * gzip: several members one after another are one stream; bytes behind the last member that do not
 * begin another are hashed and otherwise ignored, as gzip(1) does. zstd: the same with frames;
 * skippable frames are skipped. A stream that ends early or whose check sum is wrong is an error.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "host/image/build.h"

/* Bytes of tar of all layers together: file contents up to their own limit, and 6 GiB of headers
 * and filling. Beyond it the build fails with -EFBIG: bounds what a bomb can cost. */
#define STREAM_TAR_BYTES_MAX (IMAGE_BYTES_MAX + (6ull << 30))

/* What the layers of one build share. */
struct stream_shared {
	_Atomic uint64_t blob_bytes; /* read so far, for progress */
	_Atomic uint64_t tar_bytes;
	uint64_t tar_bytes_max;
	atomic_bool stop; /* true: every stream ends with -ECANCELED */
};

struct stream;

int stream_new(const struct image_layer *layer, struct stream_shared *shared, struct stream **ret,
	struct err *e);
void stream_free(struct stream *s); /* NULL allowed */

/* The next bytes of the tar, valid until the next call: their count, 0 at the end. */
ssize_t stream_next(struct stream *s, const void **ret, struct err *e);

/* Reads both sides to the end and compares the digests. `tar_sha256` gets the tar's. */
int stream_finish(struct stream *s, uint8_t tar_sha256[static 32], struct err *e);
