/* kept_vm - one VM with a disk that stays, as a worker VM has it: for tests.
 *
 *   kept_vm --image NAME --vmm krun|qemu --folder DIR [--slow-log] [--hang] -- ARGV…
 *
 * Opens DIR/upper.ext4 (made if missing), boots, runs ARGV in the guest, prints a line
 * {"exit_code":N,"stdout":"…"}, and shuts the VM down; with --hang it does nothing more. The last
 * line is {"end":N,"signal":N,"guest_status":N,"why":"…"}. What the VM prints is kept in
 * DIR/console and DIR/host; --slow-log: by a reader who takes a millisecond for every piece.
 */
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
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
#include "base/path.h"
#include "base/str.h"
#include "host/guest/guest.h"
#include "host/image/image.h"
#include "host/vm/boot.h"
#include "host/vm/upper.h"
#include "host/vm/vm.h"
#include "wire/json.h"

#define DISK_BYTES  ((uint64_t)16 << 30)
#define OUT_MAX	    (1u << 20)
#define DEADLINE_MS 120000
#define GRACE_MS    60000

struct client {
	uv_loop_t loop;
	struct vm *vm;
	struct guest *guest;
	char **argv;
	bool hang, slow, failed;
	int logs[2]; /* of each stream */
	struct buf out;
};

static _Noreturn void die(const char *what, const struct err *e)
{
	fprintf(stderr, "kept_vm: %s: %s\n", what, e->text);
	exit(2);
}

static void print_line(json_object *o)
{
	puts(json_text(o, NULL));
	fflush(stdout);
	json_object_put(o);
}

static void on_output(
	struct guest_call *call, bool is_stderr, const uint8_t *data, size_t len, void *user)
{
	struct client *c = user;

	(void)call;
	(void)is_stderr;
	buf_add(&c->out, data, len);
}

static void on_exec_done(struct guest_call *call, const struct guest_exec_result *res,
	const struct err *why, void *user)
{
	struct client *c = user;
	json_object *o = json_object_new_object();

	(void)call;
	c->failed = !res;
	json_add_i64(o, "exit_code", res ? res->exit_code : -1);
	json_add_strn(o, "stdout", c->out.data, c->out.len);
	if (why)
		json_add_str(o, "why", why->text);
	print_line(o);
	if (!c->hang)
		vm_shutdown(c->vm, GRACE_MS);
}

static void on_lost(struct guest *g, const struct err *why, void *user)
{
	(void)g;
	(void)why;
	(void)user;
}

static void on_ready(struct vm *vm, void *user)
{
	static const struct guest_callbacks guest_cb = {.on_lost = on_lost};
	static const struct guest_exec_callbacks exec_cb = {
		.on_output = on_output, .on_done = on_exec_done};
	struct client *c = user;
	struct guest_exec_req req = {.argv = c->argv,
		.deadline_ms = DEADLINE_MS,
		.stdout_cap = OUT_MAX,
		.stderr_cap = OUT_MAX};
	struct guest_call *call;
	struct err e = ERR_INIT;

	if (guest_new(&c->loop, vm_take_agent_fd(vm), &guest_cb, c, &c->guest, &e) < 0 ||
		guest_exec(c->guest, &req, &exec_cb, c, &call, &e) < 0)
		die("guest", &e);
	guest_exec_stdin_end(call);
}

static void on_log(struct vm *vm, enum vm_stream stream, const void *data, size_t len, void *user)
{
	struct client *c = user;

	(void)vm;
	fd_write_all(c->logs[stream], data, len);
	if (c->slow)
		poll(NULL, 0, 1);
}

static void on_exit_(struct vm *vm, const struct vm_exit *x, void *user)
{
	struct client *c = user;
	json_object *o = json_object_new_object();

	json_add_i64(o, "end", x->end);
	json_add_i64(o, "signal", x->signal);
	json_add_i64(o, "guest_status", x->guest_status);
	json_add_str(o, "why", x->why.text);
	json_add_str(o, "tail", x->tail);
	print_line(o);
	guest_free(c->guest);
	vm_free(vm);
}

static void parse_options(int argc, char **argv, struct client *c, struct vm_spec *spec,
	const char **ret_image, const char **ret_folder)
{
	static const struct option options[] = {
		{"image", required_argument, NULL, 'i'},
		{"vmm", required_argument, NULL, 'v'},
		{"folder", required_argument, NULL, 'f'},
		{"slow-log", no_argument, NULL, 's'},
		{"hang", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	struct err e = ERR_INIT;
	int opt;

	while ((opt = getopt_long(argc, argv, "+", options, NULL)) >= 0) {
		if (opt == 'i')
			*ret_image = optarg;
		else if (opt == 'v' && vm_backend_parse(optarg, &spec->backend) == 0)
			continue;
		else if (opt == 'f')
			*ret_folder = optarg;
		else if (opt == 's')
			c->slow = true;
		else if (opt == 'h')
			c->hang = true;
		else
			die("options", &e);
	}
	c->argv = argv + optind;
	if (!*ret_image || !*ret_folder || !*c->argv)
		die("options", &e);
}

static int open_log(int dir, const char *name)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	struct err e = ERR_INIT;

	if (fd < 0)
		die(name, &e);
	return fd;
}

int main(int argc, char **argv)
{
	static const struct vm_callbacks cb = {
		.on_ready = on_ready, .on_log = on_log, .on_exit = on_exit_};
	static struct client client;
	struct client *c = &client;
	char *const no_env[] = {NULL};
	struct vm_spec spec = {
		.label = "kept", .vcpus = 1, .mem_mib = 512, .env = no_env, .upper_fd = -1};
	const char *name = NULL, *folder = NULL;
	struct image *image;
	struct err e = ERR_INIT;
	int dir;

	log_init(LOG_WARN);
	/* The supervisor is this very program, started again (vm.c). */
	if (argc > 1 && str_eq(argv[1], BOOT_ENTRY))
		return vm_boot_main(argc - 1, argv + 1);
	parse_options(argc, argv, c, &spec, &name, &folder);
	signal(SIGPIPE, SIG_IGN);
	buf_init(&c->out, 2 * OUT_MAX);
	if (image_open(name, &image, &e) < 0)
		die("image", &e);
	dir = path_open_dir(folder, &e);
	if (dir < 0 || upper_open_named(
			       dir, "upper.ext4", DISK_BYTES, "iii-upper", &spec.upper_fd, &e) < 0)
		die("disk", &e);
	c->logs[VM_STREAM_CONSOLE] = open_log(dir, "console");
	c->logs[VM_STREAM_HOST] = open_log(dir, "host");
	spec.base_fd = image->disk_fd;
	uv_loop_init(&c->loop);
	if (vm_start(&c->loop, &spec, &cb, c, &c->vm, &e) < 0)
		die("start", &e);
	fd_close(&spec.upper_fd);
	uv_run(&c->loop, UV_RUN_DEFAULT);
	uv_loop_close(&c->loop);
	image_close(image);
	buf_done(&c->out);
	return c->failed ? 1 : 0;
}
