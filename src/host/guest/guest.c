/* How it works: a uv_poll watches the socket. Bytes that arrive go into the mux, whose callbacks
 * (call.c) end in callbacks of the user; then what the mux wants to send is written. Functions that
 * users call only queue and ask the loop for a turn, so no callback comes from inside them.
 *
 * At most one pull of the mux (about 80 KiB) waits unwritten; more is pulled when it is gone.
 *
 * Life of a guest:
 *
 *   alive -> lost    end of file, breach, silence; calls are ended, on_lost is called; every new
 *                    call fails. The mux goes when the turn of the loop ends.
 *   any   -> freed   guest_free(); calls are ended. If that happened inside a callback, the rest
 *                    waits until the turn of the loop ends. Memory goes when the handles are
 * closed.
 *
 * One timer serves all: deadlines of calls, and liveness. While a call is under way and nothing
 * arrives, the agent is pinged; if it stays silent, the connection is lost.
 */
#include "host/guest/guest.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "host/guest/call.h"

#define READ_MAX (256u << 10)
/* Reads and pulls of one turn: other guests of the loop want theirs. */
#define READS_A_TURN  8
#define WRITES_A_TURN 16

struct guest {
	uv_loop_t *loop;
	int fd;
	uv_poll_t poll;
	uv_timer_t timer;
	unsigned handles; /* that are not closed yet */
	const struct guest_callbacks *cb;
	void *user;
	struct mux *mux; /* NULL once lost and out of the mux */
	struct guest_call *calls;
	struct buf pending; /* pulled, not yet written; the first pending_off bytes are */
	size_t pending_off;
	bool busy; /* in a turn of the loop */
	bool lost, freed;
	bool mute;	    /* the socket takes no more; what the agent still says is read */
	bool closed;	    /* a stream closed under its call */
	struct err *breach; /* set inside the mux, acted on outside of it */
	uint64_t ping_ms, silent_ms;
	uint64_t heard_ms;  /* of the last bytes, or of the first call after idleness */
	uint64_t pinged_ms; /* since then; 0: not */
};

uint64_t guest_now_ms(void)
{
	return uv_hrtime() / 1000000;
}

/* --- loss --- */

static void guest_lose(struct guest *g, const struct err *why)
{
	if (g->lost || g->freed)
		return;
	g->lost = true;
	uv_poll_stop(&g->poll);
	uv_timer_stop(&g->timer);
	/* A callback may free the guest, which ends the other calls itself. */
	while (g->calls)
		guest_call_lose(g->calls, why);
	if (!g->freed)
		g->cb->on_lost(g, why, g->user);
}

__attribute__((format(printf, 3, 4))) static void lose(
	struct guest *g, int no, const char *fmt, ...)
{
	struct err why = ERR_INIT;
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	err_set(&why, "S300", no, "%s", text);
	guest_lose(g, &why);
}

void guest_breach(struct guest *g, const char *what, const struct err *e)
{
	if (g->breach)
		return;
	g->breach = xmalloc(sizeof(*g->breach));
	err_set(g->breach, "S300", EPROTO, "the VM's agent broke the protocol: %s: %s", what,
		e->text);
}

void guest_stream_closed(struct guest *g)
{
	g->closed = true;
}

static void fail_closed_calls(struct guest *g)
{
	while (g->closed && !guest_is_broken(g)) {
		struct guest_call *c = g->calls;

		while (c && c->stream)
			c = c->next;
		/* Its callback may end any other call: look again from the start. */
		if (c)
			guest_call_fail_closed(c);
		else
			g->closed = false;
	}
}

bool guest_is_broken(const struct guest *g)
{
	return g->breach || g->lost || g->freed;
}

/* --- bytes --- */

/* True when more may be there at once. */
static bool receive(struct guest *g)
{
	/* All clients live on one thread, that of their loop. Thread-local it would be zeroed for
	 * every other thread of the daemon, too. */
	static uint8_t bytes[READ_MAX];
	struct err e = ERR_INIT;
	ssize_t n;
	int rc;

	do
		n = recv(g->fd, bytes, sizeof(bytes), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno != ECONNRESET) {
		if (errno != EAGAIN && errno != EWOULDBLOCK)
			lose(g, errno, "the connection to the VM's agent failed: %s",
				err_str(errno));
		return false;
	}
	if (n <= 0) {
		lose(g, ECONNRESET, "the VM's agent closed its connection: the VM has ended");
		return false;
	}
	g->heard_ms = guest_now_ms();
	g->pinged_ms = 0;
	rc = mux_feed(g->mux, bytes, n, &e);
	if (g->breach)
		guest_lose(g, g->breach);
	else if (rc < 0)
		lose(g, -rc, "the connection to the VM's agent is given up: %s", e.text);
	return n == sizeof(bytes) && !g->lost && !g->freed;
}

