/* erofs: the disk, read back by fsck.erofs and, as root, by the kernel. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/image/body.h"
#include "host/image/build.h"
#include "host/image/erofs.h"
#include "host/image/erofs_format.h"
#include "host/image/xattr.h"

extern char **environ;

static char work[] = "/var/tmp/test-erofs-XXXXXX";
static int workfd = -1;

static int setup(void **state)
{
	if (!mkdtemp(work))
		return 1;
	workfd = open(work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return workfd < 0;
}

static int teardown(void **state)
{
	close(workfd);
	return path_remove_at(AT_FDCWD, work);
}

/* Runs a program; its exit status. */
static int run(const char *const argv[])
{
	pid_t pid;
	int status;

	assert_int_equal(posix_spawnp(&pid, argv[0], NULL, NULL, (char *const *)argv, environ), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct maker {
	struct tree *tree;
	struct body_sink bodies;
};

static void maker_init(struct maker *m)
{
	m->tree = tree_new();
	tree_begin_layer(m->tree);
	assert_int_equal(body_sink_open(&m->bodies, workfd, NULL), 0);
}

static void maker_done(struct maker *m)
{
	tree_free(m->tree);
	body_sink_done(&m->bodies);
}

static uint8_t content_byte(uint64_t seed, uint64_t i)
{
	return (uint8_t)((seed * 2654435761u + i * 40503u) >> 7);
}

static uint8_t *content(uint64_t size)
{
	uint8_t *p = xmalloc(size);

	for (uint64_t i = 0; i < size; i++)
		p[i] = content_byte(size, i);
	return p;
}

/* A file of `size` bytes that tell each size from every other. */
static void add_file(struct maker *m, const char *path, uint64_t size, struct tree_attr a)
{
	cleanup_free uint8_t *data = content(size);

	a.mode |= S_IFREG;
	assert_int_equal(body_begin(&m->bodies, size, a.xattrs_len, 0), 0);
	/* In pieces, so that the sink's borders are met. */
	for (uint64_t at = 0; at < size;) {
		size_t n = MIN(size - at, at % 7 * 1000 + 1);

		assert_int_equal(body_data(&m->bodies, data + at, n), 0);
		at += n;
	}
	assert_int_equal(body_data(&m->bodies, "x", 1), -EINVAL);
	assert_int_equal(body_end(&m->bodies, &a.body), 0);
	assert_int_equal(tree_put(m->tree, path, &a, NULL), 0);
}

static void add(struct maker *m, const char *path, struct tree_attr a)
{
	assert_int_equal(tree_put(m->tree, path, &a, NULL), 0);
}

/* Writes the disk to work/NAME. */
static int write_disk(struct maker *m, const char *name, unsigned threads, struct err *e)
{
	struct erofs_source source = {m->bodies.data_fd, m->bodies.tail_fd};
	struct erofs_write w = {.tree = m->tree,
		.sources = &source,
		.n_sources = 1,
		.bytes_max = IMAGE_BYTES_MAX,
		.threads = threads};
	cleanup_fd int fd = openat(workfd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct erofs_stats stats;
	struct stat st;
	int r;

	assert_true(fd >= 0);
	w.out_fd = fd;
	memset(w.uuid, 0xab, sizeof(w.uuid));
	r = erofs_write(&w, &stats, e);
	if (r == 0) {
		assert_int_equal(fstat(fd, &st), 0);
		assert_int_equal((uint64_t)st.st_size, stats.disk_bytes);
		assert_int_equal(st.st_size % EROFS_BLOCK, 0);
	}
	return r;
}

static void check_content(int dirfd, const char *path, uint64_t size)
{
	cleanup_fd int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
	cleanup_free uint8_t *want = content(size), *got = xmalloc(size + 1);

	if (fd < 0)
		fail_msg("%s: %s", path, err_str(errno));
	assert_int_equal(fd_read_full(fd, got, size + 1), size);
	if (memcmp(got, want, size))
		fail_msg("%s: other content", path);
}

/* Calls `check` on what fsck.erofs extracts and, as root, on what the kernel mounts. */
static void read_back(const char *name, void (*check)(int dirfd, bool kernel))
{
	cleanup_free char *disk = path_join(work, name), *where = path_join(work, "out"),
			  *option = xasprintf("--extract=%s", where);
	bool root = geteuid() == 0;
	int dirfd;

	path_remove_at(workfd, "out");
	assert_int_equal(run((const char *const[]){"fsck.erofs", option, disk, NULL}), 0);
	dirfd = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(dirfd >= 0);
	check(dirfd, false);
	close(dirfd);
	path_remove_at(workfd, "out");
	if (!root)
		return;
	assert_int_equal(mkdirat(workfd, "out", 0700), 0);
	assert_int_equal(run((const char *const[]){
				 "mount", "-t", "erofs", "-o", "loop,ro", disk, where, NULL}),
		0);
	dirfd = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	check(dirfd, true);
	close(dirfd);
	assert_int_equal(umount2(where, 0), 0);
}

static const uint64_t sizes[] = {0, 1, 2, 31, 32, 33, 4031, 4032, 4033, 4095, 4096, 4097, 8127,
	8128, 8129, 8192, 12288 + 4032, 65536, 100001, 1048576, 1048577, 3000000};

static void check_sizes(int dirfd, bool kernel)
{
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		char path[32];

		snprintf(path, sizeof(path), "%llu", (unsigned long long)sizes[i]);
		check_content(dirfd, path, sizes[i]);
	}
}

static void every_size_comes_back(void **state)
{
	struct maker m;

	maker_init(&m);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		char path[32];

		snprintf(path, sizeof(path), "%llu", (unsigned long long)sizes[i]);
		add_file(&m, path, sizes[i], (struct tree_attr){.mode = 0644});
	}
	assert_int_equal(body_sink_finish(&m.bodies), 0);
	assert_int_equal(write_disk(&m, "sizes", 1, NULL), 0);
	read_back("sizes", check_sizes);
	maker_done(&m);
}

static void check_kinds(int dirfd, bool kernel)
{
	static const struct {
		const char *path;
		mode_t mode;
		unsigned major, minor;
	} want[] = {{"reg", S_IFREG | 06755, 0, 0}, {"dir", S_IFDIR | 01700, 0, 0},
		{"chr", S_IFCHR | 0620, 4095, 1048575}, {"blk", S_IFBLK | 0660, 8, 17},
		{"fifo", S_IFIFO | 0600, 0, 0}};
	char target[5000], value[100];
	struct stat st, other;

	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		if (!kernel && geteuid() && (S_ISCHR(want[i].mode) || S_ISBLK(want[i].mode)))
			continue;
		if (fstatat(dirfd, want[i].path, &st, AT_SYMLINK_NOFOLLOW) < 0)
			fail_msg("%s: %s", want[i].path, err_str(errno));
		/* fsck.erofs loses setuid and setgid when it sets the owner. */
		assert_int_equal(st.st_mode & (kernel ? ~0u : ~06000u),
			want[i].mode & (kernel ? ~0u : ~06000u));
		assert_int_equal(major(st.st_rdev), want[i].major);
		assert_int_equal(minor(st.st_rdev), want[i].minor);
		if (geteuid())
			continue;
		assert_int_equal(st.st_uid, 4000000000u);
		assert_int_equal(st.st_gid, 70000);
		/* fsck.erofs sets times to the second it reads as unsigned: the kernel is the
		 * judge. */
		if (kernel) {
			assert_int_equal(st.st_mtim.tv_sec, -5);
			assert_int_equal(st.st_mtim.tv_nsec, 123456789);
		}
	}
	assert_int_equal(readlinkat(dirfd, "short", target, sizeof(target)), 3);
	assert_memory_equal(target, "a/b", 3);
	assert_int_equal(readlinkat(dirfd, "long", target, sizeof(target)), TREE_TARGET_MAX);
	assert_int_equal(target[TREE_TARGET_MAX - 1], 't');
	if (!kernel)
		return; /* fsck.erofs 1.5 extracts neither links nor xattrs */
	assert_int_equal(fstatat(dirfd, "reg", &st, 0), 0);
	assert_int_equal(fstatat(dirfd, "dir/link", &other, 0), 0);
	assert_int_equal(st.st_ino, other.st_ino);
	assert_int_equal(st.st_nlink, 2);
	assert_int_equal(fstatat(dirfd, ".", &st, 0), 0);
	assert_int_equal(st.st_nlink, 3);
	for (int i = 0; i < 2; i++) {
		cleanup_fd int fd = openat(dirfd, i ? "dir" : "reg", O_RDONLY | O_CLOEXEC);

		assert_int_equal(fgetxattr(fd, "user.a", value, sizeof(value)), 3);
		assert_memory_equal(value, "x\0y", 3);
		assert_int_equal(fgetxattr(fd, "user.huge", NULL, 0), 60000);
		assert_int_equal(fgetxattr(fd, "security.capability", value, sizeof(value)), 20);
		assert_true(fgetxattr(fd, "user.none", value, sizeof(value)) < 0);
	}
}

