/* System calls: what libkrun needs and no more, or for a program what no VMM needs.
 *
 * The filters are built here as BPF, for the running process: its pid is in them. There is no
 * library in between (docs/decisions/0005): a filter is two instructions a system call, and a few
 * with their arguments looked at.
 *
 * KRUN is an allowlist. It was learned from libkrun 1.19.7 at work and widened by what its runtime
 * and the C library may choose instead (another poll, another write). With a network it may also
 * talk over the sockets that it has; no call makes another. All else ends the VM: a
 * signal handler writes the number into the failure stream, and the process dies of SIGSYS. Whoever
 * controls the VMM can keep that report from being made, but not the call from being refused.
 *
 * PROGRAM is a denylist, for a program of which we do not know every version: qemu brings a filter
 * of its own for after its start. What is denied fails with EPERM, which programs are used to. It
 * cannot be an allowlist that kills: the dynamic loader and two dozen libraries run under it.
 *
 * A supervisor whose VM runs has an allowlist of its own: what is not on it fails with EPERM.
 *
 * In all: another architecture's calls (32 bits, x32) end the process; clone3, whose flags a
 * filter cannot see, says that it does not exist, and the C library takes clone; clone makes
 * threads alone; signals go to the process itself alone.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"
#include "host/vm/confine_priv.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41 /* names of anonymous memory, given by newer C libraries */
#endif

/* What the build machine's headers may not know. */
#ifndef __NR_process_madvise
#define __NR_process_madvise 440
#endif
#ifndef __NR_fchmodat2
#define __NR_fchmodat2 452
#endif
#ifndef __NR_setxattrat
#define __NR_setxattrat	   463
#define __NR_removexattrat 466
#endif
#ifndef __NR_open_tree_attr
#define __NR_open_tree_attr 467
#endif
#ifndef __NR_file_setattr
#define __NR_file_setattr 469
#endif

#define PROGRAM_MAX 512 /* instructions */

struct call {
	int nr;
	const char *name;
};
#define CALL(name)                                                                                 \
	{                                                                                          \
		__NR_##name, #name                                                                 \
	}

/* It would give each call a line of its own. */
/* clang-format off */

/* Without a look at their arguments. */
static const struct call krun_calls[] = {
	/* bytes */
	CALL(read), CALL(write), CALL(readv), CALL(writev), CALL(pread64), CALL(pwrite64),
	CALL(preadv), CALL(pwritev), CALL(preadv2), CALL(pwritev2), CALL(lseek), CALL(fsync),
	CALL(fdatasync), CALL(sync_file_range), CALL(fallocate), CALL(fadvise64),
	/* descriptors; openat finds /dev/kvm and what is open already */
	CALL(openat), CALL(close), CALL(fstat), CALL(newfstatat), CALL(statx), CALL(fstatfs),
	CALL(dup), CALL(dup3), CALL(pipe2), CALL(eventfd2), CALL(timerfd_create),
	CALL(timerfd_settime), CALL(timerfd_gettime), CALL(shutdown),
	/* waiting */
	CALL(epoll_create1), CALL(epoll_ctl), CALL(epoll_pwait), CALL(ppoll), CALL(futex),
	CALL(nanosleep), CALL(clock_nanosleep), CALL(restart_syscall), CALL(sched_yield),
	/* memory */
	CALL(mmap), CALL(munmap), CALL(mprotect), CALL(mremap), CALL(madvise), CALL(brk),
	CALL(membarrier),
	/* threads */
	CALL(set_robust_list), CALL(rseq), CALL(sigaltstack), CALL(rt_sigprocmask),
	CALL(rt_sigreturn), CALL(rt_sigtimedwait), CALL(sched_getaffinity), CALL(getcpu),
	CALL(exit), CALL(exit_group),
	/* questions */
	CALL(getpid), CALL(gettid), CALL(getuid), CALL(geteuid), CALL(getgid), CALL(getegid),
	CALL(clock_gettime), CALL(clock_getres), CALL(gettimeofday), CALL(getrandom), CALL(uname),
	CALL(sysinfo), CALL(getrusage),
#ifdef __NR_epoll_wait
	CALL(epoll_wait), CALL(poll), CALL(dup2), CALL(open), CALL(time),
#endif
};

/* The network device talks by socket calls. */
static const struct call krun_net_calls[] = {
	CALL(recvfrom), CALL(sendto),
};

