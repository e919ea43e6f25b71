/* rx: Rust's dialect over RE2 - what matches, what is refused and why, scanning, cost; and
 * ripgrep, which is Rust's engine, on the same patterns. */
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
#include "peer.h"
#include "wire/rx.h"
#include "wire/rx_replace.h"

static struct rx *compile(const char *pattern, unsigned flags)
{
	struct err e = ERR_INIT;
	struct rx *rx = NULL;

	if (rx_new(pattern, strlen(pattern), flags, &rx, &e) < 0)
		fail_msg("%s: %s", pattern, e.text);
	return rx;
}

/* "s-e" of the first match and its groups, "-" for an unset one, "" for no match. */
static void spans_of(
	const char *pattern, unsigned flags, const char *line, size_t from, char dst[static 128])
{
	struct rx *rx = compile(pattern, flags);
	struct rx_span s[10];
	size_t n = MIN(rx_groups(rx), ARRAY_LEN(s)), len = 0;

	dst[0] = 0;
	rx_line(rx, line, strlen(line));
	if (rx_find(rx, from, s, n)) {
		assert_true(rx_find(rx, from, NULL, 0));
		for (size_t i = 0; i < n; i++) {
			if (s[i].start == RX_UNSET)
				len += snprintf(dst + len, 128 - len, "%s-", i ? " " : "");
			else
				len += snprintf(dst + len, 128 - len, "%s%zu-%zu", i ? " " : "",
					s[i].start, s[i].end);
		}
	} else {
		assert_false(rx_find(rx, from, NULL, 0));
	}
	rx_free(rx);
}

struct row {
	const char *pattern, *line, *spans;
};

static void check_rows(const struct row *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char got[128];

		spans_of(rows[i].pattern, 0, rows[i].line, 0, got);
		if (strcmp(got, rows[i].spans) != 0)
			fail_msg("%s on %s: %s instead of %s", rows[i].pattern, rows[i].line, got,
				rows[i].spans);
	}
}

#define E_ACUTE	   "\xc3\xa9" /* é */
#define E_ACUTE_UP "\xc3\x89" /* É */

