/* How it works: yaml.h gives the tree, manifest_read.h the typed fields, manifest_kind.h what a
 * kind stands for; here all of it becomes one decision.
 *
 * It refuses what would only show later, in the VM: a name that is no name, an image reference that
 * no registry can have, a missing start command, more vCPUs than there can be. The image leaves in
 * its full form, registry first: a text like `oci:folder`, which the image code would read as a
 * path on this host, is a repository here and stays one.
 *
 * Errors name keys and never a value, save for names, numbers of vCPUs and MiB.
 */
#include "host/worker/manifest.h"

#include <errno.h>
#include <json-c/linkhash.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/vm.h"
#include "host/worker/manifest_kind.h"
#include "host/worker/manifest_read.h"
#include "host/worker/roots.h"
#include "wire/json.h"
#include "wire/oci.h"
#include "wire/yaml.h"

#define BLANKS	       " \t\r\n\v\f"
#define NAME_BYTES_MAX 255
#define ALNUM	       "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
#define DISABLED       "III_BUNDLE_WORKERS_DISABLED"

/* Set by the host; what a manifest says of them does not count. */
static const char *const reserved[] = {"III_URL", "III_ENGINE_URL", "III_WORKER_NAME"};

void manifest_done(struct manifest *m)
{
	free(m->name);
	free(m->base_image);
	free(m->setup);
	free(m->install);
	free(m->start);
	strv_free(m->env);
	strv_free(m->warnings);
	*m = (struct manifest){0};
}

/* Without blanks around it, or NULL when nothing is left. The caller frees it. */
static char *trimmed(const char *s)
{
	size_t len;

	if (!s)
		return NULL;
	s += strspn(s, BLANKS);
	len = strlen(s);
	while (len && strchr(BLANKS, s[len - 1]))
		len--;
	return len ? xstrndup(s, len) : NULL;
}

/* As it is written, or NULL when there is nothing but blanks. */
static char *script(const char *s)
{
	return s && s[strspn(s, BLANKS)] ? xstrdup(s) : NULL;
}

static void warn(struct manifest *m, char *line)
{
	cleanup_free char *taken = line;

	strv_add(&m->warnings, taken);
}

static int take_name(const struct manifest_fields *f, const struct manifest_query *q,
	struct manifest *m, struct err *e)
{
	cleanup_free char *name = trimmed(f->name);

	if (!name)
		return err_set(e, "S500", EINVAL, "`name` is missing");
	if (name[strspn(name, ALNUM "._-")] || name[0] == '.' || strstr(name, "..") ||
		strlen(name) > NAME_BYTES_MAX)
		return err_set(e, "S500", EINVAL,
			"`name` must be 1 to %d of the characters A-Z a-z 0-9 . _ -, not begin "
			"with "
			"a dot and not have two dots in a row",
			NAME_BYTES_MAX);
	if (q->kind == WORKER_BUNDLE && !str_eq(name, q->package)) {
		cleanup_free char *package = yaml_key_shown(q->package ? q->package : "");

		return err_set(e, "S500", EINVAL,
			"`name` is %.64s, but the package that was asked for is %s", name, package);
	}
	m->name = STEAL(name);
	return 0;
}

/* registry/repository[:tag][@digest]. */
static int take_image(const char *text, struct manifest *m, struct err *e)
{
	struct oci_ref ref;

	if (oci_ref_parse(text, &ref, NULL) < 0)
		return err_set(e, "S500", EINVAL,
			"`runtime.base_image` is not the reference of an image in a registry: the "
			"form is [registry/]repository[:tag][@sha256:digest] with a lower-case "
			"repository, at most %d bytes",
			OCI_REF_BYTES_MAX);
	m->base_image = xasprintf("%s/%s%s%s%s%s", ref.registry, ref.repository, ref.tag ? ":" : "",
		ref.tag ? ref.tag : "", ref.digest ? "@" : "", ref.digest ? ref.digest : "");
	oci_ref_done(&ref);
	return 0;
}

static int take_runtime_image(
	const struct manifest_fields *f, const char *kind, struct manifest *m, struct err *e)
{
	cleanup_free char *image = trimmed(f->base_image);

	if (image)
		return take_image(image, m, e);
	m->base_image = xstrdup(manifest_kind_image(kind));
	if (m->base_image)
		return 0;
	return err_set(e, "S500", EINVAL,
		"`runtime.base_image` is missing: name an image, or make `runtime.kind` one "
		"of " MANIFEST_KINDS);
}

static int take_resources(const struct manifest_fields *f, const struct manifest_query *q,
	struct manifest *m, struct err *e)
{
	bool bundle = q->kind == WORKER_BUNDLE;

