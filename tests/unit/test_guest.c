/* host/guest: the client against an agent in the same loop, over a socketpair: one that behaves,
 * and one that does not. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/guest/fs_ops.h"
#include "host/guest/guest.h"
#include "mux/mux.h"
#include "wire/guest.h"
#include "wire/json.h"

#define GUARD_MS 120000 /* a hang ends the test; nothing is measured with it */

/* --- the agent --- */

enum agent_mode {
	AGENT_CAT,    /* DATA comes back as OUT, then a good END */
	AGENT_SCRIPT, /* sends `script`, ends the stream if `script_ends` */
	AGENT_MUTE,   /* reads all, answers nothing */
	AGENT_BULK,   /* sends `bulk` bytes of OUT (exec) or DATA (read), then END */
	AGENT_REFUSE,
	AGENT_RESET, /* resets when the request is there */
};

struct agent {
	uv_poll_t poll;
	int fd;
	struct mux *m;
	struct buf pending;
	enum agent_mode mode;
	struct buf script;
	bool script_ends;
	uint64_t bulk;
	bool hold; /* takes nothing of what comes */
	bool deaf; /* does not even read its socket */
	size_t opened, closed, cancelled;
	char last_head[4096];
	uint64_t received;
	uint64_t max_held; /* most bytes of one stream that waited here */
	struct mux_stream *held;
	bool gone;
	int leaves; /* the other end's descriptor: close as soon as the answer is in the socket,
		     * with a byte from there unread; 0: stay */
};

struct job {
	struct agent *a;
	struct mux_stream *s;
	struct guest_reader reader;
	char path[GUEST_PATH_MAX + 1];
	struct buf out;
	uint64_t bulk_left, owed;
	bool started, ended, end_sent;
};

static void job_out(struct job *j, enum guest_rec type, const void *data, size_t len)
{
	while (type == GUEST_REC_OUT && len > GUEST_REC_DATA_MAX) {
		assert_int_equal(guest_rec_add(&j->out, type, data, GUEST_REC_DATA_MAX), 0);
		data = (const uint8_t *)data + GUEST_REC_DATA_MAX;
		len -= GUEST_REC_DATA_MAX;
	}
	assert_int_equal(guest_rec_add(&j->out, type, data, len), 0);
}

static void job_json(struct job *j, enum guest_rec type, const char *text)
{
	job_out(j, type, text, strlen(text));
}

static const char good_exec[] = "{\"exit_code\":0,\"signal\":0,\"timed_out\":false,"
				"\"stdout_dropped\":0,\"stderr_dropped\":0,\"start_error\":\"\"}";

static void job_end(struct job *j)
{
	char text[128];

	if (str_eq(j->path, "/exec"))
		job_json(j, GUEST_REC_END, good_exec);
	else if (str_eq(j->path, "/hello"))
		job_json(j, GUEST_REC_END,
			"{\"agent_version\":\"0.2.2\",\"boot_us\":1234,\"rss_kib\":99}");
	else if (str_eq(j->path, "/fs/read"))
		job_json(j, GUEST_REC_END, "{}");
	else {
		snprintf(text, sizeof(text), "{\"bytes_written\":%llu}",
			(unsigned long long)j->a->received);
		job_json(j, GUEST_REC_END, text);
	}
	j->end_sent = true;
}

static int job_on_json(void *user, enum guest_rec type, const char *text, size_t len)
{
	struct job *j = user;

	snprintf(j->a->last_head, sizeof(j->a->last_head), "%s", text);
	j->started = true;
	if (j->a->mode == AGENT_RESET)
		mux_stream_reset(j->s);
	if (str_eq(j->path, "/fs/read"))
		job_json(j, GUEST_REC_HEAD, "{\"size\":7,\"mode\":420,\"mtime\":-5}");
	j->bulk_left = j->a->bulk;
	mux_stream_resume(j->s);
	return 0;
}

static int job_on_bytes(void *user, enum guest_rec type, const uint8_t *data, size_t len)
{
	struct job *j = user;

	j->a->received += len;
	if (j->a->mode == AGENT_CAT && str_eq(j->path, "/exec"))
		job_out(j, GUEST_REC_OUT, data, len);
	mux_stream_resume(j->s);
	return 0;
}

static const struct guest_reader_callbacks job_callbacks = {job_on_json, job_on_bytes};

static int agent_on_open(struct mux *m, struct mux_stream *s, const char *path, void *user)
{
	struct agent *a = user;
	struct job *j;

	if (a->mode == AGENT_REFUSE)
		return -EBUSY;
	j = xcalloc(1, sizeof(*j));
	j->a = a;
	j->s = s;
	snprintf(j->path, sizeof(j->path), "%s", path);
	guest_reader_init(&j->reader, GUEST_SIDE_AGENT, GUEST_REC_JSON_MAX, &job_callbacks, j);
	buf_init(&j->out, 64 << 20);
	mux_stream_set_user(s, j);
	a->opened++;
	return 0;
}

static int agent_on_data(struct mux_stream *s, const uint8_t *data, size_t len, void *user)
{
	struct job *j = user;

	assert_int_equal(guest_reader_feed(&j->reader, data, len), 0);
	if (j->a->hold) {
		j->owed += len;
		j->a->held = s;
		j->a->max_held = MAX(j->a->max_held, j->owed);
	} else {
		mux_stream_consume(s, len);
	}
	return 0;
}

static void agent_on_end(struct mux_stream *s, void *user)
{
	struct job *j = user;

	assert_int_equal(guest_reader_eof(&j->reader), 0);
	j->ended = true;
	mux_stream_resume(s);
}

static void agent_on_close(struct mux_stream *s, uint32_t h2_error, void *user)
{
	struct job *j = user;

	j->a->closed++;
	j->a->cancelled += h2_error == 8;
	if (j->a->held == s)
		j->a->held = NULL;
	guest_reader_done(&j->reader);
	buf_done(&j->out);
	free(j);
}

