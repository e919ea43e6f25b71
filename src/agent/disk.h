/* disk - the two disks of a sandbox, found by serial and put together as one root. */
#pragma once

#include "agent/cmdline.h"
#include "base/err.h"

/* Where things are mounted while the boot disk is still the root. */
#define DISK_ROOT "/mnt/root"

/* Finds the block device with this virtio serial, waiting for its driver; its node ("/dev/vdb") in
 * `dst`. `what` names the disk in errors. */
int disk_find(const char *serial, const char *what, char dst[static 32], struct err *e);

/* Mounts base (EROFS, read-only) and upper (ext4), and both as an overlay on DISK_ROOT.
 * A command line that names a source disk is a worker VM's, whose upper disk outlives the boot.
 * *ret_upper_fd is the root folder of the upper disk, for poweroff.c. */
int disk_mount_root(const struct cmdline *words, int *ret_upper_fd, struct err *e);
