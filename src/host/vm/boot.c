/* One process a VM, one thread, one ppoll() loop.
 *
 *   BOOTING   --"ready"-->  RUNNING  --shutdown-->  STOPPING
 *      |                       |                       |
 *      +-----------------------+--------"exit"---------+-->  LEAVING
 *
 * In every phase the VMM may end; what that means is in boot_end.c. A decision of our own (a
 * kill, a deadline, a breach of protocol) is recorded first and then carried out with SIGKILL, so
 * that the death that follows is never taken for a crash.
 *
 * What the guest and the VMM print is always read, at once and to the end, and all but the last few
 * KiB is thrown away: a flood costs processor time, no memory, and never blocks the guest. Where
 * the plan names a log, all of it goes there first, chunk by chunk; a chunk that does not fit is
 * waited for, and nothing more is read meanwhile, so the guest waits too.
 *
 * When the daemon dies, the control socket is at its end. A VM that keeps nothing is killed then
 * (PR_SET_PDEATHSIG sees to it as well); the guest of one with a kept disk is asked to sync first,
 * within BOOT_ORPHAN_MS, and that signal is one that can be caught. From anybody else it changes
 * nothing.
 *
 * Under qemu the kernel may die before its first process, which is no fault of the guest (vmm.md
 * §7): such a boot is repeated once. It must not have begun to read iii.env, which the agent does
 * first; then nothing of the agent's byte stream has been taken either, and the second VMM gets
 * the same streams as the first.
 */
#include "host/vm/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "host/vm/boot_end.h"
#include "host/vm/confine.h"
#include "host/vm/control.h"
#include "host/vm/disk_lock.h"
#include "host/vm/logpipe.h"
#include "host/vm/net_link.h"
#include "host/vm/tail.h"
#include "host/vm/vmm.h"

#define NEVER	   INT64_MAX
#define READ_CHUNK LOGPIPE_CHUNK_MAX
#define DRAIN_MAX  64 /* chunks read of a dead VMM's pipes: more than a pipe holds */

/* Within the daemon's patience after a kill (vm.c); what does not fit then is lost with it. */
#define LOG_DRAIN_MS 1500

#define ORPHAN_SIGNAL SIGHUP

enum phase {
	PHASE_BOOTING,
	PHASE_RUNNING,
	PHASE_STOPPING,
	PHASE_LEAVING,
};

struct boot {
	struct plan plan;
	const struct vm_backend *be;
	struct vmm vmm;
	enum phase phase;
	int64_t deadline_ms;
	bool retried;
	bool agent_open; /* PLAN_FD_AGENT is kept for a second boot */

	struct tail console, messages;
	struct logpipe_writer log;
	struct net_link *net; /* NULL: the guest has no network */
	struct control_lines from_daemon, from_guest;
	unsigned guest_lines;
	struct buf env; /* the frame for iii.env */
	size_t env_sent;

	bool told_started;
	bool announced; /* the guest said how it leaves */
	int guest_status;
	bool worker_begun; /* worker_phase is valid */
	enum vm_phase worker_phase;
	bool daemon_gone;

	bool decided; /* we end it, for … */
	enum vm_end end;
	struct err why;
};

/* --- decisions --- */

