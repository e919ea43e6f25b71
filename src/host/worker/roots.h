/* roots - the two folders of the host below which a worker's source may lie (specification §3).
 *
 *   project   III_SANDBOX_PROJECT_DIR, else the working folder unless it is "/"
 *   cache     III_SANDBOX_PACKAGE_CACHE, else the parent of a folder sandbox-libkrun-VERSION-TARGET
 *             that holds this program, else ~/.iii/compose/packages
 *
 * The check is made anew for every call: lexically first ("." and ".." taken out of the text), so
 * that an answer never tells whether a path outside exists; then with all symlinks resolved; then
 * the folder is opened without following any, and from there on only that descriptor is used.
 */
#pragma once

#include "base/err.h"

#define ROOT_PATH_MAX 4095 /* bytes of a host_path; more is S501 */

struct roots {
	char *project, *cache; /* absolute, without "." and ".."; NULL: unset, admits nothing */
};

/* Reads the environment and the working folder; logs both. */
void roots_init(struct roots *r);
void roots_done(struct roots *r);

/* A source that was found to be under a root. */
struct root_dir {
	int fd;	    /* O_PATH|O_DIRECTORY: openat() below it is all that is done with it */
	char *path; /* canonical, for records and errors */
};
#define ROOT_DIR_INIT ((struct root_dir){.fd = -1})
void root_dir_done(struct root_dir *d);

/* S501 (-EPERM) naming the path as given (control characters escaped) and both roots; S500 when it
 * is under a root but not there, not a folder or not to be opened. *ret is untouched on failure.
 * Blocking. `host_path` must not have been cut at a NUL of the request. */
int roots_open(const struct roots *r, const char *host_path, struct root_dir *ret, struct err *e);

/* Opens a regular file below the folder: no symlink that leads out of it, no device, no FIFO (never
 * blocks). -ENOENT when it is not there; S500 naming the file otherwise, nothing of its content.
 * Where the kernel has no openat2 (before Linux 5.6), no symlink is followed at all. */
int root_open_file(int dir_fd, const char *name, int *ret_fd, struct err *e);
