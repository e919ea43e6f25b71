/* log - what the program did, as lines of key=value on stderr.
 *
 *   log_info("vm started", "sandbox=%s tier=%s", id, tier);
 *   -> level=info msg="vm started" sandbox=… tier=…
 *
 * Only the top layers log (verbs, sandbox, api, bus, the boot child); below them a cause is
 * returned in a struct err. Never log a token, guest environment or file content. Control
 * characters in the line are replaced, so no value can forge a second line.
 */
#pragma once

#include <stdbool.h>

enum log_level {
	LOG_ERROR,
	LOG_WARN,
	LOG_INFO,
	LOG_DEBUG,
};

/* Starts at LOG_WARN; log_init reads SANDBOX_LOG (error, warn, info, debug) and falls back to
 * `fallback` when it is unset. An unknown word is itself reported once as a warning. */
void log_init(enum log_level fallback);
bool log_enabled(enum log_level level);

void log_line(enum log_level level, const char *msg, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#define log_error(msg, ...) log_line(LOG_ERROR, msg, __VA_ARGS__)
#define log_warn(msg, ...)  log_line(LOG_WARN, msg, __VA_ARGS__)
#define log_info(msg, ...)  log_line(LOG_INFO, msg, __VA_ARGS__)
#define log_debug(msg, ...) log_line(LOG_DEBUG, msg, __VA_ARGS__)

/* Writes `s` as a quoted value: "…" with \" \\ and \xNN escapes, cut at 1 KiB. The result lives in
 * one of four thread-local buffers, so at most four may stand in one log call. */
const char *log_quote(const char *s);
