/* cmdline - the words for the agent on the kernel's command line.
 *
 *   iii.base=SERIAL iii.upper=SERIAL      the virtio-blk serials of the two disks
 *   iii.source=SERIAL                     of the disk with a worker's source: worker VMs only
 *
 * Words of others are ignored, and so is everything behind the word "--": there a VMM puts
 * arguments for an init of its own. Double quotes group as they do in the kernel. Where a word is
 * given twice the first counts, so that nothing appended later can replace it.
 */
#pragma once

#include <stddef.h>

#include "base/err.h"

#define CMDLINE_SERIAL_MAX 20 /* VIRTIO_BLK_ID_BYTES; a longer serial is a boot failure */

struct cmdline {
	char base[CMDLINE_SERIAL_MAX + 1];   /* "" when not given */
	char upper[CMDLINE_SERIAL_MAX + 1];  /* "" when not given */
	char source[CMDLINE_SERIAL_MAX + 1]; /* "" when not given */
};

/* 0, or -EINVAL when one of our words has no value or one that no disk can have. */
int cmdline_parse(const char *text, size_t len, struct cmdline *ret, struct err *e);
