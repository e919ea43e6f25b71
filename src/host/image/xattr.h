/* xattr - the extended attributes of one inode, packed as the disk holds them.
 *
 * Policy: kept are user.* and security.capability. Everything else is dropped without a word:
 * trusted.* (trusted.overlay.* would steer the guest's overlay), security.selinux and other labels
 * of the build host, system.posix_acl_* (guest kernels need no support for them) and names that
 * Linux does not know.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

/* Attributes of one inode, kept or not. More is -E2BIG. */
#define XATTR_COUNT_MAX 256

bool xattr_kept(const char *name);

/* Adds one to `packed` (entries as in erofs_format.h, each padded to 4 bytes). -E2BIG beyond
 * IMAGE_XATTRS_MAX or XATTR_COUNT_MAX. A name that is not kept, or is there already, is success and
 * adds nothing: libarchive lists the last one of an entry first, and the last one counts. */
int xattr_pack(struct buf *packed, const char *name, const void *value, size_t len, struct err *e);
