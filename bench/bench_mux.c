/* bench_mux [MIB] - what HTTP/2 streams cost over the bare socket that carries them.
 *
 * Two threads, one socketpair. Plain: one writes 64 KiB pieces, the other reads them. Mux: the
 * server sends one body, the client consumes it. Then small round trips: one byte there and back
 * against one request with a 100-byte body each way; then such requests while 1 or 8 other streams
 * carry as much as they can. Prints one JSON line with medians; `ratio` is the throughput of mux
 * over that of plain.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "mux/mux.h"

#define PIECE	 65536
#define TRIPS	 20000
#define SMALL	 100
#define MIB_MAX	 1048576
#define MIB_HERE 512
#define ROUNDS	 5
#define BESIDE	 4000 /* requests beside bulk streams */

static uint8_t zeros[PIECE];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

_Noreturn static void fail(const char *what)
{
	fprintf(stderr, "bench_mux: %s failed\n", what);
	exit(1);
}

struct end {
	int fd;
	uint64_t bytes; /* that the server sends as each body */
	unsigned trips; /* requests still to make */
	unsigned bulk;	/* streams that the client opens to be sent bytes without end */
	double *took;	/* where the time of each request goes, or NULL */
	double began;
	bool echo; /* plain: send back each byte */
	struct mux *m;
};

/* --- plain --- */

static void *plain_peer(void *arg)
{
	struct end *end = arg;
	uint64_t left = end->bytes;
	uint8_t byte;

	while (end->echo && read(end->fd, &byte, 1) == 1) {
		if (write(end->fd, &byte, 1) != 1)
			fail("write");
	}
	while (!end->echo && left > 0) {
		size_t n = MIN(left, (uint64_t)PIECE);

		if (fd_write_all(end->fd, zeros, n) < 0)
			fail("write");
		left -= n;
	}
	fd_close(&end->fd);
	return NULL;
}

static double plain_bulk(uint64_t bytes)
{
	static uint8_t in[PIECE];
	struct end peer = {.bytes = bytes};
	pthread_t thread;
	double start;
	int fds[2];

	if (fd_socketpair(fds) < 0)
		fail("socketpair");
	peer.fd = fds[1];
	start = now();
	pthread_create(&thread, NULL, plain_peer, &peer);
	while (read(fds[0], in, sizeof(in)) > 0)
		;
	pthread_join(thread, NULL);
	fd_close(&fds[0]);
	return now() - start;
}

static double plain_trips(void)
{
	struct end peer = {.echo = true};
	pthread_t thread;
	uint8_t byte = 0;
	double took;
	int fds[2];

	if (fd_socketpair(fds) < 0)
		fail("socketpair");
	peer.fd = fds[1];
	pthread_create(&thread, NULL, plain_peer, &peer);
	took = now();
	for (unsigned i = 0; i < TRIPS; i++) {
		if (write(fds[0], &byte, 1) != 1 || read(fds[0], &byte, 1) != 1)
			fail("round trip");
	}
	took = now() - took;
	fd_close(&fds[0]);
	pthread_join(thread, NULL);
	return took;
}

/* --- mux --- */

struct body {
	struct end *end;
	uint64_t left;
	bool endless;
};

static int on_open(struct mux *m, struct mux_stream *s, const char *path, void *user)
{
	struct end *end = user;
	struct body *b = xcalloc(1, sizeof(*b));

	*b = (struct body){
		.end = end, .left = end->bytes, .endless = strcmp(path, "/endless") == 0};
	mux_stream_set_user(s, b);
	return 0;
}

static int on_data(struct mux_stream *s, const uint8_t *data, size_t len, void *user)
{
	mux_stream_consume(s, len);
	return 0;
}

static void on_end(struct mux_stream *s, void *user)
{
}

static void open_one(struct end *end)
{
	struct body *b = xcalloc(1, sizeof(*b));

	*b = (struct body){.end = end, .left = SMALL};
	end->trips--;
	end->began = now();
	if (!mux_open(end->m, "/exec", b))
		fail("open");
}

static void on_close(struct mux_stream *s, uint32_t h2_error, void *user)
{
	struct body *b = user;
	struct end *end = b->end;

	if (h2_error && !b->endless)
		fail("stream");
	if (!b->endless && end->took)
		end->took[end->trips] = now() - end->began;
	if (!b->endless && end->trips > 0)
		open_one(end);
	free(b);
}

static ssize_t on_pull(struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof, void *user)
{
	struct body *b = user;
	size_t n = b->endless ? cap : MIN((uint64_t)cap, b->left);

	memset(buf, 0, n);
	if (b->endless)
		return n;
	b->left -= n;
	*ret_eof = b->left == 0;
	return n;
}

/* The client sends nothing on an endless stream but its end. */
static ssize_t on_pull_client(
	struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof, void *user)
{
	struct body *b = user;

	if (!b->endless)
		return on_pull(s, buf, cap, ret_eof, user);
	*ret_eof = true;
	return 0;
}

