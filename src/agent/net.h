/* net - the guest's only network interface, eth0, as the host tells it (wire/guest_net.h).
 *
 * Static: nothing is asked of the network, and nothing said there changes it. The host names every
 * address, and the resolver.
 */
#pragma once

#include "agent/net_files.h"
#include "base/err.h"
#include "wire/guest_net.h"

/* Brings eth0 up with its addresses and default routes, and writes /etc/hosts and /etc/resolv.conf
 * (net_files.h). Waits for the driver to offer the interface. An IPv6 address in a guest whose
 * kernel has no IPv6 is said on the console and left; everything else that fails is an error. */
int net_start(const struct guest_net *net, enum net_localhost localhost, const char *hostname,
	struct err *e);
