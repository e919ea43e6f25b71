/* host/worker/record: what is kept of a worker VM survives crashes at every step, damage, other
 * daemons and other processes (worker VM specification §1.4, §1.5, §1.10; W56, W57, W70-W76). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/worker/record.h"

#define NOW 1790000000123
#define KEY "project/worker"

/* Not /tmp: it may be a tmpfs. */
static char state_dir[64];
static int root = -1; /* <state>/workers */
static char vm[WORKER_ID_LEN + 1];

static int setup(void **state)
{
	struct err e = ERR_INIT;

	(void)state;
	snprintf(state_dir, sizeof(state_dir), "/var/tmp/test_record.XXXXXX");
	if (!mkdtemp(state_dir))
		return -1;
	setenv("III_SANDBOX_STATE_DIR", state_dir, 1);
	setenv("III_SANDBOX_CACHE_DIR", state_dir, 1);
	worker_vm_id(KEY, vm);
	return vmdir_root(&root, &e);
}

static int teardown(void **state)
{
	(void)state;
	fd_close(&root);
	return path_remove_at(AT_FDCWD, state_dir);
}

/* --- helpers --- */

static int fsync_fails; /* errno; 0: it works */

int fsync(int fd)
{
	if (fsync_fails) {
		errno = fsync_fails;
		return -1;
	}
	return (int)syscall(SYS_fsync, fd);
}

static struct vmdir open_vm(bool make)
{
	struct err e = ERR_INIT;
	struct vmdir d;

	if (vmdir_open(root, vm, make, &d, &e) < 0)
		fail_msg("%s", e.text);
	return d;
}

static struct worker_record load(struct vmdir *d)
{
	struct worker_record r = {0};
	struct err e = ERR_INIT;

	if (vmdir_load(d, &r, &e) < 0)
		fail_msg("%s", e.text);
	return r;
}

static void save(struct vmdir *d, const struct worker_record *r)
{
	struct err e = ERR_INIT;

	if (vmdir_save(d, r, &e) < 0)
		fail_msg("%s", e.text);
}

static uint64_t next_instance(struct vmdir *d, uint64_t at_least)
{
	struct err e = ERR_INIT;
	uint64_t n = 0;

	if (vmdir_next_instance(d, at_least, &n, &e) < 0)
		fail_msg("%s", e.text);
	return n;
}

/* A VM whose boot of that number runs, as its daemon leaves it when it is killed. */
static void leave_running(uint64_t instance, pid_t pid, uint64_t pid_start)
{
	struct vmdir d = open_vm(true);
	struct worker_record r = load(&d);

	while (next_instance(&d, 0) < instance)
		;
	worker_record_next(&r, instance, NOW);
	r.boot.state = WORKER_RUNNING;
	r.pid = pid;
	r.pid_start = pid_start;
	save(&d, &r);
	worker_record_done(&r);
	vmdir_close(&d);
}

struct found {
	int n;
	char vm_id[WORKER_ID_LEN + 1];
	struct worker_boot boot;
	pid_t pid;
};

static void on_found(const char *vm_id, const struct worker_record *r, void *user)
{
	struct found *f = user;

	f->n++;
	snprintf(f->vm_id, sizeof(f->vm_id), "%s", vm_id);
	f->boot = r->boot;
	f->pid = r->pid;
}

static struct found recover(uint64_t now_ms)
{
	struct found f = {0};
	struct err e = ERR_INIT;

	if (vmdir_recover(root, now_ms, on_found, &f, &e) < 0)
		fail_msg("%s", e.text);
	return f;
}

