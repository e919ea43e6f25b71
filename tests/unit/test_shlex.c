/* shlex: the splitting table of sandbox contract §1.4, and Python's shlex where the two agree. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "peer.h"
#include "wire/shlex.h"

struct row {
	const char *text;
	const char *words[8];
	size_t n;
};

#define W(...) {__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)

static const struct row rows[] = {
	{"a 'b c' \"d e\"", W("a", "b c", "d e")},
	{"a #b c", W("a")},
	{"a b#c", W("a", "b#c")},
	{"a\\ b c", W("a b", "c")},
	{"'' x", W("", "x")},
	{"a 'it'\\''s'", W("a", "it's")},
	{"a #b\nc", W("a", "c")},
	{"#b\n #c\n\td", W("d")},
	{"\\#b", W("#b")},
	{"''#b", W("#b")},
	{"a\\\nb", W("ab")},
	{"a \\\n b", W("a", "b")},
	{"a \\\n  --flag \\\n\tx", W("a", "--flag", "x")},
	{"a\\\n#b", W("a#b")},
	{"\"a\\\nb\"", W("ab")},
	{"'a\\\nb'", W("a\\\nb")},
	{"\"\\$\\`\\\"\\\\\"", W("$`\"\\")},
	{"\"\\a\\ \\'\"", W("\\a\\ \\'")},
	{"\\a\\$\\\"", W("a$\"")},
	{"$HOME && x | y > z", W("$HOME", "&&", "x", "|", "y", ">", "z")},
	{"a\rb\vc\f\xc2\xa0"
	 "d e",
		W("a\rb\vc\f\xc2\xa0"
		  "d",
			"e")},
	{"x'y'\"z\"w", W("xyzw")},
	{"\"\"", W("")},
	{"a\t\n\t b\n", W("a", "b")},
	{"\xff 'a\xff'", W("\xff", "a\xff")},
	{"echo a  'b c' \"d\\\"e\" #x y", W("echo", "a", "b c", "d\"e")},
};

static void splits_as_the_contract_says(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct err e = ERR_INIT;
		char **v = NULL;

		if (shlex_split(rows[i].text, &v, &e) < 0)
			fail_msg("%s: %s", rows[i].text, e.text);
		if (strv_len(v) != rows[i].n)
			fail_msg("%s: %zu words", rows[i].text, strv_len(v));
		for (size_t k = 0; k < rows[i].n; k++)
			assert_string_equal(v[k], rows[i].words[k]);
		strv_free(v);
	}
}

static void no_word_is_an_empty_list(void **state)
{
	static const char *const blank[] = {
		"", "   ", "\t\n ", "# x", " # x\n#y\n", "\\\n", " \\\n\\\n#"};

	for (size_t i = 0; i < ARRAY_LEN(blank); i++) {
		char **v = NULL;

		assert_int_equal(shlex_split(blank[i], &v, NULL), 0);
		assert_non_null(v);
		assert_int_equal(strv_len(v), 0);
		strv_free(v);
	}
}

static void what_is_open_is_unbalanced(void **state)
{
	static const char *const bad[] = {"a '", "a \"", "a \\", "'\\", "\"\\", "\"a\\\"",
		"sh -c 'oops", "a 'b' \"c", "a 'b\\'' ", "foo\"#bar"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct err e = ERR_INIT;
		char **v = NULL;

		if (shlex_split(bad[i], &v, &e) != -EINVAL)
			fail_msg("%s was accepted", bad[i]);
		assert_null(v);
		assert_string_equal(e.code, "S001");
		assert_non_null(strstr(e.text, "unbalanced"));
	}
}

/* A word written with each kind of quoting comes back as it was. */
static void quoting_round_trips(void **state)
{
	static const char alphabet[] = "a#\\'\"$` \t\n*\r\xc3\xa9";
	uint32_t seed = 1;

	for (int round = 0; round < 20000; round++) {
		char word[12], text[128] = "x ";
		size_t len, n = 2;
		char **v = NULL;

		seed = seed * 1664525u + 1013904223u;
		len = seed >> 29;
		for (size_t i = 0; i < len; i++) {
			seed = seed * 1664525u + 1013904223u;
			word[i] = alphabet[(seed >> 16) % (sizeof(alphabet) - 1)];
		}
		word[len] = 0;
		text[n++] = '\'';
		for (size_t i = 0; i < len; i++) {
			if (word[i] == '\'')
				n += snprintf(text + n, sizeof(text) - n, "'\\''");
			else
				text[n++] = word[i];
		}
		n += snprintf(text + n, sizeof(text) - n, "' \"");
		for (size_t i = 0; i < len; i++) {
			if (strchr("\\\"$`", word[i]))
				text[n++] = '\\';
			text[n++] = word[i];
		}
		snprintf(text + n, sizeof(text) - n, "\"");
		assert_int_equal(shlex_split(text, &v, NULL), 0);
		assert_int_equal(strv_len(v), 3);
		assert_string_equal(v[1], word);
		assert_string_equal(v[2], word);
		strv_free(v);
	}
}

