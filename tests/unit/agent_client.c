#include "agent_client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"

#define AGENT_FD 3

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* --- starting the agent --- */

/* Beside the tests in the build folder, or what SANDBOX_AGENT names. */
static char *agent_path(void)
{
	const char *given = getenv("SANDBOX_AGENT");
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (given)
		return xstrdup(given);
	assert_true(n > 0);
	self[n] = '\0';
	*strrchr(self, '/') = '\0';
	return xasprintf("%s/../../src/agent/sandbox-agent", self);
}

/* A fresh cgroup v2 folder, or NULL where that is not allowed. */
static char *make_cgroup(void)
{
	static unsigned count;
	char line[4096], at[2048], type[64];
	FILE *f = fopen("/proc/mounts", "re");
	char *path = NULL;

	while (f && !path && fgets(line, sizeof(line), f))
		if (sscanf(line, "%*s %2047s %63s", at, type) == 2 && str_eq(type, "cgroup2"))
			path = xasprintf("%s/sandbox-agent-test-%d-%u", at, (int)getpid(), count++);
	if (f)
		fclose(f);
	if (path && mkdir(path, 0755) < 0) {
		free(path);
		path = NULL;
	}
	return path;
}

static pid_t fork_into_new_pids(bool *ret_own)
{
	pid_t pid = -1;

	if (geteuid() == 0)
		pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, NULL);
	*ret_own = pid >= 0;
	return pid >= 0 ? pid : fork();
}

static void exec_agent(const char *agent, int fd, const char *env_file, const char *cgroup)
{
	const char *argv[8] = {agent, "--serve", "3"};
	int n = 3;

	if (env_file) {
		argv[n++] = "--env";
		argv[n++] = env_file;
	}
	if (cgroup) {
		argv[n++] = "--cgroup";
		argv[n++] = cgroup;
	}
	if (fd == AGENT_FD)
		fd_set_cloexec(fd, false);
	else
		dup2(fd, AGENT_FD);
	execv(agent, (char *const *)argv);
	fprintf(stderr, "cannot start %s: %s\n", agent, strerror(errno));
	_exit(99);
}

/* Pid 1 of the namespace: has the agent as a child, since the agent refuses to be pid 1 of tests.
 * Ends with its exit status; the kernel then ends everything in the namespace. */
static void run_helper(const char *agent, int fd, const char *env_file, const char *cgroup)
{
	int status;
	pid_t child;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	child = fork();
	if (child == 0)
		exec_agent(agent, fd, env_file, cgroup);
	close(fd);
	for (;;) {
		pid_t pid = waitpid(-1, &status, 0);

		if (pid == child)
			_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
		if (pid < 0 && errno == ECHILD)
			_exit(98);
	}
}

/* How many numbers stand in the kernel's list of children; the first of them. */
static size_t children_of(pid_t pid, pid_t *ret_first)
{
	cleanup_free char *file = xasprintf("/proc/%d/task/%d/children", (int)pid, (int)pid);
	cleanup_free char *text = NULL;
	size_t n = 0;
	uint32_t child;

	if (fd_slurp_at(AT_FDCWD, file, 1 << 20, &text, NULL) < 0)
		return 0;
	for (char *word = text, *end; (end = strchr(word, ' ')); word = end + 1) {
		*end = '\0';
		if (str_u32(word, &child) == 0 && n++ == 0 && ret_first)
			*ret_first = (pid_t)child;
	}
	return n;
}

static const struct mux_callbacks client_callbacks;

