#include "agent/op.h"

static void add_json(struct op *o, enum guest_rec type, json_object *object)
{
	size_t len;
	const char *text = json_text(object, &len);

	/* A result is small: what is long in it are paths, cut by struct err. When even that
	 * memory is missing, nothing can be said, and the host's own deadline ends the call. */
	if (guest_rec_add(&o->out, type, text, len) < 0)
		mux_stream_reset(o->stream);
	json_object_put(object);
}

void op_wake(struct op *o)
{
	mux_stream_resume(o->stream);
}

void op_head(struct op *o, json_object *head)
{
	add_json(o, GUEST_REC_HEAD, head);
	op_wake(o);
}

void op_finish(struct op *o, json_object *result)
{
	if (o->finished) {
		json_object_put(result);
		return;
	}
	o->finished = true;
	add_json(o, GUEST_REC_END, result);
	op_wake(o);
}

void op_ended(struct op *o)
{
	o->finished = true;
	op_wake(o);
}

void op_fail(struct op *o, const struct err *e)
{
	json_object *error = json_object_new_object(), *end = json_object_new_object();

	json_add_str(error, "code", e->code);
	json_add_i64(error, "errno", e->no);
	json_add_str(error, "message", e->text);
	json_object_object_add(end, "error", error);
	op_finish(o, end);
}

void op_consumed(struct op *o, size_t n)
{
	mux_stream_consume(o->stream, n);
}
