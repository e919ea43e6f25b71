#include "wire/worker.h"

#include <errno.h>
#include <json-c/linkhash.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "wire/json.h"

static const char *const kinds[] = {
	[WORKER_LOCAL] = "local",
	[WORKER_BUNDLE] = "bundle",
};

bool worker_is_artefact(const char *name)
{
	static const char *const names[] = {"node_modules", ".venv", "target", "dist",
		"__pycache__", ".pytest_cache", ".next", ".git"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_eq(name, names[i]))
			return true;
	return false;
}

void worker_job_done(struct worker_job *j)
{
	free(j->name);
	free(j->setup);
	free(j->install);
	free(j->run);
	*j = (struct worker_job){0};
}

static int check_text(const char *what, const char *s, size_t max, struct err *e)
{
	if (!s || !*s)
		return err_set(e, "", EINVAL, "%s: empty", what);
	if (strlen(s) > max)
		return err_set(e, "", E2BIG, "%s: %zu bytes, at most %zu are allowed", what,
			strlen(s), max);
	return 0;
}

static int check_digest(const char *what, const char *s, bool required, struct err *e)
{
	size_t len = strlen(s);

	if (len == 0 && !required)
		return 0;
	if (len != WORKER_DIGEST_LEN || strspn(s, "0123456789abcdef") != len)
		return err_set(
			e, "", EINVAL, "%s: not %d lower-case hex digits", what, WORKER_DIGEST_LEN);
	return 0;
}

int worker_job_check(const struct worker_job *j, struct err *e)
{
	int r;

	if ((size_t)j->kind >= ARRAY_LEN(kinds))
		return err_set(e, "", EINVAL, "kind: unknown number %d", (int)j->kind);
	if ((r = check_text("name", j->name, WORKER_NAME_MAX, e)) < 0 ||
		(r = check_text("run", j->run, WORKER_SCRIPT_MAX, e)) < 0 ||
		(j->setup && (r = check_text("setup", j->setup, WORKER_SCRIPT_MAX, e)) < 0) ||
		(j->install && (r = check_text("install", j->install, WORKER_SCRIPT_MAX, e)) < 0))
		return r;
	if ((r = check_digest("setup_digest", j->setup_digest, j->setup != NULL, e)) < 0 ||
		(r = check_digest("install_digest", j->install_digest, j->install != NULL, e)) < 0)
		return r;
	return check_digest("source_digest", j->source_digest, j->kind == WORKER_BUNDLE, e);
}

/* A string, or null for none. */
static void add_script(json_object *o, const char *name, const char *s)
{
	if (s)
		json_add_str(o, name, s);
	else
		json_object_object_add(o, name, NULL);
}

json_object *worker_job_to_json(const struct worker_job *j)
{
	json_object *o = json_object_new_object();

	json_add_str(o, "name", j->name);
	json_add_str(o, "kind", kinds[j->kind]);
	add_script(o, "setup", j->setup);
	add_script(o, "install", j->install);
	json_add_str(o, "run", j->run);
	json_add_str(o, "setup_digest", j->setup_digest);
	json_add_str(o, "install_digest", j->install_digest);
	json_add_str(o, "source_digest", j->source_digest);
	json_add_u64(o, "memory_max_bytes", j->memory_max_bytes);
	json_add_u64(o, "nofile", j->nofile);
	return o;
}

static int get_kind(json_object *o, enum worker_kind *ret, struct err *e)
{
	size_t i = 0;
	int r = json_get_word(o, "kind", kinds, ARRAY_LEN(kinds), &i, e);

	*ret = (enum worker_kind)i;
	return MIN(r, 0);
}

static int get_text(json_object *o, const char *name, char **ret, struct err *e)
{
	const char *s;
	int r = json_get_str(o, name, JSON_REQUIRED, &s, e);

	if (r < 0)
		return r;
	*ret = xstrdup(s);
	return 0;
}

/* The member has to be there; null is no script. */
static int get_script(json_object *o, const char *name, char **ret, struct err *e)
{
	json_object *v;

	if (json_object_object_get_ex(o, name, &v) && !v)
		return 0;
	return get_text(o, name, ret, e);
}

static int get_digest(
	json_object *o, const char *name, char ret[static WORKER_DIGEST_LEN + 1], struct err *e)
{
	const char *s;
	int r = json_get_str(o, name, JSON_REQUIRED, &s, e);

	if (r < 0)
		return r;
	if (strlen(s) > WORKER_DIGEST_LEN)
		return err_set(e, "", EINVAL, "%s: longer than %d digits", name, WORKER_DIGEST_LEN);
	memcpy(ret, s, strlen(s) + 1);
	return 0;
}

static int only_known(json_object *o, struct err *e)
{
	static const char *const names[] = {"name", "kind", "setup", "install", "run",
		"setup_digest", "install_digest", "source_digest", "memory_max_bytes", "nofile"};

	for (struct lh_entry *m = json_object_get_object(o)->head; m; m = m->next) {
		const char *key = m->k;
		size_t i = 0;

		while (i < ARRAY_LEN(names) && !str_eq(key, names[i]))
			i++;
		if (i == ARRAY_LEN(names))
			return err_set(e, "", EINVAL, "unknown member `%.40s`", key);
	}
	return 0;
}

int worker_job_from_json(json_object *o, struct worker_job *ret, struct err *e)
{
	int r;

	*ret = (struct worker_job){0};
	if (!json_object_is_type(o, json_type_object))
		return err_set(e, "", EINVAL, "not an object");
	if ((r = only_known(o, e)) < 0 || (r = get_kind(o, &ret->kind, e)) < 0 ||
		(r = get_text(o, "name", &ret->name, e)) < 0 ||
		(r = get_script(o, "setup", &ret->setup, e)) < 0 ||
		(r = get_script(o, "install", &ret->install, e)) < 0 ||
		(r = get_text(o, "run", &ret->run, e)) < 0 ||
		(r = get_digest(o, "setup_digest", ret->setup_digest, e)) < 0 ||
		(r = get_digest(o, "install_digest", ret->install_digest, e)) < 0 ||
		(r = get_digest(o, "source_digest", ret->source_digest, e)) < 0 ||
		(r = json_get_u64(
			 o, "memory_max_bytes", JSON_REQUIRED, &ret->memory_max_bytes, e)) < 0 ||
		(r = json_get_u64(o, "nofile", JSON_REQUIRED, &ret->nofile, e)) < 0)
		return r;
	return worker_job_check(ret, e);
}
