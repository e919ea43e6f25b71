/* fs_reply - a reply's JSON written as text, entry by entry.
 *
 * Lists of files can be long: as json-c objects they would take ten times their text.
 * All return 0 or what buf_add says (-ENOBUFS: FS_REPLY_MAX is passed).
 */
#pragma once

#include <stdbool.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "wire/json.h"

/* A string in quotes; what is not UTF-8 becomes U+FFFD. */
int fs_reply_str(struct buf *out, const void *s, size_t len);

/* The members of an FsEntry (contract §1.8), without the braces. */
int fs_reply_entry(struct buf *out, const char *name, size_t len, const struct stat *st);

/* Reads the member `name` as contract §1.8 wants a mode: octal digits, at most 07777; else S210. */
int fs_mode_get(json_object *req, const char *name, uint32_t *ret, struct err *e);
/* Reads an optional bool; else S210. */
int fs_bool_get(json_object *req, const char *name, bool *ret, struct err *e);
/* Reads a required text, which may hold U+0000; else S210. */
int fs_text_get(
	json_object *req, const char *name, const char **ret, size_t *ret_len, struct err *e);