static void start(struct client *c, const char *env, bool with_cgroup)
{
	cleanup_free char *agent = agent_path();
	char env_file[] = "/tmp/sandbox-agent-env-XXXXXX";
	int pair[2], env_fd = -1;

	*c = (struct client){.fd = -1};
	buf_init(&c->unsent, 16 << 20);
	assert_int_equal(fd_socketpair(pair), 0);
	if (env) {
		env_fd = mkstemp(env_file);
		assert_true(env_fd >= 0);
		assert_int_equal(fd_write_all(env_fd, env, strlen(env)), 0);
		close(env_fd);
	}
	c->cgroup = with_cgroup ? make_cgroup() : NULL;
	c->helper = fork_into_new_pids(&c->own_pids);
	assert_true(c->helper >= 0);
	if (c->helper == 0) {
		close(pair[0]);
		run_helper(agent, pair[1], env ? env_file : NULL, c->cgroup);
	}
	close(pair[1]);
	c->fd = pair[0];
	fd_set_nonblock(c->fd, true);
	c->mux = mux_new(MUX_CLIENT, &client_callbacks, c);
	/* An answered request is the sign that the agent has started. */
	struct call k;
	call_begin(&k, c, "/hello", json_object_new_object());
	call_complete(&k);
	call_wait(&k);
	assert_non_null(k.end);
	call_done(&k);
	children_of(c->helper, &c->agent);
	assert_true(c->agent > 0);
	if (env)
		unlink(env_file);
}

void client_start(struct client *c, const char *env)
{
	start(c, env, true);
}

void client_start_without_cgroup(struct client *c)
{
	start(c, NULL, false);
}

int agent_as_pid1(void)
{
	cleanup_free char *agent = agent_path();
	bool own;
	int status;
	pid_t pid = fork_into_new_pids(&own);

	assert_true(pid >= 0);
	if (pid == 0 && !own)
		_exit(0);
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, STDERR_FILENO);
		exec_agent(agent, null, NULL, NULL);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return own && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void client_reconnect(struct client *c)
{
	uint8_t old[4096];

	/* What is left of the last session. */
	while (read(c->fd, old, sizeof(old)) > 0)
		;
	buf_clear(&c->unsent);
	c->broken = false;
	c->mux = mux_new(MUX_CLIENT, &client_callbacks, c);
}

