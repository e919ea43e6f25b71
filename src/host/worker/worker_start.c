/* The way up of a boot, and its end. What happens in threads: check_run (source, lock, manifest,
 * number), write_run (source disk, digests, upper) and save_run (records). A boot that was told to
 * stop while a thread is at work is ended when that thread comes back.
 *
 * Refused before it has a number, a start leaves nothing behind but an empty folder and lock of its
 * VM; from then on every failure is the end of that instance, told by status as well.
 */
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
#include "host/image/source.h"
#include "host/worker/guest_env.h"
#include "host/worker/source.h"
#include "host/worker/worker_priv.h"

#define HOSTNAME     "worker"
#define MEMORY_FLOOR (128ull << 20) /* of what a worker may use, however small its VM is */

/* A thread's errand for a boot. */
struct boot_work {
	struct worker_work work;
	struct boot *b;
	struct worker_record record; /* of a save */
	bool last;		     /* the save that ends the boot */
	int r;
	struct err why;
};

static void boot_queue(struct boot *b, struct worker_vm *vm, struct boot_work *bw,
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

/* --- life of a boot --- */

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
	return b;
}

/* What only the way up needs; the secrets among it most of all. */
static void drop_request(struct boot *b)
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
	manifest_done(&b->manifest);
	worker_record_done(&b->checked);
	strv_free(b->notes);
	free(b->tail);
	free(b);
	worker_unbusy(w);
}

static void boot_free(struct boot *b)
{
	assert(!b->cb && !b->waiters && !b->wait && !b->vmm);
	drop_request(b);
	if (b->dir.fd >= 0)
		vmdir_close(&b->dir);
	if (b->log)
		worker_log_unref(STEAL(b->log));
	uv_close((uv_handle_t *)&b->timer, on_timer_closed);
}

static void answer(struct boot *b, const struct worker_started *s)
{
	workers_started cb = STEAL(b->cb);

	if (cb)
		cb(s, b->user);
}

/* A start that never got a number. */
static void refuse(struct boot *b, const struct err *why)
{
	struct worker_started s = {.why = why};

	answer(b, &s);
	boot_free(b);
}

static void refuse_busy(struct boot *b, const struct worker_vm *vm)
{
	struct worker_started s;
	struct err e = ERR_INIT;

	worker_busy(vm, &s, &e);
	answer(b, &s);
	boot_free(b);
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
	last.state = vm->record.boot.state;
	vm->record.boot = last;
	worker_set_state(vm, b->last.state);
	vm->boot = NULL;
	tell_waiters(b);
	answer(b, &failed);
	boot_free(b);
	worker_maybe_forget(vm);
}

static void save_after(struct worker_work *work)
{
	struct boot_work *bw = CONTAINER_OF(work, struct boot_work, work);
	struct boot *b = bw->b;
	bool last = bw->last;

	/* A disk that is full: what is in memory is told, and after a crash "exited". */
	if (bw->r < 0)
		log_error("the record of a worker VM cannot be written", "vm=%s why=%s", b->vm_id,
			log_quote(bw->why.text));
	worker_record_done(&bw->record);
	free(bw);
	if (last)
		boot_over(b);
}

static void queue_save(struct boot *b, const struct worker_boot *last)
{
	struct boot_work *bw = xcalloc(1, sizeof(*bw));

	worker_record_copy(&b->vm->record, &bw->record);
	bw->record.stop_requested = b->stopping;
	bw->record.pid = b->vmm && !last ? vm_pid(b->vmm) : 0;
	bw->record.pid_start = bw->record.pid ? process_start_time(bw->record.pid) : 0;
	bw->last = last;
	if (last)
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
		worker_log_unref(STEAL(b->log));
	}
	drop_request(b);
	queue_save(b, &b->last);
}

/* A failure on the way up. */
static void fail(struct boot *b, const struct err *why)
{
	struct worker_boot last = boot_nulls(b);

	boot_finish(b, &last, why);
}

/* --- the VM --- */

static void on_ready(struct vm *vmm, void *user)
{
	struct boot *b = user;
	struct worker_started s = {.instance = b->instance};

	log_info("worker VM is up", "vm=%s instance=%" PRIu64 " vmm=%s tier=%s", b->vm_id,
		b->instance, vm_backend_name(vmm),
		vm_tier(vmm) == VM_TIER_HARDWARE ? "hardware" : "emulated");
	b->step = BOOT_UP;
	memcpy(s.vm_id, b->vm_id, sizeof(s.vm_id));
	answer(b, &s);
}

