/* mux: two sessions wired together in memory, the bytes cut at random. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "mux/mux.h"

#define PIPE_MAX (64u << 20)

/* One side of a stream. Bodies are generated and checked: byte i of a body is pattern(seed, i). */
struct flow {
	struct mux_stream *s; /* NULL once closed */
	uint64_t to_send, sent, received, owed;
	uint8_t seed_out, seed_in;
	bool hold;   /* does not consume: owed grows */
	bool starve; /* on_pull says "nothing now" */
	bool fail_pull, fail_data;
	bool echo; /* sends what it received instead of a generated body */
	struct buf echoed;
	bool ended, closed;
	uint32_t h2_error;
	char path[64];
};

struct side {
	struct mux *m;
	struct buf wire; /* bytes on their way to this side */
	struct flow flows[4096];
	size_t n_flows;
	size_t opened, refused, pongs;
	bool refuse, echo, reset_in_open;
	uint64_t reply;	      /* bytes of each reply body */
	unsigned hold_every;  /* each n-th stream does not consume; 0: none */
	uint64_t max_on_wire; /* largest `wire` seen */
};

static uint32_t rnd_state = 1;

static uint32_t rnd(uint32_t below)
{
	rnd_state = rnd_state * 1664525u + 1013904223u;
	return (uint32_t)(((uint64_t)rnd_state * below) >> 32);
}

static uint8_t pattern(uint8_t seed, uint64_t i)
{
	return (uint8_t)(i * 7 + (i >> 8) + seed);
}

static int on_open(struct mux *m, struct mux_stream *s, const char *path, void *mux_user)
{
	struct side *side = mux_user;
	struct flow *f;
	uint32_t seed;

	if (side->refuse) {
		side->refused++;
		return -EBUSY;
	}
	assert_true(side->n_flows < ARRAY_LEN(side->flows));
	f = &side->flows[side->n_flows++];
	*f = (struct flow){.s = s, .to_send = side->reply, .echo = side->echo};
	buf_init(&f->echoed, 1 << 20);
	snprintf(f->path, sizeof(f->path), "%s", path);
	if (str_u32(path + 1, &seed) == 0)
		f->seed_in = (uint8_t)seed;
	f->seed_out = f->seed_in + 1;
	f->hold = side->hold_every && side->n_flows % side->hold_every == 0;
	side->opened++;
	mux_stream_set_user(s, f);
	assert_ptr_equal(mux_stream_mux(s), m);
	assert_ptr_equal(mux_stream_user(s), f);
	if (side->reset_in_open)
		mux_stream_reset(s);
	return 0;
}

static int on_data(struct mux_stream *s, const uint8_t *data, size_t len, void *user)
{
	struct flow *f = user;

	assert_ptr_equal(f->s, s);
	assert_true(len > 0);
	for (size_t i = 0; i < len; i++) {
		if (data[i] != pattern(f->seed_in, f->received + i))
			fail_msg("byte %zu of %s is wrong", (size_t)f->received + i, f->path);
	}
	f->received += len;
	if (f->fail_data)
		return -EIO;
	if (f->echo) {
		/* Consumed when it was sent back: back-pressure through and through. */
		assert_int_equal(buf_add(&f->echoed, data, len), 0);
		mux_stream_resume(s);
	} else if (f->hold) {
		f->owed += len;
	} else {
		mux_stream_consume(s, len);
	}
	return 0;
}

static void on_end(struct mux_stream *s, void *user)
{
	struct flow *f = user;

	assert_false(f->ended);
	f->ended = true;
	mux_stream_resume(s);
}

static void on_close(struct mux_stream *s, uint32_t h2_error, void *user)
{
	struct flow *f = user;

	assert_false(f->closed);
	f->closed = true;
	f->h2_error = h2_error;
	f->s = NULL;
	buf_done(&f->echoed);
}

static ssize_t pull_echo(struct flow *f, uint8_t *buf, size_t cap, bool *ret_eof)
{
	size_t n = MIN(cap, f->echoed.len);

	if (n)
		memcpy(buf, f->echoed.data, n);
	buf_drop(&f->echoed, n);
	mux_stream_consume(f->s, n);
	*ret_eof = f->ended && f->echoed.len == 0;
	f->sent += n;
	return n;
}

