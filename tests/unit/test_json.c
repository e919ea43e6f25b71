/* wire/json: what is JSON and what is not, limits, typed fields, building. */
#include <errno.h>
#include <math.h>
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
#include "wire/json.h"

#define TEXT(s) s, sizeof(s) - 1

/* Parses from a block of exactly `len` bytes, so that a read past the end is seen by ASan. */
static int parse(const char *text, size_t len, json_object **ret, struct err *e)
{
	cleanup_free char *exact = xmalloc(len);

	memcpy(exact, text, len);
	return json_parse(exact, len, ret, e);
}

static void takes_json(void **state)
{
	static const struct {
		const char *text;
		size_t len;
		const char *want;
	} cases[] = {
		{TEXT("null"), "null"},
		{TEXT(" \t\r\n{ } \n"), "{}"},
		{TEXT("42"), "42"},
		{TEXT("-7"), "-7"},
		{TEXT("1.5"), "1.5"},
		{TEXT("1E+5"), "1E+5"},
		{TEXT("\"a\\/b\""), "\"a/b\""},
		{TEXT("\"\\u00e9\""), "\"\xc3\xa9\""},
		{TEXT("\"\\ud83d\\uDE00\""), "\"\xf0\x9f\x98\x80\""},
		{TEXT("\"a\\u0000b\""), "\"a\\u0000b\""},
		{TEXT("\"\x7f\""), "\"\x7f\""},
		{TEXT("{\"a\":[1,{\"a\":\"x:y\"}],\"b\":null,\"\":true}"),
			"{\"a\":[1,{\"a\":\"x:y\"}],\"b\":null,\"\":true}"},
		{TEXT("[18446744073709551615,-9223372036854775808]"),
			"[18446744073709551615,-9223372036854775808]"},
		{TEXT("{\"k\\\"\":1,\"k\\\\\":2}"), "{\"k\\\"\":1,\"k\\\\\":2}"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_json json_object *o = NULL;
		struct err e = ERR_INIT;

		if (parse(cases[i].text, cases[i].len, &o, &e) != 0)
			fail_msg("%s: %s", cases[i].text, e.text);
		assert_string_equal(json_text(o, NULL), cases[i].want);
	}
}

static void refuses_what_is_not_json(void **state)
{
	static const struct {
		const char *text;
		size_t len;
		const char *why; /* a part of the error */
	} cases[] = {
		{TEXT(""), "end of data"},
		{TEXT("  "), "end of data"},
		{TEXT("["), "end of data"},
		{TEXT("{\"a\":1"), "end of data"},
		{TEXT("NaN"), "unexpected character at byte 0"},
		{TEXT("[Infinity]"), "unexpected character at byte 1"},
		{TEXT("-Infinity"), "without digits"},
		{TEXT("nan"), "unexpected character"},
		{TEXT("TRUE"), "unexpected character"},
		{TEXT("tru"), "unexpected character"},
		{TEXT("[1,]"), "byte 3"},
		{TEXT("{\"a\":1,}"), "byte"},
		{TEXT("{a:1}"), "byte 1"},
		{TEXT("{'a':1}"), "byte 1"},
		{TEXT("{\"a\" 1}"), "byte"},
		{TEXT("[1:2]"), "byte"},
		{TEXT("[1 2]"), "byte"},
		{TEXT("[1]]"), "byte"},
		{TEXT("]"), "byte"},
		{TEXT("[}"), "byte"},
		{TEXT("1 2"), "byte"},
		{TEXT("{}x"), "byte 2"},
		{TEXT("nullnull"), "byte"},
		{TEXT("truefalse"), "byte"},
		{TEXT("/*c*/1"), "byte 0"},
		{TEXT("\v1"), "byte 0"},
		{TEXT("1\0"), "byte 1"},
		{TEXT("{}\0"), "byte 2"},
		{TEXT("\xef\xbb\xbf{}"), "byte 0"},
		{TEXT("01"), "leading zero"},
		{TEXT("-01"), "leading zero"},
		{TEXT("-"), "without digits"},
		{TEXT("+1"), "unexpected"},
		{TEXT(".5"), "unexpected"},
		{TEXT("1."), "point"},
		{TEXT("1.e5"), "point"},
		{TEXT("1e"), "exponent"},
		{TEXT("1e+"), "exponent"},
		{TEXT("0x10"), "byte 1"},
		{TEXT("1e999"), "too large"},
		{TEXT("[-1e400]"), "too large"},
		{TEXT("18446744073709551616"), "64 bits"},
		{TEXT("-9223372036854775809"), "64 bits"},
		{TEXT("{\"a\":99999999999999999999999999999999}"), "64 bits at byte 5"},
		{TEXT("\"abc"), "closing quote"},
		{TEXT("\"abc\\"), "escape"},
		{TEXT("\"\t\""), "control character"},
		{TEXT("\"a\0b\""), "control character"},
		{TEXT("\"\\x\""), "escape"},
		{TEXT("\"\\u12g4\""), "hex"},
		{TEXT("\"\\u\x11"
		      "111\""),
			"hex"},
		{TEXT("\"\\u12"), "hex"},
		{TEXT("\"\\ud800\""), "surrogate"},
		{TEXT("\"\\udc00\""), "surrogate"},
		{TEXT("\"\\ud800\\u0041\""), "surrogate"},
		{TEXT("\"\\ud800\\n\""), "surrogate"},
		{TEXT("\"\xff\""), "UTF-8 at byte 1"},
		{TEXT("\"\xed\xa0\x80\""), "UTF-8"},
		{TEXT("{\"a\":1,\"a\":2}"), "same name"},
		{TEXT("[{\"x\":{\"a\":1,\"b\":2,\"\\u0061\":3}}]"), "same name"},
		{TEXT("{\"a\\u0000b\":1}"), "U+0000"},
		{TEXT("{\"a\\u0000b\" :1}"), "U+0000"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		json_object *o = (json_object *)&cases;
		struct err e = ERR_INIT;

		assert_int_equal(parse(cases[i].text, cases[i].len, &o, &e), -EINVAL);
		if (!strstr(e.text, cases[i].why))
			fail_msg("%s: %s", cases[i].text, e.text);
		assert_ptr_equal(o, &cases);
	}
}

static void depth_has_a_limit(void **state)
{
	for (int n = 1; n < 200; n++) {
		cleanup_buf struct buf text = {0};
		json_object *o = NULL;
		struct err e = ERR_INIT;
		int rc;

		buf_init(&text, 4096);
		for (int i = 0; i < n; i++)
			buf_add_str(&text, i % 2 ? "{\"a\":" : "[");
		buf_add_str(&text, "1");
		for (int i = n - 1; i >= 0; i--)
			buf_add_str(&text, i % 2 ? "}" : "]");
		rc = parse((const char *)text.data, text.len, &o, &e);
		assert_int_equal(rc, n <= JSON_DEPTH_MAX ? 0 : -EINVAL);
		if (rc != 0)
			assert_non_null(strstr(e.text, "nested more than 64 levels"));
		json_object_put(o);
	}
}

static void a_prefix_of_a_text_is_never_taken(void **state)
{
	static const char text[] =
		"{\"a\":[1,2.5e1,\"x\\u00e9\xc3\xa9\",null,true],\"b\":{\"c\":-1}}";

	for (size_t n = 0; n < sizeof(text) - 1; n++) {
		json_object *o = NULL;
		struct err e = ERR_INIT;

		assert_int_equal(parse(text, n, &o, &e), -EINVAL);
		assert_string_not_equal(e.text, "");
	}
}

static json_object *object(const char *text)
{
	json_object *o = NULL;
	struct err e = ERR_INIT;

	if (json_parse_object(text, strlen(text), &o, &e) != 0)
		fail_msg("%s: %s", text, e.text);
	return o;
}

static void an_object_is_asked_for(void **state)
{
	static const char *const others[] = {"null", "[]", "1", "\"{}\"", "true", "1.5"};

	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		json_object *o = NULL;
		struct err e = ERR_INIT;

		assert_int_equal(json_parse_object(others[i], strlen(others[i]), &o, &e), -EINVAL);
		assert_non_null(strstr(e.text, "expected a JSON object, got "));
		assert_null(o);
	}
	json_object_put(object("{}"));
}

static void fields_have_one_type(void **state)
{
	cleanup_json json_object *o = object("{\"s\":\"x\",\"i\":5,\"d\":1.0,\"e\":1e3,\"n\":-1,"
					     "\"t\":true,\"z\":null,\"o\":{},\"a\":[]}");
	static const char names[] = "sidentzoa";

	for (const char *p = names; *p; p++) {
		char name[2] = {*p, '\0'};
		const char *s;
		bool b;
		uint64_t u64;
		uint32_t u32;
		int64_t i64;
		json_object *v;
		struct err e = ERR_INIT;

#define CHECK(call, letters)                                                                       \
	do {                                                                                       \
		int rc_ = (call);                                                                  \
		assert_int_equal(rc_, strchr(letters, *p) ? 1 : -EINVAL);                          \
		if (rc_ < 0) {                                                                     \
			assert_non_null(strstr(e.text, name));                                     \
			assert_non_null(strstr(e.text, "expected "));                              \
		}                                                                                  \
	} while (0)
		CHECK(json_get_str(o, name, JSON_REQUIRED, &s, &e), "s");
		CHECK(json_get_bool(o, name, JSON_OPTIONAL, &b, &e), "t");
		CHECK(json_get_u64(o, name, JSON_REQUIRED, &u64, &e), "i");
		CHECK(json_get_u32(o, name, JSON_OPTIONAL, &u32, &e), "i");
		CHECK(json_get_i64(o, name, JSON_REQUIRED, &i64, &e), "in");
		CHECK(json_get_object(o, name, JSON_REQUIRED, &v, &e), "o");
		CHECK(json_get_array(o, name, JSON_OPTIONAL, &v, &e), "a");
#undef CHECK
	}
}

static void absent_and_null_follow_need(void **state)
{
	cleanup_json json_object *o = object("{\"z\":null}");
	uint64_t v = 77;
	struct err e = ERR_INIT;

	assert_int_equal(json_get_u64(o, "x", JSON_REQUIRED, &v, &e), -EINVAL);
	assert_string_equal(e.text, "missing field `x`");
	assert_int_equal(json_get_u64(o, "z", JSON_REQUIRED, &v, &e), -EINVAL);
	assert_non_null(strstr(e.text, "`z`: expected an integer"));
	assert_non_null(strstr(e.text, "got null"));
	assert_int_equal(json_get_u64(o, "x", JSON_OPTIONAL, &v, &e), 0);
	assert_int_equal(json_get_u64(o, "z", JSON_OPTIONAL, &v, &e), -EINVAL);
	assert_int_equal(json_get_u64(o, "x", JSON_NULLABLE, &v, &e), 0);
	assert_int_equal(json_get_u64(o, "z", JSON_NULLABLE, &v, &e), 0);
	assert_int_equal(v, 77);
}

static void integers_keep_their_range(void **state)
{
	cleanup_json json_object *o =
		object("{\"umax\":18446744073709551615,\"imax\":9223372036854775807,"
		       "\"imax1\":9223372036854775808,\"imin\":-9223372036854775808,"
		       "\"wmax\":4294967295,\"wmax1\":4294967296,\"zero\":0}");
	uint64_t u = 1;
	uint32_t w = 1;
	int64_t i = 1;
	struct err e = ERR_INIT;

	assert_int_equal(json_get_u64(o, "umax", JSON_REQUIRED, &u, &e), 1);
	assert_true(u == UINT64_MAX);
	assert_int_equal(json_get_u64(o, "imin", JSON_REQUIRED, &u, &e), -EINVAL);
	assert_true(u == UINT64_MAX);
	assert_int_equal(json_get_u64(o, "zero", JSON_REQUIRED, &u, &e), 1);
	assert_true(u == 0);
	assert_int_equal(json_get_i64(o, "imax", JSON_REQUIRED, &i, &e), 1);
	assert_true(i == INT64_MAX);
	assert_int_equal(json_get_i64(o, "imax1", JSON_REQUIRED, &i, &e), -EINVAL);
	assert_int_equal(json_get_i64(o, "umax", JSON_REQUIRED, &i, &e), -EINVAL);
	assert_int_equal(json_get_i64(o, "imin", JSON_REQUIRED, &i, &e), 1);
	assert_true(i == INT64_MIN);
	assert_int_equal(json_get_u32(o, "wmax", JSON_REQUIRED, &w, &e), 1);
	assert_true(w == UINT32_MAX);
	assert_int_equal(json_get_u32(o, "wmax1", JSON_REQUIRED, &w, &e), -EINVAL);
	assert_string_equal(
		e.text, "field `wmax1`: expected an integer from 0 to 4294967295, got 4294967296");
	assert_int_equal(json_get_u32(o, "imin", JSON_REQUIRED, &w, &e), -EINVAL);
}

static void strings_with_nul_are_refused(void **state)
{
	cleanup_json json_object *o = object("{\"s\":\"a\\u0000b\",\"v\":[\"x\",\"\\u0000\"]}");
	const char *s = NULL;
	char **v = NULL;
	struct err e = ERR_INIT;

	assert_int_equal(json_get_str(o, "s", JSON_REQUIRED, &s, &e), -EINVAL);
	assert_non_null(strstr(e.text, "`s`"));
	assert_int_equal(json_get_strv(o, "v", JSON_REQUIRED, &v, &e), -EINVAL);
	assert_non_null(strstr(e.text, "element 1"));
	assert_null(s);
	assert_null(v);
}

static void vectors_of_strings(void **state)
{
	cleanup_json json_object *o =
		object("{\"v\":[\"a\",\"\",\"c\"],\"none\":[],\"mixed\":[\"a\",1]}");
	char **v = NULL;
	struct err e = ERR_INIT;

	assert_int_equal(json_get_strv(o, "v", JSON_REQUIRED, &v, &e), 1);
	assert_int_equal(strv_len(v), 3);
	assert_string_equal(v[0], "a");
	assert_string_equal(v[1], "");
	assert_string_equal(v[2], "c");
	strv_free(STEAL(v));
	assert_int_equal(json_get_strv(o, "none", JSON_REQUIRED, &v, &e), 1);
	assert_int_equal(strv_len(v), 0);
	strv_free(STEAL(v));
	assert_int_equal(json_get_strv(o, "mixed", JSON_REQUIRED, &v, &e), -EINVAL);
	assert_non_null(strstr(e.text, "element 1 is an integer"));
	assert_int_equal(json_get_strv(o, "absent", JSON_OPTIONAL, &v, &e), 0);
	assert_null(v);
}

static void what_is_built_reads_back(void **state)
{
	cleanup_json json_object *o = json_object_new_object();
	cleanup_json json_object *back = NULL;
	char sh[] = "sh", c[] = "-c", script[] = "echo \"\xff\"";
	char *const argv[] = {sh, c, script, NULL};
	size_t len;
	const char *text;

	json_add_str(o, "path", "/a/b");
	json_add_str(o, "bad",
		"a\xff"
		"b\xe2\x82");
	json_add_strn(o, "nul", "x\0y", 3);
	json_add_u64(o, "u", UINT64_MAX);
	json_add_i64(o, "i", INT64_MIN);
	json_add_bool(o, "b", true);
	json_add_strv(o, "argv", argv);
	json_add_strv(o, "empty", NULL);
	text = json_text(o, &len);
	assert_string_equal(text,
		"{\"path\":\"/a/b\",\"bad\":\"a\xef\xbf\xbd"
		"b\xef\xbf\xbd\",\"nul\":\"x\\u0000y\","
		"\"u\":18446744073709551615,\"i\":-9223372036854775808,\"b\":true,"
		"\"argv\":[\"sh\",\"-c\",\"echo \\\"\xef\xbf\xbd\\\"\"],\"empty\":[]}");
	assert_int_equal(len, strlen(text));
	assert_int_equal(json_parse(text, len, &back, NULL), 0);
	assert_true(json_object_equal(o, back));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes_json),
		cmocka_unit_test(refuses_what_is_not_json),
		cmocka_unit_test(depth_has_a_limit),
		cmocka_unit_test(a_prefix_of_a_text_is_never_taken),
		cmocka_unit_test(an_object_is_asked_for),
		cmocka_unit_test(fields_have_one_type),
		cmocka_unit_test(absent_and_null_follow_need),
		cmocka_unit_test(integers_keep_their_range),
		cmocka_unit_test(strings_with_nul_are_refused),
		cmocka_unit_test(vectors_of_strings),
		cmocka_unit_test(what_is_built_reads_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
