/* What a VMM does that a guest has taken over: test_confine runs it in the VMM's place.
 *
 * Each attempt returns 0 when it succeeded, which is a hole, or the errno that it met. Beside the
 * attempt stand the errnos that are refusals; any other one means that the attempt did not try what
 * it says. A number in `denied` is a system call that the filter for programs must deny by itself.
 */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "host/vm/plan.h"

/* What it knows of the world outside. */
struct victim {
	const struct plan *plan;
	int daemon, supervisor, port;
};

static int outcome(long r)
{
	return r < 0 ? errno : 0;
}

static int try_path(const char *path, int flags)
{
	cleanup_fd int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0600);

	return fd < 0 ? errno : 0;
}

/* --- files --- */

static int passwd(const struct victim *v)
{
	(void)v;
	return try_path("/etc/passwd", O_RDONLY);
}
static int shadow(const struct victim *v)
{
	(void)v;
	return try_path("/etc/shadow", O_RDONLY);
}
static int slash_root(const struct victim *v)
{
	(void)v;
	return try_path("/root", O_RDONLY | O_DIRECTORY);
}
static int temporary(const struct victim *v)
{
	(void)v;
	return try_path("/tmp/iii-test-confine", O_RDWR | O_CREAT);
}
static int var(const struct victim *v)
{
	(void)v;
	return try_path("/var", O_RDONLY | O_DIRECTORY);
}
static int sys(const struct victim *v)
{
	(void)v;
	return try_path("/sys/kernel", O_RDONLY | O_DIRECTORY);
}
static int proc_sys(const struct victim *v)
{
	(void)v;
	return try_path("/proc/sys/kernel/core_pattern", O_WRONLY);
}
static int list_root(const struct victim *v)
{
	(void)v;
	return try_path("/", O_RDONLY | O_DIRECTORY);
}
static int new_file(const struct victim *v)
{
	(void)v;
	return try_path("/x", O_RDWR | O_CREAT);
}
static int new_device(const struct victim *v)
{
	(void)v;
	return outcome(mknod("/dev/x", S_IFCHR | 0666, makedev(1, 1)));
}
static int new_folder(const struct victim *v)
{
	(void)v;
	return outcome(mkdir("/dev/x", 0700));
}
static int above_root(const struct victim *v)
{
	(void)v;
	return try_path("/proc/self/fd/../../../../../../etc/passwd", O_RDONLY);
}
static int old_root(const struct victim *v)
{
	(void)v;
	return try_path("/proc/self/root/etc/passwd", O_RDONLY);
}
static int chroot_out(const struct victim *v)
{
	(void)v;
	return outcome(chroot("/dev"));
}
static int folder_fd(const struct victim *v)
{
	(void)v;
	for (int fd = 0; fd < 1024; fd++) {
		struct stat st;

		/* A folder among the descriptors leads out of any root. */
		if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
			return 0;
	}
	return ENOTDIR;
}
static int device_mem(const struct victim *v)
{
	(void)v;
	return try_path("/dev/mem", O_RDONLY);
}
static int device_kmsg(const struct victim *v)
{
	(void)v;
	return try_path("/dev/kmsg", O_WRONLY);
}
static int device_tty(const struct victim *v)
{
	(void)v;
	return try_path("/dev/tty", O_RDWR);
}
static int device_kvm(const struct victim *v)
{
	(void)v;
	return try_path("/dev/kvm", O_RDWR);
}
static int device_fuse(const struct victim *v)
{
	(void)v;
	return try_path("/dev/fuse", O_RDWR);
}
static int device_disk(const struct victim *v)
{
	(void)v;
	return try_path("/dev/vda", O_RDONLY);
}
static int by_handle(const struct victim *v)
{
	union {
		struct file_handle h;
		char room[sizeof(struct file_handle) + 8];
	} u = {.h = {.handle_bytes = 8, .handle_type = 1}};

	return outcome(open_by_handle_at(v->plan->disks[1].fd, &u.h, O_RDONLY));
}

/* --- the base disk, which other VMs have too --- */

