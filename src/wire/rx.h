/* rx - regular expressions over single lines: Rust's syntax (sandbox contract §5.11) on RE2.
 *
 * Time is linear in the text whatever the pattern. A line is given without its terminator, so that
 * `^ $ \A \z` are its two ends; it must be valid UTF-8.
 *
 * Understood: what Rust's `regex` 1.x documents, with Unicode \d \w \s \b, simple case folding,
 * (?<n>…), flags i m s U x u, nested classes and class operations (&& -- ~~), names of groups that
 * need not be ASCII-only words. Refused with a reason (S217): look-around, back-references, what
 * Rust calls a syntax error, and what RE2 does not have: repetition counts over 1000, flags R and
 * -u, properties other than general categories, scripts and a few binary ones.
 * One deviation: in lines over RX_BOUNDARY_LINE_MAX that are not ASCII, \b and \B see ASCII words
 * only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RX_PATTERN_MAX	     (256u << 10) /* bytes; a longer pattern is refused with S217 */
#define RX_BOUNDARY_LINE_MAX (16u << 20)  /* bytes; see above */

struct rx;

enum rx_flags {
	RX_IGNORE_CASE = 1 << 0, /* as if the pattern began with (?i) */
	RX_LITERAL = 1 << 1,	 /* the pattern is plain text */
};

/* Compiles `len` bytes. 0 and *ret (rx_free), or -EINVAL with S217 and the reason. */
int rx_new(const char *pattern, size_t len, unsigned flags, struct rx **ret, struct err *e);
void rx_free(struct rx *rx); /* NULL allowed */

/* Groups, the whole match (0) included. */
size_t rx_groups(const struct rx *rx);
/* The number of a named group, or -1. */
int rx_group_named(const struct rx *rx, const char *name, size_t len);

struct rx_span {
	size_t start, end; /* RX_UNSET both: the group took no part */
};
#define RX_UNSET ((size_t)-1)

/* Sets the line that rx_find looks at; it must stay until the next one is set. */
void rx_line(struct rx *rx, const char *line, size_t len);
/* The leftmost match at or behind byte `from` of the line (a character's begin, <= its length);
 * what stands before `from` still counts for ^ and \b. Fills n spans, from the whole match on. With
 * n == 0 this only says whether there is one, which is quicker. */
bool rx_find(struct rx *rx, size_t from, struct rx_span *spans, size_t n);

/* Looks through a block of many lines (terminated by LF or CR LF; any bytes) from `from` on for a
 * line that may match, and sets *ret_at to a place on it (its LF counts as on it). A line passed
 * over does not match; the one found has to be asked by rx_line and rx_find. */
bool rx_scan(struct rx *rx, const char *block, size_t len, size_t from, size_t *ret_at);

#ifdef __cplusplus
}
#endif
