/* host/bus/engine: what it does with messages as they are on the wire. The peers here are bare
 * WebSockets; what they may send has no limits. */
#include "bus_rig.h"

#include "base/buf.h"
#include "host/bus/ws.h"

#define U1 "11111111-1111-4111-8111-111111111111"
#define U2 "22222222-2222-4222-8222-222222222222"

struct raw {
	struct rig *rig;
	struct ws *ws;
	bool open, closed;
	enum ws_end end;
	int status;
	struct buf in;
	char *inbox[64]; /* whole messages, oldest first */
	size_t count;
	bool any; /* set at each message */
	char id[64], token[64];
};

static void raw_open(struct ws *w, void *user)
{
	struct raw *r = user;

	(void)w;
	r->open = true;
}

static void raw_data(struct ws *w, const uint8_t *data, size_t len, unsigned flags, void *user)
{
	struct raw *r = user;

	(void)w;
	assert_true(flags & WS_TEXT);
	assert_int_equal(buf_add(&r->in, data, len), 0);
	if (!(flags & WS_LAST))
		return;
	assert_true(r->count < ARRAY_LEN(r->inbox));
	r->inbox[r->count++] = buf_steal(&r->in);
	r->any = true;
}

static void raw_closed(struct ws *w, enum ws_end end, int status, const char *why, void *user)
{
	struct raw *r = user;

	(void)w;
	(void)why;
	r->ws = NULL;
	r->closed = true;
	r->end = end;
	r->status = status;
}

static const struct ws_events raw_events = {
	.open = raw_open, .data = raw_data, .closed = raw_closed};

static struct ws_hub *hub;

static void raw_connect_to(struct rig *rig, struct raw *r, const char *path)
{
	cleanup_free char *text = xasprintf("%s%s", rig->url, path);
	struct bus_url url;
	struct err e;

	*r = (struct raw){.rig = rig};
	buf_init(&r->in, 80u << 20);
	assert_int_equal(bus_url_parse(text, &url, &e), 0);
	r->ws = ws_connect(
		hub, &(struct ws_target){.url = &url, .queue_max = 200u << 20}, &raw_events, r);
	bus_url_done(&url);
}

/* The oldest message; the caller frees it. */
static char *raw_next(struct raw *r)
{
	char *text;

	while (r->count == 0) {
		r->any = false;
		rig_wait(r->rig, &r->any);
	}
	text = r->inbox[0];
	r->count--;
	memmove(r->inbox, r->inbox + 1, r->count * sizeof(r->inbox[0]));
	return text;
}

static void raw_expect(struct raw *r, const char *want)
{
	cleanup_free char *text = raw_next(r);

	assert_string_equal(text, want);
}

static void raw_expect_with(struct raw *r, const char *part)
{
	cleanup_free char *text = raw_next(r);

	if (!strstr(text, part))
		fail_msg("%s is not in %s", part, text);
}

static void raw_send(struct raw *r, const char *text)
{
	assert_int_equal(ws_send(r->ws, true, text, strlen(text)), 0);
}

static void raw_connect(struct rig *rig, struct raw *r)
{
	cleanup_free char *text = NULL;
	cleanup_json json_object *o = NULL;
	const char *id = "", *token = "";

	raw_connect_to(rig, r, "/");
	text = raw_next(r);
	o = rig_json(text);
	json_get_str(o, "worker_id", JSON_REQUIRED, &id, NULL);
	json_get_str(o, "reattach_token", JSON_REQUIRED, &token, NULL);
	snprintf(r->id, sizeof(r->id), "%s", id);
	snprintf(r->token, sizeof(r->token), "%s", token);
}

/* What was sent so far is done: the pong comes behind its answers. */
static void raw_sync(struct raw *r)
{
	raw_send(r, "{\"type\":\"ping\"}");
	raw_expect(r, "{\"type\":\"pong\"}");
}

static void raw_announce(struct raw *r, const char *members)
{
	cleanup_free char *text = xasprintf(
		"{\"type\":\"invokefunction\",\"function_id\":\"engine::workers::register\","
		"\"action\":{\"type\":\"void\"},\"data\":{\"pid\":7%s%s}}",
		*members ? "," : "", members);

	raw_send(r, text);
}

static void raw_register(struct raw *r, const char *id)
{
	cleanup_free char *text = xasprintf("{\"type\":\"registerfunction\",\"id\":\"%s\"}", id);

	raw_send(r, text);
}

