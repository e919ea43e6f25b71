/* verb_call - `sandbox-libkrun call`: one call of a function on an engine, its reply as JSON.
 *
 * The reply goes to stdout, an error to stderr as JSON: for errors of sandbox functions the seven
 * members of the contract, for others {"code","message"}. Exit status 0 or 1; 2 for a wrong call;
 * 3 when the engine cannot be reached or the answer did not come in time.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/api/api.h"
#include "host/api/reply.h"
#include "host/api/schema.h"
#include "host/config.h"
#include "host/verbs.h"
#include "wire/json.h"

#define CALL_TIMEOUT_MS	 330000
#define EXIT_UNREACHABLE 3

static const char help_text[] =
	"Usage: sandbox-libkrun call FUNCTION [NAME=VALUE]... [--json OBJECT]\n"
	"\n"
	"Calls a function on an iii engine and prints its reply as JSON. The functions of this\n"
	"adapter can be named without their prefix.\n"
	"\n"
	"  NAME=VALUE       a member of the request: VALUE is taken as JSON where it is JSON, else "
	"as\n"
	"                   text (so cpus=2 is a number and image=python a text)\n"
	"  --json OBJECT    the whole request, or the members to start from\n"
	"  --url URL        where the engine is (III_URL, else " BUS_URL_DEFAULT ")\n"
	"  --timeout-ms N   how long to wait for the reply (330000)\n"
	"  --help           print this text and leave\n"
	"\n"
	"Exit status: 0 for a reply, 1 for an error, 2 for a wrong call, 3 without an answer.\n"
	"\n"
	"  sandbox-libkrun call create image=python\n"
	"  sandbox-libkrun call exec sandbox_id=ID argv='[\"echo\",\"hello\"]'\n";

struct call {
	uv_loop_t loop;
	struct bus *bus;
	const char *url;
	char *function;
	json_object *request;
	uint32_t timeout_ms;
	bool sent, closing;
	int status;
};

static void on_closed(void *user)
{
	(void)user;
}

static void finish(struct call *call, int status)
{
	if (call->closing)
		return;
	call->closing = true;
	call->status = status;
	bus_close(call->bus, on_closed, NULL);
}

/* The contract's JSON inside the message of a handler's error, or NULL. */
static json_object *inner_error(const char *message)
{
	json_object *o = NULL;
	size_t prefix = strlen(REPLY_ERROR_PREFIX);

	if (str_starts(message, REPLY_ERROR_PREFIX))
		json_parse_object(message + prefix, strlen(message) - prefix, &o, NULL);
	return o;
}

static void print_json(int fd, json_object *o)
{
	size_t len;
	const char *text = o ? json_text(o, &len) : NULL;

	if (!text) {
		text = "null";
		len = 4;
	}
	if (fd_write_all(fd, text, len) == 0)
		fd_write_all(fd, "\n", 1);
}

static void print_error(const char *code, const char *message)
{
	cleanup_json json_object *o = inner_error(message);

	if (!o) {
		o = reply_object();
		json_add_str(o, "code", code);
		json_add_str(o, "message", message);
	}
	print_json(STDERR_FILENO, o);
}

static void on_answer(const struct bus_answer *a, void *user)
{
	struct call *call = user;

	if (a->outcome == BUS_OK) {
		print_json(STDOUT_FILENO, a->result);
		finish(call, EXIT_OK);
		return;
	}
	print_error(a->code, a->message);
	finish(call, a->outcome == BUS_FAILED ? EXIT_FAILED : EXIT_UNREACHABLE);
}

static void on_up(struct bus *b, bool again, void *user)
{
	struct call *call = user;

	(void)again;
	if (call->sent)
		return;
	call->sent = true;
	bus_invoke(
		b, call->function, STEAL(call->request), call->timeout_ms, NULL, on_answer, call);
}

static void on_down(struct bus *b, const char *why, void *user)
{
	struct call *call = user;
	cleanup_free char *message = NULL;

	(void)b;
	/* Once sent, the answer itself says that it was lost. */
	if (call->sent || call->closing)
		return;
	message = xasprintf("the engine at %s cannot be reached: %s", call->url, why);
	print_error("UNREACHABLE", message);
	finish(call, EXIT_UNREACHABLE);
}