static int base_fd(const struct victim *v)
{
	return v->plan->disks[1].fd;
}
static int base_write(const struct victim *v)
{
	return outcome(pwrite(base_fd(v), "x", 1, 0));
}
static int base_reopen(const struct victim *v)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", base_fd(v));
	return try_path(path, O_RDWR);
}
static int base_chmod_reopen(const struct victim *v)
{
	fchmod(base_fd(v), 0666);
	return base_reopen(v);
}
static int base_truncate(const struct victim *v)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", base_fd(v));
	return outcome(truncate(path, 0));
}
static int base_map(const struct victim *v)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, base_fd(v), 0);

	return p == MAP_FAILED ? errno : 0;
}
static int base_xattr(const struct victim *v)
{
	return outcome(fsetxattr(base_fd(v), "user.iii", "x", 1, 0));
}
static int base_lease(const struct victim *v)
{
	return outcome(fcntl(base_fd(v), F_SETLEASE, F_RDLCK));
}
static int base_lock(const struct victim *v)
{
	return outcome(flock(base_fd(v), LOCK_EX | LOCK_NB));
}
static int kernel_reopen(const struct victim *v)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", v->plan->kernel_fd);
	return try_path(path, O_RDWR);
}
static int upper_too_big(const struct victim *v)
{
	struct sigaction ign = {.sa_handler = SIG_IGN};

	sigaction(SIGXFSZ, &ign, NULL);
	return outcome(pwrite(v->plan->disks[2].fd, "x", 1, (off_t)1 << 40));
}

/* --- other processes --- */

static int kill_daemon(const struct victim *v)
{
	return outcome(kill(v->daemon, SIGKILL));
}
static int kill_supervisor(const struct victim *v)
{
	return outcome(kill(v->supervisor, SIGKILL));
}
static int kill_group(const struct victim *v)
{
	return outcome(kill(-v->supervisor, SIGKILL));
}
static int trace(const struct victim *v)
{
	return outcome(ptrace(PTRACE_SEIZE, v->daemon, NULL, NULL));
}
static int read_memory(const struct victim *v)
{
	char c;
	struct iovec a = {&c, 1}, b = {(void *)(uintptr_t)read_memory, 1};

	return outcome(process_vm_readv(v->supervisor, &a, 1, &b, 1, 0));
}
static int open_memory(const struct victim *v)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/mem", v->supervisor);
	return try_path(path, O_RDWR);
}
static int open_their_fd(const struct victim *v)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd/0", v->daemon);
	return try_path(path, O_RDONLY);
}
static int proc_1(const struct victim *v)
{
	(void)v;
	return try_path("/proc/1/status", O_RDONLY);
}
static int pidfd(const struct victim *v)
{
	return outcome(syscall(SYS_pidfd_open, v->daemon, 0));
}
static int limit_theirs(const struct victim *v)
{
	struct rlimit l = {1, 1};

	return outcome(prlimit(v->supervisor, RLIMIT_CPU, &l, NULL));
}
static int slow_theirs(const struct victim *v)
{
	return outcome(setpriority(PRIO_PROCESS, (id_t)v->supervisor, 19));
}

/* --- networks --- */

static int inet_connect(const struct victim *v)
{
	cleanup_fd int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)v->port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	return fd < 0 ? errno : outcome(connect(fd, (struct sockaddr *)&a, sizeof(a)));
}
static int udp_send(const struct victim *v)
{
	cleanup_fd int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)v->port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	return fd < 0 ? errno : outcome(sendto(fd, "x", 1, 0, (struct sockaddr *)&a, sizeof(a)));
}
static int abstract_connect(const struct victim *v)
{
	cleanup_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int n = snprintf(a.sun_path + 1, sizeof(a.sun_path) - 1, "iii-test-confine-%d", v->daemon);

	return fd < 0 ? errno
		      : outcome(connect(fd, (struct sockaddr *)&a,
				(socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
					    (size_t)n)));
}
static int raw_socket(const struct victim *v)
{
	(void)v;
	return outcome(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
}
static int packet_socket(const struct victim *v)
{
	(void)v;
	return outcome(socket(AF_PACKET, SOCK_RAW, 0));
}
static int vsock_connect(const struct victim *v)
{
	cleanup_fd int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_vm a = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = 1};

	(void)v;
	return fd < 0 ? errno : outcome(connect(fd, (struct sockaddr *)&a, sizeof(a)));
}

/* --- rights --- */

