#include <string.h>

#include "wire/netframe_priv.h"

#define HOP_LIMIT 64

/* RFC 1071. */
static uint32_t sum(uint32_t s, const uint8_t *p, size_t len)
{
	for (size_t i = 0; i + 1 < len; i += 2)
		s += get16(p + i);
	if (len % 2)
		s += (uint32_t)p[len - 1] << 8;
	return s;
}

static uint16_t fold(uint32_t s)
{
	while (s >> 16)
		s = (s & 0xffff) + (s >> 16);
	return (uint16_t)~s;
}

/* The sum over a payload and what it is sent between. */
static uint16_t checksum(const struct packet *k, uint8_t proto, const uint8_t *l4, size_t len)
{
	size_t a = k->v6 ? 16 : 4;

	return fold(sum(sum(sum((uint32_t)len + proto, k->src, a), k->dst, a), l4, len));
}

static uint8_t *put_ethernet(
	const struct netframe_policy *p, uint16_t type, struct netframe_result *ret)
{
	memcpy(ret->reply, p->guest_mac, 6);
	memcpy(ret->reply + 6, p->gateway_mac, 6);
	put16(ret->reply + 12, type);
	return ret->reply + ETH_LEN;
}

/* The IP header of an answer to `k` from `from`; returns where its payload goes. */
static uint8_t *put_ip(const struct netframe_policy *p, const struct packet *k, const uint8_t *from,
	uint8_t proto, uint8_t hop_limit, size_t len, struct netframe_result *ret)
{
	uint8_t *ip = put_ethernet(p, k->v6 ? ETH_IP6 : ETH_IP4, ret);
	size_t hdr = k->v6 ? IP6_LEN : IP4_LEN;

	memset(ip, 0, hdr);
	if (k->v6) {
		ip[0] = 0x60;
		put16(ip + 4, (uint16_t)len);
		ip[6] = proto;
		ip[7] = hop_limit;
		memcpy(ip + 8, from, 16);
		memcpy(ip + 24, k->src, 16);
	} else {
		ip[0] = 0x45;
		put16(ip + 2, (uint16_t)(hdr + len));
		put16(ip + 6, 0x4000); /* don't fragment */
		ip[8] = hop_limit;
		ip[9] = proto;
		memcpy(ip + 12, from, 4);
		memcpy(ip + 16, k->src, 4);
		put16(ip + 10, fold(sum(0, ip, IP4_LEN)));
	}
	ret->reply_len = ETH_LEN + hdr + len;
	return ip + hdr;
}

void netframe_reply_arp(
	const struct netframe_policy *p, const uint8_t *request, struct netframe_result *ret)
{
	uint8_t *arp = put_ethernet(p, ETH_ARP, ret);

	memcpy(arp, request, 6);
	put16(arp + 6, 2);
	memcpy(arp + 8, p->gateway_mac, 6);
	memcpy(arp + 14, request + 24, 4);
	memcpy(arp + 18, request + 8, 10);
	ret->reply_len = ETH_LEN + ARP_LEN;
}

void netframe_reply_nd(
	const struct netframe_policy *p, const struct packet *k, struct netframe_result *ret)
{
	const uint8_t *from = p->net.gateway6;
	struct packet back = {.v6 = true, .src = from, .dst = k->src};
	uint8_t *na = put_ip(p, k, from, PROTO_ICMP6, 255, ND_NA_LEN, ret);

	memset(na, 0, ND_NA_LEN);
	na[0] = 136;
	na[4] = 0xe0; /* a router, asked for, replaces what was known */
	memcpy(na + 8, from, 16);
	na[24] = 2; /* the option: our MAC address … */
	na[25] = 1; /* … in units of 8 bytes */
	memcpy(na + 26, p->gateway_mac, 6);
	put16(na + 2, checksum(&back, PROTO_ICMP6, na, ND_NA_LEN));
}

void netframe_reply_reset(
	const struct netframe_policy *p, const struct packet *k, struct netframe_result *ret)
{
	struct packet back = {.v6 = k->v6, .src = k->dst, .dst = k->src};
	uint8_t *tcp = put_ip(p, k, k->dst, PROTO_TCP, HOP_LIMIT, TCP_LEN, ret);
	uint32_t payload = (uint32_t)(k->l4_len - (k->l4[12] >> 4) * 4u);

	memset(tcp, 0, TCP_LEN);
	memcpy(tcp, k->l4 + 2, 2);
	memcpy(tcp + 2, k->l4, 2);
	tcp[12] = TCP_LEN / 4 << 4;
	if (k->l4[13] & TCP_ACK) { /* RFC 9293, 3.10.7.1 */
		memcpy(tcp + 4, k->l4 + 8, 4);
		tcp[13] = TCP_RST;
	} else {
		put32(tcp + 8, get32(k->l4 + 4) + (k->l4[13] & TCP_SYN ? 1 : 0) + payload +
				       (k->l4[13] & TCP_FIN ? 1 : 0));
		tcp[13] = TCP_RST | TCP_ACK;
	}
	put16(tcp + 16, checksum(&back, PROTO_TCP, tcp, TCP_LEN));
}

/* It is what refuses the guest's SYN, of which the ports and the end are known. */
void netframe_reply_refused(const struct netframe_policy *p, const struct packet *k, uint32_t ack,
	struct netframe_result *ret)
{
	uint8_t syn[TCP_LEN] = {[12] = TCP_LEN / 4 << 4, [13] = TCP_SYN};
	struct packet asked = {
		.v6 = k->v6, .src = k->dst, .dst = k->src, .l4 = syn, .l4_len = TCP_LEN};

	memcpy(syn, k->l4 + 2, 2);
	memcpy(syn + 2, k->l4, 2);
	put32(syn + 4, ack - 1);
	netframe_reply_reset(p, &asked, ret);
}

/* Quotes the header without options and eight bytes behind it: enough to find the socket. */
void netframe_reply_unreachable(
	const struct netframe_policy *p, const struct packet *k, struct netframe_result *ret)
{
	struct packet back = {.v6 = k->v6, .src = k->dst, .dst = k->src};
	size_t hdr = k->v6 ? IP6_LEN : IP4_LEN, len = 8 + hdr + UDP_LEN;
	uint8_t proto = k->v6 ? PROTO_ICMP6 : PROTO_ICMP;
	uint8_t *icmp = put_ip(p, k, k->dst, proto, HOP_LIMIT, len, ret);

	memset(icmp, 0, 8);
	icmp[0] = k->v6 ? 1 : 3;
	icmp[1] = k->v6 ? 4 : 3;
	memcpy(icmp + 8, k->ip, hdr);
	if (!k->v6)
		icmp[8] = 0x45;
	memcpy(icmp + 8 + hdr, k->l4, UDP_LEN);
	put16(icmp + 2, k->v6 ? checksum(&back, proto, icmp, len) : fold(sum(0, icmp, len)));
}
