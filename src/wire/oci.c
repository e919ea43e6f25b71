/* The JSON documents of oci.h.
 *
 * Each parser reads into a zeroed struct and hands it over only when everything was accepted; on
 * failure the half-filled struct is freed. Members that are not needed are not looked at, so that
 * new fields of the specification do no harm. Strings are copied, the JSON tree is gone afterwards.
 *
 * Refused on purpose: documents that could be read as index and as manifest (two readers could see
 * two images), Docker schema 1 (its digests cover no configuration), artifacts that are no images,
 * encrypted layers, more layers than diff ids or the other way round.
 */
#include "wire/oci.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "wire/json.h"

#define LIST_BYTES_MAX 400 /* of a list of names inside an error */

#define ANNOTATION_REF	"org.opencontainers.image.ref.name"
#define ANNOTATION_NAME "io.containerd.image.name"

static const char *const index_types[] = {
	"application/vnd.oci.image.index.v1+json",
	"application/vnd.docker.distribution.manifest.list.v2+json",
};
static const char *const manifest_types[] = {
	"application/vnd.oci.image.manifest.v1+json",
	"application/vnd.docker.distribution.manifest.v2+json",
};
static const char *const config_types[] = {
	"application/vnd.oci.image.config.v1+json",
	"application/vnd.docker.container.image.v1+json",
};

static bool one_of(const char *s, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (str_eq(s, list[i]))
			return true;
	return false;
}

#define ONE_OF(s, list) one_of(s, list, ARRAY_LEN(list))

static int check_document_size(size_t len, struct err *e)
{
	if (len > OCI_DOCUMENT_BYTES_MAX)
		return err_set(e, "", EINVAL, "the document has %zu bytes, at most %u are read",
			len, OCI_DOCUMENT_BYTES_MAX);
	return 0;
}

/* An optional string as a copy: "" (or NULL with `or_null`) when absent or null. */
static int copy_str(json_object *o, const char *name, bool or_null, char **ret, struct err *e)
{
	const char *s = or_null ? NULL : "";
	int r = json_get_str(o, name, JSON_NULLABLE, &s, e);

	if (r < 0)
		return r;
	if (s && strlen(s) > OCI_STRING_BYTES_MAX)
		return err_set(e, "", EINVAL, "field `%s` is longer than %d bytes", name,
			OCI_STRING_BYTES_MAX);
	free(*ret);
	*ret = xstrdup(s);
	return 0;
}

static int parse_platform(json_object *o, struct oci_platform *p, struct err *e)
{
	int r = copy_str(o, "os", false, &p->os, e);

	if (r == 0)
		r = copy_str(o, "architecture", false, &p->arch, e);
	if (r == 0)
		r = copy_str(o, "variant", false, &p->variant, e);
	return r;
}

static void platform_done(struct oci_platform *p)
{
	free(p->os);
	free(p->arch);
	free(p->variant);
}

/* ---- descriptors ---- */

static void descriptor_done(struct oci_descriptor *d)
{
	free(d->media_type);
	free(d->ref_name);
	free(d->full_name);
	platform_done(&d->platform);
}

static void descriptors_done(struct oci_descriptor *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		descriptor_done(&list[i]);
	free(list);
}

static int copy_digest(const char *digest, char dst[static OCI_DIGEST_LEN + 1], struct err *e)
{
	if (!oci_digest_valid(digest))
		return err_set(e, "", EINVAL,
			"'%.100s' is not a digest: sha256: and 64 lower-case hex digits are needed",
			digest);
	memcpy(dst, digest, OCI_DIGEST_LEN + 1);
	return 0;
}

