/* From a number to a running worker: image, disks, VM. write_run() is a thread's: source disk,
 * digests, upper, where the engine is. A boot that was told to stop meanwhile ends when the thread
 * comes back. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/worker/guest_env.h"
#include "host/worker/source.h"
#include "host/worker/worker_priv.h"

#define HOSTNAME	"worker"
#define BOOT_TIMEOUT_MS 20000	       /* without an agent by then, start fails with S300 */
#define MEMORY_FLOOR	(128ull << 20) /* of what a worker may use, however small its VM is */

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
	boot_answer(b, &s);
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
	boot_log(b, stream == VM_STREAM_CONSOLE ? LOG_CONSOLE : LOG_HOST, data, len);
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

/* What the guest may reach of this host: the daemon's list, and the engine of this request. */
static uint16_t *ports_of(const struct boot *b)
{
	const struct workers_options *o = &b->w->o;
	uint16_t *ports = xcalloc(o->n_host_ports + 1, sizeof(*ports));

	if (o->n_host_ports)
		memcpy(ports, o->host_ports, o->n_host_ports * sizeof(*ports));
	ports[o->n_host_ports] = b->engine_port;
	return ports;
}

static int boot_vm(struct boot *b, struct err *e)
{
	static const struct vm_callbacks cb = {.on_ready = on_ready,
		.on_phase = on_phase,
		.on_log = on_log,
		.on_exit = boot_on_exit};
	cleanup_free uint16_t *ports = ports_of(b);
	const struct vm_net net = {ports, b->w->o.n_host_ports + (b->engine_port != 0)};
	struct guest_env_parts parts = {.image = b->img->config.env,
		.manifest = b->manifest.env,
		.request = b->env,
		.worker_name = b->worker_name,
		.engine_url = b->guest_url};
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
		.boot_timeout_ms = BOOT_TIMEOUT_MS,
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
		boot_fail(b, &e);
		return;
	}
	b->step = BOOT_STARTING;
	log_info("worker VM is booting",
		"vm=%s instance=%" PRIu64 " image=%s cpus=%" PRIu32 " memory_mib=%" PRIu32
		" vmm=%s",
		b->vm_id, b->instance, log_quote(b->manifest.base_image), b->manifest.cpus,
		b->manifest.mem_mib, vm_backend_name(b->vmm));
	boot_drop_request(b);
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

static int write_source(struct boot *b, struct err *e)
{
	struct source_job j = {.dir_fd = b->root.fd,
		.path = b->root.path,
		.kind = b->kind,
		.scratch_dirfd = b->dir.fd,
		.note = add_note,
		.stop = is_cancelled,
		.user = b};
	bool local = b->kind == WORKER_LOCAL;
	const char *install = b->manifest.install;
	int r = 0;

	source_setup_digest(b->img->digest, b->manifest.setup, b->setup_digest);
	/* A bundle's depends on what was written; a local one's comes first (source.h). */
	if (r >= 0 && local)
		r = source_install_digest(&j, b->setup_digest, "", install, b->install_digest, e);
	if (r >= 0)
		r = source_write(&j, &b->source_fd, b->source_digest, e);
	if (r >= 0 && !local)
		r = source_install_digest(
			&j, b->setup_digest, b->source_digest, install, b->install_digest, e);
	return r;
}

static void write_run(struct worker_work *work)
{
	struct boot *b = CONTAINER_OF(work, struct boot_work, work)->b;

	b->why = ERR_INIT;
	b->r = -ECANCELED;
	if (is_cancelled(b))
		return;
	b->guest_url = guest_env_find_engine(b->engine_url, &b->engine_port);
	b->r = write_source(b, &b->why);
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
	b->writing = NULL;
	for (size_t i = 0; b->notes && b->notes[i]; i++)
		boot_say(b, "%s", b->notes[i]);
	if (b->r < 0 || atomic_load(&b->cancel))
		boot_fail(b, &b->why);
	else
		start_vm(b);
}

/* --- the image --- */

static void on_image(struct image *img, const struct err *why, void *user)
{
	struct image_wait *wait = user;
	struct boot *b = wait->boot;
	struct boot_work *bw;

	free(wait);
	if (!b) {
		image_close(img);
		return;
	}
	b->wait = NULL;
	if (!img) {
		boot_fail(b, why);
		return;
	}
	b->img = img;
	b->vm->record.base_digest = xstrdup(img->digest);
	b->step = BOOT_WRITING;
	bw = xcalloc(1, sizeof(*bw));
	bw->work.is_long = true;
	b->writing = &bw->work;
	boot_queue(b, b->vm, bw, write_run, write_after);
}

void boot_forget_image(struct boot *b)
{
	b->wait->boot = NULL;
	b->wait = NULL;
}

void boot_fetch(struct boot *b)
{
	b->step = BOOT_FETCHING;
	if (b->stopping || b->w->closing) {
		b->stopping = true;
		boot_fail(b, &ERR_INIT);
		return;
	}
	b->wait = xcalloc(1, sizeof(*b->wait));
	b->wait->boot = b;
	b->progress_ms = uv_now(b->w->loop);
	images_get(b->w->o.images, b->manifest.base_image, b->vm->record.base_ref, true, on_image,
		b->wait);
}