static bool exists(const char *fmt, const char *arg)
{
	cleanup_free char *name = NULL;
	struct stat st;

	name = arg ? xasprintf("%s/%s", arg, fmt) : xstrdup(fmt);
	return fstatat(root, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void put_file(const char *folder, const char *name, const void *data, size_t len)
{
	cleanup_free char *path = folder ? path_join(folder, name) : xstrdup(name);
	cleanup_fd int fd = openat(root, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, data, len), 0);
}

/* Number of names in the root that begin so. */
static size_t count_names(int at, const char *prefix)
{
	int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fdopendir(fd);
	struct dirent *entry;
	size_t n = 0;

	while ((entry = readdir(d)))
		n += str_starts(entry->d_name, prefix);
	closedir(d);
	return n;
}

static size_t count_fds(void)
{
	cleanup_fd int fd = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return count_names(fd, "");
}

/* --- names --- */

static void test_id(void **state)
{
	static const char *const bad[] = {"", "wvm-", "wvm-0123456789abcdef0123456789abcde",
		"wvm-0123456789abcdef0123456789abcdef0", "wvm-0123456789ABCDEF0123456789abcdef",
		"wvm-../../../../../../../../../etcxx", "xvm-0123456789abcdef0123456789abcdef",
		"."};
	char a[WORKER_ID_LEN + 1], b[WORKER_ID_LEN + 1];
	struct err e = ERR_INIT;
	struct vmdir d;

	(void)state;
	/* printf 'sandbox-libkrun/worker-vm/v1\0k1' | sha256sum */
	worker_vm_id("k1", a);
	assert_string_equal(a, "wvm-40245bde647efd628ae80ccc947e4cbb");
	worker_vm_id("k2", b);
	assert_string_not_equal(a, b);
	assert_true(worker_vm_id_valid(a));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_false(worker_vm_id_valid(bad[i]));
		assert_int_equal(vmdir_open(root, bad[i], true, &d, &e), -ENOENT);
	}
	assert_int_equal(count_names(root, "wvm-"), 0);
}

/* --- the record --- */

static void fill(struct worker_record *r)
{
	for (uint64_t i = 1; i <= 3; i++) {
		worker_record_next(r, i * 2, NOW + i);
		if (i == 3)
			break;
		r->boot.state = i == 1 ? WORKER_EXITED : WORKER_STOPPED;
		r->boot.ended_at_ms = NOW + i;
		r->boot.has_exit_code = i == 1;
		r->boot.exit_code = -1;
		r->boot.has_signal = i == 2;
		r->boot.signal = 9;
	}
	r->worker_name = xstrdup("wörker \"1\"\n");
	r->source_path = xstrdup("/srv/app/\xff");
	r->base_ref = xstrdup("docker.io/library/alpine:latest");
	r->kind = WORKER_BUNDLE;
	r->stop_requested = true;
	r->pid = getpid();
	r->pid_start = process_start_time(getpid());
}

static void check_boot(const struct worker_boot *a, const struct worker_boot *b)
{
	assert_true(a->instance == b->instance && a->state == b->state);
	assert_true(a->started_at_ms == b->started_at_ms && a->ended_at_ms == b->ended_at_ms);
	assert_true(a->has_exit_code == b->has_exit_code && a->has_signal == b->has_signal);
	assert_true(!a->has_exit_code || a->exit_code == b->exit_code);
	assert_true(!a->has_signal || a->signal == b->signal);
}

