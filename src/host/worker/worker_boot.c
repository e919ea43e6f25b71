/* What every step of a boot needs: its errands in threads, its memory, and its end. The end is
 * made once, by boot_finish(): the last record is queued behind all others, and when that is
 * written the VM is free and whoever waits is told. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/worker/worker_priv.h"

#define BOOT_LOG_RATE  8192	    /* bytes of records a millisecond, of one VM: 8 MB/s */
#define BOOT_LOG_BURST (256u << 10) /* so much at once is free */

void boot_queue(struct boot *b, struct worker_vm *vm, struct boot_work *bw,
	void (*run)(struct worker_work *), void (*after)(struct worker_work *))
{
	bw->b = b;
	bw->work.run = run;
	bw->work.after = after;
	worker_queue(b->w, vm, &bw->work);
}

void boot_say(struct boot *b, const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	if (!b->log)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	logs_say(b->log->logs, worker_now_ms(), "%s", line);
}

/* The guest chooses how many records its bytes make: a byte can become a hundred. So that the loop
 * does not work for one VM alone, what is ahead of the rate has to be waited for. */
void boot_log(struct boot *b, enum log_stream stream, const void *data, size_t len)
{
	uint64_t now = uv_now(b->w->loop), paid = (now - b->log_paid_ms) * BOOT_LOG_RATE;

	b->log_paid_ms = now;
	b->log_debt -= MIN(b->log_debt, paid);
	b->log_debt += logs_add(b->log->logs, stream, data, len, worker_now_ms());
	if (b->log_debt > BOOT_LOG_BURST)
		vm_log_pause(b->vmm, (uint32_t)((b->log_debt - BOOT_LOG_BURST) / BOOT_LOG_RATE));
}

/* --- life of a boot --- */

/* What only the way up needs; the secrets among it most of all. */
void boot_drop_request(struct boot *b)
{
	strv_free(STEAL(b->env));
	fd_close(&b->upper_fd);
	fd_close(&b->source_fd);
	root_dir_done(&b->root);
	b->root = (struct root_dir){.fd = -1};
	image_close(STEAL(b->img));
}

static void on_timer_closed(uv_handle_t *h)
{
	struct boot *b = h->data;
	struct workers *w = b->w;

	free(b->host_path);
	free(b->package);
	free(b->run_override);
	free(b->worker_name);
	free(b->engine_url);
	free(b->guest_url);
	manifest_done(&b->manifest);
	worker_record_done(&b->checked);
	strv_free(b->notes);
	logs_free(b->made_log);
	free(b->tail);
	free(b);
	worker_unbusy(w);
}

void boot_free(struct boot *b)
{
	assert(!b->cb && !b->waiters && !b->wait && !b->vmm);
	boot_drop_request(b);
	if (b->dir.fd >= 0)
		vmdir_close(&b->dir);
	if (b->log)
		worker_log_unref(b->w, STEAL(b->log));
	uv_close((uv_handle_t *)&b->timer, on_timer_closed);
}

void boot_answer(struct boot *b, const struct worker_started *s)
{
	workers_started cb = STEAL(b->cb);

	if (cb)
		cb(s, b->user);
}

/* --- the end --- */

struct worker_boot boot_nulls(const struct boot *b)
{
	return (struct worker_boot){
		.instance = b->instance,
		.state = b->stopping ? WORKER_STOPPED : WORKER_EXITED,
	};
}

static void save_run(struct worker_work *work)
{
	struct boot_work *bw = CONTAINER_OF(work, struct boot_work, work);
	struct boot *b = bw->b;

	bw->r = vmdir_save(&b->dir, &bw->record, &bw->why);
	if (bw->last)
		vmdir_close(&b->dir);
}

static void tell_waiters(struct boot *b)
{
	const struct worker_boot *last = &b->vm->record.boot;

	while (b->waiters) {
		struct stop_waiter *sw = b->waiters;

		b->waiters = sw->next;
		sw->cb(last, NULL, sw->user);
		free(sw);
	}
}

