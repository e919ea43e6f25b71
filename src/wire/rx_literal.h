/* rx_literal - what every match of a pattern must contain, gathered while the pattern is read.
 *
 * Part of wire/rx. The result is a few literals of which each match contains at least one, or none
 * when nothing is known. Looked at: runs of plain characters at the top level and one group deep,
 * with the alternatives of both.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RX_LITERALS_MAX	     16 /* alternatives; with more there is nothing to look for */
#define RX_LITERAL_BYTES_MAX 64 /* of a longer run its beginning */

struct rx_literal {
	char bytes[RX_LITERAL_BYTES_MAX];
	size_t len;
	bool fold; /* ASCII letters in either case; then it holds none but plain ASCII */
};

struct rx_literals {
	struct rx_literal v[RX_LITERALS_MAX];
	size_t n;
};

struct rx_literal_level {
	struct rx_literals done; /* of the alternatives that are complete */
	struct rx_literals best; /* of the one being read */
	bool broken;		 /* an alternative has none */
	struct rx_literal run;	 /* that ends here */
	size_t run_last;	 /* where its last character begins */
};

struct rx_literal_builder {
	struct rx_literal_level level[2];
	struct rx_literals pending; /* of a group that closed just now and may yet be repeated */
	bool whole;		    /* nothing but plain characters was read */
};

void rx_literal_begin(struct rx_literal_builder *b);
/* `depth`: open groups. A plain character of `len` bytes, under flag i if `fold`. */
void rx_literal_char(
	struct rx_literal_builder *b, unsigned depth, const char *bytes, size_t len, bool fold);
/* Anything else that matches characters. */
void rx_literal_other(struct rx_literal_builder *b, unsigned depth);
/* Something that matches between characters. */
void rx_literal_assertion(struct rx_literal_builder *b);
/* The last atom is repeated, at least `min` times. */
void rx_literal_repeat(struct rx_literal_builder *b, unsigned depth, unsigned min);
void rx_literal_bar(struct rx_literal_builder *b, unsigned depth);
void rx_literal_open(struct rx_literal_builder *b, unsigned depth);  /* before it counts */
void rx_literal_close(struct rx_literal_builder *b, unsigned depth); /* when it counts no more */
/* *ret_whole: the pattern is the one literal and nothing else. */
void rx_literal_end(struct rx_literal_builder *b, struct rx_literals *ret, bool *ret_whole);

#ifdef __cplusplus
}
#endif
