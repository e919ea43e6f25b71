/* vm_client - one VM, many operations, through the host's real code: for tests and benchmarks.
 *
 *   vm_client --image NAME [--vmm krun|qemu|auto] [--memory MIB] [--cpus N] [--network PORTS]
 *             < OPS > REPLIES
 *
 * PORTS are ports of the host that the guest may reach, between commas; "" is none.
 *
 * Reads JSON objects, one a line, until the end of its input; boots one sandbox; carries the
 * operations out one after another; prints one JSON object for each. The first line printed is
 * about the boot. A VM that is lost ends it with {"op":"lost",…} and status 3.
 *
 *   {"op":"exec","argv":[…],"env":[…],"workdir":"/","deadline_ms":N,"cap":N,"stdin_bytes":N}
 *       cap: bytes of each output (default 1 MiB); stdin_bytes: so many pattern bytes (default 0);
 *       or "stdin_file":PATH
 *   {"op":"storm","argv":[…],"count":N,"parallel":N}     short execs, exit 0 expected of each
 *   {"op":"cancel","argv":[…]}                           given up at its first output
 *   {"op":"write","path":P,"bytes":N,"mode":N}           pattern bytes
 *   {"op":"read","path":P}                               compared with the pattern
 *   {"op":"hello"}    {"op":"self"}                      the agent's facts; our own
 *   {"op":"net"}                                         ms since payload went over the network
 *
 * Times are in microseconds of the host's monotonic clock.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/guest/guest.h"
#include "host/image/image.h"
#include "host/sandbox/sandbox.h"
#include "host/vm/backend.h"
#include "host/vm/boot.h"
#include "host/vm/vm.h"
#include "wire/json.h"

#define OPS_MAX	     (16u << 20)
#define KEPT_MAX     (4u << 20) /* of an output, for the reply */
#define STORM_MAX    100000u
#define PARALLEL_MAX 64u
#define DEADLINE_MS  120000

struct flight {
	struct client *client;
	struct guest_call *call;
	uint64_t started_us;
};

struct client {
	uv_loop_t loop;
	struct sandbox *sandbox;
	uint64_t boot_started_us;
	char *ops, *next; /* lines not carried out yet */
	json_object *op;  /* the one under way */
	uint64_t op_started_us;
	bool stopping, lost;

	/* exec, write, read, cancel */
	struct guest_call *call;
	struct buf out, err;
	uint64_t out_bytes, err_bytes;
	uint64_t to_send, sent; /* of stdin or of a file: the pattern, or … */
	char *stdin_file;	/* … these bytes */
	uint64_t received;	/* read */
	bool mismatch;
	struct guest_read_head head;

	/* storm */
	char **argv;
	uint64_t count, begun, ended, failed;
	uint32_t *times_us;
	char *first_failure;
	struct flight flights[PARALLEL_MAX];
};

static void next_op(struct client *c);

static uint64_t now_us(void)
{
	return uv_hrtime() / 1000;
}

/* The pattern repeats after a prime number of bytes, so a piece that is lost, doubled or out of
 * place by any power of two shows. The table is longer by one piece, so that each piece is
 * contiguous. */
#define PATTERN_PERIOD 1048573u
#define PATTERN_PIECE  (256u << 10)

static uint8_t pattern[PATTERN_PERIOD + PATTERN_PIECE];

static void pattern_init(void)
{
	for (size_t i = 0; i < sizeof(pattern); i++)
		pattern[i] = (uint8_t)((i % PATTERN_PERIOD * 0x9e3779b97f4a7c15ull) >> 56);
}

static const uint8_t *pattern_at(uint64_t offset)
{
	return pattern + offset % PATTERN_PERIOD;
}

static void die(const char *what, const struct err *e)
{
	fprintf(stderr, "vm_client: %s: %s\n", what, e->text);
	exit(2);
}

/* --- replies --- */

