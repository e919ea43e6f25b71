/* worker_priv - one worker VM and one boot of it, as the files worker*.c share them.
 *
 * A VM's files are touched in threads of the loop's pool, one job of a VM at a time and in the
 * order in which they were queued. A job's run() uses only what belongs to the job or, while a
 * boot's own job runs, to that boot's fields marked "job"; everything else is the loop's.
 */
#pragma once

#include <stdatomic.h>

#include "host/vm/vm.h"
#include "host/worker/worker.h"

struct worker_vm;

struct worker_work {
	uv_work_t uv;
	struct workers *w;
	struct worker_vm *vm; /* NULL: in no order with anything */
	struct worker_work *next;
	bool is_long; /* it may take minutes: WORKERS_LONG_MAX of them at once */
	struct worker_work *next_long;
	void (*run)(struct worker_work *work);	 /* in a thread */
	void (*after)(struct worker_work *work); /* on the loop; the work is its to free */
};

/* A log that is open: the one of a boot, with a reference of the boot and of each reader; or what
 * is on disk of a VM at rest, opened for one reader. */
struct worker_log {
	struct worker_log *next;
	struct logs *logs;
	struct worker_vm *vm; /* NULL: destroyed, or another boot has begun */
	unsigned refs;
};

struct worker_vm {
	struct workers *w;
	struct worker_vm *next;
	char vm_id[WORKER_ID_LEN + 1];
	struct worker_record record; /* what status says; instance 0: never started, or destroyed */
	struct boot *boot;	     /* under way; NULL: the VM is free */
	struct boot *contenders;     /* starts that wait for the outcome of boot's checks */
	struct worker_work *works;   /* the first one is in a thread */
	struct vmdir_mark mark;	     /* of the record on disk that was read last */
	bool unsaved;		     /* its last boot's end could not be written yet */
};

/* Where a start is. Only the first ends without a trace. */
enum boot_step {
	BOOT_CHECKING, /* source, lock, manifest; it has no number yet */
	BOOT_FETCHING, /* waits for the image */
	BOOT_WRITING,  /* source disk and upper */
	BOOT_STARTING, /* the VM boots */
	BOOT_UP,       /* the agent is ready; start was answered */
	BOOT_ENDING,   /* the last record is being written */
};

/* A request for an image that can be forgotten: the fetch itself goes on. */
struct image_wait {
	struct boot *boot; /* NULL: forgotten */
};

struct stop_waiter {
	struct stop_waiter *next;
	workers_stopped cb;
	void *user;
};

struct boot {
	struct workers *w;
	struct worker_vm *vm; /* NULL until the source is known to be under a root */
	struct boot *next;    /* among contenders */
	enum boot_step step;

	/* the request */
	enum worker_kind kind;
	char *host_path, *package, *run_override, *worker_name, *engine_url;
	char vm_id[WORKER_ID_LEN + 1];
	char **env;
	workers_started cb; /* NULL: answered */
	void *user;

	/* job */
	struct root_dir root;
	struct vmdir dir; /* locked from the checks to the last record; fd -1: not open */
	struct manifest manifest;
	struct worker_boot before;    /* the boot before, as status tells it */
	struct worker_record checked; /* the record with the new boot, once it is durable */
	char source_digest[WORKER_DIGEST_LEN + 1], setup_digest[WORKER_DIGEST_LEN + 1],
		install_digest[WORKER_DIGEST_LEN + 1];
	int upper_fd, source_fd;
	char *guest_url;       /* the engine as the guest is told */
	uint16_t engine_port;  /* of an engine on this host; 0: elsewhere */
	char **notes;	       /* for the VM's log */
	bool locked_elsewhere; /* another daemon has this VM */
	struct logs *made_log; /* NULL with r >= 0: why */
	int r;
	struct err why;
	atomic_bool cancel;	     /* read by the job */
	struct worker_work *writing; /* the job while WRITING */

	uint64_t instance; /* 0 while CHECKING */
	struct image_wait *wait;
	struct image *img;
	uint64_t progress_ms;
	struct vm *vmm;
	struct worker_log *log;
	uint64_t log_debt, log_paid_ms; /* bytes of records that are ahead of their time */

	/* the stop */
	bool stopping;
	uint64_t deadline_ms; /* of the loop's clock */
	uv_timer_t timer;
	bool abandoned; /* its VM may live on: its end is for the next daemon to tell */
	struct stop_waiter *waiters;
	struct worker_boot last; /* how it ended, once ENDING */
	struct err failed;	 /* for the caller of start */
	char *tail;
};

struct workers {
	uv_loop_t *loop;
	struct workers_options o;
	uint16_t *host_ports;
	struct roots roots;
	int root_fd;	     /* <state>/workers */
	struct err unusable; /* why there is no root_fd; text "": there is one */
	struct worker_vm *vms;
	struct worker_log *logs;
	struct worker_work *long_waiting;
	unsigned long_running;
	unsigned unnumbered; /* starts that have no number yet */
	uv_timer_t tick;
	unsigned busy; /* works, boots and prepares under way, and the tick once it closes */
	bool closing;
	bool scanning; /* a thread lists the folders */
	void (*closed)(void *user);
	void *closed_user;
};

