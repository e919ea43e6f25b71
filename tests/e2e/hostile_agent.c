/* hostile_agent - /init of a boot disk whose guests turn against the host (87-hostile-guest.py).
 *
 * A guest with little memory is hostile; any other becomes the ordinary agent, which lies beside
 * this on the disk: so one daemon has both kinds. What a hostile guest does is its environment's
 * HOSTILE=…, which only the frame on iii.env tells. It says "ready" as it should, serves until the
 * first operation comes, and then does that one thing until it is killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "agent/port.h"
#include "base/mem.h"
#include "mux/mux.h"
#include "wire/guest.h"

#define HOSTILE_BELOW (200ul << 20) /* bytes of memory */
#define FRAME_MAX     (1u << 20)
#define WAIT_MS	      30000
#define FOREVER_MS    (24 * 3600 * 1000)

static struct {
	int control, env, agent;
	struct mux *mux;
	struct mux_stream *first; /* the operation that was asked for */
	struct buf reply;	  /* what `first` is answered with */
	size_t reply_off;
	bool endless; /* `reply` again and again */
} guest;

static const char good_result[] = "{\"exit_code\":0,\"signal\":0,\"timed_out\":false,"
				  "\"stdout_dropped\":0,\"stderr_dropped\":0,\"start_error\":\"\"}";

_Noreturn static void wait_for_the_end(void)
{
	for (;;)
		pause();
}

_Noreturn static void give_up(const char *what)
{
	fprintf(stderr, "hostile_agent: %s\n", what);
	wait_for_the_end();
}

static void must_write(int fd, const void *data, size_t len)
{
	if (port_write_full(fd, data, len, FOREVER_MS) < 0)
		wait_for_the_end(); /* the host has had enough */
}

/* --- an ordinary start --- */

/* The mode from {"env":["HOSTILE=mode",…],…}: the caller's words need no escaping. */
static const char *read_mode(void)
{
	static const char key[] = "\"HOSTILE=";
	static char json[FRAME_MAX];
	uint8_t hdr[4];
	size_t len;
	char *at;

	if (port_read_full(guest.env, hdr, sizeof(hdr), WAIT_MS) < 0)
		give_up("no frame on iii.env");
	len = (size_t)hdr[0] << 24 | (size_t)hdr[1] << 16 | (size_t)hdr[2] << 8 | hdr[3];
	if (len >= sizeof(json) || port_read_full(guest.env, json, len, WAIT_MS) < 0)
		give_up("no sound frame on iii.env");
	at = strstr(json, key);
	if (!at)
		give_up("no HOSTILE= in the environment");
	at += sizeof(key) - 1;
	at[strcspn(at, "\"")] = '\0';
	return at;
}

static void open_ports(void)
{
	int fd;

	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	fd = open("/dev/console", O_RDWR);
	for (int i = 0; i < 3; i++)
		dup2(fd, i);
	guest.control = port_open("iii.control", WAIT_MS, NULL);
	guest.env = port_open("iii.env", WAIT_MS, NULL);
	guest.agent = port_open("iii.agent", WAIT_MS, NULL);
	if (guest.control < 0 || guest.env < 0 || guest.agent < 0)
		give_up("a port is missing");
}

/* --- HTTP/2 as it should be --- */

