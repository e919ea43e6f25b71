/* Plain scalars and keys of yaml.h. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "wire/yaml.h"

static bool is_one_of(const char *text, const char *const *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(text, words[i]) == 0)
			return true;
	return false;
}

#define IS_ONE_OF(text, ...)                                                                       \
	is_one_of(text, (const char *const[]){__VA_ARGS__},                                        \
		ARRAY_LEN(((const char *const[]){__VA_ARGS__})))

enum whole {
	WHOLE,
	WHOLE_TOO_LARGE,
	NOT_WHOLE,
};

/* One digit or more and nothing else. */
static enum whole read_digits(const char *p, int base, uint64_t *ret)
{
	bool over = false;
	uint64_t v = 0;

	if (!*p)
		return NOT_WHOLE;
	for (; *p; p++) {
		int d = str_hex_digit(*p);

		if (d < 0 || d >= base)
			return NOT_WHOLE;
		over |= __builtin_mul_overflow(v, (uint64_t)base, &v) ||
			__builtin_add_overflow(v, (uint64_t)d, &v);
	}
	*ret = v;
	return over ? WHOLE_TOO_LARGE : WHOLE;
}

static const char *skip_digits(const char *p)
{
	while (*p >= '0' && *p <= '9')
		p++;
	return p;
}

/* [-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )? */
static bool is_decimal(const char *p)
{
	const char *start;

	if (*p == '-' || *p == '+')
		p++;
	start = p;
	p = skip_digits(p);
	if (*p == '.') {
		const char *point = p;

		p = skip_digits(p + 1);
		if (p == start + 1 && point == start)
			return false;
	}
	if (p == start)
		return false;
	if (*p == 'e' || *p == 'E') {
		p++;
		if (*p == '-' || *p == '+')
			p++;
		start = p;
		p = skip_digits(p);
		if (p == start)
			return false;
	}
	return !*p;
}

static json_object *new_int(bool negative, uint64_t v)
{
	json_object *o;

	if (negative)
		o = json_object_new_int64(v > INT64_MAX ? INT64_MIN : -(int64_t)v);
	else if (v <= INT64_MAX)
		o = json_object_new_int64((int64_t)v);
	else
		o = json_object_new_uint64(v);
	return o ? o : (mem_exhausted(), NULL);
}

/* 1 when it is a number, 0 when it is not. */
static int read_number(const char *text, json_object **ret)
{
	bool sign = *text == '-' || *text == '+', negative = *text == '-';
	uint64_t v;
	double d;

	if (text[0] == '0' && (text[1] == 'x' || text[1] == 'o')) {
		enum whole w = read_digits(text + 2, text[1] == 'x' ? 16 : 8, &v);

		if (w == WHOLE)
			*ret = new_int(false, v);
		return w == WHOLE ? 1 : w == NOT_WHOLE ? 0 : -ERANGE;
	}
	if (read_digits(text + sign, 10, &v) == WHOLE &&
		(!negative || v <= (uint64_t)INT64_MAX + 1)) {
		*ret = new_int(negative, v);
		return 1;
	}
	if (IS_ONE_OF(text + sign, ".inf", ".Inf", ".INF") ||
		IS_ONE_OF(text, ".nan", ".NaN", ".NAN"))
		return -ERANGE;
	if (!is_decimal(text))
		return 0;
	d = strtod(text, NULL);
	if (!isfinite(d))
		return -ERANGE;
	*ret = json_object_new_double(d);
	return *ret ? 1 : (mem_exhausted(), 0);
}

int yaml_plain(const char *text, json_object **ret)
{
	json_object *o = NULL;
	int rc;

	if (IS_ONE_OF(text, "", "~", "null", "Null", "NULL")) {
		*ret = NULL;
		return 0;
	}
	if (IS_ONE_OF(text, "true", "True", "TRUE", "false", "False", "FALSE")) {
		o = json_object_new_boolean(text[0] == 't' || text[0] == 'T');
	} else {
		rc = read_number(text, &o);
		if (rc < 0)
			return rc;
		if (rc == 0)
			o = json_object_new_string(text);
	}
	if (!o)
		mem_exhausted();
	*ret = o;
	return 0;
}

/* What does not show, or moves what does: controls, joiners and fillers, marks and isolates of
 * direction, line separators, variation selectors, tags. */
static const struct {
	uint32_t first, last;
} unseen[] = {
	{0x0000, 0x001f},
	{0x007f, 0x009f},
	{0x00ad, 0x00ad},
	{0x034f, 0x034f},
	{0x061c, 0x061c},
	{0x115f, 0x1160},
	{0x17b4, 0x17b5},
	{0x180b, 0x180f},
	{0x200b, 0x200f},
	{0x2028, 0x202e},
	{0x2060, 0x206f},
	{0x3164, 0x3164},
	{0xfe00, 0xfe0f},
	{0xfeff, 0xfeff},
	{0xffa0, 0xffa0},
	{0xfff0, 0xfffb},
	{0x1bca0, 0x1bca3},
	{0x1d173, 0x1d17a},
	{0xe0000, 0xe0fff},
};

static bool is_unseen(uint32_t c)
{
	for (size_t i = 0; i < ARRAY_LEN(unseen); i++)
		if (c >= unseen[i].first && c <= unseen[i].last)
			return true;
	return false;
}

/* The character at p, which is valid UTF-8, and its length. */
static uint32_t decode(const unsigned char *p, size_t *ret_len)
{
	size_t len = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	uint32_t c = len == 1 ? p[0] : p[0] & (0x7fu >> len);

	for (size_t i = 1; i < len; i++)
		c = c << 6 | (p[i] & 0x3fu);
	*ret_len = len;
	return c;
}

char *yaml_key_shown(const char *key)
{
	size_t all = utf8_valid_prefix(key, strlen(key)), len;
	struct buf shown cleanup_buf;

	buf_init(&shown, YAML_KEY_SHOWN_MAX);
	for (size_t i = 0; i < all; i += len) {
		if (is_unseen(decode((const unsigned char *)key + i, &len)))
			continue;
		if (buf_add(&shown, key + i, len) < 0)
			return xasprintf("%s…", (char *)shown.data);
	}
	return shown.len ? buf_steal(&shown) : xstrdup("(empty)");
}
