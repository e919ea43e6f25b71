/* guest - the host's side of one VM's agent: operations as asynchronous calls.
 *
 * Owns the agent byte stream and an HTTP/2 client on it (mux/mux.h); each operation is one stream
 * that carries the records of wire/guest.h. What the agent sends is hostile: ceilings on sizes and
 * streams, and one breach of protocol loses the connection (on_lost), never the process.
 *
 * One file per family: exec.c, fs.c, hello.c; guest.c is the connection, call.c what they share.
 * All functions are for the loop's thread. Callbacks are not made from inside a call of this
 * module (they come from the loop), and never after the matching end callback or guest_free().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "mux/mux.h"
#include "wire/guest.h"

struct guest;
struct guest_call; /* one operation under way */

struct guest_callbacks {
	/* The connection is gone (end of file, protocol error, silence): every call has already
	 * been ended with this error. The VM should be killed. Called at most once. */
	void (*on_lost)(struct guest *g, const struct err *why, void *user);
};

/* Takes `fd` (stream socket; made non-blocking), also on failure. */
int guest_new(uv_loop_t *loop, int fd, const struct guest_callbacks *cb, void *user,
	struct guest **ret, struct err *e);
/* Ends every call under way with ECONNRESET (their end callbacks are made from inside this call)
 * and closes the stream. Allowed in any callback. The memory goes in the loop's next turn. NULL
 * allowed. */
void guest_free(struct guest *g);

#define GUEST_PING_MS	    10000 /* an agent that owes an answer and is silent is pinged after this */
#define GUEST_SILENT_MAX_MS 60000 /* and given up after this: the connection is lost */

/* Other numbers than these, for a VM that is known to be slow. */
void guest_set_patience(struct guest *g, uint64_t ping_ms, uint64_t silent_ms);

/* Gives a call up: the agent kills what it runs for it. Its end callback is not made any more and
 * the pointer is no longer valid. */
void guest_call_cancel(struct guest_call *c);

/* --- exec (src/agent/exec.c, sandbox contract §1.4) --- */

#define GUEST_EXEC_CAP_DEFAULT                                                                     \
	(1u << 20)		/* bytes of each output that are sent; the rest is counted */
#define GUEST_EXEC_LATE_MS 2000 /* the host gives up this long after the agent's deadline */

struct guest_exec_req {
	char *const *argv;    /* argv[0] is looked up in the final PATH */
	char *const *env;     /* NAME=value on top of the VM's base environment, or NULL */
	const char *workdir;  /* NULL or "": / */
	uint64_t deadline_ms; /* > 0 */
	uint64_t stdout_cap, stderr_cap; /* bytes sent of each; UINT64_MAX: all */
};

struct guest_exec_result {
	int exit_code;	/* 0..255; 128+N for death by signal N; 126/127 when it could not start */
	int signal;	/* N, or 0 */
	bool timed_out; /* killed at the deadline */
	uint64_t stdout_dropped, stderr_dropped; /* bytes over the caps */
	/* The last of them, of stdout and of stderr, when the deadline was missed; valid in
	 * on_done. */
	uint8_t tail[2][GUEST_TAIL_MAX];
	size_t tail_len[2];
	/* Why the program could not start ("exec: nope: not found"), or "". */
	const char *start_error;
};

struct guest_exec_callbacks {
	/* Output as it comes; never empty. The bytes are counted as read when this returns, unless
	 * guest_exec_pause() was called. */
	void (*on_output)(
		struct guest_call *c, bool is_stderr, const uint8_t *data, size_t len, void *user);
	/* The agent took n bytes of stdin: room for more (see guest_exec_stdin). May be NULL. */
	void (*on_stdin_ready)(struct guest_call *c, void *user);
	/* The end: a result, or NULL with the reason (lost agent, S300; late agent, S200 …). */
	void (*on_done)(struct guest_call *c, const struct guest_exec_result *res,
		const struct err *why, void *user);
};

int guest_exec(struct guest *g, const struct guest_exec_req *req,
	const struct guest_exec_callbacks *cb, void *user, struct guest_call **ret, struct err *e);

/* Queues stdin bytes (copied). Returns how many were taken: fewer than len means "full", and
 * on_stdin_ready follows when there is room. */
size_t guest_exec_stdin(struct guest_call *c, const void *data, size_t len);
/* No more stdin; must be called once, also when there was none. */
void guest_exec_stdin_end(struct guest_call *c);
/* Stops and restarts the flow of output (back-pressure up to the program). */
void guest_exec_pause(struct guest_call *c, bool paused);

/* --- hello (src/agent/serve.c) --- */

struct guest_hello {
	const char *agent_version;
	uint64_t boot_us; /* kernel start to agent ready, by the guest's clock */
	uint64_t rss_kib; /* resident memory of the agent */
};
int guest_hello(struct guest *g,
	void (*on_done)(const struct guest_hello *h, const struct err *why, void *user), void *user,
	struct err *e);

/* --- files (src/agent/fs_write.c, fs_read.c; sandbox contract §5.7, §5.8) --- */

struct guest_write_req {
	const char *path; /* absolute */
	uint32_t mode;	  /* <= 07777 */
	bool parents;	  /* make missing folders with 0755 */
};
/* Writes one file: feed with guest_write_data (same rules as guest_exec_stdin), then _end. */
struct guest_write_callbacks {
	void (*on_ready)(struct guest_call *c, void *user); /* room for more; may be NULL */
	/* why == NULL is success. */
	void (*on_done)(
		struct guest_call *c, uint64_t bytes_written, const struct err *why, void *user);
};
int guest_write(struct guest *g, const struct guest_write_req *req,
	const struct guest_write_callbacks *cb, void *user, struct guest_call **ret, struct err *e);
size_t guest_write_data(struct guest_call *c, const void *data, size_t len);
void guest_write_end(struct guest_call *c);

struct guest_read_head {
	uint64_t size; /* st_size; /proc files say 0 */
	uint32_t mode; /* permission bits */
	int64_t mtime; /* seconds */
};
struct guest_read_callbacks {
	void (*on_head)(struct guest_call *c, const struct guest_read_head *h, void *user);
	void (*on_data)(struct guest_call *c, const uint8_t *data, size_t len, void *user);
	void (*on_done)(struct guest_call *c, const struct err *why, void *user);
};
int guest_read(struct guest *g, const char *path, const struct guest_read_callbacks *cb, void *user,
	struct guest_call **ret, struct err *e);
/* What may still come after guest_read_pause(): the bytes under way, which the window bounds. */
#define GUEST_READ_LATE_MAX MUX_WINDOW_MAX
void guest_read_pause(struct guest_call *c, bool paused);
