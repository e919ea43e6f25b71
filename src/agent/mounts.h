/* mounts - the file systems of the kernel inside a root made from an untrusted image.
 *
 * Mount points are resolved inside the root (openat2 RESOLVE_IN_ROOT): an image whose /proc or /tmp
 * is a link elsewhere gets the mount where the link leads inside it, never outside. What is in the
 * way (a file, a dangling link) is replaced in the upper layer; what is missing is made.
 */
#pragma once

#include "base/err.h"

/* Mounts /proc /sys /dev /dev/pts /dev/shm /tmp /run and cgroup v2 below `root`; makes the links
 * of /dev. Needs /proc in the caller's own root. *ret_cgroup_fd is the open cgroup v2 root, or -1
 * when the kernel has none. */
int mounts_make(const char *root, int *ret_cgroup_fd, struct err *e);

/* Opens the folder `path` (relative) inside root_fd, making it if needed. Returns an O_PATH
 * descriptor. */
int mounts_open_point(int root_fd, const char *path, struct err *e);
