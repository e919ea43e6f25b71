/* A start up to its number. In threads: roots_run (where the source is), then, for one start of a
 * VM at a time, check_run (lock, manifest, number, record).
 *
 * Starts of a VM whose outcome is open wait for it: they are refused with the number that another
 * got, or take their turn. Refused before it has a number, a start leaves nothing behind but an
 * empty folder and lock of its VM; from then on every failure is the end of that instance, told by
 * status as well.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/worker/record_priv.h"
#include "host/worker/worker_priv.h"

static struct boot *boot_new(
	struct workers *w, const struct worker_start *s, workers_started cb, void *user)
{
	struct boot *b = xcalloc(1, sizeof(*b));

	*b = (struct boot){
		.w = w,
		.kind = s->source.kind,
		.host_path = xstrdup(s->source.host_path),
		.package = xstrdup(s->source.package),
		.run_override = xstrdup(s->source.run_override),
		.worker_name = xstrdup(s->worker_name),
		.engine_url = xstrdup(s->engine_url),
		.env = strv_dup(s->env),
		.cb = cb,
		.user = user,
		.root = {.fd = -1},
		.dir = {.fd = -1, .lock_fd = -1, .root_fd = w->root_fd},
		.upper_fd = -1,
		.source_fd = -1,
	};
	worker_vm_id(s->state_key, b->vm_id);
	uv_timer_init(w->loop, &b->timer);
	b->timer.data = b;
	w->busy++;
	w->unnumbered++;
	return b;
}

/* A start that never got a number. */
static void refuse(struct boot *b, const struct err *why)
{
	struct worker_started s = {.why = why};

	b->w->unnumbered--;
	boot_answer(b, &s);
	boot_free(b);
}

static void refuse_busy(struct boot *b, const struct worker_vm *vm)
{
	struct worker_started s;
	struct err e = ERR_INIT;

	worker_busy(vm, &s, &e);
	b->w->unnumbered--;
	boot_answer(b, &s);
	boot_free(b);
}

/* --- the checks --- */

/* The number of the new boot, with the record that says so. */
static int number_run(struct boot *b)
{
	struct worker_record *rec = &b->checked;
	uint64_t instance = 0;
	int r;

	r = vmdir_load(&b->dir, rec, &b->why);
	if (r >= 0) {
		/* Its end has been told, even if the disk was too full to keep it. */
		if (rec->boot.instance == b->before.instance && worker_boot_ended(&b->before))
			rec->boot = b->before;
		vmdir_settle(&b->dir, rec, worker_now_ms());
		r = vmdir_next_instance(&b->dir, rec->boot.instance, &instance, &b->why);
	}
	if (r < 0)
		return r;
	worker_record_next(rec, instance, worker_now_ms());
	free(rec->worker_name);
	free(rec->source_path);
	free(rec->base_ref);
	free(rec->base_digest);
	rec->worker_name = xstrdup(b->worker_name);
	rec->source_path = xstrdup(b->root.path);
	rec->base_ref = xstrdup(b->manifest.base_image);
	rec->base_digest = NULL;
	rec->kind = b->kind;
	rec->stop_requested = false;
	return vmdir_save(&b->dir, rec, &b->why);
}

static void check_run(struct worker_work *work)
{
	struct boot *b = CONTAINER_OF(work, struct boot_work, work)->b;
	const struct manifest_query q = {
		.kind = b->kind, .package = b->package, .run_override = b->run_override};

	/* A VM in use comes before a bad manifest; a bad manifest makes no folder. */
	b->why = ERR_INIT;
	b->r = -ECANCELED;
	if (atomic_load(&b->cancel))
		return;
	b->r = vmdir_open(b->w->root_fd, b->vm_id, false, &b->dir, &b->why);
	b->locked_elsewhere = b->r == -EBUSY;
	if (b->r < 0)
		b->dir.fd = -1;
	if (b->r < 0 && b->r != -ENOENT)
		return;
	b->r = worker_load_manifest(b->root.fd, &q, &b->manifest, &b->why);
	if (b->r < 0)
		return;
	if (b->dir.fd < 0) {
		b->r = vmdir_open(b->w->root_fd, b->vm_id, true, &b->dir, &b->why);
		b->locked_elsewhere = b->r == -EBUSY;
		if (b->r < 0)
			b->dir.fd = -1;
	}
	if (b->r >= 0)
		b->r = number_run(b);
	/* It has a number now, whatever becomes of its log. */
	if (b->r >= 0)
		logs_create(b->dir.fd, b->checked.boot.instance, &b->made_log, &b->why);
	err_code(&b->why, "S504");
}

