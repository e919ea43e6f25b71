/* api - the sandbox functions on the bus: sandbox contract §1, one file per family.
 *
 * Each function is: read the payload (request.h), check, work in the pool or in a guest, answer
 * (reply.h). Nothing here blocks.
 */
#pragma once

#include "base/err.h"
#include "host/api/config.h"
#include "host/bus/bus.h"
#include "host/sandbox/pool.h"

#define API_NAME	   "sandbox-libkrun"
#define API_CONTRACT_MAJOR 1
#define API_CONTRACT_MINOR 1

struct api;

/* `c` must outlive the api; so must the two others. `version` is the adapter's own. */
struct api *api_new(
	struct bus *bus, struct pool *pool, const struct config *c, const char *version);
/* Registers all functions. */
int api_register(struct api *a, struct err *e);
/* A call whose payload could not be read gets S001; for bus_events.bad_call. */
void api_bad_call(struct bus_call *c, const struct err *why);
/* Breaks off what holds channels; everything else ends with the pool. Before pool_close(). */
void api_stop(struct api *a);
void api_free(struct api *a); /* after pool_close() has ended; NULL allowed */
