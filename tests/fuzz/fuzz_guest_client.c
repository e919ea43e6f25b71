/* host/guest: what a hostile agent sends while an exec, a write, a read and a hello are under way.
 * First byte: bit 0 - the rest are the bytes of the connection; else they are the bytes of the
 * four reply bodies, cut into four, inside proper HTTP/2. Bits 1-3 make callbacks that misbehave as
 * users may: cancel, pause, free. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/mem.h"
#include "host/guest/guest.h"
#include "mux/mux.h"

#define TURNS_MAX 2000

struct user {
	struct guest *g;
	struct guest_call *calls[3]; /* exec, write, read; NULL once ended */
	unsigned done[4];
	bool lost, cancel, pause, free;
	size_t output;
};

static void misbehave(struct user *u, struct guest_call *c)
{
	if (u->pause)
		guest_exec_pause(c, true);
	if (u->cancel && u->calls[1]) {
		u->done[1]++;
		guest_call_cancel(STEAL(u->calls[1]));
	}
	if (u->free && u->g)
		guest_free(STEAL(u->g));
}

static void end(struct user *u, unsigned i, const struct err *why)
{
	assert(u->done[i] == 0);
	u->done[i]++;
	if (i < 3)
		u->calls[i] = NULL;
	assert(!why || why->text[0]);
}

static void on_output(
	struct guest_call *c, bool is_stderr, const uint8_t *data, size_t len, void *user)
{
	struct user *u = user;

	assert(u->calls[0] == c && len > 0);
	u->output += len;
	assert(u->output <= 2000);
	misbehave(u, c);
}

static void on_exec_done(struct guest_call *c, const struct guest_exec_result *res,
	const struct err *why, void *user)
{
	assert(!res != !why);
	if (res)
		assert(res->exit_code >= 0 && res->exit_code <= 255 && res->start_error);
	end(user, 0, why);
}

static void on_written(struct guest_call *c, uint64_t bytes, const struct err *why, void *user)
{
	assert(why ? bytes == 0 : bytes == 7);
	end(user, 1, why);
}

static void on_head(struct guest_call *c, const struct guest_read_head *h, void *user)
{
	assert(h->mode <= 07777);
}

static void on_data(struct guest_call *c, const uint8_t *data, size_t len, void *user)
{
	struct user *u = user;

	assert(u->calls[2] == c && len > 0);
	misbehave(u, c);
}

static void on_read_done(struct guest_call *c, const struct err *why, void *user)
{
	end(user, 2, why);
}

static void on_hello(const struct guest_hello *h, const struct err *why, void *user)
{
	assert(!h != !why);
	end(user, 3, why);
}

static void on_lost(struct guest *g, const struct err *why, void *user)
{
	struct user *u = user;

	assert(!u->lost && why->text[0]);
	u->lost = true;
}

static const struct guest_callbacks guest_callbacks = {on_lost};
static const struct guest_exec_callbacks exec_callbacks = {on_output, NULL, on_exec_done};
static const struct guest_write_callbacks write_callbacks = {NULL, on_written};
static const struct guest_read_callbacks read_callbacks = {on_head, on_data, on_read_done};

static void start(struct user *u)
{
	char program[] = "true";
	char *const argv[] = {program, NULL};
	const struct guest_exec_req exec = {
		.argv = argv, .deadline_ms = 1000000, .stdout_cap = 1000, .stderr_cap = 1000};
	const struct guest_write_req write = {.path = "/tmp/x", .mode = 0644};
	int rc = guest_exec(u->g, &exec, &exec_callbacks, u, &u->calls[0], NULL);

	rc |= guest_write(u->g, &write, &write_callbacks, u, &u->calls[1], NULL);
	rc |= guest_read(u->g, "/tmp/x", &read_callbacks, u, &u->calls[2], NULL);
	rc |= guest_hello(u->g, on_hello, u, NULL);
	assert(rc == 0);
	guest_exec_stdin_end(u->calls[0]);
	assert(guest_write_data(u->calls[1], "content", 7) == 7);
	guest_write_end(u->calls[1]);
}

