/* host/vm/confine: hostile code in the VMM's place, and what each of its attempts meets.
 *
 * The code runs under the real supervisor, confined as a real VMM is: once without the filter of
 * system calls, so that the other layers have to hold by themselves, once with the filter for
 * programs, and, call by call, under the filter for libkrun. All of it as this user, and when that
 * is root also as a user without any rights.
 */
#include "vm_harness.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/ioctl.h>

#include "hostile.h"

#define NOBODY	   65534
#define REPORT_MAX 16384
#define BOMB_MAX   4096

/* --- in the VMM's place --- */

static void hear_victim(const struct vmm_ends *ends, const struct plan *p, struct victim *v)
{
	char line[64];

	hear(ends->agent, line, sizeof(line));
	*v = (struct victim){.plan = p};
	if (sscanf(line, "%d %d %d", &v->daemon, &v->supervisor, &v->port) != 3)
		_exit(90);
}

static void try_all(const struct plan *p, const struct vmm_ends *ends, bool filtered)
{
	struct victim v;

	hear_victim(ends, p, &v);
	for (size_t i = 0; i < ARRAY_LEN(attempts); i++) {
		char line[32];

		if (attempts[i].denied && !filtered)
			continue;
		snprintf(line, sizeof(line), "%zu %d\n", i, attempts[i].run(&v));
		say(ends->agent, line);
	}
	say(ends->agent, "end\n");
	say(ends->control, READY);
	leave(ends, "0");
}

/* Of this run alone: another build's test may run beside it. The VMM inherits it. The full stop
 * ends the number. */
static char bomb_name[16];

/* Breeds until it is stopped, and tells by how many. They outlive whoever made them, if they can.
 */
static void bomb(const struct vmm_ends *ends)
{
	char line[32];
	int n = 0;

	prctl(PR_SET_NAME, bomb_name);
	while (n < BOMB_MAX) {
		pid_t pid = fork();

		if (pid < 0)
			break;
		if (pid == 0) {
			setsid();
			prctl(PR_SET_PDEATHSIG, 0);
			wait_for_ever();
		}
		n++;
	}
	snprintf(line, sizeof(line), "bombs %d\n", n);
	say(ends->agent, line);
	say(ends->control, READY);
	wait_for_ever();
}

static void *touch(void *arg)
{
	*(int *)arg = 1;
	return NULL;
}

/* What a VMM of libkrun's kind does has to go on working. */
static void behave(const struct plan *p, const struct vmm_ends *ends)
{
	pthread_t thread;
	char path[32];
	int touched = 0, fd;
	void *m = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED || munmap(m, 1 << 20) < 0)
		_exit(89);
	if (pthread_create(&thread, NULL, touch, &touched) || pthread_join(thread, NULL) ||
		!touched)
		_exit(88);
	for (size_t i = 0; i < p->n_disks; i++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", p->disks[i].fd);
		fd = open(path, (p->disks[i].readonly ? O_RDONLY : O_RDWR) | O_CLOEXEC);
		if (fd < 0 || (!p->disks[i].readonly && pwrite(fd, "x", 1, 0) != 1))
			_exit(87);
		close(fd);
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", ends->console);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		_exit(86);
	say(ends->control, READY);
	leave(ends, "0");
}

