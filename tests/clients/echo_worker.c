/* echo_worker - a worker on host/bus for the tests with foreign clients, and, with --engine, the
 * embedded engine in the same process, as `standalone` will have it.
 *
 *   echo_worker [--engine] [--config JSON]     else III_URL and the other variables say where
 *
 * Prints "port N" (with --engine), "up N" at each connection, "rejected CODE fatal owner=ID",
 * "config OUTCOME VALUE" (after the first "up", entry III_CONFIG_NAME or "echo"). Ends on SIGTERM.
 *
 * Functions: t::echo {…} gives it back · t::error fails · t::slow {"ms":N} · t::count gives the
 * number of calls of t::note, which is for void calls · t::blob {"bytes":N} gives a text of U+0001
 * · t::download {"bytes":N} gives a reader's reference · t::upload {"content":ref,"idle_ms":N}
 * reads it · t::dirty gives text that is not UTF-8 · t::memory gives {"rss_kib","peak_kib"}.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/bus/bus.h"
#include "host/bus/channel.h"
#include "host/bus/engine.h"
#include "wire/json.h"

#define STALL_MS 60000

struct program {
	uv_loop_t loop;
	uv_signal_t term;
	struct engine *engine;
	struct bus *bus;
	uint64_t notes;
	unsigned ups;
	bool config_read;
};

static json_object *new_object(void)
{
	json_object *o = json_object_new_object();

	if (!o)
		mem_exhausted();
	return o;
}

static uint64_t number(json_object *data, const char *name, uint64_t fallback)
{
	if (json_object_is_type(data, json_type_object))
		json_get_u64(data, name, JSON_NULLABLE, &fallback, NULL);
	return fallback;
}

/* The byte at a position of every stream; the clients compute the same. */
static uint8_t byte_at(uint64_t pos)
{
	return (uint8_t)(pos * 31 + (pos >> 8) * 7);
}

/* --- small functions ---------------------------------------------------------------------------
 */

static void on_echo(struct bus_call *c, json_object *data, void *user)
{
	(void)user;
	bus_reply(c, json_object_get(data));
}

static void on_error(struct bus_call *c, json_object *data, void *user)
{
	(void)data;
	(void)user;
	bus_reply_error(c, "invocation_failed",
		"handler error: "
		"{\"code\":\"S211\",\"docs_url\":\"x#S211\",\"fix\":null,\"fix_note\":null,"
		"\"message\":\"path not found: /x\",\"retryable\":false,\"type\":\"filesystem\"}");
}

static void on_note(struct bus_call *c, json_object *data, void *user)
{
	struct program *p = user;

	(void)data;
	p->notes++;
	bus_reply(c, NULL);
}

static void on_count(struct bus_call *c, json_object *data, void *user)
{
	struct program *p = user;
	json_object *o = new_object();

	(void)data;
	json_add_u64(o, "notes", p->notes);
	bus_reply(c, o);
}

static void on_blob(struct bus_call *c, json_object *data, void *user)
{
	size_t len = number(data, "bytes", 0);
	cleanup_free char *text = xmalloc(len + 1);
	json_object *o = new_object();

	(void)user;
	memset(text, 1, len);
	json_add_strn(o, "blob", text, len);
	bus_reply(c, o);
}

static void on_dirty(struct bus_call *c, json_object *data, void *user)
{
	json_object *o = new_object();

	(void)data;
	(void)user;
	json_object_object_add(o, "raw", json_object_new_string("\xff\xfe\x80 \xed\xa0\x80"));
	json_add_str(o, "added", "\xff");
	bus_reply(c, o);
}

static uint64_t rss_kib(void)
{
	unsigned long size, resident = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (f) {
		if (fscanf(f, "%lu %lu", &size, &resident) != 2)
			resident = 0;
		fclose(f);
	}
	return resident * (unsigned long)sysconf(_SC_PAGESIZE) / 1024;
}

static void on_memory(struct bus_call *c, json_object *data, void *user)
{
	json_object *o = new_object();
	struct rusage u;

	(void)data;
	(void)user;
	getrusage(RUSAGE_SELF, &u);
	json_add_u64(o, "rss_kib", rss_kib());
	json_add_u64(o, "peak_kib", (uint64_t)u.ru_maxrss);
	bus_reply(c, o);
}

struct slow {
	uv_timer_t timer;
	struct bus_call *call;
};

static void slow_freed(uv_handle_t *handle)
{
	free(handle->data);
}

static void slow_over(uv_timer_t *timer)
{
	struct slow *s = timer->data;
	json_object *o = new_object();

	json_add_bool(o, "gone", bus_call_is_gone(s->call));
	bus_reply(s->call, o);
	uv_close((uv_handle_t *)timer, slow_freed);
}

