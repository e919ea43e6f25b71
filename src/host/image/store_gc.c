/* Eviction by last use, and the sweep after crashes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/image/store_priv.h"
#include "wire/oci.h"

int store_hide_entry(struct store *s, const char *entry, bool force, char **ret_trash)
{
	cleanup_free char *trash = store_tmp_name();
	cleanup_fd int dir = -1;
	int r = store_lock_dir(s->entries, entry, LOCK_EX | LOCK_NB, &dir);

	if (r == -EWOULDBLOCK) {
		if (!force)
			return -EBUSY;
	} else if (r < 0 && r != -ENOTDIR && r != -ELOOP) {
		return r;
	}
	if (renameat(s->entries, entry, s->tmp, trash) < 0)
		return -errno;
	fsync(s->entries);
	*ret_trash = STEAL(trash);
	return 0;
}

/* ---- sweep ---- */

struct sweep {
	struct store *s;
	bool all;
};

/* tmp/: whatever nobody holds. */
static int sweep_tmp(const char *name, void *user)
{
	struct sweep *w = user;
	cleanup_fd int dir = -1;
	int r = store_lock_dir(w->s->tmp, name, LOCK_EX | LOCK_NB, &dir);

	if (r == 0 || r == -ENOTDIR || r == -ELOOP)
		path_remove_at(w->s->tmp, name);
	return 0;
}

