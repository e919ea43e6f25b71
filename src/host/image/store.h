/* store - the images on this host's disk: entries by manifest digest, names that point at them.
 *
 *   <cache>/images/            mode 0700
 *     entries/<hex>-v<N>/      one image: disk.erofs and meta.json. Appears by one rename, complete
 *                              and synced, and never changes afterwards. N is STORE_DISK_FORMAT, so
 *                              programs with different writers share a folder in peace.
 *     names/<sha256>.json      {"name":…,"digest":…}; the file is named after the name's hash
 *     locks/<sha256>           a flight of that key is under way (store_flight_*)
 *     lock                     held for the short steps that change entries/ or names/
 *     tmp/<random>/            drafts; partial/<sha256>/: what an unfinished pull has got so far
 *
 * Locks are flock(2): they end with their holder, however it dies, and hold between threads as
 * between processes. Order: flight of the source, flight of the digest, `lock`; folders of entries,
 * drafts and partial pulls are locked without waiting, or last.
 *   - An entry in use has a shared lock on its folder (struct image.lock_fd); removal needs an
 *     exclusive one, so an image in use by any process stays.
 *   - A draft or partial pull has an exclusive lock on its folder while it is made; what nobody
 *     holds is the leftover of a crash and swept by the next fetch.
 *
 * Least recently used goes first: the modification time of an entry's folder is the time of its
 * last opening.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/err.h"
#include "host/image/image.h"

/* Goes up when the same layers would give another disk. */
#define STORE_DISK_FORMAT 1

/* Size of all disks together unless III_SANDBOX_CACHE_MAX (512M, 20G, …) says otherwise; beyond it
 * unused images go, oldest use first. */
#define STORE_BYTES_MAX (20ull << 30)

#define STORE_META_BYTES_MAX (8u << 20) /* of a meta.json; a larger one is no entry */
#define STORE_NAME_BYTES_MAX 4096	/* of a name (local sources hold a path) */
/* What a failed pull has already fetched is kept this long for the next try. */
#define STORE_PARTIAL_KEPT_S (24 * 3600)

struct store;

int store_open(struct store **ret, struct err *e);
void store_close(struct store *s); /* NULL allowed */
/* A folder of the store's file system for unnamed temporary files (O_TMPFILE). Borrowed. */
int store_scratch_dirfd(const struct store *s);

/* Called with its own number before each step of a publication, in tests that end the process
 * there. */
enum store_step {
	STORE_STEP_DRAFT,    /* temporary folder made, empty */
	STORE_STEP_META,     /* disk synced, meta.json not yet written */
	STORE_STEP_RENAME,   /* all synced, not yet in entries/ */
	STORE_STEP_DIR_SYNC, /* in entries/, that folder not yet synced */
	STORE_STEP_NAME,     /* entry there, its name not yet */
	STORE_STEP_DONE,
};
extern void (*store_step_hook)(enum store_step step);

/* What meta.json holds beside the disk. */
struct store_meta {
	char digest[72];
	char *source; /* as it was asked for */
	char *arch;
	uint64_t created;	 /* seconds since 1970 of the import */
	uint64_t disk_bytes;	 /* filled in at publication */
	uint64_t download_bytes; /* layers as stored at the source */
	struct image_config config;
};
void store_meta_done(struct store_meta *m);

/* ---- reading ---- */

/* The image a name points at, locked for use, its use noted. -ENOENT when there is no such name or
 * no (whole) entry. */
int store_get(struct store *s, const char *name, struct image **ret, struct err *e);
/* The entry of a digest; `ref` becomes image.ref. */
int store_get_digest(
	struct store *s, const char *digest, const char *ref, struct image **ret, struct err *e);
/* The digest a name points at, whether or not its entry is there. -ENOENT. */
int store_lookup(struct store *s, const char *name, char ret_digest[static 72], struct err *e);

struct store_item {
	struct store_meta meta;
	char **names; /* sorted; empty when nothing points at it any more */
	time_t used;
	bool in_use;
};
/* All whole entries, most recently used first; the caller frees with store_list_free. */
int store_list(struct store *s, struct store_item **ret, size_t *ret_n, struct err *e);
void store_list_free(struct store_item *items, size_t n);

/* ---- single flight ---- */

struct store_flight;

/* Becomes the one who does the work for `key`, or waits for the one who does.
 *   0   *ret is ours: do it, then store_flight_land
 *   1   we waited and it was done: look again
 *   <0  we waited and it failed: its error; or cancelled; or the folder is not usable
 * A holder that died or was cancelled hands over to one of those who wait. */
int store_flight_start(struct store *s, const char *key, bool (*cancelled)(void *), void *user,
	struct store_flight **ret, struct err *e);
/* Lets the waiting ones go with this outcome. `failure` NULL: done; an error with no ECANCELED is
 * theirs too. Frees f; NULL allowed. */
void store_flight_land(struct store_flight *f, const struct err *failure);
/* The same without an outcome: one of those who wait does the work anew. */
void store_flight_leave(struct store_flight *f);

/* ---- writing ---- */

/* A folder under tmp/ with an empty disk file, invisible to readers. */
struct store_draft {
	struct store *store;
	char *name;
	int dirfd; /* locked exclusively; also the place for scratch files */
	int disk_fd;
	bool published;
	int entry_lock; /* shared lock on the entry of another that was there first, or -1 */
};
int store_draft_new(struct store *s, struct store_draft **ret, struct err *e);
/* Syncs and moves it into entries/. The draft is then published and keeps a shared lock until
 * it is freed. If another has published the same digest meanwhile, that one stays. */
int store_draft_publish(struct store_draft *d, struct store_meta *meta, struct err *e);
void store_draft_free(struct store_draft *d); /* removes what was not published; NULL allowed */

/* A folder that keeps finished blobs of a pull until it succeeds; exclusively locked. Its path is
 * for the helper program. */
struct store_partial {
	struct store *store;
	char *name;
	char *path;
	int dirfd;
};
int store_partial_open(struct store *s, const char *key, struct store_partial **ret, struct err *e);
void store_partial_close(struct store_partial *p, bool keep); /* NULL allowed */

int store_set_name(struct store *s, const char *name, const char *digest, struct err *e);

/* Takes a name away. The entry goes with its last name, unless it is in use: -EBUSY, nothing
 * changed. 1 when the entry went, 0 when only the name did. */
int store_remove_name(struct store *s, const char *name, bool force, struct err *e);
/* Removes an entry and all its names. -EBUSY when in use, unless forced: those who use it keep
 * their open disk. */
int store_remove_digest(struct store *s, const char *digest, bool force, struct err *e);

/* Sweeps what crashes left. `all`: partial pulls that could still be continued, too. */
void store_sweep(struct store *s, bool all);

struct store_gc_result {
	unsigned entries;	 /* removed */
	uint64_t bytes;		 /* freed */
	uint64_t kept_bytes;	 /* of what is left */
	unsigned in_use_skipped; /* would have gone but are in use */
};
/* Removes unused entries, least recently used first, until all disks together are at most
 * `max_bytes`; with `unnamed`, also every entry that no name points at. */
int store_gc(struct store *s, uint64_t max_bytes, bool unnamed, struct store_gc_result *ret,
	struct err *e);
/* The limit: III_SANDBOX_CACHE_MAX or STORE_BYTES_MAX. */
int store_max_bytes(uint64_t *ret, struct err *e);

/* -ENOSPC with both numbers unless `bytes` more fit on the file system. */
int store_check_space(struct store *s, uint64_t bytes, const char *what, struct err *e);