static void on_phase(struct vm *vmm, enum vm_phase phase, void *user)
{
	struct boot *b = user;

	(void)vmm;
	if (phase != VM_PHASE_RUN || b->vm->record.boot.state != WORKER_PREPARING)
		return;
	worker_set_state(b->vm, WORKER_RUNNING);
	boot_save(b);
}

static void on_log(struct vm *vmm, enum vm_stream stream, const void *data, size_t len, void *user)
{
	struct boot *b = user;

	(void)vmm;
	logs_add(b->log->logs, stream == VM_STREAM_CONSOLE ? LOG_CONSOLE : LOG_HOST, data, len,
		worker_now_ms());
}

static void make_job(const struct boot *b, const struct worker_tuning *t, struct worker_job *ret)
{
	const struct manifest *m = &b->manifest;

	*ret = (struct worker_job){
		.kind = b->kind,
		.name = xstrdup(b->worker_name),
		.setup = xstrdup(m->setup),
		.install = xstrdup(m->install),
		.run = guest_env_rewrite(m->start),
		.memory_max_bytes = MAX(((uint64_t)m->mem_mib << 20) / 4 * 3, MEMORY_FLOOR),
		.nofile = t->nofile,
	};
	memcpy(ret->setup_digest, b->setup_digest, sizeof(ret->setup_digest));
	memcpy(ret->install_digest, b->install_digest, sizeof(ret->install_digest));
	memcpy(ret->source_digest, b->source_digest, sizeof(ret->source_digest));
}

static int boot_vm(struct boot *b, struct err *e)
{
	static const struct vm_callbacks cb = {.on_ready = on_ready,
		.on_phase = on_phase,
		.on_log = on_log,
		.on_exit = boot_on_exit};
	const struct vm_net net = {b->w->o.host_ports, b->w->o.n_host_ports};
	struct guest_env_parts parts = {.image = b->img->config.env,
		.manifest = b->manifest.env,
		.request = b->env,
		.worker_name = b->worker_name,
		.engine_url = b->engine_url};
	char **env = guest_env_make(&parts);
	struct worker_tuning tuning;
	struct worker_job job;
	struct vm_spec spec = {
		.label = b->vm_id,
		.backend = b->w->o.backend,
		.vcpus = b->manifest.cpus,
		.mem_mib = b->manifest.mem_mib,
		.base_fd = b->img->disk_fd,
		.upper_fd = b->upper_fd,
		.env = env,
		.hostname = HOSTNAME,
		.net = &net,
		.worker = &job,
		.source_fd = b->source_fd,
	};
	int r;

	worker_tuning_read(&tuning);
	spec.nested_virt = tuning.nested_virt;
	spec.hyperthreads = tuning.hyperthreads;
	make_job(b, &tuning, &job);
	r = vm_start(b->w->loop, &spec, &cb, b, &b->vmm, e);
	worker_job_done(&job);
	strv_free(env);
	if (r < 0)
		err_code(e, "S300");
	return r;
}

static void start_vm(struct boot *b)
{
	struct err e = ERR_INIT;

	if (boot_vm(b, &e) < 0) {
		fail(b, &e);
		return;
	}
	b->step = BOOT_STARTING;
	log_info("worker VM is booting",
		"vm=%s instance=%" PRIu64 " image=%s cpus=%" PRIu32 " memory_mib=%" PRIu32
		" vmm=%s",
		b->vm_id, b->instance, log_quote(b->manifest.base_image), b->manifest.cpus,
		b->manifest.mem_mib, vm_backend_name(b->vmm));
	drop_request(b);
	boot_save(b);
}

/* --- disks --- */

/* At most SOURCE_NOTES_MAX and one. */
static void add_note(const char *line, void *user)
{
	struct boot *b = user;

	strv_add(&b->notes, line);
}

static bool is_cancelled(void *user)
{
	struct boot *b = user;

	return atomic_load(&b->cancel);
}

static void write_run(struct worker_work *work)
{
	struct boot *b = CONTAINER_OF(work, struct boot_work, work)->b;
	struct source_job j = {.dir_fd = b->root.fd,
		.path = b->root.path,
		.kind = b->kind,
		.scratch_dirfd = b->dir.fd,
		.note = add_note,
		.stop = is_cancelled,
		.user = b};

	b->why = ERR_INIT;
	b->r = source_write(&j, &b->source_fd, b->source_digest, &b->why);
	if (b->r >= 0)
		b->r = source_setup_digest(b->img->digest, b->manifest.setup, b->setup_digest);
	if (b->r >= 0)
		b->r = source_install_digest(&j, b->setup_digest, b->source_digest,
			b->manifest.install, b->install_digest, &b->why);
	if (b->r >= 0)
		b->r = vmdir_open_upper(&b->dir, &b->upper_fd, &b->why);
	if (b->r < 0 && !b->why.text[0])
		err_set(&b->why, "S504", -b->r, "the disks of worker VM %s: %s", b->vm_id,
			err_str(b->r));
	err_code(&b->why, "S504");
}