/* Fills *d, which stays freeable whatever happens. */
static int parse_descriptor(json_object *o, struct oci_descriptor *d, struct err *e)
{
	json_object *platform = NULL, *notes = NULL;
	const char *digest;
	int r;

	if (!json_object_is_type(o, json_type_object))
		return err_set(e, "", EINVAL, "a descriptor is not an object");
	r = json_get_str(o, "digest", JSON_REQUIRED, &digest, e);
	if (r >= 0)
		r = copy_digest(digest, d->digest, e);
	if (r >= 0)
		r = json_get_u64(o, "size", JSON_REQUIRED, &d->size, e);
	if (r >= 0)
		r = copy_str(o, "mediaType", false, &d->media_type, e);
	if (r >= 0)
		r = json_get_object(o, "platform", JSON_NULLABLE, &platform, e);
	if (r >= 0 && platform) {
		d->has_platform = true;
		r = parse_platform(platform, &d->platform, e);
	}
	if (r >= 0)
		r = json_get_object(o, "annotations", JSON_NULLABLE, &notes, e);
	if (r >= 0 && notes) {
		r = copy_str(notes, ANNOTATION_REF, true, &d->ref_name, e);
		if (r >= 0)
			r = copy_str(notes, ANNOTATION_NAME, true, &d->full_name, e);
	}
	return r < 0 ? r : 0;
}

/* Reads an array of descriptors; on failure nothing is left allocated. */
static int parse_descriptors(json_object *array, size_t max, const char *what,
	struct oci_descriptor **ret, size_t *ret_n, struct err *e)
{
	size_t n = json_object_array_length(array);
	struct oci_descriptor *list;
	int r;

	if (n > max)
		return err_set(e, "", EINVAL, "%zu %ss, at most %zu are accepted", n, what, max);
	list = xcalloc(n, sizeof(*list));
	for (size_t i = 0; i < n; i++) {
		r = parse_descriptor(json_object_array_get_idx(array, i), &list[i], e);
		if (r < 0) {
			err_wrap(e, "%s %zu", what, i + 1);
			descriptors_done(list, n);
			return r;
		}
	}
	*ret = list;
	*ret_n = n;
	return 0;
}

/* ---- index and manifest ---- */

static int parse_index(json_object *o, struct oci_index *index, struct err *e)
{
	json_object *array;
	int r = json_get_array(o, "manifests", JSON_REQUIRED, &array, e);

	if (r < 0)
		return r;
	return parse_descriptors(
		array, OCI_INDEX_ENTRIES_MAX, "manifest", &index->entries, &index->n_entries, e);
}

static int check_layers(struct oci_manifest *m, struct err *e)
{
	for (size_t i = 0; i < m->n_layers; i++) {
		const struct oci_descriptor *d = &m->layers[i];

		if (d->size > OCI_BLOB_BYTES_MAX)
			return err_set(e, "", EINVAL,
				"layer %zu (%s) has %" PRIu64 " bytes, at most %llu are accepted",
				i + 1, d->digest, d->size, OCI_BLOB_BYTES_MAX);
		if (str_ends(d->media_type, "+encrypted"))
			return err_set(e, "", EINVAL,
				"layer %zu (%s) is encrypted (%s): decrypt the image first, with "
				"skopeo copy --decryption-key",
				i + 1, d->digest, d->media_type);
		m->layer_bytes += d->size;
	}
	return 0;
}

static int parse_manifest(json_object *o, struct oci_manifest *m, struct err *e)
{
	json_object *config, *array;
	int r = json_get_object(o, "config", JSON_REQUIRED, &config, e);

	if (r >= 0)
		r = json_get_array(o, "layers", JSON_REQUIRED, &array, e);
	if (r < 0)
		return r;
	r = parse_descriptor(config, &m->config, e);
	if (r < 0) {
		err_wrap(e, "config");
		return r;
	}
	if (*m->config.media_type && !ONE_OF(m->config.media_type, config_types))
		return err_set(e, "", EINVAL,
			"this is not a container image: its configuration is of type %.200s",
			m->config.media_type);
	if (m->config.size > OCI_DOCUMENT_BYTES_MAX)
		return err_set(e, "", EINVAL,
			"the configuration has %" PRIu64 " bytes, at most %u are read",
			m->config.size, OCI_DOCUMENT_BYTES_MAX);
	r = parse_descriptors(array, OCI_LAYERS_MAX, "layer", &m->layers, &m->n_layers, e);
	if (r < 0)
		return r;
	return check_layers(m, e);
}

