/* plan_net - the member "net" of a VM's plan: its network (net.h).
 *
 *   {"passt":"/usr/bin/passt","interface":"eth0","ipv6":true,"page_fd":14,"ports":[49134,…]}
 *
 * Read as strictly as the rest of the plan.
 */
#pragma once

#include <json-c/json_object.h>
#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define PLAN_PORTS_MAX 1040 /* III_SANDBOX_HOST_PORTS (1024) and those of engines */

struct plan_net {
	char *passt;		     /* absolute path; NULL: the guest has no network */
	char interface[IF_NAMESIZE]; /* that passt is to go by; "": it looks for a default route */
	bool ipv6;
	int page_fd;	 /* net_page.h */
	uint16_t *ports; /* of the host, that the guest may reach */
	size_t n_ports;
};

void plan_net_done(struct plan_net *n);
/* All but page_fd, which plan_check looks at. */
int plan_net_check(const struct plan_net *n, struct err *e);
json_object *plan_net_to_json(const struct plan_net *n);
/* *ret is zeroed by its owner, who frees it also when this fails. */
int plan_net_from_json(json_object *o, struct plan_net *ret, struct err *e);
