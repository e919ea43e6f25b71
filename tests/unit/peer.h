/* peer - another program's opinion: runs it with bytes on stdin and collects what it says. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"

extern char **environ;

/* Runs argv (looked up in PATH) with `in` on stdin in folder `dir` (NULL: here), appends its stdout
 * to `out`. The wait status, or a negative errno when it could not be run. */
static inline int peer_run(
	const char *const *argv, const char *dir, const void *in, size_t in_len, struct buf *out)
{
	int to[2], from[2], status = -EIO;
	size_t sent = 0;
	pid_t pid;
	posix_spawn_file_actions_t fa;
	int r;

	if (pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0)
		return -errno;
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, to[0], 0);
	posix_spawn_file_actions_adddup2(&fa, from[1], 1);
	if (dir)
		posix_spawn_file_actions_addchdir_np(&fa, dir);
	r = posix_spawnp(&pid, argv[0], &fa, NULL, (char *const *)argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	close(to[0]);
	close(from[1]);
	if (r != 0) {
		close(to[1]);
		close(from[0]);
		return -r;
	}
	fd_set_nonblock(to[1], true);
	for (;;) {
		struct pollfd p[2] = {{.fd = from[0], .events = POLLIN},
			{.fd = sent < in_len ? to[1] : -1, .events = POLLOUT}};
		ssize_t n;
		void *room;

		if (sent == in_len && to[1] >= 0)
			fd_close(&to[1]);
		if (poll(p, 2, -1) < 0)
			continue;
		if (p[1].revents) {
			n = write(to[1], (const char *)in + sent, in_len - sent);
			if (n > 0)
				sent += (size_t)n;
			else if (n < 0 && errno != EAGAIN)
				sent = in_len;
		}
		if (!p[0].revents)
			continue;
		room = buf_room(out, 65536);
		n = room ? read(from[0], room, 65536) : 0;
		if (n <= 0)
			break;
		buf_added(out, (size_t)n);
	}
	fd_close(&to[1]);
	close(from[0]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}