/* Writes what it can; 0, or -EAGAIN when the socket is full (the rest is in `pending`). */
static int send_some(struct guest *g, const uint8_t *data, size_t len, bool is_pending)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = send(g->fd, data + done, len - done, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n < 0) {
			/* What the agent said before it went is still in the socket. */
			g->mute = true;
			buf_done(&g->pending);
			g->pending_off = 0;
			return -EPIPE;
		}
		done += n;
	}
	if (is_pending) {
		g->pending_off += done;
	} else if (done < len && buf_add(&g->pending, data + done, len - done) < 0) {
		mem_exhausted();
	}
	return done < len ? -EAGAIN : 0;
}

static void flush(struct guest *g)
{
	for (unsigned i = 0; i < WRITES_A_TURN && !g->mute && !guest_is_broken(g); i++) {
		struct err e = ERR_INIT;
		const uint8_t *data;
		ssize_t n;

		if (g->pending.len > 0) {
			if (send_some(g, g->pending.data + g->pending_off,
				    g->pending.len - g->pending_off, true) < 0)
				return;
			buf_done(&g->pending);
			g->pending_off = 0;
		}
		n = mux_pull(g->mux, &data, &e);
		if (n < 0)
			lose(g, (int)-n, "the connection to the VM's agent is given up: %s",
				e.text);
		if (n <= 0 || guest_is_broken(g) || send_some(g, data, n, false) < 0)
			return;
	}
}

static void on_poll(uv_poll_t *h, int status, int events);

/* Asks the loop for the events that matter now. */
static void watch(struct guest *g)
{
	bool write = !g->mute && (g->pending.len > 0 || mux_wants_write(g->mux));

	uv_poll_start(&g->poll, UV_READABLE | (write ? UV_WRITABLE : 0), on_poll);
}

void guest_kick(struct guest *g)
{
	/* In a turn of the loop its end does it. */
	if (!g->busy && !guest_is_broken(g))
		watch(g);
}

/* --- turns of the loop --- */

static void guest_destroy(struct guest *g);

static void turn_end(struct guest *g)
{
	if (g->breach)
		guest_lose(g, g->breach);
	fail_closed_calls(g);
	g->busy = false;
	if (g->freed) {
		guest_destroy(g);
	} else if (g->lost) {
		mux_free(STEAL(g->mux));
		buf_done(&g->pending);
	} else {
		watch(g);
		guest_arm_timer(g);
	}
}

static void on_poll(uv_poll_t *h, int status, int events)
{
	struct guest *g = h->data;

	g->busy = true;
	/* uv says EBADF for any error of the socket; reading tells which. */
	if (status < 0 || (events & UV_READABLE)) {
		for (unsigned i = 0; i < READS_A_TURN && receive(g); i++)
			;
	}
	if (!guest_is_broken(g))
		flush(g);
	turn_end(g);
}

/* When the agent is pinged, or given up. Counted from the ping, so that a daemon that was itself
 * stopped for a while asks before it judges. */
static uint64_t liveness_ms(const struct guest *g)
{
	return g->pinged_ms ? g->pinged_ms + (g->silent_ms - g->ping_ms) : g->heard_ms + g->ping_ms;
}

static uint64_t next_ms(const struct guest *g)
{
	uint64_t next = liveness_ms(g);

	for (const struct guest_call *c = g->calls; c; c = c->next)
		next = MIN(next, c->give_up_ms);
	return next;
}

static void check_liveness(struct guest *g, uint64_t now)
{
	if (!g->calls || guest_is_broken(g) || now < liveness_ms(g))
		return;
	if (g->pinged_ms) {
		lose(g, ETIMEDOUT,
			"the VM's agent has been silent for %" PRIu64
			" ms: it hangs or the VM does",
			now - g->heard_ms);
	} else {
		g->pinged_ms = now;
		mux_ping(g->mux);
	}
}

