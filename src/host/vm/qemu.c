/* The qemu backend: software emulation on a machine without ACPI, PCI and firmware tables.
 *
 * Every option was chosen by trial (vmm.md §3, §7); those that are correctness, not tuning:
 *  pit=on,pic=on         without them boots hang at random or end at once
 *  thread=single         several threads race with the kernel's self-patching (1 boot in 60 dies)
 *  tsc_early_khz         without it the guest's clock calibration fails on a busy host
 *  no_timer_check        the kernel's test of its timer counts ticks during a loop: on a busy host
 *                        too few come, and it panics ("IO-APIC + timer doesn't work")
 *  reboot=t              the only reset there is; any other takes seconds
 *  initcall_blacklist    rtc-cmos would complain about the IRQ of the fifth device
 *
 * The disks are descriptor sets, so that they may be unlinked or in memory; qemu picks the
 * descriptor of a set by its access mode: a read-only disk has to be opened read-only, and for a
 * writable one there have to be two, since qemu looks at it before it asks to write. The supervisor
 * holds the lock on the writable disk, qemu's own locks are off.
 */
#include "host/vm/qemu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/lib.h"
#include "wire/guest_net.h"

#if defined(__x86_64__)
#define PROGRAM "qemu-system-x86_64"
#define PACKAGE "qemu-system-x86"
#define MACHINE                                                                                    \
	"microvm,pit=on,pic=on,rtc=on,isa-serial=off,acpi=off,pcie=off,usb=off,"                   \
	"x-option-roms=off,graphics=off"
#define CPU	   "max,-svm,-erms,-fsrm"
#define CPU_NESTED "max,-erms,-fsrm" /* SVM, emulated; there is no VMX in TCG */
#define CMDLINE	   "reboot=t noreplace-smp no_timer_check initcall_blacklist=cmos_init"
#else
#define PROGRAM	   "qemu-system-aarch64"
#define PACKAGE	   "qemu-system-arm"
#define MACHINE	   "virt,acpi=off"
#define CPU	   "max"
#define CPU_NESTED CPU /* EL2 would need another start of the kernel: no effect */
#define CMDLINE	   "nomodule"
#endif

#define TSC_SAMPLE_NS 5000000
#define TSC_SAMPLES   2

