/* Talking to registries through skopeo.
 *
 *   skopeo inspect --raw             index or manifest, byte for byte; hashed here
 *   skopeo inspect --config --raw    only for an image without an index, to refuse a wrong
 *                                    architecture before its layers are fetched
 *   skopeo copy … oci:layout:image   blobs into blobs/sha256 of the partial pull's folder, which
 *                                    skopeo fills file by file (complete or absent)
 *
 * The copy names the manifest by digest, so the tag may move meanwhile. skopeo checks every blob,
 * and image_build does so again. A Docker manifest is converted by skopeo (the configuration gets
 * another digest), so the configuration is taken from the layout it wrote, after its layers were
 * found to be those of the registry's manifest; the key of the image stays the registry's digest.
 *
 * All arguments that come from outside are normalised references, which begin with "docker://", or
 * fixed words: none can be taken for an option.
 */
#include "host/image/pull.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/image/digest.h"
#include "host/image/proc.h"
#include "host/image/store_priv.h"

#define COPY_OUT_MAX  (1u << 20) /* skopeo's chatter on stdout */
#define OVERRUN_SLACK (1u << 20) /* temporary files may hold this much more than announced */
#define CAUSE_BYTES   600	 /* of skopeo's message in our error */
#define LAYOUT_FOLDER STORE_PARTIAL_VOLATILE
#define LAYOUT_IMAGE  "image"

struct pull {
	const struct source_spec *spec;
	const struct pull_env *env;
	bool insecure;
	char *auth_file; /* absolute, or NULL: skopeo's own search */
	char digest[OCI_DIGEST_LEN + 1];
	struct oci_document doc; /* the manifest */
	bool has_config;
	struct oci_config config;
};

/* ---- where and how ---- */

static bool host_matches(const char *registry, const char *word, size_t len)
{
	const char *port = strrchr(registry, ':');
	size_t host_len = port ? (size_t)(port - registry) : strlen(registry);

	return (len == strlen(registry) && strncasecmp(registry, word, len) == 0) ||
	       (len == host_len && strncasecmp(registry, word, len) == 0);
}

static bool is_insecure(const char *registry)
{
	const char *list = getenv("III_INSECURE_REGISTRIES");

	if (host_matches(registry, "localhost", 9) || host_matches(registry, "127.0.0.1", 9))
		return true;
	while (list && *list) {
		size_t len;

		list += strspn(list, ", ");
		len = strcspn(list, ", ");
		if (len && host_matches(registry, list, len))
			return true;
		list += len;
	}
	return false;
}

static int find_auth_file(char **ret, struct err *e)
{
	const char *path = getenv("REGISTRY_AUTH_FILE");
	struct stat st;

	if (!path || !*path)
		return 0;
	*ret = realpath(path, NULL);
	if (!*ret || stat(*ret, &st) < 0 || access(*ret, R_OK) < 0)
		return err_set(e, "", errno, "the credentials file REGISTRY_AUTH_FILE=%s: %s", path,
			err_str(errno));
	if (!S_ISREG(st.st_mode))
		return err_set(e, "", EINVAL,
			"the credentials file REGISTRY_AUTH_FILE=%s is not a file", path);
	return 0;
}

/* ---- what went wrong ---- */

/* The text of the last  msg="…"  (or the last line) of skopeo's log, unquoted. */
static char *last_message(struct buf *log)
{
	static const char mark[] = "msg=\"";
	const char *text = log->len ? (const char *)log->data : "", *start = NULL, *p;
	char *out, *to;

	for (p = text; (p = strstr(p, mark)); p += sizeof(mark) - 1)
		start = p + sizeof(mark) - 1;
	if (!start) {
		size_t end = strlen(text);

		while (end && text[end - 1] == '\n')
			end--;
		for (p = text + end; p > text && p[-1] != '\n'; p--)
			;
		return xstrndup(p, (size_t)(text + end - p));
	}
	to = out = xmalloc(strlen(start) + 1);
	for (p = start; *p && *p != '"'; p++) {
		if (*p == '\\' && p[1])
			p++;
		*to++ = *p;
	}
	*to = '\0';
	return out;
}

