#include "agent/poweroff.h"

#include <errno.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <unistd.h>

#include "agent/console.h"
#include "agent/control.h"
#include "agent/reap.h"
#include "agent/serve.h"
#include "base/err.h"
#include "base/mem.h"

#define KILL_AGAIN_MS 20

enum phase {
	PHASE_UP,
	PHASE_TERM,
	PHASE_KILL,
	PHASE_EXIT,
};

static struct {
	uv_timer_t timer;
	enum phase phase;
	int upper_fd, status;
	uint64_t kill_started, term_until;
} off = {.upper_fd = -1};

static void reboot_now(void)
{
	reboot(RB_AUTOBOOT);
	/* A kernel that does not reboot: the host's patience ends this. */
	for (;;)
		pause();
}

/* Through the descriptor, because the mount lies beneath the root that programs see. */
static void upper_read_only(void)
{
	if (off.upper_fd < 0)
		return;
	if (fchdir(off.upper_fd) < 0 || mount(NULL, ".", NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
		console_say("cannot make the upper disk read-only: %s (its journal will be "
			    "replayed)",
			err_str(errno));
}

void poweroff_now(void)
{
	sync();
	reboot_now();
	__builtin_unreachable();
}

static void on_ack_missing(uv_timer_t *timer)
{
	reboot_now();
}

static void finish(void)
{
	sync();
	upper_read_only();
	off.phase = PHASE_EXIT;
	control_say_exit(off.status);
	uv_timer_start(&off.timer, on_ack_missing, POWEROFF_ACK_MS, 0);
}

static void on_kill_again(uv_timer_t *timer)
{
	if (uv_now(timer->loop) - off.kill_started >= POWEROFF_KILL_MS) {
		console_say("powering off although a process does not die");
		finish();
		return;
	}
	kill(-1, SIGKILL);
	reap_now();
}

static void begin_kill(void)
{
	off.phase = PHASE_KILL;
	off.kill_started = uv_now(off.timer.loop);
	kill(-1, SIGKILL);
	uv_timer_start(&off.timer, on_kill_again, KILL_AGAIN_MS, KILL_AGAIN_MS);
}

static void on_grace_over(uv_timer_t *timer)
{
	begin_kill();
}

static void on_reaped(bool orphans, bool none_left, void *user)
{
	if (none_left && (off.phase == PHASE_TERM || off.phase == PHASE_KILL)) {
		uv_timer_stop(&off.timer);
		finish();
	}
}

void poweroff_init(uv_loop_t *loop, int upper_fd)
{
	uv_timer_init(loop, &off.timer);
	off.upper_fd = upper_fd;
	reap_on_round(on_reaped, NULL);
}

void poweroff_begin(uint64_t grace_ms, int status)
{
	uint64_t until;

	uv_update_time(off.timer.loop);
	grace_ms = MIN(grace_ms, (uint64_t)POWEROFF_GRACE_MAX_MS);
	until = uv_now(off.timer.loop) + grace_ms;
	if (off.phase > PHASE_TERM || (off.phase == PHASE_TERM && until >= off.term_until))
		return;
	off.term_until = until;
	if (off.phase == PHASE_UP) {
		off.status = status;
		off.phase = PHASE_TERM;
		serve_close_doors();
		kill(-1, SIGTERM);
		kill(-1, SIGCONT);
	}
	uv_timer_start(&off.timer, on_grace_over, grace_ms, 0);
	reap_now(); /* perhaps nobody is there */
}

void poweroff_ack(void)
{
	if (off.phase == PHASE_EXIT)
		reboot_now();
}
