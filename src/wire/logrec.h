/* logrec - one record of a worker VM's log: bytes split into lines, and the one encoding of them
 * (worker VM specification §6.1, §6.2).
 *
 *   {"cursor":18231,"ts_ms":1790000000123,"stream":"console","line":"…","instance":7}
 *
 * and "partial":true when the line goes on in the next record of the stream.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Bytes of a line in one record, its end not counted; a longer line comes in several records. */
#define LOGREC_RAW_MAX 8192
/* No encoded record is longer: six bytes for one (\u0000), and the members. */
#define LOGREC_JSON_MAX (6 * LOGREC_RAW_MAX + 256)

enum log_stream {
	LOG_CONSOLE,
	LOG_HOST,
	LOG_STREAMS,
};

struct logrec {
	uint64_t cursor; /* offset just behind the record in all bytes of this boot */
	uint64_t ts_ms, instance;
	enum log_stream stream;
	const char *line; /* raw bytes, any */
	size_t len;	  /* at most LOGREC_RAW_MAX */
	bool partial;
};

/* Adds the JSON text, valid UTF-8, without a line end. Every byte that belongs to no valid
 * character becomes U+FFFD; control characters are escaped. 0, -ENOBUFS or -ENOMEM (nothing added).
 */
int logrec_encode(const struct logrec *r, struct buf *out);
/* The member "cursor" of such a text: -EINVAL when the text was not written by logrec_encode (torn,
 * or of other bytes than UTF-8 without control characters). */
int logrec_cursor(const char *json, size_t len, uint64_t *ret);

/* Called for every line or piece of one; raw: the bytes that it takes of the stream, the line end
 * included. `text` is valid during the call. */
typedef void (*logrec_line)(const char *text, size_t len, size_t raw, bool partial, void *user);

/* Splits one stream. Zeroed at the start. */
struct logrec_splitter {
	char data[LOGREC_RAW_MAX + 8];
	size_t len; /* of the unfinished line */
	bool open;  /* the last piece that was given out was partial */
};
/* A line ends at "\n", and one "\r" before it goes. A line that is too long is cut, never within a
 * valid UTF-8 sequence. */
void logrec_split(
	struct logrec_splitter *s, const void *data, size_t len, logrec_line line, void *user);

enum logrec_flush {
	LOGREC_PAUSE, /* more may come: a cut character and a "\r" at the end are kept back */
	LOGREC_END,   /* nothing more comes: all of it */
};
/* Gives out the unfinished line, if any, as a partial one. */
void logrec_flush(struct logrec_splitter *s, enum logrec_flush how, logrec_line line, void *user);
