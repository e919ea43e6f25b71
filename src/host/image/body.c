#include "host/image/body.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "host/image/erofs_format.h"

#define DATA_BUF (1u << 20)
#define TAIL_BUF (256u << 10)
/* Data that comes in pieces of at least this size is written from where it lies. */
#define DIRECT_MIN (32u << 10)

int body_scratch_file(int dirfd)
{
	int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	uint64_t tag;
	char name[40];

	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
		return fd >= 0 ? fd : -errno;
	if (getrandom(&tag, sizeof(tag), 0) != sizeof(tag))
		return -EIO;
	snprintf(name, sizeof(name), ".scratch-%016llx", (unsigned long long)tag);
	fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	unlinkat(dirfd, name, 0);
	return fd;
}

int body_sink_open(struct body_sink *s, int scratch_dirfd, struct err *e)
{
	*s = BODY_SINK_INIT;
	s->data_fd = body_scratch_file(scratch_dirfd);
	s->tail_fd = s->data_fd < 0 ? s->data_fd : body_scratch_file(scratch_dirfd);
	if (s->tail_fd < 0) {
		int r = s->tail_fd;

		body_sink_done(s);
		return err_set(e, "", -r, "a scratch file in the image cache: %s", err_str(r));
	}
	s->data = xmalloc(DATA_BUF);
	s->tail = xmalloc(TAIL_BUF);
	return 0;
}

void body_sink_done(struct body_sink *s)
{
	fd_close(&s->data_fd);
	fd_close(&s->tail_fd);
	free(s->data);
	free(s->tail);
	*s = BODY_SINK_INIT;
}

static int flush_data(struct body_sink *s)
{
	int r = fd_pwrite_all(s->data_fd, s->data, s->data_len, s->data_at);

	s->data_at += s->data_len;
	s->data_len = 0;
	return r;
}

static int flush_tail(struct body_sink *s)
{
	int r = fd_pwrite_all(s->tail_fd, s->tail, s->tail_len, s->tail_at);

	s->tail_at += s->tail_len;
	s->tail_len = 0;
	return r;
}

int body_sink_finish(struct body_sink *s)
{
	int r = flush_data(s);

	if (r == 0)
		r = flush_tail(s);
	/* The file ends with its last block also when that is a hole. */
	if (r == 0 && ftruncate(s->data_fd, (off_t)s->data_at) < 0)
		r = -errno;
	free(STEAL(s->data));
	free(STEAL(s->tail));
	return r;
}

int body_begin(struct body_sink *s, uint64_t size, uint32_t xattrs_len, uint32_t source)
{
	s->size = size;
	s->whole = erofs_tail_inline(xattrs_len, size) ? size & ~(uint64_t)(EROFS_BLOCK - 1) : size;
	s->pos = 0;
	s->body = (struct tree_body){.size = size,
		.source = source,
		.block = (uint32_t)((s->data_at + s->data_len) >> EROFS_BLOCK_BITS),
		.tail = s->tail_at + s->tail_len};
	return 0;
}

static int add_data(struct body_sink *s, const uint8_t *p, size_t len)
{
	while (len) {
		size_t n = MIN(len, DATA_BUF - s->data_len);
		int r;

		if (s->data_len == 0 && len >= DIRECT_MIN) {
			n = len & ~(size_t)(EROFS_BLOCK - 1);
			r = fd_pwrite_all(s->data_fd, p, n, s->data_at);
			s->data_at += n;
		} else {
			memcpy(s->data + s->data_len, p, n);
			s->data_len += n;
			r = s->data_len == DATA_BUF ? flush_data(s) : 0;
		}
		if (r < 0)
			return r;
		p += n;
		len -= n;
	}
	return 0;
}

static int add_tail(struct body_sink *s, const uint8_t *p, size_t len)
{
	if (s->tail_len + len > TAIL_BUF) {
		int r = flush_tail(s);

		if (r < 0)
			return r;
	}
	memcpy(s->tail + s->tail_len, p, len);
	s->tail_len += len;
	return 0;
}

int body_data(struct body_sink *s, const void *data, size_t len)
{
	const uint8_t *p = data;
	int r = 0;

	if (len > s->size - s->pos)
		return -EINVAL;
	if (s->pos < s->whole) {
		size_t n = MIN((uint64_t)len, s->whole - s->pos);

		r = add_data(s, p, n);
		s->pos += n;
		p += n;
		len -= n;
	}
	if (r == 0 && len) {
		r = add_tail(s, p, len);
		s->pos += len;
	}
	return r;
}

/* Moves the data position over whole blocks of nothing, filling up the block at hand first. */
static int skip_data(struct body_sink *s, uint64_t len)
{
	static const uint8_t zeros[EROFS_BLOCK];
	uint64_t fill = -(s->data_at + s->data_len) & (EROFS_BLOCK - 1);
	int r = add_data(s, zeros, MIN(fill, len));

	len -= MIN(fill, len);
	if (r == 0 && len >= EROFS_BLOCK) {
		r = flush_data(s);
		s->data_at += len & ~(uint64_t)(EROFS_BLOCK - 1);
		len &= EROFS_BLOCK - 1;
	}
	return r == 0 ? add_data(s, zeros, len) : r;
}

int body_hole(struct body_sink *s, uint64_t len)
{
	static const uint8_t zeros[EROFS_BLOCK];
	int r = 0;

	if (len > s->size - s->pos)
		return -EINVAL;
	if (s->pos < s->whole) {
		uint64_t n = MIN(len, s->whole - s->pos);

		r = skip_data(s, n);
		s->pos += n;
		len -= n;
	}
	if (r == 0 && len) {
		r = add_tail(s, zeros, len);
		s->pos += len;
	}
	return r;
}

int body_end(struct body_sink *s, struct tree_body *ret)
{
	int r = body_hole(s, s->size - s->pos);

	if (r == 0)
		r = skip_data(s, -(s->data_at + s->data_len) & (EROFS_BLOCK - 1));
	*ret = s->body;
	return r;
}
