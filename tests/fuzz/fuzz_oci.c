/* oci: any bytes as a reference, an index, a manifest, a configuration, a docker-archive manifest.
 * What is accepted must keep the promises of wire/oci.h. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "wire/oci.h"

static void check_name(const char *name)
{
	struct oci_ref again;

	/* A normal form is a reference, and its own normal form. */
	assert(oci_ref_parse(name, &again, NULL) == 0);
	cleanup_free char *twice = oci_ref_name(&again);

	assert(strcmp(name, twice) == 0);
	assert(name[0] != '-' && strchr(name, '/'));
	assert(!strstr(again.registry, "..") && !strstr(again.repository, ".."));
	oci_ref_done(&again);
}

static void try_ref(const char *text)
{
	struct oci_ref ref;

	if (oci_ref_parse(text, &ref, NULL) < 0)
		return;
	cleanup_free char *name = oci_ref_name(&ref), *wanted = oci_ref_wanted(&ref);

	check_name(name);
	assert(strlen(wanted) > strlen(ref.registry) + strlen(ref.repository));
	oci_ref_done(&ref);
}

static void check_descriptors(const struct oci_descriptor *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		assert(oci_digest_valid(list[i].digest));
}

static void try_document(const char *text, size_t len)
{
	struct oci_want want = {.arch = "amd64"}, tagged = {.arch = "arm64", .tag = "t"};
	struct oci_document doc;
	struct err e;
	size_t chosen;

	if (oci_document_parse(text, len, &doc, &e) < 0)
		return;
	check_descriptors(doc.index.entries, doc.index.n_entries);
	check_descriptors(doc.manifest.layers, doc.manifest.n_layers);
	if (doc.kind == OCI_INDEX) {
		assert(doc.index.n_entries <= OCI_INDEX_ENTRIES_MAX && !doc.manifest.n_layers);
		if (oci_index_choose(&doc.index, &want, &chosen, &e) == 0)
			assert(chosen < doc.index.n_entries);
		if (oci_index_choose(&doc.index, &tagged, &chosen, &e) == 0)
			assert(chosen < doc.index.n_entries);
	} else {
		assert(oci_digest_valid(doc.manifest.config.digest));
		assert(doc.manifest.n_layers <= OCI_LAYERS_MAX);
		assert(doc.manifest.layer_bytes <= OCI_LAYERS_MAX * OCI_BLOB_BYTES_MAX);
	}
	oci_document_done(&doc);
}

static void try_config(const char *text, size_t len)
{
	struct oci_config config;
	struct err e;

	if (oci_config_parse(text, len, &config, &e) < 0)
		return;
	for (size_t i = 0; config.env[i]; i++)
		assert(strchr(config.env[i], '=') > config.env[i]);
	for (size_t i = 0; config.diff_ids[i]; i++)
		assert(oci_digest_valid(config.diff_ids[i]));
	assert(config.entrypoint && config.cmd && config.workdir && config.user);
	oci_config_check_platform(&config, "amd64", &e);
	assert(oci_config_check_layers(&config, strv_len(config.diff_ids), &e) == 0);
	oci_config_done(&config);
}

static void try_docker_archive(const char *text, size_t len)
{
	struct oci_docker_archive archive;
	struct err e;
	size_t chosen;

	if (oci_docker_archive_parse(text, len, &archive, &e) < 0)
		return;
	if (oci_docker_archive_choose(&archive, NULL, &chosen, &e) == 0)
		assert(chosen < archive.n_images);
	if (oci_docker_archive_choose(&archive, "a/b:1", &chosen, &e) == 0)
		assert(chosen < archive.n_images);
	oci_docker_archive_done(&archive);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free char *text = xmalloc(size + 1);

	memcpy(text, data, size);
	text[size] = '\0';
	if (strlen(text) == size)
		try_ref(text);
	try_document(text, size);
	try_config(text, size);
	try_docker_archive(text, size);
	oci_layout_parse(text, size, NULL);
	return 0;
}
