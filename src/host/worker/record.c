#include "host/worker/record.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/image/digest.h"
#include "host/worker/record_priv.h"
#include "wire/json.h"

#define SCHEMA_VERSION 1
#define ID_DOMAIN      "sandbox-libkrun/worker-vm/v1" /* its NUL is hashed too */
#define ID_PREFIX      "wvm-"
#define ID_HEX	       32
#define BOOT_ID_LEN    36

static const char *const state_names[] = {[WORKER_PREPARING] = "preparing",
	[WORKER_RUNNING] = "running",
	[WORKER_EXITED] = "exited",
	[WORKER_STOPPED] = "stopped",
	[WORKER_UNKNOWN] = "unknown"};

static const char *const kind_names[] = {[WORKER_LOCAL] = "local", [WORKER_BUNDLE] = "bundle"};

const char *worker_state_name(enum worker_state s)
{
	assert((size_t)s < ARRAY_LEN(state_names));
	return state_names[s];
}

void worker_vm_id(const char *state_key, char ret[static WORKER_ID_LEN + 1])
{
	cleanup_buf struct buf b;
	char digest[72];
	int r;

	buf_init(&b, SIZE_MAX / 2);
	r = buf_add(&b, ID_DOMAIN, sizeof(ID_DOMAIN));
	if (r == 0)
		r = buf_add_str(&b, state_key);
	if (r < 0)
		mem_exhausted();
	digest_of(b.data, b.len, digest);
	snprintf(ret, WORKER_ID_LEN + 1, ID_PREFIX "%.*s", ID_HEX, digest + strlen("sha256:"));
}

bool worker_vm_id_valid(const char *vm_id)
{
	const char *hex;

	if (!str_starts(vm_id, ID_PREFIX))
		return false;
	hex = vm_id + strlen(ID_PREFIX);
	return strlen(hex) == ID_HEX && strspn(hex, "0123456789abcdef") == ID_HEX;
}

/* --- the record --- */

bool worker_boot_ended(const struct worker_boot *b)
{
	return b->state == WORKER_EXITED || b->state == WORKER_STOPPED;
}

void worker_record_done(struct worker_record *r)
{
	free(r->worker_name);
	free(r->source_path);
	free(r->base_ref);
	free(r->base_digest);
	*r = (struct worker_record){0};
}

const struct worker_boot *worker_record_find(const struct worker_record *r, uint64_t instance)
{
	if (instance == 0)
		return NULL;
	if (r->boot.instance == instance)
		return &r->boot;
	for (size_t i = 0; i < WORKER_HISTORY_MAX; i++) {
		if (r->history[i].instance == instance)
			return &r->history[i];
	}
	return NULL;
}

void worker_record_next(struct worker_record *r, uint64_t instance, uint64_t now_ms)
{
	struct worker_boot *b = &r->boot;

	assert(instance > b->instance);
	if (b->instance && !worker_boot_ended(b)) {
		b->state = WORKER_EXITED;
		b->ended_at_ms = MAX(now_ms, b->started_at_ms);
	}
	if (b->instance) {
		memmove(r->history + 1, r->history, sizeof(r->history) - sizeof(r->history[0]));
		r->history[0] = *b;
	}
	*b = (struct worker_boot){
		.instance = instance, .state = WORKER_PREPARING, .started_at_ms = now_ms};
	r->stop_requested = false;
	r->pid = 0;
	r->pid_start = 0;
}

/* Tells one boot of this host from the next, so that a pid and start time cannot agree by chance.
 */
static void host_boot_id(char ret[static BOOT_ID_LEN + 1])
{
	cleanup_free char *text = NULL;

	ret[0] = '\0';
	if (fd_slurp_at(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64, &text, NULL) == 0)
		snprintf(ret, BOOT_ID_LEN + 1, "%.*s", (int)strcspn(text, "\n"), text);
}

/* --- JSON: out --- */

static void add_null(json_object *o, const char *name)
{
	json_object_object_add(o, name, NULL);
}

static void add_text(json_object *o, const char *name, const char *s)
{
	if (s)
		json_add_str(o, name, s);
	else
		add_null(o, name);
}

