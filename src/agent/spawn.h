/* spawn - one program started in its own session and cgroup, with nothing of ours but three pipes.
 *
 * The child reports why it could not start through a page shared with the agent, not through a
 * pipe: it costs no descriptor and no event, and the program never sees it, since execve unmaps
 * it. So the outcome is known once the child has been reaped.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* Programs between start and reaping; one more is refused with EAGAIN (S300). Twice what the
 * host can have under way, since cancelled ones may still be dying. */
#define SPAWN_SLOTS_MAX 512

enum spawn_step {
	SPAWN_STARTED,	    /* the program runs, or ran */
	SPAWN_STEP_SETUP,   /* session, descriptors, cgroup */
	SPAWN_STEP_WORKDIR, /* chdir */
	SPAWN_STEP_PROGRAM, /* lookup and execve */
};

struct spawn_report {
	enum spawn_step step; /* where it stopped */
	int no;		      /* positive errno */
};

struct spawn_request {
	char *const *argv;   /* argv[0] is looked up in the PATH of env */
	char *const *env;    /* final */
	const char *workdir; /* absolute, or relative to / */
	int in, out, err;    /* > 2; they become 0, 1, 2 */
	int cgroup_fd;	     /* -1: stay where the agent is */
	uint64_t nofile;     /* soft and hard limit of open files; 0: as every program's */
};

/* Maps the page, notes the limits a program gets. 0 or a negative errno. */
int spawn_start(void);
void spawn_stop(void);

/* Starts it. Returns the pid and a slot for spawn_report_take(), or a negative errno. */
pid_t spawn_program(const struct spawn_request *req, unsigned *ret_slot);

/* After the child was reaped: how far it came. Frees the slot. */
struct spawn_report spawn_report_take(unsigned slot);

/* Runs `fn` in a forked child; its result (0..255) becomes the exit status. For work that would
 * stop the loop for long. The child should begin by closing what is not its own, the write ends of
 * programs' stdin among it. Returns the pid, or a negative errno. */
pid_t spawn_function(int (*fn)(void *arg), void *arg);
/* Closes every descriptor but one. */
void spawn_keep_only(int fd);
