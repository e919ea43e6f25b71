/* json - typed reading and writing of JSON over json-c.
 *
 * json-c keeps the whole uint64 range and is fast, but accepts more than JSON: json_parse() checks
 * UTF-8 (RFC 8259 §8.1), depth, NaN/Infinity, duplicate member names and trailing bytes itself.
 * It also refuses what would not survive: integers of more than 64 bits, numbers beyond a double,
 * lone surrogates, member names with U+0000.
 * The field readers report `missing field `name`` and wrong types by member name, in the words that
 * the sandbox contract §1.0 promises. They never convert between types.
 */
#pragma once

#include <json-c/json_object.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define JSON_DEPTH_MAX 64 /* deeper nesting is an error that says so */

/* Parses one JSON text of `len` bytes. 0 and *ret (owned by the caller, json_object_put), or
 * -EINVAL/-ENOMEM with a reason in *e. `null` gives *ret == NULL. */
int json_parse(const char *text, size_t len, json_object **ret, struct err *e);

/* As json_parse, but the text must be an object. */
int json_parse_object(const char *text, size_t len, json_object **ret, struct err *e);

static inline void json_cleanup(json_object **o)
{
	json_object_put(*o);
}
#define cleanup_json __attribute__((cleanup(json_cleanup)))

enum json_need {
	JSON_REQUIRED, /* absent: error; null: error */
	JSON_OPTIONAL, /* absent: *ret untouched; null: error */
	JSON_NULLABLE, /* absent or null: *ret untouched */
};

/* All return 1 when the member was there and read, 0 when it was left out as `need` allows, or
 * -EINVAL with *e set. Strings point into `o`. `json_get_str` refuses a string with U+0000. */
int json_get_str(
	json_object *o, const char *name, enum json_need need, const char **ret, struct err *e);
/* A required string that is one of `words`; its index. */
int json_get_word(json_object *o, const char *name, const char *const *words, size_t n, size_t *ret,
	struct err *e);
int json_get_bool(json_object *o, const char *name, enum json_need need, bool *ret, struct err *e);
int json_get_u64(
	json_object *o, const char *name, enum json_need need, uint64_t *ret, struct err *e);
int json_get_u32(
	json_object *o, const char *name, enum json_need need, uint32_t *ret, struct err *e);
int json_get_i64(
	json_object *o, const char *name, enum json_need need, int64_t *ret, struct err *e);
int json_get_object(
	json_object *o, const char *name, enum json_need need, json_object **ret, struct err *e);
int json_get_array(
	json_object *o, const char *name, enum json_need need, json_object **ret, struct err *e);
/* An array of strings without U+0000, as a new NULL-terminated vector (strv_free). */
int json_get_strv(
	json_object *o, const char *name, enum json_need need, char ***ret, struct err *e);

/* -EINVAL with the name of the first member of the object that is none of `names`. */
int json_only_members(json_object *o, const char *const *names, size_t n, struct err *e);

/* Building: each adds a member and never fails (memory for small fixed sizes). `s` may hold any
 * bytes: what is not UTF-8 is repaired (base/utf8.h). */
void json_add_str(json_object *o, const char *name, const char *s);
void json_add_strn(json_object *o, const char *name, const void *s, size_t len);
void json_add_u64(json_object *o, const char *name, uint64_t v);
void json_add_i64(json_object *o, const char *name, int64_t v);
void json_add_bool(json_object *o, const char *name, bool v);
void json_add_strv(json_object *o, const char *name, char *const *v); /* NULL gives [] */

/* Compact text without escaped slashes, valid until `o` is freed or printed again. */
const char *json_text(json_object *o, size_t *ret_len);
