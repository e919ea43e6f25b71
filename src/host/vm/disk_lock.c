#include "host/vm/disk_lock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"

#define LOCK_AGAIN_MS 50

/* -EWOULDBLOCK: another VM has it. */
static int lock_one(const struct plan_disk *d, int stop_fd)
{
	int64_t until = clock_ms() + (d->throwaway ? 0 : DISK_LOCK_WAIT_MS);
	struct pollfd stop = {.fd = stop_fd, .events = POLLIN};

	while (flock(d->fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK || clock_ms() >= until)
			return -errno;
		if (poll(&stop, 1, LOCK_AGAIN_MS) > 0)
			return -ECANCELED;
	}
	return 0;
}

int disk_lock_all(const struct plan *p, int stop_fd, struct err *e)
{
	for (size_t i = 0; i < p->n_disks; i++) {
		const struct plan_disk *d = &p->disks[i];
		char path[64], name[512];
		ssize_t n;
		int r = d->readonly ? 0 : lock_one(d, stop_fd);

		if (r == 0)
			continue;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", d->fd);
		n = readlink(path, name, sizeof(name) - 1);
		name[n > 0 ? n : 0] = '\0';
		if (r == -EWOULDBLOCK)
			return err_set(e, "S300", -r, "another VM still uses the disk %s (%s)",
				d->role, name);
		if (r == -ECANCELED)
			return err_set(e, "S300", -r,
				"the VM was told to end while it waited for the disk %s (%s), "
				"which another VM uses",
				d->role, name);
		return err_set(e, "S300", -r, "cannot lock the disk %s (%s): %s", d->role, name,
			err_str(r));
	}
	return 0;
}