/* A supervisor that waits: it reads, writes, kills, collects and reports. */
static const struct call waiter_calls[] = {
	CALL(read), CALL(write), CALL(writev), CALL(recvfrom), CALL(sendto), CALL(close),
	CALL(ppoll), CALL(wait4), CALL(kill), CALL(clock_gettime), CALL(restart_syscall),
	CALL(mmap), CALL(munmap), CALL(mremap), CALL(madvise), CALL(brk), CALL(futex),
	CALL(rt_sigreturn), CALL(rt_sigprocmask), CALL(getpid), CALL(gettid), CALL(getrandom),
	CALL(fstat), CALL(newfstatat), CALL(lseek), CALL(exit), CALL(exit_group),
#ifdef __NR_poll
	CALL(poll),
#endif
};

static const struct call program_denied[] = {
	/* networks */
	CALL(socket), CALL(connect), CALL(bind), CALL(listen), CALL(accept), CALL(accept4),
	/* other processes */
	CALL(ptrace), CALL(process_vm_readv), CALL(process_vm_writev), CALL(process_madvise),
	CALL(kcmp), CALL(kill), CALL(tkill), CALL(rt_sigqueueinfo), CALL(rt_tgsigqueueinfo),
	CALL(pidfd_open), CALL(pidfd_getfd), CALL(pidfd_send_signal), CALL(move_pages),
	CALL(migrate_pages), CALL(shmget), CALL(shmat), CALL(msgget), CALL(semget), CALL(mq_open),
	/* namespaces and mounts */
	CALL(unshare), CALL(setns), CALL(mount), CALL(umount2), CALL(pivot_root), CALL(chroot),
	CALL(fsopen), CALL(fsconfig), CALL(fsmount), CALL(fspick), CALL(move_mount),
	CALL(open_tree), CALL(open_tree_attr), CALL(mount_setattr), CALL(swapon), CALL(swapoff),
	/* names, owners and modes of files */
	CALL(mknodat), CALL(mkdirat), CALL(unlinkat), CALL(linkat), CALL(symlinkat),
	CALL(renameat2), CALL(fchmod), CALL(fchmodat), CALL(fchmodat2), CALL(fchown),
	CALL(fchownat), CALL(setxattr), CALL(lsetxattr), CALL(fsetxattr), CALL(removexattr),
	CALL(lremovexattr), CALL(fremovexattr), CALL(utimensat), CALL(truncate),
	CALL(name_to_handle_at), CALL(open_by_handle_at), CALL(fanotify_init), CALL(flock),
	CALL(setxattrat), CALL(removexattrat), CALL(file_setattr),
	/* identities */
	CALL(setuid), CALL(setgid), CALL(setreuid), CALL(setregid), CALL(setresuid),
	CALL(setresgid), CALL(setfsuid), CALL(setfsgid), CALL(setgroups), CALL(capset),
	CALL(setpgid), CALL(setsid), CALL(setpriority), CALL(ioprio_set),
	CALL(sched_setscheduler), CALL(sched_setparam), CALL(sched_setattr), CALL(personality),
	/* wide doors of the kernel */
	CALL(bpf), CALL(perf_event_open), CALL(userfaultfd), CALL(io_uring_setup),
	CALL(io_uring_enter), CALL(io_uring_register), CALL(keyctl), CALL(add_key),
	CALL(request_key), CALL(vmsplice), CALL(remap_file_pages), CALL(lookup_dcookie),
	/* the machine */
	CALL(init_module), CALL(finit_module), CALL(delete_module), CALL(kexec_load),
	CALL(reboot), CALL(settimeofday), CALL(clock_settime), CALL(adjtimex),
	CALL(clock_adjtime), CALL(sethostname), CALL(setdomainname), CALL(acct), CALL(syslog),
	CALL(quotactl), CALL(vhangup), CALL(nfsservctl),
#ifdef __NR_renameat
	CALL(renameat),
#endif
#ifdef __NR_mknod
	CALL(mknod), CALL(mkdir), CALL(rmdir), CALL(unlink), CALL(link), CALL(symlink),
	CALL(rename), CALL(chmod), CALL(chown), CALL(lchown), CALL(utime),
	CALL(utimes), CALL(futimesat), CALL(fork), CALL(vfork),
#endif
#ifdef __x86_64__
	CALL(iopl), CALL(ioperm), CALL(modify_ldt), CALL(kexec_file_load),
#endif
};

