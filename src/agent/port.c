#include "agent/port.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define PIECE	   (256u << 10)
#define READ_MAX   4096u  /* the driver gives one of its buffers, a page, at once */
#define WRITE_MAX  32768u /* the driver takes no more at once */
#define PIECES_MAX 64	  /* = PIECE / READ_MAX */
#define RETRY_MS   5
#define PORTS_PATH "/sys/class/virtio-ports"

static void wait_a_little(int ms)
{
	poll(NULL, 0, ms);
}

/* --- before the loop runs --- */

/* The device node of a port, by its name: "vport3p1". False while there is none. */
static bool find_node(const char *name, char *dst, size_t size)
{
	DIR *dir = opendir(PORTS_PATH);
	struct dirent *d;
	bool found = false;

	if (!dir)
		return false;
	while (!found && (d = readdir(dir))) {
		cleanup_free char *file = xasprintf("%s/name", d->d_name), *text = NULL;

		if (d->d_name[0] == '.' || fd_slurp_at(dirfd(dir), file, 256, &text, NULL) < 0)
			continue;
		text[strcspn(text, "\n")] = '\0';
		found = str_eq(text, name) && strlen(d->d_name) < size;
		if (found)
			memcpy(dst, d->d_name, strlen(d->d_name) + 1);
	}
	closedir(dir);
	return found;
}

int port_open(const char *name, int wait_ms, struct err *e)
{
	int64_t until = clock_ms() + wait_ms;
	char node[64], path[80];
	int fd;

	/* The name arrives by a message of the device some time after the port itself. */
	while (!find_node(name, node, sizeof(node))) {
		if (clock_ms() >= until)
			return err_set(e, "S300", ENODEV,
				"no console port is called %s: the VM was started without it",
				name);
		wait_a_little(RETRY_MS);
	}
	snprintf(path, sizeof(path), "/dev/%s", node);
	fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, "S300", errno, "cannot open the console port %s (%s): %s", name,
			path, err_str(errno));
	return fd;
}

int port_read_full(int fd, void *data, size_t len, int wait_ms)
{
	int64_t until = clock_ms() + wait_ms;
	uint8_t *p = data;

	while (len) {
		ssize_t n = read(fd, p, len);

		if (n > 0) {
			p += n;
			len -= n;
			continue;
		}
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return -errno;
		if (clock_ms() >= until)
			return -ETIMEDOUT;
		/* poll() would return at once while the host is away. */
		wait_a_little(RETRY_MS);
	}
	return 0;
}

int port_write_full(int fd, const void *data, size_t len, int wait_ms)
{
	int64_t until = clock_ms() + wait_ms;
	const uint8_t *p = data;

	while (len) {
		ssize_t n = write(fd, p, MIN(len, (size_t)WRITE_MAX));

		if (n > 0) {
			p += n;
			len -= n;
			continue;
		}
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return -errno;
		if (clock_ms() >= until)
			return -ETIMEDOUT;
		wait_a_little(RETRY_MS);
	}
	return 0;
}

/* --- on the loop --- */

static void on_poll(uv_poll_t *poll, int status, int events);

static void watch(struct port *p)
{
	uv_poll_start(&p->poll, UV_READABLE | (p->blocked ? UV_WRITABLE : 0), on_poll);
}

static void on_backoff(uv_timer_t *timer)
{
	watch(CONTAINER_OF(timer, struct port, backoff));
}

static void back_off(struct port *p)
{
	uv_poll_stop(&p->poll);
	uv_timer_start(&p->backoff, on_backoff, PORT_BACKOFF_MS, 0);
}

static void lose(struct port *p)
{
	if (p->lost)
		return;
	p->lost = true;
	uv_poll_stop(&p->poll);
	if (p->cb->on_lost)
		p->cb->on_lost(p, p->user);
}

/* Cuts memory into the pieces that the driver moves at once: readv() and writev() call it for one
 * after another until one comes back short. Returns how many; *len is what they hold. */
static int cut(struct iovec iov[static PIECES_MAX], const uint8_t *data, size_t *len, size_t piece)
{
	size_t at = 0;
	int n = 0;

	for (; at < *len && n < PIECES_MAX; n++) {
		iov[n].iov_base = (uint8_t *)(uintptr_t)(data + at);
		iov[n].iov_len = MIN(*len - at, piece);
		at += iov[n].iov_len;
	}
	*len = at;
	return n;
}