	m->cpus = f->cpus ? f->cpus : MANIFEST_CPUS_DEFAULT;
	m->mem_mib = f->mem_mib ? f->mem_mib : MANIFEST_MEM_DEFAULT_MIB;
	if (bundle &&
		(m->cpus > MANIFEST_BUNDLE_CPUS_MAX || m->mem_mib > MANIFEST_BUNDLE_MEM_MAX_MIB)) {
		warn(m, xasprintf(
				"the bundle asks for %u vCPUs and %u MiB of memory: a bundle gets "
				"at most %d and %d MiB",
				m->cpus, m->mem_mib, MANIFEST_BUNDLE_CPUS_MAX,
				MANIFEST_BUNDLE_MEM_MAX_MIB));
		m->cpus = MIN(m->cpus, (uint32_t)MANIFEST_BUNDLE_CPUS_MAX);
		m->mem_mib = MIN(m->mem_mib, (uint32_t)MANIFEST_BUNDLE_MEM_MAX_MIB);
	}
	if (m->mem_mib < MANIFEST_MEM_MIN_MIB) {
		warn(m, xasprintf(
				"`resources.memory` is %u MiB: it was raised to %d MiB, the least "
				"that a worker gets",
				m->mem_mib, MANIFEST_MEM_MIN_MIB));
		m->mem_mib = MANIFEST_MEM_MIN_MIB;
	}
	if (m->cpus > VM_VCPUS_MAX)
		return err_set(e, "S400", EINVAL,
			"`resources.cpus` is %u: a VM has at most %d vCPUs, ask for fewer", m->cpus,
			VM_VCPUS_MAX);
	return 0;
}

static int take_env(const struct manifest_fields *f, struct manifest *m, struct err *e)
{
	if (!f->env)
		return 0;
	if (json_object_object_length(f->env) > MANIFEST_ENV_MAX)
		return err_set(
			e, "S500", E2BIG, "`env` has more than %d variables", MANIFEST_ENV_MAX);
	json_object_object_foreach (f->env, name, value) {
		cleanup_free char *entry = NULL;
		bool ours = !value;

		for (size_t i = 0; i < ARRAY_LEN(reserved); i++)
			ours |= str_eq(name, reserved[i]);
		if (ours)
			continue;
		entry = xasprintf("%s=%s", name, json_object_get_string(value));
		strv_add(&m->env, entry);
	}
	return 0;
}

/* The trimmed run_override of a local source, or NULL. */
static char *override_of(const struct manifest_query *q)
{
	return q->kind == WORKER_LOCAL ? trimmed(q->run_override) : NULL;
}

/* From the section `scripts`. */
static int take_written(const struct manifest_fields *f, const struct manifest_query *q,
	struct manifest *m, struct err *e)
{
	m->setup = script(f->setup);
	m->install = script(f->install);
	m->start = script(f->start);
	if (m->setup && q->kind == WORKER_BUNDLE)
		return err_set(e, "S500", EINVAL,
			"`scripts.setup` is not allowed in a bundle: what it needs belongs into "
			"its "
			"base image");
	if (!f->install)
		warn(m, xstrdup("`scripts.install` is missing: nothing is installed (an empty one "
				"says so without this line)"));
	return 0;
}

/* From the kind, where there is no such section. */
static int take_inferred(const struct manifest_fields *f, const char *kind, bool overridden,
	struct manifest *m, struct err *e)
{
	cleanup_free char *manager = trimmed(f->package_manager), *entry = trimmed(f->entry);
	struct manifest_scripts s = {0};
	int r = manifest_kind_scripts(kind, manager, entry, &s, overridden ? NULL : e);

	if (r < 0 && !overridden)
		return r;
	m->setup = STEAL(s.setup);
	m->install = STEAL(s.install);
	m->start = STEAL(s.start);
	if (m->start || overridden)
		return 0;
	return err_set(e, "S500", EINVAL,
		"there is no `scripts.start`, and no `runtime.entry` from which it would follow: "
		"set one of them");
}

static int take_scripts(const struct manifest_fields *f, const char *kind,
	const struct manifest_query *q, struct manifest *m, struct err *e)
{
	cleanup_free char *override = override_of(q);
	int r;

	if (f->scripts || q->kind == WORKER_BUNDLE)
		r = take_written(f, q, m, e);
	else
		r = take_inferred(f, kind, override, m, e);
	if (r < 0)
		return r;
	if (override) {
		free(m->start);
		m->start = STEAL(override);
	}
	if (!m->start)
		return err_set(e, "S500", EINVAL,
			"`scripts.start` is missing or blank: set it to the command that runs the "
			"worker");
	return 0;
}

static int take(const struct manifest_fields *f, const struct manifest_query *q, struct manifest *m,
	struct err *e)
{
	cleanup_free char *kind = trimmed(f->kind);
	int r = take_name(f, q, m, e);

	if (!kind)
		kind = trimmed(f->language);
	if (!kind)
		kind = xstrdup(MANIFEST_KIND_DEFAULT);
	if (r == 0)
		r = take_runtime_image(f, kind, m, e);
	if (r == 0)
		r = take_resources(f, q, m, e);
	if (r == 0)
		r = take_scripts(f, kind, q, m, e);
	if (r == 0)
		r = take_env(f, m, e);
	return r;
}

