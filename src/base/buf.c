#include "base/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void buf_init(struct buf *b, size_t max)
{
	*b = (struct buf){.max = max};
}

void buf_done(struct buf *b)
{
	free(b->data);
	*b = (struct buf){.max = b->max};
}

void buf_clear(struct buf *b)
{
	b->len = 0;
	if (b->data)
		b->data[0] = '\0';
}

void *buf_room(struct buf *b, size_t len)
{
	size_t want;

	if (len > b->max || b->len > b->max - len)
		return NULL;
	if (b->cap - b->len <= len) {
		want = MAX(b->len + len + 1, MIN(b->cap * 2, b->max + 1));
		want = MAX(want, (size_t)64);
		void *p = realloc(b->data, want);

		if (!p)
			return NULL;
		b->data = p;
		b->cap = want;
	}
	return b->data + b->len;
}

void buf_added(struct buf *b, size_t len)
{
	assert(b->cap - b->len > len);
	b->len += len;
	b->data[b->len] = '\0';
}

int buf_add(struct buf *b, const void *data, size_t len)
{
	void *room = buf_room(b, len);

	if (!room)
		return b->max - b->len < len ? -ENOBUFS : -ENOMEM;
	if (len)
		memcpy(room, data, len);
	buf_added(b, len);
	return 0;
}

int buf_add_str(struct buf *b, const char *s)
{
	return buf_add(b, s, strlen(s));
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
	cleanup_free char *s = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&s, fmt, ap);
	va_end(ap);
	if (n < 0)
		return -ENOMEM;
	return buf_add(b, s, n);
}

void buf_drop(struct buf *b, size_t n)
{
	assert(n <= b->len);
	if (!n)
		return;
	memmove(b->data, b->data + n, b->len - n);
	b->len -= n;
	b->data[b->len] = '\0';
}

char *buf_steal(struct buf *b)
{
	char *s = b->data ? (char *)STEAL(b->data) : xstrdup("");

	b->len = b->cap = 0;
	return s;
}
