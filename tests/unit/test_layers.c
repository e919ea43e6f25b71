/* layers, stream, records, build: what is read of a layer, and what is refused. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/sha.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/str.h"
#include "host/image/build.h"
#include "host/image/erofs_format.h"
#include "host/image/layers.h"
#include "host/image/xattr.h"
#include "tarball.h"

#define BUF_MAX (256u << 20)

static int scratch;

static int setup(void **state)
{
	scratch = open("/var/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return scratch < 0;
}

static int teardown(void **state)
{
	close(scratch);
	return 0;
}

/* A layer of these bytes in a memory file, which the caller closes. */
static struct image_layer layer_of(const struct buf *blob)
{
	struct image_layer l = {.size = blob->len, .name = "L"};

	l.fd = memfd_create("layer", MFD_CLOEXEC);
	assert_true(l.fd >= 0);
	assert_int_equal(fd_pwrite_all(l.fd, blob->data, blob->len, 0), 0);
	return l;
}

static void digest_of_bytes(const struct buf *b, char dst[static 72])
{
	uint8_t sha[32];

	SHA256(b->data, b->len, sha);
	memcpy(dst, "sha256:", 7);
	str_hex(dst + 7, sha, 32);
}

/* Reads one layer under limits; the records are kept when `ret` is given. */
static int read_limited(
	const struct buf *blob, struct layer_shared *sh, struct layer_result *ret, struct err *e)
{
	struct image_layer l = layer_of(blob);
	struct layer_result own;
	int r;

	layer_result_init(ret ? ret : &own);
	r = layer_read(&l, 0, sh, scratch, ret ? ret : &own, e);
	if (!ret)
		layer_result_done(&own);
	close(l.fd);
	return r;
}

static int read_bytes(const struct buf *blob, struct layer_result *ret, struct err *e)
{
	struct layer_shared sh;

	layer_shared_init(&sh);
	return read_limited(blob, &sh, ret, e);
}

static void assert_refused(const struct buf *blob, int no, const char *text)
{
	struct err e = ERR_INIT;
	int r = read_bytes(blob, NULL, &e);

	if (r != -no || !strstr(e.text, text) || !str_starts(e.text, "layer L: "))
		fail_msg("got %d (%s), wanted %d (%s)", r, e.text, -no, text);
}

static void assert_tar_refused(struct buf *tar, int no, const char *text)
{
	tar_end(tar);
	assert_refused(tar, no, text);
	buf_clear(tar);
}

/* Builds from tars in memory; the disk's bytes go to `disk`. */
static int build(const struct buf *blobs, size_t n, unsigned threads, struct buf *disk,
	struct image_build_stats *stats, struct err *e)
{
	struct image_layer layers[IMAGE_LAYERS_MAX + 1];
	struct image_build b = {
		.layers = layers, .n_layers = n, .scratch_dirfd = scratch, .threads = threads};
	struct stat st;
	int r;

	for (size_t i = 0; i < n; i++)
		layers[i] = layer_of(&blobs[i]);
	b.out_fd = memfd_create("disk", MFD_CLOEXEC);
	r = image_build(&b, stats, e);
	if (r == 0 && disk) {
		assert_int_equal(fstat(b.out_fd, &st), 0);
		buf_clear(disk);
		assert_int_equal(fd_pread_full(b.out_fd, buf_room(disk, st.st_size), st.st_size, 0),
			st.st_size);
		buf_added(disk, st.st_size);
	}
	close(b.out_fd);
	for (size_t i = 0; i < n; i++)
		close(layers[i].fd);
	return r;
}

static bool find_record(const struct layer_result *res, const char *path, struct record *ret)
{
	static struct records_iter it;

	records_begin(&it, &res->records);
	while (records_next(&it, ret))
		if (str_eq(ret->path, path))
			return true;
	return false;
}

static void add_some(struct buf *t)
{
	static char big[300000];

	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (char)(i * 2654435761u >> 13);
	tar_dir(t, "./");
	tar_dir(t, "d/");
	tar_file(t, "d/small", "hello");
	tar_add(t, &(struct tar_entry){.name = "d/big", .data = big, .len = sizeof(big)});
	tar_link(t, "l", '2', "d/small");
	tar_link(t, "h", '1', "d/big");
	tar_end(t);
}

