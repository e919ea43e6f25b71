/* Where a reader is: `after`, the cursor of the last record it gave (all that matters), and a place
 * in a segment from which the next ones are read. When rotation has taken the segment away, the
 * place becomes the beginning of the oldest kept one; `after` stays, so nothing comes twice.
 *
 * Only whole lines are in segment.size, so a reader never sees a line that is being written. A
 * newest segment of an earlier daemon may hold anything: what logrec_cursor refuses, or what does
 * not rise, is passed over.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/fd.h"
#include "base/mem.h"
#include "host/worker/logs_priv.h"

static_assert(LOGS_READ_BYTES > LOGREC_JSON_MAX, "a record and its line end fit");

struct logs_reader {
	struct logs *l;
	struct logs_reader *next;
	uint64_t after;	 /* records up to this cursor are done */
	uint64_t until;	 /* records beyond this cursor are not for it */
	uint64_t base;	 /* the segment it is in */
	uint64_t off;	 /* file offset of data[0] */
	char *data;	 /* LOGS_READ_BYTES; NULL: nothing is being read */
	size_t pos, len; /* data[pos..len) is not yet given out */
	int fd;
	bool follow;
	bool waiting; /* gave 0; wake is owed */
	bool due;     /* chosen by the present round of wakes */
	void (*wake)(void *user);
	void *user;
};

struct logs_reader *logs_reader_new(
	struct logs *l, uint64_t cursor, bool follow, void (*wake)(void *user), void *user)
{
	struct logs_reader *r = xcalloc(1, sizeof(*r));

	*r = (struct logs_reader){.l = l,
		.next = l->readers,
		.after = cursor > l->end ? 0 : cursor,
		.until = follow ? UINT64_MAX : l->end,
		.fd = -1,
		.follow = follow,
		.wake = wake,
		.user = user};
	l->readers = r;
	for (size_t i = 0; i < l->n_segs && (i == 0 || l->segs[i].base <= r->after); i++)
		r->base = l->segs[i].base;
	return r;
}

void logs_reader_free(struct logs_reader *r)
{
	struct logs_reader **p;

	if (!r)
		return;
	for (p = &r->l->readers; *p != r; p = &(*p)->next)
		;
	*p = r->next;
	fd_close(&r->fd);
	free(r->data);
	free(r);
}

/* To the beginning of a segment, without what was read of another. */
static void go_to(struct logs_reader *r, uint64_t base)
{
	fd_close(&r->fd);
	r->base = base;
	r->off = r->pos = r->len = 0;
}

/* Index of the reader's segment, where it is now; n_segs when there is none. */
static size_t locate(struct logs_reader *r)
{
	const struct logs *l = r->l;
	size_t i = 0;

	while (i < l->n_segs && l->segs[i].base < r->base)
		i++;
	if (i < l->n_segs && l->segs[i].base != r->base)
		go_to(r, l->segs[i].base);
	return i;
}

static int open_segment(struct logs_reader *r)
{
	char name[LOGS_NAME_LEN];

	if (r->fd >= 0)
		return 0;
	logs_segment_name(r->base, name);
	r->fd = openat(r->l->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	return r->fd < 0 ? -errno : 0;
}

/* 1: there may be another line, or another segment; 0: at the end of all; else a negative errno. */
static int refill(struct logs_reader *r)
{
	const struct logs *l = r->l;
	size_t i = locate(r), room;
	ssize_t n = 0;
	int rc;

	if (i == l->n_segs)
		return 0;
	if (!r->data)
		r->data = xmalloc(LOGS_READ_BYTES);
	r->len -= r->pos;
	r->off += r->pos;
	memmove(r->data, r->data + r->pos, r->len);
	r->pos = 0;
	if (r->len == LOGS_READ_BYTES) { /* damage: no record is that long */
		r->off += r->len;
		r->len = 0;
	}
	room = LOGS_READ_BYTES - r->len;
	if (r->off + r->len < l->segs[i].size) {
		rc = open_segment(r);
		if (rc < 0 && rc != -ENOENT)
			return rc;
		room = MIN(room, l->segs[i].size - r->off - r->len);
		n = rc < 0 ? 0 : fd_pread_full(r->fd, r->data + r->len, room, r->off + r->len);
		if (n < 0)
			return (int)n;
	}
	r->len += n;
	if (n > 0)
		return 1;
	if (i + 1 == l->n_segs)
		return 0;
	go_to(r, l->segs[i + 1].base);
	return 1;
}

/* Nothing more now: gives the memory back. */
static int pause_reader(struct logs_reader *r)
{
	if (!r->follow || r->l->ended)
		return -ENODATA;
	r->off += r->pos;
	r->pos = r->len = 0;
	free(STEAL(r->data));
	r->waiting = true;
	return 0;
}

int logs_reader_next(struct logs_reader *r, const char **ret, size_t *ret_len)
{
	for (;;) {
		const char *line, *nl = NULL;
		uint64_t cursor;
		size_t len;
		int rc;

		if (r->l->retired || r->after >= r->until)
			return -ENODATA;
		if (r->len > r->pos)
			nl = memchr(r->data + r->pos, '\n', r->len - r->pos);
		if (!nl) {
			rc = refill(r);
			if (rc < 0)
				return rc;
			if (rc == 0)
				return pause_reader(r);
			continue;
		}
		line = r->data + r->pos;
		len = nl - line;
		r->pos += len + 1;
		if (logrec_cursor(line, len, &cursor) < 0 || cursor <= r->after)
			continue;
		r->after = cursor;
		if (cursor > r->until)
			return -ENODATA;
		*ret = line;
		*ret_len = len;
		return 1;
	}
}

uint64_t logs_reader_offset(const struct logs_reader *r)
{
	return r->off + r->pos;
}

void logs_readers_lose(struct logs *l, uint64_t base)
{
	for (struct logs_reader *r = l->readers; r; r = r->next) {
		if (r->base == base)
			fd_close(&r->fd);
	}
}

/* A wake may free any reader, so the list is gone through from its head each time. */
void logs_readers_wake(struct logs *l)
{
	struct logs_reader *r;

	for (r = l->readers; r; r = r->next)
		r->due = r->waiting;
	for (r = l->readers; r;) {
		if (!r->due) {
			r = r->next;
			continue;
		}
		r->due = r->waiting = false;
		if (r->wake)
			r->wake(r->user);
		r = l->readers;
	}
}
