/* wire/netframe: frames are built here field by field, by code that shares nothing with the code
 * under test but the numbers of the standards. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <net/ethernet.h>
#include <net/if_arp.h>
#include <netinet/icmp6.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>

#include <cmocka.h>

#include "wire/netframe.h"

#define GUEST	 "100.96.0.2"
#define GATEWAY	 "100.96.0.1"
#define GUEST6	 "fd6d:7300::2"
#define GATEWAY6 "fd6d:7300::1"
#define HOST	 "192.0.2.2"
#define HOST6	 "2001:db8::2"
#define WORLD	 "198.51.100.7"
#define WORLD6	 "2001:db8:ffff::7"
#define PORT	 49134

static const uint8_t guest_mac[6] = {2, 0x6d, 0x73, 0, 0, 2},
		     gateway_mac[6] = {2, 0x6d, 0x73, 0, 0, 1};
static struct netframe_policy policy;
static struct netframe_flows flows;

/* --- building --- */

struct frame {
	uint8_t data[2048];
	size_t len;
};

static void add(struct frame *f, const void *data, size_t len)
{
	assert_true(f->len + len <= sizeof(f->data));
	if (data)
		memcpy(f->data + f->len, data, len);
	else
		memset(f->data + f->len, 'x', len);
	f->len += len;
}

static void add_ether(struct frame *f, bool out, uint16_t type)
{
	struct ether_header e = {.ether_type = htons(type)};

	memcpy(e.ether_dhost, out ? gateway_mac : guest_mac, 6);
	memcpy(e.ether_shost, out ? guest_mac : gateway_mac, 6);
	add(f, &e, sizeof(e));
}

static void add_ip4(
	struct frame *f, const char *src, const char *dst, uint8_t proto, size_t payload)
{
	struct iphdr h = {.version = 4,
		.ihl = 5,
		.ttl = 64,
		.protocol = proto,
		.tot_len = htons((uint16_t)(20 + payload))};

	inet_pton(AF_INET, src, &h.saddr);
	inet_pton(AF_INET, dst, &h.daddr);
	add(f, &h, sizeof(h));
}

static void add_ip6(
	struct frame *f, const char *src, const char *dst, uint8_t proto, size_t payload)
{
	struct ip6_hdr h = {.ip6_plen = htons((uint16_t)payload), .ip6_nxt = proto, .ip6_hlim = 64};

	h.ip6_vfc = 0x60;
	inet_pton(AF_INET6, src, &h.ip6_src);
	inet_pton(AF_INET6, dst, &h.ip6_dst);
	add(f, &h, sizeof(h));
}

static void add_ip(
	struct frame *f, bool out, const char *src, const char *dst, uint8_t proto, size_t payload)
{
	bool v6 = strchr(src, ':') != NULL;

	add_ether(f, out, v6 ? ETHERTYPE_IPV6 : ETHERTYPE_IP);
	(v6 ? add_ip6 : add_ip4)(f, src, dst, proto, payload);
}

struct segment {
	uint16_t from, to;
	uint32_t seq;
	size_t len;
	unsigned flags; /* TH_SYN, … */
};

static struct frame tcp(bool out, const char *src, const char *dst, struct segment s)
{
	struct frame f = {.len = 0};
	struct tcphdr h = {.th_sport = htons(s.from),
		.th_dport = htons(s.to),
		.th_seq = htonl(s.seq),
		.th_off = 8,
		.th_flags = (uint8_t)s.flags};

	add_ip(&f, out, src, dst, IPPROTO_TCP, 32 + s.len);
	add(&f, &h, sizeof(h));
	add(&f, "\1\1\1\1\1\1\1\1\1\1\1", 12); /* options */
	add(&f, NULL, s.len);
	return f;
}

static struct frame syn(const char *dst, uint16_t port)
{
	bool v6 = strchr(dst, ':') != NULL;

	return tcp(true, v6 ? GUEST6 : GUEST, dst,
		(struct segment){40000, port, 0xfffffff0, 0, TH_SYN});
}

static struct frame udp(
	bool out, const char *src, const char *dst, uint16_t from, uint16_t to, size_t len)
{
	struct frame f = {.len = 0};
	struct udphdr h = {.uh_sport = htons(from),
		.uh_dport = htons(to),
		.uh_ulen = htons((uint16_t)(8 + len))};

	add_ip(&f, out, src, dst, IPPROTO_UDP, 8 + len);
	add(&f, &h, sizeof(h));
	add(&f, NULL, len);
	return f;
}

static struct frame datagram(const char *dst, uint16_t port)
{
	return udp(true, strchr(dst, ':') ? GUEST6 : GUEST, dst, 40000, port, 5);
}

static struct netframe_result judge_any(enum netframe_dir dir, const struct frame *f)
{
	struct netframe_result r;
	/* Of just that size, so that a sanitizer sees a byte too far. */
	uint8_t *exact = malloc(f->len + !f->len);

	memset(&r, 0xa5, sizeof(r));
	memcpy(exact, f->data, f->len);
	netframe_judge(&policy, &flows, dir, exact, f->len, &r);
	free(exact);
	if (r.verdict != NETFRAME_PASS)
		assert_int_equal(r.payload, 0);
	return r;
}

static struct netframe_result judge(enum netframe_dir dir, const struct frame *f)
{
	struct netframe_result r = judge_any(dir, f);

	assert_int_equal(
		r.reply_len > 0, r.verdict == NETFRAME_ANSWER || r.verdict == NETFRAME_REFUSE);
	return r;
}

static void expect_out_(struct frame f, enum netframe_verdict want, int line)
{
	struct netframe_result r = judge(NETFRAME_FROM_GUEST, &f);

	if (r.verdict != want)
		fail_msg("line %d: verdict %d, wanted %d", line, (int)r.verdict, (int)want);
}
#define expect_out(f, want) expect_out_((f), (want), __LINE__)

static void expect_in_(struct frame f, enum netframe_verdict want, int line)
{
	struct netframe_result r = judge(NETFRAME_TO_GUEST, &f);

	if (r.verdict != want)
		fail_msg("line %d: verdict %d, wanted %d", line, (int)r.verdict, (int)want);
}
#define expect_in(f, want) expect_in_((f), (want), __LINE__)

static void put_host(struct netframe_host *ret, const char *text, unsigned prefix)
{
	bool v6 = strchr(text, ':') != NULL;
	uint8_t a[16];

	assert_int_equal(inet_pton(v6 ? AF_INET6 : AF_INET, text, a), 1);
	assert_true(netframe_host_set(ret, v6, a, prefix));
}

