/* How it works: json-c's strict tokener builds the tree and checks the grammar of brackets, commas
 * and colons. What it lets through, a scan over the tokens refuses first (measured with 0.16):
 *
 *   NaN and Infinity; bare control characters in strings; lone surrogates (it writes U+FFFD);
 *   "1." as a number; integers beyond 64 bits (it clamps them); member names with U+0000 (it cuts
 *   them); bytes that are not UTF-8.
 *
 * Two members of one name leave the tree with fewer members than the text has colons: the scan
 * counts the ones, a walk over the tree the others. The walk also finds what overflowed a double.
 *
 * Limits: JSON_DEPTH_MAX levels; 2 GiB of text. The size of a text is the caller's business.
 */
#include "wire/json.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json_tokener.h>
#include <json-c/linkhash.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"

struct scan {
	const char *start, *p, *end;
	size_t members; /* colons outside strings */
	unsigned depth;
	struct err *e;
};

static int bad(const struct scan *s, const char *what)
{
	return err_set(s->e, "", EINVAL, "not valid JSON: %s at byte %zu", what,
		(size_t)(s->p - s->start));
}

static bool is_digit(const struct scan *s)
{
	return s->p < s->end && *s->p >= '0' && *s->p <= '9';
}

static bool take(struct scan *s, const char *any_of)
{
	if (s->p == s->end || !*s->p || !strchr(any_of, *s->p))
		return false;
	s->p++;
	return true;
}

static void skip_blanks(struct scan *s)
{
	while (take(s, " \t\n\r"))
		;
}

/* After the backslash and `u`: four hex digits as a number, or -1. */
static int scan_hex4(struct scan *s)
{
	int v = 0;

	for (int i = 0; i < 4; i++) {
		int d = s->p < s->end ? str_hex_digit(*s->p) : -1;

		if (d < 0)
			return -1;
		v = v * 16 + d;
		s->p++;
	}
	return v;
}

static int scan_escape(struct scan *s, bool *has_nul)
{
	int unit;

	if (take(s, "\"\\/bfnrt"))
		return 0;
	if (!take(s, "u"))
		return bad(s, "unknown escape in a string");
	unit = scan_hex4(s);
	if (unit < 0)
		return bad(s, "escape without four hex digits");
	*has_nul |= unit == 0;
	if (unit >= 0xd800 && unit <= 0xdbff) {
		if (!take(s, "\\") || !take(s, "u"))
			return bad(s, "lone surrogate in a string");
		unit = scan_hex4(s);
		if (unit < 0xdc00 || unit > 0xdfff)
			return bad(s, "lone surrogate in a string");
	} else if (unit >= 0xdc00 && unit <= 0xdfff) {
		return bad(s, "lone surrogate in a string");
	}
	return 0;
}

/* After the opening quote. A string followed by a colon is a member name. */
static int scan_string(struct scan *s)
{
	bool has_nul = false;
	int rc;

	for (;;) {
		while (s->p < s->end && (unsigned char)*s->p >= 0x20 && *s->p != '"' &&
			*s->p != '\\')
			s->p++;
		if (s->p == s->end)
			return bad(s, "string without its closing quote");
		if (take(s, "\""))
			break;
		if (!take(s, "\\"))
			return bad(s, "control character in a string");
		rc = scan_escape(s, &has_nul);
		if (rc < 0)
			return rc;
	}
	if (!has_nul)
		return 0;
	skip_blanks(s);
	if (s->p < s->end && *s->p == ':')
		return bad(s, "member name with U+0000");
	return 0;
}

/* -?(0|[1-9][0-9]*) fits neither int64 nor uint64? */
static bool integer_overflows(const char *p, const char *end)
{
	bool negative = *p == '-';
	uint64_t v = 0;

	for (p += negative; p < end; p++) {
		if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
			__builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
			return true;
	}
	return negative && v > (uint64_t)INT64_MAX + 1;
}

