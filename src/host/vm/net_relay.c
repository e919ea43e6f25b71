#include "host/vm/net_relay.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/mem.h"

/* Reads of one call before the other descriptors of the loop have their turn. */
#define ROUNDS 4

void net_relay_init(struct net_relay *r, struct net_page *page, bool with6, uint64_t seed)
{
	*r = (struct net_relay){.vmm = -1, .helper = -1, .page = page};
	r->to_helper.data = xmalloc(NET_RELAY_BUF);
	r->to_vmm.data = xmalloc(NET_RELAY_BUF);
	r->policy = xmalloc(sizeof(*r->policy));
	r->flows = xcalloc(1, sizeof(*r->flows));
	r->flows->seed = seed;
	netframe_policy_init(r->policy, with6);
}

void net_relay_done(struct net_relay *r)
{
	fd_close(&r->vmm);
	fd_close(&r->helper);
	free(STEAL(r->to_helper.data));
	free(STEAL(r->to_vmm.data));
	free(STEAL(r->policy));
	free(STEAL(r->flows));
}

void net_relay_set_helper(struct net_relay *r, int fd)
{
	fd_close(&r->helper);
	r->helper = fd;
}

void net_relay_set_vmm(struct net_relay *r, int fd)
{
	struct net_lane *out = &r->to_helper, *in = &r->to_vmm;

	fd_close(&r->vmm);
	r->vmm = fd;
	out->in_at = out->in_end = out->out_end;
	in->out_at = in->out_end = in->in_at;
	in->out_left = 0;
}

static size_t waiting(const struct net_lane *l)
{
	return l->out_end - l->out_at;
}

