/* op - one operation as its HTTP/2 stream sees it: records in, records out.
 *
 * serve.c owns the op and does everything that operations have in common (framing, parsing of the
 * head, flow control, ends and errors); a type does its work in a job of its own. Adding an
 * operation is one file with one `const struct op_type` and one line in serve.c.
 *
 *   job's life: made by start(); ended by close(), after which serve.c forgets it and the job must
 *   not use the op any more, but may live on to clean up (a program that has to be killed first).
 *
 * close() comes exactly once for every start() that returned 0: when the stream is gone, or when
 * its sender broke the record format.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "mux/mux.h"
#include "wire/guest.h"
#include "wire/json.h"

struct op;

struct op_type {
	const char *path;
	size_t head_max; /* bytes of the head; a longer one is refused */
	/* The head has arrived. On success *ret_job is set; a failure is answered with e. The job
	 * may call op_finish() from here on. */
	int (*start)(struct op *o, json_object *head, void **ret_job, struct err *e);
	/* Bytes of DATA. Returns how many the job keeps unread, to be given back with
	 * op_consumed(), or a negative errno with e, which is answered and ends the job. NULL: data
	 * is thrown away. */
	ssize_t (*data)(void *job, const uint8_t *data, size_t len, struct err *e);
	/* The request is complete. May be NULL. */
	void (*end)(void *job);
	/* Fills buf with whole records, at most cap bytes (>= OP_PULL_MIN). 0: nothing now,
	 * op_wake() follows. Not called after op_finish(). May be NULL. A job whose records all
	 * come this way may give them in pieces, and then ends with op_ended(). */
	size_t (*pull)(void *job, uint8_t *buf, size_t cap);
	void (*close)(void *job);
};

#define OP_PULL_MIN 1024

/* The operations. */
extern const struct op_type op_hello, op_exec, op_fs_write, op_fs_read;
extern const struct op_type op_fs_ls, op_fs_stat, op_fs_mkdir, op_fs_rm, op_fs_chmod, op_fs_mv,
	op_fs_grep, op_fs_sed; /* fs_job.c */

struct op {
	const struct op_type *type;
	struct mux_stream *stream;
	void *job; /* NULL before start() and after close() */
	struct guest_reader reader;
	struct buf out; /* whole records to send before anything is pulled */
	size_t fed;	/* bytes of the data being fed that the job keeps */
	struct err why; /* of a failure inside the reader's callbacks */
	bool finished;	/* END is in out, or was sent */
	bool deaf;	/* what still arrives is thrown away */
};

/* For jobs; `o` is what start() got. The objects are taken over. */
void op_head(struct op *o, json_object *head);
void op_finish(struct op *o, json_object *result);
/* END with {"error":{"code","errno","message"}}. */
void op_fail(struct op *o, const struct err *e);
/* The END record has been given by pull(): there is nothing more. */
void op_ended(struct op *o);
/* pull() has something again. */
void op_wake(struct op *o);
/* n bytes of data that were kept have been used. */
void op_consumed(struct op *o, size_t n);
