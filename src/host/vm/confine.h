/* confine - what a VM's processes give up before they start.
 *
 * __vm-boot gives up for itself (and so for its children) what it never needs: confine_self,
 * confine_fds. The VMM, which a hostile guest may one day control, gives up nearly everything,
 * layer by layer (enum confine_layer); confine_fork() makes its process, confine_vmm() runs in it.
 *
 * Not every host allows every layer: a container may refuse namespaces, an old kernel has no
 * landlock. A layer that is refused is reported, and the others are applied all the same; only
 * `required` makes it an error. Works as root, as any other user, and inside containers.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "host/vm/plan.h"

#define CONFINE_FILES_MAX 256 /* descriptors of __vm-boot and of the VMM */
#define CONFINE_TASKS_MAX 512 /* threads of the VMM where they can be counted for it alone */
#define CONFINE_REQUIRE	  "III_SANDBOX_REQUIRE_CONFINEMENT" /* "1": a missing layer is S300 */

/* Dies with the parent; no new privileges, no core dump, umask 077, an empty
 * environment but for the names in `keep`, no terminal signals. */
int confine_self(const char *const *keep, size_t n_keep, struct err *e);

/* No more descriptors than this from here on, ever. 0, or a negative errno. */
int confine_files(unsigned max);

/* Closes every descriptor that is not 0, 1, 2 or listed. */
int confine_fds(const int *keep, size_t n, struct err *e);

/* For a supervisor whose VM runs and is not started again: no files, no network, no new process,
 * and of root's rights only that to kill. What the host refuses of it is done without: the VMM's
 * own confinement, by the same mechanisms, has reported that. */
void confine_waiter(void);

/* Gives back the memory of code that only ran during the start: pages of the program and its
 * libraries which were never written. They are read again from the page cache when needed. */
void confine_drop_code(void);

/* --- the VMM --- */

enum confine_layer {
	CONFINE_USER,	  /* a user id that owns nothing, or a user namespace of its own */
	CONFINE_PID,	  /* sees, and can signal, no process but its own */
	CONFINE_NET,	  /* a network with nothing in it; no abstract unix sockets of others */
	CONFINE_IPC,	  /* System V IPC, host name and cgroup names of its own */
	CONFINE_ROOT,	  /* a file tree with only what it needs */
	CONFINE_CAPS,	  /* no capability, nor a way back to one */
	CONFINE_LANDLOCK, /* files, TCP and signals once more, by another mechanism */
	CONFINE_SECCOMP,  /* system calls */
	CONFINE_LAYERS,
};

/* What is written to the failure stream when a filter ends the VMM: this and a number. */
#define CONFINE_FORBIDDEN "forbidden system call "

/* Plain data: it travels through a pipe. */
struct confine_report {
	uint8_t active[CONFINE_LAYERS];	 /* 1: the layer holds */
	uint8_t refused[CONFINE_LAYERS]; /* else the errno that it was refused with */
	uint8_t landlock_abi;
};

enum confine_filter {
	CONFINE_FILTER_PROGRAM,	 /* for a program that is still to be executed: what is dangerous
				    and what no VMM needs fails with EPERM */
	CONFINE_FILTER_KRUN,	 /* for libkrun, loaded and configured: what it does not need is its
				    end, with the system call's number in the report */
	CONFINE_FILTER_KRUN_NET, /* likewise, with what its network device needs */
	CONFINE_FILTER_NONE,	 /* tests of the other layers */
};

#define CONFINE_PATHS_MAX 16

/* What a backend needs after it is confined; zeroed: nothing but its descriptors. */
struct confine_policy {
	enum confine_filter filter;
	bool kvm;			/* /dev/kvm */
	char *paths[CONFINE_PATHS_MAX]; /* files and folders to read and to execute, absolute; one
					   that is not there is no error */
};

/* Adds a copy of a path; a relative one or one too many is ignored. */
void confine_policy_add(struct confine_policy *p, const char *path);
void confine_policy_done(struct confine_policy *p);

struct confine {
	bool userns;
	uid_t own_uid; /* before the user namespace */
	gid_t own_gid;
	uid_t uid;  /* for root: whom it becomes; else 0 */
	int map_fd; /* a user namespace that shows the files of own_uid as `uid`'s */
	struct confine_report report;
};

/* Forks a child into new user and pid namespaces where that is allowed; like fork() otherwise.
 * *ret is valid in both. In the child, getpid() is 1 when CONFINE_PID is active. The parent calls
 * confine_release(). */
pid_t confine_fork(struct confine *ret);
void confine_release(struct confine *c);

/* In the child: every other layer, in order; the last thing before the VMM is entered. Descriptors
 * of `p` keep their numbers and can still be opened again through /proc/self/fd/N, as can
 * `console`. `failure` is a pipe whose other end only the parent has, so that it tells whether the
 * parent lives; a forbidden system call is reported there.
 *
 * Fails only when the process could outlive its parent, or when `required` and a layer is missing:
 * S300 naming the layers. */
int confine_vmm(struct confine *c, const struct confine_policy *policy, const struct plan *p,
	int console, int failure, bool required, struct err *e);

/* "user pid net …": the names of active layers; "landlock (Function not implemented)": the
 * refused. Cut at the size. */
void confine_active_text(const struct confine_report *r, char *dst, size_t size);
void confine_refused_text(const struct confine_report *r, char *dst, size_t size);

/* Tries all of it in a short-lived child. -errno when that child does not answer. */
int confine_try(struct confine_report *ret, struct err *e);

/* A layer's one-word name. */
const char *confine_layer_name(enum confine_layer l);

/* The name of a system call that a filter knows, or NULL. */
const char *confine_syscall_name(int nr);
