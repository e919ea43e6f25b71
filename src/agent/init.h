/* init - from the kernel's first program to a guest that can serve. */
#pragma once

#include "agent/cmdline.h"
#include "agent/env.h"
#include "base/err.h"

/* What the boot leaves behind for the service. */
struct init_result {
	int agent_fd;			     /* port iii.agent */
	int control_fd;			     /* port iii.control */
	int env_fd;			     /* port iii.env: read, but a port is never closed */
	int cgroup_fd;			     /* cgroup v2 root, or -1 */
	int upper_fd;			     /* root folder of the upper disk */
	char source[CMDLINE_SERIAL_MAX + 1]; /* serial of a worker VM's source disk, or "" */
	struct env_frame frame;
};

/* All that "ready" means. On failure ret->control_fd may be open (to say why); the caller powers
 * off. */
int init_boot(struct init_result *ret, struct err *e);
/* What only has to be there before the first request is looked at, and may be missing: lo, pids,
 * /etc/hosts of a guest without network. */
void init_finish(const struct init_result *boot);
