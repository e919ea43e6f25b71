/* How it works
 *
 * One pass over the pattern, with a stack of the groups that are open. Each atom is written as it
 * is read; the place where the last one began is kept, for a second repetition has to be put around
 * the first ("a**" is "(?:a*)*": RE2 takes stacked ones for a mistake). Only the flags i and U mean
 * anything to RE2 afterwards: m and s make no difference within one line, x is dealt with here.
 *
 * Names of groups stay here; RE2 sees numbers only.
 *
 * On the way the literals are gathered that a match cannot be without (rx_literal.h), so that a
 * search may look for them first.
 *
 * Refused (S217): see wire/rx.h. Limits: RX_NEST_MAX levels, 4 MiB of RE2's text.
 */
#include "wire/rx_syntax.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "wire/rx_class.h"

#define RE2_TEXT_MAX (4u << 20)
#define REPEAT_MAX   1000 /* RE2's own limit */
#define NONE	     SIZE_MAX

struct frame {
	size_t atom_at; /* where the group begins in the output */
	bool ignore_case, verbose;
};

struct translator {
	struct rx_cursor c;
	enum rx_form form;
	struct rx_pattern *out;
	struct frame *frames;
	unsigned depth, frames_cap;
	size_t atom_at;	  /* of the last atom, or NONE when nothing can be repeated */
	unsigned stacked; /* repetitions on it */
	struct rx_literal_builder literals;
};

static int put(struct translator *t, const char *text)
{
	if (buf_add_str(&t->out->re2, text) < 0)
		return rx_bad(&t->c, "it is too big");
	return 0;
}

static void no_literal(struct translator *t)
{
	rx_literal_other(&t->literals, t->depth);
}

/* --- atoms --- */

static void atom_begin(struct translator *t)
{
	t->atom_at = t->out->re2.len;
	t->stacked = 0;
}

/* In front of and behind what matches one character. */
static int tag(struct translator *t, bool behind)
{
	if (t->form != RX_FORM_TAGGED)
		return 0;
	return put(t, behind ? "[w.])" : "(?:[w.]");
}

static int take_literal(struct translator *t)
{
	const char *from = t->c.p;
	uint32_t ch = rx_take_char(&t->c);
	int r;

	atom_begin(t);
	rx_literal_char(&t->literals, t->depth, from, (size_t)(t->c.p - from), t->c.ignore_case);
	r = tag(t, false);
	if (r == 0 && rx_write_char(&t->out->re2, ch) < 0)
		r = rx_bad(&t->c, "it is too big");
	return r < 0 ? r : tag(t, true);
}

static int take_dot(struct translator *t)
{
	int r;

	t->c.p++;
	atom_begin(t);
	no_literal(t);
	r = tag(t, false);
	if (r == 0)
		r = put(t, ".");
	return r < 0 ? r : tag(t, true);
}

/* `what`: ^ $ A z b B */
static int put_assertion(struct translator *t, char what)
{
	bool scan = t->form == RX_FORM_SCAN;

	atom_begin(t);
	rx_literal_assertion(&t->literals);
	switch (what) {
	case '^':
	case 'A':
		return put(t, scan ? "(?m:^)" : "\\A");
	case '$':
	case 'z':
		return put(t, scan ? "(?:\\r?(?m:$))" : "\\z");
	default:
		t->out->boundary = true;
		/* Which words there are is looked at in the line that is found. */
		return put(t, scan ? "(?:)" : what == 'b' ? "\\b" : "\\B");
	}
}

static size_t utf8_encode(char dst[static 4], uint32_t ch)
{
	if (ch < 0x80) {
		dst[0] = (char)ch;
		return 1;
	}
	if (ch < 0x800) {
		dst[0] = (char)(0xc0 | ch >> 6);
		dst[1] = (char)(0x80 | (ch & 0x3f));
		return 2;
	}
	if (ch < 0x10000) {
		dst[0] = (char)(0xe0 | ch >> 12);
		dst[1] = (char)(0x80 | (ch >> 6 & 0x3f));
		dst[2] = (char)(0x80 | (ch & 0x3f));
		return 3;
	}
	dst[0] = (char)(0xf0 | ch >> 18);
	dst[1] = (char)(0x80 | (ch >> 12 & 0x3f));
	dst[2] = (char)(0x80 | (ch >> 6 & 0x3f));
	dst[3] = (char)(0x80 | (ch & 0x3f));
	return 4;
}

