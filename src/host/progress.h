/* progress - how far a fetch has come: a bar on a terminal, nothing elsewhere. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "host/image/image.h"

struct progress_bar {
	const char *what; /* borrowed */
	bool shown;	  /* stderr is a terminal and the caller is not quiet */
	bool drawn;
	uint64_t last_ms;
};

void progress_bar_init(struct progress_bar *bar, const char *what, bool quiet);
/* Fits image_progress_fn; `bar` is a struct progress_bar. Redraws at most ten times a second. */
void progress_bar_update(const struct image_progress *p, void *bar);
/* Removes the bar, so that the next line starts clean. */
void progress_bar_done(struct progress_bar *bar);
