/* How a call runs
 *
 *   start: pipe, fork ──> child: run, END record into the pipe, exit
 *   pull: read the pipe ─> the stream, as it comes; nothing there: wait with uv_poll
 *   end of the pipe behind a whole record: the stream ends
 *   end of the pipe before any byte: the child died; its status (reap.c) says how
 *   end of the pipe inside a record: the stream is reset, for what was sent cannot be taken back
 *
 *   job's life: 2 references, the child (until reaped) and the stream (until its poll handle has
 *   closed). op is NULL once the stream has gone.
 */
#include "agent/fs_job.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "agent/fs_error.h"
#include "agent/op.h"
#include "agent/reap.h"
#include "agent/serve.h"
#include "agent/spawn.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

static const struct {
	const struct op_type *type;
	fs_run run;
} RUNS[] = {
	{&op_fs_ls, fs_ls},
	{&op_fs_stat, fs_stat},
	{&op_fs_mkdir, fs_mkdir},
	{&op_fs_rm, fs_rm},
	{&op_fs_chmod, fs_chmod},
	{&op_fs_mv, fs_mv},
	{&op_fs_grep, fs_grep},
	{&op_fs_sed, fs_sed},
};

/* --- the child --- */

struct child {
	fs_run run;
	const char *name; /* for messages */
	json_object *req;
	int pipe;
};

static volatile sig_atomic_t cancelled;

static void on_sigterm(int sig)
{
	cancelled = 1;
	alarm(FS_CANCEL_GRACE_S);
}

bool fs_cancelled(void)
{
	return cancelled;
}

void fs_cancel_no_more(void)
{
	signal(SIGTERM, SIG_IGN);
	alarm(0);
	cancelled = 0;
}

int fs_stop(struct err *e)
{
	return err_set(e, "S216", ECANCELED, "the call was given up");
}