static void decide(struct boot *b, enum vm_end end, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Ends the VM for a reason of ours; the first one counts. */
static void decide(struct boot *b, enum vm_end end, const char *fmt, ...)
{
	char text[ERR_TEXT_MAX];
	va_list ap;

	vmm_kill(&b->vmm);
	if (b->decided)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	b->decided = true;
	b->end = end;
	b->deadline_ms = NEVER;
	err_set(&b->why, "S300", EIO, "%s", text);
}

static void on_deadline(struct boot *b)
{
	switch (b->phase) {
	case PHASE_BOOTING:
		decide(b, VM_END_BOOT_TIMEOUT,
			"the agent did not answer within %u ms of the VM's start (backend %s)",
			b->plan.boot_timeout_ms, b->be->name);
		break;
	case PHASE_STOPPING:
		decide(b, VM_END_STOPPED,
			"the guest did not leave in the time it was given and was killed");
		break;
	case PHASE_LEAVING:
		decide(b, VM_END_STOPPED,
			"the guest said it would leave, but was still there %d ms later and was "
			"killed",
			BOOT_POWER_OFF_MS);
		break;
	case PHASE_RUNNING:
		break;
	}
}

/* --- lines --- */

static void tell_daemon(const struct control_event *ev)
{
	cleanup_buf struct buf line;
	size_t done = 0;

	buf_init(&line, CONTROL_BOOT_LINE_MAX);
	if (control_event_add(&line, ev) < 0)
		return;
	while (done < line.len) {
		ssize_t n = send(PLAN_FD_CONTROL, line.data + done, line.len - done, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return; /* the daemon is gone, and its death ends us */
		done += (size_t)n;
	}
}

/* Best effort: a guest that does not read its port runs into a deadline. */
static void tell_guest(struct boot *b, const char *line)
{
	if (b->vmm.control >= 0)
		send(b->vmm.control, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void tell_guest_shutdown(struct boot *b, uint32_t grace_ms)
{
	uint32_t kept_ms = MIN(grace_ms / 4, (uint32_t)BOOT_GRACE_KEPT_MS);
	struct control_cmd c = {.kind = CONTROL_CMD_SHUTDOWN, .grace_ms = grace_ms - kept_ms};
	cleanup_buf struct buf line;

	buf_init(&line, CONTROL_GUEST_LINE_MAX);
	if (control_cmd_add(&line, &c) == 0)
		tell_guest(b, (char *)line.data);
}

/* Also once more, with less patience. */
static void shut_down(struct boot *b, uint32_t grace_ms)
{
	int64_t until = clock_ms() + grace_ms + VM_LEAVE_MS;

	if (b->phase == PHASE_RUNNING)
		b->phase = PHASE_STOPPING;
	else if (until >= b->deadline_ms)
		return;
	b->deadline_ms = until;
	if (b->phase == PHASE_STOPPING)
		tell_guest_shutdown(b, grace_ms);
}

static int on_daemon_line(char *line, size_t len, void *user)
{
	struct boot *b = user;
	struct control_cmd c;
	struct err e = ERR_INIT;

	if (control_cmd_parse(line, len, &c, &e) < 0) {
		decide(b, VM_END_STOPPED, "bad command from the daemon: %s", e.text);
		return -EPROTO;
	}
	if (c.kind == CONTROL_CMD_KILL) {
		decide(b, VM_END_STOPPED, "the VM was killed as asked");
	} else {
		shut_down(b, c.grace_ms);
	}
	return 0;
}

/* Nobody is there to tell or to obey. */
static void on_daemon_gone(struct boot *b)
{
	if (b->daemon_gone)
		return;
	b->daemon_gone = true;
	if (b->phase == PHASE_BOOTING || !plan_has_kept_disk(&b->plan))
		decide(b, VM_END_STOPPED, "the daemon is gone");
	else
		shut_down(b, BOOT_ORPHAN_MS);
}

static void on_guest_ready(struct boot *b, const struct control_guest *g)
{
	struct control_event ev = {.kind = CONTROL_EVENT_READY, .boot_us = g->boot_us};

	if (b->phase != PHASE_BOOTING)
		return;
	b->phase = PHASE_RUNNING;
	b->deadline_ms = NEVER;
	tell_daemon(&ev);
	/* A VMM that would rather drop what the console has no room for has to wait instead. */
	if (b->log.fd >= 0)
		fd_set_nonblock(b->vmm.console_guest, false);
	fd_close(&b->vmm.console_guest);
	/* From here on it only waits, and the guest runs code of others. */
	confine_waiter();
	confine_drop_code();
}

static int on_guest_phase(struct boot *b, enum vm_phase phase)
{
	struct control_event ev = {.kind = CONTROL_EVENT_PHASE, .phase = phase};

	if (!b->plan.worker || b->phase == PHASE_BOOTING || b->announced ||
		(b->worker_begun && phase <= b->worker_phase)) {
		decide(b, VM_END_GUEST_CRASH,
			"the guest broke the protocol of iii.control: a phase out of turn");
		return -EPROTO;
	}
	b->worker_begun = true;
	b->worker_phase = phase;
	tell_daemon(&ev);
	return 0;
}

static int on_guest_line(char *line, size_t len, void *user)
{
	struct boot *b = user;
	struct control_guest g;
	struct err e = ERR_INIT;

	if (++b->guest_lines > CONTROL_GUEST_COUNT) {
		decide(b, VM_END_GUEST_CRASH,
			"the guest broke the protocol of iii.control: more than %d lines",
			CONTROL_GUEST_COUNT);
		return -EPROTO;
	}
	if (control_guest_parse(line, len, &g, &e) < 0) {
		decide(b, VM_END_GUEST_CRASH, "the guest broke the protocol of iii.control: %.300s",
			e.text);
		return -EPROTO;
	}
	if (g.kind == CONTROL_GUEST_READY) {
		on_guest_ready(b, &g);
	} else if (g.kind == CONTROL_GUEST_PHASE) {
		return on_guest_phase(b, g.phase);
	} else if (g.kind == CONTROL_GUEST_FAILED) {
		/* It would end by itself, but nothing more is to be learnt from that. */
		decide(b, VM_END_GUEST_CRASH, "the guest could not start: %s", g.message);
		return -EPROTO;
	} else if (!b->announced) {
		b->announced = true;
		b->guest_status = g.status;
		if (b->phase != PHASE_STOPPING)
			b->deadline_ms = clock_ms() + BOOT_POWER_OFF_MS;
		b->phase = PHASE_LEAVING;
		tell_guest(b, CONTROL_GUEST_ACK);
	}
	return 0;
}

/* --- streams --- */

static void read_daemon(struct boot *b)
{
	char chunk[1024];
	ssize_t n = recv(PLAN_FD_CONTROL, chunk, sizeof(chunk), MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		on_daemon_gone(b);
		return;
	}
	if (control_feed(&b->from_daemon, chunk, (size_t)n, on_daemon_line, b) == -EMSGSIZE)
		decide(b, VM_END_STOPPED, "an overlong command from the daemon");
}

/* Reads once; the log has to be idle. False when there is nothing more for now; the end of the
 * stream closes it. */
static bool read_stream(struct boot *b, int *fd, struct tail *t, enum vm_stream stream)
{
	static char chunk[READ_CHUNK];
	ssize_t n = *fd < 0 ? 0 : read(*fd, chunk, sizeof(chunk));

	if (n > 0) {
		tail_add(t, chunk, (size_t)n);
		logpipe_put(&b->log, stream, chunk, (size_t)n);
	} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
		fd_close(fd);
	}
	return n > 0;
}

/* A line of our own for the log, when nothing waits in it. */
static void note(struct boot *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void note(struct boot *b, const char *fmt, ...)
{
	char line[ERR_TEXT_MAX + 128];
	size_t n;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line) - 1, fmt, ap);
	va_end(ap);
	utf8_scrub(line);
	n = strlen(line);
	line[n++] = '\n';
	if (logpipe_idle(&b->log))
		logpipe_put(&b->log, VM_STREAM_HOST, line, n);
}

static bool read_console(struct boot *b)
{
	return read_stream(b, &b->vmm.console, &b->console, VM_STREAM_CONSOLE);
}

static bool read_messages(struct boot *b)
{
	return read_stream(b, &b->vmm.messages, &b->messages, VM_STREAM_HOST);
}

/* Likewise, of the network's helper. */
static bool read_helper(struct boot *b)
{
	char chunk[1024];
	size_t n = net_link_hear(b->net, chunk, sizeof(chunk));

	if (n)
		logpipe_put(&b->log, VM_STREAM_HOST, chunk, n);
	return n > 0;
}

static bool read_guest(struct boot *b)
{
	char chunk[1024];
	ssize_t n = b->vmm.control < 0 ? 0 : read(b->vmm.control, chunk, sizeof(chunk));

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (n <= 0) {
		fd_close(&b->vmm.control);
		return false;
	}
	if (control_feed(&b->from_guest, chunk, (size_t)n, on_guest_line, b) == -EMSGSIZE)
		decide(b, VM_END_GUEST_CRASH,
			"the guest broke the protocol of iii.control: a line of more than %d bytes",
			CONTROL_GUEST_LINE_MAX);
	return !b->decided;
}

static void write_env(struct boot *b)
{
	ssize_t n = send(b->vmm.env, b->env.data + b->env_sent, b->env.len - b->env_sent,
		MSG_NOSIGNAL | MSG_DONTWAIT);

	if (n > 0)
		b->env_sent += (size_t)n;
	else if (n < 0 && errno != EAGAIN && errno != EINTR)
		b->env_sent = b->env.len; /* nobody reads it any more */
}

/* --- the VMM's life --- */

/* The VMM is confined, and about to be one. */
static void read_report(struct boot *b)
{
	struct control_event ev = {.kind = CONTROL_EVENT_STARTED};
	struct confine_report r;

	if (!vmm_confined(&b->vmm, &r) || b->told_started)
		return;
	b->told_started = true;
	confine_active_text(&r, ev.confined, sizeof(ev.confined));
	confine_refused_text(&r, ev.unconfined, sizeof(ev.unconfined));
	tell_daemon(&ev);
}

static int start(struct boot *b, struct err *e)
{
	struct timespec t;
	int r;

	clock_gettime(CLOCK_REALTIME, &t);
	buf_clear(&b->env);
	b->env_sent = 0;
	b->guest_lines = 0;
	buf_clear(&b->from_guest.partial);
	r = plan_env_frame(
		&b->plan, (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec, &b->env, e);
	if (r == 0)
		r = vmm_start(b->be, &b->plan, &b->vmm, e);
	if (r == 0 && b->net)
		net_link_set_vmm(b->net, STEAL_FD(b->vmm.net));
	if (r == 0)
		note(b, "the VM starts: %s, %u vCPUs, %u MiB", b->be->name, b->plan.vcpus,
			b->plan.mem_mib);
	return r;
}

/* Whether the guest has not taken a byte of what was sent to iii.env. */
static bool env_untouched(const struct boot *b)
{
	int waiting;

	return ioctl(b->vmm.env_guest, FIONREAD, &waiting) == 0 && (size_t)waiting == b->env_sent;
}

static bool misfired(const struct boot *b, int status)
{
	return b->be->boot_may_misfire && !b->retried && !b->decided && b->phase == PHASE_BOOTING &&
	       WIFEXITED(status) && WEXITSTATUS(status) == 0 && env_untouched(b);
}

/* From the wait status of the VMM and what it left behind. */
static void judge(const struct boot *b, int status, struct control_event *ev)
{
	char failure[ERR_TEXT_MAX];
	ssize_t n = fd_read_full(b->vmm.failure, failure, sizeof(failure) - 1);

	failure[n > 0 ? n : 0] = '\0';
	boot_end_judge(&(struct boot_end_facts){.backend = b->be->name,
			       .booting = b->phase == PHASE_BOOTING,
			       .wait_status = status,
			       .failure = failure,
			       .announced = b->announced,
			       .guest_status = b->guest_status,
			       .decided = b->decided,
			       .end = b->end,
			       .why = &b->why},
		ev);
}

static char *tails(const struct boot *b)
{
	cleanup_buf struct buf text;

	buf_init(&text, CONTROL_TAIL_MAX);
	tail_text(&b->console, "console", &text);
	tail_text(&b->messages, b->be ? b->be->name : "vmm", &text);
	if (b->net)
		net_link_tail(b->net, &text);
	return text.len ? buf_steal(&text) : xstrdup("");
}

static void report(struct boot *b, int status)
{
	struct control_event ev = {.kind = CONTROL_EVENT_EXITED};

	judge(b, status, &ev);
	ev.tail = tails(b);
	tell_daemon(&ev);
	control_event_done(&ev);
}

/* Waits for room in the log. A daemon that does not read has had its time in the end. */
static void flush_log(struct boot *b, int64_t until)
{
	if (logpipe_flush(&b->log, (int)MAX(until - clock_ms(), (int64_t)0)) < 0)
		logpipe_writer_done(&b->log);
}

static void drain_stream(struct boot *b, bool (*read_one)(struct boot *b), int64_t until)
{
	flush_log(b, until);
	for (int i = 0; i < DRAIN_MAX && read_one(b); i++)
		flush_log(b, until);
}

/* Takes in what a dead VMM left in its pipes. */
static void drain(struct boot *b)
{
	int64_t until = clock_ms() + LOG_DRAIN_MS;

	drain_stream(b, read_console, until);
	drain_stream(b, read_messages, until);
	for (int i = 0; i < DRAIN_MAX && read_guest(b); i++)
		;
}

/* --- the loop --- */

static pid_t daemon_pid;
static volatile sig_atomic_t orphaned;

enum slot {
	SLOT_DAEMON,
	SLOT_CONSOLE,
	SLOT_MESSAGES,
	SLOT_REPORT,
	SLOT_GUEST,
	SLOT_ENV,
	SLOT_LOG,
	SLOT_HELPER,
	SLOT_NET,
	SLOT_COUNT = SLOT_NET + NET_LINK_POLLS,
};

/* A guest that leaves anyway may do so without its network. */
static void check_network(struct boot *b)
{
	struct err e = ERR_INIT;

	if (b->net && net_link_ended(b->net, &e) && b->phase <= PHASE_RUNNING)
		decide(b, VM_END_VMM_FAILED, "%s", e.text);
}

static void move_frames(struct boot *b, const struct pollfd *p)
{
	struct err e = ERR_INIT;

	if (net_link_move(b->net, p, (uint64_t)clock_ms(), &e) < 0)
		decide(b, VM_END_VMM_FAILED, "%s", e.text);
}

static void wait_once(struct boot *b)
{
	const bool idle = logpipe_idle(&b->log), deaf = b->decided || b->daemon_gone;
	struct pollfd p[SLOT_COUNT] = {
		[SLOT_DAEMON] = {.fd = deaf ? -1 : PLAN_FD_CONTROL, .events = POLLIN},
		[SLOT_CONSOLE] = {.fd = idle ? b->vmm.console : -1, .events = POLLIN},
		[SLOT_MESSAGES] = {.fd = idle ? b->vmm.messages : -1, .events = POLLIN},
		[SLOT_LOG] = {.fd = idle ? -1 : b->log.fd, .events = POLLOUT},
		[SLOT_REPORT] = {.fd = b->vmm.report, .events = POLLIN},
		[SLOT_GUEST] = {.fd = b->decided ? -1 : b->vmm.control, .events = POLLIN},
		[SLOT_ENV] = {.fd = b->env_sent < b->env.len ? b->vmm.env : -1, .events = POLLOUT},
	};
	int64_t left = b->deadline_ms == NEVER ? 0 : MAX(b->deadline_ms - clock_ms(), (int64_t)0);
	struct timespec t = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000};
	sigset_t none;

	if (b->net) {
		p[SLOT_HELPER] =
			(struct pollfd){.fd = idle ? net_link_words(b->net) : -1, .events = POLLIN};
		net_link_polls(b->net, p + SLOT_NET);
	}
	sigemptyset(&none);
	if (ppoll(p, b->net ? SLOT_COUNT : SLOT_HELPER, b->deadline_ms == NEVER ? NULL : &t,
		    &none) <= 0)
		return; /* a child's end, or the deadline */
	if (p[SLOT_LOG].revents)
		logpipe_push(&b->log);
	if (p[SLOT_CONSOLE].revents)
		read_console(b);
	if (p[SLOT_MESSAGES].revents && logpipe_idle(&b->log))
		read_messages(b);
	if (b->net && p[SLOT_HELPER].revents && logpipe_idle(&b->log))
		read_helper(b);
	if (b->net)
		move_frames(b, p + SLOT_NET);
	if (p[SLOT_REPORT].revents)
		read_report(b);
	if (p[SLOT_ENV].revents)
		write_env(b);
	if (p[SLOT_GUEST].revents)
		read_guest(b);
	if (p[SLOT_DAEMON].revents)
		read_daemon(b);
}

/* Once there will be no second boot, the daemon shall see the end of the agent's stream. */
static void release_agent(struct boot *b)
{
	int fd = PLAN_FD_AGENT;

	if (!b->agent_open || (b->phase == PHASE_BOOTING && !b->retried && b->be->boot_may_misfire))
		return;
	fd_close(&fd);
	b->agent_open = false;
}

/* Until the VMM is dead; its wait status. */
static int supervise(struct boot *b)
{
	int status;

	while (!vmm_ended(&b->vmm, &status)) {
		wait_once(b);
		if (orphaned)
			on_daemon_gone(b);
		check_network(b);
		if (!b->decided && b->deadline_ms != NEVER && clock_ms() >= b->deadline_ms)
			on_deadline(b);
		release_agent(b);
	}
	drain(b);
	return status;
}

static int run(struct boot *b, struct err *e)
{
	int status, r;

	b->deadline_ms = clock_ms() + b->plan.boot_timeout_ms;
	if ((r = start(b, e)) < 0)
		return r;
	status = supervise(b);
	if (misfired(b, status)) {
		log_warn("the guest's kernel ended before its first process: once more",
			"vm=%s backend=%s", b->plan.label, b->be->name);
		note(b, "the guest's kernel ended before its first process: once more");
		vmm_done(&b->vmm);
		b->retried = true;
		if ((r = start(b, e)) < 0)
			return r;
		status = supervise(b);
	}
	report(b, status);
	return 0;
}

/* --- start-up --- */

static void on_child(int sig)
{
	(void)sig; /* only there to end ppoll() */
}

/* The kernel sends it in the name of the parent that has died. */
static void on_orphaned(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	orphaned = orphaned || info->si_pid == daemon_pid;
}

static void set_signals(void)
{
	struct sigaction chld = {.sa_handler = on_child};
	struct sigaction orphan = {.sa_sigaction = on_orphaned, .sa_flags = SA_SIGINFO};
	sigset_t set;

	signal(SIGPIPE, SIG_IGN);
	sigaction(SIGCHLD, &chld, NULL);
	sigaction(ORPHAN_SIGNAL, &orphan, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, ORPHAN_SIGNAL);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

/* Takes the plan and lets everything go that it does not name. */
static int take_plan(struct boot *b, const struct vm_backend *const *backends, struct err *e)
{
	int keep[6 + PLAN_DISKS_MAX] = {PLAN_FD_CONTROL, PLAN_FD_AGENT, PLAN_FD_LIFE};
	cleanup_fd int null = -1;
	size_t n = 3;
	int r = plan_read(STDIN_FILENO, &b->plan, e);

	if (r < 0)
		return r;
	keep[n++] = b->plan.kernel_fd;
	for (size_t i = 0; i < b->plan.n_disks; i++)
		keep[n++] = b->plan.disks[i].fd;
	if (b->plan.log_fd)
		keep[n++] = b->plan.log_fd;
	if (b->plan.net.passt)
		keep[n++] = b->plan.net.page_fd;
	if ((r = confine_fds(keep, n, e)) < 0)
		return r;
	if (b->plan.log_fd)
		logpipe_writer_init(&b->log, b->plan.log_fd);
	/* The plan's text is not for the VMM. */
	null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (null < 0 || dup2(null, STDIN_FILENO) < 0)
		return err_set(e, "S300", errno, "/dev/null: %s", err_str(errno));
	b->agent_open = true;
	for (size_t i = 0; i < n; i++) {
		if ((r = fd_set_cloexec(keep[i], true)) < 0)
			return err_set(
				e, "S300", r, "descriptor %d of the plan is not open", keep[i]);
	}
	b->be = vm_backend_find(backends, b->plan.backend);
	return b->be ? 0
		     : err_set(e, "S300", EINVAL, "this program has no backend %s",
			       b->plan.backend);
}

/* Dies with the daemon at once, unless there is something to be saved first. */
static int bind_to_daemon(const struct plan *p, struct err *e)
{
	if (plan_has_kept_disk(p) && prctl(PR_SET_PDEATHSIG, ORPHAN_SIGNAL, 0, 0, 0) < 0)
		return err_set(e, "S300", errno, "PR_SET_PDEATHSIG: %s", err_str(errno));
	return 0;
}

/* What has to be there before the VMM. */
static int open_network(struct boot *b, struct err *e)
{
	int r = b->plan.net.passt ? net_link_start(&b->plan, &b->net, e) : 0;

	if (r == 0 && (r = confine_files(CONFINE_FILES_MAX)) < 0)
		err_set(e, "S300", -r, "setrlimit: %s", err_str(r));
	return r;
}

int vm_boot_run(int argc, char **argv, const struct vm_backend *const *backends)
{
	static const char *const keep_env[] = {"SANDBOX_LOG", CONFINE_REQUIRE};
	static struct boot b;
	struct control_event failed = {
		.kind = CONTROL_EVENT_EXITED, .end = VM_END_VMM_FAILED, .guest_status = -1};
	int r;

	(void)argc;
	(void)argv;
	buf_init(&b.env, PLAN_FRAME_MAX + PLAN_FRAME_HDR);
	buf_init(&b.from_daemon.partial, CONTROL_GUEST_LINE_MAX);
	buf_init(&b.from_guest.partial, CONTROL_GUEST_LINE_MAX);
	b.vmm = VMM_INIT;
	daemon_pid = getppid();
	logpipe_writer_init(&b.log, -1);
	set_signals();
	if ((r = confine_self(keep_env, ARRAY_LEN(keep_env), &failed.why)) == 0 &&
		(r = take_plan(&b, backends, &failed.why)) == 0 &&
		(r = bind_to_daemon(&b.plan, &failed.why)) == 0 &&
		(r = disk_lock_all(&b.plan, PLAN_FD_CONTROL, &failed.why)) == 0 &&
		(r = open_network(&b, &failed.why)) == 0)
		r = run(&b, &failed.why);
	if (r < 0) {
		if (r == -ECANCELED)
			failed.end = VM_END_STOPPED;
		failed.tail = tails(&b);
		tell_daemon(&failed);
		log_error("the VM could not be started", "why=%s", log_quote(failed.why.text));
		note(&b, "the VM could not be started: %s", failed.why.text);
		control_event_done(&failed);
	}
	vmm_done(&b.vmm);
	net_link_free(b.net);
	logpipe_writer_done(&b.log);
	buf_done(&b.env);
	buf_done(&b.from_daemon.partial);
	buf_done(&b.from_guest.partial);
	plan_done(&b.plan);
	return r < 0 ? 1 : 0;
}

int vm_boot_main(int argc, char **argv)
{
	log_init(LOG_WARN);
	return vm_boot_run(argc, argv, vm_backends);
}