/* Forbidden to libkrun, one by one. */
static void break_out(const char *how)
{
	sigset_t all;

	sigfillset(&all);
	if (str_eq(how, "socket"))
		socket(AF_UNIX, SOCK_STREAM, 0);
	else if (str_eq(how, "socketpair"))
		socketpair(AF_UNIX, SOCK_STREAM, 0, (int[2]){0});
	else if (str_eq(how, "execve"))
		execve("/proc/self/exe", (char *[]){NULL}, (char *[]){NULL});
	else if (str_eq(how, "ptrace"))
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	else if (str_eq(how, "kill"))
		kill(getpid(), 0);
	else if (str_eq(how, "tgkill"))
		syscall(SYS_tgkill, getpid() + 1, getpid() + 1, 0);
	else if (str_eq(how, "unshare"))
		unshare(CLONE_NEWUSER);
	else if (str_eq(how, "mount"))
		mount("tmpfs", "/", "tmpfs", 0, NULL);
	else if (str_eq(how, "clone"))
		syscall(SYS_clone, SIGCHLD, 0, NULL, NULL, 0);
	else if (str_eq(how, "fchmod"))
		fchmod(0, 0666);
	else if (str_eq(how, "unlinkat"))
		unlinkat(AT_FDCWD, "/x", 0);
	else if (str_eq(how, "io_uring_setup"))
		syscall(SYS_io_uring_setup, 1, NULL);
	else if (str_eq(how, "bpf"))
		syscall(SYS_bpf, 0, NULL, 0);
	else if (str_eq(how, "userfaultfd"))
		syscall(SYS_userfaultfd, 0);
	else if (str_eq(how, "memfd_create"))
		syscall(SYS_memfd_create, "x", 0);
	else if (str_eq(how, "ioctl"))
		ioctl(0, TIOCSTI, "x");
	else if (str_eq(how, "fcntl"))
		fcntl(0, F_SETOWN, 1);
	else if (str_eq(how, "prctl"))
		prctl(PR_SET_DUMPABLE, 1);
	else if (str_eq(how, "prlimit64"))
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
	else if (str_eq(how, "sendmsg"))
		sendmsg(0, &(struct msghdr){0}, 0);
	else if (str_eq(how, "setsockopt"))
		setsockopt(0, SOL_SOCKET, SO_ATTACH_FILTER, NULL, 0);
	else if (str_eq(how, "recvfrom"))
		recv(0, &all, 1, 0);
	else if (str_eq(how, "unknown"))
		syscall(9999);
	else if (str_eq(how, "no report")) {
		sigprocmask(SIG_BLOCK, &all, NULL);
		socket(AF_UNIX, SOCK_STREAM, 0);
	} else if (str_eq(how, "no handler"))
		signal(SIGSYS, SIG_IGN);
#ifdef __x86_64__
	else if (str_eq(how, "x32"))
		syscall(0x40000000 | SYS_getpid);
#endif
	_exit(0); /* it got through */
}

static int hostile_enter(const struct plan *p, const struct vmm_ends *ends, struct err *e)
{
	if (str_eq(p->vmm, "all"))
		try_all(p, ends, str_eq(p->backend, "program"));
	if (str_eq(p->vmm, "bomb"))
		bomb(ends);
	if (str_eq(p->vmm, "behave"))
		behave(p, ends);
	if (str_eq(p->vmm, "good"))
		vmm_good(p, ends);
	break_out(p->vmm);
	return err_set(e, "S300", ENODEV, "no way to enter %s", p->vmm);
}

static void none_needs(const struct plan *p, struct confine_policy *policy)
{
	(void)p;
	policy->filter = CONFINE_FILTER_NONE;
}
static void krun_needs(const struct plan *p, struct confine_policy *policy)
{
	(void)p;
	policy->filter = CONFINE_FILTER_KRUN;
}

static void krun_net_needs(const struct plan *p, struct confine_policy *policy)
{
	(void)p;
	policy->filter = CONFINE_FILTER_KRUN_NET;
}

static const struct vm_backend
	unfiltered = {.name = "none", .vmm = test_vmm, .needs = none_needs, .enter = hostile_enter},
	program = {.name = "program", .vmm = test_vmm, .enter = hostile_enter},
	krun = {.name = "krun", .vmm = test_vmm, .needs = krun_needs, .enter = hostile_enter},
	krun_net = {.name = "krun-net",
		.vmm = test_vmm,
		.needs = krun_net_needs,
		.enter = hostile_enter};
static const struct vm_backend *const hostile_backends[] = {
	&unfiltered, &program, &krun, &krun_net, NULL};

/* --- in the daemon's place --- */

/* Where a layer is missing there is nothing to prove; doctor says so to the operator. */
static void need_all_layers(void)
{
	struct confine_report r;
	struct err e = ERR_INIT;
	char refused[512];

	if (confine_try(&r, &e) < 0)
		fail_msg("%s", e.text);
	confine_refused_text(&r, refused, sizeof(refused));
	if (refused[0]) {
		print_message("skipped: this host refuses to confine by %s\n", refused);
		skip();
	}
}

static int listen_tcp(int *ret_port)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	*ret_port = ntohs(a.sin_port);
	return fd;
}

static int listen_abstract(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int n = snprintf(a.sun_path + 1, sizeof(a.sun_path) - 1, "iii-test-confine-%d", getpid());

	assert_true(fd >= 0);
	assert_int_equal(
		bind(fd, (struct sockaddr *)&a,
			(socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)),
		0);
	assert_int_equal(listen(fd, 8), 0);
	return fd;
}