/* Puts back what the agent changed about itself, and drops what is not the child's. */
static void become_child(int pipe_fd)
{
	struct sigaction term = {.sa_handler = on_sigterm};
	sigset_t none;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigaction(SIGTERM, &term, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	umask(0);
	if (pipe_fd > 3)
		syscall(SYS_close_range, 3, pipe_fd - 1, 0);
	syscall(SYS_close_range, pipe_fd + 1, ~0U, 0);
}

static void reply_error(struct buf *reply, const struct err *why)
{
	cleanup_json json_object *end = json_object_new_object();
	json_object *error = json_object_new_object();
	const char *text;
	size_t len;

	json_add_str(error, "code", why->code);
	json_add_i64(error, "errno", why->no);
	json_add_str(error, "message", why->text);
	json_object_object_add(end, "error", error);
	text = json_text(end, &len);
	buf_clear(reply);
	buf_add(reply, text, len);
}

static int run_child(void *arg)
{
	struct child *c = arg;
	uint8_t header[GUEST_REC_HDR];
	struct err why = ERR_INIT;
	struct buf reply;
	int r;

	become_child(c->pipe);
	buf_init(&reply, FS_REPLY_MAX);
	r = c->run(c->req, &reply, &why);
	if (cancelled)
		return 0;
	if (r < 0) {
		if (!why.text[0])
			err_set(&why, r == -ENOBUFS ? "S216" : fs_error_code(-r), -r, "%s: %s",
				c->name, r == -ENOBUFS ? "the reply is too large" : err_str(r));
		reply_error(&reply, &why);
	}
	guest_rec_header(header, GUEST_REC_END, (uint32_t)reply.len);
	if (fd_write_all(c->pipe, header, sizeof(header)) == 0)
		fd_write_all(c->pipe, reply.data, reply.len);
	return 0;
}

/* --- the agent's side --- */

struct fs_job {
	struct op *op;
	uv_poll_t poll;
	int fd; /* read end of the pipe */
	unsigned refs;
	struct reap_slot child;
	int status; /* of the child, once reaped */
	bool polling;
	bool lost; /* the pipe ended before the reply */
	uint8_t header[GUEST_REC_HDR];
	uint64_t got; /* bytes of the record so far */
};

static unsigned jobs_count;

static void unref(struct fs_job *j)
{
	if (--j->refs)
		return;
	jobs_count--;
	free(j);
}

static void say_lost(struct fs_job *j)
{
	struct err e = ERR_INIT;

	if (WIFSIGNALED(j->status))
		err_set(&e, "S216", EIO,
			"%s: its process in the guest was killed by signal %d%s before it was done",
			j->op->type->path + 1, WTERMSIG(j->status),
			WTERMSIG(j->status) == SIGKILL ? " (the guest may be out of memory)" : "");
	else
		err_set(&e, "S216", EIO, "%s: its process in the guest ended before it was done",
			j->op->type->path + 1);
	op_fail(j->op, &e);
}

static void on_exit_of_child(struct reap_slot *slot, int wait_status)
{
	struct fs_job *j = CONTAINER_OF(slot, struct fs_job, child);

	j->status = wait_status;
	if (j->op && j->lost)
		say_lost(j);
	unref(j);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	struct fs_job *j = CONTAINER_OF(poll, struct fs_job, poll);

	uv_poll_stop(poll);
	j->polling = false;
	op_wake(j->op);
}

static uint64_t record_size(const struct fs_job *j)
{
	uint32_t len;

	if (j->got < GUEST_REC_HDR)
		return UINT64_MAX;
	memcpy(&len, j->header + 1, sizeof(len));
	return GUEST_REC_HDR + (uint64_t)ntohl(len);
}

static void end_of_pipe(struct fs_job *j)
{
	if (j->got == record_size(j)) {
		op_ended(j->op);
	} else if (j->got) {
		mux_stream_reset(j->op->stream);
	} else {
		j->lost = true;
		if (!j->child.pid)
			say_lost(j);
	}
}

static size_t fs_job_pull(void *job, uint8_t *buf, size_t cap)
{
	struct fs_job *j = job;
	ssize_t n;

	if (j->lost || j->polling)
		return 0;
	do
		n = read(j->fd, buf, cap);
	while (n < 0 && errno == EINTR);
	if (n > 0) {
		for (ssize_t i = 0; i < n && j->got + (uint64_t)i < GUEST_REC_HDR; i++)
			j->header[j->got + (uint64_t)i] = buf[i];
		j->got += (uint64_t)n;
		return (size_t)n;
	}
	if (n < 0 && errno == EAGAIN) {
		j->polling = true;
		uv_poll_start(&j->poll, UV_READABLE, on_readable);
	} else {
		end_of_pipe(j);
	}
	return 0;
}

static int start_child(struct fs_job *j, json_object *head, struct err *e)
{
	struct child c = {.name = j->op->type->path + 1, .req = head};
	int fds[2];
	pid_t pid;

	for (size_t i = 0; i < ARRAY_LEN(RUNS); i++)
		if (RUNS[i].type == j->op->type)
			c.run = RUNS[i].run;
	if (pipe2(fds, O_CLOEXEC) < 0)
		return fs_error(e, errno, "no pipe for", c.name);
	c.pipe = fds[1];
	pid = spawn_function(run_child, &c);
	fd_close(&fds[1]);
	if (pid < 0) {
		fd_close(&fds[0]);
		return fs_error(e, -pid, "no process for", c.name);
	}
	j->fd = fds[0];
	j->child.on_exit = on_exit_of_child;
	reap_watch(&j->child, pid);
	return 0;
}

static int fs_job_start(struct op *o, json_object *head, void **ret_job, struct err *e)
{
	struct fs_job *j;
	int r;

	if (jobs_count >= FS_JOBS_MAX)
		return err_set(e, "S216", EAGAIN,
			"%u file operations run in the guest already: try again later", jobs_count);
	j = xcalloc(1, sizeof(*j));
	j->op = o;
	r = start_child(j, head, e);
	if (r < 0) {
		free(j);
		return r;
	}
	jobs_count++;
	j->refs = 2;
	fd_set_nonblock(j->fd, true);
	uv_poll_init(serve_loop(), &j->poll, j->fd);
	*ret_job = j;
	op_wake(o);
	return 0;
}

static void on_poll_closed(uv_handle_t *handle)
{
	unref(CONTAINER_OF((uv_poll_t *)handle, struct fs_job, poll));
}

static void fs_job_close(void *job)
{
	struct fs_job *j = job;

	j->op = NULL;
	if (j->child.pid)
		kill(j->child.pid, SIGTERM);
	uv_close((uv_handle_t *)&j->poll, on_poll_closed);
	fd_close(&j->fd);
}

#define FS_JOB(name)                                                                               \
	{                                                                                          \
		.path = name, .head_max = FS_JOB_HEAD_MAX, .start = fs_job_start,                  \
		.pull = fs_job_pull, .close = fs_job_close                                         \
	}

const struct op_type op_fs_ls = FS_JOB("/fs/ls"), op_fs_stat = FS_JOB("/fs/stat"),
		     op_fs_mkdir = FS_JOB("/fs/mkdir"), op_fs_rm = FS_JOB("/fs/rm"),
		     op_fs_chmod = FS_JOB("/fs/chmod"), op_fs_mv = FS_JOB("/fs/mv"),
		     op_fs_grep = FS_JOB("/fs/grep"), op_fs_sed = FS_JOB("/fs/sed");