static void set_hosts(void)
{
	struct netframe_host hosts[5];

	put_host(&hosts[0], HOST, 32);
	put_host(&hosts[1], "127.0.0.1", 32);
	put_host(&hosts[2], "10.1.2.3", 32);
	put_host(&hosts[3], HOST6, 128);
	put_host(&hosts[4], "::1", 128);
	netframe_policy_hosts(&policy, hosts, 5);
	assert_false(policy.closed);
}

static int setup(void **state)
{
	(void)state;
	netframe_policy_init(&policy, true);
	netframe_policy_port(&policy, PORT);
	set_hosts();
	memset(&flows, 0, sizeof(flows));
	flows.seed = 42;
	return 0;
}

/* --- checking what is sent back --- */

static uint16_t ones(const uint8_t *p, size_t len, uint32_t s)
{
	for (size_t i = 0; i < len; i++)
		s += i % 2 ? p[i] : (uint32_t)p[i] << 8;
	while (s > 0xffff)
		s = (s & 0xffff) + (s >> 16);
	return (uint16_t)s;
}

/* Header and payload of a reply: to the guest, from `src`, whole, with sums that are right. */
static const uint8_t *reply_payload(
	const struct netframe_result *r, const char *src, const char *dst, uint8_t proto)
{
	const struct ether_header *e = (const void *)r->reply;
	const uint8_t *ip = r->reply + sizeof(*e);
	bool v6 = strchr(src, ':') != NULL;
	size_t hdr = v6 ? 40 : 20, len = r->reply_len - sizeof(*e) - hdr;
	uint8_t a[16], b[16], pseudo[40] = {0};
	int family = v6 ? AF_INET6 : AF_INET;
	size_t size = v6 ? 16 : 4;

	assert_memory_equal(e->ether_dhost, guest_mac, 6);
	assert_memory_equal(e->ether_shost, gateway_mac, 6);
	assert_int_equal(ntohs(e->ether_type), v6 ? ETHERTYPE_IPV6 : ETHERTYPE_IP);
	inet_pton(family, src, a);
	inet_pton(family, dst, b);
	assert_memory_equal(ip + (v6 ? 8 : 12), a, size);
	assert_memory_equal(ip + (v6 ? 24 : 16), b, size);
	assert_int_equal(ip[v6 ? 6 : 9], proto);
	assert_int_equal(ip[v6 ? 4 : 2] << 8 | ip[v6 ? 5 : 3], v6 ? len : len + 20);
	if (!v6)
		assert_int_equal(ones(ip, 20, 0), 0xffff);
	memcpy(pseudo, a, size);
	memcpy(pseudo + size, b, size);
	assert_int_equal(
		ones(ip + hdr, len,
			proto == IPPROTO_ICMP ? 0 : ones(pseudo, 2 * size, (uint32_t)len + proto)),
		0xffff);
	return ip + hdr;
}

static void expect_reset(const char *dst, uint16_t port)
{
	struct frame f = syn(dst, port);
	struct netframe_result r = judge(NETFRAME_FROM_GUEST, &f);
	struct tcphdr h;

	assert_int_equal(r.verdict, NETFRAME_REFUSE);
	memcpy(&h, reply_payload(&r, dst, strchr(dst, ':') ? GUEST6 : GUEST, IPPROTO_TCP),
		sizeof(h));
	assert_int_equal(ntohs(h.th_sport), port);
	assert_int_equal(ntohs(h.th_dport), 40000);
	assert_int_equal(h.th_flags, TH_RST | TH_ACK);
	assert_int_equal(ntohl(h.th_ack), 0xfffffff1);
	assert_int_equal(h.th_off, 5);
}

/* --- tests --- */

static void test_tcp(void **state)
{
	struct frame f;

	(void)state;
	expect_out(syn(WORLD, 443), NETFRAME_PASS);
	expect_out(syn(WORLD6, 443), NETFRAME_PASS);
	expect_out(syn("192.0.2.1", 80), NETFRAME_PASS); /* the host's neighbours */
	expect_out(syn("10.1.2.4", 80), NETFRAME_PASS);
	expect_out(syn(GATEWAY, PORT), NETFRAME_PASS);
	expect_out(syn(GATEWAY6, PORT), NETFRAME_PASS);
	expect_out(syn(HOST, PORT), NETFRAME_PASS);
	expect_out(syn(HOST6, PORT), NETFRAME_PASS);
	expect_reset(GATEWAY, 22);
	expect_reset(GATEWAY, 53);
	expect_reset(GATEWAY, PORT - 1);
	expect_reset(GATEWAY, PORT + 1);
	expect_reset(GATEWAY, PORT + 8);
	expect_reset(GATEWAY6, 22);
	expect_reset(HOST, 22);
	expect_reset("10.1.2.3", 22);
	expect_reset(HOST6, 22);
	expect_reset("169.254.169.254", 80);
	expect_reset("169.254.169.254", PORT);
	expect_reset("fe80::1", PORT);
	/* A reset is no reason to say anything. */
	f = tcp(true, GUEST, GATEWAY, (struct segment){40000, 22, 1, 0, TH_RST});
	expect_out(f, NETFRAME_DROP);
}

static void test_syn_with_data(void **state)
{
	struct frame f =
		tcp(true, GUEST, GATEWAY, (struct segment){1, 22, 5, 100, TH_SYN | TH_FIN});
	struct netframe_result r = judge(NETFRAME_FROM_GUEST, &f);
	struct tcphdr h;

	(void)state;
	assert_int_equal(r.verdict, NETFRAME_REFUSE);
	memcpy(&h, reply_payload(&r, GATEWAY, GUEST, IPPROTO_TCP), sizeof(h));
	assert_int_equal(ntohl(h.th_ack), 5 + 1 + 100 + 1);
}

