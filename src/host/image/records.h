/* records - the entries of one layer, in order, until the layers below it have been applied.
 *
 * Compact (about 90 bytes an entry): a path is stored as what differs from the one before.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "host/image/build.h"
#include "host/image/tree.h"

enum record_kind {
	RECORD_PUT,
	RECORD_LINK,
	RECORD_WHITEOUT,
	RECORD_OPAQUE,
};

struct records {
	uint8_t **chunks;
	size_t n, used, size; /* used of size bytes in the last chunk */
	size_t bytes;	      /* in all records */
	char path[IMAGE_PATH_MAX + 1];
};

struct record {
	enum record_kind kind;
	const char *path;
	const char *target; /* RECORD_LINK */
	struct tree_attr attr;
};

struct records_iter {
	const struct records *r;
	size_t chunk, at;
	char path[IMAGE_PATH_MAX + 1];
};

void records_init(struct records *r);
void records_done(struct records *r);
/* Copies all that the record points to. */
void records_add(struct records *r, const struct record *rec);

void records_begin(struct records_iter *it, const struct records *r);
/* False at the end. What *ret points to is valid until the next call. */
bool records_next(struct records_iter *it, struct record *ret);
