/* manifest_calls - reading a manifest from a text, for the tests of it. Values that must not be
 * shown have the word SECRET in them. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/worker/manifest.h"

#define NODE "docker.io/iiidev/node:latest" /* the default image */
#define M    MANIFEST_FILE ": "

static const struct manifest_query local = {.kind = WORKER_LOCAL};
static const struct manifest_query bundle
	__attribute__((unused)) = {.kind = WORKER_BUNDLE, .package = "w"};

/* Parses from a block of exactly `len` bytes, so that a read past the end is seen by ASan. */
static inline int parse(const char *text, size_t len, const struct manifest_query *q,
	struct manifest *m, struct err *e)
{
	cleanup_free char *exact = xmalloc(MAX(len, (size_t)1));

	memcpy(exact, text, len);
	*e = ERR_INIT;
	return manifest_parse(exact, len, q, m, e);
}

static inline void takes(const char *text, const struct manifest_query *q, struct manifest *m)
{
	struct err e;

	if (parse(text, strlen(text), q, m, &e) != 0)
		fail_msg("%s\n%s", text, e.text);
}

static inline void refuses(
	const char *text, const struct manifest_query *q, const char *code, const char *want)
{
	struct manifest m;
	struct err e;

	if (parse(text, strlen(text), q, &m, &e) >= 0)
		fail_msg("taken: %s", text);
	assert_string_equal(e.text, want);
	assert_string_equal(e.code, code);
	assert_null(strstr(e.text, "SECRET"));
	manifest_done(&m);
}

static inline void strings_equal(const char *a, const char *b)
{
	if (!str_eq(a, b))
		fail_msg("%s is not %s", a ? a : "(none)", b ? b : "(none)");
}
