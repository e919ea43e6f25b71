/* Local images: from a folder or an archive to checked documents and open layers.
 *
 * A `place` is where files of a layout are looked up: a folder, or the member table of an archive.
 * In a folder a file is opened component by component without following links and must be a regular
 * file (a FIFO planted as a blob would otherwise hang us); the only names ever opened there are
 * oci-layout, index.json and blobs/sha256/<64 hex digits>.
 *
 * An index may name further indexes (multi-platform images do); at most OCI_INDEX_DEPTH_MAX deep.
 */
#include "host/image/source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/image/digest.h"
#include "host/image/members.h"

#define BLOB_FOLDER	      "blobs/sha256/"
#define LAYOUT_FILE_BYTES_MAX 4096 /* of oci-layout */

struct place {
	int dirfd; /* -1: members */
	const struct members *members;
};

struct piece {
	int fd;
	uint64_t offset, size;
	bool owned; /* fd is to be closed */
};

static void piece_done(struct piece *p)
{
	if (p->owned)
		fd_close(&p->fd);
}
#define cleanup_piece __attribute__((cleanup(piece_done)))

/* ---- places ---- */

static int open_beneath(int dirfd, const char *name, struct err *e)
{
	cleanup_fd int dir = -1;
	const char *at = name;
	struct stat st;
	int fd, up = dirfd;

	for (size_t n = strcspn(at, "/"); at[n]; n = strcspn(at, "/")) {
		char part[16];
		int next;

		if (n >= sizeof(part))
			return err_set(e, "", EINVAL, "%s: not a name of a layout", name);
		memcpy(part, at, n);
		part[n] = '\0';
		next = openat(up, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (next < 0)
			goto fail;
		fd_close(&dir);
		up = dir = next;
		at += n + 1;
	}
	fd = openat(up, at, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		goto fail;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return fd;
	close(fd);
	return err_set(e, "", EINVAL, "%s is not a regular file", name);
fail:
	if (errno == ELOOP || errno == ENOTDIR)
		return err_set(e, "", EINVAL,
			"%s is a symbolic link or lies below one: links inside a layout are not "
			"followed",
			name);
	return err_set(e, "", errno, "%s: %s", name, err_str(errno));
}

static int place_open(
	const struct place *at, const char *name, bool unique, struct piece *ret, struct err *e)
{
	struct member m;
	struct stat st;
	int r;

	if (at->members) {
		r = members_find(at->members, name, unique, &m, e);
		if (r == 0)
			*ret = (struct piece){m.fd, m.offset, m.size, false};
		return r;
	}
	r = open_beneath(at->dirfd, name, e);
	if (r < 0)
		return r;
	if (fstat(r, &st) < 0)
		st.st_size = 0;
	*ret = (struct piece){r, 0, (uint64_t)st.st_size, true};
	return 0;
}

static int piece_text(const struct piece *p, const char *name, uint64_t max, char **ret,
	size_t *ret_len, struct err *e)
{
	cleanup_free char *text = NULL;
	ssize_t n;

	if (p->size > max)
		return err_set(e, "", EINVAL,
			"%s has %" PRIu64 " bytes, at most %" PRIu64 " are read", name, p->size,
			max);
	text = xmalloc(p->size + 1);
	n = fd_pread_full(p->fd, text, p->size, p->offset);
	if (n < 0)
		return err_set(e, "", (int)-n, "cannot read %s: %s", name, err_str((int)n));
	if ((uint64_t)n != p->size)
		return err_set(e, "", EINVAL, "%s is cut short", name);
	text[n] = '\0';
	*ret = STEAL(text);
	*ret_len = (size_t)n;
	return 0;
}

/* A small file that is there once. */
static int read_file(const struct place *at, const char *name, uint64_t max, char **ret,
	size_t *ret_len, struct err *e)
{
	cleanup_piece struct piece p = {.fd = -1};
	int r = place_open(at, name, true, &p, e);

	return r < 0 ? r : piece_text(&p, name, max, ret, ret_len, e);
}

static int open_blob(
	const struct place *at, const struct oci_descriptor *d, struct piece *ret, struct err *e)
{
	cleanup_free char *name = xasprintf(BLOB_FOLDER "%s", oci_digest_hex(d->digest));
	struct piece p = {.fd = -1};
	int r = place_open(at, name, false, &p, e);

	if (r < 0)
		return r;
	if (p.size != d->size) {
		piece_done(&p);
		return err_set(e, "", EINVAL, "blob %s has %" PRIu64 " bytes instead of %" PRIu64,
			d->digest, p.size, d->size);
	}
	*ret = p;
	return 0;
}

static int read_blob(const struct place *at, const struct oci_descriptor *d, char **ret,
	size_t *ret_len, struct err *e)
{
	cleanup_piece struct piece p = {.fd = -1};
	cleanup_free char *text = NULL;
	char sum[OCI_DIGEST_LEN + 1];
	size_t len;
	int r = open_blob(at, d, &p, e);

	if (r == 0)
		r = piece_text(&p, d->digest, OCI_DOCUMENT_BYTES_MAX, &text, &len, e);
	if (r < 0)
		return r;
	digest_of(text, len, sum);
	if (!str_eq(sum, d->digest))
		return err_set(e, "", EBADMSG,
			"blob %s does not have the content of its digest (its content is %s)",
			d->digest, sum);
	*ret = STEAL(text);
	*ret_len = len;
	return 0;
}

int source_read_file(int dirfd, const char *name, char **ret, size_t *ret_len, struct err *e)
{
	struct place at = {.dirfd = dirfd};

	return read_file(&at, name, OCI_DOCUMENT_BYTES_MAX, ret, ret_len, e);
}

int source_read_blob(
	int dirfd, const struct oci_descriptor *d, char **ret, size_t *ret_len, struct err *e)
{
	struct place at = {.dirfd = dirfd};

	return read_blob(&at, d, ret, ret_len, e);
}

/* ---- assembling ---- */

static struct source_image *image_new(size_t n_layers)
{
	struct source_image *img = xcalloc(1, sizeof(*img));

	img->layers = xcalloc(n_layers, sizeof(*img->layers));
	img->n_layers = n_layers;
	for (size_t i = 0; i < n_layers; i++)
		img->layers[i].fd = -1;
	return img;
}

void source_close(struct source_image *img)
{
	if (!img)
		return;
	for (size_t i = 0; img->owns_fds && i < img->n_layers; i++)
		fd_close(&img->layers[i].fd);
	free(img->layers);
	oci_config_done(&img->config);
	oci_document_done(&img->doc);
	strv_free(img->member_names);
	members_close(img->members);
	free(img);
}

static int check_config(
	const struct oci_config *config, size_t n_layers, const char *arch, struct err *e)
{
	int r = oci_config_check_platform(config, arch, e);

	return r < 0 ? r : oci_config_check_layers(config, n_layers, e);
}

static int assemble(const struct place *at, const char *digest, struct oci_document *doc,
	struct oci_config *config, const char *arch, struct source_image **ret, struct err *e)
{
	struct source_image *img = image_new(doc->manifest.n_layers);
	int r;

	img->doc = *doc;
	img->config = *config;
	img->owns_fds = !at->members;
	*doc = (struct oci_document){0};
	*config = (struct oci_config){0};
	memcpy(img->digest, digest, sizeof(img->digest));
	img->layer_bytes = img->doc.manifest.layer_bytes;
	r = check_config(&img->config, img->n_layers, arch, e);
	for (size_t i = 0; r == 0 && i < img->n_layers; i++) {
		const struct oci_descriptor *d = &img->doc.manifest.layers[i];
		struct piece p;

		r = open_blob(at, d, &p, e);
		if (r < 0) {
			err_wrap(e, "layer %zu of %zu", i + 1, img->n_layers);
			break;
		}
		img->layers[i] = (struct image_layer){.fd = p.fd,
			.offset = p.offset,
			.size = p.size,
			.digest = d->digest,
			.diff_id = img->config.diff_ids[i],
			.name = d->digest};
	}
	if (r < 0) {
		source_close(img);
		return r;
	}
	*ret = img;
	return 0;
}

int source_assemble(int dirfd, const char *digest, struct oci_document *manifest,
	struct oci_config *config, const char *arch, struct source_image **ret, struct err *e)
{
	struct place at = {.dirfd = dirfd};

	return assemble(&at, digest, manifest, config, arch, ret, e);
}

/* ---- OCI layouts ---- */

/* From index.json down to the manifest for this platform. `digest` says which one it is. */
static int find_manifest(const struct place *at, const struct source_spec *spec, const char *arch,
	struct oci_document *ret, char digest[static OCI_DIGEST_LEN + 1], struct err *e)
{
	struct oci_want want = {.tag = spec->tag, .digest = spec->digest, .arch = arch};
	struct oci_document doc = {0};
	cleanup_free char *text = NULL;
	size_t len, chosen;
	int r = read_file(at, "index.json", OCI_DOCUMENT_BYTES_MAX, &text, &len, e);

	for (int depth = 0; r == 0; depth++) {
		struct oci_descriptor next;

		r = oci_document_parse(text, len, &doc, e);
		if (r < 0) {
			err_wrap(e, "%s", depth ? digest : "index.json");
			break;
		}
		if (doc.kind == OCI_MANIFEST && depth) {
			*ret = doc;
			return 0;
		}
		if (doc.kind == OCI_MANIFEST)
			r = err_set(e, "", EINVAL, "index.json is a manifest, not an index");
		else if (depth > OCI_INDEX_DEPTH_MAX)
			r = err_set(e, "", EINVAL, "more than %d indexes lie inside each other",
				OCI_INDEX_DEPTH_MAX);
		if (r < 0)
			break;
		r = oci_index_choose(&doc.index, &want, &chosen, e);
		if (r < 0)
			break;
		next = doc.index.entries[chosen];
		memcpy(digest, next.digest, OCI_DIGEST_LEN + 1);
		free(STEAL(text));
		r = read_blob(at, &next, &text, &len, e);
		oci_document_done(&doc);
		want = (struct oci_want){.arch = arch}; /* tag and digest meant the first level */
	}
	oci_document_done(&doc);
	return r;
}

static int open_layout(const struct place *at, const struct source_spec *spec, const char *arch,
	struct source_image **ret, struct err *e)
{
	cleanup_free char *text = NULL, *config_text = NULL;
	char digest[OCI_DIGEST_LEN + 1];
	struct oci_document doc;
	struct oci_config config;
	size_t len;
	int r = read_file(at, "oci-layout", LAYOUT_FILE_BYTES_MAX, &text, &len, e);

	if (r == 0)
		r = oci_layout_parse(text, len, e);
	if (r < 0) {
		err_wrap(e, "it is not an OCI layout");
		return r;
	}
	r = find_manifest(at, spec, arch, &doc, digest, e);
	if (r < 0)
		return r;
	r = read_blob(at, &doc.manifest.config, &config_text, &len, e);
	if (r == 0)
		r = oci_config_parse(config_text, len, &config, e);
	if (r < 0) {
		err_wrap(e, "configuration");
		oci_document_done(&doc);
		return r;
	}
	return assemble(at, digest, &doc, &config, arch, ret, e);
}

/* ---- docker-archive ---- */

static int open_docker_layers(struct source_image *img, char *const *names, struct err *e)
{
	struct member m;

	for (size_t i = 0; i < img->n_layers; i++) {
		int r = members_find(img->members, names[i], false, &m, e);

		if (r < 0) {
			err_wrap(e, "layer %zu of %zu", i + 1, img->n_layers);
			return r;
		}
		img->layers[i] = (struct image_layer){.fd = m.fd,
			.offset = m.offset,
			.size = m.size,
			.diff_id = img->config.diff_ids[i],
			.name = img->member_names[i]};
		img->layer_bytes += m.size;
	}
	return 0;
}

static int open_docker_image(const struct place *at, const struct oci_docker_image *image,
	const char *arch, struct source_image *img, struct err *e)
{
	cleanup_free char *text = NULL;
	size_t len;
	int r = read_file(at, image->config, OCI_DOCUMENT_BYTES_MAX, &text, &len, e);

	if (r == 0)
		r = oci_config_parse(text, len, &img->config, e);
	if (r == 0)
		r = check_config(&img->config, img->n_layers, arch, e);
	if (r < 0) {
		err_wrap(e, "configuration");
		return r;
	}
	/* Diff ids are in the configuration and all are checked, so its digest (Docker's image id)
	 * stands for the whole content as a manifest's does. */
	digest_of(text, len, img->digest);
	return open_docker_layers(img, image->layers, e);
}

/* Takes `members`, also on failure. */
static int open_docker_archive(struct members *members, const struct source_spec *spec,
	const char *arch, struct source_image **ret, struct err *e)
{
	struct place at = {.dirfd = -1, .members = members};
	struct oci_docker_archive archive = {0};
	struct source_image *img = image_new(0);
	cleanup_free char *text = NULL;
	size_t len, chosen;
	int r;

	img->members = members;
	r = read_file(&at, "manifest.json", OCI_DOCUMENT_BYTES_MAX, &text, &len, e);
	if (r < 0)
		err_wrap(e, "it is not a docker archive");
	if (r == 0) {
		r = oci_docker_archive_parse(text, len, &archive, e);
		if (r < 0)
			err_wrap(e, "manifest.json");
	}
	if (r == 0)
		r = oci_docker_archive_choose(&archive, spec->tag, &chosen, e);
	if (r == 0) {
		const struct oci_docker_image *image = &archive.images[chosen];

		img->n_layers = strv_len(image->layers);
		img->layers = xrealloc(img->layers, img->n_layers, sizeof(*img->layers));
		img->member_names = strv_dup(image->layers);
		r = open_docker_image(&at, image, arch, img, e);
	}
	oci_docker_archive_done(&archive);
	if (r < 0) {
		source_close(img);
		return r;
	}
	*ret = img;
	return 0;
}

/* ---- opening ---- */

static int open_archive(const struct source_spec *spec, const struct source_env *env,
	struct source_image **ret, struct err *e)
{
	struct members *members;
	struct place at = {.dirfd = -1};
	int r = members_open(
		spec->path, env->scratch_dirfd, env->cancelled, env->user, &members, e);

	if (r < 0)
		return r;
	if (spec->kind == SOURCE_DOCKER_ARCHIVE)
		return open_docker_archive(members, spec, env->arch, ret, e);
	at.members = members;
	r = open_layout(&at, spec, env->arch, ret, e);
	if (r < 0)
		members_close(members);
	else
		(*ret)->members = members;
	return r;
}

int source_open(const struct source_spec *spec, const struct source_env *env,
	struct source_image **ret, struct err *e)
{
	cleanup_fd int dir = -1;
	struct place at;
	int r;

	if (spec->kind == SOURCE_OCI) {
		r = dir = path_open_dir(spec->path, e);
		at = (struct place){.dirfd = dir};
		if (r >= 0)
			r = open_layout(&at, spec, env->arch, ret, e);
	} else {
		r = open_archive(spec, env, ret, e);
	}
	return r < 0 ? r : 0;
}
