/* The way down: stop, the end of a VM, destroy.
 *
 * A stop before the VM exists breaks the work off; while it boots, nothing of the worker has run
 * yet and the VM is killed; afterwards the guest is asked to end within the grace. One timer stands
 * behind the grace (then: kill) and then behind the kill (then: S504). Any number of stops wait for
 * the same end; only an earlier deadline changes anything. After an S504 the next stop, or the end
 * of the daemon, kills and waits once more.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/worker/worker_priv.h"

/* Whatever ends a VM has had its time before a stop gives it up. */
static_assert(VM_LEAVE_MS + VM_KILL_LATE_MS < WORKERS_KILL_MS, "stop gives up too early");

/* --- the end of a VM --- */

void boot_attribute(const struct vm_exit *x, struct worker_boot *ret)
{
	int signal = x->signal;

	ret->has_exit_code = ret->has_signal = false;
	ret->exit_code = ret->signal = 0;
	/* The guest's own word comes first; a signal in the guest is 128 and its number. */
	if (x->guest_status >= 0) {
		ret->has_exit_code = true;
		ret->exit_code = x->guest_status;
		return;
	}
	if (x->end == VM_END_GUEST_CRASH)
		return;
	/* The supervisor kills with this one, and need not have lived to say so. */
	if (!signal && (x->end == VM_END_STOPPED || x->end == VM_END_BOOT_TIMEOUT))
		signal = SIGKILL;
	ret->has_signal = signal != 0;
	ret->signal = signal;
	ret->has_exit_code = !signal && x->status != 0;
	ret->exit_code = ret->has_exit_code ? x->status : 0;
}

static void say_end(struct boot *b, const struct vm_exit *x, const struct worker_boot *last)
{
	if (last->has_exit_code)
		boot_say(b, "the worker VM has ended: exit code %d", last->exit_code);
	else
		boot_say(b, "the worker VM has ended: %s", x->why.text);
	log_info("worker VM has ended", "vm=%s instance=%" PRIu64 " exit_code=%d signal=%d why=%s",
		b->vm_id, b->instance, last->has_exit_code ? last->exit_code : -1,
		last->has_signal ? last->signal : 0,
		log_quote(x->end == VM_END_CLEAN ? "" : x->why.text));
}

void boot_on_exit(struct vm *vmm, const struct vm_exit *x, void *user)
{
	struct boot *b = user;
	struct worker_boot last = boot_nulls(b);
	struct err why = x->why;

	/* Of a VM that never was up, nothing of the worker has ended. */
	if (b->step == BOOT_UP || b->stopping)
		boot_attribute(x, &last);
	say_end(b, x, &last);
	if (b->cb)
		b->tail = xstrdup(x->tail);
	b->vmm = NULL;
	vm_free(vmm);
	err_code(&why, "S300");
	boot_finish(b, &last, &why);
}

/* --- stop --- */

static void on_give_up(uv_timer_t *t)
{
	struct boot *b = t->data;
	struct worker_boot now = b->vm->record.boot;
	struct err e = ERR_INIT;

	err_set(&e, "S504", ETIMEDOUT,
		"worker VM %s (instance %" PRIu64
		") was killed and is still there %d ms after the end of its grace; look for its "
		"processes on the host",
		b->vm_id, b->instance, WORKERS_KILL_MS);
	log_error("a worker VM cannot be killed", "vm=%s instance=%" PRIu64 " pid=%d", b->vm_id,
		b->instance, vm_pid(b->vmm));
	while (b->waiters) {
		struct stop_waiter *sw = b->waiters;

		b->waiters = sw->next;
		sw->cb(&now, &e, sw->user);
		free(sw);
	}
	/* The daemon does not stay for it; the next start looks for what is left. */
	if (b->w->closing)
		boot_abandon(b, &e);
}

static void kill_now(struct boot *b)
{
	uint64_t until = b->deadline_ms + WORKERS_KILL_MS, now = uv_now(b->w->loop);

	vm_kill(b->vmm);
	uv_timer_start(&b->timer, on_give_up, until > now ? until - now : 0, 0);
}

/* Killed in vain, and told so. */
static bool gave_up(const struct boot *b)
{
	return b->vmm && b->stopping && !uv_is_active((const uv_handle_t *)&b->timer);
}

static void on_deadline(uv_timer_t *t)
{
	kill_now(t->data);
}

static void stop_running(struct boot *b, uint64_t grace_ms)
{
	if (grace_ms == 0) {
		kill_now(b);
		return;
	}
	vm_shutdown(b->vmm, (uint32_t)grace_ms);
	uv_timer_start(&b->timer, on_deadline, grace_ms + VM_LEAVE_MS, 0);
}