static void every_kind_comes_back(void **state)
{
	static const uint8_t cap[20] = {1, 0, 0, 2, 0, 0x20};
	char target[TREE_TARGET_MAX + 1], huge[60000] = {1};
	struct tree_attr a = {.uid = 4000000000u, .gid = 70000, .mtime = -5, .mtime_ns = 123456789};
	struct tree_attr x = a;
	struct buf xattrs;
	struct maker m;

	buf_init(&xattrs, IMAGE_XATTRS_MAX);
	assert_int_equal(xattr_pack(&xattrs, "user.a", "x\0y", 3, NULL), 0);
	assert_int_equal(xattr_pack(&xattrs, "user.huge", huge, sizeof(huge), NULL), 0);
	assert_int_equal(xattr_pack(&xattrs, "security.capability", cap, sizeof(cap), NULL), 0);
	x.xattrs = xattrs.data;
	x.xattrs_len = (uint32_t)xattrs.len;
	maker_init(&m);
	x.mode = 06755;
	add_file(&m, "reg", 5000, x);
	x.mode = S_IFDIR | 01700;
	add(&m, "dir", x);
	a.mode = S_IFCHR | 0620;
	a.rdev_major = 4095;
	a.rdev_minor = 1048575;
	add(&m, "chr", a);
	a.mode = S_IFBLK | 0660;
	a.rdev_major = 8;
	a.rdev_minor = 17;
	add(&m, "blk", a);
	a.mode = S_IFIFO | 0600;
	add(&m, "fifo", a);
	a.mode = S_IFLNK | 0777;
	a.target = "a/b";
	add(&m, "short", a);
	memset(target, 't', sizeof(target) - 1);
	target[sizeof(target) - 1] = '\0';
	a.target = target;
	add(&m, "long", a);
	assert_int_equal(tree_link(m.tree, "dir/link", "reg", NULL), 0);
	assert_int_equal(body_sink_finish(&m.bodies), 0);
	assert_int_equal(write_disk(&m, "kinds", 1, NULL), 0);
	read_back("kinds", check_kinds);
	buf_done(&xattrs);
	maker_done(&m);
}

