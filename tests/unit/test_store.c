/* store: publication that a kill cannot tear, locks between real processes, eviction. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/image/catalog.h"
#include "host/image/image.h"
#include "host/image/store.h"
#include "host/image/store_priv.h"
#include "wire/oci.h"

#define HANG_GUARD_S 120

static char *root; /* III_SANDBOX_CACHE_DIR of the running test */
static struct store *s;

static int setup(void **state)
{
	char template[] = "/var/tmp/test_store.XXXXXX";
	struct err e = ERR_INIT;

	alarm(HANG_GUARD_S);
	assert_non_null(mkdtemp(template));
	root = xstrdup(template);
	setenv("III_SANDBOX_CACHE_DIR", root, true);
	unsetenv("III_SANDBOX_CACHE_MAX");
	if (store_open(&s, &e) < 0)
		fail_msg("%s", e.text);
	return 0;
}

static int teardown(void **state)
{
	store_step_hook = NULL;
	store_close(s);
	assert_int_equal(path_remove_at(AT_FDCWD, root), 0);
	free(root);
	alarm(0);
	return 0;
}

/* "sha256:dd…d" */
static const char *digest(char digit)
{
	static char text[8][72];
	static unsigned next;
	char *d = text[next++ % 8];

	memcpy(d, "sha256:", 7);
	memset(d + 7, digit, 64);
	d[71] = '\0';
	return d;
}

static void fill_disk(int fd, size_t bytes)
{
	cleanup_free uint8_t *data = xcalloc(1, bytes);

	memset(data, 'd', bytes);
	memcpy(data + 1024, "\xe2\xe1\xf5\xe0", 4);
	assert_int_equal(fd_pwrite_all(fd, data, bytes, 0), 0);
}

static int publish(const char *d, const char *name, size_t bytes, struct err *e)
{
	static char *const env[] = {(char *)"A=b", NULL}, *const none[] = {NULL};
	struct store_meta meta = {
		.source = xstrdup("test"), .arch = xstrdup("amd64"), .created = 1};
	struct store_draft *draft = NULL;
	int r = store_draft_new(s, &draft, e);

	if (r == 0) {
		memcpy(meta.digest, d, 72);
		meta.config = (struct image_config){
			strv_dup(env), strv_dup(none), strv_dup(none), xstrdup("/w"), xstrdup("7")};
		fill_disk(draft->disk_fd, bytes);
		r = store_draft_publish(draft, &meta, e);
	}
	if (r == 0 && name)
		r = store_set_name(s, name, d, e);
	store_draft_free(draft);
	store_meta_done(&meta);
	return r;
}

static void must_publish(const char *d, const char *name, size_t bytes)
{
	struct err e = ERR_INIT;

	if (publish(d, name, bytes, &e) < 0)
		fail_msg("%s", e.text);
}

static bool has(const char *name)
{
	struct image *img;

	if (store_get(s, name, &img, NULL) < 0)
		return false;
	image_close(img);
	return true;
}

static int count_one(const char *name, void *user)
{
	++*(int *)user;
	return 0;
}

static int count(int dirfd)
{
	int n = 0;

	assert_int_equal(store_each(dirfd, count_one, &n), 0);
	return n;
}

/* ---- entries ---- */

static void an_absent_image_is_named_with_what_to_do(void **state)
{
	struct err e = ERR_INIT;
	struct image *img;

	assert_int_equal(image_open("python", &img, &e), -ENOENT);
	assert_string_equal(e.code, "S101");
	assert_non_null(strstr(e.text, "python"));
	assert_non_null(strstr(e.text, "image pull python"));
	assert_int_equal(image_open("no such name", &img, &e), -EINVAL);
	assert_non_null(strstr(e.text, "no such name"));
}

