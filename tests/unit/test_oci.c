/* wire/oci: references, digests, indexes, manifests, configurations; hostile ones too. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "wire/oci.h"

#define A64 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B64 "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define C64 "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
#define DA  "sha256:" A64
#define DB  "sha256:" B64
#define DC  "sha256:" C64

#define OCI_CONFIG_TYPE	   "application/vnd.oci.image.config.v1+json"
#define DOCKER_CONFIG_TYPE "application/vnd.docker.container.image.v1+json"

static void digests_have_one_form(void **state)
{
	static const char *const bad[] = {"", "sha256:", A64, "sha256:" A64 "a", "sha256:" A64 "/",
		"SHA256:" A64, "sha512:" A64,
		"sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
		"sha256:../../../../../../../../../../../../../../../../../../../etc/pass",
		"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		"sha256: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

	assert_true(oci_digest_valid(DA));
	assert_string_equal(oci_digest_hex(DA), A64);
	assert_false(oci_digest_valid(NULL));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(oci_digest_valid(bad[i]));
}

static void references_are_normalised(void **state)
{
	static const struct {
		const char *text, *name, *wanted;
	} table[] = {
		{"python", "docker.io/library/python:latest", NULL},
		{"python:3.12", "docker.io/library/python:3.12", NULL},
		{"iiidev/python", "docker.io/iiidev/python:latest", NULL},
		{"docker.io/python", "docker.io/library/python:latest", NULL},
		{"index.docker.io/a/b", "docker.io/a/b:latest", NULL},
		{"localhost/x", "localhost/x:latest", NULL},
		{"localhost:5000/x:1", "localhost:5000/x:1", NULL},
		{"127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c:latest", NULL},
		{"quay.io/a_b/c__d/e-f--g.h:V_1.2-x", "quay.io/a_b/c__d/e-f--g.h:V_1.2-x", NULL},
		{"host:1", "docker.io/library/host:1", NULL},
		{"My-Registry.Example:443/x", "My-Registry.Example:443/x:latest", NULL},
		{"a@" DA, "docker.io/library/a@" DA, "docker.io/library/a@" DA},
		/* tag and digest share the entry of the tag, but the digest is what is fetched */
		{"a:1@" DA, "docker.io/library/a:1", "docker.io/library/a@" DA},
	};

	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		struct err e = ERR_INIT;
		struct oci_ref ref;

		if (oci_ref_parse(table[i].text, &ref, &e) < 0)
			fail_msg("%s: %s", table[i].text, e.text);
		cleanup_free char *name = oci_ref_name(&ref), *wanted = oci_ref_wanted(&ref);
		cleanup_free char *at = oci_ref_at(&ref, DB);

		assert_string_equal(name, table[i].name);
		assert_string_equal(wanted, table[i].wanted ? table[i].wanted : table[i].name);
		assert_true(str_ends(at, "@" DB));
		oci_ref_done(&ref);
	}
}

static void bad_references_are_refused(void **state)
{
	static const char *const bad[] = {"", "/", "a/", "/a", "a//b", "A", "a/B", "-a", "a-",
		"--help", "a:", "a:-x", "a:b:c", "a:b/c", ":x", "@" DA, "a@", "a@sha256:12",
		"a@sha512:" A64, "a@" DA "@" DA, "a b", "a\nb", "a;b", "$(a)", "../a", "a/../b",
		"a/./b", ".a", "a..b", "a___b", "a._b", "http://a/b", "host:/a", "host:port/a",
		"host:123456/a", "-h.x/a", "h-.x/a", "h..x/a", A64, "\xc3\xa9", "a%b", "a:\xc3\xa9",
		"a\\b"};
	char text[OCI_REF_BYTES_MAX + 2];
	struct oci_ref ref;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct err e = ERR_INIT;

		if (oci_ref_parse(bad[i], &ref, &e) == 0)
			fail_msg("accepted: %s", bad[i]);
		assert_true(e.text[0]);
	}
	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	assert_int_equal(oci_ref_parse(text, &ref, NULL), -EINVAL);
	text[300] = '\0'; /* within the text limit, beyond that of a name */
	assert_int_equal(oci_ref_parse(text, &ref, NULL), -EINVAL);
	text[200] = '\0';
	assert_int_equal(oci_ref_parse(text, &ref, NULL), 0);
	oci_ref_done(&ref);
}