/* Names of all lengths in one folder of many blocks; each is found by its name. */
static void name_of(int i, char name[static IMAGE_NAME_MAX + 1])
{
	int len = i % IMAGE_NAME_MAX + 1, n = snprintf(name, 16, "%d", i);

	for (; n < len; n++)
		name[n] = (char)(1 + (i + n) % 46); /* below '/', some before and some after '.' */
	name[n] = '\0';
}

#define MANY 3000

static void check_many(int dirfd, bool kernel)
{
	char name[IMAGE_NAME_MAX + 1], path[IMAGE_NAME_MAX + 8];
	struct stat st;

	for (int i = 0; i < MANY; i++) {
		name_of(i, name);
		snprintf(path, sizeof(path), "many/%s", name);
		if (fstatat(dirfd, path, &st, 0) < 0)
			fail_msg("%d: %s", i, err_str(errno));
	}
	assert_int_equal(fstatat(dirfd, "many/absent", &st, 0), -1);
	assert_int_equal(fstatat(dirfd, "edge/.", &st, 0), 0);
	assert_int_equal(fstatat(dirfd, "edge/..", &st, 0), 0);
	assert_int_equal(fstatat(dirfd, "edge/-", &st, 0), 0);
	assert_int_equal(fstatat(dirfd, "edge/.-", &st, 0), 0);
	assert_int_equal(fstatat(dirfd, "edge/...", &st, 0), 0);
}

