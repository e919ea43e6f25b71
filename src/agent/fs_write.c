/* fs_write - "/fs/write": one file, streamed, visible only when it is whole (contract §5.7).
 *
 *   request  HEAD {"path":"/abs","mode":420,"parents":bool} · DATA* · end of stream
 *   reply    END {"bytes_written":N}
 *
 * The bytes go to a new file of a fixed-length name in the same folder (0600), which is then given
 * its mode, synced and renamed. Whatever fails or is cancelled before that removes it and leaves
 * the old target alone; only folders made on the way may stay. A link in the target's place is
 * replaced, not followed. Several writers of one path: the last rename wins, bytes are never mixed.
 *
 * The loop writes the bytes itself, as they come, at most 64 KiB at a time. Syncing much data may
 * take seconds, so from SYNC_INLINE_MAX on a forked child does it while the loop goes on.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/fs_error.h"
#include "agent/fs_path.h"
#include "agent/op.h"
#include "agent/reap.h"
#include "agent/spawn.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define SYNC_INLINE_MAX (1u << 20)

struct fs_write {
	struct op *op; /* NULL: cancelled while a child syncs */
	int dir_fd, fd;
	char *path, *name; /* of the target */
	char temp[40];	   /* name in dir_fd; "" once renamed or removed */
	uint32_t mode;
	uint64_t written;
	struct reap_slot syncer;
};

static void remove_temp(struct fs_write *f)
{
	if (f->temp[0])
		unlinkat(f->dir_fd, f->temp, 0);
	f->temp[0] = '\0';
}

static void fs_write_free(struct fs_write *f)
{
	remove_temp(f);
	fd_close(&f->fd);
	fd_close(&f->dir_fd);
	free(f->path);
	free(f->name);
	free(f);
}

/* --- before any byte is taken --- */

