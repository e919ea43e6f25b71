/* fs_path - the path member of every fs operation, and the folder that holds it. */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "wire/json.h"

/* Bytes of an fs request's head: a path of PATH_MAX, escaped, and a few members. */
#define FS_HEAD_MAX (64u << 10)

/* Reads the member `name`: absolute, not empty, no U+0000, at most PATH_MAX; else S210. The text
 * belongs to `head`. */
int fs_path_get(json_object *head, const char *name, const char **ret, struct err *e);

/* Opens the folder that holds `path` (O_PATH); *ret_name is the last component, inside path. With
 * `make`, missing folders are made with mode 0755. `path` must not end in a slash. */
int fs_path_open_parent(
	const char *path, bool make, int *ret_fd, const char **ret_name, struct err *e);

/* A folder that is to hold something new is missing, or takes nothing new though it is there (/proc
 * says ENOENT to that). S211 "parent not found" only where making folders would help, as `parents`
 * does: else S212 (a link to nothing in the way) or S215 (a file system that takes none). */
int fs_path_no_parent(const char *parent, struct err *e);
