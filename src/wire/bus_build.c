/* Building messages. Objects are made member by member with wire/json.h, which repairs text that is
 * not UTF-8 and ends the process when memory is out; payloads are handed over, not copied. */
#include <errno.h>
#include <json-c/linkhash.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "wire/bus.h"
#include "wire/json.h"

static json_object *new_object(void)
{
	json_object *o = json_object_new_object();

	if (!o)
		mem_exhausted();
	return o;
}

static json_object *new_message(const char *type)
{
	json_object *o = new_object();

	json_add_str(o, "type", type);
	return o;
}

/* Takes v; NULL is JSON null. */
static void add(json_object *o, const char *name, json_object *v)
{
	if (json_object_object_add(o, name, v) != 0)
		mem_exhausted();
}

static void add_opt(json_object *o, const char *name, const char *s)
{
	if (s)
		json_add_str(o, name, s);
}

json_object *bus_new_call(const struct bus_call_envelope *c)
{
	json_object *o = new_message("invokefunction");

	add_opt(o, "invocation_id", c->invocation_id);
	json_add_str(o, "function_id", c->function_id);
	add(o, "data", c->data);
	add_opt(o, "traceparent", c->traceparent);
	add_opt(o, "baggage", c->baggage);
	add_opt(o, "namespace", c->ns);
	if (c->metadata)
		add(o, "metadata", c->metadata);
	if (c->is_void) {
		json_object *action = new_object();

		json_add_str(action, "type", "void");
		add(o, "action", action);
	}
	return o;
}

static json_object *new_answer(const char *invocation_id, const char *function_id)
{
	json_object *o = new_message("invocationresult");

	json_add_str(o, "invocation_id", invocation_id);
	json_add_str(o, "function_id", function_id);
	return o;
}

json_object *bus_new_result(const char *invocation_id, const char *function_id, json_object *result)
{
	json_object *o = new_answer(invocation_id, function_id);

	if (result)
		add(o, "result", result);
	return o;
}

json_object *bus_new_error(const char *invocation_id, const char *function_id, const char *code,
	const char *message, const char *stacktrace)
{
	json_object *o = new_answer(invocation_id, function_id), *error = new_object();

	json_add_str(error, "code", code);
	json_add_str(error, "message", message);
	add_opt(error, "stacktrace", stacktrace);
	add(o, "error", error);
	return o;
}

json_object *bus_new_register(const char *id, const char *description, json_object *request_format,
	json_object *response_format)
{
	json_object *o = new_message("registerfunction");

	json_add_str(o, "id", id);
	add_opt(o, "description", description);
	if (request_format)
		add(o, "request_format", request_format);
	if (response_format)
		add(o, "response_format", response_format);
	return o;
}

json_object *bus_new_unregister(const char *id)
{
	json_object *o = new_message("unregisterfunction");

	json_add_str(o, "id", id);
	return o;
}

json_object *bus_new_reattach(const char *worker_id, const char *token)
{
	json_object *o = new_message("reattach");

	json_add_str(o, "previous_worker_id", worker_id);
	add_opt(o, "reattach_token", token);
	return o;
}

json_object *bus_new_bare(const char *type)
{
	return new_message(type);
}

json_object *bus_new_announce(const struct bus_identity *who)
{
	json_object *data = new_object(), *telemetry = new_object();

	json_add_str(data, "runtime", "c");
	add_opt(data, "version", who->version);
	add_opt(data, "name", who->name);
	add_opt(data, "description", who->description);
	add_opt(data, "os", who->os);
	json_add_u64(data, "pid", who->pid);
	add_opt(data, "isolation", who->isolation);
	add_opt(data, "namespace", who->ns);
	add_opt(telemetry, "language", who->language);
	json_add_str(telemetry, "framework", "iii-c");
	add(data, "telemetry", telemetry);
	return bus_new_call(&(struct bus_call_envelope){
		.function_id = "engine::workers::register",
		.data = data,
		.is_void = true,
	});
}

