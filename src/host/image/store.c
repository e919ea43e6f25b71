/* The store's folder, its entries and their publication; store.h says where what lies.
 *
 * An entry is made as a draft in tmp/, synced file by file, and moved into entries/ by one rename
 * under the store's lock; the folder is synced after that. So at any moment, and after any crash, a
 * reader sees it whole or not at all. The checks on reading (sizes, superblock magic, a metadata
 * file that parses) are for what is beyond a crash: a file system that lost data it had promised to
 * keep, or a person at work in the folder. Such an entry counts as absent and is replaced by the
 * next fetch.
 */
#include "host/image/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/image/digest.h"
#include "host/image/store_priv.h"
#include "wire/json.h"
#include "wire/oci.h"

#define EROFS_SUPER_OFFSET 1024
#define EROFS_SUPER_MAGIC  0xe0f5e1e2u

void (*store_step_hook)(enum store_step step);

void store_step(enum store_step step)
{
	if (store_step_hook)
		store_step_hook(step);
}

/* ---- the folder ---- */

static int open_sub(int dir, const char *name, struct err *e)
{
	int fd;

	if (mkdirat(dir, name, 0700) < 0 && errno != EEXIST)
		return err_set(e, "", errno, "cannot make the folder %s of the image store: %s",
			name, err_str(errno));
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, "", errno, "cannot open the folder %s of the image store: %s",
			name, err_str(errno));
	return fd;
}

int store_open(struct store **ret, struct err *e)
{
	struct store *s = xcalloc(1, sizeof(*s));
	struct {
		const char *name;
		int *fd;
	} subs[] = {{"entries", &s->entries}, {"names", &s->names}, {"locks", &s->locks},
		{"tmp", &s->tmp}, {"partial", &s->partial}};
	int r;

	s->dir = s->entries = s->names = s->locks = s->tmp = s->partial = -1;
	s->path = path_cache_dir("images", e);
	r = s->path ? path_open_dir(s->path, e) : -EIO;
	if (r >= 0)
		s->dir = r;
	for (size_t i = 0; r >= 0 && i < ARRAY_LEN(subs); i++)
		r = *subs[i].fd = open_sub(s->dir, subs[i].name, e);
	if (r < 0) {
		store_close(s);
		return r;
	}
	*ret = s;
	return 0;
}

void store_close(struct store *s)
{
	if (!s)
		return;
	fd_close(&s->dir);
	fd_close(&s->entries);
	fd_close(&s->names);
	fd_close(&s->locks);
	fd_close(&s->tmp);
	fd_close(&s->partial);
	free(s->path);
	free(s);
}

int store_scratch_dirfd(const struct store *s)
{
	return s->tmp;
}