static void test_save_load(void **state)
{
	struct vmdir d = open_vm(true);
	struct worker_record r = load(&d), back;
	struct stat st;

	(void)state;
	assert_true(r.boot.instance == 0); /* there is none yet */
	fill(&r);
	save(&d, &r);
	assert_int_equal(fstatat(d.fd, "record.json", &st, 0), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(fstat(d.fd, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	back = load(&d);
	check_boot(&back.boot, &r.boot);
	for (size_t i = 0; i < WORKER_HISTORY_MAX; i++)
		check_boot(&back.history[i], &r.history[i]);
	assert_string_equal(back.worker_name, r.worker_name);
	assert_string_equal(back.source_path, "/srv/app/\ufffd");
	assert_string_equal(back.base_ref, r.base_ref);
	assert_null(back.base_digest);
	assert_int_equal(back.kind, WORKER_BUNDLE);
	assert_true(back.stop_requested);
	assert_int_equal(back.pid, getpid());
	assert_true(back.pid_start == r.pid_start && r.pid_start != 0);
	worker_record_done(&r);
	worker_record_done(&back);
	vmdir_close(&d);
}

static void test_history(void **state)
{
	struct worker_record r = {0};

	(void)state;
	assert_null(worker_record_find(&r, 0));
	for (uint64_t i = 1; i <= WORKER_HISTORY_MAX + 4; i++) {
		worker_record_next(&r, i, NOW + i);
		assert_int_equal(r.boot.state, WORKER_PREPARING);
		assert_true(r.boot.ended_at_ms == 0 && r.boot.started_at_ms == NOW + i);
	}
	assert_ptr_equal(worker_record_find(&r, 20), &r.boot);
	assert_ptr_equal(worker_record_find(&r, 19), &r.history[0]);
	assert_ptr_equal(worker_record_find(&r, 4), &r.history[WORKER_HISTORY_MAX - 1]);
	assert_null(worker_record_find(&r, 3));
	assert_null(worker_record_find(&r, 0));
	assert_null(worker_record_find(&r, 21));
	/* Boots that nobody ended are over all the same. */
	assert_int_equal(r.history[0].state, WORKER_EXITED);
	assert_true(r.history[0].ended_at_ms == NOW + 20);
	worker_record_done(&r);
}

/* The most that a record can hold fits. */
static void test_largest(void **state)
{
	struct vmdir d = open_vm(true);
	struct worker_record r = {0}, back;
	char *text = xmalloc(4097);

	(void)state;
	memset(text, 1, 4096); /* six bytes each */
	text[4096] = '\0';
	for (uint64_t i = 1; i <= WORKER_HISTORY_MAX + 1; i++) {
		worker_record_next(&r, UINT64_MAX - 100 + i, UINT64_MAX);
		r.boot = (struct worker_boot){r.boot.instance, WORKER_STOPPED, UINT64_MAX,
			UINT64_MAX, true, true, INT32_MIN, INT32_MIN};
	}
	r.worker_name = text;
	r.source_path = xstrdup(text);
	r.base_ref = xstrdup(text);
	r.base_digest = xstrdup(text);
	save(&d, &r);
	back = load(&d);
	check_boot(&back.boot, &r.boot);
	check_boot(&back.history[WORKER_HISTORY_MAX - 1], &r.history[WORKER_HISTORY_MAX - 1]);
	assert_string_equal(back.base_digest, text);
	worker_record_done(&r);
	worker_record_done(&back);
	vmdir_close(&d);
}

#define BOOT                                                                                       \
	"{\"instance\":3,\"state\":\"exited\",\"started_at_ms\":5,\"ended_at_ms\":6,"              \
	"\"exit_code\":null,\"signal\":null}"
#define REST "\"history\":[]}"

/* Each is no record: the start of a good one with something wrong in it. */
static void test_corrupt(void **state) /* W75 */
{
	static const char *const bad[] = {"", "garbage", "{}", "[]", "null", "{\"version\":1}",
		"@HEAD\"boot\":" BOOT "," REST " trailing", "@HEAD\"boot\":" BOOT "}",
		"@HEAD\"boot\":{\"instance\":3}," REST,
		"@HEAD\"boot\":{\"instance\":0,\"state\":\"exited\",\"started_at_ms\":5,"
		"\"ended_at_ms\":6}," REST,
		"@HEAD\"boot\":{\"instance\":3,\"state\":\"unknown\",\"started_at_ms\":5}," REST,
		"@HEAD\"boot\":{\"instance\":3,\"state\":\"running\",\"started_at_ms\":5,"
		"\"ended_at_ms\":6}," REST,
		"@HEAD\"boot\":{\"instance\":3,\"state\":\"exited\",\"started_at_ms\":5}," REST,
		"@HEAD\"boot\":{\"instance\":3,\"state\":\"exited\",\"started_at_ms\":5,"
		"\"ended_at_ms\":4}," REST,
		"@HEAD\"boot\":{\"instance\":3,\"state\":\"exited\",\"started_at_ms\":5,"
		"\"ended_at_ms\":6,\"exit_code\":2147483648}," REST,
		"@HEAD\"boot\":{\"instance\":-3,\"state\":\"exited\",\"started_at_ms\":5,"
		"\"ended_at_ms\":6}," REST,
		"@HEAD\"boot\":" BOOT ",\"history\":[" BOOT "]}", /* not older */
		"@HEAD\"boot\":" BOOT ",\"history\":[7]}",
		"@HEAD\"pid\":0,\"pid_start\":1,\"host_boot_id\":\"x\",\"boot\":" BOOT "," REST,
		"@HEAD\"pid\":4294967296,\"pid_start\":1,\"host_boot_id\":\"x\",\"boot\":" BOOT
		"," REST,
		"@HEAD\"pid\":1,\"boot\":" BOOT "," REST};
	size_t fds = count_fds();

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cleanup_free char *head = xasprintf("{\"version\":1,\"vm_id\":\"%s\",\"kind\":"
						    "\"local\",\"stop_requested\":false,",
			vm);
		bool whole = bad[i][0] != '@';
		cleanup_free char *text = xasprintf(
			"%s%s", whole ? "" : head, bad[i] + (whole ? 0 : strlen("@HEAD")));
		struct vmdir d = open_vm(true);
		struct worker_record r;

		put_file(vm, "record.json", text, strlen(text));
		r = load(&d);
		assert_true(r.boot.instance == 0);
		assert_false(exists("record.json", vm));
		assert_true(count_names(d.fd, "record.json.corrupt-") > 0);
		vmdir_close(&d);
	}
	assert_int_equal(count_fds(), fds);
	/* The same start is good with a good end: it is not the start that is refused. */
	cleanup_free char *good = xasprintf("{\"version\":1,\"vm_id\":\"%s\",\"kind\":\"local\","
					    "\"stop_requested\":false,\"boot\":" BOOT "," REST,
		vm);
	struct vmdir d = open_vm(true);
	put_file(vm, "record.json", good, strlen(good));
	struct worker_record r = load(&d);
	assert_true(r.boot.instance == 3);
	worker_record_done(&r);
	/* Nor are another VM's record, an endless one, a folder, a FIFO or a link. */
	good[strlen("{\"version\":1,\"vm_id\":\"wvm-")] ^= 1;
	put_file(vm, "record.json", good, strlen(good));
	assert_true(load(&d).boot.instance == 0);
	cleanup_free char *big = xmalloc(WORKER_RECORD_MAX + 1);
	memset(big, ' ', WORKER_RECORD_MAX + 1);
	put_file(vm, "record.json", big, WORKER_RECORD_MAX + 1);
	assert_true(load(&d).boot.instance == 0);
	assert_int_equal(mkdirat(d.fd, "record.json", 0700), 0);
	assert_true(load(&d).boot.instance == 0);
	assert_int_equal(mkfifoat(d.fd, "record.json", 0600), 0);
	assert_true(load(&d).boot.instance == 0);
	assert_int_equal(symlinkat("/dev/zero", d.fd, "record.json"), 0);
	assert_true(load(&d).boot.instance == 0);
	vmdir_close(&d);
}

/* --- the counter --- */

static void test_instances(void **state) /* W57, W75 */
{
	struct vmdir d = open_vm(true);
	struct err e = ERR_INIT;
	uint64_t n;

	(void)state;
	assert_true(next_instance(&d, 0) == 1);
	assert_true(next_instance(&d, 0) == 2);
	assert_true(next_instance(&d, 10) == 11);
	assert_true(next_instance(&d, 3) == 12);
	put_file(vm, "record.json", "garbage", 7);
	assert_true(load(&d).boot.instance == 0);
	assert_true(next_instance(&d, 0) == 13);
	assert_int_equal(vmdir_destroy(&d, &e), 0);
	d = open_vm(true);
	assert_true(next_instance(&d, 0) == 14);
	/* A damaged counter never goes back. */
	static const char *const bad[] = {"", "\n", "-1\n", "14", "99999999999999999999999\n",
		"14\n\n", "0x10\n", "11111111111111111111111111111111111111111\n"};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cleanup_free char *name = xasprintf("%s.seq", vm);

		put_file(NULL, name, bad[i], strlen(bad[i]));
		n = next_instance(&d, 0);
		assert_true(n > 1700000000000);
		assert_true(next_instance(&d, 0) == n + 1);
	}
	assert_int_equal(vmdir_next_instance(&d, UINT64_MAX, &n, &e), -EOVERFLOW);
	vmdir_close(&d);
}

/* --- locks --- */

/* What a child has between fork and exec are copies of the same open file. */
static void test_lock_is_given_back(void **state)
{
	struct vmdir a = open_vm(true), b;
	int copy = dup(a.lock_fd);

	(void)state;
	vmdir_close(&a);
	b = open_vm(false);
	vmdir_close(&b);
	close(copy);
}

/* The folder is gone when it was renamed, whatever the disk says then. */
static void test_destroy_unconfirmed(void **state)
{
	struct err e = ERR_INIT;
	struct vmdir d = open_vm(true);
	int r;

	(void)state;
	fsync_fails = EIO;
	r = vmdir_destroy(&d, &e);
	fsync_fails = 0;
	assert_int_equal(r, 0);
	assert_false(exists(vm, NULL));
}

static void test_lock(void **state) /* W76 */
{
	struct err e = ERR_INIT;
	struct vmdir a, b;
	size_t fds = count_fds();

	(void)state;
	assert_int_equal(vmdir_open(root, vm, false, &a, &e), -ENOENT);
	a = open_vm(true);
	assert_int_equal(vmdir_open(root, vm, false, &b, &e), -EBUSY);
	assert_string_equal(e.code, "S502");
	assert_int_equal(vmdir_open(root, vm, true, &b, &e), -EBUSY);
	vmdir_close(&a);
	b = open_vm(false);
	vmdir_close(&b);
	assert_int_equal(count_fds(), fds);
	/* A link, and a file, in the folder's place. */
	assert_int_equal(path_remove_at(root, vm), 0);
	assert_int_equal(symlinkat("/var/tmp", root, vm), 0);
	assert_true(vmdir_open(root, vm, true, &b, &e) < 0);
	assert_string_equal(e.code, "S504");
	assert_int_equal(unlinkat(root, vm, 0), 0);
	put_file(NULL, vm, "x", 1);
	assert_true(vmdir_open(root, vm, true, &b, &e) < 0);
	assert_int_equal(count_fds(), fds);
}

/* Called once, just before the next flock of the program under test. */
static void (*at_flock)(void);

int flock(int fd, int operation)
{
	void (*cb)(void) = STEAL(at_flock);

	if (cb)
		cb();
	return (int)syscall(SYS_flock, fd, operation);
}

static void take_away(void)
{
	assert_int_equal(renameat(root, vm, root, ".trash-taken"), 0);
}

static void take_away_and_make(void)
{
	take_away();
	assert_int_equal(mkdirat(root, vm, 0700), 0);
}

/* Another daemon destroys the folder between our opening and locking it. */
static void test_lock_too_late(void **state)
{
	void (*const meanwhile[])(void) = {take_away, take_away_and_make};
	struct err e = ERR_INIT;
	struct vmdir d, other;
	struct stat have, named;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(meanwhile); i++) {
		d = open_vm(true);
		vmdir_close(&d);
		at_flock = meanwhile[i];
		d = open_vm(true);
		assert_int_equal(fstat(d.fd, &have), 0);
		assert_int_equal(fstatat(root, vm, &named, 0), 0);
		assert_true(have.st_ino == named.st_ino);
		assert_int_equal(vmdir_open(root, vm, false, &other, &e), -EBUSY);
		vmdir_close(&d);
		assert_int_equal(recover(NOW).n, 0);
	}
	at_flock = take_away;
	assert_int_equal(vmdir_open(root, vm, false, &d, &e), -ENOENT);
}

