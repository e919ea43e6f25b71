/* The daemon's side of one VM: a process to watch, a socket for lines, a pipe that tells when the
 * last process of the VM is gone, one for what is printed where somebody wants it, and a timer
 * behind everything that is promised.
 *
 * The supervisor reports how the VM ended in its last line; when that line is missing the
 * supervisor itself died. on_exit is made when the supervisor is collected, its socket is at its
 * end and the pipes too, so that nothing of the VM runs any more and all it said was handed on.
 * Should a process escape the supervisor's death, LIFE_GRACE_MS bounds the wait.
 *
 * Of the log one chunk is read a turn of the loop, so that a VM that floods it leaves the loop to
 * the others; vm_log_pause makes it wait longer.
 *
 * The timer is the second line: the supervisor keeps all deadlines itself and is killed only when
 * it does not keep one (its death takes the VMM along).
 */
#include "host/vm/vm.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/backend.h"
#include "host/vm/boot.h"
#include "host/vm/bootdisk.h"
#include "host/vm/control.h"
#include "host/vm/kernel.h"
#include "host/vm/logpipe.h"
#include "host/vm/net.h"
#include "host/vm/net_page.h"
#include "host/vm/plan.h"
#include "host/vm/qemu.h"

#define BOOT_LATE_MS  10000 /* after the supervisor's own deadline */
#define LIFE_GRACE_MS 5000
#define LOG_FD	      (PLAN_FD_END - 1) /* in the supervisor */
#define NET_PAGE_FD   (PLAN_FD_END - 2) /* likewise */

enum vm_state {
	VM_STARTING,
	VM_READY,
	VM_STOPPING,
	VM_ENDED,
};

struct vm {
	enum vm_state state;
	const struct vm_backend *be;
	const struct vm_callbacks *cb;
	void *user;
	int agent_fd;

	uv_process_t boot;
	uv_pipe_t control, life, log;
	uv_timer_t timer;
	uv_timer_t log_turn;	    /* until the log is read again */
	int handles;		    /* open ones of the six */
	bool logs;		    /* there is a log pipe */
	const struct net_page *net; /* NULL: no network */

	struct control_lines lines;
	struct logpipe_reader log_state;
	struct control_event exited; /* the supervisor's report, when `reported` */
	bool reported, gone, control_end, life_end, log_end;
	uint32_t log_pause_ms;
	bool kill_asked; /* or a shutdown that was forced */
	bool closing, freed, in_exit_callback;
	int64_t boot_status;
	int boot_signal;
};

static void set_state(struct vm *vm, enum vm_state to)
{
	static const bool arrow[VM_ENDED + 1][VM_ENDED + 1] = {
		[VM_STARTING] = {[VM_READY] = true, [VM_ENDED] = true},
		[VM_READY] = {[VM_STOPPING] = true, [VM_ENDED] = true},
		[VM_STOPPING] = {[VM_ENDED] = true},
	};

	assert(arrow[vm->state][to]);
	vm->state = to;
}

static void release(struct vm *vm)
{
	fd_close(&vm->agent_fd);
	net_page_unmap(vm->net);
	buf_done(&vm->lines.partial);
	control_event_done(&vm->exited);
	free(vm);
}

/* --- the end --- */

static void fill_exit(const struct vm *vm, struct vm_exit *x)
{
	*x = (struct vm_exit){.signal = vm->boot_signal, .guest_status = -1, .tail = ""};
	if (vm->reported) {
		x->end = vm->exited.end;
		x->signal = vm->exited.signal;
		x->status = vm->exited.status;
		x->guest_status = vm->exited.guest_status;
		x->why = vm->exited.why;
		x->tail = vm->exited.tail;
	} else if (vm->kill_asked) {
		x->end = VM_END_STOPPED;
		err_set(&x->why, "S300", EIO, "the VM was killed");
	} else {
		x->end = VM_END_BOOT_LOST;
		err_set(&x->why, "S300", EIO,
			"the VM's supervisor (" BOOT_ENTRY
			", backend %s) ended without a report: %s %lld",
			vm->be->name, vm->boot_signal ? "signal" : "exit status",
			vm->boot_signal ? (long long)vm->boot_signal : (long long)vm->boot_status);
	}
}

static void on_closed(uv_handle_t *h)
{
	struct vm *vm = h->data;
	struct vm_exit x;

	if (--vm->handles > 0)
		return;
	if (!vm->freed) {
		set_state(vm, VM_ENDED);
		fill_exit(vm, &x);
		vm->in_exit_callback = true;
		vm->cb->on_exit(vm, &x, vm->user);
		vm->in_exit_callback = false;
	}
	if (vm->freed)
		release(vm);
}

