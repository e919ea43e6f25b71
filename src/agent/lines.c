#include "agent/lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/fs_job.h"
#include "base/mem.h"

void lines_done(struct lines *l)
{
	free(l->data);
	*l = (struct lines){0};
}

void lines_start(struct lines *l, int fd, size_t size)
{
	l->fd = fd;
	l->left = size;
	l->ends = size > 0;
	l->len = l->given = 0;
	l->eof = false;
	if (!l->data) {
		l->cap = LINES_BLOCK;
		l->data = xmalloc(l->cap);
	}
}

/* Reads more behind what is there; sets eof. */
static int fill(struct lines *l)
{
	while (!l->eof && l->len < l->cap) {
		ssize_t n = read(l->fd, l->data + l->len, l->cap - l->len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		l->len += (size_t)n;
		l->left -= MIN(l->left, (size_t)n);
		/* A regular file of known size is over when that was read: one call less. */
		if (n == 0 || (l->ends && !l->left))
			l->eof = true;
		else if (!l->ends && l->len >= l->cap / 2)
			break;
	}
	return 0;
}

static void drop(struct lines *l, size_t n)
{
	memmove(l->data, l->data + n, l->len - n);
	l->len -= n;
}

/* The buffer is full and holds no end of line. 1 when it could be made larger. */
static int grow(struct lines *l)
{
	if (l->cap >= LINES_LONG_MAX)
		return 0;
	l->cap *= 2;
	l->data = xrealloc(l->data, l->cap, 1);
	return 1;
}

/* Goes over the rest of a line that is too long: 2 when its end is behind us. */
static int skip_long(struct lines *l)
{
	for (;;) {
		char *lf = memchr(l->data, '\n', l->len);
		int r;

		if (lf) {
			drop(l, (size_t)(lf + 1 - l->data));
			return 2;
		}
		l->len = 0;
		if (l->eof)
			return 2;
		if (fs_cancelled())
			return -ECANCELED;
		r = fill(l);
		if (r < 0)
			return r;
	}
}

int lines_is_binary(struct lines *l)
{
	int r = fill(l);

	return r < 0 ? r : memchr(l->data, 0, MIN(l->len, (size_t)LINES_BINARY_LOOK)) != NULL;
}

int lines_next(struct lines *l, const char **ret, size_t *ret_len)
{
	drop(l, l->given);
	l->given = 0;
	for (;;) {
		char *lf;
		int r = fill(l);

		if (r < 0)
			return r;
		lf = memrchr(l->data, '\n', l->len);
		/* At the end of the file what stands behind the last LF is a line, too. */
		l->given = l->eof ? l->len : lf ? (size_t)(lf + 1 - l->data) : 0;
		*ret = l->data;
		*ret_len = l->given;
		if (l->given)
			return 1;
		if (l->eof)
			return 0;
		if (l->len == l->cap && !grow(l))
			return skip_long(l);
	}
}