/* --- worker.c --- */

uint64_t worker_now_ms(void); /* wall clock */
/* Why nothing new can be done: shutting down, or no state folder. */
int worker_refuse(const struct workers *w, struct err *e);
void worker_unbusy(struct workers *w);
/* Queues it behind the other works of its VM, or at once. */
void worker_queue(struct workers *w, struct worker_vm *vm, struct worker_work *work);
/* Half of the loop's threads, so that the copying of sources never keeps a stop waiting. */
#define WORKERS_LONG_MAX 2
/* A long work that has nothing more to do but to end does not wait for its turn. */
void worker_hurry(struct worker_work *work);
struct worker_vm *worker_find(struct workers *w, const char *vm_id); /* NULL: none */
struct worker_vm *worker_get(struct workers *w, const char *vm_id);
/* Forgets a VM of which nothing is known any more. vm may be freed. */
void worker_maybe_forget(struct worker_vm *vm);
/* The only place where the state of a boot changes. */
void worker_set_state(struct worker_vm *vm, enum worker_state to);
/* Takes the logs, with one reference. */
struct worker_log *worker_log_add(struct worker_vm *vm, struct logs *logs);
/* Readers of its logs come to their end. */
void worker_logs_retire(struct worker_vm *vm);
void worker_log_unref(struct workers *w, struct worker_log *log);
/* Nothing is known of the VM any more; readers of its log come to their end. */
void worker_forget(struct worker_vm *vm);
/* Another daemon runs it, as far as its record tells. */
bool worker_is_elsewhere(const struct worker_vm *vm);
/* S502 and which boot is in the way. */
void worker_busy(const struct worker_vm *vm, struct worker_started *ret, struct err *e);
void worker_record_copy(const struct worker_record *from, struct worker_record *ret);

/* --- worker_boot.c --- */

/* A thread's errand for a boot. */
struct boot_work {
	struct worker_work work;
	struct boot *b;
	struct worker_record record; /* of a save */
	bool last;		     /* the save that ends the boot */
	int r;
	struct err why;
};
/* Takes bw. vm: in whose order; NULL: in none. */
void boot_queue(struct boot *b, struct worker_vm *vm, struct boot_work *bw,
	void (*run)(struct worker_work *), void (*after)(struct worker_work *));
/* A line of the VM's log. */
void boot_say(struct boot *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* What the VM printed, in records. A VM that prints more of them than BOOT_LOG_RATE is slowed. */
void boot_log(struct boot *b, enum log_stream stream, const void *data, size_t len);
/* Frees what only the way up needs; the secrets among it most of all. */
void boot_drop_request(struct boot *b);
/* Tells the caller of start, once. */
void boot_answer(struct boot *b, const struct worker_started *s);
void boot_free(struct boot *b);
/* Writes the present record behind everything that is queued. */
void boot_save(struct boot *b);
/* The last state of a boot that has no exit of its own. */
struct worker_boot boot_nulls(const struct boot *b);
/* The boot is over: last record, then whoever waits is told. why: for the caller of start. */
void boot_finish(struct boot *b, const struct worker_boot *last, const struct err *why);
/* The end of a boot whose VM could not be killed, when the daemon goes: the record keeps its state
 * and process. */
void boot_abandon(struct boot *b, const struct err *why);
/* The same for a failure on the way up. */
void boot_fail(struct boot *b, const struct err *why);

/* --- worker_start.c --- */

/* One of the starts that wait takes its turn, when the VM is free. */
void boot_next_contender(struct worker_vm *vm);

/* --- worker_up.c --- */

void boot_fetch(struct boot *b);
/* Forgets the request for the image. */
void boot_forget_image(struct boot *b);

/* --- worker_prepare.c --- */

/* manifest_load, and that its image is one of a registry or of the cache. S500, S400. */
int worker_load_manifest(
	int dir_fd, const struct manifest_query *q, struct manifest *ret, struct err *e);

/* --- worker_stop.c --- */

void boot_stop(struct boot *b, uint64_t grace_ms);
void boot_on_exit(struct vm *vmm, const struct vm_exit *x, void *user);
/* How the VM's end is told: the table of worker VM specification §1.6. Pure. */
void boot_attribute(const struct vm_exit *x, struct worker_boot *ret);

/* --- worker_rest.c --- */

/* Takes notice of what other daemons did to VMs that are at rest here, and writes what could not be
 * written. */
void rest_tick(struct workers *w);
/* The latter, once, for the last time. */
void rest_save(struct worker_vm *vm);

/* --- worker_tuning.c --- */

/* What the four III_VM_* variables say now. */
struct worker_tuning {
	uint64_t nofile; /* 0: as the guest has it */
	bool nested_virt, hyperthreads;
};
#define WORKER_NOFILE_DEFAULT 65536
void worker_tuning_read(struct worker_tuning *ret);