static void addf(char ***v, const char *option, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void addf(char ***v, const char *option, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	strv_add_pair(v, option, text);
}

static void add_machine(char ***v, const struct plan *p)
{
	strv_add_pair(v, "-M", MACHINE);
	strv_add_pair(v, "-accel", "tcg,thread=single,tb-size=256");
	strv_add_pair(v, "-cpu", p->nested_virt ? CPU_NESTED : CPU);
	addf(v, "-m", "%uM", p->mem_mib);
	/* An odd number has no whole cores of two threads. */
	if (p->hyperthreads && p->vcpus % 2 == 0)
		addf(v, "-smp", "%u,sockets=1,cores=%u,threads=2", p->vcpus, p->vcpus / 2);
	else
		addf(v, "-smp", "%u", p->vcpus);
	strv_add_pair(v, "-global", "virtio-mmio.force-legacy=false");
	strv_add_pair(v, "-nodefaults", "-no-user-config");
	strv_add_pair(v, "-display", "none");
	strv_add_pair(v, "-no-reboot", NULL);
	strv_add_pair(v, "-sandbox",
		"on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
}

/* A write that the host's disk has no room for is the guest's error, as under krun: by itself qemu
 * would stop the VM and wait for somebody to make room and let it go on. */
static void add_disks(char ***v, const struct plan *p, const int *readable)
{
	for (size_t i = 0; i < p->n_disks; i++) {
		const struct plan_disk *d = &p->disks[i];
		int set = (int)i + 1;

		addf(v, "-add-fd", "fd=%d,set=%d", d->fd, set);
		if (!d->readonly)
			addf(v, "-add-fd", "fd=%d,set=%d", readable[i], set);
		if (d->readonly)
			addf(v, "-drive",
				"if=none,id=d%d,file=/dev/fdset/%d,format=raw,readonly=on,"
				"file.locking=off",
				set, set);
		else
			addf(v, "-drive",
				"if=none,id=d%d,file=/dev/fdset/%d,format=raw,cache=%s,"
				"discard=unmap,detect-zeroes=unmap,file.locking=off,werror=report",
				set, set, d->throwaway ? "unsafe" : "writeback");
		addf(v, "-device", "virtio-blk-device,drive=d%d,serial=%s", set, d->serial);
	}
}

static void add_ports(char ***v, const struct plan *p, const struct vmm_ends *ends)
{
	const struct {
		const char *name;
		int fd;
	} ports[] = {
		{"agent", ends->agent},
		{"env", ends->env},
		{"control", ends->control},
	};
	int set = (int)p->n_disks + 1;

	strv_add_pair(v, "-device", "virtio-serial-device,max_ports=8");
	addf(v, "-add-fd", "fd=%d,set=%d", ends->console, set);
	addf(v, "-chardev", "file,id=con,path=/dev/fdset/%d,append=on", set);
	strv_add_pair(v, "-device", "virtconsole,chardev=con");
	for (size_t i = 0; i < ARRAY_LEN(ports); i++) {
		addf(v, "-chardev", "socket,id=%s,fd=%d", ports[i].name, ports[i].fd);
		addf(v, "-device", "virtserialport,chardev=%s,name=iii.%s", ports[i].name,
			ports[i].name);
	}
}

int qemu_args(const struct plan *p, const struct vmm_ends *ends,
	const int readable[static PLAN_DISKS_MAX], char ***ret, struct err *e)
{
	cleanup_buf struct buf cmdline;
	char first[160], **v = NULL;
	int r;

	buf_init(&cmdline, 2 * PLAN_CMDLINE_MAX);
	snprintf(first, sizeof(first), "%s", CMDLINE);
	if (p->tsc_khz)
		snprintf(first, sizeof(first), "%s tsc_early_khz=%u tsc=reliable", CMDLINE,
			p->tsc_khz);
	if ((r = plan_cmdline(p, first, &cmdline, e)) < 0)
		return r;
	strv_add(&v, p->vmm);
	add_machine(&v, p);
	addf(&v, "-kernel", "/proc/self/fd/%d", p->kernel_fd);
	strv_add_pair(&v, "-append", (const char *)cmdline.data);
	add_disks(&v, p, readable);
	add_ports(&v, p, ends);
	if (p->net.passt) {
		addf(&v, "-netdev", "stream,id=net,server=off,addr.type=fd,addr.str=%d", ends->net);
		strv_add_pair(&v, "-device", "virtio-net-device,netdev=net,mac=" GUEST_NET_MAC);
	}
	strv_add_pair(&v, "-device", "virtio-balloon-device,free-page-reporting=on");
	*ret = v;
	return 0;
}

#if defined(__x86_64__)
static uint64_t raw_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Spins: a sleep may end on another processor and late, and 5 ms are cheap once in a process. */
static uint32_t tsc_sample(void)
{
	uint64_t t0 = raw_ns(), c0 = __rdtsc(), t1, c1;

	do {
		t1 = raw_ns();
		c1 = __rdtsc();
	} while (t1 - t0 < TSC_SAMPLE_NS);
	return (uint32_t)((c1 - c0) * 1000000 / (t1 - t0));
}

uint32_t qemu_tsc_khz(void)
{
	static uint32_t khz;
	static bool known;
	uint32_t min = UINT32_MAX, max = 0;

	if (known)
		return khz;
	for (int i = 0; i < TSC_SAMPLES; i++) {
		uint32_t k = tsc_sample();

		min = MIN(min, k);
		max = MAX(max, k);
	}
	/* A counter that does not hold its rate to 0.1 % is none to tell the time by. */
	khz = max - min <= max / 1000 ? min / 2 + max / 2 : 0;
	known = true;
	return khz;
}
#else
uint32_t qemu_tsc_khz(void)
{
	return 0;
}
#endif

/* --- the backend --- */

static char *qemu_vmm(struct err *e)
{
	char *path = lib_find_program(PROGRAM);

	if (!path)
		err_set(e, "S300", ENOENT,
			"software emulation needs %s, which is not in PATH: install the package %s",
			PROGRAM, PACKAGE);
	return path;
}

static int qemu_probe(struct err *e)
{
	cleanup_free char *path = qemu_vmm(e);

	return path ? 0 : -ENOENT;
}

static int open_readable(const struct plan *p, int ret[static PLAN_DISKS_MAX], struct err *e)
{
	for (size_t i = 0; i < p->n_disks; i++) {
		char path[32];

		ret[i] = -1;
		if (p->disks[i].readonly)
			continue;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", p->disks[i].fd);
		ret[i] = open(path, O_RDONLY);
		if (ret[i] < 0)
			return err_set(
				e, "S300", errno, "disk %s: %s", p->disks[i].role, err_str(errno));
	}
	return 0;
}

/* The program, its libraries and its firmware: of its own prefix and of the system. */
static void qemu_needs(const struct plan *p, struct confine_policy *policy)
{
	static const char *const dirs[] = {"lib", "lib64", "share/qemu", "share/seabios"};
	static const char *const system[] = {"/lib", "/lib64", "/usr/lib", "/usr/lib64",
		"/usr/share/qemu", "/usr/share/seabios", "/etc/ld.so.cache"};
	cleanup_free char *real = realpath(p->vmm, NULL);
	char *cut = real ? strrchr(real, '/') : NULL;

	confine_policy_add(policy, p->vmm);
	if (real)
		confine_policy_add(policy, real);
	for (size_t i = 0; i < ARRAY_LEN(system); i++)
		confine_policy_add(policy, system[i]);
	/* PREFIX/bin/qemu: what lies below PREFIX. */
	if (!cut)
		return;
	*cut = '\0';
	cut = strrchr(real, '/');
	if (!cut || !str_eq(cut, "/bin") || cut == real)
		return;
	*cut = '\0';
	for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
		cleanup_free char *path = xasprintf("%s/%s", real, dirs[i]);

		confine_policy_add(policy, path);
	}
}

static int qemu_enter(const struct plan *p, const struct vmm_ends *ends, struct err *e)
{
	const int fds[] = {
		ends->agent, ends->env, ends->control, ends->console, p->kernel_fd, ends->net};
	char **argv, *env[] = {NULL};
	int readable[PLAN_DISKS_MAX], r;

	if ((r = open_readable(p, readable, e)) < 0 ||
		(r = qemu_args(p, ends, readable, &argv, e)) < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(fds) && fds[i] >= 0; i++)
		fd_set_cloexec(fds[i], false);
	for (size_t i = 0; i < p->n_disks; i++)
		fd_set_cloexec(p->disks[i].fd, false);
	execve(p->vmm, argv, env);
	r = err_set(e, "S300", errno, "cannot run %s: %s", p->vmm, err_str(errno));
	strv_free(argv);
	return r;
}

const struct vm_backend vm_backend_qemu = {
	.name = "qemu",
	.tier = VM_TIER_EMULATED,
	.probe = qemu_probe,
	.vmm = qemu_vmm,
	.boot_may_misfire = true,
	.needs = qemu_needs,
	.enter = qemu_enter,
};
