/* The life of worker VMs with VMs and images of the test's own: states, numbers, who is told what,
 * and what is on disk at each moment. Folders, records, logs and threads are real. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/worker/worker_priv.h"

#define HANG_GUARD_MS 60000

/* --- VMs that do what the test says --- */

struct vm {
	const struct vm_callbacks *cb;
	void *user;
	bool killed, freed;
	unsigned shutdowns;
	uint32_t grace_ms, log_pause_ms;
};

static struct {
	struct vm *vm; /* the newest */
	unsigned started;
	bool refuse;
	char run[64], url[128];
	uint32_t vcpus, timeout_ms;
	uint16_t ports[4];
	size_t n_ports;
	int pid; /* 0: none that the next daemon might kill */
} fake;

int vm_start(uv_loop_t *loop, const struct vm_spec *spec, const struct vm_callbacks *cb, void *user,
	struct vm **ret, struct err *e)
{
	const char *url = strv_env_get(spec->env, "III_URL");

	assert_non_null(spec->worker);
	assert_non_null(spec->net);
	assert_true(spec->source_fd >= 0 && spec->upper_fd >= 0 && spec->base_fd >= 0);
	if (fake.refuse)
		return err_set(e, "S300", ENOTSUP, "no hypervisor here");
	snprintf(fake.run, sizeof(fake.run), "%s", spec->worker->run);
	snprintf(fake.url, sizeof(fake.url), "%s", url ? url : "");
	fake.vcpus = spec->vcpus;
	fake.timeout_ms = spec->boot_timeout_ms;
	fake.n_ports = spec->net->n_host_ports;
	assert_true(fake.n_ports <= ARRAY_LEN(fake.ports));
	memcpy(fake.ports, spec->net->host_ports, fake.n_ports * sizeof(*fake.ports));
	fake.vm = xcalloc(1, sizeof(*fake.vm));
	*fake.vm = (struct vm){.cb = cb, .user = user};
	fake.started++;
	*ret = fake.vm;
	return 0;
}

enum vm_tier vm_tier(const struct vm *vm)
{
	return VM_TIER_EMULATED;
}

const char *vm_backend_name(const struct vm *vm)
{
	return "fake";
}

int vm_pid(const struct vm *vm)
{
	return fake.pid;
}

void vm_log_pause(struct vm *vm, uint32_t ms)
{
	vm->log_pause_ms = ms;
}

void vm_shutdown(struct vm *vm, uint32_t grace_ms)
{
	vm->shutdowns++;
	vm->grace_ms = grace_ms;
}

void vm_kill(struct vm *vm)
{
	vm->killed = true;
}

void vm_free(struct vm *vm)
{
	vm->freed = true;
	if (fake.vm == vm)
		fake.vm = NULL;
	free(vm);
}

static void vm_ends(enum vm_end end, int guest_status)
{
	struct vm_exit x = {.end = end, .guest_status = guest_status, .tail = "last words"};

	err_set(&x.why, "S300", EIO, "it ended");
	fake.vm->cb->on_exit(fake.vm, &x, fake.vm->user);
}

/* --- a disk that is full --- */

static atomic_bool disk_full;

int fsync(int fd)
{
	if (atomic_load(&disk_full)) {
		errno = ENOSPC;
		return -1;
	}
	return (int)syscall(SYS_fsync, fd);
}

/* --- images --- */

static struct {
	uv_mutex_t lock;
	uv_cond_t released;
	bool hold, slow;
} store;

int image_open(const char *name, struct image **ret, struct err *e)
{
	static char *none[] = {NULL};
	bool held;

	uv_mutex_lock(&store.lock);
	held = store.hold;
	uv_mutex_unlock(&store.lock);
	if (held)
		return err_set(e, "S101", ENOENT, "not here");
	*ret = xcalloc(1, sizeof(**ret));
	**ret = (struct image){.digest = "sha256:1", .config = {.env = none}};
	(*ret)->disk_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return 0;
}

int image_fetch(const char *source, const char *as, image_progress_fn progress, void *user,
	bool (*cancelled)(void *user), struct err *e)
{
	uv_mutex_lock(&store.lock);
	while (store.hold && !cancelled(user))
		uv_cond_timedwait(&store.released, &store.lock, 20 * 1000 * 1000);
	uv_mutex_unlock(&store.lock);
	return cancelled(user) ? err_set(e, "", ECANCELED, "broken off") : 0;
}

