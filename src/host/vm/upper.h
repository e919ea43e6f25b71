/* upper - the writable disk of a VM: an empty ext4 made ready in a few milliseconds.
 *
 * mke2fs makes a template of each size and label once (cache/upper). Every sandbox gets a sparse
 * copy that has no name, so it is gone with the last process that has it open, whatever happens;
 * every worker VM one that has a name and is kept.
 */
#pragma once

#include <stdint.h>

#include "base/err.h"

#define UPPER_SIZE_DEFAULT ((uint64_t)8 << 30)
#define UPPER_SIZE_MIN	   ((uint64_t)64 << 20)
#define UPPER_SIZE_MAX	   ((uint64_t)1 << 40)
#define UPPER_LABEL_MAX	   16 /* ext4's own limit */

/* Opens a new, empty, unnamed disk read-write. size_bytes: a multiple of 1 MiB within the limits.
 * Blocks: a few milliseconds, the first time of a size longer (mke2fs). The state folder may not be
 * on a tmpfs, where a guest could fill the host's memory; III_SANDBOX_ALLOW_TMPFS=1 allows it. */
int upper_new(uint64_t size_bytes, int *ret_fd, struct err *e);

/* Opens the disk `name` of a folder read-write, made if it is not there: then it is whole and on
 * the platter before it has that name, and nothing is left of one that could not be made (where the
 * file system has no unnamed files, a crash leaves .NAME.partial, which the next call removes). One
 * that is there is never formatted again; a link, anything but a regular file of ours, or another
 * size is refused. `label`: [A-Za-z0-9._-]{1,UPPER_LABEL_MAX}. Blocks like upper_new, and by fsync.
 * S504; S300 when mke2fs is missing. */
int upper_open_named(int dirfd, const char *name, uint64_t size_bytes, const char *label,
	int *ret_fd, struct err *e);
