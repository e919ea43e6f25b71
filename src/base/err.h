/* err - why something failed, as a value that the caller owns.
 *
 * A function whose reason must reach a person or a caller on the bus takes `struct err *e` as its
 * last parameter and returns a negative errno when it fails. The cause is set once, where it is
 * known; each layer above may put context in front. Nothing is allocated, so an error can be
 * dropped, copied or overwritten freely. `e` may be NULL where the caller does not care.
 */
#pragma once

#include <stddef.h>

#define ERR_TEXT_MAX 2048 /* longer texts are cut at a character boundary and end in "…" */
#define ERR_CODE_LEN 8

struct err {
	char code[ERR_CODE_LEN]; /* S-code of the sandbox contract §3.2, or "" */
	int no;			 /* positive errno, or 0 */
	char text[ERR_TEXT_MAX]; /* what happened, to which thing, what to do; one line; UTF-8 */
};

#define ERR_INIT ((struct err){0})

/* Records a failure and returns -no (or -EIO when no is 0), so that `return err_set(…)` works.
 * `no` is a positive errno. The text of the errno is not appended: say it with %s and
 * err_str(no) where it helps. */
int err_set(struct err *e, const char *code, int no, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Puts "context: " in front of the text. */
void err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Gives the error a code if it has none. */
void err_code(struct err *e, const char *code);

/* strerror without a shared buffer; "error N" for an unknown number. Accepts either sign. */
const char *err_str(int no);
