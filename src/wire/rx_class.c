/* How it works
 *
 * A class is read by descent into two things whose union it is: `text`, items as RE2 takes them
 * between brackets, and `ranges`, code points that were computed because RE2 has no way to write
 * them (an inner complement, an operation). A class without the latter is written as it was read.
 * Computing asks RE2 for the members of the items (rx_eval_class) and does the rest on ranges.
 *
 * As in Rust, case folding comes before complements and operations: items are evaluated under (?i),
 * and what was computed is written under (?-i).
 *
 * Refused: ranges with a class at one end or the wrong way round, what does not close, unknown
 * escapes and properties; more than RX_EVALS_MAX computations (each looks at all code points).
 */
#include "wire/rx_class.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define CODE_POINT_MAX 0x10ffffu

/* UTS #18 \w: Alphabetic, M, Nd, Pc, Join_Control. The ranges are what is alphabetic without being
 * a letter, mark or number: circled and squared letters. */
const char RX_WORD_ITEMS[] = "\\pL\\pM\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}"
			     "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}\\x{200C}\\x{200D}";
static const char ALPHA_ITEMS[] = "\\pL\\pM\\p{Nl}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}"
				  "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";
static const char SPACE_ITEMS[] = "\\t-\\r\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}"
				  "\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
static const char DIGIT_ITEMS[] = "\\p{Nd}";

/* --- sets --- */

void rx_set_add(struct rx_set *s, uint32_t lo, uint32_t hi)
{
	if (s->n == s->cap) {
		s->cap = s->cap ? s->cap * 2 : 16;
		s->r = xrealloc(s->r, s->cap, sizeof(*s->r));
	}
	s->r[s->n++] = (struct rx_range){lo, hi};
}

void rx_set_done(struct rx_set *s)
{
	free(s->r);
	*s = (struct rx_set){0};
}

