/* Operations on the tree, then the disk, which a reader of its own checks: every folder sorted, its
 * dots right, every inode inside the disk, link counts and the number of inodes as in the tree.
 *
 * Each operation: one byte of what, then paths of a few short names, a byte a component. */
#include <assert.h>
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
#include "host/image/build.h"
#include "host/image/erofs.h"
#include "host/image/erofs_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Seven names of 250 bytes. */
#define PATH_ROOM 2048

struct input {
	const uint8_t *p, *end;
};

static uint8_t take(struct input *in)
{
	return in->p < in->end ? *in->p++ : 0;
}

/* Up to seven components: a letter, "..", or a long name; a leading slash where it may stand. */
static void take_path(struct input *in, char dst[static PATH_ROOM], bool target)
{
	static const char letters[] = "abcde-~!";
	uint8_t head = take(in);
	int n = head & 7, at = 0;

	dst[0] = '\0';
	if (target && head & 0x80)
		at += snprintf(dst, PATH_ROOM, "/");
	for (int i = 0; i < n; i++) {
		uint8_t c = take(in);
		const char *slash = i ? "/" : "";

		if (target && c >= 0xf0)
			at += snprintf(dst + at, PATH_ROOM - at, "%s..", slash);
		else if (c >= 0xe0)
			at += snprintf(
				dst + at, PATH_ROOM - at, "%s%0*d", slash, 40 + (c & 15) * 14, c);
		else
			at += snprintf(dst + at, PATH_ROOM - at, "%s%c", slash, letters[c & 7]);
	}
}

static void operate(struct tree *t, struct input *in)
{
	static const uint16_t modes[] = {S_IFREG | 0644, S_IFDIR | 0755, S_IFLNK | 0777,
		S_IFIFO | 0600, S_IFCHR | 0600, S_IFBLK | 0600};
	char path[PATH_ROOM], target[PATH_ROOM];
	struct tree_attr a = {.uid = 5, .gid = 6};
	uint8_t op = take(in);

	take_path(in, path, false);
	switch (op % 6) {
	case 0:
	case 1:
		a.mode = modes[op / 6 % ARRAY_LEN(modes)];
		a.target = target;
		if (S_ISLNK(a.mode))
			take_path(in, target, true);
		if (S_ISREG(a.mode))
			a.body.size = 0;
		tree_put(t, path, &a, NULL);
		break;
	case 2:
		take_path(in, target, false);
		tree_link(t, path, target, NULL);
		break;
	case 3:
		tree_whiteout(t, path, NULL);
		break;
	case 4:
		tree_opaque(t, path, NULL);
		break;
	default:
		tree_begin_layer(t);
	}
}

struct check {
	const uint8_t *disk;
	uint64_t size;
	uint32_t *names; /* of each slot of the disk: names that lead there */
	uint32_t inodes;
};

static const struct erofs_inode *inode_at(const struct check *c, uint64_t nid)
{
	assert(nid >= EROFS_BLOCK / EROFS_SLOT && (nid << EROFS_SLOT_BITS) + 64 <= c->size);
	return (const struct erofs_inode *)(c->disk + (nid << EROFS_SLOT_BITS));
}

/* The bytes of a folder's or symlink's block `i`. */
static const uint8_t *block_at(const struct check *c, uint64_t nid, uint64_t i, uint32_t *ret_len)
{
	const struct erofs_inode *ino = inode_at(c, nid);
	bool tail = ino->format >> 1 == EROFS_FLAT_INLINE && i == ino->size / EROFS_BLOCK;
	uint64_t at = tail ? (nid << EROFS_SLOT_BITS) + 64 : (uint64_t)(ino->u + i) * EROFS_BLOCK;

	*ret_len = (uint32_t)MIN((uint64_t)EROFS_BLOCK, ino->size - i * EROFS_BLOCK);
	assert(at + *ret_len <= c->size);
	if (tail)
		assert(at / EROFS_BLOCK == (at + *ret_len - 1) / EROFS_BLOCK);
	return c->disk + at;
}

static void check_dir(struct check *c, uint64_t nid, uint64_t parent)
{
	const struct erofs_inode *ino = inode_at(c, nid);
	char last[IMAGE_NAME_MAX + 1] = "";
	uint32_t dots = 0, subdirs = 0;

	for (uint64_t b = 0; b * EROFS_BLOCK < ino->size; b++) {
		uint32_t len, count;
		const uint8_t *block = block_at(c, nid, b, &len);
		const struct erofs_dirent *d = (const struct erofs_dirent *)block;

		count = d[0].name_offset / sizeof(*d);
		for (uint32_t i = 0; i < count; i++) {
			uint32_t end = i + 1 < count ? d[i + 1].name_offset : len;
			char name[IMAGE_NAME_MAX + 1];

			assert(d[i].name_offset < end && end <= len);
			if (i + 1 == count)
				end = d[i].name_offset +
				      strnlen((const char *)block + d[i].name_offset,
					      end - d[i].name_offset);
			assert(end - d[i].name_offset <= IMAGE_NAME_MAX);
			memcpy(name, block + d[i].name_offset, end - d[i].name_offset);
			name[end - d[i].name_offset] = '\0';
			assert(strcmp(last, name) < 0);
			memcpy(last, name, sizeof(last));
			if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
				assert(d[i].nid == (name[1] ? parent : nid));
				dots++;
				continue;
			}
			if (c->names[d[i].nid]++ == 0)
				c->inodes++;
			if (S_ISDIR(inode_at(c, d[i].nid)->mode)) {
				assert(d[i].file_type == EROFS_FT_DIR);
				assert(c->names[d[i].nid] == 1);
				subdirs++;
				check_dir(c, d[i].nid, nid);
			}
		}
	}
	assert(dots == 2 && ino->nlink == 2 + subdirs);
}

static void check_disk(const uint8_t *disk, uint64_t size, uint32_t inodes)
{
	struct check c = {.disk = disk,
		.size = size,
		.inodes = 1,
		.names = xcalloc(size / EROFS_SLOT, sizeof(uint32_t))};
	const struct erofs_sb *sb = (const struct erofs_sb *)(disk + EROFS_SB_OFFSET);

	assert(sb->magic == EROFS_SB_MAGIC && sb->blocks == size / EROFS_BLOCK);
	assert(sb->inodes == inodes);
	check_dir(&c, sb->root_nid, sb->root_nid);
	assert(c.inodes == inodes);
	for (uint64_t nid = 0; nid < size / EROFS_SLOT; nid++)
		if (c.names[nid] && !S_ISDIR(inode_at(&c, nid)->mode))
			assert(inode_at(&c, nid)->nlink == c.names[nid]);
	free(c.names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, data + size};
	struct erofs_source source = {-1, -1};
	struct erofs_write w = {
		.tree = tree_new(), .sources = &source, .n_sources = 1, .bytes_max = 1 << 30};
	cleanup_fd int fd = memfd_create("disk", MFD_CLOEXEC);
	struct erofs_stats stats;
	void *disk;

	w.out_fd = fd;
	tree_begin_layer(w.tree);
	for (int i = 0; i < 20000 && in.p < in.end; i++)
		operate(w.tree, &in);
	assert(erofs_write(&w, &stats, NULL) == 0);
	disk = mmap(NULL, stats.disk_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	assert(disk != MAP_FAILED);
	check_disk(disk, stats.disk_bytes, tree_inode_count(w.tree));
	munmap(disk, stats.disk_bytes);
	tree_free(w.tree);
	return 0;
}