static void add_code(json_object *o, const char *name, bool has, int32_t v)
{
	if (has)
		json_add_i64(o, name, v);
	else
		add_null(o, name);
}

static json_object *boot_to_json(const struct worker_boot *b)
{
	json_object *o = json_object_new_object();

	json_add_u64(o, "instance", b->instance);
	json_add_str(o, "state", worker_state_name(b->state));
	json_add_u64(o, "started_at_ms", b->started_at_ms);
	if (b->ended_at_ms)
		json_add_u64(o, "ended_at_ms", b->ended_at_ms);
	else
		add_null(o, "ended_at_ms");
	add_code(o, "exit_code", b->has_exit_code, b->exit_code);
	add_code(o, "signal", b->has_signal, b->signal);
	return o;
}

int record_encode(const struct worker_record *r, const char *vm_id, struct buf *ret)
{
	cleanup_json json_object *o = json_object_new_object();
	json_object *history = json_object_new_array();
	char boot_id[BOOT_ID_LEN + 1];
	const char *text;
	size_t len;

	assert(r->boot.instance && r->boot.state != WORKER_UNKNOWN);
	json_add_u64(o, "version", SCHEMA_VERSION);
	json_add_str(o, "vm_id", vm_id);
	add_text(o, "worker_name", r->worker_name);
	json_add_str(o, "kind", kind_names[r->kind]);
	add_text(o, "source_path", r->source_path);
	add_text(o, "base_ref", r->base_ref);
	add_text(o, "base_digest", r->base_digest);
	json_add_bool(o, "stop_requested", r->stop_requested);
	if (r->pid > 0) {
		host_boot_id(boot_id);
		json_add_u64(o, "pid", (uint64_t)r->pid);
		json_add_u64(o, "pid_start", r->pid_start);
		json_add_str(o, "host_boot_id", boot_id);
	}
	json_object_object_add(o, "boot", boot_to_json(&r->boot));
	json_object_object_add(o, "history", history);
	for (size_t i = 0; i < WORKER_HISTORY_MAX && r->history[i].instance; i++)
		json_object_array_add(history, boot_to_json(&r->history[i]));
	text = json_text(o, &len);
	return buf_add(ret, text, len);
}

/* --- JSON: in --- */

static int get_text(json_object *o, const char *name, char **ret, struct err *e)
{
	const char *s = NULL;
	int r = json_get_str(o, name, JSON_NULLABLE, &s, e);

	if (r == 1)
		*ret = xstrdup(s);
	return MIN(r, 0);
}

static int get_code(json_object *o, const char *name, bool *ret_has, int32_t *ret, struct err *e)
{
	int64_t v = 0;
	int r = json_get_i64(o, name, JSON_NULLABLE, &v, e);

	if (r <= 0)
		return r;
	if (v < INT32_MIN || v > INT32_MAX)
		return err_set(e, "", EINVAL, "field `%s` is out of range", name);
	*ret_has = true;
	*ret = (int32_t)v;
	return 0;
}

static int boot_from_json(json_object *o, struct worker_boot *ret, struct err *e)
{
	struct worker_boot b = {0};
	size_t state = 0;
	int r;

	if ((r = json_get_u64(o, "instance", JSON_REQUIRED, &b.instance, e)) < 0 ||
		(r = json_get_word(o, "state", state_names, WORKER_UNKNOWN, &state, e)) < 0 ||
		(r = json_get_u64(o, "started_at_ms", JSON_REQUIRED, &b.started_at_ms, e)) < 0 ||
		(r = json_get_u64(o, "ended_at_ms", JSON_NULLABLE, &b.ended_at_ms, e)) < 0 ||
		(r = get_code(o, "exit_code", &b.has_exit_code, &b.exit_code, e)) < 0 ||
		(r = get_code(o, "signal", &b.has_signal, &b.signal, e)) < 0)
		return r;
	b.state = (enum worker_state)state;
	if (b.instance == 0)
		return err_set(e, "", EINVAL, "a boot has no number");
	if (worker_boot_ended(&b) != (b.ended_at_ms != 0) ||
		(b.ended_at_ms && b.ended_at_ms < b.started_at_ms))
		return err_set(e, "", EINVAL, "state and times of a boot do not agree");
	*ret = b;
	return 0;
}