static void every_compression_gives_the_same_disk(void **state)
{
	struct buf blob[3], parts, disk[3];

	for (int i = 0; i < 3; i++) {
		buf_init(&blob[i], BUF_MAX);
		buf_init(&disk[i], BUF_MAX);
	}
	buf_init(&parts, BUF_MAX);
	add_some(&blob[0]);
	tar_compress(blob[0].data, blob[0].len, false, &blob[1]);
	tar_compress(blob[0].data, blob[0].len, true, &blob[2]);
	for (int i = 0; i < 3; i++)
		assert_int_equal(build(&blob[i], 1, 1, &disk[i], NULL, NULL), 0);
	for (int i = 1; i < 3; i++) {
		assert_int_equal(disk[i].len, disk[0].len);
		assert_memory_equal(disk[i].data, disk[0].data, disk[0].len);
	}
	/* Members and frames of a few bytes each are one stream; what follows them is not read. */
	for (int zstd = 0; zstd < 2; zstd++) {
		buf_clear(&parts);
		for (size_t at = 0; at < blob[0].len; at += 70000)
			tar_compress(blob[0].data + at, MIN(blob[0].len - at, (size_t)70000), zstd,
				&parts);
		tar_compress("", 0, zstd, &parts);
		buf_add(&parts, "garbage behind the end", 22);
		assert_int_equal(build(&parts, 1, 1, &disk[1], NULL, NULL), 0);
		assert_memory_equal(disk[1].data, disk[0].data, disk[0].len);
	}
	for (int i = 0; i < 3; i++) {
		buf_done(&blob[i]);
		buf_done(&disk[i]);
	}
	buf_done(&parts);
}

static void the_same_layers_give_the_same_bytes(void **state)
{
	static const unsigned threads[] = {1, 2, 4, 0};
	struct buf layers[6], first, again;
	struct image_build_stats stats;

	buf_init(&first, BUF_MAX);
	buf_init(&again, BUF_MAX);
	for (int i = 0; i < 6; i++) {
		char name[32];

		buf_init(&layers[i], BUF_MAX);
		for (int j = 0; j < 100; j++) {
			snprintf(name, sizeof(name), "f%d", i * 50 + j);
			tar_file(&layers[i], name, i % 2 ? "odd" : "even, and longer");
		}
		if (i % 2)
			add_some(&layers[i]);
		else
			tar_end(&layers[i]);
	}
	assert_int_equal(build(layers, 6, 1, &first, &stats, NULL), 0);
	assert_int_equal(stats.disk_bytes, first.len);
	assert_int_equal(stats.entries, 6 * 100 + 3 * 6);
	assert_int_equal(stats.inodes, 350 + 5); /* root, d, d/small, d/big, l */
	for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
		assert_int_equal(build(layers, 6, threads[i], &again, NULL, NULL), 0);
		assert_int_equal(again.len, first.len);
		assert_memory_equal(again.data, first.data, first.len);
	}
	buf_add(&layers[3], "x", 1); /* another diff id, so another UUID */
	assert_int_equal(build(layers, 6, 2, &again, NULL, NULL), 0);
	assert_int_equal(again.len, first.len);
	assert_memory_not_equal(again.data, first.data, first.len);
	for (int i = 0; i < 6; i++)
		buf_done(&layers[i]);
	buf_done(&first);
	buf_done(&again);
}

static void empty_layers_are_fine(void **state)
{
	struct buf blob[3];

	for (int i = 0; i < 3; i++)
		buf_init(&blob[i], BUF_MAX);
	tar_end(&blob[1]);
	tar_compress("", 0, false, &blob[2]);
	assert_int_equal(build(blob, 3, 0, NULL, NULL, NULL), 0);
	assert_int_equal(build(blob, 0, 0, NULL, NULL, NULL), 0);
	buf_add(&blob[0], "this is not a tar, and long enough to be told so", 48);
	assert_refused(&blob[0], EBADMSG, "bad tar");
	for (int i = 0; i < 3; i++)
		buf_done(&blob[i]);
}

static void other_compressions_are_named(void **state)
{
	struct buf b;

	buf_init(&b, BUF_MAX);
	buf_add(&b, "BZh91AY&SY\0\0\0\0", 14);
	assert_refused(&b, EINVAL, "bzip2");
	buf_clear(&b);
	buf_add(&b,
		"\xfd"
		"7zXZ\0\0\0\0\0",
		10);
	assert_refused(&b, EINVAL, "xz");
	buf_done(&b);
}