static json_object *reply_new(struct client *c, const char *op)
{
	json_object *o = json_object_new_object();

	json_add_str(o, "op", op);
	if (c->op_started_us)
		json_add_u64(o, "us", now_us() - c->op_started_us);
	return o;
}

static void reply_error(json_object *o, const struct err *why)
{
	json_object *e;

	if (!why)
		return;
	e = json_object_new_object();
	json_add_str(e, "code", why->code);
	json_add_u64(e, "errno", (uint64_t)why->no);
	json_add_str(e, "message", why->text);
	json_object_object_add(o, "error", e);
}

static void reply_send(json_object *o)
{
	size_t len;
	const char *text = json_text(o, &len);

	fwrite(text, 1, len, stdout);
	putchar('\n');
	fflush(stdout);
	json_object_put(o);
}

/* `why` is how the operation failed, or NULL. When it is the VM that is gone, its end follows. */
static void finish_op(struct client *c, json_object *reply, const struct err *why)
{
	reply_error(reply, why);
	reply_send(reply);
	c->call = NULL;
	free(STEAL(c->stdin_file));
	if (why && (str_eq(why->code, "S300") || why->no == ECONNRESET))
		c->lost = true;
	else
		next_op(c);
}

/* --- exec and cancel --- */

static void keep(struct buf *b, const uint8_t *data, size_t len)
{
	size_t room = b->max - b->len;

	buf_add(b, data, MIN(room, len));
}

static void on_output(
	struct guest_call *call, bool is_stderr, const uint8_t *data, size_t len, void *user)
{
	struct client *c = user;
	const char *op;

	if (is_stderr)
		c->err_bytes += len;
	else
		c->out_bytes += len;
	keep(is_stderr ? &c->err : &c->out, data, len);
	if (json_get_str(c->op, "op", JSON_REQUIRED, &op, NULL) == 1 && str_eq(op, "cancel")) {
		guest_call_cancel(call);
		finish_op(c, reply_new(c, "cancel"), NULL);
	}
}

static void push(struct client *c, size_t (*feed)(struct guest_call *, const void *, size_t),
	void (*end)(struct guest_call *))
{
	while (c->sent < c->to_send) {
		size_t len = MIN(PATTERN_PIECE, c->to_send - c->sent);
		const void *piece = c->stdin_file ? (const uint8_t *)c->stdin_file + c->sent
						  : pattern_at(c->sent);
		size_t n = feed(c->call, piece, len);

		c->sent += n;
		if (n < len)
			return;
	}
	end(c->call);
}

static void on_stdin_ready(struct guest_call *call, void *user)
{
	struct client *c = user;

	if (c->sent < c->to_send)
		push(c, guest_exec_stdin, guest_exec_stdin_end);
}

static void on_exec_done(struct guest_call *call, const struct guest_exec_result *res,
	const struct err *why, void *user)
{
	struct client *c = user;
	json_object *o = reply_new(c, "exec");

	if (res) {
		json_add_i64(o, "exit_code", res->exit_code);
		json_add_i64(o, "signal", res->signal);
		json_add_bool(o, "timed_out", res->timed_out);
		json_add_u64(o, "stdout_dropped", res->stdout_dropped);
		json_add_u64(o, "stderr_dropped", res->stderr_dropped);
		json_add_str(o, "start_error", res->start_error);
	}
	json_add_u64(o, "stdout_bytes", c->out_bytes);
	json_add_u64(o, "stderr_bytes", c->err_bytes);
	json_add_strn(o, "stdout", c->out.data, c->out.len);
	json_add_strn(o, "stderr", c->err.data, c->err.len);
	finish_op(c, o, res ? NULL : why);
}

static const struct guest_exec_callbacks exec_cb = {
	.on_output = on_output,
	.on_stdin_ready = on_stdin_ready,
	.on_done = on_exec_done,
};

