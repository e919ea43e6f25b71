/* workspace - /workspace of a worker VM, made like the source that the host sent as a disk (worker
 * VM specification §4.5).
 *
 * What is known of the last time stands in /var/.iii-source, one line, durable before what it
 * announces:
 *
 *   complete DIGEST     all of it is on disk
 *   changing DIGEST     files are being copied: their times prove nothing
 *   emptying            a bundle is replaced; no script has run since this was written
 *
 * DIGEST is the bundle's, or "-" for a local source. A bundle whose digest is not the one that
 * stands there gets an empty /workspace, and so does whatever follows an interrupted emptying. A
 * file that is missing or says anything else counts as nothing known.
 */
#pragma once

#include "base/err.h"
#include "wire/worker.h"

#include "agent/sync.h"

#define WORKSPACE_PATH "/workspace"

/* Mounts the disk with this serial read-only, in a mount namespace of the caller's own, brings
 * /workspace up to date and on disk, unmounts. For a child that then ends: the namespace stays the
 * caller's. Waits for the disk as disk_find does. */
int workspace_bring(
	const char *serial, const struct worker_job *job, struct sync_counts *ret, struct err *e);

/* The middle of it: brings "workspace" below root_fd up to date with the folder src_fd. Both stay
 * the caller's. "workspace" is made where it is missing, and replaces what is no folder. */
int workspace_update(int root_fd, int src_fd, const struct worker_job *job, struct sync_counts *ret,
	struct err *e);
