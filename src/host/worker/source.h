/* source - a worker's folder as a read-only disk, and the digests that decide what to run again
 * (worker VM specification §4.5, §4.6).
 *
 * The tree is read below one descriptor, no symlink is followed, nothing is written to it (where
 * the kernel allows it, not even access times change). Symlinks are kept as they are; sockets,
 * FIFOs and devices are left out with a note; a file that vanishes meanwhile is left out; one that
 * cannot be read is S500 with its path in the source. Names are bytes. Owners become root, set-id
 * bits go, extended attributes are not copied, the names of one file become files of their own.
 */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "host/worker/manifest.h"

#define SOURCE_BYTES_MAX   (10ull << 30) /* of all files, holes too; more is S500 with the limit */
#define SOURCE_ENTRIES_MAX 1000000u	 /* names; likewise */
#define SOURCE_DEPTH_MAX   128		 /* names in one path; likewise */
#define SOURCE_PATH_MAX	   4096		 /* bytes of a path below the source; likewise */
#define SOURCE_NOTES_MAX   100		 /* lines; then one more says how many were not written */

struct source_job {
	int dir_fd;	  /* of roots_open */
	const char *path; /* canonical: for messages, and part of a bundle's digests */
	enum worker_kind
		kind;	   /* WORKER_LOCAL: host artefacts (node_modules, .git, …) are left out */
	int scratch_dirfd; /* folder on a disk: the result is an unnamed file there */
	void (*note)(const char *line, void *user); /* something was left out; may be NULL */
	bool (*stop)(void *user); /* polled; true ends with -ECANCELED; may be NULL */
	void *user;
};

/* *ret_fd: the finished EROFS disk, opened read-only. digest: of path, names, modes, targets, times
 * and contents for a bundle, "" for a local source. S500 for the source, S504 for the disk.
 * Blocking, as long as the tree is large. */
int source_write(
	const struct source_job *j, int *ret_fd, char digest[WORKER_DIGEST_LEN + 1], struct err *e);

/* setup: format, base image, command. install: that digest, the command, names and contents of the
 * lock files at the root of a local source; path and digest for a bundle. A command that is NULL
 * counts like "". */
void source_setup_digest(
	const char *image_digest, const char *setup, char ret[WORKER_DIGEST_LEN + 1]);
/* A lock file that is a symlink out of the source, which the guest cannot follow either, counts
 * with its target; one that cannot be read is S500. For a local source call it before
 * source_write(): when a lock file changes in between, install runs once too often, not never. */
int source_install_digest(const struct source_job *j, const char *setup_digest,
	const char *source_digest, const char *install, char ret[WORKER_DIGEST_LEN + 1],
	struct err *e);