static int start_exec(struct client *c, struct err *e)
{
	char **argv = NULL, **env = NULL;
	const char *path = NULL;
	size_t len;
	struct guest_exec_req req = {
		.deadline_ms = DEADLINE_MS, .stdout_cap = GUEST_EXEC_CAP_DEFAULT};
	int r;

	c->to_send = 0;
	if ((r = json_get_strv(c->op, "argv", JSON_REQUIRED, &argv, e)) < 0 ||
		(r = json_get_strv(c->op, "env", JSON_OPTIONAL, &env, e)) < 0 ||
		(r = json_get_str(c->op, "workdir", JSON_OPTIONAL, &req.workdir, e)) < 0 ||
		(r = json_get_u64(c->op, "deadline_ms", JSON_OPTIONAL, &req.deadline_ms, e)) < 0 ||
		(r = json_get_u64(c->op, "cap", JSON_OPTIONAL, &req.stdout_cap, e)) < 0 ||
		(r = json_get_u64(c->op, "stdin_bytes", JSON_OPTIONAL, &c->to_send, e)) < 0 ||
		(r = json_get_str(c->op, "stdin_file", JSON_OPTIONAL, &path, e)) < 0)
		goto out;
	if (path) {
		r = fd_slurp_at(AT_FDCWD, path, OPS_MAX, &c->stdin_file, &len);
		if (r < 0) {
			r = err_set(e, "", -r, "%s: %s", path, err_str(r));
			goto out;
		}
		c->to_send = len;
	}
	req.argv = argv;
	req.env = env;
	req.stderr_cap = req.stdout_cap;
	c->out_bytes = c->err_bytes = c->sent = 0;
	buf_clear(&c->out);
	buf_clear(&c->err);
	r = guest_exec(sandbox_guest(c->sandbox), &req, &exec_cb, c, &c->call, e);
	if (r == 0)
		push(c, guest_exec_stdin, guest_exec_stdin_end);
out:
	strv_free(argv);
	strv_free(env);
	return r;
}

/* --- storm --- */

static int compare_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void storm_reply(struct client *c)
{
	json_object *o = reply_new(c, "storm");

	json_add_u64(o, "ok", c->ended - c->failed);
	json_add_u64(o, "failed", c->failed);
	if (c->first_failure)
		json_add_str(o, "first_failure", c->first_failure);
	qsort(c->times_us, c->ended, sizeof(*c->times_us), compare_u32);
	json_add_u64(o, "min_us", c->times_us[0]);
	json_add_u64(o, "p50_us", c->times_us[c->ended / 2]);
	json_add_u64(o, "p99_us", c->times_us[c->ended * 99 / 100]);
	free(STEAL(c->times_us));
	free(STEAL(c->first_failure));
	strv_free(STEAL(c->argv));
	finish_op(c, o, NULL);
}

static void storm_failed(struct client *c, char *what)
{
	c->failed++;
	if (c->first_failure)
		free(what);
	else
		c->first_failure = what;
}

static int storm_launch(struct client *c, struct flight *f, struct err *e);

static void on_storm_done(struct guest_call *call, const struct guest_exec_result *res,
	const struct err *why, void *user)
{
	struct flight *f = user;
	struct client *c = f->client;
	struct err e = ERR_INIT;

	f->call = NULL;
	c->times_us[c->ended++] = (uint32_t)(now_us() - f->started_us);
	if (!res)
		storm_failed(c, xstrdup(why->text));
	else if (res->exit_code != 0)
		storm_failed(c, xasprintf("exit code %d %s", res->exit_code, res->start_error));
	if (c->ended == c->count)
		storm_reply(c);
	else if (why && str_eq(why->code, "S300"))
		c->lost = true;
	else if (c->begun < c->count && storm_launch(c, f, &e) < 0)
		die("storm", &e);
}

static void on_storm_output(
	struct guest_call *call, bool is_stderr, const uint8_t *data, size_t len, void *user)
{
}