static void a_published_image_is_found_by_all_its_names(void **state)
{
	struct err e = ERR_INIT;
	struct image *img;
	char byte;

	must_publish(digest('a'), catalog_preset_ref("python"), 8192);
	assert_int_equal(store_set_name(s, "word", digest('a'), &e), 0);
	assert_int_equal(image_open("python", &img, &e), 0);
	assert_string_equal(img->ref, "docker.io/iiidev/python:latest");
	assert_string_equal(img->digest, digest('a'));
	assert_int_equal(img->disk_bytes, 8192);
	assert_string_equal(img->config.env[0], "A=b");
	assert_null(img->config.env[1]);
	assert_null(img->config.cmd[0]);
	assert_string_equal(img->config.workdir, "/w");
	assert_string_equal(img->config.user, "7");
	assert_int_equal(pread(img->disk_fd, &byte, 1, 4000), 1);
	assert_int_equal(byte, 'd');
	assert_true(write(img->disk_fd, "x", 1) < 0);
	image_close(img);
	assert_int_equal(image_open("iiidev/python", &img, &e), 0);
	image_close(img);
	assert_int_equal(image_open("word", &img, &e), 0);
	image_close(img);
	assert_int_equal(image_open("word:latest", &img, &e), -ENOENT);
	assert_int_equal(count(s->tmp), 0);
	image_close(NULL);
}

static void a_second_publication_of_a_digest_changes_nothing(void **state)
{
	struct stat before, after;
	cleanup_free char *entry = store_entry_name(digest('a'));

	must_publish(digest('a'), "one", 8192);
	assert_int_equal(fstatat(s->entries, entry, &before, 0), 0);
	must_publish(digest('a'), "two", 8192);
	assert_int_equal(fstatat(s->entries, entry, &after, 0), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	assert_true(has("one") && has("two"));
	assert_int_equal(count(s->tmp), 0);
}

static void a_name_moves(void **state)
{
	struct image *img;

	must_publish(digest('a'), "n", 8192);
	must_publish(digest('b'), "n", 8192);
	assert_int_equal(store_get(s, "n", &img, NULL), 0);
	assert_string_equal(img->digest, digest('b'));
	image_close(img);
}

static void damage(const char *file, const char *how)
{
	cleanup_free char *path = xasprintf(
		"%s/images/entries/%.64s-v%d/%s", root, digest('a') + 7, STORE_DISK_FORMAT, file);

	if (str_eq(how, "remove")) {
		assert_int_equal(unlink(path), 0);
		return;
	}
	assert_int_equal(chmod(path, 0600), 0);
	if (str_eq(how, "cut")) {
		assert_int_equal(truncate(path, 3000), 0);
	} else {
		cleanup_fd int fd = open(path, O_RDWR);

		assert_int_equal(pwrite(fd, "xxxx", 4, str_eq(how, "magic") ? 1024 : 0), 4);
	}
}

static void a_torn_entry_counts_as_absent_and_is_replaced(void **state)
{
	static const char *const ways[][2] = {{STORE_DISK_FILE, "remove"}, {STORE_DISK_FILE, "cut"},
		{STORE_DISK_FILE, "magic"}, {STORE_META_FILE, "remove"},
		{STORE_META_FILE, "start"}};

	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		struct err e = ERR_INIT;
		struct image *img;

		must_publish(digest('a'), "n", 8192);
		assert_true(has("n"));
		damage(ways[i][0], ways[i][1]);
		assert_int_equal(store_get(s, "n", &img, &e), -ENOENT);
		assert_non_null(strstr(e.text, "damaged"));
		assert_int_equal(image_open("n", &img, &e), -ENOENT);
		assert_string_equal(e.code, "S101");
	}
	must_publish(digest('a'), "n", 8192);
	assert_true(has("n"));
	assert_int_equal(count(s->tmp), 0);
}

static void a_damaged_name_is_no_name(void **state)
{
	struct store_name *names;
	struct err e = ERR_INIT;
	cleanup_fd int fd = -1;
	char d[72];
	size_t n;

	must_publish(digest('a'), "n", 8192);
	fd = openat(s->names, "0000.json", O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(fd, "{\"name\":", 8), 8);
	assert_int_equal(store_read_names(s, &names, &n, &e), 0);
	assert_int_equal(n, 1);
	store_names_free(names, n);
	assert_int_equal(store_lookup(s, "m", d, &e), -ENOENT);
	assert_int_equal(store_set_name(s, "bad\xff", digest('a'), &e), -EINVAL);
}

/* ---- crashes ---- */

static enum store_step die_at;

static void die_hook(enum store_step step)
{
	if (step == die_at)
		kill(getpid(), SIGKILL);
}

