/* wire/bus: what is decoded, what is refused, what can be saved of it, what is built. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "wire/bus.h"
#include "wire/json.h"

/* From a block of exactly that size, so that ASan sees a read past the end. */
static int decode_n(const char *text, size_t len, struct bus_msg *m, struct err *e)
{
	cleanup_free char *exact = xmalloc(len + !len);

	memcpy(exact, text, len);
	return bus_decode(exact, len, m, e);
}

static int decode(const char *text, struct bus_msg *m)
{
	struct err e = ERR_INIT;
	int rc = decode_n(text, strlen(text), m, &e);

	if (rc < 0)
		assert_string_not_equal(e.text, "");
	return rc;
}

static struct bus_salvage salvage_n(const char *text, size_t len)
{
	cleanup_free char *exact = xmalloc(len + !len);
	struct bus_salvage s;

	memcpy(exact, text, len);
	bus_salvage(exact, len, &s);
	return s;
}

static struct bus_salvage salvage(const char *text)
{
	return salvage_n(text, strlen(text));
}

static void a_call_is_read(void **state)
{
	struct bus_msg m;

	assert_int_equal(
		decode("{\"type\":\"invokefunction\",\"invocation_id\":\"u\",\"function_id\":"
		       "\"a::b\",\"data\":{\"x\":18446744073709551615},\"traceparent\":\"t\","
		       "\"baggage\":null,\"namespace\":null,\"action\":null,\"zzz\":[1]}",
			&m),
		0);
	assert_int_equal(m.type, BUS_INVOKE);
	assert_string_equal(m.invocation_id, "u");
	assert_string_equal(m.function_id, "a::b");
	assert_string_equal(m.traceparent, "t");
	assert_null(m.baggage);
	assert_null(m.ns);
	assert_int_equal(m.action, BUS_ACTION_NONE);
	assert_true(m.has_data);
	assert_string_equal(json_text(m.data, NULL), "{\"x\":18446744073709551615}");
	bus_msg_done(&m);
}

static void absent_data_and_null_data_differ(void **state)
{
	struct bus_msg m;

	assert_int_equal(decode("{\"type\":\"invokefunction\",\"function_id\":\"f\"}", &m), 0);
	assert_false(m.has_data);
	assert_null(m.invocation_id);
	bus_msg_done(&m);
	assert_int_equal(
		decode("{\"type\":\"invokefunction\",\"function_id\":\"f\",\"data\":null}", &m), 0);
	assert_true(m.has_data);
	assert_null(m.data);
	bus_msg_done(&m);
	assert_int_equal(decode("{\"type\":\"invokefunction\",\"function_id\":\"f\",\"action\":{"
				"\"type\":\"void\"}}",
				 &m),
		0);
	assert_int_equal(m.action, BUS_ACTION_VOID);
	bus_msg_done(&m);
	assert_int_equal(decode("{\"type\":\"invokefunction\",\"function_id\":\"f\",\"action\":{"
				"\"type\":\"enqueue\",\"queue\":\"q\"}}",
				 &m),
		0);
	assert_int_equal(m.action, BUS_ACTION_OTHER);
	bus_msg_done(&m);
}

static void an_answer_is_read(void **state)
{
	struct bus_msg m;

	assert_int_equal(
		decode("{\"type\":\"invocationresult\",\"invocation_id\":\"u\",\"result\":[1]}",
			&m),
		0);
	assert_int_equal(m.type, BUS_RESULT);
	assert_false(m.failed);
	assert_string_equal(json_text(m.result, NULL), "[1]");
	bus_msg_done(&m);
	assert_int_equal(decode("{\"type\":\"invocationresult\",\"invocation_id\":\"u\",\"error\":{"
				"\"code\":\"C\",\"message\":\"M\",\"stacktrace\":null}}",
				 &m),
		0);
	assert_true(m.failed);
	assert_string_equal(m.code, "C");
	assert_string_equal(m.message, "M");
	assert_null(m.stacktrace);
	bus_msg_done(&m);
	/* A null error is no error. */
	assert_int_equal(
		decode("{\"type\":\"invocationresult\",\"invocation_id\":\"u\",\"error\":null}",
			&m),
		0);
	assert_false(m.failed);
	bus_msg_done(&m);
	assert_int_equal(decode("{\"type\":\"invocationresult\",\"invocation_id\":\"u\",\"error\":{"
				"\"code\":1,\"message\":\"M\"}}",
				 &m),
		-EINVAL);
}