static int mount_tmpfs(const struct victim *v)
{
	(void)v;
	return outcome(mount("tmpfs", "/dev", "tmpfs", 0, NULL));
}
static int mount_writable(const struct victim *v)
{
	(void)v;
	return outcome(mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL));
}
static int unmount(const struct victim *v)
{
	(void)v;
	return outcome(umount2("/proc/self/fd", MNT_DETACH));
}
static int be_root(const struct victim *v)
{
	(void)v;
	if (geteuid() == 0)
		return 0; /* it was let be root: worse than any */
	return outcome(setuid(0));
}
static int be_root_group(const struct victim *v)
{
	(void)v;
	return getegid() == 0 ? 0 : outcome(setgid(0));
}
static int more_groups(const struct victim *v)
{
	gid_t g = 0;

	(void)v;
	return outcome(setgroups(1, &g));
}
static int get_caps(const struct victim *v)
{
	struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct d[2] = {{~0u, ~0u, ~0u}, {~0u, ~0u, ~0u}};

	(void)v;
	return outcome(syscall(SYS_capset, &h, d));
}
static int host_name(const struct victim *v)
{
	(void)v;
	return outcome(sethostname("x", 1));
}
/* To what it is: should it succeed, no harm is done. */
static int set_clock(const struct victim *v)
{
	struct timespec t;

	(void)v;
	clock_gettime(CLOCK_REALTIME, &t);
	return outcome(clock_settime(CLOCK_REALTIME, &t));
}
static int kernel_log(const struct victim *v)
{
	(void)v;
	return outcome(syscall(SYS_syslog, 7 /* messages to the console, as is usual */, NULL, 0));
}
static int load_module(const struct victim *v)
{
	(void)v;
	return outcome(syscall(SYS_init_module, "x", 1, ""));
}
static int raise_limit(const struct victim *v)
{
	struct rlimit l = {65536, 65536};

	(void)v;
	return outcome(setrlimit(RLIMIT_NOFILE, &l));
}
static int dump_core(const struct victim *v)
{
	struct rlimit l = {1, 1};

	(void)v;
	return outcome(setrlimit(RLIMIT_CORE, &l));
}
static int be_nice(const struct victim *v)
{
	(void)v;
	return outcome(setpriority(PRIO_PROCESS, 0, -20));
}
static int join_namespace(const struct victim *v)
{
	(void)v;
	return outcome(setns(base_fd(v), CLONE_NEWNET));
}
static int new_user_namespace(const struct victim *v)
{
	(void)v;
	return outcome(unshare(CLONE_NEWUSER));
}

/* --- wide doors --- */

static int keyring(const struct victim *v)
{
	(void)v;
	return outcome(syscall(SYS_add_key, "user", "iii", "x", 1, -4));
}
static int keyring_read(const struct victim *v)
{
	(void)v;
	return outcome(syscall(SYS_keyctl, 0, -4, 1));
}
static int load_bpf(const struct victim *v)
{
	union bpf_attr a = {
		.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};

	(void)v;
	return outcome(syscall(SYS_bpf, BPF_MAP_CREATE, &a, sizeof(a)));
}
static int perf(const struct victim *v)
{
	struct perf_event_attr a = {.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(a),
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.exclude_kernel = 1};

	(void)v;
	return outcome(syscall(SYS_perf_event_open, &a, 0, -1, -1, 0));
}
static int fault_fd(const struct victim *v)
{
	(void)v;
	return outcome(syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* user mode only */));
}
static int io_uring(const struct victim *v)
{
	char params[120] = {0};

	(void)v;
	return outcome(syscall(SYS_io_uring_setup, 1, params));
}
static int shared_memory(const struct victim *v)
{
	(void)v;
	return outcome(shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600));
}
static int fork_once(const struct victim *v)
{
	pid_t pid = fork();

	(void)v;
	if (pid == 0)
		_exit(0);
	return outcome(pid);
}