static int scan_number(struct scan *s)
{
	const char *first = s->p;
	bool whole = true;

	take(s, "-");
	if (!is_digit(s))
		return bad(s, "number without digits");
	if (!take(s, "0")) {
		while (is_digit(s))
			s->p++;
	}
	if (is_digit(s))
		return bad(s, "number with a leading zero");
	if (take(s, ".")) {
		whole = false;
		if (!is_digit(s))
			return bad(s, "number that ends in a point");
		while (is_digit(s))
			s->p++;
	}
	if (take(s, "eE")) {
		whole = false;
		take(s, "+-");
		if (!is_digit(s))
			return bad(s, "number with an empty exponent");
		while (is_digit(s))
			s->p++;
	}
	if (whole && integer_overflows(first, s->p)) {
		s->p = first;
		return bad(s, "integer of more than 64 bits");
	}
	return 0;
}

static int scan_word(struct scan *s)
{
	static const char *const words[] = {"true", "false", "null"};
	size_t left = s->end - s->p;

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		size_t n = strlen(words[i]);

		if (left >= n && memcmp(s->p, words[i], n) == 0) {
			s->p += n;
			return 0;
		}
	}
	return bad(s, "unexpected character");
}

static int scan_bracket(struct scan *s)
{
	if (take(s, "[{")) {
		if (++s->depth > JSON_DEPTH_MAX)
			return err_set(s->e, "", EINVAL, "JSON is nested more than %d levels deep",
				JSON_DEPTH_MAX);
		return 0;
	}
	s->p++;
	/* A bracket too many is left to json-c. */
	if (s->depth > 0)
		s->depth--;
	return 0;
}

static int scan(struct scan *s)
{
	for (;;) {
		int rc = 0;

		skip_blanks(s);
		if (s->p == s->end)
			return 0;
		if (take(s, "\""))
			rc = scan_string(s);
		else if (*s->p == '-' || is_digit(s))
			rc = scan_number(s);
		else if (*s->p == '[' || *s->p == '{' || *s->p == ']' || *s->p == '}')
			rc = scan_bracket(s);
		else if (take(s, ":"))
			s->members++;
		else if (!take(s, ","))
			rc = scan_word(s);
		if (rc < 0)
			return rc;
	}
}

/* Adds the members of all objects in the tree to *members. False when a number is not finite. */
static bool walk(json_object *o, size_t *members)
{
	bool ok = true;

	switch (json_object_get_type(o)) {
	case json_type_object:
		*members += json_object_object_length(o);
		json_object_object_foreach (o, name, member) {
			(void)name;
			ok &= walk(member, members);
		}
		return ok;
	case json_type_array:
		for (size_t i = 0; i < json_object_array_length(o); i++)
			ok &= walk(json_object_array_get_idx(o, i), members);
		return ok;
	case json_type_double:
		return isfinite(json_object_get_double(o));
	default:
		return true;
	}
}

static int build(const char *text, size_t len, json_object **ret, struct err *e)
{
	struct json_tokener *tok = json_tokener_new_ex(JSON_DEPTH_MAX + 2);
	enum json_tokener_error rc;
	size_t where;

	if (!tok)
		return err_set(e, "", ENOMEM, "no memory to parse %zu bytes of JSON", len);
	json_tokener_set_flags(tok, JSON_TOKENER_STRICT);
	*ret = json_tokener_parse_ex(tok, text, len);
	rc = json_tokener_get_error(tok);
	where = json_tokener_get_parse_end(tok);
	/* A number at the top ends only with the text: a NUL says so. */
	if (rc == json_tokener_continue) {
		where = len;
		*ret = json_tokener_parse_ex(tok, "", 1);
		rc = json_tokener_get_error(tok);
	}
	json_tokener_free(tok);
	if (rc == json_tokener_success)
		return 0;
	json_object_put(STEAL(*ret));
	return err_set(e, "", EINVAL, "not valid JSON: %s at byte %zu",
		rc == json_tokener_continue ? "unexpected end of data"
					    : json_tokener_error_desc(rc),
		where);
}

int json_parse(const char *text, size_t len, json_object **ret, struct err *e)
{
	struct scan s = {.start = text, .p = text, .end = text + len, .e = e};
	cleanup_json json_object *o = NULL;
	size_t members = 0, valid;
	int rc;

	if (len > INT_MAX - 1)
		return err_set(e, "", EINVAL, "JSON text of %zu bytes is too long", len);
	valid = utf8_valid_prefix(text, len);
	if (valid < len)
		return err_set(e, "", EINVAL, "not valid JSON: not UTF-8 at byte %zu", valid);
	rc = scan(&s);
	if (rc < 0)
		return rc;
	rc = build(text, len, &o, e);
	if (rc < 0)
		return rc;
	if (!walk(o, &members))
		return err_set(e, "", EINVAL, "not valid JSON: a number is too large");
	if (members != s.members)
		return err_set(e, "", EINVAL,
			"not valid JSON: an object has two members of the same name");
	*ret = STEAL(o);
	return 0;
}

