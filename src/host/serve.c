#include "host/serve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/api/api.h"
#include "host/config.h"
#include "host/verbs.h"
#include "host/vm/backend.h"
#include "host/vm/net.h"

enum state {
	CONNECTING,
	ASKING,
	SERVING,
	CLOSING,
};

static const int end_signals[] = {SIGTERM, SIGINT, SIGHUP};

struct serve {
	uv_loop_t *loop;
	struct serve_options o;
	enum state state;
	int status;
	struct bus *bus;
	struct config config;
	/* from SERVING on */
	struct images *images;
	struct pool *pool;
	struct workers *workers;
	struct api *api;
	unsigned open_parts; /* of images, pool and workers, while CLOSING */
	uv_signal_t signals[ARRAY_LEN(end_signals)];
	unsigned open_signals;
};

const char *serve_config_id(void)
{
	const char *id = getenv("III_CONFIG_NAME");

	return id && *id ? id : API_NAME;
}

int serve_backend_from_env(enum vm_backend_choice *ret, struct err *e)
{
	const char *word = getenv("III_SANDBOX_VMM");

	*ret = VM_BACKEND_KRUN;
	if (!word || !*word || vm_backend_parse(word, ret) == 0)
		return 0;
	return err_set(e, "", EINVAL, "III_SANDBOX_VMM must be krun, qemu or auto, not '%s'", word);
}

/* --- the end --- */

static void on_signal_closed(uv_handle_t *h)
{
	struct serve *s = h->data;

	if (--s->open_signals > 0)
		return;
	s->o.ended(s->status, s->o.user);
	free(s);
}

static void on_bus_closed(void *user)
{
	struct serve *s = user;

	api_free(s->api);
	config_done(&s->config);
	for (size_t i = 0; i < ARRAY_LEN(s->signals); i++)
		uv_close((uv_handle_t *)&s->signals[i], on_signal_closed);
}

static void on_api_closed(void *user)
{
	struct serve *s = user;

	workers_free(STEAL(s->workers));
	bus_close(s->bus, on_bus_closed, s);
}

static void on_part_closed(void *user)
{
	struct serve *s = user;

	if (--s->open_parts > 0)
		return;
	api_close(s->api, on_api_closed, s);
}

/* In one turn: what waits for images is told by their end. */
static void close_parts(struct serve *s)
{
	s->open_parts = 3;
	pool_close(s->pool, on_part_closed, s);
	workers_close(s->workers, on_part_closed, s);
	images_close(s->images, on_part_closed, s);
}

void serve_stop(struct serve *s, int status)
{
	if (s->state == CLOSING)
		return;
	s->state = CLOSING;
	s->status = status;
	if (s->api)
		api_stop(s->api);
	if (s->pool)
		close_parts(s);
	else
		bus_close(s->bus, on_bus_closed, s);
}

static void on_signal(uv_signal_t *h, int signo)
{
	struct serve *s = h->data;

	/* The VMs' supervisors see our end and take their VMs along. */
	if (s->state == CLOSING)
		_exit(128 + signo);
	log_info("shutting down", "signal=%d", signo);
	serve_stop(s, EXIT_OK);
}

/* --- the configuration --- */

static void start_serving(struct serve *s)
{
	const struct vm_net net = {s->o.host_ports.ports, s->o.host_ports.n};
	struct err e = ERR_INIT;

	s->images = images_new(s->loop);
	s->pool = pool_new(s->loop, &(struct pool_options){
					    .sandboxes_max = s->config.max_concurrent_sandboxes,
					    .execs_max = s->config.max_concurrent_exec_per_sandbox,
					    .exec_timeout_max_ms = s->config.max_exec_timeout_ms,
					    .backend = s->o.backend,
					    .images = s->images,
					    .net = net,
				    });
	s->workers = workers_new(s->loop, &(struct workers_options){
						  .backend = s->o.backend,
						  .images = s->images,
						  .host_ports = net.host_ports,
						  .n_host_ports = net.n_host_ports,
					  });
	s->api = api_new(s->bus, s->pool, s->workers, &s->config, SANDBOX_VERSION);
	if (api_register(s->api, &e) < 0) {
		log_error("functions cannot be registered", "why=%s", log_quote(e.text));
		serve_stop(s, EXIT_FAILED);
		return;
	}
	s->state = SERVING;
	log_info("serving", "version=%s max_concurrent_sandboxes=%u", SANDBOX_VERSION,
		s->config.max_concurrent_sandboxes);
	if (s->o.ready)
		s->o.ready(s->o.user);
}