static ssize_t on_pull(struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof, void *user)
{
	struct flow *f = user;
	size_t n;

	assert_false(f->closed);
	if (f->fail_pull)
		return -EIO;
	if (f->starve)
		return 0;
	if (f->echo)
		return pull_echo(f, buf, cap, ret_eof);
	n = MIN((uint64_t)cap, f->to_send - f->sent);
	if (n > 1 && rnd(4) == 0)
		n = 1 + rnd(n);
	for (size_t i = 0; i < n; i++)
		buf[i] = pattern(f->seed_out, f->sent + i);
	f->sent += n;
	*ret_eof = f->sent == f->to_send;
	return n;
}

static void on_pong(struct mux *m, void *mux_user)
{
	((struct side *)mux_user)->pongs++;
}

static const struct mux_callbacks callbacks = {
	on_open, on_data, on_end, on_close, on_pull, on_pong};

struct pair {
	struct side client, server;
};

static struct pair *pair_new(void)
{
	struct pair *p = xcalloc(1, sizeof(*p));

	buf_init(&p->client.wire, PIPE_MAX);
	buf_init(&p->server.wire, PIPE_MAX);
	p->client.m = mux_new(MUX_CLIENT, &callbacks, &p->client);
	p->server.m = mux_new(MUX_SERVER, &callbacks, &p->server);
	return p;
}

static void side_done(struct side *s)
{
	mux_free(s->m);
	buf_done(&s->wire);
	for (size_t i = 0; i < s->n_flows; i++)
		assert_true(s->flows[i].closed);
}

static void pair_free(struct pair *p)
{
	side_done(&p->client);
	side_done(&p->server);
	free(p);
}

static struct flow *call(struct pair *p, uint8_t seed, uint64_t to_send)
{
	struct side *c = &p->client;
	struct flow *f = &c->flows[c->n_flows++];
	char path[16];

	assert_true(c->n_flows <= ARRAY_LEN(c->flows));
	snprintf(path, sizeof(path), "/%u", seed);
	*f = (struct flow){.to_send = to_send, .seed_out = seed, .seed_in = seed + 1};
	buf_init(&f->echoed, 1 << 20);
	f->s = mux_open(c->m, path, f);
	assert_non_null(f->s);
	return f;
}

/* Moves what one side has to send onto the wire of the other. True when there was something. */
static bool pump_out(struct side *from, struct side *to)
{
	const uint8_t *data;
	struct err e = ERR_INIT;
	ssize_t n;

	if (!mux_wants_write(from->m))
		return false;
	n = mux_pull(from->m, &data, &e);
	if (n < 0)
		fail_msg("%s", e.text);
	assert_true(n <= MUX_OUT_MAX + 17000);
	assert_int_equal(buf_add(&to->wire, data, n), 0);
	to->max_on_wire = MAX(to->max_on_wire, (uint64_t)to->wire.len);
	return n > 0;
}

static bool pump_in(struct side *to)
{
	size_t n = to->wire.len;
	struct err e = ERR_INIT;

	if (n == 0)
		return false;
	n = 1 + rnd(rnd(8) == 0 ? MIN(n, (size_t)16) : n);
	if (mux_feed(to->m, to->wire.data, n, &e) != 0)
		fail_msg("%s", e.text);
	buf_drop(&to->wire, n);
	return true;
}

/* Runs both sides until nothing moves any more. */
static void settle(struct pair *p)
{
	bool moved;

	do {
		moved = pump_out(&p->client, &p->server);
		moved |= pump_in(&p->server);
		moved |= pump_out(&p->server, &p->client);
		moved |= pump_in(&p->client);
	} while (moved);
}

static void one_request_goes_round(void **state)
{
	struct pair *p = pair_new();
	struct flow *f, *g = &p->server.flows[0];

	p->server.reply = 5;
	f = call(p, 42, 10);
	assert_int_equal(mux_stream_count(p->client.m), 1);
	settle(p);
	assert_string_equal(g->path, "/42");
	assert_int_equal(g->received, 10);
	assert_int_equal(f->received, 5);
	assert_true(f->ended && f->closed && g->ended && g->closed);
	assert_int_equal(f->h2_error, 0);
	assert_int_equal(g->h2_error, 0);
	assert_int_equal(mux_stream_count(p->client.m), 0);
	assert_int_equal(mux_stream_count(p->server.m), 0);
	pair_free(p);
}

static void empty_bodies_end_too(void **state)
{
	struct pair *p = pair_new();
	struct flow *f = call(p, 1, 0);

	settle(p);
	assert_true(f->ended && f->closed);
	assert_int_equal(f->received, 0);
	assert_int_equal(p->server.flows[0].received, 0);
	assert_true(p->server.flows[0].closed);
	pair_free(p);
}