static void killed_at_any_step_leaves_all_or_nothing(void **state)
{
	for (int step = STORE_STEP_DRAFT; step <= STORE_STEP_DONE; step++) {
		char d[72], name[32];
		int status;
		pid_t pid;

		memcpy(d, digest((char)('1' + step)), 72);
		snprintf(name, sizeof(name), "n%d", step);
		pid = fork();
		if (pid == 0) {
			die_at = (enum store_step)step;
			store_step_hook = die_hook;
			publish(d, name, 8192, NULL);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		assert_int_equal(has(name), step == STORE_STEP_DONE);
		store_sweep(s, false);
		assert_int_equal(count(s->tmp), 0);
		assert_int_equal(has(name), step == STORE_STEP_DONE);
		must_publish(d, name, 8192);
		assert_true(has(name));
	}
}

static void a_sweep_spares_what_is_being_made(void **state)
{
	struct store_draft *draft;
	struct err e = ERR_INIT;

	assert_int_equal(store_draft_new(s, &draft, &e), 0);
	assert_int_equal(mkdirat(s->tmp, "left-over", 0700), 0);
	assert_int_equal(mkdirat(s->tmp, "left-over/more", 0700), 0);
	close(openat(s->tmp, "file", O_CREAT | O_WRONLY, 0600));
	close(openat(s->names, ".tmp-1", O_CREAT | O_WRONLY, 0600));
	store_sweep(s, true);
	assert_int_equal(count(s->tmp), 1);
	assert_int_equal(count(s->names), 0);
	store_draft_free(draft);
	assert_int_equal(count(s->tmp), 0);
}

static void partial_pulls_keep_blobs_for_a_day(void **state)
{
	struct timespec old[] = {{0, UTIME_OMIT}, {time(NULL) - STORE_PARTIAL_KEPT_S - 10, 0}};
	struct store_partial *p;
	struct err e = ERR_INIT;

	assert_int_equal(store_partial_open(s, "key", &p, &e), 0);
	assert_int_equal(mkdirat(p->dirfd, "blobs", 0700), 0);
	assert_int_equal(mkdirat(p->dirfd, STORE_PARTIAL_VOLATILE, 0700), 0);
	store_sweep(s, true); /* held: stays */
	assert_int_equal(count(p->dirfd), 2);
	fd_close(&p->dirfd); /* as a crash would leave it */
	store_partial_close(p, true);
	assert_int_equal(count(s->partial), 1);
	store_sweep(s, false);
	assert_int_equal(store_partial_open(s, "key", &p, &e), 0);
	assert_int_equal(count(p->dirfd), 1);
	store_partial_close(p, true);
	assert_int_equal(count(s->partial), 1);
	assert_int_equal(store_partial_open(s, "key", &p, &e), 0);
	assert_int_equal(futimens(p->dirfd, old), 0);
	store_partial_close(p, true);
	store_sweep(s, false);
	assert_int_equal(count(s->partial), 0);
	assert_int_equal(store_partial_open(s, "key", &p, &e), 0);
	store_partial_close(p, true); /* nothing in it, so nothing is kept */
	assert_int_equal(count(s->partial), 0);
	assert_int_equal(store_partial_open(s, "key", &p, &e), 0);
	assert_int_equal(mkdirat(p->dirfd, "blobs", 0700), 0);
	store_partial_close(p, false);
	assert_int_equal(count(s->partial), 0);
}

/* ---- removal and eviction ---- */

/* A process that has the image open until the pipe is closed; then it reads from its disk. */
struct holder {
	pid_t pid;
	int go;
};

static struct holder hold(const char *name)
{
	int ready[2], go[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	assert_int_equal(pipe2(go, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		struct image *img;

		close(go[1]);
		if (store_get(s, name, &img, NULL) < 0)
			_exit(1);
		(void)!write(ready[1], "r", 1);
		(void)!read(go[0], &byte, 1);
		_exit(pread(img->disk_fd, &byte, 1, 4000) == 1 && byte == 'd' ? 0 : 2);
	}
	close(ready[1]);
	close(go[0]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	return (struct holder){pid, go[1]};
}

static void let_go(struct holder h)
{
	int status;

	close(h.go);
	assert_int_equal(waitpid(h.pid, &status, 0), h.pid);
	assert_int_equal(status, 0);
}

static void an_image_in_use_by_another_process_stays(void **state)
{
	struct store_gc_result res;
	struct err e = ERR_INIT;
	struct store_item *items;
	struct holder h;
	size_t n;

	must_publish(digest('a'), "n", 8192);
	must_publish(digest('b'), "m", 8192);
	h = hold("n");
	assert_int_equal(store_list(s, &items, &n, &e), 0);
	assert_int_equal(n, 2);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(items[i].in_use, str_eq(items[i].names[0], "n"));
	store_list_free(items, n);
	assert_int_equal(store_gc(s, 0, true, &res, &e), 0);
	assert_int_equal(res.entries, 1);
	assert_int_equal(res.in_use_skipped, 1);
	assert_true(res.kept_bytes >= 8192);
	assert_true(has("n"));
	assert_false(has("m"));
	assert_int_equal(store_remove_name(s, "n", false, &e), -EBUSY);
	assert_non_null(strstr(e.text, "in use"));
	assert_int_equal(store_remove_digest(s, digest('a'), false, &e), -EBUSY);
	assert_true(has("n"));
	let_go(h);
	assert_int_equal(store_gc(s, 0, false, &res, &e), 0);
	assert_int_equal(res.entries, 1);
	assert_int_equal(count(s->entries), 0);
	assert_int_equal(count(s->names), 0);
}

static void a_forced_removal_leaves_the_open_disk(void **state)
{
	struct err e = ERR_INIT;
	struct holder h;

	must_publish(digest('a'), "n", 8192);
	h = hold("n");
	assert_int_equal(store_remove_name(s, "n", true, &e), 1);
	assert_false(has("n"));
	assert_int_equal(count(s->entries), 0);
	store_sweep(s, false);
	let_go(h);
	store_sweep(s, false);
	assert_int_equal(count(s->tmp), 0);
}

static void an_entry_goes_with_its_last_name(void **state)
{
	struct err e = ERR_INIT;

	must_publish(digest('a'), "one", 8192);
	must_publish(digest('a'), "two", 8192);
	assert_int_equal(store_remove_name(s, "one", false, &e), 0);
	assert_false(has("one"));
	assert_true(has("two"));
	assert_int_equal(store_remove_name(s, "two", false, &e), 1);
	assert_int_equal(count(s->entries), 0);
	assert_int_equal(store_remove_name(s, "two", false, &e), -ENOENT);
	must_publish(digest('a'), "one", 8192);
	must_publish(digest('a'), "two", 8192);
	assert_int_equal(store_remove_digest(s, digest('a'), false, &e), 0);
	assert_int_equal(count(s->names), 0);
	assert_int_equal(store_remove_digest(s, digest('a'), false, &e), -ENOENT);
}

static void set_used(const char *d, time_t when)
{
	cleanup_free char *entry = store_entry_name(d);
	struct timespec t[] = {{when, 0}, {when, 0}};

	assert_int_equal(utimensat(s->entries, entry, t, 0), 0);
}

static void the_longest_unused_goes_first(void **state)
{
	struct store_gc_result res;
	struct store_item *items;
	struct err e = ERR_INIT;
	size_t n;

	must_publish(digest('a'), "a", 1 << 16);
	must_publish(digest('b'), "b", 1 << 16);
	must_publish(digest('c'), "c", 1 << 16);
	set_used(digest('a'), 1000);
	set_used(digest('b'), 2000);
	set_used(digest('c'), 3000);
	assert_true(has("a")); /* a use: now the youngest */
	assert_int_equal(store_list(s, &items, &n, &e), 0);
	assert_int_equal(n, 3);
	assert_string_equal(items[0].names[0], "a");
	assert_string_equal(items[2].names[0], "b");
	store_list_free(items, n);
	assert_int_equal(store_gc(s, UINT64_MAX, true, &res, &e), 0);
	assert_int_equal(res.entries, 0);
	assert_int_equal(store_gc(s, (2 << 16) + 8192, false, &res, &e), 0);
	assert_int_equal(res.entries, 1);
	assert_false(has("b"));
	assert_int_equal(store_gc(s, (1 << 16) + 8192, false, &res, &e), 0);
	assert_false(has("c"));
	assert_true(has("a"));
	assert_int_equal(count(s->names), 1);
}

static void unnamed_and_damaged_entries_are_collected(void **state)
{
	struct store_gc_result res;
	struct err e = ERR_INIT;

	must_publish(digest('b'), "b", 8192);
	must_publish(digest('c'), NULL, 8192);
	must_publish(digest('a'), "a", 8192);
	damage(STORE_META_FILE, "remove");
	assert_int_equal(store_set_name(s, "dangling", digest('f'), &e), 0);
	/* of a program with another disk format: only the size limit concerns it */
	assert_int_equal(mkdirat(s->entries,
				 "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
				 "-v999",
				 0700),
		0);
	assert_int_equal(store_set_name(s, "other", digest('d'), &e), 0);
	assert_int_equal(store_gc(s, UINT64_MAX, false, &res, &e), 0);
	assert_int_equal(res.entries, 1);
	assert_int_equal(count(s->entries), 3);
	assert_int_equal(count(s->names), 2);
	assert_int_equal(store_gc(s, UINT64_MAX, true, &res, &e), 0);
	assert_int_equal(res.entries, 1);
	assert_int_equal(count(s->entries), 2);
	assert_true(has("b"));
}

static void the_size_limit_is_read_strictly(void **state)
{
	struct err e = ERR_INIT;
	uint64_t max;

	assert_int_equal(store_max_bytes(&max, &e), 0);
	assert_true(max == STORE_BYTES_MAX);
	setenv("III_SANDBOX_CACHE_MAX", "512M", true);
	assert_int_equal(store_max_bytes(&max, &e), 0);
	assert_true(max == 512u << 20);
	setenv("III_SANDBOX_CACHE_MAX", "lots", true);
	assert_int_equal(store_max_bytes(&max, &e), -EINVAL);
	assert_non_null(strstr(e.text, "III_SANDBOX_CACHE_MAX"));
	assert_int_equal(image_fetch("oci:/x", "y", NULL, NULL, NULL, &e), -EINVAL);
}

/* ---- single flight ---- */

static int waiting_pipe = -1;

/* The store polls this while it waits: the first call tells the test that we do. */
static bool tell_waiting(void *user)
{
	if (waiting_pipe >= 0)
		(void)!write(waiting_pipe, "w", 1);
	waiting_pipe = -1;
	return false;
}

static bool always_cancelled(void *user)
{
	return true;
}

/* Processes that join a flight when the gate opens. They are born before the flight is taken: a
 * fork would inherit its lock. */
struct gate {
	int open[2];  /* one byte lets one of them go */
	int ready[2]; /* one byte from each that waits */
};

static void gate_init(struct gate *g)
{
	assert_int_equal(pipe2(g->open, O_CLOEXEC), 0);
	assert_int_equal(pipe2(g->ready, O_CLOEXEC), 0);
}

static void gate_done(struct gate *g)
{
	for (int i = 0; i < 2; i++) {
		close(g->open[i]);
		close(g->ready[i]);
	}
}

/* Exits with what came of it: 0 it became ours, 1 done by another, 2 failed as expected, 9 else. */
static pid_t join(struct gate *g, const char *key)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct store_flight *f = NULL;
		struct err e = ERR_INIT;
		char byte;
		int r;

		(void)!read(g->open[0], &byte, 1);
		waiting_pipe = g->ready[1];
		r = store_flight_start(s, key, tell_waiting, NULL, &f, &e);
		if (r == 0)
			store_flight_land(f, NULL);
		if (r < 0)
			r = str_eq(e.code, "S102") && str_eq(e.text, "the cause") && r == -ENOSPC
				    ? 2
				    : 9;
		_exit(r);
	}
	return pid;
}

static int outcome(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void await_bytes(int fd, int n)
{
	char byte;

	for (int i = 0; i < n; i++)
		assert_int_equal(read(fd, &byte, 1), 1);
}

/* Lets n of them go and waits until they wait. */
static void open_gate(struct gate *g, int n)
{
	for (int i = 0; i < n; i++)
		assert_int_equal(write(g->open[1], "g", 1), 1);
	await_bytes(g->ready[0], n);
}

static void those_who_wait_get_the_outcome(void **state)
{
	struct err cause = ERR_INIT, e = ERR_INIT;
	struct store_flight *f = NULL, *second = NULL;
	struct gate gate;
	pid_t pids[5], other;

	gate_init(&gate);
	err_set(&cause, "S102", ENOSPC, "the cause");
	for (int failing = 0; failing < 2; failing++) {
		for (size_t i = 0; i < ARRAY_LEN(pids); i++)
			pids[i] = join(&gate, "key");
		assert_int_equal(store_flight_start(s, "key", NULL, NULL, &f, &e), 0);
		open_gate(&gate, ARRAY_LEN(pids));
		store_flight_land(f, failing ? &cause : NULL);
		for (size_t i = 0; i < ARRAY_LEN(pids); i++)
			assert_int_equal(outcome(pids[i]), failing ? 2 : 1);
		/* A failure is not remembered: the next one tries. */
		assert_int_equal(store_flight_start(s, "key", NULL, NULL, &f, &e), 0);
		store_flight_leave(f);
	}
	other = join(&gate, "other");
	assert_int_equal(store_flight_start(s, "key", NULL, NULL, &f, &e), 0);
	assert_int_equal(write(gate.open[1], "g", 1), 1);
	assert_int_equal(outcome(other), 0); /* other keys do not wait */
	assert_int_equal(
		store_flight_start(s, "key", always_cancelled, NULL, &second, &e), -ECANCELED);
	assert_null(second);
	store_flight_leave(f);
	gate_done(&gate);
}

static void who_is_killed_or_cancelled_hands_over(void **state)
{
	struct err cancelled = ERR_INIT, e = ERR_INIT;
	struct store_flight *f = NULL;
	struct gate gate;
	pid_t leader, waiter;

	gate_init(&gate);
	leader = fork();
	if (leader == 0) {
		if (store_flight_start(s, "key", NULL, NULL, &f, NULL) == 0)
			(void)!write(gate.ready[1], "l", 1);
		pause();
		_exit(0);
	}
	await_bytes(gate.ready[0], 1);
	waiter = join(&gate, "key");
	open_gate(&gate, 1);
	kill(leader, SIGKILL);
	waitpid(leader, NULL, 0);
	assert_int_equal(outcome(waiter), 0);

	waiter = join(&gate, "key");
	err_set(&cancelled, "", ECANCELED, "cancelled");
	assert_int_equal(store_flight_start(s, "key", NULL, NULL, &f, &e), 0);
	open_gate(&gate, 1);
	store_flight_land(f, &cancelled);
	assert_int_equal(outcome(waiter), 0);
	gate_done(&gate);
}

struct joiner {
	int r;
	struct store_flight *f;
};

static void *join_in_thread(void *user)
{
	struct joiner *j = user;
	struct err e = ERR_INIT;

	j->r = store_flight_start(s, "key", tell_waiting, NULL, &j->f, &e);
	return NULL;
}

static void threads_share_a_flight_too(void **state)
{
	struct store_flight *f = NULL;
	struct joiner j = {0};
	struct err e = ERR_INIT;
	pthread_t thread;
	int ready[2];

	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	assert_int_equal(store_flight_start(s, "key", NULL, NULL, &f, &e), 0);
	waiting_pipe = ready[1];
	assert_int_equal(pthread_create(&thread, NULL, join_in_thread, &j), 0);
	await_bytes(ready[0], 1);
	store_flight_land(f, NULL);
	pthread_join(thread, NULL);
	assert_int_equal(j.r, 1);
	assert_null(j.f);
	close(ready[0]);
	close(ready[1]);
}

static int unlink_lock(const char *name, void *user)
{
	return unlinkat(((struct store *)user)->locks, name, 0);
}

static void a_swept_lock_file_does_not_split_a_flight(void **state)
{
	struct store_flight *f = NULL, *fresh = NULL;
	struct err e = ERR_INIT;
	struct gate gate;
	pid_t waiter;

	gate_init(&gate);
	waiter = join(&gate, "key");
	assert_int_equal(store_flight_start(s, "key", NULL, NULL, &f, &e), 0);
	open_gate(&gate, 1);
	/* The file goes while it is waited for, and a new one with the same name is locked: the
	 * waiter must end up behind the new one. */
	assert_int_equal(store_each(s->locks, unlink_lock, s), 0);
	assert_int_equal(store_flight_start(s, "key", NULL, NULL, &fresh, &e), 0);
	store_flight_leave(f);
	poll(NULL, 0, 200);
	assert_int_equal(waitpid(waiter, NULL, WNOHANG), 0);
	store_flight_land(fresh, NULL);
	assert_int_equal(outcome(waiter), 1);
	gate_done(&gate);
}

/* ---- a full disk ---- */

static int fill_up(const char *path)
{
	cleanup_fd int fd = open(path, O_WRONLY | O_CREAT, 0600);
	char block[4096] = {1};

	while (write(fd, block, sizeof(block)) > 0)
		;
	return errno;
}

static int write_proc(const char *path, const char *text)
{
	cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);

	return fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
}

/* Mounts of our own, in a user namespace where we are not root. */
static int own_mounts(void)
{
	cleanup_free char *users = xasprintf("0 %u 1", getuid()),
			  *groups = xasprintf("0 %u 1", getgid());

	if (unshare(CLONE_NEWNS) == 0)
		return 0;
	if (unshare(CLONE_NEWNS | CLONE_NEWUSER) < 0)
		return -errno;
	if (write_proc("/proc/self/setgroups", "deny") < 0 ||
		write_proc("/proc/self/gid_map", groups) < 0)
		return -EPERM;
	return write_proc("/proc/self/uid_map", users);
}

/* In a process of its own, on a tmpfs that nobody else sees. */
static int publish_on_full_disk(void)
{
	cleanup_free char *filler = path_join(root, "filler");
	struct err e = ERR_INIT;
	struct store_draft *draft;
	struct store_meta meta = {0};

	if (own_mounts() < 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("tmpfs", root, "tmpfs", 0, "size=1m") < 0)
		return 100;
	store_close(s);
	if (store_open(&s, &e) < 0)
		return 1;
	if (store_check_space(s, 64 << 20, "the download", &e) != -ENOSPC ||
		!strstr(e.text, "64 MiB"))
		return 2;
	if (store_draft_new(s, &draft, &e) < 0)
		return 3;
	fill_disk(draft->disk_fd, 8192);
	if (fill_up(filler) != ENOSPC)
		return 4;
	memcpy(meta.digest, digest('a'), 72);
	meta.source = meta.arch = meta.config.workdir = meta.config.user = (char *)"";
	if (store_draft_publish(draft, &meta, &e) != -ENOSPC || !strstr(e.text, "make room"))
		return 5;
	store_draft_free(draft);
	if (count(s->tmp) || count(s->entries) || has("n"))
		return 6;
	if (unlink(filler) < 0 || publish(digest('a'), "n", 8192, &e) < 0 || !has("n"))
		return 7;
	store_close(s);
	return 0;
}

static void a_full_disk_leaves_nothing(void **state)
{
	pid_t pid;
	int r;

	pid = fork();
	if (pid == 0)
		_exit(publish_on_full_disk());
	r = outcome(pid);
	if (r == 100) /* neither root nor user namespaces */
		skip();
	assert_int_equal(r, 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_absent_image_is_named_with_what_to_do),
		TEST(a_published_image_is_found_by_all_its_names),
		TEST(a_second_publication_of_a_digest_changes_nothing),
		TEST(a_name_moves),
		TEST(a_torn_entry_counts_as_absent_and_is_replaced),
		TEST(a_damaged_name_is_no_name),
		TEST(killed_at_any_step_leaves_all_or_nothing),
		TEST(a_sweep_spares_what_is_being_made),
		TEST(partial_pulls_keep_blobs_for_a_day),
		TEST(an_image_in_use_by_another_process_stays),
		TEST(a_forced_removal_leaves_the_open_disk),
		TEST(an_entry_goes_with_its_last_name),
		TEST(the_longest_unused_goes_first),
		TEST(unnamed_and_damaged_entries_are_collected),
		TEST(the_size_limit_is_read_strictly),
		TEST(those_who_wait_get_the_outcome),
		TEST(who_is_killed_or_cancelled_hands_over),
		TEST(threads_share_a_flight_too),
		TEST(a_swept_lock_file_does_not_split_a_flight),
		TEST(a_full_disk_leaves_nothing),
	};

	return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