json_object *bus_new_worker_registered(const char *worker_id, const char *token)
{
	json_object *o = new_message("workerregistered");

	json_add_str(o, "worker_id", worker_id);
	add_opt(o, "reattach_token", token);
	return o;
}

static json_object *new_rejection(
	const char *code, const char *ns, const char *what, const char *name, const char *owner)
{
	json_object *o = new_message("registrationrejected");

	json_add_str(o, "code", code);
	json_add_str(o, "namespace", ns);
	json_add_str(o, what, name);
	json_add_str(o, "owner_worker_id", owner);
	return o;
}

json_object *bus_new_function_rejected(const char *ns, const char *function_id, const char *owner)
{
	return new_rejection("FUNCTION_NAMESPACE_CONFLICT", ns, "function_id", function_id, owner);
}

json_object *bus_new_worker_rejected(const char *ns, const char *name, const char *owner)
{
	return new_rejection("WORKER_NAMESPACE_CONFLICT", ns, "worker_name", name, owner);
}

json_object *bus_new_trigger_refused(const struct bus_msg *trigger, const char *message)
{
	json_object *o = new_message("triggerregistrationresult"), *error = new_object();

	json_add_str(o, "id", trigger->id);
	json_add_str(o, "trigger_type", trigger->trigger_type ? trigger->trigger_type : "");
	json_add_str(o, "function_id", trigger->function_id ? trigger->function_id : "");
	json_add_str(error, "code", "trigger_registration_failed");
	json_add_str(error, "message", message);
	add(o, "error", error);
	return o;
}

/* --- sorted text ------------------------------------------------------------------------------ */

static json_object *member(json_object *o, const char *name)
{
	json_object *v = NULL;

	json_object_object_get_ex(o, name, &v);
	return v;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A member name as JSON: the printer of a string object escapes it. */
static int add_name(const char *name, struct buf *out)
{
	cleanup_json json_object *s = json_object_new_string(name);

	if (!s)
		mem_exhausted();
	return buf_add_str(out, json_text(s, NULL));
}

static int object_sorted(json_object *o, struct buf *out)
{
	size_t n = (size_t)json_object_object_length(o), i = 0;
	cleanup_free const char **names = xcalloc(n + 1, sizeof(*names));
	int rc = buf_add_str(out, "{");

	json_object_object_foreach (o, name, value) {
		(void)value;
		names[i++] = name;
	}
	qsort(names, n, sizeof(*names), by_name);
	for (i = 0; rc == 0 && i < n; i++) {
		if (i > 0)
			rc = buf_add_str(out, ",");
		if (rc == 0)
			rc = add_name(names[i], out);
		if (rc == 0)
			rc = buf_add_str(out, ":");
		if (rc == 0)
			rc = bus_text_sorted(member(o, names[i]), out);
	}
	return rc < 0 ? rc : buf_add_str(out, "}");
}

/* Recursion ends at JSON_DEPTH_MAX: whatever was parsed is no deeper. */
int bus_text_sorted(json_object *o, struct buf *out)
{
	int rc;

	if (json_object_is_type(o, json_type_object))
		return object_sorted(o, out);
	if (json_object_is_type(o, json_type_array)) {
		size_t n = json_object_array_length(o);

		rc = buf_add_str(out, "[");
		for (size_t i = 0; rc == 0 && i < n; i++) {
			if (i > 0)
				rc = buf_add_str(out, ",");
			if (rc == 0)
				rc = bus_text_sorted(json_object_array_get_idx(o, i), out);
		}
		return rc < 0 ? rc : buf_add_str(out, "]");
	}
	if (!o)
		return buf_add_str(out, "null");
	if (json_object_is_type(o, json_type_string)) {
		size_t len;
		const char *text = json_text(o, &len);

		return buf_add(out, text, len);
	}
	return buf_add_str(out, json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN));
}
