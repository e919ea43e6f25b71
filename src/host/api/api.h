/* api - the functions on the bus: sandbox contract §1 and worker VM specification §1, one file per
 * family.
 *
 * Each function is: read the payload (request.h), check, work in the pool or in a guest, answer
 * (reply.h). Nothing here blocks.
 */
#pragma once

#include "base/err.h"
#include "host/api/config.h"
#include "host/bus/bus.h"
#include "host/sandbox/pool.h"
#include "host/worker/worker.h"

#define API_NAME	   "sandbox-libkrun"
#define API_CONTRACT_MAJOR 1
#define API_CONTRACT_MINOR 1

struct api;

/* All must outlive the api. `version` is the adapter's own. */
struct api *api_new(struct bus *bus, struct pool *pool, struct workers *workers,
	const struct config *c, const char *version);
/* Registers all functions. */
int api_register(struct api *a, struct err *e);
/* A call whose payload could not be read gets S001; for bus_events.bad_call. */
void api_bad_call(struct bus_call *c, const struct err *why);
/* Refuses new calls and breaks off what moves files; calls under way end with pool and workers.
 * Before pool_close() and workers_close(). */
void api_stop(struct api *a);
/* After both have ended: logs of workers may still reach their readers for API_LAST_WORDS_MS; then
 * `closed` is called, from the loop, and nothing uses bus, pool and workers any more. */
#define API_LAST_WORDS_MS 2000
void api_close(struct api *a, void (*closed)(void *user), void *user);
void api_free(struct api *a); /* after `closed`, or before api_register(); NULL allowed */