static void on_timer(uv_timer_t *h)
{
	struct guest *g = h->data;
	uint64_t now = guest_now_ms();
	struct guest_call *c;

	g->busy = true;
	/* An answer that waits in the socket is in time: timers come before it in uv's order. */
	for (unsigned i = 0; i < READS_A_TURN && receive(g); i++)
		;
	do {
		for (c = g->calls; c && c->give_up_ms > now; c = c->next)
			;
		/* Its callback may end any other call: look again from the start. */
		if (c && !guest_is_broken(g))
			guest_call_finish(c, c->late);
	} while (c && !guest_is_broken(g));
	check_liveness(g, now);
	if (!guest_is_broken(g))
		flush(g);
	turn_end(g);
}

void guest_arm_timer(struct guest *g)
{
	uint64_t now = guest_now_ms(), next;

	if (g->busy || guest_is_broken(g))
		return;
	if (!g->calls) {
		uv_timer_stop(&g->timer);
		return;
	}
	next = next_ms(g);
	/* uv counts from the loop's idea of now. */
	uv_update_time(g->loop);
	uv_timer_start(&g->timer, on_timer, next > now ? next - now : 0, 0);
}

/* --- calls --- */

struct mux_stream *guest_open_stream(
	struct guest *g, const char *path, struct guest_call *c, struct err *e)
{
	struct mux_stream *s = NULL;

	if (!guest_is_broken(g) && !g->mute)
		s = mux_open(g->mux, path, c);
	if (!s)
		err_set(e, "S300", ENOTCONN, "the connection to the VM's agent is lost");
	return s;
}

void guest_link_call(struct guest *g, struct guest_call *c)
{
	if (!g->calls) {
		g->heard_ms = guest_now_ms();
		g->pinged_ms = 0;
	}
	c->next = g->calls;
	c->prev = NULL;
	if (c->next)
		c->next->prev = c;
	g->calls = c;
	guest_arm_timer(g);
	guest_kick(g);
}

void guest_unlink_call(struct guest *g, struct guest_call *c)
{
	if (c->prev)
		c->prev->next = c->next;
	else
		g->calls = c->next;
	if (c->next)
		c->next->prev = c->prev;
	c->prev = c->next = NULL;
	guest_arm_timer(g);
}

/* --- life --- */

int guest_new(uv_loop_t *loop, int fd, const struct guest_callbacks *cb, void *user,
	struct guest **ret, struct err *e)
{
	struct guest *g = xcalloc(1, sizeof(*g));
	int rc;

	*g = (struct guest){.loop = loop,
		.fd = fd,
		.cb = cb,
		.user = user,
		.ping_ms = GUEST_PING_MS,
		.silent_ms = GUEST_SILENT_MAX_MS};
	rc = uv_poll_init(loop, &g->poll, fd);
	if (rc < 0) {
		fd_close(&g->fd);
		free(g);
		return err_set(e, "S300", -rc, "cannot watch the connection to the VM's agent: %s",
			err_str(rc));
	}
	uv_timer_init(loop, &g->timer);
	g->poll.data = g->timer.data = g;
	g->handles = 2;
	buf_init(&g->pending, 4 * MUX_OUT_MAX);
	g->mux = mux_new(MUX_CLIENT, &guest_mux_callbacks, g);
	watch(g);
	*ret = g;
	return 0;
}

void guest_set_patience(struct guest *g, uint64_t ping_ms, uint64_t silent_ms)
{
	assert(ping_ms <= silent_ms);
	g->ping_ms = ping_ms;
	g->silent_ms = silent_ms;
	guest_arm_timer(g);
}

static void on_handle_closed(uv_handle_t *h)
{
	struct guest *g = h->data;

	if (--g->handles == 0)
		free(g);
}

static void guest_destroy(struct guest *g)
{
	mux_free(STEAL(g->mux));
	buf_done(&g->pending);
	free(STEAL(g->breach));
	uv_close((uv_handle_t *)&g->poll, on_handle_closed);
	uv_close((uv_handle_t *)&g->timer, on_handle_closed);
	fd_close(&g->fd);
}

void guest_free(struct guest *g)
{
	struct err why = ERR_INIT;

	if (!g)
		return;
	assert(!g->freed);
	g->freed = true;
	err_set(&why, "", ECONNRESET, "the connection to the VM's agent was closed");
	while (g->calls)
		guest_call_lose(g->calls, &why);
	if (!g->busy)
		guest_destroy(g);
}