static ssize_t agent_on_pull(
	struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof, void *user)
{
	static const uint8_t zeros[8192];
	struct job *j = user;
	struct agent *a = j->a;
	size_t n;

	if (a->mode == AGENT_MUTE || !j->started)
		return 0;
	if (a->mode == AGENT_SCRIPT) {
		if (!j->end_sent)
			buf_add(&j->out, a->script.data, a->script.len);
		j->end_sent = true;
	} else if (j->bulk_left > 0 && j->out.len < 65536) {
		n = MIN(j->bulk_left, sizeof(zeros));
		job_out(j, str_eq(j->path, "/exec") ? GUEST_REC_OUT : GUEST_REC_DATA, zeros, n);
		j->bulk_left -= n;
	}
	if (a->mode != AGENT_SCRIPT && j->ended && !j->bulk_left && !j->end_sent)
		job_end(j);
	n = MIN(cap, j->out.len);
	if (n)
		memcpy(buf, j->out.data, n);
	buf_drop(&j->out, n);
	*ret_eof = j->end_sent && j->out.len == 0 && (a->mode != AGENT_SCRIPT || a->script_ends);
	return n;
}

static const struct mux_callbacks agent_callbacks = {
	agent_on_open, agent_on_data, agent_on_end, agent_on_close, agent_on_pull, NULL};

static void agent_close(struct agent *a)
{
	if (a->gone)
		return;
	a->gone = true;
	uv_close((uv_handle_t *)&a->poll, NULL);
	fd_close(&a->fd);
}

static void agent_on_poll(uv_poll_t *h, int status, int events);

static void agent_watch(struct agent *a)
{
	bool write = a->pending.len || mux_wants_write(a->m);

	if (!a->gone)
		uv_poll_start(&a->poll, (a->deaf ? 0 : UV_READABLE) | (write ? UV_WRITABLE : 0),
			agent_on_poll);
}

