/* digest - SHA-256 of bytes in memory, in OCI form. */
#pragma once

#include <stddef.h>

/* "sha256:" and 64 lower-case hex digits. */
void digest_of(const void *data, size_t len, char dst[static 72]);