static void on_slow(struct bus_call *c, json_object *data, void *user)
{
	struct program *p = user;
	struct slow *s = xcalloc(1, sizeof(*s));

	s->call = c;
	uv_timer_init(&p->loop, &s->timer);
	s->timer.data = s;
	uv_timer_start(&s->timer, slow_over, number(data, "ms", 100), 0);
}

/* --- download ----------------------------------------------------------------------------------
 */

struct download {
	struct program *program;
	struct bus_call *call;
	struct channel_writer *writer;
	uint64_t sent, total;
};

static void download_pump(struct channel_writer *w, void *user)
{
	struct download *d = user;
	uint8_t chunk[CHANNEL_CHUNK_MAX];

	while (d->sent < d->total) {
		size_t n = (size_t)MIN(d->total - d->sent, (uint64_t)sizeof(chunk));

		for (size_t i = 0; i < n; i++)
			chunk[i] = byte_at(d->sent + i);
		if (channel_write(w, chunk, n) < 0)
			return;
		d->sent += n;
	}
	channel_writer_finish(w);
}

static void download_end(
	struct channel_writer *w, enum channel_end end, const char *why, void *user)
{
	struct download *d = user;

	(void)w;
	printf("download end=%u sent=%llu %s\n", (unsigned)end, (unsigned long long)d->sent, why);
	free(d);
}

static const struct channel_writer_events download_events = {
	.drain = download_pump, .end = download_end};

static void download_created(const struct bus_answer *a, void *user)
{
	struct download *d = user;
	struct bus_channel_ref ref;
	json_object *reader = NULL, *o;
	struct err e = ERR_INIT;

	if (a->outcome != BUS_OK || !json_object_object_get_ex(a->result, "reader", &reader) ||
		bus_channel_ref_read(reader, &ref, NULL, &e) < 0) {
		bus_reply_error(d->call, "invocation_failed", a->message ? a->message : e.text);
		free(d);
		return;
	}
	o = new_object();
	json_object_object_add(o, "content", json_object_get(reader));
	json_add_u64(o, "size", d->total);
	bus_reply(d->call, o);
	d->writer = channel_write_open(d->program->bus, &ref, STALL_MS, &download_events, d);
	download_pump(d->writer, d);
}

static void on_download(struct bus_call *c, json_object *data, void *user)
{
	struct program *p = user;
	struct download *d = xcalloc(1, sizeof(*d));
	json_object *o = new_object();

	d->program = p;
	d->call = c;
	d->total = number(data, "bytes", 0);
	json_add_u64(o, "buffer_size", 64);
	bus_invoke(p->bus, "engine::channels::create", o, 30000, c, download_created, d);
}

/* --- upload ------------------------------------------------------------------------------------
 */

struct upload {
	struct bus_call *call;
	uint64_t got;
	bool right;
	unsigned texts;
};

static void upload_data(struct channel_reader *r, const uint8_t *data, size_t len, void *user)
{
	struct upload *u = user;

	(void)r;
	for (size_t i = 0; i < len; i++)
		u->right &= data[i] == byte_at(u->got + i);
	u->got += len;
}

static void upload_text(struct channel_reader *r, const char *text, size_t len, void *user)
{
	struct upload *u = user;

	(void)r;
	(void)text;
	(void)len;
	u->texts++;
}

static void upload_end(struct channel_reader *r, enum channel_end end, const char *why, void *user)
{
	static const char *const names[] = {"end", "refused", "unreachable", "stalled", "broken"};
	struct upload *u = user;
	json_object *o = new_object();

	(void)r;
	json_add_u64(o, "bytes", u->got);
	json_add_bool(o, "right", u->right);
	json_add_u64(o, "texts", u->texts);
	json_add_str(o, "end", names[end]);
	json_add_str(o, "why", why);
	bus_reply(u->call, o);
	free(u);
}

static const struct channel_reader_events upload_events = {
	.data = upload_data, .text = upload_text, .end = upload_end};

static void on_upload(struct bus_call *c, json_object *data, void *user)
{
	struct program *p = user;
	struct bus_channel_ref ref;
	struct err e = ERR_INIT;
	json_object *content = NULL;
	struct upload *u;

	if (json_object_is_type(data, json_type_object))
		json_object_object_get_ex(data, "content", &content);
	if (bus_channel_ref_read(content, &ref, NULL, &e) < 0) {
		bus_reply_error(c, "invocation_failed", e.text);
		return;
	}
	u = xcalloc(1, sizeof(*u));
	u->call = c;
	u->right = true;
	channel_read(p->bus, &ref, (unsigned)number(data, "idle_ms", 30000), &upload_events, u);
}

/* --- the worker --------------------------------------------------------------------------------
 */

