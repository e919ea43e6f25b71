/* bus: any bytes as a message, as a URL, as a channel reference. What is decoded must survive being
 * built and decoded again; the ids that salvage finds must be those that decoding finds. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "wire/bus.h"
#include "wire/json.h"

static void check_same_ids(const struct bus_msg *m, const struct bus_salvage *s)
{
	if (s->invocation_id[0] && m->invocation_id)
		assert(strcmp(s->invocation_id, m->invocation_id) == 0);
	if (s->function_id[0] && m->function_id)
		assert(strcmp(s->function_id, m->function_id) == 0);
	/* A type whose letters are written as escapes is only seen by decoding. */
	assert(s->type == m->type || s->type == BUS_UNKNOWN);
}

static void check_call(const struct bus_msg *m)
{
	cleanup_json json_object *again = bus_new_call(&(struct bus_call_envelope){
		.invocation_id = m->invocation_id,
		.function_id = m->function_id,
		.data = json_object_get(m->data),
		.is_void = m->action == BUS_ACTION_VOID,
		.traceparent = m->traceparent,
		.baggage = m->baggage,
		.ns = m->ns,
		.metadata = json_object_get(m->metadata),
	});
	struct bus_msg back;
	struct err e = ERR_INIT;
	size_t len;
	const char *text = json_text(again, &len);
	cleanup_buf struct buf sorted;

	assert(utf8_valid(text, len));
	assert(bus_decode(text, len, &back, &e) == 0);
	assert(back.type == BUS_INVOKE && json_object_equal(back.data, m->data));
	buf_init(&sorted, 16 * len + 64);
	assert(bus_text_sorted(back.data, &sorted) == 0);
	bus_msg_done(&back);
}

static void check_url(const char *text)
{
	struct bus_url u;
	struct err e = ERR_INIT;

	if (bus_url_parse(text, &u, &e) < 0) {
		assert(e.text[0]);
		return;
	}
	assert(u.host[0] && u.path[0] == '/' && u.port);
	bus_url_done(&u);
}

static void check_ref(json_object *o)
{
	struct bus_channel_ref ref;
	struct bus_url u;
	struct err e = ERR_INIT;
	cleanup_free char *url = NULL;

	if (bus_channel_ref_read(o, &ref, NULL, &e) < 0)
		return;
	url = bus_channel_url("ws://h:1/", &ref, false);
	assert(bus_url_parse(url, &u, &e) == 0);
	assert(strncmp(u.path, "/ws/channels/", 13) == 0 && !strchr(u.path + 13, '/'));
	bus_url_done(&u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free char *text = xcalloc(1, size + 1);
	struct bus_salvage s;
	struct err e = ERR_INIT;
	struct bus_msg m;

	memcpy(text, data, size);
	bus_salvage(text, size, &s);
	check_url(text);
	if (bus_decode(text, size, &m, &e) < 0) {
		assert(e.text[0]);
		return 0;
	}
	check_same_ids(&m, &s);
	if (m.type == BUS_INVOKE) {
		check_call(&m);
		check_ref(m.data);
	}
	bus_msg_done(&m);
	return 0;
}
