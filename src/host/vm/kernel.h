/* kernel - the guest's kernel as one file that libkrun and qemu both boot.
 *
 * It is libkrunfw's, taken out of the library once and kept in the cache; III_SANDBOX_KERNEL=FILE
 * takes another (an ELF on x86-64). vmm.md §2.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "host/vm/plan.h"

#define KERNEL_SIZE_MAX	 (256u << 20) /* a larger file is refused as not being a kernel */
#define KERNEL_CACHE_MAX 4	      /* kernels kept in the cache; the oldest go */

struct kernel {
	int fd; /* read-only, owned by the caller */
	enum plan_kernel_format format;
	bool pvh;    /* an ELF that qemu can start */
	bool chosen; /* named by III_SANDBOX_KERNEL */
};

/* Opens the kernel, taking it out of libkrunfw first where needed. S300 with what to install. */
int kernel_open(struct kernel *ret, struct err *e);

/* --- the parts, for tests --- */

struct kernel_image {
	const uint8_t *data;
	size_t size;
	uint64_t load;	/* physical address of data[0] */
	uint64_t entry; /* 64-bit entry point */
	bool mapped; /* `data` is the unchanged mapping of a file: its pages come back by themselves
		      */
};

#define KERNEL_HEAD_BYTES 4096

/* What comes before the image in an ELF file: one loadable segment at its physical address, e_entry
 * for libkrun, and a copy of the kernel's own PVH note (the address of its 32-bit entry), which
 * qemu wants. Fails with -EINVAL when the note is missing, doubled, or names an address outside the
 * image: then the kernel is not one that qemu could boot and this program was not made for it. */
int kernel_elf_head(
	const struct kernel_image *img, uint8_t ret[static KERNEL_HEAD_BYTES], struct err *e);

/* Is it an ELF kernel of this machine? 0 and *ret_pvh, or -EINVAL with what is wrong. */
int kernel_check_elf(int fd, const char *name, bool *ret_pvh, struct err *e);
