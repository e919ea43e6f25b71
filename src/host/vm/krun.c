/* The libkrun backend.
 *
 * libkrun is loaded in the VMM child alone: it starts threads, replaces signal handlers and ends
 * the process when the guest ends, so nothing else may live beside it. No function is called that
 * feeds libkrun's own init (set_root, set_exec, set_env): the guest boots our kernel file, our boot
 * disk and our PID 1. Virtio-fs, vsock and its socket hijacking are not configured.
 *
 * What its source (1.18.1 to 1.19.7) says and what was seen when it ran:
 *  - A disk's serial is digits of the file's stat up to 1.19.0, and the block id in 1.19.7:
 *    plan_serial makes the id equal to those digits, so that all agree.
 *  - Paths of the form /proc/self/fd/N are opened again, so a disk may be unlinked or a memfd.
 *  - set_console_output opens its path for writing; a pipe behind /proc/self/fd/N works. Without
 *    it, hvc0 goes into libkrun's own log line by line, and a SIGINT handler is installed.
 *  - The end of a stream socket that becomes a port is made non-blocking by it.
 *  - A sync mode of "none" takes the flush command away from the guest.
 *  - set_nested_virt is for macOS: on Linux a guest sees of nesting what KVM shows it anyway.
 *  - Nothing sets the topology of vCPUs.
 *  - It ends by _exit with 0 for reboot and for panic alike.
 */
#include "host/vm/krun.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/child.h"
#include "host/vm/kvm_probe.h"
#include "host/vm/lib.h"
#include "wire/guest_net.h"

#define KRUN_ENV	 "III_SANDBOX_LIBKRUN"
#define KRUN_SONAME	 "libkrun.so.1"
#define KRUN_LOAD_MS	 5000
#define KRUN_VERSION_MIN "1.17"

/* libkrun.h, own names */
#define LOG_LEVEL_ERROR	  1
#define LOG_TARGET_STDERR 2
#define LOG_STYLE_NEVER	  2
#define LOG_OPTION_NO_ENV 1
#define FEATURE_BLK	  1
#define KERNEL_FORMAT_RAW 0
#define KERNEL_FORMAT_ELF 1
#define DISK_FORMAT_RAW	  0
#define DISK_SYNC_NONE	  0
#define DISK_SYNC_FULL	  2

struct entry_point {
	const char *name, *since;
	size_t offset;
	bool required;
};

#define REQUIRED(member, version)                                                                  \
	{                                                                                          \
		"krun_" #member, version, offsetof(struct krun_api, member), true                  \
	}
#define OPTIONAL(member, version)                                                                  \
	{                                                                                          \
		"krun_" #member, version, offsetof(struct krun_api, member), false                 \
	}

static const struct entry_point entry_points[] = {
	REQUIRED(set_log_level, "1.0"),
	OPTIONAL(init_log, "1.15"), /* colours off and no RUST_LOG; else set_log_level */
	OPTIONAL(has_feature, "1.18"),
	REQUIRED(create_ctx, "1.0"),
	REQUIRED(free_ctx, "1.0"),
	REQUIRED(set_vm_config, "1.0"),
	REQUIRED(disable_implicit_vsock, "1.17"), /* else the guest reaches the host's sockets */
	OPTIONAL(set_nested_virt, "1.11"),
	REQUIRED(set_kernel, "1.9"),
	REQUIRED(add_disk3, "1.17"), /* absent also where built without its feature blk */
	REQUIRED(set_console_output, "1.8"),
	REQUIRED(add_virtio_console_multiport, "1.17"),
	REQUIRED(add_console_port_inout, "1.17"),
	OPTIONAL(add_net_unixstream, "1.15"), /* absent also where built without its feature net */
	REQUIRED(start_enter, "1.0"),
};

int krun_load(const char *path, struct krun_api *ret, struct err *e)
{
	void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int32_t r;

	*ret = (struct krun_api){.handle = h};
	if (!h)
		return err_set(e, "S300", ENOEXEC, "cannot load libkrun: %s", dlerror());
	for (size_t i = 0; i < ARRAY_LEN(entry_points); i++) {
		const struct entry_point *p = &entry_points[i];
		void *f = dlsym(h, p->name);

		if (!f && p->required) {
			krun_unload(ret);
			return err_set(e, "S300", ENOSYS,
				"%s has no %s, which libkrun has since %s%s: version %s or newer "
				"with virtio-blk is needed",
				path, p->name, p->since,
				str_starts(p->name, "krun_add_disk")
					? " where it is built with BLK=1"
					: "",
				KRUN_VERSION_MIN);
		}
		memcpy((char *)ret + p->offset, &f, sizeof(f));
	}
	r = ret->has_feature ? ret->has_feature(FEATURE_BLK) : 1;
	if (r != 1) {
		krun_unload(ret);
		return err_set(e, "S300", ENOTSUP,
			"%s was built without virtio-blk (krun_has_feature(BLK) = %d)", path, r);
	}
	return 0;
}

