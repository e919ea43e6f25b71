/* bench_bus - a caller on the bus, for the benchmarks: what a call and a channel take.
 *
 *   bench_bus URL rate N SECONDS FUNCTION…    calls each of them, in turns of SECONDS, N times a
 *                                             second, whether or not earlier answers are there
 *   bench_bus URL read REQUEST                fs::read; what its channel carries is thrown away
 *   bench_bus URL write REQUEST BYTES         fs::write of so many zeros through a channel
 *
 * REQUEST is the function's request as JSON, for `write` without its `content`. Prints one JSON
 * line. `rate` gives {FUNCTION: {"p50_us","p99_us","max_us","calls"}}, a call counted from when it
 * was due, so that one that waits behind another is not forgotten. The others give
 * {"bytes","us"}: from the call to the end of both, the channel and the answer. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <uv.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/bus/bus.h"
#include "host/bus/channel.h"
#include "wire/json.h"

#define CALLS_MAX     1000000u
#define FUNCTIONS_MAX 8
#define WARM_CALLS    100u /* of each turn, answered but not counted */
#define CALL_MS	      60000
#define IDLE_MS	      60000

struct client {
	uv_loop_t loop;
	uv_poll_t tick;
	int timer; /* a timerfd: libuv's own clock counts whole milliseconds */
	struct bus *bus;
	json_object *line; /* what is printed */
	bool ran;	   /* the first connection only */
	/* rate */
	char **functions;
	size_t function_count, at;
	uint32_t rate, count, sent, answered;
	uint64_t began_ns;
	double *took_us;
	/* read, write */
	json_object *request;
	struct channel_writer *writer;
	uint64_t bytes, wanted;
	bool writes, channel_over, call_over;
};

static _Noreturn void fail(const char *what, const char *why)
{
	fprintf(stderr, "bench_bus: %s: %s\n", what, why);
	exit(1);
}

static void on_closed(void *user)
{
	(void)user;
}

static void finish(struct client *c)
{
	bus_close(c->bus, on_closed, NULL);
}

static const char *answer_text(const struct bus_answer *a)
{
	return a->outcome == BUS_OK ? "ok" : a->message;
}

/* --- rate --------------------------------------------------------------------------------------
 */

struct one {
	struct client *client;
	uint32_t number;
};