static int flock_retry(int fd, int operation)
{
	while (flock(fd, operation) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

int store_lock(struct store *s, int *ret_fd, struct err *e)
{
	cleanup_fd int fd = openat(s->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	int r = fd < 0 ? -errno : flock_retry(fd, LOCK_EX);

	if (r < 0)
		return err_set(
			e, "", -r, "cannot lock the image store %s: %s", s->path, err_str(r));
	*ret_fd = STEAL_FD(fd);
	return 0;
}

int store_lock_dir(int at, const char *name, int operation, int *ret_fd)
{
	for (;;) {
		cleanup_fd int fd =
			openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		struct stat have, named;
		int r = fd < 0 ? -errno : flock_retry(fd, operation);

		if (r < 0)
			return r;
		if (fstat(fd, &have) < 0)
			return -errno;
		if (fstatat(at, name, &named, AT_SYMLINK_NOFOLLOW) < 0)
			return -errno;
		/* Removed, or removed and made anew, while we waited? */
		if (have.st_ino != named.st_ino || have.st_dev != named.st_dev)
			continue;
		*ret_fd = STEAL_FD(fd);
		return 0;
	}
}

int store_each(int dirfd, int (*f)(const char *name, void *user), void *user)
{
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;

	if (!dir) {
		r = -errno;
		fd_close(&fd);
		return r;
	}
	while (r == 0 && (d = readdir(dir)))
		if (!str_eq(d->d_name, ".") && !str_eq(d->d_name, ".."))
			r = f(d->d_name, user);
	closedir(dir);
	return r;
}

char *store_tmp_name(void)
{
	char id[37];

	str_uuid4(id);
	return xstrdup(id);
}

char *store_entry_name(const char *digest)
{
	return xasprintf("%s-v%d", oci_digest_hex(digest), STORE_DISK_FORMAT);
}

int store_check_space(struct store *s, uint64_t bytes, const char *what, struct err *e)
{
	char need[16], have[16];
	struct statvfs v;
	uint64_t free_bytes;

	if (fstatvfs(s->dir, &v) < 0)
		return 0; /* the write itself will tell */
	free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
	if (bytes <= free_bytes)
		return 0;
	return err_set(e, "", ENOSPC,
		"%s needs %s, but only %s are free in %s: make room there (sandbox-libkrun image "
		"gc --all removes what is not in use) or set III_SANDBOX_CACHE_DIR",
		what, str_human_size(bytes, need), str_human_size(free_bytes, have), s->path);
}

/* ---- metadata ---- */

void store_meta_done(struct store_meta *m)
{
	free(m->source);
	free(m->arch);
	strv_free(m->config.env);
	strv_free(m->config.entrypoint);
	strv_free(m->config.cmd);
	free(m->config.workdir);
	free(m->config.user);
	*m = (struct store_meta){0};
}

static json_object *meta_to_json(const struct store_meta *m)
{
	json_object *o = json_object_new_object(), *config = json_object_new_object();

	json_add_u64(o, "format", STORE_DISK_FORMAT);
	json_add_str(o, "digest", m->digest);
	json_add_str(o, "source", m->source);
	json_add_str(o, "arch", m->arch);
	json_add_u64(o, "created", m->created);
	json_add_u64(o, "disk_bytes", m->disk_bytes);
	json_add_u64(o, "download_bytes", m->download_bytes);
	json_add_strv(config, "env", m->config.env);
	json_add_strv(config, "entrypoint", m->config.entrypoint);
	json_add_strv(config, "cmd", m->config.cmd);
	json_add_str(config, "workdir", m->config.workdir);
	json_add_str(config, "user", m->config.user);
	json_object_object_add(o, "config", config);
	return o;
}

static int meta_from_json(json_object *o, struct store_meta *m, struct err *e)
{
	const char *digest = "", *source = "", *arch = "", *workdir = "", *user = "";
	json_object *config = NULL;
	int r = json_get_str(o, "digest", JSON_REQUIRED, &digest, e);

	if (r >= 0)
		r = json_get_str(o, "source", JSON_REQUIRED, &source, e);
	if (r >= 0)
		r = json_get_str(o, "arch", JSON_REQUIRED, &arch, e);
	if (r >= 0)
		r = json_get_u64(o, "created", JSON_REQUIRED, &m->created, e);
	if (r >= 0)
		r = json_get_u64(o, "disk_bytes", JSON_REQUIRED, &m->disk_bytes, e);
	if (r >= 0)
		r = json_get_u64(o, "download_bytes", JSON_REQUIRED, &m->download_bytes, e);
	if (r >= 0)
		r = json_get_object(o, "config", JSON_REQUIRED, &config, e);
	if (r >= 0)
		r = json_get_strv(config, "env", JSON_REQUIRED, &m->config.env, e);
	if (r >= 0)
		r = json_get_strv(config, "entrypoint", JSON_REQUIRED, &m->config.entrypoint, e);
	if (r >= 0)
		r = json_get_strv(config, "cmd", JSON_REQUIRED, &m->config.cmd, e);
	if (r >= 0)
		r = json_get_str(config, "workdir", JSON_REQUIRED, &workdir, e);
	if (r >= 0)
		r = json_get_str(config, "user", JSON_REQUIRED, &user, e);
	if (r < 0)
		return r;
	if (!oci_digest_valid(digest))
		return err_set(e, "", EINVAL, "no digest");
	memcpy(m->digest, digest, OCI_DIGEST_LEN + 1);
	m->source = xstrdup(source);
	m->arch = xstrdup(arch);
	m->config.workdir = xstrdup(workdir);
	m->config.user = xstrdup(user);
	return 0;
}

static int read_meta(int dirfd, struct store_meta *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	cleanup_free char *text = NULL;
	struct store_meta m = {0};
	size_t len;
	int r = fd_slurp_at(dirfd, STORE_META_FILE, STORE_META_BYTES_MAX, &text, &len);

	if (r < 0)
		return err_set(e, "", -r, STORE_META_FILE ": %s", err_str(r));
	r = json_parse_object(text, len, &o, e);
	if (r >= 0)
		r = meta_from_json(o, &m, e);
	if (r < 0) {
		store_meta_done(&m);
		return r;
	}
	*ret = m;
	return 0;
}

/* ---- reading entries ---- */

static int open_disk(int dirfd, uint64_t bytes, int *ret, struct err *e)
{
	cleanup_fd int fd = openat(
		dirfd, STORE_DISK_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	uint8_t magic[4] = {0};
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(e, "", errno, STORE_DISK_FILE ": %s", err_str(errno));
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes)
		return err_set(e, "", EINVAL, STORE_DISK_FILE " has %lld bytes instead of %" PRIu64,
			(long long)st.st_size, bytes);
	fd_pread_full(fd, magic, sizeof(magic), EROFS_SUPER_OFFSET);
	if ((magic[0] | magic[1] << 8 | magic[2] << 16 | (uint32_t)magic[3] << 24) !=
		EROFS_SUPER_MAGIC)
		return err_set(e, "", EINVAL, STORE_DISK_FILE " is no EROFS");
	*ret = STEAL_FD(fd);
	return 0;
}

int store_read_entry(int dirfd, struct store_meta *ret, int *ret_disk_fd, struct err *e)
{
	cleanup_fd int disk = -1;
	struct store_meta m = {0};
	int r = read_meta(dirfd, &m, e);

	if (r >= 0)
		r = open_disk(dirfd, m.disk_bytes, &disk, e);
	if (r < 0) {
		store_meta_done(&m);
		err_wrap(e, "the cached image is damaged and will be made anew by the next pull");
		if (e)
			e->no = ENOENT;
		return -ENOENT;
	}
	*ret = m;
	if (ret_disk_fd)
		*ret_disk_fd = STEAL_FD(disk);
	return 0;
}

int store_get_digest(
	struct store *s, const char *digest, const char *ref, struct image **ret, struct err *e)
{
	cleanup_free char *entry = store_entry_name(digest);
	cleanup_fd int dir = -1, disk = -1;
	struct store_meta m;
	struct image *img;
	int r = store_lock_dir(s->entries, entry, LOCK_SH, &dir);

	if (r < 0)
		return err_set(e, "", -r, "the image store has no entry %s%s%s", digest,
			r == -ENOENT ? "" : ": ", r == -ENOENT ? "" : err_str(r));
	r = store_read_entry(dir, &m, &disk, e);
	if (r < 0)
		return r;
	futimens(dir, NULL); /* the time of last use; where it can't be set, order is by creation */
	img = xcalloc(1, sizeof(*img));
	img->ref = xstrdup(ref);
	memcpy(img->digest, digest, OCI_DIGEST_LEN + 1);
	img->disk_fd = STEAL_FD(disk);
	img->disk_bytes = m.disk_bytes;
	img->lock_fd = STEAL_FD(dir);
	img->config = m.config;
	m.config = (struct image_config){0};
	store_meta_done(&m);
	*ret = img;
	return 0;
}

int store_get(struct store *s, const char *name, struct image **ret, struct err *e)
{
	char digest[72];
	int r = store_lookup(s, name, digest, e);

	return r < 0 ? r : store_get_digest(s, digest, name, ret, e);
}

void image_close(struct image *img)
{
	if (!img)
		return;
	fd_close(&img->disk_fd);
	fd_close(&img->lock_fd);
	strv_free(img->config.env);
	strv_free(img->config.entrypoint);
	strv_free(img->config.cmd);
	free(img->config.workdir);
	free(img->config.user);
	free(img->ref);
	free(img);
}

/* ---- drafts ---- */

static int draft_error(struct store *s, int r, const char *step, struct err *e)
{
	return err_set(e, "", -r, "%s in %s: %s%s", step, s->path, err_str(r),
		r == -ENOSPC ? ": make room there (sandbox-libkrun image gc --all removes what is "
			       "not in use)"
			     : "");
}

int store_draft_new(struct store *s, struct store_draft **ret, struct err *e)
{
	struct store_draft *d = xcalloc(1, sizeof(*d));
	int r;

	*d = (struct store_draft){.store = s, .dirfd = -1, .disk_fd = -1, .entry_lock = -1};
	/* A sweep may come between mkdir and the lock: then once more, with a new name. */
	do {
		free(d->name);
		d->name = store_tmp_name();
		r = mkdirat(s->tmp, d->name, 0700) < 0
			    ? -errno
			    : store_lock_dir(s->tmp, d->name, LOCK_EX, &d->dirfd);
	} while (r == -ENOENT);
	if (r >= 0) {
		store_step(STORE_STEP_DRAFT);
		d->disk_fd = openat(d->dirfd, STORE_DISK_FILE,
			O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
		r = d->disk_fd < 0 ? -errno : 0;
	}
	if (r < 0) {
		store_draft_free(d);
		return draft_error(s, r, "cannot begin a disk", e);
	}
	*ret = d;
	return 0;
}

static int write_meta(int dirfd, const struct store_meta *m)
{
	cleanup_json json_object *o = meta_to_json(m);
	cleanup_fd int fd =
		openat(dirfd, STORE_META_FILE, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0400);
	size_t len;
	const char *text = json_text(o, &len);
	int r = fd < 0 ? -errno : fd_write_all(fd, text, len);

	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	return r;
}

/* Everything of the draft on the disk. */
static int settle(struct store_draft *d, struct store_meta *meta)
{
	struct stat st;
	int r;

	if (fstat(d->disk_fd, &st) < 0)
		return -errno;
	meta->disk_bytes = (uint64_t)st.st_size;
	if (fchmod(d->disk_fd, 0400) < 0 || fsync(d->disk_fd) < 0)
		return -errno;
	store_step(STORE_STEP_META);
	r = write_meta(d->dirfd, meta);
	if (r == 0 && fsync(d->dirfd) < 0)
		r = -errno;
	return r;
}

/* Under the store's lock: into place, unless a whole entry is there already. */
static int move_in(struct store_draft *d, const char *entry, char **ret_trash)
{
	struct store *s = d->store;
	struct store_meta there;
	cleanup_fd int dir = -1;
	int r = store_lock_dir(s->entries, entry, LOCK_SH, &dir);

	if (r == 0 && store_read_entry(dir, &there, NULL, NULL) == 0) {
		store_meta_done(&there);
		d->entry_lock = STEAL_FD(dir);
		return 0;
	}
	fd_close(&dir);
	if (r == 0)
		r = store_hide_entry(s, entry, true, ret_trash);
	if (r < 0 && r != -ENOENT)
		return r;
	if (renameat(s->tmp, d->name, s->entries, entry) < 0)
		return -errno;
	d->published = true;
	store_step(STORE_STEP_DIR_SYNC);
	/* The folder keeps its lock while it moves; from exclusive to shared. */
	if (fsync(s->entries) < 0 || flock_retry(d->dirfd, LOCK_SH) < 0)
		return -errno;
	return 0;
}

int store_draft_publish(struct store_draft *d, struct store_meta *meta, struct err *e)
{
	cleanup_free char *entry = store_entry_name(meta->digest), *trash = NULL;
	struct store *s = d->store;
	cleanup_fd int lock = -1;
	int r = settle(d, meta);

	if (r < 0)
		return draft_error(s, r, "cannot write the disk", e);
	store_step(STORE_STEP_RENAME);
	r = store_lock(s, &lock, e);
	if (r < 0)
		return r;
	r = move_in(d, entry, &trash);
	fd_close(&lock);
	if (trash)
		path_remove_at(s->tmp, trash);
	if (r < 0)
		return draft_error(s, r, "cannot publish the disk", e);
	return 0;
}

void store_draft_free(struct store_draft *d)
{
	if (!d)
		return;
	fd_close(&d->disk_fd);
	if (!d->published && d->dirfd >= 0)
		path_remove_at(d->store->tmp, d->name);
	fd_close(&d->dirfd);
	fd_close(&d->entry_lock);
	free(d->name);
	free(d);
}

/* ---- partial pulls ---- */

int store_partial_open(struct store *s, const char *key, struct store_partial **ret, struct err *e)
{
	struct store_partial *p = xcalloc(1, sizeof(*p));
	char digest[72];
	int r;

	digest_of(key, strlen(key), digest);
	*p = (struct store_partial){.store = s, .dirfd = -1};
	p->name = xstrdup(oci_digest_hex(digest));
	p->path = xasprintf("%s/partial/%s", s->path, p->name);
	do {
		r = mkdirat(s->partial, p->name, 0700) < 0 && errno != EEXIST
			    ? -errno
			    : store_lock_dir(s->partial, p->name, LOCK_EX, &p->dirfd);
	} while (r == -ENOENT);
	if (r >= 0)
		r = path_remove_at(p->dirfd, STORE_PARTIAL_VOLATILE);
	if (r < 0) {
		store_partial_close(p, true);
		return draft_error(s, r, "cannot begin a pull", e);
	}
	*ret = p;
	return 0;
}

void store_partial_close(struct store_partial *p, bool keep)
{
	if (!p)
		return;
	if (p->dirfd >= 0) {
		path_remove_at(p->dirfd, STORE_PARTIAL_VOLATILE);
		if (!keep)
			path_remove_at(p->store->partial, p->name);
		unlinkat(p->store->partial, p->name, AT_REMOVEDIR); /* if nothing was kept */
	}
	fd_close(&p->dirfd);
	free(p->name);
	free(p->path);
	free(p);
}
