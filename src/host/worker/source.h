/* source - a worker's folder as a read-only disk, and the digests that decide what to run again
 * (worker VM specification §4.5, §4.6).
 *
 * The tree is read below one descriptor, no symlink is followed, nothing is written to it. Symlinks
 * are kept as they are; sockets, FIFOs and devices are left out with a note; a file that vanishes
 * meanwhile is left out; one that cannot be read is S500. Owners become root, set-id bits go.
 */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "host/worker/manifest.h"

#define SOURCE_BYTES_MAX   (10ull << 30) /* more is S500 that names the limit */
#define SOURCE_ENTRIES_MAX 1000000u	 /* likewise */
#define SOURCE_DEPTH_MAX   128		 /* likewise, folders in folders */

struct source_job {
	int dir_fd;	  /* of roots_open */
	const char *path; /* for messages */
	enum worker_kind
		kind;	   /* WORKER_LOCAL: host artefacts (node_modules, .git, …) are left out */
	int scratch_dirfd; /* folder on a disk: the result is an unnamed file there */
	void (*note)(const char *line, void *user); /* something was left out; may be NULL */
	bool (*stop)(void *user); /* polled; true ends with -ECANCELED; may be NULL */
	void *user;
};

/* *ret_fd: the finished EROFS disk, opened read-only. digest: of all names, modes, targets, times
 * and contents for a bundle, "" for a local source. S500 for the source, S504 for the disk.
 * Blocking, as long as the tree is large. */
int source_write(
	const struct source_job *j, int *ret_fd, char digest[WORKER_DIGEST_LEN + 1], struct err *e);

/* setup: format, base image, command. install: that digest, the command, names and contents of the
 * lock files at the root of a local source; path and digest for a bundle. */
int source_setup_digest(
	const char *image_digest, const char *setup, char ret[WORKER_DIGEST_LEN + 1]);
int source_install_digest(const struct source_job *j, const char *setup_digest,
	const char *source_digest, const char *install, char ret[WORKER_DIGEST_LEN + 1],
	struct err *e);
