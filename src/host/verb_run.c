/* verb_run - `sandbox-libkrun run`: one piece of code, or one program, in one fresh VM.
 *
 * Opens (or first fetches) the image, boots a sandbox, writes the code to /tmp/run.EXT, executes
 * the interpreter on it and passes output through as it comes, with back-pressure from our own
 * stdout to the program in the guest. The VM and its disk are gone when the verb returns, however
 * it ends.
 *
 * Exit status: the program's own, with 126 and 127 as a shell uses them and 128+N for a death by
 * signal N; 124 when the time limit passed; 125 when the sandbox itself failed; 2 for a wrong call;
 * 128+N when this command was ended by signal N.
 *
 * Steps: on_ready -> send code -> on_code_done -> exec -> on_exec_done -> output drained ->
 * sandbox_stop -> on_end -> loop ends. Every failure sets `status` once and goes to sandbox_stop.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/guest/guest.h"
#include "host/host_ports.h"
#include "host/image/image.h"
#include "host/progress.h"
#include "host/run_options.h"
#include "host/sandbox/lang.h"
#include "host/sandbox/sandbox.h"
#include "host/stdio.h"
#include "host/verbs.h"

#define RUN_CODE_MAX (64u << 20) /* larger code: "too large", exit 2 */

enum {
	EXIT_TIMED_OUT = 124,
	EXIT_SANDBOX = 125,
};

struct run {
	const struct run_options *opt;
	uv_loop_t loop;
	uv_signal_t signals[3];
	struct sandbox *sandbox;
	struct guest_call *call; /* the write of the code, then the exec */
	struct stdio_sink out, err;
	struct stdio_source in;
	bool reads_stdin;
	uint8_t in_left[STDIO_CHUNK]; /* stdin that the guest has not taken yet */
	size_t in_left_at, in_left_len;
	char *code;
	size_t code_len, code_sent;
	const char *code_path; /* in the guest */
	char **argv;	       /* what the guest executes; owned */
	int status;	       /* of the verb; -1 while unknown */
	bool exec_done;	       /* waiting for output to leave */
};

static void fail(struct run *run, int status, const struct err *e)
{
	if (run->status >= 0)
		return;
	run->status = status;
	fprintf(stderr, "sandbox-libkrun run: %s%s%s\n", e->code, e->code[0] ? ": " : "", e->text);
}

static void stop(struct run *run)
{
	if (run->sandbox)
		sandbox_stop(run->sandbox);
}

/* --- what to run --- */

static int load_code(struct run *run, struct err *e)
{
	const struct run_options *o = run->opt;
	const char *from = o->file;
	struct lang lang;
	int r;

	if (o->argv) {
		run->argv = strv_dup(o->argv);
		return 0;
	}
	lang = lang_find(o->lang);
	run->code_path = lang.file;
	strv_add(&run->argv, lang.program);
	strv_add(&run->argv, lang.file);
	if (o->code && !str_eq(o->code, "-")) {
		run->code = xstrdup(o->code);
		run->code_len = strlen(o->code);
		return 0;
	}
	if (!from || str_eq(from, "-"))
		from = "/dev/stdin";
	r = fd_slurp_at(AT_FDCWD, from, RUN_CODE_MAX, &run->code, &run->code_len);
	if (r == -EFBIG)
		return err_set(e, "S001", EFBIG, "the code in %s is too large: %u MiB is the limit",
			from, RUN_CODE_MAX >> 20);
	if (r < 0)
		return err_set(e, "S001", -r, "cannot read the code from %s: %s", from, err_str(r));
	return 0;
}

/* --- our own streams --- */

static void finish_when_drained(struct run *run)
{
	if (run->exec_done && !run->out.pending.len && !run->err.pending.len)
		stop(run);
}

static void on_sink_drained(struct stdio_sink *s)
{
	struct run *run = s->user;

	if (run->call && !run->out.pending.len && !run->err.pending.len)
		guest_exec_pause(run->call, false);
	finish_when_drained(run);
}

/* Like a program that gets SIGPIPE: nobody is left to work for. */
static void on_sink_broken(struct stdio_sink *s, int no)
{
	struct run *run = s->user;
	struct err e = ERR_INIT;

	if (no == EPIPE) {
		if (run->status < 0)
			run->status = 128 + SIGPIPE;
	} else {
		err_set(&e, "", no, "cannot write the output: %s", err_str(no));
		fail(run, EXIT_SANDBOX, &e);
	}
	stop(run);
}

static void on_output(
	struct guest_call *c, bool is_stderr, const uint8_t *data, size_t len, void *user)
{
	struct run *run = user;
	struct err e = ERR_INIT;
	int r = stdio_sink_write(is_stderr ? &run->err : &run->out, data, len);

	if (r == 1) {
		guest_exec_pause(c, true);
	} else if (r < 0) {
		/* A paused guest can send no more than a flow-control window. */
		err_set(&e, "S300", ENOBUFS, "the guest sent output although it was paused");
		fail(run, EXIT_SANDBOX, &e);
		stop(run);
	}
}