static const char *type_name(json_object *o)
{
	switch (json_object_get_type(o)) {
	case json_type_null:
		return "null";
	case json_type_boolean:
		return "a boolean";
	case json_type_double:
		return "a number that is not an integer literal";
	case json_type_int:
		return "an integer";
	case json_type_object:
		return "an object";
	case json_type_array:
		return "an array";
	case json_type_string:
		return "a string";
	}
	return "something else";
}

int json_parse_object(const char *text, size_t len, json_object **ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	int rc = json_parse(text, len, &o, e);

	if (rc < 0)
		return rc;
	if (!json_object_is_type(o, json_type_object))
		return err_set(e, "", EINVAL, "expected a JSON object, got %s", type_name(o));
	*ret = STEAL(o);
	return 0;
}

/* The member of that type: 1 and *ret, 0 when left out as `need` allows, or an error. `expected`
 * finishes the sentence "expected …". */
static int get(json_object *o, const char *name, enum json_need need, enum json_type type,
	const char *expected, json_object **ret, struct err *e)
{
	json_object *v = NULL;

	if (!json_object_object_get_ex(o, name, &v)) {
		if (need != JSON_REQUIRED)
			return 0;
		return err_set(e, "", EINVAL, "missing field `%s`", name);
	}
	if (!v && need == JSON_NULLABLE)
		return 0;
	if (!json_object_is_type(v, type))
		return err_set(e, "", EINVAL, "field `%s`: expected %s, got %s", name, expected,
			type_name(v));
	*ret = v;
	return 1;
}

static bool has_nul(json_object *v)
{
	return strlen(json_object_get_string(v)) != (size_t)json_object_get_string_len(v);
}

int json_get_str(
	json_object *o, const char *name, enum json_need need, const char **ret, struct err *e)
{
	json_object *v = NULL;
	int rc = get(o, name, need, json_type_string, "a string", &v, e);

	if (rc <= 0)
		return rc;
	if (has_nul(v))
		return err_set(
			e, "", EINVAL, "field `%s`: the string must not contain U+0000", name);
	*ret = json_object_get_string(v);
	return 1;
}

int json_get_word(json_object *o, const char *name, const char *const *words, size_t n, size_t *ret,
	struct err *e)
{
	const char *s = NULL;
	int rc = json_get_str(o, name, JSON_REQUIRED, &s, e);

	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++) {
		if (str_eq(s, words[i])) {
			*ret = i;
			return 1;
		}
	}
	return err_set(e, "", EINVAL, "field `%s`: unknown word %.40s", name, s);
}

int json_get_bool(json_object *o, const char *name, enum json_need need, bool *ret, struct err *e)
{
	json_object *v = NULL;
	int rc = get(o, name, need, json_type_boolean, "true or false", &v, e);

	if (rc > 0)
		*ret = json_object_get_boolean(v);
	return rc;
}

static int get_unsigned(json_object *o, const char *name, enum json_need need, uint64_t max,
	uint64_t *ret, struct err *e)
{
	char expected[64];
	json_object *v = NULL;
	int rc;

	snprintf(expected, sizeof(expected), "an integer from 0 to %" PRIu64, max);
	rc = get(o, name, need, json_type_int, expected, &v, e);
	if (rc <= 0)
		return rc;
	/* json-c keeps a number as int64 or uint64, whichever fits; each getter clamps. */
	if (json_object_get_int64(v) < 0 || json_object_get_uint64(v) > max)
		return err_set(e, "", EINVAL, "field `%s`: expected %s, got %s", name, expected,
			json_object_get_string(v));
	*ret = json_object_get_uint64(v);
	return 1;
}

int json_get_u64(
	json_object *o, const char *name, enum json_need need, uint64_t *ret, struct err *e)
{
	return get_unsigned(o, name, need, UINT64_MAX, ret, e);
}

int json_get_u32(
	json_object *o, const char *name, enum json_need need, uint32_t *ret, struct err *e)
{
	uint64_t v;
	int rc = get_unsigned(o, name, need, UINT32_MAX, &v, e);

	if (rc > 0)
		*ret = v;
	return rc;
}