static uint64_t due_ns(const struct client *c, uint32_t number)
{
	return c->began_ns + (uint64_t)(number + 1) * (1000000000u / c->rate);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void add_turn(struct client *c)
{
	json_object *row = json_object_new_object();
	size_t n = c->count - WARM_CALLS;
	double *v = c->took_us + WARM_CALLS;

	qsort(v, n, sizeof(*v), compare);
	json_object_object_add(row, "p50_us", json_object_new_double(v[n / 2]));
	json_object_object_add(row, "p99_us", json_object_new_double(v[n * 99 / 100]));
	json_object_object_add(row, "max_us", json_object_new_double(v[n - 1]));
	json_add_u64(row, "calls", n);
	json_object_object_add(c->line, c->functions[c->at], row);
}

/* The first call of a turn is due one period from now. */
static void start_turn(struct client *c)
{
	long period_ns = 1000000000 / (long)c->rate;
	struct itimerspec t = {.it_interval = {period_ns / 1000000000, period_ns % 1000000000}};

	t.it_value = t.it_interval;
	c->sent = c->answered = 0;
	c->began_ns = uv_hrtime();
	if (timerfd_settime(c->timer, 0, &t, NULL) < 0)
		fail("timerfd", strerror(errno));
}

static void on_rated(const struct bus_answer *a, void *user)
{
	struct one *one = user;
	struct client *c = one->client;

	if (a->outcome != BUS_OK)
		fail(c->functions[c->at], answer_text(a));
	c->took_us[one->number] = (double)(uv_hrtime() - due_ns(c, one->number)) / 1e3;
	free(one);
	if (++c->answered < c->count)
		return;
	add_turn(c);
	if (++c->at < c->function_count) {
		start_turn(c);
		return;
	}
	uv_close((uv_handle_t *)&c->tick, NULL);
	finish(c);
}

static void on_tick(uv_poll_t *tick, int status, int events)
{
	struct client *c = tick->data;
	uint64_t now = uv_hrtime(), ticks;

	(void)events;
	if (status < 0 || read(c->timer, &ticks, sizeof(ticks)) < 0)
		return;
	while (c->sent < c->count && due_ns(c, c->sent) <= now) {
		struct one *one = xcalloc(1, sizeof(*one));

		one->client = c;
		one->number = c->sent++;
		bus_invoke(c->bus, c->functions[c->at], json_object_new_object(), CALL_MS, NULL,
			on_rated, one);
	}
}

/* --- channels ----------------------------------------------------------------------------------
 */

static void over(struct client *c)
{
	if (!c->channel_over || !c->call_over)
		return;
	json_add_u64(c->line, "us", (uv_hrtime() - c->began_ns) / 1000);
	json_add_u64(c->line, "bytes", c->bytes);
	finish(c);
}

static void on_data(struct channel_reader *r, const uint8_t *data, size_t len, void *user)
{
	struct client *c = user;

	(void)r;
	(void)data;
	c->bytes += len;
}

static void on_read_end(struct channel_reader *r, enum channel_end end, const char *why, void *user)
{
	struct client *c = user;

	(void)r;
	if (end != CHANNEL_END)
		fail("the channel", why);
	c->channel_over = true;
	over(c);
}

static const struct channel_reader_events read_events = {.data = on_data, .end = on_read_end};

static void take_ref(json_object *of, const char *name, struct bus_channel_ref *ref)
{
	struct err e = ERR_INIT;
	json_object *value = NULL;

	if (!json_object_object_get_ex(of, name, &value) ||
		bus_channel_ref_read(value, ref, NULL, &e) < 0)
		fail(name, "no reference of a channel");
}

static void on_read(const struct bus_answer *a, void *user)
{
	struct client *c = user;
	struct bus_channel_ref ref;

	if (a->outcome != BUS_OK)
		fail("fs::read", answer_text(a));
	take_ref(a->result, "content", &ref);
	channel_read(c->bus, &ref, IDLE_MS, &read_events, c);
	c->call_over = true;
}

static void pump(struct channel_writer *w, void *user)
{
	static const uint8_t zeros[CHANNEL_CHUNK_MAX];
	struct client *c = user;

	while (c->bytes < c->wanted) {
		size_t n = (size_t)MIN(c->wanted - c->bytes, (uint64_t)sizeof(zeros));

		if (channel_write(w, zeros, n) < 0)
			return;
		c->bytes += n;
	}
	channel_writer_finish(w);
}

static void on_write_end(
	struct channel_writer *w, enum channel_end end, const char *why, void *user)
{
	struct client *c = user;

	(void)w;
	if (end != CHANNEL_END)
		fail("the channel", why);
	c->channel_over = true;
	over(c);
}

static const struct channel_writer_events write_events = {.drain = pump, .end = on_write_end};

static void on_written(const struct bus_answer *a, void *user)
{
	struct client *c = user;
	uint64_t written = 0;
	struct err e = ERR_INIT;

	if (a->outcome != BUS_OK)
		fail("fs::write", answer_text(a));
	if (json_get_u64(a->result, "bytes_written", 0, &written, &e) < 0 || written != c->wanted)
		fail("fs::write", "not all was written");
	c->call_over = true;
	over(c);
}

static void on_channel(const struct bus_answer *a, void *user)
{
	struct client *c = user;
	struct bus_channel_ref ref;
	json_object *reader = NULL;

	if (a->outcome != BUS_OK || !json_object_object_get_ex(a->result, "reader", &reader))
		fail("engine::channels::create", answer_text(a));
	take_ref(a->result, "writer", &ref);
	json_object_object_add(c->request, "content", json_object_get(reader));
	c->began_ns = uv_hrtime();
	bus_invoke(c->bus, "sandbox-libkrun::fs::write", json_object_get(c->request), CALL_MS, NULL,
		on_written, c);
	c->writer = channel_write_open(c->bus, &ref, IDLE_MS, &write_events, c);
	pump(c->writer, c);
}

/* --- both --------------------------------------------------------------------------------------
 */

static void on_up(struct bus *b, bool again, void *user)
{
	struct client *c = user;

	(void)again;
	if (c->ran)
		fail("the engine", "the connection was lost");
	c->ran = true;
	c->began_ns = uv_hrtime();
	if (c->functions) {
		c->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
		if (c->timer < 0 || uv_poll_init(&c->loop, &c->tick, c->timer) < 0)
			fail("timerfd", strerror(errno));
		c->tick.data = c;
		uv_poll_start(&c->tick, UV_READABLE, on_tick);
		start_turn(c);
	} else if (c->writes) {
		bus_invoke(b, "engine::channels::create", json_object_new_object(), CALL_MS, NULL,
			on_channel, c);
	} else {
		bus_invoke(b, "sandbox-libkrun::fs::read", json_object_get(c->request), CALL_MS,
			NULL, on_read, c);
	}
}

static void on_down(struct bus *b, const char *why, void *user)
{
	(void)b;
	(void)user;
	fail("the engine", why);
}

static int usage(void)
{
	fputs("usage: bench_bus URL rate N SECONDS FUNCTION… | read REQUEST | write REQUEST "
	      "BYTES\n",
		stderr);
	return 2;
}

static bool options(struct client *c, int argc, char **argv)
{
	struct err e = ERR_INIT;
	uint32_t seconds;

	if (argc >= 6 && str_eq(argv[2], "rate")) {
		c->functions = argv + 5;
		c->function_count = (size_t)(argc - 5);
		if (str_u32(argv[3], &c->rate) < 0 || str_u32(argv[4], &seconds) < 0 || !c->rate ||
			!seconds || c->rate > CALLS_MAX / seconds ||
			c->function_count > FUNCTIONS_MAX)
			return false;
		c->count = c->rate * seconds + WARM_CALLS;
		c->took_us = xcalloc(c->count, sizeof(*c->took_us));
		return true;
	}
	c->writes = argc == 5 && str_eq(argv[2], "write");
	if (!c->writes && !(argc == 4 && str_eq(argv[2], "read")))
		return false;
	return json_parse(argv[3], strlen(argv[3]), &c->request, &e) == 0 &&
	       json_object_is_type(c->request, json_type_object) &&
	       (!c->writes || str_u64(argv[4], &c->wanted) == 0);
}

int main(int argc, char **argv)
{
	static const struct bus_events events = {.up = on_up, .down = on_down};
	struct client c = {.line = json_object_new_object()};
	struct bus_options o = {.name = "bench", .version = "1", .description = "measures"};
	struct err e = ERR_INIT;

	if (!options(&c, argc, argv))
		return usage();
	signal(SIGPIPE, SIG_IGN);
	log_init(LOG_WARN);
	uv_loop_init(&c.loop);
	o.url = argv[1];
	c.bus = bus_new(&c.loop, &o, &events, &c, &e);
	if (!c.bus)
		fail(argv[1], e.text);
	uv_run(&c.loop, UV_RUN_DEFAULT);
	puts(json_text(c.line, NULL));
	json_object_put(c.line);
	json_object_put(c.request);
	free(c.took_us);
	return uv_loop_close(&c.loop) == 0 ? 0 : 1;
}
