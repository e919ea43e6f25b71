#include "host/image/catalog.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/image/source.h"
#include "wire/oci.h"

const struct catalog_preset catalog_presets[] = {
	{"python", "docker.io/iiidev/python:latest"},
	{"node", "docker.io/iiidev/node:latest"},
};
const size_t catalog_n_presets = ARRAY_LEN(catalog_presets);

const char *catalog_preset_ref(const char *name)
{
	for (size_t i = 0; i < catalog_n_presets; i++)
		if (str_eq(name, catalog_presets[i].name))
			return catalog_presets[i].ref;
	return NULL;
}

const char *catalog_preset_name(const char *store_name)
{
	for (size_t i = 0; i < catalog_n_presets; i++)
		if (str_eq(store_name, catalog_presets[i].ref))
			return catalog_presets[i].name;
	return NULL;
}

/* [A-Za-z0-9][A-Za-z0-9._-]* */
static bool is_word(const char *s)
{
	static const char alnum[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
	size_t len = strlen(s);

	if (!len || len > CATALOG_WORD_BYTES_MAX || !strchr(alnum, s[0]))
		return false;
	for (size_t i = 1; i < len; i++)
		if (!strchr(alnum, s[i]) && !strchr("._-", s[i]))
			return false;
	return true;
}

int catalog_name_as(const char *as, char **ret, struct err *e)
{
	const char *preset = catalog_preset_ref(as);
	struct source_spec spec;
	int r;

	if (preset || is_word(as)) {
		*ret = xstrdup(preset ? preset : as);
		return 0;
	}
	r = source_spec_parse(as, &spec, e);
	if (r < 0) {
		err_wrap(e, "--as takes a word or an image reference");
		return r;
	}
	if (spec.kind != SOURCE_REGISTRY || spec.ref.digest)
		r = err_set(e, "", EINVAL,
			"--as takes a word or an image reference without a digest, not '%s'", as);
	else
		*ret = STEAL(spec.name);
	source_spec_done(&spec);
	return r;
}

int catalog_candidates(const char *name, char ***ret, struct err *e)
{
	const char *preset = catalog_preset_ref(name);
	struct source_spec spec;
	char **list = NULL;
	int r;

	if (preset) {
		strv_add(&list, preset);
		*ret = list;
		return 0;
	}
	if (is_word(name))
		strv_add(&list, name);
	r = source_spec_parse(name, &spec, e);
	if (r >= 0) {
		strv_add(&list, spec.name);
		source_spec_done(&spec);
	} else if (!list) {
		return r;
	}
	*ret = list;
	return 0;
}
