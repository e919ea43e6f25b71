/* layers - one layer's tar as a list of records and the contents of its files.
 *
 * The tar is read by libarchive with nothing but its tar reader registered; what comes out is
 * checked here: names      in normal form (tree_path_clean): absolute paths and ".." are refused,
 * in entries and in targets of hard links. Bytes are kept as they are, UTF-8 or not. whiteouts
 * ".wh.NAME" and ".wh..wh..opq" by their name alone, whatever their type says (they also come as
 * hard links). Other names that begin with ".wh..wh." are aufs' own housekeeping: skipped with all
 * below them. Entries below another ".wh." name, and whiteouts of "", "." and "..", are refused.
 *   files      of IMAGE_FILE_BYTES_MAX at most, IMAGE_BYTES_MAX together (holes count).
 *   owners     32 bits, -1 refused. Modes: permission, setuid, setgid, sticky kept.
 *   devices    12 bits of major and 20 of minor number, as Linux stores them.
 *   times      any second, to the nanosecond.
 *   xattrs     see xattr.h.
 *   refused    what is none of file, folder, symlink, hard link, device, fifo; hard links with
 *              content; headers of more than LAYER_HEADER_BYTES_MAX.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "host/image/body.h"
#include "host/image/build.h"
#include "host/image/records.h"
#include "host/image/stream.h"

/* Tar headers of one entry with its extensions (PAX, GNU names, sparse maps). */
#define LAYER_HEADER_BYTES_MAX (4u << 20)
/* What the names, targets and xattrs of all layers take in memory. */
#define LAYER_META_BYTES_MAX (1ull << 30)

/* Counts over all layers of a build; the limits may be lowered by tests. */
struct layer_shared {
	struct stream_shared stream;
	_Atomic uint64_t file_bytes, meta_bytes, entries;
	uint64_t file_bytes_max;     /* IMAGE_BYTES_MAX */
	uint64_t one_file_bytes_max; /* IMAGE_FILE_BYTES_MAX */
	uint64_t layer_entries_max;  /* IMAGE_ENTRIES_MAX */
	uint64_t entries_max;	     /* IMAGE_TREE_ENTRIES_MAX */
	uint64_t meta_bytes_max;     /* LAYER_META_BYTES_MAX */
};

void layer_shared_init(struct layer_shared *sh);

struct layer_result {
	struct records records;
	struct body_sink bodies;
	uint8_t tar_sha256[32];
	uint64_t entries;
};

void layer_result_init(struct layer_result *r);
void layer_result_done(struct layer_result *r);

/* Reads the layer; `source` is what the bodies' records call its scratch files. Errors name the
 * layer and the entry. Safe to call from several threads at once. */
int layer_read(const struct image_layer *layer, uint32_t source, struct layer_shared *sh,
	int scratch_dirfd, struct layer_result *ret, struct err *e);