static void write_after(struct worker_work *work)
{
	struct boot_work *bw = CONTAINER_OF(work, struct boot_work, work);
	struct boot *b = bw->b;

	free(bw);
	for (size_t i = 0; b->notes && b->notes[i]; i++)
		boot_say(b, "%s", b->notes[i]);
	if (b->r < 0 || atomic_load(&b->cancel))
		fail(b, &b->why);
	else
		start_vm(b);
}

/* --- the image --- */

static void on_image(struct image *img, const struct err *why, void *user)
{
	struct image_wait *wait = user;
	struct boot *b = wait->boot;

	free(wait);
	if (!b) {
		image_close(img);
		return;
	}
	b->wait = NULL;
	if (!img) {
		fail(b, why);
		return;
	}
	b->img = img;
	b->vm->record.base_digest = xstrdup(img->digest);
	b->step = BOOT_WRITING;
	boot_queue(b, b->vm, xcalloc(1, sizeof(struct boot_work)), write_run, write_after);
}

void boot_forget_image(struct boot *b)
{
	b->wait->boot = NULL;
	b->wait = NULL;
}

static void fetch(struct boot *b)
{
	b->step = BOOT_FETCHING;
	if (b->stopping || b->w->closing) {
		b->stopping = true;
		fail(b, &ERR_INIT);
		return;
	}
	b->wait = xcalloc(1, sizeof(*b->wait));
	b->wait->boot = b;
	b->progress_ms = uv_now(b->w->loop);
	images_get(b->w->o.images, b->manifest.base_image, b->vm->record.base_ref, true, on_image,
		b->wait);
}

/* --- the checks --- */

/* What is in a manifest is not the operator's word: it names images of registries or of the cache,
 * never files of the host. */
static int image_reference(const char *text, char **ret, struct err *e)
{
	struct source_spec spec;
	int r = source_spec_parse(text, &spec, e);

	if (r == 0) {
		r = spec.kind == SOURCE_REGISTRY ? 0 : -EINVAL;
		source_spec_done(&spec);
	}
	if (r < 0)
		return err_set(e, "S500", EINVAL,
			"runtime.base_image is no image reference: %.200s", text);
	*ret = xstrdup(text);
	return 0;
}

static int load_manifest(int dir_fd, const struct manifest_query *q, struct manifest *ret,
	char **ret_ref, struct err *e)
{
	int r = manifest_load(dir_fd, q, ret, e);

	if (r >= 0 && ret->cpus > VM_VCPUS_MAX)
		r = err_set(e, "S400", EINVAL,
			"resources.cpus is %" PRIu32 ": a VM has at most %d vCPUs", ret->cpus,
			VM_VCPUS_MAX);
	if (r >= 0)
		r = image_reference(ret->base_image, ret_ref, e);
	if (r < 0)
		err_code(e, "S500");
	return r;
}

/* The number of the new boot, with the record that says so. */
static int number_run(struct boot *b)
{
	struct worker_record *rec = &b->checked;
	char *ref = STEAL(rec->base_ref);
	uint64_t instance = 0;
	int r;

	r = vmdir_load(&b->dir, rec, &b->why);
	if (r >= 0) {
		vmdir_settle(&b->dir, rec, worker_now_ms());
		r = vmdir_next_instance(&b->dir, rec->boot.instance, &instance, &b->why);
	}
	if (r < 0) {
		free(ref);
		return r;
	}
	worker_record_next(rec, instance, worker_now_ms());
	free(rec->worker_name);
	free(rec->source_path);
	free(rec->base_ref);
	free(rec->base_digest);
	rec->worker_name = xstrdup(b->worker_name);
	rec->source_path = xstrdup(b->root.path);
	rec->base_ref = ref;
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
	b->r = vmdir_open(b->w->root_fd, b->vm_id, false, &b->dir, &b->why);
	b->locked_elsewhere = b->r == -EBUSY;
	if (b->r < 0)
		b->dir.fd = -1;
	if (b->r < 0 && b->r != -ENOENT)
		return;
	b->r = load_manifest(b->root.fd, &q, &b->manifest, &b->checked.base_ref, &b->why);
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
	err_code(&b->why, "S504");
}

