/* The engine's own functions. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/bus/engine_priv.h"
#include "wire/json.h"

#define NAME_MAX_BYTES 280 /* of a worker's name and description; longer ones are cut */
#define BUFFER_DEFAULT 64  /* frames that a channel keeps */
#define BUFFER_MAX     1024

static json_object *new_object(void)
{
	json_object *o = json_object_new_object();

	if (!o)
		mem_exhausted();
	return o;
}

static void add(json_object *o, const char *name, json_object *v)
{
	if (json_object_object_add(o, name, v) != 0)
		mem_exhausted();
}

static json_object *new_array(json_object *parent, const char *name)
{
	json_object *a = json_object_new_array();

	if (!a)
		mem_exhausted();
	add(parent, name, a);
	return a;
}

static void append(json_object *array, json_object *v)
{
	if (json_object_array_add(array, v) != 0)
		mem_exhausted();
}

static void add_opt(json_object *o, const char *name, const char *s)
{
	if (s)
		json_add_str(o, name, s);
}

/* Without control characters and blanks around it; NULL when nothing is left. */
static char *clean(const char *s)
{
	size_t n = 0;
	char *out;

	if (!s)
		return NULL;
	out = xmalloc(strlen(s) + 1);
	for (; *s && n < NAME_MAX_BYTES; s++)
		if ((unsigned char)*s >= ' ' && *s != 0x7f && (n > 0 || *s != ' '))
			out[n++] = *s;
	while (n > 0 && out[n - 1] == ' ')
		n--;
	out[n] = '\0';
	if (n == 0) {
		free(out);
		return NULL;
	}
	return out;
}

static void take(char **slot, json_object *data, const char *name)
{
	const char *s = NULL;

	json_get_str(data, name, JSON_NULLABLE, &s, NULL);
	free(*slot);
	*slot = clean(s);
}

static void workers_register(const struct engine_request *r)
{
	struct engine_worker *w = r->caller;
	json_object *data = r->m->data, *result;
	cleanup_free char *name = NULL;
	const char *ns = NULL;
	bool ok;

	if (json_object_is_type(data, json_type_object)) {
		json_get_str(data, "namespace", JSON_NULLABLE, &ns, NULL);
		take(&name, data, "name");
		take(&w->version, data, "version");
		take(&w->runtime, data, "runtime");
		take(&w->os, data, "os");
		take(&w->description, data, "description");
		take(&w->isolation, data, "isolation");
		w->has_pid = json_get_u32(data, "pid", JSON_NULLABLE, &w->pid, NULL) > 0;
	}
	if (ns && ns[strspn(ns, " \t\r\n")] == '\0') {
		engine_fail(r, "INVALID_NAMESPACE", "the namespace must not be blank");
		return;
	}
	ok = engine_worker_resolve(w, ns ? ns : "default", name);
	result = new_object();
	json_add_bool(result, "success", ok);
	engine_answer(r, result);
}

static void workers_list(const struct engine_request *r)
{
	json_object *result = new_object(), *rows = new_array(result, "workers");

	for (struct engine_worker *w = r->caller->engine->workers; w; w = w->next) {
		json_object *row;

		if (!w->ws || !w->resolved || !w->has_pid)
			continue;
		row = new_object();
		json_add_str(row, "id", w->id);
		json_add_str(row, "name", w->name ? w->name : "");
		json_add_str(row, "namespace", w->ns);
		json_add_str(row, "runtime", w->runtime ? w->runtime : "unknown");
		json_add_str(row, "status", "connected");
		json_add_u64(row, "pid", w->pid);
		json_add_u64(row, "function_count", w->function_count);
		json_add_u64(row, "connected_at_ms", w->connected_at_ms);
		add_opt(row, "version", w->version);
		add_opt(row, "os", w->os);
		add_opt(row, "description", w->description);
		add_opt(row, "isolation", w->isolation);
		append(rows, row);
	}
	engine_answer(r, result);
}

static bool is_internal(const struct engine_function *f)
{
	bool internal = false;

	if (json_object_is_type(f->metadata, json_type_object))
		json_get_bool(f->metadata, "internal", JSON_NULLABLE, &internal, NULL);
	return internal;
}

