/* host/vm/net*: routes, the page, the host's addresses, arguments of passt, and the relay between
 * two ends of sockets. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/net.h"
#include "host/vm/net_hosts.h"
#include "host/vm/net_link.h"
#include "host/vm/net_relay.h"

/* --- facts --- */

#define HEAD4                                                                                      \
	"Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"

static void test_route4(void **state)
{
	static const struct {
		const char *text, *interface;
	} cases[] = {
		{HEAD4 "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n", "eth0"},
		{HEAD4 "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
		       "wlan0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
			"wlan0"},
		/* without a gateway; rejecting; down; half of all addresses */
		{HEAD4 "tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0", "tun0"},
		{HEAD4 "*\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n", NULL},
		{HEAD4 "eth0\t00000000\t010200C0\t0002\t0\t0\t0\t00000000\t0\t0\t0\n", NULL},
		{HEAD4 "tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n", NULL},
		{HEAD4, NULL},
		{"", NULL},
		{"\n\n\n", NULL},
		{"eth0\t0000", NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char name[IF_NAMESIZE] = "";

		if (net_default_route(cases[i].text, false, name) != !!cases[i].interface)
			fail_msg("case %zu", i);
		assert_string_equal(name, cases[i].interface ? cases[i].interface : "");
	}
}

#define ZERO "00000000000000000000000000000000"
#define GATE "fd000000000000000000000000000001"

static void test_route6(void **state)
{
	static const struct {
		const char *text, *interface;
	} cases[] = {
		{ZERO " 00 " ZERO " 00 " GATE " 00000400 00000001 00000000 00000003     eth0\n",
			"eth0"},
		{"fd000000000000000000000000000000 40 " ZERO " 00 " ZERO
		 " 00000100 00000001 00000000 00000001     eth0\n" ZERO " 00 " ZERO " 00 " GATE
		 " 00000400 00000001 00000000 00450003     eth1\n",
			"eth1"},
		/* what a host without IPv6 has */
		{ZERO " 00 " ZERO " 00 " ZERO " ffffffff 00000001 00000000 00200200       lo\n",
			NULL},
		{ZERO " 00 " ZERO " 00 " ZERO " ffffffff 00000001 00000000 00000001       lo\n",
			NULL},
		{"", NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char name[IF_NAMESIZE] = "";

		if (net_default_route(cases[i].text, true, name) != !!cases[i].interface)
			fail_msg("case %zu", i);
		assert_string_equal(name, cases[i].interface ? cases[i].interface : "");
	}
}

static void test_facts_check(void **state)
{
	struct net_facts f = {.passt = (char *)"/usr/bin/passt", .route6 = true};
	struct err e = ERR_INIT;

	(void)state;
	assert_int_equal(net_facts_check(&f, &e), 0);
	f = (struct net_facts){.passt = (char *)"/usr/bin/passt"};
	assert_int_equal(net_facts_check(&f, &e), -ENETUNREACH);
	assert_non_null(strstr(e.text, "default route"));
	assert_string_equal(e.code, "S300");
	f = (struct net_facts){.route4 = true};
	unsetenv(NET_PASST);
	assert_int_equal(net_facts_check(&f, &e), -ENOENT);
	assert_non_null(strstr(e.text, "install the package passt"));
	setenv(NET_PASST, "relative/passt", 1);
	net_facts_get(&f);
	assert_null(f.passt);
	assert_int_equal(net_facts_check(&f, &e), -ENOENT);
	assert_non_null(strstr(e.text, "relative/passt"));
	net_facts_done(&f);
	setenv(NET_PASST, "/bin/true", 1);
	net_facts_get(&f);
	assert_string_equal(f.passt, "/bin/true");
	net_facts_done(&f);
	unsetenv(NET_PASST);
}

static bool has(char *const *v, const char *a, const char *b)
{
	for (; *v; v++) {
		if (str_eq(v[0], a) && (!b || str_eq(v[1], b)))
			return true;
	}
	return false;
}

static void test_passt_args(void **state)
{
	struct plan_net p = {.passt = (char *)"/usr/bin/passt", .ipv6 = true};
	char **v = net_link_passt_args(&p, 7, 0);

	(void)state;
	assert_string_equal(v[0], "/usr/bin/passt");
	assert_true(has(v, "--fd", "7") && has(v, "--foreground", NULL));
	assert_true(has(v, "--tcp-ports", "none") && has(v, "--udp-ports", "none"));
	assert_true(has(v, "--address", "100.96.0.2") && has(v, "--gateway", "100.96.0.1"));
	assert_true(has(v, "--address", "fd6d:7300::2") && has(v, "--gateway", "fd6d:7300::1"));
	assert_true(has(v, "--dns-forward", "100.96.0.1") && has(v, "--netmask", "30"));
	/* The gateway has to be the host; no interface where passt finds one. */
	assert_false(has(v, "--no-map-gw", NULL) || has(v, "--interface", NULL));
	assert_false(has(v, "--ipv4-only", NULL) || has(v, "--runas", NULL));
	strv_free(v);
	p.ipv6 = false;
	snprintf(p.interface, sizeof(p.interface), "eth7");
	v = net_link_passt_args(&p, 7, 0x70001234);
	assert_true(has(v, "--ipv4-only", NULL) && has(v, "--interface", "eth7"));
	assert_true(has(v, "--runas", "1879052852"));
	assert_false(has(v, "--address", "fd6d:7300::2"));
	strv_free(v);
}

/* --- the page --- */

static void test_page(void **state)
{
	const struct net_page *seen;
	struct net_page *page;
	cleanup_fd int other = memfd_create("other", MFD_CLOEXEC);
	FILE *file = tmpfile();
	struct err e = ERR_INIT;
	int fd, status;
	pid_t pid;

	(void)state;
	assert_int_equal(net_page_new(&fd, &seen, &e), 0);
	assert_int_equal(seen->active_ms, 0);
	/* No one who has it can make reading it a fault. */
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(ftruncate(fd, 1 << 20), -1);
	assert_int_equal(net_page_map(fd, &page, &e), 0);
	page->active_ms = 77;
	assert_int_equal(seen->active_ms, 77);
	/* A child has no such memory. */
	pid = fork();
	if (pid == 0) {
		int p[2];

		/* The kernel reads it for us, or says that it is not there. */
		_exit(pipe(p) == 0 && write(p[1], page, 8) == -1 && errno == EFAULT ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	net_page_unmap(page);
	net_page_unmap(seen);
	close(fd);
	/* A file that somebody could cut. */
	assert_int_equal(ftruncate(other, 4096), 0);
	assert_true(net_page_map(other, &page, &e) < 0);
	/* One that cannot be sealed. */
	assert_non_null(file);
	assert_int_equal(ftruncate(fileno(file), 4096), 0);
	assert_true(net_page_map(fileno(file), &page, &e) < 0);
	fclose(file);
}

/* --- the host's addresses --- */

/* Whether the policy takes an address for one of the host's. */
static bool is_host(const struct netframe_policy *p, bool v6, const void *address)
{
	struct netframe_host one;

	assert_true(netframe_host_set(&one, v6, address, v6 ? 128 : 32));
	for (size_t i = 0; i < p->n_hosts; i++) {
		if (memcmp(one.first, p->hosts[i].first, 16) >= 0 &&
			memcmp(one.first, p->hosts[i].last, 16) <= 0)
			return true;
	}
	return false;
}

static bool is_host4(const struct netframe_policy *p, const char *text)
{
	uint8_t a[4];

	assert_int_equal(inet_pton(AF_INET, text, a), 1);
	return is_host(p, false, a);
}

static void test_hosts(void **state)
{
	struct net_hosts *h = xcalloc(1, sizeof(*h));
	struct netframe_policy *p = xmalloc(sizeof(*p));
	struct ifaddrs *all, *a;
	struct err e = ERR_INIT;

	(void)state;
	netframe_policy_init(p, true);
	p->closed = true;
	if (net_hosts_open(h, p, &e) < 0)
		fail_msg("%s", e.text);
	assert_false(p->closed);
	assert_int_equal(getifaddrs(&all), 0);
	for (a = all; a; a = a->ifa_next) {
		const struct sockaddr_in *in = (const void *)a->ifa_addr;
		const struct sockaddr_in6 *in6 = (const void *)a->ifa_addr;

		/* One that is down is as if it had none. */
		if (!a->ifa_addr || !(a->ifa_flags & IFF_UP))
			continue;
		if (in->sin_family == AF_INET)
			assert_true(is_host(p, false, &in->sin_addr));
		else if (in->sin_family == AF_INET6)
			assert_true(is_host(p, true, &in6->sin6_addr));
	}
	freeifaddrs(all);
	/* The loopback is a whole prefix; the rest of the world is not the host's. */
	assert_true(is_host4(p, "127.9.9.9"));
	assert_false(is_host4(p, "198.51.100.7"));
	/* Nothing to read is no error. */
	assert_int_equal(net_hosts_read(h, p, &e), 0);
	net_hosts_close(h);
	free(h);
	free(p);
}

/* Gives lo an address and its prefix; the kernel takes the one from before away. */
static bool set_address(const char *text, const char *mask)
{
	struct ifreq r = {.ifr_name = "lo"};
	struct sockaddr_in a = {.sin_family = AF_INET};
	cleanup_fd int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET, text, &a.sin_addr);
	memcpy(&r.ifr_addr, &a, sizeof(a));
	if (s < 0 || ioctl(s, SIOCSIFADDR, &r) < 0)
		return false;
	inet_pton(AF_INET, mask, &a.sin_addr);
	memcpy(&r.ifr_netmask, &a, sizeof(a));
	return ioctl(s, SIOCSIFNETMASK, &r) == 0;
}

static bool set_up(void)
{
	struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	cleanup_fd int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	return s >= 0 && ioctl(s, SIOCSIFFLAGS, &r) == 0;
}

/* ip route add local ADDRESS/PREFIX dev lo */
static bool add_local(int s, uint32_t address, unsigned prefix)
{
	struct {
		struct nlmsghdr h;
		struct rtmsg m;
		struct rtattr to;
		uint32_t address;
		struct rtattr dev;
		uint32_t index;
	} q = {.h = {.nlmsg_len = sizeof(q),
		       .nlmsg_type = RTM_NEWROUTE,
		       .nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_ACK},
		.m = {.rtm_family = AF_INET,
			.rtm_dst_len = (uint8_t)prefix,
			.rtm_table = RT_TABLE_LOCAL,
			.rtm_protocol = RTPROT_STATIC,
			.rtm_scope = RT_SCOPE_HOST,
			.rtm_type = RTN_LOCAL},
		.to = {.rta_len = RTA_LENGTH(4), .rta_type = RTA_DST},
		.address = htonl(address),
		.dev = {.rta_len = RTA_LENGTH(4), .rta_type = RTA_OIF},
		.index = 1};
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
		char rest[256];
	} a;

	return send(s, &q, sizeof(q), 0) == sizeof(q) && recv(s, &a, sizeof(a), 0) > 0 &&
	       a.h.nlmsg_type == NLMSG_ERROR && a.e.error == 0;
}

/* Until this address is the host's, or is not. */
static bool follows(struct net_hosts *h, struct netframe_policy *p, const char *text, bool want)
{
	while (is_host4(p, text) != want) {
		struct pollfd f = {.fd = h->fd, .events = POLLIN};

		if (poll(&f, 1, 60000) != 1 || net_hosts_read(h, p, NULL) < 0)
			return false;
	}
	return true;
}

/* More than fit: told in so many words, at once or when they come. */
static bool too_many(int s, struct net_hosts *h, struct netframe_policy *p)
{
	static struct net_hosts other;
	struct err e = ERR_INIT;
	bool told = false;

	for (uint32_t i = 0; i <= NETFRAME_HOSTS_MAX; i++) {
		if (!add_local(s, 0x0b000000 + 2 * i, 32))
			return false;
	}
	while (!told) {
		struct pollfd f = {.fd = h->fd, .events = POLLIN};

		if (poll(&f, 1, 60000) != 1)
			return false;
		told = net_hosts_read(h, p, &e) < 0;
	}
	if (!p->closed || !strstr(e.text, "more than 8192 addresses"))
		return false;
	told = net_hosts_open(&other, p, &e) == -E2BIG;
	net_hosts_close(&other);
	return told;
}

/* 0: all was as it should be; 77: there is no network namespace to be had. */
static int change_addresses(void)
{
	static struct net_hosts h;
	static struct netframe_policy p;
	cleanup_fd int s = -1;

	if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
		return 77;
	s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	netframe_policy_init(&p, false);
	if (net_hosts_open(&h, &p, NULL) < 0 || p.n_hosts != 0)
		return 1;
	if (!set_up() || !set_address("10.9.0.1", "255.255.255.0"))
		return 2;
	/* A prefix on the loopback is the host's as a whole. */
	if (!follows(&h, &p, "10.9.0.1", true) || !follows(&h, &p, "10.9.0.77", true) ||
		is_host4(&p, "10.9.1.0"))
		return 3;
	if (!set_address("10.8.0.1", "255.255.255.255") || !follows(&h, &p, "10.8.0.1", true) ||
		!follows(&h, &p, "10.9.0.77", false))
		return 4;
	if (!add_local(s, 0x0a4d0000, 16) || !follows(&h, &p, "10.77.3.4", true))
		return 5;
	return too_many(s, &h, &p) ? 0 : 6;
}

static void test_hosts_change(void **state)
{
	pid_t pid = fork();
	int status;

	(void)state;
	if (pid == 0)
		_exit(change_addresses());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("skipped: this host refuses to confine by net\n");
		skip();
	}
	assert_int_equal(status, 0);
}

/* --- the relay --- */

static struct net_relay relay;
static struct net_page page;
static int vmm, helper; /* the far ends */
static uint64_t clock_ms = 1000;

static void connect_vmm(void)
{
	int s[2];

	assert_int_equal(fd_socketpair(s), 0);
	fd_set_nonblock(s[0], true);
	fd_set_nonblock(s[1], true);
	net_relay_set_vmm(&relay, s[0]);
	vmm = s[1];
}

static int setup(void **state)
{
	int s[2];

	(void)state;
	memset(&page, 0, sizeof(page));
	net_relay_init(&relay, &page, true, 42);
	connect_vmm();
	assert_int_equal(fd_socketpair(s), 0);
	fd_set_nonblock(s[0], true);
	fd_set_nonblock(s[1], true);
	net_relay_set_helper(&relay, s[0]);
	helper = s[1];
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	net_relay_done(&relay);
	fd_close(&vmm);
	fd_close(&helper);
	return 0;
}

/* A frame with its length in front: UDP with `n` bytes of payload, numbered. */
static size_t make_frame(uint8_t *f, bool out, const char *far, uint32_t number, size_t n)
{
	static const uint8_t macs[] = {2, 0x6d, 0x73, 0, 0, 1, 2, 0x6d, 0x73, 0, 0, 2, 8, 0};
	size_t ip = 28 + n, len = 14 + ip;
	uint8_t *p = f + 4;

	memset(f, 0, 4 + 14 + 28);
	f[0] = (uint8_t)(len >> 24);
	f[1] = (uint8_t)(len >> 16);
	f[2] = (uint8_t)(len >> 8);
	f[3] = (uint8_t)len;
	memcpy(p, macs + (out ? 0 : 6), 6);
	memcpy(p + 6, macs + (out ? 6 : 0), 6);
	p[12] = 8;
	p += 14;
	p[0] = 0x45;
	p[2] = (uint8_t)(ip >> 8);
	p[3] = (uint8_t)ip;
	p[8] = 64;
	p[9] = 17;
	inet_pton(AF_INET, out ? "100.96.0.2" : far, p + 12);
	inet_pton(AF_INET, out ? far : "100.96.0.2", p + 16);
	p += 20;
	p[0] = p[2] = 9; /* port 2304 to port 2304 */
	p[4] = (uint8_t)((8 + n) >> 8);
	p[5] = (uint8_t)(8 + n);
	p += 8;
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)((number + i) * 31 >> 3);
	return 4 + len;
}

