/* worker::*: Compose's worker VMs (worker VM specification §1).
 *
 * Every call is looked at in this order: the token, before anything else in the payload is read, so
 * that who has none learns nothing; the shape; then the rest in worker/. Neither payloads nor the
 * token nor anything of the environment but names goes into the log or into an error.
 */
#include <errno.h>
#include <inttypes.h>
#include <json-c/linkhash.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/api/api_priv.h"
#include "host/worker/guest_env.h"
#include "host/worker/token.h"
#include "wire/worker.h"

/* In bytes; what is longer is S001. */
#define STATE_KEY_MAX  256
#define ENGINE_URL_MAX 8192
#define RUN_MAX	       WORKER_SCRIPT_MAX

int worker_check_token(json_object *request, struct err *e)
{
	const char *auth = NULL;
	struct err unused;

	if (request_str(request, "auth", JSON_REQUIRED, &auth, &unused) < 0)
		auth = NULL;
	if (token_matches(auth))
		return 0;
	return err_set(e, "S505", EACCES,
		token_set() ? "field `auth` is not this project's token"
			    : "this adapter was started without a token (" TOKEN_ENV
			      "), so it serves no worker VMs");
}

/* --- members --- */

static int read_line(json_object *o, const char *name, size_t max, const char **ret, struct err *e)
{
	int r = request_str(o, name, JSON_REQUIRED, ret, e);

	if (r < 0)
		return r;
	if (!**ret || strlen(*ret) > max)
		return err_set(
			e, "S001", EINVAL, "field `%s`: has to be 1 to %zu bytes long", name, max);
	for (const char *c = *ret; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f ||
			((unsigned char)*c == 0xc2 && (unsigned char)c[1] < 0xa0)) /* C1 */
			return err_set(e, "S001", EINVAL,
				"field `%s`: must not contain control characters", name);
	return 0;
}

static int read_object(json_object *o, const char *name, json_object **ret, struct err *e)
{
	int r = json_get_object(o, name, JSON_REQUIRED, ret, e);

	if (r < 0)
		err_code(e, "S001");
	return r < 0 ? r : 0;
}

static int read_source(json_object *request, struct worker_source *ret, struct err *e)
{
	json_object *o = NULL;
	const char *kind = NULL;
	int r = read_object(request, "source", &o, e);

	*ret = (struct worker_source){0};
	if (r == 0)
		r = request_str(o, "kind", JSON_REQUIRED, &kind, e);
	if (r >= 0)
		r = request_str(o, "host_path", JSON_REQUIRED, &ret->host_path, e);
	if (r < 0) {
		err_wrap(e, "field `source`");
		return r;
	}
	if (str_eq(kind, "bundle")) {
		ret->kind = WORKER_BUNDLE;
		r = request_str(o, "package", JSON_REQUIRED, &ret->package, e);
	} else if (str_eq(kind, "local")) {
		ret->kind = WORKER_LOCAL;
		r = request_str(o, "run_override", JSON_NULLABLE, &ret->run_override, e);
	} else {
		return err_set(e, "S001", EINVAL,
			"field `source.kind`: has to be \"bundle\" or \"local\"");
	}
	if (r >= 0 && ret->run_override && strlen(ret->run_override) > RUN_MAX)
		r = err_set(e, "S001", EINVAL, "`run_override` has more than %d bytes", RUN_MAX);
	if (r < 0)
		err_wrap(e, "field `source`");
	return r < 0 ? r : 0;
}

