/* How it works: a message is parsed whole by wire/json.h, then the envelope members of its type are
 * read; payloads stay json-c objects inside the root and are never copied.
 *
 * Before that a scan counts the values, since a tree takes about a hundred bytes for a value that
 * takes two in the text: 64 MiB of "[0,0,0…" would become gigabytes.
 *
 * Refused: text beyond BUS_MESSAGE_MAX, values beyond BUS_VALUES_MAX, what wire/json.h refuses,
 * envelope members of the wrong type where the member matters.
 */
#include "wire/bus.h"

#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "wire/json.h"

static const struct {
	const char *name;
	enum bus_type type;
} types[] = {
	{"workerregistered", BUS_WORKER_REGISTERED},
	{"reattach", BUS_REATTACH},
	{"registerfunction", BUS_REGISTER_FUNCTION},
	{"unregisterfunction", BUS_UNREGISTER_FUNCTION},
	{"registrationrejected", BUS_REGISTRATION_REJECTED},
	{"registertrigger", BUS_REGISTER_TRIGGER},
	{"invokefunction", BUS_INVOKE},
	{"invocationresult", BUS_RESULT},
	{"ping", BUS_PING},
	{"pong", BUS_PONG},
	{"error", BUS_ERROR},
};

static enum bus_type type_of(const char *name, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if (strlen(types[i].name) == len && memcmp(types[i].name, name, len) == 0)
			return types[i].type;
	return BUS_UNKNOWN;
}

/* More values than fit: separators outside strings, counted without building anything. */
static bool too_many_values(const char *text, size_t len)
{
	size_t values = 1;
	bool in_string = false;

	for (size_t i = 0; i < len; i++) {
		if (in_string) {
			if (text[i] == '\\')
				i++;
			else
				in_string = text[i] != '"';
		} else if (text[i] == '"') {
			in_string = true;
		} else if (text[i] == ',' || text[i] == '[' || text[i] == '{') {
			if (++values > BUS_VALUES_MAX)
				return true;
		}
	}
	return false;
}

/* An optional string: null counts as absent, another type too, since none of these decides
 * anything. */
static const char *loose_str(json_object *o, const char *name)
{
	const char *s = NULL;

	json_get_str(o, name, JSON_NULLABLE, &s, NULL);
	return s;
}

static json_object *member(json_object *o, const char *name)
{
	json_object *v = NULL;

	json_object_object_get_ex(o, name, &v);
	return v;
}

static int need_str(json_object *o, const char *name, const char **ret, struct err *e)
{
	int rc = json_get_str(o, name, JSON_REQUIRED, ret, e);

	return rc < 0 ? rc : 0;
}

static int need_function(struct bus_msg *m, struct err *e)
{
	int rc = need_str(m->root, "function_id", &m->function_id, e);

	if (rc == 0 && strlen(m->function_id) > BUS_FUNCTION_MAX)
		return err_set(e, "", EINVAL, "field `function_id`: longer than %d bytes",
			BUS_FUNCTION_MAX);
	return rc;
}

static int check_invocation(const struct bus_msg *m, struct err *e)
{
	if (m->invocation_id && strlen(m->invocation_id) > BUS_ID_MAX)
		return err_set(
			e, "", EINVAL, "field `invocation_id`: longer than %d bytes", BUS_ID_MAX);
	return 0;
}

static int decode_invoke(struct bus_msg *m, struct err *e)
{
	json_object *action = member(m->root, "action");
	int rc = need_function(m, e);

	if (rc < 0)
		return rc;
	rc = json_get_str(m->root, "invocation_id", JSON_NULLABLE, &m->invocation_id, e);
	if (rc < 0)
		return rc;
	m->has_data = json_object_object_get_ex(m->root, "data", &m->data);
	m->traceparent = loose_str(m->root, "traceparent");
	m->baggage = loose_str(m->root, "baggage");
	m->ns = loose_str(m->root, "namespace");
	m->metadata = member(m->root, "metadata");
	if (action) {
		const char *kind = NULL;

		if (json_object_is_type(action, json_type_object))
			kind = loose_str(action, "type");
		m->action = str_eq(kind, "void") ? BUS_ACTION_VOID : BUS_ACTION_OTHER;
	}
	return check_invocation(m, e);
}

static int decode_result(struct bus_msg *m, struct err *e)
{
	json_object *error = member(m->root, "error");
	int rc = need_str(m->root, "invocation_id", &m->invocation_id, e);

	if (rc == 0)
		rc = check_invocation(m, e);
	if (rc < 0)
		return rc;
	m->function_id = loose_str(m->root, "function_id");
	if (!m->function_id)
		m->function_id = "";
	m->result = member(m->root, "result");
	if (!error)
		return 0;
	if (!json_object_is_type(error, json_type_object))
		return err_set(e, "", EINVAL, "field `error`: expected an object");
	m->failed = true;
	m->stacktrace = loose_str(error, "stacktrace");
	rc = need_str(error, "code", &m->code, e);
	return rc < 0 ? rc : need_str(error, "message", &m->message, e);
}

static int decode_registration(struct bus_msg *m, struct err *e)
{
	int rc = need_str(m->root, "id", &m->id, e);

	if (rc == 0 && strlen(m->id) > BUS_FUNCTION_MAX)
		return err_set(e, "", EINVAL, "field `id`: longer than %d bytes", BUS_FUNCTION_MAX);
	m->description = loose_str(m->root, "description");
	m->metadata = member(m->root, "metadata");
	m->trigger_type = loose_str(m->root, "trigger_type");
	m->function_id = loose_str(m->root, "function_id");
	return rc;
}

