/* VMs without a boot here. Other daemons of this state folder run, destroy and start them, and one
 * that dies leaves them behind: once a second each is looked at in a thread (look_run), and folders
 * that are not in the table yet are taken into it.
 *
 * Looking needs no lock as long as a record's boot has ended. One that has not is either run by
 * another daemon, which holds the lock, or is settled here. Reading a log changes nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/worker/record_priv.h"
#include "host/worker/worker_priv.h"

/* --- one VM --- */

struct look {
	struct worker_work work;
	struct vmdir_mark mark;
	struct worker_record record;
	bool open_end; /* the boot of the record has not ended, as far as is known */
	int r;	       /* as vmdir_peek */
	struct err why;
};

/* Nobody has it: whoever ran its boot is gone, so that has ended. */
static int settle(struct look *l, struct vmdir *d)
{
	int r;

	worker_record_done(&l->record);
	r = vmdir_load(d, &l->record, &l->why);
	if (r < 0)
		return r;
	if (!l->record.boot.instance)
		return -ENOENT;
	if (vmdir_settle(d, &l->record, worker_now_ms()) && vmdir_save(d, &l->record, &l->why) < 0)
		log_warn("worker VM record cannot be saved", "vm=%s reason=%s", d->vm_id,
			log_quote(l->why.text));
	return 1;
}

/* Unless another daemon has started the VM since. */
static void save_run(struct worker_work *work)
{
	struct look *l = CONTAINER_OF(work, struct look, work);
	struct worker_record now = {0};
	struct vmdir d;

	l->r = vmdir_open(work->w->root_fd, work->vm->vm_id, false, &d, &l->why);
	if (l->r < 0)
		return;
	l->r = vmdir_load(&d, &now, &l->why);
	if (l->r >= 0 && now.boot.instance <= l->record.boot.instance)
		l->r = vmdir_save(&d, &l->record, &l->why);
	vmdir_close(&d);
	worker_record_done(&now);
}

static void save_after(struct worker_work *work)
{
	struct look *l = CONTAINER_OF(work, struct look, work);

	/* The next look takes what is there. Another daemon's lock ends some day. */
	if (l->r >= 0 || l->r == -ENOENT)
		work->vm->unsaved = false;
	worker_record_done(&l->record);
	free(l);
}

void rest_save(struct worker_vm *vm)
{
	struct look *l;

	if (!vm->unsaved || vm->boot)
		return;
	l = xcalloc(1, sizeof(*l));
	l->work.run = save_run;
	l->work.after = save_after;
	worker_record_copy(&vm->record, &l->record);
	worker_queue(vm->w, vm, &l->work);
}

static void look_run(struct worker_work *work)
{
	struct look *l = CONTAINER_OF(work, struct look, work);
	struct workers *w = work->w;
	struct vmdir d;

	l->r = vmdir_peek(w->root_fd, work->vm->vm_id, &l->mark, &l->record, &l->why);
	if (l->r == 1)
		l->open_end = !worker_boot_ended(&l->record.boot);
	/* A damaged record is put aside by who has the lock, too. */
	if (l->r != -EINVAL && (l->r < 0 || !l->open_end))
		return;
	if (vmdir_open(w->root_fd, work->vm->vm_id, false, &d, NULL) < 0)
		return;
	l->r = settle(l, &d);
	vmdir_close(&d);
}

/* What was told does not change: a boot that has ended here is one that the disk had no room to
 * know of, if it says otherwise. */
static void take_record(struct worker_vm *vm, struct worker_record *r)
{
	const struct worker_boot *known = &vm->record.boot, *read = &r->boot;

	if (vm->boot)
		return; /* a start has come in between, and knows it all */
	if (read->instance < known->instance)
		return;
	if (read->instance == known->instance && worker_boot_ended(known) &&
		read->ended_at_ms != known->ended_at_ms) {
		vm->unsaved = true;
		return;
	}
	worker_record_done(&vm->record);
	vm->record = *r;
	*r = (struct worker_record){0};
}

static void look_after(struct worker_work *work)
{
	struct look *l = CONTAINER_OF(work, struct look, work);
	struct worker_vm *vm = work->vm;

	if (l->r == 1) {
		vm->mark = l->mark;
		take_record(vm, &l->record);
	} else if (l->r == -ENOENT && !vm->boot) {
		vm->mark = (struct vmdir_mark){0};
		worker_forget(vm);
	}
	worker_record_done(&l->record);
	free(l);
	worker_maybe_forget(vm);
}

