/* netframe_priv - between the files of netframe. */
#pragma once

#include "wire/netframe.h"

#define ETH_LEN	  14
#define ETH_ARP	  0x0806
#define ETH_IP4	  0x0800
#define ETH_IP6	  0x86dd
#define ARP_LEN	  28
#define IP4_LEN	  20
#define IP6_LEN	  40
#define TCP_LEN	  20
#define UDP_LEN	  8
#define ND_NS_LEN 24 /* without options */
#define ND_NA_LEN 32 /* with the option that tells our MAC address */

enum {
	PROTO_ICMP = 1,
	PROTO_TCP = 6,
	PROTO_UDP = 17,
	PROTO_ICMP6 = 58,
};

enum {
	TCP_FIN = 1,
	TCP_SYN = 2,
	TCP_RST = 4,
	TCP_ACK = 16,
};

static inline uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t get32(const uint8_t *p)
{
	return (uint32_t)get16(p) << 16 | get16(p + 2);
}

static inline void put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static inline void put32(uint8_t *p, uint32_t v)
{
	put16(p, (uint16_t)(v >> 16));
	put16(p + 2, (uint16_t)v);
}

/* An IP packet that is whole, in one piece, and begins with its payload's own header. */
struct packet {
	bool v6;
	uint8_t proto, hop_limit;
	const uint8_t *ip;	  /* its header */
	const uint8_t *src, *dst; /* 4 or 16 bytes */
	const uint8_t *l4;
	size_t l4_len;
};

/* Fill `ret` with a frame from the gateway to the guest. */
void netframe_reply_arp(
	const struct netframe_policy *p, const uint8_t *request, struct netframe_result *ret);
void netframe_reply_nd(
	const struct netframe_policy *p, const struct packet *k, struct netframe_result *ret);
void netframe_reply_reset(
	const struct netframe_policy *p, const struct packet *k, struct netframe_result *ret);
/* What the reset `k` of the helper's should have been. */
void netframe_reply_refused(const struct netframe_policy *p, const struct packet *k, uint32_t ack,
	struct netframe_result *ret);
void netframe_reply_unreachable(
	const struct netframe_policy *p, const struct packet *k, struct netframe_result *ret);

/* Whether a segment of the guest's, which is `frame`, is held back. */
bool netframe_flow_hold(struct netframe_flows *f, const struct packet *k, uint32_t payload,
	const uint8_t *frame, size_t len);
/* Takes note of what a segment to the guest acknowledges; a frame that has waited for it goes to
 * `ret`. */
void netframe_flow_release(
	struct netframe_flows *f, const struct packet *k, struct netframe_result *ret);

/* Whether a reset to the guest answers its SYN without saying so; *ret_ack is what to say. */
bool netframe_flow_refused(struct netframe_flows *f, const struct packet *k, uint32_t *ret_ack);

/* Bytes of a TCP segment that its sender has not sent before. */
uint32_t netframe_flow_tcp(
	struct netframe_flows *f, const struct packet *k, uint32_t payload, uint8_t flags);
void netframe_flow_udp_sent(struct netframe_flows *f, const struct packet *k);
/* Whether the guest has sent a datagram to where this one comes from, from the port that it goes
 * to. */
bool netframe_flow_udp_known(struct netframe_flows *f, const struct packet *k);