/* Looked at by their arguments; the names are for reports. */
static const struct call special_calls[] = {
	CALL(ioctl), CALL(fcntl), CALL(prctl), CALL(clone), CALL(clone3), CALL(tgkill),
	CALL(prlimit64), CALL(rt_sigaction), CALL(execve), CALL(execveat), CALL(getdents64),
	CALL(readlinkat), CALL(seccomp), CALL(socketpair), CALL(memfd_create), CALL(ftruncate),
	CALL(setsockopt),
};

static const unsigned krun_ioctls[] = {
	/* /dev/kvm */
	KVM_GET_API_VERSION, KVM_CREATE_VM, KVM_CHECK_EXTENSION, KVM_GET_VCPU_MMAP_SIZE,
	/* the VM */
	KVM_SET_USER_MEMORY_REGION, KVM_CREATE_VCPU, KVM_CREATE_IRQCHIP, KVM_IRQ_LINE, KVM_IRQFD,
	KVM_IOEVENTFD, KVM_SIGNAL_MSI, KVM_SET_GSI_ROUTING, KVM_ENABLE_CAP, KVM_GET_DIRTY_LOG,
	/* a vCPU */
	KVM_RUN, KVM_GET_ONE_REG, KVM_SET_ONE_REG, KVM_GET_MP_STATE, KVM_SET_MP_STATE,
	KVM_GET_VCPU_EVENTS, KVM_SET_VCPU_EVENTS, KVM_SET_SIGNAL_MASK, KVM_KVMCLOCK_CTRL,
#ifdef __x86_64__
	KVM_GET_SUPPORTED_CPUID, KVM_GET_MSR_INDEX_LIST, KVM_SET_TSS_ADDR,
	KVM_SET_IDENTITY_MAP_ADDR, KVM_CREATE_PIT2, KVM_REINJECT_CONTROL, KVM_GET_CLOCK,
	KVM_SET_CLOCK, KVM_GET_IRQCHIP, KVM_SET_IRQCHIP, KVM_GET_PIT2, KVM_SET_PIT2,
	KVM_SET_CPUID2, KVM_GET_CPUID2, KVM_GET_REGS, KVM_SET_REGS, KVM_GET_SREGS, KVM_SET_SREGS,
	KVM_GET_FPU, KVM_SET_FPU, KVM_GET_LAPIC, KVM_SET_LAPIC, KVM_GET_MSRS, KVM_SET_MSRS,
#else
	KVM_CREATE_DEVICE, KVM_SET_DEVICE_ATTR, KVM_GET_DEVICE_ATTR, KVM_HAS_DEVICE_ATTR,
	KVM_ARM_PREFERRED_TARGET, KVM_ARM_VCPU_INIT, KVM_GET_REG_LIST,
#endif
	/* pipes and sockets; whether a stream is a terminal */
	FIONBIO, FIOCLEX, FIONREAD, TCGETS, TIOCGWINSZ,
};

/* clang-format on */

static const unsigned krun_fcntls[] = {
	0 /* F_DUPFD */,
	1030 /* F_DUPFD_CLOEXEC */,
	1 /* F_GETFD */,
	2 /* F_SETFD */,
	3 /* F_GETFL */,
	4 /* F_SETFL */,
};

/* Holds up whoever opens a file that the VMM has open. */
static const unsigned denied_fcntls[] = {1024 /* F_SETLEASE */, 1026 /* F_NOTIFY */};

static const unsigned krun_sockopts[] = {SO_SNDBUF};

static const unsigned krun_prctls[] = {PR_SET_NAME, PR_GET_NAME, PR_SET_VMA, PR_SET_TIMERSLACK};

/* --- building --- */

struct program {
	struct sock_filter code[PROGRAM_MAX];
	size_t n;
};

static void put(struct program *p, uint16_t code, uint8_t jt, uint8_t jf, uint32_t k)
{
	if (p->n < PROGRAM_MAX)
		p->code[p->n] = (struct sock_filter){code, jt, jf, k};
	p->n++;
}

static void put_return(struct program *p, uint32_t what)
{
	put(p, BPF_RET | BPF_K, 0, 0, what);
}

static void load_nr(struct program *p)
{
	put(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
}

/* The low half of an argument: all of it, for those that the kernel takes as an int. */
static void load_arg(struct program *p, unsigned i, bool high)
{
	put(p, BPF_LD | BPF_W | BPF_ABS, 0, 0,
		(uint32_t)(offsetof(struct seccomp_data, args) + 8 * i + (high ? 4 : 0)));
}

static void on_call(struct program *p, int nr, uint32_t what)
{
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (uint32_t)nr);
	put_return(p, what);
}