static int check_override(const struct manifest_query *q, struct err *e)
{
	if (q->kind == WORKER_LOCAL && q->run_override &&
		strlen(q->run_override) > WORKER_SCRIPT_MAX)
		return err_set(e, "S500", EINVAL,
			"run_override has more than %d bytes: put it into a file of the project",
			WORKER_SCRIPT_MAX);
	return 0;
}

static int parse(const char *text, size_t len, const struct manifest_query *q, struct manifest *m,
	struct err *e)
{
	cleanup_json json_object *top = NULL;
	struct manifest_fields fields;
	int r;

	if (len > MANIFEST_BYTES_MAX)
		return err_set(
			e, "S500", EINVAL, "the file has more than %d bytes", MANIFEST_BYTES_MAX);
	r = yaml_parse(text, len, MANIFEST_NODES_MAX, &top, e);
	if (r == 0)
		r = manifest_read(top,
			q->kind == WORKER_LOCAL ? MANIFEST_UNKNOWN_REFUSE : MANIFEST_UNKNOWN_IGNORE,
			&fields, e);
	return r < 0 ? r : take(&fields, q, m, e);
}

int manifest_parse(const char *text, size_t len, const struct manifest_query *q,
	struct manifest *ret, struct err *e)
{
	int r;

	*ret = (struct manifest){0};
	r = check_override(q, e);
	if (r < 0)
		return r;
	r = parse(text, len, q, ret, e);
	if (r < 0) {
		err_wrap(e, MANIFEST_FILE);
		err_code(e, "S500");
	}
	return r;
}

/* A project without a manifest. */
static int detect(int dir_fd, const struct manifest_query *q, struct manifest *m, struct err *e)
{
	cleanup_free char *override = override_of(q);
	const struct manifest_fields nothing = {0};
	struct manifest_scripts s = {0};
	const char *image = manifest_kind_image(MANIFEST_KIND_DEFAULT);
	int r = manifest_kind_detect(dir_fd, &image, &s, e);

	if (r < 0)
		return r;
	m->name = xstrdup("");
	m->base_image = xstrdup(image);
	m->setup = STEAL(s.setup);
	m->install = STEAL(s.install);
	m->start = STEAL(s.start);
	if (override) {
		free(m->start);
		m->start = STEAL(override);
	}
	if (!m->start)
		return err_set(e, "S500", ENOENT,
			"the folder has no " MANIFEST_FILE
			", and none of package.json, Cargo.toml, pyproject.toml and "
			"requirements.txt "
			"from which it would follow what to run: write a " MANIFEST_FILE);
	return take_resources(&nothing, q, m, e);
}

/* The whole file, which may grow while it is read. The caller frees it. */
static int slurp(int fd, char **ret, size_t *ret_len, struct err *e)
{
	cleanup_free char *text = NULL;
	struct stat st;
	ssize_t n;

	if (fstat(fd, &st) < 0)
		return err_set(e, "S500", errno, MANIFEST_FILE ": cannot be looked at: %s",
			err_str(errno));
	n = 0;
	if (st.st_size <= MANIFEST_BYTES_MAX) {
		text = xmalloc(MANIFEST_BYTES_MAX + 1);
		n = fd_read_full(fd, text, MANIFEST_BYTES_MAX + 1);
	}
	if (n < 0)
		return err_set(
			e, "S500", (int)-n, MANIFEST_FILE ": cannot be read: %s", err_str((int)n));
	if (st.st_size > MANIFEST_BYTES_MAX || n > MANIFEST_BYTES_MAX)
		return err_set(e, "S500", EFBIG, MANIFEST_FILE ": the file has more than %d bytes",
			MANIFEST_BYTES_MAX);
	*ret = STEAL(text);
	*ret_len = (size_t)n;
	return 0;
}

int manifest_load(int dir_fd, const struct manifest_query *q, struct manifest *ret, struct err *e)
{
	cleanup_free char *text = NULL;
	cleanup_fd int fd = -1;
	size_t len = 0;
	int r;

	*ret = (struct manifest){0};
	if (q->kind == WORKER_BUNDLE && str_eq(getenv(DISABLED), "1"))
		return err_set(e, "S500", EPERM,
			"bundle workers are disabled on this host (" DISABLED "=1)");
	r = check_override(q, e);
	if (r < 0)
		return r;
	r = root_open_file(dir_fd, MANIFEST_FILE, &fd, e);
	if (r == -ENOENT && q->kind == WORKER_LOCAL)
		return detect(dir_fd, q, ret, e);
	if (r == -ENOENT)
		return err_set(e, "S500", ENOENT,
			"the package has no " MANIFEST_FILE ", which every bundle needs");
	if (r == 0)
		r = slurp(fd, &text, &len, e);
	return r < 0 ? r : manifest_parse(text, len, q, ret, e);
}