#define WORLD "198.51.100.7"

static enum net_relay_end move(void)
{
	struct err e = ERR_INIT;

	return net_relay_move(&relay, clock_ms, &e);
}

static void say(int fd, const uint8_t *f, size_t len)
{
	assert_int_equal(send(fd, f, len, MSG_NOSIGNAL), len);
}

/* Exactly these bytes have come, and no more. */
static void hear(int fd, const uint8_t *f, size_t len)
{
	uint8_t got[70000];
	ssize_t n = recv(fd, got, sizeof(got), 0);

	assert_int_equal(n < 0 ? 0 : n, len);
	assert_memory_equal(got, f, len);
}

static void test_relay_passes(void **state)
{
	uint8_t f[4096];
	size_t n;

	(void)state;
	n = make_frame(f, true, WORLD, 1, 100);
	say(vmm, f, n);
	assert_int_equal(move(), NET_RELAY_ON);
	hear(helper, f, n);
	assert_int_equal(page.out_bytes, 100);
	assert_int_equal(page.active_ms, 1000);
	clock_ms = 2000;
	n = make_frame(f, false, WORLD, 2, 30);
	say(helper, f, n);
	assert_int_equal(move(), NET_RELAY_ON);
	hear(vmm, f, n);
	assert_int_equal(page.in_bytes, 30);
	assert_int_equal(page.active_ms, 2000);
	/* What nobody has asked for does not come in, and is no activity. */
	clock_ms = 3000;
	n = make_frame(f, false, "198.51.100.8", 2, 30);
	say(helper, f, n);
	assert_int_equal(move(), NET_RELAY_ON);
	hear(vmm, f, 0);
	assert_int_equal(page.active_ms, 2000);
	assert_int_equal(page.dropped, 0); /* of the guest's there was none */
}

