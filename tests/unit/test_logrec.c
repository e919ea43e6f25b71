/* wire/logrec: lines out of bytes in any pieces, and their one encoding. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "wire/json.h"
#include "wire/logrec.h"

/* What a splitter gave: "text|" for a line and "text>" for a partial one. */
struct got {
	struct buf text;
	size_t raw, records, longest;
};

static void on_line(const char *text, size_t len, size_t raw, bool partial, void *user)
{
	struct got *g = user;

	assert_true(raw >= len && raw <= len + 2);
	assert_true(raw > 0 && len <= LOGREC_RAW_MAX);
	assert_int_equal(buf_add(&g->text, text, len), 0);
	assert_int_equal(buf_add(&g->text, partial ? ">" : "|", 1), 0);
	g->raw += raw;
	g->records++;
	g->longest = MAX(g->longest, len);
}

static void split_in(const char *data, size_t len, size_t piece, struct got *ret)
{
	struct logrec_splitter s = {0};

	*ret = (struct got){0};
	buf_init(&ret->text, 16u << 20);
	for (size_t at = 0; at < len; at += piece)
		logrec_split(&s, data + at, MIN(piece, len - at), on_line, ret);
	logrec_flush(&s, LOGREC_END, on_line, ret);
	assert_int_equal(ret->raw, len);
	assert_int_equal(s.len, 0);
}

static void check_split(const char *data, const char *want)
{
	size_t len = strlen(data);

	for (size_t piece = 1; piece <= len; piece++) {
		struct got g;

		split_in(data, len, piece, &g);
		assert_string_equal((char *)g.text.data, want);
		buf_done(&g.text);
	}
}

static void test_lines(void **state)
{
	(void)state;
	check_split("one\ntwo\n", "one|two|");
	check_split("\n\n", "||");
	check_split("a\r\n\r\nb\rc\n", "a||b\rc|");
	check_split("a\r\r\n", "a\r|");
	check_split("no end", "no end>");
	check_split("x\nend\r", "x|end\r>");
}

/* Lines around the longest one, in pieces that end everywhere near the cut. */
static void test_long(void **state)
{
	static const size_t pieces[] = {1, 7, 4096, LOGREC_RAW_MAX, LOGREC_RAW_MAX + 1, 1u << 20};
	static char line[3 * LOGREC_RAW_MAX];

	(void)state;
	memset(line, 'a', sizeof(line));
	for (size_t n = LOGREC_RAW_MAX - 2; n <= LOGREC_RAW_MAX + 4; n++) {
		for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
			struct got g;

			line[n] = '\r';
			line[n + 1] = '\n';
			split_in(line, n + 2, pieces[i], &g);
			assert_int_equal(g.records, n > LOGREC_RAW_MAX ? 2 : 1);
			assert_int_equal(g.longest, MIN(n, (size_t)LOGREC_RAW_MAX));
			assert_int_equal(g.text.data[g.text.len - 1], '|');
			buf_done(&g.text);
			line[n] = line[n + 1] = 'a';
		}
	}
}

/* Characters of 2, 3 and 4 bytes at every place of the cut stay whole. */
static void test_cut(void **state)
{
	static const char *const chars[] = {"ü", "€", "🙂"};
	static char line[LOGREC_RAW_MAX + 16];

	(void)state;
	for (size_t c = 0; c < ARRAY_LEN(chars); c++) {
		for (size_t at = LOGREC_RAW_MAX - 5; at <= LOGREC_RAW_MAX + 1; at++) {
			size_t n = strlen(chars[c]);
			struct got g;

			memset(line, 'a', sizeof(line));
			memcpy(line + at, chars[c], n);
			split_in(line, sizeof(line), 1, &g);
			assert_true(utf8_valid(g.text.data, g.text.len));
			assert_int_equal(g.records, 2);
			assert_int_equal(g.longest, at < LOGREC_RAW_MAX && at + n > LOGREC_RAW_MAX
							    ? at
							    : LOGREC_RAW_MAX);
			buf_done(&g.text);
		}
	}
	/* No character is cut here, so the piece is a full one. */
	memset(line, 0x80, sizeof(line));
	struct got g;
	split_in(line, sizeof(line), 5, &g);
	assert_int_equal(g.longest, LOGREC_RAW_MAX);
	buf_done(&g.text);
}

static void test_pause(void **state)
{
	struct logrec_splitter s = {0};
	struct got g = {0};

	(void)state;
	buf_init(&g.text, 4096);
	logrec_flush(&s, LOGREC_PAUSE, on_line, &g);
	assert_int_equal(g.records, 0);
	logrec_split(&s, "50 %\r", 5, on_line, &g);
	logrec_flush(&s, LOGREC_PAUSE, on_line, &g);
	assert_true(s.open);
	logrec_split(&s, "\nx\xf0\x9f\x99", 5, on_line, &g);
	assert_false(s.open);
	logrec_flush(&s, LOGREC_PAUSE, on_line, &g);
	logrec_flush(&s, LOGREC_PAUSE, on_line, &g);
	logrec_split(&s, "\x82y", 2, on_line, &g);
	logrec_flush(&s, LOGREC_PAUSE, on_line, &g);
	logrec_split(&s, "\xe2\x82", 2, on_line, &g);
	logrec_flush(&s, LOGREC_END, on_line, &g);
	assert_string_equal((char *)g.text.data, "50 %>|x>🙂y>\xe2\x82>");
	assert_int_equal(g.raw, 14);
	buf_done(&g.text);
}