static int decode_members(struct bus_msg *m, struct err *e)
{
	json_object *error;

	switch (m->type) {
	case BUS_WORKER_REGISTERED:
		m->reattach_token = loose_str(m->root, "reattach_token");
		return need_str(m->root, "worker_id", &m->worker_id, e);
	case BUS_REATTACH:
		m->reattach_token = loose_str(m->root, "reattach_token");
		return need_str(m->root, "previous_worker_id", &m->worker_id, e);
	case BUS_REGISTER_FUNCTION:
	case BUS_UNREGISTER_FUNCTION:
	case BUS_REGISTER_TRIGGER:
		return decode_registration(m, e);
	case BUS_REGISTRATION_REJECTED:
		m->ns = loose_str(m->root, "namespace");
		m->worker_name = loose_str(m->root, "worker_name");
		m->function_id = loose_str(m->root, "function_id");
		m->owner = loose_str(m->root, "owner_worker_id");
		return need_str(m->root, "code", &m->code, e);
	case BUS_INVOKE:
		return decode_invoke(m, e);
	case BUS_RESULT:
		return decode_result(m, e);
	case BUS_ERROR:
		error = member(m->root, "error");
		if (json_object_is_type(error, json_type_object)) {
			m->code = loose_str(error, "code");
			m->message = loose_str(error, "message");
		}
		return 0;
	case BUS_PING:
	case BUS_PONG:
	case BUS_UNKNOWN:
		return 0;
	}
	return 0;
}

int bus_decode(const char *text, size_t len, struct bus_msg *ret, struct err *e)
{
	struct bus_msg m = {.type = BUS_UNKNOWN};
	const char *type;
	int rc;

	if (len > BUS_MESSAGE_MAX)
		return err_set(e, "", EINVAL, "a message of %zu bytes is over the limit of %u", len,
			BUS_MESSAGE_MAX);
	if (too_many_values(text, len))
		return err_set(e, "", EINVAL,
			"a message with more than %d JSON values is over the limit: send large "
			"data as one string or through a channel",
			BUS_VALUES_MAX);
	rc = json_parse_object(text, len, &m.root, e);
	if (rc < 0)
		return rc == -ENOMEM ? err_set(e, "", EINVAL, "no memory for the message") : rc;
	rc = need_str(m.root, "type", &type, e);
	if (rc == 0) {
		m.type = type_of(type, strlen(type));
		rc = decode_members(&m, e);
	}
	if (rc < 0) {
		bus_msg_done(&m);
		return rc;
	}
	*ret = m;
	return 0;
}

void bus_msg_done(struct bus_msg *m)
{
	json_object_put(m->root);
	*m = (struct bus_msg){.type = BUS_UNKNOWN};
}

/* --- what is left of a broken message ----------------------------------------------------------
 */

struct rest {
	const char *p, *end;
};

static void skip_blanks(struct rest *r)
{
	while (r->p < r->end && memchr(" \t\n\r", *r->p, 4))
		r->p++;
}

/* At an opening quote: the bytes between the quotes, or NULL when the string has no end. */
static const char *take_string(struct rest *r, size_t *ret_len)
{
	const char *start = ++r->p;

	for (; r->p < r->end; r->p++) {
		if (*r->p == '\\')
			r->p++;
		else if (*r->p == '"') {
			*ret_len = (size_t)(r->p++ - start);
			return start;
		}
	}
	r->p = r->end;
	return NULL;
}

/* Moves behind one value of any depth: to the comma or the bracket that ends it. */
static void skip_value(struct rest *r)
{
	size_t depth = 0, len;

	while (r->p < r->end) {
		char c = *r->p;

		if (c == '"') {
			if (!take_string(r, &len))
				return;
			continue;
		}
		if (depth == 0 && (c == ',' || c == '}'))
			return;
		if (c == '{' || c == '[')
			depth++;
		else if ((c == '}' || c == ']') && depth > 0)
			depth--;
		r->p++;
	}
}

static bool plain(const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (s[i] <= ' ' || s[i] > '~' || s[i] == '"' || s[i] == '\\')
			return false;
	return len > 0;
}

static bool named(const char *name, size_t len, const char *want)
{
	return strlen(want) == len && memcmp(name, want, len) == 0;
}

static void take_id(char *dst, size_t max, const char *value, size_t len)
{
	if (!dst[0] && len <= max && plain(value, len)) {
		memcpy(dst, value, len);
		dst[len] = '\0';
	}
}

static void salvage_member(
	struct bus_salvage *ret, const char *name, size_t name_len, const char *value, size_t len)
{
	if (named(name, name_len, "type") && ret->type == BUS_UNKNOWN)
		ret->type = type_of(value, len);
	else if (named(name, name_len, "invocation_id"))
		take_id(ret->invocation_id, BUS_ID_MAX, value, len);
	else if (named(name, name_len, "function_id"))
		take_id(ret->function_id, BUS_FUNCTION_MAX, value, len);
}

void bus_salvage(const char *text, size_t len, struct bus_salvage *ret)
{
	struct rest r = {.p = text, .end = text + len};

	*ret = (struct bus_salvage){.type = BUS_UNKNOWN};
	skip_blanks(&r);
	if (r.p == r.end || *r.p++ != '{')
		return;
	for (;;) {
		const char *name, *value;
		size_t name_len, value_len;

		skip_blanks(&r);
		if (r.p == r.end || *r.p != '"')
			return;
		name = take_string(&r, &name_len);
		skip_blanks(&r);
		if (!name || r.p == r.end || *r.p++ != ':')
			return;
		skip_blanks(&r);
		if (r.p < r.end && *r.p == '"') {
			value = take_string(&r, &value_len);
			if (!value)
				return;
			salvage_member(ret, name, name_len, value, value_len);
		}
		skip_value(&r);
		if (r.p == r.end || *r.p++ != ',')
			return;
	}
}
