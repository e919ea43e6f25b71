/* host/bus: functions, calls both ways, reconnects, rejections, configuration. */
#include "bus_rig.h"

static void echo(struct bus_call *c, json_object *data, void *user)
{
	json_object *o = json_object_new_object();

	(void)user;
	json_object_object_add(o, "got", json_object_get(data));
	bus_reply(c, o);
}

static void refuse(struct bus_call *c, json_object *data, void *user)
{
	(void)data;
	(void)user;
	bus_reply_error(c, "invocation_failed", "handler error: {\"code\":\"S001\"}");
}

struct kept {
	struct bus_call *call;
	bool came;
};

static void keep(struct bus_call *c, json_object *data, void *user)
{
	struct kept *k = user;

	(void)data;
	k->call = c;
	k->came = true;
}

struct pair {
	struct rig_worker server, client;
};

static void pair_start(struct rig *r, struct pair *p)
{
	rig_worker_start(r, &p->server, "server", NULL);
	rig_worker_start(r, &p->client, "client", NULL);
	rig_wait(r, &p->server.up);
	rig_wait(r, &p->client.up);
}

/* What the server registers is there: the engine answers in order. */
static void settle(struct rig_worker *w)
{
	struct rig_answer a;

	rig_call(w, "engine::functions::list", "{}", &a);
	rig_answer_done(&a);
}

static void pair_stop(struct pair *p)
{
	rig_worker_stop(&p->client);
	rig_worker_stop(&p->server);
}

static void a_call_comes_and_is_answered(void **state)
{
	struct pair p;

	pair_start(*state, &p);
	rig_serve(p.server.bus, "t::echo", echo, NULL);
	rig_serve(p.server.bus, "t::refuse", refuse, NULL);
	settle(&p.server);
	rig_expect(&p.client, "t::echo", "[1,\"x\\u0000y\",18446744073709551615]",
		"{\"got\":[1,\"x\\u0000y\",18446744073709551615]}");
	rig_expect(&p.client, "t::echo", "null", "{\"got\":null}");
	rig_expect_error(&p.client, "t::refuse", "{}", "invocation_failed");
	rig_expect_error(&p.client, "t::nope", "{}", "function_not_found");
	pair_stop(&p);
}

static void a_call_to_itself_works(void **state)
{
	struct rig_worker w;

	rig_worker_start(*state, &w, "self", NULL);
	rig_wait(*state, &w.up);
	rig_serve(w.bus, "t::echo", echo, NULL);
	settle(&w);
	rig_expect(&w, "t::echo", "7", "{\"got\":7}");
	rig_worker_stop(&w);
}

static void many_calls_are_answered_in_any_order(void **state)
{
	struct pair p;
	struct kept slow = {0};
	static struct rig_answer many[200];
	struct rig_answer first = {0};

	pair_start(*state, &p);
	rig_serve(p.server.bus, "t::slow", keep, &slow);
	rig_serve(p.server.bus, "t::echo", echo, NULL);
	settle(&p.server);
	bus_invoke(p.client.bus, "t::slow", NULL, 30000, NULL, rig_answered, &first);
	rig_wait(*state, &slow.came);
	memset(many, 0, sizeof(many));
	for (size_t i = 0; i < ARRAY_LEN(many); i++)
		bus_invoke(p.client.bus, "t::echo", json_object_new_int((int)i), 30000, NULL,
			rig_answered, &many[i]);
	for (size_t i = 0; i < ARRAY_LEN(many); i++) {
		cleanup_free char *want = xasprintf("{\"got\":%zu}", i);

		rig_wait(*state, &many[i].done);
		assert_string_equal(json_text(many[i].result, NULL), want);
		rig_answer_done(&many[i]);
	}
	assert_false(first.done);
	assert_false(bus_call_is_gone(slow.call));
	bus_reply(slow.call, NULL);
	rig_wait(*state, &first.done);
	assert_int_equal(first.outcome, BUS_OK);
	assert_null(first.result);
	pair_stop(&p);
}