/* One byte at a time, with frames that are dropped between those that pass. */
static void test_relay_pieces(void **state)
{
	uint8_t good[512], bad[512], runt[] = {0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3}, got[2048];
	size_t n = make_frame(good, true, WORLD, 1, 64),
	       m = make_frame(bad, true, "127.0.0.1", 1, 64), have = 0;
	ssize_t r;

	(void)state;
	for (int round = 0; round < 5; round++) {
		for (size_t i = 0; i < m; i++) {
			say(vmm, bad + i, 1);
			assert_int_equal(move(), NET_RELAY_ON);
		}
		say(vmm, runt, sizeof(runt));
		for (size_t i = 0; i < n; i++) {
			say(vmm, good + i, 1);
			assert_int_equal(move(), NET_RELAY_ON);
		}
	}
	while ((r = recv(helper, got + have, sizeof(got) - have, 0)) > 0)
		have += (size_t)r;
	assert_int_equal(have, 5 * n);
	for (int i = 0; i < 5; i++)
		assert_memory_equal(got + (size_t)i * n, good, n);
	assert_int_equal(page.dropped, 15);
}

/* A refusal comes between two frames of the helper's, also while one is half there. */
static void test_relay_refuses(void **state)
{
	uint8_t f[4096], g[4096], got[8192], *p = got;
	size_t n = make_frame(f, true, WORLD, 1, 10), m;
	ssize_t len;

	(void)state;
	say(vmm, f, n);
	assert_int_equal(move(), NET_RELAY_ON);
	hear(helper, f, n);
	n = make_frame(f, false, WORLD, 7, 1000);
	say(helper, f, n);
	say(helper, f, 500);
	assert_int_equal(move(), NET_RELAY_ON);
	m = make_frame(
		g, true, "100.96.0.1", 1, 10); /* port 2304 of the host is none of the list */
	for (int i = 0; i < 3; i++)
		say(vmm, g, m);
	assert_int_equal(move(), NET_RELAY_ON);
	say(helper, f + 500, n - 500);
	assert_int_equal(move(), NET_RELAY_ON);
	len = recv(vmm, got, sizeof(got), 0);
	assert_int_equal(page.refused, 3);
	assert_int_equal(page.dropped, 0);
	assert_memory_equal(p, f, n);
	p += n;
	for (int i = 0; i < 3; i++) {
		/* ICMP "port unreachable" from the gateway. */
		assert_memory_equal(p, "\0\0\0\106", 4);
		assert_int_equal(p[4 + 14 + 9], 1);
		assert_int_equal(p[4 + 14 + 20], 3);
		p += 4 + 70;
	}
	assert_memory_equal(p, f, n);
	assert_int_equal(p + n - got, len);
	hear(helper, f, 0);
}