static int check_target(struct fs_write *f, struct err *e)
{
	struct stat st;

	if (fstatat(f->dir_fd, f->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : fs_error(e, errno, "cannot write", f->path);
	if (S_ISREG(st.st_mode) || S_ISLNK(st.st_mode))
		return 0;
	return err_set(e, "S212", S_ISDIR(st.st_mode) ? EISDIR : EINVAL,
		"%s is %s and cannot be replaced by a file", f->path,
		S_ISDIR(st.st_mode)    ? "a folder"
		: S_ISFIFO(st.st_mode) ? "a FIFO"
		: S_ISSOCK(st.st_mode) ? "a socket"
				       : "a device");
}

/* The folder is open, but takes no file. */
static int no_room(const struct fs_write *f, struct err *e)
{
	cleanup_free char *parent = xstrdup(f->path);
	char *slash = strrchr(parent, '/');

	slash[slash == parent ? 1 : 0] = '\0';
	return fs_path_no_parent(parent, e);
}

static int open_temp(struct fs_write *f, struct err *e)
{
	uint8_t noise[8];
	char hex[sizeof(noise) * 2 + 1];

	if (getrandom(noise, sizeof(noise), 0) != sizeof(noise))
		return fs_error(e, errno ? errno : EIO, "no randomness to write", f->path);
	str_hex(hex, noise, sizeof(noise));
	snprintf(f->temp, sizeof(f->temp), ".iii-write-%s.tmp", hex);
	f->fd = openat(
		f->dir_fd, f->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (f->fd < 0) {
		f->temp[0] = '\0';
		if (errno == ENOENT)
			return no_room(f, e);
		return fs_error(e, errno, "cannot make a file beside", f->path);
	}
	/* A set-group-id folder would hand on its group. */
	if (fchown(f->fd, 0, 0) < 0 && geteuid() == 0)
		return fs_error(e, errno, "cannot set the owner of", f->path);
	return 0;
}

/* A path that ends in a slash, or in "." or "..", can only mean a folder. */
static int refuse_folder_path(const char *path, struct err *e)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return err_set(e, "S210", EINVAL,
			"path %s can only name a folder, so it cannot be written", path);
	return err_set(e, "S212", EISDIR, "%s is a folder and cannot be replaced by a file", path);
}

static bool names_folder(const char *path)
{
	return str_ends(path, "/") || str_ends(path, "/.") || str_ends(path, "/..");
}

static int fs_write_start(struct op *o, json_object *head, void **ret_job, struct err *e)
{
	struct fs_write *f;
	bool parents = false;
	uint32_t mode = 0644;
	const char *path, *name;
	int r;

	if (json_get_u32(head, "mode", JSON_OPTIONAL, &mode, e) < 0 ||
		json_get_bool(head, "parents", JSON_OPTIONAL, &parents, e) < 0) {
		err_code(e, "S210");
		return -EINVAL;
	}
	if (mode > 07777)
		return err_set(e, "S210", EINVAL, "mode %o is more than 7777", mode);
	r = fs_path_get(head, "path", &path, e);
	if (r < 0)
		return r;
	if (names_folder(path))
		return refuse_folder_path(path, e);
	f = xcalloc(1, sizeof(*f));
	*f = (struct fs_write){
		.op = o, .dir_fd = -1, .fd = -1, .mode = mode, .path = xstrdup(path)};
	r = fs_path_open_parent(path, parents, &f->dir_fd, &name, e);
	if (r == 0) {
		f->name = xstrdup(name);
		r = check_target(f, e);
	}
	if (r == 0)
		r = open_temp(f, e);
	if (r < 0)
		fs_write_free(f);
	else
		*ret_job = f;
	return r;
}

/* --- the bytes --- */

static ssize_t fs_write_data(void *job, const uint8_t *data, size_t len, struct err *e)
{
	struct fs_write *f = job;
	int r = fd_write_all(f->fd, data, len);

	if (r < 0)
		return fs_error(e, -r, "cannot write", f->path);
	f->written += len;
	return 0;
}

/* --- the end --- */

static void fs_write_fail(struct fs_write *f, int no, const char *what)
{
	struct err e = ERR_INIT;

	remove_temp(f);
	fs_error(&e, no, what, f->path);
	op_fail(f->op, &e);
}

static void publish(struct fs_write *f)
{
	json_object *end;

	if (renameat(f->dir_fd, f->temp, f->dir_fd, f->name) < 0) {
		fs_write_fail(f, errno, "cannot put the file in place at");
		return;
	}
	f->temp[0] = '\0';
	end = json_object_new_object();
	json_add_u64(end, "bytes_written", f->written);
	op_finish(f->op, end);
}

/* In the child: the errno of the sync as exit status. */
static int sync_in_child(void *arg)
{
	const struct fs_write *f = arg;

	spawn_keep_only(f->fd);
	return fsync(f->fd) < 0 ? errno : 0;
}

static void on_synced(struct reap_slot *slot, int wait_status)
{
	struct fs_write *f = CONTAINER_OF(slot, struct fs_write, syncer);
	int no = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : EIO;

	if (!f->op)
		fs_write_free(f);
	else if (no)
		fs_write_fail(f, no, "cannot sync");
	else
		publish(f);
}

/* A file in memory has nothing to sync, and a fork is dear where memory is. */
static bool is_on_disk(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) < 0 || fs.f_type != TMPFS_MAGIC;
}

static void fs_write_end(void *job)
{
	struct fs_write *f = job;
	pid_t pid;

	if (fchmod(f->fd, f->mode) < 0) {
		fs_write_fail(f, errno, "cannot set the mode of");
		return;
	}
	if (f->written > SYNC_INLINE_MAX && is_on_disk(f->fd)) {
		pid = spawn_function(sync_in_child, f);
		if (pid > 0) {
			f->syncer.on_exit = on_synced;
			reap_watch(&f->syncer, pid);
			return;
		}
		/* No process to be had: then the loop waits. */
	}
	if (fsync(f->fd) < 0)
		fs_write_fail(f, errno, "cannot sync");
	else
		publish(f);
}

static void fs_write_close(void *job)
{
	struct fs_write *f = job;

	f->op = NULL;
	if (!f->syncer.pid)
		fs_write_free(f);
}

const struct op_type op_fs_write = {
	.path = "/fs/write",
	.head_max = FS_HEAD_MAX,
	.start = fs_write_start,
	.data = fs_write_data,
	.end = fs_write_end,
	.close = fs_write_close,
};