static void on_rejected(struct bus *b, const struct bus_rejection *r, void *user)
{
	(void)b;
	if (!r->fatal)
		return;
	print_error(r->code, "the engine refused this client");
	finish(user, EXIT_UNREACHABLE);
}

/* --- the arguments --- */

static int usage(const char *what, const char *arg)
{
	fprintf(stderr, "sandbox-libkrun call: %s%s; see --help\n", what, arg);
	return EXIT_USAGE;
}

static int add_member(json_object *request, const char *arg)
{
	const char *equals = strchr(arg, '=');
	cleanup_free char *name = NULL;
	json_object *v = NULL;

	if (!equals || equals == arg)
		return -EINVAL;
	name = xstrndup(arg, (size_t)(equals - arg));
	if (json_parse(equals + 1, strlen(equals + 1), &v, NULL) < 0)
		json_add_str(request, name, equals + 1);
	else
		reply_add(request, name, v);
	return 0;
}

static int parse(struct call *call, struct bus_options *bus, int argc, char **argv)
{
	static const struct option longs[] = {{"json", required_argument, NULL, 'j'},
		{"url", required_argument, NULL, 'u'}, {"timeout-ms", required_argument, NULL, 't'},
		{"help", no_argument, NULL, 'h'}, {0}};
	struct err e = ERR_INIT;
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'h') {
			fputs(help_text, stdout);
			return -1;
		}
		if (c == '?')
			return EXIT_USAGE;
		if (c == 'u')
			bus->url = optarg;
		else if (c == 't' && (str_u32(optarg, &call->timeout_ms) < 0 || !call->timeout_ms))
			return usage("--timeout-ms is a number above 0, not ", optarg);
		else if (c == 'j' && call->request)
			return usage("only one --json can be given", "");
		else if (c == 'j' && json_parse(optarg, strlen(optarg), &call->request, &e) < 0)
			return usage("--json: ", e.text);
	}
	if (optind == argc)
		return usage("which function?", "");
	call->function = schema_find(argv[optind]) ? xasprintf(API_NAME "::%s", argv[optind])
						   : xstrdup(argv[optind]);
	if (!call->request && optind + 1 <= argc)
		call->request = reply_object();
	while (++optind < argc) {
		if (!json_object_is_type(call->request, json_type_object))
			return usage("--json has to be an object when members are added", "");
		if (add_member(call->request, argv[optind]) < 0)
			return usage("a member is NAME=VALUE, not ", argv[optind]);
	}
	return EXIT_OK;
}

static int run(struct call *call, const struct bus_options *o)
{
	static const struct bus_events ev = {.up = on_up, .down = on_down, .rejected = on_rejected};
	struct err e = ERR_INIT;

	signal(SIGPIPE, SIG_IGN);
	uv_loop_init(&call->loop);
	call->status = EXIT_UNREACHABLE;
	call->url = o->url ? o->url : BUS_URL_DEFAULT;
	call->bus = bus_new(&call->loop, o, &ev, call, &e);
	if (!call->bus)
		usage(e.text, "");
	uv_run(&call->loop, UV_RUN_DEFAULT);
	uv_loop_close(&call->loop);
	return call->bus ? call->status : EXIT_USAGE;
}

int verb_call(int argc, char **argv)
{
	struct call call = {.timeout_ms = CALL_TIMEOUT_MS};
	cleanup_free char *name = xasprintf("sandbox-libkrun-call-%ld", (long)getpid());
	struct bus_options o = {0};
	int status;

	bus_options_from_env(&o);
	/* Not the name of the worker whose environment this may be. */
	o.name = name;
	o.version = SANDBOX_VERSION;
	status = parse(&call, &o, argc, argv);
	if (status == EXIT_OK)
		status = run(&call, &o);
	else if (status < 0)
		status = EXIT_OK;
	json_object_put(call.request);
	free(call.function);
	return status;
}