static void large_bodies_in_parallel(void **state)
{
	for (uint32_t seed = 1; seed <= 8; seed++) {
		struct pair *p = pair_new();

		rnd_state = seed;
		p->server.reply = 700000;
		for (unsigned i = 0; i < 40; i++)
			call(p, i, 500000 + i);
		settle(p);
		assert_int_equal(p->server.n_flows, 40);
		for (unsigned i = 0; i < 40; i++) {
			assert_true(p->client.flows[i].closed && p->server.flows[i].closed);
			assert_int_equal(p->client.flows[i].h2_error, 0);
			assert_int_equal(p->client.flows[i].received, 700000);
			assert_int_equal(
				p->server.flows[i].received, 500000 + p->server.flows[i].seed_in);
		}
		pair_free(p);
	}
}

static void echo_is_back_pressure_both_ways(void **state)
{
	struct pair *p = pair_new();
	struct flow *f;

	p->server.echo = true;
	f = call(p, 9, 3000000);
	f->seed_in = 9;
	f->hold = true;
	settle(p);
	/* The reader here took nothing: two windows and one buffer are under way, no more. */
	assert_false(f->closed);
	assert_in_range(f->sent, 1, 4 * 65536);
	assert_int_equal(f->received, 65535);
	f->hold = false;
	mux_stream_consume(f->s, f->owed);
	settle(p);
	assert_true(f->closed);
	assert_int_equal(f->h2_error, 0);
	assert_int_equal(f->received, 3000000);
	pair_free(p);
}

static void stalled_readers_stop_nobody_else(void **state)
{
	struct pair *p = pair_new();
	struct flow *f;

	/* Two hundred streams whose readers take nothing, in both directions: far more bytes than
	 * the window of the connection. */
	p->server.hold_every = 1;
	p->server.reply = 1000000;
	for (unsigned i = 0; i < 200; i++)
		call(p, i, 1000000)->hold = true;
	settle(p);
	for (unsigned i = 0; i < 200; i++) {
		assert_int_equal(p->client.flows[i].received, 65535);
		assert_int_equal(p->server.flows[i].received, 65535);
	}
	p->server.hold_every = 0;
	f = call(p, 77, 2000000);
	settle(p);
	assert_true(f->closed);
	assert_int_equal(f->received, 1000000);
	assert_int_equal(p->server.flows[200].received, 2000000);
	/* And the stalled ones go on where they were. */
	for (unsigned i = 0; i < 200; i++) {
		struct flow *c = &p->client.flows[i], *s = &p->server.flows[i];

		c->hold = s->hold = false;
		mux_stream_consume(c->s, c->owed);
		mux_stream_consume(s->s, s->owed);
	}
	settle(p);
	for (unsigned i = 0; i < 200; i++) {
		assert_true(p->client.flows[i].closed && p->server.flows[i].closed);
		assert_int_equal(p->client.flows[i].received, 1000000);
		assert_int_equal(p->server.flows[i].received, 1000000);
	}
	pair_free(p);
}

/* Streams that were read steadily and then stall: how much each is sent after that. */
static uint64_t most_owed(unsigned streams)
{
	struct pair *p = pair_new();
	uint64_t most = 0;

	p->server.reply = 16 << 20;
	for (unsigned i = 0; i < streams; i++)
		call(p, i, 1);
	for (unsigned i = 0; i < streams; i++) {
		while (p->client.flows[i].received < 2 << 20) {
			pump_out(&p->client, &p->server);
			pump_in(&p->server);
			pump_out(&p->server, &p->client);
			pump_in(&p->client);
		}
	}
	for (unsigned i = 0; i < streams; i++)
		p->client.flows[i].hold = true;
	settle(p);
	for (unsigned i = 0; i < streams; i++) {
		struct flow *f = &p->client.flows[i];

		assert_false(f->closed);
		most = MAX(most, f->owed);
		f->hold = false;
		mux_stream_consume(f->s, f->owed);
	}
	settle(p);
	for (unsigned i = 0; i < streams; i++) {
		assert_true(p->client.flows[i].closed);
		assert_int_equal(p->client.flows[i].received, 16 << 20);
	}
	pair_free(p);
	return most;
}

