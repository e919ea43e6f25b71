#include "host/worker/manifest_read.h"

#include <errno.h>
#include <json-c/linkhash.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "wire/json.h"
#include "wire/worker.h"
#include "wire/yaml.h"

#define FAULTS_BYTES_MAX 1600 /* of the faults that are spelt out; the others are counted */
#define FAULT_MAX	 512

enum want {
	IGNORED, /* of any type, for others to read */
	STRING,
	SCRIPT,
	COUNT,	 /* 1 to UINT32_MAX */
	STRINGS, /* names to strings */
	ENV,	 /* likewise, names are those of environment variables */
	SECTION,
};

struct key {
	const char *name;
	enum want want;
	size_t offset; /* in struct manifest_fields; 0 with IGNORED, STRINGS */
	const struct section *section;
};

struct section {
	const struct key *keys;
	size_t n;
	const char *known; /* what an error offers */
};

#define AT(member) offsetof(struct manifest_fields, member)
#define NOWHERE	   SIZE_MAX /* checked, not kept */

static const struct key runtime_keys[] = {
	{"base_image", STRING, AT(base_image)},
	{"kind", STRING, AT(kind)},
	{"language", STRING, AT(language)},
	{"package_manager", STRING, AT(package_manager)},
	{"entry", STRING, AT(entry)},
};
static const struct section runtime_section = {runtime_keys, ARRAY_LEN(runtime_keys),
	"base_image, kind, language, package_manager, entry"};

static const struct key scripts_keys[] = {
	{"setup", SCRIPT, AT(setup)},
	{"install", SCRIPT, AT(install)},
	{"start", SCRIPT, AT(start)},
};
static const struct section scripts_section = {
	scripts_keys, ARRAY_LEN(scripts_keys), "setup, install, start"};

static const struct key resources_keys[] = {
	{"cpus", COUNT, AT(cpus)},
	{"memory", COUNT, AT(mem_mib)},
};
static const struct section resources_section = {
	resources_keys, ARRAY_LEN(resources_keys), "cpus, memory"};

static const struct key top_keys[] = {
	{"name", STRING, AT(name)},
	{"description", STRING, NOWHERE},
	{"runtime", SECTION, NOWHERE, &runtime_section},
	{"scripts", SECTION, AT(scripts), &scripts_section},
	{"env", ENV, AT(env)},
	{"resources", SECTION, NOWHERE, &resources_section},
	{"dependencies", STRINGS, NOWHERE},
	/* What Compose, registries and older versions read. */
	{"config", IGNORED},
	{"iii", IGNORED},
	{"deploy", IGNORED},
	{"manifest", IGNORED},
	{"tags", IGNORED},
	{"language", IGNORED},
	{"entry", IGNORED},
	{"version", IGNORED},
	{"type", IGNORED},
	{"bin", IGNORED},
	{"repo", IGNORED},
	{"license", IGNORED},
	{"author", IGNORED},
	{"supported_targets", IGNORED},
};
static const struct section top_section = {top_keys, ARRAY_LEN(top_keys),
	"name, description, runtime, scripts, env, resources, dependencies, config"};

struct reader {
	enum manifest_unknown unknown;
	struct manifest_fields *fields;
	struct buf faults;
	unsigned n_faults, n_untold;
};

/* "section.key" or "key", safe to show. The caller frees it. */
static char *path_of(const char *section, const char *key)
{
	cleanup_free char *shown = yaml_key_shown(key);

	return *section ? xasprintf("%s.%s", section, shown) : STEAL(shown);
}

