/* utf8 - is it UTF-8, and if not, what is the nearest text that is.
 *
 * "Valid" is RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF. Repair replaces
 * every maximal invalid piece by one U+FFFD, as the Unicode Standard §3.9 recommends and as Rust's
 * from_utf8_lossy does (sandbox contract §1.4).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool utf8_valid(const void *data, size_t len);

/* Length of the longest valid prefix. */
size_t utf8_valid_prefix(const void *data, size_t len);

/* A new NUL-terminated text of *ret_len bytes (without the NUL); the caller frees it. Input NULs
 * are kept, so use the length. At most three times as long as the input. */
char *utf8_lossy(const void *data, size_t len, size_t *ret_len);

/* The largest length <= max at which `s` (NUL-terminated, valid UTF-8) can be cut. */
size_t utf8_cut(const char *s, size_t max);

/* Makes a NUL-terminated string valid in place: bytes of invalid pieces become '?'. */
void utf8_scrub(char *s);
