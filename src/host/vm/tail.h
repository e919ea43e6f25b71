/* tail - the end of what a stream said, in a fixed amount of memory.
 *
 * A guest may print for ever: what does not fit is dropped from the front and counted.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "host/vm/vm.h"

struct tail {
	uint64_t total;		    /* bytes seen; the last of them are kept … */
	char ring[VM_CONSOLE_TAIL]; /* … at total modulo the size */
};

void tail_add(struct tail *t, const void *data, size_t len);

/* Adds up to VM_CONSOLE_LINES last lines to `out`, each starting with `name: `; a line in front
 * says how much is missing. What is not UTF-8 or printable becomes '?', so that nothing a guest
 * prints can move a terminal's cursor or forge a log line. Nothing for an empty stream. */
void tail_text(const struct tail *t, const char *name, struct buf *out);