static void a_call_without_an_answer_times_out(void **state)
{
	struct pair p;
	struct kept slow = {0};
	struct rig_answer a = {0};

	pair_start(*state, &p);
	rig_serve(p.server.bus, "t::slow", keep, &slow);
	settle(&p.server);
	bus_invoke(p.client.bus, "t::slow", NULL, 50, NULL, rig_answered, &a);
	rig_wait(*state, &a.done);
	assert_int_equal(a.outcome, BUS_TIMEOUT);
	assert_string_equal(a.code, "TIMEOUT");
	/* The late answer changes nothing. */
	bus_reply(slow.call, NULL);
	settle(&p.client);
	pair_stop(&p);
}

static void a_cancelled_call_is_silent(void **state)
{
	struct pair p;
	struct kept slow = {0};
	struct rig_answer a = {0};
	struct bus_invoke *i;

	pair_start(*state, &p);
	rig_serve(p.server.bus, "t::slow", keep, &slow);
	settle(&p.server);
	i = bus_invoke(p.client.bus, "t::slow", NULL, 30000, NULL, rig_answered, &a);
	rig_wait(*state, &slow.came);
	bus_invoke_cancel(i);
	bus_reply(slow.call, NULL);
	settle(&p.client);
	assert_false(a.done);
	pair_stop(&p);
}

/* A surrogate as bytes, and bytes that are no UTF-8, through json-c's own constructor. */
static void bad_text_is_sent_repaired(void **state)
{
	struct pair p;
	struct rig_answer a = {0};

	pair_start(*state, &p);
	rig_serve(p.server.bus, "t::echo", echo, NULL);
	settle(&p.server);
	bus_invoke(p.client.bus, "t::echo", json_object_new_string("a\xff\xed\xa0\x80z"), 30000,
		NULL, rig_answered, &a);
	rig_wait(*state, &a.done);
	assert_int_equal(a.outcome, BUS_OK);
	assert_non_null(strstr(json_text(a.result, NULL), "a\xef\xbf\xbd"));
	rig_answer_done(&a);
	pair_stop(&p);
}

static void huge(struct bus_call *c, json_object *data, void *user)
{
	size_t len = (size_t)json_object_get_int64(data);
	char *text = xmalloc(len + 1);
	json_object *s;

	(void)user;
	memset(text, 'x', len);
	text[len] = '\0';
	s = json_object_new_string_len(text, (int)len);
	free(text);
	bus_reply(c, s);
}

static void a_result_over_the_limit_becomes_an_error(void **state)
{
	struct pair p;
	struct rig_answer a;

	pair_start(*state, &p);
	rig_serve(p.server.bus, "t::huge", huge, NULL);
	settle(&p.server);
	rig_call(&p.client, "t::huge", "67108864", &a);
	assert_int_equal(a.outcome, BUS_FAILED);
	assert_non_null(strstr(a.message, "over the limit"));
	/* Three frames of the limit's size go through in pieces. */
	rig_call(&p.client, "t::huge", "40000000", &a);
	assert_int_equal(a.outcome, BUS_OK);
	assert_int_equal(json_object_get_string_len(a.result), 40000000);
	rig_answer_done(&a);
	assert_int_equal(p.server.ups, 1);
	pair_stop(&p);
}