static void raw_done(struct raw *r)
{
	ws_drop(STEAL(r->ws));
	for (size_t i = 0; i < r->count; i++)
		free(r->inbox[i]);
	buf_done(&r->in);
}

static int setup(void **state)
{
	struct err e = ERR_INIT;
	int rc = rig_setup(state);

	hub = ws_hub_new(&((struct rig *)*state)->loop, false, &e);
	assert_non_null(hub);
	return rc;
}

static int teardown(void **state)
{
	bool closed = false;

	ws_hub_close(hub, rig_set, &closed);
	rig_wait(*state, &closed);
	return rig_teardown(state);
}

/* Two workers in `default`; the first has t::f. */
static void two(void **state, struct raw *server, struct raw *client)
{
	raw_connect(*state, server);
	raw_announce(server, "\"name\":\"server\"");
	raw_register(server, "t::f");
	raw_sync(server);
	raw_connect(*state, client);
	raw_announce(client, "\"name\":\"client\"");
	raw_sync(client);
}

static void calls_are_routed_with_sorted_payloads(void **state)
{
	struct raw s, c;
	cleanup_free char *want = NULL;

	two(state, &s, &c);
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\","
		     "\"data\":{\"z\":1,\"a\":{\"c\":1,\"b\":2}},\"traceparent\":\"tp\","
		     "\"metadata\":{\"m\":1},"
		     "\"namespace\":\"default\"}");
	want = xasprintf(
		"{\"data\":{\"_caller_worker_id\":\"%s\",\"a\":{\"b\":2,\"c\":1},\"z\":1},"
		"\"function_id\":\"t::f\",\"invocation_id\":\"" U1
		"\",\"metadata\":{\"m\":1},\"traceparent\":\"tp\",\"type\":\"invokefunction\"}",
		c.id);
	raw_expect(&s, want);
	raw_send(&s, "{\"type\":\"invocationresult\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"result\":{\"y\":1,\"x\":2}}");
	raw_expect(&c, "{\"function_id\":\"t::f\",\"invocation_id\":\"" U1
		       "\",\"result\":{\"x\":2,\"y\":1},\"type\":\"invocationresult\"}");
	raw_done(&s);
	raw_done(&c);
}

static void nulls_are_left_out_and_errors_forwarded(void **state)
{
	struct raw s, c;

	two(state, &s, &c);
	for (unsigned i = 0; i < 2; i++) {
		raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
			     "\",\"function_id\":\"t::f\",\"data\":null}");
		free(raw_next(&s));
		raw_send(&s, i ? "{\"type\":\"invocationresult\",\"invocation_id\":\"" U1
				 "\",\"function_id\":\"t::f\",\"error\":{\"code\":\"C\","
				 "\"message\":\"M\","
				 "\"stacktrace\":null,\"more\":1}}"
			       : "{\"type\":\"invocationresult\",\"invocation_id\":\"" U1
				 "\",\"function_id\":\"t::f\",\"result\":null}");
		raw_expect(&c, i ? "{\"error\":{\"code\":\"C\",\"message\":\"M\"},\"function_id\":"
				   "\"t::f\","
				   "\"invocation_id\":\"" U1 "\",\"type\":\"invocationresult\"}"
				 : "{\"function_id\":\"t::f\",\"invocation_id\":\"" U1
				   "\",\"type\":\"invocationresult\"}");
	}
	raw_done(&s);
	raw_done(&c);
}

static void void_calls_get_an_id_and_no_answer(void **state)
{
	static const char *const calls[] = {
		"{\"type\":\"invokefunction\",\"function_id\":\"t::f\",\"data\":1}",
		"{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		"\",\"function_id\":\"t::f\",\"data\":1,\"action\":{\"type\":\"void\"}}",
		"{\"type\":\"invokefunction\",\"function_id\":\"t::nope\",\"data\":1}",
	};
	struct raw s, c;

	two(state, &s, &c);
	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		cleanup_free char *text = NULL, *reply = NULL;
		cleanup_json json_object *o = NULL;
		const char *id;

		raw_send(&c, calls[i]);
		if (i < 2) {
			text = raw_next(&s);
			o = rig_json(text);
			assert_int_equal(
				json_get_str(o, "invocation_id", JSON_REQUIRED, &id, NULL), 1);
			reply = xasprintf("{\"type\":\"invocationresult\",\"invocation_id\":\"%s\","
					  "\"result\":1}",
				id);
			raw_send(&s, reply);
			raw_sync(&s);
		}
		raw_sync(&c);
	}
	raw_done(&s);
	raw_done(&c);
}