static void the_other_types_are_read(void **state)
{
	struct bus_msg m;

	assert_int_equal(
		decode("{\"type\":\"workerregistered\",\"worker_id\":\"w\",\"features\":[]}", &m),
		0);
	assert_int_equal(m.type, BUS_WORKER_REGISTERED);
	assert_string_equal(m.worker_id, "w");
	assert_null(m.reattach_token);
	bus_msg_done(&m);
	assert_int_equal(
		decode("{\"type\":\"registrationrejected\",\"code\":\"X\",\"namespace\":\"n\","
		       "\"function_id\":\"f\",\"owner_worker_id\":\"\"}",
			&m),
		0);
	assert_string_equal(m.code, "X");
	assert_string_equal(m.owner, "");
	assert_null(m.worker_name);
	bus_msg_done(&m);
	assert_int_equal(decode("{\"type\":\"error\",\"error\":{\"code\":\"AUTH_ERROR\","
				"\"message\":\"no\"}}",
				 &m),
		0);
	assert_string_equal(m.code, "AUTH_ERROR");
	bus_msg_done(&m);
	assert_int_equal(decode("{\"type\":\"ping\"}", &m), 0);
	assert_int_equal(m.type, BUS_PING);
	bus_msg_done(&m);
	assert_int_equal(decode("{\"type\":\"somethingnew\",\"id\":7}", &m), 0);
	assert_int_equal(m.type, BUS_UNKNOWN);
	bus_msg_done(&m);
}

static void broken_messages_are_refused(void **state)
{
	static const char *const texts[] = {
		"",
		"   ",
		"not json",
		"[]",
		"{}",
		"{\"type\":7}",
		"{\"type\":\"invokefunction\"}",
		"{\"type\":\"invokefunction\",\"function_id\":1}",
		"{\"type\":\"invokefunction\",\"function_id\":\"f\",\"invocation_id\":1}",
		"{\"type\":\"invokefunction\",\"function_id\":\"f\\u0000g\"}",
		"{\"type\":\"invokefunction\",\"function_id\":\"f\",\"function_id\":\"g\"}",
		"{\"type\":\"invokefunction\",\"function_id\":\"f\",\"data\":\"\\ud800\"}",
		"{\"type\":\"invokefunction\",\"function_id\":\"f\",\"data\":\"\xff\"}",
		"{\"type\":\"invokefunction\",\"function_id\":\"f\",\"data\":NaN}",
		"{\"type\":\"invokefunction\",\"function_id\":\"f\",\"data\":1e999}",
		"{\"type\":\"workerregistered\"}",
		"{\"type\":\"invocationresult\",\"result\":1}",
	};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct bus_msg m = {.type = BUS_PING};

		assert_int_equal(decode(texts[i], &m), -EINVAL);
		assert_int_equal(m.type, BUS_PING);
	}
}

static char *call_with(const char *before, const char *unit, size_t n, const char *after)
{
	size_t len = strlen(unit), at = strlen(before);
	char *text = xmalloc(at + n * len + strlen(after) + 1);

	memcpy(text, before, at);
	for (size_t i = 0; i < n; i++, at += len)
		memcpy(text + at, unit, len);
	memcpy(text + at, after, strlen(after) + 1);
	return text;
}

#define CALL_HEAD                                                                                  \
	"{\"type\":\"invokefunction\",\"invocation_id\":\"id-1\",\"function_id\":\"a::b\","        \
	"\"data\":"

static void too_many_values_are_refused_and_a_long_string_is_not(void **state)
{
	cleanup_free char *many = call_with(CALL_HEAD "[0", ",0", BUS_VALUES_MAX, "]}");
	cleanup_free char *commas = call_with(CALL_HEAD "\"", ",[{\\\"", BUS_VALUES_MAX, "\"}");
	struct err e = ERR_INIT;
	struct bus_msg m;
	struct bus_salvage s;

	assert_int_equal(bus_decode(many, strlen(many), &m, &e), -EINVAL);
	assert_non_null(strstr(e.text, "values"));
	s = salvage(many);
	assert_int_equal(s.type, BUS_INVOKE);
	assert_string_equal(s.invocation_id, "id-1");
	assert_string_equal(s.function_id, "a::b");
	assert_int_equal(bus_decode(commas, strlen(commas), &m, &e), 0);
	bus_msg_done(&m);
}

