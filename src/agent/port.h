/* port - a virtio console port as a byte pipe on the loop.
 *
 * A port is opened once per boot and never closed: libkrun ends the VM on a second open
 * (spec/vmm.md §8). On qemu a host that is away shows as read 0 with POLLHUP, again and again,
 * until it is back: neither is an end, so the port backs off and tries again. The same code drives
 * a stream socket in the test mode, where read 0 is final.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/buf.h"
#include "base/err.h"

#define PORT_BACKOFF_MS 150
#define PORT_OUT_MAX	(1u << 20) /* unsent bytes a port keeps; port_write refuses more */

struct port;

struct port_callbacks {
	void (*on_bytes)(struct port *p, const uint8_t *data, size_t len, void *user);
	/* All that was written has gone; port_write may be called. May be NULL. */
	void (*on_drained)(struct port *p, void *user);
	/* The peer is gone for good: sockets only. May be NULL. */
	void (*on_lost)(struct port *p, void *user);
};

struct port {
	int fd;
	bool is_socket;
	bool blocked; /* waits until it is writable */
	bool lost;
	uv_poll_t poll;
	uv_timer_t backoff;
	struct buf out; /* unsent, behind the first out_off bytes */
	size_t out_off;
	const struct port_callbacks *cb;
	void *user;
};

/* Opens the port called `name`, waiting until `wait_ms` for the driver to offer it. Returns a
 * non-blocking descriptor, or a negative errno. */
int port_open(const char *name, int wait_ms, struct err *e);

/* Reads exactly len bytes, waiting at most wait_ms in all (before the loop runs). 0 or an error. */
int port_read_full(int fd, void *data, size_t len, int wait_ms);
/* Writes all, waiting at most wait_ms in all. 0 or an error. */
int port_write_full(int fd, const void *data, size_t len, int wait_ms);

/* Takes fd. The port must stay where it is until port_stop(). */
int port_start(struct port *p, uv_loop_t *loop, int fd, bool is_socket,
	const struct port_callbacks *cb, void *user);
/* Writes, keeping what does not go now. -ENOBUFS when too much is waiting. */
int port_write(struct port *p, const void *data, size_t len);
/* Nothing is waiting to be sent. */
bool port_is_idle(const struct port *p);
/* Closes the handles (and the descriptor of a socket); the memory is free after the next turn of
 * the loop. */
void port_stop(struct port *p);
