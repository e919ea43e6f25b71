/* The bytes of one or two layers through the whole build, into a disk in memory.
 *
 * Byte 0: bit 0 puts the check sums of tar headers right, so that mutated ones get past libarchive;
 * bit 1 splits the rest in two layers; bit 2 asks for digests that do not match. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "host/image/build.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fix_sums(uint8_t *p, size_t size)
{
	for (; size >= 512; p += 512, size -= 512) {
		unsigned sum = 8 * ' ';

		if (memcmp(p + 257, "ustar", 5) != 0)
			continue;
		for (int i = 0; i < 512; i++)
			sum += i < 148 || i >= 156 ? p[i] : 0;
		snprintf((char *)p + 148, 8, "%06o", sum);
		p[155] = ' ';
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int scratch = -1;
	struct image_layer layers[2] = {{.name = "one"}, {.name = "two"}};
	struct image_build b = {.layers = layers, .n_layers = 1, .threads = 2};
	cleanup_fd int out = memfd_create("disk", MFD_CLOEXEC), in = -1;
	cleanup_free uint8_t *copy = NULL;
	struct image_build_stats stats;
	struct err e = ERR_INIT;
	struct stat st;
	int r;

	if (scratch < 0)
		scratch = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (scratch < 0)
		scratch = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (size < 1)
		return 0;
	copy = xmalloc(size);
	memcpy(copy, data + 1, size - 1);
	if (data[0] & 1)
		fix_sums(copy, size - 1);
	in = memfd_create("layers", MFD_CLOEXEC);
	assert(in >= 0 && out >= 0 && fd_write_all(in, copy, size - 1) == 0);
	layers[0].fd = layers[1].fd = in;
	layers[0].size = size - 1;
	if (data[0] & 2) {
		b.n_layers = 2;
		layers[0].size = (size - 1) / 2 & ~(size_t)511;
		layers[1].offset = layers[0].size;
		layers[1].size = size - 1 - layers[0].size;
	}
	if (data[0] & 4)
		layers[0].digest = layers[0].diff_id = "sha256:00";
	b.out_fd = out;
	b.scratch_dirfd = scratch;
	r = image_build(&b, &stats, &e);
	if (r < 0) {
		assert(e.no == -r && e.text[0] && utf8_valid(e.text, strlen(e.text)));
		return 0;
	}
	assert(!(data[0] & 4));
	assert(fstat(out, &st) == 0 && (uint64_t)st.st_size == stats.disk_bytes);
	return 0;
}