static void fault(struct reader *r, const char *section, const char *key, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static void fault(struct reader *r, const char *section, const char *key, const char *fmt, ...)
{
	cleanup_free char *path = path_of(section, key);
	char what[FAULT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (r->n_untold ||
		buf_printf(&r->faults, "%s`%s` %s", r->n_faults ? "; " : "", path, what) < 0)
		r->n_untold++;
	r->n_faults++;
}

static const char *type_of(json_object *v)
{
	switch (json_object_get_type(v)) {
	case json_type_string:
		return "a string";
	case json_type_boolean:
		return "true or false";
	case json_type_array:
		return "a list";
	case json_type_object:
		return "a mapping";
	case json_type_null:
		return "nothing";
	default:
		return "a number";
	}
}

/* The string, or NULL and a fault. */
static const char *read_string(
	struct reader *r, const char *section, const char *key, const char *wanted, json_object *v)
{
	const char *s;

	if (!json_object_is_type(v, json_type_string)) {
		bool scalar = !json_object_is_type(v, json_type_array) &&
			      !json_object_is_type(v, json_type_object);

		fault(r, section, key, "must be %s, not %s%s", wanted, type_of(v),
			scalar ? ": put it in quotes" : "");
		return NULL;
	}
	s = json_object_get_string(v);
	if (strlen(s) == (size_t)json_object_get_string_len(v))
		return s;
	fault(r, section, key, "must not have a character U+0000 in it");
	return NULL;
}

static const char *read_script(
	struct reader *r, const char *section, const char *key, json_object *v)
{
	const char *s = read_string(r, section, key, "one command as a string", v);

	if (!s || strlen(s) <= WORKER_SCRIPT_MAX)
		return s;
	fault(r, section, key, "has more than %d bytes: put it into a file of the project",
		WORKER_SCRIPT_MAX);
	return NULL;
}

static uint32_t read_count(struct reader *r, const char *section, const char *key, json_object *v)
{
	/* Both getters clamp, so that a number out of range stays out of it. */
	if (json_object_is_type(v, json_type_int) && json_object_get_int64(v) > 0 &&
		json_object_get_uint64(v) <= UINT32_MAX)
		return (uint32_t)json_object_get_int64(v);
	if (json_object_is_type(v, json_type_int))
		fault(r, section, key, "must be a whole number from 1 to %u", UINT32_MAX);
	else
		fault(r, section, key, "must be a whole number from 1 to %u, not %s", UINT32_MAX,
			json_object_is_type(v, json_type_double) ? "a fraction or a larger one"
								 : type_of(v));
	return 0;
}

static bool is_mapping(struct reader *r, const char *section, const char *key, json_object *v)
{
	if (json_object_is_type(v, json_type_object))
		return true;
	fault(r, section, key, "must be a mapping, not %s", type_of(v));
	return false;
}

static void read_strings(
	struct reader *r, const char *section, const char *key, enum want want, json_object *v)
{
	if (!is_mapping(r, section, key, v))
		return;
	json_object_object_foreach (v, name, value) {
		if (want == ENV && (!name[0] || strchr(name, '=')))
			fault(r, key, name,
				"is no name of an environment variable: it must not be empty nor "
				"have a '=' in it");
		if (value)
			read_string(r, key, name, "a string", value);
	}
}

static const struct key *find(const struct section *s, const char *name)
{
	for (size_t i = 0; i < s->n; i++)
		if (str_eq(s->keys[i].name, name))
			return &s->keys[i];
	return NULL;
}

static void read_section(
	struct reader *r, const char *path, const struct section *s, json_object *o);

static void read_key(struct reader *r, const char *section, const struct key *k, json_object *v)
{
	void *at = k->offset == NOWHERE ? NULL : (char *)r->fields + k->offset;
	const char *text;

	switch (k->want) {
	case IGNORED:
		return;
	case STRING:
	case SCRIPT:
		text = k->want == SCRIPT ? read_script(r, section, k->name, v)
					 : read_string(r, section, k->name, "a string", v);
		if (at)
			*(const char **)at = text;
		return;
	case COUNT:
		*(uint32_t *)at = read_count(r, section, k->name, v);
		return;
	case STRINGS:
	case ENV:
		read_strings(r, section, k->name, k->want, v);
		break;
	case SECTION:
		if (is_mapping(r, section, k->name, v))
			read_section(r, k->name, k->section, v);
		break;
	}
	if (at)
		*(json_object **)at = v;
}

static void read_section(
	struct reader *r, const char *path, const struct section *s, json_object *o)
{
	json_object_object_foreach (o, name, v) {
		const struct key *k = find(s, name);

		if (!k && r->unknown == MANIFEST_UNKNOWN_REFUSE)
			fault(r, path, name, "is not known (known here: %s)", s->known);
		/* null is the same as leaving a key out. */
		if (k && v)
			read_key(r, path, k, v);
	}
}

int manifest_read(
	json_object *top, enum manifest_unknown unknown, struct manifest_fields *ret, struct err *e)
{
	struct reader r = {.unknown = unknown, .fields = ret};
	char more[32] = "";

	*ret = (struct manifest_fields){0};
	if (!json_object_is_type(top, json_type_object))
		return err_set(
			e, "S500", EINVAL, "the top level must be a mapping, not %s", type_of(top));
	buf_init(&r.faults, FAULTS_BYTES_MAX);
	read_section(&r, "", &top_section, top);
	if (r.n_untold)
		snprintf(more, sizeof(more), "; and %u more", r.n_untold);
	if (r.n_faults)
		err_set(e, "S500", EINVAL, "%s%s", (char *)r.faults.data, more);
	buf_done(&r.faults);
	return r.n_faults ? -EINVAL : 0;
}
