/* wire/yaml: the core schema, structure, what is refused and where, limits. */
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
#include "wire/yaml.h"

#define NODES	1000
#define TEXT(s) s, sizeof(s) - 1

/* Parses from a block of exactly `len` bytes, so that a read past the end is seen by ASan. */
static int parse(const char *text, size_t len, json_object **ret, struct err *e)
{
	cleanup_free char *exact = xmalloc(len + 1);

	exact = xrealloc(exact, MAX(len, (size_t)1), 1);
	memcpy(exact, text, len);
	return yaml_parse(exact, len, NODES, ret, e);
}

static void gives(const char *text, size_t len, const char *want)
{
	cleanup_json json_object *o = NULL;
	struct err e = ERR_INIT;

	if (parse(text, len, &o, &e) != 0)
		fail_msg("%s: %s", text, e.text);
	assert_string_equal(json_text(o, NULL), want);
}

/* Fails there, and the whole error is that. */
static void refuses(const char *text, size_t len, const char *want)
{
	cleanup_json json_object *o = NULL;
	struct err e = ERR_INIT;

	if (parse(text, len, &o, &e) != -EINVAL)
		fail_msg("taken: %s", text);
	assert_null(o);
	assert_string_equal(e.text, want);
	assert_string_equal(e.code, "");
}

/* The tables of YAML 1.2.2 §10.3.2, and what only YAML 1.1 read otherwise. */
static void plain_scalars_follow_the_core_schema(void **state)
{
	static const struct {
		const char *text, *want;
	} cases[] = {
		{"", "null"},
		{"~", "null"},
		{"null", "null"},
		{"Null", "null"},
		{"NULL", "null"},
		{"nULL", "\"nULL\""},
		{"true", "true"},
		{"True", "true"},
		{"TRUE", "true"},
		{"false", "false"},
		{"False", "false"},
		{"FALSE", "false"},
		{"tRUE", "\"tRUE\""},
		{"no", "\"no\""},
		{"No", "\"No\""},
		{"yes", "\"yes\""},
		{"on", "\"on\""},
		{"off", "\"off\""},
		{"y", "\"y\""},
		{"0", "0"},
		{"-0", "0"},
		{"+7", "7"},
		{"-19", "-19"},
		{"010", "10"},
		{"0o7", "7"},
		{"0o10", "8"},
		{"0o8", "\"0o8\""},
		{"0x3A", "58"},
		{"0xfFfFfFfFfFfFfFfF", "18446744073709551615"},
		{"0xg", "\"0xg\""},
		{"0x", "\"0x\""},
		{"0o", "\"0o\""},
		{"-0x1", "\"-0x1\""},
		{"0b1", "\"0b1\""},
		{"1_000", "\"1_000\""},
		{"12:30", "\"12:30\""},
		{"2001-12-14", "\"2001-12-14\""},
		{"1.2.3", "\"1.2.3\""},
		{"9223372036854775807", "9223372036854775807"},
		{"9223372036854775808", "9223372036854775808"},
		{"18446744073709551615", "18446744073709551615"},
		{"-9223372036854775808", "-9223372036854775808"},
		{"18446744073709551616", "1.8446744073709552e+19"},
		{"-9223372036854775809", "-9.2233720368547758e+18"},
		{"0.", "0.0"},
		{".5", "0.5"},
		{"-.5", "-0.5"},
		{"+12e03", "12000.0"},
		{"-2E+05", "-200000.0"},
		{"1e-2", "0.01"},
		{".", "\".\""},
		{"-", "\"-\""},
		{"+", "\"+\""},
		{"e1", "\"e1\""},
		{".e1", "\".e1\""},
		{"1e", "\"1e\""},
		{"1e+", "\"1e+\""},
		{"1.5x", "\"1.5x\""},
		{"1 2", "\"1 2\""},
		{".infx", "\".infx\""},
		{"nan", "\"nan\""},
		{"inf", "\"inf\""},
		{"0x1p3", "\"0x1p3\""},
	};
	static const char *const beyond[] = {".inf", "-.INF", "+.Inf", ".nan", ".NaN", "1e999",
		"0x10000000000000000", "0o7777777777777777777777"};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_json json_object *o = NULL;

		assert_int_equal(yaml_plain(cases[i].text, &o), 0);
		assert_string_equal(json_text(o, NULL), cases[i].want);
	}
	for (size_t i = 0; i < ARRAY_LEN(beyond); i++) {
		json_object *o = NULL;

		assert_int_equal(yaml_plain(beyond[i], &o), -ERANGE);
		assert_null(o);
	}
}

