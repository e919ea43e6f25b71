/* verb_serve - `sandbox-libkrun serve`: the adapter as a worker of an iii engine.
 *
 * Exit status: 0 after SIGTERM, SIGINT or SIGHUP; 2 when the configuration could not be read or
 * does not hold (one line on stderr names the key), or for a wrong call; 1 for everything else.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "host/api/api.h"
#include "host/config.h"
#include "host/serve.h"
#include "host/verbs.h"

static const char help_text[] =
	"Usage: sandbox-libkrun serve [--url URL] [--vmm krun|qemu|auto]\n"
	"\n"
	"Joins an iii engine as a worker and serves sandbox-libkrun::* until it is told to end.\n"
	"This is also what happens without any argument when III_URL is set.\n"
	"\n"
	"  --url URL    where the engine is (III_URL, else " BUS_URL_DEFAULT ")\n"
	"  --vmm VMM    what runs the VMs (III_SANDBOX_VMM, else krun); 'doctor' tells more\n"
	"  --help       print this text and leave\n"
	"\n"
	"From the environment: III_URL, III_TOKEN, III_NAMESPACE, III_WORKER_NAME, "
	"III_CONFIG_NAME,\n"
	"III_SANDBOX_VMM, III_SANDBOX_HOST_PORTS, III_SANDBOX_WORKER_TOKEN,\n"
	"SANDBOX_LOG (error, warn, info, debug).\n";

static void on_ended(int status, void *user)
{
	*(int *)user = status;
}

static int fatal(const struct err *e)
{
	fprintf(stderr, "sandbox-libkrun serve: %s\n", e->text);
	return EXIT_FAILED;
}

static int serve(const struct serve_options *o)
{
	struct serve_options with_end = *o;
	int status = EXIT_FAILED;
	uv_loop_t loop;
	struct err e = ERR_INIT;

	with_end.ended = on_ended;
	with_end.user = &status;
	signal(SIGPIPE, SIG_IGN);
	uv_loop_init(&loop);
	if (!serve_new(&loop, &with_end, &e))
		status = fatal(&e);
	uv_run(&loop, UV_RUN_DEFAULT);
	uv_loop_close(&loop);
	return status;
}

int verb_serve(int argc, char **argv)
{
	static const struct option longs[] = {{"url", required_argument, NULL, 'u'},
		{"vmm", required_argument, NULL, 'v'}, {"help", no_argument, NULL, 'h'}, {0}};
	struct serve_options o = {.config_id = serve_config_id()};
	struct err e = ERR_INIT;
	int c;

	log_init(LOG_INFO);
	bus_options_from_env(&o.bus);
	if (!o.bus.name)
		o.bus.name = API_NAME;
	o.bus.version = SANDBOX_VERSION;
	o.bus.description = "libkrun sandbox adapter";
	if (serve_backend_from_env(&o.backend, &e) < 0)
		return fatal(&e);
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'h') {
			fputs(help_text, stdout);
			return EXIT_OK;
		}
		if (c == 'u')
			o.bus.url = optarg;
		else if (c != 'v' || vm_backend_parse(optarg, &o.backend) < 0)
			return EXIT_USAGE;
	}
	if (optind < argc) {
		fputs(help_text, stderr);
		return EXIT_USAGE;
	}
	if (host_ports_from_env(o.bus.url ? o.bus.url : BUS_URL_DEFAULT, &o.host_ports, &e) < 0) {
		fatal(&e);
		return EXIT_USAGE;
	}
	c = serve(&o);
	host_ports_done(&o.host_ports);
	return c;
}
