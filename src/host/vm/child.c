#include "host/vm/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

/* Reads until the child's end is closed. 0, or -ETIMEDOUT. */
static int collect(int fd, int64_t deadline, char *out, size_t len)
{
	size_t got = 0;

	out[0] = '\0';
	for (;;) {
		char spill[256];
		int64_t left = deadline - clock_ms();
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

/* Waits for the child, which may live on after it closed its end of the pipe. */
static int collect_status(pid_t pid, int64_t deadline, int *ret_status)
{
	for (;;) {
		pid_t p = waitpid(pid, ret_status, WNOHANG);

		if (p == pid)
			return 0;
		if (p < 0 && errno != EINTR)
			return -errno;
		if (clock_ms() >= deadline)
			return -ETIMEDOUT;
		poll(NULL, 0, 1);
	}
}

int child_run(int (*fn)(int out_fd, void *arg), void *arg, int timeout_ms, char *out, size_t len)
{
	int64_t deadline = clock_ms() + timeout_ms;
	int pipefd[2], r, status = 0;
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
	r = collect(pipefd[0], deadline, out, len);
	fd_close(&pipefd[0]);
	if (r == 0)
		r = collect_status(pid, deadline, &status);
	if (r < 0) {
		kill(pid, SIGKILL);
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		return r;
	}
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -ECHILD;
}
