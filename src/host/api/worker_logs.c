/* worker::logs: a VM's log as text frames of a channel (worker VM specification §6.5).
 *
 *   FINDING   the log, which a thread may have to open; then the channel
 *   OPENING   the channel's socket; then the call is answered. S218 when there will be none
 *   PUMPING   one record a frame, the next one when the socket has taken it all
 *   RESTING   the last record is out: CLOSE_REST_MS before the Close frame, since clients drop what
 *             arrives together with it
 *   CLOSING   finished; the channel's end frees the pump
 *
 * A pump holds one record and one descriptor. A reader that is slow is overtaken by the rotation of
 * the log (logs.h); one that takes nothing for PUMP_STALL_MS is given up. A reader that leaves ends
 * the pump without a word: nobody waits for it any more.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/api/api_priv.h"
#include "host/bus/channel.h"

#define PUMPS_MAX     64 /* logs calls that are being served; one more is S400 */
#define PUMP_STALL_MS (10 * 60 * 1000)
#define CLOSE_REST_MS 20

enum phase {
	FINDING,
	OPENING,
	PUMPING,
	RESTING,
	CLOSING,
};

struct pump {
	struct api_transfer transfer;
	struct api *a; /* not once it is given up */
	struct workers *workers;
	struct bus_call *c; /* NULL once answered; in FINDING that means given up */
	enum phase phase;
	char *vm_id;
	struct bus_channel_ref channel;
	uint64_t cursor;
	bool follow;
	struct logs *logs;
	struct logs_reader *reader;
	struct channel_writer *writer;
	bool busy; /* a frame is not out yet */
	uv_timer_t timer;
};

static void on_timer_closed(uv_handle_t *h)
{
	free(h->data);
}

static void pump_release(struct pump *p)
{
	channel_writer_close(STEAL(p->writer));
	logs_reader_free(STEAL(p->reader));
	if (p->logs)
		workers_logs_release(p->workers, p->logs);
	free(p->vm_id);
	uv_close((uv_handle_t *)&p->timer, on_timer_closed);
}

static void pump_free(struct pump *p)
{
	api_remove_pump(p->a, &p->transfer);
	pump_release(p);
}

static void on_abort(struct api_transfer *t)
{
	struct pump *p = CONTAINER_OF(t, struct pump, transfer);
	struct err e = ERR_INIT;

	err_set(&e, "S218", ESHUTDOWN, "the adapter is shutting down");
	if (p->c)
		reply_err(STEAL(p->c), &e);
	if (p->phase == FINDING)
		api_remove_pump(p->a, &p->transfer); /* on_found does the rest */
	else
		pump_free(p);
}

static void on_rested(uv_timer_t *t)
{
	struct pump *p = t->data;

	p->phase = CLOSING;
	channel_writer_finish(p->writer);
}

static void rest(struct pump *p)
{
	p->phase = RESTING;
	uv_timer_start(&p->timer, on_rested, CLOSE_REST_MS, 0);
}

static void pump(struct pump *p)
{
	const char *text;
	size_t len;
	int r;

	if (p->phase != PUMPING || p->busy)
		return;
	r = logs_reader_next(p->reader, &text, &len);
	if (r > 0)
		r = channel_write_text(p->writer, text, len) < 0 ? -EPIPE : 1;
	if (r > 0) {
		p->busy = true;
	} else if (r < 0) {
		/* A channel that is broken says so in its end. */
		if (r != -ENODATA && r != -EPIPE)
			log_warn("the log of a worker VM cannot be read", "vm=%s why=%s", p->vm_id,
				err_str(r));
		rest(p);
	}
}

static void on_woken(uv_timer_t *t)
{
	pump(t->data);
}

/* Comes from the midst of what writes the log. */
static void on_wake(void *user)
{
	struct pump *p = user;

	if (p->phase == PUMPING)
		uv_timer_start(&p->timer, on_woken, 0, 0);
}