static void large_folders_come_back(void **state)
{
	char name[IMAGE_NAME_MAX + 1], path[IMAGE_NAME_MAX + 8];
	struct maker m;

	maker_init(&m);
	for (int i = 0; i < MANY; i++) {
		name_of(i, name);
		snprintf(path, sizeof(path), "many/%s", name);
		add(&m, path, (struct tree_attr){.mode = S_IFIFO | 0600});
	}
	add(&m, "edge/-", (struct tree_attr){.mode = S_IFIFO | 0600});
	add(&m, "edge/.-", (struct tree_attr){.mode = S_IFDIR | 0700});
	add(&m, "edge/...", (struct tree_attr){.mode = S_IFDIR | 0700});
	/* Folders whose names just fill a block, and one byte around that. */
	for (int fill = -2; fill <= 2; fill++) {
		int used = 2 * 12 + 3;

		for (int i = 0; used < EROFS_BLOCK + fill; i++) {
			int len = MIN(200, EROFS_BLOCK + fill - used - 12);

			if (len < 8)
				len = 8;
			memset(name, 'a' + i % 26, len);
			name[len] = '\0';
			memcpy(name, (char[3]){(char)('a' + i / 26), (char)('a' + i % 26), '-'}, 3);
			snprintf(path, sizeof(path), "fill%d/%s", fill, name);
			add(&m, path, (struct tree_attr){.mode = S_IFIFO | 0600});
			used += 12 + len;
		}
	}
	assert_int_equal(body_sink_finish(&m.bodies), 0);
	assert_int_equal(write_disk(&m, "many", 1, NULL), 0);
	read_back("many", check_many);
	maker_done(&m);
}

static void check_hole(int dirfd, bool kernel)
{
	cleanup_fd int fd = openat(dirfd, "holes", O_RDONLY | O_CLOEXEC);
	uint8_t byte[4];
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, (64 << 20) + 100);
	assert_int_equal(fd_pread_full(fd, byte, 4, 4998), 4);
	assert_memory_equal(byte, "\0\0dt", 4); /* data begins at 5000 */
	assert_int_equal(fd_pread_full(fd, byte, 4, 5002), 4);
	assert_memory_equal(byte, "a\0\0\0", 4);
	assert_int_equal(fd_pread_full(fd, byte, 4, (64 << 20) + 97), 3);
	assert_memory_equal(byte, "\0\0\0", 3);
}

static void holes_cost_nothing(void **state)
{
	struct tree_attr a = {.mode = S_IFREG | 0644};
	struct maker m;
	struct stat st;

	maker_init(&m);
	assert_int_equal(body_begin(&m.bodies, (64 << 20) + 100, 0, 0), 0);
	assert_int_equal(body_hole(&m.bodies, 5000), 0);
	assert_int_equal(body_data(&m.bodies, "dta", 3), 0);
	assert_int_equal(body_hole(&m.bodies, 64 << 20), -EINVAL);
	assert_int_equal(body_end(&m.bodies, &a.body), 0);
	add(&m, "holes", a);
	add_file(&m, "behind", 9000, (struct tree_attr){.mode = 0644});
	assert_int_equal(body_sink_finish(&m.bodies), 0);
	assert_int_equal(write_disk(&m, "holes", 1, NULL), 0);
	assert_int_equal(fstatat(workfd, "holes", &st, 0), 0);
	assert_true(st.st_size > 64 << 20);
	assert_true(st.st_blocks < 1024);
	read_back("holes", check_hole);
	maker_done(&m);
}

