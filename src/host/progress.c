#include "host/progress.h"

#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"

#define BAR_CELLS_MAX 30
#define REDRAW_MS     100

static unsigned terminal_columns(void)
{
	struct winsize w;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) < 0 || !w.ws_col)
		return 80;
	return w.ws_col;
}

void progress_bar_init(struct progress_bar *bar, const char *what, bool quiet)
{
	*bar = (struct progress_bar){.what = what, .shown = !quiet && isatty(STDERR_FILENO)};
}

/* "python: pull   [#######.......]  52%  120 MiB of 240 MiB" */
void progress_bar_update(const struct image_progress *p, void *user)
{
	struct progress_bar *bar = user;
	char cells[BAR_CELLS_MAX + 1], done[16], total[16], line[256];
	uint64_t now = (uint64_t)clock_ms();
	unsigned full, i;
	int n;

	if (!bar->shown || (bar->drawn && now - bar->last_ms < REDRAW_MS))
		return;
	bar->last_ms = now;
	bar->drawn = true;
	str_human_size(p->done_bytes, done);
	str_human_size(p->total_bytes, total);
	if (!p->total_bytes) {
		n = snprintf(line, sizeof(line), "%s: %-6s %s", bar->what, p->stage, done);
	} else {
		double share = MIN((double)p->done_bytes / (double)p->total_bytes, 1.0);

		full = (unsigned)(share * BAR_CELLS_MAX);
		for (i = 0; i < BAR_CELLS_MAX; i++)
			cells[i] = i < full ? '#' : '.';
		cells[i] = '\0';
		n = snprintf(line, sizeof(line), "%s: %-6s [%s] %3u%%  %s of %s", bar->what,
			p->stage, cells, (unsigned)(share * 100), done, total);
	}
	n = (int)MIN((unsigned)n, MIN(terminal_columns() - 1, (unsigned)sizeof(line) - 1));
	fprintf(stderr, "\r\033[K%.*s", n, line);
	fflush(stderr);
}

void progress_bar_done(struct progress_bar *bar)
{
	if (bar->drawn)
		fputs("\r\033[K", stderr);
	bar->drawn = false;
}
