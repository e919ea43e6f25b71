/* reply - answers to callers, and the one place where a struct err becomes the error they see.
 *
 * On the wire an error has the code "invocation_failed" and a message of the text "handler error: "
 * and one line of JSON with seven members in the order of their names (sandbox contract §3.1):
 * code, docs_url, fix, fix_note, message, retryable, type.
 */
#pragma once

#include <json-c/json_object.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "host/bus/bus.h"

#define REPLY_ERROR_CODE   "invocation_failed"
#define REPLY_ERROR_PREFIX "handler error: "

/* A failure inside run: which of its steps, and in which sandbox (§3.3). */
struct reply_step {
	const char *name;
	const char *sandbox_id; /* "" when the step is create */
};

/* All but `e` may be left zero. */
struct reply_failure {
	const struct err *e;
	/* Put behind the message; any bytes: what is not UTF-8 is repaired. */
	const void *more;
	size_t more_len;
	bool parent_missing; /* S211 that `parents: true` would cure */
	const struct reply_step *step;
	const char *busy_vm;	/* S502: which worker VM is in the way … */
	uint64_t busy_instance; /* … as which instance; 0: unknown */
};

/* The seven members. */
json_object *reply_failure_new(const struct reply_failure *f);

/* Logs the failure (never its `more`) and answers `c` with it. */
void reply_failed(struct bus_call *c, const struct reply_failure *f);
void reply_err(struct bus_call *c, const struct err *e);

/* Logs success at debug level and answers. `result` is taken; members are to be added in byte order
 * of their names. */
void reply_ok(struct bus_call *c, json_object *result);

/* A new empty object or array; never NULL. */
json_object *reply_object(void);
json_object *reply_array(void);
/* Adds a member or an element (taken). */
void reply_add(json_object *o, const char *name, json_object *v);
void reply_append(json_object *array, json_object *v);
