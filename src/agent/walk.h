/* walk - everything below a folder, however deep and wide (sandbox contract §5.10).
 *
 * Depth first; links are reported, never followed. No recursion, and no more than WALK_FDS_MAX
 * descriptors: deeper down, the way back is "..", believed only if it leads to the directory that
 * was left.
 *
 *   for each entry     on_entry, in raw byte order of the names of a directory (or as they come)
 *   a directory        on_entry before what is in it (its descriptor is open), on_leave after
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define WALK_FDS_MAX   128	    /* directories open at once */
#define WALK_NAMES_MAX (256u << 20) /* bytes of names waiting; more is -EFBIG, S216 */

struct walk_entry {
	int dir_fd;	  /* of the directory that holds it */
	const char *name; /* in it */
	const char *path; /* from the root of the walk, without a slash at the begin */
	size_t path_len;
	unsigned char type; /* DT_*; DT_UNKNOWN only for on_error */
	int fd;		    /* a directory's own descriptor, else -1 */
};

enum walk_verdict {
	WALK_ON = 0,
	WALK_PRUNE = 1, /* do not enter this directory; on_leave is not called for it */
};

struct walk_callbacks {
	/* A verdict, or a negative errno (with e) that ends the walk. */
	int (*on_entry)(const struct walk_entry *w, void *user, struct err *e);
	/* A directory has been gone through; w->fd is -1 now. May be NULL. */
	int (*on_leave)(const struct walk_entry *w, void *user, struct err *e);
	/* A directory cannot be entered or read on (negative errno `r`), or is not where it was
	 * any more (-ESTALE), or an entry's type cannot be known. 0: it is skipped, which with
	 * WALK_REMOVING would never end. What has vanished is not worth a call. */
	int (*on_error)(const struct walk_entry *w, int r, void *user, struct err *e);
};

enum walk_order {
	WALK_SORTED,
	/* As they come, in small portions, beginning anew until nothing comes any more: for
	 * callbacks that remove every entry, and folders of any size. */
	WALK_REMOVING,
};

/* Takes `root_fd`, a directory opened for reading. 0, or the negative errno that ended the walk
 * (-ECANCELED when the call was given up). */
int walk(int root_fd, enum walk_order order, const struct walk_callbacks *cb, void *user,
	struct err *e);