/* Python's shlex in POSIX mode agrees as long as no # $ ` and no joined line is written. */
static void python_splits_the_same(void **state)
{
	static const char script[] =
		"import sys, shlex\n"
		"for line in sys.stdin.buffer.read().decode('latin-1').split('\\0')[:-1]:\n"
		"    try:\n"
		"        lex = shlex.shlex(line, posix=True, punctuation_chars=False)\n"
		"        lex.whitespace = ' \\t\\n'; lex.whitespace_split = True; lex.commenters = "
		"''\n"
		"        words = list(lex)\n"
		"        sys.stdout.write('%d;' % len(words) + ''.join(w + '\\1' for w in words) + "
		"'\\0')\n"
		"    except ValueError:\n"
		"        sys.stdout.write('?\\0')\n";
	static const char alphabet[] = "ab'\"\\ \t|";
	const char *argv[] = {"python3", "-c", script, NULL};
	struct buf in, theirs, ours;
	uint32_t seed = 7;

	buf_init(&in, 16u << 20);
	buf_init(&theirs, 16u << 20);
	buf_init(&ours, 16u << 20);
	for (int i = 0; i < 20000; i++) {
		char text[20];
		char **v = NULL;
		size_t len;

		seed = seed * 1664525u + 1013904223u;
		len = (seed >> 16) % 18;
		for (size_t k = 0; k < len; k++) {
			seed = seed * 1664525u + 1013904223u;
			text[k] = alphabet[(seed >> 16) % (sizeof(alphabet) - 1)];
		}
		text[len] = 0;
		buf_add(&in, text, len + 1);
		if (shlex_split(text, &v, NULL) < 0) {
			buf_add(&ours, "?", 2);
			continue;
		}
		buf_printf(&ours, "%zu;", strv_len(v));
		for (size_t k = 0; v[k]; k++)
			buf_printf(&ours, "%s\1", v[k]);
		buf_add(&ours, "", 1);
		strv_free(v);
	}
	assert_int_equal(peer_run(argv, NULL, in.data, in.len, &theirs), 0);
	assert_int_equal(ours.len, theirs.len);
	assert_memory_equal(ours.data, theirs.data, ours.len);
	buf_done(&in);
	buf_done(&theirs);
	buf_done(&ours);
}

static void long_lines_are_linear(void **state)
{
	size_t len = 8u << 20;
	cleanup_free char *text = xmalloc(len + 1);
	char **v = NULL;

	memset(text, '\\', len);
	text[len] = 0;
	assert_int_equal(shlex_split(text, &v, NULL), 0);
	assert_int_equal(strlen(v[0]), len / 2);
	strv_free(v);
	for (size_t i = 0; i < len; i++)
		text[i] = i & 1 ? ' ' : 'a';
	assert_int_equal(shlex_split(text, &v, NULL), 0);
	assert_int_equal(strv_len(v), len / 2);
	strv_free(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(splits_as_the_contract_says),
		cmocka_unit_test(no_word_is_an_empty_list),
		cmocka_unit_test(what_is_open_is_unbalanced),
		cmocka_unit_test(quoting_round_trips),
		cmocka_unit_test(python_splits_the_same),
		cmocka_unit_test(long_lines_are_linear),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
