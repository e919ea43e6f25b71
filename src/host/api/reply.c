#include "host/api/reply.h"

#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "wire/json.h"

#define DOCS_URL "https://iii.dev/docs/creating-workers/sandboxes#"

/* What a caller can make of a code (§3.2). */
struct code {
	const char *code, *type;
	bool retryable;
	const char *note; /* NULL: there is nothing to say */
};

static const struct code codes[] = {
	{"S001", "validation", false, "the message names the member to correct"},
	{"S002", "validation", false, "create a new sandbox and use its id"},
	{"S003", "validation", false,
		"run at most that many commands in the foreground: start long ones with nohup and "
		"&, or make room with sandbox::stop"},
	{"S004", "validation", false, "the sandbox is gone: create a new one"},
	{"S100", "config", false, "use one of the names that the message lists"},
	{"S101", "internal", false, "the operator has to pull the image beforehand"},
	{"S102", "transient", true, "send the same request again a little later"},
	{"S200", "execution", false, "raise timeout_ms, or split the work into shorter commands"},
	{"S210", "filesystem", false, NULL},
	{"S211", "filesystem", false, NULL},
	{"S212", "filesystem", false, NULL},
	{"S213", "filesystem", false, NULL},
	{"S214", "filesystem", false, NULL},
	{"S215", "filesystem", false, NULL},
	{"S216", "filesystem", false, NULL},
	{"S217", "filesystem", false, NULL},
	{"S218", "transient", true, NULL},
	{"S219", "filesystem", false, NULL},
	{"S300", "platform", false, "a retry alone will not help: the cause is on the host"},
	{"S400", "config", false,
		"stay below the limit that the message names, or ask the operator to raise it"},
	{"S500", "config", false,
		"correct the source or its iii.worker.yaml as the message says, then start again"},
	{"S501", "validation", false,
		"move the source below one of the two folders that the message names"},
	{"S502", "validation", false,
		"stop the worker VM that `fix` names with worker::stop, then send the request "
		"again"},
	{"S503", "validation", false, "start the worker VM first"},
	{"S504", "internal", false,
		"a retry alone will not help: the cause is in the host's state folder"},
	{"S505", "validation", false, "send the token that the adapter was started with in `auth`"},
};

static const char parents_note[] =
	"merge `fix` into the request (parents: true makes the missing folders) and send it again";

/* An error without a code is a fault of the platform. */
static const struct code *find_code(const char *code)
{
	const struct code *platform = NULL;

	for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
		if (str_eq(codes[i].code, code))
			return &codes[i];
		if (str_eq(codes[i].code, "S300"))
			platform = &codes[i];
	}
	return platform;
}

json_object *reply_object(void)
{
	json_object *o = json_object_new_object();

	if (!o)
		mem_exhausted();
	return o;
}

json_object *reply_array(void)
{
	json_object *a = json_object_new_array();

	if (!a)
		mem_exhausted();
	return a;
}

void reply_add(json_object *o, const char *name, json_object *v)
{
	if (json_object_object_add(o, name, v) != 0)
		mem_exhausted();
}

void reply_append(json_object *array, json_object *v)
{
	if (json_object_array_add(array, v) != 0)
		mem_exhausted();
}

static json_object *new_fix(const struct reply_failure *f, const struct code *code)
{
	json_object *fix = NULL;

	if (f->step) {
		cleanup_free char *context =
			xasprintf("during sandbox::run step `%s`", f->step->name);

		fix = reply_object();
		json_add_str(fix, "context", context);
		json_add_str(fix, "inner_code", code->code);
		json_add_str(fix, "sandbox_id", f->step->sandbox_id);
	} else if (f->parent_missing) {
		fix = reply_object();
		json_add_bool(fix, "parents", true);
	} else if (f->busy_vm) {
		fix = reply_object();
		if (f->busy_instance)
			json_add_u64(fix, "instance", f->busy_instance);
		json_add_str(fix, "vm_id", f->busy_vm);
	}
	return fix;
}

static void add_message(json_object *o, const struct reply_failure *f)
{
	cleanup_buf struct buf text;

	buf_init(&text, ERR_TEXT_MAX + 512 + f->more_len);
	if (f->step)
		buf_printf(&text, "sandbox::run failed in step `%s`%s%s: ", f->step->name,
			f->step->sandbox_id[0] ? " of sandbox " : "", f->step->sandbox_id);
	buf_add_str(&text, f->e->text);
	buf_add(&text, f->more, f->more_len);
	json_add_strn(o, "message", text.len ? (const void *)text.data : "", text.len);
}

json_object *reply_failure_new(const struct reply_failure *f)
{
	const struct code *code = find_code(f->e->code);
	cleanup_free char *url = xasprintf(DOCS_URL "%s", code->code);
	const char *note = f->step ? NULL : f->parent_missing ? parents_note : code->note;
	json_object *o = reply_object();

	json_add_str(o, "code", code->code);
	json_add_str(o, "docs_url", url);
	reply_add(o, "fix", new_fix(f, code));
	if (note)
		json_add_str(o, "fix_note", note);
	else
		reply_add(o, "fix_note", NULL);
	add_message(o, f);
	json_add_bool(o, "retryable", code->retryable);
	json_add_str(o, "type", code->type);
	return o;
}

static const char *trace_of(const struct bus_call *c)
{
	return log_quote(bus_call_traceparent(c));
}

void reply_failed(struct bus_call *c, const struct reply_failure *f)
{
	cleanup_json json_object *o = reply_failure_new(f);
	cleanup_free char *message = NULL;
	size_t len;
	const char *text = json_text(o, &len);

	log_info("call failed", "function=%s code=%s step=%s traceparent=%s why=%s",
		bus_call_function(c), find_code(f->e->code)->code,
		log_quote(f->step ? f->step->name : ""), trace_of(c), log_quote(f->e->text));
	message = xmalloc(strlen(REPLY_ERROR_PREFIX) + len + 1);
	memcpy(message, REPLY_ERROR_PREFIX, strlen(REPLY_ERROR_PREFIX));
	memcpy(message + strlen(REPLY_ERROR_PREFIX), text, len + 1);
	bus_reply_error(c, REPLY_ERROR_CODE, message);
}

void reply_err(struct bus_call *c, const struct err *e)
{
	reply_failed(c, &(struct reply_failure){.e = e});
}

void reply_ok(struct bus_call *c, json_object *result)
{
	log_debug("call done", "function=%s traceparent=%s", bus_call_function(c), trace_of(c));
	bus_reply(c, result);
}