static void agent_on_poll(uv_poll_t *h, int status, int events)
{
	struct agent *a = h->data;
	const uint8_t *data;
	uint8_t bytes[16384];
	ssize_t n = 1;

	if (events & UV_READABLE) {
		n = recv(a->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		if (n > 0 && mux_feed(a->m, bytes, n, NULL) < 0)
			n = 0;
		if (n == 0) {
			agent_close(a);
			return;
		}
	}
	if (a->pending.len == 0) {
		n = mux_pull(a->m, &data, NULL);
		if (n > 0)
			buf_add(&a->pending, data, n);
	}
	if (a->pending.len > 0) {
		n = send(a->fd, a->pending.data, a->pending.len, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n > 0)
			buf_drop(&a->pending, n);
	}
	if (a->leaves && a->opened && a->pending.len == 0 && !mux_wants_write(a->m)) {
		assert_int_equal(send(a->leaves, "x", 1, MSG_DONTWAIT), 1);
		agent_close(a);
	}
	agent_watch(a);
}

static void agent_release(struct agent *a)
{
	struct job *j = mux_stream_user(a->held);
	size_t n = j->owed;

	a->hold = false;
	j->owed = 0;
	mux_stream_consume(a->held, n);
	agent_watch(a);
}

/* --- the world of a test --- */

struct world {
	uv_loop_t loop;
	uv_timer_t guard;
	struct agent agent;
	struct guest *g;
	int guest_fd; /* owned by g */
	size_t lost;
	struct err lost_why;
	bool free_in_lost;
};

static void on_lost(struct guest *g, const struct err *why, void *user)
{
	struct world *w = user;

	w->lost++;
	w->lost_why = *why;
	assert_string_not_equal(why->text, "");
	if (w->free_in_lost)
		guest_free(STEAL(w->g));
}

static const struct guest_callbacks guest_callbacks = {on_lost};

static void on_guard(uv_timer_t *t)
{
	fail_msg("the test hangs");
}

static struct world *world_new(enum agent_mode mode)
{
	struct world *w = xcalloc(1, sizeof(*w));
	struct agent *a = &w->agent;
	int fds[2];

	assert_int_equal(fd_socketpair(fds), 0);
	uv_loop_init(&w->loop);
	uv_timer_init(&w->loop, &w->guard);
	uv_timer_start(&w->guard, on_guard, GUARD_MS, 0);
	a->mode = mode;
	a->fd = fds[1];
	buf_init(&a->pending, 1 << 20);
	buf_init(&a->script, 32 << 20);
	a->m = mux_new(MUX_SERVER, &agent_callbacks, a);
	uv_poll_init(&w->loop, &a->poll, a->fd);
	a->poll.data = a;
	agent_watch(a);
	w->guest_fd = fds[0];
	assert_int_equal(guest_new(&w->loop, fds[0], &guest_callbacks, w, &w->g, NULL), 0);
	return w;
}

static void world_free(struct world *w)
{
	guest_free(w->g);
	agent_close(&w->agent);
	uv_close((uv_handle_t *)&w->guard, NULL);
	while (uv_run(&w->loop, UV_RUN_DEFAULT))
		;
	assert_int_equal(uv_loop_close(&w->loop), 0);
	mux_free(w->agent.m);
	assert_int_equal(w->agent.opened, w->agent.closed);
	buf_done(&w->agent.pending);
	buf_done(&w->agent.script);
	free(w);
}

#define RUN_UNTIL(w, condition)                                                                    \
	do {                                                                                       \
		while (!(condition))                                                               \
			uv_run(&(w)->loop, UV_RUN_ONCE);                                           \
	} while (0)

/* Turns of the loop in which nothing is expected to happen any more. */
static void turns(struct world *w, unsigned n)
{
	while (n--)
		uv_run(&w->loop, UV_RUN_NOWAIT);
}

/* One exec and all it reported. */
struct run {
	struct world *w;
	struct guest_call *c;
	struct buf out, err;
	uint64_t out_bytes;
	size_t ready, done;
	bool in_call; /* no callback may come now */
	bool pause_at_once, cancel_in_output, free_in_output, free_in_done;
	struct guest_exec_result res;
	bool ok;
	struct err why;
	char start_error[256];
};

static void run_on_output(
	struct guest_call *c, bool is_stderr, const uint8_t *data, size_t len, void *user)
{
	struct run *r = user;

	assert_false(r->in_call);
	assert_ptr_equal(c, r->c);
	assert_int_equal(r->done, 0);
	assert_true(len > 0);
	r->out_bytes += len;
	if (r->out_bytes < 1 << 20)
		buf_add(is_stderr ? &r->err : &r->out, data, len);
	if (r->pause_at_once)
		guest_exec_pause(c, true);
	if (r->cancel_in_output)
		guest_call_cancel(STEAL(r->c));
	if (r->free_in_output)
		guest_free(STEAL(r->w->g));
}

static void run_on_ready(struct guest_call *c, void *user)
{
	struct run *r = user;

	assert_false(r->in_call);
	assert_int_equal(r->done, 0);
	r->ready++;
}

static void run_on_done(struct guest_call *c, const struct guest_exec_result *res,
	const struct err *why, void *user)
{
	struct run *r = user;

	assert_true(!res != !why);
	assert_ptr_equal(c, r->c);
	r->done++;
	r->ok = res != NULL;
	if (res) {
		r->res = *res;
		snprintf(r->start_error, sizeof(r->start_error), "%s", res->start_error);
	} else {
		r->why = *why;
	}
	guest_call_cancel(c); /* too late, hence nothing */
	r->c = NULL;
	if (r->free_in_done)
		guest_free(STEAL(r->w->g));
}

static const struct guest_exec_callbacks run_callbacks = {run_on_output, run_on_ready, run_on_done};

static void run_start(struct run *r, struct world *w, uint64_t deadline_ms, uint64_t cap)
{
	char program[] = "cat", arg[] = "-", env[] = "A=b";
	char *const argv[] = {program, arg, NULL};
	char *const envp[] = {env, NULL};
	const struct guest_exec_req req = {.argv = argv,
		.env = envp,
		.deadline_ms = deadline_ms,
		.stdout_cap = cap,
		.stderr_cap = cap};
	struct err e = ERR_INIT;

	*r = (struct run){.w = w, .in_call = true};
	buf_init(&r->out, 2 << 20);
	buf_init(&r->err, 2 << 20);
	buf_add_str(&r->out, "");
	if (guest_exec(w->g, &req, &run_callbacks, r, &r->c, &e) != 0)
		fail_msg("%s", e.text);
	r->in_call = false;
}

static void run_done(struct run *r)
{
	buf_done(&r->out);
	buf_done(&r->err);
}

static void exec_goes_round(void **state)
{
	struct world *w = world_new(AGENT_CAT);
	struct run r;

	run_start(&r, w, 60000, 100);
	r.in_call = true;
	assert_int_equal(guest_exec_stdin(r.c, "hello ", 6), 6);
	assert_int_equal(guest_exec_stdin(r.c, "world", 5), 5);
	guest_exec_stdin_end(r.c);
	r.in_call = false;
	RUN_UNTIL(w, r.done);
	assert_true(r.ok);
	assert_int_equal(r.res.exit_code, 0);
	assert_string_equal((char *)r.out.data, "hello world");
	assert_string_equal(w->agent.last_head,
		"{\"argv\":[\"cat\",\"-\"],\"env\":[\"A=b\"],\"workdir\":\"/\","
		"\"deadline_ms\":60000,\"stdout_cap\":100,\"stderr_cap\":100}");
	turns(w, 20);
	assert_int_equal(r.done, 1);
	assert_int_equal(w->lost, 0);
	assert_int_equal(w->agent.cancelled, 0);
	run_done(&r);
	world_free(w);
}

static void many_execs_at_once(void **state)
{
	struct world *w = world_new(AGENT_CAT);
	struct run *r = xcalloc(400, sizeof(*r));

	for (unsigned i = 0; i < 400; i++) {
		run_start(&r[i], w, 60000, 1000);
		assert_int_equal(guest_exec_stdin(r[i].c, "x", 1), 1);
		guest_exec_stdin_end(r[i].c);
	}
	for (unsigned i = 0; i < 400; i++) {
		RUN_UNTIL(w, r[i].done);
		assert_true(r[i].ok);
		assert_string_equal((char *)r[i].out.data, "x");
		run_done(&r[i]);
	}
	free(r);
	world_free(w);
}

static void stdin_of_8_mib_has_back_pressure(void **state)
{
	struct world *w = world_new(AGENT_CAT);
	cleanup_free uint8_t *data = xmalloc(8 << 20);
	size_t sent = 0, n, ready;
	struct run r;

	for (size_t i = 0; i < 8 << 20; i++)
		data[i] = i >> 7;
	w->agent.hold = true;
	run_start(&r, w, 60000, UINT64_MAX);
	/* The agent takes nothing: the queue fills, one window is under way, and that is all. */
	for (unsigned i = 0; i < 1000; i++) {
		sent += guest_exec_stdin(r.c, data + sent, (8 << 20) - sent);
		turns(w, 1);
	}
	assert_in_range(sent, 100 << 10, 512 << 10);
	assert_in_range(w->agent.max_held, 1, 65535);
	assert_int_equal(guest_exec_stdin(r.c, data, 1), 0);
	ready = r.ready;
	agent_release(&w->agent);
	RUN_UNTIL(w, r.ready > ready);
	while (sent < 8 << 20) {
		ready = r.ready;
		n = guest_exec_stdin(r.c, data + sent, (8 << 20) - sent);
		sent += n;
		if (sent < 8 << 20)
			RUN_UNTIL(w, r.ready > ready);
	}
	guest_exec_stdin_end(r.c);
	RUN_UNTIL(w, r.done);
	assert_true(r.ok);
	assert_int_equal(w->agent.received, 8 << 20);
	assert_int_equal(r.out_bytes, 8 << 20);
	assert_memory_equal(r.out.data, data, r.out.len);
	run_done(&r);
	world_free(w);
}

static void pause_stops_the_agent(void **state)
{
	struct world *w = world_new(AGENT_BULK);
	struct run r, other;

	w->agent.bulk = 5 << 20;
	run_start(&r, w, 60000, UINT64_MAX);
	guest_exec_stdin_end(r.c);
	r.pause_at_once = true;
	RUN_UNTIL(w, r.out_bytes > 0);
	turns(w, 200);
	assert_in_range(r.out_bytes, 1, 65535);
	/* Others go on meanwhile. */
	run_start(&other, w, 60000, UINT64_MAX);
	guest_exec_stdin_end(other.c);
	RUN_UNTIL(w, other.done);
	assert_int_equal(other.out_bytes, 5 << 20);
	assert_in_range(r.out_bytes, 1, 65535);
	r.pause_at_once = false;
	guest_exec_pause(r.c, false);
	RUN_UNTIL(w, r.done);
	assert_true(r.ok);
	assert_int_equal(r.out_bytes, 5 << 20);
	run_done(&r);
	run_done(&other);
	world_free(w);
}

static void cancel_reaches_the_agent(void **state)
{
	struct world *w = world_new(AGENT_MUTE);
	struct run r;

	run_start(&r, w, 60000, 100);
	RUN_UNTIL(w, w->agent.last_head[0]);
	guest_call_cancel(r.c);
	RUN_UNTIL(w, w->agent.closed == 1);
	assert_int_equal(w->agent.cancelled, 1);
	assert_int_equal(r.done, 0);
	run_done(&r);

	/* Before it was sent at all, and from inside a callback. */
	run_start(&r, w, 60000, 100);
	guest_call_cancel(r.c);
	run_done(&r);
	w->agent.mode = AGENT_BULK;
	w->agent.bulk = 3 << 20;
	run_start(&r, w, 60000, UINT64_MAX);
	r.cancel_in_output = true;
	RUN_UNTIL(w, !r.c && w->agent.cancelled == 2);
	turns(w, 20);
	assert_int_equal(r.done, 0);
	assert_int_equal(w->lost, 0);
	run_done(&r);
	world_free(w);
}

static void a_late_agent_is_given_up(void **state)
{
	struct world *w = world_new(AGENT_MUTE);
	struct run r, other;

	run_start(&other, w, 600000, 100);
	run_start(&r, w, 10, 100);
	guest_exec_stdin_end(r.c);
	RUN_UNTIL(w, r.done);
	assert_false(r.ok);
	assert_string_equal(r.why.code, "S200");
	assert_int_equal(r.why.no, ETIMEDOUT);
	assert_non_null(strstr(r.why.text, " 10 ms"));
	RUN_UNTIL(w, w->agent.cancelled == 1);
	assert_int_equal(other.done, 0);
	assert_int_equal(w->lost, 0);
	guest_call_cancel(other.c);
	run_done(&r);
	run_done(&other);
	world_free(w);
}

static void a_lost_connection_ends_all_calls(void **state)
{
	for (int how = 0; how < 3; how++) {
		struct world *w = world_new(AGENT_MUTE);
		struct run r[5];
		struct guest_call *c = NULL;
		struct err e = ERR_INIT;
		char program[] = "x";
		char *const argv[] = {program, NULL};

		for (unsigned i = 0; i < 5; i++)
			run_start(&r[i], w, 60000, 100);
		RUN_UNTIL(w, w->agent.opened == 5);
		w->free_in_lost = how == 1;
		r[2].free_in_done = how == 2;
		agent_close(&w->agent);
		RUN_UNTIL(w, r[0].done);
		for (unsigned i = 0; i < 5; i++) {
			assert_int_equal(r[i].done, 1);
			assert_false(r[i].ok);
			assert_string_equal(r[i].why.code, "S300");
			assert_int_equal(r[i].why.no, ECONNRESET);
			run_done(&r[i]);
		}
		assert_int_equal(w->lost, how == 2 ? 0 : 1);
		if (how == 0) {
			assert_int_equal(
				guest_exec(w->g,
					&(struct guest_exec_req){.argv = argv, .deadline_ms = 1},
					&run_callbacks, NULL, &c, &e),
				-ENOTCONN);
			assert_string_equal(e.code, "S300");
			assert_null(c);
		}
		world_free(w);
	}
}

static void what_the_agent_said_before_it_went_counts(void **state)
{
	struct world *w = world_new(AGENT_SCRIPT);
	struct run r;

	assert_int_equal(
		guest_rec_add(&w->agent.script, GUEST_REC_END, good_exec, strlen(good_exec)), 0);
	w->agent.script_ends = true;
	run_start(&r, w, 60000, 10);
	guest_exec_stdin_end(r.c);
	/* A byte of ours stays unread, so the socket reports an error before the answer. */
	w->agent.leaves = w->guest_fd;
	RUN_UNTIL(w, w->lost);
	assert_int_equal(r.done, 1);
	assert_true(r.ok);
	assert_int_equal(w->lost_why.no, ECONNRESET);
	run_done(&r);
	world_free(w);
}

static void guest_free_ends_all_calls(void **state)
{
	for (int inside = 0; inside < 3; inside++) {
		struct world *w = world_new(AGENT_BULK);
		struct run r[3];

		w->agent.bulk = 1 << 20;
		for (unsigned i = 0; i < 3; i++)
			run_start(&r[i], w, 60000, UINT64_MAX);
		guest_exec_stdin_end(r[0].c);
		r[0].free_in_output = inside == 1;
		r[0].free_in_done = inside == 2;
		if (inside == 0) {
			RUN_UNTIL(w, r[0].out_bytes > 0);
			guest_free(STEAL(w->g));
		}
		RUN_UNTIL(w, !w->g);
		for (unsigned i = 0; i < 3; i++) {
			assert_int_equal(r[i].done, 1);
			assert_int_equal(r[i].ok, inside == 2 && i == 0);
			assert_int_equal(r[i].why.no, r[i].ok ? 0 : ECONNRESET);
			run_done(&r[i]);
		}
		assert_int_equal(w->lost, 0);
		world_free(w);
	}
}

static void script_json(struct world *w, enum guest_rec type, const char *text)
{
	assert_int_equal(guest_rec_add(&w->agent.script, type, text, strlen(text)), 0);
}

/* Runs an exec against the script; the world stays for questions. */
static struct world *scripted(struct run *r, const char *end, bool ends)
{
	struct world *w = world_new(AGENT_SCRIPT);

	if (end)
		script_json(w, GUEST_REC_END, end);
	w->agent.script_ends = ends;
	run_start(r, w, 60000, 10);
	guest_exec_stdin_end(r->c);
	return w;
}

static void results_arrive_as_they_are(void **state)
{
	struct run r;
	struct world *w = scripted(&r,
		"{\"exit_code\":137,\"signal\":9,\"timed_out\":true,\"stdout_dropped\":"
		"18446744073709551615,\"stderr_dropped\":1,\"start_error\":\"exec: x: not found\","
		"\"stdout_tail\":\"\",\"stderr_tail\":\"00ff61\",\"future\":[1]}",
		true);

	RUN_UNTIL(w, r.done);
	assert_true(r.ok);
	assert_int_equal(r.res.exit_code, 137);
	assert_int_equal(r.res.signal, 9);
	assert_true(r.res.timed_out);
	assert_true(r.res.stdout_dropped == UINT64_MAX);
	assert_int_equal(r.res.stderr_dropped, 1);
	assert_string_equal(r.start_error, "exec: x: not found");
	assert_int_equal(r.res.tail_len[0], 0);
	assert_int_equal(r.res.tail_len[1], 3);
	assert_memory_equal(r.res.tail[1],
		"\0\xff"
		"a",
		3);
	run_done(&r);
	world_free(w);

	w = scripted(
		&r, "{\"error\":{\"code\":\"\",\"errno\":12,\"message\":\"no\\nfork\"}}", true);
	RUN_UNTIL(w, r.done);
	assert_false(r.ok);
	assert_string_equal(r.why.code, "S300");
	assert_int_equal(r.why.no, 12);
	assert_string_equal(r.why.text, "no?fork");
	turns(w, 20);
	assert_int_equal(w->lost, 0);
	run_done(&r);
	world_free(w);
}

#define FIELDS(code, signal, timed, so, se, start)                                                 \
	"{\"exit_code\":" code ",\"signal\":" signal ",\"timed_out\":" timed                       \
	",\"stdout_dropped\":" so ",\"stderr_dropped\":" se ",\"start_error\":" start "}"

static void hostile_results_lose_the_connection(void **state)
{
	static const char *const ends[] = {
		"",
		"null",
		"[]",
		"{}",
		"{\"exit_code\":0}",
		FIELDS("256", "0", "false", "0", "0", "\"\""),
		FIELDS("-1", "0", "false", "0", "0", "\"\""),
		FIELDS("0.0", "0", "false", "0", "0", "\"\""),
		FIELDS("\"0\"", "0", "false", "0", "0", "\"\""),
		FIELDS("null", "0", "false", "0", "0", "\"\""),
		FIELDS("99999999999999999999", "0", "false", "0", "0", "\"\""),
		FIELDS("0", "65", "false", "0", "0", "\"\""),
		FIELDS("0", "0", "0", "0", "0", "\"\""),
		FIELDS("0", "0", "false", "-1", "0", "\"\""),
		FIELDS("0", "0", "false", "0", "18446744073709551616", "\"\""),
		FIELDS("0", "0", "false", "0", "0", "null"),
		FIELDS("0", "0", "false", "0", "0", "\"\\u0000\""),
		FIELDS("0", "0", "false", "0", "0", "\"\xff\""),
		FIELDS("0", "0", "false", "0", "0", "\"\"") "x",
		FIELDS("0", "0", "false", "0", "0", "\"\",\"exit_code\":1"),
		FIELDS("0", "0", "true", "1", "0", "\"\",\"stdout_tail\":\"0\""),
		FIELDS("0", "0", "true", "1", "0", "\"\",\"stdout_tail\":\"0g\""),
		FIELDS("0", "0", "true", "1", "0", "\"\",\"stderr_tail\":7"),
		"{\"error\":null}",
		"{\"error\":\"x\"}",
		"{\"error\":{}}",
		"{\"error\":{\"code\":\"S211\",\"errno\":2}}",
		"{\"error\":{\"code\":\"S2110\",\"errno\":2,\"message\":\"x\"}}",
		"{\"error\":{\"code\":\"X211\",\"errno\":2,\"message\":\"x\"}}",
		"{\"error\":{\"code\":\"S211\",\"errno\":-2,\"message\":\"x\"}}",
		"{\"error\":{\"code\":\"S211\",\"errno\":100000,\"message\":\"x\"}}",
		"{\"error\":{\"code\":\"S211\",\"errno\":2,\"message\":7}}",
	};

	for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
		struct run r;
		struct world *w = scripted(&r, ends[i], true);

		RUN_UNTIL(w, r.done);
		if (r.ok || r.why.no != EPROTO || w->lost != 1 || w->lost_why.no != EPROTO)
			fail_msg("%s: %s", ends[i], r.why.text);
		assert_string_equal(r.why.code, "S300");
		assert_non_null(strstr(r.why.text, "exec"));
		run_done(&r);
		world_free(w);
	}
}