void krun_unload(struct krun_api *k)
{
	if (k->handle)
		dlclose(k->handle);
	*k = (struct krun_api){0};
}

/* Turns libkrun's negative errno into an error that names the call. */
static int check(int32_t r, const char *call, struct err *e)
{
	return r >= 0 ? r : err_set(e, "S300", -r, "libkrun: %s: %s", call, err_str(r));
}

static void fd_path(char dst[static 32], int fd)
{
	snprintf(dst, 32, "/proc/self/fd/%d", fd);
}

static int start_log(const struct krun_api *k, struct err *e)
{
	if (!k->init_log)
		return check(k->set_log_level(LOG_LEVEL_ERROR), "krun_set_log_level", e);
	return check(
		k->init_log(LOG_TARGET_STDERR, LOG_LEVEL_ERROR, LOG_STYLE_NEVER, LOG_OPTION_NO_ENV),
		"krun_init_log", e);
}

/* Wishes that a VM can do without: what cannot be done is said in the VM's log. */
static void set_extras(const struct krun_api *k, uint32_t ctx, const struct plan *p)
{
	int32_t r;

	if (p->hyperthreads)
		log_warn("libkrun has no hyper-threads: every vCPU is a core", "vm=%s", p->label);
	if (!p->nested_virt)
		return;
	r = k->set_nested_virt ? k->set_nested_virt(ctx, true) : -ENOSYS;
	if (r < 0)
		log_warn("libkrun does not turn nested virtualization on", "vm=%s why=%s", p->label,
			log_quote(err_str(r)));
}

static int set_kernel(const struct krun_api *k, uint32_t ctx, const struct plan *p, struct err *e)
{
	cleanup_buf struct buf cmdline;
	char path[32];
	int r;

	buf_init(&cmdline, 2 * PLAN_CMDLINE_MAX);
	/* reboot=k: the i8042 reset is what libkrun takes as the guest's end. */
	r = plan_cmdline(p, "reboot=k panic_print=0 nomodule no-kvmapf", &cmdline, e);
	if (r < 0)
		return r;
	fd_path(path, p->kernel_fd);
	return check(
		k->set_kernel(ctx, path,
			p->kernel_format == PLAN_KERNEL_ELF ? KERNEL_FORMAT_ELF : KERNEL_FORMAT_RAW,
			NULL, (const char *)cmdline.data),
		"krun_set_kernel", e);
}

static int add_disks(const struct krun_api *k, uint32_t ctx, const struct plan *p, struct err *e)
{
	char path[32];
	int r = 0;

	for (size_t i = 0; i < p->n_disks && r >= 0; i++) {
		const struct plan_disk *d = &p->disks[i];

		fd_path(path, d->fd);
		r = check(k->add_disk3(ctx, d->serial, path, DISK_FORMAT_RAW, d->readonly, false,
				  d->readonly || d->throwaway ? DISK_SYNC_NONE : DISK_SYNC_FULL),
			"krun_add_disk3", e);
		if (r < 0)
			err_wrap(e, "disk %s", d->role);
	}
	return r;
}

static int add_ports(
	const struct krun_api *k, uint32_t ctx, const struct vmm_ends *ends, struct err *e)
{
	const struct {
		const char *name;
		int fd;
	} ports[] = {
		{"iii.agent", ends->agent},
		{"iii.env", ends->env},
		{"iii.control", ends->control},
	};
	char path[32];
	int console, r;

	fd_path(path, ends->console);
	if ((r = check(k->set_console_output(ctx, path), "krun_set_console_output", e)) < 0)
		return r;
	console =
		check(k->add_virtio_console_multiport(ctx), "krun_add_virtio_console_multiport", e);
	for (size_t i = 0; i < ARRAY_LEN(ports) && console >= 0 && r >= 0; i++)
		r = check(k->add_console_port_inout(
				  ctx, (uint32_t)console, ports[i].name, ports[i].fd, ports[i].fd),
			"krun_add_console_port_inout", e);
	return console < 0 ? console : r;
}

/* No offloads: each frame is one packet with its sums in it, and no longer than the MTU. */
static int add_net(const struct krun_api *k, uint32_t ctx, const struct plan *p,
	const struct vmm_ends *ends, struct err *e)
{
	uint8_t mac[6];

	if (!p->net.passt)
		return 0;
	if (!k->add_net_unixstream)
		return err_set(e, "S300", ENOSYS,
			"this libkrun has no krun_add_net_unixstream, which networking needs: it "
			"is "
			"there since 1.15 where libkrun is built with NET=1");
	guest_net_mac(GUEST_NET_MAC, mac);
	return check(k->add_net_unixstream(ctx, NULL, ends->net, mac, 0, 0),
		"krun_add_net_unixstream", e);
}