static void matches_as_rust_does(void **state)
{
	static const struct row rows[] = {
		{"foo$", "foo", "0-3"},
		{"^foo\\z", "foo", "0-3"},
		{"(?m)^o", "foo", ""},
		{"a|ab", "ab", "0-1"},
		{"(a)|(b)", "b", "0-1 - 0-1"},
		{"", "abc", "0-0"},
		{"a**", "aa", "0-2"},
		{"a*+?{2}", "aa", "0-2"},
		{"a+?", "aa", "0-1"},
		{"(?U)a+", "aa", "0-1"},
		{"(?:a+){2}b{1,2}c{2,}d{,1}", "aabccc", "0-6"},
		{"x{0}y", "xy", "1-2"},
		{"(?P<n>a)(?<m>b)", "ab", "0-2 0-1 1-2"},
		{"(?x) a b # c\n c", "abc", "0-3"},
		{"(?x: a ) b", "a b", "0-3"},
		{"(?x)[ a b ]\\ c", "b c", "0-3"},
		{"(?i)ab(?-i)C", "ABC", "0-3"},
		{"(?i)ab(?-i)C", "ABc", ""},
		{"(a(?i)b)c", "aBC", ""},
		{"(?s).", "x", "0-1"},
		{"\\x41\\x{42}\\u0043\\u{44}\\U00000045", "ABCDE", "0-5"},
		{"\\.\\*\\-\\#\\ \\&\\~\\/", ".*-# &~/", "0-8"},
		{"]}", "]}", "0-2"},
		/* Unicode */
		{"\\d", "\xd9\xa3", "0-2"},
		{"\\w+", E_ACUTE "t" E_ACUTE, "0-5"},
		{"\\W", E_ACUTE "t" E_ACUTE "-", "5-6"},
		{"\\s", "a\xc2\xa0", "1-3"},
		{"\\S", "\xe3\x80\x80x", "3-4"},
		{"\\D\\d", "x\xe0\xa5\xa7", "0-4"},
		{"\\p{Greek}+", "a\xce\xb1\xce\xb2", "1-5"},
		{"\\p{sc=greek}\\P{L}\\p{^L}\\pL",
			"\xce\xb1"
			"1-a",
			"0-5"},
		{"\\p{Uppercase Letter}\\p{alphabetic}", "A\xe2\x93\x90", "0-4"},
		{"[[:alpha:][:^ascii:]]+", "x" E_ACUTE "1", "0-3"},
		{".", E_ACUTE, "0-2"},
		{"[^a]", E_ACUTE, "0-2"},
		/* classes */
		{"[a-z&&[^aeiou]]+", "aebcd", "2-5"},
		{"[a-z--[aeiou]]+", "aebcd", "2-5"},
		{"[a-f~~d-h]+", "defgh", "3-5"},
		{"[^a-z&&[^aeiou]]", "ba", "1-2"},
		{"[a[bc]&&[b]c]+", "abcb", "1-4"},
		{"[\\W\\d]+", "ab-1" E_ACUTE, "2-4"},
		{"[^\\W\\d]+", "1-ab" E_ACUTE "2", "2-6"},
		{"[a&&b]", "ab", ""},
		{"[^a&&b]+", "ab", "0-2"},
		{"[]a]+", "]a", "0-2"},
		{"[^]a]", "]b", "1-2"},
		{"[-a]+", "-a", "0-2"},
		{"[a-]+", "a-", "0-2"},
		{"[\\-a\\]]+", "-a]", "0-3"},
		{"[\\p{Greek}&&\\pL]+", "a\xce\xb1", "1-3"},
		{"[\\d&&[^5]]+", "567", "1-3"},
		{"[a-c[^a-z]]+", "xa1", "1-3"},
		{"(?i)[k&&[k]]", "\xe2\x84\xaa", "0-3"},
		{"(?i)[a-z--k]", "K", ""},
		{"[[:x]]+", ":x", "0-2"},
		/* \b sees Unicode's words */
		{"\\bt", E_ACUTE "t", ""},
		{"\\b\\w+\\b", "-" E_ACUTE "t" E_ACUTE "-", "1-6"},
		{E_ACUTE "\\B", E_ACUTE "t", "0-2"},
		{E_ACUTE "\\b", E_ACUTE "t", ""},
		{"\\b(" E_ACUTE ")(x)?\\b", "x " E_ACUTE " y", "2-4 2-4 -"},
		{"\\b", E_ACUTE, "0-0"},
		{"\\B", E_ACUTE, ""},
		{"^\\b.{3}\\b$", "\xf0\x9d\x94\xb8" E_ACUTE "w", "0-7"},
		{"(?i)\\b" E_ACUTE "\\b", "a " E_ACUTE_UP, "2-4"},
		{"\\b[^x]+\\b", "x" E_ACUTE " y" E_ACUTE, "3-7"},
		{"a\\b", "ba", "1-2"},
	};

	check_rows(rows, ARRAY_LEN(rows));
}

static void ignoring_case_is_simple_folding(void **state)
{
	char got[128];

	spans_of(E_ACUTE, RX_IGNORE_CASE, "x" E_ACUTE_UP, 0, got);
	assert_string_equal(got, "1-3");
	spans_of("\xc3\x9f", RX_IGNORE_CASE, "SS", 0, got);
	assert_string_equal(got, "");
	spans_of("\xc3\x9f", RX_IGNORE_CASE, "\xe1\xba\x9e", 0, got);
	assert_string_equal(got, "0-3");
	spans_of("(?-i)a", RX_IGNORE_CASE, "A", 0, got);
	assert_string_equal(got, "");
}