/* Writes until all has gone or the port takes no more; the count. */
static size_t put_bytes(struct port *p, const uint8_t *data, size_t len)
{
	struct iovec iov[PIECES_MAX];
	size_t sent = 0;

	while (sent < len) {
		size_t asked = len - sent;
		ssize_t n = writev(p->fd, iov, cut(iov, data + sent, &asked, WRITE_MAX));

		if (n < 0 && errno == EINTR)
			continue;
		/* The host being away is EAGAIN too; a broken socket is lost by its read. */
		if (n < 0 && errno != EAGAIN && p->is_socket)
			return len;
		if (n <= 0)
			break;
		sent += n;
	}
	return sent;
}

/* Sends what waits. Returns bytes sent. */
static size_t flush(struct port *p)
{
	size_t sent = put_bytes(p, p->out.data + p->out_off, p->out.len - p->out_off);

	p->out_off += sent;
	if (p->out_off == p->out.len) {
		buf_clear(&p->out);
		p->out_off = 0;
	}
	return sent;
}

static void set_blocked(struct port *p)
{
	bool blocked = p->out.len > 0;

	if (blocked == p->blocked || p->lost)
		return;
	p->blocked = blocked;
	if (!uv_is_active((uv_handle_t *)&p->backoff))
		watch(p);
}

enum came {
	CAME_BYTES,
	CAME_NOTHING,
	CAME_END, /* the host is away, or a socket's peer gone */
};

/* Full buffers of the driver are collected, since each turn of the loop costs more than they do; a
 * shorter one is the last for now. */
static enum came take_bytes(struct port *p)
{
	static uint8_t piece[PIECE];
	struct iovec iov[PIECES_MAX];
	size_t len = sizeof(piece);
	ssize_t n = readv(p->fd, iov, cut(iov, piece, &len, READ_MAX));

	if (n > 0) {
		p->cb->on_bytes(p, piece, n, p->user);
		return CAME_BYTES;
	}
	return n < 0 && (errno == EAGAIN || errno == EINTR) ? CAME_NOTHING : CAME_END;
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	struct port *p = CONTAINER_OF(poll, struct port, poll);
	enum came came = CAME_NOTHING;
	bool stuck = false;

	if (p->blocked && (status < 0 || (events & UV_WRITABLE))) {
		stuck = flush(p) == 0;
		set_blocked(p);
		if (!p->blocked && p->cb->on_drained)
			p->cb->on_drained(p, p->user);
	}
	if (status < 0 || (events & UV_READABLE))
		came = take_bytes(p);
	if (came == CAME_END && p->is_socket)
		lose(p);
	/* A host that is away is reported as ready for ever, for reading and for writing: without
	 * this the loop would spin. */
	else if (came == CAME_END || ((stuck || status < 0) && came != CAME_BYTES))
		back_off(p);
	/* libuv stops the watch of a descriptor with an error (a socket whose peer left bytes of
	 * ours unread): what it held before has to be read to its end. */
	else if (status < 0)
		watch(p);
}

int port_start(struct port *p, uv_loop_t *loop, int fd, bool is_socket,
	const struct port_callbacks *cb, void *user)
{
	int r;

	*p = (struct port){.fd = fd, .is_socket = is_socket, .cb = cb, .user = user};
	buf_init(&p->out, PORT_OUT_MAX);
	r = uv_poll_init(loop, &p->poll, fd);
	if (r < 0)
		return r;
	uv_timer_init(loop, &p->backoff);
	watch(p);
	return 0;
}

int port_write(struct port *p, const void *data, size_t len)
{
	size_t sent = 0;
	int r;

	if (p->lost)
		return -EPIPE;
	if (!p->out.len)
		sent = put_bytes(p, data, len);
	r = buf_add(&p->out, (const uint8_t *)data + sent, len - sent);
	set_blocked(p);
	return r;
}

bool port_is_idle(const struct port *p)
{
	return p->out.len == 0;
}

void port_stop(struct port *p)
{
	uv_close((uv_handle_t *)&p->poll, NULL);
	uv_close((uv_handle_t *)&p->backoff, NULL);
	if (p->is_socket)
		fd_close(&p->fd);
	buf_done(&p->out);
}
