/* rx_class - the bracketed classes and the named ones of rx_syntax, and sets of code points. */
#pragma once

#include "wire/rx_syntax.h"

/* A reading of a pattern. */
struct rx_cursor {
	const char *start, *p, *end;
	bool ignore_case, verbose; /* flags i, x as they stand */
	rx_eval_class eval;
	unsigned evals; /* spent of RX_EVALS_MAX */
	struct err *e;
};

/* S217 with the place in the pattern; returns -EINVAL. */
int rx_bad(const struct rx_cursor *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The character at c->p (c->p < c->end, valid UTF-8), stepped over. */
uint32_t rx_take_char(struct rx_cursor *c);
/* Steps over blanks and comments where flag x says so. */
void rx_skip_verbose(struct rx_cursor *c);

enum rx_escape {
	RX_ESC_CHAR,   /* a character: in *ret_c */
	RX_ESC_CLASS,  /* a class: in items, *ret_negated */
	RX_ESC_ASSERT, /* \A \z \b \B: the letter is in *ret_c */
};
#define RX_ITEMS_MAX 512

/* Behind a backslash. */
int rx_take_escape(struct rx_cursor *c, enum rx_escape *ret, uint32_t *ret_c,
	char items[static RX_ITEMS_MAX], bool *ret_negated);

/* Behind a "[": reads the whole class and writes one atom of RE2. `depth`: levels already in use of
 * RX_NEST_MAX. */
int rx_take_class(struct rx_cursor *c, unsigned depth, struct buf *out);

/* Adds one character as RE2 takes it, in a class or outside. */
int rx_write_char(struct buf *out, uint32_t ch);