static void close_all(struct vm *vm)
{
	uv_handle_t *all[] = {(uv_handle_t *)&vm->boot, (uv_handle_t *)&vm->control,
		(uv_handle_t *)&vm->life, (uv_handle_t *)&vm->timer, (uv_handle_t *)&vm->log,
		(uv_handle_t *)&vm->log_turn};

	if (vm->closing)
		return;
	vm->closing = true;
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		uv_close(all[i], on_closed);
}

static void on_life_late(uv_timer_t *t)
{
	close_all(t->data);
}

static void maybe_ended(struct vm *vm)
{
	/* Nobody waits for the end of a VM that was freed: its supervisor is collected, and that
	 * the VMM goes with it is the kernel's promise. */
	if (!vm->gone || (!vm->control_end && !vm->freed))
		return;
	if ((vm->life_end && (vm->log_end || !vm->logs)) || vm->freed)
		close_all(vm);
	else
		uv_timer_start(&vm->timer, on_life_late, LIFE_GRACE_MS, 0);
}

static void on_boot_exit(uv_process_t *p, int64_t status, int signal)
{
	struct vm *vm = p->data;

	vm->gone = true;
	vm->boot_status = status;
	vm->boot_signal = signal;
	maybe_ended(vm);
}

static void on_late(uv_timer_t *t)
{
	struct vm *vm = t->data;

	if (!vm->gone)
		uv_process_kill(&vm->boot, SIGKILL);
}

static void set_alarm(struct vm *vm, uint64_t ms)
{
	if (!vm->gone && !vm->closing)
		uv_timer_start(&vm->timer, on_late, ms, 0);
}

/* --- streams --- */

/* Once for each way that this host confines its VMs: a second way is worth a second line. */
static void log_confinement(const struct vm *vm, const struct control_event *ev)
{
	static char logged[CONTROL_LAYERS_MAX + 1];
	static bool any;

	if (any && str_eq(logged, ev->unconfined))
		return;
	any = true;
	snprintf(logged, sizeof(logged), "%s", ev->unconfined);
	if (!ev->unconfined[0])
		log_info("VMs are confined by every layer", "backend=%s layers=%s", vm->be->name,
			log_quote(ev->confined));
	else
		log_warn("the host refuses layers of the VMs' confinement (see doctor)",
			"backend=%s refused=%s layers=%s", vm->be->name, log_quote(ev->unconfined),
			log_quote(ev->confined));
}

static int on_line(char *line, size_t len, void *user)
{
	struct vm *vm = user;
	struct control_event ev;

	if (vm->reported || control_event_parse(line, len, &ev, NULL) < 0)
		return -EPROTO;
	if (ev.kind == CONTROL_EVENT_STARTED) {
		log_confinement(vm, &ev);
	} else if (ev.kind == CONTROL_EVENT_EXITED) {
		vm->exited = ev;
		vm->reported = true;
		set_alarm(vm, VM_KILL_LATE_MS);
	} else if (ev.kind == CONTROL_EVENT_READY && vm->state == VM_STARTING) {
		uv_timer_stop(&vm->timer);
		set_state(vm, VM_READY);
		if (!vm->freed && !vm->kill_asked)
			vm->cb->on_ready(vm, vm->user);
	} else if (ev.kind == CONTROL_EVENT_PHASE && vm->cb->on_phase && !vm->freed &&
		   !vm->kill_asked) {
		vm->cb->on_phase(vm, ev.phase, vm->user);
	}
	return 0;
}

/* One buffer for all VMs: it is used up inside the callback that filled it. */
static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *ret)
{
	static char chunk[16384];

	(void)h;
	(void)suggested;
	*ret = uv_buf_init(chunk, sizeof(chunk));
}

static void on_control(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
	struct vm *vm = s->data;

	if (n > 0 && control_feed(&vm->lines, buf->base, (size_t)n, on_line, vm) < 0)
		n = UV_EPROTO;
	if (n >= 0)
		return;
	uv_read_stop(s);
	vm->control_end = true;
	/* No lines, no supervision: whatever it still does, it is over. */
	if (n == UV_EPROTO && !vm->gone)
		uv_process_kill(&vm->boot, SIGKILL);
	else
		set_alarm(vm, VM_KILL_LATE_MS);
	maybe_ended(vm);
}