void boot_stop(struct boot *b, uint64_t grace_ms)
{
	uint64_t deadline;
	bool first = !b->stopping;
	struct worker_boot last;

	grace_ms = MIN(grace_ms, (uint64_t)WORKERS_GRACE_MAX_MS);
	uv_update_time(b->w->loop);
	deadline = uv_now(b->w->loop) + grace_ms;
	if (gave_up(b)) {
		b->deadline_ms = uv_now(b->w->loop);
		kill_now(b);
		return;
	}
	if (b->step == BOOT_ENDING || (!first && deadline >= b->deadline_ms))
		return;
	b->stopping = true;
	b->deadline_ms = deadline;
	switch (b->step) {
	case BOOT_FETCHING:
		boot_forget_image(b);
		last = boot_nulls(b);
		boot_finish(b, &last, &ERR_INIT);
		break;
	case BOOT_WRITING:
		atomic_store(&b->cancel, true);
		worker_hurry(b->writing);
		break;
	case BOOT_STARTING:
		b->deadline_ms = uv_now(b->w->loop);
		kill_now(b);
		break;
	case BOOT_UP:
		stop_running(b, grace_ms);
		if (first)
			boot_save(b);
		break;
	case BOOT_CHECKING:
	case BOOT_ENDING:
		assert(false);
	}
}

void workers_stop(struct workers *w, const char *vm_id, uint64_t instance, uint64_t grace_ms,
	workers_stopped cb, void *user)
{
	struct worker_vm *vm = worker_find(w, vm_id);
	struct boot *b = vm ? vm->boot : NULL;
	struct stop_waiter *sw, **at;
	struct worker_boot now;
	struct err e = ERR_INIT;

	if (!b || !instance || b->instance != instance) {
		workers_status(w, vm_id, instance, &now);
		if (vm && worker_is_elsewhere(vm) && vm->record.boot.instance == instance)
			err_set(&e, "S504", EBUSY,
				"worker VM %s (instance %" PRIu64
				") is run by another adapter of this host; stop it there",
				vm->vm_id, instance);
		cb(&now, e.text[0] ? &e : NULL, user);
		return;
	}
	sw = xcalloc(1, sizeof(*sw));
	sw->cb = cb;
	sw->user = user;
	for (at = &b->waiters; *at; at = &(*at)->next)
		;
	*at = sw;
	boot_stop(b, grace_ms);
}

/* --- destroy --- */

struct destroy {
	struct worker_work work;
	char vm_id[WORKER_ID_LEN + 1];
	bool existed;
	int r;
	struct err why;
	workers_destroyed cb;
	void *user;
};

static void destroy_run(struct worker_work *work)
{
	struct destroy *d = CONTAINER_OF(work, struct destroy, work);
	struct worker_record rec = {0};
	struct vmdir dir;

	d->r = vmdir_open(work->w->root_fd, d->vm_id, false, &dir, &d->why);
	if (d->r == -ENOENT) {
		d->r = 0;
		return;
	}
	if (d->r >= 0) {
		d->existed = true;
		/* Another daemon may have died over it since ours was started. */
		if (vmdir_load(&dir, &rec, NULL) >= 0)
			vmdir_settle(&dir, &rec, worker_now_ms());
		worker_record_done(&rec);
		d->r = vmdir_destroy(&dir, &d->why);
	}
	err_code(&d->why, "S504");
}

static void destroy_after(struct worker_work *work)
{
	struct destroy *d = CONTAINER_OF(work, struct destroy, work);
	struct worker_vm *vm = work->vm;
	struct worker_started busy;

	if (d->r == -EBUSY) {
		worker_busy(vm, &busy, &d->why);
		d->cb(false, &busy, &d->why, d->user);
	} else if (d->r < 0) {
		d->cb(false, NULL, &d->why, d->user);
	} else {
		worker_forget(vm);
		if (d->existed)
			log_info("worker VM is destroyed", "vm=%s", d->vm_id);
		d->cb(d->existed, NULL, NULL, d->user);
	}
	free(d);
	worker_maybe_forget(vm);
}

void workers_destroy(struct workers *w, const char *state_key, workers_destroyed cb, void *user)
{
	struct destroy *d = xcalloc(1, sizeof(*d));
	struct worker_started busy;
	struct worker_vm *vm;
	struct err e = ERR_INIT;

	worker_vm_id(state_key, d->vm_id);
	vm = worker_find(w, d->vm_id);
	if (worker_refuse(w, &e) < 0) {
		free(d);
		cb(false, NULL, &e, user);
		return;
	}
	if (vm && vm->boot) {
		free(d);
		worker_busy(vm, &busy, &e);
		cb(false, &busy, &e, user);
		return;
	}
	d->work.run = destroy_run;
	d->work.after = destroy_after;
	d->cb = cb;
	d->user = user;
	worker_queue(w, worker_get(w, d->vm_id), &d->work);
}