/* Steps of skopeo's that say nothing about the cause. */
static const char *skip_steps(const char *message)
{
	static const char *const steps[] = {"Error parsing image name", "initializing source",
		"Error initializing source", "Error retrieving manifest", "Error reading manifest",
		"Error parsing manifest", "copying system image", "determining manifest"};

	for (size_t i = 0; i < ARRAY_LEN(steps);) {
		const char *next = strstr(message, ": ");

		if (next && str_starts(message, steps[i])) {
			message = next + 2;
			i = 0;
		} else {
			i++;
		}
	}
	return message;
}

static const struct {
	const char *sign;
	int no;
	const char *hint; /* %s: the registry */
} causes[] = {
	{"no space left", ENOSPC,
		"make room (sandbox-libkrun image gc --all removes what is not in use)"},
	{"disk quota exceeded", ENOSPC, "make room"},
	{"manifest unknown", ENOENT, "check the name and the tag"},
	{"name unknown", ENOENT, "check the name and the tag"},
	{"toomanyrequests", EAGAIN, "the registry limits pulls: try later, or log in"},
	{"unauthorized", EACCES, "check the name, or log in with: skopeo login"},
	{"authentication required", EACCES, "check the name, or log in with: skopeo login"},
	{"denied", EACCES, "check the name, or log in with: skopeo login"},
	{"gave HTTP response", EPROTO,
		"if the registry is meant to have no TLS, list it in III_INSECURE_REGISTRIES"},
	{"x509:", EPROTO,
		"add its certificate to /etc/containers/certs.d, or list the registry in "
		"III_INSECURE_REGISTRIES"},
	{"unsupported docker v2s2 media type", EPROTO,
		"this skopeo does not know such layers in a Docker manifest: push the image in OCI "
		"format, or install a newer skopeo"},
	{"policy.json", ENOENT,
		"skopeo needs a signature policy: install golang-github-containers-common"},
	{"no such host", EHOSTUNREACH, "check the name and the network"},
	{"connection refused", ECONNREFUSED, "check that the registry runs"},
};

static int explain(const struct pull *p, struct proc_result *res, struct err *e)
{
	cleanup_free char *message = last_message(&res->errors);
	const char *cause = skip_steps(message);

	if (!*cause)
		return err_set(
			e, "", EIO, "skopeo failed with status %d and said nothing", res->status);
	for (size_t i = 0; i < ARRAY_LEN(causes); i++)
		if (strcasestr(message, causes[i].sign))
			return err_set(e, "", causes[i].no, "%.*s (%s%s%s)", CAUSE_BYTES, cause,
				causes[i].hint, str_ends(causes[i].hint, "login") ? " " : "",
				str_ends(causes[i].hint, "login") ? p->spec->ref.registry : "");
	return err_set(e, "", EIO, "%.*s", CAUSE_BYTES, cause);
}

/* ---- running skopeo ---- */

static time_t now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

struct inspect {
	const struct pull *pull;
	time_t deadline;
};

static int inspect_tick(void *user, struct err *e)
{
	struct inspect *i = user;

	if (i->pull->env->cancelled && i->pull->env->cancelled(i->pull->env->user))
		return err_set(e, "", ECANCELED, "cancelled");
	if (now_s() >= i->deadline)
		return err_set(e, "", ETIMEDOUT, "the registry %s has not answered within %d s",
			i->pull->spec->ref.registry, PULL_INSPECT_S);
	return 0;
}