static int storm_launch(struct client *c, struct flight *f, struct err *e)
{
	static const struct guest_exec_callbacks cb = {
		.on_output = on_storm_output,
		.on_done = on_storm_done,
	};
	struct guest_exec_req req = {.argv = c->argv,
		.deadline_ms = DEADLINE_MS,
		.stdout_cap = GUEST_EXEC_CAP_DEFAULT,
		.stderr_cap = GUEST_EXEC_CAP_DEFAULT};
	int r;

	f->client = c;
	f->started_us = now_us();
	r = guest_exec(sandbox_guest(c->sandbox), &req, &cb, f, &f->call, e);
	if (r < 0)
		return r;
	c->begun++;
	guest_exec_stdin_end(f->call);
	return 0;
}

static int start_storm(struct client *c, struct err *e)
{
	uint64_t parallel = 1;
	int r;

	c->count = 0;
	if ((r = json_get_strv(c->op, "argv", JSON_REQUIRED, &c->argv, e)) < 0 ||
		(r = json_get_u64(c->op, "count", JSON_REQUIRED, &c->count, e)) < 0 ||
		(r = json_get_u64(c->op, "parallel", JSON_OPTIONAL, &parallel, e)) < 0)
		return r;
	if (!c->count || c->count > STORM_MAX || !parallel || parallel > PARALLEL_MAX)
		return err_set(e, "", ERANGE, "count or parallel is out of range");
	c->begun = c->ended = c->failed = 0;
	c->times_us = xcalloc(c->count, sizeof(*c->times_us));
	for (uint64_t i = 0; i < MIN(parallel, c->count); i++) {
		r = storm_launch(c, &c->flights[i], e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* --- files, hello, self --- */

static void on_write_ready(struct guest_call *call, void *user)
{
	struct client *c = user;

	if (c->sent < c->to_send)
		push(c, guest_write_data, guest_write_end);
}

static void on_write_done(
	struct guest_call *call, uint64_t bytes_written, const struct err *why, void *user)
{
	struct client *c = user;
	json_object *o = reply_new(c, "write");

	json_add_u64(o, "bytes_written", bytes_written);
	finish_op(c, o, why);
}

static int start_write(struct client *c, struct err *e)
{
	static const struct guest_write_callbacks cb = {
		.on_ready = on_write_ready,
		.on_done = on_write_done,
	};
	struct guest_write_req req = {.mode = 0644, .parents = true};
	int r;

	c->to_send = c->sent = 0;
	if ((r = json_get_str(c->op, "path", JSON_REQUIRED, &req.path, e)) < 0 ||
		(r = json_get_u64(c->op, "bytes", JSON_REQUIRED, &c->to_send, e)) < 0 ||
		(r = json_get_u32(c->op, "mode", JSON_OPTIONAL, &req.mode, e)) < 0)
		return r;
	r = guest_write(sandbox_guest(c->sandbox), &req, &cb, c, &c->call, e);
	if (r == 0)
		push(c, guest_write_data, guest_write_end);
	return r;
}

static void on_read_head(struct guest_call *call, const struct guest_read_head *h, void *user)
{
	((struct client *)user)->head = *h;
}

static void on_read_data(struct guest_call *call, const uint8_t *data, size_t len, void *user)
{
	struct client *c = user;

	for (size_t i = 0; i < len; i += PATTERN_PIECE)
		c->mismatch |= memcmp(data + i, pattern_at(c->received + i),
				       MIN(PATTERN_PIECE, len - i)) != 0;
	c->received += len;
}

static void on_read_done(struct guest_call *call, const struct err *why, void *user)
{
	struct client *c = user;
	json_object *o = reply_new(c, "read");

	json_add_u64(o, "bytes", c->received);
	json_add_u64(o, "size", c->head.size);
	json_add_u64(o, "mode", c->head.mode);
	json_add_bool(o, "match", !c->mismatch);
	finish_op(c, o, why);
}

static int start_read(struct client *c, struct err *e)
{
	static const struct guest_read_callbacks cb = {
		.on_head = on_read_head,
		.on_data = on_read_data,
		.on_done = on_read_done,
	};
	const char *path;
	int r = json_get_str(c->op, "path", JSON_REQUIRED, &path, e);

	c->received = 0;
	c->mismatch = false;
	c->head = (struct guest_read_head){0};
	return r < 0 ? r : guest_read(sandbox_guest(c->sandbox), path, &cb, c, &c->call, e);
}

static void on_hello(const struct guest_hello *h, const struct err *why, void *user)
{
	struct client *c = user;
	json_object *o = reply_new(c, "hello");

	if (h) {
		json_add_str(o, "agent_version", h->agent_version);
		json_add_u64(o, "boot_us", h->boot_us);
		json_add_u64(o, "rss_kib", h->rss_kib);
	}
	finish_op(c, o, why);
}

static uint64_t count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	uint64_t n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static void reply_self(struct client *c)
{
	json_object *o = reply_new(c, "self");
	size_t rss = 0;

	uv_resident_set_memory(&rss);
	json_add_u64(o, "rss_kib", rss >> 10);
	json_add_u64(o, "fds", count_fds());
	finish_op(c, o, NULL);
}

static void reply_net(struct client *c)
{
	json_object *o = reply_new(c, "net");
	uint64_t active = sandbox_net_active_ms(c->sandbox);

	json_add_bool(o, "ever", active != 0);
	json_add_u64(o, "idle_ms", active ? now_us() / 1000 - active : 0);
	finish_op(c, o, NULL);
}

/* --- one operation after another --- */

static int start_op(struct client *c, struct err *e)
{
	const char *op;
	int r = json_get_str(c->op, "op", JSON_REQUIRED, &op, e);

	if (r < 0)
		return r;
	if (str_eq(op, "exec") || str_eq(op, "cancel"))
		return start_exec(c, e);
	if (str_eq(op, "storm"))
		return start_storm(c, e);
	if (str_eq(op, "write"))
		return start_write(c, e);
	if (str_eq(op, "read"))
		return start_read(c, e);
	if (str_eq(op, "hello"))
		return guest_hello(sandbox_guest(c->sandbox), on_hello, c, e);
	if (str_eq(op, "net")) {
		reply_net(c);
		return 0;
	}
	if (str_eq(op, "self")) {
		reply_self(c);
		return 0;
	}
	return err_set(e, "", EINVAL, "there is no operation %s", op);
}

static void next_op(struct client *c)
{
	struct err e = ERR_INIT;
	char *line = c->next, *end;

	json_object_put(STEAL(c->op));
	if (!*line) {
		c->stopping = true;
		sandbox_stop(c->sandbox);
		return;
	}
	end = strchr(line, '\n');
	c->next = end ? end + 1 : line + strlen(line);
	if (json_parse_object(line, end ? (size_t)(end - line) : strlen(line), &c->op, &e) < 0)
		die("bad operation", &e);
	c->op_started_us = now_us();
	if (start_op(c, &e) < 0)
		die("operation", &e);
}

static void on_ready(struct sandbox *sb, void *user)
{
	struct client *c = user;
	json_object *o;

	c->op_started_us = c->boot_started_us;
	o = reply_new(c, "boot");
	json_add_str(o, "vmm", sandbox_backend_name(sb));
	json_add_str(o, "tier", sandbox_tier(sb) == VM_TIER_HARDWARE ? "hardware" : "emulated");
	reply_send(o);
	next_op(c);
}

static void on_end(struct sandbox *sb, const struct vm_exit *x, void *user)
{
	struct client *c = user;

	c->lost = !c->stopping;
	if (c->lost) {
		json_object *o = reply_new(c, "lost");

		reply_error(o, &x->why);
		json_add_str(o, "tail", x->tail);
		reply_send(o);
	}
	uv_stop(&c->loop);
}

static void close_handle(uv_handle_t *h, void *unused)
{
	if (!uv_is_closing(h))
		uv_close(h, NULL);
}

static int parse_network(char *list, const struct vm_net **ret)
{
	static uint16_t ports[64];
	static struct vm_net net = {.host_ports = ports};
	char *word;

	*ret = &net;
	while (*list && (word = strsep(&list, ","))) {
		uint32_t port;

		if (net.n_host_ports == ARRAY_LEN(ports) || str_u32(word, &port) < 0 ||
			port > UINT16_MAX)
			return -EINVAL;
		ports[net.n_host_ports++] = (uint16_t)port;
		if (!list)
			break;
	}
	return 0;
}

static void parse_options(int argc, char **argv, struct sandbox_spec *spec, const char **ret_image)
{
	static const struct option options[] = {
		{"image", required_argument, NULL, 'i'},
		{"vmm", required_argument, NULL, 'v'},
		{"memory", required_argument, NULL, 'm'},
		{"cpus", required_argument, NULL, 'c'},
		{"network", required_argument, NULL, 'n'},
		{NULL, 0, NULL, 0},
	};
	struct err e = ERR_INIT;
	int opt, r = 0;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (opt == 'i')
			*ret_image = optarg;
		else if (opt == 'v')
			r = vm_backend_parse(optarg, &spec->backend);
		else if (opt == 'm')
			r = str_u32(optarg, &spec->mem_mib);
		else if (opt == 'c')
			r = str_u32(optarg, &spec->vcpus);
		else if (opt == 'n')
			r = parse_network(optarg, &spec->net);
		else
			r = -EINVAL;
		if (r < 0) {
			err_set(&e, "", EINVAL, "a value is wrong");
			die("options", &e);
		}
	}
	if (!*ret_image) {
		err_set(&e, "", EINVAL, "--image is missing");
		die("options", &e);
	}
}

int main(int argc, char **argv)
{
	static const struct sandbox_callbacks cb = {.on_ready = on_ready, .on_end = on_end};
	static struct client client;
	struct client *c = &client;
	struct sandbox_spec spec = {
		.label = "test", .backend = VM_BACKEND_AUTO, .vcpus = 1, .mem_mib = 512};
	const struct vm_backend *backend;
	const char *name = NULL;
	struct err e = ERR_INIT;

	log_init(LOG_WARN);
	/* The supervisor is this very program, started again (vm.c). */
	if (argc > 1 && str_eq(argv[1], "__vm-boot"))
		return vm_boot_main(argc - 1, argv + 1);
	parse_options(argc, argv, &spec, &name);
	pattern_init();
	signal(SIGPIPE, SIG_IGN);
	if (fd_slurp_at(AT_FDCWD, "/dev/stdin", OPS_MAX, &c->ops, NULL) < 0) {
		err_set(&e, "", EIO, "cannot read the operations");
		die("stdin", &e);
	}
	c->next = c->ops;
	buf_init(&c->out, KEPT_MAX);
	buf_init(&c->err, KEPT_MAX);
	if (image_open(name, &spec.image, &e) < 0)
		die("image", &e);
	/* As a daemon does when it starts: the boot is then that of one VM, without the probes. */
	if (vm_backend_choose(spec.backend, &backend, &e) < 0)
		die("backend", &e);
	uv_loop_init(&c->loop);
	c->boot_started_us = now_us();
	if (sandbox_create(&c->loop, &spec, &cb, c, &c->sandbox, &e) < 0)
		die("create", &e);
	uv_run(&c->loop, UV_RUN_DEFAULT);

	sandbox_free(c->sandbox);
	uv_walk(&c->loop, close_handle, NULL);
	uv_run(&c->loop, UV_RUN_DEFAULT);
	uv_loop_close(&c->loop);
	image_close(spec.image);
	json_object_put(c->op);
	strv_free(c->argv);
	free(c->times_us);
	free(c->first_failure);
	free(c->stdin_file);
	free(c->ops);
	buf_done(&c->out);
	buf_done(&c->err);
	return c->lost ? 3 : 0;
}
