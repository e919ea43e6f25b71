/* net_hosts - which addresses are this host's own, now and as they change.
 *
 * Its kernel says so: the routing table "local" has all that it takes for itself, the addresses of
 * interfaces, prefixes on the loopback, anycast and broadcast. A netlink socket is told of changes.
 * What it is told is never believed in detail: each change is a reason to ask for the whole table
 * again, and so is having missed some.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/netframe.h"

struct net_hosts {
	int fd;	      /* non-blocking; to poll for POLLIN */
	int family;   /* that is asked for, IPv4 before IPv6; 0: none */
	uint32_t seq; /* of that question */
	bool stale;
	size_t n; /* of the answer that is coming in; one more than fit is counted */
	struct netframe_host hosts[NETFRAME_HOSTS_MAX + 1];
};

/* Opens the socket, and waits for the first list. */
int net_hosts_open(struct net_hosts *h, struct netframe_policy *policy, struct err *e);
/* Reads what there is, and changes the policy when a list is complete. A negative errno: the list
 * cannot be known (any more), or is longer than NETFRAME_HOSTS_MAX. */
int net_hosts_read(struct net_hosts *h, struct netframe_policy *policy, struct err *e);
void net_hosts_close(struct net_hosts *h);
