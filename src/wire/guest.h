/* guest - the records that host and agent exchange inside one HTTP/2 stream.
 *
 * A stream is one operation. Its path names it ("/exec", "/fs/write", …); both directions then
 * carry a sequence of records:
 *
 *   record := type (1 byte) · length of payload (4 bytes, big-endian) · payload
 *
 *   host -> agent   HEAD (JSON object), DATA*, end of stream     DATA is stdin or file content
 *   agent -> host   [HEAD (JSON object)], (DATA|OUT|ERR)*, END   END is the JSON result; last
 * record
 *
 * Every byte from the agent is hostile to the host: the reader checks types, order and sizes, and
 * one breach is -EPROTO, after which the connection (and its VM) is given up. Payloads of DATA, OUT
 * and ERR are passed on as they arrive, in pieces; HEAD and END are collected whole.
 * The JSON of each operation is described beside its handler (src/agent/OP.c, src/host/guest/OP.c).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum guest_rec {
	GUEST_REC_HEAD = 1, /* JSON object: the request, or facts that are known before the data */
	GUEST_REC_DATA = 2, /* stdin of an exec, content of a file */
	GUEST_REC_OUT = 3,  /* stdout of an exec */
	GUEST_REC_ERR = 4,  /* stderr of an exec */
	GUEST_REC_END = 5,  /* JSON object: the result or {"error":{…}} */
};

#define GUEST_REC_HDR 5
#define GUEST_REC_DATA_MAX                                                                         \
	(256u << 10)		       /* payload of DATA, OUT, ERR; longer is a protocol error    \
					*/
#define GUEST_REC_JSON_MAX (16u << 20) /* payload of HEAD, END; longer is a protocol error */
#define GUEST_TAIL_MAX	   1024	       /* bytes of an exec's output beyond its cap that END has */
#define GUEST_PATH_MAX	   64	       /* characters of an operation's path */

/* Writes the five bytes in front of a payload. */
void guest_rec_header(uint8_t dst[static GUEST_REC_HDR], enum guest_rec type, uint32_t len);

/* Adds a whole record. 0, or what buf_add says; payload over its limit is -EMSGSIZE. */
int guest_rec_add(struct buf *out, enum guest_rec type, const void *payload, size_t len);

/* Which end is reading: it decides which types are legal. */
enum guest_side {
	GUEST_SIDE_AGENT, /* reads HEAD then DATA */
	GUEST_SIDE_HOST, /* reads optional HEAD, then DATA/OUT/ERR, then END and nothing after it */
};

struct guest_reader_callbacks {
	/* A whole JSON text (not parsed, not checked for UTF-8). Negative = stop with that error.
	 */
	int (*on_json)(void *user, enum guest_rec type, const char *text, size_t len);
	/* A piece of a DATA, OUT or ERR payload, never empty. Negative = stop with that error. */
	int (*on_bytes)(void *user, enum guest_rec type, const uint8_t *data, size_t len);
};

struct guest_reader {
	const struct guest_reader_callbacks *cb;
	void *user;
	enum guest_side side;
	size_t json_max; /* ceiling of one HEAD or END, <= GUEST_REC_JSON_MAX */
	uint8_t hdr[GUEST_REC_HDR];
	size_t hdr_len;
	uint32_t left; /* payload bytes still to come */
	enum guest_rec type;
	bool seen_head, seen_data, seen_end;
	struct buf json;
};

void guest_reader_init(struct guest_reader *r, enum guest_side side, size_t json_max,
	const struct guest_reader_callbacks *cb, void *user);
void guest_reader_done(struct guest_reader *r);

/* Takes the next bytes of the stream. 0, -EPROTO, or what a callback returned; after an error the
 * reader must not be fed again. */
int guest_reader_feed(struct guest_reader *r, const uint8_t *data, size_t len);

/* The peer ended its side: 0 when that was at a legal place (agent: after HEAD, between records;
 * host: after END), else -EPROTO. */
int guest_reader_eof(const struct guest_reader *r);
