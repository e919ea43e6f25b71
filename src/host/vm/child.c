#include "host/vm/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Reads until the child's end is closed. 0, or -ETIMEDOUT. */
static int collect(int fd, int timeout_ms, char *out, size_t len)
{
	int64_t deadline = now_ms() + timeout_ms;
	size_t got = 0;

	out[0] = '\0';
	for (;;) {
		char spill[256];
		int64_t left = deadline - now_ms();
		struct pollfd p = {.fd = fd, .events = POLLIN};
		bool full = got + 1 >= len;
		ssize_t n;

		if (left <= 0 || poll(&p, 1, (int)left) == 0)
			return -ETIMEDOUT;
		n = read(fd, full ? spill : out + got, full ? sizeof(spill) : len - 1 - got);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		if (!full) {
			got += (size_t)n;
			out[got] = '\0';
		}
	}
}

int child_run(int (*fn)(int out_fd, void *arg), void *arg, int timeout_ms, char *out, size_t len)
{
	int pipefd[2], r, status;
	pid_t pid;

	if (pipe2(pipefd, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid < 0) {
		r = -errno;
		fd_close(&pipefd[0]);
		fd_close(&pipefd[1]);
		return r;
	}
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(fn(pipefd[1], arg));
	}
	fd_close(&pipefd[1]);
	r = collect(pipefd[0], timeout_ms, out, len);
	fd_close(&pipefd[0]);
	/* The pipe's end may be closed by a child that lives on. */
	if (r < 0)
		kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0) {
		if (errno != EINTR)
			return -errno;
	}
	if (r < 0)
		return r;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -ECHILD;
}
