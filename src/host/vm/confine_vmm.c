/* The order in which the VMM's process gives things up, and the record of it.
 *
 *   clone        user namespace (where one is needed for the others), pid namespace
 *   net, ipc     need the rights of root or of the user namespace
 *   root         likewise; libraries are loaded by now or are shown in the new tree
 *   user, caps   end those rights
 *   landlock     would have forbidden the mounts
 *   seccomp      would have forbidden all of it
 *
 * The child of clone() is the first process of its pid namespace and is the VMM itself, so there is
 * no init between it and its supervisor: its status is the supervisor's to read, and with it ends
 * whatever it may have started. As such a first process it does not die of signals that it sends
 * to itself: an abort() is seen as the fault that the C library falls back to.
 */
#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/child.h"
#include "host/vm/confine_priv.h"

#define FILE_SLACK    (64u << 20) /* what a VMM may write beside the disk */
#define TRY_MS	      10000
#define LOCKED_MEMORY 65536

const char *confine_layer_name(enum confine_layer l)
{
	static const char *const names[CONFINE_LAYERS] = {
		"user", "pid", "net", "ipc", "root", "caps", "landlock", "seccomp"};

	return names[l];
}

void confine_policy_add(struct confine_policy *p, const char *path)
{
	size_t i = 0;

	if (path[0] != '/')
		return;
	while (i < CONFINE_PATHS_MAX && p->paths[i] && !str_eq(p->paths[i], path))
		i++;
	if (i < CONFINE_PATHS_MAX && !p->paths[i])
		p->paths[i] = xstrdup(path);
}

void confine_policy_done(struct confine_policy *p)
{
	for (size_t i = 0; i < CONFINE_PATHS_MAX; i++)
		free(p->paths[i]);
	*p = (struct confine_policy){0};
}

/* --- the fork --- */

static bool has_sys_admin(void)
{
	struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct d[2] = {0};

	return geteuid() == 0 && syscall(SYS_capget, &h, d) == 0 &&
	       (d[0].effective & (1u << CAP_SYS_ADMIN)) != 0;
}

/* fork() with flags. The C library keeps the thread's id at a place that the kernel is asked to
 * fill in, as it does in fork(). */
static pid_t clone_with(unsigned long flags)
{
	int *tid = NULL;

	if (prctl(PR_GET_TID_ADDRESS, &tid, 0, 0, 0) == 0 && tid)
		flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
#if defined(__aarch64__)
	return (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, NULL, 0, tid);
#else
	return (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, NULL, tid, 0);
#endif
}

static void note(struct confine_report *r, enum confine_layer l, int result)
{
	r->active[l] = result >= 0;
	r->refused[l] = result >= 0 ? 0 : (uint8_t)MIN(-result, 255);
}

/* The user id is unique among the living: no two VMs share their limits, nor can one signal the
 * other. */
static void prepare_uid(struct confine *c)
{
	uid_t uid = CONFINE_UID_BASE + (uid_t)getpid() % CONFINE_UID_SPAN;
	int fd = confine_uid_map(uid);

	if (fd < 0)
		return;
	c->map_fd = fd;
	c->uid = uid;
}

/* Root does without a user namespace when there is another user for it; else, as for the root of a
 * container, that namespace is what sets it apart. */
pid_t confine_fork(struct confine *ret)
{
	static const unsigned ways[] = {
		CLONE_NEWPID | CLONE_NEWUSER, CLONE_NEWUSER, CLONE_NEWPID, 0};
	int first_error = 0;
	unsigned way = 0;
	pid_t pid = -1;

	*ret = (struct confine){.own_uid = geteuid(), .own_gid = getegid(), .map_fd = -1};
	if (has_sys_admin())
		prepare_uid(ret);
	for (size_t i = ret->uid ? 2 : 0; i < ARRAY_LEN(ways) && pid < 0; i++) {
		way = ways[i];
		pid = way ? clone_with(way) : fork();
		if (pid < 0 && !first_error)
			first_error = errno;
	}
	ret->userns = (way & CLONE_NEWUSER) != 0;
	note(&ret->report, CONFINE_PID, way & CLONE_NEWPID ? 0 : -first_error);
	if (!ret->uid)
		note(&ret->report, CONFINE_USER, ret->userns ? 0 : -first_error);
	return pid;
}

void confine_release(struct confine *c)
{
	fd_close(&c->map_fd);
}

/* --- in the child --- */

/* Whether the kernel counts the tasks of a user by user namespace. */
static bool tasks_are_counted_apart(void)
{
	struct utsname u;
	unsigned major = 0, minor = 0;

	return uname(&u) == 0 && sscanf(u.release, "%u.%u", &major, &minor) == 2 &&
	       (major > 5 || (major == 5 && minor >= 14));
}

/* RLIMIT_NPROC counts a user's tasks on the whole host, so it is set only where this user is the
 * VM's own, or counted in its namespace alone. */
static void set_limits(const struct confine *c, const struct plan *p)
{
	rlim_t size = FILE_SLACK;

	for (size_t i = 0; i < p->n_disks; i++) {
		struct stat st;

		if (!p->disks[i].readonly && fstat(p->disks[i].fd, &st) == 0)
			size = MAX(size, (rlim_t)st.st_size + FILE_SLACK);
	}
	confine_limit(RLIMIT_FSIZE, size);
	confine_limit(RLIMIT_MEMLOCK, LOCKED_MEMORY);
	confine_limit(RLIMIT_MSGQUEUE, 0);
	if ((c->uid && c->report.active[CONFINE_USER]) || (c->userns && tasks_are_counted_apart()))
		confine_limit(RLIMIT_NPROC, CONFINE_TASKS_MAX);
}

