/* source, members, catalog and image_fetch: layouts and archives, whole and hostile. Everything is
 * made here with libarchive; nothing is read from the tree. */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/image/catalog.h"
#include "host/image/digest.h"
#include "host/image/image.h"
#include "host/image/members.h"
#include "host/image/source.h"
#include "host/image/store_priv.h"

#define HANG_GUARD_S  240
#define ARCHIVE_BYTES (4u << 20)

static char *root;
static int rootfd = -1;
static struct source_env env;

static int setup(void **state)
{
	char template[] = "/var/tmp/test_source.XXXXXX";
	cleanup_free char *cache = NULL;

	alarm(HANG_GUARD_S);
	assert_non_null(mkdtemp(template));
	root = xstrdup(template);
	rootfd = path_open_dir(root, NULL);
	cache = path_join(root, "cache");
	setenv("III_SANDBOX_CACHE_DIR", cache, true);
	env = (struct source_env){.arch = oci_host_arch(), .scratch_dirfd = rootfd};
	return 0;
}

static int teardown(void **state)
{
	fd_close(&rootfd);
	assert_int_equal(path_remove_at(AT_FDCWD, root), 0);
	free(root);
	alarm(0);
	return 0;
}

/* ---- making things ---- */

static void put(const char *name, const void *data, size_t len)
{
	cleanup_fd int fd = openat(rootfd, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, data, len), 0);
}

static void put_str(const char *name, const char *text)
{
	put(name, text, strlen(text));
}

/* One member of an archive. */
struct item {
	const char *name;
	const char *data; /* NULL with a link: none */
	size_t len;
	const char *soft, *hard;
};

static struct item text_item(const char *name, const char *text)
{
	return (struct item){.name = name, .data = text, .len = strlen(text)};
}

/* A tar of the items, in memory; `filter` is "", "gzip", "zstd" or "xz". */
static void make_tar(const struct item *items, size_t n, const char *filter, struct buf *ret)
{
	struct archive *a = archive_write_new();
	size_t used = 0;

	buf_init(ret, ARCHIVE_BYTES);
	archive_write_set_format_pax_restricted(a);
	archive_write_set_bytes_in_last_block(a, 1);
	if (*filter)
		assert_int_equal(archive_write_add_filter_by_name(a, filter), ARCHIVE_OK);
	assert_int_equal(
		archive_write_open_memory(a, buf_room(ret, ARCHIVE_BYTES), ARCHIVE_BYTES, &used),
		ARCHIVE_OK);
	for (size_t i = 0; i < n; i++) {
		struct archive_entry *ae = archive_entry_new();

		archive_entry_set_pathname(ae, items[i].name);
		archive_entry_set_filetype(ae, items[i].soft ? AE_IFLNK : AE_IFREG);
		archive_entry_set_perm(ae, 0644);
		if (items[i].soft)
			archive_entry_set_symlink(ae, items[i].soft);
		else if (items[i].hard)
			archive_entry_set_hardlink(ae, items[i].hard);
		else
			archive_entry_set_size(ae, (la_int64_t)items[i].len);
		assert_int_equal(archive_write_header(a, ae), ARCHIVE_OK);
		if (items[i].len)
			assert_int_equal(
				archive_write_data(a, items[i].data, items[i].len), items[i].len);
		archive_entry_free(ae);
	}
	assert_int_equal(archive_write_close(a), ARCHIVE_OK);
	archive_write_free(a);
	buf_added(ret, used);
}

/* The parts of one small image. */
struct made {
	struct buf tar, layer; /* plain and as stored */
	char diff_id[72], layer_digest[72], config_digest[72], manifest_digest[72];
	char *config, *manifest, *index;
};

static void made_done(struct made *m)
{
	buf_done(&m->tar);
	buf_done(&m->layer);
	free(m->config);
	free(m->manifest);
	free(m->index);
}
#define cleanup_made __attribute__((cleanup(made_done)))

#define MANIFEST_TYPE "application/vnd.oci.image.manifest.v1+json"

/* `word` makes images differ. */
static void make_image_for(struct made *m, const char *word, const char *arch)
{
	const struct item file = text_item("hello", word);

	make_tar(&file, 1, "", &m->tar);
	make_tar(&file, 1, "gzip", &m->layer);
	digest_of(m->tar.data, m->tar.len, m->diff_id);
	digest_of(m->layer.data, m->layer.len, m->layer_digest);
	m->config =
		xasprintf("{\"os\":\"linux\",\"architecture\":\"%s\",\"config\":{\"Env\":[\"W=%s\"]"
			  "},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"%s\"]}}",
			arch, word, m->diff_id);
	digest_of(m->config, strlen(m->config), m->config_digest);
	m->manifest = xasprintf("{\"schemaVersion\":2,\"config\":{\"digest\":\"%s\",\"size\":%zu},"
				"\"layers\":[{\"digest\":\"%s\",\"size\":%zu}]}",
		m->config_digest, strlen(m->config), m->layer_digest, m->layer.len);
	digest_of(m->manifest, strlen(m->manifest), m->manifest_digest);
	m->index = xasprintf("{\"schemaVersion\":2,\"manifests\":[{\"mediaType\":\"" MANIFEST_TYPE
			     "\",\"digest\":\"%s\",\"size\":%zu,\"annotations\":{"
			     "\"org.opencontainers.image.ref.name\":\"%s\"}}]}",
		m->manifest_digest, strlen(m->manifest), word);
}