static int find_kind(json_object *o, enum oci_kind *ret, struct err *e)
{
	bool has_list = json_object_object_get_ex(o, "manifests", NULL);
	bool has_layers = json_object_object_get_ex(o, "config", NULL) ||
			  json_object_object_get_ex(o, "layers", NULL) ||
			  json_object_object_get_ex(o, "fsLayers", NULL);
	const char *type = "";
	uint64_t version;
	int r = json_get_u64(o, "schemaVersion", JSON_REQUIRED, &version, e);

	if (r < 0)
		return r;
	if (version != 2)
		return err_set(e, "", EINVAL,
			"schemaVersion is %" PRIu64 ", only 2 is read: images of the old Docker "
			"format must be pushed again by a current tool",
			version);
	r = json_get_str(o, "mediaType", JSON_NULLABLE, &type, e);
	if (r < 0)
		return r;
	if (has_list && has_layers)
		return err_set(e, "", EINVAL,
			"the document is ambiguous: it has `manifests` and `config` or `layers`");
	*ret = has_list ? OCI_INDEX : OCI_MANIFEST;
	if (!*type)
		return 0;
	if (has_list ? ONE_OF(type, index_types) : ONE_OF(type, manifest_types))
		return 0;
	return err_set(e, "", EINVAL, "mediaType %.200s is not that of an image %s", type,
		has_list ? "index" : "manifest");
}

int oci_document_parse(const char *text, size_t len, struct oci_document *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	struct oci_document doc = {0};
	int r = check_document_size(len, e);

	if (r == 0)
		r = json_parse_object(text, len, &o, e);
	if (r >= 0)
		r = find_kind(o, &doc.kind, e);
	if (r < 0)
		return r;
	if (doc.kind == OCI_INDEX)
		r = parse_index(o, &doc.index, e);
	else
		r = parse_manifest(o, &doc.manifest, e);
	if (r < 0) {
		oci_document_done(&doc);
		return r;
	}
	*ret = doc;
	return 0;
}

void oci_document_done(struct oci_document *doc)
{
	descriptors_done(doc->index.entries, doc->index.n_entries);
	descriptor_done(&doc->manifest.config);
	descriptors_done(doc->manifest.layers, doc->manifest.n_layers);
	*doc = (struct oci_document){0};
}

int oci_layout_parse(const char *text, size_t len, struct err *e)
{
	cleanup_json json_object *o = NULL;
	const char *version;
	int r = json_parse_object(text, len, &o, e);

	if (r >= 0)
		r = json_get_str(o, "imageLayoutVersion", JSON_REQUIRED, &version, e);
	if (r < 0)
		return r;
	if (!str_eq(version, "1.0.0"))
		return err_set(e, "", EINVAL, "imageLayoutVersion %.40s is unknown, 1.0.0 is read",
			version);
	return 0;
}

/* ---- choosing ---- */

static bool variant_fits(const char *arch, const char *variant)
{
	if (!*variant)
		return true;
	return str_eq(variant, str_eq(arch, "amd64") ? "v1" : "v8");
}

static bool platform_fits(const struct oci_platform *p, const char *arch)
{
	return str_eq(p->os, "linux") && str_eq(p->arch, arch) && variant_fits(arch, p->variant);
}

static bool named(const struct oci_descriptor *d, const char *tag)
{
	return !tag || str_eq(d->ref_name, tag) || str_eq(d->full_name, tag);
}

/* 2: made for this platform; 1: does not say; 0: not to be taken. */
static int rank(const struct oci_descriptor *d, const struct oci_want *want)
{
	if (want->digest)
		return str_eq(d->digest, want->digest) ? 2 : 0;
	if (!named(d, want->tag))
		return 0;
	if (!d->has_platform)
		return 1;
	return platform_fits(&d->platform, want->arch) ? 2 : 0;
}

