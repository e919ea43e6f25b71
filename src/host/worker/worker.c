/* How it works: a table of VMs, one entry for each that has a folder or a boot under way. A boot
 * (struct boot) carries a start from its checks to its last record and holds the VM's lock
 * meanwhile; worker_start.c and worker_up.c are its way up, worker_stop.c its way down.
 *
 *   start -> roots -> [VM is free? else S502] -> lock, manifest, number, record   (CHECKING)
 *         -> image (FETCHING) -> source disk, upper (WRITING) -> vm_start (STARTING)
 *         -> "ready": answered (UP) -> phase "run": running -> VM ended -> record (ENDING) -> free
 *
 * A state is told by status only when the record of it is written or being written: the end of a
 * boot only when that is durable, so that whoever sees it can start the next one at once.
 *
 * Limits: one boot a VM; memory of a VM at rest is its record. Descriptors of a VM at rest: none.
 */
#include "host/worker/worker.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/worker/record_priv.h"
#include "host/worker/worker_priv.h"

#define TICK_MS		 1000
#define PROGRESS_LINE_MS 5000 /* between two lines of a VM's log about the image it waits for */

uint64_t worker_now_ms(void)
{
	return clock_wall_ms();
}

/* --- works --- */

void worker_unbusy(struct workers *w)
{
	assert(w->busy > 0);
	if (--w->busy > 0 || !w->closing)
		return;
	w->closed(w->closed_user);
}

static void work_run(uv_work_t *uv)
{
	struct worker_work *work = CONTAINER_OF(uv, struct worker_work, uv);

	work->run(work);
}

static void work_after(uv_work_t *uv, int status);

static void work_start(struct worker_work *work)
{
	struct workers *w = work->w;
	struct worker_work **at = &w->long_waiting;

	if (work->is_long && w->long_running == WORKERS_LONG_MAX) {
		while (*at)
			at = &(*at)->next_long;
		*at = work;
		return;
	}
	w->long_running += work->is_long;
	uv_queue_work(w->loop, &work->uv, work_run, work_after);
}

void worker_hurry(struct worker_work *work)
{
	struct worker_work **at = &work->w->long_waiting;

	while (*at && *at != work)
		at = &(*at)->next_long;
	if (!*at)
		return; /* it runs, or waits for another work of its VM */
	*at = STEAL(work->next_long);
	work->is_long = false;
	work_start(work);
}

static void long_ended(struct workers *w)
{
	struct worker_work *next = w->long_waiting;

	w->long_running--;
	if (!next)
		return;
	w->long_waiting = STEAL(next->next_long);
	work_start(next);
}

static void work_after(uv_work_t *uv, int status)
{
	struct worker_work *work = CONTAINER_OF(uv, struct worker_work, uv);
	struct workers *w = work->w;
	struct worker_vm *vm = work->vm;

	(void)status; /* nothing is ever cancelled */
	if (work->is_long)
		long_ended(w);
	if (vm) {
		vm->works = work->next;
		if (vm->works)
			work_start(vm->works);
	}
	work->after(work);
	worker_unbusy(w);
}

void worker_queue(struct workers *w, struct worker_vm *vm, struct worker_work *work)
{
	struct worker_work **at;

	work->w = w;
	work->vm = vm;
	work->next = NULL;
	w->busy++;
	if (!vm) {
		work_start(work);
		return;
	}
	for (at = &vm->works; *at; at = &(*at)->next)
		;
	*at = work;
	if (vm->works == work)
		work_start(work);
}

/* --- the table --- */

struct worker_vm *worker_find(struct workers *w, const char *vm_id)
{
	for (struct worker_vm *vm = w->vms; vm; vm = vm->next)
		if (str_eq(vm->vm_id, vm_id))
			return vm;
	return NULL;
}

struct worker_vm *worker_get(struct workers *w, const char *vm_id)
{
	struct worker_vm *vm = worker_find(w, vm_id);

	if (vm)
		return vm;
	vm = xcalloc(1, sizeof(*vm));
	vm->w = w;
	memcpy(vm->vm_id, vm_id, sizeof(vm->vm_id));
	vm->next = w->vms;
	w->vms = vm;
	return vm;
}

static void vm_free_entry(struct worker_vm *vm)
{
	worker_record_done(&vm->record);
	free(vm);
}