static void ids_have_a_length(void **state)
{
	cleanup_free char *invocation =
		call_with("{\"type\":\"invokefunction\",\"invocation_id\":\"", "x", BUS_ID_MAX + 1,
			"\",\"function_id\":\"f\"}");
	cleanup_free char *function = call_with("{\"type\":\"invokefunction\",\"function_id\":\"",
		"x", BUS_FUNCTION_MAX + 1, "\"}");
	struct bus_msg m;

	assert_int_equal(decode(invocation, &m), -EINVAL);
	assert_string_equal(salvage(invocation).invocation_id, "");
	assert_int_equal(decode(function, &m), -EINVAL);
	assert_string_equal(salvage(function).function_id, "");
}

static void ids_are_saved_from_broken_calls(void **state)
{
	cleanup_free char *deep = call_with(CALL_HEAD, "[", 100000, "");
	static const char *const data[] = {
		"\"\\ud800\"}",
		"\"\xff\xfe\"}",
		"{\"a\":1,\"a\":2}}",
		"{\"invocation_id\":\"not this\",\"x\":NaN}}",
		"[1,2,{\"type\":\"ping\"},}",
		"\"half",
		"{\"q\":\"\\\"}",
		"",
	};
	struct bus_salvage s = salvage(deep);

	assert_string_equal(s.invocation_id, "id-1");
	for (size_t i = 0; i < ARRAY_LEN(data); i++) {
		cleanup_free char *text = xasprintf("%s%s", CALL_HEAD, data[i]);

		s = salvage(text);
		assert_int_equal(s.type, BUS_INVOKE);
		assert_string_equal(s.invocation_id, "id-1");
		assert_string_equal(s.function_id, "a::b");
	}
	/* Behind the payload, too. */
	s = salvage(" {\"data\":[{\"a\":[\"]}\",1]},tru],\"invocation_id\":\"z\",\"type\":"
		    "\"invokefunction\"");
	assert_string_equal(s.invocation_id, "z");
	assert_int_equal(s.type, BUS_INVOKE);
}

static void the_first_of_equal_names_counts(void **state)
{
	struct bus_salvage s = salvage("{\"invocation_id\":\"a\",\"invocation_id\":\"b\",\"type\":"
				       "\"invokefunction\",\"type\":\"ping\"}");

	assert_string_equal(s.invocation_id, "a");
	assert_int_equal(s.type, BUS_INVOKE);
}

static void ids_that_make_no_sense_are_not_saved(void **state)
{
	static const char *const texts[] = {
		"{\"invocation_id\":\"\"}",
		"{\"invocation_id\":\"a b\"}",
		"{\"invocation_id\":\"a\\u0041\"}",
		"{\"invocation_id\":\"\xc3\xa9\"}",
		"{\"invocation_id\":7}",
		"[{\"invocation_id\":\"a\"}]",
		"\"invocation_id\":\"a\"",
		"{\"invocation_id\":\"a",
		"{\"x\" \"invocation_id\":\"a\"}",
	};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		assert_string_equal(salvage(texts[i]).invocation_id, "");
}

/* Every prefix of a call: decoded never, saved as far as it goes, read past never. */
static void every_prefix_is_safe(void **state)
{
	static const char text[] = CALL_HEAD "{\"a\":[1,\"\\\\\\\"x\",{\"b\":null}]}}";

	for (size_t len = 0; len + 1 < sizeof(text); len++) {
		struct err e = ERR_INIT;
		struct bus_msg m;

		assert_int_equal(decode_n(text, len, &m, &e), -EINVAL);
		salvage_n(text, len);
	}
}

/* Takes o. */
static void expect_text(json_object *o, const char *want)
{
	assert_string_equal(json_text(o, NULL), want);
	json_object_put(o);
}