static void on_open(struct channel_writer *w, void *user)
{
	struct pump *p = user;

	(void)w;
	if (p->phase != OPENING)
		return;
	p->phase = PUMPING;
	reply_ok(STEAL(p->c), reply_object());
	pump(p);
}

static void on_drain(struct channel_writer *w, void *user)
{
	struct pump *p = user;

	(void)w;
	p->busy = false;
	pump(p);
}

static void on_end(struct channel_writer *w, enum channel_end end, const char *why, void *user)
{
	struct pump *p = user;
	struct err e = ERR_INIT;

	(void)w;
	p->writer = NULL;
	if (p->c) {
		err_set(&e, "S218", EIO, "the channel for the log cannot be opened: %s", why);
		reply_err(STEAL(p->c), &e);
	} else if (end != CHANNEL_END) {
		log_debug("channel of a worker's log ended early", "vm=%s why=%s", p->vm_id,
			log_quote(why));
	}
	pump_free(p);
}

static int read_channel(json_object *request, struct bus_channel_ref *ret, struct err *e)
{
	json_object *o = NULL;
	bool write = false;
	int r = json_get_object(request, "channel", JSON_REQUIRED, &o, e);

	if (r >= 0)
		r = bus_channel_ref_read(o, ret, &write, e);
	if (r >= 0 && !write)
		r = err_set(e, "S001", EINVAL,
			"field `channel`: `direction` has to be \"write\", the end that log "
			"records are written to");
	if (r < 0)
		err_code(e, "S001");
	return r < 0 ? r : 0;
}

struct logs_request {
	const char *vm_id;
	struct bus_channel_ref channel;
	bool follow;
	uint64_t cursor;
};

static int read_request(json_object *request, struct logs_request *ret, struct err *e)
{
	int r = request_str(request, "vm_id", JSON_REQUIRED, &ret->vm_id, e);

	if (r >= 0)
		r = request_bool(request, "follow", JSON_REQUIRED, &ret->follow, e);
	if (r >= 0)
		r = request_u64(request, "cursor", JSON_NULLABLE, &ret->cursor, e);
	if (r >= 0)
		r = read_channel(request, &ret->channel, e);
	return r < 0 ? r : 0;
}

static void on_found(struct logs *l, const struct err *why, void *user)
{
	static const struct channel_writer_events ev = {
		.open = on_open, .drain = on_drain, .end = on_end};
	struct pump *p = user;

	p->logs = l;
	if (!p->c) {
		pump_release(p);
		return;
	}
	if (!l) {
		reply_err(STEAL(p->c), why);
		pump_free(p);
		return;
	}
	p->phase = OPENING;
	/* From here on the log is that of the present boot, up to its present end. */
	p->reader = logs_reader_new(l, p->cursor, p->follow, on_wake, p);
	p->writer = channel_write_open(p->a->bus, &p->channel, PUMP_STALL_MS, &ev, p);
}

static int check_room(const struct api *a, struct err *e)
{
	if (a->n_pumps >= PUMPS_MAX)
		return err_set(e, "S400", EBUSY,
			"this adapter serves %d log channels already; end one first", PUMPS_MAX);
	return 0;
}

void api_worker_logs(struct api *a, struct bus_call *c, json_object *request)
{
	struct logs_request rq = {0};
	struct pump *p;
	struct err e = ERR_INIT;

	if (worker_check_token(request, &e) < 0 || read_request(request, &rq, &e) < 0 ||
		check_room(a, &e) < 0) {
		reply_err(c, &e);
		return;
	}
	p = xcalloc(1, sizeof(*p));
	*p = (struct pump){.a = a,
		.workers = a->workers,
		.c = c,
		.vm_id = xstrdup(rq.vm_id),
		.channel = rq.channel,
		.cursor = rq.cursor,
		.follow = rq.follow};
	uv_timer_init(workers_loop(a->workers), &p->timer);
	p->timer.data = p;
	api_add_pump(a, &p->transfer, on_abort);
	workers_logs(a->workers, p->vm_id, on_found, p);
}
