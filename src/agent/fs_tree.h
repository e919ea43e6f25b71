/* fs_tree - what operations do to whole trees: removing and copying. */
#pragma once

#include "base/err.h"

/* Removes what `path` names, below it first; links are removed, never followed. The path has no
 * slash at its end. A first failure stops it. */
int fs_tree_remove(const char *path, struct err *e);
/* The same for a name in the folder `dir_fd`; `shown` is what errors call it. */
int fs_tree_remove_at(int dir_fd, const char *name, const char *shown, struct err *e);
/* Removes all that is in the folder `fd`, which is taken. */
int fs_tree_empty(int fd, const char *shown, struct err *e);

/* Copies `src` to `dst`, which must not exist: types, modes, owners, times, extended attributes,
 * links as links, hard links within the tree, holes. Data is on the disk when it returns. After a
 * failure what was copied stays for the caller to remove. */
int fs_tree_copy(const char *src, const char *dst, struct err *e);

/* Gives `to` the extended attributes of `from` that its file system can hold. 0 or a negative
 * errno. */
int fs_copy_xattrs(int from, int to);

/* A name for a temporary entry beside a target: ".iii-KIND-<random>.tmp", always new. */
#define FS_TEMP_NAME_SIZE 48
void fs_temp_name(char dst[static FS_TEMP_NAME_SIZE], const char *kind);