static int take_escape(struct translator *t)
{
	char items[RX_ITEMS_MAX], bytes[4];
	enum rx_escape kind;
	bool negated = false;
	uint32_t ch;
	int r;

	t->c.p++;
	r = rx_take_escape(&t->c, &kind, &ch, items, &negated);
	if (r < 0)
		return r;
	if (kind == RX_ESC_ASSERT)
		return put_assertion(t, (char)ch);
	atom_begin(t);
	r = tag(t, false);
	if (r < 0)
		return r;
	if (kind == RX_ESC_CHAR) {
		rx_literal_char(
			&t->literals, t->depth, bytes, utf8_encode(bytes, ch), t->c.ignore_case);
		r = rx_write_char(&t->out->re2, ch);
	} else {
		no_literal(t);
		r = buf_printf(&t->out->re2, "[%s%s]", negated ? "^" : "", items);
	}
	return r < 0 ? rx_bad(&t->c, "it is too big") : tag(t, true);
}

static int take_class(struct translator *t)
{
	int r;

	t->c.p++;
	atom_begin(t);
	no_literal(t);
	r = tag(t, false);
	if (r == 0)
		r = rx_take_class(&t->c, t->depth + 1, &t->out->re2);
	return r < 0 ? r : tag(t, true);
}

/* --- groups --- */

static int push_frame(struct translator *t, size_t at)
{
	if (t->depth == RX_NEST_MAX)
		return rx_bad(&t->c, "it is nested deeper than %d levels", RX_NEST_MAX);
	if (t->depth == t->frames_cap) {
		t->frames_cap = t->frames_cap ? t->frames_cap * 2 : 16;
		t->frames = xrealloc(t->frames, t->frames_cap, sizeof(*t->frames));
	}
	t->frames[t->depth++] = (struct frame){
		.atom_at = at, .ignore_case = t->c.ignore_case, .verbose = t->c.verbose};
	t->atom_at = NONE;
	return 0;
}

