/* bus_rig - an engine and workers on one loop, for the tests of host/bus. */
#pragma once

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <uv.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/bus/bus.h"
#include "host/bus/channel.h"
#include "host/bus/engine.h"
#include "wire/json.h"

#define HANG_GUARD_MS 60000 /* a condition that takes this long will never come */

struct rig {
	uv_loop_t loop;
	uv_timer_t guard;
	bool hung;
	struct engine *engine;
	char url[64];
};

static inline void rig_hung(uv_timer_t *timer)
{
	struct rig *r = timer->data;

	r->hung = true;
}

/* Turns the loop until *flag. */
static inline void rig_wait(struct rig *r, const bool *flag)
{
	r->hung = false;
	uv_timer_start(&r->guard, rig_hung, HANG_GUARD_MS, 0);
	while (!*flag && !r->hung)
		uv_run(&r->loop, UV_RUN_ONCE);
	uv_timer_stop(&r->guard);
	if (!*flag)
		fail_msg("the awaited event never came");
}

static inline void rig_tick_done(uv_timer_t *timer)
{
	*(bool *)timer->data = true;
}

/* Turns the loop for that long. Only for seeing that something does not happen. */
static inline void rig_linger(struct rig *r, unsigned ms)
{
	bool done = false;

	uv_timer_t t;
	uv_timer_init(&r->loop, &t);
	t.data = &done;
	uv_timer_start(&t, rig_tick_done, ms, 0);
	rig_wait(r, &done);
	uv_close((uv_handle_t *)&t, NULL);
	uv_run(&r->loop, UV_RUN_NOWAIT);
}

static inline void rig_set(void *user)
{
	*(bool *)user = true;
}

static inline void rig_start_engine(struct rig *r, const struct engine_options *o)
{
	struct err e = ERR_INIT;

	r->engine = engine_new(&r->loop, o, &e);
	if (!r->engine)
		fail_msg("%s", e.text);
	snprintf(r->url, sizeof(r->url), "ws://127.0.0.1:%u", engine_port(r->engine));
}

static inline void rig_stop_engine(struct rig *r)
{
	bool closed = false;

	engine_close(r->engine, rig_set, &closed);
	r->engine = NULL;
	rig_wait(r, &closed);
}

static inline int rig_setup(void **state)
{
	struct rig *r = xcalloc(1, sizeof(*r));

	uv_loop_init(&r->loop);
	uv_timer_init(&r->loop, &r->guard);
	r->guard.data = r;
	rig_start_engine(r, &(struct engine_options){0});
	*state = r;
	return 0;
}

/* Nothing may be left on the loop. */
static inline int rig_teardown(void **state)
{
	struct rig *r = *state;

	if (r->engine)
		rig_stop_engine(r);
	uv_close((uv_handle_t *)&r->guard, NULL);
	uv_run(&r->loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&r->loop), 0);
	free(r);
	return 0;
}

/* --- a worker ----------------------------------------------------------------------------------
 */

struct rig_worker {
	struct rig *rig;
	struct bus *bus;
	bool up, down, again, rejected, fatal;
	unsigned ups;
	char rejected_code[64], down_why[256];
};

static inline void rig_worker_up(struct bus *b, bool again, void *user)
{
	struct rig_worker *w = user;

	(void)b;
	w->up = true;
	w->again = again;
	w->ups++;
}

static inline void rig_worker_down(struct bus *b, const char *why, void *user)
{
	struct rig_worker *w = user;

	(void)b;
	w->down = true;
	snprintf(w->down_why, sizeof(w->down_why), "%s", why);
}

static inline void rig_worker_rejected(struct bus *b, const struct bus_rejection *r, void *user)
{
	struct rig_worker *w = user;

	(void)b;
	w->rejected = true;
	w->fatal = r->fatal;
	snprintf(w->rejected_code, sizeof(w->rejected_code), "%s", r->code);
}

static const struct bus_events rig_worker_events = {
	.up = rig_worker_up,
	.down = rig_worker_down,
	.rejected = rig_worker_rejected,
};

static inline void rig_worker_start(
	struct rig *r, struct rig_worker *w, const char *name, const struct bus_options *base)
{
	struct bus_options o = base ? *base : (struct bus_options){0};
	struct err e = ERR_INIT;

	*w = (struct rig_worker){.rig = r};
	o.name = name;
	if (!o.url)
		o.url = r->url;
	if (!o.retry_ms)
		o.retry_ms = 10;
	w->bus = bus_new(&r->loop, &o, &rig_worker_events, w, &e);
	if (!w->bus)
		fail_msg("%s", e.text);
}

static inline void rig_worker_stop(struct rig_worker *w)
{
	bool closed = false;

	bus_close(w->bus, rig_set, &closed);
	rig_wait(w->rig, &closed);
	w->bus = NULL;
}

static inline void rig_serve(struct bus *b, const char *id, bus_handler handler, void *user)
{
	struct err e = ERR_INIT;

	if (bus_register(b,
		    &(struct bus_function){
			    .id = id, .description = id, .handler = handler, .user = user},
		    &e) < 0)
		fail_msg("%s", e.text);
}

/* --- one call ----------------------------------------------------------------------------------
 */

struct rig_answer {
	bool done;
	enum bus_outcome outcome;
	json_object *result;
	char code[64], message[2048];
};

static inline void rig_answered(const struct bus_answer *a, void *user)
{
	struct rig_answer *r = user;

	assert_false(r->done);
	r->done = true;
	r->outcome = a->outcome;
	r->result = json_object_get(a->result);
	snprintf(r->code, sizeof(r->code), "%s", a->code ? a->code : "");
	snprintf(r->message, sizeof(r->message), "%s", a->message ? a->message : "");
}

static inline json_object *rig_json(const char *text)
{
	json_object *o = NULL;
	struct err e = ERR_INIT;

	if (json_parse(text, strlen(text), &o, &e) < 0)
		fail_msg("%s", e.text);
	return o;
}

static inline void rig_call(
	struct rig_worker *w, const char *function, const char *data, struct rig_answer *a)
{
	*a = (struct rig_answer){0};
	bus_invoke(w->bus, function, rig_json(data), 30000, NULL, rig_answered, a);
	rig_wait(w->rig, &a->done);
}

static inline void rig_answer_done(struct rig_answer *a)
{
	json_object_put(STEAL(a->result));
}

/* Calls and compares the text of the result. */
static inline void rig_expect(
	struct rig_worker *w, const char *function, const char *data, const char *want)
{
	struct rig_answer a;

	rig_call(w, function, data, &a);
	if (a.outcome != BUS_OK)
		fail_msg("%s: %s: %s", function, a.code, a.message);
	assert_string_equal(json_text(a.result, NULL), want);
	rig_answer_done(&a);
}

static inline void rig_expect_error(
	struct rig_worker *w, const char *function, const char *data, const char *code)
{
	struct rig_answer a;

	rig_call(w, function, data, &a);
	assert_int_equal(a.outcome, BUS_FAILED);
	assert_string_equal(a.code, code);
	rig_answer_done(&a);
}