static void test_relay_lengths(void **state)
{
	static const uint8_t bad[][4] = {{0, 1, 0, 18}, {0xff, 0xff, 0xff, 0xff}, {0x80, 0, 0, 0}};
	uint8_t *max = xcalloc(1, 4 + NETFRAME_MAX);
	struct err e = ERR_INIT;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		say(vmm, bad[i], 4);
		assert_int_equal(net_relay_move(&relay, 1, &e), NET_RELAY_VMM_BROKEN);
		assert_non_null(strstr(e.text, "a frame of"));
		assert_int_equal(relay.vmm, -1);
		fd_close(&vmm);
		connect_vmm();
		say(helper, bad[i], 4);
		assert_int_equal(net_relay_move(&relay, 1, &e), NET_RELAY_HELPER_BROKEN);
		teardown(NULL);
		setup(NULL);
	}
	/* The largest that there is, is no such thing. */
	max[1] = NETFRAME_MAX >> 16;
	max[2] = NETFRAME_MAX >> 8 & 255;
	max[3] = NETFRAME_MAX & 255;
	for (size_t at = 0; at < 4 + NETFRAME_MAX;) {
		ssize_t n = send(vmm, max + at, 4 + NETFRAME_MAX - at, MSG_NOSIGNAL);

		at += n > 0 ? (size_t)n : 0;
		assert_int_equal(move(), NET_RELAY_ON);
	}
	assert_int_equal(page.dropped, 1);
	free(max);
}

