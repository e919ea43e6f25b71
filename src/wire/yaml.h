/* yaml - a YAML document as the JSON tree that it means.
 *
 * Scalars are read by the core schema of YAML 1.2 (§10.3.2): `no` and `12:30` are strings, `010` is
 * ten, what is in quotes is always a string. Anchors and aliases work, and all limits count what
 * aliases stand for. Refused: tags, keys that are not strings, a key twice in one mapping, an alias
 * as a key or to a node that is not complete, more than one document, bytes that are not UTF-8, and
 * numbers that JSON does not have (.inf, .nan, beyond a double). `<<` is a key like any other.
 *
 * An error names line and column, both from 1, and never the content of the text; the one for a key
 * that is there twice names its path. Errors are -EINVAL without an S-code.
 */
#pragma once

#include <json-c/json_object.h>
#include <stddef.h>

#include "base/err.h"
#include "wire/json.h"

#define YAML_BYTES_MAX	 (1u << 20) /* of the text; also of all its scalars, aliases counted in */
#define YAML_DEPTH_MAX	 JSON_DEPTH_MAX
#define YAML_ANCHORS_MAX 100

/* 0 and *ret (owned by the caller, json_object_put), which is NULL for `null` and for a text
 * without a document. A scalar, a key and a collection are a node each; more than nodes_max are an
 * error. Nodes that were named by an alias are shared, not copied: do not change the tree. */
int yaml_parse(const char *text, size_t len, size_t nodes_max, json_object **ret, struct err *e);

/* What a scalar without quotes means: 0 and *ret, NULL for null; -ERANGE when it is a number that
 * JSON does not have. An integer beyond 64 bits becomes a double. */
int yaml_plain(const char *text, json_object **ret);

/* A key as it can be shown to a person: without characters that control the terminal, turn the
 * direction of writing or cannot be seen; at most YAML_KEY_SHOWN_MAX bytes, then "…". The caller
 * frees it. */
#define YAML_KEY_SHOWN_MAX 64
char *yaml_key_shown(const char *key);