static void look_at(struct worker_vm *vm)
{
	struct look *l;

	if (vm->boot || vm->contenders || vm->works)
		return;
	if (vm->unsaved) {
		rest_save(vm);
		return;
	}
	l = xcalloc(1, sizeof(*l));
	*l = (struct look){.work = {.run = look_run, .after = look_after},
		.mark = vm->mark,
		.open_end = worker_is_elsewhere(vm)};
	worker_queue(vm->w, vm, &l->work);
}

/* --- all of them --- */

struct scan {
	struct worker_work work;
	char **ids;
};

static void scan_run(struct worker_work *work)
{
	struct scan *s = CONTAINER_OF(work, struct scan, work);
	int fd = openat(work->w->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;

	if (!dir) {
		fd_close(&fd);
		return;
	}
	while ((d = readdir(dir)))
		if (worker_vm_id_valid(d->d_name))
			strv_add(&s->ids, d->d_name);
	closedir(dir);
}

static void scan_after(struct worker_work *work)
{
	struct scan *s = CONTAINER_OF(work, struct scan, work);
	struct workers *w = work->w;

	w->scanning = false;
	for (size_t i = 0; s->ids && s->ids[i] && !w->closing; i++)
		look_at(worker_get(w, s->ids[i]));
	strv_free(s->ids);
	free(s);
}

void rest_tick(struct workers *w)
{
	struct scan *s;

	if (w->scanning || w->root_fd < 0)
		return;
	w->scanning = true;
	s = xcalloc(1, sizeof(*s));
	s->work.run = scan_run;
	s->work.after = scan_after;
	worker_queue(w, NULL, &s->work);
	/* Those whose folder is gone, too. */
	for (struct worker_vm *vm = w->vms; vm; vm = vm->next)
		look_at(vm);
}

/* --- logs --- */

/* Opening the log of a VM at rest: the record tells whose it is. */
struct log_work {
	struct worker_work work;
	struct worker_record record;
	struct logs *logs;
	int r;
	struct err why;
	workers_logs_opened cb;
	void *user;
};

static void log_run(struct worker_work *work)
{
	struct log_work *lw = CONTAINER_OF(work, struct log_work, work);
	const char *vm_id = work->vm->vm_id;
	cleanup_fd int dir = -1;

	lw->r = vmdir_peek(work->w->root_fd, vm_id, &(struct vmdir_mark){0}, &lw->record, &lw->why);
	if (lw->r < 0)
		return;
	dir = openat(work->w->root_fd, vm_id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0)
		lw->r = err_set(&lw->why, "S504", errno,
			"the folder of worker VM %s cannot be opened: %s", vm_id, err_str(errno));
	else
		lw->r = logs_open(dir, lw->record.boot.instance, &lw->logs, &lw->why);
}

static int no_log(const char *vm_id, struct err *e)
{
	return err_set(e, "S503", ENOENT,
		"worker VM %.64s has no log: it was never started, or was destroyed", vm_id);
}

/* The log of the boot under way; NULL when the VM is at rest. */
static struct worker_log *live_log(const struct worker_vm *vm)
{
	struct worker_log *log = vm->boot ? vm->boot->log : NULL;

	if (log)
		log->refs++;
	return log;
}

static void log_after(struct worker_work *work)
{
	struct log_work *lw = CONTAINER_OF(work, struct log_work, work);
	struct worker_vm *vm = work->vm;
	struct worker_log *log = live_log(vm);

	if (log) { /* a start came in between, and what was read is gone */
		logs_free(lw->logs);
	} else if (lw->r >= 0) {
		take_record(vm, &lw->record);
		log = worker_log_add(vm, lw->logs);
	} else if (lw->r == -ENOENT) {
		no_log(vm->vm_id, &lw->why);
	}
	err_code(&lw->why, "S504");
	lw->cb(log ? log->logs : NULL, &lw->why, lw->user);
	worker_record_done(&lw->record);
	free(lw);
	worker_maybe_forget(vm);
}

void workers_logs(struct workers *w, const char *vm_id, workers_logs_opened cb, void *user)
{
	struct worker_vm *vm = worker_vm_id_valid(vm_id) ? worker_get(w, vm_id) : NULL;
	struct worker_log *log = vm ? live_log(vm) : NULL;
	struct log_work *lw;
	struct err e = ERR_INIT;

	if (log) {
		cb(log->logs, NULL, user);
		return;
	}
	/* Threads are not waited for any more when all has ended. */
	if (w->closing)
		worker_refuse(w, &e);
	else if (!vm || w->root_fd < 0)
		no_log(vm_id, &e);
	if (e.text[0]) {
		cb(NULL, &e, user);
		if (vm)
			worker_maybe_forget(vm);
		return;
	}
	lw = xcalloc(1, sizeof(*lw));
	*lw = (struct log_work){
		.work = {.run = log_run, .after = log_after}, .cb = cb, .user = user};
	worker_queue(w, vm, &lw->work);
}