static void it_comes_back_with_all_functions(void **state)
{
	struct rig *r = *state;
	struct pair p;
	struct kept slow = {0};
	struct rig_answer lost = {0};
	struct engine_options same = {.port = engine_port(r->engine)};

	pair_start(r, &p);
	rig_serve(p.server.bus, "t::slow", keep, &slow);
	rig_serve(p.server.bus, "t::echo", echo, NULL);
	settle(&p.server);
	bus_invoke(p.client.bus, "t::slow", NULL, 30000, NULL, rig_answered, &lost);
	rig_wait(r, &slow.came);
	p.server.down = p.client.down = p.server.up = p.client.up = false;
	rig_stop_engine(r);
	rig_wait(r, &p.server.down);
	rig_wait(r, &lost.done);
	assert_int_equal(lost.outcome, BUS_LOST);
	assert_true(bus_call_is_gone(slow.call));
	/* While it is away, calls fail by themselves, later. */
	lost = (struct rig_answer){0};
	bus_invoke(p.client.bus, "t::echo", NULL, 30000, NULL, rig_answered, &lost);
	assert_false(lost.done);
	rig_wait(r, &lost.done);
	assert_int_equal(lost.outcome, BUS_LOST);
	rig_start_engine(r, &same);
	rig_wait(r, &p.server.up);
	rig_wait(r, &p.client.up);
	assert_true(p.server.again);
	settle(&p.server);
	rig_expect(&p.client, "t::echo", "1", "{\"got\":1}");
	/* The call of the first connection is answered into nothing. */
	bus_reply(slow.call, NULL);
	rig_expect(&p.client, "t::echo", "2", "{\"got\":2}");
	pair_stop(&p);
}

static void silence_is_noticed(void **state)
{
	struct rig *r = *state;
	struct rig_worker w;
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	cleanup_free char *url = NULL;
	socklen_t len = sizeof(any);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	/* A listener that never answers: the attempt ends by its time. */
	assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof(any)), 0);
	assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&any, &len), 0);
	url = xasprintf("ws://127.0.0.1:%u", ntohs(any.sin_port));
	rig_worker_start(r, &w, "w", &(struct bus_options){.url = url, .connect_ms = 100});
	rig_wait(r, &w.down);
	assert_string_equal(w.down_why, "no answer in time");
	rig_worker_stop(&w);
	close(fd);
}