static int parse(const char *text, struct oci_document *doc, struct err *e)
{
	*e = ERR_INIT;
	return oci_document_parse(text, strlen(text), doc, e);
}

/* The document must be refused with `why` in the reason. */
static void refused(const char *text, const char *why)
{
	struct oci_document doc;
	struct err e;

	if (parse(text, &doc, &e) >= 0)
		fail_msg("accepted: %s", text);
	if (!strstr(e.text, why))
		fail_msg("'%s' is not in: %s", why, e.text);
}

#define CONFIG(type)  "\"config\":{\"mediaType\":\"" type "\",\"digest\":\"" DA "\",\"size\":7}"
#define LAYER(digest) "{\"mediaType\":\"x\",\"digest\":\"" digest "\",\"size\":5}"

static void manifests_of_both_kinds_are_read(void **state)
{
	static const char *const good[] = {
		"{\"schemaVersion\":2," CONFIG(OCI_CONFIG_TYPE) ",\"layers\":[" LAYER(DB) "," LAYER(
			DB) "]}",
		"{\"schemaVersion\":2,\"mediaType\":"
		"\"application/vnd.docker.distribution.manifest.v2+json\"," CONFIG(
			DOCKER_CONFIG_TYPE) ",\"layers\":[" LAYER(DB) "," LAYER(DC) "],\"x\":{}}",
	};

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct oci_document doc;
		struct err e;

		assert_int_equal(parse(good[i], &doc, &e), 0);
		assert_int_equal(doc.kind, OCI_MANIFEST);
		assert_string_equal(doc.manifest.config.digest, DA);
		assert_int_equal(doc.manifest.config.size, 7);
		assert_int_equal(doc.manifest.n_layers, 2);
		assert_int_equal(doc.manifest.layer_bytes, 10);
		assert_string_equal(doc.manifest.layers[0].digest, DB);
		oci_document_done(&doc);
	}
}

static void bad_documents_are_refused(void **state)
{
	refused("", "");
	refused("[]", "");
	refused("{}", "schemaVersion");
	refused("{\"schemaVersion\":1,\"fsLayers\":[]}", "old Docker format");
	refused("{\"schemaVersion\":2}", "config");
	refused("{\"schemaVersion\":\"2\"}", "schemaVersion");
	refused("{\"schemaVersion\":2,\"manifests\":[],\"config\":{},\"layers\":[]}", "ambiguous");
	refused("{\"schemaVersion\":2,\"manifests\":[],\"fsLayers\":[]}", "ambiguous");
	refused("{\"schemaVersion\":2,\"mediaType\":\"application/"
		"vnd.oci.image.index.v1+json\"," CONFIG(OCI_CONFIG_TYPE) ",\"layers\":[]}",
		"not that of an image manifest");
	refused("{\"schemaVersion\":2,\"mediaType\":\"application/"
		"vnd.oci.image.manifest.v1+json\",\"manifests\":[]}",
		"not that of an image index");
	refused("{\"schemaVersion\":2,\"config\":{\"digest\":\"" DA "\",\"size\":1},\"layers\":{}}",
		"layers");
	refused("{\"schemaVersion\":2,\"config\":[],\"layers\":[]}", "config");
	refused("{\"schemaVersion\":2," CONFIG(
			"application/vnd.cncf.helm.config.v1+json") ",\"layers\":[]}",
		"not a container image");
	refused("{\"schemaVersion\":2," CONFIG(OCI_CONFIG_TYPE) ",\"layers\":[7]}", "layer 1");
	refused("{\"schemaVersion\":2," CONFIG(OCI_CONFIG_TYPE) ",\"layers\":[" LAYER(DA) "," LAYER(
			"sha256:../../x") "]}",
		"layer 2");
	refused("{\"schemaVersion\":2," CONFIG(OCI_CONFIG_TYPE) ",\"layers\":[{\"digest\":\"" DA
								"\",\"size\":-1}]}",
		"size");
	refused("{\"schemaVersion\":2," CONFIG(OCI_CONFIG_TYPE) ",\"layers\":[{\"digest\":\"" DA
								"\"}]}",
		"size");
	refused("{\"schemaVersion\":2," CONFIG(
			OCI_CONFIG_TYPE) ",\"layers\":[{\"digest\":\"" DA
					 "\",\"size\":18446744073709551615}]}",
		"at most 10737418240");
	refused("{\"schemaVersion\":2," CONFIG(OCI_CONFIG_TYPE) ",\"layers\":[{\"mediaType\":"
								"\"application/"
								"vnd.oci.image.layer.v1.tar+gzip+"
								"encrypted\",\"digest\":\"" DA
								"\",\"size\":1}]}",
		"encrypted");
	refused("{\"schemaVersion\":2,\"config\":{\"digest\":\"" DA
		"\",\"size\":4194305},\"layers\":[]}",
		"at most 4194304");
	refused("{\"schemaVersion\":2,\"schemaVersion\":2," CONFIG(
			OCI_CONFIG_TYPE) ",\"layers\":[]}",
		"");
}

