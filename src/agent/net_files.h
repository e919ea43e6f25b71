/* net_files - what programs in the guest read to learn names and resolver: /etc/hosts and
 * /etc/resolv.conf (worker VM specification §7.2).
 *
 * The image is somebody else's: /etc may be missing or a link, the files may be links that lead
 * nowhere. The folder is found inside the root, and the names in it are replaced, never followed.
 */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "wire/guest_net.h"

/* Whose loopback the name localhost means. */
enum net_localhost {
	NET_LOCALHOST_GUEST, /* a sandbox: programs in it talk to each other */
	NET_LOCALHOST_HOST,  /* a worker: a service of the host, as the worker's author knows it */
};

/* For a guest with a network: its name server, and
 *
 *   <gateway or 127.0.0.1> localhost
 *   <gateway> host.iii.internal
 *   127.0.0.1 <hostname>
 *
 * Files that say so already are left alone. */
int net_files_write(int root_fd, const struct guest_net *net, enum net_localhost localhost,
	const char *hostname, struct err *e);

/* For one without: "127.0.0.1 localhost <hostname>" where the image has an /etc and no hosts. */
int net_files_write_local(int root_fd, const char *hostname, struct err *e);
