#include "base/utf8.h"

#include <string.h>

#include "base/mem.h"

/* Length of the valid character at p (1..4), or minus the length of the maximal invalid piece.
 * RFC 3629 §4 gives the allowed second bytes. */
static int step(const uint8_t *p, size_t len)
{
	uint8_t lo = 0x80, hi = 0xbf;
	int need, i;

	if (p[0] < 0x80)
		return 1;
	if (p[0] >= 0xc2 && p[0] <= 0xdf)
		need = 2;
	else if (p[0] >= 0xe0 && p[0] <= 0xef)
		need = 3;
	else if (p[0] >= 0xf0 && p[0] <= 0xf4)
		need = 4;
	else
		return -1;
	if (p[0] == 0xe0)
		lo = 0xa0;
	else if (p[0] == 0xed)
		hi = 0x9f;
	else if (p[0] == 0xf0)
		lo = 0x90;
	else if (p[0] == 0xf4)
		hi = 0x8f;
	for (i = 1; i < need; i++) {
		if ((size_t)i >= len || p[i] < lo || p[i] > hi)
			return -i;
		lo = 0x80;
		hi = 0xbf;
	}
	return need;
}

/* Bytes of plain ASCII from p on; eight at a time, since most text is ASCII. */
static size_t ascii_run(const uint8_t *p, size_t len)
{
	size_t i = 0;
	uint64_t w;

	for (; i + 8 <= len; i += 8) {
		memcpy(&w, p + i, 8);
		if (w & 0x8080808080808080ULL)
			break;
	}
	while (i < len && p[i] < 0x80)
		i++;
	return i;
}

size_t utf8_valid_prefix(const void *data, size_t len)
{
	const uint8_t *p = data;
	size_t i = 0;

	while (i < len) {
		int n;

		i += ascii_run(p + i, len - i);
		if (i == len)
			break;
		n = step(p + i, len - i);
		if (n < 0)
			break;
		i += n;
	}
	return i;
}

bool utf8_valid(const void *data, size_t len)
{
	return utf8_valid_prefix(data, len) == len;
}

char *utf8_lossy(const void *data, size_t len, size_t *ret_len)
{
	const uint8_t *p = data;
	size_t i = 0, out = 0, bad = 0;
	char *text;

	for (i = 0; i < len;) {
		int n = step(p + i, len - i);

		bad += n < 0;
		i += n < 0 ? -n : n;
	}
	text = xmalloc(len + bad * 3 + 1);
	for (i = 0; i < len;) {
		size_t good = utf8_valid_prefix(p + i, len - i);

		memcpy(text + out, p + i, good);
		out += good;
		i += good;
		if (i == len)
			break;
		memcpy(text + out, "\xef\xbf\xbd", 3);
		out += 3;
		i += -step(p + i, len - i);
	}
	text[out] = '\0';
	*ret_len = out;
	return text;
}

size_t utf8_cut(const char *s, size_t max)
{
	size_t len = strnlen(s, max + 1);

	if (len <= max)
		return len;
	while (max > 0 && ((uint8_t)s[max] & 0xc0) == 0x80)
		max--;
	return max;
}

void utf8_scrub(char *s)
{
	size_t len = strlen(s), i = 0;

	while (i < len) {
		int n;

		i += utf8_valid_prefix(s + i, len - i);
		if (i == len)
			break;
		n = -step((uint8_t *)s + i, len - i);
		memset(s + i, '?', n);
		i += n;
	}
}