/* Allowed when the argument is one of these. What is jumped over is at most 255 long. */
static void on_values(struct program *p, int nr, unsigned arg, const unsigned *values, size_t n,
	uint32_t otherwise)
{
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, (uint8_t)(n + 3), (uint32_t)nr);
	load_arg(p, arg, false);
	for (size_t i = 0; i < n; i++)
		put(p, BPF_JMP | BPF_JEQ | BPF_K, (uint8_t)(n - i), 0, values[i]);
	put_return(p, otherwise);
	put_return(p, SECCOMP_RET_ALLOW);
}

/* Denied when the argument is one of these. */
static void on_denied_values(
	struct program *p, int nr, unsigned arg, const unsigned *values, size_t n, uint32_t what)
{
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, (uint8_t)(n + 3), (uint32_t)nr);
	load_arg(p, arg, false);
	for (size_t i = 0; i < n; i++)
		put(p, BPF_JMP | BPF_JEQ | BPF_K, (uint8_t)(n - i), 0, values[i]);
	put_return(p, SECCOMP_RET_ALLOW);
	put_return(p, what);
}

/* clone: a thread of this process, in no new namespace. */
static void on_clone(struct program *p, uint32_t otherwise)
{
	const uint32_t need = CLONE_VM | CLONE_THREAD | CLONE_SIGHAND;
	const uint32_t refuse = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
				CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_PTRACE |
				CLONE_PARENT;

	on_call(p, __NR_clone3, SECCOMP_RET_ERRNO | ENOSYS);
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 5, __NR_clone);
	load_arg(p, 0, false);
	put(p, BPF_ALU | BPF_AND | BPF_K, 0, 0, need | refuse);
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, need);
	put_return(p, SECCOMP_RET_ALLOW);
	put_return(p, otherwise);
}

/* prlimit64: a question about oneself. */
static void on_prlimit(struct program *p, uint32_t otherwise)
{
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 8, __NR_prlimit64);
	load_arg(p, 0, false);
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 5, 0);
	load_arg(p, 2, false);
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 3, 0);
	load_arg(p, 2, true);
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
	put_return(p, SECCOMP_RET_ALLOW);
	put_return(p, otherwise);
}

/* rt_sigaction: not of SIGSYS, which reports. */
static void on_sigaction(struct program *p, uint32_t otherwise)
{
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 4, __NR_rt_sigaction);
	load_arg(p, 0, false);
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SIGSYS);
	put_return(p, otherwise);
	put_return(p, SECCOMP_RET_ALLOW);
}

static void begin(struct program *p)
{
	put(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, arch));
	put(p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, ARCH);
	put_return(p, SECCOMP_RET_KILL_PROCESS);
	load_nr(p);
#ifdef __x86_64__
	put(p, BPF_JMP | BPF_JGE | BPF_K, 0, 1, 0x40000000); /* x32 */
	put_return(p, SECCOMP_RET_KILL_PROCESS);
#endif
}

/* What is asked for most comes first: KVM_RUN is an ioctl. */
static void build_krun(struct program *p, bool net)
{
	const unsigned self = (unsigned)getpid();

	begin(p);
	on_values(p, __NR_ioctl, 1, krun_ioctls, ARRAY_LEN(krun_ioctls), SECCOMP_RET_TRAP);
	for (size_t i = 0; i < ARRAY_LEN(krun_calls); i++)
		on_call(p, krun_calls[i].nr, SECCOMP_RET_ALLOW);
	for (size_t i = 0; net && i < ARRAY_LEN(krun_net_calls); i++)
		on_call(p, krun_net_calls[i].nr, SECCOMP_RET_ALLOW);
	if (net)
		on_values(p, __NR_setsockopt, 2, krun_sockopts, ARRAY_LEN(krun_sockopts),
			SECCOMP_RET_TRAP);
	on_values(p, __NR_fcntl, 1, krun_fcntls, ARRAY_LEN(krun_fcntls), SECCOMP_RET_TRAP);
	on_values(p, __NR_prctl, 0, krun_prctls, ARRAY_LEN(krun_prctls), SECCOMP_RET_TRAP);
	on_values(p, __NR_tgkill, 0, &self, 1, SECCOMP_RET_TRAP);
	on_clone(p, SECCOMP_RET_TRAP);
	on_prlimit(p, SECCOMP_RET_TRAP);
	on_sigaction(p, SECCOMP_RET_KILL_PROCESS);
	put_return(p, SECCOMP_RET_TRAP);
}

