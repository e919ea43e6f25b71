/* net_hosts - which addresses are this host's own, now and as they change.
 *
 * A netlink socket that is told of changes. What it is told is never believed in detail: each
 * change is a reason to ask for the whole list again, and so is having missed some.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/netframe.h"

struct net_hosts {
	int fd; /* non-blocking; to poll for POLLIN */
	bool asked, stale;
	size_t n4, n6; /* of the answer that is coming in; one more than fit is counted */
	uint8_t v4[NETFRAME_HOSTS_MAX + 1][4], v6[NETFRAME_HOSTS_MAX + 1][16];
};

/* Opens the socket, and waits for the first list. */
int net_hosts_open(struct net_hosts *h, struct netframe_policy *policy, struct err *e);
/* Reads what there is, and changes the policy when a list is complete. A negative errno: the socket
 * is of no use any more. */
int net_hosts_read(struct net_hosts *h, struct netframe_policy *policy, struct err *e);
void net_hosts_close(struct net_hosts *h);
