/* env - the environment of programs in the guest, and the frame that brings it.
 *
 * The host sends one frame on the port iii.env before it expects "ready":
 *
 *   length (4 bytes, big-endian) · {"env":["NAME=value",…],"hostname":"sandbox","time_ns":N,
 *                                   "net":{…},"worker":{…}}
 *
 * "net" (wire/guest_net.h) and "worker" (wire/worker.h) are left out where the guest has none.
 *
 * Precedence, lowest first (sandbox contract §1.3): PATH and HOME of ENV_DEFAULTS, the frame's env,
 * the env of one exec. Nothing of the agent's own environment is ever added.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/guest_net.h"
#include "wire/worker.h"

#define ENV_FRAME_MAX (8u << 20) /* bytes of JSON; a longer frame is a boot failure */
#define ENV_FRAME_HDR 4

/* The frame, read. Freed with env_frame_done(). */
struct env_frame {
	char **env;	  /* ENV_DEFAULTS and the frame's list, one entry a name */
	char *hostname;	  /* never NULL */
	uint64_t time_ns; /* the host's wall clock when it started the VM; 0: not told */
	bool has_net, has_worker;
	struct guest_net net;
	struct worker_job worker;
};

int env_frame_parse(const char *json, size_t len, struct env_frame *ret, struct err *e);
void env_frame_done(struct env_frame *f);

/* Both lists as one: the last entry of a name wins, entries without '=' or with an empty name are
 * left out (§1.0 "env shape"). Either may be NULL. The array is the caller's to free, the strings
 * still belong to the lists. */
char **env_merge(char *const *base, char *const *extra);

/* `env` (one entry a name) as a worker's scripts get it, in a guest whose files the host could not
 * see: HOME is /root unless it is a folder, TMPDIR and SHELL are left out unless they are a folder
 * and a program, LANG is C.UTF-8 unless it is given (worker VM specification §5.4). The array is
 * the caller's, the strings are not. */
char **env_for_worker(char *const *env);
