/* The guest is one page of 16-bit code in a VM without any device. The child reports one line,
 * "us N" or "fail ERRNO CALL"; the parent turns it into a verdict. */
#include "host/vm/kvm_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "host/vm/child.h"

#define KVM_API	  12
#define PAGE	  4096u
#define CODE_ADDR 0x1000u

static int say(int out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int say(int out, const char *fmt, ...)
{
	char line[128];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	return fd_write_all(out, line, strlen(line));
}

static int say_failed(int out, const char *call)
{
	return say(out, "fail %d %s", errno, call);
}

#if defined(__x86_64__)

/* mov ecx, 20000; 1: dec ecx; jnz 1b; hlt   (16-bit code segment) */
static const uint8_t code[] = {0x66, 0xb9, 0x20, 0x4e, 0x00, 0x00, 0x66, 0x49, 0x75, 0xfc, 0xf4};

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static int reset_cpu(int cpu)
{
	struct kvm_sregs s;
	struct kvm_regs r = {.rip = 0, .rflags = 2};

	if (ioctl(cpu, KVM_GET_SREGS, &s) < 0)
		return -1;
	s.cs.base = CODE_ADDR;
	s.cs.selector = CODE_ADDR >> 4;
	if (ioctl(cpu, KVM_SET_SREGS, &s) < 0)
		return -1;
	return ioctl(cpu, KVM_SET_REGS, &r);
}

static int probe_child(int out, void *arg)
{
	struct kvm_userspace_memory_region mem = {
		.guest_phys_addr = CODE_ADDR, .memory_size = PAGE};
	uint64_t best = UINT64_MAX;
	const int runs = *(const int *)arg;
	struct kvm_run *run;
	int kvm, vm, cpu, run_size;
	void *page;

	if ((kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC)) < 0)
		return say_failed(out, "open /dev/kvm");
	errno = EPROTO;
	if (ioctl(kvm, KVM_GET_API_VERSION, 0) != KVM_API)
		return say_failed(out, "KVM_GET_API_VERSION");
	if ((vm = ioctl(kvm, KVM_CREATE_VM, 0)) < 0)
		return say_failed(out, "KVM_CREATE_VM");
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return say_failed(out, "mmap");
	memcpy(page, code, sizeof(code));
	mem.userspace_addr = (uintptr_t)page;
	if (ioctl(vm, KVM_SET_TSS_ADDR, 0xfffbd000ul) < 0)
		return say_failed(out, "KVM_SET_TSS_ADDR");
	if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &mem) < 0)
		return say_failed(out, "KVM_SET_USER_MEMORY_REGION");
	if ((cpu = ioctl(vm, KVM_CREATE_VCPU, 0)) < 0)
		return say_failed(out, "KVM_CREATE_VCPU");
	run_size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (run_size < (int)sizeof(*run))
		return say_failed(out, "KVM_GET_VCPU_MMAP_SIZE");
	run = mmap(NULL, (size_t)run_size, PROT_READ | PROT_WRITE, MAP_SHARED, cpu, 0);
	if (run == MAP_FAILED)
		return say_failed(out, "mmap of the vCPU");
	/* A slow run may be the host's doing, so it is repeated, unless nothing depends on it. */
	for (int i = 0; i < runs && best > KVM_PROBE_SLOW_US; i++) {
		uint64_t start, took;

		if (reset_cpu(cpu) < 0)
			return say_failed(out, "KVM_SET_REGS");
		start = now_us();
		if (ioctl(cpu, KVM_RUN, 0) < 0)
			return say_failed(out, "KVM_RUN");
		took = now_us() - start;
		errno = EPROTO;
		if (run->exit_reason != KVM_EXIT_HLT)
			return say_failed(out, "KVM_RUN (the guest did not halt)");
		best = MIN(best, took);
	}
	return say(out, "us %ld", (long)best);
}

#else

/* No emulating KVM is known on other machines: a VM that can be made is good enough. */
static int probe_child(int out, void *arg)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);

	(void)arg;
	if (kvm < 0)
		return say_failed(out, "open /dev/kvm");
	if (ioctl(kvm, KVM_CREATE_VM, 0) < 0)
		return say_failed(out, "KVM_CREATE_VM");
	return say(out, "us 1");
}

#endif

static void judge_failed(struct kvm_probe *p, const char *call, int no)
{
	bool open_failed = strncmp(call, "open", 4) == 0;

	if (open_failed && (no == ENOENT || no == ENODEV || no == ENXIO)) {
		p->verdict = KVM_ABSENT;
		err_set(&p->why, "S300", no,
			"there is no usable /dev/kvm (%s): this host has no hardware "
			"virtualisation, or its module (kvm_intel, kvm_amd) is not loaded",
			err_str(no));
	} else if (open_failed && (no == EACCES || no == EPERM)) {
		p->verdict = KVM_FORBIDDEN;
		err_set(&p->why, "S300", no,
			"this user may not open /dev/kvm (%s): add it to the group kvm and log in "
			"again",
			err_str(no));
	} else {
		p->verdict = KVM_BROKEN;
		err_set(&p->why, "S300", no, "/dev/kvm does not work: %s: %s", call, err_str(no));
	}
}

void kvm_probe_judge(struct kvm_probe *p, uint32_t best_us, const char *failed_call, int failed_no)
{
	*p = (struct kvm_probe){.best_us = best_us};
	if (failed_call && failed_no == ETIMEDOUT) {
		p->verdict = KVM_SLOW;
		err_set(&p->why, "S300", ETIMEDOUT,
			"/dev/kvm is there, but a loop of 20,000 turns did not end within %d ms: "
			"it does not virtualise",
			KVM_PROBE_GUARD_MS);
	} else if (failed_call) {
		judge_failed(p, failed_call, failed_no);
	} else if (best_us > KVM_PROBE_SLOW_US) {
		p->verdict = KVM_SLOW;
		err_set(&p->why, "S300", ENOTSUP,
			"/dev/kvm is there, but emulates: a loop of 20,000 turns took %u us, "
			"hardware needs less than %d us (inside a virtual machine, nested "
			"virtualisation has to be switched on at its host)",
			best_us, KVM_PROBE_SLOW_US);
	} else {
		p->verdict = KVM_USABLE;
	}
}

const struct kvm_probe *kvm_probe(void)
{
	static struct kvm_probe result;
	static bool known;
	const char *kernel = getenv("III_SANDBOX_KERNEL");
	int runs = kernel && *kernel ? 1 : KVM_PROBE_RUNS;
	char line[128], call[100];
	long us;
	int no, r;

	if (known)
		return &result;
	r = child_run(probe_child, &runs, KVM_PROBE_GUARD_MS, line, sizeof(line));
	if (r < 0)
		kvm_probe_judge(&result, 0, "the probe", -r);
	else if (sscanf(line, "us %ld", &us) == 1)
		kvm_probe_judge(&result, (uint32_t)us, NULL, 0);
	else if (sscanf(line, "fail %d %99[^\n]", &no, call) == 2)
		kvm_probe_judge(&result, 0, call, no);
	else
		kvm_probe_judge(&result, 0, "the probe said nothing", EPROTO);
	known = result.verdict == KVM_USABLE || result.verdict == KVM_SLOW;
	return &result;
}
