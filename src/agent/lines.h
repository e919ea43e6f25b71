/* lines - a file read in blocks of whole lines.
 *
 * One reader is used for many files, so that its memory is allocated once. A line longer than
 * LINES_LONG_MAX is not given: a block says instead that there was one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define LINES_BLOCK	  (256u << 10) /* bytes read at once */
#define LINES_BINARY_LOOK 8192
#define LINES_LONG_MAX                                                                             \
	(32u << 20) /* bytes of one line; grep passes over longer ones, sed fails                  \
		     */

struct lines {
	int fd;
	size_t left; /* bytes of the file that are known to come; 0: read to the end */
	bool ends;   /* at `left` == 0 the file is over, without asking again */
	char *data;
	size_t len, cap; /* bytes in data */
	size_t given;	 /* bytes of the last block, to be dropped at the next call */
	bool eof;
};

void lines_done(struct lines *l);
/* Starts on a file (the descriptor stays the caller's). `size` is fstat's, 0 if it does not know.
 */
void lines_start(struct lines *l, int fd, size_t size);

/* Is there a NUL among the first LINES_BINARY_LOOK bytes? Asked before the first lines_next. 0, 1,
 * or a negative errno. */
int lines_is_binary(struct lines *l);

/* The next block, valid until the next call: whole lines, each ended by LF but perhaps the file's
 * last. 1; 2 for a single line over LINES_LONG_MAX that is left out; 0 at the end; or a negative
 * errno (-ECANCELED: the call was given up). */
int lines_next(struct lines *l, const char **ret, size_t *ret_len);