/* The last record is written: the VM is free, and everybody may know. */
static void boot_over(struct boot *b)
{
	struct worker_vm *vm = b->vm;
	struct worker_started failed = {.why = &b->failed, .tail = b->tail ? b->tail : ""};
	struct worker_boot last = b->last;

	b->dir.fd = b->dir.lock_fd = -1;
	if (!b->abandoned) {
		last.state = vm->record.boot.state;
		vm->record.boot = last;
		worker_set_state(vm, b->last.state);
	}
	vm->boot = NULL;
	tell_waiters(b);
	boot_answer(b, &failed);
	boot_free(b);
	worker_maybe_forget(vm);
}

static void save_after(struct worker_work *work)
{
	struct boot_work *bw = CONTAINER_OF(work, struct boot_work, work);
	struct boot *b = bw->b;
	struct worker_vm *vm = b->vm;
	bool last = bw->last;

	/* A disk that is full: what is in memory is told. The end is written when there is room
	 * again (rest_tick); a daemon that does not live to see it leaves an "exited". */
	if (bw->r < 0)
		log_error("the record of a worker VM cannot be written", "vm=%s why=%s", b->vm_id,
			log_quote(bw->why.text));
	worker_record_done(&bw->record);
	if (last)
		vm->unsaved = bw->r < 0 && !b->abandoned;
	free(bw);
	if (!last)
		return;
	boot_over(b);
	if (vm->w->closing)
		rest_save(vm);
}

static void queue_save(struct boot *b, const struct worker_boot *last)
{
	struct boot_work *bw = xcalloc(1, sizeof(*bw));

	worker_record_copy(&b->vm->record, &bw->record);
	bw->record.stop_requested = b->stopping;
	bw->record.pid = b->vmm && (!last || b->abandoned) ? vm_pid(b->vmm) : 0;
	bw->record.pid_start = bw->record.pid ? process_start_time(bw->record.pid) : 0;
	bw->last = last;
	if (last && !b->abandoned)
		bw->record.boot = *last;
	boot_queue(b, b->vm, bw, save_run, save_after);
}

void boot_save(struct boot *b)
{
	queue_save(b, NULL);
}

void boot_finish(struct boot *b, const struct worker_boot *last, const struct err *why)
{
	const struct worker_boot *now = &b->vm->record.boot;

	assert(b->step != BOOT_ENDING && b->step != BOOT_CHECKING);
	b->step = BOOT_ENDING;
	b->last = *last;
	b->last.instance = now->instance;
	b->last.started_at_ms = now->started_at_ms;
	b->last.ended_at_ms = MAX(worker_now_ms(), now->started_at_ms);
	uv_timer_stop(&b->timer);
	if (b->cb) {
		b->failed = *why;
		if (b->stopping && !b->w->closing)
			err_set(&b->failed, "S300", ECANCELED,
				"worker VM %s was stopped while preparing (instance %" PRIu64 ")",
				b->vm_id, b->instance);
		else if (b->stopping)
			worker_refuse(b->w, &b->failed);
		log_warn("worker VM could not be started", "vm=%s instance=%" PRIu64 " why=%s",
			b->vm_id, b->instance, log_quote(b->failed.text));
		boot_say(b, "the worker VM could not be started: %s", b->failed.text);
	}
	if (b->log) {
		logs_end(b->log->logs, worker_now_ms());
		worker_log_unref(b->w, STEAL(b->log));
	}
	boot_drop_request(b);
	queue_save(b, &b->last);
	if (b->abandoned)
		vm_free(STEAL(b->vmm));
}

void boot_abandon(struct boot *b, const struct err *why)
{
	struct worker_boot last = boot_nulls(b);

	b->abandoned = true;
	boot_finish(b, &last, why);
}

/* A failure on the way up. */
void boot_fail(struct boot *b, const struct err *why)
{
	struct worker_boot last = boot_nulls(b);

	boot_finish(b, &last, why);
}