static void counts_are_limited(void **state)
{
	cleanup_buf struct buf text;
	struct oci_document doc;
	struct err e;

	buf_init(&text, 1 << 20);
	for (size_t n = OCI_LAYERS_MAX; n <= OCI_LAYERS_MAX + 1; n++) {
		buf_clear(&text);
		buf_add_str(&text, "{\"schemaVersion\":2," CONFIG(OCI_CONFIG_TYPE) ",\"layers\":[");
		for (size_t i = 0; i < n; i++)
			buf_printf(&text, "%s" LAYER(DA), i ? "," : "");
		buf_add_str(&text, "]}");
		if (n > OCI_LAYERS_MAX) {
			refused((char *)text.data, "129 layers, at most 128");
		} else {
			assert_int_equal(parse((char *)text.data, &doc, &e), 0);
			oci_document_done(&doc);
		}
	}
	buf_clear(&text);
	buf_add_str(&text, "{\"schemaVersion\":2,\"manifests\":[");
	for (size_t i = 0; i <= OCI_INDEX_ENTRIES_MAX; i++)
		buf_printf(&text, "%s" LAYER(DA), i ? "," : "");
	buf_add_str(&text, "]}");
	refused((char *)text.data, "at most 1024");
}

static void oversized_text_is_refused(void **state)
{
	cleanup_free char *text = xmalloc(OCI_DOCUMENT_BYTES_MAX + 2);
	struct oci_document doc;
	struct oci_config config;
	struct oci_docker_archive archive;
	struct err e = ERR_INIT;

	memset(text, ' ', OCI_DOCUMENT_BYTES_MAX + 1);
	assert_int_equal(oci_document_parse(text, OCI_DOCUMENT_BYTES_MAX + 1, &doc, &e), -EINVAL);
	assert_non_null(strstr(e.text, "at most 4194304"));
	assert_int_equal(oci_config_parse(text, OCI_DOCUMENT_BYTES_MAX + 1, &config, &e), -EINVAL);
	assert_int_equal(
		oci_docker_archive_parse(text, OCI_DOCUMENT_BYTES_MAX + 1, &archive, &e), -EINVAL);
}

/* One index entry: digest, platform ("" none), reference name ("" none). */
struct row {
	const char *digest, *os, *arch, *variant, *name;
};

