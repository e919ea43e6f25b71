/* guest_net - the guest's only network interface, as the host tells it on the port iii.env.
 *
 * The member "net" of that frame (agent/env.h); without it the guest has no interface but lo.
 *
 *   {"address":"100.96.0.2","prefix":30,"gateway":"100.96.0.1","dns":"100.96.0.1","mtu":1500,
 *    "address6":"fd6d:7300::2","prefix6":64,"gateway6":"fd6d:7300::1"}     the last three or none
 *
 * Every VM has the same addresses: the networks of two VMs never meet (worker VM specification §7).
 */
#pragma once

#include <json-c/json_object.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define GUEST_NET_ADDRESS     "100.96.0.2"
#define GUEST_NET_GATEWAY     "100.96.0.1" /* the host's loopback, and the resolver */
#define GUEST_NET_PREFIX      30
#define GUEST_NET_ADDRESS6    "fd6d:7300::2"
#define GUEST_NET_GATEWAY6    "fd6d:7300::1"
#define GUEST_NET_PREFIX6     64
#define GUEST_NET_MTU	      1500
#define GUEST_NET_MAC	      "02:6d:73:00:00:02" /* the guest's */
#define GUEST_NET_GATEWAY_MAC "02:6d:73:00:00:01"

struct guest_net {
	uint8_t address[4], gateway[4], dns[4];
	uint8_t address6[16], gateway6[16];
	bool has6;
	unsigned prefix, prefix6, mtu;
};

/* A MAC address of above as bytes. */
void guest_net_mac(const char *text, uint8_t ret[static 6]);

/* The addresses above; with IPv6 or without. */
void guest_net_default(struct guest_net *n, bool with6);

json_object *guest_net_to_json(const struct guest_net *n);
int guest_net_from_json(json_object *o, struct guest_net *ret, struct err *e);
