/* fs_read - "/fs/read": one file, streamed (sandbox contract §5.8).
 *
 *   request  HEAD {"path":"/abs"}
 *   reply    HEAD {"size":N,"mode":N,"mtime":N} · DATA* · END {}
 *
 * Links are followed; size, mode and mtime are the target's. Only regular files: anything else is
 * S212 without blocking. What the file says is its size is not believed: reading goes on to the end
 * (files below /proc say 0). A failure after HEAD is an END with an error.
 *
 * Files are read by the loop itself, straight into the frame, at most 64 KiB at a time.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fs_error.h"
#include "agent/fs_path.h"
#include "agent/op.h"
#include "base/fd.h"
#include "base/mem.h"

struct fs_read {
	struct op *op;
	int fd;
	char *path;
};

static int refuse_type(const char *path, mode_t mode, struct err *e)
{
	return err_set(e, "S212", S_ISDIR(mode) ? EISDIR : EINVAL, "%s is %s, not a regular file",
		path,
		S_ISDIR(mode)	 ? "a folder"
		: S_ISFIFO(mode) ? "a FIFO"
		: S_ISSOCK(mode) ? "a socket"
				 : "a device");
}

/* Looks before it opens, since opening a device can already do something, and after, since the name
 * may mean another file by then. O_NONBLOCK also keeps files like /proc/kmsg from waiting. */
static int open_regular(const char *path, struct stat *ret_st, struct err *e)
{
	cleanup_fd int fd = -1;

	if (stat(path, ret_st) < 0)
		return fs_error(e, errno, "cannot read", path);
	if (!S_ISREG(ret_st->st_mode))
		return refuse_type(path, ret_st->st_mode, e);
	fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, ret_st) < 0)
		return fs_error(e, errno, "cannot read", path);
	if (!S_ISREG(ret_st->st_mode))
		return refuse_type(path, ret_st->st_mode, e);
	return STEAL_FD(fd);
}

static int fs_read_start(struct op *o, json_object *head, void **ret_job, struct err *e)
{
	struct fs_read *f;
	json_object *facts;
	const char *path;
	struct stat st;
	int fd;

	if (fs_path_get(head, "path", &path, e) < 0)
		return -EINVAL;
	fd = open_regular(path, &st, e);
	if (fd < 0)
		return fd;
	f = xcalloc(1, sizeof(*f));
	*f = (struct fs_read){.op = o, .fd = fd, .path = xstrdup(path)};
	facts = json_object_new_object();
	json_add_u64(facts, "size", (uint64_t)st.st_size);
	json_add_u64(facts, "mode", st.st_mode & 07777);
	json_add_i64(facts, "mtime", st.st_mtime);
	op_head(o, facts);
	*ret_job = f;
	return 0;
}

static size_t fs_read_pull(void *job, uint8_t *buf, size_t cap)
{
	struct fs_read *f = job;
	struct err e = ERR_INIT;
	ssize_t n;

	do
		n = read(f->fd, buf + GUEST_REC_HDR, cap - GUEST_REC_HDR);
	while (n < 0 && errno == EINTR);
	if (n > 0) {
		guest_rec_header(buf, GUEST_REC_DATA, (uint32_t)n);
		return (size_t)n + GUEST_REC_HDR;
	}
	if (n < 0) {
		fs_error(&e, errno, "cannot read", f->path);
		op_fail(f->op, &e);
	} else {
		op_finish(f->op, json_object_new_object());
	}
	return 0;
}

static void fs_read_close(void *job)
{
	struct fs_read *f = job;

	fd_close(&f->fd);
	free(f->path);
	free(f);
}

const struct op_type op_fs_read = {
	.path = "/fs/read",
	.head_max = FS_HEAD_MAX,
	.start = fs_read_start,
	.pull = fs_read_pull,
	.close = fs_read_close,
};
