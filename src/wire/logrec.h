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

#define LOGREC_RAW_MAX 8192 /* bytes of a line in one record; longer ones are cut into several */

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
	size_t len;
	bool partial;
};

/* Adds the JSON text, valid UTF-8, without a line end. */
int logrec_encode(const struct logrec *r, struct buf *out);
/* The member "cursor" of such a text: -EINVAL when it is none. */
int logrec_cursor(const char *json, size_t len, uint64_t *ret);

/* Splits one stream. Zeroed at the start. */
struct logrec_splitter {
	char data[LOGREC_RAW_MAX + 8];
	size_t len; /* of the unfinished line */
};
/* Calls `line` for every line or cut piece; raw: bytes that it takes of the stream, the terminator
 * included. A cut never splits a valid UTF-8 sequence; "\r" before "\n" goes. */
void logrec_split(struct logrec_splitter *s, const void *data, size_t len,
	void (*line)(const char *text, size_t len, size_t raw, bool partial, void *user),
	void *user);
/* Gives out the unfinished line, if any, as a partial one. */
void logrec_flush(struct logrec_splitter *s,
	void (*line)(const char *text, size_t len, size_t raw, bool partial, void *user),
	void *user);