static void register_all(struct program *p)
{
	static const struct {
		const char *id;
		bus_handler handler;
	} table[] = {
		{"t::echo", on_echo},
		{"t::error", on_error},
		{"t::slow", on_slow},
		{"t::note", on_note},
		{"t::count", on_count},
		{"t::blob", on_blob},
		{"t::dirty", on_dirty},
		{"t::memory", on_memory},
		{"t::download", on_download},
		{"t::upload", on_upload},
	};
	struct err e = ERR_INIT;

	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		struct bus_function f = {
			.id = table[i].id,
			.description = "for tests",
			.request_schema = "{\"type\":\"object\"}",
			.response_schema = "{\"type\":\"object\"}",
			.handler = table[i].handler,
			.user = p,
		};

		if (bus_register(p->bus, &f, &e) < 0) {
			fprintf(stderr, "echo_worker: %s\n", e.text);
			exit(1);
		}
	}
}

static void read_config(struct program *p);

static void configured(
	enum bus_config_outcome outcome, json_object *value, const char *why, void *user)
{
	static const char *const names[] = {"value", "absent", "failed", "lost"};
	struct program *p = user;

	printf("config %s %s%s\n", names[outcome], value ? json_text(value, NULL) : "", why);
	if (outcome == BUS_CONFIG_LOST)
		return;
	if (!p->config_read)
		register_all(p);
	p->config_read = true;
	printf("ready\n");
}

static void read_config(struct program *p)
{
	const char *id = getenv("III_CONFIG_NAME");

	bus_config_get(p->bus, id && *id ? id : "echo", 30000, configured, p);
}

static void on_up(struct bus *b, bool again, void *user)
{
	struct program *p = user;

	(void)b;
	printf("up %u %s\n", ++p->ups, again ? "again" : "first");
	if (!p->config_read)
		read_config(p);
}

static void on_down(struct bus *b, const char *why, void *user)
{
	(void)b;
	(void)user;
	printf("down %s\n", why);
}

static void on_rejected(struct bus *b, const struct bus_rejection *r, void *user)
{
	(void)b;
	(void)user;
	printf("rejected %s %s owner=%s\n", r->code, r->fatal ? "fatal" : "", r->owner);
}

static void on_bad_call(struct bus_call *c, const struct err *why, void *user)
{
	cleanup_free char *message = xasprintf("handler error: S001 %s", why->text);

	(void)user;
	bus_reply_error(c, "invocation_failed", message);
}

static const struct bus_events events = {
	.bad_call = on_bad_call, .up = on_up, .down = on_down, .rejected = on_rejected};

static void engine_closed(void *user)
{
	(void)user;
}

static void bus_closed(void *user)
{
	struct program *p = user;

	if (p->engine)
		engine_close(p->engine, engine_closed, NULL);
}

static void on_term(uv_signal_t *handle, int number_of)
{
	struct program *p = handle->data;

	(void)number_of;
	uv_close((uv_handle_t *)handle, NULL);
	bus_close(p->bus, bus_closed, p);
}

int main(int argc, char **argv)
{
	struct program p = {0};
	struct bus_options o = {.name = "echo", .version = "1", .description = "for tests"};
	struct err e = ERR_INIT;
	cleanup_free char *url = NULL;
	bool with_engine = false;
	json_object *config = NULL;
	const char *tick = getenv("ECHO_PING_MS"), *dead = getenv("ECHO_DEAD_MS");

	for (int i = 1; i < argc; i++) {
		if (str_eq(argv[i], "--engine"))
			with_engine = true;
		else if (str_eq(argv[i], "--config") && i + 1 < argc &&
			 json_parse(argv[i + 1], strlen(argv[i + 1]), &config, &e) == 0)
			i++;
		else
			return 64;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	log_init(LOG_WARN);
	uv_loop_init(&p.loop);
	uv_signal_init(&p.loop, &p.term);
	p.term.data = &p;
	uv_signal_start(&p.term, on_term, SIGTERM);
	bus_options_from_env(&o);
	if (with_engine) {
		p.engine = engine_new(&p.loop, &(struct engine_options){0}, &e);
		if (!p.engine) {
			fprintf(stderr, "echo_worker: %s\n", e.text);
			return 1;
		}
		if (config)
			engine_set_config(p.engine, "echo", config);
		printf("port %u\n", engine_port(p.engine));
		o.url = url = xasprintf("ws://127.0.0.1:%u", engine_port(p.engine));
	}
	if (tick)
		str_u32(tick, &o.ping_ms);
	if (dead)
		str_u32(dead, &o.dead_ms);
	p.bus = bus_new(&p.loop, &o, &events, &p, &e);
	if (!p.bus) {
		fprintf(stderr, "echo_worker: %s\n", e.text);
		return 1;
	}
	uv_run(&p.loop, UV_RUN_DEFAULT);
	return uv_loop_close(&p.loop) == 0 ? 0 : 3;
}
