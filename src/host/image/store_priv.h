/* store_priv - what the files of the store share. */
#pragma once

#include "host/image/store.h"

#define STORE_DISK_FILE "disk.erofs"
#define STORE_META_FILE "meta.json"
/* The part of a partial pull that is of no use to the next try. */
#define STORE_PARTIAL_VOLATILE "layout"

struct store {
	char *path;
	int dir, entries, names, locks, tmp, partial;
};

/* Waits for the lock of the short steps; closing *ret_fd gives it back. */
int store_lock(struct store *s, int *ret_fd, struct err *e);

/* Opens a folder and locks it (LOCK_SH, LOCK_EX, with LOCK_NB or not); makes sure that it still has
 * this name afterwards. Negative errno; -EWOULDBLOCK when held. */
int store_lock_dir(int at, const char *name, int operation, int *ret_fd);

/* tmp/<fresh random name> as a new string. */
char *store_tmp_name(void);

/* "<hex>-v<format>" */
char *store_entry_name(const char *digest);
/* Reads and checks an entry by its open folder; disk_fd may be NULL. -ENOENT when it is torn. */
int store_read_entry(int dirfd, struct store_meta *ret, int *ret_disk_fd, struct err *e);

/* Takes an unused entry out of sight: moved to tmp/ as *ret_trash (the caller frees the string and
 * removes the folder, best after the lock is given back). -EBUSY when in use and not forced. */
int store_hide_entry(struct store *s, const char *entry, bool force, char **ret_trash);

/* Every name with its digest, sorted by name. */
struct store_name {
	char *name;
	char digest[72];
};
int store_read_names(struct store *s, struct store_name **ret, size_t *ret_n, struct err *e);
void store_names_free(struct store_name *names, size_t n);
int store_unlink_name(struct store *s, const char *name);

/* Calls f with each name in the folder (not . and ..) until it returns non-zero, which is the
 * result. */
int store_each(int dirfd, int (*f)(const char *name, void *user), void *user);

void store_step(enum store_step step);
