/* What test_vm_boot and test_vm_death share: plain functions in the VMM's place, and a daemon of a
 * few lines. The program that includes this starts itself as __vm-boot, so its main() has to begin
 * with VM_HARNESS_MAIN. */
#pragma once

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/vm/backend.h"
#include "host/vm/boot.h"
#include "host/vm/confine.h"
#include "host/vm/vm.h"

#define GUARD_MS 120000 /* against a hang; nothing here takes long */

#define UNUSED __attribute__((unused))

#define COUNT_TO 400000 /* lines: some ten MiB, more than all pipes on the way hold */

/* --- what runs in the VMM's place --- */

UNUSED static void say(int fd, const char *s)
{
	if (fd_write_all(fd, s, strlen(s)) < 0)
		_exit(99);
}

/* A line, without its end. */
UNUSED static void hear(int fd, char *dst, size_t size)
{
	size_t n = 0;

	while (n + 1 < size && read(fd, dst + n, 1) == 1 && dst[n] != '\n')
		n++;
	dst[n] = '\0';
}

UNUSED static void read_env(const struct vmm_ends *ends, char *dst, size_t size)
{
	uint8_t hdr[4];
	size_t len;

	if (fd_read_full(ends->env, hdr, 4) != 4)
		_exit(98);
	len = (size_t)hdr[1] << 16 | (size_t)hdr[2] << 8 | hdr[3];
	if (len >= size || fd_read_full(ends->env, dst, len) != (ssize_t)len)
		_exit(97);
	dst[len] = '\0';
}

#define READY "{\"event\":\"ready\",\"boot_us\":1}\n"

UNUSED static void leave(const struct vmm_ends *ends, const char *status)
{
	char line[100];

	say(ends->control, "{\"event\":\"exit\",\"status\":");
	say(ends->control, status);
	say(ends->control, "}\n");
	hear(ends->control, line, sizeof(line));
	_exit(str_eq(line, "{\"cmd\":\"ack\"}") ? 0 : 96);
}

UNUSED static _Noreturn void wait_for_ever(void)
{
	for (;;)
		pause();
}

UNUSED static void vmm_good(const struct plan *p, const struct vmm_ends *ends)
{
	char text[4096], want[64];

	(void)p;
	read_env(ends, text, sizeof(text));
	say(ends->console, "hello from the guest\n");
	say(ends->agent, text);
	say(ends->agent, "\n");
	say(ends->control, READY);
	hear(ends->control, text, sizeof(text));
	/* What the guest is given is less than what it is killed after. */
	snprintf(want, sizeof(want), "{\"cmd\":\"shutdown\",\"grace_ms\":%d}",
		GUARD_MS - BOOT_GRACE_KEPT_MS);
	if (!str_eq(text, want))
		_exit(95);
	leave(ends, "7");
}

UNUSED static void vmm_cannot_start(const struct plan *p, const struct vmm_ends *ends)
{
	char text[4096];

	(void)p;
	read_env(ends, text, sizeof(text));
	say(ends->console, "something about disks\n");
	say(ends->control, "{\"event\":\"failed\",\"message\":\"cannot mount\\nthe base disk\"}\n");
	wait_for_ever();
}

/* Says that it is there, and then nothing. */
UNUSED static void vmm_pids(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	say(ends->agent, "here\n");
	say(ends->control, READY);
	wait_for_ever();
}

UNUSED static void vmm_exit3(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	(void)ends;
	say(2, "boom: no such device\n");
	_exit(3);
}