void worker_maybe_forget(struct worker_vm *vm)
{
	struct worker_vm **at = &vm->w->vms;

	if (vm->boot || vm->contenders || vm->works || vm->record.boot.instance)
		return;
	for (struct worker_log *log = vm->w->logs; log; log = log->next)
		if (log->vm == vm)
			log->vm = NULL;
	while (*at != vm)
		at = &(*at)->next;
	*at = vm->next;
	vm_free_entry(vm);
}

void worker_set_state(struct worker_vm *vm, enum worker_state to)
{
	static const unsigned char legal[] = {
		[WORKER_PREPARING] = 1 << WORKER_RUNNING | 1 << WORKER_EXITED | 1 << WORKER_STOPPED,
		[WORKER_RUNNING] = 1 << WORKER_EXITED | 1 << WORKER_STOPPED,
		[WORKER_EXITED] = 0, /* the next boot has another number and a record of its own */
		[WORKER_STOPPED] = 0,
		[WORKER_UNKNOWN] = 0,
	};
	struct worker_boot *b = &vm->record.boot;

	assert(legal[b->state] & 1 << to);
	b->state = to;
	log_info("worker VM changes its state", "vm=%s instance=%" PRIu64 " state=%s", vm->vm_id,
		b->instance, worker_state_name(to));
}

void worker_record_copy(const struct worker_record *from, struct worker_record *ret)
{
	*ret = *from;
	ret->worker_name = xstrdup(from->worker_name);
	ret->source_path = xstrdup(from->source_path);
	ret->base_ref = xstrdup(from->base_ref);
	ret->base_digest = xstrdup(from->base_digest);
}

bool worker_is_elsewhere(const struct worker_vm *vm)
{
	const struct worker_boot *b = &vm->record.boot;

	return !vm->boot && b->instance && !worker_boot_ended(b);
}

void worker_busy(const struct worker_vm *vm, struct worker_started *ret, struct err *e)
{
	*ret = (struct worker_started){.why = e};
	memcpy(ret->vm_id, vm->vm_id, sizeof(ret->vm_id));
	if (vm->boot)
		ret->instance = vm->boot->instance;
	else if (worker_is_elsewhere(vm))
		ret->instance = vm->record.boot.instance;
	if (vm->boot && ret->instance)
		err_set(e, "S502", EBUSY,
			"worker VM %s is preparing or running as instance %" PRIu64
			"; stop it with worker::stop first",
			vm->vm_id, ret->instance);
	else if (vm->boot)
		err_set(e, "S502", EBUSY,
			"worker VM %s is being started; try again when worker::start has answered",
			vm->vm_id);
	else if (ret->instance)
		err_set(e, "S502", EBUSY,
			"worker VM %s is preparing or running as instance %" PRIu64
			" by another adapter of this host; stop it there first",
			vm->vm_id, ret->instance);
	else
		err_set(e, "S502", EBUSY,
			"worker VM %s is in use, by another adapter of this host or by a process "
			"that is still ending; stop it there, or try again",
			vm->vm_id);
}

/* --- logs --- */

struct worker_log *worker_log_add(struct worker_vm *vm, struct logs *logs)
{
	struct worker_log *log = xcalloc(1, sizeof(*log));

	*log = (struct worker_log){.next = vm->w->logs, .logs = logs, .vm = vm, .refs = 1};
	vm->w->logs = log;
	return log;
}

void worker_logs_retire(struct worker_vm *vm)
{
	for (struct worker_log *log = vm->w->logs; log; log = log->next) {
		if (log->vm != vm)
			continue;
		log->vm = NULL;
		logs_retire(log->logs);
	}
}

void worker_forget(struct worker_vm *vm)
{
	worker_record_done(&vm->record);
	worker_logs_retire(vm);
}

void worker_log_unref(struct workers *w, struct worker_log *log)
{
	struct worker_log **at = &w->logs;

	assert(log->refs > 0);
	if (--log->refs > 0)
		return;
	while (*at != log)
		at = &(*at)->next;
	*at = log->next;
	logs_free(log->logs);
	free(log);
}

void workers_logs_release(struct workers *w, struct logs *l)
{
	struct worker_log *log = w->logs;

	while (log->logs != l)
		log = log->next;
	worker_log_unref(w, log);
}

