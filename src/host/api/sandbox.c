/* create, list and stop: the life of sandboxes (sandbox contract §1.3, §1.5, §1.6). */
#include "host/sandbox/sandbox.h"
#include "host/worker/guest_env.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "host/api/api_priv.h"

#define CREATE_ENV_MAX	     4000	/* variables of create's env; more: S001 with the number */
#define CREATE_ENV_BYTES_MAX (3u << 20) /* of all of them together, likewise */

#define IMAGE_SHOWN_MAX 512 /* bytes of an unknown image's name in the message */

/* --- create --- */

static int check_image(const struct api *a, const char *image, struct err *e)
{
	cleanup_free char *allowed = NULL;

	if (config_image_allowed(a->config, image))
		return 0;
	allowed = config_allowed_names(a->config);
	return err_set(e, "S100", ENOENT, "image %.*s is not %s; allowed images: %s",
		(int)utf8_cut(image, IMAGE_SHOWN_MAX), image,
		config_image_ref(a->config, image) ? "in the operator's image_allowlist" : "known",
		*allowed ? allowed : "none (image_allowlist is empty)");
}

/* The host's memory, in MiB. */
static uint64_t host_memory_mb(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

	if (pages <= 0 || size <= 0)
		return UINT64_MAX;
	return ((uint64_t)pages * (uint64_t)size) >> 20;
}

static int check_limit(
	const char *name, uint64_t value, uint64_t max, const char *whose, struct err *e)
{
	if (value <= max)
		return 0;
	return err_set(
		e, "S400", ERANGE, "%s=%" PRIu64 " is above %s: %" PRIu64, name, value, whose, max);
}

/* Fills in what was left out and holds the rest to the ceilings. */
static int settle_size(
	const struct api *a, const struct create_request *rq, struct pool_create *pc, struct err *e)
{
	struct config_cap cap = config_image_cap(a->config, rq->image);

	pc->cpus = rq->has_cpus ? rq->cpus : MIN(a->config->default_cpus, cap.max_cpus);
	pc->memory_mb = rq->has_memory_mb ? rq->memory_mb
					  : MIN(a->config->default_memory_mb, cap.max_memory_mb);
	if (check_limit("cpus", pc->cpus, cap.max_cpus,
		    "max_cpus, this image's limit in per_image_caps", e) < 0 ||
		check_limit("memory_mb", pc->memory_mb, cap.max_memory_mb,
			"max_memory_mb, this image's limit in per_image_caps", e) < 0 ||
		check_limit("cpus", pc->cpus, VM_VCPUS_MAX, "what one VM can have", e) < 0 ||
		check_limit("memory_mb", pc->memory_mb, host_memory_mb(), "what this host has", e) <
			0)
		return -ERANGE;
	if (pc->cpus < CONFIG_CPUS_MIN || pc->memory_mb < CONFIG_MEMORY_MB_MIN)
		return err_set(e, "S400", ERANGE,
			"per_image_caps leaves image %s cpus=%" PRIu32 " and memory_mb=%" PRIu32
			", less than a VM needs (%d and %d)",
			rq->image, pc->cpus, pc->memory_mb, CONFIG_CPUS_MIN, CONFIG_MEMORY_MB_MIN);
	return 0;
}

/* Contract §1.3: a URL of the host's loopback means the gateway in the guest. */
static char **env_with_gateway(char *const *env)
{
	char **all = NULL;

	for (size_t i = 0; env && env[i]; i++) {
		cleanup_free char *entry = guest_env_rewrite(env[i]);

		strv_add(&all, entry);
	}
	return all;
}

int create_start(
	struct api *a, const struct create_request *rq, pool_created cb, void *user, struct err *e)
{
	struct pool_create pc = {
		.image = rq->image,
		.may_fetch = a->config->auto_install,
		.idle_timeout_secs = rq->has_idle_timeout ? rq->idle_timeout_secs
							  : a->config->default_idle_timeout_secs,
		.label = rq->name.s,
		.label_len = rq->name.len,
		.env = rq->env,
		.traceparent = rq->traceparent,
		.network = rq->network,
	};
	int r = pool_check_room(a->pool, e);

	if (r == 0)
		r = check_image(a, rq->image, e);
	if (r == 0)
		r = settle_size(a, rq, &pc, e);
	if (r < 0)
		return r;
	pc.image_ref = config_image_ref(a->config, rq->image);
	if (rq->network) {
		char **env = env_with_gateway(rq->env);

		pc.env = env;
		pool_create(a->pool, &pc, cb, user);
		strv_free(env);
	} else {
		pool_create(a->pool, &pc, cb, user);
	}
	return 0;
}

char *create_last_words(const char *tail)
{
	return *tail ? xasprintf("; the last lines of the VM:\n%s", tail) : xstrdup("");
}