static void make_image(struct made *m, const char *word)
{
	make_image_for(m, word, oci_host_arch());
}

static char *blob_name(const char *folder, const char *digest)
{
	return xasprintf("%s/blobs/sha256/%s", folder, digest + 7);
}

static void put_blob(const char *folder, const char *digest, const void *data, size_t len)
{
	cleanup_free char *name = blob_name(folder, digest);

	put(name, data, len);
}

static void make_folders(const char *folder)
{
	cleanup_free char *blobs = xasprintf("%s/%s/blobs/sha256", root, folder);

	assert_int_equal(path_mkdirs(blobs, NULL), 0);
}

static void put_image(const char *folder, const struct made *m)
{
	put_blob(folder, m->layer_digest, m->layer.data, m->layer.len);
	put_blob(folder, m->config_digest, m->config, strlen(m->config));
	put_blob(folder, m->manifest_digest, m->manifest, strlen(m->manifest));
}

static void put_index(const char *folder, const char *index)
{
	cleanup_free char *layout = path_join(folder, "oci-layout"),
			  *name = path_join(folder, "index.json");

	put_str(layout, "{\"imageLayoutVersion\":\"1.0.0\"}");
	put_str(name, index);
}

/* root/folder becomes a layout with this one image. */
static void make_layout(const char *folder, const struct made *m)
{
	make_folders(folder);
	put_image(folder, m);
	put_index(folder, m->index);
}

/* ---- trying ---- */

static int open_source(
	const char *transport, const char *rest, struct source_image **ret, struct err *e)
{
	cleanup_free char *text = xasprintf("%s:%s/%s", transport, root, rest);
	struct source_spec spec;
	int r;

	*e = ERR_INIT;
	*ret = NULL;
	r = source_spec_parse(text, &spec, e);
	if (r == 0) {
		r = source_open(&spec, &env, ret, e);
		source_spec_done(&spec);
	}
	return r;
}

/* The layer's place holds the bytes of `m`, stored or plain. */
static void check_layer(const struct image_layer *layer, const struct made *m)
{
	cleanup_free char *data = xmalloc(layer->size);
	char sum[72];

	assert_int_equal(fd_pread_full(layer->fd, data, layer->size, layer->offset), layer->size);
	digest_of(data, layer->size, sum);
	assert_true(str_eq(sum, m->layer_digest) || str_eq(sum, m->diff_id));
}

/* It opens as the image `m`. */
static void opens(const char *transport, const char *rest, const struct made *m)
{
	struct source_image *img;
	struct err e;

	if (open_source(transport, rest, &img, &e) < 0)
		fail_msg("%s:%s: %s", transport, rest, e.text);
	assert_int_equal(img->n_layers, 1);
	assert_string_equal(img->layers[0].diff_id, m->diff_id);
	check_layer(&img->layers[0], m);
	source_close(img);
}

/* It is refused, and the reason has `why` in it. */
static void refused(const char *transport, const char *rest, int error, const char *why)
{
	struct source_image *img;
	struct err e;
	int r = open_source(transport, rest, &img, &e);

	if (r >= 0)
		fail_msg("opened: %s:%s", transport, rest);
	if (!strstr(e.text, why))
		fail_msg("%s:%s: '%s' is not in: %s", transport, rest, why, e.text);
	if (error)
		assert_int_equal(r, error);
	assert_null(img);
}

static int fetch(const char *transport, const char *rest, const char *as, struct err *e)
{
	cleanup_free char *text = xasprintf("%s:%s/%s", transport, root, rest);

	*e = ERR_INIT;
	return image_fetch(text, as, NULL, NULL, NULL, e);
}

static int count_one(const char *name, void *user)
{
	++*(int *)user;
	return 0;
}

/* Files in a folder of the store. */
static int count(const char *folder)
{
	cleanup_free char *path = xasprintf("%s/cache/images/%s", root, folder);
	cleanup_fd int fd = path_open_dir(path, NULL);
	int n = 0;

	assert_true(fd >= 0);
	assert_int_equal(store_each(fd, count_one, &n), 0);
	return n;
}

