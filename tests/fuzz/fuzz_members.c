/* members: any bytes as an archive. Every place it names must lie inside the file. */
#include <assert.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "host/image/members.h"

static int scratch = -1;

static void look_up(const struct members *m, const char *name)
{
	struct member found;
	struct stat st;
	struct err e;

	if (members_find(m, name, false, &found, &e) < 0) {
		assert(e.text[0]);
		return;
	}
	assert(fstat(found.fd, &st) == 0);
	assert(found.offset <= (uint64_t)st.st_size);
	assert(found.size <= (uint64_t)st.st_size - found.offset);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const names[] = {"index.json", "./manifest.json", "a", "a/b", "a/../b",
		"../a", "/a", "l/layer.tar", "", ".", "blobs/sha256/x"};
	cleanup_fd int fd = memfd_create("archive", MFD_CLOEXEC);
	struct members *m;
	struct err e;
	char path[64];

	if (scratch < 0)
		scratch = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert(fd >= 0 && fd_write_all(fd, data, size) == 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (members_open(path, scratch, NULL, NULL, &m, &e) < 0) {
		assert(e.text[0]);
		return 0;
	}
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		look_up(m, names[i]);
	members_close(m);
	return 0;
}
