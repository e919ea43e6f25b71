/* b64 - base64 with the standard alphabet, read strictly (RFC 4648 §4, §3.5). */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Decodes `len` characters into a new block (the caller frees it; never NULL on success). -EINVAL
 * for anything but whole groups of four of A-Z a-z 0-9 + / with `=` only where it must be and the
 * unused bits zero. No white space, no other alphabet. */
int b64_decode(const char *s, size_t len, uint8_t **ret, size_t *ret_len);