/* A configuration that cannot be read or does not hold is never replaced by another. */
static void refuse(struct serve *s, const char *why)
{
	fprintf(stderr, "sandbox-libkrun: entry %s: %s\n", s->o.config_id, why);
	serve_stop(s, EXIT_USAGE);
}

static void on_config(
	enum bus_config_outcome outcome, json_object *value, const char *why, void *user)
{
	struct serve *s = user;
	struct err e = ERR_INIT;

	if (s->state != ASKING)
		return;
	switch (outcome) {
	case BUS_CONFIG_LOST:
		s->state = CONNECTING;
		break;
	case BUS_CONFIG_FAILED:
		refuse(s, why);
		break;
	case BUS_CONFIG_ABSENT:
		log_warn("there is no configuration entry: using the shipped one", "entry=%s",
			log_quote(s->o.config_id));
		config_init_shipped(&s->config);
		start_serving(s);
		break;
	case BUS_CONFIG_VALUE:
		if (config_parse(value, &s->config, &e) < 0)
			refuse(s, e.text);
		else
			start_serving(s);
		break;
	}
}

/* --- the bus --- */

static void on_up(struct bus *b, bool again, void *user)
{
	struct serve *s = user;

	(void)again;
	if (s->state != CONNECTING)
		return;
	s->state = ASKING;
	if (bus_config_get(b, s->o.config_id, SERVE_CONFIG_MS, on_config, s) < 0)
		s->state = CONNECTING; /* the former question is still to be answered as lost */
}

static void on_rejected(struct bus *b, const struct bus_rejection *r, void *user)
{
	struct serve *s = user;

	(void)b;
	log_error("the engine refused a registration", "code=%s function=%s worker=%s owner=%s",
		log_quote(r->code), log_quote(r->function_id), log_quote(r->worker_name),
		log_quote(r->owner));
	if (r->fatal)
		serve_stop(s, EXIT_FAILED);
}

static void on_bad_call(struct bus_call *c, const struct err *why, void *user)
{
	(void)user;
	api_bad_call(c, why);
}

/* --- the start --- */

/* Said once at the start, so that nobody has to wait for the first create to learn of it. */
static void log_backend(enum vm_backend_choice choice)
{
	const struct vm_backend *be;
	struct err e = ERR_INIT;

	if (vm_backend_choose(choice, &be, &e) < 0)
		log_warn("this host cannot run sandboxes: create will fail", "why=%s",
			log_quote(e.text));
	else if (be->tier == VM_TIER_EMULATED)
		log_warn("sandboxes run under software emulation, which is slow and no security "
			 "boundary",
			"vmm=%s tier=emulated", be->name);
	else
		log_info("sandboxes run on hardware", "vmm=%s tier=hardware", be->name);
}

static void log_network(void)
{
	struct net_facts f;

	net_facts_get(&f);
	if (f.passt && net_passt_is_old(f.passt))
		log_warn("passt is of before 2024: what a guest is sent can stall once the guest "
			 "has closed its half of the connection",
			"passt=%s", f.passt);
	net_facts_done(&f);
}

static void watch_signals(struct serve *s)
{
	for (size_t i = 0; i < ARRAY_LEN(end_signals); i++) {
		uv_signal_init(s->loop, &s->signals[i]);
		s->signals[i].data = s;
		uv_signal_start(&s->signals[i], on_signal, end_signals[i]);
		s->open_signals++;
	}
}

struct serve *serve_new(uv_loop_t *loop, const struct serve_options *o, struct err *e)
{
	static const struct bus_events ev = {
		.up = on_up, .rejected = on_rejected, .bad_call = on_bad_call};
	struct serve *s = xcalloc(1, sizeof(*s));

	s->loop = loop;
	s->o = *o;
	log_backend(o->backend);
	log_network();
	s->bus = bus_new(loop, &o->bus, &ev, s, e);
	if (!s->bus) {
		free(s);
		return NULL;
	}
	watch_signals(s);
	return s;
}