static void windows_grow_for_one_and_shrink_for_many(void **state)
{
	/* What was received when the reader stopped may have been less than what it consumed by one
	 * feed: the bound is the window. */
	assert_in_range(most_owed(1), MUX_WINDOW_MAX / 2, MUX_WINDOW_MAX);
	assert_in_range(most_owed(2), 65536, MUX_WINDOW_MAX / 4);
	assert_in_range(most_owed(8), 1, 65535);
}

static void a_starved_body_resumes(void **state)
{
	struct pair *p = pair_new();
	struct flow *f;

	f = call(p, 3, 100);
	f->starve = true;
	settle(p);
	assert_int_equal(p->server.flows[0].received, 0);
	assert_false(mux_wants_write(p->client.m));
	f->starve = false;
	mux_stream_resume(f->s);
	assert_true(mux_wants_write(p->client.m));
	settle(p);
	assert_int_equal(p->server.flows[0].received, 100);
	assert_true(f->closed);
	pair_free(p);
}

static void reset_closes_both_sides(void **state)
{
	struct pair *p = pair_new();
	struct flow *f, *g = &p->server.flows[0], *h;

	p->server.reply = 1000000;
	f = call(p, 3, 1000000);
	f->hold = true;
	settle(p);
	mux_stream_reset(f->s);
	assert_false(f->closed); /* not from inside the call */
	settle(p);
	assert_true(f->closed && g->closed);
	assert_int_equal(f->h2_error, 8);
	assert_int_equal(g->h2_error, 8);

	/* From the server, and while data is still coming. */
	h = call(p, 4, 1000000);
	pump_out(&p->client, &p->server);
	while (p->server.n_flows < 2)
		pump_in(&p->server);
	mux_stream_reset(p->server.flows[1].s);
	settle(p);
	assert_true(h->closed);
	assert_int_equal(h->h2_error, 8);
	assert_int_equal(h->received, 0);
	assert_true(p->server.flows[1].closed);

	/* The window of the connection did not leak: bytes of streams that were reset count. */
	for (unsigned i = 0; i < 100; i++) {
		struct flow *k = call(p, 5, 200000);

		k->hold = true;
		settle(p);
		mux_stream_reset(k->s);
		settle(p);
	}
	h = call(p, 6, 200000);
	settle(p);
	assert_true(h->closed);
	assert_int_equal(h->received, 1000000);
	pair_free(p);
}

static void a_stream_can_be_reset_before_it_was_sent(void **state)
{
	struct pair *p = pair_new();
	struct flow *f = call(p, 1, 10), *g = call(p, 2, 10);

	mux_stream_reset(f->s);
	settle(p);
	assert_true(f->closed && g->closed);
	assert_int_equal(f->h2_error, 8);
	assert_int_equal(g->h2_error, 0);
	assert_int_equal(p->server.opened, 1);
	pair_free(p);
}

static void errors_of_callbacks_reset_their_stream(void **state)
{
	struct pair *p = pair_new();
	struct flow *f, *g, *h;

	p->server.reply = 100;
	f = call(p, 1, 10);
	f->fail_pull = true;
	g = call(p, 2, 10);
	g->fail_data = true;
	h = call(p, 3, 10);
	settle(p);
	assert_true(f->closed && g->closed && h->closed);
	assert_int_equal(f->h2_error, 2);
	assert_int_equal(g->h2_error, 8);
	assert_int_equal(h->h2_error, 0);
	assert_int_equal(h->received, 100);
	pair_free(p);
}

static void a_server_can_refuse(void **state)
{
	struct pair *p = pair_new();
	struct flow *f;

	p->server.refuse = true;
	f = call(p, 1, 100000);
	settle(p);
	assert_true(f->closed);
	assert_int_equal(f->h2_error, 7);
	assert_int_equal(p->server.refused, 1);
	assert_int_equal(mux_stream_count(p->server.m), 0);
	p->server.refuse = false;
	p->server.reset_in_open = true;
	f = call(p, 1, 10);
	settle(p);
	assert_int_equal(f->h2_error, 8);
	assert_true(p->server.flows[0].closed);
	p->server.reset_in_open = false;
	f = call(p, 1, 10);
	settle(p);
	assert_int_equal(f->h2_error, 0);
	pair_free(p);
}

