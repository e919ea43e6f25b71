/* marker - which setup and install have been done on this upper disk (worker VM specification
 * §4.6): /var/.iii-prepared, two lines of 64 hex digits, the setup's and the install's digest.
 *
 * Written only when both have succeeded. A file that is missing, empty (as older programs left it)
 * or anything else says that nothing has been done.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "wire/worker.h"

#define MARKER_PATH "/var/.iii-prepared"

struct marker {
	char setup[WORKER_DIGEST_LEN + 1], install[WORKER_DIGEST_LEN + 1]; /* "" when not known */
};

/* Never fails: see above. */
void marker_parse(const char *text, size_t len, struct marker *ret);
void marker_read(int root_fd, struct marker *ret);

/* What has to be run, or noted as done although there is nothing to run. */
struct marker_verdict {
	bool setup, install; /* the script runs */
	bool write;	     /* the marker is not that of this job */
};
struct marker_verdict marker_compare(const struct marker *m, const struct worker_job *job);

/* Puts all that was written before on disk, then the marker of this job, durably. */
int marker_write(int root_fd, const struct worker_job *job, struct err *e);
