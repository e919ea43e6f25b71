/* fd - descriptors: closed by themselves, close-on-exec from birth, read and written whole.
 *
 * Functions return 0 or a count, or a negative errno. EINTR is handled inside.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define cleanup_fd __attribute__((cleanup(fd_cleanup)))

/* Hands a descriptor over: yields its number and leaves -1 behind. */
#define STEAL_FD(fd)                                                                               \
	({                                                                                         \
		int stolen_ = (fd);                                                                \
		(fd) = -1;                                                                         \
		stolen_;                                                                           \
	})

/* Closes if >= 0 and sets to -1. errno is kept. */
void fd_close(int *fd);
static inline void fd_cleanup(int *fd)
{
	fd_close(fd);
}

int fd_set_nonblock(int fd, bool on);
int fd_set_cloexec(int fd, bool on);

/* Whole buffer or an error; -EPIPE without SIGPIPE is the caller's business. */
int fd_write_all(int fd, const void *data, size_t len);
int fd_pwrite_all(int fd, const void *data, size_t len, uint64_t offset);

/* Reads until `len` bytes or end of file; returns the count. */
ssize_t fd_read_full(int fd, void *data, size_t len);
ssize_t fd_pread_full(int fd, void *data, size_t len, uint64_t offset);

/* Reads a whole small file into a new NUL-terminated string (the caller frees it);
 * -EFBIG when it is larger than max. dirfd may be AT_FDCWD. *ret_len may be NULL. */
int fd_slurp_at(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len);

/* Writes a file so that it is either absent, old or complete whatever happens: temporary name in
 * the same directory, fsync, rename, fsync of the directory. */
int fd_publish_at(int dirfd, const char *name, const void *data, size_t len, mode_t mode);
/* The same with what `fill` writes to the file; its negative errno comes back. */
int fd_publish_filled_at(int dirfd, const char *name, mode_t mode,
	int (*fill)(int fd, const void *user), const void *user);

/* Copies src to dst from offset 0, holes kept: FICLONE where the file system can, else data runs
 * only. dst ends up with src's size. */
int fd_copy_sparse(int src, int dst);

/* A sealed, read-only in-memory file with these bytes: nobody who gets it can change it.
 * Returns the descriptor, owned by the caller. */
int fd_sealed(const char *name, const void *data, size_t len);

/* A connected pair of stream sockets, close-on-exec. */
int fd_socketpair(int ret[2]);