/* A connection that was open when its other end became an address of the host. */
static void test_refused_when_open(void **state)
{
	struct frame f = tcp(true, GUEST, GATEWAY, (struct segment){40000, 22, 5, 10, TH_ACK});
	const uint32_t ack = htonl(0x1234567);
	struct netframe_result r;
	struct tcphdr h;

	(void)state;
	memcpy(f.data + 34 + 8, &ack, 4);
	r = judge(NETFRAME_FROM_GUEST, &f);
	assert_int_equal(r.verdict, NETFRAME_REFUSE);
	memcpy(&h, reply_payload(&r, GATEWAY, GUEST, IPPROTO_TCP), sizeof(h));
	assert_int_equal(h.th_flags, TH_RST);
	assert_int_equal(ntohl(h.th_seq), 0x1234567);
	f = tcp(true, GUEST, GATEWAY, (struct segment){40000, 22, 5, 10, TH_FIN});
	r = judge(NETFRAME_FROM_GUEST, &f);
	memcpy(&h, reply_payload(&r, GATEWAY, GUEST, IPPROTO_TCP), sizeof(h));
	assert_int_equal(h.th_flags, TH_RST | TH_ACK);
	assert_int_equal(ntohl(h.th_ack), 5 + 10 + 1);
}

static void test_barred(void **state)
{
	static const char *const to[] = {"169.254.169.254", "100.100.100.200", "168.63.129.16",
		"192.0.0.192", "fe80::1", "fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe",
		"fd00:42::42",
		/* IPv4 in IPv6: NAT64, 6to4. */
		"64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b::6460:1", "64:ff9b::c000:202",
		"64:ff9b:1::7f00:1", "64:ff9b:1:2:3:4:a9fe:a9fe", "2002:7f00:1::1",
		"2002:a9fe:a9fe::", "2002:c000:202::5"},
				 *const free_[] = {"100.100.100.201", "168.63.129.17", "192.0.0.8",
					 "fd00:ec2::255", "64:ff9b::c633:6407", "2002:c633:6407::1",
					 "64:ff9b:1::c633:6407"};

	(void)state;
	for (size_t i = 0; i < sizeof(to) / sizeof(to[0]); i++) {
		expect_out(syn(to[i], 80), NETFRAME_REFUSE);
		expect_out(syn(to[i], PORT), NETFRAME_REFUSE);
		expect_out(datagram(to[i], 53), NETFRAME_REFUSE);
	}
	for (size_t i = 0; i < sizeof(free_) / sizeof(free_[0]); i++)
		expect_out(syn(free_[i], 80), NETFRAME_PASS);
}

/* Ranges, one in the other and side by side. */
static void test_host_ranges(void **state)
{
	struct netframe_host hosts[7];
	const uint8_t any[16] = {0};

	(void)state;
	put_host(&hosts[0], "10.9.0.77", 24);
	put_host(&hosts[1], "10.9.0.5", 32);
	put_host(&hosts[2], "10.77.3.4", 16);
	put_host(&hosts[3], "2001:db8:1::", 128);
	put_host(&hosts[4], "2001:db8:2:3::7", 61);
	put_host(&hosts[5], "10.9.1.0", 32);
	put_host(&hosts[6], "10.9.0.255", 32);
	netframe_policy_hosts(&policy, hosts, 7);
	assert_int_equal(policy.n_hosts, 5);
	expect_out(syn("10.8.255.255", 80), NETFRAME_PASS);
	expect_out(syn("10.9.0.0", 80), NETFRAME_REFUSE);
	expect_out(syn("10.9.0.6", 80), NETFRAME_REFUSE);
	expect_out(syn("10.9.0.255", 80), NETFRAME_REFUSE);
	expect_out(syn("10.9.0.255", PORT), NETFRAME_PASS);
	expect_out(syn("10.9.1.0", 80), NETFRAME_REFUSE);
	expect_out(syn("10.9.1.1", 80), NETFRAME_PASS);
	expect_out(syn("10.76.255.255", 80), NETFRAME_PASS);
	expect_out(syn("10.77.0.0", 80), NETFRAME_REFUSE);
	expect_out(syn("10.77.255.255", 80), NETFRAME_REFUSE);
	expect_out(syn("10.78.0.0", 80), NETFRAME_PASS);
	expect_out(syn("2001:db8:1::", 80), NETFRAME_REFUSE);
	expect_out(syn("2001:db8:1::1", 80), NETFRAME_PASS);
	expect_out(syn("2001:db8:2:0::", 80), NETFRAME_REFUSE);
	expect_out(syn("2001:db8:2:7:ffff::1", 80), NETFRAME_REFUSE);
	expect_out(syn("2001:db8:2:8::", 80), NETFRAME_PASS);
	/* Everything, of one family. */
	assert_true(netframe_host_set(&hosts[0], false, any, 0));
	netframe_policy_hosts(&policy, hosts, 1);
	expect_out(syn(WORLD, 80), NETFRAME_REFUSE);
	expect_out(syn(WORLD6, 80), NETFRAME_PASS);
	netframe_policy_hosts(&policy, hosts, 0);
	expect_out(syn(WORLD, 80), NETFRAME_PASS);
	assert_false(netframe_host_set(&hosts[0], false, any, 33));
	assert_false(netframe_host_set(&hosts[0], true, any, 129));
}

static void test_nowhere(void **state)
{
	static const char *const to[] = {"127.0.0.1", "127.255.255.255", "0.0.0.0", "0.1.2.3",
		"224.0.0.251", "239.255.255.250", "240.0.0.1", "255.255.255.255", "100.96.0.0",
		"100.96.0.2", "100.96.0.3", "::", "::1", "::7f00:1", "::ffff:127.0.0.1",
		"::ffff:192.0.2.2", "::ffff:198.51.100.7", "::ffff:0:127.0.0.1", "::5:6:7:8",
		"ff02::1", "ff05::2", GUEST6, "fd6d:7300::3", "fd6d:7300::ffff:0:1"};

	(void)state;
	for (size_t i = 0; i < sizeof(to) / sizeof(to[0]); i++) {
		expect_out(syn(to[i], PORT), NETFRAME_DROP);
		expect_out(datagram(to[i], PORT), NETFRAME_DROP);
		expect_out(datagram(to[i], 53), NETFRAME_DROP);
	}
}

