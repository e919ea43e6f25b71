/* confine - what a VM's processes give up before they start.
 *
 * Called twice: by __vm-boot for itself (its children inherit it) and by the VMM child for what is
 * the child's own. Each step works without privileges.
 */
#pragma once

#include <stddef.h>

#include "base/err.h"

#define CONFINE_FILES_MAX 256 /* descriptors of __vm-boot and of the VMM */

/* Dies with the parent; no new privileges, no core dump, few descriptors, umask 077, an empty
 * environment but for the names in `keep`, no terminal signals. */
int confine_self(const char *const *keep, size_t n_keep, struct err *e);

/* Closes every descriptor that is not 0, 1, 2 or listed. */
int confine_fds(const int *keep, size_t n, struct err *e);

/* Gives back the memory of code that only ran during the start: pages of the program and its
 * libraries which were never written. They are read again from the page cache when needed. */
void confine_drop_code(void);
