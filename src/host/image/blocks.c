#include "host/image/blocks.h"

#include <errno.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

/* A piece is what one thread takes at a time: small enough that a cancel is felt at once. */
#define PIECE_BYTES (16u << 20)
#define COPY_BYTES  (256u << 10)
#define HELPERS_MAX 16

enum method {
	METHOD_CLONE,
	METHOD_KERNEL,
	METHOD_HAND,
};

struct blocks {
	int out_fd;
	const struct blocks_run *runs;
	size_t n;
	pthread_mutex_t lock; /* next, next_at, error */
	size_t next;
	uint64_t next_at; /* within runs[next] */
	struct err error;
	atomic_bool failed;
	atomic_int method; /* the best that has not been refused yet */
	pthread_t helpers[HELPERS_MAX];
	unsigned n_helpers;
};

static bool refused(int no)
{
	return no == EXDEV || no == EINVAL || no == ENOSYS || no == EOPNOTSUPP || no == ENOTTY ||
	       no == EPERM || no == ETXTBSY || no == EBADF;
}

static int copy_by_hand(int in, int out, uint64_t from, uint64_t to, uint64_t len)
{
	cleanup_free void *buf = xmalloc(COPY_BYTES);

	while (len) {
		ssize_t n = fd_pread_full(in, buf, MIN(len, (uint64_t)COPY_BYTES), from);
		int r;

		if (n <= 0)
			return n < 0 ? (int)n : -EIO;
		r = fd_pwrite_all(out, buf, n, to);
		if (r < 0)
			return r;
		from += n;
		to += n;
		len -= n;
	}
	return 0;
}

/* Copies bytes that are all there. Falls to the next method for good when one is refused. */
static int copy_data(struct blocks *b, int in, uint64_t from, uint64_t to, uint64_t len)
{
	if (b->method == METHOD_CLONE) {
		struct file_clone_range range = {
			.src_fd = in, .src_offset = from, .src_length = len, .dest_offset = to};

		if (ioctl(b->out_fd, FICLONERANGE, &range) == 0)
			return 0;
		if (!refused(errno))
			return -errno;
		b->method = METHOD_KERNEL;
	}
	while (len && b->method == METHOD_KERNEL) {
		off_t in_at = (off_t)from, out_at = (off_t)to;
		ssize_t n = copy_file_range(in, &in_at, b->out_fd, &out_at, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && refused(errno)) {
			b->method = METHOD_HAND;
			break;
		}
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EIO;
		from += n;
		to += n;
		len -= n;
	}
	return len ? copy_by_hand(in, b->out_fd, from, to, len) : 0;
}

/* Copies a piece, data runs only. */
static int copy_piece(struct blocks *b, int in, uint64_t from, uint64_t to, uint64_t len)
{
	uint64_t end = from + len, at = from;

	while (at < end) {
		off_t data = lseek(in, (off_t)at, SEEK_DATA), hole;
		int r;

		if (data < 0 && errno == ENXIO)
			break;
		if (data < 0)
			return -errno;
		if ((uint64_t)data >= end)
			break;
		hole = lseek(in, data, SEEK_HOLE);
		if (hole < 0)
			return -errno;
		hole = MIN(hole, (off_t)end);
		r = copy_data(b, in, data, to + (data - from), hole - data);
		if (r < 0)
			return r;
		at = hole;
	}
	return 0;
}

static bool take_piece(struct blocks *b, struct blocks_run *ret)
{
	bool got = false;

	pthread_mutex_lock(&b->lock);
	if (b->next < b->n) {
		const struct blocks_run *run = &b->runs[b->next];

		*ret = *run;
		ret->from += b->next_at;
		ret->to += b->next_at;
		ret->len = MIN(run->len - b->next_at, (uint64_t)PIECE_BYTES);
		b->next_at += ret->len;
		if (b->next_at == run->len) {
			b->next++;
			b->next_at = 0;
		}
		got = true;
	}
	pthread_mutex_unlock(&b->lock);
	return got;
}

static void fail(struct blocks *b, int r)
{
	pthread_mutex_lock(&b->lock);
	if (!b->failed) {
		if (r == -ECANCELED)
			err_set(&b->error, "", ECANCELED, "cancelled");
		else if (r == -ENOSPC || r == -EDQUOT)
			err_set(&b->error, "", -r,
				"no space left for the disk of the image (%s): free some or move "
				"III_SANDBOX_CACHE_DIR",
				err_str(r));
		else
			err_set(&b->error, "", -r,
				"copying file contents into the disk of the image: %s", err_str(r));
		b->failed = true;
	}
	pthread_mutex_unlock(&b->lock);
}

static void *helper_main(void *arg)
{
	struct blocks *b = arg;
	struct blocks_run piece;

	while (!b->failed && take_piece(b, &piece)) {
		int r = copy_piece(b, piece.fd, piece.from, piece.to, piece.len);

		if (r < 0)
			fail(b, r);
	}
	return NULL;
}

struct blocks *blocks_start(int out_fd, const struct blocks_run *runs, size_t n, unsigned threads)
{
	struct blocks *b = xcalloc(1, sizeof(*b));

	b->out_fd = out_fd;
	b->runs = runs;
	b->n = n;
	pthread_mutex_init(&b->lock, NULL);
	b->method = METHOD_CLONE;
	/* Fewer helpers than wished for is slower, not wrong. */
	while (n && b->n_helpers < MIN(threads, (unsigned)HELPERS_MAX) &&
		pthread_create(&b->helpers[b->n_helpers], NULL, helper_main, b) == 0)
		b->n_helpers++;
	return b;
}

int blocks_finish(
	struct blocks *b, bool give_up, bool (*stop)(void *user), void *user, struct err *e)
{
	struct blocks_run piece;
	int r = 0;

	if (give_up)
		fail(b, -ECANCELED);
	while (!b->failed && take_piece(b, &piece)) {
		r = stop && stop(user) ? -ECANCELED
				       : copy_piece(b, piece.fd, piece.from, piece.to, piece.len);
		if (r < 0)
			fail(b, r);
	}
	for (unsigned i = 0; i < b->n_helpers; i++)
		pthread_join(b->helpers[i], NULL);
	r = 0;
	if (b->failed) {
		r = -b->error.no;
		if (e && !give_up)
			*e = b->error;
	}
	pthread_mutex_destroy(&b->lock);
	free(b);
	return r;
}
