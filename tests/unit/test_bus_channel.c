/* host/bus/channel: bytes through real sockets, back-pressure, every way to end. */
#include "bus_rig.h"

#define IDLE_MS 30000

/* The byte at a position of every stream, so that a lost, doubled or swapped piece shows. */
static uint8_t byte_at(uint64_t pos)
{
	return (uint8_t)(pos * 2654435761u >> 13);
}

struct source {
	struct channel_writer *w;
	uint64_t sent, total;
	unsigned refused;
	bool done, no_finish;
	enum channel_end end;
	char why[256];
};

static void give(struct source *s)
{
	static uint8_t chunk[CHANNEL_CHUNK_MAX];

	while (s->sent < s->total) {
		size_t n = (size_t)MIN(s->total - s->sent, (uint64_t)sizeof(chunk));
		int rc;

		for (size_t i = 0; i < n; i++)
			chunk[i] = byte_at(s->sent + i);
		rc = channel_write(s->w, chunk, n);
		if (rc == -EAGAIN) {
			s->refused++;
			return;
		}
		assert_int_equal(rc, 0);
		s->sent += n;
	}
	if (!s->no_finish)
		channel_writer_finish(s->w);
}

static void on_drain(struct channel_writer *w, void *user)
{
	(void)w;
	give(user);
}

static void on_writer_end(
	struct channel_writer *w, enum channel_end end, const char *why, void *user)
{
	struct source *s = user;

	assert_ptr_equal(w, s->w);
	assert_false(s->done);
	s->w = NULL;
	s->done = true;
	s->end = end;
	snprintf(s->why, sizeof(s->why), "%s", why);
}

static const struct channel_writer_events writer_events = {.drain = on_drain, .end = on_writer_end};

struct sink {
	struct channel_reader *r;
	struct rig *rig;
	uint64_t got, pause_every, next_pause;
	uint64_t close_at; /* gives up there; 0: never */
	uv_timer_t timer;
	unsigned pauses;
	bool done, right, started;
	enum channel_end end;
	char why[256], texts[256];
};

static void unpause(uv_timer_t *timer)
{
	struct sink *s = timer->data;

	if (s->r)
		channel_reader_resume(s->r);
}

static void on_data(struct channel_reader *r, const uint8_t *data, size_t len, void *user)
{
	struct sink *s = user;

	assert_true(len > 0 && len <= CHANNEL_CHUNK_MAX);
	for (size_t i = 0; i < len; i++)
		s->right &= data[i] == byte_at(s->got + i);
	s->got += len;
	s->started = true;
	if (s->close_at && s->got >= s->close_at) {
		s->r = NULL;
		s->done = true;
		channel_reader_close(r);
		return;
	}
	if (s->pause_every && s->got >= s->next_pause) {
		s->next_pause = s->got + s->pause_every;
		s->pauses++;
		channel_reader_pause(r);
		uv_timer_start(&s->timer, unpause, 3, 0);
	}
}

static void on_text(struct channel_reader *r, const char *text, size_t len, void *user)
{
	struct sink *s = user;
	size_t at = strlen(s->texts);

	(void)r;
	snprintf(s->texts + at, sizeof(s->texts) - at, "[%.*s]", (int)MIN(len, (size_t)100), text);
}

static void on_reader_end(
	struct channel_reader *r, enum channel_end end, const char *why, void *user)
{
	struct sink *s = user;

	assert_ptr_equal(r, s->r);
	assert_false(s->done);
	s->r = NULL;
	s->done = true;
	s->end = end;
	snprintf(s->why, sizeof(s->why), "%s", why);
}

static const struct channel_reader_events reader_events = {
	.data = on_data, .text = on_text, .end = on_reader_end};

/* --- two workers and a channel -----------------------------------------------------------------
 */

struct line {
	struct rig *rig;
	struct rig_worker a, b;
	struct bus_channel_ref ref;
	struct source source;
	struct sink sink;
};

static void make_channel(struct line *l, const char *request)
{
	struct rig_answer a;
	struct err e = ERR_INIT;
	json_object *reader;

	rig_call(&l->a, "engine::channels::create", request, &a);
	assert_int_equal(a.outcome, BUS_OK);
	assert_true(json_object_object_get_ex(a.result, "reader", &reader));
	assert_int_equal(bus_channel_ref_read(reader, &l->ref, NULL, &e), 0);
	rig_answer_done(&a);
}

static void line_start(struct rig *r, struct line *l)
{
	*l = (struct line){.rig = r};
	rig_worker_start(r, &l->a, "a", NULL);
	rig_worker_start(r, &l->b, "b", NULL);
	rig_wait(r, &l->a.up);
	rig_wait(r, &l->b.up);
	make_channel(l, "{\"buffer_size\":64}");
	l->sink.right = true;
	l->sink.rig = r;
	uv_timer_init(&r->loop, &l->sink.timer);
	l->sink.timer.data = &l->sink;
}

static void line_stop(struct line *l)
{
	uv_close((uv_handle_t *)&l->sink.timer, NULL);
	rig_worker_stop(&l->a);
	rig_worker_stop(&l->b);
}