static void functions_list(const struct engine_request *r)
{
	json_object *result = new_object(), *rows = new_array(result, "functions");
	const char *prefix = "";
	bool with_internal = false;

	if (json_object_is_type(r->m->data, json_type_object)) {
		json_get_str(r->m->data, "prefix", JSON_NULLABLE, &prefix, NULL);
		json_get_bool(r->m->data, "include_internal", JSON_NULLABLE, &with_internal, NULL);
	}
	for (struct engine_function *f = r->caller->engine->functions; f; f = f->next) {
		json_object *row;

		if (!str_starts(f->id, prefix) || (is_internal(f) && !with_internal))
			continue;
		row = new_object();
		json_add_str(row, "function_id", f->id);
		json_add_str(row, "namespace", f->owner->ns);
		json_add_str(row, "worker_name", f->owner->name ? f->owner->name : "");
		add_opt(row, "description", f->description);
		if (f->metadata)
			add(row, "metadata", json_object_get(f->metadata));
		append(rows, row);
	}
	engine_answer(r, result);
}

static void channels_create(const struct engine_request *r)
{
	uint64_t size = BUFFER_DEFAULT;
	struct err e = ERR_INIT;
	json_object *result;

	if (json_object_is_type(r->m->data, json_type_object) &&
		json_get_u64(r->m->data, "buffer_size", JSON_NULLABLE, &size, &e) < 0) {
		engine_fail(r, "deserialization_error", e.text);
		return;
	}
	size = MIN(MAX(size, (uint64_t)1), (uint64_t)BUFFER_MAX);
	result = engine_channel_create(r->caller->engine, size);
	if (result)
		engine_answer(r, result);
	else
		engine_fail(r, "channel_create_failed", "too many channels are open");
}

static void config_get(const struct engine_request *r)
{
	cleanup_free char *why = NULL;
	struct err e = ERR_INIT;
	json_object *result;
	const char *id;

	if (!json_object_is_type(r->m->data, json_type_object)) {
		engine_fail(r, "deserialization_error", "expected an object");
		return;
	}
	if (json_get_str(r->m->data, "id", JSON_REQUIRED, &id, &e) < 0) {
		engine_fail(r, "deserialization_error", e.text);
		return;
	}
	for (struct engine_config *c = r->caller->engine->configs; c; c = c->next) {
		if (!str_eq(c->id, id))
			continue;
		result = new_object();
		json_add_str(result, "id", id);
		add(result, "value", json_object_get(c->value));
		engine_answer(r, result);
		return;
	}
	why = xasprintf("configuration '%s' not found", id);
	engine_fail(r, "NOT_FOUND", why);
}

static void config_list(const struct engine_request *r)
{
	json_object *result = new_object(), *rows = new_array(result, "configurations");

	for (struct engine_config *c = r->caller->engine->configs; c; c = c->next) {
		json_object *row = new_object();

		json_add_str(row, "id", c->id);
		json_add_str(row, "name", c->id);
		json_add_str(row, "description", "");
		add(row, "schema", NULL);
		append(rows, row);
	}
	engine_answer(r, result);
}

void engine_set_config(struct engine *e, const char *id, json_object *value)
{
	struct engine_config *c = e->configs;

	while (c && !str_eq(c->id, id))
		c = c->next;
	if (!c) {
		c = xcalloc(1, sizeof(*c));
		c->id = xstrdup(id);
		c->next = e->configs;
		e->configs = c;
	}
	json_object_put(c->value);
	c->value = value;
}

static void nothing(const struct engine_request *r)
{
	engine_answer(r, NULL);
}

bool engine_builtin(const struct engine_request *r)
{
	static const struct {
		const char *id;
		void (*call)(const struct engine_request *r);
	} table[] = {
		{"engine::workers::register", workers_register},
		{"engine::workers::list", workers_list},
		{"engine::functions::list", functions_list},
		{"engine::channels::create", channels_create},
		{"configuration::get", config_get},
		{"configuration::list", config_list},
		{"engine::log::trace", nothing},
		{"engine::log::debug", nothing},
		{"engine::log::info", nothing},
		{"engine::log::warn", nothing},
		{"engine::log::error", nothing},
		{"engine::baggage::get", nothing},
		{"engine::baggage::set", nothing},
		{"engine::baggage::get_all", nothing},
	};

	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		if (str_eq(table[i].id, r->m->function_id)) {
			table[i].call(r);
			return true;
		}
	}
	return false;
}
