/* guest_env - the environment of a worker in its VM, and what `localhost` means there (worker VM
 * specification §5.4).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Bytes of all NAME=value of a request with their NULs; more is S001. */
#define GUEST_ENV_TOTAL_MAX (1u << 20)
/* Variables of a request; more is S001. Leaves room for the image's and the manifest's below what a
 * VM is given (plan.h). */
#define GUEST_ENV_COUNT_MAX 3500
/* Of one NAME=value with its NUL, as it is in the guest: Linux starts no program with a longer one
 * (MAX_ARG_STRLEN). More is S001. */
#define GUEST_ENV_VALUE_MAX 131071

/* The variables of a request, collected one by one. */
struct guest_env {
	char **v; /* n entries NAME=value and a NULL; NULL while there are none */
	size_t n, cap, bytes;
};
void guest_env_done(struct guest_env *g);

/* Adds one, as texts with lengths, since JSON can bring NULs. S001 naming the key (never the
 * value): empty name, '=' or NUL in it, NUL in the value, one or all too large. */
int guest_env_add(struct guest_env *g, const char *name, size_t name_len, const char *value,
	size_t value_len, struct err *e);

/* The same for a list of NAME=value that is already one (may be NULL). */
int guest_env_check(char *const *env, struct err *e);

struct guest_env_parts {
	char *const *image; /* NAME=value lists, lowest first; each may be NULL */
	char *const *manifest;
	char *const *request;
	const char *worker_name, *engine_url;
};
/* The complete list, in the order of names, one entry a name (the last one of a list wins):
 * loopback URLs rewritten to the guest's gateway, PATH merged, LANG set, the reserved names ours.
 * What Linux could not start a program with is left out: entries without a name or longer than
 * GUEST_ENV_VALUE_MAX, which only an image can bring. HOME, TMPDIR, SHELL are checked by the agent,
 * which sees the guest's files. Free with strv_free. */
char **guest_env_make(const struct guest_env_parts *p);

/* In every URL of a text, "localhost:" and "127.0.0.1:" as the host (behind "://" and, if there is
 * one, "user@") become the gateway's: for values and the start command. The caller frees it. */
char *guest_env_rewrite(const char *text);
/* Any loopback authority (localhost, 127/8, [::1], 0.0.0.0 and their other spellings), with or
 * without port; user, path and query stay. The caller frees it. */
char *guest_env_rewrite_url(const char *url);
/* The same, names looked up (blocking): one that is this host's loopback becomes the gateway too,
 * since the guest asks another resolver. *ret_port: the port of an engine on this host, at whatever
 * address; 0 when it is elsewhere. */
char *guest_env_find_engine(const char *url, uint16_t *ret_port);