static void opens_beyond_the_limit_wait(void **state)
{
	struct pair *p = pair_new();

	settle(p);
	p->server.hold_every = 1;
	p->server.reply = 10;
	for (unsigned i = 0; i < MUX_STREAMS_MAX + 50; i++)
		call(p, i, 100000);
	settle(p);
	assert_int_equal(p->server.opened, MUX_STREAMS_MAX);
	/* One that still waits can be given up. */
	mux_stream_reset(p->client.flows[MUX_STREAMS_MAX + 49].s);
	p->server.hold_every = 0;
	for (unsigned i = 0; i < MUX_STREAMS_MAX; i++) {
		p->server.flows[i].hold = false;
		mux_stream_consume(p->server.flows[i].s, p->server.flows[i].owed);
	}
	settle(p);
	assert_int_equal(p->server.opened, MUX_STREAMS_MAX + 49);
	for (unsigned i = 0; i < p->client.n_flows; i++) {
		assert_true(p->client.flows[i].closed);
		assert_int_equal(p->client.flows[i].h2_error, i == MUX_STREAMS_MAX + 49 ? 8 : 0);
	}
	pair_free(p);
}

static void thousands_of_streams_one_after_another(void **state)
{
	struct pair *p = pair_new();

	p->server.reply = 100;
	for (unsigned round = 0; round < 10; round++) {
		p->client.n_flows = p->server.n_flows = 0;
		for (unsigned i = 0; i < 1000; i++) {
			struct flow *f = call(p, i, 50);

			if (i % 7 == 0)
				mux_stream_reset(f->s);
			if (i % 16 == 0)
				settle(p);
		}
		settle(p);
		for (unsigned i = 0; i < 1000; i++) {
			assert_true(p->client.flows[i].closed);
			assert_int_equal(p->client.flows[i].h2_error, i % 7 ? 0 : 8);
		}
	}
	assert_int_equal(mux_stream_count(p->server.m), 0);
	pair_free(p);
}

static void pings_are_answered(void **state)
{
	struct pair *p = pair_new();

	/* Far more than the credit of idle frames: the idle life of a sandbox. */
	for (unsigned i = 0; i < 5000; i++) {
		assert_int_equal(mux_ping(p->client.m), 0);
		settle(p);
	}
	assert_int_equal(p->client.pongs, 5000);
	assert_int_equal(p->server.pongs, 0);
	pair_free(p);
}

static void free_closes_what_is_open(void **state)
{
	struct pair *p = pair_new();

	p->server.hold_every = 1;
	for (unsigned i = 0; i < 20; i++)
		call(p, i, 1000000);
	settle(p);
	for (unsigned i = 0; i < 20; i++)
		call(p, i, 10);
	mux_free(STEAL(p->client.m));
	for (unsigned i = 0; i < 40; i++) {
		assert_true(p->client.flows[i].closed);
		assert_int_equal(p->client.flows[i].h2_error, 8);
	}
	pair_free(p);
}

/* --- a hostile peer: frames by hand --- */

static void frame(
	struct buf *b, uint8_t type, uint8_t flags, uint32_t id, const void *payload, size_t len)
{
	uint8_t hdr[9] = {len >> 16, len >> 8, len, type, flags, id >> 24, id >> 16, id >> 8, id};

	assert_int_equal(buf_add(b, hdr, sizeof(hdr)), 0);
	assert_int_equal(buf_add(b, payload, len), 0);
}

