#include "wire/rx_replace.h"

#include <string.h>

#include "base/mem.h"

struct part {
	const char *text; /* in the template's own copy; NULL: a group */
	size_t len;
	size_t group;
};

struct rx_template {
	char *text;
	struct part *parts;
	size_t n, cap;
	size_t groups; /* spans that have to be known: 1 + the highest group */
	struct rx_span *spans;
};

static struct part *add_part(struct rx_template *t)
{
	if (t->n == t->cap) {
		t->cap = t->cap ? t->cap * 2 : 8;
		t->parts = xrealloc(t->parts, t->cap, sizeof(*t->parts));
	}
	t->parts[t->n] = (struct part){0};
	return &t->parts[t->n++];
}

static void add_text(struct rx_template *t, const char *text, size_t len)
{
	struct part *p;

	if (!len)
		return;
	p = add_part(t);
	p->text = text;
	p->len = len;
}

/* The group of that name or number, or -1. */
static int find_group(const struct rx *rx, const char *name, size_t len)
{
	size_t v = 0, i;

	for (i = 0; i < len && name[i] >= '0' && name[i] <= '9' && v < rx_groups(rx); i++)
		v = v * 10 + (size_t)(name[i] - '0');
	if (len && i == len)
		return v < rx_groups(rx) ? (int)v : -1;
	return rx_group_named(rx, name, len);
}

static void add_group(struct rx_template *t, const struct rx *rx, const char *name, size_t len)
{
	int group = find_group(rx, name, len);

	if (group < 0)
		return;
	add_part(t)->group = (size_t)group;
	t->groups = MAX(t->groups, (size_t)group + 1);
}

static bool is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_';
}

/* At a $: adds what it stands for and returns the place behind it, or NULL when it is itself. */
static const char *take_dollar(
	struct rx_template *t, const struct rx *rx, const char *p, const char *end)
{
	const char *name = p + 1, *close;

	if (name == end)
		return NULL;
	if (*name == '$') {
		add_text(t, name, 1);
		return name + 1;
	}
	if (*name == '{') {
		close = memchr(name, '}', (size_t)(end - name));
		if (!close)
			return NULL;
		add_group(t, rx, name + 1, (size_t)(close - name - 1));
		return close + 1;
	}
	for (close = name; close < end && is_name_char(*close); close++)
		;
	if (close == name)
		return NULL;
	add_group(t, rx, name, (size_t)(close - name));
	return close;
}

struct rx_template *rx_template_new(
	const struct rx *rx, const char *text, size_t len, unsigned flags)
{
	struct rx_template *t = xcalloc(1, sizeof(*t));
	const char *p, *from, *end;

	t->groups = 1;
	t->text = xmalloc(len + 1);
	memcpy(t->text, text, len);
	end = t->text + len;
	for (p = from = t->text; p < end && !(flags & RX_LITERAL);) {
		const char *dollar = memchr(p, '$', (size_t)(end - p)), *behind;

		if (!dollar)
			break;
		p = dollar + 1;
		/* The text in front has to be a part before what the $ adds. */
		add_text(t, from, (size_t)(dollar - from));
		from = dollar;
		behind = take_dollar(t, rx, dollar, end);
		if (behind)
			p = from = behind;
	}
	add_text(t, from, (size_t)(end - from));
	t->spans = xcalloc(t->groups, sizeof(*t->spans));
	return t;
}

void rx_template_free(struct rx_template *t)
{
	if (!t)
		return;
	free(t->text);
	free(t->parts);
	free(t->spans);
	free(t);
}

static int expand(const struct rx_template *t, const char *line, struct buf *out)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < t->n; i++) {
		const struct part *p = &t->parts[i];
		const struct rx_span *s = &t->spans[p->group];

		if (p->text)
			r = buf_add(out, p->text, p->len);
		else if (s->start != RX_UNSET)
			r = buf_add(out, line + s->start, s->end - s->start);
	}
	return r;
}

/* One character on from `at`, which is inside the line or at its end. */
static size_t step(const char *line, size_t len, size_t at)
{
	at++;
	while (at < len && ((unsigned char)line[at] & 0xc0) == 0x80)
		at++;
	return at;
}

ssize_t rx_replace(struct rx *rx, const struct rx_template *t, const char *line, size_t len,
	bool first_only, struct buf *out)
{
	size_t at = 0, copied = 0, last = RX_UNSET;
	ssize_t n = 0;
	int r = 0;

	rx_line(rx, line, len);
	while (at <= len && rx_find(rx, at, t->spans, t->groups)) {
		struct rx_span m = t->spans[0];

		at = m.end > m.start ? m.end : step(line, len, m.end);
		if (m.end == m.start && m.end == last)
			continue;
		last = m.end;
		n++;
		r = buf_add(out, line + copied, m.start - copied);
		if (r == 0)
			r = expand(t, line, out);
		if (r < 0)
			return r;
		copied = m.end;
		if (first_only)
			break;
	}
	if (n)
		r = buf_add(out, line + copied, len - copied);
	return r < 0 ? r : n;
}
