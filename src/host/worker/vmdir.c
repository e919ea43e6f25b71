/* A folder is looked up by name, locked, and then looked up again: a daemon that destroyed it in
 * between has renamed it, and its lock is worth nothing. Only then is anything in it touched.
 *
 * Every file is opened without following a symlink and without waiting, and has to be a regular
 * one: a folder that somebody else wrote into cannot make the daemon hang or write elsewhere.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/vm/upper.h"
#include "host/worker/record_priv.h"

#define RECORD	      "record.json"
#define LOCK	      "lock"
#define PARTIAL	      ".partial"
#define SEQ_MAX	      32
#define NAME_BYTES    128
#define OPEN_ATTEMPTS 100 /* the folder was destroyed while we waited to lock it, each time */

int vmdir_root(int *ret_fd, struct err *e)
{
	cleanup_free char *path = path_state_dir("workers", e);
	cleanup_fd int fd = path ? path_open_dir(path, e) : -1;
	const char *allow = getenv("III_SANDBOX_ALLOW_TMPFS");
	struct statfs fs;

	if (fd < 0) {
		err_code(e, "S504");
		return -EIO;
	}
	if (fstatfs(fd, &fs) < 0)
		return err_set(e, "S504", errno, "%s: %s", path, err_str(errno));
	if ((fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC) && !str_eq(allow, "1"))
		return err_set(e, "S504", ENOTSUP,
			"%s is on a tmpfs, where a worker VM's disk would fill this host's memory "
			"and be lost: set III_SANDBOX_STATE_DIR to a folder on a disk "
			"(III_SANDBOX_ALLOW_TMPFS=1 allows it)",
			path);
	*ret_fd = STEAL_FD(fd);
	return 0;
}

/* --- opening and locking --- */

