/* exec - "/exec": one program from start to answer (sandbox contract §1.4).
 *
 *   request  HEAD (exec_request.h) · DATA* = stdin · end of stream = end of stdin
 *   reply    (OUT|ERR)* · END {"exit_code","signal","timed_out","stdout_dropped",
 *                              "stderr_dropped","start_error"}; when timed_out also
 *                              "stdout_tail", "stderr_tail": the last GUEST_TAIL_MAX bytes that
 *                              were dropped, in hex
 *
 *   state     what happens                          left when
 *   RUNNING   the program runs                      it exited -> DRAINING
 *                                                   deadline, or stream reset -> KILLING
 *   KILLING   SIGKILL to the cgroup, again and      it is empty and the program reaped
 *             again, until nobody is left           -> DRAINING; the stream is gone -> DONE
 *                                                   EXEC_KILL_WAIT_MS passed -> DONE (S300)
 *   DRAINING  what is in the pipes is sent          both pipes ended, or what was in them after
 *                                                   EXEC_GRACE_MS is sent -> DONE
 *                                                   stream reset -> KILLING
 *   DONE      answered, or nobody listens           memory is freed once the handles are closed
 */
#pragma once

#include <stddef.h>

/* How long a background child may keep a pipe open after the program itself has exited before the
 * answer goes out without its further output (§1.4 "End of output"). */
#define EXEC_GRACE_MS 1000
/* How long a killed cgroup may take to die (a process in an uninterruptible wait) before the answer
 * is an error. The host waits 2 s past the deadline. */
#define EXEC_KILL_WAIT_MS 1500

/* Execs that are not DONE, cancelled ones that are being killed included. */
size_t exec_count(void);
