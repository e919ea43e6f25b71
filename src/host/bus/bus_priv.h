/* bus_priv - what dispatch.c lends to channel.c. */
#pragma once

#include "host/bus/bus.h"
#include "host/bus/ws.h"

uv_loop_t *bus_loop(const struct bus *b);
struct ws_hub *bus_hub(const struct bus *b);
const char *bus_url_text(const struct bus *b);
const char *bus_token(const struct bus *b); /* or NULL */