static void digests_cover_every_byte(void **state)
{
	struct buf tar, gz;
	char digest[72], diff_id[72], wrong[72];
	struct layer_shared sh;
	struct err e = ERR_INIT;
	struct image_layer l;

	buf_init(&tar, BUF_MAX);
	buf_init(&gz, BUF_MAX);
	add_some(&tar);
	buf_add(&tar, "bytes that no tar reader looks at", 33);
	tar_compress(tar.data, tar.len, false, &gz);
	buf_add(&gz, "nor at these", 12);
	digest_of_bytes(&gz, digest);
	digest_of_bytes(&tar, diff_id);
	memcpy(wrong, digest, sizeof(wrong));
	wrong[71 - 1] = wrong[71 - 1] == '0' ? '1' : '0';
	l = layer_of(&gz);
	for (int i = 0; i < 4; i++) {
		struct layer_result res;
		int r;

		layer_result_init(&res);
		layer_shared_init(&sh);
		l.digest = i == 1 ? wrong : digest;
		l.diff_id = i == 2 ? wrong : i == 3 ? NULL : diff_id;
		r = layer_read(&l, 0, &sh, scratch, &res, &e);
		assert_int_equal(r, i == 1 || i == 2 ? -EBADMSG : 0);
		if (i == 1)
			assert_non_null(strstr(e.text, "layer L: the digest is sha256:"));
		if (i == 2)
			assert_non_null(strstr(e.text, "layer L: the diff id is sha256:"));
		assert_true(i == 1 || i == 2 || sh.stream.blob_bytes == gz.len);
		layer_result_done(&res);
	}
	/* One bit anywhere, also in what is ignored. */
	for (size_t at = 0; at < gz.len; at += at + 100 < gz.len ? gz.len / 60 : 1) {
		struct layer_result res;
		uint8_t byte = gz.data[at] ^ 0x10;

		assert_int_equal(fd_pwrite_all(l.fd, &byte, 1, at), 0);
		layer_result_init(&res);
		layer_shared_init(&sh);
		l.digest = digest;
		l.diff_id = NULL;
		assert_true(layer_read(&l, 0, &sh, scratch, &res, NULL) < 0);
		layer_result_done(&res);
		assert_int_equal(fd_pwrite_all(l.fd, &gz.data[at], 1, at), 0);
	}
	close(l.fd);
	buf_done(&tar);
	buf_done(&gz);
}

static void truncation_is_noticed_everywhere(void **state)
{
	struct buf tar, packed, cut;

	buf_init(&tar, BUF_MAX);
	buf_init(&packed, BUF_MAX);
	buf_init(&cut, BUF_MAX);
	tar_pax(&tar, "mtime", "1.5");
	tar_file(&tar, "a", "content that is a bit longer than nothing");
	tar_file(&tar, "b", "more");
	/* Compressed: every length but the whole. */
	for (int zstd = 0; zstd < 2; zstd++) {
		buf_clear(&packed);
		tar_compress(tar.data, tar.len, zstd, &packed);
		assert_int_equal(read_bytes(&packed, NULL, NULL), 0);
		for (size_t n = 5; n < packed.len; n++) {
			buf_clear(&cut);
			buf_add(&cut, packed.data, n);
			assert_int_equal(read_bytes(&cut, NULL, NULL), -EBADMSG);
		}
	}
	/* Plain: every length that does not end with an entry (of 2048 and 1024 bytes). A tar that
	 * ends there is accepted, as by all readers; its digest is what tells. */
	for (size_t n = 1; n < tar.len; n++) {
		int r;

		buf_clear(&cut);
		buf_add(&cut, tar.data, n);
		r = read_bytes(&cut, NULL, NULL);
		if (r != (n == 2048 ? 0 : -EBADMSG))
			fail_msg("cut at %zu: %d", n, r);
	}
	buf_done(&tar);
	buf_done(&packed);
	buf_done(&cut);
}

static void a_blob_shorter_than_said_is_noticed(void **state)
{
	struct buf tar;
	struct image_layer l;
	struct layer_result res;
	struct layer_shared sh;
	struct err e = ERR_INIT;

	buf_init(&tar, BUF_MAX);
	add_some(&tar);
	l = layer_of(&tar);
	l.size += 1000;
	layer_shared_init(&sh);
	layer_result_init(&res);
	assert_int_equal(layer_read(&l, 0, &sh, scratch, &res, &e), -EIO);
	assert_non_null(strstr(e.text, "the blob ends after"));
	layer_result_done(&res);
	close(l.fd);
	buf_done(&tar);
}