static void magic(struct buf *b)
{
	buf_add_str(b, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
	frame(b, 4, 0, 0, NULL, 0);
}

/* One header field without indexing, both strings plain. */
static void field(struct buf *b, const char *name, const char *value, size_t value_len)
{
	uint8_t n = strlen(name), v[5];
	size_t v_len = 0, left;

	buf_add(b, "\0", 1);
	buf_add(b, &n, 1);
	buf_add_str(b, name);
	if (value_len < 127) {
		v[v_len++] = value_len;
	} else {
		v[v_len++] = 127;
		for (left = value_len - 127; left >= 128; left >>= 7)
			v[v_len++] = (left & 127) | 128;
		v[v_len++] = left;
	}
	buf_add(b, v, v_len);
	buf_add(b, value, value_len);
}

static void request(
	struct buf *b, uint32_t id, const char *method, const char *path, size_t path_len)
{
	cleanup_buf struct buf h = {0};

	buf_init(&h, 1 << 20);
	field(&h, ":method", method, strlen(method));
	field(&h, ":scheme", "http", 4);
	field(&h, ":authority", "x", 1);
	field(&h, ":path", path, path_len);
	frame(b, 1, 4, id, h.data, h.len);
}

/* Feeds all at once, pulls all; returns what feed or pull said last. */
static int hostile(struct side *s, struct buf *in, struct err *e)
{
	const uint8_t *data;
	int rc = mux_feed(s->m, in->data, in->len, e);
	ssize_t n;

	buf_clear(in);
	do
		n = mux_pull(s->m, &data, e);
	while (n > 0);
	return rc < 0 ? rc : (int)n;
}

static void long_headers_reset_the_stream(void **state)
{
	struct side *s = xcalloc(1, sizeof(*s));
	cleanup_buf struct buf in = {0};
	cleanup_free char *path = xmalloc(8192);
	struct err e = ERR_INIT;

	memset(path, '/', 8192);
	buf_init(&in, 1 << 20);
	s->m = mux_new(MUX_SERVER, &callbacks, s);
	magic(&in);
	request(&in, 1, "POST", path, MUX_HEADERS_MAX);
	request(&in, 3, "POST", "/3", 2);
	request(&in, 5, "GET", "/5", 2);
	request(&in, 7, "POST", "*", 1);
	request(&in, 9, "POST", path, 60);
	assert_int_equal(hostile(s, &in, &e), 0);
	assert_int_equal(s->opened, 2);
	assert_string_equal(s->flows[0].path, "/3");
	side_done(s);
	free(s);
}

static void streams_beyond_the_limit_are_refused(void **state)
{
	struct side *s = xcalloc(1, sizeof(*s));
	cleanup_buf struct buf in = {0};
	struct err e = ERR_INIT;

	buf_init(&in, 1 << 20);
	s->m = mux_new(MUX_SERVER, &callbacks, s);
	magic(&in);
	for (unsigned i = 0; i < MUX_STREAMS_MAX + 100; i++)
		request(&in, 2 * i + 1, "POST", "/1", 2);
	/* Our SETTINGS are not acknowledged, so the surplus is refused one by one. */
	assert_int_equal(hostile(s, &in, &e), 0);
	assert_int_equal(s->opened, MUX_STREAMS_MAX);
	/* Once acknowledged it is a breach. */
	frame(&in, 4, 1, 0, NULL, 0);
	request(&in, 2 * 1000 + 1, "POST", "/1", 2);
	assert_int_equal(hostile(s, &in, &e), -EPROTO);
	assert_int_equal(s->opened, MUX_STREAMS_MAX);
	side_done(s);
	free(s);
}

static void garbage_ends_in_an_error(void **state)
{
	for (unsigned round = 0; round < 2000; round++) {
		enum mux_role role = round % 2 ? MUX_CLIENT : MUX_SERVER;
		struct side *s = xcalloc(1, sizeof(*s));
		uint8_t noise[512];
		struct err e = ERR_INIT;
		int rc = 0;

		rnd_state = round + 1;
		s->m = mux_new(role, &callbacks, s);
		if (role == MUX_CLIENT)
			assert_non_null(mux_open(s->m, "/1", &s->flows[s->n_flows++]));
		for (size_t i = 0; i < sizeof(noise); i++)
			noise[i] = rnd(256);
		/* A frame shorter than what follows, so that the noise is looked at. */
		noise[0] = noise[1] = 0;
		for (unsigned i = 0; i < 200 && rc == 0; i++)
			rc = mux_feed(s->m, noise, sizeof(noise), &e);
		assert_int_equal(rc, -EPROTO);
		assert_non_null(strstr(e.text, "HTTP/2"));
		assert_int_equal(mux_feed(s->m, noise, 1, &e), -EPROTO);
		assert_null(role == MUX_CLIENT ? mux_open(s->m, "/2", NULL) : NULL);
		assert_int_equal(mux_ping(s->m), -EPROTO);
		side_done(s);
		free(s);
	}
}

/* A client with one request under way against a server made by hand. */
static struct side *victim(struct buf *in)
{
	struct side *s = xcalloc(1, sizeof(*s));
	struct flow *f = &s->flows[s->n_flows++];
	struct err e = ERR_INIT;

	buf_init(in, 4 << 20);
	s->m = mux_new(MUX_CLIENT, &callbacks, s);
	*f = (struct flow){.starve = true};
	f->s = mux_open(s->m, "/1", f);
	frame(in, 4, 0, 0, NULL, 0);
	frame(in, 4, 1, 0, NULL, 0);
	assert_int_equal(hostile(s, in, &e), 0);
	return s;
}

static void floods_end_the_connection(void **state)
{
	static const struct {
		uint8_t type, flags;
		uint32_t id;
		const char *payload;
		size_t len;
	} cases[] = {
		{4, 0, 0, "", 0},	    /* SETTINGS */
		{6, 0, 0, "12345678", 8},   /* PING */
		{6, 1, 0, "12345678", 8},   /* PING answers nobody asked for */
		{8, 0, 0, "\0\0\0\1", 4},   /* WINDOW_UPDATE */
		{8, 0, 1, "\0\0\0\1", 4},   /* … of a stream */
		{2, 0, 1, "\0\0\0\0\1", 5}, /* PRIORITY */
		{3, 0, 1, "\0\0\0\0", 4},   /* RST_STREAM of a closed stream */
		{0, 0, 1, "", 0},	    /* empty DATA */
		{0, 8, 1, "\3\0\0\0", 4},   /* DATA that is padding only */
		{200, 0, 0, "", 0},	    /* an unknown type */
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_buf struct buf in = {0};
		struct side *s = victim(&in);
		struct err e = ERR_INIT;
		int rc = 0;
		unsigned sent;

		if (cases[i].type == 0) {
			frame(&in, 1, 4, 1, "\x88", 1);
			assert_int_equal(hostile(s, &in, &e), 0);
		}
		for (sent = 0; sent < 2000 && rc == 0; sent++) {
			frame(&in, cases[i].type, cases[i].flags, cases[i].id, cases[i].payload,
				cases[i].len);
			rc = hostile(s, &in, &e);
		}
		if (rc != -EPROTO)
			fail_msg("case %zu survived", i);
		assert_in_range(sent, 900, 1100);
		assert_int_equal(s->pongs, 0);
		side_done(s);
		free(s);
	}
}

static void data_for_closed_streams_is_bounded(void **state)
{
	static const uint8_t zeros[16384];
	cleanup_buf struct buf in = {0};
	struct side *s = victim(&in);
	struct err e = ERR_INIT;
	int rc = 0;
	unsigned i;

	/* What was under way when the stream was given up is fine, also in tiny pieces. */
	frame(&in, 1, 4, 1, "\x88", 1);
	assert_int_equal(hostile(s, &in, &e), 0);
	mux_stream_reset(s->flows[0].s);
	for (i = 0; i < 5000; i++)
		frame(&in, 0, 0, 1, zeros, 6);
	assert_int_equal(hostile(s, &in, &e), 0);
	assert_true(s->flows[0].closed);
	for (i = 0; i < 100 && rc == 0; i++) {
		frame(&in, 0, 0, 1, zeros, sizeof(zeros));
		rc = hostile(s, &in, &e);
	}
	assert_int_equal(rc, -EPROTO);
	assert_in_range(i, 2, 4);
	side_done(s);
	free(s);
}

static void a_peer_that_does_not_read_is_bounded(void **state)
{
	cleanup_buf struct buf in = {0};
	struct side *s = victim(&in);
	const uint8_t *data;
	struct err e = ERR_INIT;
	int rc = 0;

	/* Nothing is pulled: what has to be answered must not pile up. */
	frame(&in, 6, 0, 0, "12345678", 8);
	for (unsigned i = 0; i < 100000 && rc == 0; i++)
		rc = mux_feed(s->m, in.data, in.len, &e);
	assert_int_equal(rc, -EPROTO);
	assert_in_range(mux_pull(s->m, &data, &e), 1, MUX_OUT_MAX + 17000);
	side_done(s);
	free(s);
}

static void breaches_of_http_reset_the_stream(void **state)
{
	static const struct {
		const char *headers;
		size_t len;
		uint32_t want; /* h2_error of on_close, or 0 for "still open" */
	} cases[] = {
		{"\x88", 1, 0},	    /* :status 200 */
		{"\x8d", 1, 1},	    /* :status 404 */
		{"\x88\x88", 2, 1}, /* twice */
		{"\x0f\x0d\x01"
		 "5",
			4, 1}, /* content-length without :status */
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_buf struct buf in = {0};
		struct side *s = victim(&in);
		struct err e = ERR_INIT;

		frame(&in, 1, 4, 1, cases[i].headers, cases[i].len);
		assert_int_equal(hostile(s, &in, &e), 0);
		assert_int_equal(s->flows[0].closed, cases[i].want != 0);
		assert_int_equal(s->flows[0].h2_error, cases[i].want);
		side_done(s);
		free(s);
	}
}

static void breaches_of_the_protocol_end_the_connection(void **state)
{
	static const uint8_t big[20000];
	static const struct {
		uint8_t type, flags;
		uint32_t id;
		const void *payload;
		size_t len;
	} cases[] = {
		{0, 0, 0, "x", 1},		  /* DATA on stream 0 */
		{0, 0, 5, "x", 1},		  /* DATA on an idle stream */
		{0, 0, 1, big, 16385},		  /* a frame over the maximum */
		{1, 4, 2, "\x88", 1},		  /* HEADERS on a stream of the server's */
		{1, 4, 1, "\xff\xff\xff", 3},	  /* broken HPACK */
		{1, 0, 1, "\x88", 1},		  /* HEADERS without end, then something else */
		{3, 0, 7, "\0\0\0\0", 4},	  /* RST_STREAM of an idle stream */
		{5, 4, 1, "\0\0\0\2\x88", 5},	  /* PUSH_PROMISE */
		{8, 0, 0, "\0\0\0\0", 4},	  /* WINDOW_UPDATE by 0 */
		{8, 0, 0, "\x7f\xff\xff\xff", 4}, /* … past 2^31-1 */
		{9, 4, 1, "\x88", 1},		  /* CONTINUATION of nothing */
		{4, 0, 0, "x", 1},		  /* SETTINGS of a strange size */
		{7, 0, 0, "\0\0\0\1\0\0\0\2", 8}, /* GOAWAY with an error: -ECONNRESET */
		{7, 0, 0, "\0\0\0\0\0\0\0\0", 8}, /* a polite one: the same */
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_buf struct buf in = {0};
		struct side *s = victim(&in);
		struct err e = ERR_INIT;
		int rc;

		frame(&in, cases[i].type, cases[i].flags, cases[i].id, cases[i].payload,
			cases[i].len);
		frame(&in, 6, 0, 0, "12345678", 8);
		/* Found by feed itself, without a pull. */
		rc = mux_feed(s->m, in.data, in.len, &e);
		if (rc != (cases[i].type == 7 ? -ECONNRESET : -EPROTO))
			fail_msg("case %zu: %d %s", i, rc, e.text);
		assert_string_not_equal(e.text, "");
		side_done(s);
		free(s);
	}
}

static void data_beyond_the_window_ends_the_connection(void **state)
{
	cleanup_buf struct buf in = {0};
	struct side *s = victim(&in);
	struct err e = ERR_INIT;
	int rc = 0;
	unsigned i;

	s->flows[0].hold = true;
	frame(&in, 1, 4, 1, "\x88", 1);
	assert_int_equal(hostile(s, &in, &e), 0);
	for (i = 0; i < 8 && rc == 0; i++) {
		uint8_t body[16384];

		for (size_t k = 0; k < sizeof(body); k++)
			body[k] = pattern(0, i * sizeof(body) + k);
		frame(&in, 0, 0, 1, body, sizeof(body));
		rc = hostile(s, &in, &e);
	}
	assert_int_equal(rc, -EPROTO);
	/* nghttp2 counts one byte late. */
	assert_in_range(s->flows[0].received, 1, 65536);
	side_done(s);
	free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_request_goes_round),
		cmocka_unit_test(empty_bodies_end_too),
		cmocka_unit_test(large_bodies_in_parallel),
		cmocka_unit_test(echo_is_back_pressure_both_ways),
		cmocka_unit_test(stalled_readers_stop_nobody_else),
		cmocka_unit_test(windows_grow_for_one_and_shrink_for_many),
		cmocka_unit_test(a_starved_body_resumes),
		cmocka_unit_test(reset_closes_both_sides),
		cmocka_unit_test(a_stream_can_be_reset_before_it_was_sent),
		cmocka_unit_test(errors_of_callbacks_reset_their_stream),
		cmocka_unit_test(a_server_can_refuse),
		cmocka_unit_test(opens_beyond_the_limit_wait),
		cmocka_unit_test(thousands_of_streams_one_after_another),
		cmocka_unit_test(pings_are_answered),
		cmocka_unit_test(free_closes_what_is_open),
		cmocka_unit_test(long_headers_reset_the_stream),
		cmocka_unit_test(streams_beyond_the_limit_are_refused),
		cmocka_unit_test(garbage_ends_in_an_error),
		cmocka_unit_test(floods_end_the_connection),
		cmocka_unit_test(data_for_closed_streams_is_bounded),
		cmocka_unit_test(a_peer_that_does_not_read_is_bounded),
		cmocka_unit_test(breaches_of_http_reset_the_stream),
		cmocka_unit_test(breaches_of_the_protocol_end_the_connection),
		cmocka_unit_test(data_beyond_the_window_ends_the_connection),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
