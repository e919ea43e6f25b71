/* The rules of netframe.h.
 *
 * A packet is looked at as strictly as its receiver could read it: lengths have to agree, there
 * must be no other way to find its ports, and only then are there addresses and ports to judge.
 * That the helper reads the same fields at the same places is what the rules rest on.
 */
#include "wire/netframe.h"

#include <stdlib.h>
#include <string.h>

#include "wire/netframe_priv.h"

#define DNS_PORT     53
#define DHCP_SERVER  67
#define DHCP_CLIENT  68
#define DHCP6_CLIENT 546
#define DHCP6_SERVER 547
#define ND_SOLICIT   135
#define ND_HOP_LIMIT 255
#define UNREACHABLE4 3
#define UNREACHABLE6 1
#define TOO_BIG6     2

void netframe_policy_init(struct netframe_policy *p, bool with6)
{
	memset(p, 0, sizeof(*p));
	guest_net_default(&p->net, with6);
	guest_net_mac(GUEST_NET_MAC, p->guest_mac);
	guest_net_mac(GUEST_NET_GATEWAY_MAC, p->gateway_mac);
}

void netframe_policy_port(struct netframe_policy *p, uint16_t port)
{
	p->ports[port / 8] |= (uint8_t)(1u << port % 8);
}

static int compare4(const void *a, const void *b)
{
	return memcmp(a, b, 4);
}

static int compare6(const void *a, const void *b)
{
	return memcmp(a, b, 16);
}

void netframe_policy_hosts(
	struct netframe_policy *p, uint8_t (*v4)[4], size_t n4, uint8_t (*v6)[16], size_t n6)
{
	p->closed = n4 > NETFRAME_HOSTS_MAX || n6 > NETFRAME_HOSTS_MAX;
	if (p->closed)
		return;
	p->n_hosts4 = n4;
	p->n_hosts6 = n6;
	if (n4)
		memcpy(p->hosts4, v4, n4 * 4);
	if (n6)
		memcpy(p->hosts6, v6, n6 * 16);
	qsort(p->hosts4, n4, 4, compare4);
	qsort(p->hosts6, n6, 16, compare6);
}

/* --- reading --- */

static bool parse_ip4(const uint8_t *ip, size_t len, struct packet *k)
{
	size_t hdr, total;

	if (len < IP4_LEN || ip[0] >> 4 != 4)
		return false;
	hdr = (ip[0] & 15) * 4u;
	total = get16(ip + 2);
	if (hdr < IP4_LEN || total < hdr || total > len)
		return false;
	/* More fragments, or not the first one. "Don't fragment" and the reserved bit may be. */
	if (get16(ip + 6) & 0x3fff)
		return false;
	*k = (struct packet){.proto = ip[9],
		.hop_limit = ip[8],
		.ip = ip,
		.src = ip + 12,
		.dst = ip + 16,
		.l4 = ip + hdr,
		.l4_len = total - hdr};
	return true;
}

/* An extension header is a protocol that no rule knows. */
static bool parse_ip6(const uint8_t *ip, size_t len, struct packet *k)
{
	size_t payload;

	if (len < IP6_LEN || ip[0] >> 4 != 6)
		return false;
	payload = get16(ip + 4);
	if (payload > len - IP6_LEN)
		return false;
	*k = (struct packet){.v6 = true,
		.proto = ip[6],
		.hop_limit = ip[7],
		.ip = ip,
		.src = ip + 8,
		.dst = ip + 24,
		.l4 = ip + IP6_LEN,
		.l4_len = payload};
	return true;
}

static bool parse_packet(
	const struct netframe_policy *p, const uint8_t *frame, size_t len, struct packet *k)
{
	switch (get16(frame + 12)) {
	case ETH_IP4:
		return parse_ip4(frame + ETH_LEN, len - ETH_LEN, k);
	case ETH_IP6:
		return p->net.has6 && parse_ip6(frame + ETH_LEN, len - ETH_LEN, k);
	default:
		return false;
	}
}

static bool tcp_is_whole(const struct packet *k)
{
	size_t hdr;

	if (k->proto != PROTO_TCP || k->l4_len < TCP_LEN)
		return false;
	hdr = (k->l4[12] >> 4) * 4u;
	return hdr >= TCP_LEN && hdr <= k->l4_len;
}

static uint32_t tcp_payload(const struct packet *k)
{
	return (uint32_t)(k->l4_len - (k->l4[12] >> 4) * 4u);
}

static bool udp_is_whole(const struct packet *k)
{
	return k->proto == PROTO_UDP && k->l4_len >= UDP_LEN && get16(k->l4 + 4) == k->l4_len;
}