static void open_writer(struct line *l, uint64_t total)
{
	l->source.total = total;
	l->source.w = channel_write_open(l->a.bus, &l->ref, IDLE_MS, &writer_events, &l->source);
	give(&l->source);
}

static void open_reader(struct line *l, unsigned idle_ms)
{
	l->sink.r = channel_read(l->b.bus, &l->ref, idle_ms, &reader_events, &l->sink);
}

static void expect_all(struct line *l)
{
	rig_wait(l->rig, &l->sink.done);
	rig_wait(l->rig, &l->source.done);
	assert_int_equal(l->sink.end, CHANNEL_END);
	assert_int_equal(l->source.end, CHANNEL_END);
	assert_int_equal(l->sink.got, l->source.total);
	assert_true(l->sink.right);
}

static void bytes_arrive_as_they_were(void **state)
{
	struct line l;

	line_start(*state, &l);
	open_writer(&l, 20 * 1000 * 1000 + 7);
	open_reader(&l, IDLE_MS);
	expect_all(&l);
	/* One chunk waits at a time, whatever is offered. */
	assert_true(l.source.refused > 100);
	line_stop(&l);
}

static void a_reader_that_pauses_loses_nothing(void **state)
{
	struct line l;

	line_start(*state, &l);
	l.sink.pause_every = 100000;
	open_reader(&l, IDLE_MS);
	open_writer(&l, 8 * 1000 * 1000 + 1);
	expect_all(&l);
	assert_true(l.sink.pauses >= 60);
	line_stop(&l);
}

static void a_writer_may_be_done_before_the_reader_comes(void **state)
{
	struct line l;

	line_start(*state, &l);
	open_writer(&l, 100000);
	rig_wait(*state, &l.source.done);
	open_reader(&l, IDLE_MS);
	expect_all(&l);
	line_stop(&l);
}

static void nothing_is_a_stream_too(void **state)
{
	struct line l;

	line_start(*state, &l);
	open_writer(&l, 0);
	open_reader(&l, IDLE_MS);
	expect_all(&l);
	line_stop(&l);
}

static void text_stays_apart_from_bytes(void **state)
{
	struct line l;
	static char long_text[CHANNEL_TEXT_MAX + 1];

	line_start(*state, &l);
	l.source.no_finish = true;
	open_writer(&l, 1000);
	memset(long_text, 'x', sizeof(long_text));
	assert_int_equal(channel_write_text(l.source.w, long_text, sizeof(long_text)), -EMSGSIZE);
	assert_int_equal(channel_write_text(l.source.w, "{\"error\":\"\xff\"}", 13), 0);
	assert_int_equal(channel_write_text(l.source.w, "two", 3), -EAGAIN);
	channel_writer_finish(l.source.w);
	assert_int_equal(channel_write(l.source.w, "x", 1), -EPIPE);
	assert_int_equal(channel_write_text(l.source.w, "x", 1), -EPIPE);
	open_reader(&l, IDLE_MS);
	expect_all(&l);
	assert_string_equal(l.sink.texts, "[{\"error\":\"\xef\xbf\xbd\"}]");
	line_stop(&l);
}

static void unknown_channels_are_refused(void **state)
{
	struct line l;

	line_start(*state, &l);
	l.ref.key[0] ^= 1;
	l.source.no_finish = true;
	open_writer(&l, 10);
	open_reader(&l, IDLE_MS);
	rig_wait(*state, &l.source.done);
	rig_wait(*state, &l.sink.done);
	assert_int_equal(l.source.end, CHANNEL_REFUSED);
	assert_int_equal(l.sink.end, CHANNEL_REFUSED);
	assert_non_null(strstr(l.sink.why, "404"));
	line_stop(&l);
}

static void an_end_can_be_taken_once(void **state)
{
	struct line l;
	struct sink second = {.right = true};

	line_start(*state, &l);
	open_reader(&l, IDLE_MS);
	l.source.no_finish = true;
	open_writer(&l, 10);
	rig_wait(*state, &l.sink.started);
	second.r = channel_read(l.b.bus, &l.ref, IDLE_MS, &reader_events, &second);
	rig_wait(*state, &second.done);
	assert_int_equal(second.end, CHANNEL_END);
	assert_int_equal(second.got, 0);
	channel_writer_finish(l.source.w);
	expect_all(&l);
	line_stop(&l);
}

static void silence_ends_a_reader(void **state)
{
	struct line l;

	line_start(*state, &l);
	open_reader(&l, 100);
	rig_wait(*state, &l.sink.done);
	assert_int_equal(l.sink.end, CHANNEL_STALLED);
	assert_non_null(strstr(l.sink.why, "100 ms"));
	line_stop(&l);
}

