/* fs_job - file operations that run in a process of their own.
 *
 * Everything but reading and writing one file: each call is a forked child that does the work with
 * blocking calls and writes its END record into a pipe, which goes to the stream as it comes.
 *
 *   - the agent's loop never waits for a disk, a hung file system or a large tree;
 *   - whatever such an operation needs of memory, descriptors and time dies with it;
 *   - a child that crashes or is killed is an error of that call (S216) and of nothing else;
 *   - a slow reader stops the child at the pipe, so that the agent keeps no reply.
 *
 * When the stream is reset the child gets SIGTERM, cleans up (fs_cancelled() in its loops) and
 * ends; if it does not within FS_CANCEL_GRACE_S, SIGALRM ends it.
 *
 * The JSON of an operation is described beside its function.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "wire/json.h"

/* Bytes of a request's head; the host refuses a longer one (src/host/guest/fs_ops.h). */
#define FS_JOB_HEAD_MAX (1u << 20)
/* Bytes of a reply's JSON: what needs more says so (ls, sed: S216; grep: truncated). */
#define FS_REPLY_MAX (15u << 20)

#define FS_CANCEL_GRACE_S 2

/* Children at once, those that are still cleaning up included; one more is S216. */
#define FS_JOBS_MAX 512

/* One operation: the request's members in, the text of one JSON object out (appended to `reply`,
 * whose ceiling is FS_REPLY_MAX), or a negative errno with e (code, path, reason). */
typedef int (*fs_run)(json_object *req, struct buf *reply, struct err *e);

int fs_ls(json_object *req, struct buf *reply, struct err *e);
int fs_stat(json_object *req, struct buf *reply, struct err *e);
int fs_mkdir(json_object *req, struct buf *reply, struct err *e);
int fs_rm(json_object *req, struct buf *reply, struct err *e);
int fs_chmod(json_object *req, struct buf *reply, struct err *e);
int fs_mv(json_object *req, struct buf *reply, struct err *e);
int fs_grep(json_object *req, struct buf *reply, struct err *e);
int fs_sed(json_object *req, struct buf *reply, struct err *e);

/* In the child: should the work stop? Loops ask at each entry and each chunk. */
bool fs_cancelled(void);
/* -ECANCELED with e, for a loop that was told to stop. */
int fs_stop(struct err *e);
/* What follows is cleaning up and is to be done to its end: from here on nothing is cancelled. */
void fs_cancel_no_more(void);