static void tell_progress(struct boot *b)
{
	struct image_progress p;
	uint64_t now = uv_now(b->w->loop);

	if (b->progress_ms && now - b->progress_ms < PROGRESS_LINE_MS)
		return;
	if (!images_progress(b->w->o.images, b->vm->record.base_ref, &p))
		return;
	b->progress_ms = now;
	boot_say(b, "fetching image %s: %s, %" PRIu64 " of %" PRIu64 " bytes",
		b->manifest.base_image, p.stage, p.done_bytes, p.total_bytes);
}

static void on_tick(uv_timer_t *t)
{
	struct workers *w = t->data;
	uint64_t now = worker_now_ms();

	for (struct worker_vm *vm = w->vms; vm; vm = vm->next) {
		if (!vm->boot || !vm->boot->log)
			continue;
		if (vm->boot->step == BOOT_FETCHING)
			tell_progress(vm->boot);
		logs_tick(vm->boot->log->logs, now);
	}
	rest_tick(w);
}

/* --- status --- */

void workers_status(
	struct workers *w, const char *vm_id, uint64_t instance, struct worker_boot *ret)
{
	const struct worker_vm *vm = worker_find(w, vm_id);
	const struct worker_boot *b =
		vm && instance ? worker_record_find(&vm->record, instance) : NULL;

	if (b)
		*ret = *b;
	else
		*ret = (struct worker_boot){.instance = instance, .state = WORKER_UNKNOWN};
}

/* --- life --- */

static void on_found(const char *vm_id, const struct worker_record *r, void *user)
{
	struct worker_vm *vm = worker_get(user, vm_id);

	worker_record_done(&vm->record);
	worker_record_copy(r, &vm->record);
}

struct workers *workers_new(uv_loop_t *loop, const struct workers_options *o)
{
	struct workers *w = xcalloc(1, sizeof(*w));
	int r;

	w->loop = loop;
	w->o = *o;
	w->host_ports = xcalloc(o->n_host_ports + 1, sizeof(*w->host_ports));
	if (o->n_host_ports)
		memcpy(w->host_ports, o->host_ports, o->n_host_ports * sizeof(*w->host_ports));
	w->o.host_ports = w->host_ports;
	w->root_fd = -1;
	roots_init(&w->roots);
	r = vmdir_root(&w->root_fd, &w->unusable);
	if (r >= 0)
		r = vmdir_recover(w->root_fd, worker_now_ms(), on_found, w, &w->unusable);
	if (r < 0) {
		err_code(&w->unusable, "S504");
		log_warn("this host cannot run worker VMs: start will fail", "why=%s",
			log_quote(w->unusable.text));
	}
	uv_timer_init(loop, &w->tick);
	w->tick.data = w;
	uv_timer_start(&w->tick, on_tick, TICK_MS, TICK_MS);
	return w;
}

int worker_refuse(const struct workers *w, struct err *e)
{
	if (w->closing)
		return err_set(e, "S300", ESHUTDOWN, "the adapter is shutting down");
	if (w->unusable.text[0])
		*e = w->unusable;
	return w->unusable.text[0] ? -EIO : 0;
}

static void on_tick_closed(uv_handle_t *h)
{
	worker_unbusy(h->data);
}

void workers_close(struct workers *w, void (*closed)(void *user), void *user)
{
	assert(!w->closing);
	w->closed = closed;
	w->closed_user = user;
	w->busy++; /* of the tick */
	w->closing = true;
	for (struct worker_vm *vm = w->vms, *next; vm; vm = next) {
		next = vm->next;
		rest_save(vm);
		if (!vm->boot)
			continue;
		if (vm->boot->step == BOOT_CHECKING)
			atomic_store(&vm->boot->cancel, true);
		else
			boot_stop(vm->boot, WORKERS_CLOSE_GRACE_MS);
	}
	uv_close((uv_handle_t *)&w->tick, on_tick_closed);
}

uv_loop_t *workers_loop(const struct workers *w)
{
	return w->loop;
}

void workers_free(struct workers *w)
{
	if (!w)
		return;
	assert(w->busy == 0);
	while (w->logs) {
		struct worker_log *log = w->logs;

		w->logs = log->next;
		logs_free(log->logs);
		free(log);
	}
	while (w->vms) {
		struct worker_vm *vm = w->vms;

		w->vms = vm->next;
		vm_free_entry(vm);
	}
	roots_done(&w->roots);
	fd_close(&w->root_fd);
	free(w->host_ports);
	free(w);
}
