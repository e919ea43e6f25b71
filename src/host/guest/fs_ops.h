/* fs_ops - the file operations of the guest that are one question and one answer.
 *
 * The request holds the members of sandbox contract §1.8 without sandbox_id; what is left out gets
 * its default in the guest. The reply has exactly the members of §1.8, with their types: that is
 * checked here, since the guest is hostile, and anything else loses the connection. An error has
 * the code of §3.4 and names path and reason. Each runs as long as it takes: no deadline of ours.
 */
#pragma once

#include <json-c/json_object.h>

#include "host/guest/guest.h"

enum fs_op {
	FS_OP_LS,
	FS_OP_STAT,
	FS_OP_MKDIR,
	FS_OP_RM,
	FS_OP_CHMOD,
	FS_OP_MV,
	FS_OP_GREP,
	FS_OP_SED,
};

/* Bytes of a request's JSON; a longer one is S210. The agent's limit (src/agent/fs_job.h). */
#define FS_REQUEST_MAX (1u << 20)

/* `reply` is borrowed; NULL with the reason on failure. */
typedef void (*guest_fs_done)(json_object *reply, const struct err *why, void *user);

/* Starts one. Takes `request`, also on failure. *ret (may be NULL) is for guest_call_cancel(),
 * which stops the work in the guest: what was removed, moved or rewritten by then stays so. */
int guest_fs_start(struct guest *g, enum fs_op op, json_object *request, guest_fs_done done,
	void *user, struct guest_call **ret, struct err *e);

/* The same for who never gives up. */
static inline int guest_fs(struct guest *g, enum fs_op op, json_object *request, guest_fs_done done,
	void *user, struct err *e)
{
	return guest_fs_start(g, op, request, done, user, NULL, e);
}