/* --- where a packet of the guest's goes --- */

enum place {
	PLACE_WORLD,
	PLACE_GATEWAY,
	PLACE_HOST,
	PLACE_BARRED, /* could answer, but must not be asked */
	PLACE_NOWHERE,
};

static enum place place4(const struct netframe_policy *p, const uint8_t *a)
{
	const uint8_t *own = p->net.address;
	uint32_t mask = ~0u << (32 - p->net.prefix);

	if (memcmp(a, p->net.gateway, 4) == 0)
		return PLACE_GATEWAY;
	if (a[0] == 0 || a[0] == 127 || a[0] >= 224 || (get32(a) & mask) == (get32(own) & mask))
		return PLACE_NOWHERE;
	if (bsearch(a, p->hosts4, p->n_hosts4, 4, compare4))
		return PLACE_HOST;
	return a[0] == 169 && a[1] == 254 ? PLACE_BARRED : PLACE_WORLD;
}

static enum place place6(const struct netframe_policy *p, const uint8_t *a)
{
	static const uint8_t zero[12];

	if (memcmp(a, p->net.gateway6, 16) == 0)
		return PLACE_GATEWAY;
	/* Multicast; our own /64; ::, ::1 and IPv4 addresses written as IPv6 ones. */
	if (a[0] == 0xff || memcmp(a, p->net.address6, 8) == 0 || memcmp(a, zero, 10) == 0)
		return PLACE_NOWHERE;
	if (bsearch(a, p->hosts6, p->n_hosts6, 16, compare6))
		return PLACE_HOST;
	return a[0] == 0xfe && (a[1] & 0xc0) == 0x80 ? PLACE_BARRED : PLACE_WORLD;
}

static bool may_reach(
	const struct netframe_policy *p, enum place place, uint8_t proto, uint16_t port)
{
	if (place == PLACE_WORLD)
		return true;
	if (place == PLACE_GATEWAY && proto == PROTO_UDP && port == DNS_PORT)
		return true;
	return (place == PLACE_GATEWAY || place == PLACE_HOST) &&
	       (p->ports[port / 8] & 1u << port % 8);
}

/* --- from the guest --- */

static void judge_arp(const struct netframe_policy *p, const uint8_t *frame, size_t len,
	struct netframe_result *ret)
{
	/* A request: Ethernet, IPv4, by the guest, for the gateway. */
	static const uint8_t head[] = {0, 1, 8, 0, 6, 4, 0, 1};
	const uint8_t *arp = frame + ETH_LEN;

	if (len < ETH_LEN + ARP_LEN || memcmp(arp, head, sizeof(head)) != 0 ||
		memcmp(arp + 8, p->guest_mac, 6) != 0 || memcmp(arp + 14, p->net.address, 4) != 0 ||
		memcmp(arp + 24, p->net.gateway, 4) != 0)
		return;
	ret->verdict = NETFRAME_ANSWER;
	netframe_reply_arp(p, arp, ret);
}

/* "Who has the gateway's address?", from the guest's address or from one of its own making that is
 * link-local. */
static void judge_nd(
	const struct netframe_policy *p, const struct packet *k, struct netframe_result *ret)
{
	bool local = k->src[0] == 0xfe && (k->src[1] & 0xc0) == 0x80;

	if (k->l4_len < ND_NS_LEN || k->l4[0] != ND_SOLICIT || k->l4[1] != 0 ||
		k->hop_limit != ND_HOP_LIMIT || memcmp(k->l4 + 8, p->net.gateway6, 16) != 0 ||
		(!local && memcmp(k->src, p->net.address6, 16) != 0))
		return;
	ret->verdict = NETFRAME_ANSWER;
	netframe_reply_nd(p, k, ret);
}

static bool is_from_guest(const struct netframe_policy *p, const struct packet *k)
{
	return k->v6 ? memcmp(k->src, p->net.address6, 16) == 0
		     : memcmp(k->src, p->net.address, 4) == 0;
}

static bool is_dhcp(const struct packet *k)
{
	uint16_t port = get16(k->l4 + 2);

	return k->v6 ? port == DHCP6_SERVER || port == DHCP6_CLIENT
		     : port == DHCP_SERVER || port == DHCP_CLIENT;
}