int client_stop(struct client *c)
{
	int status;

	mux_free(c->mux);
	buf_done(&c->unsent);
	fd_close(&c->fd);
	assert_int_equal(waitpid(c->helper, &status, 0), c->helper);
	if (c->cgroup) {
		cleanup_free char *inner = path_join(c->cgroup, "exec");

		rmdir(inner);
		/* Fails, and with it the test, when a process was left behind. */
		assert_int_equal(rmdir(c->cgroup), 0);
		free(c->cgroup);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool client_has_cgroup(const struct client *c)
{
	cleanup_free char *inner = c->cgroup ? path_join(c->cgroup, "exec") : NULL;

	return inner && access(inner, F_OK) == 0;
}

/* --- the loop --- */

static void send_what_there_is(struct client *c)
{
	for (;;) {
		const uint8_t *data = c->unsent.data;
		ssize_t n = (ssize_t)c->unsent.len, sent;

		if (!n && !c->broken && mux_wants_write(c->mux)) {
			n = mux_pull(c->mux, &data, NULL);
			c->broken |= n < 0;
			if (n > 0)
				assert_int_equal(buf_add(&c->unsent, data, n), 0);
			n = (ssize_t)c->unsent.len;
		}
		if (n <= 0)
			return;
		sent = send(c->fd, c->unsent.data, n, MSG_NOSIGNAL);
		if (sent < 0 && errno == EAGAIN)
			return;
		if (sent < 0) {
			c->broken = true;
			return;
		}
		buf_drop(&c->unsent, sent);
	}
}

static void client_turn(struct client *c, int wait_ms)
{
	static uint8_t piece[65536];
	struct pollfd p = {.fd = c->fd, .events = POLLIN};
	ssize_t n;

	send_what_there_is(c);
	if (c->unsent.len)
		p.events |= POLLOUT;
	if (poll(&p, 1, wait_ms) <= 0)
		return;
	n = read(c->fd, piece, sizeof(piece));
	if (n > 0 && !c->broken)
		c->broken |= mux_feed(c->mux, piece, n, NULL) < 0;
	else if (n == 0 || (n < 0 && errno != EAGAIN))
		c->broken = true;
	send_what_there_is(c);
}

void client_run_until(struct client *c, bool (*done)(void *user), void *user)
{
	int64_t guard = now_ms() + GUARD_MS;

	while (!done(user) && !c->broken) {
		if (now_ms() > guard)
			fail_msg("the agent did not answer within %d ms", GUARD_MS);
		client_turn(c, 20);
	}
}

void client_run_for(struct client *c, int ms)
{
	int64_t until = now_ms() + ms;

	while (now_ms() < until && !c->broken)
		client_turn(c, 10);
}

/* --- calls --- */

static int on_json(void *user, enum guest_rec type, const char *text, size_t len)
{
	struct call *k = user;
	struct err e = ERR_INIT;
	json_object **slot = type == GUEST_REC_HEAD ? &k->head : &k->end;

	if (json_parse_object(text, len, slot, &e) < 0)
		fail_msg("the agent sent bad JSON: %s", e.text);
	return 0;
}

static int on_bytes(void *user, enum guest_rec type, const uint8_t *data, size_t len)
{
	struct call *k = user;
	struct buf *b = type == GUEST_REC_OUT	? &k->out
			: type == GUEST_REC_ERR ? &k->err
						: &k->data;

	return buf_add(b, data, len);
}

static const struct guest_reader_callbacks reader_callbacks = {on_json, on_bytes};

static int on_data(struct mux_stream *s, const uint8_t *data, size_t len, void *user)
{
	struct call *k = user;

	if (guest_reader_feed(&k->reader, data, len) < 0)
		fail_msg("the agent broke the record format");
	if (k->paused)
		k->unconsumed += len;
	else
		mux_stream_consume(s, len);
	return 0;
}

static void on_end(struct mux_stream *s, void *user)
{
	struct call *k = user;

	assert_int_equal(guest_reader_eof(&k->reader), 0);
	/* The answer is there: what was still to be sent does not matter any more. */
	if (!k->complete)
		call_complete(k);
}

static void on_close(struct mux_stream *s, uint32_t h2_error, void *user)
{
	struct call *k = user;

	k->closed = true;
	k->stream = NULL;
	k->h2_error = h2_error;
	k->client->calls--;
}

static ssize_t on_pull(struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof, void *user)
{
	struct call *k = user;
	size_t n = MIN(cap, k->request.len - k->sent);

	if (n)
		memcpy(buf, k->request.data + k->sent, n);
	k->sent += n;
	*ret_eof = k->complete && k->sent == k->request.len;
	return (ssize_t)n;
}

static const struct mux_callbacks client_callbacks = {
	.on_data = on_data,
	.on_end = on_end,
	.on_close = on_close,
	.on_pull = on_pull,
};

void call_begin(struct call *k, struct client *c, const char *path, json_object *head)
{
	*k = (struct call){.client = c};
	buf_init(&k->request, 128 << 20);
	buf_init(&k->out, 128 << 20);
	buf_init(&k->err, 128 << 20);
	buf_init(&k->data, 128 << 20);
	guest_reader_init(&k->reader, GUEST_SIDE_HOST, GUEST_REC_JSON_MAX, &reader_callbacks, k);
	if (head) {
		size_t len;
		const char *text = json_text(head, &len);

		assert_int_equal(guest_rec_add(&k->request, GUEST_REC_HEAD, text, len), 0);
		json_object_put(head);
	}
	k->stream = mux_open(c->mux, path, k);
	assert_non_null(k->stream);
	c->calls++;
}

void call_data(struct call *k, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len) {
		size_t n = MIN(len, (size_t)GUEST_REC_DATA_MAX);

		assert_int_equal(guest_rec_add(&k->request, GUEST_REC_DATA, p, n), 0);
		p += n;
		len -= n;
	}
	if (k->stream)
		mux_stream_resume(k->stream);
}

void call_complete(struct call *k)
{
	k->complete = true;
	if (k->stream)
		mux_stream_resume(k->stream);
}

void call_reset(struct call *k)
{
	if (k->stream)
		mux_stream_reset(k->stream);
}

void call_pause(struct call *k, bool paused)
{
	k->paused = paused;
	if (!paused && k->stream && k->unconsumed)
		mux_stream_consume(k->stream, k->unconsumed);
	if (!paused)
		k->unconsumed = 0;
}

static bool is_closed(void *user)
{
	return ((struct call *)user)->closed;
}

void call_wait(struct call *k)
{
	client_run_until(k->client, is_closed, k);
	assert_true(k->closed);
}

void call_done(struct call *k)
{
	assert_true(k->closed);
	guest_reader_done(&k->reader);
	buf_done(&k->request);
	buf_done(&k->out);
	buf_done(&k->err);
	buf_done(&k->data);
	json_object_put(k->head);
	json_object_put(k->end);
}

json_object *exec_head(const char *const *argv)
{
	json_object *head = json_object_new_object();

	json_add_strv(head, "argv", (char *const *)argv);
	json_add_u64(head, "deadline_ms", 60000);
	return head;
}

void call_shell(struct call *k, struct client *c, const char *script)
{
	const char *const argv[] = {"sh", "-c", script, NULL};

	call_begin(k, c, "/exec", exec_head(argv));
	call_complete(k);
	call_wait(k);
	assert_non_null(k->end);
}

/* --- the answer --- */

const char *call_text(const struct buf *b)
{
	return b->data ? (const char *)b->data : "";
}

int64_t end_int(const struct call *k, const char *name)
{
	struct err e = ERR_INIT;
	int64_t v = 0;

	assert_non_null(k->end);
	if (json_get_i64(k->end, name, JSON_REQUIRED, &v, &e) < 0)
		fail_msg("%s in %s", e.text, json_text(k->end, NULL));
	return v;
}

bool end_bool(const struct call *k, const char *name)
{
	bool v = false;

	assert_non_null(k->end);
	assert_int_equal(json_get_bool(k->end, name, JSON_REQUIRED, &v, NULL), 1);
	return v;
}

const char *end_str(const struct call *k, const char *name)
{
	const char *v = NULL;

	assert_non_null(k->end);
	assert_int_equal(json_get_str(k->end, name, JSON_REQUIRED, &v, NULL), 1);
	return v;
}

static const char *error_member(const struct call *k, const char *name)
{
	json_object *error = NULL;
	const char *v = "";

	assert_non_null(k->end);
	if (json_get_object(k->end, "error", JSON_OPTIONAL, &error, NULL) == 1)
		assert_int_equal(json_get_str(error, name, JSON_REQUIRED, &v, NULL), 1);
	return v;
}

const char *end_error(const struct call *k)
{
	return error_member(k, "code");
}

const char *end_error_text(const struct call *k)
{
	return error_member(k, "message");
}

/* --- from outside --- */

static size_t count_entries(const char *path, bool folders_only)
{
	DIR *dir = opendir(path);
	struct dirent *d;
	size_t n = 0;

	assert_non_null(dir);
	while ((d = readdir(dir)))
		n += d->d_name[0] != '.' && (!folders_only || d->d_type == DT_DIR);
	closedir(dir);
	return n;
}

size_t agent_fd_count(const struct client *c)
{
	cleanup_free char *path = xasprintf("/proc/%d/fd", (int)c->agent);

	return count_entries(path, false);
}

size_t agent_children(const struct client *c)
{
	return children_of(c->agent, NULL);
}

size_t agent_leaves(const struct client *c)
{
	cleanup_free char *path = client_has_cgroup(c) ? path_join(c->cgroup, "exec") : NULL;

	return path ? count_entries(path, true) : 0;
}

static bool is_idle(void *user)
{
	return !agent_children(user) && !agent_leaves(user);
}

void client_run_until_idle(struct client *c)
{
	client_run_until(c, is_idle, c);
	assert_true(is_idle(c));
}

static size_t signal_processes_with(const char *marker, int sig)
{
	DIR *dir = opendir("/proc");
	struct dirent *d;
	size_t n = 0;

	assert_non_null(dir);
	while ((d = readdir(dir))) {
		cleanup_free char *file = xasprintf("%s/cmdline", d->d_name), *text = NULL;
		uint32_t pid;
		size_t len;

		if (str_u32(d->d_name, &pid) < 0 ||
			fd_slurp_at(dirfd(dir), file, 1 << 16, &text, &len) < 0)
			continue;
		if (len && memmem(text, len, marker, strlen(marker)))
			n += kill((pid_t)pid, sig) == 0;
	}
	closedir(dir);
	return n;
}

size_t processes_with(const char *marker)
{
	return signal_processes_with(marker, 0);
}

size_t kill_processes_with(const char *marker)
{
	return signal_processes_with(marker, SIGKILL);
}