int create_check_env(char *const *env, struct err *e)
{
	size_t n = strv_len(env), bytes = 0;

	for (size_t i = 0; i < n; i++)
		bytes += strlen(env[i]) + 1;
	if (n <= CREATE_ENV_MAX && bytes <= CREATE_ENV_BYTES_MAX)
		return 0;
	return err_set(e, "S001", E2BIG,
		"env has %zu variables of %zu bytes; at most %d and %u are taken", n, bytes,
		CREATE_ENV_MAX, CREATE_ENV_BYTES_MAX);
}

static int read_create(json_object *o, struct create_request *rq, struct err *e)
{
	int cpus, memory, idle;

	if (request_str(o, "image", JSON_REQUIRED, &rq->image, e) < 0 ||
		(cpus = request_u32(o, "cpus", JSON_NULLABLE, &rq->cpus, e)) < 0 ||
		(memory = request_u32(o, "memory_mb", JSON_NULLABLE, &rq->memory_mb, e)) < 0 ||
		(idle = request_u64(
			 o, "idle_timeout_secs", JSON_NULLABLE, &rq->idle_timeout_secs, e)) < 0 ||
		request_text(o, "name", JSON_NULLABLE, &rq->name, e) < 0 ||
		request_bool(o, "network", JSON_NULLABLE, &rq->network, e) < 0 ||
		request_env(o, &rq->env, e) < 0)
		return -EINVAL;
	rq->has_cpus = cpus > 0;
	rq->has_memory_mb = memory > 0;
	rq->has_idle_timeout = idle > 0;
	if (rq->has_cpus && rq->cpus < CONFIG_CPUS_MIN)
		return err_set(e, "S001", EINVAL, "cpus must be at least %d", CONFIG_CPUS_MIN);
	if (rq->has_memory_mb && rq->memory_mb < CONFIG_MEMORY_MB_MIN)
		return err_set(
			e, "S001", EINVAL, "memory_mb must be at least %d", CONFIG_MEMORY_MB_MIN);
	return create_check_env(rq->env, e);
}

static void on_created(struct pool_entry *x, const struct err *why, const char *tail, void *user)
{
	struct bus_call *c = user;
	json_object *reply;

	if (!x) {
		cleanup_free char *words = create_last_words(tail);

		reply_failed(c, &(struct reply_failure){
					.e = why, .more = words, .more_len = strlen(words)});
		return;
	}
	reply = reply_object();
	json_add_str(reply, "image", pool_image(x));
	json_add_str(reply, "sandbox_id", pool_id(x));
	reply_ok(c, reply);
}

void api_create(struct api *a, struct bus_call *c, json_object *request)
{
	struct create_request rq = {0};
	struct err e = ERR_INIT;
	int r = read_create(request, &rq, &e);

	rq.traceparent = bus_call_traceparent(c);
	if (r == 0)
		r = create_start(a, &rq, on_created, c, &e);
	if (r < 0)
		reply_err(c, &e);
	strv_free(rq.env);
}

/* --- list --- */

static json_object *new_row(const struct pool_row *row)
{
	json_object *o = reply_object();

	json_add_u64(o, "age_secs", row->age_secs);
	json_add_u64(o, "exec_in_flight", row->execs);
	json_add_bool(o, "exec_in_progress", row->execs > 0);
	json_add_u64(o, "exec_slots_free", row->execs_free);
	json_add_str(o, "image", row->image);
	if (row->label)
		json_add_strn(o, "name", row->label, row->label_len);
	else
		reply_add(o, "name", NULL);
	json_add_str(o, "sandbox_id", row->id);
	json_add_bool(o, "stopped", row->stopped);
	return o;
}

void api_list(struct api *a, struct bus_call *c, json_object *request)
{
	json_object *reply = reply_object(), *array = reply_array();
	cleanup_free struct pool_row *rows = NULL;
	size_t n = pool_list(a->pool, &rows);

	(void)request;
	for (size_t i = 0; i < n; i++)
		reply_append(array, new_row(&rows[i]));
	reply_add(reply, "sandboxes", array);
	reply_ok(c, reply);
}

/* --- stop --- */

struct stop {
	struct bus_call *c;
	char id[37];
};

static void on_stopped(void *user)
{
	struct stop *s = user;
	json_object *reply = reply_object();

	json_add_str(reply, "sandbox_id", s->id);
	json_add_bool(reply, "stopped", true);
	reply_ok(s->c, reply);
	free(s);
}

void api_stop_sandbox(struct api *a, struct bus_call *c, json_object *request)
{
	struct stop *s = xcalloc(1, sizeof(*s));
	struct err e = ERR_INIT;
	struct pool_entry *x;
	struct text text;
	bool wait = false;

	if (request_id_text(request, &text, &e) < 0 ||
		request_bool(request, "wait", JSON_OPTIONAL, &wait, &e) < 0 ||
		request_id(&text, s->id, &e) < 0 || pool_find_any(a->pool, s->id, &x, &e) < 0) {
		free(s);
		reply_err(c, &e);
		return;
	}
	s->c = c;
	pool_set_trace(x, bus_call_traceparent(c));
	pool_stop(x, wait, on_stopped, s);
}
