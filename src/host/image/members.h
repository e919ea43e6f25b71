/* members - a table of what lies where in a tar archive, so that its members can be read in place.
 *
 * The archive is read once, headers only. A compressed one (gzip, zstd) is unpacked to an unnamed
 * temporary file first, because a place inside it could not be named.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define MEMBERS_MAX	  65536		/* entries of one archive; more are refused */
#define MEMBERS_LINKS_MAX 8		/* links followed from one name */
#define MEMBERS_BYTES_MAX (11ull << 30) /* of an archive after decompression */

struct members;

/* Where a member's bytes are. The descriptor belongs to the table. */
struct member {
	int fd;
	uint64_t offset, size;
};

int members_open(const char *path, int scratch_dirfd, bool (*cancelled)(void *), void *user,
	struct members **ret, struct err *e);
void members_close(struct members *m); /* NULL allowed */

/* A regular file by its name in the archive ("a/b", as written or with ./ in front); links inside
 * the archive are followed. Of several with one name the last counts, unless `unique` is set: then
 * that is an error. -ENOENT when there is none. */
int members_find(
	const struct members *m, const char *name, bool unique, struct member *ret, struct err *e);
