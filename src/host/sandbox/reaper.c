#include "host/sandbox/reaper.h"

static uint64_t add_saturated(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

bool reaper_is_due(const struct reaper_facts *f, uint64_t now_ms)
{
	uint64_t idle_ms = now_ms > f->active_ms ? now_ms - f->active_ms : 0;
	uint64_t limit_ms;

	if (__builtin_mul_overflow(f->idle_timeout_secs, (uint64_t)1000, &limit_ms))
		limit_ms = UINT64_MAX;
	if (f->working)
		limit_ms = add_saturated(
			limit_ms, add_saturated(f->exec_timeout_max_ms, REAPER_WORK_GRACE_MS));
	return idle_ms > limit_ms;
}
