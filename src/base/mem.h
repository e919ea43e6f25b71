/* mem - memory that is given back by itself, and allocation that cannot fail quietly.
 *
 * Sizes the program chooses are allocated with the x-functions, which end the process when memory
 * is out. A size that came over a wire goes through base/buf.h, which knows its ceiling.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/param.h> /* MIN, MAX: libuv includes it too */

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* The struct that holds member `m` at address `p`. */
#define CONTAINER_OF(p, type, m) ((type *)((char *)(p)-offsetof(type, m)))

/* cleanup_free char *s = …;  frees s when it leaves scope. */
#define cleanup_free __attribute__((cleanup(mem_cleanup_free)))

/* Hands a pointer over: yields its value and leaves NULL behind. */
#define STEAL(p)                                                                                   \
	({                                                                                         \
		__typeof__(p) stolen_ = (p);                                                       \
		(p) = NULL;                                                                        \
		stolen_;                                                                           \
	})

/* Says so and ends the process: for a library's small allocation that failed. */
_Noreturn void mem_exhausted(void);

void *xmalloc(size_t size);
void *xcalloc(size_t n, size_t size); /* zeroed; overflow of n*size ends the process */
void *xrealloc(void *p, size_t n, size_t size);
char *xstrdup(const char *s); /* NULL gives NULL */
char *xstrndup(const char *s, size_t n);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static inline void mem_cleanup_free(void *pp)
{
	free(*(void **)pp);
}