/* Gives the guest what is left over, then asks for the next chunk. */
static void pump_stdin(struct run *run)
{
	while (run->call && run->in_left_len) {
		size_t n = guest_exec_stdin(
			run->call, run->in_left + run->in_left_at, run->in_left_len);

		if (!n)
			return; /* on_stdin_ready comes */
		run->in_left_at += n;
		run->in_left_len -= n;
	}
	if (run->call)
		stdio_source_want(&run->in);
}

static void on_stdin_ready(struct guest_call *c, void *user)
{
	struct run *run = user;

	if (run->reads_stdin && run->in_left_len)
		pump_stdin(run);
}

static void on_stdin_data(struct stdio_source *s, const uint8_t *data, size_t len)
{
	struct run *run = s->user;

	if (!run->call)
		return;
	if (!len) {
		guest_exec_stdin_end(run->call);
		return;
	}
	memcpy(run->in_left, data, len);
	run->in_left_at = 0;
	run->in_left_len = len;
	pump_stdin(run);
}

/* --- the calls to the guest --- */

/* The agent is gone: on_end follows and knows why. */
static bool vm_is_ending(const struct err *why)
{
	return why->no == ECONNRESET;
}

static void on_exec_done(struct guest_call *c, const struct guest_exec_result *res,
	const struct err *why, void *user)
{
	struct run *run = user;
	struct err e = ERR_INIT;

	run->call = NULL;
	if (!res && vm_is_ending(why))
		return;
	run->exec_done = true;
	if (!res) {
		fail(run, EXIT_SANDBOX, why);
	} else if (res->timed_out) {
		err_set(&e, "S200", ETIMEDOUT,
			"killed after %" PRIu64
			" ms: it did not end in time (--timeout sets the limit)",
			run->opt->timeout_ms);
		fail(run, EXIT_TIMED_OUT, &e);
	} else {
		if (res->start_error[0])
			fprintf(stderr, "%s\n", res->start_error);
		if (res->stdout_dropped || res->stderr_dropped)
			fprintf(stderr,
				"sandbox-libkrun run: output cut by --output-cap: %" PRIu64
				" bytes of stdout and %" PRIu64 " bytes of stderr are missing\n",
				res->stdout_dropped, res->stderr_dropped);
		if (run->status < 0)
			run->status = res->exit_code;
	}
	finish_when_drained(run);
}

static void start_exec(struct run *run)
{
	static const struct guest_exec_callbacks cb = {
		.on_output = on_output,
		.on_stdin_ready = on_stdin_ready,
		.on_done = on_exec_done,
	};
	struct guest_exec_req req = {
		.argv = run->argv,
		.env = run->opt->env,
		.workdir = run->opt->workdir,
		.deadline_ms = run->opt->timeout_ms,
		.stdout_cap = run->opt->output_cap,
		.stderr_cap = run->opt->output_cap,
	};
	struct err e = ERR_INIT;

	if (guest_exec(sandbox_guest(run->sandbox), &req, &cb, run, &run->call, &e) < 0) {
		fail(run, EXIT_SANDBOX, &e);
		stop(run);
		return;
	}
	run->reads_stdin = run->opt->use_stdin;
	if (run->reads_stdin)
		pump_stdin(run);
	else
		guest_exec_stdin_end(run->call);
}

static void push_code(struct run *run)
{
	while (run->code_sent < run->code_len) {
		size_t n = guest_write_data(
			run->call, run->code + run->code_sent, run->code_len - run->code_sent);

		if (!n)
			return; /* on_ready comes */
		run->code_sent += n;
	}
	guest_write_end(run->call);
}

static void on_code_room(struct guest_call *c, void *user)
{
	struct run *run = user;

	if (run->code_sent < run->code_len)
		push_code(run);
}

static void on_code_done(
	struct guest_call *c, uint64_t bytes_written, const struct err *why, void *user)
{
	struct run *run = user;
	struct err e;

	run->call = NULL;
	if (why && vm_is_ending(why))
		return;
	if (why) {
		e = *why;
		err_wrap(&e, "cannot write the code to %s in the sandbox", run->code_path);
		fail(run, EXIT_SANDBOX, &e);
		stop(run);
		return;
	}
	start_exec(run);
}

static void send_code(struct run *run)
{
	static const struct guest_write_callbacks cb = {
		.on_ready = on_code_room,
		.on_done = on_code_done,
	};
	struct guest_write_req req = {.path = run->code_path, .mode = 0644, .parents = true};
	struct err e = ERR_INIT;

	if (guest_write(sandbox_guest(run->sandbox), &req, &cb, run, &run->call, &e) < 0) {
		fail(run, EXIT_SANDBOX, &e);
		stop(run);
		return;
	}
	push_code(run);
}

/* --- the sandbox --- */

static void on_ready(struct sandbox *sb, void *user)
{
	struct run *run = user;

	if (run->code_path)
		send_code(run);
	else
		start_exec(run);
}