UNUSED static void vmm_segv(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	volatile char *wall = mmap(NULL, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	say(ends->console, "about to fall\n");
	signal(SIGSEGV, SIG_DFL);
	*wall = 1; /* a raise() does nothing to the first process of a namespace */
}

UNUSED static void vmm_exit0(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	say(ends->console, "Kernel panic - not syncing\n");
	_exit(0);
}

UNUSED static void vmm_exit0_running(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	say(ends->control, READY);
	_exit(0);
}

UNUSED static void vmm_silent(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	say(ends->console, "Booting\nstill booting");
	wait_for_ever();
}

UNUSED static void vmm_deaf(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	say(ends->control, READY);
	wait_for_ever();
}

UNUSED static void vmm_leaves_by_itself(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	say(ends->control, READY);
	leave(ends, "0");
}

UNUSED static void flood(int fd, size_t mib)
{
	char *chunk = xmalloc(1 << 20);

	memset(chunk, 'x', 1 << 20);
	for (size_t i = 0; i < 1 << 20; i += 64)
		chunk[i] = '\n';
	while (mib--) {
		if (fd_write_all(fd, chunk, 1 << 20) < 0)
			_exit(94);
	}
	free(chunk);
}

/* 1 GiB on the console, then a word, as a guest does that runs `yes >/dev/console`. */
UNUSED static void vmm_flood(const struct plan *p, const struct vmm_ends *ends)
{
	char text[4096];

	(void)p;
	read_env(ends, text, sizeof(text));
	say(ends->control, READY);
	flood(ends->console, 1024);
	flood(2, 64);
	say(ends->console, "\nlast words");
	say(ends->agent, "done\n");
	hear(ends->control, text, sizeof(text));
	leave(ends, "0");
}

/* --- of a worker VM --- */

#define PHASE(word) "{\"event\":\"phase\",\"phase\":\"" word "\"}\n"

/* Hands on what it was told, goes through its phases, and ends by itself. */
UNUSED static void vmm_worker(const struct plan *p, const struct vmm_ends *ends)
{
	char text[4096];

	(void)p;
	read_env(ends, text, sizeof(text));
	say(ends->agent, text);
	say(ends->agent, "\n");
	say(ends->control, READY PHASE("sync") PHASE("install") PHASE("run"));
	say(ends->console, "worker's words\n");
	leave(ends, "42");
}

UNUSED static void vmm_phase_back(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	say(ends->control, READY PHASE("run") PHASE("setup"));
	wait_for_ever();
}

UNUSED static void vmm_phase_twice(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	say(ends->control, READY PHASE("sync") PHASE("sync"));
	wait_for_ever();
}

UNUSED static void vmm_phase_early(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	say(ends->control, PHASE("sync") READY);
	wait_for_ever();
}

/* Says with what it leaves, and stays. */
UNUSED static void vmm_says_exit(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	say(ends->control, READY "{\"event\":\"exit\",\"status\":5}\n");
	say(ends->agent, "said\n");
	wait_for_ever();
}

/* Writes to its disk when it is asked to leave, and leaves. */
UNUSED static void vmm_saves(const struct plan *p, const struct vmm_ends *ends)
{
	char text[256];

	say(ends->agent, "here\n");
	say(ends->control, READY);
	hear(ends->control, text, sizeof(text));
	if (fd_pwrite_all(p->disks[2].fd, text, sizeof(text), 0) < 0)
		_exit(91);
	leave(ends, "0");
}

/* The same of one whose disk is slow. */
UNUSED static void vmm_saves_late(const struct plan *p, const struct vmm_ends *ends)
{
	char text[256];

	say(ends->control, READY);
	hear(ends->control, text, sizeof(text));
	poll(NULL, 0, 400);
	if (fd_pwrite_all(p->disks[2].fd, text, sizeof(text), 0) < 0)
		_exit(91);
	leave(ends, "0");
}

/* Says numbered lines on both streams until nobody listens any more, or all are said. */
UNUSED static void vmm_counts(const struct plan *p, const struct vmm_ends *ends)
{
	char text[64];

	(void)p;
	say(ends->agent, "here\n");
	say(ends->control, READY);
	for (unsigned i = 0; i < COUNT_TO; i++) {
		snprintf(text, sizeof(text), "line %u of the console\n", i);
		say(ends->console, text);
		if (i % 16 == 0)
			say(2, text);
	}
	say(ends->console, "the end");
	leave(ends, "0");
}

UNUSED static void vmm_bad_line(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	say(ends->control, "{\"event\":\"ready\"}\n");
	wait_for_ever();
}

UNUSED static void vmm_long_line(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	for (int i = 0; i < 1000; i++)
		say(ends->control, "zzzzzzzzzzzzzzzz");
	wait_for_ever();
}

UNUSED static void vmm_many_lines(const struct plan *p, const struct vmm_ends *ends)
{
	(void)p;
	for (;;)
		say(ends->control, READY);
}

/* The writable disk remembers between two boots of one VM how many there were. */
UNUSED static int count_boots(const struct plan *p)
{
	int fd = p->disks[p->n_disks - 1].fd;
	char n = 0;

	if (fd_pread_full(fd, &n, 1, 0) < 0)
		_exit(93);
	n++;
	if (fd_pwrite_all(fd, &n, 1, 0) < 0)
		_exit(93);
	return n;
}

UNUSED static void vmm_misfire(const struct plan *p, const struct vmm_ends *ends)
{
	if (count_boots(p) == 1)
		vmm_exit0(p, ends);
	vmm_good(p, ends);
}

UNUSED static void vmm_misfire_twice(const struct plan *p, const struct vmm_ends *ends)
{
	count_boots(p);
	vmm_exit0(p, ends);
}

UNUSED static void vmm_misfire_late(const struct plan *p, const struct vmm_ends *ends)
{
	char c;

	count_boots(p);
	if (read(ends->env, &c, 1) != 1)
		_exit(92);
	vmm_exit0(p, ends);
}

/* The folder of descriptors cannot be listed when landlock is on. */
UNUSED static void add_fds(struct buf *out)
{
	for (int fd = 0; fd < CONFINE_FILES_MAX; fd++) {
		char path[64], target[300];
		ssize_t n;

		if (fcntl(fd, F_GETFD) < 0)
			continue;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		target[n > 0 ? n : 0] = '\0';
		buf_printf(out, "fd %d %s\n", fd, target);
	}
}

/* Tells what a VMM is left with. */
UNUSED static void vmm_inventory(const struct plan *p, const struct vmm_ends *ends)
{
	struct buf out;
	struct rlimit core, files;
	sigset_t blocked;
	int death = 0;

	(void)p;
	buf_init(&out, 16384);
	add_fds(&out);
	for (char **v = environ; v && *v; v++)
		buf_printf(&out, "env %s\n", *v);
	getrlimit(RLIMIT_CORE, &core);
	getrlimit(RLIMIT_NOFILE, &files);
	sigprocmask(SIG_BLOCK, NULL, &blocked);
	prctl(PR_GET_PDEATHSIG, &death);
	buf_printf(&out, "core %d nofile %d nnp %d umask %03o pdeathsig %d chld %d\n",
		(int)core.rlim_max, (int)files.rlim_max, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
		(unsigned)umask(0), death, sigismember(&blocked, SIGCHLD));
	say(ends->agent, (char *)out.data);
	say(ends->agent, "end\n");
	buf_done(&out);
	say(ends->control, READY);
	wait_for_ever();
}

static const struct {
	const char *name;
	void (*run)(const struct plan *p, const struct vmm_ends *ends);
} vmms[] = {
	{"good", vmm_good},
	{"cannot_start", vmm_cannot_start},
	{"pids", vmm_pids},
	{"exit3", vmm_exit3},
	{"segv", vmm_segv},
	{"exit0", vmm_exit0},
	{"exit0_running", vmm_exit0_running},
	{"silent", vmm_silent},
	{"deaf", vmm_deaf},
	{"leaves_by_itself", vmm_leaves_by_itself},
	{"flood", vmm_flood},
	{"bad_line", vmm_bad_line},
	{"long_line", vmm_long_line},
	{"many_lines", vmm_many_lines},
	{"misfire", vmm_misfire},
	{"misfire_twice", vmm_misfire_twice},
	{"misfire_late", vmm_misfire_late},
	{"inventory", vmm_inventory},
	{"worker", vmm_worker},
	{"phase_back", vmm_phase_back},
	{"phase_twice", vmm_phase_twice},
	{"phase_early", vmm_phase_early},
	{"says_exit", vmm_says_exit},
	{"saves", vmm_saves},
	{"saves_late", vmm_saves_late},
	{"counts", vmm_counts},
};

/* The name of the function travels as the plan's `vmm`. */
static const char *chosen = "good";

UNUSED static char *test_vmm(struct err *e)
{
	(void)e;
	return xstrdup(chosen);
}

UNUSED static int test_enter(const struct plan *p, const struct vmm_ends *ends, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(vmms); i++) {
		if (str_eq(p->vmm, vmms[i].name))
			vmms[i].run(p, ends);
	}
	return err_set(e, "S300", ENODEV, "no way to enter %s", p->vmm);
}

