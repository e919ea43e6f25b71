#include "host/api/request.h"

#include <errno.h>
#include <json-c/json_util.h>
#include <json-c/linkhash.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/b64.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "base/uuid.h"
#include "host/api/reply.h"

#define SHOWN_MAX 200 /* bytes of an offending text in a message */

static int s001(int r, struct err *e)
{
	if (r < 0)
		err_code(e, "S001");
	return r;
}

int request_object(json_object *data, json_object **ret, struct err *e)
{
	if (data && !json_object_is_type(data, json_type_object))
		return err_set(e, "S001", EINVAL, "the payload must be a JSON object, not %s",
			json_type_to_name(json_object_get_type(data)));
	*ret = data ? json_object_get(data) : reply_object();
	return 0;
}

int request_str(
	json_object *o, const char *name, enum json_need need, const char **ret, struct err *e)
{
	return s001(json_get_str(o, name, need, ret, e), e);
}

int request_text(
	json_object *o, const char *name, enum json_need need, struct text *ret, struct err *e)
{
	json_object *v = NULL;
	const char *s;

	if (!json_object_object_get_ex(o, name, &v) || !json_object_is_type(v, json_type_string))
		return s001(json_get_str(o, name, need, &s, e), e);
	*ret = (struct text){json_object_get_string(v), (size_t)json_object_get_string_len(v)};
	return 1;
}

int request_bool(json_object *o, const char *name, enum json_need need, bool *ret, struct err *e)
{
	return s001(json_get_bool(o, name, need, ret, e), e);
}

int request_u64(json_object *o, const char *name, enum json_need need, uint64_t *ret, struct err *e)
{
	return s001(json_get_u64(o, name, need, ret, e), e);
}

int request_u32(json_object *o, const char *name, enum json_need need, uint32_t *ret, struct err *e)
{
	return s001(json_get_u32(o, name, need, ret, e), e);
}

int request_strv(json_object *o, const char *name, char ***ret, struct err *e)
{
	return s001(json_get_strv(o, name, JSON_OPTIONAL, ret, e), e);
}

/* --- env --- */

/* An entry of either shape. */
struct entry {
	const char *name, *value;
	size_t name_len, index;
};

static int by_name_and_index(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	int r = memcmp(x->name, y->name, MIN(x->name_len, y->name_len));

	if (r == 0 && x->name_len != y->name_len)
		r = x->name_len < y->name_len ? -1 : 1;
	return r ? r : (x->index > y->index) - (x->index < y->index);
}

static bool same_name(const struct entry *x, const struct entry *y)
{
	return x->name_len == y->name_len && memcmp(x->name, y->name, x->name_len) == 0;
}

/* One NAME=value for each name, in byte order of the names: the last entry of each. */
static char **build_env(struct entry *entries, size_t n)
{
	char **env = xcalloc(n + 1, sizeof(*env));
	size_t kept = 0;

	qsort(entries, n, sizeof(*entries), by_name_and_index);
	for (size_t i = 0; i < n; i++) {
		const struct entry *x = &entries[i];

		if (i + 1 < n && same_name(x, x + 1))
			continue;
		env[kept++] = xasprintf("%.*s=%s", (int)x->name_len, x->name, x->value);
	}
	return env;
}

static bool is_env_name(const char *s)
{
	size_t len = strlen(s);

	return len && !(s[0] >= '0' && s[0] <= '9') &&
	       strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == len;
}

static int check_value(json_object *v, struct err *e)
{
	if (!json_object_is_type(v, json_type_string))
		return err_set(e, "S001", EINVAL,
			"field `env`: expected an array of \"NAME=value\" strings or an object of "
			"strings");
	if (strlen(json_object_get_string(v)) != (size_t)json_object_get_string_len(v))
		return err_set(e, "S001", EINVAL, "field `env`: an entry must not contain U+0000");
	return 0;
}