/* partial/: what cannot help the next try at once, the rest when it is old. */
static int sweep_partial(const char *name, void *user)
{
	struct sweep *w = user;
	cleanup_fd int dir = -1;
	struct stat st;

	if (store_lock_dir(w->s->partial, name, LOCK_EX | LOCK_NB, &dir) < 0 || fstat(dir, &st) < 0)
		return 0;
	if (w->all || st.st_mtime + STORE_PARTIAL_KEPT_S < time(NULL)) {
		path_remove_at(w->s->partial, name);
	} else if (faccessat(dir, STORE_PARTIAL_VOLATILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
		const struct timespec keep[] = {st.st_atim, st.st_mtim};

		path_remove_at(dir, STORE_PARTIAL_VOLATILE);
		futimens(dir, keep);
	}
	return 0;
}

/* locks/: a crash leaves its file, which the next flight of that key would take over. */
static int sweep_lock(const char *name, void *user)
{
	struct sweep *w = user;
	cleanup_fd int fd = openat(w->s->locks, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	struct stat have, named;

	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &have) < 0 ||
		fstatat(w->s->locks, name, &named, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	if (have.st_ino == named.st_ino && have.st_dev == named.st_dev)
		unlinkat(w->s->locks, name, 0);
	return 0;
}

/* Writers of names hold the store's lock, so under it every temporary file is a leftover. */
static int sweep_name(const char *name, void *user)
{
	struct sweep *w = user;

	if (str_starts(name, ".tmp-"))
		unlinkat(w->s->names, name, 0);
	return 0;
}

void store_sweep(struct store *s, bool all)
{
	struct sweep w = {.s = s, .all = all};
	cleanup_fd int lock = -1;

	store_each(s->tmp, sweep_tmp, &w);
	store_each(s->partial, sweep_partial, &w);
	if (store_lock(s, &lock, NULL) < 0)
		return;
	store_each(s->locks, sweep_lock, &w);
	store_each(s->names, sweep_name, &w);
}

/* ---- eviction ---- */

struct candidate {
	char *entry;
	char digest[72];
	uint64_t bytes;
	struct timespec used;
	bool whole, named;
};

struct candidates {
	struct store *s;
	struct candidate *list;
	size_t n;
	uint64_t bytes;
};

/* The digest in the name of an entry of any format, or "". */
static void digest_of_entry(const char *entry, char dst[static 72])
{
	snprintf(dst, 72, "sha256:%.64s", entry);
	if (!oci_digest_valid(dst) || !str_starts(entry + 64, "-v"))
		dst[0] = '\0';
}

static int add_candidate(const char *entry, void *user)
{
	struct candidates *all = user;
	struct candidate c = {0};
	cleanup_free char *ours = NULL;
	struct stat folder, disk = {0};
	struct store_meta meta;
	cleanup_fd int dir =
		openat(all->s->entries, entry, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (dir >= 0 && fstat(dir, &folder) == 0) {
		c.used = folder.st_mtim;
		if (fstatat(dir, STORE_DISK_FILE, &disk, AT_SYMLINK_NOFOLLOW) == 0)
			c.bytes = (uint64_t)disk.st_blocks * 512;
		digest_of_entry(entry, c.digest);
		ours = c.digest[0] ? store_entry_name(c.digest) : NULL;
		if (!str_eq(entry, ours)) {
			c.whole = c.digest[0]; /* another format: not ours to judge */
		} else if (store_read_entry(dir, &meta, NULL, NULL) == 0) {
			c.whole = true;
			store_meta_done(&meta);
		}
	}
	c.entry = xstrdup(entry);
	all->bytes += c.bytes;
	all->list = xrealloc(all->list, all->n + 1, sizeof(*all->list));
	all->list[all->n++] = c;
	return 0;
}

static int by_age(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->used.tv_sec != y->used.tv_sec)
		return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
	if (x->used.tv_nsec != y->used.tv_nsec)
		return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
	return strcmp(x->entry, y->entry);
}

/* Names that point at nothing go; entries that a name points at are marked. */
static void match_names(struct candidates *all, const struct store_name *names, size_t n_names)
{
	for (size_t i = 0; i < n_names; i++) {
		bool found = false;

		for (size_t k = 0; k < all->n; k++) {
			if (!str_eq(all->list[k].digest, names[i].digest))
				continue;
			all->list[k].named = true;
			found = true;
		}
		if (!found)
			store_unlink_name(all->s, names[i].name);
	}
}

static void candidates_done(struct candidates *all)
{
	for (size_t i = 0; i < all->n; i++)
		free(all->list[i].entry);
	free(all->list);
}

/* Under the store's lock. The hidden folders are collected in *trash. */
static void evict(struct candidates *all, uint64_t max_bytes, bool unnamed, char ***trash,
	struct store_gc_result *res)
{
	uint64_t left = all->bytes;

	for (size_t i = 0; i < all->n; i++) {
		struct candidate *c = &all->list[i];
		cleanup_free char *hidden = NULL;
		int r;

		if (c->whole && left <= max_bytes && (c->named || !unnamed))
			continue;
		r = store_hide_entry(all->s, c->entry, false, &hidden);
		if (r == -EBUSY)
			res->in_use_skipped++;
		if (r < 0)
			continue;
		strv_add(trash, hidden);
		c->digest[0] = '\0';
		left -= c->bytes;
		res->entries++;
		res->bytes += c->bytes;
	}
	res->kept_bytes = left;
}

int store_gc(struct store *s, uint64_t max_bytes, bool unnamed, struct store_gc_result *ret,
	struct err *e)
{
	struct candidates all = {.s = s};
	struct store_gc_result res = {0};
	struct store_name *names = NULL;
	cleanup_fd int lock = -1;
	char **trash = NULL;
	size_t n_names = 0;
	int r = store_lock(s, &lock, e);

	if (r >= 0)
		r = store_read_names(s, &names, &n_names, e);
	if (r < 0)
		return r;
	r = store_each(s->entries, add_candidate, &all);
	if (r >= 0) {
		if (all.n)
			qsort(all.list, all.n, sizeof(*all.list), by_age);
		match_names(&all, names, n_names);
		evict(&all, max_bytes, unnamed, &trash, &res);
		match_names(&all, names, n_names); /* names of what just went */
	} else {
		err_set(e, "", -r, "cannot read %s/entries: %s", s->path, err_str(r));
	}
	fd_close(&lock);
	/* Gigabytes are given back without holding up others. */
	for (size_t i = 0; trash && trash[i]; i++)
		path_remove_at(s->tmp, trash[i]);
	strv_free(trash);
	candidates_done(&all);
	store_names_free(names, n_names);
	if (r >= 0 && ret)
		*ret = res;
	return r < 0 ? r : 0;
}

int store_max_bytes(uint64_t *ret, struct err *e)
{
	const char *text = getenv("III_SANDBOX_CACHE_MAX");

	*ret = STORE_BYTES_MAX;
	if (!text || !*text)
		return 0;
	if (str_size(text, ret) < 0)
		return err_set(e, "", EINVAL,
			"III_SANDBOX_CACHE_MAX must be a size such as 512M or 20G, not '%s'", text);
	return 0;
}
