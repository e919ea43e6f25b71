#include "host/vm/net_hosts.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"

#define FIRST_MS 5000
/* Messages of one read; the kernel puts no more than 32 KiB into one. */
#define READ_MAX 32768

static int fail(struct err *e, int no, const char *what)
{
	return err_set(e, "S300", no,
		"cannot learn this host's own addresses, which a guest must not reach: %s: %s",
		what, err_str(no));
}

/* Where the kernel does not know how to give this table alone, it gives all of them. */
static int ask(struct net_hosts *h, int family)
{
	struct {
		struct nlmsghdr h;
		struct rtmsg m;
	} q = {.h = {.nlmsg_len = sizeof(q),
		       .nlmsg_type = RTM_GETROUTE,
		       .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
		       .nlmsg_seq = ++h->seq},
		.m = {.rtm_family = (uint8_t)family, .rtm_table = RT_TABLE_LOCAL}};

	if (family == AF_INET) {
		h->n = 0;
		h->stale = false;
	}
	if (send(h->fd, &q, sizeof(q), MSG_DONTWAIT) < 0)
		return -errno;
	h->family = family;
	return 0;
}

static bool is_local(const struct nlmsghdr *n)
{
	const struct rtmsg *m = NLMSG_DATA(n);

	return n->nlmsg_len >= NLMSG_LENGTH(sizeof(*m)) && m->rtm_table == RT_TABLE_LOCAL;
}

static void take_route(struct net_hosts *h, const struct nlmsghdr *n)
{
	static const uint8_t any[16];
	const struct rtmsg *m = NLMSG_DATA(n);
	const uint8_t *to = any; /* a prefix of no bits comes without an address */
	bool v6 = m->rtm_family == AF_INET6;
	int left;

	if (!is_local(n) || (!v6 && m->rtm_family != AF_INET))
		return;
	if (m->rtm_type != RTN_LOCAL && m->rtm_type != RTN_ANYCAST && m->rtm_type != RTN_BROADCAST)
		return;
	left = (int)RTM_PAYLOAD(n);
	for (const struct rtattr *a = RTM_RTA(m); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
		if (a->rta_type == RTA_DST && RTA_PAYLOAD(a) == (v6 ? 16u : 4u))
			to = RTA_DATA(a);
	}
	if (h->n <= NETFRAME_HOSTS_MAX &&
		netframe_host_set(&h->hosts[h->n], v6, to, m->rtm_dst_len))
		h->n++;
}

/* The answer to one question is there; `no` is what the kernel says against it, or 0. */
static int finish(struct net_hosts *h, struct netframe_policy *policy, int no, struct err *e)
{
	/* A kernel without the family, or with no address of it yet. */
	if (no && no != ENOENT && no != EOPNOTSUPP && no != EAFNOSUPPORT)
		return fail(e, no, "netlink");
	if (h->n > NETFRAME_HOSTS_MAX) {
		policy->closed = true;
		return err_set(e, "S300", E2BIG,
			"this host has more than %d addresses, of which a guest must be kept "
			"away: take some from its interfaces, or do without a network",
			NETFRAME_HOSTS_MAX);
	}
	if (h->family == AF_INET) {
		int r = ask(h, AF_INET6);

		return r < 0 ? fail(e, -r, "netlink") : 0;
	}
	h->family = 0;
	netframe_policy_hosts(policy, h->hosts, h->n);
	return 0;
}

/* The end of an answer, or a refusal, has an error number in front. */
static int error_of(const struct nlmsghdr *n)
{
	const int *no = NLMSG_DATA(n);

	return n->nlmsg_len >= NLMSG_LENGTH(sizeof(*no)) && *no < 0 ? -*no : 0;
}

static int take_message(struct net_hosts *h, struct netframe_policy *policy,
	const struct nlmsghdr *n, struct err *e)
{
	bool end = n->nlmsg_type == NLMSG_DONE || n->nlmsg_type == NLMSG_ERROR;

	/* Nobody else's change is in several parts. */
	if (h->family && n->nlmsg_seq == h->seq && (end || n->nlmsg_flags & NLM_F_MULTI)) {
		/* The table changed while it was read: it is read again. */
		if (n->nlmsg_flags & NLM_F_DUMP_INTR)
			h->stale = true;
		if (end)
			return finish(h, policy, error_of(n), e);
		if (n->nlmsg_type == RTM_NEWROUTE)
			take_route(h, n);
		return 0;
	}
	if ((n->nlmsg_type != RTM_NEWROUTE && n->nlmsg_type != RTM_DELROUTE) || is_local(n))
		h->stale = true;
	return 0;
}

int net_hosts_read(struct net_hosts *h, struct netframe_policy *policy, struct err *e)
{
	static _Alignas(struct nlmsghdr) char buf[READ_MAX];
	ssize_t n = recv(h->fd, buf, sizeof(buf), MSG_DONTWAIT);
	int left = n < 0 ? 0 : (int)n, r;

	/* Changes that were missed; an answer is never among what the kernel throws away. */
	if (n < 0 && errno == ENOBUFS)
		h->stale = true;
	else if (n < 0 && errno != EAGAIN && errno != EINTR)
		return fail(e, errno, "netlink");
	for (const struct nlmsghdr *m = (const void *)buf; NLMSG_OK(m, left);
		m = NLMSG_NEXT(m, left)) {
		if ((r = take_message(h, policy, m, e)) < 0)
			return r;
	}
	if (h->stale && !h->family && (r = ask(h, AF_INET)) < 0)
		return fail(e, -r, "netlink");
	return 0;
}

int net_hosts_open(struct net_hosts *h, struct netframe_policy *policy, struct err *e)
{
	/* An interface that goes down takes its routes along without a word for each. */
	struct sockaddr_nl a = {.nl_family = AF_NETLINK,
		.nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR | RTMGRP_IPV4_ROUTE |
			     RTMGRP_IPV6_ROUTE | RTMGRP_LINK};
	struct pollfd p;
	int r, on = 1;

	h->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
	h->family = 0;
	h->seq = 0;
	if (h->fd < 0 || bind(h->fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		return fail(e, errno, "netlink");
	setsockopt(h->fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &on, sizeof(on));
	if ((r = ask(h, AF_INET)) < 0)
		return fail(e, -r, "netlink");
	p = (struct pollfd){.fd = h->fd, .events = POLLIN};
	while (h->family) {
		r = poll(&p, 1, FIRST_MS);
		if (r == 0 || (r < 0 && errno != EINTR))
			return fail(e, r == 0 ? ETIMEDOUT : errno, "netlink");
		if ((r = net_hosts_read(h, policy, e)) < 0)
			return r;
	}
	return 0;
}

void net_hosts_close(struct net_hosts *h)
{
	fd_close(&h->fd);
}