static void judge_tcp(const struct netframe_policy *p, struct netframe_flows *flows,
	const struct packet *k, enum place place, const uint8_t *frame, struct netframe_result *ret)
{
	size_t len = (size_t)(k->l4 + k->l4_len - frame);
	uint8_t flags = k->l4[13];

	if (may_reach(p, place, PROTO_TCP, get16(k->l4 + 2))) {
		ret->verdict = NETFRAME_PASS;
		if (netframe_flow_hold(flows, k, tcp_payload(k), frame, len))
			ret->verdict = NETFRAME_HOLD;
		ret->payload = netframe_flow_tcp(flows, k, tcp_payload(k), flags);
	} else if ((flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN) {
		ret->verdict = NETFRAME_REFUSE;
		netframe_reply_reset(p, k, ret);
	}
}

static void judge_udp(const struct netframe_policy *p, struct netframe_flows *flows,
	const struct packet *k, enum place place, struct netframe_result *ret)
{
	uint16_t to = get16(k->l4 + 2);

	/* Port 0 is no address of anybody. */
	if (is_dhcp(k) || get16(k->l4) == 0 || to == 0)
		return;
	if (may_reach(p, place, PROTO_UDP, to)) {
		ret->verdict = NETFRAME_PASS;
		ret->payload = (uint32_t)(k->l4_len - UDP_LEN);
		netframe_flow_udp_sent(flows, k);
	} else {
		ret->verdict = NETFRAME_REFUSE;
		netframe_reply_unreachable(p, k, ret);
	}
}

static void judge_from_guest(const struct netframe_policy *p, struct netframe_flows *flows,
	const uint8_t *frame, size_t len, struct netframe_result *ret)
{
	struct packet k;
	enum place place;

	if (memcmp(frame + 6, p->guest_mac, 6) != 0)
		return;
	if (get16(frame + 12) == ETH_ARP) {
		judge_arp(p, frame, len, ret);
		return;
	}
	if (!parse_packet(p, frame, len, &k))
		return;
	if (k.v6 && k.proto == PROTO_ICMP6) {
		judge_nd(p, &k, ret);
		return;
	}
	if (!is_from_guest(p, &k) || memcmp(frame, p->gateway_mac, 6) != 0)
		return;
	place = k.v6 ? place6(p, k.dst) : place4(p, k.dst);
	if (place == PLACE_NOWHERE)
		return;
	if (tcp_is_whole(&k))
		judge_tcp(p, flows, &k, place, frame, ret);
	else if (udp_is_whole(&k))
		judge_udp(p, flows, &k, place, ret);
}

/* --- to the guest --- */

static bool is_unreachable(const struct packet *k)
{
	if (k->l4_len < UDP_LEN)
		return false;
	if (k->v6)
		return k->proto == PROTO_ICMP6 &&
		       (k->l4[0] == UNREACHABLE6 || k->l4[0] == TOO_BIG6);
	return k->proto == PROTO_ICMP && k->l4[0] == UNREACHABLE4;
}

static void judge_to_guest(const struct netframe_policy *p, struct netframe_flows *flows,
	const uint8_t *frame, size_t len, struct netframe_result *ret)
{
	struct packet k;
	uint32_t ack;

	if (!parse_packet(p, frame, len, &k) ||
		(k.v6 ? memcmp(k.dst, p->net.address6, 16) : memcmp(k.dst, p->net.address, 4)))
		return;
	if (tcp_is_whole(&k) && (k.l4[13] & (TCP_SYN | TCP_ACK)) != TCP_SYN) {
		ret->verdict = NETFRAME_PASS;
		ret->payload = netframe_flow_tcp(flows, &k, tcp_payload(&k), k.l4[13]);
		netframe_flow_release(flows, &k, ret);
		if (netframe_flow_refused(flows, &k, &ack)) {
			ret->verdict = NETFRAME_ANSWER;
			ret->payload = 0;
			netframe_reply_refused(p, &k, ack, ret);
		}
	} else if (udp_is_whole(&k) && netframe_flow_udp_known(flows, &k)) {
		ret->verdict = NETFRAME_PASS;
		ret->payload = (uint32_t)(k.l4_len - UDP_LEN);
	} else if (is_unreachable(&k)) {
		ret->verdict = NETFRAME_PASS;
	}
}

void netframe_judge(const struct netframe_policy *p, struct netframe_flows *flows,
	enum netframe_dir dir, const uint8_t *frame, size_t len, struct netframe_result *ret)
{
	ret->verdict = NETFRAME_DROP;
	ret->payload = 0;
	ret->reply_len = 0;
	if (len < NETFRAME_MIN || len > NETFRAME_MAX || p->closed)
		return;
	if (dir == NETFRAME_FROM_GUEST)
		judge_from_guest(p, flows, frame, len, ret);
	else
		judge_to_guest(p, flows, frame, len, ret);
}