static void text_is_no_sign_of_life(void **state)
{
	struct line l;

	line_start(*state, &l);
	l.source.no_finish = true;
	open_writer(&l, 0);
	open_reader(&l, 300);
	for (unsigned i = 0; i < 40 && !l.sink.done; i++) {
		channel_write_text(l.source.w, "still here", 10);
		rig_linger(*state, 50);
	}
	rig_wait(*state, &l.sink.done);
	assert_int_equal(l.sink.end, CHANNEL_STALLED);
	assert_non_null(strstr(l.sink.texts, "[still here]"));
	channel_writer_close(l.source.w);
	line_stop(&l);
}

static void a_pause_is_not_silence(void **state)
{
	struct line l;

	line_start(*state, &l);
	l.source.no_finish = true;
	open_writer(&l, 10);
	open_reader(&l, 300);
	rig_wait(*state, &l.sink.started);
	channel_reader_pause(l.sink.r);
	rig_linger(*state, 900);
	assert_false(l.sink.done);
	channel_reader_resume(l.sink.r);
	rig_wait(*state, &l.sink.done);
	assert_int_equal(l.sink.end, CHANNEL_STALLED);
	channel_writer_close(l.source.w);
	line_stop(&l);
}

static void a_writer_nobody_reads_stalls_with_a_bounded_queue(void **state)
{
	struct line l;

	line_start(*state, &l);
	l.source.total = 1ull << 40;
	l.source.w = channel_write_open(l.a.bus, &l.ref, 300, &writer_events, &l.source);
	give(&l.source);
	rig_wait(*state, &l.source.done);
	assert_int_equal(l.source.end, CHANNEL_STALLED);
	/* 64 frames in the engine, the rest in the kernel's socket buffers. */
	assert_true(l.source.sent >= 64 * CHANNEL_CHUNK_MAX);
	assert_true(l.source.sent < 64u << 20);
	line_stop(&l);
}

static void a_reader_that_leaves_ends_the_writer(void **state)
{
	struct line l;

	line_start(*state, &l);
	l.sink.close_at = 300000;
	open_reader(&l, IDLE_MS);
	open_writer(&l, 1ull << 40);
	rig_wait(*state, &l.sink.done);
	rig_wait(*state, &l.source.done);
	assert_int_equal(l.source.end, CHANNEL_BROKEN);
	line_stop(&l);
}

static void a_writer_that_dies_looks_like_one_that_finished(void **state)
{
	struct line l;

	line_start(*state, &l);
	open_reader(&l, IDLE_MS);
	l.source.no_finish = true;
	open_writer(&l, 1000);
	rig_wait(*state, &l.sink.started);
	channel_writer_close(l.source.w);
	rig_wait(*state, &l.sink.done);
	assert_int_equal(l.sink.end, CHANNEL_END);
	assert_int_equal(l.sink.got, 1000);
	line_stop(&l);
}

static void a_lost_engine_is_a_break(void **state)
{
	struct line l;

	line_start(*state, &l);
	open_reader(&l, IDLE_MS);
	l.source.no_finish = true;
	open_writer(&l, 1000);
	rig_wait(*state, &l.sink.started);
	rig_stop_engine(*state);
	rig_wait(*state, &l.sink.done);
	rig_wait(*state, &l.source.done);
	assert_int_equal(l.sink.end, CHANNEL_BROKEN);
	assert_int_equal(l.source.end, CHANNEL_BROKEN);
	/* And one that is not there. */
	l.sink.done = false;
	open_reader(&l, IDLE_MS);
	rig_wait(*state, &l.sink.done);
	assert_int_equal(l.sink.end, CHANNEL_UNREACHABLE);
	line_stop(&l);
}

static void ends_can_be_given_up_at_any_time(void **state)
{
	struct line l;

	line_start(*state, &l);
	channel_writer_close(
		channel_write_open(l.a.bus, &l.ref, IDLE_MS, &writer_events, &l.source));
	channel_reader_close(channel_read(l.b.bus, &l.ref, IDLE_MS, &reader_events, &l.sink));
	channel_writer_close(NULL);
	channel_reader_close(NULL);
	for (unsigned i = 0; i < 30; i++) {
		struct channel_reader *r;

		make_channel(&l, "{}");
		r = channel_read(l.b.bus, &l.ref, IDLE_MS, &reader_events, &l.sink);
		for (unsigned turn = 0; turn < i; turn++)
			uv_run(&l.rig->loop, UV_RUN_NOWAIT);
		channel_reader_close(r);
	}
	assert_false(l.sink.done);
	line_stop(&l);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		T(bytes_arrive_as_they_were),
		T(a_reader_that_pauses_loses_nothing),
		T(a_writer_may_be_done_before_the_reader_comes),
		T(nothing_is_a_stream_too),
		T(text_stays_apart_from_bytes),
		T(unknown_channels_are_refused),
		T(an_end_can_be_taken_once),
		T(silence_ends_a_reader),
		T(text_is_no_sign_of_life),
		T(a_pause_is_not_silence),
		T(a_writer_nobody_reads_stalls_with_a_bounded_queue),
		T(a_reader_that_leaves_ends_the_writer),
		T(a_writer_that_dies_looks_like_one_that_finished),
		T(a_lost_engine_is_a_break),
		T(ends_can_be_given_up_at_any_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