/* `skopeo inspect ARG… docker://ref`: its stdout in *ret. */
static int inspect(struct pull *p, bool config, const char *ref, struct buf *ret, struct err *e)
{
	cleanup_free char *url = xasprintf("docker://%s", ref);
	struct inspect i = {.pull = p, .deadline = now_s() + PULL_INSPECT_S};
	char *argv[16];
	struct proc run = {.argv = argv,
		.cwd_fd = -1,
		.out_max = OCI_DOCUMENT_BYTES_MAX,
		.tick = inspect_tick,
		.user = &i};
	struct proc_result res;
	size_t n = 0;
	int r;

	argv[n++] = (char *)"skopeo";
	argv[n++] = (char *)"inspect";
	argv[n++] = (char *)"--raw";
	argv[n++] = (char *)"--retry-times";
	argv[n++] = (char *)PULL_RETRIES;
	if (config)
		argv[n++] = (char *)"--config";
	if (p->insecure)
		argv[n++] = (char *)"--tls-verify=false";
	if (p->auth_file) {
		argv[n++] = (char *)"--authfile";
		argv[n++] = p->auth_file;
	}
	argv[n++] = url;
	argv[n] = NULL;
	r = proc_run(&run, &res, e);
	if (r < 0) {
		if (r == -EFBIG)
			err_set(e, "", EINVAL, "the %s of %s is larger than %u bytes",
				config ? "configuration" : "manifest", ref, OCI_DOCUMENT_BYTES_MAX);
		return r;
	}
	if (res.status != 0) {
		r = explain(p, &res, e);
	} else {
		*ret = res.out;
		res.out = (struct buf){0};
	}
	proc_result_done(&res);
	return r;
}

/* ---- resolve ---- */

static int check_digest(const struct buf *text, const char *expected, const char *what,
	char ret[static OCI_DIGEST_LEN + 1], struct err *e)
{
	char sum[OCI_DIGEST_LEN + 1];

	digest_of(text->data, text->len, sum);
	if (expected && !str_eq(sum, expected))
		return err_set(e, "", EBADMSG,
			"the registry sent a %s that is not %s: its content is %s", what, expected,
			sum);
	memcpy(ret, sum, sizeof(sum));
	return 0;
}

/* One document, by reference. `expected` NULL: whatever the tag names. */
static int get_document(struct pull *p, const char *ref, const char *expected, struct err *e)
{
	cleanup_buf struct buf text = {0};
	int r = inspect(p, false, ref, &text, e);

	if (r == 0)
		r = check_digest(&text, expected, "manifest", p->digest, e);
	if (r == 0)
		r = oci_document_parse((char *)text.data, text.len, &p->doc, e);
	return r;
}

static int get_config(struct pull *p, struct err *e)
{
	cleanup_free char *ref = oci_ref_at(&p->spec->ref, p->digest);
	char sum[OCI_DIGEST_LEN + 1];
	cleanup_buf struct buf text = {0};
	int r = inspect(p, true, ref, &text, e);

	if (r == 0)
		r = check_digest(&text, p->doc.manifest.config.digest, "configuration", sum, e);
	if (r == 0)
		r = oci_config_parse((char *)text.data, text.len, &p->config, e);
	if (r < 0)
		return r;
	p->has_config = true;
	return oci_config_check_platform(&p->config, p->env->arch, e);
}

static int resolve(struct pull *p, struct err *e)
{
	cleanup_free char *first = oci_ref_wanted(&p->spec->ref);
	struct oci_want want = {.arch = p->env->arch};
	int r = get_document(p, first, p->spec->ref.digest, e);
	int depth = 0;

	for (; r == 0 && p->doc.kind == OCI_INDEX; depth++) {
		cleanup_free char *ref = NULL;
		char next[OCI_DIGEST_LEN + 1];
		size_t chosen;

		if (depth > OCI_INDEX_DEPTH_MAX)
			return err_set(e, "", EINVAL, "more than %d indexes lie inside each other",
				OCI_INDEX_DEPTH_MAX);
		r = oci_index_choose(&p->doc.index, &want, &chosen, e);
		if (r < 0)
			return r;
		memcpy(next, p->doc.index.entries[chosen].digest, sizeof(next));
		oci_document_done(&p->doc);
		ref = oci_ref_at(&p->spec->ref, next);
		r = get_document(p, ref, next, e);
	}
	if (r == 0 && depth == 0)
		r = get_config(p, e);
	return r;
}

int pull_resolve(const struct source_spec *spec, const struct pull_env *env, struct pull **ret,
	struct err *e)
{
	struct pull *p = xcalloc(1, sizeof(*p));
	int r;

