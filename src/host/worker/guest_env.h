/* guest_env - the environment of a worker in its VM, and what `localhost` means there (worker VM
 * specification §5.4).
 */
#pragma once

#include "base/err.h"

#define GUEST_ENV_TOTAL_MAX (1u << 20) /* bytes of all NAME=value; more is S001 */
#define GUEST_ENV_VALUE_MAX 131071     /* of one NAME=value with its NUL (MAX_ARG_STRLEN); S001 */

/* S001 naming the key (never the value): empty name, '=' or NUL in it, too large. */
int guest_env_check(char *const *env, struct err *e);

struct guest_env_parts {
	char *const *image; /* NAME=value lists, lowest first; each may be NULL */
	char *const *manifest;
	char *const *request;
	const char *worker_name, *engine_url;
};
/* The complete list, one entry a name, loopback URLs rewritten to the guest's gateway, PATH merged.
 * HOME, TMPDIR, SHELL are checked by the agent, which sees the guest's files. Free with strv_free.
 */
char **guest_env_make(const struct guest_env_parts *p);

/* "://localhost:" and "://127.0.0.1:" become the gateway's: for values and the start command. */
char *guest_env_rewrite(const char *text);
/* Any loopback authority (localhost, 127/8, [::1], 0.0.0.0), with or without port, user and path.
 */
char *guest_env_rewrite_url(const char *url);
