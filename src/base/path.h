/* path - where the program keeps its files, and folders made on demand.
 *
 * design.md §4: images and kernel under III_SANDBOX_CACHE_DIR, else
 * $XDG_CACHE_HOME/sandbox-libkrun, else ~/.cache/sandbox-libkrun; sandboxes and worker VMs under
 * III_SANDBOX_STATE_DIR, else $XDG_STATE_HOME/sandbox-libkrun, else ~/.local/state/sandbox-libkrun.
 */
#pragma once

#include <sys/types.h>

#include "base/err.h"

/* "a/b" from "a" and "b" (one slash between); the caller frees it. */
char *path_join(const char *a, const char *b);

/* mkdir -p with mode 0700 for what is missing. An error names the folder that could not be made. */
int path_mkdirs(const char *path, struct err *e);

/* The folder (made if missing) as a new string; NULL with an error that names the variable to set.
 * `sub` (may be NULL) is appended. */
char *path_cache_dir(const char *sub, struct err *e);
char *path_state_dir(const char *sub, struct err *e);

/* Opens the folder: O_DIRECTORY|O_CLOEXEC. Negative errno on failure. */
int path_open_dir(const char *path, struct err *e);

/* Removes name and, if it is a folder, all below it; never follows a symlink. 0, or the first
 * failure as a negative errno. A missing name is success. */
int path_remove_at(int dirfd, const char *name);
