#include "agent/names.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"

#define CHUNK 32768 /* bytes asked of the kernel at once: libc's own size */

/* As the kernel writes it (getdents64(2)); libc would allocate a DIR for each directory. */
struct entry {
	uint64_t ino;
	int64_t off;
	unsigned short reclen;
	unsigned char type;
	char name[];
};

void names_done(struct names *s)
{
	free(s->text);
	free(s->refs);
	*s = (struct names){0};
}

void names_clear(struct names *s)
{
	s->n = 0;
	s->text_len = 0;
}

size_t names_bytes(const struct names *s)
{
	return s->text_len + s->n * sizeof(*s->refs);
}

static void add(struct names *s, const char *name, unsigned char type)
{
	size_t len = strlen(name) + 1;

	if (s->n == s->cap) {
		s->cap = s->cap ? s->cap * 2 : 32;
		s->refs = xrealloc(s->refs, s->cap, sizeof(*s->refs));
	}
	if (s->text_len + len > s->text_cap) {
		s->text_cap = MAX(s->text_cap * 2, s->text_len + len);
		s->text = xrealloc(s->text, s->text_cap, 1);
	}
	s->refs[s->n++] = (struct name_ref){.at = (uint32_t)s->text_len, .type = type};
	memcpy(s->text + s->text_len, name, len);
	s->text_len += len;
}

static bool is_dots(const char *name)
{
	return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

/* One chunk of the directory: 1, 0 at its end, or a negative errno. */
static int read_chunk(struct names *s, int fd, size_t size)
{
	_Alignas(struct entry) static char chunk[CHUNK];
	long n = syscall(SYS_getdents64, fd, chunk, MIN(size, sizeof(chunk)));

	if (n <= 0)
		return n < 0 ? -errno : 0;
	for (long at = 0; at < n;) {
		struct entry *d = (struct entry *)(chunk + at);

		if (!is_dots(d->name))
			add(s, d->name, d->type);
		at += d->reclen;
	}
	return 1;
}

int names_read(struct names *s, int fd, size_t max)
{
	int r;

	if (lseek(fd, 0, SEEK_SET) < 0)
		return -errno;
	do {
		r = read_chunk(s, fd, CHUNK);
		if (names_bytes(s) > MIN(max, (size_t)UINT32_MAX))
			return -EFBIG;
	} while (r > 0);
	/* Removed while it was open: it has no names any more. */
	return r == -ENOENT ? 0 : r;
}

int names_read_some(struct names *s, int fd, size_t max)
{
	size_t before = s->n;
	int r;

	do
		r = read_chunk(s, fd, max);
	while (r > 0 && s->n == before);
	return r == -ENOENT ? 0 : MIN(r, 0);
}

static int compare(const void *a, const void *b, void *text)
{
	const struct name_ref *x = a, *y = b;

	return strcmp((char *)text + x->at, (char *)text + y->at);
}

void names_sort(struct names *s)
{
	if (s->n > 1)
		qsort_r(s->refs, s->n, sizeof(*s->refs), compare, s->text);
}