static bool is_name_char(uint32_t ch, bool first)
{
	bool letter =
		(ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_' || ch > 0x7f;

	return letter ||
	       (!first && ((ch >= '0' && ch <= '9') || ch == '.' || ch == '[' || ch == ']'));
}

/* Behind "(?<" or "(?P<". */
static int take_name(struct translator *t)
{
	struct rx_pattern *out = t->out;
	const char *name = t->c.p;
	size_t len;

	while (t->c.p < t->c.end && *t->c.p != '>')
		if (!is_name_char(rx_take_char(&t->c), t->c.p == name))
			return rx_bad(
				&t->c, "a group's name has a character that names cannot have");
	len = (size_t)(t->c.p - name);
	if (t->c.p == t->c.end)
		return rx_bad(&t->c, "a group's name is not closed with >");
	if (!len)
		return rx_bad(&t->c, "a group's name is empty");
	t->c.p++;
	for (size_t i = 0; i < out->names_n; i++)
		if (out->names[i].len == len && memcmp(out->names[i].name, name, len) == 0)
			return rx_bad(&t->c, "two groups have one name");
	if ((out->names_n & (out->names_n + 1)) == 0)
		out->names = xrealloc(out->names, 2 * (out->names_n + 1), sizeof(*out->names));
	out->names[out->names_n++] =
		(struct rx_name){.name = xstrndup(name, len), .len = len, .group = out->groups + 1};
	return 0;
}

static int capture(struct translator *t)
{
	size_t at = t->out->re2.len;
	int r;

	rx_literal_open(&t->literals, t->depth);
	r = push_frame(t, at);
	t->out->groups++;
	return r < 0 ? r : put(t, "(");
}

/* Behind "(?": flags up to ":" or ")". */
static int take_flags(struct translator *t)
{
	char on[3] = "", off[3] = "", seen[8] = "";
	bool negated = false, dangling = false, i = t->c.ignore_case, x = t->c.verbose;
	size_t at = t->out->re2.len;
	char ch;
	int r = 0;

	for (;; dangling = ch == '-') {
		if (t->c.p == t->c.end)
			return rx_bad(&t->c, "a group is not closed");
		ch = *t->c.p++;
		if (ch == ':' || ch == ')')
			break;
		if (ch == '-') {
			if (negated)
				return rx_bad(&t->c, "flags are switched off twice");
			negated = true;
			continue;
		}
		if (!strchr("imsUux", ch) || strchr(seen, ch))
			return rx_bad(&t->c, "a group begins with unknown or repeated flags");
		seen[strlen(seen)] = ch;
		if (ch == 'u' && negated)
			return rx_bad(&t->c, "Unicode cannot be switched off");
		if (ch == 'i')
			i = !negated;
		if (ch == 'x')
			x = !negated;
		if (ch == 'i' || ch == 'U')
			(negated ? off : on)[strlen(negated ? off : on)] = ch;
	}
	if (dangling || (ch == ')' && !seen[0]))
		return rx_bad(&t->c, "flags are missing");
	if (ch == ':') {
		rx_literal_open(&t->literals, t->depth);
		r = push_frame(t, at);
	} else {
		no_literal(t);
	}
	t->c.ignore_case = i;
	t->c.verbose = x;
	t->atom_at = NONE;
	if (r == 0 && (ch == ':' || on[0] || off[0]) &&
		buf_printf(&t->out->re2, "(?%s%s%s%c", on, off[0] ? "-" : "", off, ch) < 0)
		r = rx_bad(&t->c, "it is too big");
	return r;
}

static int take_open(struct translator *t)
{
	const char *p = ++t->c.p;
	size_t left;
	int r;

	rx_skip_verbose(&t->c);
	p = t->c.p;
	left = (size_t)(t->c.end - p);
	if (!left || *p != '?')
		return capture(t);
	if (left >= 2 && (p[1] == '=' || p[1] == '!'))
		return rx_bad(&t->c, "look-around is not supported");
	if (left >= 3 && p[1] == '<' && (p[2] == '=' || p[2] == '!'))
		return rx_bad(&t->c, "look-around is not supported");
	if (left >= 3 && (p[1] == '<' || (p[1] == 'P' && p[2] == '<'))) {
		t->c.p += p[1] == '<' ? 2 : 3;
		r = take_name(t);
		return r < 0 ? r : capture(t);
	}
	t->c.p++;
	return take_flags(t);
}

static int take_close(struct translator *t)
{
	struct frame *f;

	if (!t->depth)
		return rx_bad(&t->c, "a ) closes no group");
	t->c.p++;
	f = &t->frames[--t->depth];
	t->c.ignore_case = f->ignore_case;
	t->c.verbose = f->verbose;
	t->atom_at = f->atom_at;
	t->stacked = 0;
	rx_literal_close(&t->literals, t->depth);
	return put(t, ")");
}

static int take_bar(struct translator *t)
{
	t->c.p++;
	t->atom_at = NONE;
	rx_literal_bar(&t->literals, t->depth);
	return put(t, "|");
}

/* --- repetitions --- */

/* Digits at the cursor as a number up to REPEAT_MAX; 1 when there were some, 0 for none. */
static int take_number(struct translator *t, uint32_t *ret)
{
	const char *from;
	uint32_t v = 0;

	rx_skip_verbose(&t->c);
	from = t->c.p;
	for (; t->c.p < t->c.end && *t->c.p >= '0' && *t->c.p <= '9'; t->c.p++) {
		v = v * 10 + (uint32_t)(*t->c.p - '0');
		if (v > REPEAT_MAX)
			return rx_bad(&t->c, "it repeats something more than %d times", REPEAT_MAX);
	}
	*ret = v;
	return t->c.p > from;
}

/* Behind "{": {n}, {n,}, {n,m}, {,m}. */
static int take_counts(struct translator *t, uint32_t *ret_min, char op[static 32])
{
	bool comma, has_min, has_max = false;
	uint32_t min = 0, max = 0;
	int r = take_number(t, &min);

	if (r < 0)
		return r;
	has_min = r > 0;
	rx_skip_verbose(&t->c);
	comma = t->c.p < t->c.end && *t->c.p == ',';
	if (comma) {
		t->c.p++;
		r = take_number(t, &max);
		if (r < 0)
			return r;
		has_max = r > 0;
	}
	rx_skip_verbose(&t->c);
	if (t->c.p == t->c.end || *t->c.p++ != '}' || (!has_min && !has_max))
		return rx_bad(&t->c, "a repetition in braces is not well formed");
	if (has_max && min > max)
		return rx_bad(&t->c, "a repetition's range runs backwards");
	*ret_min = min;
	if (has_max)
		snprintf(op, 32, "{%u,%u}", min, max);
	else
		snprintf(op, 32, comma ? "{%u,}" : "{%u}", min);
	return 0;
}

/* Puts "(?:" and ")" around the last atom. */
static int wrap_atom(struct translator *t)
{
	struct buf *b = &t->out->re2;
	size_t len = b->len - t->atom_at;
	int r = put(t, "(?:)");

	if (r < 0)
		return r;
	memmove(b->data + t->atom_at + 3, b->data + t->atom_at, len);
	memcpy(b->data + t->atom_at, "(?:", 3);
	b->data[b->len - 1] = ')';
	return 0;
}

static int take_repetition(struct translator *t)
{
	char op[32] = "";
	uint32_t min;
	int r = 0;

	if (t->atom_at == NONE)
		return rx_bad(&t->c, "there is nothing to repeat");
	if (t->depth + t->stacked >= RX_NEST_MAX)
		return rx_bad(&t->c, "it is nested deeper than %d levels", RX_NEST_MAX);
	op[0] = *t->c.p++;
	min = op[0] == '+';
	if (op[0] == '{')
		r = take_counts(t, &min, op);
	if (r < 0)
		return r;
	if (t->c.p < t->c.end && *t->c.p == '?') {
		t->c.p++;
		op[strlen(op)] = '?';
	}
	if (t->stacked++)
		r = wrap_atom(t);
	rx_literal_repeat(&t->literals, t->depth, min);
	return r < 0 ? r : put(t, op);
}

/* --- the whole --- */

static int take_one(struct translator *t)
{
	switch (*t->c.p) {
	case '(':
		return take_open(t);
	case ')':
		return take_close(t);
	case '|':
		return take_bar(t);
	case '[':
		return take_class(t);
	case '\\':
		return take_escape(t);
	case '.':
		return take_dot(t);
	case '^':
	case '$':
		return put_assertion(t, *t->c.p++);
	case '*':
	case '+':
	case '?':
	case '{':
		return take_repetition(t);
	default:
		return take_literal(t);
	}
}

static int translate(struct translator *t)
{
	int r = 0;

	if (!utf8_valid(t->c.p, (size_t)(t->c.end - t->c.p)))
		return rx_bad(&t->c, "it is not valid UTF-8");
	if (t->form == RX_FORM_TAGGED)
		r = put(t, "(?:[w.](?s:.)[w.])*?(");
	if (r == 0 && t->c.ignore_case)
		r = put(t, "(?i)");
	while (r == 0) {
		rx_skip_verbose(&t->c);
		if (t->c.p == t->c.end)
			break;
		r = take_one(t);
	}
	if (r == 0 && t->depth)
		r = rx_bad(&t->c, "a group is not closed");
	if (r == 0 && t->form == RX_FORM_TAGGED)
		r = put(t, ")");
	if (r < 0)
		return r;
	rx_literal_end(&t->literals, &t->out->literals, &t->out->is_literal);
	return 0;
}

int rx_translate(const char *pattern, size_t len, bool ignore_case, enum rx_form form,
	rx_eval_class eval, struct rx_pattern *ret, struct err *e)
{
	struct translator t = {
		.c = {.start = pattern,
			.p = pattern,
			.end = pattern + len,
			.ignore_case = ignore_case,
			.eval = eval,
			.e = e},
		.form = form,
		.out = ret,
		.atom_at = NONE,
	};
	int r;

	*ret = (struct rx_pattern){0};
	buf_init(&ret->re2, RE2_TEXT_MAX);
	rx_literal_begin(&t.literals);
	r = translate(&t);
	free(t.frames);
	if (r < 0)
		rx_pattern_done(ret);
	return r;
}

void rx_pattern_done(struct rx_pattern *p)
{
	for (size_t i = 0; i < p->names_n; i++)
		free(p->names[i].name);
	free(p->names);
	buf_done(&p->re2);
	*p = (struct rx_pattern){0};
}
