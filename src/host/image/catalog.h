/* catalog - the names people use for images, and the names the store keeps them under.
 *
 * A store name is one of
 *   registry/repository:tag (or @digest)   a normalised reference; it has a slash
 *   a word                                 given by --as; it has neither slash nor colon
 *   oci:/path…, oci-archive:…              a local source stored without a name of its own
 * so the three never collide. Presets (sandbox contract §1.2) are names of references and can be
 * given another content with --as, but not another reference.
 */
#pragma once

#include <stddef.h>

#include "base/err.h"

#define CATALOG_WORD_BYTES_MAX 128 /* of a name given by --as */

struct catalog_preset {
	const char *name, *ref;
};
/* In the fixed order of the contract. */
extern const struct catalog_preset catalog_presets[];
extern const size_t catalog_n_presets;

/* The reference of a preset, or NULL. */
const char *catalog_preset_ref(const char *name);
/* The preset of a store name, or NULL. */
const char *catalog_preset_name(const char *store_name);

/* The store name for `--as NAME`: a preset's reference, a normalised reference (NAME has '/' or
 * ':'), or the word itself. Caller frees. */
int catalog_name_as(const char *as, char **ret, struct err *e);

/* Store names to look for, best first, when a person says `name`: preset, word, reference or local
 * source. Never empty on success; strv_free. */
int catalog_candidates(const char *name, char ***ret, struct err *e);
