#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define COPY_CHUNK (256 * 1024)

void fd_close(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = saved;
}

int fd_set_nonblock(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return -errno;
	flags = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
	return fcntl(fd, F_SETFL, flags) < 0 ? -errno : 0;
}

int fd_set_cloexec(int fd, bool on)
{
	return fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0) < 0 ? -errno : 0;
}

int fd_write_all(int fd, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len) {
		ssize_t n = write(fd, p, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		len -= n;
	}
	return 0;
}

int fd_pwrite_all(int fd, const void *data, size_t len, uint64_t offset)
{
	const uint8_t *p = data;

	while (len) {
		ssize_t n = pwrite(fd, p, len, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		offset += n;
		len -= n;
	}
	return 0;
}

ssize_t fd_read_full(int fd, void *data, size_t len)
{
	size_t got = 0;

	while (got < len) {
		ssize_t n = read(fd, (uint8_t *)data + got, len - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		got += n;
	}
	return (ssize_t)got;
}

ssize_t fd_pread_full(int fd, void *data, size_t len, uint64_t offset)
{
	size_t got = 0;

	while (got < len) {
		ssize_t n = pread(fd, (uint8_t *)data + got, len - got, (off_t)(offset + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		got += n;
	}
	return (ssize_t)got;
}

int fd_slurp_at(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len)
{
	cleanup_free char *text = NULL;
	cleanup_fd int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	size_t cap = MIN(max, (size_t)4096) + 1, len = 0;

	if (fd < 0)
		return -errno;
	text = xmalloc(cap);
	for (;;) {
		ssize_t n = fd_read_full(fd, text + len, cap - len);

		if (n < 0)
			return (int)n;
		len += n;
		if (len < cap)
			break;
		if (cap > max)
			return -EFBIG;
		cap = MIN(cap * 2, max + 1);
		text = xrealloc(text, cap, 1);
	}
	text[len] = '\0';
	*ret = STEAL(text);
	if (ret_len)
		*ret_len = len;
	return 0;
}

int fd_publish_filled_at(int dirfd, const char *name, mode_t mode,
	int (*fill)(int fd, const void *user), const void *user)
{
	cleanup_free char *temp = NULL;
	cleanup_fd int dir = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_fd int fd = -1;
	uint64_t tag;
	int r;

	if (dir < 0)
		return -errno;
	if (getrandom(&tag, sizeof(tag), 0) != sizeof(tag))
		return -EIO;
	temp = xasprintf(".tmp-%016llx", (unsigned long long)tag);
	fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	r = fill(fd, user);
	if (r == 0 && (fsync(fd) < 0 || renameat(dir, temp, dir, name) < 0))
		r = -errno;
	if (r < 0) {
		unlinkat(dir, temp, 0);
		return r;
	}
	return fsync(dir) < 0 ? -errno : 0;
}

struct piece {
	const void *data;
	size_t len;
};

static int fill_piece(int fd, const void *user)
{
	const struct piece *p = user;

	return fd_write_all(fd, p->data, p->len);
}

int fd_publish_at(int dirfd, const char *name, const void *data, size_t len, mode_t mode)
{
	const struct piece p = {data, len};

	return fd_publish_filled_at(dirfd, name, mode, fill_piece, &p);
}

/* Copies the data between two offsets with read and write. */
static int copy_run(int src, int dst, off_t from, off_t to, void *chunk)
{
	while (from < to) {
		ssize_t n = fd_pread_full(src, chunk, MIN(to - from, (off_t)COPY_CHUNK), from);
		int r;

		if (n <= 0)
			return n < 0 ? (int)n : -EIO;
		r = fd_pwrite_all(dst, chunk, n, from);
		if (r < 0)
			return r;
		from += n;
	}
	return 0;
}

int fd_copy_sparse(int src, int dst)
{
	cleanup_free void *chunk = NULL;
	struct stat st;
	off_t at = 0;

	if (fstat(src, &st) < 0)
		return -errno;
	if (ioctl(dst, FICLONE, src) == 0)
		return 0;
	if (ftruncate(dst, 0) < 0 || ftruncate(dst, st.st_size) < 0)
		return -errno;
	chunk = xmalloc(COPY_CHUNK);
	while (at < st.st_size) {
		off_t data = lseek(src, at, SEEK_DATA), hole;
		int r;

		if (data < 0 && errno == ENXIO)
			break;
		if (data < 0)
			return -errno;
		hole = lseek(src, data, SEEK_HOLE);
		if (hole < 0)
			return -errno;
		r = copy_run(src, dst, data, hole, chunk);
		if (r < 0)
			return r;
		at = hole;
	}
	return 0;
}

int fd_sealed(const char *name, const void *data, size_t len)
{
	cleanup_fd int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r;

	if (fd < 0)
		return -errno;
	r = fd_write_all(fd, data, len);
	if (r < 0)
		return r;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		return -errno;
	return STEAL_FD(fd);
}

int fd_socketpair(int ret[2])
{
	return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ret) < 0 ? -errno : 0;
}