static const struct vm_backend steady = {.name = "steady", .vmm = test_vmm, .enter = test_enter},
			       shaky = {.name = "shaky",
				       .vmm = test_vmm,
				       .boot_may_misfire = true,
				       .enter = test_enter};
static const struct vm_backend *const backends[] = {&steady, &shaky, NULL};

/* --- what runs in the daemon's place --- */

static uv_loop_t loop;
static char dir[] = "/var/tmp/test_vm_boot.XXXXXX";

struct run {
	struct vm *vm;
	int agent;
	bool ready, ended, in_time;
	char phases[16];    /* one digit each */
	struct buf logs[2]; /* of each stream; buf_init'ed by who wants them */
	void (*slow)(void); /* made at each piece of log */
	struct vm_exit x;
	char tail[16384];
	void (*then)(struct run *r); /* made when ready */
	uv_timer_t guard;
};

UNUSED static void on_guard(uv_timer_t *t)
{
	struct run *r = t->data;

	r->in_time = false;
	uv_stop(&loop);
}

UNUSED static void on_ready(struct vm *vm, void *user)
{
	struct run *r = user;

	(void)vm;
	r->ready = true;
	if (r->then)
		r->then(r);
}

UNUSED static void on_exit_(struct vm *vm, const struct vm_exit *x, void *user)
{
	struct run *r = user;

	r->ended = true;
	r->x = *x;
	snprintf(r->tail, sizeof(r->tail), "%s", x->tail);
	vm_free(vm);
	r->vm = NULL;
	uv_close((uv_handle_t *)&r->guard, NULL);
}

