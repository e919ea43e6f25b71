#include "base/str.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"

bool str_eq(const char *a, const char *b)
{
	if (!a || !b)
		return a == b;
	return strcmp(a, b) == 0;
}

bool str_starts(const char *s, const char *prefix)
{
	return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
	size_t n = strlen(s), m = strlen(suffix);

	return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

static int parse_digits(const char *s, size_t len, unsigned base, uint64_t *ret)
{
	uint64_t v = 0;

	if (!len)
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		unsigned digit = (unsigned)(s[i] - '0');

		if (s[i] < '0' || digit >= base)
			return -EINVAL;
		if (__builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, digit, &v))
			return -ERANGE;
	}
	*ret = v;
	return 0;
}

int str_u64(const char *s, uint64_t *ret)
{
	return parse_digits(s, strlen(s), 10, ret);
}

int str_u32(const char *s, uint32_t *ret)
{
	uint64_t v;
	int r = str_u64(s, &v);

	if (r < 0)
		return r;
	if (v > UINT32_MAX)
		return -ERANGE;
	*ret = (uint32_t)v;
	return 0;
}

int str_octal(const char *s, uint32_t max, uint32_t *ret)
{
	uint64_t v;

	if (parse_digits(s, strlen(s), 8, &v) < 0 || v > max)
		return -EINVAL;
	*ret = (uint32_t)v;
	return 0;
}

int str_size(const char *s, uint64_t *ret_bytes)
{
	static const char units[] = "KMGT";
	size_t len = strlen(s);
	unsigned shift = 0;
	uint64_t v;
	int r;

	if (len) {
		char last = s[len - 1] & ~0x20;
		const char *unit = last ? strchr(units, last) : NULL;

		if (unit) {
			shift = 10 * (unsigned)(unit - units + 1);
			len--;
		}
	}
	r = parse_digits(s, len, 10, &v);
	if (r < 0)
		return r;
	if (v > UINT64_MAX >> shift)
		return -ERANGE;
	*ret_bytes = v << shift;
	return 0;
}

int str_hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

void str_hex(char *dst, const void *data, size_t len)
{
	static const char digits[] = "0123456789abcdef";
	const uint8_t *p = data;

	for (size_t i = 0; i < len; i++) {
		*dst++ = digits[p[i] >> 4];
		*dst++ = digits[p[i] & 15];
	}
	*dst = '\0';
}

const char *str_human_size(uint64_t bytes, char dst[static 16])
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double v = (double)bytes;
	int unit = -1;

	while (v >= 1024 && unit < (int)ARRAY_LEN(units) - 1) {
		v /= 1024;
		unit++;
	}
	if (unit < 0)
		snprintf(dst, 16, "%u B", (unsigned)bytes);
	else
		snprintf(dst, 16, v < 10 ? "%.1f %s" : "%.0f %s", v, units[unit]);
	return dst;
}

void str_uuid4(char dst[static 37])
{
	uint8_t b[16];
	char hex[33];

	if (getrandom(b, sizeof(b), 0) != sizeof(b))
		abort();
	b[6] = (b[6] & 0x0f) | 0x40;
	b[8] = (b[8] & 0x3f) | 0x80;
	str_hex(hex, b, sizeof(b));
	snprintf(dst, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

size_t strv_len(char *const *v)
{
	size_t n = 0;

	while (v && v[n])
		n++;
	return n;
}

void strv_free(char **v)
{
	for (size_t i = 0; v && v[i]; i++)
		free(v[i]);
	free(v);
}

char **strv_dup(char *const *v)
{
	size_t n = strv_len(v);
	char **copy = xcalloc(n + 1, sizeof(*copy));

	for (size_t i = 0; i < n; i++)
		copy[i] = xstrdup(v[i]);
	return copy;
}

void strv_add(char ***v, const char *s)
{
	size_t n = strv_len(*v);

	/* Every time, since the list may come from somewhere that left no room (strv_dup). */
	*v = xrealloc(*v, n + 2, sizeof(**v));
	(*v)[n] = xstrdup(s);
	(*v)[n + 1] = NULL;
}

void strv_add_pair(char ***v, const char *a, const char *b)
{
	strv_add(v, a);
	if (b)
		strv_add(v, b);
}

const char *strv_env_get(char *const *v, const char *name)
{
	size_t len = strlen(name);
	const char *value = NULL;

	for (size_t i = 0; v && v[i]; i++)
		if (strncmp(v[i], name, len) == 0 && v[i][len] == '=')
			value = v[i] + len + 1;
	return value;
}