static const struct mux_callbacks client_callbacks = {
	NULL, on_data, on_end, on_close, on_pull_client, NULL};
static const struct mux_callbacks callbacks = {on_open, on_data, on_end, on_close, on_pull, NULL};

/* Moves bytes until the peer closes (server) or all is done (client). */
static void pump(struct end *end, bool until_closed)
{
	static _Thread_local uint8_t in[PIECE];
	const uint8_t *out = NULL;
	ssize_t left = 0;

	for (;;) {
		struct pollfd p = {.fd = end->fd, .events = POLLIN};
		ssize_t n;

		if (left == 0)
			left = mux_pull(end->m, &out, NULL);
		if (left > 0) {
			n = send(end->fd, out, left, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (n > 0) {
				out += n;
				left -= n;
				continue;
			}
			if (errno != EAGAIN)
				return; /* the peer has what it wanted */
			p.events = POLLOUT;
		}
		if (!until_closed && left == 0 && end->trips == 0 &&
			mux_stream_count(end->m) == end->bulk)
			return;
		poll(&p, 1, -1);
		/* What was pulled is lost when bytes are fed: only read when it is gone. */
		if (left > 0)
			continue;
		n = recv(end->fd, in, sizeof(in), MSG_DONTWAIT);
		if (n == 0)
			return;
		if (n > 0 && mux_feed(end->m, in, n, NULL) < 0)
			fail("mux_feed");
	}
}

static void *mux_peer(void *arg)
{
	struct end *end = arg;

	end->m = mux_new(MUX_SERVER, &callbacks, end);
	pump(end, true);
	mux_free(end->m);
	return NULL;
}

static double mux_run(uint64_t bytes, unsigned trips, unsigned bulk, double *took)
{
	struct end client = {.trips = trips, .bulk = bulk, .took = took}, server = {.bytes = bytes};
	pthread_t thread;
	double start;
	int fds[2];

	if (fd_socketpair(fds) < 0)
		fail("socketpair");
	client.fd = fds[0];
	server.fd = fds[1];
	start = now();
	pthread_create(&thread, NULL, mux_peer, &server);
	client.m = mux_new(MUX_CLIENT, &client_callbacks, &client);
	for (unsigned i = 0; i < bulk; i++) {
		struct body *b = xcalloc(1, sizeof(*b));

		*b = (struct body){.end = &client, .endless = true};
		if (!mux_open(client.m, "/endless", b))
			fail("open");
	}
	open_one(&client);
	pump(&client, false);
	start = now() - start;
	mux_free(client.m);
	fd_close(&client.fd);
	pthread_join(thread, NULL);
	fd_close(&server.fd);
	return start;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Median of the requests beside so many bulk streams, in microseconds. */
static double beside(unsigned bulk)
{
	static double took[BESIDE], medians[ROUNDS];

	for (unsigned i = 0; i < ROUNDS; i++) {
		mux_run(SMALL, BESIDE, bulk, took);
		qsort(took, BESIDE, sizeof(took[0]), compare);
		medians[i] = took[BESIDE / 2];
	}
	qsort(medians, ROUNDS, sizeof(medians[0]), compare);
	return medians[ROUNDS / 2] * 1e6;
}

int main(int argc, char **argv)
{
	uint32_t mib = MIB_HERE;
	double took[4][ROUNDS], plain, muxed;
	uint64_t bytes;

	if (argc > 2 || (argc == 2 && str_u32(argv[1], &mib) < 0) || mib == 0 || mib > MIB_MAX) {
		fprintf(stderr, "usage: bench_mux [MIB]\n");
		return 2;
	}
	bytes = (uint64_t)mib << 20;
	/* In turns, so that a busy machine hits all alike. */
	for (unsigned i = 0; i < ROUNDS; i++) {
		took[0][i] = plain_bulk(bytes);
		took[1][i] = mux_run(bytes, 1, 0, NULL);
		took[2][i] = plain_trips();
		took[3][i] = mux_run(SMALL, TRIPS, 0, NULL);
	}
	for (unsigned i = 0; i < 4; i++)
		qsort(took[i], ROUNDS, sizeof(took[i][0]), compare);
	plain = took[0][ROUNDS / 2];
	muxed = took[1][ROUNDS / 2];
	printf("{\"bench\":\"mux\",\"ratio\":%.3f,\"target\":null,\"plain_mib_s\":%.0f,"
	       "\"mux_mib_s\":%.0f,\"plain_trip_us\":%.1f,\"mux_request_us\":%.1f,"
	       "\"beside_1_us\":%.1f,\"beside_8_us\":%.1f}\n",
		plain / muxed, mib / plain, mib / muxed, took[2][ROUNDS / 2] / TRIPS * 1e6,
		took[3][ROUNDS / 2] / TRIPS * 1e6, beside(1), beside(8));
	return 0;
}
