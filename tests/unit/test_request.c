/* request: the decode rules D1-D8 of contract §1.0, the shapes of env, ids, paths and modes. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/api/request.h"

static json_object *json(const char *text)
{
	json_object *o = NULL;

	assert_int_equal(json_parse(text, strlen(text), &o, NULL), 0);
	return o;
}

static void expect(const struct err *e, const char *code, const char *part, const char *row)
{
	if (!str_eq(e->code, code) || !strstr(e->text, part))
		fail_msg("%s: %s %s", row, e->code, e->text);
}

static void payloads(void **state)
{
	static const char *const bad[] = {"[]", "7", "\"x\"", "true"};
	struct err e = ERR_INIT;
	json_object *o = NULL;

	assert_int_equal(request_object(NULL, &o, &e), 0);
	assert_int_equal(json_object_object_length(o), 0);
	json_object_put(STEAL(o));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cleanup_json json_object *data = json(bad[i]);

		assert_true(request_object(data, &o, &e) < 0);
		expect(&e, "S001", "object", bad[i]);
	}
}

static void numbers_are_taken_exactly(void **state)
{
	static const struct {
		const char *text;
		bool ok64, ok32;
		uint64_t value;
	} rows[] = {
		{"{\"n\":0}", true, true, 0},
		{"{\"n\":4294967295}", true, true, UINT32_MAX},
		{"{\"n\":4294967296}", true, false, 4294967296},
		{"{\"n\":9007199254740993}", true, false, 9007199254740993},
		{"{\"n\":18446744073709551615}", true, false, UINT64_MAX},
		{"{\"n\":1.0}", false, false, 0},
		{"{\"n\":1e3}", false, false, 0},
		{"{\"n\":\"5\"}", false, false, 0},
		{"{\"n\":-1}", false, false, 0},
		{"{\"n\":true}", false, false, 0},
		{"{\"n\":[1]}", false, false, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		cleanup_json json_object *o = json(rows[i].text);
		struct err e64 = ERR_INIT, e32 = ERR_INIT;
		uint64_t v64 = 77;
		uint32_t v32 = 77;

		assert_int_equal(request_u64(o, "n", JSON_NULLABLE, &v64, &e64) > 0, rows[i].ok64);
		assert_int_equal(request_u32(o, "n", JSON_NULLABLE, &v32, &e32) > 0, rows[i].ok32);
		assert_true(v64 == (rows[i].ok64 ? rows[i].value : 77));
		assert_true(v32 == (rows[i].ok32 ? rows[i].value : 77));
		if (!rows[i].ok64)
			expect(&e64, "S001", "`n`", rows[i].text);
		if (!rows[i].ok32)
			expect(&e32, "S001", "`n`", rows[i].text);
	}
}

static void members_that_are_missing_or_null(void **state)
{
	cleanup_json json_object *o = json("{\"nil\":null,\"s\":\"x\",\"z\":\"a\\u0000b\"}");
	struct err e = ERR_INIT;
	const char *s = "kept";
	struct text t = {"kept", 4};
	bool b = true;

	assert_true(request_str(o, "no", JSON_REQUIRED, &s, &e) < 0);
	expect(&e, "S001", "missing field `no`", "absent");
	assert_int_equal(request_str(o, "no", JSON_OPTIONAL, &s, &e), 0);
	assert_int_equal(request_str(o, "nil", JSON_NULLABLE, &s, &e), 0);
	assert_string_equal(s, "kept");
	assert_true(request_str(o, "nil", JSON_OPTIONAL, &s, &e) < 0);
	expect(&e, "S001", "`nil`", "null");
	assert_true(request_bool(o, "nil", JSON_OPTIONAL, &b, &e) < 0);
	assert_true(request_bool(o, "s", JSON_NULLABLE, &b, &e) < 0);
	assert_true(b);
	assert_true(request_str(o, "z", JSON_REQUIRED, &s, &e) < 0);
	expect(&e, "S001", "U+0000", "NUL");
	assert_int_equal(request_text(o, "z", JSON_REQUIRED, &t, &e), 1);
	assert_int_equal(t.len, 3);
	assert_memory_equal(t.s, "a\0b", 4);
	t = (struct text){"kept", 4};
	assert_int_equal(request_text(o, "nil", JSON_NULLABLE, &t, &e), 0);
	assert_true(request_text(o, "nil", JSON_REQUIRED, &t, &e) < 0);
	assert_string_equal(t.s, "kept");
}

static void env_in_both_shapes(void **state)
{
	static const struct {
		const char *text, *wanted[5];
	} rows[] = {
		{"{\"env\":[]}", {NULL}},
		{"{\"env\":{}}", {NULL}},
		{"{\"env\":[\"A=1\",\"B\",\"C=x=y\",\"A=2\",\"=z\"]}", {"A=2", "C=x=y"}},
		{"{\"env\":[\"9 x=1\",\"A=\",\"A=3\",\"A=\"]}", {"9 x=1", "A="}},
		{"{\"env\":{\"B\":\"2\",\"A\":\"1=1\",\"_9\":\"\"}}", {"A=1=1", "B=2", "_9="}},
		{"{\"env\":[\"AB=1\",\"A=1\",\"ABC=1\",\"A=2\"]}", {"A=2", "AB=1", "ABC=1"}},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		cleanup_json json_object *o = json(rows[i].text);
		char **env = NULL;
		size_t n = 0;

		assert_int_equal(request_env(o, &env, NULL), 1);
		for (; rows[i].wanted[n]; n++)
			assert_string_equal(env[n], rows[i].wanted[n]);
		assert_null(env[n]);
		strv_free(env);
	}
}

static void env_that_is_refused(void **state)
{
	static const struct {
		const char *text, *part;
	} rows[] = {
		{"{\"env\":null}", "env"},
		{"{\"env\":\"A=1\"}", "env"},
		{"{\"env\":7}", "env"},
		{"{\"env\":[\"A=1\",7]}", "env"},
		{"{\"env\":[null]}", "env"},
		{"{\"env\":{\"A\":1}}", "env"},
		{"{\"env\":{\"A\":null}}", "env"},
		{"{\"env\":[\"A=x\\u0000y\"]}", "env"},
		{"{\"env\":{\"A\":\"x\\u0000y\"}}", "env"},
		{"{\"env\":{\"9BAD\":\"x\",\"OK\":\"y\"}}", "9BAD"},
		{"{\"env\":{\"a-b\":\"x\",\"\":\"y\",\"1\":\"z\"}}", "a-b"},
		{"{\"env\":{\"a-b\":\"x\",\"\":\"y\",\"1\":\"z\"}}", "`1`"},
		{"{\"env\":{\"\u00e9\":\"x\"}}", "\xc3\xa9"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		cleanup_json json_object *o = json(rows[i].text);
		struct err e = ERR_INIT;
		char **env = NULL;

		if (request_env(o, &env, &e) >= 0)
			fail_msg("taken: %s", rows[i].text);
		expect(&e, "S001", rows[i].part, rows[i].text);
		assert_null(env);
	}
}

/* The same name 100,000 times: the last one counts, and it does not take minutes. */
static void env_of_many_entries(void **state)
{
	cleanup_json json_object *o = json_object_new_object(), *a = json_object_new_array();
	char entry[32], **env = NULL;

	for (int i = 0; i < 100000; i++) {
		snprintf(entry, sizeof(entry), "N%d=%d", i % 2, i);
		json_object_array_add(a, json_object_new_string(entry));
	}
	json_object_object_add(o, "env", json_object_get(a));
	assert_int_equal(request_env(o, &env, NULL), 1);
	assert_string_equal(env[0], "N0=99998");
	assert_string_equal(env[1], "N1=99999");
	assert_null(env[2]);
	strv_free(env);
}