void image_close(struct image *img)
{
	if (img)
		fd_close(&img->disk_fd);
	free(img);
}

static void set_hold(bool hold)
{
	uv_mutex_lock(&store.lock);
	store.hold = hold;
	uv_cond_broadcast(&store.released);
	uv_mutex_unlock(&store.lock);
}

/* --- the rig --- */

struct rig {
	uv_loop_t loop;
	uv_timer_t guard;
	struct images *images;
	struct workers *w;
	char dir[64];
	unsigned closed;
};

struct answer {
	unsigned calls;
	struct err why; /* text "": none */
	char vm_id[WORKER_ID_LEN + 1];
	uint64_t instance;
	struct worker_boot boot;
	bool existed;
};

static void on_guard(uv_timer_t *t)
{
	fail_msg("hung");
}

static void on_closed(void *user)
{
	((struct rig *)user)->closed++;
}

static void rig_open(struct rig *r)
{
	static const uint16_t ports[] = {49134};

	r->closed = 0;
	r->images = images_new(&r->loop);
	r->w = workers_new(
		&r->loop, &(struct workers_options){
				  .images = r->images, .host_ports = ports, .n_host_ports = 1});
}

static int set_up(void **state)
{
	struct rig *r = xcalloc(1, sizeof(*r));
	cleanup_free char *source = NULL, *file = NULL;
	int fd;

	memset(&fake, 0, sizeof(fake));
	snprintf(r->dir, sizeof(r->dir), "/var/tmp/test_worker.XXXXXX");
	assert_non_null(mkdtemp(r->dir));
	source = path_join(r->dir, "w");
	file = path_join(source, MANIFEST_FILE);
	assert_int_equal(mkdir(source, 0700), 0);
	fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	dprintf(fd, "name: w\nruntime: {base_image: 'some/image'}\nscripts: {start: run it, "
		    "install: ''}\n");
	close(fd);
	setenv("III_SANDBOX_STATE_DIR", r->dir, 1);
	setenv("III_SANDBOX_CACHE_DIR", r->dir, 1);
	setenv("III_SANDBOX_PROJECT_DIR", r->dir, 1);
	setenv("III_SANDBOX_PACKAGE_CACHE", r->dir, 1);
	set_hold(false);
	uv_loop_init(&r->loop);
	uv_timer_init(&r->loop, &r->guard);
	uv_timer_start(&r->guard, on_guard, HANG_GUARD_MS, 0);
	rig_open(r);
	*state = r;
	return 0;
}

/* An orderly end; VMs that were told to go do. */
static void rig_close(struct rig *r)
{
	workers_close(r->w, on_closed, r);
	images_close(r->images, on_closed, r);
	while (r->closed < 2) {
		if (fake.vm && (fake.vm->killed || fake.vm->shutdowns))
			vm_ends(VM_END_CLEAN, 0);
		uv_run(&r->loop, UV_RUN_ONCE);
	}
	workers_free(r->w);
}

static int tear_down(void **state)
{
	struct rig *r = *state;

	set_hold(false);
	rig_close(r);
	uv_close((uv_handle_t *)&r->guard, NULL);
	uv_run(&r->loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&r->loop), 0);
	assert_null(fake.vm);
	assert_int_equal(path_remove_at(AT_FDCWD, r->dir), 0);
	free(r);
	return 0;
}

static void wait_for(struct rig *r, const unsigned *calls, unsigned n)
{
	while (*calls < n)
		uv_run(&r->loop, UV_RUN_ONCE);
}

static void on_started(const struct worker_started *s, void *user)
{
	struct answer *a = user;

	a->calls++;
	if (s->why)
		a->why = *s->why;
	memcpy(a->vm_id, s->vm_id, sizeof(a->vm_id));
	a->instance = s->instance;
}

static void on_stopped(const struct worker_boot *b, const struct err *why, void *user)
{
	struct answer *a = user;

	a->calls++;
	a->boot = *b;
	if (why)
		a->why = *why;
}

static void on_destroyed(
	bool existed, const struct worker_started *busy, const struct err *why, void *user)
{
	struct answer *a = user;

	a->calls++;
	a->existed = existed;
	if (why)
		a->why = *why;
	if (busy)
		a->instance = busy->instance;
}