static void on_life(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
	struct vm *vm = s->data;

	(void)buf;
	if (n >= 0)
		return; /* nobody writes here; what a hostile VMM writes is not looked at */
	uv_read_stop(s);
	vm->life_end = true;
	maybe_ended(vm);
}

static void on_log_bytes(enum vm_stream stream, const void *data, size_t len, void *user)
{
	struct vm *vm = user;

	if (!vm->freed)
		vm->cb->on_log(vm, stream, data, len, vm->user);
}

static void on_log(uv_stream_t *s, ssize_t n, const uv_buf_t *buf);

static void on_log_turn(uv_timer_t *t)
{
	struct vm *vm = t->data;

	uv_read_start((uv_stream_t *)&vm->log, on_alloc, on_log);
}

/* What is left after the end is taken without pauses: a stop waits for it. */
static void log_rest(struct vm *vm)
{
	uint64_t ms = vm->gone || vm->reported ? 0 : vm->log_pause_ms;

	vm->log_pause_ms = 0;
	uv_read_stop((uv_stream_t *)&vm->log);
	uv_timer_start(&vm->log_turn, on_log_turn, ms, 0);
}

static void on_log(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
	struct vm *vm = s->data;

	if (n > 0 && logpipe_feed(&vm->log_state, buf->base, (size_t)n, on_log_bytes, vm) < 0)
		n = UV_EPROTO;
	if (n > 0)
		log_rest(vm);
	if (n >= 0) {
		maybe_ended(vm); /* what is left after the end has its time as long as it moves */
		return;
	}
	uv_read_stop(s);
	vm->log_end = true;
	if (n == UV_EPROTO && !vm->gone)
		uv_process_kill(&vm->boot, SIGKILL);
	maybe_ended(vm);
}

