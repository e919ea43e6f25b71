/* source - an image at hand: what a person may write, and the layers it leads to.
 *
 * Local sources are read where they are: a layout folder, or an archive whose members are located
 * once and then read at their place. Nothing in them names a host file: blobs are opened by their
 * checked digest below blobs/sha256 without following symbolic links, archive members are looked up
 * in a table. Index, manifest and configuration are checked against their digests here; layers are
 * checked by image_build while it reads them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "host/image/build.h"
#include "wire/oci.h"

enum source_kind {
	SOURCE_REGISTRY,       /* NAME, registry/NAME:TAG, docker://… */
	SOURCE_OCI,	       /* oci:PATH[:TAG or @DIGEST] */
	SOURCE_OCI_ARCHIVE,    /* oci-archive:PATH[:TAG or @DIGEST] */
	SOURCE_DOCKER_ARCHIVE, /* docker-archive:PATH[:NAME:TAG] */
};

struct source_spec {
	enum source_kind kind;
	struct oci_ref ref;	   /* SOURCE_REGISTRY */
	char *path, *tag, *digest; /* the others; tag and digest may be NULL */
	char *name; /* normalised: the name it is stored under when no other is given */
};

/* -EINVAL lists the accepted forms. As in skopeo, PATH ends at the first colon. */
int source_spec_parse(const char *text, struct source_spec *ret, struct err *e);
void source_spec_done(struct source_spec *spec);

struct source_image {
	char digest[OCI_DIGEST_LEN + 1]; /* of the manifest; docker-archive: of the configuration */
	struct oci_config config;	 /* platform and number of layers are checked */
	struct image_layer *layers;	 /* lowest first; descriptors and strings belong to this */
	size_t n_layers;
	uint64_t layer_bytes; /* as stored */

	/* private */
	bool owns_fds; /* each layer has its own; else they are the archive's */
	struct oci_document doc;
	char **member_names;
	struct members *members;
};
void source_close(struct source_image *img); /* NULL allowed */

struct source_env {
	const char *arch;	       /* OCI word */
	int scratch_dirfd;	       /* for the unpacked form of a compressed archive */
	bool (*cancelled)(void *user); /* may be NULL */
	void *user;
};

/* Opens a local source (not SOURCE_REGISTRY). -ENOENT when the image or its platform is not there.
 */
int source_open(const struct source_spec *spec, const struct source_env *env,
	struct source_image **ret, struct err *e);

/* ---- for pull ---- */

/* A whole small file of a layout folder ("index.json"), a new string. */
int source_read_file(int dirfd, const char *name, char **ret, size_t *ret_len, struct err *e);
/* A blob of dirfd/blobs/sha256 that must have this digest and size. */
int source_read_blob(
	int dirfd, const struct oci_descriptor *d, char **ret, size_t *ret_len, struct err *e);
/* Puts an image together from checked documents (taken, also on failure) and the layers in
 * dirfd/blobs/sha256. */
int source_assemble(int dirfd, const char *digest, struct oci_document *manifest,
	struct oci_config *config, const char *arch, struct source_image **ret, struct err *e);