static void expect_unreachable(const char *dst, uint16_t port)
{
	struct frame f = datagram(dst, port);
	struct netframe_result r = judge(NETFRAME_FROM_GUEST, &f);
	bool v6 = strchr(dst, ':') != NULL;
	const uint8_t *icmp;

	assert_int_equal(r.verdict, NETFRAME_REFUSE);
	icmp = reply_payload(&r, dst, v6 ? GUEST6 : GUEST, v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
	assert_int_equal(icmp[0], v6 ? ICMP6_DST_UNREACH : ICMP_DEST_UNREACH);
	assert_int_equal(icmp[1], v6 ? ICMP6_DST_UNREACH_NOPORT : ICMP_PORT_UNREACH);
	assert_memory_equal(icmp + 4, "\0\0\0\0", 4);
	/* What it is about. */
	assert_memory_equal(icmp + 8, f.data + 14, v6 ? 48 : 28);
}

static void test_udp(void **state)
{
	struct frame f;

	(void)state;
	expect_out(datagram(WORLD, 443), NETFRAME_PASS);
	expect_out(datagram(WORLD, 53), NETFRAME_PASS);
	expect_out(datagram(WORLD6, 443), NETFRAME_PASS);
	expect_out(datagram(GATEWAY, 53), NETFRAME_PASS);
	expect_out(datagram(GATEWAY6, 53), NETFRAME_PASS);
	expect_out(datagram(GATEWAY, PORT), NETFRAME_PASS);
	expect_out(datagram(HOST, PORT), NETFRAME_PASS);
	expect_out(datagram(HOST6, PORT), NETFRAME_PASS);
	expect_unreachable(GATEWAY, 123);
	expect_unreachable(GATEWAY6, 123);
	expect_unreachable(HOST, 53);
	expect_unreachable(HOST6, 53);
	expect_unreachable("169.254.169.254", 53);
	expect_unreachable("fe80::1", 53);
	/* DHCP, port 0. */
	expect_out(datagram(WORLD, 67), NETFRAME_DROP);
	expect_out(datagram(WORLD, 68), NETFRAME_DROP);
	expect_out(datagram(GATEWAY, 67), NETFRAME_DROP);
	expect_out(datagram(WORLD6, 547), NETFRAME_DROP);
	expect_out(datagram(WORLD, 0), NETFRAME_DROP);
	expect_out(udp(true, GUEST, WORLD, 0, 9, 1), NETFRAME_DROP);
	/* A length of its own. */
	f = datagram(WORLD, 9);
	f.data[14 + 20 + 5]--;
	expect_out(f, NETFRAME_DROP);
	f.data[14 + 20 + 5] += 2;
	expect_out(f, NETFRAME_DROP);
}

/* "" is no port at all. */
static void test_no_ports(void **state)
{
	(void)state;
	netframe_policy_init(&policy, true);
	set_hosts();
	expect_reset(GATEWAY, PORT);
	expect_reset(HOST, PORT);
	expect_out(syn(WORLD, PORT), NETFRAME_PASS);
	for (unsigned port = 1; port < 65536; port += 13)
		expect_reset(GATEWAY, (uint16_t)port);
	netframe_policy_port(&policy, 1);
	netframe_policy_port(&policy, 65535);
	expect_out(syn(GATEWAY, 1), NETFRAME_PASS);
	expect_out(syn(GATEWAY, 65535), NETFRAME_PASS);
	expect_reset(GATEWAY, 2);
	expect_reset(GATEWAY, 65534);
}

static void test_spoofed(void **state)
{
	struct segment s = {40000, 443, 1, 0, TH_SYN};
	struct frame f;

	(void)state;
	expect_out(tcp(true, "100.96.0.3", WORLD, s), NETFRAME_DROP);
	expect_out(tcp(true, "127.0.0.1", WORLD, s), NETFRAME_DROP);
	expect_out(tcp(true, WORLD, WORLD, s), NETFRAME_DROP);
	expect_out(
		tcp(true, HOST, GATEWAY, (struct segment){1, PORT, 1, 0, TH_SYN}), NETFRAME_DROP);
	expect_out(tcp(true, "fe80::2", WORLD6, s), NETFRAME_DROP);
	expect_out(tcp(true, "::1", WORLD6, s), NETFRAME_DROP);
	expect_out(udp(true, GATEWAY, WORLD, 9, 9, 1), NETFRAME_DROP);
	f = syn(WORLD, 443);
	f.data[11] ^= 1; /* another MAC address */
	expect_out(f, NETFRAME_DROP);
	f = syn(WORLD, 443);
	f.data[0] = 0xff; /* not to the gateway */
	expect_out(f, NETFRAME_DROP);
}

static void test_other_frames(void **state)
{
	struct frame f, g;

	(void)state;
	/* VLAN tag in front of what would pass. */
	f = syn(WORLD, 443);
	g = (struct frame){.len = 0};
	add(&g, f.data, 12);
	add(&g, "\x81\0\0\7", 4);
	add(&g, f.data + 12, f.len - 12);
	expect_out(g, NETFRAME_DROP);
	g.data[12] = 0x88;
	g.data[13] = 0xa8;
	expect_out(g, NETFRAME_DROP);
	/* Version and type that do not agree. */
	f = syn(WORLD, 443);
	f.data[12] = 0x86;
	f.data[13] = 0xdd;
	expect_out(f, NETFRAME_DROP);
	f = syn(WORLD6, 443);
	f.data[12] = 8;
	f.data[13] = 0;
	expect_out(f, NETFRAME_DROP);
	/* Other protocols: ICMP echo, GRE, SCTP, IP in IP. */
	for (int proto = 0; proto < 256; proto++) {
		f = syn(WORLD, 443);
		f.data[14 + 9] = (uint8_t)proto;
		if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
			expect_out(f, NETFRAME_DROP);
		f = syn(WORLD6, 443);
		f.data[14 + 6] = (uint8_t)proto;
		if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
			expect_out(f, NETFRAME_DROP);
	}
}

static void test_fragments(void **state)
{
	struct frame f = syn(WORLD, 443), g;
	struct ip6_frag frag = {.ip6f_nxt = IPPROTO_TCP};

	(void)state;
	f.data[14 + 6] = 0x40; /* don't fragment */
	expect_out(f, NETFRAME_PASS);
	f.data[14 + 6] = 0x20; /* more of them */
	expect_out(f, NETFRAME_DROP);
	f.data[14 + 6] = 0x00;
	f.data[14 + 7] = 0x01; /* not the first */
	expect_out(f, NETFRAME_DROP);
	f.data[14 + 6] = 0x1f;
	expect_out(f, NETFRAME_DROP);
	f = syn(GATEWAY, PORT);
	f.data[14 + 7] = 0x02;
	expect_out(f, NETFRAME_DROP);

	f = syn(WORLD6, 443);
	for (int header = 0; header < 2; header++) {
		g = (struct frame){.len = 0};
		add_ip(&g, true, GUEST6, WORLD6, header ? IPPROTO_HOPOPTS : IPPROTO_FRAGMENT, 40);
		add(&g, &frag, sizeof(frag));
		add(&g, f.data + 54, 32);
		expect_out(g, NETFRAME_DROP);
	}
}

static void test_ip_options(void **state)
{
	struct frame f = syn(GATEWAY, 22), g = {.len = 0};

	(void)state;
	/* What is a refused port behind the options looks like the allowed one without them. */
	add(&g, f.data, 34);
	g.data[14] = 0x46;
	g.data[14 + 3] += 4;
	add(&g, (uint8_t[]){1, 1, PORT >> 8, PORT & 255}, 4);
	add(&g, f.data + 34, f.len - 34);
	expect_out(g, NETFRAME_REFUSE);
	g.data[14 + 24 + 2] = PORT >> 8;
	g.data[14 + 24 + 3] = PORT & 255;
	expect_out(g, NETFRAME_PASS);
	g.data[14] = 0x4f; /* longer than the packet */
	g.data[14 + 3] = 56;
	expect_out(g, NETFRAME_DROP);
	g.data[14] = 0x44;
	expect_out(g, NETFRAME_DROP);
}

/* Every shorter frame, with lengths in it that are right for the whole or for the piece. */
static void test_truncated(void **state)
{
	struct frame all[] = {syn(WORLD, 443), syn(WORLD6, 443), datagram(WORLD, 9),
		datagram(WORLD6, 9), syn(GATEWAY, 22), datagram(GATEWAY6, 9)};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		for (size_t len = 0; len < all[i].len; len++) {
			struct frame f = all[i];

			f.len = len;
			expect_out(f, NETFRAME_DROP);
			expect_in(f, NETFRAME_DROP);
			if (f.data[12] == 8 && len >= 34)
				f.data[14 + 3] = (uint8_t)(len - 14);
			else if (f.data[12] != 8 && len >= 54)
				f.data[14 + 5] = (uint8_t)(len - 54);
			/* The end of a TCP header's options is the first length that may be. */
			expect_out(f, NETFRAME_DROP);
		}
	}
	/* Ethernet's padding is no part of the packet. */
	all[0].len += 6;
	assert_int_equal(judge(NETFRAME_FROM_GUEST, &all[0]).verdict, NETFRAME_PASS);
	/* A TCP header that is too short. */
	all[0].data[14 + 20 + 12] = 0x40;
	expect_out(all[0], NETFRAME_DROP);
	all[0].data[14 + 20 + 12] = 0xf0;
	expect_out(all[0], NETFRAME_DROP);
}

