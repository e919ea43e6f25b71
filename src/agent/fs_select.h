/* fs_select - which files fs::grep and fs::sed look at: a path, and globs below it (sandbox
 * contract §5.9, §5.10).
 *
 * The path's own link is followed, links below are neither followed nor read. Only regular files
 * are selected; entries below that cannot be read or have vanished are skipped.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "wire/glob.h"
#include "wire/json.h"

struct fs_select {
	const char *root; /* as given; belongs to the request */
	bool is_dir;
	bool recursive;
	struct glob_set include, exclude;
};

/* Reads "path", "recursive", "include_glob" and "exclude_glob", and looks at the root: S210, S211,
 * S212. fs_select_done is due in any case. */
int fs_select_init(struct fs_select *s, json_object *req, struct err *e);
void fs_select_done(struct fs_select *s);

/* The root is a folder and recursive is false: S210. */
int fs_select_check_recursive(const struct fs_select *s, struct err *e);

struct fs_selected {
	int dir_fd; /* AT_FDCWD for the root itself */
	const char *name;
	bool is_root;	  /* it is what the request named: its errors count, its link is followed */
	const char *path; /* as it is reported */
	size_t path_len;
};

/* Calls for each selected file, in the order of the walk. A negative return ends it. */
typedef int (*fs_select_cb)(const struct fs_selected *f, void *user, struct err *e);
int fs_select_each(const struct fs_select *s, fs_select_cb cb, void *user, struct err *e);

/* Opens it for reading if it is a regular file: the descriptor, or a negative errno (-EISDIR,
 * -EINVAL for other types) without having waited for anything. */
int fs_selected_open(const struct fs_selected *f, size_t *ret_size);
