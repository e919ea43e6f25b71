#include "agent/drain.h"

#include <errno.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

#define PIECE 65536 /* a whole pipe of the default size */

struct drain {
	uv_poll_t poll;
	int fd;
	struct drain *newer, *older;
};

static struct {
	uv_loop_t *loop;
	struct drain *newest, *oldest;
	size_t count;
} drains;

ssize_t drain_read(int fd, uint64_t max, const char **ret)
{
	static char nowhere[PIECE];
	ssize_t n;

	do
		n = read(fd, nowhere, MIN(max, (uint64_t)sizeof(nowhere)));
	while (n < 0 && errno == EINTR);
	if (ret)
		*ret = nowhere;
	return n < 0 ? -errno : n;
}

static void on_closed(uv_handle_t *h)
{
	free(CONTAINER_OF(h, struct drain, poll));
}

static void drain_end(struct drain *d)
{
	*(d->older ? &d->older->newer : &drains.oldest) = d->newer;
	*(d->newer ? &d->newer->older : &drains.newest) = d->older;
	drains.count--;
	uv_close((uv_handle_t *)&d->poll, on_closed);
	fd_close(&d->fd);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	struct drain *d = CONTAINER_OF(poll, struct drain, poll);
	ssize_t n = status < 0 ? status : drain_read(d->fd, PIECE, NULL);

	if (n <= 0 && n != -EAGAIN)
		drain_end(d);
}

void drain_start(uv_loop_t *loop)
{
	drains.loop = loop;
}

void drain_take(int fd)
{
	struct drain *d = xcalloc(1, sizeof(*d));

	if (drains.count == DRAIN_PIPES_MAX)
		drain_end(drains.oldest);
	d->fd = fd;
	d->older = drains.newest;
	*(d->older ? &d->older->newer : &drains.oldest) = d;
	drains.newest = d;
	drains.count++;
	uv_poll_init(drains.loop, &d->poll, fd);
	uv_poll_start(&d->poll, UV_READABLE, on_readable);
}

void drain_stop(void)
{
	while (drains.oldest)
		drain_end(drains.oldest);
}
