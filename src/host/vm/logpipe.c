#include "host/vm/logpipe.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"

int logpipe_new(int ret[2])
{
	if (pipe2(ret, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	/* Fewer wake-ups, and room while the daemon does something else; a user who has too many
	 * pipes is refused, and does with the usual size. */
	fcntl(ret[1], F_SETPIPE_SZ, LOGPIPE_SIZE);
	return 0;
}

/* --- the writer --- */

void logpipe_writer_init(struct logpipe_writer *w, int fd)
{
	w->fd = fd;
	w->len = w->sent = 0;
}

void logpipe_writer_done(struct logpipe_writer *w)
{
	fd_close(&w->fd);
	w->len = w->sent = 0;
}

bool logpipe_idle(const struct logpipe_writer *w)
{
	return w->sent == w->len;
}

void logpipe_push(struct logpipe_writer *w)
{
	while (w->sent < w->len) {
		ssize_t n = write(w->fd, w->chunk + w->sent, w->len - w->sent);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0) {
			logpipe_writer_done(w); /* nobody reads any more */
			return;
		}
		w->sent += (size_t)n;
	}
}

void logpipe_put(struct logpipe_writer *w, enum vm_stream stream, const void *data, size_t len)
{
	const uint8_t hdr[LOGPIPE_HDR] = {
		(uint8_t)stream, (uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len};

	assert(logpipe_idle(w) && len > 0 && len <= LOGPIPE_CHUNK_MAX);
	if (w->fd < 0)
		return;
	memcpy(w->chunk, hdr, LOGPIPE_HDR);
	memcpy(w->chunk + LOGPIPE_HDR, data, len);
	w->len = LOGPIPE_HDR + len;
	w->sent = 0;
	logpipe_push(w);
}

int logpipe_flush(struct logpipe_writer *w, int timeout_ms)
{
	int64_t until = clock_ms() + timeout_ms;

	for (;;) {
		struct pollfd p = {.fd = w->fd, .events = POLLOUT};
		int64_t left = until - clock_ms();
		struct timespec t = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000};

		logpipe_push(w);
		if (logpipe_idle(w))
			return 0;
		if (left <= 0)
			return -ETIMEDOUT;
		ppoll(&p, 1, &t, NULL);
	}
}

/* --- the reader --- */

/* The length of the chunk that a header announces, or -EPROTO. */
static ssize_t read_header(const uint8_t *h)
{
	size_t len = (size_t)h[1] << 16 | (size_t)h[2] << 8 | h[3];

	return h[0] > VM_STREAM_HOST || len == 0 || len > LOGPIPE_CHUNK_MAX ? -EPROTO
									    : (ssize_t)len;
}

int logpipe_feed(struct logpipe_reader *r, const void *data, size_t len,
	void (*on_bytes)(enum vm_stream stream, const void *data, size_t len, void *user),
	void *user)
{
	const uint8_t *p = data;

	while (len) {
		size_t n;

		if (r->left == 0) {
			ssize_t size;

			r->hdr[r->hdr_len++] = *p++;
			len--;
			if (r->hdr_len < LOGPIPE_HDR)
				continue;
			r->hdr_len = 0;
			if ((size = read_header(r->hdr)) < 0)
				return (int)size;
			r->left = (size_t)size;
			continue;
		}
		n = MIN(len, r->left);
		on_bytes((enum vm_stream)r->hdr[0], p, n, user);
		r->left -= n;
		p += n;
		len -= n;
	}
	return 0;
}
