/* build - layers in, one disk out: the step between an image's blobs and its EROFS.
 *
 * Reads every layer once (gzip, zstd or plain tar, told by magic), checks blob digest and diff id
 * in the same pass, merges by the OCI rules (image-spec layer.md: whiteouts, opaque directories,
 * hard links across layers) and writes an uncompressed EROFS that Linux mounts read-only. The same
 * layers give the same bytes, always. No path of a layer is ever opened on the host.
 *
 * layers.c reads, tree.c merges, erofs.c writes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Limits (sandbox contract §7); the error names the layer, the number and the limit. */
#define IMAGE_LAYERS_MAX       128
#define IMAGE_BYTES_MAX	       (10ull << 30) /* unpacked, all layers together */
#define IMAGE_FILE_BYTES_MAX   (5ull << 30)  /* one file */
#define IMAGE_ENTRIES_MAX      1000000u	     /* tar entries of one layer */
#define IMAGE_TREE_ENTRIES_MAX 4000000u	     /* names in the merged tree */
#define IMAGE_DEPTH_MAX	       128	     /* path components */
#define IMAGE_PATH_MAX	       4096	     /* bytes of a path */
#define IMAGE_NAME_MAX	       255	     /* bytes of one component */
#define IMAGE_XATTRS_MAX       (64u << 10)   /* bytes of names and values of one inode */

/* One layer's blob: `size` bytes of `fd` from `offset` (read with pread only, so that several may
 * share a descriptor). Borrowed. */
struct image_layer {
	int fd;
	uint64_t offset, size;
	const char *digest;  /* "sha256:<64 hex>" of these bytes, or NULL: not checked */
	const char *diff_id; /* "sha256:<64 hex>" of the uncompressed tar, or NULL: not checked */
	const char *name;    /* for errors: digest or file name */
};

struct image_build {
	const struct image_layer *layers; /* lowest first */
	size_t n_layers;
	int out_fd;	    /* empty regular file, read-write */
	int scratch_dirfd;  /* folder on the same file system, for unnamed temporary files */
	unsigned threads;   /* 0: as many as CPUs, at most one a layer */
	uint64_t bytes_max; /* of the output, 0: IMAGE_BYTES_MAX plus metadata */
	/* Called from the calling thread only, with compressed bytes read so far over all layers.
	 */
	void (*progress)(uint64_t done_bytes, uint64_t total_bytes, void *user);
	bool (*cancelled)(void *user); /* polled; true ends with -ECANCELED; may be NULL */
	void *user;
};

struct image_build_stats {
	uint64_t entries, inodes, data_bytes, disk_bytes;
};

/* Builds the disk; out_fd is complete (not yet fsynced) on success and of undefined content on
 * failure. Errors name the layer, the entry and the limit or cause. `stats` may be NULL. */
int image_build(const struct image_build *b, struct image_build_stats *stats, struct err *e);