static void make_index(const struct row *rows, size_t n, struct oci_document *doc)
{
	cleanup_buf struct buf text;
	struct err e;

	buf_init(&text, 1 << 16);
	buf_add_str(&text, "{\"schemaVersion\":2,\"manifests\":[");
	for (size_t i = 0; i < n; i++) {
		buf_printf(&text, "%s{\"digest\":\"%s\",\"size\":1", i ? "," : "", rows[i].digest);
		if (*rows[i].os)
			buf_printf(&text,
				",\"platform\":{\"os\":\"%s\",\"architecture\":\"%s\""
				",\"variant\":\"%s\"}",
				rows[i].os, rows[i].arch, rows[i].variant);
		if (*rows[i].name)
			buf_printf(&text,
				",\"annotations\":{\"org.opencontainers.image.ref.name\":\"%s\"}",
				rows[i].name);
		buf_add_str(&text, "}");
	}
	buf_add_str(&text, "]}");
	if (parse((char *)text.data, doc, &e) < 0)
		fail_msg("%s: %s", text.data, e.text);
}

/* The digest chosen, or the reason (in e). */
static int choose(
	const struct row *rows, size_t n, const struct oci_want *want, char *digest, struct err *e)
{
	struct oci_document doc;
	size_t i;
	int r;

	*e = ERR_INIT;
	make_index(rows, n, &doc);
	r = oci_index_choose(&doc.index, want, &i, e);
	if (r == 0)
		memcpy(digest, doc.index.entries[i].digest, OCI_DIGEST_LEN + 1);
	oci_document_done(&doc);
	return r;
}

static void the_platform_is_chosen(void **state)
{
	static const struct row rows[] = {
		{DA, "windows", "amd64", "", ""},
		{DB, "unknown", "unknown", "", ""},
		{DC, "linux", "arm64", "v8", ""},
		{"sha256:1111111111111111111111111111111111111111111111111111111111111111", "linux",
			"amd64", "v3", ""},
		{"sha256:2222222222222222222222222222222222222222222222222222222222222222", "linux",
			"amd64", "", ""},
		{"sha256:3333333333333333333333333333333333333333333333333333333333333333", "linux",
			"amd64", "", ""},
	};
	char digest[OCI_DIGEST_LEN + 1];
	struct oci_want want = {.arch = "amd64"};
	struct err e;

	assert_int_equal(choose(rows, ARRAY_LEN(rows), &want, digest, &e), 0);
	assert_true(str_starts(digest, "sha256:2222"));
	want.arch = "arm64";
	assert_int_equal(choose(rows, ARRAY_LEN(rows), &want, digest, &e), 0);
	assert_string_equal(digest, DC);
	want.arch = "riscv64";
	assert_int_equal(choose(rows, ARRAY_LEN(rows), &want, digest, &e), -ENOENT);
	assert_non_null(strstr(e.text, "linux/riscv64"));
	assert_non_null(strstr(e.text, "windows/amd64, linux/arm64/v8"));
	assert_null(strstr(e.text, "unknown"));
	want.arch = "amd64";
	assert_int_equal(choose(rows, 4, &want, digest, &e), -ENOENT); /* v3 is not for every CPU */
	assert_int_equal(choose(rows, 0, &want, digest, &e), -ENOENT);
	assert_non_null(strstr(e.text, "none"));
	want.digest = DA;
	assert_int_equal(choose(rows, ARRAY_LEN(rows), &want, digest, &e), 0);
	assert_string_equal(digest, DA);
	want.digest = "sha256:" C64 "x";
	assert_int_equal(choose(rows, ARRAY_LEN(rows), &want, digest, &e), -ENOENT);
}