static void breach(void (*build)(struct world *w))
{
	struct run r;
	struct world *w = scripted(&r, NULL, true);

	build(w);
	RUN_UNTIL(w, w->lost);
	assert_int_equal(r.done, 1);
	assert_false(r.ok);
	assert_int_equal(w->lost_why.no, EPROTO);
	turns(w, 20);
	assert_int_equal(r.done, 1);
	assert_int_equal(w->lost, 1);
	run_done(&r);
	world_free(w);
}

static void build_nothing(struct world *w)
{
}

static void build_no_end(struct world *w)
{
	script_json(w, GUEST_REC_OUT, "abc");
}

static void build_two_ends(struct world *w)
{
	script_json(w, GUEST_REC_END, good_exec);
	script_json(w, GUEST_REC_END, good_exec);
}

static void build_output_after_the_end(struct world *w)
{
	script_json(w, GUEST_REC_END, good_exec);
	script_json(w, GUEST_REC_OUT, "x");
}

static void build_head(struct world *w)
{
	script_json(w, GUEST_REC_HEAD, "{}");
	script_json(w, GUEST_REC_END, good_exec);
}

static void build_data(struct world *w)
{
	script_json(w, GUEST_REC_DATA, "x");
	script_json(w, GUEST_REC_END, good_exec);
}

