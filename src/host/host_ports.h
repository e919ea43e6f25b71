/* host_ports - which ports of this host a guest with a network may reach: the engine's, when the
 * engine is on this host, and those of III_SANDBOX_HOST_PORTS ("8080,9000-9010"; "" adds none).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define HOST_PORTS_ENV "III_SANDBOX_HOST_PORTS"
/* More, ranges counted one by one, is a refused start of the daemon. */
#define HOST_PORTS_MAX 1024

struct host_ports {
	uint16_t *ports; /* ascending, each once */
	size_t n;
};

/* engine_url: NULL for none; a name in it is looked up. -EINVAL names the variable and what it
 * takes. *ret is the caller's on success only. */
int host_ports_from_env(const char *engine_url, struct host_ports *ret, struct err *e);
/* The same from a text like the variable's (NULL: unset). */
int host_ports_parse(
	const char *list, const char *engine_url, struct host_ports *ret, struct err *e);
void host_ports_done(struct host_ports *p);