static int compare_ranges(const void *a, const void *b)
{
	const struct rx_range *x = a, *y = b;

	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

void rx_set_normalise(struct rx_set *s)
{
	size_t n = 0;

	if (!s->n)
		return;
	qsort(s->r, s->n, sizeof(*s->r), compare_ranges);
	for (size_t i = 1; i < s->n; i++) {
		if (s->r[i].lo <= s->r[n].hi + 1) {
			if (s->r[i].hi > s->r[n].hi)
				s->r[n].hi = s->r[i].hi;
		} else {
			s->r[++n] = s->r[i];
		}
	}
	s->n = n + 1;
}

static void set_add_all(struct rx_set *s, const struct rx_set *other)
{
	for (size_t i = 0; i < other->n; i++)
		rx_set_add(s, other->r[i].lo, other->r[i].hi);
	rx_set_normalise(s);
}

static void set_negate(struct rx_set *s)
{
	struct rx_set out = {0};
	uint32_t next = 0;

	rx_set_normalise(s);
	for (size_t i = 0; i < s->n; i++) {
		if (s->r[i].lo > next)
			rx_set_add(&out, next, s->r[i].lo - 1);
		next = s->r[i].hi + 1;
	}
	if (next <= CODE_POINT_MAX)
		rx_set_add(&out, next, CODE_POINT_MAX);
	rx_set_done(s);
	*s = out;
}

/* a = a and b */
static void set_intersect(struct rx_set *a, const struct rx_set *b)
{
	struct rx_set out = {0};

	for (size_t i = 0, k = 0; i < a->n && k < b->n;) {
		uint32_t lo = MAX(a->r[i].lo, b->r[k].lo), hi = MIN(a->r[i].hi, b->r[k].hi);

		if (lo <= hi)
			rx_set_add(&out, lo, hi);
		if (a->r[i].hi < b->r[k].hi)
			i++;
		else
			k++;
	}
	rx_set_done(a);
	*a = out;
}

static void set_copy(struct rx_set *dst, const struct rx_set *src)
{
	*dst = (struct rx_set){0};
	set_add_all(dst, src);
}

/* a = a `op` b: & intersection, - difference, ~ symmetric difference. */
static void set_operate(char op, struct rx_set *a, struct rx_set *b)
{
	struct rx_set both;

	if (op == '&') {
		set_intersect(a, b);
	} else if (op == '-') {
		set_negate(b);
		set_intersect(a, b);
	} else {
		set_copy(&both, a);
		set_intersect(&both, b);
		set_add_all(a, b);
		set_negate(&both);
		set_intersect(a, &both);
		rx_set_done(&both);
	}
}

/* --- the cursor --- */

int rx_bad(const struct rx_cursor *c, const char *fmt, ...)
{
	char what[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return err_set(c->e, "S217", EINVAL, "pattern does not compile: %s, at byte %zu", what,
		(size_t)(c->p - c->start));
}

uint32_t rx_take_char(struct rx_cursor *c)
{
	uint32_t ch = (unsigned char)*c->p++;
	unsigned more = ch < 0xc0 ? 0 : ch < 0xe0 ? 1 : ch < 0xf0 ? 2 : 3;

	if (more)
		ch &= 0x3fu >> more;
	while (more-- && c->p < c->end)
		ch = ch << 6 | ((unsigned char)*c->p++ & 0x3f);
	return ch;
}

/* Pattern_White_Space */
static bool is_pattern_blank(uint32_t ch)
{
	return (ch >= '\t' && ch <= '\r') || ch == ' ' || ch == 0x85 || ch == 0x200e ||
	       ch == 0x200f || ch == 0x2028 || ch == 0x2029;
}

void rx_skip_verbose(struct rx_cursor *c)
{
	while (c->verbose && c->p < c->end) {
		const char *here = c->p;

		if (*c->p == '#') {
			while (c->p < c->end && *c->p != '\n')
				c->p++;
		} else if (!is_pattern_blank(rx_take_char(c))) {
			c->p = here;
			return;
		}
	}
}

static bool at(const struct rx_cursor *c, const char *text)
{
	size_t len = strlen(text);

	return (size_t)(c->end - c->p) >= len && memcmp(c->p, text, len) == 0;
}

int rx_write_char(struct buf *out, uint32_t ch)
{
	char raw = (char)ch;

	if ((ch >= '0' && ch <= '9') || (ch >= 'A' && ch <= 'Z') || (ch >= 'a' && ch <= 'z'))
		return buf_add(out, &raw, 1);
	return buf_printf(out, "\\x{%X}", ch);
}

/* --- escapes --- */

static int hex_value(char ch)
{
	if (ch >= '0' && ch <= '9')
		return ch - '0';
	if (ch >= 'a' && ch <= 'f')
		return ch - 'a' + 10;
	if (ch >= 'A' && ch <= 'F')
		return ch - 'A' + 10;
	return -1;
}

/* Behind \x, \u or \U: `digits` of them, or any number in braces. */
static int take_hex(struct rx_cursor *c, int digits, uint32_t *ret_c)
{
	bool braces = c->p < c->end && *c->p == '{';
	uint32_t v = 0;
	int n = 0;

	c->p += braces;
	for (; c->p < c->end && (braces || n < digits); c->p++, n++) {
		int h = hex_value(*c->p);

		if (h < 0)
			break;
		v = v * 16 + (uint32_t)h;
		if (v > CODE_POINT_MAX)
			return rx_bad(c, "the number is no code point");
	}
	if (n == 0 || (!braces && n < digits))
		return rx_bad(c, "hexadecimal digits are missing");
	if (braces && (c->p == c->end || *c->p++ != '}'))
		return rx_bad(c, "a hexadecimal number is not closed with }");
	if (v >= 0xd800 && v < 0xe000)
		return rx_bad(c, "a surrogate is no character");
	*ret_c = v;
	return 0;
}

/* Names that Unicode allows to be written with any case, blanks, hyphens and underscores. */
static const struct {
	const char *name, *items;
} PROPERTIES[] = {
	{"any", "\\x{0}-\\x{10FFFF}"},
	{"ascii", "\\x{0}-\\x{7F}"},
	{"alphabetic", ALPHA_ITEMS},
	{"alpha", ALPHA_ITEMS},
	{"whitespace", SPACE_ITEMS},
	{"space", SPACE_ITEMS},
	{"lc", "\\p{Lu}\\p{Ll}\\p{Lt}"},
	{"casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}"},
	{"other", "\\pC"},
	{"control", "\\p{Cc}"},
	{"format", "\\p{Cf}"},
	{"privateuse", "\\p{Co}"},
	{"letter", "\\pL"},
	{"lowercaseletter", "\\p{Ll}"},
	{"modifierletter", "\\p{Lm}"},
	{"otherletter", "\\p{Lo}"},
	{"titlecaseletter", "\\p{Lt}"},
	{"uppercaseletter", "\\p{Lu}"},
	{"mark", "\\pM"},
	{"spacingmark", "\\p{Mc}"},
	{"enclosingmark", "\\p{Me}"},
	{"nonspacingmark", "\\p{Mn}"},
	{"number", "\\pN"},
	{"decimalnumber", "\\p{Nd}"},
	{"digit", "\\p{Nd}"},
	{"letternumber", "\\p{Nl}"},
	{"othernumber", "\\p{No}"},
	{"punctuation", "\\pP"},
	{"punct", "\\pP"},
	{"connectorpunctuation", "\\p{Pc}"},
	{"dashpunctuation", "\\p{Pd}"},
	{"closepunctuation", "\\p{Pe}"},
	{"finalpunctuation", "\\p{Pf}"},
	{"initialpunctuation", "\\p{Pi}"},
	{"otherpunctuation", "\\p{Po}"},
	{"openpunctuation", "\\p{Ps}"},
	{"symbol", "\\pS"},
	{"currencysymbol", "\\p{Sc}"},
	{"modifiersymbol", "\\p{Sk}"},
	{"mathsymbol", "\\p{Sm}"},
	{"othersymbol", "\\p{So}"},
	{"separator", "\\pZ"},
	{"lineseparator", "\\p{Zl}"},
	{"paragraphseparator", "\\p{Zp}"},
	{"spaceseparator", "\\p{Zs}"},
};

static bool is_letter(char ch)
{
	return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z');
}

static char lower(char ch)
{
	return ch >= 'A' && ch <= 'Z' ? (char)(ch | 0x20) : ch;
}

/* A property's name to the items of its class. What is not in the table is taken for a category of
 * one or two letters or a script; RE2 knows whether it exists. */
static int find_property(
	const struct rx_cursor *c, const char *name, size_t len, char items[static RX_ITEMS_MAX])
{
	char loose[64], script[64];
	size_t n = 0, k = 0;
	bool word_begins = true;

	for (size_t i = 0; i < len; i++) {
		char ch = name[i];

		if (ch == '_' || ch == '-' || ch == ' ') {
			word_begins = true;
			continue;
		}
		if (!is_letter(ch) || n + 2 >= sizeof(loose) || k + 3 >= sizeof(script))
			return rx_bad(c, "there is no such Unicode property");
		if (word_begins && k)
			script[k++] = '_';
		script[k++] = word_begins ? (char)(lower(ch) & ~0x20) : lower(ch);
		word_begins = false;
		loose[n++] = lower(ch);
	}
	loose[n] = script[k] = 0;
	for (size_t i = 0; i < ARRAY_LEN(PROPERTIES); i++) {
		if (strcmp(PROPERTIES[i].name, loose) == 0) {
			snprintf(items, RX_ITEMS_MAX, "%s", PROPERTIES[i].items);
			return 0;
		}
	}
	if (!n)
		return rx_bad(c, "a Unicode property has no name");
	snprintf(items, RX_ITEMS_MAX, "\\p{%s}", script);
	return 0;
}

/* Behind \p or \P. */
static int take_property(struct rx_cursor *c, char items[static RX_ITEMS_MAX], bool *negated)
{
	const char *close, *sep, *name;

	if (c->p == c->end)
		return rx_bad(c, "a Unicode property has no name");
	if (*c->p != '{') {
		name = c->p++;
		return find_property(c, name, 1, items);
	}
	name = c->p + 1;
	close = memchr(name, '}', (size_t)(c->end - name));
	if (!close)
		return rx_bad(c, "a Unicode property is not closed with }");
	if (*name == '^') {
		*negated = !*negated;
		name++;
	}
	/* "sc=Greek", "gc:Lu", "script != Greek": what kind it is does not change the set. */
	for (sep = name; sep < close && *sep != '=' && *sep != ':'; sep++)
		;
	if (sep < close) {
		if (sep > name && sep[-1] == '!')
			*negated = !*negated;
		name = sep + 1;
	}
	c->p = close + 1;
	return find_property(c, name, (size_t)(close - name), items);
}

static int class_escape(
	struct rx_cursor *c, char letter, char items[static RX_ITEMS_MAX], bool *negated)
{
	const char *which = NULL;

	*negated = letter >= 'A' && letter <= 'Z';
	switch (letter | 0x20) {
	case 'd':
		which = DIGIT_ITEMS;
		break;
	case 's':
		which = SPACE_ITEMS;
		break;
	case 'w':
		which = RX_WORD_ITEMS;
		break;
	default:
		return take_property(c, items, negated);
	}
	snprintf(items, RX_ITEMS_MAX, "%s", which);
	return 0;
}

int rx_take_escape(struct rx_cursor *c, enum rx_escape *ret, uint32_t *ret_c,
	char items[static RX_ITEMS_MAX], bool *ret_negated)
{
	static const char CONTROL[] = "a\af\ft\tn\nr\rv\v";
	uint32_t ch;

	*ret = RX_ESC_CHAR;
	if (c->p == c->end)
		return rx_bad(c, "a backslash is its last character");
	ch = rx_take_char(c);
	if (!ch || ch > 0x7f)
		return rx_bad(c, "a backslash stands before a character that needs none");
	if (ch >= '0' && ch <= '9')
		return rx_bad(c, "back-references are not supported");
	if (ch == 'x' || ch == 'u' || ch == 'U')
		return take_hex(c, ch == 'x' ? 2 : ch == 'u' ? 4 : 8, ret_c);
	if (strchr("dDsSwWpP", (int)ch)) {
		*ret = RX_ESC_CLASS;
		return class_escape(c, (char)ch, items, ret_negated);
	}
	*ret_c = ch;
	if (strchr("AzbB", (int)ch)) {
		*ret = RX_ESC_ASSERT;
		return 0;
	}
	for (const char *p = CONTROL; *p; p += 2) {
		if ((uint32_t)*p == ch) {
			*ret_c = (uint32_t)p[1];
			return 0;
		}
	}
	if (is_letter((char)ch) || ch == '<' || ch == '>')
		return rx_bad(c, "\\%c is not supported", (int)ch);
	return 0;
}

/* --- classes --- */

struct class
{
	struct buf text;     /* items as RE2 takes them */
	struct rx_set plain; /* the same, as long as no named class is among them */
	bool named;
	struct rx_set ranges; /* what was computed */
	bool computed;
};

#define CLASS_TEXT_MAX (4u << 20)

static void class_init(struct class *k)
{
	*k = (struct class){0};
	buf_init(&k->text, CLASS_TEXT_MAX);
}

static void class_done(struct class *k)
{
	buf_done(&k->text);
	rx_set_done(&k->plain);
	rx_set_done(&k->ranges);
}

static int no_room(const struct rx_cursor *c)
{
	return rx_bad(c, "it is too big");
}

static int eval_items(struct rx_cursor *c, const char *items, struct rx_set *ret)
{
	cleanup_free char *re2 = xasprintf(c->ignore_case ? "(?i:[%s])" : "[%s]", items);

	if (++c->evals > RX_EVALS_MAX)
		return rx_bad(c, "more than %d classes have to be computed", RX_EVALS_MAX);
	return c->eval(re2, ret, c->e);
}

/* Makes everything in the class ranges. */
static int class_compute(struct rx_cursor *c, struct class *k)
{
	int r;

	k->computed = true;
	if (!k->text.len)
		return 0;
	if (!k->named && !c->ignore_case) {
		set_add_all(&k->ranges, &k->plain);
	} else {
		r = eval_items(c, (char *)k->text.data, &k->ranges);
		if (r < 0)
			return r;
	}
	rx_set_normalise(&k->ranges);
	rx_set_done(&k->plain);
	buf_clear(&k->text);
	k->named = false;
	return 0;
}

static int class_add_range(struct rx_cursor *c, struct class *k, uint32_t lo, uint32_t hi)
{
	rx_set_add(&k->plain, lo, hi);
	if (buf_printf(&k->text, lo == hi ? "\\x{%X}" : "\\x{%X}-\\x{%X}", lo, hi) < 0)
		return no_room(c);
	return 0;
}

static int class_add_items(struct rx_cursor *c, struct class *k, const char *items, bool negated)
{
	struct rx_set set = {0};
	int r;

	if (!negated) {
		k->named = true;
		return buf_add_str(&k->text, items) < 0 ? no_room(c) : 0;
	}
	r = eval_items(c, items, &set);
	if (r == 0) {
		set_negate(&set);
		set_add_all(&k->ranges, &set);
		k->computed = true;
	}
	rx_set_done(&set);
	return r;
}

/* [:alpha:] at the cursor: 1 and added, 0 when it is none. */
static int take_posix(struct rx_cursor *c, struct class *k)
{
	static const char *const NAMES[] = {"alnum", "alpha", "ascii", "blank", "cntrl", "digit",
		"graph", "lower", "print", "punct", "space", "upper", "word", "xdigit"};
	const char *name = c->p + 2, *close;

	if (!at(c, "[:"))
		return 0;
	if (name < c->end && *name == '^')
		name++;
	close = memchr(name, ':', (size_t)(c->end - name));
	if (!close || close + 1 >= c->end || close[1] != ']')
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
		size_t len = strlen(NAMES[i]);

		if (len != (size_t)(close - name) || memcmp(NAMES[i], name, len) != 0)
			continue;
		if (buf_add(&k->text, c->p, (size_t)(close + 2 - c->p)) < 0)
			return no_room(c);
		k->named = true;
		c->p = close + 2;
		return 1;
	}
	return 0;
}

/* One end of a range, or a class of its own (*ret_class). */
static int take_item(struct rx_cursor *c, uint32_t *ret_c, bool *ret_class,
	char items[static RX_ITEMS_MAX], bool *negated)
{
	enum rx_escape kind;
	int r;

	*ret_class = false;
	if (*c->p != '\\') {
		*ret_c = rx_take_char(c);
		return 0;
	}
	c->p++;
	r = rx_take_escape(c, &kind, ret_c, items, negated);
	if (r < 0)
		return r;
	if (kind == RX_ESC_ASSERT)
		return rx_bad(c, "\\%c stands inside a class", (int)*ret_c);
	*ret_class = kind == RX_ESC_CLASS;
	return 0;
}

static bool range_follows(struct rx_cursor *c)
{
	struct rx_cursor ahead = *c;

	if (c->p == c->end || *c->p != '-')
		return false;
	ahead.p++;
	rx_skip_verbose(&ahead);
	return ahead.p < ahead.end && *ahead.p != ']' && *ahead.p != '-';
}

static int take_item_or_range(struct rx_cursor *c, struct class *k)
{
	char items[RX_ITEMS_MAX];
	bool is_class, negated;
	uint32_t lo, hi;
	int r = take_item(c, &lo, &is_class, items, &negated);

	if (r < 0)
		return r;
	rx_skip_verbose(c);
	if (!range_follows(c)) {
		if (is_class)
			return class_add_items(c, k, items, negated);
		return class_add_range(c, k, lo, lo);
	}
	c->p++;
	rx_skip_verbose(c);
	if (!is_class)
		r = take_item(c, &hi, &is_class, items, &negated);
	if (r < 0)
		return r;
	if (is_class)
		return rx_bad(c, "a range ends in a class");
	if (lo > hi)
		return rx_bad(c, "a range runs backwards");
	return class_add_range(c, k, lo, hi);
}

static int take_set(struct rx_cursor *c, unsigned depth, struct class *k);

/* A class inside a class, at its "[". */
static int take_nested(struct rx_cursor *c, unsigned depth, struct class *k)
{
	struct class inner;
	int r = take_posix(c, k);

	if (r != 0)
		return r < 0 ? r : 0;
	c->p++;
	class_init(&inner);
	r = take_set(c, depth + 1, &inner);
	if (r == 0 && inner.text.len) {
		k->named |= inner.named;
		for (size_t i = 0; i < inner.plain.n; i++)
			rx_set_add(&k->plain, inner.plain.r[i].lo, inner.plain.r[i].hi);
		if (buf_add(&k->text, inner.text.data, inner.text.len) < 0)
			r = no_room(c);
	}
	if (r == 0 && inner.computed) {
		set_add_all(&k->ranges, &inner.ranges);
		k->computed = true;
	}
	class_done(&inner);
	return r;
}

/* Is there an operation at the cursor? */
static char operation_at(const struct rx_cursor *c)
{
	return at(c, "&&") ? '&' : at(c, "--") ? '-' : at(c, "~~") ? '~' : 0;
}

/* Items up to an operation or the closing bracket. */
static int take_union(struct rx_cursor *c, unsigned depth, struct class *k)
{
	int r = 0;

	for (;;) {
		rx_skip_verbose(c);
		if (c->p == c->end)
			return rx_bad(c, "a class is not closed");
		if (*c->p == ']' || operation_at(c))
			return 0;
		r = *c->p == '[' ? take_nested(c, depth, k) : take_item_or_range(c, k);
		if (r < 0)
			return r;
	}
}

/* What may stand only at the begin: a complement, hyphens, a bracket that closes nothing. */
static int take_begin(struct rx_cursor *c, struct class *k, bool *ret_negated)
{
	bool any = false;
	int r = 0;

	rx_skip_verbose(c);
	*ret_negated = c->p < c->end && *c->p == '^';
	c->p += *ret_negated;
	rx_skip_verbose(c);
	for (; r == 0 && c->p < c->end && *c->p == '-'; any = true) {
		r = class_add_range(c, k, '-', '-');
		c->p++;
		rx_skip_verbose(c);
	}
	if (r == 0 && !any && c->p < c->end && *c->p == ']') {
		r = class_add_range(c, k, ']', ']');
		c->p++;
	}
	return r;
}

/* Behind a "[", up to and with its "]". A complement is computed into ranges unless this is the
 * outermost class, whose caller can write it as one. */
static int take_set_raw(struct rx_cursor *c, unsigned depth, struct class *k, bool *ret_negated)
{
	int r;

	if (depth > RX_NEST_MAX)
		return rx_bad(c, "it is nested deeper than %d levels", RX_NEST_MAX);
	r = take_begin(c, k, ret_negated);
	if (r == 0)
		r = take_union(c, depth, k);
	while (r == 0 && *c->p != ']') {
		char op = operation_at(c);
		struct class right;

		c->p += 2;
		class_init(&right);
		r = take_union(c, depth, &right);
		if (r == 0)
			r = class_compute(c, k);
		if (r == 0)
			r = class_compute(c, &right);
		if (r == 0)
			set_operate(op, &k->ranges, &right.ranges);
		class_done(&right);
	}
	if (r == 0)
		c->p++;
	return r;
}

static int take_set(struct rx_cursor *c, unsigned depth, struct class *k)
{
	bool negated;
	int r = take_set_raw(c, depth, k, &negated);

	if (r == 0 && negated)
		r = class_compute(c, k);
	if (r == 0 && negated)
		set_negate(&k->ranges);
	return r;
}

static int write_computed(struct buf *out, const struct rx_set *s)
{
	int r;

	if (!s->n)
		return buf_add_str(out, "[^\\x{0}-\\x{10FFFF}]");
	r = buf_add_str(out, "(?-i:[");
	for (size_t i = 0; r == 0 && i < s->n; i++)
		r = buf_printf(out, "\\x{%X}-\\x{%X}", s->r[i].lo, s->r[i].hi);
	return r < 0 ? r : buf_add_str(out, "])");
}

int rx_take_class(struct rx_cursor *c, unsigned depth, struct buf *out)
{
	struct class k;
	bool negated;
	int r;

	class_init(&k);
	r = take_set_raw(c, depth, &k, &negated);
	if (r == 0 && k.computed) {
		r = class_compute(c, &k);
		if (r == 0 && negated)
			set_negate(&k.ranges);
		if (r == 0 && write_computed(out, &k.ranges) < 0)
			r = no_room(c);
	} else if (r == 0) {
		r = buf_printf(out, "[%s%s]", negated ? "^" : "", (char *)k.text.data);
		if (r < 0)
			r = no_room(c);
	}
	class_done(&k);
	return r;
}