static void build_output_over_the_cap(struct world *w)
{
	script_json(w, GUEST_REC_OUT, "0123456789");
	script_json(w, GUEST_REC_ERR, "0123456789");
	script_json(w, GUEST_REC_OUT, "x");
	script_json(w, GUEST_REC_END, good_exec);
}

static void build_a_huge_result(struct world *w)
{
	cleanup_free char *big = xmalloc(100000);

	memset(big, ' ', 99999);
	big[99999] = '\0';
	script_json(w, GUEST_REC_END, big);
}

static void build_an_unknown_record(struct world *w)
{
	buf_add(&w->agent.script, "\x09\0\0\0\0", 5);
}

static void breaches_lose_the_connection(void **state)
{
	breach(build_nothing);
	breach(build_no_end);
	breach(build_two_ends);
	breach(build_output_after_the_end);
	breach(build_head);
	breach(build_data);
	breach(build_output_over_the_cap);
	breach(build_a_huge_result);
	breach(build_an_unknown_record);
}

static void output_up_to_the_cap_is_fine(void **state)
{
	struct run r;
	struct world *w = scripted(&r, NULL, true);

	script_json(w, GUEST_REC_OUT, "0123456789");
	script_json(w, GUEST_REC_ERR, "9876543210");
	script_json(w, GUEST_REC_END, good_exec);
	RUN_UNTIL(w, r.done);
	assert_true(r.ok);
	assert_string_equal((char *)r.out.data, "0123456789");
	assert_string_equal((char *)r.err.data, "9876543210");
	run_done(&r);
	world_free(w);
}