	p->spec = spec;
	p->env = env;
	p->insecure = is_insecure(spec->ref.registry);
	if (p->insecure)
		log_warn("registry is asked without TLS verification", "registry=%s image=%s",
			spec->ref.registry, spec->name);
	r = find_auth_file(&p->auth_file, e);
	if (r == 0)
		r = resolve(p, e);
	if (r < 0) {
		pull_free(p);
		return r;
	}
	*ret = p;
	return 0;
}

const char *pull_digest(const struct pull *p)
{
	return p->digest;
}

uint64_t pull_bytes(const struct pull *p)
{
	return p->doc.manifest.layer_bytes;
}

void pull_free(struct pull *p)
{
	if (!p)
		return;
	oci_document_done(&p->doc);
	oci_config_done(&p->config);
	free(p->auth_file);
	free(p);
}

/* ---- download ---- */

struct download {
	const struct pull *pull;
	const struct store_partial *to;
	uint64_t last_bytes;
	time_t last_change;
	uint64_t temp_bytes;
	int layout_fd; /* of the tick */
};

static bool seen_before(const struct oci_manifest *m, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (str_eq(m->layers[k].digest, m->layers[i].digest))
			return true;
	return false;
}

/* Bytes of layers that are complete. */
static uint64_t finished_bytes(const struct oci_manifest *m, int dirfd)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->n_layers; i++) {
		char name[96];
		struct stat st;

		snprintf(
			name, sizeof(name), "blobs/sha256/%s", oci_digest_hex(m->layers[i].digest));
		if (!seen_before(m, i) && fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			sum += (uint64_t)st.st_size;
	}
	return sum;
}

static uint64_t distinct_bytes(const struct oci_manifest *m)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->n_layers; i++)
		if (!seen_before(m, i))
			sum += m->layers[i].size;
	return sum;
}