static void literal_text_means_itself(void **state)
{
	char got[128];

	spans_of("A.B", RX_LITERAL | RX_IGNORE_CASE, "axb a.b", 0, got);
	assert_string_equal(got, "4-7");
	spans_of("a\\b(", RX_LITERAL, "xa\\b(", 0, got);
	assert_string_equal(got, "1-5");
	spans_of(E_ACUTE, RX_LITERAL | RX_IGNORE_CASE, E_ACUTE_UP, 0, got);
	assert_string_equal(got, "0-2");
}

static void searching_on_remembers_what_stands_before(void **state)
{
	char got[128];

	spans_of("^a", 0, "aa", 1, got);
	assert_string_equal(got, "");
	spans_of("\\ba", 0, "aa a", 1, got);
	assert_string_equal(got, "3-4");
	spans_of("\\ba", 0, E_ACUTE "a a", 2, got);
	assert_string_equal(got, "4-5");
	spans_of("a*", 0, "baac", 4, got);
	assert_string_equal(got, "4-4");
	spans_of("$", 0, "", 0, got);
	assert_string_equal(got, "0-0");
}

static void groups_have_names(void **state)
{
	struct rx *rx = compile("(a)(?P<first>b)(?:c)(?<_x.1>d)", 0);

	assert_int_equal(rx_groups(rx), 4);
	assert_int_equal(rx_group_named(rx, "first", 5), 2);
	assert_int_equal(rx_group_named(rx, "_x.1", 4), 3);
	assert_int_equal(rx_group_named(rx, "fir", 3), -1);
	rx_free(rx);
}

static void refused(const char *pattern, const char *why)
{
	struct err e = ERR_INIT;
	struct rx *rx = NULL;

	if (rx_new(pattern, strlen(pattern), 0, &rx, &e) != -EINVAL)
		fail_msg("%s was accepted", pattern);
	assert_null(rx);
	assert_string_equal(e.code, "S217");
	if (!strstr(e.text, why))
		fail_msg("%s: \"%s\" does not say \"%s\"", pattern, e.text, why);
}