static void an_end_without_end_of_stream_is_not_a_result(void **state)
{
	struct world *w = world_new(AGENT_SCRIPT);
	struct run r;

	script_json(w, GUEST_REC_END, good_exec);
	run_start(&r, w, 5, 10);
	RUN_UNTIL(w, r.done);
	assert_false(r.ok);
	assert_string_equal(r.why.code, "S200");
	run_done(&r);
	world_free(w);
}

static void refused_and_reset_calls_fail_alone(void **state)
{
	struct world *w = world_new(AGENT_REFUSE);
	struct run r;

	run_start(&r, w, 60000, 10);
	RUN_UNTIL(w, r.done);
	assert_false(r.ok);
	assert_string_equal(r.why.code, "S300");
	assert_int_equal(r.why.no, EBUSY);
	run_done(&r);
	w->agent.mode = AGENT_RESET;
	run_start(&r, w, 60000, 10);
	RUN_UNTIL(w, r.done);
	assert_int_equal(r.why.no, ECONNABORTED);
	run_done(&r);
	w->agent.mode = AGENT_CAT;
	run_start(&r, w, 60000, 10);
	guest_exec_stdin_end(r.c);
	RUN_UNTIL(w, r.done);
	assert_true(r.ok);
	assert_int_equal(w->lost, 0);
	run_done(&r);
	world_free(w);
}

static void a_result_before_the_end_of_stdin_gives_the_stream_up(void **state)
{
	struct world *w = world_new(AGENT_SCRIPT);
	struct run r;

	script_json(w, GUEST_REC_END, good_exec);
	w->agent.script_ends = true;
	run_start(&r, w, 60000, 10);
	RUN_UNTIL(w, r.done);
	assert_true(r.ok);
	RUN_UNTIL(w, w->agent.closed == 1);
	assert_int_equal(w->lost, 0);
	run_done(&r);
	world_free(w);
}

static void silence_loses_the_connection(void **state)
{
	struct world *w = world_new(AGENT_MUTE);
	struct run r;

	/* An agent that answers pings is alive, however long its exec takes. */
	guest_set_patience(w->g, 5, 3000);
	run_start(&r, w, 600000, 10);
	for (unsigned i = 0; i < 200; i++)
		uv_run(&w->loop, UV_RUN_ONCE);
	assert_int_equal(w->lost, 0);
	/* One that does not read its port is not. */
	w->agent.deaf = true;
	agent_watch(&w->agent);
	RUN_UNTIL(w, w->lost);
	assert_int_equal(r.done, 1);
	assert_int_equal(w->lost_why.no, ETIMEDOUT);
	run_done(&r);
	world_free(w);
}

static void garbage_loses_the_connection(void **state)
{
	struct world *w = world_new(AGENT_MUTE);
	uint8_t noise[4096];
	struct run r;

	run_start(&r, w, 60000, 10);
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = i * 37 + 11;
	assert_int_equal(fd_write_all(w->agent.fd, noise, sizeof(noise)), 0);
	RUN_UNTIL(w, w->lost);
	assert_int_equal(r.done, 1);
	assert_int_equal(r.why.no, EPROTO);
	run_done(&r);
	world_free(w);
}

static void bad_requests_are_refused_here(void **state)
{
	struct world *w = world_new(AGENT_CAT);
	char program[] = "x", empty[] = "", bad[] = "a\xff";
	char *const none[] = {NULL}, *const no_name[] = {empty, NULL};
	char *const bytes[] = {program, bad, NULL}, *const good[] = {program, NULL};
	const struct guest_exec_req reqs[] = {
		{.argv = none, .deadline_ms = 1},
		{.argv = no_name, .deadline_ms = 1},
		{.argv = bytes, .deadline_ms = 1},
		{.argv = good, .deadline_ms = 0},
		{.argv = good, .env = bytes, .deadline_ms = 1},
		{.argv = good, .workdir = bad, .deadline_ms = 1},
	};
	struct guest_call *c = NULL;

	for (size_t i = 0; i < ARRAY_LEN(reqs); i++) {
		struct err e = ERR_INIT;

		assert_int_equal(guest_exec(w->g, &reqs[i], &run_callbacks, NULL, &c, &e), -EINVAL);
		assert_string_equal(e.code, "S001");
	}
	assert_null(c);
	turns(w, 10);
	assert_int_equal(w->agent.opened, 0);
	world_free(w);
}

/* --- hello and files --- */

struct note {
	size_t done, heads, ready;
	uint64_t bytes, n;
	bool ok;
	struct err why;
	char version[32];
	struct guest_read_head head;
};

static void note_end(struct note *n, const struct err *why)
{
	n->done++;
	n->ok = !why;
	if (why)
		n->why = *why;
}

static void on_hello(const struct guest_hello *h, const struct err *why, void *user)
{
	struct note *n = user;

	note_end(n, why);
	if (h) {
		snprintf(n->version, sizeof(n->version), "%s", h->agent_version);
		n->n = h->boot_us + h->rss_kib;
	}
}

static void on_written(struct guest_call *c, uint64_t bytes, const struct err *why, void *user)
{
	struct note *n = user;

	note_end(n, why);
	n->bytes = bytes;
}

static void on_write_ready(struct guest_call *c, void *user)
{
	((struct note *)user)->ready++;
}

static void on_read_head(struct guest_call *c, const struct guest_read_head *h, void *user)
{
	struct note *n = user;

	n->heads++;
	n->head = *h;
}

static void on_read_data(struct guest_call *c, const uint8_t *data, size_t len, void *user)
{
	((struct note *)user)->bytes += len;
}

static void on_read_done(struct guest_call *c, const struct err *why, void *user)
{
	note_end(user, why);
}

static const struct guest_write_callbacks write_callbacks = {on_write_ready, on_written};
static const struct guest_read_callbacks read_callbacks = {
	on_read_head, on_read_data, on_read_done};

static void hello_says_who_it_is(void **state)
{
	struct world *w = world_new(AGENT_CAT);
	struct note n = {0}, freed = {0};

	assert_int_equal(guest_hello(w->g, on_hello, &n, NULL), 0);
	RUN_UNTIL(w, n.done);
	assert_true(n.ok);
	assert_string_equal(n.version, "0.2.2");
	assert_int_equal(n.n, 1234 + 99);
	w->agent.mode = AGENT_MUTE;
	assert_int_equal(guest_hello(w->g, on_hello, &freed, NULL), 0);
	turns(w, 20);
	guest_free(STEAL(w->g));
	assert_int_equal(freed.done, 1);
	assert_int_equal(freed.why.no, ECONNRESET);
	world_free(w);
}