static void tags_are_chosen(void **state)
{
	static const struct row rows[] = {
		{DA, "", "", "", "one"},
		{DB, "", "", "", "two"},
		{DC, "linux", "arm64", "", "two"},
	};
	char digest[OCI_DIGEST_LEN + 1];
	struct oci_want want = {.arch = "arm64", .tag = "one"};
	struct err e;

	assert_int_equal(choose(rows, 3, &want, digest, &e), 0);
	assert_string_equal(digest, DA);
	want.tag = "two";
	assert_int_equal(choose(rows, 3, &want, digest, &e), 0);
	assert_string_equal(digest, DC);
	want.tag = "three";
	assert_int_equal(choose(rows, 3, &want, digest, &e), -ENOENT);
	assert_non_null(strstr(e.text, "one, two"));
	want.tag = NULL;
	assert_int_equal(choose(rows, 2, &want, digest, &e), -EINVAL);
	assert_non_null(strstr(e.text, "several images"));
	assert_int_equal(choose(rows, 1, &want, digest, &e), 0);
}

static void long_lists_in_errors_are_cut(void **state)
{
	struct row rows[200];
	char names[200][40], digest[OCI_DIGEST_LEN + 1];
	struct oci_want want = {.arch = "amd64", .tag = "absent"};
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		snprintf(names[i], sizeof(names[i]), "a-rather-long-tag-number-%zu", i);
		rows[i] = (struct row){DA, "", "", "", names[i]};
	}
	assert_int_equal(choose(rows, ARRAY_LEN(rows), &want, digest, &e), -ENOENT);
	assert_true(str_ends(e.text, " and more"));
	assert_true(strlen(e.text) < 600);
}

static int config(const char *text, struct oci_config *c, struct err *e)
{
	*e = ERR_INIT;
	return oci_config_parse(text, strlen(text), c, e);
}

#define ROOTFS "\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" DA "\",\"" DB "\"]}"

static void configurations_are_read(void **state)
{
	struct oci_config c;
	struct err e;

	assert_int_equal(
		config("{\"os\":\"linux\",\"architecture\":\"amd64\",\"config\":{"
		       "\"Env\":[\"A=b\",\"NONAME\",\"=x\",\"C=\"],\"Entrypoint\":[\"/e\"],"
		       "\"Cmd\":[\"a\",\"b\"],\"WorkingDir\":\"/w\",\"User\":\"1:2\"}," ROOTFS "}",
			&c, &e),
		0);
	assert_int_equal(strv_len(c.env), 2);
	assert_string_equal(c.env[0], "A=b");
	assert_string_equal(c.env[1], "C=");
	assert_string_equal(c.entrypoint[0], "/e");
	assert_int_equal(strv_len(c.cmd), 2);
	assert_string_equal(c.workdir, "/w");
	assert_string_equal(c.user, "1:2");
	assert_int_equal(oci_config_check_platform(&c, "amd64", &e), 0);
	assert_int_equal(oci_config_check_platform(&c, "arm64", &e), -ENOENT);
	assert_non_null(strstr(e.text, "linux/amd64"));
	assert_non_null(strstr(e.text, "linux/arm64"));
	assert_int_equal(oci_config_check_layers(&c, 2, &e), 0);
	assert_int_equal(oci_config_check_layers(&c, 3, &e), -EINVAL);
	assert_non_null(strstr(e.text, "3 layers"));
	oci_config_done(&c);
	/* null and absent are the same, as Docker writes them */
	assert_int_equal(
		config("{\"config\":{\"Env\":null,\"Cmd\":null,\"User\":\"\"}," ROOTFS "}", &c, &e),
		0);
	assert_int_equal(strv_len(c.env), 0);
	assert_non_null(c.entrypoint);
	assert_string_equal(c.workdir, "");
	assert_int_equal(oci_config_check_platform(&c, "amd64", &e), -ENOENT);
	oci_config_done(&c);
	assert_int_equal(config("{\"config\":null," ROOTFS "}", &c, &e), 0);
	oci_config_done(&c);
}