/* Runs all attempts; what they met, as text. */
static void collect(const struct vm_backend *be, char report[static REPORT_MAX])
{
	struct run r = {0};
	int port, tcp = listen_tcp(&port), abstract = listen_abstract();
	char line[64];

	start(&r, be, "all", 0);
	snprintf(line, sizeof(line), "%d %d %d\n", getpid(), child_of(getpid()), port);
	say(r.agent, line);
	read_agent(&r, report, REPORT_MAX, "end\n");
	finish(&r);
	fd_close(&tcp);
	fd_close(&abstract);
	expect(&r, VM_END_CLEAN, 0, 0, "powered off");
}

/* Whether an attempt met what it has to. */
static bool is_refusal(const struct attempt *a, int met, bool filtered)
{
	if (met == 0)
		return false;
	if (filtered && met == EPERM)
		return true;
	for (size_t i = 0; i < ARRAY_LEN(a->errnos) && a->errnos[i]; i++) {
		if (met == a->errnos[i])
			return true;
	}
	return false;
}

static void judge(const char *report, bool filtered)
{
	size_t n = 0, due = 0;
	int failures = 0;

	for (size_t i = 0; i < ARRAY_LEN(attempts); i++)
		due += filtered || !attempts[i].denied;
	for (const char *p = report; strncmp(p, "end", 3) != 0; p = strchr(p, '\n') + 1) {
		unsigned i;
		int met;

		assert_int_equal(sscanf(p, "%u %d", &i, &met), 2);
		assert_true(i < ARRAY_LEN(attempts));
		n++;
		if (is_refusal(&attempts[i], met, filtered))
			continue;
		print_error("%s: %s\n", attempts[i].name, met ? strerror(met) : "succeeded");
		failures++;
	}
	assert_int_equal(n, due);
	assert_int_equal(failures, 0);
}

static void test_hostile(void **state)
{
	char report[REPORT_MAX];

	(void)state;
	need_all_layers();
	collect(&unfiltered, report);
	judge(report, false);
	collect(&program, report);
	judge(report, true);
}

/* Another user, with folders of his own. */
static _Noreturn void be_nobody(int out)
{
	char *report = xcalloc(2, REPORT_MAX);
	size_t n;

	if (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 ||
		setresuid(NOBODY, NOBODY, NOBODY) < 0)
		_exit(3);
	memcpy(strrchr(dir, '.') + 1, "XXXXXX", 6);
	if (setup(NULL) < 0)
		_exit(4);
	collect(&unfiltered, report);
	n = strlen(report);
	collect(&program, report + n);
	fd_write_all(out, report, strlen(report));
	path_remove_at(AT_FDCWD, dir);
	_exit(0);
}

