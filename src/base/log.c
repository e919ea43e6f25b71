#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"

#define LINE_MAX_BYTES 4096 /* a longer line is cut */

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static enum log_level threshold = LOG_WARN;

void log_init(enum log_level fallback)
{
	const char *word = getenv("SANDBOX_LOG");

	threshold = fallback;
	if (!word || !*word)
		return;
	for (size_t i = 0; i < ARRAY_LEN(level_names); i++) {
		if (str_eq(word, level_names[i])) {
			threshold = (enum log_level)i;
			return;
		}
	}
	log_warn("unknown log level", "SANDBOX_LOG=%s use=error|warn|info|debug", log_quote(word));
}

bool log_enabled(enum log_level level)
{
	return level <= threshold;
}

void log_line(enum log_level level, const char *msg, const char *fmt, ...)
{
	char line[LINE_MAX_BYTES];
	size_t n;
	va_list ap;

	if (!log_enabled(level))
		return;
	n = (size_t)snprintf(
		line, sizeof(line) - 2, "level=%s msg=\"%s\" ", level_names[level], msg);
	n = MIN(n, sizeof(line) - 3);
	va_start(ap, fmt);
	vsnprintf(line + n, sizeof(line) - 1 - n, fmt, ap);
	va_end(ap);
	utf8_scrub(line);
	n = strlen(line);
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = ' ';
	line[n++] = '\n';
	/* One write, so that lines of several processes on one stderr do not mix. */
	fd_write_all(STDERR_FILENO, line, n);
}

const char *log_quote(const char *s)
{
	static _Thread_local char slots[4][1024];
	static _Thread_local unsigned next;
	char *dst = slots[next++ % ARRAY_LEN(slots)];
	size_t n = 0;

	dst[n++] = '"';
	for (; s && *s && n < sizeof(slots[0]) - 8; s++) {
		if (*s == '"' || *s == '\\')
			dst[n++] = '\\';
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			n += (size_t)snprintf(dst + n, 5, "\\x%02x", (unsigned char)*s);
		else
			dst[n++] = *s;
	}
	dst[n++] = '"';
	dst[n] = '\0';
	return dst;
}