static int history_from_json(json_object *list, struct worker_record *ret, struct err *e)
{
	uint64_t newer = ret->boot.instance;
	size_t n = json_object_array_length(list);

	if (n > WORKER_HISTORY_MAX)
		return err_set(e, "", EINVAL, "a history of %zu boots", n);
	for (size_t i = 0; i < n; i++) {
		json_object *o = json_object_array_get_idx(list, i);
		struct worker_boot *b = &ret->history[i];
		int r;

		if (!json_object_is_type(o, json_type_object))
			return err_set(e, "", EINVAL, "a boot of the history is no object");
		r = boot_from_json(o, b, e);
		if (r < 0)
			return r;
		if (b->instance >= newer || !worker_boot_ended(b))
			return err_set(e, "", EINVAL, "the history is not in order");
		newer = b->instance;
	}
	return 0;
}

static int pid_from_json(json_object *o, struct worker_record *ret, struct err *e)
{
	const char *then = NULL;
	char now[BOOT_ID_LEN + 1];
	uint64_t pid = 0;
	int r = json_get_u64(o, "pid", JSON_OPTIONAL, &pid, e);

	if (r <= 0)
		return r;
	if (pid == 0 || pid > INT32_MAX)
		return err_set(e, "", EINVAL, "field `pid` is out of range");
	if ((r = json_get_u64(o, "pid_start", JSON_REQUIRED, &ret->pid_start, e)) < 0 ||
		(r = json_get_str(o, "host_boot_id", JSON_REQUIRED, &then, e)) < 0)
		return r;
	host_boot_id(now);
	if (str_eq(then, now))
		ret->pid = (pid_t)pid;
	else
		ret->pid_start = 0;
	return 0;
}

static int decode(json_object *o, const char *vm_id, struct worker_record *ret, struct err *e)
{
	json_object *boot = NULL, *history = NULL;
	const char *id = NULL;
	uint64_t version = 0;
	size_t kind = 0;
	int r = json_get_u64(o, "version", JSON_REQUIRED, &version, e);

	if (r < 0)
		return r;
	if (version != SCHEMA_VERSION)
		return err_set(e, "", EINVAL, "it has another format than this program's");
	if ((r = json_get_str(o, "vm_id", JSON_REQUIRED, &id, e)) < 0)
		return r;
	if (!str_eq(id, vm_id))
		return err_set(e, "", EINVAL, "it belongs to another VM");
	if ((r = get_text(o, "worker_name", &ret->worker_name, e)) < 0 ||
		(r = json_get_word(o, "kind", kind_names, ARRAY_LEN(kind_names), &kind, e)) < 0 ||
		(r = get_text(o, "source_path", &ret->source_path, e)) < 0 ||
		(r = get_text(o, "base_ref", &ret->base_ref, e)) < 0 ||
		(r = get_text(o, "base_digest", &ret->base_digest, e)) < 0 ||
		(r = json_get_bool(o, "stop_requested", JSON_REQUIRED, &ret->stop_requested, e)) <
			0 ||
		(r = pid_from_json(o, ret, e)) < 0 ||
		(r = json_get_object(o, "boot", JSON_REQUIRED, &boot, e)) < 0 ||
		(r = boot_from_json(boot, &ret->boot, e)) < 0 ||
		(r = json_get_array(o, "history", JSON_REQUIRED, &history, e)) < 0)
		return r;
	ret->kind = (enum worker_kind)kind;
	return history_from_json(history, ret, e);
}

int record_decode(
	const char *text, size_t len, const char *vm_id, struct worker_record *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	int r = json_parse_object(text, len, &o, e);

	*ret = (struct worker_record){0};
	if (r == 0)
		r = decode(o, vm_id, ret, e);
	if (r < 0)
		worker_record_done(ret);
	return r;
}
