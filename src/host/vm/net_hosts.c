#include "host/vm/net_hosts.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

#define FIRST_MS 5000
/* Messages of one read; the kernel puts no more than 32 KiB into one. */
#define READ_MAX 32768

static int fail(struct err *e, int no, const char *what)
{
	return err_set(e, "S300", no,
		"cannot learn this host's own addresses, which a guest must not reach: %s: %s",
		what, err_str(no));
}

static int ask(struct net_hosts *h)
{
	struct {
		struct nlmsghdr h;
		struct ifaddrmsg m;
	} q = {.h = {.nlmsg_len = sizeof(q),
		       .nlmsg_type = RTM_GETADDR,
		       .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
		.m = {.ifa_family = AF_UNSPEC}};

	h->n4 = h->n6 = 0;
	h->stale = false;
	if (send(h->fd, &q, sizeof(q), MSG_DONTWAIT) < 0)
		return -errno;
	h->asked = true;
	return 0;
}

static void note4(struct net_hosts *h, const void *a)
{
	if (h->n4 <= NETFRAME_HOSTS_MAX)
		memcpy(h->v4[h->n4++], a, 4);
}

static void note6(struct net_hosts *h, const void *a)
{
	if (h->n6 <= NETFRAME_HOSTS_MAX)
		memcpy(h->v6[h->n6++], a, 16);
}

/* An interface's own end of a point-to-point link is IFA_LOCAL, else IFA_ADDRESS is meant. */
static void take_address(struct net_hosts *h, const struct nlmsghdr *n)
{
	const struct ifaddrmsg *m = NLMSG_DATA(n);
	const void *address = NULL, *local = NULL;
	unsigned left;

	if (n->nlmsg_len < NLMSG_LENGTH(sizeof(*m)))
		return;
	left = (unsigned)IFA_PAYLOAD(n);
	for (const struct rtattr *a = IFA_RTA(m); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
		if (RTA_PAYLOAD(a) != (m->ifa_family == AF_INET ? 4u : 16u))
			continue;
		if (a->rta_type == IFA_LOCAL)
			local = RTA_DATA(a);
		else if (a->rta_type == IFA_ADDRESS)
			address = RTA_DATA(a);
	}
	if (!local)
		local = address;
	if (local && m->ifa_family == AF_INET)
		note4(h, local);
	else if (local && m->ifa_family == AF_INET6)
		note6(h, local);
}

/* 0, or what the kernel says against our question. */
static int take_message(
	struct net_hosts *h, struct netframe_policy *policy, const struct nlmsghdr *n)
{
	const struct nlmsgerr *r = NLMSG_DATA(n);

	if (!h->asked || !(n->nlmsg_flags & NLM_F_MULTI)) {
		if (n->nlmsg_type == NLMSG_ERROR && n->nlmsg_len >= NLMSG_LENGTH(sizeof(*r)))
			return r->error;
		h->stale = true; /* somebody else's change */
		return 0;
	}
	/* The list changed while it was read: it is read again. */
	if (n->nlmsg_flags & NLM_F_DUMP_INTR)
		h->stale = true;
	if (n->nlmsg_type == RTM_NEWADDR) {
		take_address(h, n);
	} else if (n->nlmsg_type == NLMSG_DONE) {
		h->asked = false;
		netframe_policy_hosts(policy, h->v4, h->n4, h->v6, h->n6);
	}
	return 0;
}

int net_hosts_read(struct net_hosts *h, struct netframe_policy *policy, struct err *e)
{
	static _Alignas(struct nlmsghdr) char buf[READ_MAX];
	ssize_t n = recv(h->fd, buf, sizeof(buf), MSG_DONTWAIT);
	size_t left = n < 0 ? 0 : (size_t)n;
	int r;

	if (n < 0 && errno == ENOBUFS) {
		h->stale = true;
		h->asked = false;
	} else if (n < 0 && errno != EAGAIN && errno != EINTR) {
		return fail(e, errno, "netlink");
	}
	for (const struct nlmsghdr *m = (const void *)buf; NLMSG_OK(m, left);
		m = NLMSG_NEXT(m, left)) {
		if ((r = take_message(h, policy, m)) < 0)
			return fail(e, -r, "netlink");
	}
	if (h->stale && !h->asked && (r = ask(h)) < 0)
		return fail(e, -r, "netlink");
	return 0;
}

int net_hosts_open(struct net_hosts *h, struct netframe_policy *policy, struct err *e)
{
	struct sockaddr_nl a = {
		.nl_family = AF_NETLINK, .nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};
	struct pollfd p;
	int r;

	*h = (struct net_hosts){
		.fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)};
	if (h->fd < 0 || bind(h->fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		return fail(e, errno, "netlink");
	if ((r = ask(h)) < 0)
		return fail(e, -r, "netlink");
	p = (struct pollfd){.fd = h->fd, .events = POLLIN};
	while (h->asked || h->stale) {
		if (poll(&p, 1, FIRST_MS) <= 0 && errno != EINTR)
			return fail(e, ETIMEDOUT, "netlink");
		if ((r = net_hosts_read(h, policy, e)) < 0)
			return r;
	}
	return 0;
}

void net_hosts_close(struct net_hosts *h)
{
	fd_close(&h->fd);
}
