/* manifest_read - the fields of iii.worker.yaml, each of its type; what follows from them is
 * manifest.c's.
 */
#pragma once

#include <json-c/json_object.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Everything points into the tree that was read; NULL or 0: left out. */
struct manifest_fields {
	const char *name, *base_image, *kind, *language, *package_manager, *entry;
	json_object *scripts; /* the section, when there is one */
	const char *setup, *install, *start;
	json_object *env; /* names are usable, values are strings or null */
	uint32_t cpus, mem_mib;
};

enum manifest_unknown {
	MANIFEST_UNKNOWN_REFUSE, /* keys that nobody knows are faults */
	MANIFEST_UNKNOWN_IGNORE,
};

/* The top level of the file, which has to be a mapping. -EINVAL: all faults of the file, each with
 * its dotted path, in one sentence; no value of the file is in it. */
int manifest_read(json_object *top, enum manifest_unknown unknown, struct manifest_fields *ret,
	struct err *e);