/* Two daemons make, lock and destroy one VM as fast as they can: never both at once. */
static void test_lock_race(void **state)
{
	static const char mark[] = "mine";
	pid_t pid[2];
	int status;

	(void)state;
	for (int p = 0; p < 2; p++) {
		pid[p] = fork();
		if (pid[p] > 0)
			continue;
		for (int i = 0; i < 300; i++) {
			struct vmdir d;
			cleanup_fd int fd = -1;

			if (vmdir_open(root, vm, true, &d, NULL) < 0)
				continue;
			fd = openat(d.fd, mark, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
			if (fd < 0 || unlinkat(d.fd, mark, 0) < 0)
				_exit(1);
			if (i % 2 == 0 && vmdir_destroy(&d, NULL) < 0)
				_exit(2);
			if (i % 2)
				vmdir_close(&d);
		}
		_exit(0);
	}
	for (int p = 0; p < 2; p++) {
		assert_int_equal(waitpid(pid[p], &status, 0), pid[p]);
		assert_int_equal(status, 0);
	}
	assert_int_equal(count_names(root, ".trash-"), 0);
}

/* --- destroy --- */

static void test_destroy(void **state) /* W56 */
{
	struct vmdir d = open_vm(true), again;
	struct err e = ERR_INIT;
	size_t fds = count_fds();

	(void)state;
	next_instance(&d, 0);
	put_file(NULL, "bystander", "x", 1);
	assert_int_equal(mkdirat(d.fd, "log", 0700), 0);
	assert_int_equal(symlinkat("../../bystander", d.fd, "log/link"), 0);
	assert_int_equal(symlinkat("../..", d.fd, "log/folder-link"), 0);
	put_file(vm, WORKER_UPPER, "disk", 4);
	assert_int_equal(vmdir_destroy(&d, &e), 0);
	assert_int_equal(count_fds(), fds - 2);
	assert_false(exists(vm, NULL));
	assert_int_equal(count_names(root, ".trash-"), 0);
	assert_true(exists("bystander", NULL));
	assert_int_equal(count_names(root, vm), 1); /* .seq */
	assert_int_equal(vmdir_open(root, vm, false, &again, &e), -ENOENT);
}

static void test_destroy_busy(void **state)
{
	struct vmdir d = open_vm(true);
	struct err e = ERR_INIT;
	int fd;

	(void)state;
	put_file(vm, WORKER_UPPER, "disk", 4);
	fd = openat(d.fd, WORKER_UPPER, O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	assert_int_equal(vmdir_destroy(&d, &e), -EBUSY);
	assert_string_equal(e.code, "S502");
	assert_true(exists(WORKER_UPPER, vm));
	fd_close(&fd);
	d = open_vm(false);
	assert_int_equal(vmdir_destroy(&d, &e), 0);
	assert_false(exists(vm, NULL));
}

/* --- the disk --- */

static void test_upper(void **state)
{
	struct vmdir d = open_vm(true);
	struct err e = ERR_INIT;
	struct stat st;
	int fd = -1;
	char byte = 0;

	(void)state;
	if (vmdir_open_upper(&d, &fd, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(fstat(fd, &st), 0);
	assert_true((uint64_t)st.st_size == WORKER_UPPER_SIZE);
	assert_true(st.st_blocks < (64 << 20) / 512);
	assert_int_equal(pwrite(fd, "kept", 4, (off_t)8 << 30), 4);
	fd_close(&fd);
	assert_int_equal(vmdir_open_upper(&d, &fd, &e), 0);
	assert_int_equal(pread(fd, &byte, 1, (off_t)8 << 30), 1);
	assert_int_equal(byte, 'k');
	fd_close(&fd);
	assert_int_equal(unlinkat(d.fd, WORKER_UPPER, 0), 0);
	assert_int_equal(symlinkat("/dev/null", d.fd, WORKER_UPPER), 0);
	assert_true(vmdir_open_upper(&d, &fd, &e) < 0);
	assert_string_equal(e.code, "S504");
	assert_int_equal(unlinkat(d.fd, WORKER_UPPER, 0), 0);
	/* No room (W61): said, and nothing is left. */
	struct rlimit lim, small;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &lim), 0);
	small = (struct rlimit){.rlim_cur = 1 << 20, .rlim_max = lim.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	assert_true(vmdir_open_upper(&d, &fd, &e) < 0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &lim), 0);
	assert_string_equal(e.code, "S504");
	assert_int_equal(fd, -1);
	assert_int_equal(count_names(d.fd, "upper"), 0);
	assert_int_equal(count_names(d.fd, ".upper"), 0);
	vmdir_close(&d);
}

static void test_full_disk(void **state)
{
	struct vmdir d = open_vm(true);
	struct worker_record r = {0}, back;
	struct rlimit lim, none;
	struct err e = ERR_INIT;
	uint64_t n = 0;

	(void)state;
	fill(&r);
	save(&d, &r);
	assert_true(next_instance(&d, 6) == 7);
	worker_record_next(&r, 7, NOW);
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &lim), 0);
	none = (struct rlimit){.rlim_cur = 0, .rlim_max = lim.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
	assert_true(vmdir_save(&d, &r, &e) < 0);
	assert_string_equal(e.code, "S504");
	assert_true(vmdir_next_instance(&d, 7, &n, &e) < 0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &lim), 0);
	back = load(&d);
	assert_true(back.boot.instance == 6);
	assert_int_equal(count_names(d.fd, "record.json"), 1);
	assert_true(next_instance(&d, 6) == 8);
	worker_record_done(&r);
	worker_record_done(&back);
	vmdir_close(&d);
}

