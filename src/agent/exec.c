/* How an exec moves
 *
 * Output is read from its pipe straight into the HTTP/2 frame: pull() runs when the host's window
 * has room, so below the cap a program is held up by nothing but the host. Over its cap a pipe is
 * read to nowhere at once and counted; the last GUEST_TAIL_MAX bytes are kept for the answer to a
 * missed deadline. A pipe is polled only when it was found empty.
 *
 * The program's exit wins over everything: its stdin is closed, what its pipes hold is sent, and a
 * background child that keeps a pipe open delays the answer by EXEC_GRACE_MS at most. Then the
 * bytes that are in the pipes at that moment are still sent (`left`), and the read ends go to
 * drain.c, so that the child is not killed by SIGPIPE.
 *
 * stdin: what the pipe does not take at once waits in `stdin_buf`, which the stream's window bounds
 * (64 KiB), because the bytes are given back to the window only when they were written. EPIPE and
 * an exit turn the rest into nothing.
 *
 * A program can close its outputs and run on: the answer waits for its exit. It can exit and leave
 * children: they stay in the cgroup leaf, which cgroup.c removes when they are gone.
 */
#include "agent/exec.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/drain.h"
#include "agent/env.h"
#include "agent/exec_request.h"
#include "agent/op.h"
#include "agent/reap.h"
#include "agent/serve.h"
#include "agent/spawn.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define KILL_POLL_MS   5	  /* between looks at a cgroup that is being killed … */
#define KILL_SLOW_MS   500	  /* … and later, when nobody waits for it any more */
#define STDIN_HELD_MAX (1u << 20) /* ceiling of stdin_buf; the window holds it far below */

enum exec_state {
	EXEC_RUNNING,
	EXEC_KILLING,
	EXEC_DRAINING,
	EXEC_DONE,
};

struct output {
	uv_poll_t poll;
	int fd; /* -1: ended, or given to drain.c */
	enum guest_rec type;
	uint64_t cap, sent, dropped;
	uint64_t left; /* bytes still to be read for the answer; UINT64_MAX: until it ends */
	bool ready;    /* not polled: something may be there to pull */
	/* The last of what was dropped: what a program says before its deadline tells most. */
	char *tail; /* GUEST_TAIL_MAX bytes once something was dropped */
	size_t tail_len;
};

struct exec {
	struct op *op; /* NULL: nobody listens any more */
	enum exec_state state;
	struct reap_slot child;
	pid_t pid; /* of the program, also its session and process group */
	unsigned report_slot;
	struct spawn_report report;
	struct cgroup_leaf leaf;
	bool reaped, timed_out, stuck;
	int wait_status;
	struct output outputs[2];
	unsigned next; /* output that is pulled first */
	uv_timer_t timer;
	uint64_t kill_started; /* loop time */
	uv_poll_t stdin_poll;
	int stdin_fd; /* -1: closed */
	bool stdin_ended;
	struct buf stdin_buf;
	char *program, *workdir; /* for errors */
	int open_handles;	 /* uv handles not closed yet */
	bool let_go;
};

static size_t live_count;

size_t exec_count(void)
{
	return live_count;
}

static void advance(struct exec *x);

static void set_state(struct exec *x, enum exec_state to)
{
	static const unsigned legal[] = {
		[EXEC_RUNNING] = 1u << EXEC_KILLING | 1u << EXEC_DRAINING,
		[EXEC_KILLING] = 1u << EXEC_DRAINING | 1u << EXEC_DONE,
		[EXEC_DRAINING] = 1u << EXEC_KILLING | 1u << EXEC_DONE,
		[EXEC_DONE] = 0,
	};

	assert(legal[x->state] & 1u << to);
	x->state = to;
}

/* --- the end of an exec --- */

/* The memory goes when nobody can name it any more: no handle, no stream. */
static void free_if_unused(struct exec *x)
{
	if (x->open_handles || x->op)
		return;
	buf_done(&x->stdin_buf);
	free(x->outputs[0].tail);
	free(x->outputs[1].tail);
	free(x->program);
	free(x->workdir);
	free(x);
}

static void on_handle_closed(uv_handle_t *h)
{
	struct exec *x = h->data;

	x->open_handles--;
	free_if_unused(x);
}

/* libuv takes a descriptor out of its epoll by number, so a handle is always closed before the
 * descriptor, whose number may be another exec's a moment later. */
static void close_handle(void *handle)
{
	if (!uv_is_closing(handle))
		uv_close(handle, on_handle_closed);
}