static void a_layer_may_lie_inside_a_file(void **state)
{
	struct buf tar, around;
	struct image_layer l;
	struct layer_result res;
	struct layer_shared sh;
	char digest[72];

	buf_init(&tar, BUF_MAX);
	buf_init(&around, BUF_MAX);
	add_some(&tar);
	digest_of_bytes(&tar, digest);
	buf_add(&around, "before", 6);
	buf_add(&around, tar.data, tar.len);
	buf_add(&around, "behind", 6);
	l = layer_of(&around);
	l.offset = 6;
	l.size = tar.len;
	l.digest = l.diff_id = digest;
	layer_shared_init(&sh);
	layer_result_init(&res);
	assert_int_equal(layer_read(&l, 0, &sh, scratch, &res, NULL), 0);
	assert_int_equal(res.entries, 6);
	layer_result_done(&res);
	close(l.fd);
	buf_done(&tar);
	buf_done(&around);
}

static void bad_names_are_refused(void **state)
{
	static const char *const names[] = {
		"/etc/passwd", "../x", "a/../../x", "..", "./../x", "/"};
	char deep[3 * IMAGE_DEPTH_MAX], name[400];
	struct buf t;

	buf_init(&t, BUF_MAX);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		tar_file(&t, names[i], "x");
		assert_tar_refused(&t, EINVAL, "path");
		tar_pax(&t, "path", names[i]);
		tar_file(&t, "innocent", "x");
		assert_tar_refused(&t, EINVAL, "path");
		tar_file(&t, "f", "x");
		tar_link(&t, "l", '1', names[i]);
		assert_tar_refused(&t, EINVAL, "target \"");
		tar_link(&t, names[i], '2', "x");
		assert_tar_refused(&t, EINVAL, "path");
	}
	for (size_t i = 0; i < sizeof(deep); i++)
		deep[i] = i % 2 ? '/' : 'd';
	deep[2 * IMAGE_DEPTH_MAX + 1] = '\0';
	tar_pax(&t, "path", deep);
	tar_file(&t, "x", "x");
	assert_tar_refused(&t, ENAMETOOLONG, "128 folders");
	memset(name, 'n', 256);
	name[256] = '\0';
	tar_pax(&t, "path", name);
	tar_file(&t, "x", "x");
	assert_tar_refused(&t, ENAMETOOLONG, "256 bytes (limit 255)");
	buf_done(&t);
}

static void whiteouts_are_told_by_name(void **state)
{
	static const struct {
		const char *name, *path;
		enum record_kind kind;
	} good[] = {{".wh.a", "a", RECORD_WHITEOUT}, {"d/.wh.a", "d/a", RECORD_WHITEOUT},
		{"d/.wh..wh..opq", "d", RECORD_OPAQUE}, {".wh..wh..opq", "", RECORD_OPAQUE},
		{"d/.wh.a.wh.b", "d/a.wh.b", RECORD_WHITEOUT},
		{"d/.wh...", "d/...", RECORD_WHITEOUT}};
	static const char *const types = "015";
	static const char *const bad[] = {".wh.", "d/.wh..", "d/.wh...", ".wh.a/b", "d/.wh.x/y/z"};
	struct buf t;

	buf_init(&t, BUF_MAX);
	for (size_t i = 0; i < ARRAY_LEN(good) - 1; i++) {
		for (const char *type = types; *type; type++) {
			struct layer_result res;
			struct record rec;

			tar_link(&t, good[i].name, *type, "no/such/target");
			tar_end(&t);
			assert_int_equal(read_bytes(&t, &res, NULL), 0);
			assert_true(find_record(&res, good[i].path, &rec));
			assert_int_equal(rec.kind, good[i].kind);
			layer_result_done(&res);
			buf_clear(&t);
		}
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		tar_file(&t, bad[i], "");
		assert_tar_refused(&t, EINVAL, "whiteout");
	}
	tar_file(&t, ".wh..wh.aufs", "");
	tar_dir(&t, ".wh..wh.plnk");
	tar_file(&t, ".wh..wh.plnk/12.34", "skipped");
	tar_end(&t);
	assert_int_equal(read_bytes(&t, NULL, NULL), 0);
	buf_done(&t);
}