/* --- a daemon is killed at a step --- */

/* From here on the process dies at its first call of `nr`. */
static void die_at(long nr)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {.len = ARRAY_LEN(code), .filter = code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
		_exit(3);
}

enum step {
	STEP_SAVE,
	STEP_NEXT,
	STEP_DESTROY,
};

/* Runs a step in a process that dies at that system call. True when it did die. */
static bool killed_at(enum step step, long nr)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct vmdir d;
		struct worker_record r = {0};
		uint64_t n;

		if (vmdir_open(root, vm, true, &d, NULL) < 0 || vmdir_load(&d, &r, NULL) < 0)
			_exit(2);
		worker_record_next(&r, r.boot.instance + 1, NOW);
		die_at(nr);
		if (step == STEP_SAVE)
			vmdir_save(&d, &r, NULL);
		else if (step == STEP_NEXT)
			vmdir_next_instance(&d, 0, &n, NULL);
		else
			vmdir_destroy(&d, NULL);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		return WTERMSIG(status) == SIGSYS;
	assert_int_equal(status, 0);
	return false;
}

static void test_killed(void **state)
{
	static const long calls[] = {SYS_openat, SYS_write, SYS_fsync,
#ifdef SYS_renameat
		SYS_renameat,
#endif
		SYS_renameat2, SYS_unlinkat, SYS_close};
	int deaths[3] = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		for (int step = STEP_SAVE; step <= STEP_DESTROY; step++) {
			struct worker_record r = {0};
			struct vmdir d = open_vm(true);
			uint64_t before, seq;
			struct found f;
			bool died;

			seq = next_instance(&d, 0);
			worker_record_next(&r, seq, NOW);
			r.boot.state = WORKER_STOPPED;
			r.boot.ended_at_ms = NOW;
			before = r.boot.instance;
			save(&d, &r);
			put_file(vm, WORKER_UPPER, "disk", 4);
			vmdir_close(&d);
			worker_record_done(&r);

			died = killed_at((enum step)step, calls[i]);
			deaths[step] += died;
			f = recover(NOW + 1);
			/* Old or new, and nothing half-made. */
			assert_int_equal(count_names(root, ".trash-"), 0);
			if (!exists(vm, NULL)) {
				assert_int_equal(step, STEP_DESTROY);
				assert_int_equal(f.n, 0);
			} else {
				assert_int_equal(f.n, 1);
				assert_true(f.boot.instance == before ||
					    (step == STEP_SAVE && f.boot.instance == before + 1));
				assert_true(f.boot.instance == before + 1 ||
					    f.boot.state == WORKER_STOPPED);
				assert_true(exists(WORKER_UPPER, vm));
			}
			d = open_vm(true);
			assert_false(exists("record.json.partial", vm));
			assert_int_equal(count_names(d.fd, "record.json.corrupt"), 0);
			assert_true(next_instance(&d, f.boot.instance) > seq);
			vmdir_close(&d);
		}
	}
	for (int step = STEP_SAVE; step <= STEP_DESTROY; step++)
		assert_true(deaths[step] >= 3);
}

