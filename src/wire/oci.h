/* oci - the small documents around an OCI image: references, layout, index, manifest,
 * configuration, and docker-archive's manifest.json.
 *
 * Everything here is untrusted text from a registry or an archive. What comes out is checked:
 * digests have the one accepted form, counts and sizes are below the limits, and nothing that a
 * document names is a path (docker-archive members excepted, which are names inside that archive).
 * Sources: image-spec 1.0 (image-index.md, manifest.md, config.md, image-layout.md), distribution's
 * reference grammar, Docker's image-spec v1.2 for docker-archive.
 *
 * Errors are -EINVAL (malformed, or against a limit) or -ENOENT (well-formed, but what was asked
 * for is not in it) and carry no S-code: the caller knows which image it was.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Limits; exceeding one makes the image unusable, with the number in the error. */
#define OCI_DOCUMENT_BYTES_MAX (4u << 20)    /* index, manifest, configuration, manifest.json */
#define OCI_LAYERS_MAX	       128	     /* of one image */
#define OCI_BLOB_BYTES_MAX     (10ull << 30) /* one layer as stored */
#define OCI_INDEX_ENTRIES_MAX  1024	     /* manifests named by one index */
#define OCI_INDEX_DEPTH_MAX    4	     /* indexes inside indexes (followed by the caller) */
#define OCI_REF_BYTES_MAX      512	     /* a whole reference as text */
#define OCI_STRING_BYTES_MAX   1024	     /* a tag, name or media type inside a document */

#define OCI_DIGEST_LEN 71 /* "sha256:" and 64 lower-case hex digits */

/* The only digest form accepted anywhere: no other algorithm, no upper case. NULL gives false. */
bool oci_digest_valid(const char *digest);
/* The 64 hex digits of a valid digest: safe as a file name. */
const char *oci_digest_hex(const char *digest);

/* A reference to an image in a registry, normalised: docker.io and library/ filled in. */
struct oci_ref {
	char *registry;	  /* host[:port] */
	char *repository; /* a/b/c */
	char *tag;	  /* NULL when only a digest was given; "latest" when nothing was */
	char *digest;	  /* NULL when absent */
};

int oci_ref_parse(const char *text, struct oci_ref *ret, struct err *e);
void oci_ref_done(struct oci_ref *ref);
/* The name it is cached under: registry/repository:tag, or …@digest where there is no tag
 * (sandbox contract §6: tag and digest together share the entry of the tag). Caller frees. */
char *oci_ref_name(const struct oci_ref *ref);
/* What to ask the registry for: the digest where there is one, else the tag. Caller frees. */
char *oci_ref_wanted(const struct oci_ref *ref);
/* The same repository at another digest. Caller frees. */
char *oci_ref_at(const struct oci_ref *ref, const char *digest);

struct oci_platform {
	char *os, *arch, *variant; /* "" when absent */
};

/* The architecture name of this host in OCI words ("amd64", "arm64"). */
const char *oci_host_arch(void);

struct oci_descriptor {
	char *media_type; /* "" when absent */
	char digest[OCI_DIGEST_LEN + 1];
	uint64_t size;
	char *ref_name;	 /* org.opencontainers.image.ref.name, or NULL */
	char *full_name; /* io.containerd.image.name, or NULL */
	bool has_platform;
	struct oci_platform platform;
};

struct oci_index {
	struct oci_descriptor *entries;
	size_t n_entries;
};

struct oci_manifest {
	struct oci_descriptor config;
	struct oci_descriptor *layers; /* lowest first */
	size_t n_layers;
	uint64_t layer_bytes; /* sum of the sizes; cannot overflow */
};

enum oci_kind {
	OCI_INDEX,
	OCI_MANIFEST,
};

struct oci_document {
	enum oci_kind kind;
	struct oci_index index;
	struct oci_manifest manifest;
};

/* Reads an index (OCI or Docker manifest list) or a manifest (OCI or Docker schema 2). A document
 * that could be both is refused. An artifact that is no container image (another configuration
 * type) is an error that says what it is. */
int oci_document_parse(const char *text, size_t len, struct oci_document *ret, struct err *e);
void oci_document_done(struct oci_document *doc);

/* The oci-layout file: must say version 1.0.0. */
int oci_layout_parse(const char *text, size_t len, struct err *e);

/* What to take of an index. */
struct oci_want {
	const char *tag;    /* NULL: no preference */
	const char *digest; /* NULL: no preference */
	const char *arch;   /* OCI word */
};

/* The position of the one entry that fits. With a tag only entries of that name count; then
 * linux/<arch> with the variant that every such CPU has (none or v1 on amd64, none or v8 on
 * arm64) wins. -ENOENT names what was looked for and what there is. */
int oci_index_choose(
	const struct oci_index *index, const struct oci_want *want, size_t *ret, struct err *e);

/* The parts of an image configuration that matter here. Vectors are never NULL. */
struct oci_config {
	char **env; /* NAME=value; entries without a name are dropped */
	char **entrypoint;
	char **cmd;
	char *workdir; /* "" when absent */
	char *user;    /* "" when absent */
	char **diff_ids;
	struct oci_platform platform;
};

int oci_config_parse(const char *text, size_t len, struct oci_config *ret, struct err *e);
void oci_config_done(struct oci_config *config);
/* -ENOENT, naming linux/<arch> and what the image is for, unless it fits this platform. */
int oci_config_check_platform(const struct oci_config *config, const char *arch, struct err *e);
/* -EINVAL unless there are as many diff ids as layers. */
int oci_config_check_layers(const struct oci_config *config, size_t n_layers, struct err *e);

/* One image of a docker-archive's manifest.json. Names are member names of the archive. */
struct oci_docker_image {
	char *config;
	char **tags;
	char **layers; /* lowest first */
};

struct oci_docker_archive {
	struct oci_docker_image *images;
	size_t n_images;
};

int oci_docker_archive_parse(
	const char *text, size_t len, struct oci_docker_archive *ret, struct err *e);
void oci_docker_archive_done(struct oci_docker_archive *archive);
/* The image tagged `ref` (normalised on both sides), or the only one when ref is NULL. */
int oci_docker_archive_choose(
	const struct oci_docker_archive *archive, const char *ref, size_t *ret, struct err *e);
