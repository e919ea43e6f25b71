/* worker - all worker VMs of the daemon: prepared, started, watched, stopped, destroyed.
 *
 *   state       left when
 *   (none)      start passed its checks -> PREPARING
 *   PREPARING   the guest began its command -> RUNNING;
 *               the VM ended or could not be made -> EXITED, or STOPPED when that was asked for
 *   RUNNING     the VM ended -> EXITED, or STOPPED when that was asked for
 *   EXITED,     start -> PREPARING as the next instance;
 *   STOPPED     destroy -> (none)
 *
 * A boot never goes backwards, and its number is never used again. Rules: worker VM specification
 * §1; the order of checks of each function is §1.2's, from host roots on (token and shape are
 * api/worker.c's).
 *
 * All on the loop's thread; callbacks come exactly once, from the loop or, when there is nothing to
 * wait for, from inside the call. Work on files is done by the loop's pool of threads, one job of a
 * VM at a time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "host/image/images.h"
#include "host/vm/vm.h"
#include "host/worker/logs.h"
#include "host/worker/manifest.h"
#include "host/worker/record.h"
#include "host/worker/roots.h"

struct workers;

struct workers_options {
	enum vm_backend_choice backend;
	struct images *images;	    /* borrowed: shared with the pool of sandboxes */
	const uint16_t *host_ports; /* of vm_net */
	size_t n_host_ports;
};

/* Recovers what an earlier daemon left (blocking: before anything is served). A state folder that
 * cannot be used is said in the log; what needs it then fails with S504. */
struct workers *workers_new(uv_loop_t *loop, const struct workers_options *o);
/* Refuses new calls, stops all VMs at once with WORKERS_CLOSE_GRACE_MS, then tells. Logs can still
 * be read until workers_free(). */
#define WORKERS_CLOSE_GRACE_MS 5000
void workers_close(struct workers *w, void (*closed)(void *user), void *user);
uv_loop_t *workers_loop(const struct workers *w);
void workers_free(struct workers *w); /* after `closed`, without readers of logs; NULL allowed */

struct worker_source {
	enum worker_kind kind;
	const char *host_path;
	const char *package;	  /* bundle */
	const char *run_override; /* local; may be NULL */
};

/* why is NULL on success. */
typedef void (*workers_done)(const struct err *why, void *user);
/* Checks the source and fetches its base image. */
void workers_prepare(struct workers *w, const struct worker_source *s, workers_done cb, void *user);

struct worker_start {
	struct worker_source source;
	const char *state_key, *worker_name, *engine_url;
	char *const *env; /* collected by guest_env_add, which checks it */
};
/* busy: S502; vm_id and instance of the boot that is in the way. tail: last words of a boot that
 * failed. */
struct worker_started {
	const struct err *why; /* NULL: it boots */
	char vm_id[WORKER_ID_LEN + 1];
	uint64_t instance;
	const char *tail;
};
typedef void (*workers_started)(const struct worker_started *s, void *user);
#define WORKERS_WAITING_MAX 256 /* more starts that are being checked at once are S400 */
/* Answers when the guest's agent is up, or at the failure. */
void workers_start(struct workers *w, const struct worker_start *s, workers_started cb, void *user);

/* At once, from memory. state WORKER_UNKNOWN for what is not known. What another daemon did to a VM
 * that is at rest here is known a second later. */
void workers_status(
	struct workers *w, const char *vm_id, uint64_t instance, struct worker_boot *ret);

#define WORKERS_GRACE_MAX_MS (24 * 3600 * 1000) /* a longer grace counts as this one */
#define WORKERS_KILL_MS	     5000 /* a VM that is still there so long after its grace is S504 */
/* why: S504 when the VM could not be ended; else NULL and the boot's final status. */
typedef void (*workers_stopped)(const struct worker_boot *b, const struct err *why, void *user);
void workers_stop(struct workers *w, const char *vm_id, uint64_t instance, uint64_t grace_ms,
	workers_stopped cb, void *user);

typedef void (*workers_destroyed)(
	bool existed, const struct worker_started *busy, const struct err *why, void *user);
void workers_destroy(struct workers *w, const char *state_key, workers_destroyed cb, void *user);

/* l: the log, held until workers_logs_release(), of the boot under way or as it is on disk now;
 * its readers are told by their wake and end when the VM is destroyed or started again. NULL: why;
 * S503 when there is none. */
typedef void (*workers_logs_opened)(struct logs *l, const struct err *why, void *user);
void workers_logs(struct workers *w, const char *vm_id, workers_logs_opened cb, void *user);
void workers_logs_release(struct workers *w, struct logs *l);