static void store_is_empty(void)
{
	static const char *const folders[] = {"entries", "names", "tmp", "partial", "locks"};

	for (size_t i = 0; i < ARRAY_LEN(folders); i++)
		assert_int_equal(count(folders[i]), 0);
}

/* ---- what may be written ---- */

static void sources_have_a_normal_form(void **state)
{
	static const struct {
		const char *text, *name;
		enum source_kind kind;
	} good[] = {
		{"python", "docker.io/iiidev/python:latest", SOURCE_REGISTRY},
		{"alpine:3", "docker.io/library/alpine:3", SOURCE_REGISTRY},
		{"docker://localhost:5000/a", "localhost:5000/a:latest", SOURCE_REGISTRY},
		{"oci:/no/such", "oci:/no/such", SOURCE_OCI},
		{"oci:/no/such:a/b:c", "oci:/no/such:a/b:c", SOURCE_OCI},
		{"oci-archive:/no/x.tar:1", "oci-archive:/no/x.tar:1", SOURCE_OCI_ARCHIVE},
		{"docker-archive:/no/x.tar:a:1", "docker-archive:/no/x.tar:a:1",
			SOURCE_DOCKER_ARCHIVE},
		{"oci:/no@sha256:0000000000000000000000000000000000000000000000000000000000000000",
			"oci:/no@sha256:"
			"0000000000000000000000000000000000000000000000000000000000000000",
			SOURCE_OCI},
	};
	static const char *const bad[] = {"", "oci:", "oci:/a:", "oci::a", "docker://", "dir:/x",
		"docker-daemon:a", "containers-storage:a", "https://a/b", "/a/b", "./a", "../a",
		"file:/a", "oci:/\xff", "tarball:x"};
	struct source_spec spec;
	struct err e = ERR_INIT;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		if (source_spec_parse(good[i].text, &spec, &e) < 0)
			fail_msg("%s: %s", good[i].text, e.text);
		assert_string_equal(spec.name, good[i].name);
		assert_int_equal(spec.kind, good[i].kind);
		source_spec_done(&spec);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (source_spec_parse(bad[i], &spec, &e) >= 0)
			fail_msg("accepted: %s", bad[i]);
	assert_int_equal(source_spec_parse("dir:/x", &spec, &e), -EINVAL);
	assert_non_null(strstr(e.text, "docker-archive:PATH"));
}

static void names_lead_to_store_names(void **state)
{
	static const struct {
		const char *as, *name;
	} good[] = {{"python", "docker.io/iiidev/python:latest"}, {"word", "word"},
		{"Word-1.2_x", "Word-1.2_x"}, {"alpine:3", "docker.io/library/alpine:3"},
		{"a/b", "docker.io/a/b:latest"}};
	static const char *const bad[] = {"", "-x", ".x", "a b", "oci:/x", "a/B", "x\n",
		"a@sha256:0000000000000000000000000000000000000000000000000000000000000000"};
	struct err e = ERR_INIT;
	char **names, *name;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(catalog_name_as(good[i].as, &name, &e), 0);
		assert_string_equal(name, good[i].name);
		free(name);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (catalog_name_as(bad[i], &name, &e) >= 0)
			fail_msg("accepted: %s", bad[i]);
	assert_int_equal(catalog_candidates("word", &names, &e), 0);
	assert_string_equal(names[0], "word");
	assert_string_equal(names[1], "docker.io/library/word:latest");
	strv_free(names);
	assert_int_equal(catalog_candidates("node", &names, &e), 0);
	assert_string_equal(names[0], "docker.io/iiidev/node:latest");
	assert_null(names[1]);
	strv_free(names);
	assert_int_equal(catalog_candidates("no good", &names, &e), -EINVAL);
	assert_string_equal(catalog_preset_name("docker.io/iiidev/python:latest"), "python");
}

/* ---- layouts ---- */