static int on_open(struct mux *m, struct mux_stream *s, const char *path, void *user)
{
	if (!guest.first)
		guest.first = s;
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

static void on_close(struct mux_stream *s, uint32_t h2_error, void *user)
{
}

static ssize_t on_pull(struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof, void *user)
{
	size_t n = MIN(cap, guest.reply.len - guest.reply_off);

	if (n)
		memcpy(buf, guest.reply.data + guest.reply_off, n);
	guest.reply_off += n;
	if (guest.endless && guest.reply_off == guest.reply.len)
		guest.reply_off = 0;
	*ret_eof = guest.reply.len > 0 && guest.reply_off == guest.reply.len;
	return (ssize_t)n;
}

static const struct mux_callbacks callbacks = {.on_open = on_open,
	.on_data = on_data,
	.on_end = on_end,
	.on_close = on_close,
	.on_pull = on_pull};

static void send_all(void)
{
	const uint8_t *data;
	ssize_t n;

	while ((n = mux_pull(guest.mux, &data, NULL)) > 0)
		must_write(guest.agent, data, (size_t)n);
}

/* One turn: what there is to send, then what has come. */
static void turn(void)
{
	static uint8_t data[4096];
	ssize_t n;

	send_all();
	n = read(guest.agent, data, sizeof(data));
	if (n > 0 && mux_feed(guest.mux, data, (size_t)n, NULL) < 0)
		give_up("the host broke the protocol");
	if (n <= 0)
		poll(NULL, 0, 5); /* of a port whose host is away, poll() would return at once */
}

/* --- hostile ways --- */

static uint32_t noise(void)
{
	static uint32_t x = 2463534242;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return x;
}

static void noise_fill(uint8_t *data, size_t len)
{
	for (size_t i = 0; i < len; i++)
		data[i] = (uint8_t)noise();
}

/* Bytes that are no HTTP/2. */
_Noreturn static void garbage(void)
{
	uint8_t data[4096];

	for (;;) {
		noise_fill(data, sizeof(data));
		must_write(guest.agent, data, sizeof(data));
	}
}

/* Frames of sound length, everything else by chance. */
_Noreturn static void frames(void)
{
	uint8_t data[9 + 64];

	for (;;) {
		noise_fill(data, sizeof(data));
		data[0] = data[1] = 0;
		data[2] = 64;
		data[3] %= 10;
		must_write(guest.agent, data, sizeof(data));
	}
}

/* Sound PING frames, more than anybody can answer, and no answer is read. */
_Noreturn static void pings(void)
{
	static const uint8_t ping[17] = {0, 0, 8, 6};
	uint8_t data[240 * sizeof(ping)];

	for (size_t i = 0; i < sizeof(data); i += sizeof(ping))
		memcpy(data + i, ping, sizeof(ping));
	for (;;)
		must_write(guest.agent, data, sizeof(data));
}

_Noreturn static void flood(int fd, const char *line)
{
	for (;;)
		must_write(fd, line, strlen(line));
}

_Noreturn static void flood_console(void)
{
	static const char line[] = "a line that nobody asked for, and again, and again\n";

	for (;;) {
		if (write(STDOUT_FILENO, line, sizeof(line) - 1) < 0)
			poll(NULL, 0, 5);
	}
}

/* Sends guest.reply on the operation's stream. */
_Noreturn static void reply(void)
{
	mux_stream_resume(guest.first);
	for (;;)
		turn();
}

_Noreturn static void answer_twice(void)
{
	guest_rec_add(&guest.reply, GUEST_REC_END, good_result, sizeof(good_result) - 1);
	guest_rec_add(&guest.reply, GUEST_REC_END, good_result, sizeof(good_result) - 1);
	reply();
}

/* More output than the host asked for. */
_Noreturn static void endless_output(void)
{
	static uint8_t data[16384];

	guest_rec_add(&guest.reply, GUEST_REC_OUT, data, sizeof(data));
	guest.endless = true;
	reply();
}

/* A result of 4 GiB. */
_Noreturn static void huge_result(void)
{
	static const uint8_t head[GUEST_REC_HDR + 1] = {GUEST_REC_END, 0xff, 0xff, 0xff, 0xff, '{'};

	buf_add(&guest.reply, head, sizeof(head));
	reply();
}

_Noreturn static void attack(const char *mode)
{
	if (!strcmp(mode, "garbage"))
		garbage();
	if (!strcmp(mode, "frames"))
		frames();
	if (!strcmp(mode, "pings"))
		pings();
	if (!strcmp(mode, "control"))
		flood(guest.control, "{\"event\":\"ready\",\"boot_us\":1}\n");
	if (!strcmp(mode, "console"))
		flood_console();
	if (!strcmp(mode, "twice"))
		answer_twice();
	if (!strcmp(mode, "output"))
		endless_output();
	if (!strcmp(mode, "huge"))
		huge_result();
	if (strcmp(mode, "silent"))
		fprintf(stderr, "hostile_agent: unknown mode %s\n", mode);
	wait_for_the_end();
}

int main(int argc, char **argv)
{
	static const char ready[] = "{\"event\":\"ready\",\"boot_us\":1}\n";
	struct sysinfo info;
	const char *mode;

	if (sysinfo(&info) < 0 || info.totalram * info.mem_unit >= HOSTILE_BELOW) {
		execv("/agent", argv);
		give_up("cannot become the agent");
	}
	buf_init(&guest.reply, FRAME_MAX);
	open_ports();
	mode = read_mode();
	guest.mux = mux_new(MUX_SERVER, &callbacks, NULL);
	must_write(guest.control, ready, sizeof(ready) - 1);
	while (!guest.first)
		turn();
	attack(mode);
}
