#include "host/image/xattr.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "host/image/build.h"
#include "host/image/erofs_format.h"

static const struct {
	const char *prefix;
	uint8_t index;
} kinds[] = {
	{"user.", EROFS_XATTR_USER},
	{"security.", EROFS_XATTR_SECURITY},
};

/* Index and the name behind the prefix. */
static bool split_name(const char *name, uint8_t *ret_index, const char **ret_rest)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (!str_starts(name, kinds[i].prefix))
			continue;
		*ret_index = kinds[i].index;
		*ret_rest = name + strlen(kinds[i].prefix);
		return **ret_rest != '\0';
	}
	return false;
}

bool xattr_kept(const char *name)
{
	uint8_t index;
	const char *rest;

	if (!split_name(name, &index, &rest))
		return false;
	return index == EROFS_XATTR_USER || str_eq(name, "security.capability");
}

static size_t entry_bytes(const struct erofs_xattr_entry *x)
{
	return (sizeof(*x) + x->name_len + le16toh(x->value_size) + 3) & ~(size_t)3;
}

/* How many entries there are; -EEXIST when one has this name. */
static int count_names(const struct buf *packed, uint8_t index, const char *rest, size_t rest_len)
{
	int count = 0;

	for (size_t at = 0; at < packed->len; count++) {
		struct erofs_xattr_entry x;

		memcpy(&x, packed->data + at, sizeof(x));
		if (x.name_index == index && x.name_len == rest_len &&
			memcmp(packed->data + at + sizeof(x), rest, rest_len) == 0)
			return -EEXIST;
		at += entry_bytes(&x);
	}
	return count;
}

int xattr_pack(struct buf *packed, const char *name, const void *value, size_t len, struct err *e)
{
	static const uint8_t zeros[4];
	struct erofs_xattr_entry x;
	const char *rest;
	size_t rest_len, bytes;
	int count;

	if (!xattr_kept(name) || !split_name(name, &x.name_index, &rest))
		return 0;
	rest_len = strlen(rest);
	if (strlen(name) > 255 || len > UINT16_MAX)
		return err_set(e, "", E2BIG,
			"an extended attribute with a name of %zu and a value of %zu bytes (limits "
			"255, "
			"%d)",
			strlen(name), len, UINT16_MAX);
	count = count_names(packed, x.name_index, rest, rest_len);
	if (count == -EEXIST)
		return 0;
	if (count >= XATTR_COUNT_MAX)
		return err_set(e, "", E2BIG, "more than %d extended attributes", XATTR_COUNT_MAX);
	x.name_len = (uint8_t)rest_len;
	x.value_size = htole16((uint16_t)len);
	bytes = entry_bytes(&x);
	if (packed->len + bytes > IMAGE_XATTRS_MAX)
		return err_set(e, "", E2BIG, "more than %u bytes of extended attributes",
			IMAGE_XATTRS_MAX);
	if (buf_add(packed, &x, sizeof(x)) < 0 || buf_add(packed, rest, rest_len) < 0 ||
		buf_add(packed, value, len) < 0 ||
		buf_add(packed, zeros, bytes - sizeof(x) - rest_len - len) < 0)
		return err_set(e, "", ENOMEM, "no memory for extended attributes");
	return 0;
}
