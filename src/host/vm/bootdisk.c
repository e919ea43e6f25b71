#include "host/vm/bootdisk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/fd.h"
#include "base/mem.h"

#ifdef BOOTDISK_FILE
#include "host/vm/bootdisk_id.h" /* generated: makes this file depend on the disk */

__asm__(".section .rodata.bootdisk, \"a\"\n"
	".balign 4096\n"
	"bootdisk_data:\n"
	".incbin \"" BOOTDISK_FILE "\"\n"
	"bootdisk_end:\n"
	".byte 0\n"
	".previous\n");
extern const uint8_t bootdisk_data[] __attribute__((visibility("hidden")));
extern const uint8_t bootdisk_end[] __attribute__((visibility("hidden")));

/* A sealed memfd is open for writing, though nobody can write; qemu wants a descriptor whose mode
 * is read-only for a read-only disk. */
static int open_embedded(struct err *e)
{
	size_t len = (size_t)(bootdisk_end - bootdisk_data);
	cleanup_fd int sealed = fd_sealed("boot.erofs", bootdisk_data, len);
	char path[48];
	int fd;

	/* It is read once: the daemon need not stay larger by these pages of the program's file. */
	madvise((void *)(uintptr_t)bootdisk_data, len & ~(size_t)4095, MADV_DONTNEED);
	if (sealed < 0)
		return err_set(e, "S300", sealed, "boot disk: %s", err_str(sealed));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", sealed);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? err_set(e, "S300", errno, "boot disk: %s", err_str(errno)) : fd;
}
#else
static int open_embedded(struct err *e)
{
	return err_set(e, "S300", ENOENT,
		"this program was built without the guest agent: III_SANDBOX_BOOT_DISK=FILE "
		"names its boot disk");
}
#endif

int bootdisk_fd(int *ret_fd, struct err *e)
{
	const char *path = getenv("III_SANDBOX_BOOT_DISK");
	static int fd = -1;

	if (fd < 0 && path && *path) {
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return err_set(e, "S300", errno, "III_SANDBOX_BOOT_DISK=%s: %s", path,
				err_str(errno));
	} else if (fd < 0) {
		fd = open_embedded(e);
	}
	if (fd < 0)
		return fd;
	*ret_fd = fd;
	return 0;
}