static void start(struct rig *r, const char *key, struct answer *a)
{
	cleanup_free char *path = path_join(r->dir, "w");
	struct worker_start s = {
		.source = {.kind = WORKER_LOCAL, .host_path = path},
		.state_key = key,
		.worker_name = "w",
		.engine_url = "ws://127.0.0.1:49135",
	};

	*a = (struct answer){0};
	workers_start(r->w, &s, on_started, a);
}

/* Until its VM boots. */
static void start_vm(struct rig *r, struct answer *a)
{
	unsigned n = fake.started + 1;

	start(r, "k", a);
	wait_for(r, &fake.started, n);
}

static void boot(struct rig *r, struct answer *a)
{
	start_vm(r, a);
	fake.vm->cb->on_ready(fake.vm, fake.vm->user);
	assert_int_equal(a->calls, 1);
	assert_string_equal(a->why.text, "");
	fake.vm->cb->on_phase(fake.vm, VM_PHASE_RUN, fake.vm->user);
}

static const char *a_vm_id(void)
{
	static char id[WORKER_ID_LEN + 1];

	worker_vm_id("k", id);
	return id;
}

static enum worker_state state_of(struct rig *r, const struct answer *a)
{
	struct worker_boot b;

	workers_status(r->w, a->vm_id, a->instance, &b);
	return b.state;
}

static void stop(struct rig *r, const struct answer *vm, uint64_t grace_ms, struct answer *a)
{
	*a = (struct answer){0};
	workers_stop(r->w, vm->vm_id, vm->instance, grace_ms, on_stopped, a);
}

/* --- cases --- */

static void a_life(void **state)
{
	struct rig *r = *state;
	struct answer a, s, d, busy;

	start_vm(r, &a);
	assert_string_equal(fake.run, "run it");
	assert_string_equal(fake.url, "ws://100.96.0.1:49135");
	/* The daemon's, and that of the engine which this start named. */
	assert_int_equal(fake.n_ports, 2);
	assert_true(fake.ports[0] == 49134 && fake.ports[1] == 49135);
	assert_int_equal(fake.vcpus, MANIFEST_CPUS_DEFAULT);
	assert_int_equal(fake.timeout_ms, 20000);
	assert_int_equal(a.calls, 0);
	fake.vm->cb->on_ready(fake.vm, fake.vm->user);
	assert_int_equal(a.instance, 1);
	assert_int_equal(state_of(r, &a), WORKER_PREPARING);
	fake.vm->cb->on_phase(fake.vm, VM_PHASE_INSTALL, fake.vm->user);
	assert_int_equal(state_of(r, &a), WORKER_PREPARING);
	fake.vm->cb->on_phase(fake.vm, VM_PHASE_RUN, fake.vm->user);
	assert_int_equal(state_of(r, &a), WORKER_RUNNING);
	start(r, "k", &busy);
	wait_for(r, &busy.calls, 1);
	assert_string_equal(busy.why.code, "S502");
	assert_int_equal(busy.instance, 1);
	stop(r, &a, 60000, &s);
	assert_int_equal(fake.vm->shutdowns, 1);
	assert_int_equal(fake.vm->grace_ms, 60000);
	vm_ends(VM_END_CLEAN, 7);
	/* Told only when it is on the disk. */
	assert_int_equal(state_of(r, &a), WORKER_RUNNING);
	assert_int_equal(s.calls, 0);
	wait_for(r, &s.calls, 1);
	assert_int_equal(s.boot.state, WORKER_STOPPED);
	assert_true(s.boot.has_exit_code && s.boot.exit_code == 7 && !s.boot.has_signal);
	assert_true(s.boot.ended_at_ms >= s.boot.started_at_ms);
	d = (struct answer){0};
	workers_destroy(r->w, "k", on_destroyed, &d);
	wait_for(r, &d.calls, 1);
	assert_true(d.existed);
	assert_int_equal(state_of(r, &a), WORKER_UNKNOWN);
	boot(r, &a);
	assert_int_equal(a.instance, 2);
	vm_ends(VM_END_GUEST_CRASH, -1);
	while (state_of(r, &a) == WORKER_RUNNING)
		uv_run(&r->loop, UV_RUN_ONCE);
	assert_int_equal(state_of(r, &a), WORKER_EXITED);
}

