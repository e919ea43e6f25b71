/* The file operations all the way: the host's client, a socketpair, the real agent with its child a
 * call. What the operations do is tested in test_fs_ops and test_fs_text; here it is how they run.
 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/guest/fs_ops.h"
#include "host/guest/guest.h"
#include "wire/json.h"

#define GUARD_MS 240000 /* a hang ends the test; nothing is measured with it */

extern char **environ;

struct world {
	uv_loop_t loop;
	uv_timer_t guard, tick;
	struct guest *g;
	pid_t agent;
	size_t lost;
	char *dir; /* on disk */
};

static void on_lost(struct guest *g, const struct err *why, void *user)
{
	struct world *w = user;

	w->lost++;
}

static const struct guest_callbacks guest_callbacks = {on_lost};

static void on_guard(uv_timer_t *t)
{
	fail_msg("nothing happens any more");
}

/* So that conditions which no event announces are looked at. */
static void on_tick(uv_timer_t *t)
{
}

static pid_t start_agent(int fd)
{
	char self[4096], serve[] = "--serve", three[] = "3";
	char *argv[] = {NULL, serve, three, NULL};
	posix_spawn_file_actions_t fa;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	cleanup_free char *path = NULL;
	pid_t pid = -1;

	assert_true(n > 0);
	self[n] = '\0';
	*strrchr(self, '/') = '\0';
	path = xasprintf("%s/../../src/agent/sandbox-agent", self);
	argv[0] = path;
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, fd, 3);
	assert_int_equal(posix_spawn(&pid, path, &fa, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&fa);
	return pid;
}

static struct world *world_new(void)
{
	struct world *w = xcalloc(1, sizeof(*w));
	const char *tmp = getenv("TMPDIR");
	int fds[2];

	w->dir = xasprintf("%s/agent-fs.XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(w->dir));
	assert_int_equal(fd_socketpair(fds), 0);
	w->agent = start_agent(fds[1]);
	close(fds[1]);
	fd_set_nonblock(fds[0], true);
	uv_loop_init(&w->loop);
	uv_timer_init(&w->loop, &w->guard);
	uv_timer_start(&w->guard, on_guard, GUARD_MS, 0);
	uv_timer_init(&w->loop, &w->tick);
	uv_timer_start(&w->tick, on_tick, 10, 10);
	assert_int_equal(guest_new(&w->loop, fds[0], &guest_callbacks, w, &w->g, NULL), 0);
	return w;
}

static void world_free(struct world *w)
{
	int status;

	assert_int_equal(w->lost, 0);
	guest_free(w->g);
	uv_close((uv_handle_t *)&w->guard, NULL);
	uv_close((uv_handle_t *)&w->tick, NULL);
	while (uv_run(&w->loop, UV_RUN_DEFAULT))
		;
	assert_int_equal(uv_loop_close(&w->loop), 0);
	/* The agent ends by itself, with nothing of its memory lost. */
	assert_int_equal(waitpid(w->agent, &status, 0), w->agent);
	assert_int_equal(status, 0);
	assert_int_equal(path_remove_at(AT_FDCWD, w->dir), 0);
	free(w->dir);
	free(w);
}

#define RUN_UNTIL(w, condition)                                                                    \
	do {                                                                                       \
		while (!(condition))                                                               \
			uv_run(&(w)->loop, UV_RUN_ONCE);                                           \
	} while (0)

struct answer {
	size_t done;
	struct err why;
	char *text;
};

static void on_answer(json_object *reply, const struct err *why, void *user)
{
	struct answer *a = user;

	a->done++;
	if (why)
		a->why = *why;
	else
		a->text = xstrdup(json_text(reply, NULL));
}

static struct guest_call *begin(struct world *w, enum fs_op op, const char *text, struct answer *a)
{
	struct guest_call *c = NULL;
	struct err e = ERR_INIT;
	json_object *o = NULL;
	struct buf b;

