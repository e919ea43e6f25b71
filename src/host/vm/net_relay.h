/* net_relay - carries frames between a VMM and its network helper, through the firewall.
 *
 * Both speak the same stream: length (4 bytes, big-endian), then that many bytes of an Ethernet
 * frame. Each direction has one buffer of fixed size. What is read is judged frame by frame
 * (wire/netframe.h); what passes waits in place until the other side takes it, and while it waits
 * nothing more is read, so that whoever sends has to wait too. Nothing that was read and may pass
 * is ever lost.
 *
 * It polls nothing and allocates nothing once it is made. Its user waits until a descriptor is
 * ready for what net_relay_events says and calls net_relay_move.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "host/vm/net_page.h"
#include "wire/netframe.h"

#define NET_RELAY_HDR 4
/* Kept free for answers to the guest; a guest that does not read them is not told more. */
#define NET_RELAY_SPARE 4096
#define NET_RELAY_BUF	(NET_RELAY_HDR + NETFRAME_MAX + 65536 + NET_RELAY_SPARE)

/* data[0 .. out_at) is free, [out_at .. out_end) may be sent and is whole frames but for a first
 * one that is on its way, [in_at .. in_end) is the beginning of a frame that is not all there. */
struct net_lane {
	uint8_t *data;
	size_t out_at, out_end, in_at, in_end;
	/* How much of the frame at out_at is still to be sent; 0 between two. */
	size_t out_left;
};

struct net_relay {
	int vmm, helper; /* non-blocking stream sockets; -1: not there */
	struct net_lane to_helper, to_vmm;
	struct netframe_policy *policy;
	struct netframe_flows *flows;
	struct net_page *page; /* not owned */
};

void net_relay_init(struct net_relay *r, struct net_page *page, bool with6, uint64_t seed);
void net_relay_done(struct net_relay *r); /* closes both sides */

/* Takes a side. A new VMM starts between two frames: what the old one left half sent, and what it
 * had not taken, is gone; what the guest sent and may pass is not. */
void net_relay_set_helper(struct net_relay *r, int fd);
void net_relay_set_vmm(struct net_relay *r, int fd);

/* What to poll each side for (POLLIN, POLLOUT, or 0 where there is no need or no side). */
short net_relay_vmm_events(const struct net_relay *r);
short net_relay_helper_events(const struct net_relay *r);

enum net_relay_end {
	NET_RELAY_ON,	       /* all is well */
	NET_RELAY_VMM_GONE,    /* its end of the stream is closed */
	NET_RELAY_VMM_BROKEN,  /* a length that no frame has, in *e */
	NET_RELAY_HELPER_GONE, /* likewise, of the helper */
	NET_RELAY_HELPER_BROKEN,
};

/* Moves what can be moved without waiting. A side that is gone or broken is closed and said once.
 * `now_ms` is CLOCK_MONOTONIC. */
enum net_relay_end net_relay_move(struct net_relay *r, uint64_t now_ms, struct err *e);
