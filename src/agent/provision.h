/* provision - what a worker VM does by itself, from its source to the end of its worker (worker VM
 * specification §4.5, §4.6, §5.5, §5.6). One a process.
 *
 *   step      what runs                                            left when
 *   SYNC      a child that brings /workspace up to date            it has ended
 *   SETUP     /bin/sh -e -c, if its digest is not the marker's     it has ended
 *   INSTALL   likewise                                             it has ended
 *   MARK      a child that writes the marker, if it changes        it has ended
 *   RUN       /bin/sh -c, the worker                               it has ended
 *   OVER      on_end has been called
 *
 * A step that fails is the end. Scripts run in a session and process group of their own, in the
 * cgroup "worker" with its memory limit, in /workspace, with nothing but /dev/null and the console.
 * What SETUP and INSTALL leave in the background goes on; when the worker's own process is gone,
 * everything in the cgroup is killed.
 *
 * Status of the end: the script's code, or 128+n when signal n ended it; 127 (126) when it cannot
 * be started; 125 when something of ours failed. Each is said on the console.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "agent/sync.h"
#include "base/err.h"
#include "wire/worker.h"

#define PROVISION_GRACE_MAX_MS 86400000ull /* a longer grace is cut to a day */
#define PROVISION_FAILED       125	   /* status when it is not a script that failed */

struct provision_config {
	const struct worker_job *job; /* borrowed, like everything else here, until the end */
	char *const *env;
	const char *workdir; /* of the scripts */
	int root_fd;	     /* the folder that holds workspace and var; taken */
	int console_fd;	     /* of the scripts' output, blocking; taken; negative: /dev/null */
	/* Runs in a child, and may block. */
	int (*bring)(
		void *user, const struct worker_job *job, struct sync_counts *ret, struct err *e);
	/* "sync", "setup", "install", "run": the last once the worker's process has begun. */
	void (*on_phase)(const char *phase, void *user);
	void (*on_end)(int status, void *user);
	void *user;
};

/* Needs spawn_start and reap_start; uses a cgroup where cgroup_start has made them available. */
void provision_start(uv_loop_t *loop, const struct provision_config *config);

/* Asks for the end: SIGTERM to the process group of what runs, SIGKILL to all of it after grace_ms.
 * on_end follows, when the group is empty, with the status of the script. Asked again it can only
 * shorten the grace. False when there is nothing to end (never started, or over). */
bool provision_shutdown(uint64_t grace_ms);

/* For tests: closes the handles after the end. */
void provision_stop(void);
