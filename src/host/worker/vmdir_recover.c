/* What a daemon that died left behind: supervisors on their way out, boots that never ended in
 * their record, folders half deleted and files half made. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/worker/record_priv.h"

#define TRASH	   ".trash-"
#define PARTIAL	   ".partial"
#define STAT_BYTES 4096
#define STAT_START 22 /* number of the field, proc(5) */

uint64_t process_start_time(pid_t pid)
{
	cleanup_free char *text = NULL;
	uint64_t start = 0;
	char path[32], *p;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (pid <= 0 || fd_slurp_at(AT_FDCWD, path, STAT_BYTES, &text, NULL) < 0)
		return 0;
	/* Field 2 is the name in brackets, and may hold anything. */
	p = strrchr(text, ')');
	for (int field = 2; p && field < STAT_START; field++) {
		p = strchr(p, ' ');
		p = p ? p + 1 : NULL;
	}
	if (!p)
		return 0;
	p[strcspn(p, " \n")] = '\0';
	return str_u64(p, &start) == 0 ? start : 0;
}

/* The pidfd comes first, so that the process it stands for cannot be another than the one whose
 * start time is read, unless it has ended already: then nothing is hit. */
static bool kill_stray(const struct vmdir *d, const struct worker_record *r)
{
	cleanup_fd int fd = r->pid > 0 ? (int)syscall(SYS_pidfd_open, r->pid, 0) : -1;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint64_t start = fd < 0 ? 0 : process_start_time(r->pid);
	int n;

	if (start == 0 || start != r->pid_start)
		return false;
	log_warn("worker VM of a dead daemon is killed", "vm=%s instance=%" PRIu64 " pid=%d",
		d->vm_id, r->boot.instance, (int)r->pid);
	if (syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
		log_warn("worker VM cannot be killed", "vm=%s pid=%d reason=%s", d->vm_id,
			(int)r->pid, log_quote(err_str(errno)));
	do
		n = poll(&p, 1, WORKER_STRAY_WAIT_MS);
	while (n < 0 && errno == EINTR);
	if (n == 0)
		log_warn("worker VM does not end", "vm=%s pid=%d", d->vm_id, (int)r->pid);
	return true;
}

bool vmdir_settle(struct vmdir *d, struct worker_record *r, uint64_t now_ms)
{
	bool changed = kill_stray(d, r);

	r->pid = 0;
	r->pid_start = 0;
	if (r->boot.instance && !worker_boot_ended(&r->boot)) {
		r->boot.state = WORKER_EXITED;
		r->boot.ended_at_ms = MAX(now_ms, r->boot.started_at_ms);
		r->boot.has_exit_code = r->boot.has_signal = false;
		r->boot.exit_code = r->boot.signal = 0;
		changed = true;
	}
	return changed;
}

/* The names in a folder that `wanted` takes, as a vector; NULL with errno in *ret_r. */
static char **list(int dirfd, bool (*wanted)(const char *name), int *ret_r)
{
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	char **names = NULL;

	*ret_r = dir ? 0 : -errno;
	if (!dir) {
		fd_close(&fd);
		return NULL;
	}
	while ((errno = 0, entry = readdir(dir))) {
		if (wanted(entry->d_name))
			strv_add(&names, entry->d_name);
	}
	*ret_r = -errno;
	closedir(dir);
	return names;
}

static void remove_names(int dirfd, bool (*wanted)(const char *name))
{
	int r;
	char **names = list(dirfd, wanted, &r);

	for (size_t i = 0; names && names[i]; i++) {
		r = path_remove_at(dirfd, names[i]);
		if (r < 0 && r != -ENOENT)
			log_warn("leftover of a worker VM cannot be removed", "name=%s reason=%s",
				log_quote(names[i]), log_quote(err_str(r)));
	}
	strv_free(names);
}

static bool is_half_made(const char *name)
{
	return str_ends(name, PARTIAL) || str_starts(name, ".tmp-") || str_starts(name, ".upper-");
}

static bool is_trash(const char *name)
{
	return str_starts(name, TRASH);
}

void vmdir_sweep(struct vmdir *d)
{
	remove_names(d->fd, is_half_made);
}

/* 1 with the record, 0 when there is none. */
static int recover_one(
	int root_fd, const char *vm_id, uint64_t now_ms, struct worker_record *ret, struct err *e)
{
	struct vmdir d;
	int r = vmdir_open(root_fd, vm_id, false, &d, e);

	if (r < 0)
		return r == -EBUSY || r == -ENOENT ? 0 : r;
	vmdir_sweep(&d);
	r = vmdir_load(&d, ret, e);
	/* A disk that is full must not keep the daemon from starting: the next one settles it. */
	if (r == 0 && vmdir_settle(&d, ret, now_ms) && vmdir_save(&d, ret, e) < 0)
		log_warn("worker VM record cannot be saved", "vm=%s reason=%s", vm_id,
			log_quote(e->text));
	vmdir_close(&d);
	return r < 0 ? r : ret->boot.instance != 0;
}

int vmdir_recover(int root_fd, uint64_t now_ms,
	void (*found)(const char *vm_id, const struct worker_record *r, void *user), void *user,
	struct err *e)
{
	int r;
	char **ids = list(root_fd, worker_vm_id_valid, &r);

	if (r < 0) {
		strv_free(ids);
		return err_set(
			e, "S504", -r, "cannot read the folder of the worker VMs: %s", err_str(r));
	}
	remove_names(root_fd, is_trash);
	for (size_t i = 0; ids && ids[i]; i++) {
		struct worker_record rec = {0};
		struct err why = ERR_INIT;

		r = recover_one(root_fd, ids[i], now_ms, &rec, &why);
		if (r < 0)
			log_warn("worker VM cannot be recovered", "vm=%s reason=%s", ids[i],
				log_quote(why.text));
		if (r == 1)
			found(ids[i], &rec, user);
		worker_record_done(&rec);
	}
	strv_free(ids);
	return 0;
}