static int env_of_array(json_object *a, char ***ret, struct err *e)
{
	size_t n = json_object_array_length(a), used = 0;
	cleanup_free struct entry *entries = xcalloc(n + 1, sizeof(*entries));

	for (size_t i = 0; i < n; i++) {
		json_object *v = json_object_array_get_idx(a, i);
		const char *text, *equals;

		if (check_value(v, e) < 0)
			return -EINVAL;
		text = json_object_get_string(v);
		equals = strchr(text, '=');
		if (!equals || equals == text)
			continue;
		entries[used] = (struct entry){text, equals + 1, (size_t)(equals - text), used};
		used++;
	}
	*ret = build_env(entries, used);
	return 1;
}

static int bad_names(const struct buf *names, struct err *e)
{
	return err_set(e, "S001", EINVAL,
		"field `env`: not names of variables (letters, digits and _, no digit first): %s",
		(const char *)names->data);
}

static int env_of_object(json_object *o, char ***ret, struct err *e)
{
	size_t n = (size_t)json_object_object_length(o), used = 0;
	cleanup_free struct entry *entries = xcalloc(n + 1, sizeof(*entries));
	cleanup_buf struct buf bad;

	buf_init(&bad, ERR_TEXT_MAX);
	json_object_object_foreach (o, name, v) {
		if (check_value(v, e) < 0)
			return -EINVAL;
		if (!is_env_name(name))
			buf_printf(&bad, "%s`%s`", bad.len ? ", " : "", name);
		entries[used] = (struct entry){name, json_object_get_string(v), strlen(name), used};
		used++;
	}
	if (bad.len)
		return bad_names(&bad, e);
	*ret = build_env(entries, used);
	return 1;
}

int request_env(json_object *o, char ***ret, struct err *e)
{
	json_object *env = NULL;

	if (!json_object_object_get_ex(o, "env", &env))
		return 0;
	if (json_object_is_type(env, json_type_array))
		return env_of_array(env, ret, e);
	if (json_object_is_type(env, json_type_object))
		return env_of_object(env, ret, e);
	return err_set(e, "S001", EINVAL,
		"field `env`: expected an array of \"NAME=value\" strings or an object of strings");
}

/* --- single texts --- */

int request_id_text(json_object *o, struct text *ret, struct err *e)
{
	return request_text(o, "sandbox_id", JSON_REQUIRED, ret, e);
}

int request_id(const struct text *text, char ret[static 37], struct err *e)
{
	if (strlen(text->s) == text->len && uuid_parse(text->s, ret) == 0)
		return 0;
	return err_set(e, "S001", EINVAL, "field `sandbox_id`: not a UUID: %.*s",
		(int)utf8_cut(text->s, SHOWN_MAX), text->s);
}

int request_base64(
	const char *name, const struct text *text, uint8_t **ret, size_t *ret_len, struct err *e)
{
	if (b64_decode(text->s, text->len, ret, ret_len) == 0)
		return 0;
	return err_set(e, "S001", EINVAL,
		"field `%s`: not base64 (standard alphabet with padding, without white space)",
		name);
}

int request_guest_path(const char *name, const struct text *path, struct err *e)
{
	if (strlen(path->s) != path->len)
		return err_set(e, "S210", EINVAL, "%s must not contain U+0000", name);
	if (path->s[0] != '/')
		return err_set(e, "S210", EINVAL,
			"%s must be an absolute path in the sandbox, not \"%.*s\"", name,
			(int)utf8_cut(path->s, SHOWN_MAX), path->s);
	if (path->len >= PATH_MAX)
		return err_set(e, "S210", ENAMETOOLONG, "%s has %zu bytes; at most %d are taken",
			name, path->len, PATH_MAX - 1);
	return 0;
}

int request_mode(const char *name, const struct text *mode, uint32_t *ret, struct err *e)
{
	if (strlen(mode->s) == mode->len && str_octal(mode->s, 07777, ret) == 0)
		return 0;
	return err_set(e, "S210", EINVAL,
		"%s must be octal digits up to 7777, such as \"0644\", not \"%.*s\"", name,
		(int)utf8_cut(mode->s, SHOWN_MAX), mode->s);
}