/* What a power cut can leave, made by hand. */
static void test_leftovers(void **state)
{
	struct found f;
	struct vmdir d;

	(void)state;
	leave_running(3, 0, 0);
	put_file(vm, "record.json.partial", "{\"vers", 7);
	put_file(vm, "x.seq.partial", "9", 1);
	put_file(vm, ".upper-1.partial", "9", 1);
	assert_int_equal(mkdirat(root, ".trash-wvm-x", 0700), 0);
	put_file(".trash-wvm-x", "upper.ext4", "x", 1);
	put_file(NULL, ".trash-file", "x", 1);
	put_file(NULL, "stranger", "x", 1);
	assert_int_equal(mkdirat(root, "wvm-00000000000000000000000000000000", 0700), 0);
	assert_int_equal(symlinkat("/etc", root, "wvm-11111111111111111111111111111111"), 0);
	f = recover(NOW + 5);
	assert_int_equal(f.n, 1); /* a folder without a record is none */
	assert_string_equal(f.vm_id, vm);
	assert_int_equal(f.boot.state, WORKER_EXITED);
	assert_true(f.boot.ended_at_ms == NOW + 5 && !f.boot.has_exit_code && !f.boot.has_signal);
	d = open_vm(false);
	assert_int_equal(count_names(d.fd, "record.json.partial"), 0);
	assert_int_equal(count_names(d.fd, "x.seq"), 0);
	assert_int_equal(count_names(d.fd, ".upper"), 0);
	vmdir_close(&d);
	assert_int_equal(count_names(root, ".trash"), 0);
	assert_true(exists("stranger", NULL));
	assert_int_equal(access("/etc/passwd", F_OK), 0);
}

