/* How it works
 *
 * The old requests of netdevice(7), rtnetlink being more code for the same three facts. The sysctls
 * of IPv6 come before the interface is up, since that is when the kernel begins to act on them:
 * router advertisements are not listened to, and addresses are usable at once (no duplicate
 * address detection: nobody else is on this link). Without an IPv6 address the interface has no
 * IPv6 at all.
 */
#include "agent/net.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/console.h"
#include "agent/net_files.h"
#include "base/fd.h"
#include "base/mem.h"

#define NAME	"eth0"
#define CONF6	"/proc/sys/net/ipv6/conf/"
#define WAIT_MS 5000 /* for the driver; both VMMs' devices are there before init */
#define POLL_MS 5

/* struct in6_ifreq of <linux/ipv6.h>, which does not go together with <netinet/in.h> everywhere. */
struct in6_request {
	struct in6_addr addr;
	uint32_t prefix_len;
	int index;
};

static int fail(const char *what, struct err *e)
{
	return err_set(e, "S300", errno, "cannot %s of the network interface " NAME ": %s", what,
		err_str(errno));
}

/* The kernel's number of the interface. */
static int find(int fd, struct err *e)
{
	struct ifreq ifr = {.ifr_name = NAME};

	for (int waited = 0;; waited += POLL_MS) {
		if (ioctl(fd, SIOCGIFINDEX, &ifr) == 0)
			return ifr.ifr_ifindex;
		if (errno != ENODEV || waited >= WAIT_MS)
			break;
		poll(NULL, 0, POLL_MS);
	}
	if (errno != ENODEV)
		return fail("find the number", e);
	return err_set(e, "S300", ENODEV,
		"the guest has no network interface " NAME
		": the VM was started without one, or the guest's kernel has no driver for it");
}

static int set_flags_up(int fd, struct err *e)
{
	struct ifreq ifr = {.ifr_name = NAME};

	if (ioctl(fd, SIOCGIFFLAGS, &ifr) < 0)
		return fail("read the flags", e);
	ifr.ifr_flags |= IFF_UP;
	return ioctl(fd, SIOCSIFFLAGS, &ifr) < 0 ? fail("bring up the link", e) : 0;
}

/* --- IPv4 --- */

static void put_in(struct sockaddr *dst, const void *address)
{
	struct sockaddr_in sin = {.sin_family = AF_INET};

	memcpy(&sin.sin_addr, address, sizeof(sin.sin_addr));
	memcpy(dst, &sin, sizeof(sin));
}

static int set_address(int fd, const struct guest_net *net, struct err *e)
{
	const uint32_t mask = htonl(net->prefix ? UINT32_MAX << (32 - net->prefix) : 0);
	struct ifreq ifr = {.ifr_name = NAME};

	ifr.ifr_mtu = (int)net->mtu;
	if (ioctl(fd, SIOCSIFMTU, &ifr) < 0)
		return fail("set the MTU", e);
	put_in(&ifr.ifr_addr, net->address);
	if (ioctl(fd, SIOCSIFADDR, &ifr) < 0)
		return fail("set the address", e);
	put_in(&ifr.ifr_netmask, &mask);
	return ioctl(fd, SIOCSIFNETMASK, &ifr) < 0 ? fail("set the netmask", e) : 0;
}

static int set_route(int fd, const struct guest_net *net, struct err *e)
{
	static const uint8_t any[4] = {0};
	char name[] = NAME;
	struct rtentry rt = {.rt_flags = RTF_UP | RTF_GATEWAY, .rt_dev = name};

	put_in(&rt.rt_dst, any);
	put_in(&rt.rt_genmask, any);
	put_in(&rt.rt_gateway, net->gateway);
	return ioctl(fd, SIOCADDRT, &rt) < 0 && errno != EEXIST ? fail("set the default route", e)
								: 0;
}

/* --- IPv6 --- */

static int set_conf6(const char *key, const char *value)
{
	cleanup_free char *path = xasprintf(CONF6 NAME "/%s", key);
	cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);

	return fd < 0 ? -errno : fd_write_all(fd, value, strlen(value));
}

/* Before the link is up. True when there will be IPv6. */
static int prepare6(const struct guest_net *net, bool *ret_on, struct err *e)
{
	static const char *const off[] = {"accept_ra", "autoconf", "accept_dad", "dad_transmits"};
	int r;

	*ret_on = false;
	if (access(CONF6 NAME, F_OK) < 0) {
		if (net->has6)
			console_say("the kernel of this guest has no IPv6: only IPv4 is there");
		return 0;
	}
	r = set_conf6("disable_ipv6", net->has6 ? "0" : "1");
	if (!net->has6)
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(off) && r == 0; i++)
		r = set_conf6(off[i], "0");
	if (r < 0)
		return err_set(e, "S300", -r, "cannot configure IPv6 of " NAME ": %s", err_str(r));
	*ret_on = true;
	return 0;
}

static int set_address6(int fd, int index, const struct guest_net *net, struct err *e)
{
	struct in6_request req = {.prefix_len = net->prefix6, .index = index};
	struct in6_rtmsg rt = {
		.rtmsg_flags = RTF_UP | RTF_GATEWAY, .rtmsg_metric = 1, .rtmsg_ifindex = index};

	memcpy(&req.addr, net->address6, sizeof(req.addr));
	memcpy(&rt.rtmsg_gateway, net->gateway6, sizeof(rt.rtmsg_gateway));
	if (ioctl(fd, SIOCSIFADDR, &req) < 0 && errno != EEXIST)
		return fail("set the IPv6 address", e);
	return ioctl(fd, SIOCADDRT, &rt) < 0 && errno != EEXIST
		       ? fail("set the IPv6 default route", e)
		       : 0;
}

static int configure(const struct guest_net *net, struct err *e)
{
	cleanup_fd int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), fd6 = -1;
	bool with6;
	int index, r;

	if (fd < 0)
		return err_set(e, "S300", errno,
			"the guest's kernel has no IPv4: cannot make a socket: %s", err_str(errno));
	index = find(fd, e);
	if (index < 0)
		return index;
	r = prepare6(net, &with6, e);
	if (r == 0)
		r = set_address(fd, net, e);
	if (r == 0)
		r = set_flags_up(fd, e);
	if (r == 0)
		r = set_route(fd, net, e);
	if (r < 0 || !with6)
		return r;
	fd6 = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	return fd6 < 0 ? fail("make a socket for IPv6", e) : set_address6(fd6, index, net, e);
}

int net_start(const struct guest_net *net, enum net_localhost localhost, const char *hostname,
	struct err *e)
{
	cleanup_fd int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r;

	if (root < 0)
		return err_set(e, "S300", errno, "cannot open /: %s", err_str(errno));
	r = configure(net, e);
	return r < 0 ? r : net_files_write(root, net, localhost, hostname, e);
}
