/* manifest_kind - what a kind of project stands for: its image, and commands where the manifest has
 * none (worker VM specification §4.3).
 */
#pragma once

#include <stdbool.h>

#include "base/err.h"

#define MANIFEST_KIND_DEFAULT "typescript"
#define MANIFEST_KINDS	      "typescript, javascript, bun, python, rust"

/* NULL: no such kind. */
const char *manifest_kind_image(const char *kind);

struct manifest_scripts {
	char *setup, *install, *start; /* NULL: there is none */
};
void manifest_scripts_done(struct manifest_scripts *s);

/* For a manifest without a section `scripts`. `package_manager` and `entry` may be NULL; start is
 * NULL when it takes an entry and there is none. An unknown kind has its entry as the command.
 * -EINVAL naming the key that is missing or no good. */
int manifest_kind_scripts(const char *kind, const char *package_manager, const char *entry,
	struct manifest_scripts *ret, struct err *e);

/* For a project without a manifest: looks what files are there. 1, 0 when none says anything, or a
 * negative errno of root_open_file(). */
int manifest_kind_detect(
	int dir_fd, const char **ret_image, struct manifest_scripts *ret, struct err *e);