static void only_what_is_named_is_copied(void **state)
{
	struct maker m;
	struct stat with, without;

	maker_init(&m);
	add_file(&m, "kept", 100000, (struct tree_attr){.mode = 0644});
	add_file(&m, "hidden", 5000000, (struct tree_attr){.mode = 0644});
	add_file(&m, "last", 300000, (struct tree_attr){.mode = 0644});
	assert_int_equal(body_sink_finish(&m.bodies), 0);
	assert_int_equal(write_disk(&m, "with", 2, NULL), 0);
	tree_begin_layer(m.tree);
	assert_int_equal(tree_whiteout(m.tree, "hidden", NULL), 0);
	assert_int_equal(write_disk(&m, "without", 2, NULL), 0);
	assert_int_equal(fstatat(workfd, "with", &with, 0), 0);
	assert_int_equal(fstatat(workfd, "without", &without, 0), 0);
	/* Its whole blocks, and one that only its tail was in. */
	assert_int_equal(with.st_size - without.st_size, (5000000 / EROFS_BLOCK + 1) * EROFS_BLOCK);
	maker_done(&m);
}

static bool at_once(void *user)
{
	return true;
}

static void failures_are_told(void **state)
{
	struct maker m;
	struct err e = ERR_INIT;
	struct erofs_source none = {-1, -1}, source;
	struct erofs_write w = {.n_sources = 1, .bytes_max = 1 << 30, .threads = 2};
	int fd = memfd_create("disk", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	maker_init(&m);
	add_file(&m, "f", 1000000, (struct tree_attr){.mode = 0644});
	assert_int_equal(body_sink_finish(&m.bodies), 0);
	source = (struct erofs_source){m.bodies.data_fd, m.bodies.tail_fd};
	w.tree = m.tree;
	w.out_fd = fd;
	w.sources = &none;
	assert_true(erofs_write(&w, NULL, &e) < 0);
	w.sources = &source;
	w.stop = at_once;
	assert_int_equal(erofs_write(&w, NULL, &e), -ECANCELED);
	w.stop = NULL;
	w.bytes_max = 1000000;
	assert_int_equal(erofs_write(&w, NULL, &e), -EFBIG);
	assert_non_null(strstr(e.text, "limit 1000000"));
	w.bytes_max = 1 << 30;
	assert_int_equal(erofs_write(&w, NULL, &e), 0);
	/* Scratch files that lost their end. */
	assert_int_equal(ftruncate(m.bodies.tail_fd, 0), 0);
	assert_int_equal(erofs_write(&w, NULL, &e), -EIO);
	/* A disk that cannot be written. */
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
	assert_true(erofs_write(&w, NULL, &e) < 0);
	assert_non_null(strstr(e.text, "writing the disk of the image"));
	close(fd);
	maker_done(&m);
}

/* The superblock, checked against the kernel's definition by hand. */
static void the_superblock_is_right(void **state)
{
	struct maker m;
	uint8_t block[EROFS_BLOCK];
	uint32_t crc = ~0u, want;
	int fd;

	maker_init(&m);
	add_file(&m, "f", 10000, (struct tree_attr){.mode = 0644});
	assert_int_equal(body_sink_finish(&m.bodies), 0);
	assert_int_equal(write_disk(&m, "super", 1, NULL), 0);
	fd = openat(workfd, "super", O_RDONLY | O_CLOEXEC);
	assert_int_equal(fd_pread_full(fd, block, sizeof(block), 0), sizeof(block));
	close(fd);
	assert_memory_equal(block + 1024, "\xe2\xe1\xf5\xe0", 4);
	assert_int_equal(block[1024 + 12], 12);
	assert_memory_equal(
		block + 1024 + 80, "\0\0\0\0\0\0\0\0", 8); /* no feature, no compression */
	assert_int_equal(block[1024 + 48], 0xab);
	memcpy(&want, block + 1024 + 4, 4);
	memset(block + 1024 + 4, 0, 4);
	for (size_t i = 1024; i < sizeof(block); i++) {
		crc ^= block[i];
		for (int k = 0; k < 8; k++)
			crc = (crc >> 1) ^ (0x82f63b78u & -(crc & 1));
	}
	assert_int_equal(crc, le32toh(want));
	maker_done(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_size_comes_back),
		cmocka_unit_test(every_kind_comes_back),
		cmocka_unit_test(large_folders_come_back),
		cmocka_unit_test(holes_cost_nothing),
		cmocka_unit_test(only_what_is_named_is_copied),
		cmocka_unit_test(failures_are_told),
		cmocka_unit_test(the_superblock_is_right),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