static void odd_entries_are_refused(void **state)
{
	struct buf t;

	buf_init(&t, BUF_MAX);
	tar_link(&t, "s", '2', "");
	assert_tar_refused(&t, EINVAL, "without a target");
	tar_pax(&t, "mtime", "1");
	tar_add(&t, &(struct tar_entry){
			    .name = "h", .type = '1', .link = "x", .data = "data", .len = 4});
	assert_tar_refused(&t, EINVAL, "hard link with content");
	tar_pax(&t, "uid", "4294967295");
	tar_file(&t, "f", "x");
	assert_tar_refused(&t, EINVAL, "owner 4294967295:0");
	tar_pax(&t, "gid", "99999999999");
	tar_file(&t, "f", "x");
	assert_tar_refused(&t, EINVAL, "owner");
	/* Damage in a header, in a PAX header, and in its place in the archive. */
	tar_file(&t, "f", "x");
	t.data[0] ^= 1;
	assert_tar_refused(&t, EBADMSG, "bad tar");
	tar_file(&t, "first", "x");
	tar_file(&t, "f", "x");
	t.data[1024] ^= 1;
	assert_tar_refused(&t, EBADMSG, "Damaged");
	tar_add(&t, &(struct tar_entry){.name = "p", .type = 'x', .data = "9 a=b\n", .len = 6});
	tar_file(&t, "f", "x");
	assert_tar_refused(&t, EBADMSG, "pax");
	buf_done(&t);
}

static void links_that_lead_nowhere_fail_the_build(void **state)
{
	struct buf t[2];
	struct err e = ERR_INIT;

	buf_init(&t[0], BUF_MAX);
	buf_init(&t[1], BUF_MAX);
	tar_file(&t[0], "there", "x");
	tar_end(&t[0]);
	tar_link(&t[1], "a", '1', "b"); /* a cycle */
	tar_link(&t[1], "b", '1', "a");
	tar_end(&t[1]);
	assert_int_equal(build(t, 2, 1, NULL, NULL, &e), -ENOENT);
	assert_non_null(strstr(e.text, "layer L: entry \"a\" (to \"b\"): a hard link"));
	buf_clear(&t[1]);
	tar_file(&t[1], ".wh.there", "");
	tar_link(&t[1], "a", '1', "there");
	tar_end(&t[1]);
	assert_int_equal(build(t, 2, 1, NULL, NULL, &e), -ENOENT);
	buf_clear(&t[1]);
	tar_link(&t[1], "a", '1', "there");
	tar_end(&t[1]);
	assert_int_equal(build(t, 2, 1, NULL, NULL, &e), 0);
	buf_done(&t[0]);
	buf_done(&t[1]);
}

/* A symlink to a folder of this machine, then entries through it: nothing may appear there. */
static void no_symlink_leads_out_of_the_tree(void **state)
{
	char canary[] = "/var/tmp/canary-XXXXXX", name[64];
	const char *through[] = {"abs", "rel", "chain"};
	struct buf t;
	DIR *dir;
	int n = 0;

	assert_non_null(mkdtemp(canary));
	buf_init(&t, BUF_MAX);
	tar_link(&t, "abs", '2', canary);
	snprintf(name, sizeof(name), "../../../../../../..%s", canary);
	tar_link(&t, "rel", '2', name);
	tar_link(&t, "chain", '2', "abs/.");
	for (size_t i = 0; i < ARRAY_LEN(through); i++) {
		snprintf(name, sizeof(name), "%s/file%zu", through[i], i);
		tar_file(&t, name, "out!");
		snprintf(name, sizeof(name), "%s/dir%zu/", through[i], i);
		tar_dir(&t, name);
		snprintf(name, sizeof(name), "%s/link%zu", through[i], i);
		tar_link(&t, name, '1', "abs/file0");
		snprintf(name, sizeof(name), "%s/.wh.file%zu", through[i], i);
		tar_file(&t, name, "");
		snprintf(name, sizeof(name), "%s/.wh..wh..opq", through[i]);
		tar_file(&t, name, "");
	}
	tar_end(&t);
	assert_int_equal(build(&t, 1, 1, NULL, NULL, NULL), 0);
	dir = opendir(canary);
	assert_non_null(dir);
	for (struct dirent *d; (d = readdir(dir));)
		n++;
	assert_int_equal(n, 2);
	closedir(dir);
	rmdir(canary);
	buf_done(&t);
}

