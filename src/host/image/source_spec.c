/* What a person may write as the source of an image. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "base/utf8.h"
#include "host/image/catalog.h"
#include "host/image/source.h"

#define FORMS                                                                                      \
	"a name (python, alpine:3.20, registry.example/team/app:1), docker://NAME, "               \
	"oci:PATH[:TAG or @DIGEST], oci-archive:PATH[:TAG or @DIGEST] or "                         \
	"docker-archive:PATH[:NAME:TAG]"

static const struct {
	const char *prefix;
	enum source_kind kind;
} transports[] = {
	{"oci:", SOURCE_OCI},
	{"oci-archive:", SOURCE_OCI_ARCHIVE},
	{"docker-archive:", SOURCE_DOCKER_ARCHIVE},
};

/* Words of other tools that would otherwise pass for a repository with a tag. */
static const char *const foreign[] = {"dir:", "docker-daemon:", "containers-storage:", "ostree:",
	"sif:", "tarball:", "docker:", "http:", "https:", "file:"};

static int refuse(const char *text, struct err *e)
{
	return err_set(e, "", EINVAL, "'%.200s' is not an image source: accepted are " FORMS, text);
}

static int parse_registry(const char *text, struct source_spec *spec, struct err *e)
{
	const char *preset = catalog_preset_ref(text);
	int r;

	spec->kind = SOURCE_REGISTRY;
	r = oci_ref_parse(preset ? preset : text, &spec->ref, e);
	if (r == 0)
		spec->name = oci_ref_name(&spec->ref);
	return r;
}

/* The path as it will still be known when the working folder is another. */
static char *absolute(const char *path)
{
	char *real = realpath(path, NULL);
	cleanup_free char *cwd = NULL;

	if (real || path[0] == '/')
		return real ? real : xstrdup(path);
	cwd = getcwd(NULL, 0);
	return cwd ? path_join(cwd, path) : xstrdup(path);
}

/* PATH[:TAG] or PATH@DIGEST behind the transport. */
static int parse_local(const char *text, const char *rest, const char *prefix,
	struct source_spec *spec, struct err *e)
{
	const char *at = strrchr(rest, '@'), *colon = strchr(rest, ':');
	size_t path_len = strlen(rest);

	if (spec->kind != SOURCE_DOCKER_ARCHIVE && at && oci_digest_valid(at + 1)) {
		spec->digest = xstrdup(at + 1);
		path_len = (size_t)(at - rest);
		if (colon < at)
			return refuse(text, e);
	} else if (colon) {
		spec->tag = xstrdup(colon + 1);
		path_len = (size_t)(colon - rest);
	}
	if (!path_len || (spec->tag && !*spec->tag) || !utf8_valid(rest, strlen(rest)))
		return refuse(text, e);
	{
		cleanup_free char *path = xstrndup(rest, path_len);

		spec->path = absolute(path);
	}
	spec->name = xasprintf("%s%s%s%s", prefix, spec->path,
		spec->tag      ? ":"
		: spec->digest ? "@"
			       : "",
		spec->tag      ? spec->tag
		: spec->digest ? spec->digest
			       : "");
	return 0;
}

static int parse(const char *text, struct source_spec *spec, struct err *e)
{
	if (str_starts(text, "docker://"))
		return parse_registry(text + strlen("docker://"), spec, e);
	for (size_t i = 0; i < ARRAY_LEN(transports); i++) {
		const char *prefix = transports[i].prefix;

		if (!str_starts(text, prefix))
			continue;
		spec->kind = transports[i].kind;
		return parse_local(text, text + strlen(prefix), prefix, spec, e);
	}
	for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
		if (str_starts(text, foreign[i]))
			return refuse(text, e);
	if (!*text || strstr(text, "://") || text[0] == '/' || text[0] == '.')
		return refuse(text, e);
	return parse_registry(text, spec, e);
}

int source_spec_parse(const char *text, struct source_spec *ret, struct err *e)
{
	struct source_spec spec = {0};
	int r = parse(text, &spec, e);

	if (r < 0) {
		source_spec_done(&spec);
		return r;
	}
	*ret = spec;
	return 0;
}

void source_spec_done(struct source_spec *spec)
{
	oci_ref_done(&spec->ref);
	free(spec->path);
	free(spec->tag);
	free(spec->digest);
	free(spec->name);
	*spec = (struct source_spec){0};
}
