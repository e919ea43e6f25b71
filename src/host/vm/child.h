/* child - a function run in a process of its own, with a time limit.
 *
 * For what must not be able to harm the daemon: a KVM that never comes back, a library that
 * crashes when loaded. Blocks the caller for at most the limit.
 */
#pragma once

#include <stddef.h>

/* Runs fn(out_fd, arg) in a forked child, which then exits; collects at most len - 1 bytes that it
 * wrote to out_fd into `out` (NUL-terminated). 0 when it exited with 0 in time; -ETIMEDOUT when it
 * was killed for the limit; -ECHILD when it died of a signal or exited otherwise; or a negative
 * errno when it could not be started. */
int child_run(int (*fn)(int out_fd, void *arg), void *arg, int timeout_ms, char *out, size_t len);