/* Gives back everything but the memory and what background programs still need. */
static void let_go(struct exec *x)
{
	if (x->let_go)
		return;
	x->let_go = true;
	live_count--;
	for (size_t i = 0; i < ARRAY_LEN(x->outputs); i++) {
		struct output *o = &x->outputs[i];

		close_handle(&o->poll);
		if (o->fd >= 0)
			drain_take(STEAL_FD(o->fd));
	}
	close_handle(&x->stdin_poll);
	fd_close(&x->stdin_fd);
	close_handle(&x->timer);
	cgroup_leaf_release(&x->leaf);
}

/* --- stdin --- */

static void stdin_drop(struct exec *x)
{
	size_t held = x->stdin_buf.len;

	close_handle(&x->stdin_poll);
	fd_close(&x->stdin_fd);
	buf_done(&x->stdin_buf);
	if (held && x->op)
		op_consumed(x->op, held);
}

/* Writes what the pipe takes; the count, or -1 when nobody will ever read. */
static ssize_t stdin_write(struct exec *x, const uint8_t *data, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = write(x->stdin_fd, data + done, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -1;
		done += n;
	}
	return (ssize_t)done;
}

static void on_stdin_writable(uv_poll_t *poll, int status, int events)
{
	struct exec *x = CONTAINER_OF(poll, struct exec, stdin_poll);
	ssize_t n = stdin_write(x, x->stdin_buf.data, x->stdin_buf.len);

	if (n < 0) {
		stdin_drop(x);
		return;
	}
	buf_drop(&x->stdin_buf, n);
	if (n && x->op)
		op_consumed(x->op, n);
	if (x->stdin_buf.len)
		return;
	if (x->stdin_ended)
		stdin_drop(x);
	else
		uv_poll_stop(&x->stdin_poll);
}

static ssize_t exec_data(void *job, const uint8_t *data, size_t len, struct err *e)
{
	struct exec *x = job;
	ssize_t n = 0;

	if (x->stdin_fd < 0)
		return 0;
	if (!x->stdin_buf.len) {
		n = stdin_write(x, data, len);
		if (n < 0) {
			stdin_drop(x);
			return 0;
		}
		if ((size_t)n == len)
			return 0;
		uv_poll_start(&x->stdin_poll, UV_WRITABLE, on_stdin_writable);
	}
	if (buf_add(&x->stdin_buf, data + n, len - n) < 0)
		return err_set(e, "S300", ENOBUFS,
			"exec: more than %u bytes of stdin were sent before the program took them",
			STDIN_HELD_MAX);
	return (ssize_t)(len - n);
}

static void exec_end(void *job)
{
	struct exec *x = job;

	x->stdin_ended = true;
	if (!x->stdin_buf.len)
		stdin_drop(x);
}

/* --- output --- */

static bool output_is_over(const struct output *o)
{
	return o->fd < 0 || o->left == 0;
}

static void output_close(struct output *o)
{
	close_handle(&o->poll);
	fd_close(&o->fd);
	o->ready = false;
}

static void on_output_readable(uv_poll_t *poll, int status, int events);

static void output_watch(struct output *o)
{
	o->ready = false;
	if (o->fd >= 0)
		uv_poll_start(&o->poll, UV_READABLE, on_output_readable);
}

static void output_keep_tail(struct output *o, const char *data, size_t len)
{
	size_t n = MIN(len, (size_t)GUEST_TAIL_MAX), kept = MIN(o->tail_len, GUEST_TAIL_MAX - n);

	if (!o->tail)
		o->tail = xmalloc(GUEST_TAIL_MAX);
	memmove(o->tail, o->tail + o->tail_len - kept, kept);
	memcpy(o->tail + kept, data + len - n, n);
	o->tail_len = kept + n;
}

/* Reads a piece beyond the cap to nowhere. False when there was nothing. */
static bool output_discard(struct output *o)
{
	const char *data;
	ssize_t n = drain_read(o->fd, o->left, &data);

	if (n > 0) {
		output_keep_tail(o, data, (size_t)n);
		o->dropped += n;
		if (o->left != UINT64_MAX)
			o->left -= n;
		return true;
	}
	if (n != -EAGAIN)
		output_close(o);
	return n != -EAGAIN;
}

