/* serve - the adapter's life on one loop: connect, read the configuration, serve, leave.
 *
 *   state       left when
 *   CONNECTING  the bus is up and the configuration is asked for -> ASKING
 *   ASKING      accepted: functions are registered -> SERVING; connection lost -> CONNECTING;
 *               refused -> CLOSING with exit status 2
 *   SERVING     a signal, serve_stop(), or the engine shuts us out -> CLOSING
 *   CLOSING     VMs ended, last lines of logs sent, connection closed -> `ended`
 *
 * SIGTERM, SIGINT and SIGHUP end it in order, with status 0; a second one at once.
 */
#pragma once

#include <stdbool.h>
#include <uv.h>

#include "base/err.h"
#include "host/bus/bus.h"
#include "host/host_ports.h"
#include "host/vm/vm.h"

/* For the engine to answer configuration::get; then exit status 2. */
#define SERVE_CONFIG_MS 30000

struct serve;

struct serve_options {
	struct bus_options bus;
	const char *config_id; /* of the configuration entry */
	enum vm_backend_choice backend;
	struct host_ports host_ports; /* borrowed */
	/* All functions are registered. May be NULL. */
	void (*ready)(void *user);
	/* The last callback, with the exit status of the process; the serve is gone. */
	void (*ended)(int status, void *user);
	void *user;
};

/* Strings must live as long as it does. NULL with a reason when it cannot even begin. */
struct serve *serve_new(uv_loop_t *loop, const struct serve_options *o, struct err *e);
void serve_stop(struct serve *s, int status);

/* III_CONFIG_NAME, else the adapter's own name. */
const char *serve_config_id(void);
/* The backend of III_SANDBOX_VMM, else krun; an error names the variable. */
int serve_backend_from_env(enum vm_backend_choice *ret, struct err *e);
