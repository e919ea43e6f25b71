/* verb_standalone - `sandbox-libkrun standalone`: a small engine and the adapter in one process.
 *
 * The adapter connects to the engine over the loopback like any other worker, so what is tried here
 * is what a real engine sees. Ends like `serve`, with its exit status.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/api/api.h"
#include "host/bus/engine.h"
#include "host/config.h"
#include "host/serve.h"
#include "host/verbs.h"
#include "wire/json.h"

#define CONFIG_FILE_MAX (4u << 20) /* a larger one: refused, exit status 2 */

static const char help_text[] =
	"Usage: sandbox-libkrun standalone [--port N] [--config FILE] [--vmm krun|qemu|auto]\n"
	"\n"
	"Runs a small iii engine on the loopback and the adapter on it, in one process, so that "
	"any\n"
	"iii SDK can use sandboxes with nothing else installed. For trying and for tests: "
	"everybody\n"
	"who reaches the port can use it. Prints one line when it is ready.\n"
	"\n"
	"  --port N       TCP port on 127.0.0.1 (49134); 0 takes a free one\n"
	"  --config FILE  the adapter's configuration, a JSON object; without it the shipped one\n"
	"  --vmm VMM      what runs the VMs (III_SANDBOX_VMM, else krun); 'doctor' tells more\n"
	"  --help         print this text and leave\n";

struct standalone {
	uv_loop_t loop;
	struct engine *engine;
	char *url;
	int status;
};

static void on_engine_closed(void *user)
{
	(void)user;
}

static void on_ended(int status, void *user)
{
	struct standalone *sa = user;

	sa->status = status;
	engine_close(sa->engine, on_engine_closed, sa);
}

static void on_ready(void *user)
{
	const struct standalone *sa = user;

	printf("ready url=%s\n", sa->url);
	fflush(stdout);
}

static int load_config(const char *path, json_object **ret, struct err *e)
{
	cleanup_free char *text = NULL;
	size_t len;
	int r = fd_slurp_at(AT_FDCWD, path, CONFIG_FILE_MAX, &text, &len);

	if (r < 0)
		return err_set(e, "", -r, "cannot read the configuration %s: %s", path, err_str(r));
	r = json_parse(text, len, ret, e);
	if (r < 0)
		err_wrap(e, "configuration %s", path);
	return r;
}

static int run(struct standalone *sa, struct serve_options *o, uint16_t port, const char *config)
{
	json_object *value = NULL;
	struct err e = ERR_INIT;

	if (config && load_config(config, &value, &e) < 0) {
		fprintf(stderr, "sandbox-libkrun standalone: %s\n", e.text);
		return EXIT_USAGE;
	}
	uv_loop_init(&sa->loop);
	sa->engine = engine_new(&sa->loop, &(struct engine_options){.port = port}, &e);
	if (!sa->engine) {
		fprintf(stderr, "sandbox-libkrun standalone: %s\n", e.text);
		json_object_put(value);
		uv_loop_close(&sa->loop);
		return EXIT_FAILED;
	}
	if (config)
		engine_set_config(sa->engine, o->config_id, value);
	sa->url = xasprintf("ws://127.0.0.1:%u", engine_port(sa->engine));
	o->bus.url = sa->url;
	if (host_ports_from_env(sa->url, &o->host_ports, &e) < 0) {
		fprintf(stderr, "sandbox-libkrun standalone: %s\n", e.text);
		on_ended(EXIT_USAGE, sa);
	} else if (!serve_new(&sa->loop, o, &e)) {
		fprintf(stderr, "sandbox-libkrun standalone: %s\n", e.text);
		on_ended(EXIT_FAILED, sa);
	}
	uv_run(&sa->loop, UV_RUN_DEFAULT);
	uv_loop_close(&sa->loop);
	host_ports_done(&o->host_ports);
	free(sa->url);
	return sa->status;
}

static int usage(const char *what, const char *arg)
{
	fprintf(stderr, "sandbox-libkrun standalone: %s%s; see --help\n", what, arg);
	return EXIT_USAGE;
}

int verb_standalone(int argc, char **argv)
{
	static const struct option longs[] = {{"port", required_argument, NULL, 'p'},
		{"config", required_argument, NULL, 'c'}, {"vmm", required_argument, NULL, 'v'},
		{"help", no_argument, NULL, 'h'}, {0}};
	struct standalone sa = {.status = EXIT_FAILED};
	struct serve_options o = {
		.config_id = serve_config_id(), .ready = on_ready, .ended = on_ended, .user = &sa};
	const char *config = NULL;
	uint32_t port = ENGINE_PORT_DEFAULT;
	struct err e = ERR_INIT;
	int c;

	log_init(LOG_INFO);
	o.bus.name = API_NAME;
	o.bus.version = SANDBOX_VERSION;
	o.bus.description = "libkrun sandbox adapter";
	if (serve_backend_from_env(&o.backend, &e) < 0)
		return usage(e.text, "");
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'h') {
			fputs(help_text, stdout);
			return EXIT_OK;
		}
		if (c == '?')
			return EXIT_USAGE;
		if (c == 'c')
			config = optarg;
		else if (c == 'p' && (str_u32(optarg, &port) < 0 || port > UINT16_MAX))
			return usage("--port is a number up to 65535, not ", optarg);
		else if (c == 'v' && vm_backend_parse(optarg, &o.backend) < 0)
			return usage("--vmm is krun, qemu or auto, not ", optarg);
	}
	if (optind < argc)
		return usage("no use for ", argv[optind]);
	signal(SIGPIPE, SIG_IGN);
	return run(&sa, &o, (uint16_t)port, config);
}