static void test_closed(void **state)
{
	struct netframe_host *hosts = calloc(NETFRAME_HOSTS_MAX + 1, sizeof(*hosts));

	(void)state;
	netframe_policy_hosts(&policy, hosts, NETFRAME_HOSTS_MAX + 1);
	assert_true(policy.closed);
	expect_out(syn(WORLD, 443), NETFRAME_DROP);
	/* The last of a full list counts as well as the first. */
	for (unsigned i = 0; i < NETFRAME_HOSTS_MAX; i++) {
		uint8_t a[4] = {203, 0, (uint8_t)(i >> 7), (uint8_t)(2 * i)};

		netframe_host_set(&hosts[i], false, a, 32);
	}
	netframe_policy_hosts(&policy, hosts, NETFRAME_HOSTS_MAX);
	assert_false(policy.closed);
	assert_int_equal(policy.n_hosts, NETFRAME_HOSTS_MAX);
	expect_reset("203.0.0.0", 22);
	expect_reset("203.0.63.254", 22);
	expect_reset("203.0.17.78", 22);
	expect_out(syn("203.0.17.77", 22), NETFRAME_PASS);
	expect_out(syn("203.0.64.0", 22), NETFRAME_PASS);
	/* A host that lost its addresses. */
	netframe_policy_hosts(&policy, hosts, 0);
	expect_out(syn("203.0.0.0", 22), NETFRAME_PASS);
	free(hosts);
}

static struct frame arp(uint16_t op, const char *from, const char *to)
{
	struct frame f = {.len = 0};
	struct arphdr h = {.ar_hrd = htons(ARPHRD_ETHER),
		.ar_pro = htons(ETHERTYPE_IP),
		.ar_hln = 6,
		.ar_pln = 4,
		.ar_op = htons(op)};
	uint8_t a[4];

	add_ether(&f, true, ETHERTYPE_ARP);
	memset(f.data, 0xff, 6);
	add(&f, &h, sizeof(h));
	add(&f, guest_mac, 6);
	inet_pton(AF_INET, from, a);
	add(&f, a, 4);
	add(&f, "\0\0\0\0\0", 6);
	inet_pton(AF_INET, to, a);
	add(&f, a, 4);
	return f;
}

static void test_arp(void **state)
{
	struct frame f = arp(ARPOP_REQUEST, GUEST, GATEWAY), want = {.len = 0};
	struct netframe_result r = judge(NETFRAME_FROM_GUEST, &f);
	uint8_t a[4];

	(void)state;
	assert_int_equal(r.verdict, NETFRAME_ANSWER);
	add_ether(&want, false, ETHERTYPE_ARP);
	add(&want, "\0\1\10\0\6\4\0\2", 8);
	add(&want, gateway_mac, 6);
	inet_pton(AF_INET, GATEWAY, a);
	add(&want, a, 4);
	add(&want, guest_mac, 6);
	inet_pton(AF_INET, GUEST, a);
	add(&want, a, 4);
	assert_int_equal(r.reply_len, want.len);
	assert_memory_equal(r.reply, want.data, want.len);

	expect_out(arp(ARPOP_REQUEST, GUEST, "100.96.0.3"), NETFRAME_DROP);
	expect_out(arp(ARPOP_REQUEST, GUEST, GUEST), NETFRAME_DROP);
	expect_out(arp(ARPOP_REQUEST, "0.0.0.0", GATEWAY), NETFRAME_DROP);
	expect_out(arp(ARPOP_REPLY, GUEST, GATEWAY), NETFRAME_DROP);
	f.len--;
	expect_out(f, NETFRAME_DROP);
	f.len++;
	f.data[14 + 8] ^= 1;
	expect_out(f, NETFRAME_DROP);
	/* None of the helper's: the answers are ours. */
	f.data[14 + 8] ^= 1;
	expect_in(f, NETFRAME_DROP);
}

static struct frame solicit(const char *from, const char *target)
{
	struct frame f = {.len = 0};
	struct nd_neighbor_solicit h = {.nd_ns_hdr = {.icmp6_type = ND_NEIGHBOR_SOLICIT}};