static void what_cannot_be_an_engine_is_reported(void **state)
{
	static const struct bus_options bad[] = {
		{.url = "http://x", .name = "w"},
		{.url = "ws://h", .name = "w", .token = "a\r\nX: y"},
		{.url = "ws://h", .name = "w", .token = "t\xc3\xa9"},
	};
	static const char *const words[] = {"http://x", "III_TOKEN", "III_TOKEN"};
	struct rig *r = *state;
	struct rig_worker w;

	/* A label of 64 letters is no name, and no server has to be asked. */
	rig_worker_start(r, &w, "w",
		&(struct bus_options){
			.url = "ws://"
			       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"});
	rig_wait(r, &w.down);
	assert_non_null(strstr(w.down_why, "cannot find aaaa"));
	rig_worker_stop(&w);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct err e = ERR_INIT;

		assert_null(bus_new(&r->loop, &bad[i], &rig_worker_events, &w, &e));
		assert_non_null(strstr(e.text, words[i]));
	}
}

static void pings_keep_a_quiet_link(void **state)
{
	struct rig_worker w;

	rig_worker_start(*state, &w, "w", &(struct bus_options){.ping_ms = 20, .dead_ms = 2000});
	rig_wait(*state, &w.up);
	rig_linger(*state, 2600);
	assert_int_equal(w.ups, 1);
	assert_false(w.down);
	rig_worker_stop(&w);
}

static void a_taken_name_is_fatal_and_a_taken_function_is_not(void **state)
{
	struct rig_worker a, b, c;

	rig_worker_start(*state, &a, "same", NULL);
	rig_wait(*state, &a.up);
	rig_serve(a.bus, "t::echo", echo, NULL);
	settle(&a);
	rig_worker_start(*state, &b, "same", NULL);
	rig_wait(*state, &b.rejected);
	assert_true(b.fatal);
	assert_string_equal(b.rejected_code, "WORKER_NAMESPACE_CONFLICT");
	rig_wait(*state, &b.down);
	rig_linger(*state, 200);
	assert_int_equal(b.ups, 1);
	rig_worker_stop(&b);

	rig_worker_start(*state, &c, "other", NULL);
	rig_wait(*state, &c.up);
	rig_serve(c.bus, "t::echo", refuse, NULL);
	rig_wait(*state, &c.rejected);
	assert_false(c.fatal);
	assert_string_equal(c.rejected_code, "FUNCTION_NAMESPACE_CONFLICT");
	rig_expect(&c, "t::echo", "1", "{\"got\":1}");
	rig_worker_stop(&c);
	rig_worker_stop(&a);
}

struct config_answer {
	bool done;
	enum bus_config_outcome outcome;
	char value[256], why[256];
};

static void configured(
	enum bus_config_outcome outcome, json_object *value, const char *why, void *user)
{
	struct config_answer *a = user;

	a->done = true;
	a->outcome = outcome;
	snprintf(a->value, sizeof(a->value), "%s", value ? json_text(value, NULL) : "");
	snprintf(a->why, sizeof(a->why), "%s", why);
}

static struct config_answer read_config(struct rig_worker *w, const char *id)
{
	struct config_answer a = {0};

	assert_int_equal(bus_config_get(w->bus, id, 30000, configured, &a), 0);
	assert_int_equal(bus_config_get(w->bus, id, 30000, configured, &a), -EBUSY);
	rig_wait(w->rig, &a.done);
	return a;
}

static void configuration_is_read(void **state)
{
	struct rig *r = *state;
	struct rig_worker w;
	struct config_answer a;

	engine_set_config(r->engine, "c", rig_json("{\"x\":1}"));
	engine_set_config(r->engine, "n", NULL);
	rig_worker_start(r, &w, "w", NULL);
	a = read_config(&w, "c");
	assert_int_equal(a.outcome, BUS_CONFIG_LOST);
	rig_wait(r, &w.up);
	a = read_config(&w, "c");
	assert_int_equal(a.outcome, BUS_CONFIG_VALUE);
	assert_string_equal(a.value, "{\"x\":1}");
	a = read_config(&w, "n");
	assert_int_equal(a.outcome, BUS_CONFIG_ABSENT);
	a = read_config(&w, "nope");
	assert_int_equal(a.outcome, BUS_CONFIG_ABSENT);
	rig_worker_stop(&w);
}

static void closing_leaves_open_calls_answerable(void **state)
{
	struct pair p;
	struct kept slow = {0};
	struct rig_answer a = {0};

	pair_start(*state, &p);
	rig_serve(p.server.bus, "t::slow", keep, &slow);
	settle(&p.server);
	bus_invoke(p.client.bus, "t::slow", NULL, 30000, NULL, rig_answered, &a);
	rig_wait(*state, &slow.came);
	rig_worker_stop(&p.server);
	rig_wait(*state, &a.done);
	assert_int_equal(a.outcome, BUS_FAILED);
	assert_string_equal(a.code, "invocation_stopped");
	assert_true(bus_call_is_gone(slow.call));
	assert_string_equal(bus_call_function(slow.call), "t::slow");
	bus_reply_error(slow.call, "X", "too late");
	rig_worker_stop(&p.client);
}

static void schemas_are_checked(void **state)
{
	struct rig_worker w;
	struct err e = ERR_INIT;
	struct bus_function f = {.id = "t::f", .handler = echo, .request_schema = "{\"type\":"};

	rig_worker_start(*state, &w, "w", NULL);
	assert_int_equal(bus_register(w.bus, &f, &e), -EINVAL);
	assert_non_null(strstr(e.text, "t::f"));
	f.request_schema = "{\"type\":\"object\"}";
	assert_int_equal(bus_register(w.bus, &f, &e), 0);
	assert_int_equal(bus_register(w.bus, &f, &e), -EEXIST);
	rig_worker_stop(&w);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		T(a_call_comes_and_is_answered),
		T(a_call_to_itself_works),
		T(many_calls_are_answered_in_any_order),
		T(a_call_without_an_answer_times_out),
		T(a_cancelled_call_is_silent),
		T(bad_text_is_sent_repaired),
		T(a_result_over_the_limit_becomes_an_error),
		T(it_comes_back_with_all_functions),
		T(silence_is_noticed),
		T(what_cannot_be_an_engine_is_reported),
		T(pings_keep_a_quiet_link),
		T(a_taken_name_is_fatal_and_a_taken_function_is_not),
		T(configuration_is_read),
		T(closing_leaves_open_calls_answerable),
		T(schemas_are_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