static void what_cannot_be_decoded_is_dropped(void **state)
{
	static const char *const junk[] = {
		"",
		"  ",
		"{}",
		"not json",
		"{\"type\":\"somethingnew\"}",
		"{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		"\",\"function_id\":\"t::f\"}",
		"{\"type\":\"invokefunction\",\"invocation_id\":\"no "
		"uuid\",\"function_id\":\"t::f\","
		"\"data\":1}",
		"{\"type\":\"invocationresult\",\"invocation_id\":\"" U1
		"\",\"error\":{\"code\":1,\"message\":2}}",
		"{\"type\":\"invocationresult\",\"invocation_id\":\"" U2 "\",\"result\":1}",
	};
	struct raw s, c;

	two(state, &s, &c);
	for (size_t i = 0; i < ARRAY_LEN(junk); i++)
		raw_send(&c, junk[i]);
	raw_sync(&c);
	raw_sync(&s);
	raw_done(&s);
	raw_done(&c);
}

static void a_call_that_cannot_be_decoded_is_answered(void **state)
{
	struct raw s, c;

	two(state, &s, &c);
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"data\":{\"n\":18446744073709551616}}");
	raw_expect_with(&c, "\"code\":\"invocation_error\"");
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"data\":\"\\ud800\"}");
	raw_expect_with(&c, "\"code\":\"invocation_error\"");
	/* And so is the caller whose answer is broken. */
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"data\":1}");
	free(raw_next(&s));
	raw_send(&s, "{\"type\":\"invocationresult\",\"invocation_id\":\"" U1
		     "\",\"result\":18446744073709551616}");
	raw_expect_with(&c, "cannot be decoded");
	raw_sync(&s);
	raw_done(&s);
	raw_done(&c);
}

static void an_id_in_use_is_refused_and_answers_come_from_the_asked(void **state)
{
	struct raw s, c, thief;

	two(state, &s, &c);
	raw_connect(*state, &thief);
	raw_announce(&thief, "");
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"data\":1}");
	free(raw_next(&s));
	raw_send(&thief, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
			 "\",\"function_id\":\"t::f\",\"data\":1}");
	raw_expect_with(&thief, "\"code\":\"invocation_error\"");
	raw_send(&thief, "{\"type\":\"invocationresult\",\"invocation_id\":\"" U1
			 "\",\"result\":\"stolen\"}");
	raw_sync(&thief);
	raw_sync(&c);
	raw_send(&s,
		"{\"type\":\"invocationresult\",\"invocation_id\":\"" U1 "\",\"result\":\"mine\"}");
	raw_expect_with(&c, "\"mine\"");
	raw_done(&s);
	raw_done(&c);
	raw_done(&thief);
}

static void errors_of_the_engine_have_its_codes(void **state)
{
	struct raw s, c;

	two(state, &s, &c);
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::g\",\"data\":1}");
	raw_expect_with(&c,
		"\"code\":\"function_not_found\",\"message\":\"Function t::g not found in "
		"namespace default.\"");
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"data\":1,\"namespace\":\"n\"}");
	raw_expect_with(&c, "It is registered in namespace(s): default");
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"data\":1,\"namespace\":\" \"}");
	raw_expect_with(&c, "INVALID_NAMESPACE");
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"data\":1,\"action\":{\"type\":\"enqueue\"}}");
	raw_expect_with(&c, "enqueue_error");
	raw_send(&c, "{\"type\":\"registertrigger\",\"id\":\"x\",\"trigger_type\":\"cron\","
		     "\"function_id\":"
		     "\"t::f\",\"config\":{}}");
	raw_expect_with(&c, "trigger_registration_failed");
	/* The executor goes away in the middle. */
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"data\":1}");
	free(raw_next(&s));
	raw_done(&s);
	raw_expect_with(&c, "\"code\":\"invocation_stopped\",\"message\":\"Invocation stopped\"");
	raw_done(&c);
}

