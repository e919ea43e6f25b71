/* netframe - the firewall between a guest and its network helper, one Ethernet frame at a time.
 *
 * Bytes in, a verdict out; no descriptor, no clock. The helper (passt) opens a socket of the host
 * for whatever it is sent and is no firewall itself. So what it must not do is decided here, and
 * what is not understood is dropped:
 *
 *   from the guest
 *     ARP and neighbour solicitation    answered in the gateway's name; never passed
 *     TCP, UDP to the gateway           UDP to port 53; both to the ports of the list
 *     … to an address of the host       to the ports of the list
 *     … to any other unicast address    passed
 *     … to link-local addresses         refused: they are the host's neighbours and the metadata
 *                                       services of clouds
 *     … to other addresses of such      refused: those that are known (netframe.c has the list,
 *       services                        which is not complete)
 *     … to an IPv6 address with an      passed where that one is
 *       IPv4 one in it (NAT64, 6to4)
 *     anything else                     dropped: loopback, multicast, broadcast, other protocols,
 *                                       other source addresses, VLAN tags, fragments (the helper
 *                                       takes each for a whole packet), IPv6 extension headers
 *   to the guest
 *     TCP                               passed but for the first packet of a new connection
 *     UDP                               passed from where the guest has sent something to
 *     ICMP "unreachable", "too big"     passed
 *     anything else                     dropped
 *
 * Refused means that the guest gets a TCP reset or an ICMP "port unreachable", so that a program
 * fails at once and does not wait.
 *
 * Two things are made up for. Helpers (passt up to 2025 at least) take the end of a guest's stream,
 * a segment with FIN and nothing else, for what it says although bytes before it have not arrived,
 * and these are lost. So such a segment is held back until the helper has acknowledged all before
 * it. And passt of 2023 answers a connection that is refused by a reset without ACK, which the
 * guest's kernel takes for nothing at all: the guest gets the one that the standard has.
 *
 * Payload is what counts as activity (sandbox contract §4): bytes of TCP that were not sent before,
 * bytes of UDP datagrams. A bare ACK has none; a keepalive probe is a byte that was sent before, or
 * no byte.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/guest_net.h"

#define NETFRAME_MIN 14		      /* an Ethernet header */
#define NETFRAME_MAX (65535 + 14 + 4) /* the largest IP packet behind a tagged header */

/* Addresses and ranges of them that the host can have; a guest of a host with more has no network
 * (S300). */
#define NETFRAME_HOSTS_MAX 8192

#define NETFRAME_REPLY_MAX 136 /* the longest frame of TCP headers too */

/* A range of addresses; IPv4 is ::ffff:0:0/96 here. */
struct netframe_host {
	uint8_t first[16], last[16];
};

struct netframe_policy {
	struct guest_net net;
	uint8_t guest_mac[6], gateway_mac[6];
	uint8_t ports[65536 / 8]; /* bit set: this port of the host may be reached */
	bool closed;		  /* the host's addresses are not known: nothing passes */
	/* The host's own addresses: sorted, and apart from each other. */
	size_t n_hosts;
	struct netframe_host hosts[NETFRAME_HOSTS_MAX];
};

/* The addresses of guest_net_default; no port, no address of the host. */
void netframe_policy_init(struct netframe_policy *p, bool with6);
void netframe_policy_port(struct netframe_policy *p, uint16_t port);

/* The range of a prefix; false when no address has one of this length. */
bool netframe_host_set(struct netframe_host *ret, bool v6, const uint8_t *address, unsigned prefix);
/* Replaces the host's addresses; `closed` is set when there are more than fit. The array is sorted
 * in place. */
void netframe_policy_hosts(struct netframe_policy *p, struct netframe_host *hosts, size_t n);

#define NETFRAME_TCP_SLOTS 1024
#define NETFRAME_HELD_MAX  64 /* one more is dropped, and the guest sends it again */
#define NETFRAME_UDP_SETS  512
#define NETFRAME_UDP_WAYS  4

/* What is remembered of earlier frames, in a fixed amount of memory: zeroed, but for `seed`, which
 * makes collisions a matter of chance. A connection that is forgotten costs one wrong count; a UDP
 * exchange that is forgotten (2048 newer ones) has to be begun anew by the guest. */
struct netframe_flows {
	uint64_t seed;
	struct netframe_tcp {
		uint32_t key;
		uint32_t next;	/* number behind the last byte that was sent in a direction */
		uint32_t acked; /* of the guest's direction: what the helper has acknowledged */
		bool heard;	/* acked is valid */
		bool opening;	/* a SYN was the last that is known, and next is behind it */
	} tcp[NETFRAME_TCP_SLOTS];
	struct netframe_held {
		uint64_t flow; /* 0: free */
		uint32_t seq;
		size_t len;
		uint8_t frame[NETFRAME_REPLY_MAX];
	} held[NETFRAME_HELD_MAX];
	size_t n_held;
	uint64_t udp[NETFRAME_UDP_SETS][NETFRAME_UDP_WAYS]; /* the last used first */
};

enum netframe_dir {
	NETFRAME_FROM_GUEST,
	NETFRAME_TO_GUEST,
};

enum netframe_verdict {
	NETFRAME_PASS,
	NETFRAME_DROP,
	NETFRAME_ANSWER, /* not passed; `reply` goes to the guest: the gateway's own address, or in
			    place of what the helper sent */
	NETFRAME_REFUSE, /* not passed; `reply` goes to the guest: it must not go there */
	NETFRAME_HOLD,	 /* not passed now */
};

struct netframe_result {
	enum netframe_verdict verdict;
	uint32_t payload; /* PASS: bytes that count */
	size_t reply_len; /* ANSWER, REFUSE; PASS to the guest: a frame that was held, for the
			     helper */
	uint8_t reply[NETFRAME_REPLY_MAX];
};

/* Judges one frame of `len` bytes, however few or many. */
void netframe_judge(const struct netframe_policy *p, struct netframe_flows *flows,
	enum netframe_dir dir, const uint8_t *frame, size_t len, struct netframe_result *ret);