static void many_starts_have_one_winner(void **state)
{
	struct rig *r = *state;
	static struct answer a[8]; /* the winner's is filled in by the end of the rig */
	unsigned refused = 0;

	for (size_t i = 0; i < ARRAY_LEN(a); i++)
		start(r, "k", &a[i]);
	wait_for(r, &fake.started, 1);
	for (size_t i = 0; i < ARRAY_LEN(a); i++) {
		refused += a[i].calls;
		if (a[i].calls) {
			assert_string_equal(a[i].why.code, "S502");
			assert_int_equal(a[i].instance, 1);
		}
	}
	assert_int_equal(refused, ARRAY_LEN(a) - 1);
}

/* It has no number yet, and nobody else has it. */
static void a_destroy_while_a_start_is_checked(void **state)
{
	struct rig *r = *state;
	struct answer a, d = {0};

	start(r, "k", &a);
	while (!worker_find(r->w, a_vm_id()) || !worker_find(r->w, a_vm_id())->boot)
		uv_run(&r->loop, UV_RUN_ONCE);
	assert_int_equal(worker_find(r->w, a_vm_id())->boot->step, BOOT_CHECKING);
	workers_destroy(r->w, "k", on_destroyed, &d);
	assert_string_equal(d.why.code, "S502");
	assert_int_equal(d.instance, 0);
	assert_non_null(strstr(d.why.text, "is being started"));
	wait_for(r, &fake.started, 1);
	fake.vm->cb->on_ready(fake.vm, fake.vm->user);
}

static void too_many_starts(void **state)
{
	static struct answer a[WORKERS_WAITING_MAX + 1];
	struct rig *r = *state;
	const struct answer *last = &a[WORKERS_WAITING_MAX];

	for (size_t i = 0; i < ARRAY_LEN(a); i++)
		start(r, "k", &a[i]);
	assert_int_equal(last->calls, 1);
	assert_string_equal(last->why.code, "S400");
	wait_for(r, &fake.started, 1);
	start(r, "k", &a[WORKERS_WAITING_MAX]);
	wait_for(r, &last->calls, 1);
	assert_string_equal(last->why.code, "S502");
}

/* Those that wait for another's checks do not begin theirs when the daemon ends. */
static void a_close_while_starts_are_checked(void **state)
{
	static struct answer a[8];
	struct rig *r = *state;

	for (size_t i = 0; i < ARRAY_LEN(a); i++)
		start(r, "k", &a[i]);
	while (!r->w->vms || !r->w->vms->boot)
		uv_run(&r->loop, UV_RUN_ONCE);
	rig_close(r);
	for (size_t i = 0; i < ARRAY_LEN(a); i++) {
		assert_int_equal(a[i].calls, 1);
		assert_true(str_eq(a[i].why.code, "S300") || str_eq(a[i].why.code, "S502"));
	}
	assert_int_equal(fake.started, 0);
	rig_open(r);
}

static void a_stop_while_the_image_is_fetched(void **state)
{
	struct rig *r = *state;
	struct answer a, s = {0}, busy = {0};

	set_hold(true);
	start(r, "k", &a);
	worker_vm_id("k", busy.vm_id);
	busy.instance = 1;
	while (state_of(r, &busy) != WORKER_PREPARING)
		uv_run(&r->loop, UV_RUN_ONCE);
	/* The number is known to whoever comes in between. */
	start(r, "k", &busy);
	wait_for(r, &busy.calls, 1);
	assert_string_equal(busy.why.code, "S502");
	assert_int_equal(busy.instance, 1);
	assert_int_equal(state_of(r, &busy), WORKER_PREPARING);
	stop(r, &busy, 60000, &s);
	wait_for(r, &s.calls, 1);
	assert_int_equal(s.boot.state, WORKER_STOPPED);
	assert_false(s.boot.has_exit_code || s.boot.has_signal);
	assert_int_equal(a.calls, 1);
	assert_string_equal(a.why.code, "S300");
	assert_non_null(strstr(a.why.text, "stopped while preparing"));
	assert_int_equal(fake.started, 0);
	set_hold(false);
	boot(r, &a);
	assert_int_equal(a.instance, 2);
}

/* A work that lasts as long as the test wants. */
struct slow {
	struct worker_work work;
	unsigned begun, ended;
};

