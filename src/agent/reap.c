#include "agent/reap.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

#define BUCKETS	   64
#define ROUNDS_MAX 4 /* callbacks that may be registered: main, power-off, provisioning, spare */

static struct {
	int fd;
	uv_poll_t poll;
	struct reap_slot *slots[BUCKETS];
	struct {
		reap_round cb;
		void *user;
	} rounds[ROUNDS_MAX];
	size_t n_rounds;
} reap = {.fd = -1};

static struct reap_slot **find(pid_t pid)
{
	struct reap_slot **p = &reap.slots[(unsigned)pid % BUCKETS];

	while (*p && (*p)->pid != pid)
		p = &(*p)->next;
	return p;
}

void reap_watch(struct reap_slot *slot, pid_t pid)
{
	struct reap_slot **head = &reap.slots[(unsigned)pid % BUCKETS];

	slot->pid = pid;
	slot->next = *head;
	*head = slot;
}

void reap_forget(struct reap_slot *slot)
{
	struct reap_slot **p;

	if (!slot->pid)
		return;
	p = find(slot->pid);
	if (*p)
		*p = slot->next;
	slot->pid = 0;
}

void reap_now(void)
{
	bool orphans = false, none_left = false;

	for (;;) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
		struct reap_slot **p;

		if (pid < 0 && errno == EINTR)
			continue;
		if (pid <= 0) {
			none_left = pid < 0 && errno == ECHILD;
			break;
		}
		p = find(pid);
		if (*p) {
			struct reap_slot *slot = *p;

			*p = slot->next;
			slot->pid = 0;
			slot->on_exit(slot, status);
		} else {
			orphans = true;
		}
	}
	for (size_t i = 0; i < reap.n_rounds; i++)
		reap.rounds[i].cb(orphans, none_left, reap.rounds[i].user);
}

static void on_sigchld(uv_poll_t *poll, int status, int events)
{
	struct signalfd_siginfo info;

	/* One read takes the pending signal; signals do not queue, so the count says nothing. */
	while (read(reap.fd, &info, sizeof(info)) < 0 && errno == EINTR)
		;
	reap_now();
}

int reap_start(uv_loop_t *loop)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	reap.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (reap.fd < 0)
		return -errno;
	uv_poll_init(loop, &reap.poll, reap.fd);
	return uv_poll_start(&reap.poll, UV_READABLE, on_sigchld);
}

void reap_stop(void)
{
	uv_close((uv_handle_t *)&reap.poll, NULL);
	fd_close(&reap.fd);
	reap.n_rounds = 0;
}

void reap_on_round(reap_round cb, void *user)
{
	assert(reap.n_rounds < ARRAY_LEN(reap.rounds));
	reap.rounds[reap.n_rounds].cb = cb;
	reap.rounds[reap.n_rounds++].user = user;
}