/* A frame's first byte is at data[at]: header and all, or 0 when its length is not there yet. */
static size_t frame_size(const struct net_lane *l, size_t at, size_t end)
{
	const uint8_t *p = l->data + at;

	if (end - at < NET_RELAY_HDR)
		return 0;
	return NET_RELAY_HDR +
	       ((size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | (size_t)p[3]);
}

/* Everything to the front, once it is worth it. */
static void settle(struct net_lane *l)
{
	size_t gap, raw = l->in_end - l->in_at;

	if (waiting(l) == 0)
		l->out_at = l->out_end = 0;
	gap = l->in_at - l->out_end;
	if (gap && (raw == 0 || l->out_end == 0)) {
		memmove(l->data + l->out_end, l->data + l->in_at, raw);
		l->in_at = l->out_end;
		l->in_end = l->in_at + raw;
	}
}

/* Room for a whole frame behind what waits, or nothing is read. */
static bool has_room(const struct net_lane *l)
{
	return l->in_end + NET_RELAY_SPARE < NET_RELAY_BUF && waiting(l) < NET_RELAY_BUF / 2;
}

/* --- judging --- */

/* Puts a frame between what waits and what has only begun to come. One that finds no room is as if
 * the network had lost it. */
static void insert(struct net_lane *l, const uint8_t *frame, size_t len)
{
	size_t need = NET_RELAY_HDR + len, raw = l->in_end - l->in_at;
	uint8_t *at = l->data + l->out_end;

	if (l->in_at - l->out_end < need) {
		size_t to = l->out_end + need;

		if (to + raw > NET_RELAY_BUF)
			return;
		memmove(l->data + to, l->data + l->in_at, raw);
		l->in_at = to;
		l->in_end = to + raw;
	}
	memcpy(at, (uint8_t[]){0, 0, (uint8_t)(len >> 8), (uint8_t)len}, NET_RELAY_HDR);
	memcpy(at + NET_RELAY_HDR, frame, len);
	l->out_end += need;
}

static void count(_Atomic uint64_t *n, uint64_t more)
{
	/* There is one writer. */
	atomic_store_explicit(
		n, atomic_load_explicit(n, memory_order_relaxed) + more, memory_order_relaxed);
}

static void judge(struct net_relay *r, enum netframe_dir dir, const uint8_t *frame, size_t len,
	uint64_t now_ms, struct netframe_result *res)
{
	netframe_judge(r->policy, r->flows, dir, frame, len, res);
	if (res->payload) {
		count(dir == NETFRAME_FROM_GUEST ? &r->page->out_bytes : &r->page->in_bytes,
			res->payload);
		atomic_store_explicit(&r->page->active_ms, now_ms, memory_order_relaxed);
	}
	if (dir != NETFRAME_FROM_GUEST)
		return;
	if (res->verdict == NETFRAME_DROP)
		count(&r->page->dropped, 1);
	else if (res->verdict == NETFRAME_REFUSE)
		count(&r->page->refused, 1);
}

/* Judges every frame that is all there. -EPROTO: a length that none has. */
static int sift(struct net_relay *r, struct net_lane *l, enum netframe_dir dir, uint64_t now_ms,
	struct err *e)
{
	struct netframe_result res;
	size_t size;

	while ((size = frame_size(l, l->in_at, l->in_end)) != 0) {
		if (size > NET_RELAY_HDR + NETFRAME_MAX)
			return err_set(e, "S300", EPROTO,
				"a frame of %zu bytes, where the largest there is has %d",
				size - NET_RELAY_HDR, NETFRAME_MAX);
		if (l->in_end - l->in_at < size)
			break;
		judge(r, dir, l->data + l->in_at + NET_RELAY_HDR, size - NET_RELAY_HDR, now_ms,
			&res);
		if (res.verdict == NETFRAME_PASS) {
			if (l->out_end != l->in_at)
				memmove(l->data + l->out_end, l->data + l->in_at, size);
			l->out_end += size;
		}
		l->in_at += size;
		if (res.reply_len)
			insert(res.verdict == NETFRAME_PASS ? &r->to_helper : &r->to_vmm, res.reply,
				res.reply_len);
	}
	return 0;
}

/* --- moving --- */

/* Notes what was sent, so that it is known where frames begin. */
static void sent(struct net_lane *l, size_t n)
{
	while (n) {
		size_t step;

		if (l->out_left == 0)
			l->out_left = frame_size(l, l->out_at, l->out_end);
		step = MIN(n, l->out_left);
		l->out_left -= step;
		l->out_at += step;
		n -= step;
	}
	assert(l->out_at <= l->out_end);
}

/* 1: something went; 0: it has to wait; else the side is gone. */
static int push(int fd, struct net_lane *l)
{
	ssize_t n;

	if (fd < 0 || waiting(l) == 0)
		return 0;
	n = send(fd, l->data + l->out_at, waiting(l), MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	sent(l, (size_t)n);
	settle(l);
	return 1;
}

/* Likewise; -EPIPE is the end of the stream. */
static int pull(int fd, struct net_lane *l)
{
	ssize_t n;

	settle(l);
	if (fd < 0 || !has_room(l))
		return 0;
	n = recv(
		fd, l->data + l->in_end, NET_RELAY_BUF - NET_RELAY_SPARE - l->in_end, MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	l->in_end += (size_t)n;
	return n ? 1 : -EPIPE;
}

/* One direction, and what it is called when its sender or its receiver is at fault. */
struct way {
	int *from, *to;
	struct net_lane *lane;
	enum netframe_dir dir;
	enum net_relay_end from_gone, from_broken, to_gone;
};

static enum net_relay_end lose(int *fd, enum net_relay_end how)
{
	fd_close(fd);
	return how;
}

static enum net_relay_end carry(
	struct net_relay *r, const struct way *w, uint64_t now_ms, bool *moved, struct err *e)
{
	int n = pull(*w->from, w->lane);

	if (n < 0)
		return lose(w->from, w->from_gone);
	if (n > 0 && sift(r, w->lane, w->dir, now_ms, e) < 0)
		return lose(w->from, w->from_broken);
	*moved |= n > 0;
	n = push(*w->to, w->lane);
	*moved |= n > 0;
	return n < 0 ? lose(w->to, w->to_gone) : NET_RELAY_ON;
}

enum net_relay_end net_relay_move(struct net_relay *r, uint64_t now_ms, struct err *e)
{
	const struct way out = {&r->vmm, &r->helper, &r->to_helper, NETFRAME_FROM_GUEST,
		NET_RELAY_VMM_GONE, NET_RELAY_VMM_BROKEN, NET_RELAY_HELPER_GONE};
	const struct way in = {&r->helper, &r->vmm, &r->to_vmm, NETFRAME_TO_GUEST,
		NET_RELAY_HELPER_GONE, NET_RELAY_HELPER_BROKEN, NET_RELAY_VMM_GONE};
	bool moved = true;

	for (int i = 0; i < ROUNDS && moved; i++) {
		enum net_relay_end end;

		moved = false;
		if ((end = carry(r, &out, now_ms, &moved, e)) != NET_RELAY_ON ||
			(end = carry(r, &in, now_ms, &moved, e)) != NET_RELAY_ON)
			return end;
	}
	return NET_RELAY_ON;
}

static short events(int fd, const struct net_lane *from, const struct net_lane *to)
{
	if (fd < 0)
		return 0;
	return (short)((has_room(from) ? POLLIN : 0) | (waiting(to) ? POLLOUT : 0));
}

short net_relay_vmm_events(const struct net_relay *r)
{
	return events(r->vmm, &r->to_helper, &r->to_vmm);
}

short net_relay_helper_events(const struct net_relay *r)
{
	return events(r->helper, &r->to_vmm, &r->to_helper);
}
