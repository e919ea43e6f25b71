/* worker_client - one boot of a worker VM, below all that a daemon adds: for tests.
 *
 *   worker_client --image NAME --upper FILE --source FILE --job FILE
 *                 [--vmm krun|qemu|auto] [--memory MIB] [--cpus N] [--env NAME=VALUE]… [--net]
 *
 * --upper is made if it is missing, and kept; --source is an EROFS disk; --job is the JSON of
 * wire/worker.h. Prints one JSON object a line as things happen:
 *
 *   {"event":"ready"}   {"event":"phase","phase":"sync|setup|install|run"}
 *   {"event":"log","stream":"console|host","text":"…"}
 *   {"event":"exit","end":"clean","status":N,"guest_status":N,"signal":N,"why":"…"}     the last
 *
 * and reads lines of the same kind: {"cmd":"shutdown","grace_ms":N} {"cmd":"kill"}. Its status is 0
 * once the VM is gone, 2 when there never was one.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
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
#include "host/image/image.h"
#include "host/vm/boot.h"
#include "host/vm/control.h"
#include "host/vm/upper.h"
#include "host/vm/vm.h"
#include "wire/json.h"
#include "wire/worker.h"

#define UPPER_BYTES ((uint64_t)2 << 30)
#define JOB_MAX	    (1u << 20)
#define COMMAND_MAX 4096

static struct {
	uv_loop_t loop;
	uv_pipe_t commands;
	struct control_lines lines;
	char piece[COMMAND_MAX];
	struct vm *vm;
	bool over;
} client;

static _Noreturn void die(const char *what, const struct err *e)
{
	fprintf(stderr, "worker_client: %s: %s\n", what, e->text);
	exit(2);
}

/* --- what happens --- */

static json_object *event_new(const char *name)
{
	json_object *o = json_object_new_object();

	json_add_str(o, "event", name);
	return o;
}

static void say(json_object *o)
{
	puts(json_text(o, NULL));
	fflush(stdout);
	json_object_put(o);
}

static void on_ready(struct vm *vm, void *user)
{
	say(event_new("ready"));
}

static void on_phase(struct vm *vm, enum vm_phase phase, void *user)
{
	static const char *const names[] = {"sync", "setup", "install", "run"};
	json_object *o = event_new("phase");

	json_add_str(o, "phase", names[phase]);
	say(o);
}

static void on_log(struct vm *vm, enum vm_stream stream, const void *data, size_t len, void *user)
{
	json_object *o = event_new("log");

	json_add_str(o, "stream", stream == VM_STREAM_CONSOLE ? "console" : "host");
	json_add_strn(o, "text", data, len);
	say(o);
}

static void on_exit_of_vm(struct vm *vm, const struct vm_exit *x, void *user)
{
	static const char *const ends[] = {[VM_END_CLEAN] = "clean",
		[VM_END_STOPPED] = "stopped",
		[VM_END_GUEST_CRASH] = "guest_crash",
		[VM_END_VMM_KILLED] = "vmm_killed",
		[VM_END_VMM_FAILED] = "vmm_failed",
		[VM_END_BOOT_TIMEOUT] = "boot_timeout",
		[VM_END_BOOT_LOST] = "boot_lost"};
	json_object *o = event_new("exit");

	json_add_str(o, "end", ends[x->end]);
	json_add_i64(o, "status", x->status);
	json_add_i64(o, "guest_status", x->guest_status);
	json_add_i64(o, "signal", x->signal);
	json_add_str(o, "why", x->why.text);
	say(o);
	client.over = true;
	uv_stop(&client.loop);
}

/* --- commands --- */

static int on_line(char *line, size_t len, void *user)
{
	cleanup_json json_object *o = NULL;
	const char *cmd = "";
	uint32_t grace_ms = 0;
	struct err e = ERR_INIT;

	if (json_parse_object(line, len, &o, &e) < 0 ||
		json_get_str(o, "cmd", JSON_REQUIRED, &cmd, &e) < 0 ||
		json_get_u32(o, "grace_ms", JSON_OPTIONAL, &grace_ms, &e) < 0)
		die("a command", &e);
	if (str_eq(cmd, "shutdown"))
		vm_shutdown(client.vm, grace_ms);
	else
		vm_kill(client.vm);
	return 0;
}

static void give_room(uv_handle_t *h, size_t wanted, uv_buf_t *ret)
{
	*ret = uv_buf_init(client.piece, sizeof(client.piece));
}

static void on_commands(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	if (n < 0)
		uv_read_stop(stream);
	else
		control_feed(&client.lines, buf->base, (size_t)n, on_line, NULL);
}

/* --- the start --- */

