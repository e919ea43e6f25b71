/* wire/guest: records of either side, cut at places that the input chooses. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "wire/guest.h"

#define JSON_MAX 300

struct seen {
	size_t json, bytes, ends;
	bool stop;
};

static int on_json(void *user, enum guest_rec type, const char *text, size_t len)
{
	struct seen *s = user;

	assert(len <= JSON_MAX && text[len] == '\0');
	assert(type == GUEST_REC_HEAD || type == GUEST_REC_END);
	assert(s->ends == 0);
	s->json++;
	s->ends += type == GUEST_REC_END;
	return s->stop && len == 7 ? -1 : 0;
}

static int on_bytes(void *user, enum guest_rec type, const uint8_t *data, size_t len)
{
	struct seen *s = user;

	assert(len > 0 && s->ends == 0);
	assert(type == GUEST_REC_DATA || type == GUEST_REC_OUT || type == GUEST_REC_ERR);
	s->bytes += len;
	return s->stop && len == 7 ? -1 : 0;
}

static const struct guest_reader_callbacks callbacks = {on_json, on_bytes};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct guest_reader r;
	struct seen s = {0};
	size_t step;
	int rc = 0;

	if (len < 2)
		return 0;
	step = 1 + data[1] % 64;
	s.stop = data[0] & 2;
	guest_reader_init(
		&r, data[0] & 1 ? GUEST_SIDE_HOST : GUEST_SIDE_AGENT, JSON_MAX, &callbacks, &s);
	for (size_t i = 2; i < len && rc == 0; i += step)
		rc = guest_reader_feed(&r, data + i, MIN(step, len - i));
	if (rc == 0 && guest_reader_eof(&r) == 0)
		assert(s.json > 0);
	assert(s.json <= 2 && s.bytes <= len);
	guest_reader_done(&r);
	return 0;
}