static void test_hostile_as_nobody(void **state)
{
	char report[2 * REPORT_MAX] = "", *second;
	int out[2], status;
	ssize_t n;
	pid_t pid;

	(void)state;
	need_all_layers();
	if (geteuid() != 0)
		return; /* test_hostile was it */
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0)
		be_nobody(out[1]);
	close(out[1]);
	n = fd_read_full(out[0], report, sizeof(report) - 1);
	close(out[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(n > 0);
	second = strstr(report, "end\n");
	assert_non_null(second);
	judge(report, false);
	judge(second + 4, true);
}

static int count_bombs(void)
{
	DIR *d = opendir("/proc");
	struct dirent *de;
	int n = 0;

	assert_non_null(d);
	while ((de = readdir(d))) {
		char path[300], *text = NULL;

		snprintf(path, sizeof(path), "/proc/%s/comm", de->d_name);
		if (fd_slurp_at(AT_FDCWD, path, 4096, &text, NULL) == 0)
			n += str_starts(text, bomb_name);
		free(text);
	}
	closedir(d);
	return n;
}

static void then_kill(struct run *r)
{
	vm_kill(r->vm);
}

/* Even without a filter it cannot breed without end, and nothing of it is left. */
static void test_bomb(void **state)
{
	struct run r = {.then = then_kill};
	char text[64];
	int n = 0;

	(void)state;
	need_all_layers();
	start(&r, &unfiltered, "bomb", 0);
	read_agent(&r, text, sizeof(text), "\n");
	assert_int_equal(sscanf(text, "bombs %d", &n), 1);
	print_message("%d processes before the limit\n", n);
	assert_in_range(n, 1, CONFINE_TASKS_MAX);
	assert_true(count_bombs() > 0);
	finish(&r);
	expect(&r, VM_END_STOPPED, SIGKILL, 0, "as asked");
	for (int i = 0; i < GUARD_MS / 10 && count_bombs(); i++)
		poll(NULL, 0, 10);
	assert_int_equal(count_bombs(), 0);
}

static void test_filter_krun(void **state)
{
	static const struct {
		const char *how, *says;
	} cases[] = {
		{"socket", "(socket)"},
		{"socketpair", "(socketpair)"},
		{"execve", "(execve)"},
		{"ptrace", "(ptrace)"},
		{"kill", "(kill)"},
		{"tgkill", "(tgkill)"},
		{"unshare", "(unshare)"},
		{"mount", "(mount)"},
		{"clone", "(clone)"},
		{"fchmod", "(fchmod)"},
		{"unlinkat", "(unlinkat)"},
		{"io_uring_setup", "(io_uring_setup)"},
		{"bpf", "(bpf)"},
		{"userfaultfd", "(userfaultfd)"},
		{"memfd_create", "(memfd_create)"},
		{"ioctl", "(ioctl)"},
		{"fcntl", "(fcntl)"},
		{"prctl", "(prctl)"},
		{"prlimit64", "(prlimit64)"},
		{"sendmsg", "forbidden system call"},
		{"setsockopt", "(setsockopt)"},
		{"unknown", "forbidden system call 9999"},
		{"no report", "a system call that is forbidden"},
		{"no handler", "a system call that is forbidden"},
#ifdef __x86_64__
		{"x32", "a system call that is forbidden"},
#endif
	};

	(void)state;
	for (size_t i = 0; i < 2 * ARRAY_LEN(cases); i++) {
		struct run r = {0};

		run(&r, i % 2 ? &krun : &krun_net, cases[i / 2].how, 0);
		expect(&r, VM_END_VMM_KILLED, SIGSYS, 0, cases[i / 2].says);
	}
}

/* Socket calls are for a VM with a network. */
static void test_filter_net(void **state)
{
	struct run r = {0}, n = {0};

	(void)state;
	run(&r, &krun, "recvfrom", 0);
	expect(&r, VM_END_VMM_KILLED, SIGSYS, 0, "(recvfrom)");
	run(&n, &krun_net, "recvfrom", 0);
	expect(&n, VM_END_GUEST_CRASH, 0, 0, "ended without notice");
}

static void test_good_code_lives(void **state)
{
	static const struct vm_backend *const all[] = {&unfiltered, &program, &krun, &krun_net};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		struct run r = {0};

		run(&r, all[i], "behave", 0);
		expect(&r, VM_END_CLEAN, 0, 0, "powered off");
	}
}

/* --- a host that refuses --- */

/* As a container's own filter does. */
static void refuse(const int *calls, size_t n, int error)
{
	struct sock_filter code[32];
	struct sock_fprog prog = {.filter = code};

	code[prog.len++] = (struct sock_filter){
		BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)};
	for (size_t i = 0; i < n; i++) {
		code[prog.len++] =
			(struct sock_filter){BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (uint32_t)calls[i]};
		code[prog.len++] = (struct sock_filter){
			BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | (uint32_t)error};
	}
	code[prog.len++] = (struct sock_filter){BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
		_exit(5);
}

static const int refused_calls[] = {SYS_unshare, SYS_open_tree, 444 /* landlock_create_ruleset */};

/* Starts a VM on such a host; how it ended, as text. */
static _Noreturn void on_poor_host(int out, bool required)
{
	struct run r = {0};
	char text[ERR_TEXT_MAX + 32];

	uv_loop_init(&loop);
	refuse(refused_calls, ARRAY_LEN(refused_calls), ENOSYS);
	if (required)
		setenv(CONFINE_REQUIRE, "1", 1);
	start(&r, &program, "behave", 0);
	finish(&r);
	snprintf(text, sizeof(text), "%d %s", (int)r.x.end, r.x.why.text);
	fd_write_all(out, text, strlen(text));
	_exit(0);
}

