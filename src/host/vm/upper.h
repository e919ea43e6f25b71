/* upper - the writable disk of a VM: an empty ext4 made ready in a few milliseconds.
 *
 * mke2fs makes a template of each size once (cache/upper); every sandbox gets a sparse copy that
 * has no name, so it is gone with the last process that has it open, whatever happens.
 */
#pragma once

#include <stdint.h>

#include "base/err.h"

#define UPPER_SIZE_DEFAULT ((uint64_t)8 << 30)
#define UPPER_SIZE_MIN	   ((uint64_t)64 << 20)
#define UPPER_SIZE_MAX	   ((uint64_t)1 << 40)

/* Opens a new, empty, unnamed disk read-write. size_bytes: a multiple of 1 MiB within the limits.
 * Blocks: a few milliseconds, the first time of a size longer (mke2fs). The state folder may not be
 * on a tmpfs, where a guest could fill the host's memory; III_SANDBOX_ALLOW_TMPFS=1 allows it. */
int upper_new(uint64_t size_bytes, int *ret_fd, struct err *e);
