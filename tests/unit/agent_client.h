/* agent_client - a small client of the agent for tests: the real program on a socketpair, in a pid
 * namespace and a cgroup of its own where the rights are there. Blocking, one thread; every wait
 * has a guard that fails the test. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "mux/mux.h"
#include "wire/guest.h"
#include "wire/json.h"

#define GUARD_MS 120000 /* a wait that takes longer is a hang */

struct client {
	int fd;
	struct mux *mux;
	pid_t helper;	   /* our child */
	pid_t agent;	   /* as this namespace sees it */
	char *cgroup;	   /* its cgroup folder, or NULL */
	bool own_pids;	   /* in a pid namespace of its own */
	unsigned calls;	   /* not closed yet */
	struct buf unsent; /* what the socket did not take */
	bool broken;
};

/* One operation. Fields are filled as the reply arrives. */
struct call {
	struct client *client;
	struct mux_stream *stream;
	struct guest_reader reader;
	struct buf request; /* bytes still to send */
	size_t sent;
	bool complete;	   /* the request's body ends with `request` */
	bool paused;	   /* output is left in the window */
	size_t unconsumed; /* bytes that arrived while paused */
	struct buf out, err, data;
	json_object *head, *end;
	bool closed;
	uint32_t h2_error;
};

/* `env`: JSON for --env, or NULL. */
void client_start(struct client *c, const char *env);
/* As a host without cgroup v2. */
void client_start_without_cgroup(struct client *c);
/* Exit status of `sandbox-agent --serve` as PID 1 of a namespace, or -1 where there can be none. */
int agent_as_pid1(void);
/* Closes the socket and waits for the agent. Returns its exit status. */
int client_stop(struct client *c);
/* A new HTTP/2 session on the same socket, after the test has freed the old one. */
void client_reconnect(struct client *c);
bool client_has_cgroup(const struct client *c);

/* Opens a stream with `head` as HEAD (NULL: none); more data may be added until call_complete(). */
void call_begin(struct call *k, struct client *c, const char *path, json_object *head);
void call_data(struct call *k, const void *data, size_t len);
void call_complete(struct call *k);
void call_reset(struct call *k);
void call_pause(struct call *k, bool paused);
/* Runs until the stream has closed, respectively for about `ms`. */
void call_wait(struct call *k);
void client_run_for(struct client *c, int ms);
/* Runs until `done` says so. */
void client_run_until(struct client *c, bool (*done)(void *user), void *user);
void call_done(struct call *k);

/* {"argv":[…], "deadline_ms":60000}; NULL ends the list. */
json_object *exec_head(const char *const *argv);
/* Exec of `sh -c script` with everything awaited. */
void call_shell(struct call *k, struct client *c, const char *script);

/* What arrived on an output is exactly this. */
#define assert_out(k, text) assert_string_equal(call_text(&(k)->out), text)
#define assert_err(k, text) assert_string_equal(call_text(&(k)->err), text)
/* The bytes as a string; "" for none. */
const char *call_text(const struct buf *b);

/* Members of END. */
int64_t end_int(const struct call *k, const char *name);
bool end_bool(const struct call *k, const char *name);
const char *end_str(const struct call *k, const char *name);
/* END's error: its code, or "" when there is none. */
const char *end_error(const struct call *k);
const char *end_error_text(const struct call *k);

/* --- looking at the agent from outside --- */

size_t agent_fd_count(const struct client *c);
/* Children of the agent, dead ones included. */
size_t agent_children(const struct client *c);
/* Processes whose command line holds `marker`. */
size_t processes_with(const char *marker);
/* SIGKILL to them; returns how many. */
size_t kill_processes_with(const char *marker);
/* Leaves in the agent's cgroup; 0 without one. */
size_t agent_leaves(const struct client *c);
/* Runs until the agent has neither children nor leaves. */
void client_run_until_idle(struct client *c);