static void a_layout_becomes_an_image(void **state)
{
	cleanup_made struct made m = {0};
	struct image *img, *other;
	struct err e;

	make_image(&m, "one");
	make_layout("lay", &m);
	opens("oci", "lay", &m);
	opens("oci", "lay:one", &m);
	if (fetch("oci", "lay", "python", &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(image_open("python", &img, &e), 0);
	assert_string_equal(img->digest, m.manifest_digest);
	assert_string_equal(img->ref, "docker.io/iiidev/python:latest");
	assert_string_equal(img->config.env[0], "W=one");
	assert_int_equal(fetch("oci", "lay:one", NULL, &e), 0); /* adopts the entry */
	assert_int_equal(count("entries"), 1);
	assert_int_equal(count("names"), 2);
	cleanup_free char *name = xasprintf("oci:%s/lay:one", root);

	assert_int_equal(image_open(name, &other, &e), 0);
	assert_string_equal(other->digest, img->digest);
	image_close(img);
	image_close(other);
	assert_int_equal(count("tmp"), 0);
	assert_int_equal(count("locks"), 0);
}

static void an_image_without_layers_or_shell_is_fine(void **state)
{
	cleanup_made struct made m = {0};
	struct image *img;
	struct err e;

	m.config = xasprintf("{\"os\":\"linux\",\"architecture\":\"%s\",\"rootfs\":{\"type\":"
			     "\"layers\",\"diff_ids\":[]}}",
		oci_host_arch());
	digest_of(m.config, strlen(m.config), m.config_digest);
	m.manifest = xasprintf("{\"schemaVersion\":2,\"config\":{\"digest\":\"%s\",\"size\":%zu},"
			       "\"layers\":[]}",
		m.config_digest, strlen(m.config));
	digest_of(m.manifest, strlen(m.manifest), m.manifest_digest);
	m.index =
		xasprintf("{\"schemaVersion\":2,\"manifests\":[{\"digest\":\"%s\",\"size\":%zu}]}",
			m.manifest_digest, strlen(m.manifest));
	make_folders("lay");
	put_blob("lay", m.config_digest, m.config, strlen(m.config));
	put_blob("lay", m.manifest_digest, m.manifest, strlen(m.manifest));
	put_index("lay", m.index);
	if (fetch("oci", "lay", "empty", &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(image_open("empty", &img, &e), 0);
	image_close(img);
}

/* An index of two images, with and without platforms, as text. */
static char *two_in_index(
	const struct made *a, const char *arch_a, const struct made *b, const char *arch_b)
{
	return xasprintf("{\"schemaVersion\":2,\"manifests\":["
			 "{\"digest\":\"%s\",\"size\":%zu,\"platform\":{\"os\":\"linux\","
			 "\"architecture\":\"%s\"}},"
			 "{\"digest\":\"%s\",\"size\":%zu,\"platform\":{\"os\":\"linux\","
			 "\"architecture\":\"%s\"}}]}",
		a->manifest_digest, strlen(a->manifest), arch_a, b->manifest_digest,
		strlen(b->manifest), arch_b);
}

static void the_platform_is_found_in_nested_indexes(void **state)
{
	cleanup_made struct made a = {0}, b = {0};
	cleanup_free char *inner = NULL;
	char *index;

	make_image_for(&a, "other", "s390x");
	make_image(&b, "mine");
	make_folders("lay");
	put_image("lay", &a);
	put_image("lay", &b);
	inner = two_in_index(&a, "s390x", &b, oci_host_arch());
	put_index("lay", inner);
	opens("oci", "lay", &b);
	/* wrapped into further indexes: a few are fine, without end is not */
	index = xstrdup(inner);
	for (int depth = 0; depth < OCI_INDEX_DEPTH_MAX + 1; depth++) {
		char digest[72];
		char *outer;

		digest_of(index, strlen(index), digest);
		put_blob("lay", digest, index, strlen(index));
		outer = xasprintf("{\"schemaVersion\":2,\"manifests\":[{\"digest\":\"%s\","
				  "\"size\":%zu,\"annotations\":{"
				  "\"org.opencontainers.image.ref.name\":\"t\"}}]}",
			digest, strlen(index));
		free(index);
		index = outer;
		put_index("lay", index);
		if (depth < OCI_INDEX_DEPTH_MAX)
			opens("oci", "lay:t", &b);
		else
			refused("oci", "lay:t", -EINVAL, "inside each other");
	}
	free(index);
	index = two_in_index(&a, "s390x", &b, "riscv64");
	put_index("lay", index);
	refused("oci", "lay", -ENOENT, oci_host_arch());
	free(index);
}

static void one_image_is_named_by_tag_or_digest(void **state)
{
	cleanup_made struct made a = {0}, b = {0};
	cleanup_free char *index = NULL, *by_digest = NULL;

	make_image(&a, "a");
	make_image(&b, "b");
	make_folders("lay");
	put_image("lay", &a);
	put_image("lay", &b);
	index = xasprintf("{\"schemaVersion\":2,\"manifests\":["
			  "{\"digest\":\"%s\",\"size\":%zu,\"annotations\":{"
			  "\"org.opencontainers.image.ref.name\":\"a\"}},"
			  "{\"digest\":\"%s\",\"size\":%zu,\"annotations\":{"
			  "\"io.containerd.image.name\":\"docker.io/library/b:1\"}}]}",
		a.manifest_digest, strlen(a.manifest), b.manifest_digest, strlen(b.manifest));
	put_index("lay", index);
	opens("oci", "lay:a", &a);
	opens("oci", "lay:docker.io/library/b:1", &b);
	by_digest = xasprintf("lay@%s", b.manifest_digest);
	opens("oci", by_digest, &b);
	refused("oci", "lay", -EINVAL, "several images");
	refused("oci", "lay:c", -ENOENT, "it has: a");
}

static void replace_with_link(const char *name, const char *target)
{
	path_remove_at(rootfd, name);
	assert_int_equal(symlinkat(target, rootfd, name), 0);
}

static void links_and_pipes_in_a_layout_are_refused(void **state)
{
	cleanup_made struct made m = {0};
	cleanup_free char *layer = NULL, *config = NULL;

	make_image(&m, "x");
	make_layout("lay", &m);
	layer = blob_name("lay", m.layer_digest);
	config = blob_name("lay", m.config_digest);
	put("outside", m.layer.data, m.layer.len); /* same bytes: only the link is wrong */
	replace_with_link(layer, "../../../outside");
	refused("oci", "lay", -EINVAL, "symbolic link");
	path_remove_at(rootfd, layer);
	assert_int_equal(mkfifoat(rootfd, layer, 0600), 0);
	refused("oci", "lay", -EINVAL, "not a regular file");
	path_remove_at(rootfd, layer);
	assert_int_equal(mkdirat(rootfd, layer, 0700), 0);
	refused("oci", "lay", -EINVAL, "not a regular file");
	path_remove_at(rootfd, layer);
	refused("oci", "lay", -ENOENT, m.layer_digest + 7);
	put_image("lay", &m);
	opens("oci", "lay", &m);
	replace_with_link(config, "/etc/passwd");
	refused("oci", "lay", -EINVAL, "symbolic link");
	make_layout("lay2", &m);
	path_remove_at(rootfd, "lay2/blobs/sha256");
	assert_int_equal(symlinkat("../../lay/blobs/sha256", rootfd, "lay2/blobs/sha256"), 0);
	refused("oci", "lay2", -EINVAL, "symbolic link");
	make_layout("lay3", &m);
	replace_with_link("lay3/index.json", "../lay/index.json");
	refused("oci", "lay3", -EINVAL, "symbolic link");
	path_remove_at(rootfd, "lay3/index.json");
	assert_int_equal(mkfifoat(rootfd, "lay3/index.json", 0600), 0);
	refused("oci", "lay3", -EINVAL, "not a regular file");
}

/* Flips one bit of a file. */
static void flip(const char *name, off_t at)
{
	cleanup_fd int fd = openat(rootfd, name, O_RDWR);
	uint8_t byte;

	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static void changed_bytes_are_found(void **state)
{
	cleanup_made struct made m = {0};
	cleanup_free char *layer = NULL, *config = NULL, *manifest = NULL;
	struct source_image *img;
	struct err e;

	make_image(&m, "x");
	make_layout("lay", &m);
	layer = blob_name("lay", m.layer_digest);
	config = blob_name("lay", m.config_digest);
	manifest = blob_name("lay", m.manifest_digest);
	flip(manifest, 20);
	refused("oci", "lay", -EBADMSG, m.manifest_digest);
	flip(manifest, 20);
	flip(config, 20);
	refused("oci", "lay", -EBADMSG, m.config_digest);
	put(config, m.config, strlen(m.config) - 1);
	refused("oci", "lay", -EINVAL, "instead of");
	put(config, m.config, strlen(m.config));
	flip(layer, (off_t)m.layer.len / 2);
	assert_int_equal(open_source("oci", "lay", &img, &e), 0); /* checked when it is read */
	source_close(img);
	assert_true(fetch("oci", "lay", "x", &e) < 0);
	assert_string_equal(e.code, "S102");
	assert_non_null(strstr(e.text, m.layer_digest + 7));
	store_is_empty();
	flip(layer, (off_t)m.layer.len / 2);
	assert_int_equal(fetch("oci", "lay", "x", &e), 0);
}

static void what_is_no_layout_is_said(void **state)
{
	cleanup_made struct made m = {0}, foreign = {0};
	cleanup_free char *big = xcalloc(1, OCI_DOCUMENT_BYTES_MAX + 1);
	struct err e;

	refused("oci", "absent", -ENOENT, "absent");
	put_str("file", "x");
	refused("oci", "file", -ENOTDIR, "file");
	make_folders("lay");
	refused("oci", "lay", -ENOENT, "not an OCI layout");
	make_image(&m, "x");
	make_layout("lay", &m);
	put_str("lay/oci-layout", "{\"imageLayoutVersion\":\"9\"}");
	refused("oci", "lay", -EINVAL, "imageLayoutVersion");
	put_index("lay", m.manifest);
	refused("oci", "lay", -EINVAL, "not an index");
	put_index("lay", "[");
	refused("oci", "lay", -EINVAL, "index.json");
	put_index("lay", "{\"schemaVersion\":2,\"manifests\":[]}");
	refused("oci", "lay", -ENOENT, "none");
	memset(big, ' ', OCI_DOCUMENT_BYTES_MAX + 1);
	put("lay/index.json", big, OCI_DOCUMENT_BYTES_MAX + 1);
	refused("oci", "lay", -EINVAL, "at most 4194304");
	make_image_for(&foreign, "x", "s390x");
	make_layout("lay4", &foreign);
	refused("oci", "lay4", -ENOENT, "linux/s390x");
	assert_true(fetch("oci", "lay4", "x", &e) < 0);
	assert_non_null(strstr(e.text, oci_host_arch()));
	assert_string_equal(e.code, "S102");
	store_is_empty();
	assert_int_equal(image_fetch("dir:/x", NULL, NULL, NULL, NULL, &e), -EINVAL);
	assert_int_equal(fetch("oci", "lay4", "bad name", &e), -EINVAL);
}

static bool yes(void *user)
{
	return true;
}

static void a_cancel_leaves_nothing(void **state)
{
	cleanup_made struct made m = {0};
	cleanup_free char *text = NULL;
	struct err e = ERR_INIT;

	make_image(&m, "x");
	make_layout("lay", &m);
	text = xasprintf("oci:%s/lay", root);
	assert_int_equal(image_fetch(text, "x", NULL, NULL, yes, &e), -ECANCELED);
	store_is_empty();
	assert_int_equal(image_fetch(text, "x", NULL, NULL, NULL, &e), 0);
}

struct seen {
	int pull, unpack, write, done;
};

static void note(const struct image_progress *p, void *user)
{
	struct seen *s = user;

	assert_true(!p->total_bytes || p->done_bytes <= p->total_bytes);
	s->pull += str_eq(p->stage, "pull");
	s->unpack += str_eq(p->stage, "unpack");
	s->write += str_eq(p->stage, "write");
	s->done += str_eq(p->stage, "done");
}

static void progress_tells_the_stages(void **state)
{
	cleanup_made struct made m = {0};
	cleanup_free char *text = NULL;
	struct seen seen = {0};
	struct err e = ERR_INIT;

	make_image(&m, "x");
	make_layout("lay", &m);
	text = xasprintf("oci:%s/lay", root);
	assert_int_equal(image_fetch(text, "x", note, &seen, NULL, &e), 0);
	assert_true(seen.unpack >= 1 && seen.write == 1 && seen.done == 1 && seen.pull == 0);
}

/* ---- archives ---- */

/* The files of a layout as items; names in `names`, prefixed. */
static size_t layout_items(
	const struct made *m, const char *prefix, char *names[5], struct item items[5])
{
	static const char layout[] = "{\"imageLayoutVersion\":\"1.0.0\"}";

	names[0] = xasprintf("%soci-layout", prefix);
	names[1] = xasprintf("%sindex.json", prefix);
	names[2] = xasprintf("%sblobs/sha256/%s", prefix, m->manifest_digest + 7);
	names[3] = xasprintf("%sblobs/sha256/%s", prefix, m->config_digest + 7);
	names[4] = xasprintf("%sblobs/sha256/%s", prefix, m->layer_digest + 7);
	items[0] = text_item(names[0], layout);
	items[1] = text_item(names[1], m->index);
	items[2] = text_item(names[2], m->manifest);
	items[3] = text_item(names[3], m->config);
	items[4] =
		(struct item){.name = names[4], .data = (char *)m->layer.data, .len = m->layer.len};
	return 5;
}

static void names_done(char *names[5])
{
	for (int i = 0; i < 5; i++)
		free(names[i]);
}

static void put_tar(const char *name, const struct item *items, size_t n, const char *filter)
{
	cleanup_buf struct buf tar;

	make_tar(items, n, filter, &tar);
	put(name, tar.data, tar.len);
}

static void archives_of_layouts_are_read_in_place(void **state)
{
	static const char *const filters[] = {"", "gzip", "zstd"};
	cleanup_made struct made m = {0};
	struct item items[5];
	char *names[5];
	struct err e;

	make_image(&m, "one");
	for (int dotted = 0; dotted < 2; dotted++) {
		layout_items(&m, dotted ? "./" : "", names, items);
		for (size_t i = 0; i < ARRAY_LEN(filters); i++) {
			put_tar("a.tar", items, 5, filters[i]);
			opens("oci-archive", "a.tar", &m);
			opens("oci-archive", "a.tar:one", &m);
			refused("oci-archive", "a.tar:two", -ENOENT, "it has: one");
			assert_int_equal(fetch("oci-archive", "a.tar", "x", &e), 0);
		}
		names_done(names);
	}
	assert_int_equal(count("entries"), 1);
}

static void bad_archives_are_refused(void **state)
{
	cleanup_made struct made m = {0};
	cleanup_buf struct buf tar;
	struct item items[7];
	char *names[5];
	struct err e;

	make_image(&m, "one");
	layout_items(&m, "", names, items);
	put_tar("a.tar.xz", items, 5, "xz");
	refused("oci-archive", "a.tar.xz", -EINVAL, "unpack it first");
	make_tar(items, 5, "gzip", &tar);
	put("cut.gz", tar.data, tar.len / 2);
	refused("oci-archive", "cut.gz", 0, "cut.gz");
	buf_done(&tar);
	make_tar(items, 5, "", &tar);
	put("cut.tar", tar.data, tar.len - 2048);
	refused("oci-archive", "cut.tar", 0, "");
	put("cut2.tar", tar.data, 700);
	refused("oci-archive", "cut2.tar", 0, "");
	put_str("noise.tar", "this is no archive, it is a line of text that is quite long");
	refused("oci-archive", "noise.tar", 0, "noise.tar");
	put_str("empty.tar", "");
	refused("oci-archive", "empty.tar", 0, "");
	refused("oci-archive", "absent.tar", -ENOENT, "absent.tar");
	assert_int_equal(mkdirat(rootfd, "folder", 0700), 0);
	refused("oci-archive", "folder", -EINVAL, "oci:PATH");
	assert_int_equal(mkfifoat(rootfd, "pipe", 0600), 0);
	refused("oci-archive", "pipe", -EINVAL, "not a file");
	/* two index.json: two readers could see two images */
	items[5] = items[1];
	put_tar("twice.tar", items, 6, "");
	refused("oci-archive", "twice.tar", -EINVAL, "twice");
	/* a blob of that name twice: the last one counts, and its digest is checked */
	items[5] = items[2];
	items[6] = text_item(items[3].name, "{}");
	put_tar("twice.tar", items, 6, "");
	opens("oci-archive", "twice.tar", &m);
	put_tar("twice.tar", items, 7, "");
	refused("oci-archive", "twice.tar", -EINVAL, "instead of");
	/* names that lead out are as if they were not there */
	items[1].name = "../index.json";
	put_tar("out.tar", items, 5, "");
	refused("oci-archive", "out.tar", -ENOENT, "index.json");
	items[1].name = "x/../index.json";
	put_tar("out.tar", items, 5, "");
	refused("oci-archive", "out.tar", -ENOENT, "index.json");
	items[1].name = "/index.json";
	put_tar("out.tar", items, 5, "");
	refused("oci-archive", "out.tar", -ENOENT, "index.json");
	assert_true(fetch("oci-archive", "out.tar", "x", &e) < 0);
	store_is_empty();
	names_done(names);
}

static void too_many_members_are_refused(void **state)
{
	cleanup_fd int fd = openat(rootfd, "many.tar", O_WRONLY | O_CREAT, 0600);
	const struct item one = text_item("x", "");
	cleanup_buf struct buf tar;

	make_tar(&one, 1, "", &tar);
	for (int i = 0; i <= MEMBERS_MAX; i += 64) {
		uint8_t block[64 * 512];

		for (int k = 0; k < 64; k++)
			memcpy(block + k * 512, tar.data, 512);
		assert_int_equal(fd_write_all(fd, block, sizeof(block)), 0);
	}
	refused("oci-archive", "many.tar", -EINVAL, "more than 65536");
}

/* manifest.json of a docker archive with this layer member. */
static char *docker_manifest(const char *layer)
{
	return xasprintf(
		"[{\"Config\":\"c.json\",\"RepoTags\":[\"repo/it:1\"],\"Layers\":[\"%s\"]}]",
		layer);
}

static void docker_archives_are_read_in_place(void **state)
{
	cleanup_made struct made m = {0};
	cleanup_free char *manifest = docker_manifest("abc/layer.tar");
	struct item items[] = {{0}, text_item("manifest.json", manifest), {0}};
	struct image *img;
	struct err e;

	make_image(&m, "one");
	items[0] = text_item("c.json", m.config);
	items[2] = (struct item){
		.name = "abc/layer.tar", .data = (char *)m.tar.data, .len = m.tar.len};
	put_tar("d.tar", items, 3, "");
	opens("docker-archive", "d.tar", &m);
	opens("docker-archive", "d.tar:repo/it:1", &m);
	opens("docker-archive", "d.tar:docker.io/repo/it:1", &m);
	refused("docker-archive", "d.tar:repo/it:2", -ENOENT, "repo/it:1");
	if (fetch("docker-archive", "d.tar", "x", &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(image_open("x", &img, &e), 0);
	assert_string_equal(img->digest, m.config_digest);
	image_close(img);
	put_tar("d.tar.gz", items, 3, "gzip");
	opens("docker-archive", "d.tar.gz", &m);
	/* compressed layers, as some tools write them */
	items[2].data = (char *)m.layer.data;
	items[2].len = m.layer.len;
	put_tar("d2.tar", items, 3, "");
	assert_int_equal(fetch("docker-archive", "d2.tar", "y", &e), 0);
	assert_int_equal(count("entries"), 1);
}

static void links_inside_a_docker_archive_are_followed_inside(void **state)
{
	static const struct {
		const char *soft, *hard, *why; /* why NULL: fine */
	} table[] = {
		{"../abc/layer.tar", NULL, NULL},
		{"../abc/../abc/./layer.tar", NULL, NULL},
		{NULL, "abc/layer.tar", NULL},
		{"/etc/passwd", NULL, "def/layer.tar"},
		{"../../etc/passwd", NULL, "def/layer.tar"},
		{"layer.tar", NULL, "def/layer.tar"}, /* itself */
		{"absent", NULL, "def/layer.tar"},
		{NULL, "/etc/passwd", "def/layer.tar"},
	};
	cleanup_made struct made m = {0};
	cleanup_free char *manifest = docker_manifest("def/layer.tar"),
			  *outside = docker_manifest("../../etc/passwd"),
			  *absolute = docker_manifest("/etc/passwd");
	struct item items[4] = {[1] = text_item("manifest.json", manifest)};

	make_image(&m, "one");
	items[0] = text_item("c.json", m.config);
	items[2] = (struct item){
		.name = "abc/layer.tar", .data = (char *)m.tar.data, .len = m.tar.len};
	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		items[3] = (struct item){
			.name = "def/layer.tar", .soft = table[i].soft, .hard = table[i].hard};
		put_tar("d.tar", items, 4, "");
		if (table[i].why)
			refused("docker-archive", "d.tar", -ENOENT, table[i].why);
		else
			opens("docker-archive", "d.tar", &m);
	}
	items[1] = text_item("manifest.json", outside);
	put_tar("d.tar", items, 3, "");
	refused("docker-archive", "d.tar", -ENOENT, "etc/passwd");
	items[1] = text_item("manifest.json", absolute);
	put_tar("d.tar", items, 3, "");
	refused("docker-archive", "d.tar", -ENOENT, "etc/passwd");
}

static void bad_docker_archives_are_refused(void **state)
{
	cleanup_made struct made m = {0}, foreign = {0}, other = {0};
	cleanup_free char *manifest = docker_manifest("l.tar"), *none = NULL;
	struct item items[4] = {[1] = text_item("manifest.json", manifest)};
	struct err e;

	make_image(&m, "one");
	make_image(&other, "two");
	make_image_for(&foreign, "one", "s390x");
	items[0] = text_item("c.json", m.config);
	items[2] = (struct item){.name = "l.tar", .data = (char *)m.tar.data, .len = m.tar.len};
	put_tar("d.tar", items, 1, "");
	refused("docker-archive", "d.tar", -ENOENT, "not a docker archive");
	put_tar("d.tar", items, 2, "");
	refused("docker-archive", "d.tar", -ENOENT, "l.tar");
	put_tar("d.tar", items + 1, 2, "");
	refused("docker-archive", "d.tar", -ENOENT, "c.json");
	items[3] = items[1];
	put_tar("d.tar", items, 4, "");
	refused("docker-archive", "d.tar", -EINVAL, "twice");
	items[0] = text_item("c.json", foreign.config);
	put_tar("d.tar", items, 3, "");
	refused("docker-archive", "d.tar", -ENOENT, "s390x");
	/* content that is not what the configuration says */
	items[0] = text_item("c.json", other.config);
	put_tar("d.tar", items, 3, "");
	assert_true(fetch("docker-archive", "d.tar", "x", &e) < 0);
	assert_non_null(strstr(e.text, "l.tar"));
	none = xasprintf(
		"{\"os\":\"linux\",\"architecture\":\"%s\",\"rootfs\":{\"type\":\"layers\","
		"\"diff_ids\":[]}}",
		oci_host_arch());
	items[0] = text_item("c.json", none);
	put_tar("d.tar", items, 3, "");
	refused("docker-archive", "d.tar", -EINVAL, "0 diff ids");
	store_is_empty();
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(sources_have_a_normal_form),
		TEST(names_lead_to_store_names),
		TEST(a_layout_becomes_an_image),
		TEST(an_image_without_layers_or_shell_is_fine),
		TEST(the_platform_is_found_in_nested_indexes),
		TEST(one_image_is_named_by_tag_or_digest),
		TEST(links_and_pipes_in_a_layout_are_refused),
		TEST(changed_bytes_are_found),
		TEST(what_is_no_layout_is_said),
		TEST(a_cancel_leaves_nothing),
		TEST(progress_tells_the_stages),
		TEST(archives_of_layouts_are_read_in_place),
		TEST(bad_archives_are_refused),
		TEST(too_many_members_are_refused),
		TEST(docker_archives_are_read_in_place),
		TEST(links_inside_a_docker_archive_are_followed_inside),
		TEST(bad_docker_archives_are_refused),
	};

	return cmocka_run_group_tests_name("source", tests, NULL, NULL);
}
