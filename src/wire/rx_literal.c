#include "wire/rx_literal.h"

#include <string.h>

#include "base/mem.h"

/* How good a set is to look for; 0 for none. */
static size_t score(const struct rx_literals *set)
{
	size_t min = RX_LITERAL_BYTES_MAX;
	bool fold = false;

	if (!set->n)
		return 0;
	for (size_t i = 0; i < set->n; i++) {
		min = MIN(min, set->v[i].len);
		fold |= set->v[i].fold;
	}
	return min * 8 - (set->n > 1 ? 4 : 0) - (fold ? 2 : 0);
}

static void consider(struct rx_literal_level *l, const struct rx_literals *set)
{
	if (score(set) > score(&l->best))
		l->best = *set;
}

static void flush_run(struct rx_literal_level *l)
{
	struct rx_literals one = {.n = 1};

	if (l->run.len) {
		one.v[0] = l->run;
		consider(l, &one);
	}
	l->run.len = 0;
}

static void flush_pending(struct rx_literal_builder *b)
{
	if (b->pending.n)
		consider(&b->level[0], &b->pending);
	b->pending.n = 0;
}

static void finish_alternative(struct rx_literal_level *l)
{
	flush_run(l);
	if (!l->best.n || l->done.n + l->best.n > RX_LITERALS_MAX) {
		l->broken = true;
	} else {
		memcpy(&l->done.v[l->done.n], l->best.v, l->best.n * sizeof(l->best.v[0]));
		l->done.n += l->best.n;
	}
	l->best.n = 0;
}

static void begin_level(struct rx_literal_level *l)
{
	l->done.n = l->best.n = 0;
	l->run.len = 0;
	l->broken = false;
}

void rx_literal_begin(struct rx_literal_builder *b)
{
	begin_level(&b->level[0]);
	begin_level(&b->level[1]);
	b->pending.n = 0;
	b->whole = true;
}

/* k and s have a third case outside ASCII (U+212A, U+017F), and so may anything outside it. */
static bool can_fold(const char *bytes, size_t len)
{
	return len == 1 && (unsigned char)bytes[0] < 0x80 && !strchr("kKsS", bytes[0]);
}

void rx_literal_char(
	struct rx_literal_builder *b, unsigned depth, const char *bytes, size_t len, bool fold)
{
	struct rx_literal_level *l;

	if (depth > 1 || (fold && !can_fold(bytes, len))) {
		rx_literal_other(b, depth);
		return;
	}
	flush_pending(b);
	l = &b->level[depth];
	if (l->run.len && (l->run.fold != fold || l->run.len + len > RX_LITERAL_BYTES_MAX)) {
		flush_run(l);
		b->whole = false;
	}
	b->whole &= !depth && !fold;
	l->run.fold = fold;
	l->run_last = l->run.len;
	memcpy(l->run.bytes + l->run.len, bytes, len);
	l->run.len += len;
}

void rx_literal_other(struct rx_literal_builder *b, unsigned depth)
{
	flush_pending(b);
	flush_run(&b->level[MIN(depth, 1u)]);
	b->whole = false;
}

void rx_literal_assertion(struct rx_literal_builder *b)
{
	flush_pending(b);
	b->whole = false;
}

void rx_literal_repeat(struct rx_literal_builder *b, unsigned depth, unsigned min)
{
	struct rx_literal_level *l = &b->level[MIN(depth, 1u)];

	if (b->pending.n && !min)
		b->pending.n = 0;
	else if (l->run.len && !min)
		l->run.len = l->run_last;
	rx_literal_other(b, depth);
}

void rx_literal_bar(struct rx_literal_builder *b, unsigned depth)
{
	rx_literal_other(b, depth);
	if (depth <= 1)
		finish_alternative(&b->level[depth]);
}

void rx_literal_open(struct rx_literal_builder *b, unsigned depth)
{
	rx_literal_other(b, depth);
	if (!depth)
		begin_level(&b->level[1]);
}

void rx_literal_close(struct rx_literal_builder *b, unsigned depth)
{
	struct rx_literal_level *l = &b->level[1];

	if (depth)
		return;
	finish_alternative(l);
	if (!l->broken)
		b->pending = l->done;
}

void rx_literal_end(struct rx_literal_builder *b, struct rx_literals *ret, bool *ret_whole)
{
	struct rx_literal_level *l = &b->level[0];

	flush_pending(b);
	finish_alternative(l);
	ret->n = 0;
	if (!l->broken)
		*ret = l->done;
	*ret_whole = b->whole && ret->n == 1;
}