static void on_output_readable(uv_poll_t *poll, int status, int events)
{
	struct output *o = CONTAINER_OF(poll, struct output, poll);
	struct exec *x = o->poll.data;

	/* One piece a turn: a program that never stops writing must not hold the loop. */
	if (o->left == 0) {
		uv_poll_stop(&o->poll);
	} else if (o->sent == o->cap || !x->op) {
		output_discard(o);
	} else {
		uv_poll_stop(&o->poll);
		o->ready = true;
		op_wake(x->op);
	}
	advance(x);
}

/* One record of what the pipe holds, or 0 when it holds nothing (or ended). */
static size_t output_pull(struct output *o, uint8_t *buf, size_t cap)
{
	uint64_t most = MIN(o->cap - o->sent, o->left);
	ssize_t n;

	if (most > cap - GUEST_REC_HDR)
		most = cap - GUEST_REC_HDR;
	do
		n = read(o->fd, buf + GUEST_REC_HDR, most);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN) {
		output_watch(o);
		return 0;
	}
	if (n <= 0) {
		output_close(o);
		return 0;
	}
	guest_rec_header(buf, o->type, (uint32_t)n);
	o->sent += n;
	if (o->left != UINT64_MAX)
		o->left -= n;
	if (o->sent == o->cap)
		output_watch(o); /* the rest is discarded as it comes */
	return (size_t)n + GUEST_REC_HDR;
}

static size_t exec_pull(void *job, uint8_t *buf, size_t cap)
{
	struct exec *x = job;
	size_t n = 0;

	/* In turns, so that a flood on one output does not hide the other. */
	for (size_t i = 0; i < ARRAY_LEN(x->outputs) && !n; i++) {
		struct output *o = &x->outputs[x->next];

		x->next ^= 1;
		if (o->fd >= 0 && o->ready && o->left)
			n = output_pull(o, buf, cap);
	}
	if (!n)
		advance(x);
	return n;
}

/* From now on only what is in the pipes at this moment belongs to the answer. */
static void outputs_limit(struct exec *x)
{
	for (size_t i = 0; i < ARRAY_LEN(x->outputs); i++) {
		struct output *o = &x->outputs[i];
		int held = 0;

		if (o->fd < 0 || o->left != UINT64_MAX)
			continue;
		if (ioctl(o->fd, FIONREAD, &held) < 0)
			held = 0;
		o->left = (uint64_t)held;
	}
}

/* Takes what is there without waiting for the poll to say so. */
static void outputs_hurry(struct exec *x)
{
	for (size_t i = 0; i < ARRAY_LEN(x->outputs); i++) {
		struct output *o = &x->outputs[i];

		if (o->fd < 0)
			continue;
		/* At most what a pipe holds: over the cap a background child may go on for ever. */
		for (int turn = 0; turn < 16 && o->sent == o->cap && !output_is_over(o); turn++)
			if (!output_discard(o))
				break;
		if (o->fd >= 0 && o->sent < o->cap) {
			uv_poll_stop(&o->poll);
			o->ready = true;
		}
	}
	if (x->op)
		op_wake(x->op);
}

/* --- the answer --- */

/* "exec: nope: not found"; §1.4 "Cannot start". Sets the exit code that goes with it. */
static char *start_error(const struct exec *x, int *ret_exit_code)
{
	int no = x->report.no;
	const char *reason = no == ENOENT || no == ENOTDIR ? "not found"
			     : no == EACCES		   ? "permission denied"
							   : err_str(no);

	if (x->report.step == SPAWN_STEP_WORKDIR) {
		*ret_exit_code = no == EACCES ? 126 : 127;
		return xasprintf("exec: workdir %s: %s", x->workdir, reason);
	}
	*ret_exit_code = no == ENOENT || no == ENOTDIR ? 127 : 126;
	return xasprintf("exec: %s: %s", x->program, reason);
}

static void answer_failure(struct exec *x, int no, const char *what)
{
	struct err e = ERR_INIT;

	err_set(&e, "S300", no, "exec: %s: %s: %s", x->program, what, err_str(no));
	op_fail(x->op, &e);
}

/* Hex, since the bytes may be anything. */
static void add_tail(json_object *end, const char *name, const struct output *o)
{
	char hex[2 * GUEST_TAIL_MAX + 1];

	str_hex(hex, o->tail, o->tail_len);
	json_add_str(end, name, hex);
}