static void messages_are_built(void **state)
{
	json_object *data = json_object_new_object();

	json_add_str(data, "id", "c");
	expect_text(
		bus_new_call(&(struct bus_call_envelope){
			.invocation_id = "u", .function_id = "configuration::get", .data = data}),
		"{\"type\":\"invokefunction\",\"invocation_id\":\"u\",\"function_id\":"
		"\"configuration::get\",\"data\":{\"id\":\"c\"}}");
	expect_text(
		bus_new_call(&(struct bus_call_envelope){
			.function_id = "f", .is_void = true, .traceparent = "t", .baggage = "b"}),
		"{\"type\":\"invokefunction\",\"function_id\":\"f\",\"data\":null,\"traceparent\":"
		"\"t\","
		"\"baggage\":\"b\",\"action\":{\"type\":\"void\"}}");
	expect_text(bus_new_result("u", "f", json_object_new_array()),
		"{\"type\":\"invocationresult\",\"invocation_id\":\"u\",\"function_id\":\"f\","
		"\"result\":[]}");
	expect_text(bus_new_result("u", "f", NULL),
		"{\"type\":\"invocationresult\",\"invocation_id\":\"u\",\"function_id\":\"f\"}");
	expect_text(bus_new_error("u", "f", "C", "M \xff", NULL),
		"{\"type\":\"invocationresult\",\"invocation_id\":\"u\",\"function_id\":\"f\","
		"\"error\":{"
		"\"code\":\"C\",\"message\":\"M \xef\xbf\xbd\"}}");
	expect_text(bus_new_register("f", "d", json_object_new_object(), NULL),
		"{\"type\":\"registerfunction\",\"id\":\"f\",\"description\":\"d\","
		"\"request_format\":{}}");
	expect_text(bus_new_reattach("w", NULL),
		"{\"type\":\"reattach\",\"previous_worker_id\":\"w\"}");
	expect_text(bus_new_bare("pong"), "{\"type\":\"pong\"}");
}

static void no_optional_member_is_null(void **state)
{
	json_object *o = bus_new_announce(
		&(struct bus_identity){.name = "n", .version = "1", .pid = 4294967295u});
	json_object *data;

	assert_string_equal(json_text(o, NULL),
		"{\"type\":\"invokefunction\",\"function_id\":\"engine::workers::register\","
		"\"data\":{"
		"\"runtime\":\"c\",\"version\":\"1\",\"name\":\"n\",\"pid\":4294967295,"
		"\"telemetry\":{"
		"\"framework\":\"iii-c\"}},\"action\":{\"type\":\"void\"}}");
	assert_true(json_object_object_get_ex(o, "data", &data));
	assert_false(json_object_object_get_ex(data, "namespace", NULL));
	json_object_put(o);
}

static void what_is_built_is_decoded(void **state)
{
	json_object *o = bus_new_error("u", "f", "C", "M", "trace");
	struct bus_msg m;

	assert_int_equal(decode(json_text(o, NULL), &m), 0);
	assert_string_equal(m.stacktrace, "trace");
	json_object_put(o);
	bus_msg_done(&m);
	o = bus_new_worker_rejected("n", "w", "o");
	assert_int_equal(decode(json_text(o, NULL), &m), 0);
	assert_string_equal(m.code, "WORKER_NAMESPACE_CONFLICT");
	assert_string_equal(m.worker_name, "w");
	json_object_put(o);
	bus_msg_done(&m);
}

static void sorted_text_is_in_byte_order(void **state)
{
	static const char text[] =
		"{\"b\":[{\"z\":1,\"\\u00e9\":2,\"Z\":1.50}],\"a\\\"\":null,\"a\":"
		"\"x\\u0000/\"}";
	struct err e = ERR_INIT;
	cleanup_json json_object *o = NULL;
	cleanup_buf struct buf b;

	buf_init(&b, 1000);
	assert_int_equal(json_parse(text, sizeof(text) - 1, &o, &e), 0);
	assert_int_equal(bus_text_sorted(o, &b), 0);
	assert_string_equal((char *)b.data,
		"{\"a\":\"x\\u0000/\",\"a\\\"\":null,\"b\":[{\"Z\":1.50,\"z\":1,\"\xc3\xa9\":2}]}");
	buf_done(&b);
	buf_init(&b, 10);
	assert_int_equal(bus_text_sorted(o, &b), -ENOBUFS);
}