/* Fills one direction until the sender has to wait; then all comes out, in order. */
static void back_pressure(int from, int to, bool out)
{
	uint8_t *f = xmalloc(2048), *got = xmalloc(1 << 20), *want = xmalloc(2048);
	size_t sent = 0, have = 0, part = 0, n = 0;
	uint32_t number = 0, seen = 0;
	int idle = 0;

	/* More than every buffer on the way holds. */
	while (idle < 3) {
		ssize_t r;

		if (part == n) {
			n = make_frame(f, out, WORLD, number, 1 + number * 7 % 1400);
			number++;
			part = 0;
		}
		r = send(from, f + part, n - part, MSG_NOSIGNAL);
		idle = r > 0 ? 0 : idle + 1;
		part += r > 0 ? (size_t)r : 0;
		sent += r > 0 ? (size_t)r : 0;
		assert_int_equal(move(), NET_RELAY_ON);
	}
	/* Full: nothing more is asked for on this side. */
	assert_false((out ? net_relay_vmm_events : net_relay_helper_events)(&relay) & POLLIN);
	assert_true((out ? net_relay_helper_events : net_relay_vmm_events)(&relay) & POLLOUT);
	assert_true(sent > 100000);
	for (int spins = 0; seen < number; spins++) {
		ssize_t r = recv(to, got + have, (1 << 20) - have, 0);
		size_t at = 0, len;

		have += r > 0 ? (size_t)r : 0;
		while (have - at >= 4 &&
			have - at >= (len = 4 + ((size_t)got[at + 2] << 8 | got[at + 3]))) {
			assert_int_equal(
				len, make_frame(want, out, WORLD, seen, 1 + seen * 7 % 1400));
			assert_memory_equal(got + at, want, len);
			seen++;
			at += len;
		}
		memmove(got, got + at, have - at);
		have -= at;
		if (part < n && (r = send(from, f + part, n - part, MSG_NOSIGNAL)) > 0)
			part += (size_t)r;
		assert_int_equal(move(), NET_RELAY_ON);
		assert_true(spins < 1000000);
	}
	assert_int_equal(have, 0);
	free(f);
	free(got);
	free(want);
}