	buf_init(&b, 1u << 20);
	for (; *text; text++) {
		if (*text == '@')
			buf_add_str(&b, w->dir);
		else
			buf_add(&b, *text == '\'' ? "\"" : text, 1);
	}
	if (json_parse_object((char *)b.data, b.len, &o, &e) < 0 ||
		guest_fs_start(w->g, op, o, on_answer, a, &c, &e) < 0)
		fail_msg("%s", e.text);
	buf_done(&b);
	return c;
}

/* The reply, or "CODE text". The caller frees it. */
static char *ask(struct world *w, enum fs_op op, const char *text)
{
	struct answer a = {0};

	begin(w, op, text, &a);
	RUN_UNTIL(w, a.done);
	return a.text ? a.text : xasprintf("%s %s", a.why.code, a.why.text);
}

static void says(struct world *w, enum fs_op op, const char *text, const char *part)
{
	cleanup_free char *got = ask(w, op, text);

	if (!strstr(got, part))
		fail_msg("%s: %.500s instead of %s", text, got, part);
}

static void put(struct world *w, const char *name, const char *line, size_t times)
{
	cleanup_free char *path = path_join(w->dir, name);
	cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	struct buf b;

	buf_init(&b, 256u << 20);
	while (times--)
		buf_add_str(&b, line);
	assert_int_equal(fd_write_all(fd, b.data, b.len), 0);
	buf_done(&b);
}

static size_t children_of(pid_t pid, pid_t *ret_first)
{
	cleanup_free char *path = xasprintf("/proc/%d/task/%d/children", pid, pid), *text = NULL;
	size_t n = 0;

	if (fd_slurp_at(AT_FDCWD, path, 65536, &text, NULL) < 0)
		return 0;
	for (char *p = text; *p; p++)
		n += *p == ' ';
	if (n && ret_first) {
		uint32_t first;

		*strchr(text, ' ') = '\0';
		assert_int_equal(str_u32(text, &first), 0);
		*ret_first = (pid_t)first;
	}
	return n;
}

/* --- */

static void every_operation_goes_round(void **state)
{
	struct world *w = world_new();

	says(w, FS_OP_MKDIR, "{'path':'@/a/b','parents':true,'mode':'0700'}", "{\"created\":true}");
	says(w, FS_OP_MKDIR, "{'path':'@/x/b'}", "S211 parent not found: ");
	put(w, "a/b/f", "foo\nbar\n", 1);
	says(w, FS_OP_STAT, "{'path':'@/a/b/f'}", "\"size\":8");
	says(w, FS_OP_LS, "{'path':'@/a'}", "\"mode\":\"0700\"");
	says(w, FS_OP_CHMOD, "{'path':'@/a','mode':'0711','recursive':true}", "{\"updated\":3}");
	says(w, FS_OP_GREP, "{'path':'@','pattern':'^b'}", "\"content\":\"bar\",\"line\":2");
	says(w, FS_OP_GREP, "{'path':'@','pattern':'('}", "S217 pattern does not compile");
	says(w, FS_OP_SED, "{'path':'@','pattern':'o','replacement':'0'}",
		"\"total_replacements\":2}");
	says(w, FS_OP_GREP, "{'path':'@','pattern':'f00'}", "\"line\":1");
	says(w, FS_OP_MV, "{'src':'@/a/b/f','dst':'@/g'}", "{\"moved\":true}");
	says(w, FS_OP_RM, "{'path':'@/a'}", "S214");
	says(w, FS_OP_RM, "{'path':'@/a','recursive':true}", "{\"removed\":true}");
	says(w, FS_OP_STAT, "{'path':'@/a'}", "S211");
	says(w, FS_OP_RM, "{'path':'/','recursive':true}", "S210");
	world_free(w);
}

static void modes_do_not_depend_on_the_agents_umask(void **state)
{
	struct world *w = world_new();

	says(w, FS_OP_MKDIR, "{'path':'@/d','mode':'0777'}", "{\"created\":true}");
	says(w, FS_OP_STAT, "{'path':'@/d'}", "\"mode\":\"0777\"");
	world_free(w);
}

static void many_at_once(void **state)
{
	struct world *w = world_new();
	struct answer a[200] = {0};

	put(w, "f", "some line of text that does not match\n", 20000);
	for (size_t i = 0; i < ARRAY_LEN(a); i++)
		begin(w, i % 2 ? FS_OP_GREP : FS_OP_STAT,
			i % 2 ? "{'path':'@','pattern':'match$'}" : "{'path':'@/f'}", &a[i]);
	for (size_t i = 0; i < ARRAY_LEN(a); i++) {
		RUN_UNTIL(w, a[i].done);
		assert_non_null(a[i].text);
		free(a[i].text);
	}
	RUN_UNTIL(w, children_of(w->agent, NULL) == 0);
	world_free(w);
}

static void on_hello(const struct guest_hello *h, const struct err *why, void *user)
{
	size_t *rss_kib = user;

	assert_null(why);
	*rss_kib = h->rss_kib;
}

/* A pattern that RE2 needs long for, on a file that is long. */
static void put_slow(struct world *w)
{
	put(w, "slow", "ababababababababababababababababababababababababababababababab\n", 2000000);
}
#define SLOW_GREP                                                                                  \
	"{'path':'@/slow','pattern':'\\\\b(?:(a|b)*c|(b|a)*\\\\B)\\\\z(?:x)','max_matches':0}"

static void a_long_operation_delays_no_other(void **state)
{
	struct world *w = world_new();
	struct answer slow = {0};
	struct guest_call *c;
	size_t rss_kib = 0;

	put_slow(w);
	c = begin(w, FS_OP_GREP, SLOW_GREP, &slow);
	RUN_UNTIL(w, children_of(w->agent, NULL) == 1);
	assert_int_equal(guest_hello(w->g, on_hello, &rss_kib, NULL), 0);
	RUN_UNTIL(w, rss_kib);
	says(w, FS_OP_STAT, "{'path':'@/slow'}", "\"size\":");
	assert_int_equal(slow.done, 0);
	/* Given up: its process goes. */
	guest_call_cancel(c);
	RUN_UNTIL(w, children_of(w->agent, NULL) == 0);
	assert_int_equal(slow.done, 0);
	world_free(w);
}

static void a_killed_child_fails_its_call_alone(void **state)
{
	struct world *w = world_new();
	struct answer slow = {0};
	pid_t child = 0;

	put_slow(w);
	begin(w, FS_OP_GREP, SLOW_GREP, &slow);
	RUN_UNTIL(w, children_of(w->agent, &child) == 1);
	assert_int_equal(kill(child, SIGKILL), 0);
	RUN_UNTIL(w, slow.done);
	assert_string_equal(slow.why.code, "S216");
	assert_non_null(strstr(slow.why.text, "signal 9"));
	says(w, FS_OP_STAT, "{'path':'@/slow'}", "\"size\":");
	world_free(w);
}

static size_t count_entries(const char *path)
{
	DIR *d = opendir(path);
	size_t n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

/* A move across file systems that is given up leaves the source, and no copy. */
static void a_cancelled_move_cleans_up(void **state)
{
	struct world *w = world_new();
	struct answer a = {0};
	char shm[] = "/dev/shm/agent-fs.XXXXXX";
	cleanup_free char *text = NULL, *src = path_join(w->dir, "tree");
	struct guest_call *c;
	struct stat st, there;

	assert_non_null(mkdtemp(shm));
	assert_int_equal(stat(shm, &there) | stat(w->dir, &st), 0);
	assert_int_equal(mkdir(src, 0755), 0);
	for (int i = 0; i < 200; i++) {
		cleanup_free char *name = xasprintf("tree/%d", i);

		put(w, name, "0123456789abcde\n", 65536);
	}
	text = xasprintf("{'src':'@/tree','dst':'%s/tree'}", shm);
	c = begin(w, FS_OP_MV, text, &a);
	RUN_UNTIL(w, count_entries(shm) || a.done);
	if (st.st_dev != there.st_dev)
		assert_int_equal(a.done, 0);
	if (!a.done) {
		guest_call_cancel(c);
		RUN_UNTIL(w, children_of(w->agent, NULL) == 0);
		/* Either it was too late, or nothing has happened. */
		if (count_entries(shm)) {
			cleanup_free char *moved = path_join(shm, "tree");

			assert_int_equal(count_entries(moved), 200);
			assert_int_equal(count_entries(w->dir), 0);
		} else {
			assert_int_equal(count_entries(src), 200);
		}
	}
	free(a.text);
	assert_int_equal(path_remove_at(AT_FDCWD, shm), 0);
	world_free(w);
}

/* A reply of many MiB is never in the agent's memory. */
static void large_replies_do_not_stay(void **state)
{
	struct world *w = world_new();
	cleanup_fd int fd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_free char *reply = NULL;
	size_t before = 0, after = 0;

	for (int i = 0; i < 40000; i++) {
		char name[251];

		snprintf(name, sizeof(name), "%0250d", i);
		assert_int_equal(symlinkat("x", fd, name), 0);
	}
	assert_int_equal(guest_hello(w->g, on_hello, &before, NULL), 0);
	RUN_UNTIL(w, before);
	reply = ask(w, FS_OP_LS, "{'path':'@'}");
	assert_true(strlen(reply) > (12u << 20));
	assert_true(str_starts(reply, "{\"entries\":[{"));
	assert_int_equal(guest_hello(w->g, on_hello, &after, NULL), 0);
	RUN_UNTIL(w, after);
	assert_true(after < before + 4096);
	world_free(w);
}

static void unknown_and_odd_requests_are_answered(void **state)
{
	struct world *w = world_new();

	says(w, FS_OP_LS, "{}", "S210 ");
	says(w, FS_OP_LS, "{'path':1}", "S210 ");
	says(w, FS_OP_GREP, "{'path':'/','pattern':7}", "S210 ");
	says(w, FS_OP_CHMOD, "{'path':'/tmp','mode':'0644','uid':-1}", "S210 ");
	says(w, FS_OP_SED, "{'pattern':'a','replacement':'b'}", "S210 ");
	says(w, FS_OP_SED, "{'files':['@/nope'],'pattern':'a','replacement':'b'}",
		"\"success\":false");
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_operation_goes_round),
		cmocka_unit_test(modes_do_not_depend_on_the_agents_umask),
		cmocka_unit_test(many_at_once),
		cmocka_unit_test(a_long_operation_delays_no_other),
		cmocka_unit_test(a_killed_child_fails_its_call_alone),
		cmocka_unit_test(a_cancelled_move_cleans_up),
		cmocka_unit_test(large_replies_do_not_stay),
		cmocka_unit_test(unknown_and_odd_requests_are_answered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