static void urls_are_read(void **state)
{
	static const struct {
		const char *url, *host, *path;
		bool tls;
		uint16_t port;
	} good[] = {
		{"ws://127.0.0.1:49134", "127.0.0.1", "/", false, 49134},
		{"ws://localhost", "localhost", "/", false, 80},
		{"WSS://engine.example/", "engine.example", "/", true, 443},
		{"ws://[::1]:7/a/b?c=d", "::1", "/a/b?c=d", false, 7},
		{"wss://h?x=1", "h", "/?x=1", true, 443},
	};
	static const char *const bad[] = {
		"",
		"http://h",
		"ws://",
		"ws://:1",
		"ws://h:0",
		"ws://h:65536",
		"ws://h:1x",
		"ws://h:",
		"ws://u:p@h",
		"ws://h/#f",
		"ws://h/a b",
		"ws://h/\xc3\xa9",
		"ws://h\r\nx",
		"ws://[::1",
		"ws://[::1]x",
		"ws://h\\x",
	};
	struct bus_url u;
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(bus_url_parse(good[i].url, &u, &e), 0);
		assert_string_equal(u.host, good[i].host);
		assert_string_equal(u.path, good[i].path);
		assert_int_equal(u.tls, good[i].tls);
		assert_int_equal(u.port, good[i].port);
		bus_url_done(&u);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		e = ERR_INIT;
		assert_int_equal(bus_url_parse(bad[i], &u, &e), -EINVAL);
		assert_non_null(strstr(e.text, "URL"));
	}
}

static void channel_refs_are_read_and_cannot_leave_their_place(void **state)
{
	static const char *const bad_ids[] = {"", "../x", "a\\b", "%2e", "a b", "a\r\nb", "\x7f"};
	cleanup_json json_object *o = json_object_new_object();
	struct bus_channel_ref ref;
	cleanup_free char *url = NULL;
	struct err e = ERR_INIT;
	bool write = true;

	json_add_str(o, "channel_id", "..a?b&c#d");
	json_add_str(o, "access_key", "k=%41");
	assert_int_equal(bus_channel_ref_read(o, &ref, &write, &e), -EINVAL);
	assert_non_null(strstr(e.text, "direction"));
	json_add_str(o, "direction", "sideways");
	assert_int_equal(bus_channel_ref_read(o, &ref, &write, &e), -EINVAL);
	json_add_str(o, "direction", "read");
	assert_int_equal(bus_channel_ref_read(o, &ref, &write, &e), 0);
	assert_false(write);
	url = bus_channel_url("ws://h:1//", &ref, true);
	assert_string_equal(url, "ws://h:1/ws/channels/..a%3Fb%26c%23d?key=k%3D%2541&dir=write");
	free(url);
	url = bus_channel_url("wss://h/p/?token=t", &ref, false);
	assert_string_equal(url, "wss://h/p/ws/channels/..a%3Fb%26c%23d?token=t&key=k%3D%2541"
				 "&dir=read");
	assert_int_equal(bus_channel_ref_read(NULL, &ref, NULL, &e), -EINVAL);
	for (size_t i = 0; i < ARRAY_LEN(bad_ids); i++) {
		json_add_str(o, "channel_id", bad_ids[i]);
		assert_int_equal(bus_channel_ref_read(o, &ref, NULL, &e), -EINVAL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_call_is_read),
		cmocka_unit_test(absent_data_and_null_data_differ),
		cmocka_unit_test(an_answer_is_read),
		cmocka_unit_test(the_other_types_are_read),
		cmocka_unit_test(broken_messages_are_refused),
		cmocka_unit_test(too_many_values_are_refused_and_a_long_string_is_not),
		cmocka_unit_test(ids_have_a_length),
		cmocka_unit_test(ids_are_saved_from_broken_calls),
		cmocka_unit_test(the_first_of_equal_names_counts),
		cmocka_unit_test(ids_that_make_no_sense_are_not_saved),
		cmocka_unit_test(every_prefix_is_safe),
		cmocka_unit_test(messages_are_built),
		cmocka_unit_test(no_optional_member_is_null),
		cmocka_unit_test(what_is_built_is_decoded),
		cmocka_unit_test(sorted_text_is_in_byte_order),
		cmocka_unit_test(urls_are_read),
		cmocka_unit_test(channel_refs_are_read_and_cannot_leave_their_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
