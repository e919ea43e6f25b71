/* rx_replace - replacing matches within one line (sandbox contract §5.13).
 *
 * In a template $1, $name and ${name} stand for groups; the bare form takes the longest run of
 * ASCII letters, digits and _ ("$1x" is the group "1x"). A group that does not exist or took no
 * part is empty; $$ is one $; any other $ and every backslash is itself.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/buf.h"
#include "wire/rx.h"

struct rx_template;

/* With RX_LITERAL among `flags` the text stands for itself. */
struct rx_template *rx_template_new(
	const struct rx *rx, const char *text, size_t len, unsigned flags);
void rx_template_free(struct rx_template *t); /* NULL allowed */

/* Replaces all matches that do not overlap, or only the first, and appends the whole new line to
 * `out`; an empty match right behind another match is none. Returns how many there were (nothing is
 * appended when 0), or -ENOBUFS/-ENOMEM from `out`. The line must be valid UTF-8. */
ssize_t rx_replace(struct rx *rx, const struct rx_template *t, const char *line, size_t len,
	bool first_only, struct buf *out);
