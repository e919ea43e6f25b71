/* proc - runs one helper program (skopeo) to its end and keeps what it said.
 *
 * The program gets an argv array, never a shell; /dev/null as stdin; its own process group, so that
 * Ctrl-C at the terminal is ours to turn into a cancel; default signals; and a parent-death signal,
 * so that it cannot outlive a daemon that was killed.
 *
 * proc_linux.c: the death signal belongs to the thread that called proc_run, which waits inside it,
 * so the two end together.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define PROC_STDERR_KEPT 8192 /* the last bytes of stderr; more is read and dropped */
#define PROC_TICK_MS	 200  /* how often `tick` is called */

struct proc {
	char *const *argv; /* argv[0] is looked up in PATH unless it has a slash */
	int cwd_fd;	   /* folder to run in, -1: ours */
	size_t out_max;	   /* more bytes on stdout end the program and are an error */
	/* Called every PROC_TICK_MS while it runs, may be NULL. A negative errno with *e set ends
	 * the program and becomes the result. */
	int (*tick)(void *user, struct err *e);
	void *user;
};

struct proc_result {
	int status;	   /* exit status, or 128 + signal */
	struct buf out;	   /* stdout */
	struct buf errors; /* tail of stderr */
};

/* 0 when it ran and ended (whatever its status): then *ret holds the outcome and must be given to
 * proc_result_done. -ENOENT when the program is not installed. Blocking. */
int proc_run(const struct proc *p, struct proc_result *ret, struct err *e);
void proc_result_done(struct proc_result *r);
