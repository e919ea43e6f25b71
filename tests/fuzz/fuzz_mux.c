/* mux: a hostile peer for either role. The first byte chooses the role and how the bytes are cut.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "mux/mux.h"

#define FLOWS_MAX 1024

struct flow {
	struct mux_stream *s;
	size_t owed, to_send;
	bool closed;
};

struct side {
	struct flow flows[FLOWS_MAX];
	size_t n;
	uint8_t mood;
};

static int on_open(struct mux *m, struct mux_stream *s, const char *path, void *mux_user)
{
	struct side *side = mux_user;

	assert(path[0] == '/' && strlen(path) <= MUX_HEADERS_MAX);
	if (side->n == FLOWS_MAX || path[1] == 'n')
		return -1;
	side->flows[side->n] = (struct flow){.s = s, .to_send = side->mood * 700u};
	mux_stream_set_user(s, &side->flows[side->n++]);
	if (path[1] == 'r')
		mux_stream_reset(s);
	return 0;
}

static int on_data(struct mux_stream *s, const uint8_t *data, size_t len, void *user)
{
	struct flow *f = user;

	assert(f->s == s && !f->closed && len > 0);
	f->owed += len;
	assert(f->owed <= MUX_WINDOW_MAX);
	if (data[0] == 'r')
		mux_stream_reset(s);
	else if (data[0] == 'e')
		return -1;
	else if (data[0] != 'h') {
		mux_stream_consume(s, f->owed);
		f->owed = 0;
	}
	return 0;
}

static void on_end(struct mux_stream *s, void *user)
{
	struct flow *f = user;

	assert(f->s == s && !f->closed);
	f->to_send = 0;
	mux_stream_resume(s);
}

static void on_close(struct mux_stream *s, uint32_t h2_error, void *user)
{
	struct flow *f = user;

	assert(f->s == s && !f->closed);
	f->closed = true;
}

static ssize_t on_pull(struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof, void *user)
{
	struct flow *f = user;
	size_t n = MIN(cap, f->to_send);

	assert(!f->closed);
	memset(buf, 'x', n);
	f->to_send -= n;
	*ret_eof = f->to_send == 0;
	return n;
}

static const struct mux_callbacks callbacks = {on_open, on_data, on_end, on_close, on_pull, NULL};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct side *side;
	struct err e = ERR_INIT;
	const uint8_t *out;
	struct mux *m;
	enum mux_role role;
	size_t step;
	ssize_t n = 0;
	int rc = 0;

	if (len < 2)
		return 0;
	side = xcalloc(1, sizeof(*side));
	role = data[0] & 1 ? MUX_CLIENT : MUX_SERVER;
	step = data[0] & 2 ? 1 + data[1] : len;
	side->mood = data[1];
	m = mux_new(role, &callbacks, side);
	for (unsigned i = 0; role == MUX_CLIENT && i < 3; i++) {
		struct flow *f = &side->flows[side->n++];

		f->to_send = side->mood * 700u;
		f->s = mux_open(m, "/exec", f);
	}
	for (size_t i = 2; i < len && rc == 0 && n >= 0; i += step) {
		rc = mux_feed(m, data + i, MIN(step, len - i), &e);
		if (data[0] & 4 && i % 3)
			continue;
		do {
			n = mux_pull(m, &out, &e);
			assert(n <= MUX_OUT_MAX + 20000);
		} while (n > 0);
	}
	if (rc < 0)
		assert(e.text[0] && mux_feed(m, data, len, NULL) == rc);
	assert(mux_stream_count(m) <= FLOWS_MAX);
	mux_free(m);
	for (size_t i = 0; i < side->n; i++)
		assert(side->flows[i].closed);
	free(side);
	return 0;
}
