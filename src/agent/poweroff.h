/* poweroff - the orderly end of the guest.
 *
 *   phase   what happens                                              left when
 *   TERM    no new operations; SIGTERM and SIGCONT to every process   nobody is left, or grace_ms
 *   KILL    SIGKILL, repeated                                         nobody is left, or
 *                                                                     POWEROFF_KILL_MS
 *   SYNC    sync; the writable disk read-only                         done
 *   EXIT    {"event":"exit"} on iii.control                           ack, or POWEROFF_ACK_MS
 *   END     reboot(RB_AUTOBOOT): the only way out that both VMMs take as an end (vmm.md §7)
 *
 * "exit" is thus said when the disk is already clean, so a host that kills the VM right after it
 * loses nothing.
 */
#pragma once

#include <stdint.h>
#include <uv.h>

#define POWEROFF_GRACE_DEFAULT_MS 1000
#define POWEROFF_GRACE_MAX_MS	  60000 /* a longer grace is cut to this */
#define POWEROFF_KILL_MS	  2000
#define POWEROFF_ACK_MS		  1000

/* `upper_fd`: an open folder at the root of the writable disk's mount, or -1. */
void poweroff_init(uv_loop_t *loop, int upper_fd);
/* Begins; a second call can only shorten the grace. In a worker VM this is its last part: the
 * worker has had its own time (provision.h). */
void poweroff_begin(uint64_t grace_ms, int status);
/* The host has read "exit". */
void poweroff_ack(void);

/* At once, for a boot that failed: sync, then the reboot. */
_Noreturn void poweroff_now(void);