static void poor_host(bool required, enum vm_end end, const char *const *says, size_t n)
{
	char text[ERR_TEXT_MAX + 32] = "";
	int out[2], status, met = -1;
	pid_t pid;

	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0)
		on_poor_host(out[1], required);
	close(out[1]);
	assert_true(fd_read_full(out[0], text, sizeof(text) - 1) > 0);
	close(out[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(sscanf(text, "%d", &met), 1);
	if (met != (int)end)
		fail_msg("%s", text);
	for (size_t i = 0; i < n; i++) {
		if (!strstr(text, says[i]))
			fail_msg("\"%s\" does not name %s", text, says[i]);
	}
}

static void test_refused_layers(void **state)
{
	static const char *const missing[] = {
		"net (", "ipc (", "root (", "landlock (", CONFINE_REQUIRE, "doctor"};

	(void)state;
	poor_host(false, VM_END_CLEAN, NULL, 0);
	poor_host(true, VM_END_VMM_FAILED, missing, ARRAY_LEN(missing));
}

/* A supervisor whose VM runs: what it may no more, and that it still kills. */
static int waiter_attempts(void)
{
	pid_t vmm = fork();
	int status;

	if (vmm == 0)
		wait_for_ever();
	confine_waiter();
	if (open("/etc/passwd", O_RDONLY) >= 0 || errno != EPERM)
		return 1;
	if (socket(AF_UNIX, SOCK_STREAM, 0) >= 0 || errno != EPERM)
		return 2;
	if (fork() >= 0 || errno != EPERM)
		return 3;
	if (setns(0, 0) >= 0 || errno != EPERM)
		return 4;
	if (ptrace(PTRACE_SEIZE, vmm, NULL, NULL) >= 0 || errno != EPERM)
		return 5;
	if (kill(vmm, SIGKILL) < 0 || waitpid(vmm, &status, 0) != vmm)
		return 6;
	return 0;
}

static void test_waiter(void **state)
{
	int status;
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_ADDRESS__
	return; /* there it is left out, for the sanitizer's own sake */
#endif
	need_all_layers();
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		_exit(waiter_attempts());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void test_texts(void **state)
{
	struct confine_report r = {
		.active = {1, 0, 1, 1, 1, 1, 0, 1}, .refused = {0, EPERM, 0, 0, 0, 0, ENOSYS, 0}};
	char text[512], cut[8];

	(void)state;
	confine_active_text(&r, text, sizeof(text));
	assert_string_equal(text, "user net ipc root caps seccomp");
	confine_refused_text(&r, text, sizeof(text));
	assert_string_equal(
		text, "pid (Operation not permitted) and landlock (Function not implemented)");
	confine_refused_text(&r, cut, sizeof(cut));
	assert_string_equal(cut, "pid (Op");
	assert_string_equal(confine_syscall_name(SYS_socket), "socket");
	assert_string_equal(confine_syscall_name(SYS_read), "read");
	assert_null(confine_syscall_name(9999));
}

static void test_policy(void **state)
{
	struct confine_policy p = {0};
	char path[32];

	(void)state;
	confine_policy_add(&p, "/a");
	confine_policy_add(&p, "relative");
	confine_policy_add(&p, "/a");
	confine_policy_add(&p, "/b");
	assert_string_equal(p.paths[0], "/a");
	assert_string_equal(p.paths[1], "/b");
	assert_null(p.paths[2]);
	for (int i = 0; i < 2 * CONFINE_PATHS_MAX; i++) {
		snprintf(path, sizeof(path), "/%d", i);
		confine_policy_add(&p, path);
	}
	assert_string_equal(p.paths[CONFINE_PATHS_MAX - 1], "/13");
	confine_policy_done(&p);
	assert_null(p.paths[0]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_texts),
		cmocka_unit_test(test_policy),
		cmocka_unit_test(test_good_code_lives),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_hostile_as_nobody),
		cmocka_unit_test(test_bomb),
		cmocka_unit_test(test_filter_krun),
		cmocka_unit_test(test_filter_net),
		cmocka_unit_test(test_waiter),
		cmocka_unit_test(test_refused_layers),
	};

	(void)backends;
	log_init(LOG_ERROR); /* that layers are missing is what some of these want */
	snprintf(bomb_name, sizeof(bomb_name), "bomb-%d.",
		argc > 1 && str_eq(argv[1], BOOT_ENTRY) ? getppid() : getpid());
	if (argc > 1 && str_eq(argv[1], BOOT_ENTRY))
		return vm_boot_run(argc, argv, hostile_backends);
	return cmocka_run_group_tests_name("confine", tests, setup, teardown);
}
