/* rx_syntax - Rust's regex syntax, checked and rewritten as RE2's.
 *
 * Part of wire/rx. One reading of a pattern writes one of three forms of it:
 *
 *   exact    matches a line as the pattern would
 *   scan     for a block of lines: matches, within a line, wherever the line matches, and perhaps
 *            elsewhere. To be compiled with never_nl.
 *   tagged   for a line whose every character stands between two ASCII bytes, RX_TAG_WORD twice
 *            for a word character, RX_TAG_OTHER twice for any other. RE2 knows only ASCII words at
 *            \b; between such tags its \b is Unicode's. To be matched from a character's first tag
 *            on, anchored there; group 1 is what matched, and all others come one later.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "wire/rx_literal.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RX_NEST_MAX  250 /* groups, classes and repetitions inside each other, as in Rust */
#define RX_EVALS_MAX 32	 /* classes with operations or inner complements in one pattern */
#define RX_TAG_WORD  'w'
#define RX_TAG_OTHER '.'

enum rx_form {
	RX_FORM_EXACT,
	RX_FORM_SCAN,
	RX_FORM_TAGGED,
};

/* A set of code points: sorted, disjoint, not touching ranges. */
struct rx_range {
	uint32_t lo, hi;
};
struct rx_set {
	struct rx_range *r;
	size_t n, cap;
};

struct rx_name {
	char *name;
	size_t len;
	int group;
};

struct rx_pattern {
	struct buf re2; /* the form that was asked for */
	struct rx_name *names;
	size_t names_n;
	int groups;		     /* without the whole match */
	bool boundary;		     /* \b or \B occurs */
	struct rx_literals literals; /* one of them is in every match */
	bool is_literal;	     /* there is one, and it is the whole pattern */
};

/* Which code points an RE2 class matches: appends them to *ret. RE2 itself answers (wire/rx.cc),
 * so that no second copy of the Unicode tables is needed. */
typedef int (*rx_eval_class)(const char *re2_class, struct rx_set *ret, struct err *e);

int rx_translate(const char *pattern, size_t len, bool ignore_case, enum rx_form form,
	rx_eval_class eval, struct rx_pattern *ret, struct err *e);
void rx_pattern_done(struct rx_pattern *p);

/* The members of \w as items of an RE2 class. */
extern const char RX_WORD_ITEMS[];

void rx_set_add(struct rx_set *s, uint32_t lo, uint32_t hi); /* in any order; normalise after */
void rx_set_normalise(struct rx_set *s);
void rx_set_done(struct rx_set *s);

#ifdef __cplusplus
}
#endif
