/* record - what is kept on disk of each worker VM, and who may touch it (worker VM specification
 * §1.4, §1.5, §1.10).
 *
 *   <state>/workers/<vm_id>/     the folder of a VM:
 *     record.json                its current boot and the last WORKER_HISTORY_MAX
 *     record.json.corrupt-<ms>   what could not be read
 *     lock                       flock by the daemon that uses the VM
 *     upper.ext4                 the writable disk
 *     log/                       logs.h
 *     *.partial                  half-made files
 *   <state>/workers/<vm_id>.seq  last instance number; survives everything
 *   <state>/workers/.trash-*     being deleted
 *
 * Several daemons may share the folder: who has the lock of a VM's folder may touch what is in it,
 * and its .seq. Files are written whole or not at all (*.partial, fsync, rename, fsync of the
 * folder) and never hold the token or an environment. All functions block on the disk: call them
 * from a thread. One vmdir is used by one thread at a time.
 *
 * Failures are S504, but for -EBUSY, which is S502.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "wire/worker.h"

#define WORKER_HISTORY_MAX 16 /* ended boots whose status is still known */
#define WORKER_ID_LEN	   36 /* "wvm-" and 32 hex digits */
#define WORKER_UPPER	   "upper.ext4"
#define WORKER_UPPER_SIZE  ((uint64_t)16 << 30) /* sparse; what a guest's / has room for */
#define WORKER_UPPER_LABEL "iii-upper"
/* Bytes of record.json; a larger one is not ours. */
#define WORKER_RECORD_MAX (256u << 10)
/* How long a start waits for a supervisor of a dead daemon that it killed. */
#define WORKER_STRAY_WAIT_MS 5000

enum worker_state {
	WORKER_PREPARING,
	WORKER_RUNNING,
	WORKER_EXITED,
	WORKER_STOPPED,
	WORKER_UNKNOWN, /* in replies only */
};
const char *worker_state_name(enum worker_state s);

/* One boot. */
struct worker_boot {
	uint64_t instance; /* 0: none */
	enum worker_state state;
	uint64_t started_at_ms, ended_at_ms; /* wall clock; ended 0: not ended */
	bool has_exit_code, has_signal;
	int32_t exit_code, signal;
};

struct worker_record {
	struct worker_boot boot;			/* the current one */
	struct worker_boot history[WORKER_HISTORY_MAX]; /* newest first; instance 0: no more */
	/* May be NULL; for people: what is not UTF-8 is repaired when it is saved. */
	char *worker_name, *source_path, *base_ref, *base_digest;
	enum worker_kind kind;
	bool stop_requested;
	pid_t pid;	    /* of the supervisor; 0: none */
	uint64_t pid_start; /* its start time (proc(5) stat field 22) */
};
void worker_record_done(struct worker_record *r);
/* The boot of that number, current or kept; NULL. */
const struct worker_boot *worker_record_find(const struct worker_record *r, uint64_t instance);
/* Puts the current boot, if any, into the history and starts another: PREPARING, without a pid. One
 * that was not ended ends as EXITED now. */
void worker_record_next(struct worker_record *r, uint64_t instance, uint64_t now_ms);

/* "wvm-" and the first 32 hex digits of SHA-256("sandbox-libkrun/worker-vm/v1" 0x00 state_key). */
void worker_vm_id(const char *state_key, char ret[static WORKER_ID_LEN + 1]);
/* Whether a text has that shape; nothing else is ever used as a file name. */
bool worker_vm_id_valid(const char *vm_id);

/* --- a VM's folder --- */

struct vmdir {
	int root_fd; /* <state>/workers, borrowed */
	int fd;	     /* the folder */
	int lock_fd; /* -1: not locked by us */
	char vm_id[WORKER_ID_LEN + 1];
};

/* <state>/workers, made if missing; refuses a tmpfs as upper.h does. */
int vmdir_root(int *ret_fd, struct err *e);

/* Opens and locks it. make: creates what is missing; else -ENOENT. -EBUSY (S502 by the caller) when
 * another daemon has it. */
int vmdir_open(int root_fd, const char *vm_id, bool make, struct vmdir *ret, struct err *e);
void vmdir_close(struct vmdir *d); /* unlocks */

/* 0 with *ret filled (zeroed when there is no record). A corrupt record is renamed aside, said in
 * the log, and counts as none. */
int vmdir_load(struct vmdir *d, struct worker_record *ret, struct err *e);
/* For a record just loaded after vmdir_open: whoever ran its boot had the lock, so it is over.
 * Kills the supervisor if it is still there (pid, start time and boot of this host agree; another
 * process of that pid is never touched), waits at most WORKER_STRAY_WAIT_MS for it, and makes a
 * boot that had not ended "exited" at now_ms. True when *r was changed; it is not saved. */
bool vmdir_settle(struct vmdir *d, struct worker_record *r, uint64_t now_ms);
/* Tells one state of a record on disk from the next. Zeroed: nothing was read yet. */
struct vmdir_mark {
	uint64_t inode;
	int64_t sec, nsec;
};
/* Reads the record without the lock and without touching anything. 1: *ret, and *mark is its; 0:
 * it is the one of *mark, and *ret is zeroed; -ENOENT: there is none; else it cannot be read. */
int vmdir_peek(int root_fd, const char *vm_id, struct vmdir_mark *mark, struct worker_record *ret,
	struct err *e);
int vmdir_save(struct vmdir *d, const struct worker_record *r, struct err *e);
/* The next instance number, durable before it returns: greater than at_least (the record's) and
 * than the .seq's. A damaged .seq is said in the log; counting then goes on at the milliseconds
 * since 1970, which no counter reaches. */
int vmdir_next_instance(struct vmdir *d, uint64_t at_least, uint64_t *ret, struct err *e);
/* The writable disk, read-write, made if missing (upper.h). S504 when it cannot be made (disk full:
 * nothing half-made is left) or is no regular file of ours. */
int vmdir_open_upper(struct vmdir *d, int *ret_fd, struct err *e);
/* Deletes the folder: renamed into the trash under the lock, then removed without following any
 * symlink. The .seq stays. -EBUSY when a process holds the upper's lock (nothing is touched). d is
 * closed in any case. */
int vmdir_destroy(struct vmdir *d, struct err *e);

/* --- the start --- */

/* Before any function is registered: sweeps trash and half-made files, and settles and saves the
 * record of each folder that can be locked. `found` is called for each that has a record; the
 * folder is closed again. Folders that are locked by another daemon are passed over, and those that
 * cannot be read are said in the log. Fails only when the root cannot be read. */
int vmdir_recover(int root_fd, uint64_t now_ms,
	void (*found)(const char *vm_id, const struct worker_record *r, void *user), void *user,
	struct err *e);

/* The start time of a process (proc(5) stat field 22), or 0. */
uint64_t process_start_time(pid_t pid);
