/* manifest - iii.worker.yaml and what follows from its kind, or from a project without one: what to
 * boot and what to run (worker VM specification §4).
 *
 * A source without a manifest is looked at for package.json, Cargo.toml and so on (§4.3); a bundle
 * always needs one. The result is complete: nothing of the kind is left to the caller.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/worker.h"

#define MANIFEST_FILE	   "iii.worker.yaml"
#define MANIFEST_BYTES_MAX 65536 /* a larger file is S500 */
#define MANIFEST_NODES_MAX 10000 /* YAML nodes after aliases; more is S500 */

/* More is S500. With a request's variables (guest_env.h) and an image's they fit what a VM is given
 * (plan.h). */
#define MANIFEST_ENV_MAX 256

#define MANIFEST_CPUS_DEFAULT	    2
#define MANIFEST_MEM_DEFAULT_MIB    2048
#define MANIFEST_BUNDLE_CPUS_MAX    4 /* a bundle that asks for more gets this and a warning */
#define MANIFEST_BUNDLE_MEM_MAX_MIB 4096
#define MANIFEST_MEM_MIN_MIB	    128 /* less is raised to this, with a warning */

/* What the caller of prepare or start said. */
struct manifest_query {
	enum worker_kind kind;
	const char *package;	  /* bundle: has to be the manifest's name */
	const char *run_override; /* local: NULL or blank: none */
};

struct manifest {
	char *name;	       /* "" when there was no manifest */
	char *base_image;      /* an image reference, plausible by §0.1 */
	char *setup, *install; /* NULL: none */
	char *start;
	char **env; /* NAME=value of the manifest, without the reserved names; may be NULL */
	uint32_t cpus, mem_mib;
	char **warnings; /* for the VM's log, one sentence each; may be NULL */
};

void manifest_done(struct manifest *m);

/* Reads and checks the source in the folder. S500 naming what is wrong by its dotted path, nothing
 * of the file's other content; S400 for more vCPUs than a VM can have. *ret is the caller's
 * also on failure. Blocking, quick. */
int manifest_load(int dir_fd, const struct manifest_query *q, struct manifest *ret, struct err *e);

/* The same from a manifest's text; pure (fuzzed). */
int manifest_parse(const char *text, size_t len, const struct manifest_query *q,
	struct manifest *ret, struct err *e);
