/* exec_request - the head of "/exec", read.
 *
 *   {"argv":["sh","-c","…"],"env":["K=V",…],"workdir":"/","deadline_ms":N,
 *    "stdout_cap":N,"stderr_cap":N}
 *
 * argv is required; env adds to the base environment; workdir "" or absent is /; deadline_ms is
 * required (0 counts as 1); a cap that is absent is 2^64-1: everything is sent.
 */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "wire/json.h"

/* Bytes of the head: argv and env of the largest size that execve takes (a quarter of the stack
 * limit, 2 MiB), escaped. A longer head is a failed request. */
#define EXEC_HEAD_MAX (8u << 20)

struct exec_request {
	char **argv;
	char **env;
	char *workdir; /* absolute, or relative to / */
	uint64_t deadline_ms;
	uint64_t caps[2]; /* of stdout, stderr */
};

int exec_request_parse(json_object *head, struct exec_request *ret, struct err *e);
void exec_request_done(struct exec_request *r);