static void check_start(struct boot *b);

/* The adapter is shutting down. */
static void refuse_all(struct worker_vm *vm)
{
	struct err e = ERR_INIT;

	worker_refuse(vm->w, &e);
	while (vm->contenders) {
		struct boot *b = vm->contenders;

		vm->contenders = b->next;
		refuse(b, &e);
	}
}

void boot_next_contender(struct worker_vm *vm)
{
	struct boot *b = vm->contenders;

	if (vm->boot || !b)
		return;
	if (vm->w->closing) {
		refuse_all(vm);
		return;
	}
	vm->contenders = b->next;
	vm->boot = b;
	check_start(b);
}

static void refuse_contenders(struct worker_vm *vm)
{
	while (vm->contenders) {
		struct boot *b = vm->contenders;

		vm->contenders = b->next;
		refuse_busy(b, vm);
	}
}

static void checked_badly(struct boot *b)
{
	struct worker_vm *vm = b->vm;

	vm->boot = NULL;
	if (b->w->closing)
		worker_refuse(b->w, &b->why);
	if (b->locked_elsewhere)
		refuse_busy(b, vm);
	else
		refuse(b, &b->why);
	boot_next_contender(vm);
	worker_maybe_forget(vm);
}

static void check_after(struct worker_work *work)
{
	struct boot_work *bw = CONTAINER_OF(work, struct boot_work, work);
	struct boot *b = bw->b;
	struct worker_vm *vm = b->vm;

	free(bw);
	if (b->r < 0) {
		checked_badly(b);
		return;
	}
	worker_record_done(&vm->record);
	vm->record = b->checked;
	b->checked = (struct worker_record){0};
	b->instance = vm->record.boot.instance;
	b->w->unnumbered--;
	assert(vm->record.boot.state == WORKER_PREPARING);
	b->step = BOOT_FETCHING;
	refuse_contenders(vm);
	worker_logs_retire(vm);
	if (!b->made_log) {
		boot_fail(b, &b->why);
		return;
	}
	b->log = worker_log_add(vm, STEAL(b->made_log));
	log_info("worker VM is preparing", "vm=%s instance=%" PRIu64 " worker=%s source=%s",
		b->vm_id, b->instance, log_quote(b->worker_name), log_quote(b->root.path));
	for (size_t i = 0; b->manifest.warnings && b->manifest.warnings[i]; i++) {
		log_warn("manifest of a worker", "vm=%s warning=%s", b->vm_id,
			log_quote(b->manifest.warnings[i]));
		boot_say(b, "%s: %s", MANIFEST_FILE, b->manifest.warnings[i]);
	}
	boot_fetch(b);
}

static void check_start(struct boot *b)
{
	b->before = b->vm->record.boot;
	boot_queue(b, b->vm, xcalloc(1, sizeof(struct boot_work)), check_run, check_after);
}

/* --- the host roots --- */

static void roots_run(struct worker_work *work)
{
	struct boot *b = CONTAINER_OF(work, struct boot_work, work)->b;

	b->r = roots_open(&b->w->roots, b->host_path, &b->root, &b->why);
	err_code(&b->why, "S501");
}

static void roots_after(struct worker_work *work)
{
	struct boot_work *bw = CONTAINER_OF(work, struct boot_work, work);
	struct boot *b = bw->b, **at;
	struct worker_vm *vm;

	free(bw);
	if (b->w->closing)
		b->r = worker_refuse(b->w, &b->why);
	if (b->r < 0) {
		refuse(b, &b->why);
		return;
	}
	vm = b->vm = worker_get(b->w, b->vm_id);
	if (vm->boot && vm->boot->step != BOOT_CHECKING) {
		refuse_busy(b, vm);
		return;
	}
	for (at = &vm->contenders; *at; at = &(*at)->next)
		;
	*at = b;
	boot_next_contender(vm);
}

void workers_start(struct workers *w, const struct worker_start *s, workers_started cb, void *user)
{
	struct boot *b;
	struct err e = ERR_INIT;

	if (worker_refuse(w, &e) < 0) {
		cb(&(struct worker_started){.why = &e}, user);
		return;
	}
	if (w->unnumbered == WORKERS_WAITING_MAX) {
		err_set(&e, "S400", EAGAIN,
			"%d starts of worker VMs wait to be checked: try again later",
			WORKERS_WAITING_MAX);
		cb(&(struct worker_started){.why = &e}, user);
		return;
	}
	b = boot_new(w, s, cb, user);
	boot_queue(b, NULL, xcalloc(1, sizeof(struct boot_work)), roots_run, roots_after);
}