/* Adds a word, or "and more" in place of all that do not fit. */
static void list_add(struct buf *list, const char *word)
{
	static const char more[] = " and more";

	if (list->len && str_ends((const char *)list->data, more))
		return;
	if (list->len + strlen(word) + sizeof(more) + 2 > list->max)
		buf_add_str(list, more);
	else
		buf_printf(list, "%s%s", list->len ? ", " : "", word);
}

static const char *list_text(const struct buf *list)
{
	return list->len ? (const char *)list->data : "none";
}

/* The tags (or platforms) an index has, for errors. */
static void list_tags(const struct oci_index *index, struct buf *list)
{
	for (size_t i = 0; i < index->n_entries; i++)
		if (index->entries[i].ref_name)
			list_add(list, index->entries[i].ref_name);
}

static void list_platforms(const struct oci_index *index, const char *tag, struct buf *list)
{
	for (size_t i = 0; i < index->n_entries; i++) {
		const struct oci_descriptor *d = &index->entries[i];
		cleanup_free char *word = NULL;

		/* Build attestations are listed as unknown/unknown. */
		if (!named(d, tag) || !d->has_platform || str_eq(d->platform.os, "unknown"))
			continue;
		word = xasprintf("%s/%s%s%s", d->platform.os, d->platform.arch,
			*d->platform.variant ? "/" : "", d->platform.variant);
		list_add(list, word);
	}
}

static int nothing_fits(const struct oci_index *index, const struct oci_want *want, struct err *e)
{
	cleanup_buf struct buf list;
	bool tag_known = false;

	buf_init(&list, LIST_BYTES_MAX);
	if (want->digest)
		return err_set(e, "", ENOENT, "there is no manifest %s in it", want->digest);
	for (size_t i = 0; i < index->n_entries; i++)
		tag_known |= named(&index->entries[i], want->tag);
	if (!tag_known && want->tag) {
		list_tags(index, &list);
		return err_set(e, "", ENOENT, "there is no tag '%s' in it; it has: %s", want->tag,
			list_text(&list));
	}
	list_platforms(index, want->tag, &list);
	return err_set(e, "", ENOENT, "there is no image for linux/%s in it; it has: %s",
		want->arch, list_text(&list));
}

int oci_index_choose(
	const struct oci_index *index, const struct oci_want *want, size_t *ret, struct err *e)
{
	const struct oci_descriptor *best = NULL;
	cleanup_buf struct buf list;
	int best_rank = 0;
	bool unclear = false;

	buf_init(&list, LIST_BYTES_MAX);
	for (size_t i = 0; i < index->n_entries; i++) {
		const struct oci_descriptor *d = &index->entries[i];
		int r = rank(d, want);

		if (r == 0 || r < best_rank)
			continue;
		if (r > best_rank) {
			best = d;
			best_rank = r;
			unclear = false;
		} else if (!str_eq(d->digest, best->digest)) {
			/* Of several for one platform the first holds (image-index.md), but
			 * different images under one roof must be told apart by the caller. */
			unclear |= d->ref_name || best->ref_name || r == 1;
		}
	}
	if (!best)
		return nothing_fits(index, want, e);
	if (unclear) {
		list_tags(index, &list);
		return err_set(e, "", EINVAL,
			"there are several images in it: name one by tag or @digest; tags: %s",
			list_text(&list));
	}
	*ret = (size_t)(best - index->entries);
	return 0;
}

/* ---- configuration ---- */

static int copy_strv(json_object *o, const char *name, char ***ret, struct err *e)
{
	char **v = NULL;
	int r = json_get_strv(o, name, JSON_NULLABLE, &v, e);

	if (r < 0)
		return r;
	strv_free(*ret);
	*ret = v ? v : xcalloc(1, sizeof(*v));
	return 0;
}

