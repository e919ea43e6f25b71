/* logs - what one worker VM printed, in segments on disk, written by one and read by many (worker
 * VM specification §6).
 *
 * Folder log/: files <20-digit offset where it begins>.jsonl, each with the JSON lines that are
 * sent on a channel. A segment ends at LOGS_SEGMENT_MAX bytes; the oldest goes when there would be
 * more than LOGS_SEGMENTS_MAX. Offsets count the raw bytes that guest and VMM printed and the lines
 * of our own, in the order in which they became records.
 *
 * A log outlives its VM and the daemon. Memory is bounded by one unfinished line a stream; a reader
 * holds one descriptor and, while it has something to read, LOGS_READ_BYTES. A write error (disk
 * full) drops records, never blocks the VM; one record tells the loss when there is room again.
 *
 * A log and its readers belong to one thread at a time. Disk writes go to the page cache.
 *
 *   state    calls                                            leaves when
 *   open     (after logs_create) logs_add, logs_say,          logs_end -> at end
 *            logs_tick, reading
 *   at end   (after logs_open too) reading                    logs_retire: readers end
 *
 * What is added at the end all the same is kept; only readers that follow do not wait for it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/logrec.h"

#define LOGS_SEGMENT_MAX  (4u << 20)
#define LOGS_SEGMENTS_MAX 4
#define LOGS_TAIL_MS	  1000 /* an unfinished line is given out after this silence */
#define LOGS_RETRY_MS	  1000 /* a disk that refused a write is tried again after this */
#define LOGS_READ_BYTES	  (64u << 10)

struct logs;

/* A new boot's log: makes the folder `log` below vm_dir, if missing, and removes all records that
 * are in it. Only for who has the lock of the VM's folder. S504. */
int logs_create(int vm_dirfd, uint64_t instance, struct logs **ret, struct err *e);
/* What is in the folder now, to read; changes nothing on disk, so it needs no lock. A torn last
 * line and records of another boot than `instance` are not shown. S504. */
int logs_open(int vm_dirfd, uint64_t instance, struct logs **ret, struct err *e);
/* Its VM was destroyed, or has begun another boot: readers end. */
void logs_retire(struct logs *l);
void logs_free(struct logs *l); /* NULL allowed; readers must be gone */

/* Bytes as they come; now_ms: wall clock. Never fails for the caller. What was added is on disk and
 * readable when it returns. Gives the bytes of the records that it made: what it cost. */
size_t logs_add(
	struct logs *l, enum log_stream stream, const void *data, size_t len, uint64_t now_ms);
/* A line of our own on the stream "host". */
void logs_say(struct logs *l, uint64_t now_ms, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Gives out unfinished lines that are older than LOGS_TAIL_MS, by now_ms; call it once a second. */
void logs_tick(struct logs *l, uint64_t now_ms);
/* The VM has ended and all it printed was added: flushes; readers that follow will end. */
void logs_end(struct logs *l, uint64_t now_ms);

/* --- reading --- */

struct logs_reader;

/* Positions by the specification's table §6.3 (0: no cursor). follow false: ends at what is there
 * now. logs_retire ends it. `wake` is called once (from logs_add, logs_say, logs_tick, logs_end,
 * logs_retire) after logs_reader_next gave 0 and there may be
 * something; it may read from and free any reader, and must not call the writer's functions. */
struct logs_reader *logs_reader_new(
	struct logs *l, uint64_t cursor, bool follow, void (*wake)(void *user), void *user);
void logs_reader_free(struct logs_reader *r); /* NULL allowed */

/* The next record's JSON text (not NUL-terminated, without \n), valid until the next call. 1; 0
 * when there is none now (wake follows); -ENODATA at the end; another negative errno: cannot be
 * read. A reader that rotation has overtaken goes on at the oldest kept record; damaged lines are
 * passed over. */
int logs_reader_next(struct logs_reader *r, const char **ret, size_t *ret_len);