static void check_start(struct boot *b);

void boot_next_contender(struct worker_vm *vm)
{
	struct boot *b = vm->contenders;

	if (vm->boot || !b)
		return;
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
	if (b->locked_elsewhere)
		refuse_busy(b, vm);
	else
		refuse(b, &b->why);
	boot_next_contender(vm);
	worker_maybe_forget(vm);
}

static int open_log(struct boot *b, struct err *e)
{
	int r = worker_log_open(b->vm, b->instance, &b->log, e);

	if (r >= 0)
		r = logs_restart(b->log->logs, b->instance, e);
	err_code(e, "S504");
	return r;
}

static void check_after(struct worker_work *work)
{
	struct boot_work *bw = CONTAINER_OF(work, struct boot_work, work);
	struct boot *b = bw->b;
	struct worker_vm *vm = b->vm;
	struct err e = ERR_INIT;

	free(bw);
	if (b->r < 0) {
		checked_badly(b);
		return;
	}
	worker_record_done(&vm->record);
	vm->record = b->checked;
	b->checked = (struct worker_record){0};
	b->instance = vm->record.boot.instance;
	assert(vm->record.boot.state == WORKER_PREPARING);
	b->step = BOOT_FETCHING;
	refuse_contenders(vm);
	if (open_log(b, &e) < 0) {
		fail(b, &e);
		return;
	}
	log_info("worker VM is preparing", "vm=%s instance=%" PRIu64 " worker=%s source=%s",
		b->vm_id, b->instance, log_quote(b->worker_name), log_quote(b->root.path));
	for (size_t i = 0; b->manifest.warnings && b->manifest.warnings[i]; i++) {
		log_warn("manifest of a worker", "vm=%s warning=%s", b->vm_id,
			log_quote(b->manifest.warnings[i]));
		boot_say(b, "%s: %s", MANIFEST_FILE, b->manifest.warnings[i]);
	}
	fetch(b);
}

static void check_start(struct boot *b)
{
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
	b = boot_new(w, s, cb, user);
	boot_queue(b, NULL, xcalloc(1, sizeof(struct boot_work)), roots_run, roots_after);
}

/* --- prepare --- */

struct prepare {
	struct worker_work work;
	struct workers *w;
	enum worker_kind kind;
	char *host_path, *package, *run_override, *image, *ref;
	int r;
	struct err why;
	workers_done cb;
	void *user;
};

static void prepare_end(struct prepare *p, const struct err *why)
{
	struct workers *w = p->w;

	p->cb(why, p->user);
	free(p->host_path);
	free(p->package);
	free(p->run_override);
	free(p->image);
	free(p->ref);
	free(p);
	worker_unbusy(w);
}

static void prepare_run(struct worker_work *work)
{
	struct prepare *p = CONTAINER_OF(work, struct prepare, work);
	const struct manifest_query q = {
		.kind = p->kind, .package = p->package, .run_override = p->run_override};
	struct manifest m = {0};
	struct root_dir root = {.fd = -1};

	p->r = roots_open(&p->w->roots, p->host_path, &root, &p->why);
	err_code(&p->why, "S501");
	if (p->r < 0)
		return;
	p->r = load_manifest(root.fd, &q, &m, &p->ref, &p->why);
	p->image = STEAL(m.base_image);
	manifest_done(&m);
	root_dir_done(&root);
}

static void on_prepared(struct image *img, const struct err *why, void *user)
{
	image_close(img);
	prepare_end(user, why);
}

static void prepare_after(struct worker_work *work)
{
	struct prepare *p = CONTAINER_OF(work, struct prepare, work);

	if (p->w->closing)
		p->r = worker_refuse(p->w, &p->why);
	if (p->r < 0)
		prepare_end(p, &p->why);
	else
		images_get(p->w->o.images, p->image, p->ref, true, on_prepared, p);
}

void workers_prepare(struct workers *w, const struct worker_source *s, workers_done cb, void *user)
{
	struct prepare *p;
	struct err e = ERR_INIT;

	if (worker_refuse(w, &e) < 0) {
		cb(&e, user);
		return;
	}
	p = xcalloc(1, sizeof(*p));
	*p = (struct prepare){.work = {.run = prepare_run, .after = prepare_after},
		.w = w,
		.kind = s->kind,
		.host_path = xstrdup(s->host_path),
		.package = xstrdup(s->package),
		.run_override = xstrdup(s->run_override),
		.cb = cb,
		.user = user};
	w->busy++;
	worker_queue(w, NULL, &p->work);
}
