#include "agent/console.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <termios.h>
#include <unistd.h>

#include "base/utf8.h"

#define SAY_WAIT_MS 100
#define SAY_POLL_MS 2

static int console_fd = STDERR_FILENO;

void console_start(void)
{
	int null;

	/* Most kernels have done it (CONFIG_DEVTMPFS_MOUNT): then this is EBUSY. */
	mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, NULL);
	/* Without a working console the kernel starts init with no descriptors at all, and the
	 * first pipe of an exec would become its stdin. */
	do
		null = open("/dev/null", O_RDWR);
	while (null >= 0 && null <= STDERR_FILENO);
	console_fd = open("/dev/console", O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	if (null < 0)
		return; /* no /dev: the disk of the boot is not ours, and init will say so */
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		dup2(null, fd);
	close(null);
}

/* A worker may hold the console just now: a line waits a little, since it is often the last that
 * is said. Then it is dropped, because nobody may hold the agent. */
static void put_line(const char *line, size_t len)
{
	for (int waited = 0; len && waited < SAY_WAIT_MS; waited += SAY_POLL_MS) {
		ssize_t n = write(console_fd, line, len);

		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return;
		if (n > 0) {
			line += n;
			len -= (size_t)n;
		}
		if (len)
			poll(NULL, 0, SAY_POLL_MS);
	}
}

void console_say(const char *fmt, ...)
{
	char line[1024] = "agent: ";
	size_t n = strlen(line);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line + n, sizeof(line) - 1 - n, fmt, ap);
	va_end(ap);
	utf8_scrub(line);
	n = strlen(line);
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = ' ';
	line[n++] = '\n';
	if (console_fd >= 0)
		put_line(line, n);
}

int console_open(void)
{
	int fd = open("/dev/console", O_WRONLY | O_NOCTTY | O_CLOEXEC);
	struct termios t;

	if (fd < 0)
		return -errno;
	/* A log has the program's bytes, not a terminal's line ends. */
	if (tcgetattr(fd, &t) == 0) {
		t.c_oflag &= ~(tcflag_t)OPOST;
		tcsetattr(fd, TCSANOW, &t);
	}
	return fd;
}
