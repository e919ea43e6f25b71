#include "host/stdio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

/* Opens a pipe or terminal anew, so that O_NONBLOCK is ours alone; anything else is used as it is,
 * and its flags are put back by fd_release(). (A regular file opened anew would lose its offset.)
 */
static void fd_adopt(struct stdio_fd *io, uv_loop_t *loop, int fd, int access)
{
	int flags = fcntl(fd, F_GETFL), own = -1;
	char path[32];
	struct stat st;

	*io = (struct stdio_fd){.fd = fd, .original = fd, .flags = -1};
	if (fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode))) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		own = open(path, access | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	}
	if (own >= 0)
		io->fd = own;
	io->pollable = uv_poll_init(loop, &io->poll, io->fd) == 0;
	if (io->pollable && own < 0)
		io->flags = flags;
}

static void fd_poll(struct stdio_fd *io, int events, uv_poll_cb cb)
{
	if (io->polling == (events != 0))
		return;
	io->polling = events != 0;
	if (events)
		uv_poll_start(&io->poll, events, cb);
	else
		uv_poll_stop(&io->poll);
}

static void fd_release(struct stdio_fd *io)
{
	fd_poll(io, 0, NULL);
	if (io->pollable)
		uv_close((uv_handle_t *)&io->poll, NULL);
	if (io->flags >= 0)
		fcntl(io->original, F_SETFL, io->flags);
	if (io->fd != io->original)
		close(io->fd);
}

static void sink_flush(struct stdio_sink *s);

static void on_writable(uv_poll_t *poll, int status, int events)
{
	sink_flush(poll->data);
}

static void sink_flush(struct stdio_sink *s)
{
	bool waited = s->io.polling;
	size_t at = 0;

	while (at < s->pending.len) {
		ssize_t n = write(s->io.fd, s->pending.data + at, s->pending.len - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN && s->io.pollable)
			break;
		if (n < 0) {
			int no = errno;

			s->broken = true;
			buf_clear(&s->pending);
			fd_poll(&s->io, 0, NULL);
			s->on_broken(s, no);
			return;
		}
		at += (size_t)n;
	}
	buf_drop(&s->pending, at);
	fd_poll(&s->io, s->pending.len ? UV_WRITABLE : 0, on_writable);
	if (waited && !s->pending.len)
		s->on_drained(s);
}

void stdio_sink_init(struct stdio_sink *s, uv_loop_t *loop, int fd)
{
	buf_init(&s->pending, STDIO_PENDING_MAX);
	s->broken = false;
	fd_adopt(&s->io, loop, fd, O_WRONLY);
	s->io.poll.data = s;
}

int stdio_sink_write(struct stdio_sink *s, const void *data, size_t len)
{
	if (s->broken)
		return 0;
	if (buf_add(&s->pending, data, len) < 0)
		return -ENOBUFS;
	if (!s->io.polling)
		sink_flush(s);
	return s->pending.len > 0;
}

void stdio_sink_done(struct stdio_sink *s)
{
	fd_release(&s->io);
	buf_done(&s->pending);
}

static void source_read(struct stdio_source *s)
{
	uint8_t chunk[STDIO_CHUNK];
	ssize_t n;

	do
		n = read(s->io.fd, chunk, sizeof(chunk));
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN && s->io.pollable)
		return;
	fd_poll(&s->io, 0, NULL);
	if (n <= 0)
		s->ended = true;
	s->on_data(s, chunk, n > 0 ? (size_t)n : 0);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	source_read(poll->data);
}

void stdio_source_init(struct stdio_source *s, uv_loop_t *loop, int fd)
{
	s->ended = false;
	fd_adopt(&s->io, loop, fd, O_RDONLY);
	s->io.poll.data = s;
}

void stdio_source_want(struct stdio_source *s)
{
	if (s->ended)
		return;
	if (s->io.pollable)
		fd_poll(&s->io, UV_READABLE | UV_DISCONNECT, on_readable);
	else
		source_read(s);
}

void stdio_source_done(struct stdio_source *s)
{
	fd_release(&s->io);
}