static void metadata_is_kept(void **state)
{
	struct layer_result res;
	struct buf t, body;
	struct record rec;

	buf_init(&t, BUF_MAX);
	buf_init(&body, BUF_MAX);
	tar_record(&body, "path", "caf\xc3\xa9", 5);
	tar_record(&body, "uid", "4000000000", 10);
	tar_record(&body, "mtime", "-1.25", 5);
	tar_record(&body, "SCHILY.xattr.user.a", "not this one", 12);
	tar_record(&body, "SCHILY.xattr.user.a", "x\0y", 3);
	tar_record(&body, "SCHILY.xattr.trusted.overlay.opaque", "y", 1);
	tar_record(&body, "SCHILY.xattr.security.selinux", "label", 5);
	tar_record(&body, "LIBARCHIVE.xattr.user.b", "YmI=", 4);
	tar_add(&t,
		&(struct tar_entry){.name = "p", .type = 'x', .data = body.data, .len = body.len});
	tar_add(&t, &(struct tar_entry){.name = "x", .mode = 0106755, .data = "abc", .len = 3});
	tar_add(&t, &(struct tar_entry){.name = "latin-\xe9", .uid = 3000000, .gid = 70000});
	tar_add(&t,
		&(struct tar_entry){.name = "s", .type = '2', .link = "\xff\xfe", .mode = 0600});
	tar_end(&t);
	assert_int_equal(read_bytes(&t, &res, NULL), 0);
	assert_true(find_record(&res, "caf\xc3\xa9", &rec));
	assert_int_equal(rec.attr.mode, S_IFREG | 06755);
	assert_int_equal(rec.attr.uid, 4000000000u);
	assert_int_equal(rec.attr.mtime, -2);
	assert_int_equal(rec.attr.mtime_ns, 750000000);
	assert_int_equal(rec.attr.body.size, 3);
	assert_int_equal(rec.attr.xattrs_len, 8 + 8);
	assert_memory_equal(rec.attr.xattrs, "\x01\x01\x02\0bbb\0\x01\x01\x03\0ax\0y", 16);
	assert_true(find_record(&res, "latin-\xe9", &rec));
	assert_int_equal(rec.attr.uid, 3000000);
	assert_int_equal(rec.attr.gid, 70000);
	assert_int_equal(rec.attr.xattrs_len, 0);
	assert_true(find_record(&res, "s", &rec));
	assert_string_equal(rec.attr.target, "\xff\xfe");
	assert_int_equal(rec.attr.mode, S_IFLNK | 0777);
	layer_result_done(&res);
	buf_done(&t);
	buf_done(&body);
}

static void xattrs_have_limits(void **state)
{
	char *big = xcalloc(1, 70000), name[64];
	struct err e = ERR_INIT;
	struct buf b;

	buf_init(&b, 1 << 20);
	assert_true(xattr_kept("user.a"));
	assert_true(xattr_kept("security.capability"));
	assert_false(xattr_kept("user."));
	assert_false(xattr_kept("security.ima"));
	assert_false(xattr_kept("system.posix_acl_access"));
	assert_int_equal(xattr_pack(&b, "trusted.big", big, 70000, &e), 0);
	assert_int_equal(xattr_pack(&b, "user.big", big, 70000, &e), -E2BIG);
	assert_int_equal(xattr_pack(&b, "user.big", big, 40000, &e), 0);
	assert_int_equal(xattr_pack(&b, "user.big", big, 50000, &e), 0); /* there */
	assert_int_equal(xattr_pack(&b, "user.more", big, 30000, &e), -E2BIG);
	assert_non_null(strstr(e.text, "65536 bytes"));
	buf_clear(&b);
	for (int i = 0; i < XATTR_COUNT_MAX; i++) {
		snprintf(name, sizeof(name), "user.%d", i);
		assert_int_equal(xattr_pack(&b, name, "", 0, &e), 0);
	}
	assert_int_equal(xattr_pack(&b, "user.1", "again", 5, &e), 0);
	assert_int_equal(xattr_pack(&b, "user.one-more", "", 0, &e), -E2BIG);
	memset(big, 'n', 300);
	memcpy(big, "user.", 5);
	big[300] = '\0';
	assert_int_equal(xattr_pack(&b, big, "", 0, &e), -E2BIG);
	free(big);
	buf_done(&b);
}

