/* reaper - which idle sandboxes are to go (sandbox contract §4). Time is an input. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define REAPER_TICK_MS 10000
/* A sandbox with work under way stays this much longer than that work may take. */
#define REAPER_WORK_GRACE_MS 60000

struct reaper_facts {
	uint64_t active_ms;	      /* of the latest activity */
	uint64_t idle_timeout_secs;   /* any value, UINT64_MAX included */
	uint64_t exec_timeout_max_ms; /* longest time one command may take */
	bool working;		      /* an exec or fs call is under way */
};

/* Idle for longer than its time, strictly. */
bool reaper_is_due(const struct reaper_facts *f, uint64_t now_ms);
