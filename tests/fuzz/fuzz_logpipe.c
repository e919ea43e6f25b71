/* host/vm/logpipe: the first byte says in pieces of what size the rest comes; however that is, the
 * same bytes of the same streams are handed out, and never more than came. */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "host/vm/logpipe.h"

struct seen {
	size_t bytes;
	uint64_t sum;
};

static void on_bytes(enum vm_stream stream, const void *data, size_t len, void *user)
{
	const uint8_t *p = data;
	struct seen *s = user;

	assert(stream == VM_STREAM_CONSOLE || stream == VM_STREAM_HOST);
	assert(len > 0);
	for (size_t i = 0; i < len; i++)
		s->sum = s->sum * 31 + p[i] + 256u * stream;
	s->bytes += len;
}

static int feed(const uint8_t *data, size_t size, size_t piece, struct seen *s)
{
	struct logpipe_reader r = {0};
	int rc = 0;

	for (size_t at = 0; at < size && rc == 0; at += piece)
		rc = logpipe_feed(&r, data + at, MIN(piece, size - at), on_bytes, s);
	assert(rc == 0 || rc == -EPROTO);
	assert(r.left <= LOGPIPE_CHUNK_MAX && r.hdr_len < LOGPIPE_HDR);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct seen whole = {0}, pieces = {0};
	int rc;

	if (size == 0)
		return 0;
	rc = feed(data + 1, size - 1, SIZE_MAX / 2, &whole);
	assert(feed(data + 1, size - 1, (size_t)data[0] + 1, &pieces) == rc);
	assert(memcmp(&whole, &pieces, sizeof(whole)) == 0);
	assert(whole.bytes <= size);
	return 0;
}