static void test_relay_back_pressure(void **state)
{
	(void)state;
	back_pressure(vmm, helper, true);
	back_pressure(helper, vmm, false);
	back_pressure(vmm, helper, true);
}

/* A boot that is repeated: what the new VMM sees begins with a frame, and the helper's stream goes
 * on as if nothing had been. */
static void test_relay_second_vmm(void **state)
{
	uint8_t f[2048], g[2048], got[4096];
	size_t n = make_frame(f, true, WORLD, 1, 500), m;
	ssize_t r;

	(void)state;
	say(vmm, f, n);
	say(vmm, f, 300); /* and no more */
	assert_int_equal(move(), NET_RELAY_ON);
	hear(helper, f, n);
	m = make_frame(g, false, WORLD, 2, 1000);
	/* So many that the last one is cut where the socket is full. */
	for (;;) {
		short before = net_relay_vmm_events(&relay);

		if (before & POLLOUT)
			break;
		say(helper, g, m);
		assert_int_equal(move(), NET_RELAY_ON);
	}
	say(helper, g, 700);
	assert_int_equal(move(), NET_RELAY_ON);
	fd_close(&vmm);
	assert_int_equal(move(), NET_RELAY_VMM_GONE);
	connect_vmm();
	say(helper, g + 700, m - 700);
	assert_int_equal(move(), NET_RELAY_ON);
	r = recv(vmm, got, sizeof(got), 0);
	assert_int_equal(r, m);
	assert_memory_equal(got, g, m);
	say(vmm, f, n);
	assert_int_equal(move(), NET_RELAY_ON);
	hear(helper, f, n);
}

