/* sync - makes one tree like another, as a worker's source comes into /workspace (worker VM
 * specification §4.5).
 *
 *   file      type, size, mtime alike: left alone, but for mode and owner; else copied anew
 *   symlink   by its target and mtime, never followed
 *   folder    made; what is no folder in its place is replaced, and the other way round
 *   others    sockets, FIFOs, devices: left out and counted
 *
 * What is not in the source is removed at every depth, except names of artefacts
 * (worker_is_artefact): these and all below them belong to whoever made them. A folder that is gone
 * from the source and holds one keeps the way to it and nothing else.
 *
 * Modes are taken without set-id bits, times to the nanosecond; the owner is the caller; names of
 * one file become names of one copy. A copy always has an inode of its own, so a hard link that
 * was made to the old one keeps the old content.
 *
 * Nobody else may change either tree meanwhile. Nothing is synced to disk here.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct sync_options {
	/* Artefacts are not copied either: they belong to the host that made them. */
	bool leave_out_artefacts;
	/* Files that look alike are alike. False: an earlier sync may not have come to its end, and
	 * a crash can leave a file with its size and time, but not its bytes: all are copied. */
	bool trust_times;
	/* Called once, before anything but the removal of empty folders. A negative errno (with e)
	 * ends the sync. May be NULL. */
	int (*before_changes)(void *user, struct err *e);
	void *user;
};

struct sync_counts {
	uint64_t copied;   /* files, links, new folders */
	uint64_t removed;  /* entries in folders that are in both trees; files below others too */
	uint64_t left_out; /* neither file nor folder nor link */
	bool changed;	   /* anything at all */
};

/* Makes `dst_fd` like `src_fd`, two folders opened for reading; both stay the caller's. Memory is
 * that of the names in the folders on the way (walk.h), descriptors are few at any depth. A failure
 * names the path and leaves a part done. */
int sync_tree(int src_fd, int dst_fd, const struct sync_options *o, struct sync_counts *ret,
	struct err *e);