static int add_temp(const char *name, void *user)
{
	struct download *d = user;
	struct stat st;

	if (fstatat(d->layout_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
		d->temp_bytes += (uint64_t)st.st_size;
	return 0;
}

/* skopeo writes blobs to temporary files in the layout folder before it moves them. */
static uint64_t temp_bytes(struct download *d)
{
	cleanup_fd int fd = openat(d->to->dirfd, LAYOUT_FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	d->temp_bytes = 0;
	d->layout_fd = fd;
	if (fd >= 0)
		store_each(fd, add_temp, d);
	return d->temp_bytes;
}

static int download_tick(void *user, struct err *e)
{
	struct download *d = user;
	const struct pull_env *env = d->pull->env;
	uint64_t total = distinct_bytes(&d->pull->doc.manifest);
	uint64_t done = finished_bytes(&d->pull->doc.manifest, d->to->dirfd) + temp_bytes(d);
	time_t now = now_s();

	if (env->cancelled && env->cancelled(env->user))
		return err_set(e, "", ECANCELED, "cancelled");
	if (done > total + OCI_DOCUMENT_BYTES_MAX + OVERRUN_SLACK)
		return err_set(
			e, "", EINVAL, "the registry sends more bytes than the manifest says");
	if (done != d->last_bytes) {
		d->last_bytes = done;
		d->last_change = now;
	} else if (now - d->last_change >= PULL_STALL_S) {
		return err_set(e, "", ETIMEDOUT, "the registry %s has sent nothing for %d s",
			d->pull->spec->ref.registry, PULL_STALL_S);
	}
	if (env->progress) {
		struct image_progress report = {"pull", MIN(done, total), total};

		env->progress(&report, env->user);
	}
	return 0;
}

static int copy(struct pull *p, const struct store_partial *to, struct err *e)
{
	cleanup_free char *at = oci_ref_at(&p->spec->ref, p->digest);
	cleanup_free char *url = xasprintf("docker://%s", at);
	struct download d = {.pull = p, .to = to, .last_change = now_s()};
	char *argv[32];
	struct proc run = {.argv = argv,
		.cwd_fd = to->dirfd,
		.out_max = COPY_OUT_MAX,
		.tick = download_tick,
		.user = &d};
	struct proc_result res;
	size_t n = 0;
	int r;

	argv[n++] = (char *)"skopeo";
	argv[n++] = (char *)"--override-os";
	argv[n++] = (char *)"linux";
	argv[n++] = (char *)"--override-arch";
	argv[n++] = (char *)p->env->arch;
	argv[n++] = (char *)"copy";
	argv[n++] = (char *)"--quiet";
	argv[n++] = (char *)"--retry-times";
	argv[n++] = (char *)PULL_RETRIES;
	/* An OCI layout has no place for signatures; the policy is checked all the same. */
	argv[n++] = (char *)"--remove-signatures";
	argv[n++] = (char *)"--dest-shared-blob-dir";
	argv[n++] = (char *)"blobs";
	argv[n++] = (char *)"--dest-oci-accept-uncompressed-layers";
	if (p->insecure)
		argv[n++] = (char *)"--src-tls-verify=false";
	if (p->auth_file) {
		argv[n++] = (char *)"--src-authfile";
		argv[n++] = p->auth_file;
	}
	argv[n++] = url;
	argv[n++] = (char *)"oci:" LAYOUT_FOLDER ":" LAYOUT_IMAGE;
	argv[n] = NULL;
	r = proc_run(&run, &res, e);
	if (r < 0)
		return r;
	if (res.status != 0)
		r = explain(p, &res, e);
	else
		r = download_tick(&d, e);
	proc_result_done(&res);
	return r;
}

static bool same_layers(const struct oci_manifest *a, const struct oci_manifest *b)
{
	if (a->n_layers != b->n_layers)
		return false;
	for (size_t i = 0; i < a->n_layers; i++)
		if (!str_eq(a->layers[i].digest, b->layers[i].digest))
			return false;
	return true;
}

/* The configuration as skopeo left it (see the top). */
static int config_from_layout(struct pull *p, int dirfd, struct err *e)
{
	cleanup_fd int layout =
		openat(dirfd, LAYOUT_FOLDER, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct oci_document index = {0}, manifest = {0};
	struct oci_want want = {.tag = LAYOUT_IMAGE, .arch = p->env->arch};
	cleanup_free char *index_text = NULL, *text = NULL, *config_text = NULL;
	size_t len, chosen;
	int r = layout < 0 ? err_set(e, "", errno, "%s", err_str(errno)) : 0;

	if (r == 0)
		r = source_read_file(layout, "index.json", &index_text, &len, e);
	if (r == 0)
		r = oci_document_parse(index_text, len, &index, e);
	if (r == 0)
		r = oci_index_choose(&index.index, &want, &chosen, e);
	if (r == 0)
		r = source_read_blob(dirfd, &index.index.entries[chosen], &text, &len, e);
	if (r == 0)
		r = oci_document_parse(text, len, &manifest, e);
	if (r == 0 && !same_layers(&manifest.manifest, &p->doc.manifest))
		r = err_set(e, "", EBADMSG, "its layers are not those of the registry's manifest");
	if (r == 0)
		r = source_read_blob(dirfd, &manifest.manifest.config, &config_text, &len, e);
	if (r == 0)
		r = oci_config_parse(config_text, len, &p->config, e);
	oci_document_done(&index);
	oci_document_done(&manifest);
	if (r < 0)
		err_wrap(e, "what skopeo stored is not usable");
	return r;
}

int pull_download(
	struct pull *p, const struct store_partial *to, struct source_image **ret, struct err *e)
{
	uint64_t have = finished_bytes(&p->doc.manifest, to->dirfd),
		 all = distinct_bytes(&p->doc.manifest);
	int r = store_check_space(to->store, all > have ? all - have : 0, "the download", e);

	if (r == 0)
		r = copy(p, to, e);
	if (r == 0 && !p->has_config)
		r = config_from_layout(p, to->dirfd, e);
	if (r < 0)
		return r;
	p->has_config = false;
	return source_assemble(to->dirfd, p->digest, &p->doc, &p->config, p->env->arch, ret, e);
}