static void slow_run(struct worker_work *work)
{
	struct slow *s = CONTAINER_OF(work, struct slow, work);

	uv_mutex_lock(&store.lock);
	s->begun++;
	while (store.slow)
		uv_cond_wait(&store.released, &store.lock);
	uv_mutex_unlock(&store.lock);
}

static void slow_after(struct worker_work *work)
{
	CONTAINER_OF(work, struct slow, work)->ended++;
}

static void set_slow(bool slow)
{
	uv_mutex_lock(&store.lock);
	store.slow = slow;
	uv_cond_broadcast(&store.released);
	uv_mutex_unlock(&store.lock);
}

static void large_sources_keep_nobody_waiting(void **state)
{
	struct rig *r = *state;
	struct slow slow[6] = {0};
	struct answer a, late, s, vm;
	unsigned begun = 0;

	boot(r, &a);
	set_slow(true);
	for (size_t i = 0; i < ARRAY_LEN(slow); i++) {
		slow[i].work =
			(struct worker_work){.run = slow_run, .after = slow_after, .is_long = true};
		worker_queue(r->w, NULL, &slow[i].work);
	}
	/* A VM that runs is stopped, which writes its record. */
	stop(r, &a, 60000, &s);
	vm_ends(VM_END_CLEAN, 0);
	wait_for(r, &s.calls, 1);
	/* One that is told to end while its source waits for a thread does not wait for it. */
	start(r, "k", &late);
	worker_vm_id("k", vm.vm_id);
	vm.instance = 2;
	while (!r->w->vms->boot || r->w->vms->boot->step != BOOT_WRITING)
		uv_run(&r->loop, UV_RUN_ONCE);
	stop(r, &vm, 0, &s);
	wait_for(r, &s.calls, 1);
	assert_int_equal(s.boot.state, WORKER_STOPPED);
	assert_int_equal(late.calls, 1);
	uv_mutex_lock(&store.lock);
	for (size_t i = 0; i < ARRAY_LEN(slow); i++)
		begun += slow[i].begun;
	uv_mutex_unlock(&store.lock);
	assert_true(begun <= WORKERS_LONG_MAX);
	set_slow(false);
	for (size_t i = 0; i < ARRAY_LEN(slow); i++)
		wait_for(r, &slow[i].ended, 1);
}

static void stops_share_the_end(void **state)
{
	struct rig *r = *state;
	struct answer a, s[4];

	boot(r, &a);
	stop(r, &a, UINT64_MAX, &s[0]);
	assert_int_equal(fake.vm->grace_ms, WORKERS_GRACE_MAX_MS);
	stop(r, &a, 1000 * 1000, &s[1]);
	assert_int_equal(fake.vm->grace_ms, 1000 * 1000);
	stop(r, &a, 2000 * 1000, &s[2]);
	assert_int_equal(fake.vm->grace_ms, 1000 * 1000);
	assert_false(fake.vm->killed);
	stop(r, &a, 0, &s[3]);
	assert_true(fake.vm->killed);
	vm_ends(VM_END_STOPPED, -1);
	wait_for(r, &s[3].calls, 1);
	for (size_t i = 0; i < ARRAY_LEN(s); i++) {
		assert_int_equal(s[i].calls, 1);
		assert_int_equal(s[i].boot.state, WORKER_STOPPED);
		assert_true(s[i].boot.has_signal && s[i].boot.signal == SIGKILL);
	}
}

static void a_vm_that_does_not_die(void **state)
{
	struct rig *r = *state;
	struct answer a, s, late;

	boot(r, &a);
	stop(r, &a, 0, &s);
	wait_for(r, &s.calls, 1);
	assert_string_equal(s.why.code, "S504");
	assert_int_equal(state_of(r, &a), WORKER_RUNNING);
	stop(r, &a, 60000, &late);
	assert_int_equal(late.calls, 0);
	wait_for(r, &late.calls, 1);
	assert_string_equal(late.why.code, "S504");
	stop(r, &a, 0, &late);
	vm_ends(VM_END_STOPPED, -1);
	wait_for(r, &late.calls, 1);
	assert_string_equal(late.why.text, "");
	assert_int_equal(late.boot.state, WORKER_STOPPED);
}