static void read_job(const char *file, struct worker_job *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	cleanup_free char *text = NULL;
	size_t len;
	int r = fd_slurp_at(AT_FDCWD, file, JOB_MAX, &text, &len);

	if (r < 0)
		err_set(e, "", -r, "%s: %s", file, err_str(r));
	else if ((r = json_parse_object(text, len, &o, e)) == 0)
		r = worker_job_from_json(o, ret, e);
	if (r < 0)
		die("--job", e);
}

static int open_upper(const char *path, struct err *e)
{
	cleanup_free char *dir_part = xstrdup(path), *name_part = xstrdup(path);
	cleanup_fd int dir = open(dirname(dir_part), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int fd = -1;

	if (dir < 0)
		err_set(e, "", errno, "%s: %s", path, err_str(errno));
	else if (upper_open_named(dir, basename(name_part), UPPER_BYTES, "iii-upper", &fd, e) == 0)
		return fd;
	die("--upper", e);
}

static void close_handle(uv_handle_t *h, void *user)
{
	if (!uv_is_closing(h))
		uv_close(h, NULL);
}

static void run(const struct vm_spec *spec, struct err *e)
{
	static const struct vm_callbacks cb = {on_ready, on_phase, on_log, on_exit_of_vm};

	uv_loop_init(&client.loop);
	buf_init(&client.lines.partial, COMMAND_MAX);
	uv_pipe_init(&client.loop, &client.commands, 0);
	uv_pipe_open(&client.commands, STDIN_FILENO);
	if (vm_start(&client.loop, spec, &cb, NULL, &client.vm, e) < 0)
		die("start", e);
	uv_read_start((uv_stream_t *)&client.commands, give_room, on_commands);
	while (!client.over)
		uv_run(&client.loop, UV_RUN_DEFAULT);
	vm_free(client.vm);
	uv_walk(&client.loop, close_handle, NULL);
	uv_run(&client.loop, UV_RUN_DEFAULT);
	uv_loop_close(&client.loop);
	buf_done(&client.lines.partial);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"image", required_argument, NULL, 'i'},
		{"upper", required_argument, NULL, 'u'},
		{"source", required_argument, NULL, 's'},
		{"job", required_argument, NULL, 'j'},
		{"vmm", required_argument, NULL, 'v'},
		{"memory", required_argument, NULL, 'm'},
		{"cpus", required_argument, NULL, 'c'},
		{"env", required_argument, NULL, 'e'},
		{"net", no_argument, NULL, 'n'},
		{NULL, 0, NULL, 0},
	};
	struct vm_net net = {.n_host_ports = 0};
	struct worker_job job = {0};
	struct vm_spec spec = {.label = "worker-test",
		.vcpus = 1,
		.mem_mib = 512,
		.upper_fd = -1,
		.source_fd = -1,
		.worker = &job};
	struct image *image = NULL;
	char **given = NULL, **env = NULL;
	struct err e = ERR_INIT;
	int opt, r = 0;

	log_init(LOG_WARN);
	/* The supervisor is this very program, started again (vm.c). */
	if (argc > 1 && str_eq(argv[1], "__vm-boot"))
		return vm_boot_main(argc - 1, argv + 1);
	signal(SIGPIPE, SIG_IGN);
	while (r == 0 && (opt = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (opt == 'i')
			r = image_open(optarg, &image, &e);
		else if (opt == 'u')
			spec.upper_fd = open_upper(optarg, &e);
		else if (opt == 's')
			r = spec.source_fd = open(optarg, O_RDONLY | O_CLOEXEC);
		else if (opt == 'j')
			read_job(optarg, &job, &e);
		else if (opt == 'v')
			r = vm_backend_parse(optarg, &spec.backend);
		else if (opt == 'm')
			r = str_u32(optarg, &spec.mem_mib);
		else if (opt == 'c')
			r = str_u32(optarg, &spec.vcpus);
		else if (opt == 'e')
			strv_add(&given, optarg);
		else if (opt == 'n')
			spec.net = &net;
		else
			r = -EINVAL;
		r = MIN(r, 0);
	}
	if (r < 0 || !image || !job.name || spec.upper_fd < 0 || spec.source_fd < 0) {
		if (!e.text[0])
			err_set(&e, "", EINVAL, "an option is missing, or its value is wrong");
		die("options", &e);
	}
	spec.base_fd = image->disk_fd;
	for (size_t i = 0; image->config.env[i]; i++)
		strv_add(&env, image->config.env[i]);
	for (size_t i = 0; given && given[i]; i++)
		strv_add(&env, given[i]);
	spec.env = env;
	run(&spec, &e);
	fd_close(&spec.upper_fd);
	fd_close(&spec.source_fd);
	worker_job_done(&job);
	image_close(image);
	strv_free(given);
	strv_free(env);
	return 0;
}
