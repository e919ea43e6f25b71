/* blocks - moves file contents from the scratch files into the disk, several threads at once.
 *
 * Shares blocks where the file system can (FICLONERANGE), else copies inside the kernel
 * (copy_file_range), else by hand. Holes stay holes. Positions are given, so the result does not
 * depend on who copies what when.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct blocks_run {
	uint64_t from, to, len; /* byte offsets, multiples of 4 KiB; len may end within a block */
	int fd;			/* borrowed */
};

struct blocks; /* a copy under way */

/* Starts `threads` helpers (0: none) on a list of runs that must stay until blocks_finish. */
struct blocks *blocks_start(int out_fd, const struct blocks_run *runs, size_t n, unsigned threads);

/* Helps until all is copied, waits for the helpers and frees. `stop` (may be NULL) is polled
 * between pieces; `give_up` drops what was not begun. 0, or the first failure. */
int blocks_finish(
	struct blocks *b, bool give_up, bool (*stop)(void *user), void *user, struct err *e);
