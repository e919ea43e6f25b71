/* The rules of netframe.h.
 *
 * A packet is looked at as strictly as its receiver could read it: lengths have to agree, there
 * must be no other way to find its ports, and only then are there addresses and ports to judge.
 * That the helper reads the same fields at the same places is what the rules rest on.
 */
#include "wire/netframe.h"

#include <stddef.h>
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
	memset(p, 0, offsetof(struct netframe_policy, hosts));
	guest_net_default(&p->net, with6);
	guest_net_mac(GUEST_NET_MAC, p->guest_mac);
	guest_net_mac(GUEST_NET_GATEWAY_MAC, p->gateway_mac);
}

void netframe_policy_port(struct netframe_policy *p, uint16_t port)
{
	p->ports[port / 8] |= (uint8_t)(1u << port % 8);
}

static void widen(uint8_t *ret, const uint8_t *a, bool v6)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	if (v6) {
		memcpy(ret, a, 16);
		return;
	}
	memcpy(ret, mapped, sizeof(mapped));
	memcpy(ret + sizeof(mapped), a, 4);
}

bool netframe_host_set(struct netframe_host *ret, bool v6, const uint8_t *address, unsigned prefix)
{
	if (prefix > (v6 ? 128 : 32))
		return false;
	widen(ret->first, address, v6);
	widen(ret->last, address, v6);
	for (unsigned bit = v6 ? prefix : 96 + prefix; bit < 128; bit++) {
		ret->first[bit / 8] &= (uint8_t) ~(0x80u >> bit % 8);
		ret->last[bit / 8] |= (uint8_t)(0x80u >> bit % 8);
	}
	return true;
}

static int compare_first(const void *a, const void *b)
{
	const struct netframe_host *x = a, *y = b;

	return memcmp(x->first, y->first, 16);
}

/* An address, and the range that it may be in. */
static int compare_range(const void *address, const void *range)
{
	const struct netframe_host *r = range;

	if (memcmp(address, r->first, 16) < 0)
		return -1;
	return memcmp(address, r->last, 16) > 0;
}

void netframe_policy_hosts(struct netframe_policy *p, struct netframe_host *hosts, size_t n)
{
	p->closed = n > NETFRAME_HOSTS_MAX;
	if (p->closed)
		return;
	qsort(hosts, n, sizeof(*hosts), compare_first);
	p->n_hosts = 0;
	for (size_t i = 0; i < n; i++) {
		struct netframe_host *before = p->n_hosts ? &p->hosts[p->n_hosts - 1] : NULL;

		/* Of two prefixes one is within the other, or they are apart. */
		if (!before || memcmp(hosts[i].first, before->last, 16) > 0)
			p->hosts[p->n_hosts++] = hosts[i];
		else if (memcmp(hosts[i].last, before->last, 16) > 0)
			memcpy(before->last, hosts[i].last, 16);
	}
}

static bool is_host(const struct netframe_policy *p, const uint8_t *a, bool v6)
{
	uint8_t wide[16];

	widen(wide, a, v6);
	return bsearch(wide, p->hosts, p->n_hosts, sizeof(*p->hosts), compare_range) != NULL;
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

/* Where clouds keep their metadata services, which hand out credentials of the host, beside the
 * link-local addresses. */
static const uint8_t barred4[][4] = {
	{100, 100, 100, 200}, /* Alibaba */
	{168, 63, 129, 16},   /* Azure */
	{192, 0, 0, 192},     /* Oracle, formerly */
};
static const uint8_t barred6[][16] = {
	{0xfd, 0x00, 0x0e, 0xc2, [14] = 0x02, 0x54},		 /* fd00:ec2::254: AWS */
	{0xfd, 0x20, 0x00, 0xce, [14] = 0x02, 0x54},		 /* fd20:ce::254: Google */
	{0xfd, 0x00, 0x00, 0xc1, [12] = 0xa9, 0xfe, 0xa9, 0xfe}, /* Oracle */
	{0xfd, 0x00, 0x00, 0x42, [14] = 0x00, 0x42},		 /* fd00:42::42: Scaleway */
};

static enum place place4(const struct netframe_policy *p, const uint8_t *a)
{
	const uint8_t *own = p->net.address;
	uint32_t mask = ~0u << (32 - p->net.prefix);

	if (memcmp(a, p->net.gateway, 4) == 0)
		return PLACE_GATEWAY;
	if (a[0] == 0 || a[0] == 127 || a[0] >= 224 || (get32(a) & mask) == (get32(own) & mask))
		return PLACE_NOWHERE;
	if (is_host(p, a, false))
		return PLACE_HOST;
	for (size_t i = 0; i < sizeof(barred4) / sizeof(barred4[0]); i++) {
		if (memcmp(a, barred4[i], 4) == 0)
			return PLACE_BARRED;
	}
	return a[0] == 169 && a[1] == 254 ? PLACE_BARRED : PLACE_WORLD;
}

/* The IPv4 address that a translator or a tunnel of the host's network takes out of this one, or
 * NULL: NAT64 (its well-known prefix, and /96 ones of the range for local use) and 6to4. */
static const uint8_t *embedded4(const uint8_t *a)
{
	static const uint8_t nat64[12] = {0x00, 0x64, 0xff, 0x9b},
			     local64[6] = {0x00, 0x64, 0xff, 0x9b, 0x00, 0x01};

	if (memcmp(a, nat64, 12) == 0 || memcmp(a, local64, 6) == 0)
		return a + 12;
	return a[0] == 0x20 && a[1] == 0x02 ? a + 2 : NULL;
}

static enum place place6(const struct netframe_policy *p, const uint8_t *a)
{
	static const uint8_t zero[8];
	const uint8_t *inner = embedded4(a);

	if (memcmp(a, p->net.gateway6, 16) == 0)
		return PLACE_GATEWAY;
	/* Multicast; our own /64; ::, ::1 and IPv4 addresses written as IPv6 ones, of any kind. */
	if (a[0] == 0xff || memcmp(a, p->net.address6, 8) == 0 || memcmp(a, zero, 8) == 0)
		return PLACE_NOWHERE;
	if (is_host(p, a, true))
		return PLACE_HOST;
	for (size_t i = 0; i < sizeof(barred6) / sizeof(barred6[0]); i++) {
		if (memcmp(a, barred6[i], 16) == 0)
			return PLACE_BARRED;
	}
	if (inner && place4(p, inner) != PLACE_WORLD)
		return PLACE_BARRED;
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
	} else if (!(flags & TCP_RST)) {
		/* Also of a connection from before this place was known to be the host. */
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