/* The daemon ends all the same. */
static void a_close_after_a_vm_that_does_not_die(void **state)
{
	struct rig *r = *state;
	struct answer a, s;

	boot(r, &a);
	stop(r, &a, 0, &s);
	wait_for(r, &s.calls, 1);
	assert_string_equal(s.why.code, "S504");
	workers_close(r->w, on_closed, r);
	wait_for(r, &r->closed, 1);
	assert_null(fake.vm);
	workers_free(r->w);
	images_close(r->images, on_closed, r);
	wait_for(r, &r->closed, 2);
	rig_open(r);
}

static void failures_have_a_number(void **state)
{
	struct rig *r = *state;
	struct answer a, vm;

	fake.refuse = true;
	start(r, "k", &a);
	wait_for(r, &a.calls, 1);
	assert_string_equal(a.why.code, "S300");
	worker_vm_id("k", vm.vm_id);
	vm.instance = 1;
	assert_int_equal(state_of(r, &vm), WORKER_EXITED);
	fake.refuse = false;
	start_vm(r, &a);
	vm_ends(VM_END_BOOT_TIMEOUT, -1);
	wait_for(r, &a.calls, 1);
	assert_string_equal(a.why.code, "S300");
	vm.instance = 2;
	workers_status(r->w, vm.vm_id, 2, &vm.boot);
	assert_int_equal(vm.boot.state, WORKER_EXITED);
	/* It is the host's failure, none of the worker. */
	assert_false(vm.boot.has_exit_code || vm.boot.has_signal);
	boot(r, &a);
	assert_int_equal(a.instance, 3);
}

static void a_restart_knows_them(void **state)
{
	struct rig *r = *state;
	struct answer a, s;

	boot(r, &a);
	stop(r, &a, 60000, &s);
	vm_ends(VM_END_CLEAN, 5);
	wait_for(r, &s.calls, 1);
	boot(r, &a);
	rig_close(r); /* an orderly end stops it */
	rig_open(r);
	workers_status(r->w, a.vm_id, 1, &s.boot);
	assert_int_equal(s.boot.state, WORKER_STOPPED);
	assert_int_equal(s.boot.exit_code, 5);
	workers_status(r->w, a.vm_id, 2, &s.boot);
	assert_int_equal(s.boot.state, WORKER_STOPPED);
	workers_status(r->w, a.vm_id, 3, &s.boot);
	assert_int_equal(s.boot.state, WORKER_UNKNOWN);
	boot(r, &a);
	assert_int_equal(a.instance, 3);
}

static void prints(const char *text, size_t len)
{
	fake.vm->log_pause_ms = 0;
	fake.vm->cb->on_log(fake.vm, VM_STREAM_CONSOLE, text, len, fake.vm->user);
}

/* A byte that becomes a hundred has to wait for its turn; ordinary text has not. */
static void a_flood_is_slowed(void **state)
{
	struct rig *r = *state;
	char lines[16384], text[16384];
	struct answer a;

	memset(lines, '\n', sizeof(lines));
	memset(text, 'x', sizeof(text));
	for (size_t i = 100; i < sizeof(text); i += 100)
		text[i] = '\n';
	boot(r, &a);
	prints(text, sizeof(text));
	prints(text, sizeof(text));
	assert_int_equal(fake.vm->log_pause_ms, 0);
	prints(lines, sizeof(lines));
	assert_true(fake.vm->log_pause_ms > 100 && fake.vm->log_pause_ms < 1000);
}

static void read_record(struct rig *r, const char *vm_id, struct worker_record *ret)
{
	struct err e = ERR_INIT;
	cleanup_fd int root = -1;

	if (vmdir_root(&root, &e) < 0 ||
		vmdir_peek(root, vm_id, &(struct vmdir_mark){0}, ret, &e) < 0)
		fail_msg("%s", e.text);
}