static const struct vm_callbacks callbacks = {.on_ready = on_ready, .on_exit = on_exit_};

/* What start_with makes of a VM. */
static const struct vm_callbacks *use_callbacks = &callbacks;
static const struct worker_job *use_job;

UNUSED static void on_phase(struct vm *vm, enum vm_phase phase, void *user)
{
	struct run *r = user;
	size_t n = strlen(r->phases);

	(void)vm;
	assert_true(r->ready && !r->ended && n + 1 < sizeof(r->phases));
	r->phases[n] = (char)('0' + (int)phase);
}

UNUSED static void on_log_(
	struct vm *vm, enum vm_stream stream, const void *data, size_t len, void *user)
{
	struct run *r = user;

	assert_ptr_equal(vm, r->vm);
	assert_false(r->ended);
	assert_true(len > 0);
	assert_int_equal(buf_add(&r->logs[stream], data, len), 0);
	if (r->slow)
		r->slow();
}

UNUSED static const struct vm_callbacks worker_callbacks = {
	.on_ready = on_ready, .on_phase = on_phase, .on_log = on_log_, .on_exit = on_exit_};

UNUSED static void init_logs(struct run *r)
{
	for (size_t i = 0; i < ARRAY_LEN(r->logs); i++)
		buf_init(&r->logs[i], 64 << 20);
}

UNUSED static void free_logs(struct run *r)
{
	for (size_t i = 0; i < ARRAY_LEN(r->logs); i++)
		buf_done(&r->logs[i]);
}

UNUSED static int file_of(const char *name, const void *data, size_t len, int flags)
{
	cleanup_free char *path = path_join(dir, name);
	cleanup_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, data, len), 0);
	return open(path, flags | O_CLOEXEC);
}

UNUSED static int setup(void **state)
{
	struct {
		Elf64_Ehdr eh;
		Elf64_Phdr ph;
	} k = {.eh = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, 1},
		       .e_type = ET_EXEC,
		       .e_machine = EM_X86_64,
		       .e_phoff = sizeof(Elf64_Ehdr),
		       .e_phentsize = sizeof(Elf64_Phdr),
		       .e_phnum = 1},
		.ph = {.p_type = PT_LOAD}};
	cleanup_free char *kernel = NULL, *boot = NULL;

	(void)state;
	if (!mkdtemp(dir))
		return -1;
	kernel = path_join(dir, "kernel");
	boot = path_join(dir, "boot");
	close(file_of("kernel", &k, sizeof(k), O_RDONLY));
	close(file_of("boot", "boot", 4, O_RDONLY));
	setenv("III_SANDBOX_KERNEL", kernel, 1);
	setenv("III_SANDBOX_BOOT_DISK", boot, 1);
	return uv_loop_init(&loop);
}

UNUSED static int teardown(void **state)
{
	(void)state;
	path_remove_at(AT_FDCWD, dir);
	return uv_loop_close(&loop);
}

static char *const no_env[] = {NULL};

UNUSED static int start_with(struct run *r, const struct vm_backend *be, const char *vmm, int upper,
	uint32_t timeout_ms, struct err *e)
{
	static char *const env[] = {(char *)"A=b", (char *)"SECRET=hunter2", NULL};
	cleanup_fd int base = file_of("base", "base", 4, O_RDONLY);
	cleanup_fd int source = use_job ? file_of("source", "source", 6, O_RDONLY) : -1;
	struct vm_spec s = {.label = "test",
		.vcpus = 1,
		.mem_mib = 64,
		.base_fd = base,
		.upper_fd = upper,
		.env = env,
		.boot_timeout_ms = timeout_ms,
		.worker = use_job,
		.source_fd = source};
	int rc;

	chosen = vmm;
	rc = vm_start_on(be, &loop, &s, use_callbacks, r, &r->vm, e);
	if (rc < 0)
		return rc;
	r->agent = vm_take_agent_fd(r->vm);
	assert_true(r->agent >= 0);
	assert_int_equal(vm_take_agent_fd(r->vm), -1);
	r->in_time = true;
	uv_timer_init(&loop, &r->guard);
	r->guard.data = r;
	uv_timer_start(&r->guard, on_guard, GUARD_MS, 0);
	return 0;
}

