/* net - a guest's network: outbound, by passt, behind our own firewall.
 *
 *   guest's eth0 -- VMM -- socket pair -- __vm-boot -- socket pair -- passt -- sockets of the host
 *                                         net_relay
 *
 * passt turns frames into sockets of an unprivileged process: no interface, no privilege, no port
 * that is listened on. __vm-boot carries every frame (net_relay.h), judges it (wire/netframe.h) and
 * measures payload (net_page.h). The VMM itself stays in a network namespace without anything.
 *
 * This header is what the host has for that; net_link.h is the supervisor's side.
 */
#pragma once

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define NET_PASST "III_SANDBOX_PASST" /* a passt that is not in PATH */

struct net_facts {
	char *passt;	     /* full path; NULL: there is none */
	bool route4, route6; /* there is a default route */
	/* Of the IPv6 default route where there is no IPv4 one, so that passt does not look for
	 * that; else "". */
	char interface[IF_NAMESIZE];
};

/* What there is; never fails. */
void net_facts_get(struct net_facts *ret);
void net_facts_done(struct net_facts *f);

/* 0 when guests can have a network here; else S300 that says what to install or to set. */
int net_facts_check(const struct net_facts *f, struct err *e);

/* Whether this passt is of before August 2024 (it is run, to be asked what it knows). One of 2023
 * stalls what a guest is sent when the guest has closed its half of a connection. */
bool net_passt_is_old(const char *passt);

/* Reads lists of the kernel: whether there is a default route in /proc/net/route (`v6` false) or
 * /proc/net/ipv6_route, and the interface of the first one. */
bool net_default_route(const char *text, bool v6, char ret_interface[static IF_NAMESIZE]);
