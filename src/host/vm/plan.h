/* plan - what one VM is made of, as __vm-boot reads it from its stdin.
 *
 *   frame := length of the text (4 bytes, big-endian) · JSON object
 *
 * Nothing of it is ever on a command line, so `ps` shows no environment. Everything that has to be
 * opened comes as an inherited descriptor: three at the fixed numbers below, the kernel and the
 * disks at numbers that the plan names. The text is read strictly: an unknown, missing or doubled
 * member, a number out of range or bytes behind the object are errors.
 *
 *   {"label":"…","backend":"krun","vmm":"/path","vcpus":1,"mem_mib":512,"boot_timeout_ms":30000,
 *    "tsc_khz":0,"kernel_fd":6,"kernel_format":"elf","hostname":"sandbox","env":["A=b",…],
 *    "disks":[{"role":"boot","fd":7,"serial":"boot","readonly":true,"throwaway":false},…]}
 *
 * "kernel_args", "log_fd", "worker", "nested_virt", "hyperthreads" and "net" (plan_net.h) are left
 * out where they say nothing.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <json-c/json_object.h>

#include "base/buf.h"
#include "base/err.h"
#include "host/vm/plan_net.h"

#define PLAN_FRAME_HDR	     4
#define PLAN_FRAME_MAX	     (8u << 20) /* a bigger environment: the VM is not started (S300) */
#define PLAN_ENV_MAX	     4096	/* variables; more: the VM is not started (S300) */
#define PLAN_DISKS_MAX	     5 /* the 8 slots of qemu's microvm less ports, network, balloon */
#define PLAN_LABEL_MAX	     64
#define PLAN_WORD_MAX	     16
#define PLAN_SERIAL_MAX	     20 /* virtio-blk's own limit */
#define PLAN_HOSTNAME_MAX    63
#define PLAN_KERNEL_ARGS_MAX 512 /* longer: the VM is not started (S300) */
#define PLAN_CMDLINE_MAX     2047 /* the kernel's own limit (COMMAND_LINE_SIZE on x86 less the NUL) */

/* Where __vm-boot finds its descriptors. */
enum plan_fd {
	PLAN_FD_CONTROL = 3, /* control lines, both ways (control.h); end of file: the VM dies */
	PLAN_FD_AGENT = 4,   /* the VMM's end of the agent's byte stream */
	PLAN_FD_LIFE = 5,    /* held open by every process of the VM, used by none */
	PLAN_FD_FIRST = 6,   /* kernel, disks, log: PLAN_FD_FIRST <= n < PLAN_FD_END */
	PLAN_FD_END = 16,
};

enum plan_kernel_format {
	PLAN_KERNEL_ELF, /* x86-64: 64-bit entry point, PVH note (kernel.h) */
	PLAN_KERNEL_RAW, /* arm64 Image */
};

struct plan_disk {
	char role[PLAN_WORD_MAX + 1];	  /* "boot" (the first), "base", "upper", "source" */
	char serial[PLAN_SERIAL_MAX + 1]; /* as the guest sees it */
	int fd;
	bool readonly;
	bool throwaway; /* unlinked: nobody can read it after a crash of the host, so a flush from
			   the guest need not reach the platter */
};

struct plan {
	char label[PLAN_LABEL_MAX + 1];
	char backend[PLAN_WORD_MAX + 1]; /* "krun", "qemu" */
	char *vmm;			 /* libkrun (a path or a soname) or the qemu binary */
	uint32_t vcpus, mem_mib, boot_timeout_ms;
	uint32_t tsc_khz; /* rate of the host's time-stamp counter; 0: not known */
	int kernel_fd;
	enum plan_kernel_format kernel_format;
	char kernel_args[PLAN_KERNEL_ARGS_MAX + 1]; /* the operator's own words, may be "" */
	char hostname[PLAN_HOSTNAME_MAX + 1];
	char **env; /* never NULL after plan_decode */
	struct plan_disk disks[PLAN_DISKS_MAX];
	size_t n_disks;
	int log_fd;	     /* everything that is printed goes there too (logpipe.h); 0: nowhere */
	json_object *worker; /* a job (wire/worker.h), with a disk "source"; NULL: a sandbox */
	bool nested_virt, hyperthreads;
	struct plan_net net;
};

#define cleanup_plan __attribute__((cleanup(plan_done)))

/* Frees what the plan owns; descriptors are not closed. A zeroed plan is allowed. */
void plan_done(struct plan *p);

/* The descriptor's serial: the first 20 digits of st_dev, st_rdev and st_ino in decimal, one behind
 * the other. libkrun up to 1.19.0 reports just that whatever it is told; 1.19.7 and qemu take what
 * they are told. */
int plan_serial(int fd, char ret[static PLAN_SERIAL_MAX + 1], struct err *e);

/* Checks what plan_decode would check, so that a bad request is refused before anything starts. */
int plan_check(const struct plan *p, struct err *e);

/* Whether a disk of the VM is there for a next one: then the guest is asked to sync, whoever dies.
 */
bool plan_has_kept_disk(const struct plan *p);

/* Adds the whole frame. */
int plan_encode(const struct plan *p, struct buf *out, struct err *e);

/* Reads a text (without the length in front) into *ret, which is zeroed first and owned by the
 * caller also when it fails. -EINVAL with the member's name. */
int plan_decode(const char *text, size_t len, struct plan *ret, struct err *e);

/* Reads one frame from a stream, which has to end behind it. */
int plan_read(int fd, struct plan *ret, struct err *e);

/* The words of the kernel command line that every backend needs, `first` in front of them. -E2BIG
 * when the kernel would cut it. */
int plan_cmdline(const struct plan *p, const char *first, struct buf *out, struct err *e);

/* The frame for the guest's iii.env port: length (4 bytes, big-endian) and
 * {"env":[…],"hostname":"…","time_ns":N,"worker":{…},"net":{…}}, the last two for a worker VM and
 * for one with a network (wire/worker.h, wire/guest_net.h). */
int plan_env_frame(const struct plan *p, uint64_t time_ns, struct buf *out, struct err *e);