static void refuses_with_a_reason(void **state)
{
	static const char *const rows[][2] = {
		{"(", "not closed"},
		{"a)", "closes no group"},
		{"(?=x)", "look-around"},
		{"(?!x)", "look-around"},
		{"(?<=x)", "look-around"},
		{"(?<!x)", "look-around"},
		{"(a)\\1", "back-reference"},
		{"\\0", "back-reference"},
		{"[", "not closed"},
		{"[a", "not closed"},
		{"[]", "not closed"},
		{"[a[b]", "not closed"},
		{"[z-a]", "backwards"},
		{"[a-\\d]", "class"},
		{"[\\d-z]", "class"},
		{"[a\\b]", "inside a class"},
		{"*a", "nothing to repeat"},
		{"a|+", "nothing to repeat"},
		{"(?i)*", "nothing to repeat"},
		{"(*)", "nothing to repeat"},
		{"{2}", "nothing to repeat"},
		{"a{", "braces"},
		{"a{x}", "braces"},
		{"a{}", "braces"},
		{"a{,}", "braces"},
		{"a{1,2", "braces"},
		{"a{2,1}", "backwards"},
		{"a{1001}", "1000"},
		{"x{1000}{1000}", "too big"},
		{"((x{100}){100}){100}", "too big"},
		{"\\w{900}", "too big"},
		{"\\", "last character"},
		{"\\y", "\\y"},
		{"\\Q", "\\Q"},
		{"\\C", "\\C"},
		{"\\Z", "\\Z"},
		{"\\" E_ACUTE, "needs none"},
		{"(?P<a>x)(?<a>y)", "one name"},
		{"(?<1a>x)", "name"},
		{"(?<>x)", "name"},
		{"(?<ab", "name"},
		{"(?P=a)", "flags"},
		{"(?z)", "flags"},
		{"(?)", "flags"},
		{"(?i-)", "flags"},
		{"(?ii)", "flags"},
		{"(?-u)a", "Unicode"},
		{"\\p{Nope}", "property"},
		{"\\p{", "property"},
		{"\\p", "property"},
		{"[\\p{Nope}&&a]", "property"},
		{"\\x4", "hexadecimal"},
		{"\\x{}", "hexadecimal"},
		{"\\x{110000}", "code point"},
		{"\\x{D800}", "surrogate"},
		{"\xff", "UTF-8"},
		{"\\b{start}", "braces"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		refused(rows[i][0], rows[i][1]);
}

static void refuses_what_is_too_deep_or_too_long(void **state)
{
	size_t n = RX_PATTERN_MAX + 1;
	cleanup_free char *text = xcalloc(1, n + 1);

	memset(text, '(', n - 1);
	refused(text, "deeper");
	memset(text, '[', n - 1);
	refused(text, "deeper");
	memset(text, '*', n - 1);
	text[0] = 'a';
	refused(text, "deeper");
	memset(text, 'a', n);
	refused(text, "bytes");
	for (size_t i = 0; i + 5 < n; i += 5)
		memcpy(text + i, "[\\W]a", 5);
	text[n - 2] = 0;
	refused(text, "computed");
}

static void big_programs_are_counted_as_in_rust(void **state)
{
	rx_free(compile("\\w{100}", 0));
	rx_free(compile("\\pL{100}", 0));
	rx_free(compile("(?:\\b\\w+\\b ){10}", 0));
	refused("\\w{600}", "too big");
}

/* Every line that matches lies behind a place that rx_scan gives. */
static void scanning_misses_no_line(void **state)
{
	static const char *const patterns[] = {"foo$", "^foo", "^$", "\\bfoo\\b", "o\\B", "f.o",
		"[^x]o", "\\s+$", "(?i)FOO", "foo|bar", "x*", E_ACUTE, "(?s)o.b", "[\\s\\S]bar",
		"fo+\\b", "\\W", "\n", "\\Afoo\\z", "(a|b)", "\xef\xbf\xbd", "fo{2}", "fo?o",
		"(?:)foo(?:bar)?", "\r", "o\\r?$", "(?m)^bar$", "[^a]*foo", "(foo|bar)",
		"\\b(?:foo|bar)?x", "(fo|ba)+r", "(?i)bar|x", "(?i:BA)r", "foo|(bar|oo)",
		"(f(oo)*|ba)", "fo*o|b{0,3}ar", "(?i)\\bfo", "(foo){0}x|oo", "oo|",
		"(?x) foo | bar", "((foo)|(bar))", "foo|bar|FOO|oo|ba", "(a|foo)(bar|x)"};
	static const char *const lines[] = {"foo", "", "barfoo", "foo bar", "FOO",
		E_ACUTE "foo" E_ACUTE, "x" E_ACUTE "x", "  ", "fo\xffo",
		"f\xff"
		"foo",
		"bar\r", "oo"};

	for (size_t p = 0; p < ARRAY_LEN(patterns); p++) {
		struct rx *rx = compile(patterns[p], 0);

		for (uint32_t seed = 1; seed < 60; seed++) {
			struct buf block;
			size_t starts[17], n = 16, at = 0, next = 0;

			buf_init(&block, 4096);
			for (size_t i = 0; i < n; i++) {
				uint32_t k = (seed * 2654435761u + (uint32_t)i * 40503u) >> 7;

				starts[i] = block.len;
				buf_add_str(&block, lines[k % ARRAY_LEN(lines)]);
				buf_add_str(&block, k & 1 ? "\n" : "\r\n");
			}
			starts[n] = block.len;
			while (rx_scan(rx, (char *)block.data, block.len, at, &at)) {
				assert_true(at <= block.len);
				while (next < n && starts[next + 1] <= at)
					next++;
				if (next == n)
					break;
				at = starts[next + 1];
				starts[next] = SIZE_MAX; /* seen */
				next++;
			}
			for (size_t i = 0, from = 0; i < n; i++) {
				char *end = memchr(block.data + from, '\n', block.len - from);
				size_t len = (size_t)(end - (char *)block.data) - from;
				size_t body = len && end[-1] == '\r' ? len - 1 : len;
				char *line = (char *)block.data + from;

				from += len + 1;
				if (starts[i] == SIZE_MAX)
					continue;
				rx_line(rx, line, body);
				if (rx_find(rx, 0, NULL, 0))
					fail_msg("%s: line %.*s was missed", patterns[p], (int)body,
						line);
			}
			buf_done(&block);
		}
		rx_free(rx);
	}
}

static void time_is_linear(void **state)
{
	size_t n = 4u << 20;
	cleanup_free char *line = xmalloc(n + 1);
	struct rx *rx = compile("(a*)*b|(a|a)*c|(a|aa)+$x", 0);
	struct rx_span s[4];

	memset(line, 'a', n);
	rx_line(rx, line, n);
	assert_false(rx_find(rx, 0, s, 4));
	rx_free(rx);
	rx = compile("\\b(a*)*b\\b", 0);
	memcpy(line, E_ACUTE, 2);
	rx_line(rx, line, n);
	assert_false(rx_find(rx, 0, s, 1));
	rx_free(rx);
}

static void replaces_as_the_contract_says(void **state)
{
	static const struct {
		const char *pattern, *replacement;
		unsigned flags;
		bool first_only;
		const char *line, *result;
		ssize_t n;
	} rows[] = {
		{"name: (\\w+)", "user=$1", 0, false, "name: al, name: bo", "user=al, user=bo", 2},
		{"A.B", "$1", RX_LITERAL | RX_IGNORE_CASE, false, "a.b axb", "$1 axb", 1},
		{"a*", "X", 0, false, "baac", "XbXcX", 3},
		{"\\s+$", "", 0, false, "a  ", "a", 1},
		{"a", "b", 0, true, "aaa", "baa", 1},
		{"", "-", 0, false, E_ACUTE "x", "-" E_ACUTE "-x-", 3},
		{"", "-", 0, true, E_ACUTE, "-" E_ACUTE, 1},
		{"x", "y", 0, false, "abc", "", 0},
		{"(a)(b)?", "[$0|$1|$2|$3|$9999999999999999999999]", 0, false, "a", "[a|a|||]", 1},
		{"(?P<n>a)", "$n ${n} $nx ${n}x $$n $", 0, false, "a", "a a  ax $n $", 1},
		{"(a)", "$1x-${1}x", 0, false, "a", "-ax", 1},
		{"(a)", "$01 \\1 $-", 0, false, "a", "a \\1 $-", 1},
		{"(a)", "${1 $ ${}", 0, false, "a", "", 1},
		{"(a)", "${1", 0, false, "a", "${1", 1},
		{"(?<a.b>x)", "${a.b}$a.b", 0, false, "x", "x.b", 1},
		{"\\b", "|", 0, false, E_ACUTE "t x", "|" E_ACUTE "t| |x|", 4},
		{"^", "> ", 0, false, "", "> ", 1},
		{"a|b*", "_", 0, false, "abb", "__", 2},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *text = rows[i].replacement;
		struct rx *rx = compile(rows[i].pattern, rows[i].flags);
		struct rx_template *t = rx_template_new(rx, text, strlen(text), rows[i].flags);
		struct buf out;
		ssize_t n;

		buf_init(&out, 1000);
		n = rx_replace(rx, t, rows[i].line, strlen(rows[i].line), rows[i].first_only, &out);
		if (n != rows[i].n || strcmp(out.data ? (char *)out.data : "", rows[i].result) != 0)
			fail_msg("s/%s/%s/ on %s: %zd, %s", rows[i].pattern, text, rows[i].line, n,
				out.data ? (char *)out.data : "");
		buf_done(&out);
		rx_template_free(t);
		rx_free(rx);
	}
}

static void replacing_stops_at_the_ceiling(void **state)
{
	struct rx *rx = compile("a", 0);
	struct rx_template *t = rx_template_new(rx, "bbbbbbbb", 8, 0);
	struct buf out;

	buf_init(&out, 20);
	assert_int_equal(rx_replace(rx, t, "aaa", 3, false, &out), -ENOBUFS);
	buf_done(&out);
	rx_template_free(t);
	rx_free(rx);
}

/* --- ripgrep --- */

static void random_pattern(uint32_t *seed, char dst[static 96])
{
	static const char *const bits[] = {"a", "b", "-", E_ACUTE, "\\b", "\\B", "\\w", "\\W",
		"\\s", "\\d", ".", "[^a]", "[a-z&&[^b]]", "[\\W\\d]", "(a|b)", "(?:ab)", "(?i:A)",
		"^", "$", "\\S", "(?i)" E_ACUTE_UP, "\\pL", "\\P{Lu}", "[[:upper:]" E_ACUTE "]",
		"x|y", "(?x: a b )", "[^\\w]", "\\x{e9}", "[a\\--]"};
	static const char *const reps[] = {
		"", "", "", "", "*", "+", "?", "{2}", "{1,2}", "*?", "**"};
	size_t n = 0;

	dst[0] = 0;
	*seed = *seed * 1664525u + 1013904223u;
	for (uint32_t k = 1 + (*seed >> 16) % 4; k; k--) {
		*seed = *seed * 1664525u + 1013904223u;
		n += snprintf(dst + n, 96 - n, "%s%s", bits[(*seed >> 8) % ARRAY_LEN(bits)],
			reps[(*seed >> 20) % ARRAY_LEN(reps)]);
	}
}

static void make_lines(struct buf *text, uint32_t seed)
{
	static const char *const bits[] = {"a", "b", "ab", "A", "B", E_ACUTE, E_ACUTE_UP, "-", " ",
		"1", "_", "x", "y", "\xc2\xa0", "\xce\xb1", "\xd9\xa3"};

	for (int i = 0; i < 400; i++) {
		seed = seed * 1664525u + 1013904223u;
		for (uint32_t k = (seed >> 16) % 7; k; k--) {
			seed = seed * 1664525u + 1013904223u;
			buf_add_str(text, bits[(seed >> 16) % ARRAY_LEN(bits)]);
		}
		buf_add_str(text, "\n");
	}
}

static size_t utf8_len(const char *s)
{
	size_t n = 1;

	while (((unsigned char)s[n] & 0xc0) == 0x80)
		n++;
	return n;
}

/* What rg -onb prints: line, offset, text of each match that is not empty. With `first_only` what
 * it prints for --column: line, column of the first match, the line. */
static void our_matches(struct rx *rx, const struct buf *text, bool first_only, struct buf *out)
{
	int number = 1;

	for (size_t from = 0; from < text->len; number++) {
		char *line = (char *)text->data + from;
		size_t len = (size_t)(strchr(line, '\n') - line), at = 0, last = RX_UNSET;
		struct rx_span s;

		rx_line(rx, line, len);
		if (first_only && rx_find(rx, 0, &s, 1))
			buf_printf(out, "%d:%zu:%.*s\n", number, s.start + 1, (int)len, line);
		while (!first_only && at <= len && rx_find(rx, at, &s, 1)) {
			at = s.end;
			if (s.end == s.start) {
				/* The next search begins one character on; an empty match right
				 * behind the last one is none. */
				at += at < len && (line[at] & 0x80) ? utf8_len(line + at) : 1;
				if (s.end == last)
					continue;
			}
			last = s.end;
			if (s.end > s.start)
				buf_printf(out, "%d:%zu:%.*s\n", number, from + s.start,
					(int)(s.end - s.start), line + s.start);
		}
		from += len + 1;
	}
}

/* Takes the empty matches out of rg's answer: it sees them inside characters, too. */
static void drop_empty(struct buf *out)
{
	size_t n = 0;

	for (size_t from = 0; from < out->len;) {
		uint8_t *line = out->data + from, *end = memchr(line, '\n', out->len - from);
		size_t len = (size_t)(end - line) + 1;
		bool empty = len >= 2 && end[-1] == ':';

		from += len;
		if (empty)
			continue;
		memmove(out->data + n, line, len);
		n += len;
	}
	out->len = n;
}

/* The first line of a that differs from b's. */
static const char *first_difference(const struct buf *a, const struct buf *b)
{
	size_t line = 0;

	for (size_t i = 0; i < a->len && i < b->len && a->data[i] == b->data[i]; i++)
		if (a->data[i] == '\n')
			line = i + 1;
	return line < a->len ? (char *)a->data + line : "(nothing)";
}

static int ask_rg(const char *pattern, bool first_only, const struct buf *text, struct buf *out)
{
	const char *argv[] = {"rg", "--no-config", "-a", "-n", first_only ? "--column" : "-ob",
		"--no-heading", "--color=never", "--no-filename", "-e", pattern, "-", NULL};
	int status;

	buf_clear(out);
	status = peer_run(argv, NULL, text->data, text->len, out);
	assert_true(WIFEXITED(status));
	if (!first_only)
		drop_empty(out);
	return WEXITSTATUS(status);
}

static bool same(const struct buf *a, const struct buf *b)
{
	return a->len == b->len && (!a->len || memcmp(a->data, b->data, a->len) == 0);
}

/* With \b or \B only the first match of a line is compared: the engine of Debian's ripgrep is from
 * 2021 and loses later ones (it does not see "-" in "a-" for \b\W?). */
static void ripgrep_finds_the_same(void **state)
{
	struct buf text, ours, theirs;
	uint32_t seed = 11;
	int compared = 0, said = 0;

	buf_init(&text, 1u << 20);
	buf_init(&ours, 1u << 20);
	buf_init(&theirs, 1u << 20);
	make_lines(&text, 5);
	while (compared < 400) {
		char pattern[96];
		struct rx *rx = NULL;
		bool first_only;

		random_pattern(&seed, pattern);
		first_only = strstr(pattern, "\\b") || strstr(pattern, "\\B");
		buf_clear(&ours);
		if (ask_rg(pattern, first_only, &text, &theirs) == 2) {
			assert_true(rx_new(pattern, strlen(pattern), 0, &rx, NULL) < 0);
			continue;
		}
		compared++;
		rx = compile(pattern, 0);
		our_matches(rx, &text, first_only, &ours);
		rx_free(rx);
		said += ours.len > 0;
		if (!same(&ours, &theirs))
			fail_msg("%s:\nwe say\n%.40s\nrg says\n%.40s", pattern,
				first_difference(&ours, &theirs), first_difference(&theirs, &ours));
	}
	assert_true(said > 200);
	buf_done(&text);
	buf_done(&ours);
	buf_done(&theirs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(matches_as_rust_does),
		cmocka_unit_test(ignoring_case_is_simple_folding),
		cmocka_unit_test(literal_text_means_itself),
		cmocka_unit_test(searching_on_remembers_what_stands_before),
		cmocka_unit_test(groups_have_names),
		cmocka_unit_test(refuses_with_a_reason),
		cmocka_unit_test(refuses_what_is_too_deep_or_too_long),
		cmocka_unit_test(big_programs_are_counted_as_in_rust),
		cmocka_unit_test(scanning_misses_no_line),
		cmocka_unit_test(time_is_linear),
		cmocka_unit_test(replaces_as_the_contract_says),
		cmocka_unit_test(replacing_stops_at_the_ceiling),
		cmocka_unit_test(ripgrep_finds_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
