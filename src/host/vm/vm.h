/* vm - one virtual machine as the host sees it: started, ready, ended.
 *
 *   daemon (this module) -- spawn --> sandbox-libkrun __vm-boot -- fork/exec --> VMM
 *
 * The VM is supervised by a process of its own (boot.c), which gets the whole plan as one frame on
 * its stdin, everything else as inherited descriptors, and holds the other end of the control
 * socket. Nothing outlives this process: the control socket's end of file kills the VM.
 *
 * States (one setter in vm.c asserts the arrows):
 *
 *   state     legal calls                  left when
 *   STARTING  kill                         the agent said "ready" on iii.control -> READY;
 *                                          or the VM ended, or boot_timeout_ms passed -> ENDED
 *   READY     shutdown, kill               vm_shutdown -> STOPPING; the VM ended -> ENDED
 *   STOPPING  shutdown, kill               the VM ended -> ENDED
 *   ENDED     -                            vm_free
 *
 * All functions are for the loop's thread. Callbacks are never made from inside a call of this
 * module, and none is made after vm_free().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "wire/worker.h"

#define VM_BOOT_TIMEOUT_MS 30000 /* no agent after this: the VM is killed and reported (S300) */
/* After the grace of a shutdown, for the guest to write its disks; then it is killed. */
#define VM_LEAVE_MS 1500
#define VM_KILL_LATE_MS                                                                            \
	2000		      /* a supervisor that has not done what it was told is killed itself  \
			       */
#define VM_CONSOLE_TAIL	 4096 /* bytes of console kept for reports … */
#define VM_CONSOLE_LINES 32   /* … and lines shown of them */
#define VM_VCPUS_MAX	 64
#define VM_MEM_MIB_MIN	 64

struct vm;

enum vm_backend_choice {
	VM_BACKEND_KRUN, /* libkrun on KVM, or an error that says what is missing */
	VM_BACKEND_QEMU, /* software emulation */
	VM_BACKEND_AUTO, /* krun where it can run, else qemu with a warning */
};

enum vm_tier {
	VM_TIER_HARDWARE,
	VM_TIER_EMULATED,
};

/* A network for the guest: outbound only (net.h). */
struct vm_net {
	/* Ports of this host that the guest may reach, at its gateway or at any other address of
	 * this host; UDP and TCP. Everything else of the host is refused. */
	const uint16_t *host_ports;
	size_t n_host_ports;
};

/* What to boot. Strings and descriptors are borrowed until vm_start returns. */
struct vm_spec {
	const char *label; /* shown as the only argument of __vm-boot: [A-Za-z0-9._-]{1,64} */
	enum vm_backend_choice backend;
	uint32_t vcpus;		  /* 1..VM_VCPUS_MAX */
	uint32_t mem_mib;	  /* >= VM_MEM_MIB_MIN */
	int base_fd;		  /* EROFS image, opened read-only */
	int upper_fd;		  /* ext4 disk, opened read-write; the VM is its only user */
	char *const *env;	  /* base environment of every exec: NAME=value, NULL-terminated */
	const char *hostname;	  /* NULL: "sandbox" */
	uint32_t boot_timeout_ms; /* 0: VM_BOOT_TIMEOUT_MS */
	const struct vm_net *net; /* NULL: the guest has no network at all */
	/* A worker VM: after "ready" the guest provisions and runs this by itself (wire/worker.h),
	 * and powers off when it ends. NULL: the guest waits for calls. */
	const struct worker_job *worker;
	int source_fd;	   /* read only with `worker`: EROFS disk with its source, read-only */
	bool nested_virt;  /* the guest may itself run VMs, where the backend can */
	bool hyperthreads; /* two vCPUs a core, where the backend can */
};

/* How far a worker VM's guest is. */
enum vm_phase {
	VM_PHASE_SYNC,
	VM_PHASE_SETUP,
	VM_PHASE_INSTALL,
	VM_PHASE_RUN, /* the worker's own command is running */
};