static void close_handle(uv_handle_t *h, void *unused)
{
	if (!uv_is_closing(h))
		uv_close(h, NULL);
}

static void on_end(struct sandbox *sb, const struct vm_exit *x, void *user)
{
	struct run *run = user;

	if (run->status < 0) {
		fail(run, EXIT_SANDBOX, &x->why);
		if (x->tail && *x->tail)
			fprintf(stderr, "last lines of the VM:\n%s\n", x->tail);
	}
	uv_stop(&run->loop);
}

static void on_signal(uv_signal_t *handle, int signo)
{
	struct run *run = handle->data;

	if (run->status < 0)
		run->status = 128 + signo;
	stop(run);
}

static bool no_cancel(void *user)
{
	return false;
}

/* The image, fetched first when it is missing and that is allowed. */
static struct image *open_image(struct run *run, struct err *e)
{
	const struct run_options *o = run->opt;
	struct progress_bar bar;
	struct image *img = NULL;
	int r = image_open(o->image, &img, e);

	if (r != -ENOENT || o->no_pull)
		return img;
	progress_bar_init(&bar, o->image, o->quiet);
	r = image_fetch(o->image, NULL, progress_bar_update, &bar, no_cancel, e);
	progress_bar_done(&bar);
	if (r == 0)
		image_open(o->image, &img, e);
	return img;
}

static void set_up_loop(struct run *run)
{
	static const int signos[] = {SIGINT, SIGTERM, SIGHUP};

	uv_loop_init(&run->loop);
	for (size_t i = 0; i < ARRAY_LEN(signos); i++) {
		uv_signal_init(&run->loop, &run->signals[i]);
		run->signals[i].data = run;
		uv_signal_start(&run->signals[i], on_signal, signos[i]);
	}
	run->out.user = run->err.user = run;
	run->out.on_drained = run->err.on_drained = on_sink_drained;
	run->out.on_broken = run->err.on_broken = on_sink_broken;
	stdio_sink_init(&run->out, &run->loop, STDOUT_FILENO);
	stdio_sink_init(&run->err, &run->loop, STDERR_FILENO);
	run->in.user = run;
	run->in.on_data = on_stdin_data;
	if (run->opt->use_stdin)
		stdio_source_init(&run->in, &run->loop, STDIN_FILENO);
}

static void tear_down_loop(struct run *run)
{
	sandbox_free(run->sandbox);
	stdio_sink_done(&run->out);
	stdio_sink_done(&run->err);
	if (run->opt->use_stdin)
		stdio_source_done(&run->in);
	uv_walk(&run->loop, close_handle, NULL);
	uv_run(&run->loop, UV_RUN_DEFAULT);
	uv_loop_close(&run->loop);
}

static const char *tier_word(enum vm_tier tier)
{
	return tier == VM_TIER_HARDWARE ? "hardware" : "emulated";
}

/* `net` is NULL for none. */
static void run_in_sandbox(struct run *run, struct image *img, const struct vm_net *net)
{
	static const struct sandbox_callbacks cb = {.on_ready = on_ready, .on_end = on_end};
	struct sandbox_spec spec = {
		.label = "run",
		.backend = run->opt->backend,
		.vcpus = run->opt->cpus,
		.mem_mib = run->opt->mem_mib,
		.image = img,
		.net = net,
	};
	struct err e = ERR_INIT;

	signal(SIGPIPE, SIG_IGN);
	set_up_loop(run);
	if (sandbox_create(&run->loop, &spec, &cb, run, &run->sandbox, &e) < 0) {
		fail(run, EXIT_SANDBOX, &e);
	} else {
		if (!run->opt->quiet)
			fprintf(stderr, "sandbox-libkrun: vmm=%s tier=%s\n",
				sandbox_backend_name(run->sandbox),
				tier_word(sandbox_tier(run->sandbox)));
		uv_run(&run->loop, UV_RUN_DEFAULT);
	}
	tear_down_loop(run);
}

int verb_run(int argc, char **argv)
{
	struct run_options opt;
	struct run *run = xcalloc(1, sizeof(*run));
	struct image *img = NULL;
	struct host_ports ports = {0};
	struct err e = ERR_INIT;
	int status, r = run_options_parse(&opt, argc, argv);

	run->opt = &opt;
	run->status = -1;
	if (r != 0) {
		status = r > 0 ? EXIT_OK : EXIT_USAGE;
	} else if (load_code(run, &e) < 0 ||
		   (opt.network && host_ports_from_env(NULL, &ports, &e) < 0)) {
		fail(run, EXIT_USAGE, &e);
		status = run->status;
	} else {
		img = open_image(run, &e);
		if (img)
			run_in_sandbox(run, img,
				opt.network ? &(struct vm_net){ports.ports, ports.n} : NULL);
		else
			fail(run, EXIT_SANDBOX, &e);
		status = run->status;
	}
	image_close(img);
	host_ports_done(&ports);
	strv_free(run->argv);
	free(run->code);
	free(run);
	run_options_done(&opt);
	return status;
}