static void check_encoded(const struct logrec *r, const char *want)
{
	cleanup_json json_object *o = NULL;
	cleanup_buf struct buf b;
	struct err e = ERR_INIT;
	uint64_t cursor = 0;

	buf_init(&b, LOGREC_JSON_MAX);
	assert_int_equal(logrec_encode(r, &b), 0);
	assert_string_equal((char *)b.data, want);
	if (json_parse_object((char *)b.data, b.len, &o, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(logrec_cursor((char *)b.data, b.len, &cursor), 0);
	assert_true(cursor == r->cursor);
	/* Torn anywhere: refused. */
	for (size_t n = 0; n < b.len; n++)
		assert_int_equal(logrec_cursor((char *)b.data, n, &cursor), -EINVAL);
}

#define RECORD(text)                                                                               \
	(struct logrec)                                                                            \
	{                                                                                          \
		.cursor = 18231, .ts_ms = 1790000000123, .instance = 7, .line = (text),            \
		.len = sizeof(text) - 1                                                            \
	}
#define HEAD "{\"cursor\":18231,\"ts_ms\":1790000000123,\"stream\":\"console\",\"line\":\""
#define TAIL "\",\"instance\":7}"

static void test_encode(void **state)
{
	struct logrec r = RECORD("listening on 3000");

	(void)state;
	check_encoded(&r, HEAD "listening on 3000" TAIL);
	r = RECORD("");
	check_encoded(&r, HEAD TAIL);
	r = RECORD("a\"b\\c/\t\r\x1b[0m\x7f");
	check_encoded(&r, HEAD "a\\\"b\\\\c/\\t\\r\\u001b[0m\x7f" TAIL);
	r = RECORD("a\0b\x1f");
	check_encoded(&r, HEAD "a\\u0000b\\u001f" TAIL);
	r = RECORD("wörker €🙂");
	check_encoded(&r, HEAD "wörker €🙂" TAIL);
	/* One for each byte: alone, overlong, a surrogate, cut short, above U+10FFFF. */
	r = RECORD("\xff|\xc0\x80|\xed\xa0\x80|\xf0\x9f\x99|\xf4\x90\x80\x80|\xe2\x82");
	check_encoded(&r, HEAD "\ufffd|\ufffd\ufffd|\ufffd\ufffd\ufffd|\ufffd\ufffd\ufffd|"
			       "\ufffd\ufffd\ufffd\ufffd|\ufffd\ufffd" TAIL);
	r = RECORD("x");
	r.cursor = r.ts_ms = r.instance = UINT64_MAX;
	r.stream = LOG_HOST;
	r.partial = true;
	check_encoded(&r, "{\"cursor\":18446744073709551615,\"ts_ms\":18446744073709551615,"
			  "\"stream\":\"host\",\"line\":\"x\",\"instance\":18446744073709551615,"
			  "\"partial\":true}");
}

/* The worst line fits the promised size; a buf that is too small takes nothing. */
static void test_size(void **state)
{
	static char line[LOGREC_RAW_MAX];
	struct logrec r = {.cursor = UINT64_MAX,
		.ts_ms = UINT64_MAX,
		.instance = UINT64_MAX,
		.stream = LOG_CONSOLE,
		.line = line,
		.len = sizeof(line),
		.partial = true};
	struct buf b;

	(void)state;
	buf_init(&b, LOGREC_JSON_MAX);
	assert_int_equal(logrec_encode(&r, &b), 0);
	assert_true(b.len > 6 * sizeof(line));
	buf_done(&b);
	buf_init(&b, LOGREC_JSON_MAX - 1);
	assert_int_equal(logrec_encode(&r, &b), -ENOBUFS);
	assert_int_equal(b.len, 0);
	buf_done(&b);
}

static void test_cursor(void **state)
{
	static const char *const bad[] = {"", "{}", "{\"cursor\":}", "{\"cursor\":1}",
		"{\"cursor\":-1,\"x\":1}", "{\"cursor\":18446744073709551616,}",
		"{\"cursor\":1.5,}", " {\"cursor\":1,}", "{\"cursor\":1,\"line\":\"\n\"}",
		"{\"cursor\":1,\"line\":\"\xff\"}", "{\"cursor\":1,\"line\":\"x\"} "};
	uint64_t v = 5;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(logrec_cursor(bad[i], strlen(bad[i]), &v), -EINVAL);
	assert_int_equal(logrec_cursor("{\"cursor\":1,\"l\":\"\0\"}", 20, &v), -EINVAL);
	assert_int_equal(v, 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_long),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_pause),
		cmocka_unit_test(test_encode),
		cmocka_unit_test(test_size),
		cmocka_unit_test(test_cursor),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
