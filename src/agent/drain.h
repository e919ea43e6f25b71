/* drain - pipes that background programs still hold, read to nowhere.
 *
 * When an exec has been answered while a child of it goes on in the background, closing our end
 * would kill that child with SIGPIPE at its next line, and not reading would stop it once the pipe
 * is full (sandbox contract §1.4). So the read ends are kept here until every writer is gone.
 */
#pragma once

#include <uv.h>

/* Pipes kept at once. With one more the oldest is closed: its programs then get SIGPIPE or EPIPE if
 * they write again. Each costs a descriptor and about 250 bytes of the agent. */
#define DRAIN_PIPES_MAX 1024

void drain_start(uv_loop_t *loop);
/* Takes `fd`, the non-blocking read end of a pipe. */
void drain_take(int fd);
/* Closes all of them. */
void drain_stop(void);

/* Reads a piece of `fd` to nowhere: the count, 0 at the end, -EAGAIN, or another negative errno.
 * At most `max` bytes are taken. *ret (may be NULL) has them until the next call. */
ssize_t drain_read(int fd, uint64_t max, const char **ret);