	add_ip(&f, true, from, "ff02::1:ff00:1", IPPROTO_ICMPV6, sizeof(h));
	f.data[14 + 7] = 255;
	inet_pton(AF_INET6, target, &h.nd_ns_target);
	add(&f, &h, sizeof(h));
	return f;
}

static void expect_advert(const char *from)
{
	struct frame f = solicit(from, GATEWAY6);
	struct netframe_result r = judge(NETFRAME_FROM_GUEST, &f);
	struct nd_neighbor_advert h;
	const uint8_t *na;
	uint8_t a[16];

	assert_int_equal(r.verdict, NETFRAME_ANSWER);
	na = reply_payload(&r, GATEWAY6, from, IPPROTO_ICMPV6);
	assert_int_equal(r.reply[14 + 7], 255);
	memcpy(&h, na, sizeof(h));
	assert_int_equal(h.nd_na_hdr.icmp6_type, ND_NEIGHBOR_ADVERT);
	assert_int_equal(h.nd_na_flags_reserved,
		ND_NA_FLAG_ROUTER | ND_NA_FLAG_SOLICITED | ND_NA_FLAG_OVERRIDE);
	inet_pton(AF_INET6, GATEWAY6, a);
	assert_memory_equal(&h.nd_na_target, a, 16);
	assert_memory_equal(na + sizeof(h), "\2\1", 2);
	assert_memory_equal(na + sizeof(h) + 2, gateway_mac, 6);
}

static void test_nd(void **state)
{
	struct frame f;

	(void)state;
	expect_advert(GUEST6);
	expect_advert("fe80::6d:73ff:fe00:2");
	expect_out(solicit(GUEST6, "fd6d:7300::9"), NETFRAME_DROP);
	expect_out(solicit(GUEST6, GUEST6), NETFRAME_DROP);
	expect_out(solicit("::", GATEWAY6), NETFRAME_DROP);
	expect_out(solicit(WORLD6, GATEWAY6), NETFRAME_DROP);
	f = solicit(GUEST6, GATEWAY6);
	f.data[14 + 7] = 64; /* from beyond a router */
	expect_out(f, NETFRAME_DROP);
	f = solicit(GUEST6, GATEWAY6);
	for (int type = 0; type < 256; type++) {
		f.data[54] = (uint8_t)type;
		if (type != ND_NEIGHBOR_SOLICIT)
			expect_out(f, NETFRAME_DROP);
		if (type != ICMP6_DST_UNREACH && type != ICMP6_PACKET_TOO_BIG)
			expect_in(f, NETFRAME_DROP);
	}
}

static void test_no_ipv6(void **state)
{
	(void)state;
	netframe_policy_init(&policy, false);
	expect_out(syn(WORLD6, 443), NETFRAME_DROP);
	expect_out(syn(GATEWAY6, 443), NETFRAME_DROP);
	expect_out(solicit(GUEST6, GATEWAY6), NETFRAME_DROP);
	expect_in(tcp(false, WORLD6, GUEST6, (struct segment){443, 40000, 1, 1, TH_ACK}),
		NETFRAME_DROP);
	expect_out(syn(WORLD, 443), NETFRAME_PASS);
}

static void test_inbound(void **state)
{
	struct segment ack = {443, 40000, 1, 10, TH_ACK};
	struct frame f;

	(void)state;
	expect_in(tcp(false, WORLD, GUEST, ack), NETFRAME_PASS);
	expect_in(tcp(false, WORLD6, GUEST6, ack), NETFRAME_PASS);
	ack.flags = TH_SYN | TH_ACK;
	expect_in(tcp(false, WORLD, GUEST, ack), NETFRAME_PASS);
	ack.flags = TH_RST;
	expect_in(tcp(false, WORLD, GUEST, ack), NETFRAME_PASS);
	ack.flags = TH_SYN; /* nobody connects to a guest */
	expect_in(tcp(false, WORLD, GUEST, ack), NETFRAME_DROP);
	ack.flags = TH_SYN | TH_RST;
	expect_in(tcp(false, WORLD, GUEST, ack), NETFRAME_DROP);
	ack.flags = TH_ACK;
	expect_in(tcp(false, WORLD, "100.96.0.3", ack), NETFRAME_DROP);
	expect_in(tcp(false, WORLD6, "ff02::1", ack), NETFRAME_DROP);
	/* ICMP: errors alone. */
	f = tcp(false, WORLD, GUEST, ack);
	f.data[14 + 9] = IPPROTO_ICMP;
	for (int type = 0; type < 256; type++) {
		f.data[34] = (uint8_t)type;
		expect_in(f, type == ICMP_DEST_UNREACH ? NETFRAME_PASS : NETFRAME_DROP);
	}
}

/* A datagram comes in only where one went out, in both directions of all its addresses. */
static void test_udp_inbound(void **state)
{
	(void)state;
	expect_in(udp(false, WORLD, GUEST, 9, 40000, 1), NETFRAME_DROP);
	expect_out(udp(true, GUEST, WORLD, 40000, 9, 1), NETFRAME_PASS);
	expect_in(udp(false, WORLD, GUEST, 9, 40000, 1), NETFRAME_PASS);
	expect_in(udp(false, WORLD, GUEST, 9, 40000, 1), NETFRAME_PASS);
	expect_in(udp(false, WORLD, GUEST, 9, 40001, 1), NETFRAME_DROP);
	expect_in(udp(false, WORLD, GUEST, 10, 40000, 1), NETFRAME_DROP);
	expect_in(udp(false, "198.51.100.8", GUEST, 9, 40000, 1), NETFRAME_DROP);
	expect_in(udp(false, WORLD6, GUEST6, 9, 40000, 1), NETFRAME_DROP);
	expect_out(udp(true, GUEST6, WORLD6, 40000, 9, 1), NETFRAME_PASS);
	expect_in(udp(false, WORLD6, GUEST6, 9, 40000, 1), NETFRAME_PASS);
	/* What was refused opens nothing. */
	expect_out(udp(true, GUEST, HOST, 40000, 22, 1), NETFRAME_REFUSE);
	expect_in(udp(false, HOST, GUEST, 22, 40000, 1), NETFRAME_DROP);
	/* The resolver answers in the gateway's name. */
	expect_out(udp(true, GUEST, GATEWAY, 40000, 53, 1), NETFRAME_PASS);
	expect_in(udp(false, GATEWAY, GUEST, 53, 40000, 1), NETFRAME_PASS);
}