int krun_configure(const struct krun_api *k, const struct plan *p, const struct vmm_ends *ends,
	uint32_t *ret_ctx, struct err *e)
{
	int ctx, r;

	if (p->vcpus > UINT8_MAX)
		return err_set(e, "S300", EINVAL, "libkrun takes at most 255 vCPUs");
	if ((r = start_log(k, e)) < 0)
		return r;
	if ((ctx = check(k->create_ctx(), "krun_create_ctx", e)) < 0)
		return ctx;
	if ((r = check(k->set_vm_config((uint32_t)ctx, (uint8_t)p->vcpus, p->mem_mib),
		     "krun_set_vm_config", e)) < 0 ||
		(r = check(k->disable_implicit_vsock((uint32_t)ctx), "krun_disable_implicit_vsock",
			 e)) < 0 ||
		(r = set_kernel(k, (uint32_t)ctx, p, e)) < 0 ||
		(r = add_disks(k, (uint32_t)ctx, p, e)) < 0 ||
		(r = add_ports(k, (uint32_t)ctx, ends, e)) < 0 ||
		(r = add_net(k, (uint32_t)ctx, p, ends, e)) < 0) {
		k->free_ctx((uint32_t)ctx);
		return r;
	}
	set_extras(k, (uint32_t)ctx, p);
	*ret_ctx = (uint32_t)ctx;
	return 0;
}

/* --- the backend --- */

static int load_child(int out, void *arg)
{
	struct krun_api k;
	struct err e = ERR_INIT;

	if (krun_load(arg, &k, &e) == 0)
		return 0;
	fd_write_all(out, e.text, strlen(e.text));
	return 1;
}

/* The library is tried in a child: the daemon does not want its threads and handlers. */
static int krun_probe(struct err *e)
{
	const struct kvm_probe *kvm = kvm_probe();
	const char *kernel = getenv("III_SANDBOX_KERNEL");
	static char *good; /* the library that was found to load */
	cleanup_free char *lib = NULL;
	char why[512];
	int r;

	/* A slow KVM boots no ordinary kernel, but who names one has said what he wants. */
	if (kvm->verdict != KVM_USABLE && !(kvm->verdict == KVM_SLOW && kernel && *kernel)) {
		if (e)
			*e = kvm->why;
		return -(kvm->why.no ? kvm->why.no : EIO);
	}
	lib = lib_find(KRUN_ENV, KRUN_SONAME, e);
	if (!lib)
		return -ENOENT;
	if (good && str_eq(good, lib))
		return 0;
	r = child_run(load_child, lib, KRUN_LOAD_MS, why, sizeof(why));
	if (r < 0)
		return err_set(e, "S300", ENOEXEC, "%s",
			*why ? why : "libkrun does not come back when it is loaded");
	free(good);
	good = STEAL(lib);
	return 0;
}

static char *krun_vmm(struct err *e)
{
	return lib_find(KRUN_ENV, KRUN_SONAME, e);
}

/* What krun_prepare hands to krun_enter: there is one VMM in a process. */
static struct {
	struct krun_api api;
	uint32_t ctx;
} ready;

static int krun_prepare(const struct plan *p, const struct vmm_ends *ends, struct err *e)
{
	int r = krun_load(p->vmm, &ready.api, e);

	return r < 0 ? r : krun_configure(&ready.api, p, ends, &ready.ctx, e);
}

/* The library is loaded; krun_start_enter opens /dev/kvm, and the rest by /proc/self/fd/N. */
static void krun_needs(const struct plan *p, struct confine_policy *policy)
{
	policy->filter = p->net.passt ? CONFINE_FILTER_KRUN_NET : CONFINE_FILTER_KRUN;
	policy->kvm = true;
}

static int krun_enter(const struct plan *p, const struct vmm_ends *ends, struct err *e)
{
	int r;

	(void)p;
	(void)ends;
	r = ready.api.start_enter(ready.ctx);
	return err_set(e, "S300", r < 0 ? -r : EIO,
		"libkrun: krun_start_enter: %s (its own words are below)", err_str(r));
}

const struct vm_backend vm_backend_krun = {
	.name = "krun",
	.tier = VM_TIER_HARDWARE,
	.probe = krun_probe,
	.vmm = krun_vmm,
	.prepare = krun_prepare,
	.needs = krun_needs,
	.enter = krun_enter,
};