static int read_env(json_object *request, struct guest_env *ret, struct err *e)
{
	json_object *env = NULL;
	int r = read_object(request, "env", &env, e);

	if (r < 0)
		return r;
	json_object_object_foreach (env, name, value) {
		if (!json_object_is_type(value, json_type_string))
			return err_set(e, "S001", EINVAL,
				"field `env`: the value of %.200s has to be a string",
				log_quote(name));
		r = guest_env_add(ret, name, strlen(name), json_object_get_string(value),
			(size_t)json_object_get_string_len(value), e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* --- replies --- */

static void fail_busy(struct bus_call *c, const struct worker_started *busy)
{
	reply_failed(c,
		&(struct reply_failure){
			.e = busy->why, .busy_vm = busy->vm_id, .busy_instance = busy->instance});
}

static void add_or_null(json_object *o, const char *name, bool has, int64_t value)
{
	if (has)
		json_add_i64(o, name, value);
	else
		reply_add(o, name, NULL);
}

static void reply_status(struct bus_call *c, const char *vm_id, const struct worker_boot *b)
{
	json_object *o = reply_object();

	add_or_null(o, "ended_at_ms", b->ended_at_ms != 0, (int64_t)b->ended_at_ms);
	add_or_null(o, "exit_code", b->has_exit_code, b->exit_code);
	json_add_u64(o, "instance", b->instance);
	add_or_null(o, "signal", b->has_signal, b->signal);
	json_add_u64(o, "started_at_ms", b->started_at_ms);
	json_add_str(o, "state", worker_state_name(b->state));
	json_add_str(o, "vm_id", vm_id);
	reply_ok(c, o);
}

/* --- prepare --- */

static void on_prepared(const struct err *why, void *user)
{
	struct bus_call *c = user;

	if (why)
		reply_err(c, why);
	else
		reply_ok(c, reply_object());
}

void api_worker_prepare(struct api *a, struct bus_call *c, json_object *request)
{
	struct worker_source s;
	struct err e = ERR_INIT;

	if (worker_check_token(request, &e) < 0 || read_source(request, &s, &e) < 0)
		reply_err(c, &e);
	else
		workers_prepare(a->workers, &s, on_prepared, c);
}

/* --- start --- */

static void on_started(const struct worker_started *s, void *user)
{
	struct bus_call *c = user;
	json_object *o;

	if (s->why && str_eq(s->why->code, "S502")) {
		fail_busy(c, s);
		return;
	}
	if (s->why) {
		cleanup_free char *more = create_last_words(s->tail ? s->tail : "");

		reply_failed(c, &(struct reply_failure){
					.e = s->why, .more = more, .more_len = strlen(more)});
		return;
	}
	o = reply_object();
	json_add_u64(o, "instance", s->instance);
	json_add_str(o, "vm_id", s->vm_id);
	reply_ok(c, o);
}

static int read_start(
	json_object *request, struct worker_start *s, struct guest_env *env, struct err *e)
{
	int r = read_source(request, &s->source, e);

	if (r == 0)
		r = read_line(request, "state_key", STATE_KEY_MAX, &s->state_key, e);
	if (r == 0)
		r = read_line(request, "worker_name", WORKER_NAME_MAX, &s->worker_name, e);
	if (r == 0)
		r = read_line(request, "engine_url", ENGINE_URL_MAX, &s->engine_url, e);
	if (r == 0)
		r = read_env(request, env, e);
	s->env = env->v;
	return r;
}

void api_worker_start(struct api *a, struct bus_call *c, json_object *request)
{
	struct worker_start s = {0};
	struct guest_env env = {0};
	struct err e = ERR_INIT;

	if (worker_check_token(request, &e) < 0 || read_start(request, &s, &env, &e) < 0)
		reply_err(c, &e);
	else
		workers_start(a->workers, &s, on_started, c);
	guest_env_done(&env);
}

/* --- status and stop --- */

static int read_instance(
	json_object *request, const char **vm_id, uint64_t *instance, struct err *e)
{
	int r = request_str(request, "vm_id", JSON_REQUIRED, vm_id, e);

	if (r >= 0)
		r = request_u64(request, "instance", JSON_REQUIRED, instance, e);
	return r < 0 ? r : 0;
}

void api_worker_status(struct api *a, struct bus_call *c, json_object *request)
{
	struct worker_boot b;
	const char *vm_id;
	uint64_t instance;
	struct err e = ERR_INIT;

	if (worker_check_token(request, &e) < 0 ||
		read_instance(request, &vm_id, &instance, &e) < 0) {
		reply_err(c, &e);
		return;
	}
	workers_status(a->workers, vm_id, instance, &b);
	reply_status(c, vm_id, &b);
}

struct stop_call {
	struct bus_call *c;
	char *vm_id;
};

static void on_stopped(const struct worker_boot *b, const struct err *why, void *user)
{
	struct stop_call *s = user;

	if (why)
		reply_err(s->c, why);
	else
		reply_status(s->c, s->vm_id, b);
	free(s->vm_id);
	free(s);
}

void api_worker_stop(struct api *a, struct bus_call *c, json_object *request)
{
	struct stop_call *s;
	const char *vm_id;
	uint64_t instance, grace_ms;
	struct err e = ERR_INIT;

	if (worker_check_token(request, &e) < 0 ||
		read_instance(request, &vm_id, &instance, &e) < 0 ||
		request_u64(request, "grace_ms", JSON_REQUIRED, &grace_ms, &e) < 0) {
		reply_err(c, &e);
		return;
	}
	s = xcalloc(1, sizeof(*s));
	s->c = c;
	s->vm_id = xstrdup(vm_id);
	workers_stop(a->workers, vm_id, instance, grace_ms, on_stopped, s);
}

/* --- destroy --- */

static void on_destroyed(
	bool existed, const struct worker_started *busy, const struct err *why, void *user)
{
	struct bus_call *c = user;
	json_object *o;

	if (busy) {
		fail_busy(c, busy);
	} else if (why) {
		reply_err(c, why);
	} else {
		o = reply_object();
		json_add_bool(o, "destroyed", existed);
		reply_ok(c, o);
	}
}

void api_worker_destroy(struct api *a, struct bus_call *c, json_object *request)
{
	const char *state_key;
	struct err e = ERR_INIT;

	if (worker_check_token(request, &e) < 0 ||
		read_line(request, "state_key", STATE_KEY_MAX, &state_key, &e) < 0)
		reply_err(c, &e);
	else
		workers_destroy(a->workers, state_key, on_destroyed, c);
}
