/* names - the names in a directory, read at once and sorted by their bytes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct name_ref {
	uint32_t at;	    /* in text */
	unsigned char type; /* DT_*, DT_UNKNOWN where the file system does not say */
};

struct names {
	char *text;
	size_t text_len, text_cap;
	struct name_ref *refs;
	size_t n, cap;
};

void names_done(struct names *s);
#define cleanup_names __attribute__((cleanup(names_done)))

/* Appends all names in `fd` (from its begin; the position is shared with nobody else) but "." and
 * "..". 0, -EFBIG when they and their refs take more than `max` bytes (some are read then), or
 * another negative errno. */
int names_read(struct names *s, int fd, size_t max);

/* Appends some names from where `fd` stands: at least one if there is one, about `max` bytes.
 * 0 or a negative errno. */
int names_read_some(struct names *s, int fd, size_t max);

void names_clear(struct names *s); /* keeps the memory */
void names_sort(struct names *s);
size_t names_bytes(const struct names *s); /* memory held */

static inline const char *names_at(const struct names *s, size_t i)
{
	return s->text + s->refs[i].at;
}