static void send_cmd(struct vm *vm, const struct control_cmd *c)
{
	cleanup_buf struct buf line = {0};
	uv_os_fd_t fd;

	buf_init(&line, CONTROL_GUEST_LINE_MAX);
	if (vm->control_end || control_cmd_add(&line, c) < 0 ||
		uv_fileno((uv_handle_t *)&vm->control, &fd) < 0)
		return;
	/* A few dozen bytes into a socket that is read at once; the alarm is behind it. Not by
	 * uv_try_write: a supervisor that has just ended must not cost the daemon a SIGPIPE. */
	send(fd, line.data, line.len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* --- the start --- */

/* What vm_start has open until the supervisor has it. */
struct launch {
	struct plan plan;
	struct kernel kernel;
	int boot_disk;			   /* not owned */
	int frame;			   /* the plan as a file: stdin */
	int control[2], agent[2], life[2]; /* near, far … */
	int log[2];			   /* … and this only where it is wanted */
	int net_page;
	const struct net_page *net;
};

static void launch_init(struct launch *l)
{
	*l = (struct launch){.kernel = {.fd = -1},
		.boot_disk = -1,
		.frame = -1,
		.control = {-1, -1},
		.agent = {-1, -1},
		.life = {-1, -1},
		.log = {-1, -1},
		.net_page = -1};
}

static void launch_done(struct launch *l)
{
	plan_done(&l->plan);
	fd_close(&l->kernel.fd);
	fd_close(&l->frame);
	fd_close(&l->net_page);
	net_page_unmap(l->net);
	for (int i = 0; i < 2; i++) {
		fd_close(&l->control[i]);
		fd_close(&l->agent[i]);
		fd_close(&l->life[i]);
		fd_close(&l->log[i]);
	}
}
#define cleanup_launch __attribute__((cleanup(launch_done)))

static int copy_word(const char *what, char *dst, size_t size, const char *src, struct err *e)
{
	if (!src || strlen(src) >= size)
		return err_set(e, "S300", EINVAL, "the %s of a VM has to be 1 to %zu characters",
			what, size - 1);
	memcpy(dst, src, strlen(src) + 1);
	return 0;
}

static int plan_disk(struct plan *p, const char *role, int fd, bool readonly, struct err *e)
{
	struct plan_disk *d = &p->disks[p->n_disks];
	struct stat st;
	int r;

	*d = (struct plan_disk){.fd = PLAN_FD_FIRST + 1 + (int)p->n_disks, .readonly = readonly};
	snprintf(d->role, sizeof(d->role), "%s", role);
	if (fstat(fd, &st) < 0)
		return err_set(e, "S300", errno, "the disk %s of the VM: %s", role, err_str(errno));
	/* The first disk is the kernel's root by its place; the others are found by serial. */
	if (p->n_disks == 0)
		snprintf(d->serial, sizeof(d->serial), "boot");
	else if ((r = plan_serial(fd, d->serial, e)) < 0)
		return r;
	d->throwaway = !readonly && st.st_nlink == 0;
	p->n_disks++;
	return 0;
}

static int plan_worker(struct plan *p, const struct vm_spec *s, struct err *e)
{
	int r;

	p->nested_virt = s->nested_virt;
	p->hyperthreads = s->hyperthreads;
	if (!s->worker)
		return 0;
	if ((r = worker_job_check(s->worker, e)) < 0) {
		err_wrap(e, "worker");
		err_code(e, "S300");
		return r;
	}
	p->worker = worker_job_to_json(s->worker);
	return plan_disk(p, "source", s->source_fd, true, e);
}

static int plan_network(struct launch *l, const struct vm_net *net, struct err *e)
{
	struct plan_net *p = &l->plan.net;
	struct net_facts f;
	int r;

	if (!net)
		return 0;
	net_facts_get(&f);
	if ((r = net_facts_check(&f, e)) == 0 &&
		(r = net_page_new(&l->net_page, &l->net, e)) == 0) {
		p->passt = STEAL(f.passt);
		p->ipv6 = f.route6;
		memcpy(p->interface, f.interface, sizeof(p->interface));
		p->page_fd = NET_PAGE_FD;
		p->ports = xcalloc(net->n_host_ports + 1, sizeof(*p->ports));
		p->n_ports = net->n_host_ports;
		if (p->n_ports)
			memcpy(p->ports, net->host_ports, p->n_ports * sizeof(*p->ports));
	}
	net_facts_done(&f);
	return r;
}

static int make_plan(
	struct launch *l, const struct vm_backend *be, const struct vm_spec *s, struct err *e)
{
	struct plan *p = &l->plan;
	const char *args;
	int r;

	if ((r = bootdisk_fd(&l->boot_disk, e)) < 0 || (r = kernel_open(&l->kernel, e)) < 0)
		return r;
	if (be == &vm_backend_qemu && l->kernel.format == PLAN_KERNEL_ELF && !l->kernel.pvh)
		return err_set(e, "S300", EINVAL,
			"the kernel has no PVH note, so qemu cannot start it (built without "
			"CONFIG_PVH)");
	if ((r = copy_word("label", p->label, sizeof(p->label), s->label, e)) < 0 ||
		(r = copy_word("backend", p->backend, sizeof(p->backend), be->name, e)) < 0 ||
		(r = copy_word("hostname", p->hostname, sizeof(p->hostname),
			 s->hostname ? s->hostname : "sandbox", e)) < 0)
		return r;
	args = getenv("III_SANDBOX_KERNEL_ARGS");
	if (args && (r = copy_word("III_SANDBOX_KERNEL_ARGS", p->kernel_args,
			     sizeof(p->kernel_args), args, e)) < 0)
		return r;
	p->vmm = be->vmm(e);
	if (!p->vmm)
		return -ENOENT;
	p->vcpus = s->vcpus;
	p->mem_mib = s->mem_mib;
	p->boot_timeout_ms = s->boot_timeout_ms ? s->boot_timeout_ms : VM_BOOT_TIMEOUT_MS;
	p->tsc_khz = be == &vm_backend_qemu ? qemu_tsc_khz() : 0;
	p->kernel_fd = PLAN_FD_FIRST;
	p->kernel_format = l->kernel.format;
	p->env = strv_dup(s->env);
	if ((r = plan_disk(p, "boot", l->boot_disk, true, e)) < 0 ||
		(r = plan_disk(p, "base", s->base_fd, true, e)) < 0)
		return r;
	if ((r = plan_disk(p, "upper", s->upper_fd, false, e)) < 0 ||
		(r = plan_worker(p, s, e)) < 0)
		return r;
	return plan_network(l, s->net, e);
}

static int open_frame(struct launch *l, struct err *e)
{
	cleanup_buf struct buf frame;
	int r;

	buf_init(&frame, PLAN_FRAME_MAX + PLAN_FRAME_HDR);
	if ((r = plan_encode(&l->plan, &frame, e)) < 0)
		return r;
	l->frame = fd_sealed("plan", frame.data, frame.len);
	if (l->frame < 0 || lseek(l->frame, 0, SEEK_SET) < 0)
		return err_set(e, "S300", l->frame < 0 ? -l->frame : errno,
			"cannot write the plan of the VM");
	return 0;
}

static int open_streams(struct launch *l, struct err *e)
{
	int r;

	if ((r = fd_socketpair(l->control)) < 0 || (r = fd_socketpair(l->agent)) < 0)
		return err_set(e, "S300", r, "cannot connect the VM: %s", err_str(r));
	if (pipe2(l->life, O_CLOEXEC) < 0)
		return err_set(e, "S300", errno, "cannot connect the VM: %s", err_str(errno));
	r = fd_set_nonblock(l->agent[0], true);
	if (r == 0 && l->plan.log_fd)
		r = logpipe_new(l->log);
	return r < 0 ? err_set(e, "S300", r, "cannot connect the VM: %s", err_str(r)) : 0;
}

static int spawn(uv_loop_t *loop, struct vm *vm, const struct launch *l, const struct vm_spec *s,
	struct err *e)
{
	uv_stdio_container_t io[PLAN_FD_END] = {
		[0] = {.flags = UV_INHERIT_FD, .data.fd = l->frame},
		[1] = {.flags = UV_IGNORE},
		[2] = {.flags = UV_INHERIT_FD, .data.fd = 2},
		[PLAN_FD_CONTROL] = {.flags = UV_INHERIT_FD, .data.fd = l->control[1]},
		[PLAN_FD_AGENT] = {.flags = UV_INHERIT_FD, .data.fd = l->agent[1]},
		[PLAN_FD_LIFE] = {.flags = UV_INHERIT_FD, .data.fd = l->life[1]},
		[PLAN_FD_FIRST] = {.flags = UV_INHERIT_FD, .data.fd = l->kernel.fd},
		[PLAN_FD_FIRST + 1] = {.flags = UV_INHERIT_FD, .data.fd = l->boot_disk},
		[PLAN_FD_FIRST + 2] = {.flags = UV_INHERIT_FD, .data.fd = s->base_fd},
		[PLAN_FD_FIRST + 3] = {.flags = UV_INHERIT_FD, .data.fd = s->upper_fd},
	};
	const char *level = getenv("SANDBOX_LOG");
	cleanup_free char *log = level ? xasprintf("SANDBOX_LOG=%s", level) : NULL;
	const char *required = getenv(CONFINE_REQUIRE);
	cleanup_free char *require = required ? xasprintf(CONFINE_REQUIRE "=%s", required) : NULL;
	char *env[] = {log ? log : require, log ? require : NULL, NULL};
	char *argv[] = {(char *)"sandbox-libkrun", (char *)BOOT_ENTRY, (char *)l->plan.label, NULL};
	uv_process_options_t o = {
		.exit_cb = on_boot_exit,
		.file = "/proc/self/exe",
		.args = argv,
		.env = env,
		/* Its own session: a terminal's ^C is for the daemon, which ends its VMs. */
		.flags = UV_PROCESS_DETACHED,
		.stdio = io,
		.stdio_count = ARRAY_LEN(io),
	};
	int r;

	if (s->worker)
		io[PLAN_FD_FIRST + 4] =
			(uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = s->source_fd};
	if (l->plan.net.passt)
		io[l->plan.net.page_fd] =
			(uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = l->net_page};
	if (l->plan.log_fd)
		io[l->plan.log_fd] =
			(uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = l->log[1]};
	r = uv_spawn(loop, &vm->boot, &o);
	return r < 0 ? err_set(e, "S300", -r, "cannot start the VM's supervisor: %s", err_str(r))
		     : 0;
}

/* Hands the near ends over to the loop. After this only close_all() ends the vm. */
static int attach(
	uv_loop_t *loop, struct vm *vm, struct launch *l, const struct vm_spec *s, struct err *e)
{
	int r;

	uv_timer_init(loop, &vm->timer);
	uv_timer_init(loop, &vm->log_turn);
	uv_pipe_init(loop, &vm->control, 0);
	uv_pipe_init(loop, &vm->life, 0);
	uv_pipe_init(loop, &vm->log, 0);
	vm->boot.data = vm->timer.data = vm->control.data = vm->life.data = vm;
	vm->log.data = vm->log_turn.data = vm;
	r = spawn(loop, vm, l, s, e);
	/* uv_spawn initialised its handle either way. */
	vm->handles = 6;
	if (r < 0)
		return r;
	r = uv_pipe_open(&vm->control, l->control[0]);
	if (r == 0)
		l->control[0] = -1;
	if (r == 0 && (r = uv_pipe_open(&vm->life, l->life[0])) == 0)
		l->life[0] = -1;
	if (r == 0 && vm->logs && (r = uv_pipe_open(&vm->log, l->log[0])) == 0)
		l->log[0] = -1;
	if (r == 0)
		r = uv_read_start((uv_stream_t *)&vm->control, on_alloc, on_control);
	if (r == 0)
		r = uv_read_start((uv_stream_t *)&vm->life, on_alloc, on_life);
	if (r == 0 && vm->logs)
		r = uv_read_start((uv_stream_t *)&vm->log, on_alloc, on_log);
	return r < 0 ? err_set(e, "S300", -r, "cannot watch the VM: %s", err_str(r)) : 0;
}

int vm_start_on(const struct vm_backend *be, uv_loop_t *loop, const struct vm_spec *spec,
	const struct vm_callbacks *cb, void *user, struct vm **ret, struct err *e)
{
	cleanup_launch struct launch l;
	struct vm *vm;
	int r;

	launch_init(&l);
	l.plan.log_fd = cb->on_log ? LOG_FD : 0;
	if ((r = make_plan(&l, be, spec, e)) < 0 || (r = open_frame(&l, e)) < 0 ||
		(r = open_streams(&l, e)) < 0)
		return r;
	vm = xcalloc(1, sizeof(*vm));
	vm->be = be;
	vm->cb = cb;
	vm->user = user;
	vm->logs = cb->on_log != NULL;
	vm->net = STEAL(l.net);
	vm->agent_fd = STEAL_FD(l.agent[0]);
	buf_init(&vm->lines.partial, CONTROL_BOOT_LINE_MAX);
	r = attach(loop, vm, &l, spec, e);
	if (r < 0) {
		vm_free(vm);
		return r;
	}
	uv_timer_start(&vm->timer, on_late, (uint64_t)l.plan.boot_timeout_ms + BOOT_LATE_MS, 0);
	*ret = vm;
	return 0;
}

int vm_start(uv_loop_t *loop, const struct vm_spec *spec, const struct vm_callbacks *cb, void *user,
	struct vm **ret, struct err *e)
{
	const struct vm_backend *be;
	int r = vm_backend_choose(spec->backend, &be, e);

	return r < 0 ? r : vm_start_on(be, loop, spec, cb, user, ret, e);
}

/* --- while it runs --- */

int vm_take_agent_fd(struct vm *vm)
{
	return STEAL_FD(vm->agent_fd);
}

enum vm_tier vm_tier(const struct vm *vm)
{
	return vm->be->tier;
}

const char *vm_backend_name(const struct vm *vm)
{
	return vm->be->name;
}

uint64_t vm_net_active_ms(const struct vm *vm)
{
	return vm->net ? atomic_load_explicit(&vm->net->active_ms, memory_order_relaxed) : 0;
}

int vm_pid(const struct vm *vm)
{
	return vm->gone ? 0 : (int)vm->boot.pid;
}

void vm_log_pause(struct vm *vm, uint32_t ms)
{
	vm->log_pause_ms = ms;
}

void vm_shutdown(struct vm *vm, uint32_t grace_ms)
{
	struct control_cmd c = {.kind = CONTROL_CMD_SHUTDOWN, .grace_ms = grace_ms};
	uint64_t late_ms = (uint64_t)grace_ms + VM_LEAVE_MS + VM_KILL_LATE_MS;

	if (vm->kill_asked)
		return;
	if (vm->state == VM_READY)
		set_state(vm, VM_STOPPING);
	else if (vm->state != VM_STOPPING || uv_timer_get_due_in(&vm->timer) <= late_ms)
		return;
	send_cmd(vm, &c);
	set_alarm(vm, late_ms);
}

void vm_kill(struct vm *vm)
{
	struct control_cmd c = {.kind = CONTROL_CMD_KILL};

	if (vm->state == VM_ENDED || vm->kill_asked)
		return;
	vm->kill_asked = true;
	send_cmd(vm, &c);
	set_alarm(vm, VM_KILL_LATE_MS);
}

void vm_free(struct vm *vm)
{
	if (!vm)
		return;
	vm->freed = true;
	if (vm->handles == 0 && !vm->in_exit_callback) {
		release(vm);
		return;
	}
	if (vm->closing)
		return; /* on_closed releases it */
	if (uv_is_active((uv_handle_t *)&vm->boot) && !vm->gone)
		uv_process_kill(&vm->boot, SIGKILL);
	else
		close_all(vm);
}
