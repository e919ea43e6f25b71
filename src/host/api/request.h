/* request - a caller's payload, read as sandbox contract §1.0 says: strictly, and with S001.
 *
 * The functions return what the readers of wire/json.h return. Texts point into the payload.
 */
#pragma once

#include <json-c/json_object.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/json.h"

/* A string that may hold U+0000. */
struct text {
	const char *s; /* NUL-terminated, too */
	size_t len;
};

/* The payload as an object (a new reference); null and nothing count as {}. */
int request_object(json_object *data, json_object **ret, struct err *e);

int request_str(
	json_object *o, const char *name, enum json_need need, const char **ret, struct err *e);
int request_text(
	json_object *o, const char *name, enum json_need need, struct text *ret, struct err *e);
int request_bool(json_object *o, const char *name, enum json_need need, bool *ret, struct err *e);
int request_u64(
	json_object *o, const char *name, enum json_need need, uint64_t *ret, struct err *e);
int request_u32(
	json_object *o, const char *name, enum json_need need, uint32_t *ret, struct err *e);
/* An array of strings without U+0000 as a new vector; absent: *ret untouched. */
int request_strv(json_object *o, const char *name, char ***ret, struct err *e);

/* The member `env` in either of its shapes, as a new vector of NAME=value, one entry a name; absent
 * gives NULL. */
int request_env(json_object *o, char ***ret, struct err *e);

/* `sandbox_id` in any of its spellings, as lower case with hyphens. Presence and type first: use
 * request_id_text() to check those before other members, request_id() for its form. */
int request_id_text(json_object *o, struct text *ret, struct err *e);
int request_id(const struct text *text, char ret[static 37], struct err *e);

/* Strict base64 in a text that was read; `name` is for the message. */
int request_base64(
	const char *name, const struct text *text, uint8_t **ret, size_t *ret_len, struct err *e);

/* S210 unless absolute, without U+0000 and shorter than PATH_MAX. */
int request_guest_path(const char *name, const struct text *path, struct err *e);
/* S210 unless octal digits up to 07777. */
int request_mode(const char *name, const struct text *mode, uint32_t *ret, struct err *e);