static void build_program(struct program *p)
{
	const uint32_t no = SECCOMP_RET_ERRNO | EPERM;
	const unsigned self = (unsigned)getpid();

	begin(p);
	for (size_t i = 0; i < ARRAY_LEN(program_denied); i++)
		on_call(p, program_denied[i].nr, no);
	on_denied_values(p, __NR_fcntl, 1, denied_fcntls, ARRAY_LEN(denied_fcntls), no);
	on_values(p, __NR_tgkill, 0, &self, 1, no);
	on_clone(p, no);
	put_return(p, SECCOMP_RET_ALLOW);
}

static void build_waiter(struct program *p)
{
	static const unsigned ioctls[] = {FIONREAD};
	const unsigned self = (unsigned)getpid();

	begin(p);
	for (size_t i = 0; i < ARRAY_LEN(waiter_calls); i++)
		on_call(p, waiter_calls[i].nr, SECCOMP_RET_ALLOW);
	on_values(p, __NR_ioctl, 1, ioctls, ARRAY_LEN(ioctls), SECCOMP_RET_ERRNO | EPERM);
	on_values(p, __NR_tgkill, 0, &self, 1, SECCOMP_RET_ERRNO | EPERM);
	put_return(p, SECCOMP_RET_ERRNO | EPERM);
}

/* --- reports --- */

const char *confine_syscall_name(int nr)
{
	static const struct {
		const struct call *calls;
		size_t n;
	} tables[] = {
		{program_denied, ARRAY_LEN(program_denied)},
		{krun_calls, ARRAY_LEN(krun_calls)},
		{krun_net_calls, ARRAY_LEN(krun_net_calls)},
		{special_calls, ARRAY_LEN(special_calls)},
	};

	for (size_t t = 0; t < ARRAY_LEN(tables); t++) {
		for (size_t i = 0; i < tables[t].n; i++) {
			if (tables[t].calls[i].nr == nr)
				return tables[t].calls[i].name;
		}
	}
	return NULL;
}

static int report_fd = -1;

/* In whatever state the process is: only write(2), and no library. */
static void on_forbidden(int sig, siginfo_t *info, void *context)
{
	char text[64], *s = text + sizeof(text);
	unsigned nr = (unsigned)info->si_syscall;

	(void)sig;
	(void)context;
	do
		*--s = (char)('0' + nr % 10);
	while ((nr /= 10) != 0);
	s -= sizeof(CONFINE_FORBIDDEN) - 1;
	memcpy(s, CONFINE_FORBIDDEN, sizeof(CONFINE_FORBIDDEN) - 1);
	if (write(report_fd, s, (size_t)(text + sizeof(text) - s)) < 0)
		_exit(1);
	/* This one is answered with death, by SIGSYS. */
	signal(SIGSYS, SIG_DFL);
	_exit(1);
}

/* A process that has no other thread. */
static int install(const struct program *p)
{
	struct sock_fprog prog = {
		.len = (unsigned short)p->n, .filter = (struct sock_filter *)p->code};

	if (p->n > PROGRAM_MAX)
		return -E2BIG;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0 ? -errno : 0;
}

static int install_krun(struct program *p, bool net, int failure)
{
	struct sigaction forbidden = {
		.sa_sigaction = on_forbidden, .sa_flags = SA_SIGINFO | SA_NODEFER};
	sigset_t set;
	int r;

	report_fd = failure;
	sigemptyset(&set);
	sigaddset(&set, SIGSYS);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	if (sigaction(SIGSYS, &forbidden, NULL) < 0)
		return -errno;
	build_krun(p, net);
	r = install(p);
	if (r < 0)
		signal(SIGSYS, SIG_DFL);
	return r;
}

int confine_seccomp(enum confine_filter filter, int failure)
{
	struct program *p;
	int r = -ENODATA;

	if (filter == CONFINE_FILTER_NONE)
		return r;
	p = xcalloc(1, sizeof(*p));
	if (filter == CONFINE_FILTER_KRUN || filter == CONFINE_FILTER_KRUN_NET) {
		r = install_krun(p, filter == CONFINE_FILTER_KRUN_NET, failure);
	} else {
		build_program(p);
		r = install(p);
	}
	free(p);
	return r;
}

int confine_seccomp_waiter(void)
{
	struct program *p = xcalloc(1, sizeof(*p));
	int r;

	build_waiter(p);
	r = install(p);
	free(p);
	return r;
}