/* --- the agent: only wraps bytes --- */

struct body {
	const uint8_t *data;
	size_t len;
	bool ended;
};

struct agent {
	struct mux *m;
	struct body bodies[4];
	size_t n;
	int fd;
	bool gone;
};

static int agent_open(struct mux *m, struct mux_stream *s, const char *path, void *mux_user)
{
	struct agent *a = mux_user;

	mux_stream_set_user(s, &a->bodies[a->n++ % 4]);
	return 0;
}

static int agent_data(struct mux_stream *s, const uint8_t *data, size_t len, void *user)
{
	mux_stream_consume(s, len);
	return 0;
}

static void agent_end(struct mux_stream *s, void *user)
{
	((struct body *)user)->ended = true;
	mux_stream_resume(s);
}

static void agent_closed(struct mux_stream *s, uint32_t h2_error, void *user)
{
}

static ssize_t agent_pull(struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof, void *user)
{
	struct body *b = user;
	size_t n = MIN(cap, b->len);

	if (!b->ended)
		return 0;
	if (n)
		memcpy(buf, b->data, n);
	b->data += n;
	b->len -= n;
	*ret_eof = b->len == 0;
	return n;
}

static const struct mux_callbacks agent_callbacks = {
	agent_open, agent_data, agent_end, agent_closed, agent_pull, NULL};

/* One turn; true when bytes moved. */
static bool agent_turn(struct agent *a)
{
	const uint8_t *out;
	uint8_t in[16384];
	ssize_t n = recv(a->fd, in, sizeof(in), MSG_DONTWAIT), m;

	if (n > 0 && mux_feed(a->m, in, n, NULL) < 0)
		return false;
	m = mux_pull(a->m, &out, NULL);
	if (m > 0)
		send(a->fd, out, m, MSG_DONTWAIT | MSG_NOSIGNAL);
	return n > 0 || m > 0;
}

static void run_wrapped(uv_loop_t *loop, int fd, const uint8_t *data, size_t len)
{
	struct agent a = {.fd = fd};
	bool moved = true;

	for (unsigned i = 0; i < 4; i++)
		a.bodies[i] = (struct body){.data = data + i * (len / 4), .len = len / 4};
	a.m = mux_new(MUX_SERVER, &agent_callbacks, &a);
	for (unsigned i = 0; i < TURNS_MAX && moved; i++) {
		uv_run(loop, UV_RUN_NOWAIT);
		moved = agent_turn(&a);
	}
	uv_run(loop, UV_RUN_NOWAIT);
	mux_free(a.m);
}

static void run_raw(uv_loop_t *loop, int fd, const uint8_t *data, size_t len)
{
	uint8_t in[4096];

	uv_run(loop, UV_RUN_NOWAIT);
	while (len > 0) {
		size_t n = MIN(len, (size_t)300);

		if (send(fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			break;
		data += n;
		len -= n;
		uv_run(loop, UV_RUN_NOWAIT);
		while (recv(fd, in, sizeof(in), MSG_DONTWAIT) > 0)
			;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct user u = {0};
	uv_loop_t loop;
	int fds[2];

	if (len < 1 || len > 100000)
		return 0;
	u.cancel = data[0] & 2;
	u.pause = data[0] & 4;
	u.free = data[0] & 8;
	assert(uv_loop_init(&loop) == 0 && fd_socketpair(fds) == 0);
	assert(guest_new(&loop, fds[0], &guest_callbacks, &u, &u.g, NULL) == 0);
	start(&u);
	if (data[0] & 1)
		run_raw(&loop, fds[1], data + 1, len - 1);
	else
		run_wrapped(&loop, fds[1], data + 1, len - 1);
	fd_close(&fds[1]);
	for (unsigned i = 0; i < 3; i++)
		uv_run(&loop, UV_RUN_NOWAIT);
	guest_free(STEAL(u.g));
	for (unsigned i = 0; i < 4; i++)
		assert(u.done[i] == 1);
	while (uv_run(&loop, UV_RUN_DEFAULT))
		;
	assert(uv_loop_close(&loop) == 0);
	return 0;
}
