/* reap - every child of the agent is waited for here and nowhere else.
 *
 * PID 1 inherits orphans of all kinds, so there is one waitpid loop. Who started a child registers
 * a slot for its pid before the loop runs again; its status then goes to that slot. Statuses of
 * unknown pids (orphans) are dropped. A slot may be freed from inside its callback.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

struct reap_slot {
	pid_t pid; /* 0: not watched */
	void (*on_exit)(struct reap_slot *slot, int wait_status);
	struct reap_slot *next;
};

/* Blocks SIGCHLD and takes it through a signalfd. 0 or a negative errno. */
int reap_start(uv_loop_t *loop);
void reap_stop(void);

/* Asks to be told when `pid` has ended. */
void reap_watch(struct reap_slot *slot, pid_t pid);
/* No more interest: the child is still waited for. Harmless when not watched. */
void reap_forget(struct reap_slot *slot);

/* Called after every round of waiting. `orphans`: at least one pid was nobody's; `none_left`: the
 * agent has no child at all any more. */
typedef void (*reap_round)(bool orphans, bool none_left, void *user);
void reap_on_round(reap_round cb, void *user);

/* Waits for what has ended; the loop does it by itself on SIGCHLD. */
void reap_now(void);
