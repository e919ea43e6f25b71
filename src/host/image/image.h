/* image - what the rest of the host knows of images: a name or reference in, a read-only disk and
 * the OCI configuration out.
 *
 * Inside the folder: catalog (names) -> store (entries by manifest digest, locks, eviction)
 * -> pull (skopeo) and oci (layouts) -> layers (tar to tree) -> erofs (tree to disk).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* The parts of an image's OCI configuration (image-spec config.md) that a sandbox uses. */
struct image_config {
	char **env;	   /* NAME=value; NULL-terminated, never NULL */
	char **entrypoint; /* "" */
	char **cmd;	   /* "" */
	char *workdir;	   /* "" when absent */
	char *user;	   /* "" when absent */
};

/* An image opened for use. While it is held, no eviction removes its disk. */
struct image {
	char *ref;	 /* the reference it is stored under, normalised */
	char digest[72]; /* "sha256:…" of the manifest */
	int disk_fd;	 /* EROFS, read-only; stays valid even when the entry is removed */
	uint64_t disk_bytes;
	struct image_config config;
	int lock_fd; /* shared lock on the entry */
};

void image_close(struct image *img); /* NULL allowed; frees img */

/* Progress of a pull or an import, for a bar or a log line. Called from the calling thread. */
struct image_progress {
	const char *stage;		  /* "pull", "unpack", "write", "done" */
	uint64_t done_bytes, total_bytes; /* total 0: unknown */
};
typedef void (*image_progress_fn)(const struct image_progress *p, void *user);

/* Opens a cached image by preset name, custom name or reference. -ENOENT with S101 when it is not
 * in the cache. Blocking, quick (no network). */
int image_open(const char *name, struct image **ret, struct err *e);

/* Pulls (docker:// references and bare names) or imports (oci:, oci-archive:, docker-archive:) and
 * stores the image under `as` (NULL: under its own normalised reference). Blocking: call it from
 * a thread or from the command line. Single flight between processes. S102 on failure.
 * `cancelled` is polled, may be NULL. */
int image_fetch(const char *source, const char *as, image_progress_fn progress, void *user,
	bool (*cancelled)(void *user), struct err *e);
