/* worker - what the guest of a worker VM is to do, as the host tells it on the port iii.env.
 *
 * The member "worker" of that frame (agent/env.h). Both sides read it with these functions; a
 * member that is missing, unknown or of another type is an error.
 *
 *   {"name":"…","kind":"local|bundle","setup":"…"|null,"install":"…"|null,"run":"…",
 *    "setup_digest":"<64 hex>","install_digest":"<64 hex>","source_digest":"<64 hex>",
 *    "memory_max_bytes":N,"nofile":N}
 *
 * Rules: worker VM specification §4.5 (sync), §4.6 (provisioning), §5.2, §5.5.
 */
#pragma once

#include <json-c/json_object.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define WORKER_DIGEST_LEN 64
#define WORKER_SCRIPT_MAX 65536 /* bytes of one script; a manifest has no more either */
#define WORKER_NAME_MAX	  256	/* bytes; a longer name is refused */

enum worker_kind {
	WORKER_LOCAL,  /* host artefacts are not in the source and stay in the guest */
	WORKER_BUNDLE, /* a new package empties /workspace first */
};

/* Whether a name in a project's tree, at any depth, is one that tools make and no author writes:
 * node_modules, .venv, target, dist, __pycache__, .pytest_cache, .next, .git. A local source is
 * taken without them, and those in the guest's /workspace belong to the guest. */
bool worker_is_artefact(const char *name);

struct worker_job {
	enum worker_kind kind;
	char *name;
	char *setup, *install; /* NULL: there is none */
	char *run;	       /* one string for /bin/sh -c */
	/* "" only where there is no such script. */
	char setup_digest[WORKER_DIGEST_LEN + 1], install_digest[WORKER_DIGEST_LEN + 1];
	char source_digest[WORKER_DIGEST_LEN + 1]; /* bundle: of the package; local: "" */
	uint64_t memory_max_bytes; /* of the worker and all it starts; 0: no limit */
	uint64_t nofile;	   /* RLIMIT_NOFILE; 0: as the guest has it */
};

/* Frees what the job owns and zeroes it. */
void worker_job_done(struct worker_job *j);

/* What worker_job_from_json checks: names and scripts are there and of legal length, digests are
 * lower-case hex. -EINVAL or -E2BIG with the member's name. */
int worker_job_check(const struct worker_job *j, struct err *e);

/* A new object. */
json_object *worker_job_to_json(const struct worker_job *j);
/* *ret is zeroed first and the caller's also on failure. */
int worker_job_from_json(json_object *o, struct worker_job *ret, struct err *e);