static void sizes_have_limits(void **state)
{
	struct layer_shared sh;
	struct err e = ERR_INIT;
	struct buf t;

	buf_init(&t, BUF_MAX);
	tar_add(&t, &(struct tar_entry){.name = "huge", .size = IMAGE_FILE_BYTES_MAX + 1});
	assert_refused(
		&t, EFBIG, "entry \"huge\": bytes of one file: 5368709121 (limit 5368709120)");
	buf_clear(&t);
	tar_add(&t, &(struct tar_entry){.name = "absurd", .size = UINT64_MAX >> 2});
	assert_tar_refused(&t, EFBIG, "4611686018427387903");
	tar_add(&t, &(struct tar_entry){.name = "cut", .size = 1000000});
	assert_tar_refused(&t, EBADMSG, "entry \"cut\"");

	add_some(&t);
	layer_shared_init(&sh);
	sh.file_bytes_max = 300000; /* 5 bytes too few */
	assert_int_equal(read_limited(&t, &sh, NULL, &e), -EFBIG);
	assert_non_null(strstr(e.text, "all layers together: 300005 (limit 300000)"));
	layer_shared_init(&sh);
	sh.layer_entries_max = 5;
	assert_int_equal(read_limited(&t, &sh, NULL, &e), -EFBIG);
	assert_non_null(strstr(e.text, "entries of one layer: 6 (limit 5)"));
	layer_shared_init(&sh);
	sh.entries_max = 11;
	assert_int_equal(read_limited(&t, &sh, NULL, &e), 0);
	assert_int_equal(read_limited(&t, &sh, NULL, &e), -EFBIG);
	assert_non_null(strstr(e.text, "entries of all layers together: 12 (limit 11)"));
	layer_shared_init(&sh);
	sh.meta_bytes_max = 300;
	assert_int_equal(read_limited(&t, &sh, NULL, &e), -EFBIG);
	assert_non_null(strstr(e.text, "bytes of names"));
	buf_done(&t);
}

static void bombs_end_at_a_limit(void **state)
{
	struct buf t, gz;
	struct layer_shared sh;
	struct err e = ERR_INIT;
	uint8_t *zeros = xcalloc(1, 64 << 20);

	buf_init(&t, BUF_MAX);
	buf_init(&gz, BUF_MAX);
	/* Behind the end of the tar, where only the hash looks. */
	tar_end(&t);
	buf_add(&t, zeros, 64 << 20);
	tar_compress(t.data, t.len, false, &gz);
	layer_shared_init(&sh);
	sh.stream.tar_bytes_max = 32 << 20;
	assert_int_equal(read_limited(&gz, &sh, NULL, &e), -EFBIG);
	assert_non_null(strstr(e.text, "33554432 bytes of tar"));
	/* In the list of a sparse file's pieces. */
	buf_clear(&t);
	buf_clear(&gz);
	tar_record(&gz, "GNU.sparse.major", "1", 1);
	tar_record(&gz, "GNU.sparse.minor", "0", 1);
	tar_record(&gz, "GNU.sparse.realsize", "100", 3);
	tar_add(&t, &(struct tar_entry){.name = "p", .type = 'x', .data = gz.data, .len = gz.len});
	buf_clear(&gz);
	buf_add_str(&gz, "20000000\n");
	while (gz.len < 16 << 20)
		buf_add_str(&gz, "0\n0\n0\n0\n0\n0\n0\n0\n");
	tar_add(&t, &(struct tar_entry){.name = "map", .data = gz.data, .len = gz.len});
	assert_tar_refused(&t, E2BIG, "headers of an entry");
	free(zeros);
	buf_done(&t);
	buf_done(&gz);
}

static void sparse_files_cost_no_space(void **state)
{
	struct buf t, body;
	struct image_layer l;
	struct image_build b = {.layers = &l, .n_layers = 1, .scratch_dirfd = scratch};
	struct image_build_stats stats;
	uint64_t size = (4ull << 30) + 12345;
	uint8_t byte;
	struct stat st;

	buf_init(&t, BUF_MAX);
	buf_init(&body, BUF_MAX);
	tar_record(&body, "GNU.sparse.major", "1", 1);
	tar_record(&body, "GNU.sparse.minor", "0", 1);
	tar_record(&body, "GNU.sparse.name", "large", 5);
	tar_record(&body, "GNU.sparse.realsize", "4294979641", 10);
	tar_add(&t,
		&(struct tar_entry){.name = "p", .type = 'x', .data = body.data, .len = body.len});
	buf_clear(&body);
	buf_add_str(&body, "2\n0\n3\n4294979638\n3\n");
	tar_pad(&body);
	buf_add_str(&body, "oneend");
	tar_add(&t, &(struct tar_entry){.name = "x", .data = body.data, .len = body.len});
	tar_end(&t);
	l = layer_of(&t);
	b.out_fd = memfd_create("disk", MFD_CLOEXEC);
	assert_int_equal(image_build(&b, &stats, NULL), 0);
	assert_int_equal(stats.data_bytes, size);
	assert_int_equal(fstat(b.out_fd, &st), 0);
	assert_true((uint64_t)st.st_size > size);
	assert_true(st.st_blocks < 2048);
	/* The only data block starts with "one"; the file's last bytes lie with its inode. */
	assert_int_equal(fd_pread_full(b.out_fd, &byte, 1, 2 * EROFS_BLOCK), 1);
	assert_int_equal(byte, 'o');
	close(b.out_fd);
	close(l.fd);
	/* Pieces that overlap, or lie behind the end. */
	for (int i = 0; i < 2; i++) {
		buf_clear(&t);
		buf_clear(&body);
		tar_record(&body, "GNU.sparse.map", i ? "0,3,2,3" : "50,3,98,3", i ? 7 : 9);
		tar_record(&body, "GNU.sparse.size", "100", 3);
		tar_add(&t, &(struct tar_entry){
				    .name = "p", .type = 'x', .data = body.data, .len = body.len});
		tar_file(&t, "x", "123456");
		tar_end(&t);
		assert_int_equal(read_bytes(&t, NULL, NULL), -EINVAL);
	}
	buf_done(&t);
	buf_done(&body);
}