static void bad_configurations_are_refused(void **state)
{
	static const char *const bad[] = {"", "{}", "[]", "{\"rootfs\":[]}",
		"{\"rootfs\":{\"type\":\"x\",\"diff_ids\":[]}}",
		"{\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"x\"]}}",
		"{\"rootfs\":{\"type\":\"layers\",\"diff_ids\":\"x\"}}",
		"{\"config\":{\"Env\":[\"A=\\u0000\"]}," ROOTFS "}",
		"{\"config\":{\"Env\":[1]}," ROOTFS "}", "{\"config\":{\"Cmd\":\"sh\"}," ROOTFS "}",
		"{\"config\":7," ROOTFS "}", "{\"os\":7," ROOTFS "}",
		"{\"config\":{\"WorkingDir\":[]}," ROOTFS "}"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct oci_config c;
		struct err e;

		if (config(bad[i], &c, &e) >= 0)
			fail_msg("accepted: %s", bad[i]);
		assert_true(e.text[0]);
	}
}

static void layouts_must_be_of_the_known_version(void **state)
{
	static const char good[] = "{\"imageLayoutVersion\":\"1.0.0\"}",
			  other[] = "{\"imageLayoutVersion\":\"2.0.0\"}";
	struct err e = ERR_INIT;

	assert_int_equal(oci_layout_parse(good, strlen(good), &e), 0);
	assert_int_equal(oci_layout_parse(other, strlen(other), &e), -EINVAL);
	assert_int_equal(oci_layout_parse("{}", 2, &e), -EINVAL);
	assert_int_equal(oci_layout_parse("", 0, &e), -EINVAL);
}

static void docker_archives_are_read(void **state)
{
	static const char two[] =
		"[{\"Config\":\"a.json\",\"RepoTags\":[\"x:1\",\"docker.io/library/y:2\"],"
		"\"Layers\":[\"l/layer.tar\"]},"
		"{\"Config\":\"b.json\",\"RepoTags\":null,\"Layers\":[]}]";
	static const char *const bad[] = {"", "{}", "[1]", "[{}]", "[{\"Config\":\"\"}]",
		"[{\"Config\":\"a\",\"Layers\":\"x\"}]", "[{\"Config\":1}]"};
	struct oci_docker_archive archive;
	struct err e = ERR_INIT;
	size_t i;

	assert_int_equal(oci_docker_archive_parse(two, strlen(two), &archive, &e), 0);
	assert_int_equal(archive.n_images, 2);
	assert_int_equal(oci_docker_archive_choose(&archive, "y:2", &i, &e), 0);
	assert_int_equal(i, 0);
	assert_int_equal(oci_docker_archive_choose(&archive, "docker.io/library/x:1", &i, &e), 0);
	assert_int_equal(oci_docker_archive_choose(&archive, "x:2", &i, &e), -ENOENT);
	assert_non_null(strstr(e.text, "x:1, docker.io/library/y:2"));
	assert_int_equal(oci_docker_archive_choose(&archive, NULL, &i, &e), -EINVAL);
	oci_docker_archive_done(&archive);
	assert_int_equal(oci_docker_archive_parse("[]", 2, &archive, &e), 0);
	assert_int_equal(oci_docker_archive_choose(&archive, NULL, &i, &e), -ENOENT);
	oci_docker_archive_done(&archive);
	for (i = 0; i < ARRAY_LEN(bad); i++)
		if (oci_docker_archive_parse(bad[i], strlen(bad[i]), &archive, &e) >= 0)
			fail_msg("accepted: %s", bad[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(digests_have_one_form),
		cmocka_unit_test(references_are_normalised),
		cmocka_unit_test(bad_references_are_refused),
		cmocka_unit_test(manifests_of_both_kinds_are_read),
		cmocka_unit_test(bad_documents_are_refused),
		cmocka_unit_test(counts_are_limited),
		cmocka_unit_test(oversized_text_is_refused),
		cmocka_unit_test(the_platform_is_chosen),
		cmocka_unit_test(tags_are_chosen),
		cmocka_unit_test(long_lists_in_errors_are_cut),
		cmocka_unit_test(configurations_are_read),
		cmocka_unit_test(bad_configurations_are_refused),
		cmocka_unit_test(layouts_must_be_of_the_known_version),
		cmocka_unit_test(docker_archives_are_read),
	};

	return cmocka_run_group_tests_name("oci", tests, NULL, NULL);
}
