/* cgroup - a leaf of the cgroup v2 tree for every exec, so that all it started can be killed.
 *
 *   <root>/exec/<number>        one leaf an exec, made empty, removed when empty again
 *   <root>/worker               what a worker VM runs by itself
 *
 * A process group does not hold a child that called setsid(); a cgroup does, and cgroup.kill takes
 * forks that happen meanwhile with it. A program is root in the guest and may move itself to
 * another cgroup on purpose: that escapes the kill of its deadline, not the VM.
 *
 * Without cgroup v2 (no kernel support, no rights in a test) cgroup_available() is false and the
 * caller falls back to process groups. One tree per process, hence no handle.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct cgroup_leaf {
	uint64_t number; /* 0: no leaf */
};

/* Takes `root_fd`, an open folder of a cgroup2 mount where exec/ may be made, or -1 for none.
 * Returns 0, or why there will be no cgroups. */
int cgroup_start(int root_fd);
void cgroup_stop(void);
bool cgroup_available(void);

/* Makes a leaf. The open folder in *ret_fd (the caller closes it) is for CLONE_INTO_CGROUP. */
int cgroup_leaf_new(struct cgroup_leaf *ret, int *ret_fd);
/* SIGKILL to all in it, also to those being forked. Needs repeating until it is empty only for
 * processes that are moved in from outside. */
int cgroup_leaf_kill(const struct cgroup_leaf *leaf);
/* 1: there are live processes; 0: none; negative errno. */
int cgroup_leaf_populated(const struct cgroup_leaf *leaf);
/* Gives the leaf up: it is removed now, or when the last background process of it has ended. */
void cgroup_leaf_release(struct cgroup_leaf *leaf);

/* --- the worker of a worker VM: <root>/worker, one for everything it runs --- */

/* Makes it and returns its open folder for CLONE_INTO_CGROUP (the caller closes it), or a negative
 * errno. */
int cgroup_worker_new(void);
/* The memory that all in it may have together. 0, or why the kernel does not hold it to that. */
int cgroup_worker_limit(int worker_fd, uint64_t memory_max_bytes);
/* SIGKILL to all in it. */
int cgroup_worker_kill(int worker_fd);

/* Removes given-up leaves that have become empty; called after children were reaped. */
void cgroup_sweep(void);