static bool yes(void *user)
{
	++*(int *)user;
	return true;
}

static void cancel_and_disk_limits(void **state)
{
	struct buf t;
	struct image_layer l[2];
	int asked = 0;
	struct image_build b = {.layers = l,
		.n_layers = 2,
		.scratch_dirfd = scratch,
		.cancelled = yes,
		.user = &asked};
	struct err e = ERR_INIT;
	struct buf none[IMAGE_LAYERS_MAX + 1];

	buf_init(&t, BUF_MAX);
	add_some(&t);
	l[0] = l[1] = layer_of(&t);
	b.out_fd = memfd_create("disk", MFD_CLOEXEC);
	assert_int_equal(image_build(&b, NULL, &e), -ECANCELED);
	assert_true(asked > 0);
	b.cancelled = NULL;
	b.bytes_max = 8192;
	assert_int_equal(image_build(&b, NULL, &e), -EFBIG);
	assert_non_null(strstr(e.text, "limit 8192 bytes"));
	close(b.out_fd);
	/* A folder that takes no scratch files. */
	b.out_fd = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	b.scratch_dirfd = b.out_fd;
	assert_true(image_build(&b, NULL, &e) < 0);
	assert_non_null(strstr(e.text, "scratch"));
	close(b.out_fd);
	close(l[0].fd);
	for (size_t i = 0; i < ARRAY_LEN(none); i++)
		buf_init(&none[i], 1);
	assert_int_equal(build(none, IMAGE_LAYERS_MAX, 0, NULL, NULL, &e), 0);
	assert_int_equal(build(none, IMAGE_LAYERS_MAX + 1, 0, NULL, NULL, &e), -E2BIG);
	assert_non_null(strstr(e.text, "129 layers (limit 128)"));
	buf_done(&t);
}

static int open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void nothing_stays_open(void **state)
{
	struct buf t[2];
	int before = open_fds();

	buf_init(&t[0], BUF_MAX);
	buf_init(&t[1], BUF_MAX);
	add_some(&t[0]);
	tar_file(&t[1], "/absolute", "x");
	assert_int_equal(build(t, 1, 0, NULL, NULL, NULL), 0);
	assert_int_equal(build(t, 2, 0, NULL, NULL, NULL), -EINVAL);
	assert_int_equal(open_fds(), before);
	buf_done(&t[0]);
	buf_done(&t[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_compression_gives_the_same_disk),
		cmocka_unit_test(the_same_layers_give_the_same_bytes),
		cmocka_unit_test(empty_layers_are_fine),
		cmocka_unit_test(other_compressions_are_named),
		cmocka_unit_test(digests_cover_every_byte),
		cmocka_unit_test(truncation_is_noticed_everywhere),
		cmocka_unit_test(a_blob_shorter_than_said_is_noticed),
		cmocka_unit_test(a_layer_may_lie_inside_a_file),
		cmocka_unit_test(bad_names_are_refused),
		cmocka_unit_test(whiteouts_are_told_by_name),
		cmocka_unit_test(odd_entries_are_refused),
		cmocka_unit_test(links_that_lead_nowhere_fail_the_build),
		cmocka_unit_test(no_symlink_leads_out_of_the_tree),
		cmocka_unit_test(metadata_is_kept),
		cmocka_unit_test(xattrs_have_limits),
		cmocka_unit_test(sizes_have_limits),
		cmocka_unit_test(bombs_end_at_a_limit),
		cmocka_unit_test(sparse_files_cost_no_space),
		cmocka_unit_test(cancel_and_disk_limits),
		cmocka_unit_test(nothing_stays_open),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
