#include "agent/fs_reply.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"

static int add_escaped(struct buf *out, const char *s, size_t len)
{
	size_t from = 0;
	int r = buf_add(out, "\"", 1);

	for (size_t i = 0; r == 0 && i < len; i++) {
		unsigned char c = (unsigned char)s[i];

		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		r = buf_add(out, s + from, i - from);
		if (r == 0 && c < 0x20)
			r = buf_printf(out, "\\u%04x", c);
		else if (r == 0)
			r = buf_printf(out, "\\%c", c);
		from = i + 1;
	}
	if (r == 0)
		r = buf_add(out, s + from, len - from);
	return r < 0 ? r : buf_add(out, "\"", 1);
}

int fs_reply_str(struct buf *out, const void *s, size_t len)
{
	cleanup_free char *text = NULL;

	if (utf8_valid(s, len))
		return add_escaped(out, s, len);
	text = utf8_lossy(s, len, &len);
	return add_escaped(out, text, len);
}

int fs_reply_entry(struct buf *out, const char *name, size_t len, const struct stat *st)
{
	int r = buf_printf(out,
		"\"is_dir\":%s,\"is_symlink\":%s,\"mode\":\"%04o\",\"mtime\":%" PRId64 ",\"name\":",
		S_ISDIR(st->st_mode) ? "true" : "false", S_ISLNK(st->st_mode) ? "true" : "false",
		st->st_mode & 07777, (int64_t)st->st_mtime);

	if (r == 0)
		r = fs_reply_str(out, name, len);
	if (r == 0)
		r = buf_printf(out, ",\"size\":%" PRIu64, (uint64_t)st->st_size);
	return r;
}

int fs_mode_get(json_object *req, const char *name, uint32_t *ret, struct err *e)
{
	const char *text;
	int r = json_get_str(req, name, JSON_OPTIONAL, &text, e);

	if (r < 0) {
		err_code(e, "S210");
		return r;
	}
	if (r == 0 || str_octal(text, 07777, ret) == 0)
		return 0;
	return err_set(e, "S210", EINVAL,
		"%s \"%s\" is not a mode: octal digits up to 7777 are wanted, as in \"0644\"", name,
		text);
}

int fs_bool_get(json_object *req, const char *name, bool *ret, struct err *e)
{
	if (json_get_bool(req, name, JSON_OPTIONAL, ret, e) >= 0)
		return 0;
	err_code(e, "S210");
	return -EINVAL;
}

int fs_text_get(
	json_object *req, const char *name, const char **ret, size_t *ret_len, struct err *e)
{
	json_object *v;

	if (!json_object_object_get_ex(req, name, &v) || !json_object_is_type(v, json_type_string))
		return err_set(e, "S210", EINVAL, "%s is missing or no string", name);
	*ret = json_object_get_string(v);
	*ret_len = (size_t)json_object_get_string_len(v);
	return 0;
}