static void takes_yaml(void **state)
{
	static const struct {
		const char *text;
		size_t len;
		const char *want;
	} cases[] = {
		{TEXT(""), "null"},
		{TEXT("# nothing\n"), "null"},
		{TEXT("---\n...\n"), "null"},
		{TEXT("\xef\xbb\xbf"
		      "a: 1\n"),
			"{\"a\":1}"},
		{TEXT("%YAML 1.2\n---\na: no\n"), "{\"a\":\"no\"}"},
		{TEXT("a: 1\r\nb: x\r\n"), "{\"a\":1,\"b\":\"x\"}"},
		{TEXT("a:\nb: ~\nc: ''\nd: \"null\"\ne: '1'\n"),
			"{\"a\":null,\"b\":null,\"c\":\"\",\"d\":\"null\",\"e\":\"1\"}"},
		{TEXT("- 1\n- - x\n  - {}\n- []\n"), "[1,[\"x\",{}],[]]"},
		{TEXT("s: |\n  a\n   b\n\n  c\n"), "{\"s\":\"a\\n b\\n\\nc\\n\"}"},
		{TEXT("s: >-\n  a\n  b\n"), "{\"s\":\"a b\"}"},
		{TEXT("s: |\n  12\n"), "{\"s\":\"12\\n\"}"},
		{TEXT("\"no\": 1\n'2': 3\nyes: 4\n"), "{\"no\":1,\"2\":3,\"yes\":4}"},
		{TEXT("s: \"a\\0b\\u00e9\\x41\"\n"), "{\"s\":\"a\\u0000b\xc3\xa9"
						     "A\"}"},
		{TEXT("a: &x [1, 2]\nb: *x\nc: &y hi\nd: [*y, *x]\n"),
			"{\"a\":[1,2],\"b\":[1,2],\"c\":\"hi\",\"d\":[\"hi\",[1,2]]}"},
		{TEXT("a: &n ~\nb: *n\n"), "{\"a\":null,\"b\":null}"},
		{TEXT("a: {b: {c: 1}}\n<<: {b: 2}\n"),
			"{\"a\":{\"b\":{\"c\":1}},\"<<\":{\"b\":2}}"},
		{TEXT("\xc3\xa9: \xf0\x9f\x98\x80"), "{\"\xc3\xa9\":\"\xf0\x9f\x98\x80\"}"},
		{TEXT("a: x # y\nb: x#y\n"), "{\"a\":\"x\",\"b\":\"x#y\"}"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		gives(cases[i].text, cases[i].len, cases[i].want);
}

/* JSON is YAML: our reader of JSON has to agree. */
static void agrees_with_json(void **state)
{
	static const char *const texts[] = {
		"{\"a\": [1, -2, 1.5, 1e3, true, false, null, \"x\"], \"b\": {\"c\": {}}}",
		"[18446744073709551615, -9223372036854775808, \"\\u00e9\\n\\t\\\"\\\\\", \"\"]",
		"\"no\"",
		"{\"\": [[[[]]]], \"null\": null}",
	};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		cleanup_json json_object *ours = NULL, *theirs = NULL;
		struct err e = ERR_INIT;

		assert_int_equal(json_parse(texts[i], strlen(texts[i]), &theirs, &e), 0);
		if (parse(texts[i], strlen(texts[i]), &ours, &e) != 0)
			fail_msg("%s: %s", texts[i], e.text);
		assert_true(json_object_equal(ours, theirs));
	}
}

#define BAD "not valid YAML: line "

static void refuses_and_says_where(void **state)
{
	static const struct {
		const char *text;
		size_t len;
		const char *want;
	} cases[] = {
		{TEXT("a: 1\na: 2\n"), BAD "2, column 1: `a` is there twice"},
		{TEXT("a: 1\n\"a\": 2\n"), BAD "2, column 1: `a` is there twice"},
		{TEXT("s:\n  x: 1\n  y:\n  - {}\n  - {k: 1, z: 2, k: 3}\n"),
			BAD "5, column 18: `s.y[1].k` is there twice"},
		{TEXT("a: !!str 1\n"),
			BAD "1, column 4: a value has a tag, which is not supported"},
		{TEXT("a: !secret\n"),
			BAD "1, column 4: a value has a tag, which is not supported"},
		{TEXT("a: !!map {}\n"),
			BAD "1, column 4: a value has a tag, which is not supported"},
		{TEXT("!x a: 1\n"), BAD "1, column 1: a value has a tag, which is not supported"},
		{TEXT("1: a\n"), BAD "1, column 1: a key is not a string: put it in quotes, or a "
				     "value is missing"},
		{TEXT("true: a\n"), BAD "1, column 1: a key is not a string: put it in quotes, or "
					"a value is missing"},
		{TEXT("?\n: a\n"), BAD "1, column 2: a key is not a string: put it in quotes, or a "
				       "value is missing"},
		{TEXT("? [a]\n: 1\n"),
			BAD "1, column 3: a key is a list or a mapping, not a string"},
		{TEXT("? {a: b}\n: 1\n"),
			BAD "1, column 3: a key is a list or a mapping, not a string"},
		{TEXT("a: &x b\n*x : 1\n"),
			BAD "2, column 1: a key is an alias, which is not supported"},
		{TEXT("&x a: 1\n"), BAD "1, column 1: a key has an anchor, which is not supported"},
		{TEXT("\"a\\0b\": 1\n"), BAD "1, column 1: a key has a character U+0000 in it"},
		{TEXT("a: *x\n"), BAD "1, column 4: an alias names no anchor before it"},
		{TEXT("a: &x [*x]\n"),
			BAD "1, column 8: an alias is inside the value that it names"},
		{TEXT("a: &x 1\nb: &x 2\n"),
			BAD "2, column 4: an anchor of this name was there before"},
		{TEXT("a: 1\n---\nb: 2\n"), BAD "2, column 1: there is more than one document"},
		{TEXT("a: .inf\n"), BAD "1, column 4: a number is infinite, not a number or too "
					"large; a text needs quotes"},
		{TEXT("a: secret\n b: secret\n"),
			BAD "2, column 3: mapping values are not allowed in this context"},
		{TEXT("a: [secret\n"), BAD "2, column 1: did not find expected ',' or ']'"},
		{TEXT("a: \"secret\n"), BAD "2, column 1: found unexpected end of stream"},
		{TEXT("a: \"\\ud83d\\ude00\"\n"),
			BAD "1, column 7: found invalid Unicode character escape code"},
		{TEXT("a:\n\tb: 1\n"),
			BAD "2, column 1: found character that cannot start any token"},
		{TEXT("a: secret\nb: \xff\n"), BAD "2, column 4: a byte is not UTF-8"},
		{TEXT("a: \xc3\xa9\xed\xa0\x80"), BAD "1, column 5: a byte is not UTF-8"},
		{TEXT("a: b\nc: x\0y\n"), BAD "2, column 5: control characters are not allowed"},
		{TEXT("a: \x1b[31m\n"), BAD "1, column 4: control characters are not allowed"},
		{TEXT("\xff\xfe"
		      "a\0"),
			BAD "1, column 1: a byte is not UTF-8"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		refuses(cases[i].text, cases[i].len, cases[i].want);
}

/* The text repeated n times around a middle. */
static void nest(struct buf *b, int n, const char *before, const char *middle, const char *after)
{
	buf_clear(b);
	for (int i = 0; i < n; i++)
		assert_int_equal(buf_add_str(b, before), 0);
	assert_int_equal(buf_add_str(b, middle), 0);
	for (int i = 0; i < n; i++)
		assert_int_equal(buf_add_str(b, after), 0);
}

static int parse_buf(const struct buf *b, size_t nodes_max, struct err *e)
{
	cleanup_json json_object *o = NULL;

	*e = ERR_INIT;
	return yaml_parse((const char *)b->data, b->len, nodes_max, &o, e);
}

static void depth_has_a_limit(void **state)
{
	struct buf b cleanup_buf;
	struct err e;

	buf_init(&b, 1 << 20);
	nest(&b, YAML_DEPTH_MAX, "[", "1", "]");
	assert_int_equal(parse_buf(&b, NODES, &e), 0);
	nest(&b, YAML_DEPTH_MAX + 1, "[", "1", "]");
	assert_int_equal(parse_buf(&b, NODES, &e), -EINVAL);
	assert_non_null(strstr(e.text, "column 65: it is nested more than 64 levels deep"));
	nest(&b, 100000, "[", "", "");
	assert_int_equal(parse_buf(&b, NODES, &e), -EINVAL);
	nest(&b, 20000, "- ", "", "");
	assert_int_equal(parse_buf(&b, NODES, &e), -EINVAL);
	nest(&b, 20000, "? ", "", "");
	assert_int_equal(parse_buf(&b, NODES, &e), -EINVAL);

	/* 40 levels behind an alias that lies 40 levels deep. */
	nest(&b, 38, "[", "", "]");
	cleanup_free char *inner = xasprintf("- &x [%s]\n- ", (char *)b.data);

	nest(&b, 20, "[", "*x", "]");
	cleanup_free char *few = xasprintf("%s%s\n", inner, (char *)b.data);

	nest(&b, 30, "[", "*x", "]");
	cleanup_free char *many = xasprintf("%s%s\n", inner, (char *)b.data);

	buf_clear(&b);
	assert_int_equal(buf_add_str(&b, few), 0);
	assert_int_equal(parse_buf(&b, NODES, &e), 0);
	buf_clear(&b);
	assert_int_equal(buf_add_str(&b, many), 0);
	assert_int_equal(parse_buf(&b, NODES, &e), -EINVAL);
	assert_non_null(strstr(e.text, "nested more than"));
}

static void aliases_are_counted_in_full(void **state)
{
	struct buf b cleanup_buf;
	struct err e;

	/* Ten anchors, each ten times the one before: 10^10 values. */
	buf_init(&b, 1 << 20);
	assert_int_equal(buf_add_str(&b, "a0: &a0 x\n"), 0);
	for (int i = 1; i <= 10; i++) {
		assert_int_equal(buf_printf(&b, "a%d: &a%d [", i, i), 0);
		for (int j = 0; j < 10; j++)
			assert_int_equal(buf_printf(&b, "%s*a%d", j ? ", " : "", i - 1), 0);
		assert_int_equal(buf_add_str(&b, "]\n"), 0);
	}
	assert_int_equal(parse_buf(&b, 10000, &e), -EINVAL);
	assert_non_null(strstr(e.text, "more than 10000 values, aliases counted in"));

	/* Exactly: a mapping, its key, a list, three values; the alias counts as what it names. */
	buf_clear(&b);
	assert_int_equal(buf_add_str(&b, "k: [&a [x], *a, 1]\n"), 0);
	assert_int_equal(parse_buf(&b, 8, &e), 0);
	assert_int_equal(parse_buf(&b, 7, &e), -EINVAL);
}

static void bytes_are_counted_in_full(void **state)
{
	struct buf b cleanup_buf;
	struct err e;

	buf_init(&b, YAML_BYTES_MAX + 16);
	assert_int_equal(buf_add_str(&b, "- &a "), 0);
	for (int i = 0; i < 6400; i++)
		assert_int_equal(buf_add_str(&b, "abcdefghij"), 0);
	for (int i = 0; i < 15; i++)
		assert_int_equal(buf_add_str(&b, "\n- *a"), 0);
	assert_int_equal(parse_buf(&b, NODES, &e), 0);
	assert_int_equal(buf_add_str(&b, "\n- *a\n"), 0);
	assert_int_equal(parse_buf(&b, NODES, &e), -EINVAL);
	assert_non_null(strstr(e.text, "more than 1048576 bytes, aliases counted in"));

	buf_clear(&b);
	for (int i = 0; i < YAML_BYTES_MAX; i++)
		assert_int_equal(buf_add(&b, "#", 1), 0);
	assert_int_equal(parse_buf(&b, NODES, &e), 0);
	assert_int_equal(buf_add(&b, "#", 1), 0);
	assert_int_equal(parse_buf(&b, NODES, &e), -EINVAL);
	assert_string_equal(e.text, "the YAML text has 1048577 bytes: at most 1048576 are read");
}

static void anchors_have_a_limit(void **state)
{
	struct buf b cleanup_buf;
	struct err e;

	buf_init(&b, 1 << 20);
	for (int i = 0; i < YAML_ANCHORS_MAX; i++)
		assert_int_equal(buf_printf(&b, "- &a%d x\n", i), 0);
	assert_int_equal(parse_buf(&b, NODES, &e), 0);
	assert_int_equal(buf_add_str(&b, "- &more x\n"), 0);
	assert_int_equal(parse_buf(&b, NODES, &e), -EINVAL);
	assert_string_equal(e.text, BAD "101, column 3: there are more than 100 anchors");
}

static void keys_are_shown_safely(void **state)
{
	static const struct {
		const char *key, *want;
	} cases[] = {
		{"instal", "instal"},
		{"a\x1b[31mb\nc\x7f", "a[31mbc"},
		{"a\xc2\x9b"
		 "b\xc2\xad",
			"ab"},
		{"x\xe2\x80\xae"
		 "y\xe2\x80\x8b\xe2\x81\xa6z\xef\xbb\xbf",
			"xyz"},
		{"\xf3\xa0\x81\x81", "(empty)"},
		{"", "(empty)"},
		{"caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80",
			"caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80"},
		{"ab\xff"
		 "cd",
			"ab"},
		{"0123456789012345678901234567890123456789012345678901234567890123",
			"0123456789012345678901234567890123456789012345678901234567890123"},
		{"012345678901234567890123456789012345678901234567890123456789012\xc3\xa9",
			"012345678901234567890123456789012345678901234567890123456789012…"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_free char *shown = yaml_key_shown(cases[i].key);

		assert_string_equal(shown, cases[i].want);
	}
	refuses(TEXT("\"a\\e[2J\\u202e\": 1\n\"a\\e[2J\\u202e\": 1\n"),
		BAD "2, column 1: `a[2J` is there twice");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plain_scalars_follow_the_core_schema),
		cmocka_unit_test(takes_yaml),
		cmocka_unit_test(agrees_with_json),
		cmocka_unit_test(refuses_and_says_where),
		cmocka_unit_test(depth_has_a_limit),
		cmocka_unit_test(aliases_are_counted_in_full),
		cmocka_unit_test(bytes_are_counted_in_full),
		cmocka_unit_test(anchors_have_a_limit),
		cmocka_unit_test(keys_are_shown_safely),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
