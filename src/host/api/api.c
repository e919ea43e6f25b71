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
	{"worker::destroy", api_worker_destroy},
	{"worker::logs", api_worker_logs},
	{"worker::prepare", api_worker_prepare},
	{"worker::start", api_worker_start},
	{"worker::status", api_worker_status},
	{"worker::stop", api_worker_stop},
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

struct api *api_new(struct bus *bus, struct pool *pool, struct workers *workers,
	const struct config *c, const char *version)
{
	struct api_root *root = xcalloc(1, sizeof(*root));

	root->api = (struct api){
		.bus = bus, .pool = pool, .workers = workers, .config = c, .version = version};
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

static void list_add(struct api_transfer **list, struct api_transfer *t)
{
	t->prev = NULL;
	t->next = *list;
	if (t->next)
		t->next->prev = t;
	*list = t;
}

static void list_remove(struct api_transfer **list, struct api_transfer *t)
{
	if (t->prev)
		t->prev->next = t->next;
	else
		*list = t->next;
	if (t->next)
		t->next->prev = t->prev;
}

static void abort_all(struct api_transfer **list)
{
	while (*list)
		(*list)->abort(*list);
}

void api_add_transfer(
	struct api *a, struct api_transfer *t, void (*abort_it)(struct api_transfer *))
{
	t->abort = abort_it;
	list_add(&a->transfers, t);
}

void api_remove_transfer(struct api *a, struct api_transfer *t)
{
	list_remove(&a->transfers, t);
}

static void on_last_words_closed(uv_handle_t *h)
{
	struct api *a = h->data;

	a->closed(a->closed_user);
}

static void on_last_words(uv_timer_t *t)
{
	struct api *a = t->data;

	abort_all(&a->pumps);
	uv_close((uv_handle_t *)t, on_last_words_closed);
}

void api_add_pump(struct api *a, struct api_transfer *t, void (*abort_it)(struct api_transfer *))
{
	t->abort = abort_it;
	list_add(&a->pumps, t);
	a->n_pumps++;
}

void api_remove_pump(struct api *a, struct api_transfer *t)
{
	list_remove(&a->pumps, t);
	a->n_pumps--;
	/* The last one: nothing is left to wait for. */
	if (a->closed && !a->n_pumps)
		uv_timer_start(&a->last_words, on_last_words, 0, 0);
}

void api_stop(struct api *a)
{
	a->stopped = true;
	abort_all(&a->transfers);
}

void api_close(struct api *a, void (*closed)(void *user), void *user)
{
	a->closed = closed;
	a->closed_user = user;
	uv_timer_init(workers_loop(a->workers), &a->last_words);
	a->last_words.data = a;
	uv_timer_start(&a->last_words, on_last_words, a->n_pumps ? API_LAST_WORDS_MS : 0, 0);
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