static void test_relay_ends(void **state)
{
	uint8_t f[2048];
	size_t n = make_frame(f, true, WORLD, 1, 500);

	(void)state;
	/* The last words of a VMM that leaves are passed on. */
	say(vmm, f, n);
	fd_close(&vmm);
	while (relay.vmm >= 0)
		assert_true(move() == NET_RELAY_ON || relay.vmm < 0);
	hear(helper, f, n);
	assert_int_equal(net_relay_vmm_events(&relay), 0);
	fd_close(&helper);
	assert_int_equal(move(), NET_RELAY_HELPER_GONE);
	assert_int_equal(move(), NET_RELAY_ON); /* said once */
	assert_int_equal(net_relay_helper_events(&relay), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_route4),
		cmocka_unit_test(test_route6),
		cmocka_unit_test(test_facts_check),
		cmocka_unit_test(test_passt_args),
		cmocka_unit_test(test_page),
		cmocka_unit_test(test_hosts),
		cmocka_unit_test(test_hosts_change),
		cmocka_unit_test_setup_teardown(test_relay_passes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_relay_pieces, setup, teardown),
		cmocka_unit_test_setup_teardown(test_relay_refuses, setup, teardown),
		cmocka_unit_test_setup_teardown(test_relay_lengths, setup, teardown),
		cmocka_unit_test_setup_teardown(test_relay_back_pressure, setup, teardown),
		cmocka_unit_test_setup_teardown(test_relay_second_vmm, setup, teardown),
		cmocka_unit_test_setup_teardown(test_relay_ends, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
