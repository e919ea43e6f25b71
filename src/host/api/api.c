#include "host/api/api.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "host/api/api_priv.h"
#include "host/api/schema.h"

static const struct function {
	const char *name;
	api_handler handler;
} functions[] = {
	{"adapter::info", api_info},
	{"catalog::list", api_catalog_list},
	{"create", api_create},
	{"exec", api_exec},
	{"fs::chmod", api_fs_chmod},
	{"fs::grep", api_fs_grep},
	{"fs::ls", api_fs_ls},
	{"fs::mkdir", api_fs_mkdir},
	{"fs::mv", api_fs_mv},
	{"fs::read", api_fs_read},
	{"fs::rm", api_fs_rm},
	{"fs::sed", api_fs_sed},
	{"fs::stat", api_fs_stat},
	{"fs::write", api_fs_write},
	{"list", api_list},
	{"run", api_run},
	{"stop", api_stop_sandbox},
};

/* What the bus hands to on_call. */
struct binding {
	struct api *api;
	api_handler handler;
};

struct api_root {
	struct api api; /* first */
	struct binding bindings[ARRAY_LEN(functions)];
};

static void on_call(struct bus_call *c, json_object *data, void *user)
{
	const struct binding *b = user;
	cleanup_json json_object *request = NULL;
	struct err e = ERR_INIT;

	if (b->api->stopped) {
		err_set(&e, "S300", ESHUTDOWN, "the adapter is shutting down");
		reply_err(c, &e);
	} else if (request_object(data, &request, &e) < 0) {
		reply_err(c, &e);
	} else {
		b->handler(b->api, c, request);
	}
}

void api_bad_call(struct bus_call *c, const struct err *why)
{
	struct err e = *why;

	memcpy(e.code, "S001", sizeof("S001"));
	reply_err(c, &e);
}

struct api *api_new(struct bus *bus, struct pool *pool, const struct config *c, const char *version)
{
	struct api_root *root = xcalloc(1, sizeof(*root));

	root->api = (struct api){.bus = bus, .pool = pool, .config = c, .version = version};
	for (size_t i = 0; i < ARRAY_LEN(functions); i++)
		root->bindings[i] = (struct binding){&root->api, functions[i].handler};
	return &root->api;
}

int api_register(struct api *a, struct err *e)
{
	struct api_root *root = CONTAINER_OF(a, struct api_root, api);
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(functions) && r == 0; i++) {
		const struct schema *s = schema_find(functions[i].name);
		cleanup_free char *id = xasprintf(API_NAME "::%s", functions[i].name);

		if (!s)
			return err_set(e, "", ENOENT, "no schema for %s", id);
		r = bus_register(a->bus,
			&(struct bus_function){
				.id = id,
				.description = s->description,
				.request_schema = s->request,
				.response_schema = s->response,
				.handler = on_call,
				.user = &root->bindings[i],
			},
			e);
	}
	return r;
}

void api_add_transfer(
	struct api *a, struct api_transfer *t, void (*abort_it)(struct api_transfer *))
{
	t->abort = abort_it;
	t->prev = NULL;
	t->next = a->transfers;
	if (t->next)
		t->next->prev = t;
	a->transfers = t;
}

void api_remove_transfer(struct api *a, struct api_transfer *t)
{
	if (t->prev)
		t->prev->next = t->next;
	else
		a->transfers = t->next;
	if (t->next)
		t->next->prev = t->prev;
}

void api_stop(struct api *a)
{
	a->stopped = true;
	while (a->transfers)
		a->transfers->abort(a->transfers);
}

void api_free(struct api *a)
{
	if (a)
		free(CONTAINER_OF(a, struct api_root, api));
}

int api_find(struct api *a, json_object *request, struct pool_entry **ret, struct err *e)
{
	struct text text;
	char id[37];

	if (request_id_text(request, &text, e) < 0 || request_id(&text, id, e) < 0)
		return -EINVAL;
	return pool_find(a->pool, id, ret, e);
}