/* Memory is fixed: what is used stays, what is oldest goes. */
static void test_udp_many(void **state)
{
	int known = 0;

	(void)state;
	for (unsigned i = 0; i < 100000; i++) {
		expect_out(udp(true, GUEST, WORLD, (uint16_t)(1 + i % 60000),
				   (uint16_t)(1 + i / 60000), 1),
			NETFRAME_PASS);
		expect_out(udp(true, GUEST, GATEWAY, 5, 53, 1), NETFRAME_PASS);
	}
	expect_in(udp(false, GATEWAY, GUEST, 53, 5, 1), NETFRAME_PASS);
	for (unsigned i = 100000 - 2048; i < 100000; i++) {
		struct frame f = udp(false, WORLD, GUEST, (uint16_t)(1 + i / 60000),
			(uint16_t)(1 + i % 60000), 1);

		known += judge(NETFRAME_TO_GUEST, &f).verdict == NETFRAME_PASS;
	}
	assert_in_range(known, 1024, 2048);
}

static uint32_t payload_of(enum netframe_dir dir, struct frame f)
{
	struct netframe_result r = judge(dir, &f);

	assert_int_equal(r.verdict, NETFRAME_PASS);
	return r.payload;
}

static uint32_t sent(uint32_t seq, size_t len, unsigned flags)
{
	return payload_of(NETFRAME_FROM_GUEST,
		tcp(true, GUEST, WORLD, (struct segment){40000, 443, seq, len, flags}));
}

static void test_payload_tcp(void **state)
{
	(void)state;
	/* The numbers wrap on the way. */
	assert_int_equal(sent(0xfffffffd, 0, TH_SYN), 0);
	assert_int_equal(sent(0xfffffffe, 0, TH_ACK), 0);
	assert_int_equal(sent(0xfffffffe, 10, TH_ACK), 10);
	/* Keepalive probes: none or one byte, one number back. Then one again, and a real byte. */
	assert_int_equal(sent(7, 0, TH_ACK), 0);
	assert_int_equal(sent(7, 1, TH_ACK), 0);
	assert_int_equal(sent(7, 1, TH_ACK), 0);
	assert_int_equal(sent(8, 1, TH_ACK), 1);
	/* Once more, and once more with something new behind it. */
	assert_int_equal(sent(8, 1, TH_ACK), 0);
	assert_int_equal(sent(0xfffffffe, 11, TH_ACK), 0);
	assert_int_equal(sent(8, 5, TH_ACK), 4);
	assert_int_equal(sent(13, 0, TH_FIN | TH_ACK), 0);
	/* The other direction, other ports and another family count on their own. */
	assert_int_equal(
		payload_of(NETFRAME_TO_GUEST,
			tcp(false, WORLD, GUEST, (struct segment){443, 40000, 8, 1, TH_ACK})),
		1);
	assert_int_equal(
		payload_of(NETFRAME_FROM_GUEST,
			tcp(true, GUEST, WORLD, (struct segment){40001, 443, 8, 1, TH_ACK})),
		1);
	assert_int_equal(
		payload_of(NETFRAME_FROM_GUEST,
			tcp(true, GUEST6, WORLD6, (struct segment){40000, 443, 8, 1, TH_ACK})),
		1);
	/* A new connection with the same addresses. */
	assert_int_equal(sent(1, 0, TH_SYN), 0);
	assert_int_equal(sent(2, 1, TH_ACK), 1);
}

/* --- an end that comes before what it is the end of --- */

static enum netframe_verdict out(uint32_t seq, size_t len, unsigned flags)
{
	struct frame f = tcp(true, GUEST, WORLD, (struct segment){40000, 443, seq, len, flags});

	return judge(NETFRAME_FROM_GUEST, &f).verdict;
}

/* An acknowledgement by the helper; the frame that it lets go. */
static struct netframe_result acked(uint16_t port, uint32_t ack, unsigned flags)
{
	struct frame f = tcp(false, WORLD, GUEST, (struct segment){443, port, 1, 0, flags});
	struct netframe_result r;

	ack = htonl(ack);
	memcpy(f.data + 34 + 8, &ack, 4);
	r = judge_any(NETFRAME_TO_GUEST, &f);
	assert_int_equal(r.verdict, NETFRAME_PASS);
	return r;
}

static void open_connection(void)
{
	assert_int_equal(out(0xfffffffd, 0, TH_SYN), NETFRAME_PASS);
	assert_int_equal(acked(40000, 0xfffffffe, TH_SYN | TH_ACK).reply_len, 0);
	assert_int_equal(out(0xfffffffe, 10, TH_ACK), NETFRAME_PASS);
}

static void test_early_end(void **state)
{
	struct segment s = {40000, 443, 8, 0, TH_FIN | TH_ACK};
	struct frame fin = tcp(true, GUEST, WORLD, s);
	struct netframe_result r;

	(void)state;
	open_connection();
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_HOLD);
	assert_int_equal(acked(40000, 7, TH_ACK).reply_len, 0);
	assert_int_equal(acked(40001, 8, TH_ACK).reply_len, 0);	 /* another connection */
	assert_int_equal(acked(40000, 8, TH_PUSH).reply_len, 0); /* no ACK */
	/* Sent once more while it waits: it is let go once. */
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_HOLD);
	assert_int_equal(flows.n_held, 1);
	r = acked(40000, 8, TH_ACK);
	assert_int_equal(r.reply_len, fin.len);
	assert_memory_equal(r.reply, fin.data, fin.len);
	assert_int_equal(acked(40000, 8, TH_ACK).reply_len, 0);
	assert_int_equal(flows.n_held, 0);
	/* From there on it passes. */
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_PASS);
}

static void test_end_in_time(void **state)
{
	(void)state;
	open_connection();
	acked(40000, 8, TH_ACK);
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_PASS);
	/* An old acknowledgement takes nothing back. */
	acked(40000, 0xffffffff, TH_ACK);
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_PASS);
	/* With bytes in it the helper looks at the numbers itself. */
	open_connection();
	assert_int_equal(out(8, 5, TH_FIN | TH_ACK), NETFRAME_PASS);
	/* A connection that nothing is known of. */
	memset(&flows, 0, sizeof(flows));
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_PASS);
}