/* The end of a boot that found the disk full is written when there is room again. */
static void an_end_that_cannot_be_written(void **state)
{
	struct rig *r = *state;
	struct answer a, s;
	struct worker_record rec;
	enum worker_state on_disk;

	boot(r, &a);
	stop(r, &a, 60000, &s);
	atomic_store(&disk_full, true);
	vm_ends(VM_END_CLEAN, 5);
	wait_for(r, &s.calls, 1);
	assert_int_equal(s.boot.state, WORKER_STOPPED);
	read_record(r, a.vm_id, &rec);
	assert_int_not_equal(rec.boot.state, WORKER_STOPPED);
	worker_record_done(&rec);
	atomic_store(&disk_full, false);
	do {
		uv_run(&r->loop, UV_RUN_ONCE);
		assert_int_equal(state_of(r, &a), WORKER_STOPPED);
		read_record(r, a.vm_id, &rec);
		on_disk = rec.boot.state;
		worker_record_done(&rec);
	} while (on_disk != WORKER_STOPPED);
	/* And before the daemon goes. */
	boot(r, &a);
	stop(r, &a, 60000, &s);
	atomic_store(&disk_full, true);
	vm_ends(VM_END_CLEAN, 6);
	wait_for(r, &s.calls, 1);
	atomic_store(&disk_full, false);
	rig_close(r);
	rig_open(r);
	assert_int_equal(state_of(r, &a), WORKER_STOPPED);
}

/* The next daemon looks for its process, and must not hear that it has ended. */
static void a_vm_that_outlives_the_daemon(void **state)
{
	struct rig *r = *state;
	cleanup_free char *folders = path_join(r->dir, "workers");
	struct answer a, s;
	struct worker_record rec;

	fake.pid = getpid();
	boot(r, &a);
	stop(r, &a, 0, &s);
	r->closed = 0;
	workers_close(r->w, on_closed, r);
	images_close(r->images, on_closed, r);
	wait_for(r, &r->closed, 2);
	assert_string_equal(s.why.code, "S504");
	workers_free(r->w);
	read_record(r, a.vm_id, &rec);
	assert_int_equal(rec.boot.state, WORKER_RUNNING);
	assert_int_equal(rec.pid, getpid());
	assert_true(rec.pid_start == process_start_time(getpid()));
	worker_record_done(&rec);
	/* It would kill this process. */
	assert_int_equal(path_remove_at(AT_FDCWD, folders), 0);
	rig_open(r);
}

static void attribution(void **state)
{
	static const struct {
		struct vm_exit x;
		int code, signal; /* -1: null */
	} rows[] = {
		{{.end = VM_END_CLEAN, .guest_status = 0}, 0, -1},
		{{.end = VM_END_CLEAN, .guest_status = 139}, 139, -1},
		{{.end = VM_END_STOPPED, .guest_status = 3, .signal = SIGKILL}, 3, -1},
		{{.end = VM_END_STOPPED, .guest_status = -1}, -1, SIGKILL},
		{{.end = VM_END_BOOT_LOST, .guest_status = -1, .signal = SIGKILL}, -1, SIGKILL},
		{{.end = VM_END_VMM_KILLED, .guest_status = -1, .signal = SIGSEGV}, -1, SIGSEGV},
		{{.end = VM_END_VMM_FAILED, .guest_status = -1, .status = 125}, 125, -1},
		{{.end = VM_END_VMM_FAILED, .guest_status = -1}, -1, -1},
		{{.end = VM_END_GUEST_CRASH, .guest_status = -1, .status = 1}, -1, -1},
		{{.end = VM_END_BOOT_TIMEOUT, .guest_status = -1}, -1, SIGKILL},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct worker_boot b = {.exit_code = 99, .signal = 99};

		boot_attribute(&rows[i].x, &b);
		assert_int_equal(b.has_exit_code ? b.exit_code : -1, rows[i].code);
		assert_int_equal(b.has_signal ? b.signal : -1, rows[i].signal);
	}
}

#define WITH_RIG(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_RIG(a_life),
		WITH_RIG(many_starts_have_one_winner),
		WITH_RIG(a_destroy_while_a_start_is_checked),
		WITH_RIG(too_many_starts),
		WITH_RIG(a_close_while_starts_are_checked),
		WITH_RIG(a_stop_while_the_image_is_fetched),
		WITH_RIG(large_sources_keep_nobody_waiting),
		WITH_RIG(stops_share_the_end),
		WITH_RIG(a_vm_that_does_not_die),
		WITH_RIG(a_close_after_a_vm_that_does_not_die),
		WITH_RIG(failures_have_a_number),
		WITH_RIG(a_restart_knows_them),
		WITH_RIG(a_flood_is_slowed),
		WITH_RIG(an_end_that_cannot_be_written),
		WITH_RIG(a_vm_that_outlives_the_daemon),
		cmocka_unit_test(attribution),
	};

	uv_mutex_init(&store.lock);
	uv_cond_init(&store.released);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