static const struct attempt {
	const char *name;
	int (*run)(const struct victim *v);
	bool denied;   /* only the filter for programs refuses it: not tried without */
	int errnos[5]; /* refusals by the other layers */
} attempts[] = {
	{"open /etc/passwd", passwd, false, {ENOENT}},
	{"open /etc/shadow", shadow, false, {ENOENT}},
	{"open /root", slash_root, false, {ENOENT}},
	{"write below /tmp", temporary, false, {ENOENT}},
	{"open /var", var, false, {ENOENT}},
	{"open /sys", sys, false, {ENOENT}},
	{"write to /proc/sys", proc_sys, false, {ENOENT}},
	{"list /", list_root, false, {EACCES}},
	{"make a file", new_file, false, {EROFS, EACCES}},
	{"make a device", new_device, false, {EROFS, EACCES, EPERM}},
	{"make a folder", new_folder, false, {EROFS, EACCES}},
	{"go above the root", above_root, false, {ENOENT}},
	{"use /proc/self/root", old_root, false, {ENOENT}},
	{"chroot", chroot_out, false, {EPERM}},
	{"find a folder's descriptor", folder_fd, false, {ENOTDIR}},
	{"open /dev/mem", device_mem, false, {ENOENT}},
	{"open /dev/kmsg", device_kmsg, false, {ENOENT}},
	{"open /dev/tty", device_tty, false, {ENOENT}},
	{"open /dev/kvm without need", device_kvm, false, {ENOENT}},
	{"open /dev/fuse", device_fuse, false, {ENOENT}},
	{"open /dev/vda", device_disk, false, {ENOENT}},
	{"open a file by handle", by_handle, false, {EPERM}},
	{"write to the base disk", base_write, false, {EBADF}},
	{"open the base disk for writing", base_reopen, false, {EACCES, EROFS}},
	{"the same after a chmod", base_chmod_reopen, false, {EACCES, EROFS}},
	{"truncate the base disk", base_truncate, false, {EACCES, EROFS}},
	{"map the base disk for writing", base_map, false, {EACCES}},
	{"open the kernel for writing", kernel_reopen, false, {EACCES, EROFS}},
	{"write far behind the writable disk", upper_too_big, false, {EFBIG}},
	{"kill the daemon", kill_daemon, false, {ESRCH}},
	{"kill the supervisor", kill_supervisor, false, {ESRCH}},
	{"kill the supervisor's group", kill_group, false, {ESRCH}},
	{"trace the daemon", trace, false, {ESRCH, EPERM}},
	{"read the supervisor's memory", read_memory, false, {ESRCH}},
	{"open the supervisor's memory", open_memory, false, {ENOENT}},
	{"open the daemon's descriptor", open_their_fd, false, {ENOENT}},
	{"open /proc/1", proc_1, false, {ENOENT}},
	{"take hold of the daemon's pid", pidfd, false, {ESRCH}},
	{"limit the supervisor", limit_theirs, false, {ESRCH}},
	{"slow the supervisor down", slow_theirs, false, {ESRCH}},
	{"connect to 127.0.0.1", inet_connect, false, {ENETUNREACH, EACCES}},
	{"send UDP to 127.0.0.1", udp_send, false, {ENETUNREACH}},
	{"connect to an abstract socket", abstract_connect, false, {ECONNREFUSED, EPERM}},
	{"make a raw socket", raw_socket, false, {EPERM}},
	{"make a packet socket", packet_socket, false, {EPERM, EAFNOSUPPORT}},
	{"connect to a vsock", vsock_connect, true, {0}},
	{"mount", mount_tmpfs, false, {EPERM}},
	{"make the root writable", mount_writable, false, {EPERM}},
	{"unmount", unmount, false, {EPERM}},
	{"become root", be_root, false, {EPERM, EINVAL}},
	{"become root's group", be_root_group, false, {EPERM, EINVAL}},
	{"get a group", more_groups, false, {EPERM}},
	{"get capabilities", get_caps, false, {EPERM}},
	{"change the host's name", host_name, false, {EPERM}},
	{"set the clock", set_clock, false, {EPERM}},
	{"switch the kernel's log", kernel_log, false, {EPERM}},
	{"load a module", load_module, false, {EPERM, ENOSYS}},
	{"raise a limit", raise_limit, false, {EPERM}},
	{"dump core", dump_core, false, {EPERM}},
	{"raise the priority", be_nice, false, {EACCES}},
	{"join a namespace", join_namespace, false, {EINVAL, EPERM}},
	{"make a user namespace", new_user_namespace, true, {0}},
	{"change an attribute of the base disk", base_xattr, true, {0}},
	{"take a lease on the base disk", base_lease, true, {0}},
	{"lock the base disk", base_lock, true, {0}},
	{"add a key", keyring, true, {0}},
	{"read a keyring", keyring_read, true, {0}},
	{"load BPF", load_bpf, true, {0}},
	{"open perf events", perf, true, {0}},
	{"open userfaultfd", fault_fd, true, {0}},
	{"set up io_uring", io_uring, true, {0}},
	{"make shared memory", shared_memory, true, {0}},
	{"fork", fork_once, true, {0}},
};