static void files_are_written(void **state)
{
	struct world *w = world_new(AGENT_CAT);
	const struct guest_write_req req = {.path = "/tmp/\xc3\xa4", .mode = 0644, .parents = true};
	cleanup_free uint8_t *data = xcalloc(1, 1 << 20);
	struct guest_call *c;
	struct note n = {0};
	size_t sent = 0;

	assert_int_equal(guest_write(w->g, &req, &write_callbacks, &n, &c, NULL), 0);
	while (sent < 1 << 20) {
		size_t ready = n.ready;

		sent += guest_write_data(c, data + sent, (1 << 20) - sent);
		if (sent < 1 << 20)
			RUN_UNTIL(w, n.ready > ready);
	}
	guest_write_end(c);
	RUN_UNTIL(w, n.done);
	assert_true(n.ok);
	assert_int_equal(n.bytes, 1 << 20);
	assert_true(n.ready > 0);
	assert_string_equal(
		w->agent.last_head, "{\"path\":\"/tmp/\xc3\xa4\",\"mode\":420,\"parents\":true}");
	world_free(w);
}

static void a_write_that_lies_is_a_breach(void **state)
{
	static const char *const ends[] = {"{\"bytes_written\":2}", "{\"bytes_written\":4}", "{}"};

	for (size_t i = 0; i < ARRAY_LEN(ends) + 1; i++) {
		struct world *w = world_new(AGENT_SCRIPT);
		const struct guest_write_req req = {.path = "/x", .mode = 0644};
		struct guest_call *c;
		struct note n = {0};

		/* The last: success before the file was there. */
		script_json(
			w, GUEST_REC_END, i < ARRAY_LEN(ends) ? ends[i] : "{\"bytes_written\":3}");
		w->agent.script_ends = true;
		assert_int_equal(guest_write(w->g, &req, &write_callbacks, &n, &c, NULL), 0);
		assert_int_equal(guest_write_data(c, "abc", 3), 3);
		if (i < ARRAY_LEN(ends))
			guest_write_end(c);
		RUN_UNTIL(w, n.done);
		assert_false(n.ok);
		assert_int_equal(n.why.no, EPROTO);
		assert_string_equal(n.why.code, "S216");
		assert_int_equal(w->lost, 1);
		world_free(w);
	}
}

static void files_are_read(void **state)
{
	struct world *w = world_new(AGENT_BULK);
	struct guest_call *c;
	struct note n = {0};

	w->agent.bulk = 3000000;
	assert_int_equal(guest_read(w->g, "/etc/passwd", &read_callbacks, &n, &c, NULL), 0);
	guest_read_pause(c, true);
	RUN_UNTIL(w, n.heads);
	turns(w, 100);
	assert_in_range(n.bytes, 0, 65535);
	guest_read_pause(c, false);
	RUN_UNTIL(w, n.done);
	assert_true(n.ok);
	assert_int_equal(n.bytes, 3000000);
	assert_int_equal(n.head.size, 7);
	assert_int_equal(n.head.mode, 0644);
	assert_true(n.head.mtime == -5);
	world_free(w);
}

static void read_script(
	struct world *w, const char *head, const char *data, const char *end, struct note *n)
{
	struct guest_call *c;

	/* The job of this test's agent begins a read with its own HEAD, so it is an exec to it. */
	if (head)
		script_json(w, GUEST_REC_HEAD, head);
	if (data)
		script_json(w, GUEST_REC_DATA, data);
	if (end)
		script_json(w, GUEST_REC_END, end);
	w->agent.script_ends = true;
	assert_int_equal(guest_read(w->g, "/x", &read_callbacks, n, &c, NULL), 0);
	RUN_UNTIL(w, n->done);
}

static void errors_of_the_guest_are_told(void **state)
{
	struct world *w = world_new(AGENT_SCRIPT);
	struct note n = {0};

	read_script(w, NULL, "part",
		"{\"error\":{\"code\":\"S211\",\"errno\":2,\"message\":\"/x: no such file\"}}", &n);
	assert_false(n.ok);
	assert_string_equal(n.why.code, "S211");
	assert_int_equal(n.why.no, ENOENT);
	assert_string_equal(n.why.text, "/x: no such file");
	assert_int_equal(w->lost, 0);
	world_free(w);
}

static void bad_paths_are_refused_here(void **state)
{
	struct world *w = world_new(AGENT_CAT);
	struct guest_call *c = NULL;
	struct err e = ERR_INIT;

	assert_int_equal(guest_read(w->g, "x", &read_callbacks, NULL, &c, &e), -EINVAL);
	assert_string_equal(e.code, "S210");
	assert_int_equal(guest_read(w->g, "/\xff", &read_callbacks, NULL, &c, &e), -EINVAL);
	assert_int_equal(guest_write(w->g, &(struct guest_write_req){.path = "/x", .mode = 010000},
				 &write_callbacks, NULL, &c, &e),
		-EINVAL);
	assert_null(c);
	world_free(w);
}

/* --- one question, one answer --- */

struct answer {
	size_t done;
	struct err why;
	char text[2048];
};

static void on_answer(json_object *reply, const struct err *why, void *user)
{
	struct answer *a = user;

	a->done++;
	assert_true((reply == NULL) == (why != NULL));
	if (why)
		a->why = *why;
	else
		snprintf(a->text, sizeof(a->text), "%s", json_text(reply, NULL));
}

static json_object *path_request(const char *path)
{
	json_object *o = json_object_new_object();

	json_add_str(o, "path", path);
	return o;
}