/* --- the start --- */

static void test_recover_dead(void **state) /* W71, W72 */
{
	struct found f;
	struct vmdir d;
	struct worker_record r;

	(void)state;
	leave_running(1, 0, 0);
	f = recover(NOW - 1000); /* a clock that was set back */
	assert_int_equal(f.boot.state, WORKER_EXITED);
	assert_true(f.boot.ended_at_ms == NOW && f.boot.started_at_ms == NOW);
	assert_false(f.boot.has_exit_code || f.boot.has_signal);
	/* It is on disk: a second start changes nothing. */
	f = recover(NOW + 1000);
	assert_true(f.boot.ended_at_ms == NOW);
	d = open_vm(false);
	r = load(&d);
	assert_true(next_instance(&d, r.boot.instance) == 2);
	worker_record_done(&r);
	vmdir_close(&d);
}

static void test_recover_locked(void **state) /* W76 */
{
	struct found f;
	struct vmdir d;
	struct worker_record r;

	(void)state;
	leave_running(1, 0, 0);
	d = open_vm(false);
	put_file(vm, "record.json.partial", "being written", 13);
	f = recover(NOW);
	assert_int_equal(f.n, 0);
	assert_true(exists("record.json.partial", vm));
	r = load(&d);
	assert_int_equal(r.boot.state, WORKER_RUNNING);
	worker_record_done(&r);
	vmdir_close(&d);
}