/* Drops entries without a name: no process can get them as environment. */
static void keep_assignments(char **env)
{
	char **to = env;

	for (char **from = env; *from; from++) {
		if (strchr(*from, '=') && **from != '=')
			*to++ = *from;
		else
			free(*from);
	}
	*to = NULL;
}

static int parse_runtime(json_object *o, struct oci_config *c, struct err *e)
{
	const char *workdir = "", *user = "";
	int r = copy_strv(o, "Env", &c->env, e);

	if (r >= 0)
		r = copy_strv(o, "Entrypoint", &c->entrypoint, e);
	if (r >= 0)
		r = copy_strv(o, "Cmd", &c->cmd, e);
	if (r >= 0)
		r = json_get_str(o, "WorkingDir", JSON_NULLABLE, &workdir, e);
	if (r >= 0)
		r = json_get_str(o, "User", JSON_NULLABLE, &user, e);
	if (r < 0)
		return r;
	keep_assignments(c->env);
	c->workdir = xstrdup(workdir);
	c->user = xstrdup(user);
	return 0;
}

static int parse_rootfs(json_object *o, struct oci_config *c, struct err *e)
{
	json_object *rootfs;
	const char *type;
	int r = json_get_object(o, "rootfs", JSON_REQUIRED, &rootfs, e);

	if (r >= 0)
		r = json_get_str(rootfs, "type", JSON_REQUIRED, &type, e);
	if (r < 0)
		return r;
	if (!str_eq(type, "layers"))
		return err_set(
			e, "", EINVAL, "rootfs is of type '%.40s', only layers are read", type);
	r = copy_strv(rootfs, "diff_ids", &c->diff_ids, e);
	if (r < 0)
		return r;
	for (size_t i = 0; c->diff_ids[i]; i++)
		if (!oci_digest_valid(c->diff_ids[i]))
			return err_set(e, "", EINVAL,
				"diff id %zu is not a sha256 digest: '%.100s'", i + 1,
				c->diff_ids[i]);
	return 0;
}

int oci_config_parse(const char *text, size_t len, struct oci_config *ret, struct err *e)
{
	cleanup_json json_object *o = NULL, *none = json_object_new_object();
	json_object *runtime = NULL;
	struct oci_config c = {0};
	int r = check_document_size(len, e);

	if (r == 0)
		r = json_parse_object(text, len, &o, e);
	if (r >= 0)
		r = json_get_object(o, "config", JSON_NULLABLE, &runtime, e);
	if (r >= 0)
		r = parse_platform(o, &c.platform, e);
	if (r >= 0)
		r = parse_runtime(runtime ? runtime : none, &c, e);
	if (r >= 0)
		r = parse_rootfs(o, &c, e);
	if (r < 0) {
		oci_config_done(&c);
		return r;
	}
	*ret = c;
	return 0;
}

void oci_config_done(struct oci_config *c)
{
	strv_free(c->env);
	strv_free(c->entrypoint);
	strv_free(c->cmd);
	strv_free(c->diff_ids);
	free(c->workdir);
	free(c->user);
	platform_done(&c->platform);
	*c = (struct oci_config){0};
}

int oci_config_check_platform(const struct oci_config *c, const char *arch, struct err *e)
{
	const struct oci_platform *p = &c->platform;

	if (platform_fits(p, arch))
		return 0;
	return err_set(e, "", ENOENT, "the image is for %s/%s%s%s, this host needs linux/%s",
		*p->os ? p->os : "?", *p->arch ? p->arch : "?", *p->variant ? "/" : "", p->variant,
		arch);
}

int oci_config_check_layers(const struct oci_config *c, size_t n_layers, struct err *e)
{
	size_t n = strv_len(c->diff_ids);

	if (n == n_layers)
		return 0;
	return err_set(e, "", EINVAL,
		"the manifest has %zu layers, but the configuration has %zu diff ids", n_layers, n);
}

/* ---- docker-archive ---- */

static void docker_image_done(struct oci_docker_image *image)
{
	free(image->config);
	strv_free(image->tags);
	strv_free(image->layers);
}