int json_get_i64(json_object *o, const char *name, enum json_need need, int64_t *ret, struct err *e)
{
	json_object *v = NULL;
	int rc = get(o, name, need, json_type_int, "a 64-bit signed integer", &v, e);

	if (rc <= 0)
		return rc;
	if (json_object_get_uint64(v) > INT64_MAX)
		return err_set(e, "", EINVAL,
			"field `%s`: expected a 64-bit signed integer, got %s", name,
			json_object_get_string(v));
	*ret = json_object_get_int64(v);
	return 1;
}

int json_get_object(
	json_object *o, const char *name, enum json_need need, json_object **ret, struct err *e)
{
	return get(o, name, need, json_type_object, "an object", ret, e);
}

int json_get_array(
	json_object *o, const char *name, enum json_need need, json_object **ret, struct err *e)
{
	return get(o, name, need, json_type_array, "an array", ret, e);
}

int json_get_strv(json_object *o, const char *name, enum json_need need, char ***ret, struct err *e)
{
	json_object *v = NULL;
	int rc = get(o, name, need, json_type_array, "an array of strings", &v, e);
	size_t n;
	char **strv;

	if (rc <= 0)
		return rc;
	n = json_object_array_length(v);
	for (size_t i = 0; i < n; i++) {
		json_object *s = json_object_array_get_idx(v, i);

		if (!json_object_is_type(s, json_type_string))
			return err_set(e, "", EINVAL,
				"field `%s`: expected an array of strings, element %zu is %s", name,
				i, type_name(s));
		if (has_nul(s))
			return err_set(e, "", EINVAL,
				"field `%s`: element %zu must not contain U+0000", name, i);
	}
	strv = xcalloc(n + 1, sizeof(*strv));
	for (size_t i = 0; i < n; i++)
		strv[i] = xstrdup(json_object_get_string(json_object_array_get_idx(v, i)));
	*ret = strv;
	return 1;
}

/* Takes v. */
static void add(json_object *o, const char *name, json_object *v)
{
	if (!v || json_object_object_add(o, name, v) != 0)
		mem_exhausted();
}

/* A string object of these bytes, repaired where they are not UTF-8. */
static json_object *new_str(const void *s, size_t len)
{
	cleanup_free char *repaired = NULL;
	json_object *v = NULL;

	if (!utf8_valid(s, len))
		s = repaired = utf8_lossy(s, len, &len);
	v = len <= INT_MAX ? json_object_new_string_len(s, (int)len) : NULL;
	if (!v)
		mem_exhausted();
	return v;
}

void json_add_str(json_object *o, const char *name, const char *s)
{
	json_add_strn(o, name, s, strlen(s));
}

void json_add_strn(json_object *o, const char *name, const void *s, size_t len)
{
	add(o, name, new_str(s, len));
}

void json_add_u64(json_object *o, const char *name, uint64_t v)
{
	add(o, name, json_object_new_uint64(v));
}

void json_add_i64(json_object *o, const char *name, int64_t v)
{
	add(o, name, json_object_new_int64(v));
}

void json_add_bool(json_object *o, const char *name, bool v)
{
	add(o, name, json_object_new_boolean(v));
}

void json_add_strv(json_object *o, const char *name, char *const *v)
{
	json_object *a = json_object_new_array();

	if (!a)
		mem_exhausted();
	for (size_t i = 0, n = strv_len(v); i < n; i++) {
		if (json_object_array_add(a, new_str(v[i], strlen(v[i]))) != 0)
			mem_exhausted();
	}
	add(o, name, a);
}

int json_only_members(json_object *o, const char *const *names, size_t n, struct err *e)
{
	for (struct lh_entry *m = json_object_get_object(o)->head; m; m = m->next) {
		const char *key = m->k;
		size_t i = 0;

		while (i < n && !str_eq(key, names[i]))
			i++;
		if (i == n)
			return err_set(e, "", EINVAL, "unknown member `%.40s`", key);
	}
	return 0;
}

const char *json_text(json_object *o, size_t *ret_len)
{
	const char *text = json_object_to_json_string_length(
		o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, ret_len);

	if (!text)
		mem_exhausted();
	return text;
}
