/* token - the project's secret that every worker call carries (worker VM specification §1.2, §2).
 *
 * Taken out of the environment once, before anything is started, so that no child inherits it. It
 * is never printed, and not even kept: what stays is its SHA-256. Without a token nobody is let in.
 */
#pragma once

#include <stdbool.h>

#define TOKEN_ENV "III_SANDBOX_WORKER_TOKEN"

/* Reads the variable, overwrites its value where the kernel shows it in /proc/self/environ, and
 * removes it. Call it first in main(), while there is one thread. A second call forgets the first
 * token. */
void token_take(void);
/* Whether there is one. */
bool token_set(void);
/* In a time that depends only on the length of `offered` (may be NULL). */
bool token_matches(const char *offered);
