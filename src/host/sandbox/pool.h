/* pool - all sandboxes of the daemon: admitted, booted, looked up, stopped, reaped.
 *
 *   state      counts   in list   calls get    left when
 *   FETCHING   yes      no        -            the image is there -> BOOTING; failed -> gone
 *   BOOTING    yes      no        -            agent ready -> LIVE; VM ended -> gone
 *   LIVE       yes      yes       served       pool_stop, reaper -> STOPPING; VM ended -> DEAD
 *   STOPPING   no       yes*      S004         the VM ended -> gone
 *   DEAD       no       yes       S004         pool_stop, next tick -> gone
 *
 * "counts" is against max_sandboxes. * A stop that nobody waits for takes the entry out of the list
 * at once and the VM in the background. Gone: S002; the memory stays while calls hold the entry.
 *
 * Rules: sandbox contract §1.3-§1.6, §4. All on the loop's thread; callbacks come from the loop,
 * unless said otherwise. The pool never waits for guest or disk.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "host/image/images.h"
#include "host/sandbox/sandbox.h"

struct pool;
struct pool_entry; /* one sandbox */

struct pool_options {
	uint32_t sandboxes_max;
	uint32_t execs_max;	      /* at once in one sandbox; >= 1 */
	uint64_t exec_timeout_max_ms; /* longest one, for the reaper */
	enum vm_backend_choice backend;
	struct images *images;	  /* borrowed */
	struct vm_net net;	  /* of sandboxes with a network; its arrays outlive the pool */
	uint64_t (*now_ms)(void); /* a monotonic clock; NULL: the host's */
};

struct pool *pool_new(uv_loop_t *loop, const struct pool_options *o);
/* Ends everything: creates fail, VMs are killed. `closed` comes when no process is left and no
 * image is waited for: close the images in the same turn of the loop. */
void pool_close(struct pool *p, void (*closed)(void *user), void *user);
/* One round of the reaper; the pool does it every REAPER_TICK_MS by itself. */
void pool_reap(struct pool *p);

/* --- creating --- */

struct pool_create {
	const char *image;     /* its name */
	const char *image_ref; /* the reference behind it */
	bool may_fetch;
	uint32_t cpus, memory_mb;
	uint64_t idle_timeout_secs;
	const char *label; /* shown by list; any bytes; NULL: none */
	size_t label_len;
	const char *traceparent; /* of the call, for the log; NULL: none */
	char *const *env;	 /* may be NULL */
	bool network;
};

/* S400 unless there is room for one more. */
int pool_check_room(const struct pool *p, struct err *e);

/* `entry` is LIVE, or NULL with `why` and the VM's last words (valid UTF-8, maybe ""). */
typedef void (*pool_created)(
	struct pool_entry *entry, const struct err *why, const char *tail, void *user);

/* Reserves the slot and starts; pool_check_room() must have agreed in the same turn of the loop. */
void pool_create(struct pool *p, const struct pool_create *c, pool_created cb, void *user);

/* --- working in one --- */

enum pool_work {
	POOL_EXEC, /* takes one of the exec slots */
	POOL_FS,   /* counts as work under way */
	POOL_PUMP, /* only holds the entry: a stream that may stand still */
};
#define POOL_PUMPS_MAX                                                                             \
	96 /* of one sandbox: unread channels of fs::read; one more is S216. The streams that are  \
	      left (MUX_STREAMS_MAX) are for calls that move. */

/* Looks `id` (lower case, hyphens) up for a call: S002, S004. Changes nothing. */
int pool_find(struct pool *p, const char *id, struct pool_entry **ret, struct err *e);
/* Begins work in a LIVE entry: S003 for POOL_EXEC, S216 for POOL_PUMP. Stamps its activity. */
int pool_begin(struct pool_entry *x, enum pool_work work, struct err *e);
/* Stamps, releases. x may be freed. */
void pool_end(struct pool_entry *x, enum pool_work work);
/* A chunk moved. */
void pool_touch(struct pool_entry *x);

const char *pool_id(const struct pool_entry *x);
const char *pool_image(const struct pool_entry *x);
/* "hardware" or "emulated". */
const char *pool_tier(const struct pool_entry *x);
/* The agent's client; only while the entry is LIVE. */
struct guest *pool_guest(struct pool_entry *x);
/* Puts the failure of a call into the words that its caller is promised: S004 when the sandbox was
 * stopped meanwhile, the VM's end for POOL_EXEC. */
void pool_explain(const struct pool_entry *x, enum pool_work work, struct err *e);

/* --- stopping --- */

typedef void (*pool_stopped)(void *user);

/* The entry for a stop: S002 only. */
int pool_find_any(struct pool *p, const char *id, struct pool_entry **ret, struct err *e);
/* Stops x. With `wait`, or when a stop with it is under way, cb comes when no process or file of it
 * is left; else at once, from inside this call. */
void pool_stop(struct pool_entry *x, bool wait, pool_stopped cb, void *user);
/* The trace context of the call that stops x, for the log; NULL: none. */
void pool_set_trace(struct pool_entry *x, const char *traceparent);

/* --- listing --- */

struct pool_row {
	const char *id, *image;
	const char *label; /* NULL: none */
	size_t label_len;
	uint64_t age_secs;
	uint32_t execs, execs_free;
	bool stopped;
};
/* The published ones, oldest first; a new array (free it), valid until the loop goes on. */
size_t pool_list(struct pool *p, struct pool_row **ret);