static void functions_wait_for_their_namespace(void **state)
{
	struct raw s, c;

	raw_connect(*state, &s);
	raw_register(&s, "t::f");
	raw_sync(&s);
	raw_connect(*state, &c);
	raw_announce(&c, "");
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"data\":1}");
	raw_expect_with(&c, "function_not_found");
	raw_announce(&s, "\"name\":\"w\",\"namespace\":\"n1\"");
	raw_sync(&s);
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"data\":1,\"namespace\":\"n1\"}");
	raw_expect_with(&s, U1);
	/* In another namespace the same names are free. */
	raw_register(&c, "t::f");
	raw_sync(&c);
	raw_done(&s);
	raw_done(&c);
}

static void a_late_worker_is_in_default(void **state)
{
	struct rig *r = *state;
	struct raw s, c;

	rig_stop_engine(r);
	rig_start_engine(r, &(struct engine_options){.grace_ms = 100});
	raw_connect(r, &s);
	raw_register(&s, "t::f");
	rig_linger(r, 400);
	raw_announce(&s, "\"namespace\":\"n1\"");
	raw_sync(&s);
	raw_connect(r, &c);
	raw_announce(&c, "");
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"t::f\",\"data\":1}");
	raw_expect_with(&s, U1);
	raw_done(&s);
	raw_done(&c);
}

static void names_and_functions_have_one_owner(void **state)
{
	struct raw s, c, d;

	two(state, &s, &c);
	raw_register(&c, "t::f");
	raw_expect_with(&c, "FUNCTION_NAMESPACE_CONFLICT");
	raw_register(&c, "engine::mine");
	raw_expect_with(&c, "\"owner_worker_id\":\"\"");
	raw_connect(*state, &d);
	raw_announce(&d, "\"name\":\"server\"");
	raw_expect_with(&d, "WORKER_NAMESPACE_CONFLICT");
	rig_wait(*state, &d.closed);
	assert_int_equal(d.end, WS_END_CLOSE);
	raw_done(&d);
	/* Registering again is no conflict, and what is withdrawn is free. */
	raw_register(&s, "t::f");
	raw_send(&s, "{\"type\":\"unregisterfunction\",\"id\":\"t::f\"}");
	raw_sync(&s);
	raw_register(&c, "t::f");
	raw_sync(&c);
	raw_done(&s);
	raw_done(&c);
}

static void reattach_retires_the_old_connection(void **state)
{
	struct raw s, c;
	cleanup_free char *wrong = NULL, *right = NULL;

	two(state, &s, &c);
	wrong = xasprintf("{\"type\":\"reattach\",\"previous_worker_id\":\"%s\",\"reattach_token\":"
			  "\"%s\"}",
		s.id, c.token);
	raw_send(&c, wrong);
	raw_sync(&c);
	raw_sync(&s);
	right = xasprintf("{\"type\":\"reattach\",\"previous_worker_id\":\"%s\",\"reattach_token\":"
			  "\"%s\"}",
		s.id, s.token);
	raw_send(&c, right);
	raw_sync(&c);
	rig_wait(*state, &s.closed);
	raw_register(&c, "t::f");
	raw_sync(&c);
	raw_done(&s);
	raw_done(&c);
}

static void lists_show_what_is_there(void **state)
{
	struct raw s, c;

	two(state, &s, &c);
	raw_send(&s, "{\"type\":\"registerfunction\",\"id\":\"t::hidden\",\"metadata\":{"
		     "\"internal\":true}}");
	raw_send(&s, "{\"type\":\"registerfunction\",\"id\":\"t::g\",\"description\":\"d\"}");
	raw_sync(&s);
	raw_send(&c,
		"{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		"\",\"function_id\":\"engine::functions::list\",\"data\":{\"prefix\":\"t::g\"}}");
	raw_expect(&c,
		"{\"function_id\":\"engine::functions::list\",\"invocation_id\":\"" U1
		"\",\"result\":{\"functions\":[{\"description\":\"d\",\"function_id\":\"t::g\","
		"\"namespace\":\"default\",\"worker_name\":\"server\"}]},\"type\":"
		"\"invocationresult\"}");
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"engine::functions::list\",\"data\":{}}");
	{
		cleanup_free char *text = raw_next(&c);

		assert_null(strstr(text, "t::hidden"));
		assert_non_null(strstr(text, "t::f"));
	}
	raw_send(&c, "{\"type\":\"invokefunction\",\"invocation_id\":\"" U1
		     "\",\"function_id\":\"engine::workers::list\",\"data\":{}}");
	{
		cleanup_free char *text = raw_next(&c);

		assert_non_null(strstr(text, "\"name\":\"server\""));
		assert_non_null(strstr(text, "\"function_count\":3"));
		assert_non_null(strstr(text, "\"pid\":7"));
	}
	raw_done(&s);
	raw_done(&c);
}