static void test_early_end_given_up(void **state)
{
	(void)state;
	open_connection();
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_HOLD);
	assert_int_equal(out(8, 0, TH_RST), NETFRAME_PASS);
	assert_int_equal(flows.n_held, 0);
	open_connection();
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_HOLD);
	open_connection(); /* the same addresses anew */
	assert_int_equal(flows.n_held, 0);
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_HOLD);
	acked(40000, 0, TH_RST);
	assert_int_equal(flows.n_held, 0);
}

/* The end that is sent again with bytes in front of it, and passes: the one that waits is gone. */
static void test_early_end_overtaken(void **state)
{
	(void)state;
	open_connection();
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_HOLD);
	assert_int_equal(out(0xfffffffe, 10, TH_FIN | TH_ACK), NETFRAME_PASS);
	assert_int_equal(flows.n_held, 0);
	/* Another connection has taken the place of what was known of this one. */
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_HOLD);
	memset(flows.tcp, 0, sizeof(flows.tcp));
	assert_int_equal(out(8, 0, TH_FIN | TH_ACK), NETFRAME_PASS);
	assert_int_equal(flows.n_held, 0);
}

/* A reset without ACK, as passt of 2023 sends it: `judged` as it is or in the standard's words. */
static struct netframe_result reset(const char *from, unsigned flags)
{
	bool v6 = strchr(from, ':') != NULL;
	struct segment s = {443, 40000, 77, 0, flags};
	struct frame f = tcp(false, from, v6 ? GUEST6 : GUEST, s);

	return judge(NETFRAME_TO_GUEST, &f);
}

static void test_refused_without_ack(void **state)
{
	static const char *const far[] = {WORLD, WORLD6};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct frame f = syn(far[i], 443);
		struct netframe_result r;
		struct tcphdr h;

		/* Of a connection that nobody has begun nothing is known. */
		assert_int_equal(reset(far[i], TH_RST).verdict, NETFRAME_PASS);
		expect_out(f, NETFRAME_PASS);
		assert_int_equal(reset(far[i], TH_RST | TH_ACK).verdict, NETFRAME_PASS);
		expect_out(f, NETFRAME_PASS);
		r = reset(far[i], TH_RST);
		assert_int_equal(r.verdict, NETFRAME_ANSWER);
		memcpy(&h, reply_payload(&r, far[i], i ? GUEST6 : GUEST, IPPROTO_TCP), sizeof(h));
		assert_int_equal(h.th_flags, TH_RST | TH_ACK);
		assert_int_equal(ntohs(h.th_sport), 443);
		assert_int_equal(ntohs(h.th_dport), 40000);
		assert_int_equal(ntohl(h.th_ack), 0xfffffff1);
	}
	/* What resets a connection that was there is the helper's own business. */
	open_connection();
	assert_int_equal(reset(WORLD, TH_RST).verdict, NETFRAME_PASS);
}

static void test_many_early_ends(void **state)
{
	int let_go = 0;

	(void)state;
	for (unsigned i = 0; i < 4 * NETFRAME_HELD_MAX; i++) {
		struct segment s = {(uint16_t)(1000 + i), 443, 0, 0, TH_SYN};
		struct frame f = tcp(true, GUEST, WORLD, s);

		judge(NETFRAME_FROM_GUEST, &f);
		acked(s.from, 1, TH_SYN | TH_ACK);
		s = (struct segment){s.from, 443, 100, 0, TH_FIN | TH_ACK};
		f = tcp(true, GUEST, WORLD, s);
		/* Also where there is no room for it: the guest sends it again. */
		assert_int_equal(judge(NETFRAME_FROM_GUEST, &f).verdict, NETFRAME_HOLD);
		assert_int_equal(flows.n_held, i < NETFRAME_HELD_MAX ? i + 1 : NETFRAME_HELD_MAX);
	}
	for (unsigned i = 0; i < 4 * NETFRAME_HELD_MAX; i++)
		let_go += acked((uint16_t)(1000 + i), 100, TH_ACK).reply_len > 0;
	/* But for a few connections that were forgotten meanwhile. */
	assert_in_range(let_go, NETFRAME_HELD_MAX / 2, NETFRAME_HELD_MAX);
	assert_int_equal(flows.n_held, NETFRAME_HELD_MAX - let_go);
}

static void test_payload_udp(void **state)
{
	(void)state;
	assert_int_equal(
		payload_of(NETFRAME_FROM_GUEST, udp(true, GUEST, WORLD, 1, 2, 1000)), 1000);
	assert_int_equal(payload_of(NETFRAME_TO_GUEST, udp(false, WORLD, GUEST, 2, 1, 7)), 7);
	assert_int_equal(payload_of(NETFRAME_FROM_GUEST, udp(true, GUEST, GATEWAY, 1, 53, 30)), 30);
	assert_int_equal(payload_of(NETFRAME_FROM_GUEST, udp(true, GUEST, WORLD, 1, 2, 0)), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_tcp, setup),
		cmocka_unit_test_setup(test_syn_with_data, setup),
		cmocka_unit_test_setup(test_refused_when_open, setup),
		cmocka_unit_test_setup(test_barred, setup),
		cmocka_unit_test_setup(test_host_ranges, setup),
		cmocka_unit_test_setup(test_nowhere, setup),
		cmocka_unit_test_setup(test_udp, setup),
		cmocka_unit_test_setup(test_no_ports, setup),
		cmocka_unit_test_setup(test_spoofed, setup),
		cmocka_unit_test_setup(test_other_frames, setup),
		cmocka_unit_test_setup(test_fragments, setup),
		cmocka_unit_test_setup(test_ip_options, setup),
		cmocka_unit_test_setup(test_truncated, setup),
		cmocka_unit_test_setup(test_closed, setup),
		cmocka_unit_test_setup(test_arp, setup),
		cmocka_unit_test_setup(test_nd, setup),
		cmocka_unit_test_setup(test_no_ipv6, setup),
		cmocka_unit_test_setup(test_inbound, setup),
		cmocka_unit_test_setup(test_udp_inbound, setup),
		cmocka_unit_test_setup(test_udp_many, setup),
		cmocka_unit_test_setup(test_payload_tcp, setup),
		cmocka_unit_test_setup(test_early_end, setup),
		cmocka_unit_test_setup(test_end_in_time, setup),
		cmocka_unit_test_setup(test_early_end_given_up, setup),
		cmocka_unit_test_setup(test_early_end_overtaken, setup),
		cmocka_unit_test_setup(test_refused_without_ack, setup),
		cmocka_unit_test_setup(test_many_early_ends, setup),
		cmocka_unit_test_setup(test_payload_udp, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
