/* plain_init - the least PID 1: says that it runs, may pump a port, and waits to be ended.
 *
 * The yardstick for boot time (from the VMM's start to the first instruction of init) and for the
 * console port (what it carries with nothing above it). A word of the kernel command line that the
 * kernel does not know comes to us as a variable: `pump=BYTES` sends so many through the port
 * "bench", takes as many back and acknowledges them with one byte.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <unistd.h>

#include "base/str.h"

#define CHUNK (64u << 10) /* large writes are what a port likes */

static void say(const char *text)
{
	if (write(1, text, strlen(text)) < 0) {
		int fd = open("/dev/hvc0", O_WRONLY);

		if (fd < 0 || write(fd, text, strlen(text)) < 0)
			reboot(RB_AUTOBOOT);
	}
}

/* Ports have numbers that differ between VMMs: by name it is. */
static int open_port(const char *wanted)
{
	DIR *d = opendir("/sys/class/virtio-ports");
	struct dirent *e;

	while (d && (e = readdir(d))) {
		char path[300], name[64] = "";
		int fd;

		snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", e->d_name);
		fd = open(path, O_RDONLY);
		if (fd < 0)
			continue;
		if (read(fd, name, sizeof(name) - 1) < 0)
			name[0] = 0;
		close(fd);
		name[strcspn(name, "\n")] = 0;
		if (strcmp(name, wanted) != 0)
			continue;
		snprintf(path, sizeof(path), "/dev/%s", e->d_name);
		return open(path, O_RDWR);
	}
	return -1;
}

static void pump(uint64_t bytes)
{
	static char chunk[CHUNK];
	uint64_t done;
	ssize_t n;
	int fd;

	mount("sysfs", "/sys", "sysfs", 0, NULL);
	fd = open_port("bench");
	if (fd < 0) {
		say("no port\n");
		return;
	}
	/* The host says go, so that its clock starts with us. */
	if (read(fd, chunk, 1) != 1)
		return;
	for (done = 0; done < bytes; done += (uint64_t)n) {
		n = write(fd, chunk, bytes - done < CHUNK ? bytes - done : CHUNK);
		if (n <= 0)
			return;
	}
	for (done = 0; done < bytes; done += (uint64_t)n) {
		n = read(fd, chunk, CHUNK);
		if (n <= 0)
			return;
	}
	/* Stay until the host has seen it and ends us. */
	while (write(fd, "!", 1) == 1 && read(fd, chunk, 1) > 0)
		;
}

int main(void)
{
	const char *bytes = getenv("pump");
	uint64_t size;

	say("init\n");
	if (bytes && str_u64(bytes, &size) == 0)
		pump(size);
	/* A reboot would overtake the word on its way out of the VMM: the host ends us. */
	for (;;)
		pause();
}