static int separate(unsigned flags)
{
	return unshare((int)flags) < 0 ? -errno : 0;
}

static void change_user(struct confine *c, const struct plan *p, bool kvm, int console,
	struct confine_uid_swap *swap)
{
	if (c->uid)
		note(&c->report, CONFINE_USER, confine_uid_drop(c, p, kvm, console, swap));
	note(&c->report, CONFINE_CAPS, confine_caps_drop());
}

/* A change of identity undoes PR_SET_PDEATHSIG. Whether the parent died before it was set again
 * shows in `life`, of which it has the only other end. */
static int bind_to_parent(int life, struct err *e)
{
	struct pollfd p = {.fd = life, .events = 0};

	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		return err_set(e, "S300", errno, "PR_SET_PDEATHSIG: %s", err_str(errno));
	if (poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLHUP)))
		return err_set(e, "S300", ESRCH, "the supervisor is gone");
	return 0;
}

static int check_required(const struct confine_report *r, struct err *e)
{
	char missing[512];

	confine_refused_text(r, missing, sizeof(missing));
	if (!missing[0])
		return 0;
	return err_set(e, "S300", EPERM,
		"this host refuses to confine the VMM by: %s; " CONFINE_REQUIRE
		" is set, so no VM is started without (`sandbox-libkrun doctor` shows them)",
		missing);
}

int confine_vmm(struct confine *c, const struct confine_policy *policy, const struct plan *p,
	int console, int failure, bool required, struct err *e)
{
	struct confine_report *r = &c->report;
	struct confine_uid_swap swap;
	int done;

	if (c->userns && (done = confine_ns_map(c->own_uid, c->own_gid)) < 0)
		note(r, CONFINE_USER, done);
	if (c->uid)
		confine_uid_swap(c, p, console, &swap);
	note(r, CONFINE_NET, separate(CLONE_NEWNET));
	note(r, CONFINE_IPC, separate(CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP));
	note(r, CONFINE_ROOT, confine_ns_root(c, policy));
	change_user(c, p, policy->kvm, console, &swap);
	if ((done = bind_to_parent(failure, e)) < 0)
		return done;
	set_limits(c, p);
	note(r, CONFINE_LANDLOCK, confine_landlock(policy, p, &r->landlock_abi));
	note(r, CONFINE_SECCOMP, confine_seccomp(policy->filter, failure));
	confine_release(c);
	return required ? check_required(r, e) : 0;
}

#if defined(__SANITIZE_ADDRESS__)
#define CHECKED_BUILD 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CHECKED_BUILD 1
#endif
#endif
#ifndef CHECKED_BUILD
#define CHECKED_BUILD 0 /* 1: a sanitizer traces the process and opens files when it ends */
#endif

void confine_waiter(void)
{
	if (CHECKED_BUILD)
		return;
	confine_caps_waiter();
	confine_landlock_waiter();
	confine_seccomp_waiter();
}

/* --- texts --- */

static void append(char *dst, size_t size, const char *text)
{
	size_t n = strlen(dst);

	snprintf(dst + n, size - n, "%s%s", n ? " " : "", text);
}

void confine_active_text(const struct confine_report *r, char *dst, size_t size)
{
	dst[0] = '\0';
	for (int l = 0; l < CONFINE_LAYERS; l++) {
		if (r->active[l])
			append(dst, size, confine_layer_name((enum confine_layer)l));
	}
}

void confine_refused_text(const struct confine_report *r, char *dst, size_t size)
{
	dst[0] = '\0';
	for (int l = 0; l < CONFINE_LAYERS; l++) {
		char text[128];

		if (r->active[l])
			continue;
		snprintf(text, sizeof(text), "%s%s (%s)", dst[0] ? "and " : "",
			confine_layer_name((enum confine_layer)l), err_str(r->refused[l]));
		append(dst, size, text);
	}
}

/* --- trying --- */

static _Noreturn void try_all(struct confine *c, int out)
{
	struct confine_policy policy = {.filter = CONFINE_FILTER_KRUN, .kvm = true};
	const struct plan p = {.kernel_fd = -1};
	bool bound = confine_vmm(c, &policy, &p, -1, out, false, NULL) == 0;

	_exit(!bound || fd_write_all(out, &c->report, sizeof(c->report)) < 0);
}

/* A VMM's life up to the point where it would start, below a process like its supervisor. */
static int try_child(int out, void *arg)
{
	struct confine c;
	pid_t pid;
	int status;

	(void)arg;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return 1;
	pid = confine_fork(&c);
	if (pid == 0)
		try_all(&c, out);
	if (pid < 0)
		return 1;
	while (waitpid(pid, &status, 0) < 0) {
		if (errno != EINTR)
			return 1;
	}
	return status == 0 ? 0 : 1;
}

int confine_try(struct confine_report *ret, struct err *e)
{
	char out[sizeof(*ret) + 1] = {0};
	int r = child_run(try_child, NULL, TRY_MS, out, sizeof(out));

	if (r < 0)
		return err_set(e, "S300", -r, "a confined process did not come up: %s", err_str(r));
	memcpy(ret, out, sizeof(*ret));
	return 0;
}