/* Where a piece of a VM's log comes from. */
enum vm_stream {
	VM_STREAM_CONSOLE, /* the guest: kernel, agent, worker */
	VM_STREAM_HOST,	   /* the VMM, its supervisor and network helper */
};

/* Why the VM is no more. */
enum vm_end {
	VM_END_CLEAN,	     /* the agent announced power-off and the VMM left */
	VM_END_STOPPED,	     /* vm_kill, or a shutdown that had to be forced */
	VM_END_GUEST_CRASH,  /* the VMM left without an announcement: panic or reset */
	VM_END_VMM_KILLED,   /* the VMM died of a signal that we did not send */
	VM_END_VMM_FAILED,   /* the VMM could not start or reported an error */
	VM_END_BOOT_TIMEOUT, /* the agent did not answer in time */
	VM_END_BOOT_LOST,    /* __vm-boot itself died or could not start */
};

struct vm_exit {
	enum vm_end end;
	int signal; /* of the VMM, for VM_END_BOOT_LOST of its supervisor; whoever sent it; or 0 */
	int status; /* exit status of the VMM, or of the guest for VM_END_CLEAN */
	int guest_status; /* 0..255: the guest said that it leaves with it, however the VM ended
			     then; -1: it did not */
	struct err why;	  /* one line with S300 and the cause; names signal, status, backend */
	const char *tail; /* the last lines of console and VMM stderr, valid UTF-8, may be "" */
};

struct vm_callbacks {
	void (*on_ready)(struct vm *vm, void *user);
	/* A worker VM's guest begins a phase; after on_ready. May be NULL. */
	void (*on_phase)(struct vm *vm, enum vm_phase phase, void *user);
	/* Everything that guest and VMM print, as it comes, to the last byte before on_exit. NULL:
	 * only the tail for reports is kept. A receiver that is slow slows the guest's console
	 * down, it loses nothing. */
	void (*on_log)(
		struct vm *vm, enum vm_stream stream, const void *data, size_t len, void *user);
	/* The last callback of a VM: every process of it is gone. */
	void (*on_exit)(struct vm *vm, const struct vm_exit *x, void *user);
};

/* Starts the boot. 0, or a negative errno with S300 in *e when it cannot even begin (no KVM, no
 * kernel, no qemu, …): then nothing was started. `cb` must outlive the vm. */
int vm_start(uv_loop_t *loop, const struct vm_spec *spec, const struct vm_callbacks *cb, void *user,
	struct vm **ret, struct err *e);

/* The host's end of the agent's byte stream, non-blocking; bytes sent before on_ready wait in it.
 * Handed over: the caller closes it; a second call gives -1. */
int vm_take_agent_fd(struct vm *vm);

enum vm_tier vm_tier(const struct vm *vm);
const char *vm_backend_name(const struct vm *vm); /* "krun" or "qemu" */
/* The supervisor's process id, for records; 0 when it is gone. */
int vm_pid(const struct vm *vm);
/* CLOCK_MONOTONIC in ms when payload last went over the guest's network; 0: never, or none. */
uint64_t vm_net_active_ms(const struct vm *vm);

/* From inside on_log: after this piece the next one comes ms later. A VM that has ended takes no
 * notice. */
void vm_log_pause(struct vm *vm, uint32_t ms);

/* Asks the agent to end its programs within grace_ms, sync and power off; VM_LEAVE_MS later the VM
 * is killed. on_exit follows. A second call can only shorten the grace. */
void vm_shutdown(struct vm *vm, uint32_t grace_ms);
/* Ends the VM at once; a supervisor that does not do it is killed itself, soon after. on_exit
 * follows. */
void vm_kill(struct vm *vm);
/* Forgets the VM; kills it first if it still runs. NULL allowed. */
void vm_free(struct vm *vm);

/* Text for VM_BACKEND_*: "krun", "qemu", "auto" or -EINVAL. */
int vm_backend_parse(const char *word, enum vm_backend_choice *ret);
