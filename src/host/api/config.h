/* config - the adapter's configuration entry, checked (sandbox contract §2).
 *
 * Read once at start. A value that breaks a rule is refused with one line that names the key;
 * nothing is ever replaced by a default because it was wrong.
 */
#pragma once

#include <json-c/json_object.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define CONFIG_CPUS_MIN	     1
#define CONFIG_MEMORY_MB_MIN 64

/* The ceilings of one image; absent ones are UINT32_MAX. */
struct config_cap {
	char *image;
	uint32_t max_cpus, max_memory_mb;
};

struct config_image {
	char *name, *ref;
};

struct config {
	bool auto_install;
	char **image_allowlist; /* NULL: nothing may boot */
	uint64_t default_idle_timeout_secs;
	uint32_t max_concurrent_sandboxes;
	uint32_t max_concurrent_exec_per_sandbox; /* >= 1 */
	uint64_t max_exec_timeout_ms;		  /* >= 1 */
	uint32_t default_cpus, default_memory_mb;
	struct config_cap *caps;
	size_t n_caps;
	struct config_image *images; /* custom ones, sorted by name */
	size_t n_images;
};

/* What holds where no entry exists: the shipped block, with the two presets allowed. */
void config_init_shipped(struct config *c);

/* -EINVAL with one line that names the key. Logs warnings about what is odd but allowed. On
 * success the caller owes config_done(). */
int config_parse(json_object *value, struct config *ret, struct err *e);
void config_done(struct config *c);

/* The reference of a known image, preset or custom; NULL for others. */
const char *config_image_ref(const struct config *c, const char *name);
/* Known and listed: it may boot. */
bool config_image_allowed(const struct config *c, const char *name);
/* The names that may boot, ", " between, as a new string; "" when there are none. */
char *config_allowed_names(const struct config *c);
/* The ceilings of an image; all UINT32_MAX when it has none. */
struct config_cap config_image_cap(const struct config *c, const char *name);