static int parse_docker_image(json_object *o, struct oci_docker_image *image, struct err *e)
{
	int r;

	if (!json_object_is_type(o, json_type_object))
		return err_set(e, "", EINVAL, "not an object");
	r = copy_str(o, "Config", false, &image->config, e);
	if (r == 0)
		r = copy_strv(o, "RepoTags", &image->tags, e);
	if (r == 0)
		r = copy_strv(o, "Layers", &image->layers, e);
	if (r < 0)
		return r;
	if (!*image->config)
		return err_set(e, "", EINVAL, "missing field `Config`");
	if (strv_len(image->layers) > OCI_LAYERS_MAX)
		return err_set(e, "", EINVAL, "%zu layers, at most %d are accepted",
			strv_len(image->layers), OCI_LAYERS_MAX);
	return 0;
}

int oci_docker_archive_parse(
	const char *text, size_t len, struct oci_docker_archive *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	struct oci_docker_archive archive = {0};
	int r = check_document_size(len, e);

	if (r == 0)
		r = json_parse(text, len, &o, e);
	if (r < 0)
		return r;
	if (!json_object_is_type(o, json_type_array))
		return err_set(e, "", EINVAL, "it is not an array of images");
	archive.n_images = json_object_array_length(o);
	if (archive.n_images > OCI_INDEX_ENTRIES_MAX)
		return err_set(e, "", EINVAL, "%zu images, at most %d are read", archive.n_images,
			OCI_INDEX_ENTRIES_MAX);
	archive.images = xcalloc(archive.n_images, sizeof(*archive.images));
	for (size_t i = 0; i < archive.n_images; i++) {
		r = parse_docker_image(json_object_array_get_idx(o, i), &archive.images[i], e);
		if (r < 0) {
			err_wrap(e, "image %zu", i + 1);
			oci_docker_archive_done(&archive);
			return r;
		}
	}
	*ret = archive;
	return 0;
}

void oci_docker_archive_done(struct oci_docker_archive *archive)
{
	for (size_t i = 0; i < archive->n_images; i++)
		docker_image_done(&archive->images[i]);
	free(archive->images);
	*archive = (struct oci_docker_archive){0};
}

/* The normalised form, or the text itself where it is no reference. */
static char *normal_name(const char *text)
{
	struct oci_ref ref;
	char *name;

	if (oci_ref_parse(text, &ref, NULL) < 0)
		return xstrdup(text);
	name = oci_ref_name(&ref);
	oci_ref_done(&ref);
	return name;
}

static bool docker_image_tagged(const struct oci_docker_image *image, const char *wanted)
{
	for (size_t i = 0; image->tags[i]; i++) {
		cleanup_free char *name = normal_name(image->tags[i]);

		if (str_eq(name, wanted))
			return true;
	}
	return false;
}

int oci_docker_archive_choose(
	const struct oci_docker_archive *archive, const char *ref, size_t *ret, struct err *e)
{
	cleanup_free char *wanted = ref ? normal_name(ref) : NULL;
	cleanup_buf struct buf list;

	buf_init(&list, LIST_BYTES_MAX);
	if (!wanted && archive->n_images == 1) {
		*ret = 0;
		return 0;
	}
	for (size_t i = 0; wanted && i < archive->n_images; i++) {
		if (docker_image_tagged(&archive->images[i], wanted)) {
			*ret = i;
			return 0;
		}
	}
	for (size_t i = 0; i < archive->n_images; i++)
		for (size_t k = 0; archive->images[i].tags[k]; k++)
			list_add(&list, archive->images[i].tags[k]);
	if (wanted)
		return err_set(e, "", ENOENT, "there is no image %s in it; it has: %s", wanted,
			list_text(&list));
	return err_set(e, "", archive->n_images ? EINVAL : ENOENT,
		"there are %zu images in it: name one; it has: %s", archive->n_images,
		list_text(&list));
}