static void file_operations_have_exact_answers(void **state)
{
	static const struct {
		enum fs_op op;
		bool good;
		const char *end;
	} rows[] = {
		{FS_OP_LS, true, "{\"entries\":[]}"},
		{FS_OP_LS, true,
			"{\"entries\":[{\"is_dir\":false,\"is_symlink\":true,\"mode\":\"0777\","
			"\"mtime\":-1,\"name\":\"x\",\"size\":18446744073709551615}]}"},
		{FS_OP_LS, false, "{\"entries\":[{}]}"},
		{FS_OP_LS, false, "{\"entries\":[1]}"},
		{FS_OP_LS, false, "{\"entries\":{}}"},
		{FS_OP_LS, false, "{\"entries\":[],\"more\":1}"},
		{FS_OP_LS, false, "{}"},
		{FS_OP_STAT, false,
			"{\"is_dir\":false,\"is_symlink\":true,\"mode\":\"777\",\"mtime\":0,"
			"\"name\":\"x\",\"size\":0}"},
		{FS_OP_STAT, false,
			"{\"is_dir\":false,\"is_symlink\":true,\"mode\":\"0778\",\"mtime\":0,"
			"\"name\":\"x\",\"size\":0}"},
		{FS_OP_STAT, false,
			"{\"is_dir\":0,\"is_symlink\":true,\"mode\":\"0777\",\"mtime\":0,"
			"\"name\":\"x\",\"size\":0}"},
		{FS_OP_MKDIR, true, "{\"created\":false}"},
		{FS_OP_MKDIR, false, "{\"created\":null}"},
		{FS_OP_RM, true, "{\"removed\":true}"},
		{FS_OP_RM, false, "{\"removed\":false}"},
		{FS_OP_MV, true, "{\"moved\":true}"},
		{FS_OP_MV, false, "{\"moved\":\"true\"}"},
		{FS_OP_CHMOD, true, "{\"updated\":3}"},
		{FS_OP_CHMOD, false, "{\"updated\":-3}"},
		{FS_OP_CHMOD, false, "{\"updated\":3.0}"},
		{FS_OP_GREP, true,
			"{\"matches\":[{\"content\":\"a\\u0000b\",\"line\":1,\"path\":\"/f\"}],"
			"\"truncated\":false}"},
		{FS_OP_GREP, false, "{\"matches\":[]}"},
		{FS_OP_GREP, false,
			"{\"matches\":[{\"content\":null,\"line\":1,\"path\":\"/f\"}],"
			"\"truncated\":false}"},
		{FS_OP_SED, true,
			"{\"results\":[{\"error\":\"no\",\"path\":\"/f\",\"replacements\":0,"
			"\"success\":false},{\"path\":\"/g\",\"replacements\":1,\"success\":true}],"
			"\"total_replacements\":1}"},
		{FS_OP_SED, false,
			"{\"results\":[{\"error\":null,\"path\":\"/f\",\"replacements\":0,"
			"\"success\":true}],\"total_replacements\":0}"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct world *w = world_new(AGENT_SCRIPT);
		struct answer a = {0};

		script_json(w, GUEST_REC_END, rows[i].end);
		w->agent.script_ends = true;
		assert_int_equal(
			guest_fs(w->g, rows[i].op, path_request("/x"), on_answer, &a, NULL), 0);
		RUN_UNTIL(w, a.done);
		turns(w, 20);
		assert_int_equal(a.done, 1);
		if (rows[i].good ? strcmp(a.text, rows[i].end) != 0 : a.why.no != EPROTO)
			fail_msg("%s: %s%s", rows[i].end, a.text, a.why.text);
		assert_int_equal(w->lost, !rows[i].good);
		world_free(w);
	}
}

static void file_operations_fail_are_cancelled_and_refused(void **state)
{
	struct world *w = world_new(AGENT_SCRIPT);
	struct guest_call *c = NULL;
	struct err e = ERR_INIT;
	struct answer a = {0};
	cleanup_free char *big = xmalloc(FS_REQUEST_MAX);

	script_json(w, GUEST_REC_END,
		"{\"error\":{\"code\":\"S212\",\"errno\":20,\"message\":\"/x is no folder\"}}");
	w->agent.script_ends = true;
	assert_int_equal(guest_fs(w->g, FS_OP_LS, path_request("/x"), on_answer, &a, NULL), 0);
	RUN_UNTIL(w, a.done);
	assert_string_equal(a.why.code, "S212");
	assert_string_equal(a.why.text, "/x is no folder");
	assert_string_equal(w->agent.last_head, "{\"path\":\"/x\"}");
	/* Too large to be sent. */
	memset(big, 'x', FS_REQUEST_MAX - 1);
	big[FS_REQUEST_MAX - 1] = '\0';
	assert_int_equal(guest_fs(w->g, FS_OP_GREP, path_request(big), on_answer, &a, &e), -E2BIG);
	assert_string_equal(e.code, "S210");
	/* Given up. */
	w->agent.mode = AGENT_MUTE;
	assert_int_equal(
		guest_fs_start(w->g, FS_OP_RM, path_request("/y"), on_answer, &a, &c, NULL), 0);
	RUN_UNTIL(w, w->agent.opened == 2);
	guest_call_cancel(c);
	RUN_UNTIL(w, w->agent.cancelled == 1);
	assert_int_equal(a.done, 1);
	assert_int_equal(w->lost, 0);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exec_goes_round),
		cmocka_unit_test(many_execs_at_once),
		cmocka_unit_test(stdin_of_8_mib_has_back_pressure),
		cmocka_unit_test(pause_stops_the_agent),
		cmocka_unit_test(cancel_reaches_the_agent),
		cmocka_unit_test(a_late_agent_is_given_up),
		cmocka_unit_test(a_lost_connection_ends_all_calls),
		cmocka_unit_test(what_the_agent_said_before_it_went_counts),
		cmocka_unit_test(guest_free_ends_all_calls),
		cmocka_unit_test(results_arrive_as_they_are),
		cmocka_unit_test(hostile_results_lose_the_connection),
		cmocka_unit_test(breaches_lose_the_connection),
		cmocka_unit_test(output_up_to_the_cap_is_fine),
		cmocka_unit_test(an_end_without_end_of_stream_is_not_a_result),
		cmocka_unit_test(refused_and_reset_calls_fail_alone),
		cmocka_unit_test(a_result_before_the_end_of_stdin_gives_the_stream_up),
		cmocka_unit_test(silence_loses_the_connection),
		cmocka_unit_test(garbage_loses_the_connection),
		cmocka_unit_test(bad_requests_are_refused_here),
		cmocka_unit_test(hello_says_who_it_is),
		cmocka_unit_test(files_are_written),
		cmocka_unit_test(a_write_that_lies_is_a_breach),
		cmocka_unit_test(files_are_read),
		cmocka_unit_test(errors_of_the_guest_are_told),
		cmocka_unit_test(bad_paths_are_refused_here),
		cmocka_unit_test(file_operations_have_exact_answers),
		cmocka_unit_test(file_operations_fail_are_cancelled_and_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