static void wrong_paths_are_refused(void **state)
{
	static const struct {
		const char *path;
		int status;
	} paths[] = {
		{"/nope", 404},
		{"/ws/channels/x?key=k&dir=read", 404},
		{"/ws/channels/x?key=k", 400},
		{"/ws/channels/x?dir=read", 400},
		{"/ws/channels/x?key=k&dir=up", 400},
	};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		struct raw r;

		raw_connect_to(*state, &r, paths[i].path);
		rig_wait(*state, &r.closed);
		assert_int_equal(r.end, WS_END_REFUSED);
		assert_int_equal(r.status, paths[i].status);
		raw_done(&r);
	}
}

static void telemetry_is_taken_and_thrown_away(void **state)
{
	struct raw r;

	raw_connect_to(*state, &r, "/otel");
	rig_wait(*state, &r.open);
	assert_int_equal(ws_send(r.ws, false, "OTLP{}", 6), 0);
	rig_linger(*state, 50);
	assert_false(r.closed);
	raw_done(&r);
}

static void a_message_over_the_limit_ends_its_sender_only(void **state)
{
	struct raw s, c;
	size_t len = BUS_MESSAGE_MAX + 1;
	cleanup_free char *big = xmalloc(len);

	two(state, &s, &c);
	memset(big, ' ', len);
	assert_int_equal(ws_send(c.ws, true, big, len), 0);
	rig_wait(*state, &c.closed);
	assert_int_equal(c.end, WS_END_BROKEN);
	raw_sync(&s);
	raw_done(&s);
	raw_done(&c);
}

static void unused_channels_are_swept(void **state)
{
	struct rig *r = *state;
	struct rig_worker w;
	struct rig_answer a;
	struct raw end;
	struct bus_channel_ref ref;
	json_object *reader;
	cleanup_free char *path = NULL;
	struct err e = ERR_INIT;

	rig_stop_engine(r);
	rig_start_engine(r, &(struct engine_options){.sweep_ms = 200});
	rig_worker_start(r, &w, "w", NULL);
	rig_wait(r, &w.up);
	rig_call(&w, "engine::channels::create", "{}", &a);
	assert_true(json_object_object_get_ex(a.result, "reader", &reader));
	assert_int_equal(bus_channel_ref_read(reader, &ref, NULL, &e), 0);
	rig_answer_done(&a);
	path = bus_channel_url("", &ref, false);
	/* A reader whose writer never comes sees an ordinary end. */
	raw_connect_to(r, &end, path);
	rig_wait(r, &end.closed);
	assert_int_equal(end.end, WS_END_CLOSE);
	assert_int_equal(end.status, 0);
	raw_done(&end);
	raw_connect_to(r, &end, path);
	rig_wait(r, &end.closed);
	assert_int_equal(end.end, WS_END_REFUSED);
	raw_done(&end);
	rig_worker_stop(&w);
}

static void a_taken_port_is_reported(void **state)
{
	struct rig *r = *state;
	struct err e = ERR_INIT;
	struct engine_options o = {.port = engine_port(r->engine)};

	assert_null(engine_new(&r->loop, &o, &e));
	assert_non_null(strstr(e.text, "cannot listen on 127.0.0.1"));
	rig_linger(r, 50);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(calls_are_routed_with_sorted_payloads),
		T(nulls_are_left_out_and_errors_forwarded),
		T(void_calls_get_an_id_and_no_answer),
		T(what_cannot_be_decoded_is_dropped),
		T(a_call_that_cannot_be_decoded_is_answered),
		T(an_id_in_use_is_refused_and_answers_come_from_the_asked),
		T(errors_of_the_engine_have_its_codes),
		T(functions_wait_for_their_namespace),
		T(a_late_worker_is_in_default),
		T(names_and_functions_have_one_owner),
		T(reattach_retires_the_old_connection),
		T(lists_show_what_is_there),
		T(wrong_paths_are_refused),
		T(telemetry_is_taken_and_thrown_away),
		T(a_message_over_the_limit_ends_its_sender_only),
		T(unused_channels_are_swept),
		T(a_taken_port_is_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
