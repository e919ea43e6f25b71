/* erofs - writes a tree as an uncompressed EROFS disk.
 *
 * The bytes depend on the tree and the file contents alone, not on threads or time. Layout: block 0
 * with the superblock, the inodes with the tails of small files, the folders' whole blocks, the
 * files' whole blocks in the order of their sources.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "host/image/tree.h"

/* Where file contents come from: whole blocks from one file, last partial blocks from another (may
 * be the same). Borrowed. */
struct erofs_source {
	int data_fd, tail_fd;
};

struct erofs_write {
	struct tree *tree; /* sorted here; its inodes' nid and blkaddr are set */
	const struct erofs_source *sources;
	uint32_t n_sources;
	int out_fd; /* empty regular file */
	uint8_t uuid[16];
	uint64_t bytes_max;	  /* -EFBIG beyond */
	unsigned threads;	  /* that copy; 0 is 1 */
	bool (*stop)(void *user); /* polled in the calling thread; true ends with -ECANCELED */
	void *user;
};

struct erofs_stats {
	uint64_t inodes, data_bytes, disk_bytes;
};

/* 0 or a negative errno; out_fd's content is undefined then. `stats` may be NULL. */
int erofs_write(const struct erofs_write *w, struct erofs_stats *stats, struct err *e);