static void answer(struct exec *x)
{
	cleanup_free char *why = NULL;
	json_object *end;
	int code, sig = 0;

	if (x->stuck) {
		answer_failure(x, EBUSY,
			"the deadline passed, but a process of it does not die (it waits "
			"uninterruptibly)");
		return;
	}
	if (x->report.step == SPAWN_STEP_SETUP) {
		answer_failure(x, x->report.no, "the guest cannot prepare the process");
		return;
	}
	if (x->report.step != SPAWN_STARTED) {
		why = start_error(x, &code);
	} else if (WIFSIGNALED(x->wait_status)) {
		sig = WTERMSIG(x->wait_status);
		code = 128 + sig;
	} else {
		code = WEXITSTATUS(x->wait_status);
	}
	end = json_object_new_object();
	json_add_i64(end, "exit_code", code);
	json_add_i64(end, "signal", sig);
	json_add_bool(end, "timed_out", x->timed_out);
	json_add_u64(end, "stdout_dropped", x->outputs[0].dropped);
	json_add_u64(end, "stderr_dropped", x->outputs[1].dropped);
	json_add_str(end, "start_error", why ? why : "");
	if (x->timed_out) {
		add_tail(end, "stdout_tail", &x->outputs[0]);
		add_tail(end, "stderr_tail", &x->outputs[1]);
	}
	op_finish(x->op, end);
}

/* --- killing --- */

static void kill_all(struct exec *x)
{
	if (x->leaf.number)
		cgroup_leaf_kill(&x->leaf);
	/* Also without cgroups: a session of its own is a process group of its own. Once the
	 * program was reaped its number may be somebody else's, unless members are left. */
	else if (!x->reaped || kill(-x->pid, 0) == 0)
		kill(-x->pid, SIGKILL);
}

static bool all_dead(const struct exec *x)
{
	if (!x->reaped)
		return false;
	if (x->leaf.number)
		return cgroup_leaf_populated(&x->leaf) <= 0;
	return kill(-x->pid, 0) < 0 && errno == ESRCH;
}

static void on_kill_look(uv_timer_t *timer)
{
	advance(CONTAINER_OF(timer, struct exec, timer));
}

static void begin_kill(struct exec *x)
{
	set_state(x, EXEC_KILLING);
	x->kill_started = uv_now(uv_handle_get_loop((uv_handle_t *)&x->timer));
	kill_all(x);
	uv_timer_start(&x->timer, on_kill_look, KILL_POLL_MS, KILL_POLL_MS);
	stdin_drop(x);
}

static void look_at_killed(struct exec *x)
{
	uint64_t took = uv_now(uv_handle_get_loop((uv_handle_t *)&x->timer)) - x->kill_started;

	if (all_dead(x)) {
		uv_timer_stop(&x->timer);
		outputs_limit(x);
		outputs_hurry(x);
		set_state(x, x->op && !x->stuck ? EXEC_DRAINING : EXEC_DONE);
		return;
	}
	kill_all(x);
	if (took < EXEC_KILL_WAIT_MS)
		return;
	if (x->op && !x->stuck) {
		/* Answered, but not let go: the killing goes on. */
		x->stuck = true;
		answer(x);
	}
	if (uv_timer_get_repeat(&x->timer) != KILL_SLOW_MS)
		uv_timer_start(&x->timer, on_kill_look, KILL_SLOW_MS, KILL_SLOW_MS);
}

/* --- events --- */

static void on_grace_over(uv_timer_t *timer)
{
	struct exec *x = CONTAINER_OF(timer, struct exec, timer);

	outputs_limit(x);
	outputs_hurry(x);
	advance(x);
}

static void on_deadline(uv_timer_t *timer)
{
	struct exec *x = CONTAINER_OF(timer, struct exec, timer);

	x->timed_out = true;
	begin_kill(x);
}

static void on_exit_of_program(struct reap_slot *slot, int wait_status)
{
	struct exec *x = CONTAINER_OF(slot, struct exec, child);

	x->reaped = true;
	x->wait_status = wait_status;
	x->report = spawn_report_take(x->report_slot);
	stdin_drop(x);
	if (x->state == EXEC_RUNNING) {
		set_state(x, EXEC_DRAINING);
		uv_timer_start(&x->timer, on_grace_over, EXEC_GRACE_MS, 0);
		outputs_hurry(x);
	}
	advance(x);
}

/* Moves on as far as the facts allow. */
static void advance(struct exec *x)
{
	if (x->state == EXEC_KILLING)
		look_at_killed(x);
	if (x->state == EXEC_DRAINING && output_is_over(&x->outputs[0]) &&
		output_is_over(&x->outputs[1])) {
		set_state(x, EXEC_DONE);
		if (x->op)
			answer(x);
	}
	if (x->state == EXEC_DONE)
		let_go(x);
}

