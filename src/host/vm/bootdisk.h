/* bootdisk - the disk that the guest's kernel boots from: our agent and empty mount points.
 *
 * It is built with the program (an EROFS of a few hundred KiB) and lies in its read-only data.
 * A program built without it (-Dagent=false) takes the file that III_SANDBOX_BOOT_DISK names.
 */
#pragma once

#include "base/err.h"

/* The disk as a sealed file in memory, opened read-only; made once, owned by the process. */
int bootdisk_fd(int *ret_fd, struct err *e);