UNUSED static void start(
	struct run *r, const struct vm_backend *be, const char *vmm, uint32_t timeout_ms)
{
	cleanup_fd int upper = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	struct err e = ERR_INIT;

	assert_true(upper >= 0);
	if (start_with(r, be, vmm, upper, timeout_ms, &e) < 0)
		fail_msg("%s", e.text);
}

UNUSED static void finish(struct run *r)
{
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_true(r->in_time);
	assert_true(r->ended);
	fd_close(&r->agent);
	/* All is collected. */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

UNUSED static void run(
	struct run *r, const struct vm_backend *be, const char *vmm, uint32_t timeout_ms)
{
	start(r, be, vmm, timeout_ms);
	finish(r);
}

UNUSED static void expect(
	const struct run *r, enum vm_end end, int signal, int status, const char *why)
{
	if (r->x.end != end || r->x.signal != signal || r->x.status != status ||
		!strstr(r->x.why.text, why))
		fail_msg("end %d signal %d status %d: %s\n%s", (int)r->x.end, r->x.signal,
			r->x.status, r->x.why.text, r->tail);
	assert_string_equal(r->x.why.code, "S300");
}

/* What the agent's stream said up to a word. */
UNUSED static void read_agent(struct run *r, char *dst, size_t size, const char *until)
{
	size_t n = 0;

	fd_set_nonblock(r->agent, false);
	do {
		ssize_t got = read(r->agent, dst + n, size - 1 - n);

		assert_true(got > 0);
		n += (size_t)got;
		dst[n] = '\0';
	} while (!strstr(dst, until));
}

UNUSED static int count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Dead, or about to be collected by somebody who adopted it. */
UNUSED static bool is_dead(pid_t pid)
{
	char path[64], *text, state;
	bool dead;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	if (fd_slurp_at(AT_FDCWD, path, 4096, &text, NULL) < 0)
		return true;
	state = *(strrchr(text, ')') + 2);
	dead = state == 'Z' || state == 'X';
	free(text);
	return dead;
}

UNUSED static void expect_death(pid_t pid)
{
	for (int i = 0; i < GUARD_MS / 10 && !is_dead(pid); i++)
		poll(NULL, 0, 10);
	assert_true(is_dead(pid));
}

/* The only child of a process. A VMM cannot tell its own number, which is 1 to itself. */
UNUSED static pid_t child_of(pid_t parent)
{
	DIR *d = opendir("/proc");
	struct dirent *de;
	pid_t found = 0;

	assert_non_null(d);
	while ((de = readdir(d))) {
		char path[300], *text = NULL, *at;
		uint32_t pid;
		int of = 0;

		if (str_u32(de->d_name, &pid) < 0)
			continue;
		snprintf(path, sizeof(path), "/proc/%u/stat", pid);
		if (fd_slurp_at(AT_FDCWD, path, 4096, &text, NULL) < 0)
			continue;
		at = strrchr(text, ')');
		if (at && sscanf(at + 1, " %*c %d", &of) == 1 && of == parent) {
			assert_int_equal(found, 0);
			found = (pid_t)pid;
		}
		free(text);
	}
	closedir(d);
	assert_true(found > 0);
	return found;
}

/* Of this process's only VM, which is a "pids". */
UNUSED static void read_pids(struct run *r, int *ret_vmm, int *ret_boot)
{
	char text[64];

	read_agent(r, text, sizeof(text), "here\n");
	*ret_boot = child_of(getpid());
	*ret_vmm = child_of(*ret_boot);
}

#define VM_HARNESS_MAIN(argc, argv)                                                                \
	do {                                                                                       \
		if ((argc) > 1 && str_eq((argv)[1], BOOT_ENTRY)) {                                 \
			log_init(LOG_ERROR);                                                       \
			return vm_boot_run((argc), (argv), backends);                              \
		}                                                                                  \
	} while (0)