static void ids(void **state)
{
	static const char *const bad[] = {"{\"sandbox_id\":\"nope\"}", "{\"sandbox_id\":\"\"}",
		"{\"sandbox_id\":\"0123abcd-ef45-6789-abcd-ef0123456789\\u0000\"}"};
	cleanup_json json_object *good =
		json("{\"sandbox_id\":\"{0123ABCD-EF45-6789-ABCD-EF0123456789}\"}");
	struct err e = ERR_INIT;
	struct text t;
	char id[37];

	assert_int_equal(request_id_text(good, &t, &e), 1);
	assert_int_equal(request_id(&t, id, &e), 0);
	assert_string_equal(id, "0123abcd-ef45-6789-abcd-ef0123456789");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cleanup_json json_object *o = json(bad[i]);

		assert_int_equal(request_id_text(o, &t, &e), 1);
		assert_true(request_id(&t, id, &e) < 0);
		expect(&e, "S001", "sandbox_id", bad[i]);
	}
	request_id(&(struct text){"what-i-sent", 11}, id, &e);
	expect(&e, "S001", "what-i-sent", "the raw value");
}

static void paths_and_modes(void **state)
{
	static const char *const modes[] = {"", "0o755", "8", "+755", " 755", "755 ", "10000",
		"u+x", "-1", "0x1ff", "99999999999"};
	struct err e = ERR_INIT;
	char long_path[4097] = {0};
	uint32_t mode = 0;

	assert_int_equal(request_guest_path("path", &(struct text){"/", 1}, &e), 0);
	assert_true(request_guest_path("path", &(struct text){"", 0}, &e) < 0);
	expect(&e, "S210", "path", "empty");
	assert_true(request_guest_path("dst", &(struct text){"tmp", 3}, &e) < 0);
	expect(&e, "S210", "dst", "relative");
	assert_true(request_guest_path("src", &(struct text){"/tmp\0x", 6}, &e) < 0);
	expect(&e, "S210", "src", "NUL");
	memset(long_path, 'a', 4096);
	long_path[0] = '/';
	assert_true(request_guest_path("path", &(struct text){long_path, 4096}, &e) < 0);
	expect(&e, "S210", "4095", "too long");
	long_path[4095] = '\0';
	assert_int_equal(request_guest_path("path", &(struct text){long_path, 4095}, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
		e = ERR_INIT;
		if (request_mode("mode", &(struct text){modes[i], strlen(modes[i])}, &mode, &e) >=
			0)
			fail_msg("taken: %s", modes[i]);
		expect(&e, "S210", "mode", modes[i]);
	}
	assert_true(request_mode("mode", &(struct text){"7\0", 2}, &mode, &e) < 0);
	assert_int_equal(request_mode("mode", &(struct text){"1777", 4}, &mode, &e), 0);
	assert_int_equal(mode, 01777);
	assert_int_equal(
		request_mode("mode", &(struct text){"00000000000000000644", 20}, &mode, &e), 0);
	assert_int_equal(mode, 0644);
}

static void base64_says_what_it_wants(void **state)
{
	struct err e = ERR_INIT;
	uint8_t *data = NULL;
	size_t n;

	assert_true(request_base64("stdin", &(struct text){"aGk", 3}, &data, &n, &e) < 0);
	expect(&e, "S001", "stdin", "name");
	expect(&e, "S001", "base64", "word");
	assert_int_equal(request_base64("stdin", &(struct text){"", 0}, &data, &n, &e), 0);
	assert_int_equal(n, 0);
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(payloads),
		cmocka_unit_test(numbers_are_taken_exactly),
		cmocka_unit_test(members_that_are_missing_or_null),
		cmocka_unit_test(env_in_both_shapes),
		cmocka_unit_test(env_that_is_refused),
		cmocka_unit_test(env_of_many_entries),
		cmocka_unit_test(ids),
		cmocka_unit_test(paths_and_modes),
		cmocka_unit_test(base64_says_what_it_wants),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