/* 1: locked; 0: it was destroyed meanwhile, look again; -EWOULDBLOCK: somebody has it. */
static int lock_folder(int root_fd, struct vmdir *d)
{
	struct stat have, named;

	d->lock_fd =
		openat(d->fd, LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
	if (d->lock_fd < 0)
		return errno == ENOENT ? 0 : -errno;
	while (flock(d->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EINTR)
			return -errno;
	}
	if (fstat(d->fd, &have) < 0)
		return -errno;
	if (fstatat(root_fd, d->vm_id, &named, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	return have.st_ino == named.st_ino && have.st_dev == named.st_dev;
}

static int open_once(int root_fd, bool make, struct vmdir *d)
{
	int r;

	if (make && mkdirat(root_fd, d->vm_id, 0700) == 0) {
		if (fsync(root_fd) < 0)
			return -errno;
	} else if (make && errno != EEXIST) {
		return -errno;
	}
	d->fd = openat(root_fd, d->vm_id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (d->fd < 0)
		return make && errno == ENOENT ? 0 : -errno;
	r = lock_folder(root_fd, d);
	if (r <= 0)
		vmdir_close(d);
	return r;
}

int vmdir_open(int root_fd, const char *vm_id, bool make, struct vmdir *ret, struct err *e)
{
	struct vmdir d = {.root_fd = root_fd, .fd = -1, .lock_fd = -1};
	int r = 0;

	if (!worker_vm_id_valid(vm_id))
		return err_set(e, "S504", ENOENT, "there is no worker VM of that name");
	memcpy(d.vm_id, vm_id, sizeof(d.vm_id));
	for (int i = 0; r == 0 && i < OPEN_ATTEMPTS; i++)
		r = open_once(root_fd, make, &d);
	if (r == -EWOULDBLOCK || r == 0)
		return err_set(
			e, "S502", EBUSY, "worker VM %s is in use by another process", vm_id);
	if (r == -ENOENT)
		return err_set(e, "S504", ENOENT, "there is no folder of worker VM %s", vm_id);
	if (r < 0)
		return err_set(e, "S504", -r, "cannot %s the folder of worker VM %s: %s",
			make ? "make or lock" : "lock", vm_id, err_str(r));
	*ret = d;
	return 0;
}

/* A child that is between fork and exec holds copies of all descriptors, and with them the lock:
 * it has to be given back, not just closed. */
static void unlock(int *fd)
{
	if (*fd >= 0)
		flock(*fd, LOCK_UN);
	fd_close(fd);
}

void vmdir_close(struct vmdir *d)
{
	unlock(&d->lock_fd);
	fd_close(&d->fd);
}

/* --- files --- */

/* -EINVAL when it is there but is not a regular file of at most `max` bytes. */
static int read_file(int dirfd, const char *name, size_t max, char **ret, size_t *ret_len)
{
	cleanup_fd int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	cleanup_free char *text = NULL;
	struct stat st;
	ssize_t n;

	if (fd < 0)
		return errno == ELOOP || errno == ENXIO ? -EINVAL : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_size > (off_t)max)
		return -EINVAL;
	text = xmalloc((size_t)st.st_size + 1);
	n = fd_read_full(fd, text, (size_t)st.st_size);
	if (n < 0)
		return (int)n;
	text[n] = '\0';
	*ret = STEAL(text);
	*ret_len = (size_t)n;
	return 0;
}

/* Old, or new and durable. The half-made file is in the locked folder, so a sweep never takes it
 * from another daemon. */
static int publish(struct vmdir *d, int dirfd, const char *name, const void *data, size_t len)
{
	cleanup_fd int fd = -1;
	char temp[NAME_BYTES];
	int r;

	snprintf(temp, sizeof(temp), "%s" PARTIAL, name);
	r = path_remove_at(d->fd, temp);
	if (r < 0)
		return r;
	fd = openat(d->fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = fd_write_all(fd, data, len);
	if (r == 0 && (fsync(fd) < 0 || renameat(d->fd, temp, dirfd, name) < 0))
		r = -errno;
	if (r < 0) {
		unlinkat(d->fd, temp, 0);
		return r;
	}
	return fsync(dirfd) < 0 ? -errno : 0;
}

/* --- record.json --- */

static int set_aside(struct vmdir *d, const char *why, struct err *e)
{
	uint64_t at_ms = clock_wall_ms();
	char aside[NAME_BYTES];
	struct stat st;

	do
		snprintf(aside, sizeof(aside), RECORD ".corrupt-%" PRIu64, at_ms++);
	while (fstatat(d->fd, aside, &st, AT_SYMLINK_NOFOLLOW) == 0);
	if (renameat(d->fd, RECORD, d->fd, aside) < 0)
		return err_set(e, "S504", errno,
			"the record of worker VM %s is damaged and cannot be renamed: %s", d->vm_id,
			err_str(errno));
	log_warn("worker VM record is damaged", "vm=%s kept_as=%s reason=%s", d->vm_id, aside,
		log_quote(why));
	return 0;
}

int vmdir_load(struct vmdir *d, struct worker_record *ret, struct err *e)
{
	cleanup_free char *text = NULL;
	struct worker_record rec = {0};
	struct err why = ERR_INIT;
	size_t len = 0;
	int r = read_file(d->fd, RECORD, WORKER_RECORD_MAX, &text, &len);

	if (r == -EINVAL)
		err_set(&why, "", EINVAL, "it is no regular file of at most %u bytes",
			WORKER_RECORD_MAX);
	else if (r == 0)
		r = record_decode(text, len, d->vm_id, &rec, &why);
	if (r == -EINVAL) {
		r = set_aside(d, why.text, e);
		if (r < 0)
			return r;
	} else if (r < 0 && r != -ENOENT) {
		return err_set(e, "S504", -r, "cannot read the record of worker VM %s: %s",
			d->vm_id, err_str(r));
	}
	*ret = rec;
	return 0;
}

int vmdir_peek(int root_fd, const char *vm_id, struct vmdir_mark *mark, struct worker_record *ret,
	struct err *e)
{
	cleanup_fd int fd = openat(root_fd, vm_id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	cleanup_free char *text = NULL;
	struct vmdir_mark now;
	struct stat st;
	size_t len = 0;
	int r = fd < 0 ? -errno : 0;

	*ret = (struct worker_record){0};
	/* Looked at first: a record that is replaced in between is read again the next time. */
	if (r == 0 && fstatat(fd, RECORD, &st, AT_SYMLINK_NOFOLLOW) < 0)
		r = -errno;
	if (r == 0) {
		now = (struct vmdir_mark){st.st_ino, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
		if (now.inode == mark->inode && now.sec == mark->sec && now.nsec == mark->nsec)
			return 0;
		r = read_file(fd, RECORD, WORKER_RECORD_MAX, &text, &len);
	}
	if (r == 0)
		r = record_decode(text, len, vm_id, ret, e);
	if (r < 0)
		return err_set(e, "S504", -r, "cannot read the record of worker VM %s: %s", vm_id,
			err_str(r));
	*mark = now;
	return 1;
}

int vmdir_save(struct vmdir *d, const struct worker_record *rec, struct err *e)
{
	cleanup_buf struct buf text;
	int r;

	buf_init(&text, WORKER_RECORD_MAX);
	r = record_encode(rec, d->vm_id, &text);
	if (r == 0)
		r = publish(d, d->fd, RECORD, text.data, text.len);
	if (r < 0)
		return err_set(e, "S504", -r, "cannot save the record of worker VM %s: %s",
			d->vm_id, err_str(r));
	return 0;
}

/* --- the counter --- */

static int read_seq(struct vmdir *d, const char *name, uint64_t *ret)
{
	cleanup_free char *text = NULL;
	size_t len = 0;
	int r = read_file(d->root_fd, name, SEQ_MAX, &text, &len);

	if (r == -ENOENT) {
		*ret = 0;
		return 0;
	}
	if (r == 0 && len > 0 && text[len - 1] == '\n') {
		text[len - 1] = '\0';
		if (strlen(text) == len - 1 && str_u64(text, ret) == 0)
			return 0;
	}
	if (r < 0 && r != -EINVAL)
		return r;
	*ret = clock_wall_ms();
	log_warn("worker VM counter is damaged", "vm=%s file=%s goes_on_at=%" PRIu64, d->vm_id,
		name, *ret);
	return r == -EINVAL ? path_remove_at(d->root_fd, name) : 0;
}

int vmdir_next_instance(struct vmdir *d, uint64_t at_least, uint64_t *ret, struct err *e)
{
	char name[NAME_BYTES], text[SEQ_MAX];
	uint64_t seq = 0;
	int r;

	snprintf(name, sizeof(name), "%s.seq", d->vm_id);
	r = read_seq(d, name, &seq);
	if (r == 0 && MAX(seq, at_least) == UINT64_MAX)
		r = -EOVERFLOW;
	if (r == 0) {
		seq = MAX(seq, at_least) + 1;
		snprintf(text, sizeof(text), "%" PRIu64 "\n", seq);
		r = publish(d, d->root_fd, name, text, strlen(text));
	}
	if (r < 0)
		return err_set(e, "S504", -r, "cannot count the boots of worker VM %s in %s: %s",
			d->vm_id, name, err_str(r));
	*ret = seq;
	return 0;
}

/* --- the disk --- */

int vmdir_open_upper(struct vmdir *d, int *ret_fd, struct err *e)
{
	cleanup_fd int fd = -1;
	struct err why = ERR_INIT;
	struct stat st;
	int r;

	if (fstatat(d->fd, WORKER_UPPER, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode))
		return err_set(e, "S504", EINVAL,
			"the writable disk of worker VM %s is no regular file: destroy the VM",
			d->vm_id);
	r = upper_open_named(d->fd, WORKER_UPPER, WORKER_UPPER_SIZE, WORKER_UPPER_LABEL, &fd, &why);
	if (r < 0)
		return err_set(
			e, "S504", -r, "the writable disk of worker VM %s: %s", d->vm_id, why.text);
	*ret_fd = STEAL_FD(fd);
	return 0;
}

/* --- the end --- */

/* -EBUSY while a supervisor has the disk. Holding it makes one that comes now fail. */
static int hold_upper(struct vmdir *d, int *ret_fd)
{
	cleanup_fd int fd =
		openat(d->fd, WORKER_UPPER, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	/* None, or nothing that a VM could use. */
	if (fd < 0)
		return errno == ENOENT || errno == ELOOP || errno == EISDIR || errno == ENXIO
			       ? 0
			       : -errno;
	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno == EWOULDBLOCK)
			return -EBUSY;
		if (errno != EINTR)
			return -errno;
	}
	*ret_fd = STEAL_FD(fd);
	return 0;
}

static int destroy(struct vmdir *d, struct err *e)
{
	char trash[NAME_BYTES], id[37];
	int r;

	str_uuid4(id);
	snprintf(trash, sizeof(trash), ".trash-%s-%s", d->vm_id, id);
	if (renameat(d->root_fd, d->vm_id, d->root_fd, trash) < 0)
		return err_set(e, "S504", errno, "cannot delete the folder of worker VM %s: %s",
			d->vm_id, err_str(errno));
	/* It is gone from here on; the worst that can come is that a power cut brings it back. */
	if (fsync(d->root_fd) < 0)
		log_warn("worker VM was destroyed, but the disk does not confirm it",
			"vm=%s reason=%s", d->vm_id, log_quote(err_str(errno)));
	r = path_remove_at(d->root_fd, trash);
	/* Another daemon that starts now sweeps the trash too. */
	if (r < 0 && r != -ENOENT)
		log_warn("worker VM was destroyed, but its files were not all removed",
			"vm=%s folder=%s reason=%s next_try=at_start", d->vm_id, trash,
			log_quote(err_str(r)));
	return 0;
}

int vmdir_destroy(struct vmdir *d, struct err *e)
{
	int upper = -1, r = hold_upper(d, &upper);

	if (r == -EBUSY)
		err_set(e, "S502", EBUSY, "the disk of worker VM %s is still in use by a process",
			d->vm_id);
	else if (r < 0)
		err_set(e, "S504", -r, "cannot lock the disk of worker VM %s: %s", d->vm_id,
			err_str(r));
	else
		r = destroy(d, e);
	unlock(&upper);
	vmdir_close(d);
	return r;
}
