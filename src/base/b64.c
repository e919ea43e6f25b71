#include "base/b64.h"

#include <errno.h>

#include "base/mem.h"

/* The six bits of a character, or -1. */
static int bits_of(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	if (c == '+')
		return 62;
	return c == '/' ? 63 : -1;
}

/* One group with n = 2, 3 or 4 characters before its padding: n - 1 bytes. */
static int decode_group(const char *s, size_t n, uint8_t *out)
{
	uint32_t v = 0;

	for (size_t i = 0; i < 4; i++) {
		int bits = i < n ? bits_of(s[i]) : 0;

		if (bits < 0)
			return -EINVAL;
		v = v << 6 | (uint32_t)bits;
	}
	/* Bits below the last byte must be zero. */
	if (v & ((1u << (8 * (4 - n))) - 1))
		return -EINVAL;
	for (size_t i = 0; i + 1 < n; i++)
		out[i] = (uint8_t)(v >> (16 - 8 * i));
	return 0;
}

int b64_decode(const char *s, size_t len, uint8_t **ret, size_t *ret_len)
{
	cleanup_free uint8_t *out = NULL;
	size_t pad = 0, at = 0;

	if (len % 4 != 0)
		return -EINVAL;
	while (pad < 2 && pad < len && s[len - 1 - pad] == '=')
		pad++;
	out = xmalloc(len / 4 * 3 + 1);
	for (size_t i = 0; i < len; i += 4) {
		size_t n = i + 4 == len ? 4 - pad : 4;

		if (decode_group(s + i, n, out + at) < 0)
			return -EINVAL;
		at += n - 1;
	}
	*ret = STEAL(out);
	*ret_len = at;
	return 0;
}