static void test_recover_garbage(void **state) /* W75 */
{
	struct found f;
	struct vmdir d;

	(void)state;
	leave_running(5, 0, 0);
	put_file(vm, "record.json", "\0\0\0\0", 4);
	f = recover(NOW);
	assert_int_equal(f.n, 0);
	d = open_vm(false);
	assert_int_equal(count_names(d.fd, "record.json.corrupt-"), 1);
	assert_true(next_instance(&d, 0) == 6);
	vmdir_close(&d);
}

/* A process that lives until it is killed. */
static pid_t start_process(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return pid;
}

static void end_process(pid_t pid, int want_signal)
{
	int status = 0;

	if (want_signal != SIGKILL)
		kill(pid, want_signal);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == want_signal);
}

static void test_start_time(void **state)
{
	pid_t pid = start_process();
	uint64_t mine;

	(void)state;
	/* A name with all that confuses a reader of stat. */
	prctl(PR_SET_NAME, "a) R 1 (b) 2");
	mine = process_start_time(getpid());
	assert_true(mine > 0);
	assert_true(process_start_time(pid) >= mine);
	assert_true(process_start_time(pid) < mine + 100 * (uint64_t)sysconf(_SC_CLK_TCK));
	end_process(pid, SIGTERM);
	assert_true(process_start_time(pid) == 0);
	assert_true(process_start_time(0) == 0 && process_start_time(-1) == 0);
}

static void test_stray(void **state)
{
	pid_t pid = start_process();
	struct found f;

	(void)state;
	/* Another process of that pid is left alone. */
	leave_running(1, pid, process_start_time(pid) + 1);
	f = recover(NOW);
	assert_int_equal(f.boot.state, WORKER_EXITED);
	assert_int_equal(f.pid, 0);
	assert_int_equal(kill(pid, 0), 0);
	end_process(pid, SIGTERM);
	/* The one that it was is killed. */
	pid = start_process();
	leave_running(2, pid, process_start_time(pid));
	f = recover(NOW);
	assert_int_equal(f.boot.state, WORKER_EXITED);
	end_process(pid, SIGKILL);
	/* One that is gone is nothing. */
	leave_running(3, pid, 12345);
	f = recover(NOW);
	assert_int_equal(f.boot.state, WORKER_EXITED);
}

/* A pid that was recorded before the host was booted says nothing. */
static void test_stray_of_another_boot(void **state)
{
	pid_t pid = start_process();
	struct vmdir d;
	cleanup_free char *text = NULL;
	char *at;

	(void)state;
	leave_running(1, pid, process_start_time(pid));
	d = open_vm(false);
	assert_int_equal(fd_slurp_at(d.fd, "record.json", 65536, &text, NULL), 0);
	vmdir_close(&d);
	at = strstr(text, "\"host_boot_id\":\"");
	assert_non_null(at);
	at[strlen("\"host_boot_id\":\"")] ^= 1;
	put_file(vm, "record.json", text, strlen(text));
	assert_int_equal(recover(NOW).n, 1);
	assert_int_equal(kill(pid, 0), 0);
	end_process(pid, SIGTERM);
}

static void test_tmpfs(void **state)
{
	char dir[] = "/dev/shm/test_record.XXXXXX";
	struct err e = ERR_INIT;
	int fd = -1;

	(void)state;
	assert_non_null(mkdtemp(dir));
	setenv("III_SANDBOX_STATE_DIR", dir, 1);
	assert_true(vmdir_root(&fd, &e) < 0);
	assert_string_equal(e.code, "S504");
	assert_non_null(strstr(e.text, "tmpfs"));
	setenv("III_SANDBOX_ALLOW_TMPFS", "1", 1);
	assert_int_equal(vmdir_root(&fd, &e), 0);
	unsetenv("III_SANDBOX_ALLOW_TMPFS");
	fd_close(&fd);
	assert_int_equal(path_remove_at(AT_FDCWD, dir), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_id),
		TEST(test_save_load),
		TEST(test_history),
		TEST(test_largest),
		TEST(test_corrupt),
		TEST(test_instances),
		TEST(test_lock),
		TEST(test_lock_too_late),
		TEST(test_lock_race),
		TEST(test_destroy),
		TEST(test_lock_is_given_back),
		TEST(test_destroy_unconfirmed),
		TEST(test_destroy_busy),
		TEST(test_upper),
		TEST(test_full_disk),
		TEST(test_killed),
		TEST(test_leftovers),
		TEST(test_recover_dead),
		TEST(test_recover_locked),
		TEST(test_recover_garbage),
		TEST(test_start_time),
		TEST(test_stray),
		TEST(test_stray_of_another_boot),
		TEST(test_tmpfs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