/* The stream is gone. */
static void exec_close(void *job)
{
	struct exec *x = job;

	x->op = NULL;
	if (x->state == EXEC_RUNNING || x->state == EXEC_DRAINING)
		begin_kill(x);
	if (x->state == EXEC_DONE)
		free_if_unused(x);
	else
		advance(x);
}

/* --- the start --- */

/* Pipes as the child sees them: [0] stdin to read, [1] and [2] to write. */
static int make_pipes(struct exec *x, int child_ends[3])
{
	for (int i = 0; i < 3; i++) {
		int p[2], ours = i == 0 ? 1 : 0;

		if (pipe2(p, O_CLOEXEC) < 0)
			return -errno;
		child_ends[i] = p[!ours];
		*(i == 0 ? &x->stdin_fd : &x->outputs[i - 1].fd) = p[ours];
		if (fd_set_nonblock(p[ours], true) < 0)
			return -errno;
	}
	return 0;
}

static int start_program(struct exec *x, const struct exec_request *req, struct err *e)
{
	int ends[3] = {-1, -1, -1};
	cleanup_free char **env = env_merge(serve_base_env(), req->env);
	cleanup_fd int leaf_fd = -1;
	const char *step = "cannot make pipes";
	int r;

	r = make_pipes(x, ends);
	if (r == 0 && cgroup_available()) {
		step = "cannot make a cgroup";
		r = cgroup_leaf_new(&x->leaf, &leaf_fd);
	}
	if (r == 0) {
		step = "cannot start a process in the guest";
		r = spawn_program(&(struct spawn_request){.argv = req->argv,
					  .env = env,
					  .workdir = req->workdir,
					  .in = ends[0],
					  .out = ends[1],
					  .err = ends[2],
					  .cgroup_fd = leaf_fd},
			&x->report_slot);
	}
	for (int i = 0; i < 3; i++)
		fd_close(&ends[i]);
	if (r < 0) {
		for (int i = 0; i < 2; i++)
			fd_close(&x->outputs[i].fd);
		fd_close(&x->stdin_fd);
		cgroup_leaf_release(&x->leaf);
		return err_set(e, "S300", -r, "exec: %s: %s: %s", req->argv[0], step, err_str(r));
	}
	x->pid = r;
	reap_watch(&x->child, x->pid);
	return 0;
}

static void start_handles(struct exec *x, uint64_t deadline_ms)
{
	uv_loop_t *loop = serve_loop();

	x->timer.data = x->stdin_poll.data = x;
	x->open_handles = 4;
	uv_update_time(loop);
	uv_timer_init(loop, &x->timer);
	uv_timer_start(&x->timer, on_deadline, deadline_ms, 0);
	uv_poll_init(loop, &x->stdin_poll, x->stdin_fd);
	for (size_t i = 0; i < ARRAY_LEN(x->outputs); i++) {
		x->outputs[i].poll.data = x;
		uv_poll_init(loop, &x->outputs[i].poll, x->outputs[i].fd);
		output_watch(&x->outputs[i]);
	}
}

static int exec_start(struct op *o, json_object *head, void **ret_job, struct err *e)
{
	struct exec_request req;
	struct exec *x;
	int r = exec_request_parse(head, &req, e);

	if (r < 0)
		return r;
	x = xcalloc(1, sizeof(*x));
	*x = (struct exec){
		.op = o,
		.child.on_exit = on_exit_of_program,
		.stdin_fd = -1,
		.program = xstrdup(req.argv[0]),
		.workdir = xstrdup(req.workdir),
	};
	for (size_t i = 0; i < ARRAY_LEN(x->outputs); i++)
		x->outputs[i] = (struct output){
			.fd = -1,
			.type = i == 0 ? GUEST_REC_OUT : GUEST_REC_ERR,
			.cap = req.caps[i],
			.left = UINT64_MAX,
		};
	buf_init(&x->stdin_buf, STDIN_HELD_MAX);
	r = start_program(x, &req, e);
	if (r == 0) {
		live_count++;
		start_handles(x, req.deadline_ms);
		*ret_job = x;
	} else {
		x->op = NULL;
		free_if_unused(x);
	}
	exec_request_done(&req);
	return r;
}

const struct op_type op_exec = {
	.path = "/exec",
	.head_max = EXEC_HEAD_MAX,
	.start = exec_start,
	.data = exec_data,
	.end = exec_end,
	.pull = exec_pull,
	.close = exec_close,
};
