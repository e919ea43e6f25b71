/* How it works: one list of entries in order of publication, searched from the front; a daemon has
 * dozens of sandboxes, not thousands. An entry has references: one of the list, one of its VM while
 * that exists, one of each piece of work. It is freed with the last.
 *
 * set_state() is the only place where the state changes and where the entries that count are
 * counted. Everything happens on one thread, so a check and the change that follows it in the same
 * function are atomic.
 */
#include "host/sandbox/pool.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/sandbox/reaper.h"

enum state {
	FETCHING,
	BOOTING,
	LIVE,
	STOPPING,
	DEAD,
	GONE,
};

struct waiter {
	struct waiter *next;
	pool_stopped cb;
	void *user;
};

struct pool_entry {
	struct pool *pool;
	struct pool_entry *prev, *next; /* in the list, until GONE */
	enum state state;
	unsigned refs;
	char id[37];
	char *image, *label;
	size_t label_len;
	struct sandbox *sb; /* from BOOTING until its end */
	bool hidden;	    /* stopped without waiting: out of the list, the VM still ending */
	uint64_t born_ms, active_ms, idle_timeout_secs;
	uint32_t execs, files, pumps;
	struct waiter *waiters;
	char *trace; /* of the call that creates or stops it, or NULL */
	/* until LIVE */
	uint32_t cpus, memory_mb;
	bool network;
	char **env;
	pool_created created;
	void *user;
};

struct pool {
	uv_loop_t *loop;
	struct pool_options o;
	struct pool_entry *first, *last;
	size_t counting;
	size_t vms; /* that have not ended */
	uv_timer_t tick;
	bool closing;
	bool tick_closed;
	void (*closed)(void *user);
	void *closed_user;
};

static uint64_t host_now_ms(void)
{
	return uv_hrtime() / 1000000;
}

static uint64_t now_ms(const struct pool *p)
{
	return p->o.now_ms();
}

/* --- entries --- */

static void unref(struct pool_entry *x)
{
	assert(x->refs > 0);
	if (--x->refs > 0)
		return;
	assert(x->state == GONE && !x->sb && !x->waiters);
	free(x->image);
	free(x->label);
	free(x->trace);
	strv_free(x->env);
	free(x);
}

static bool counts(enum state s)
{
	return s == FETCHING || s == BOOTING || s == LIVE;
}

static void set_state(struct pool_entry *x, enum state to)
{
	static const unsigned char legal[] = {
		[FETCHING] = 1 << BOOTING | 1 << GONE,
		[BOOTING] = 1 << LIVE | 1 << GONE,
		[LIVE] = 1 << STOPPING | 1 << DEAD,
		[STOPPING] = 1 << GONE,
		[DEAD] = 1 << STOPPING | 1 << GONE,
		[GONE] = 0,
	};

	assert(legal[x->state] & 1 << to);
	x->pool->counting += (size_t)counts(to) - (size_t)counts(x->state);
	x->state = to;
}

static void list_add(struct pool_entry *x)
{
	struct pool *p = x->pool;

	x->prev = p->last;
	x->next = NULL;
	if (p->last)
		p->last->next = x;
	else
		p->first = x;
	p->last = x;
}

static void list_remove(struct pool_entry *x)
{
	struct pool *p = x->pool;

	if (x->prev)
		x->prev->next = x->next;
	else
		p->first = x->next;
	if (x->next)
		x->next->prev = x->prev;
	else
		p->last = x->prev;
}

static void maybe_closed(struct pool *p)
{
	if (!p->closing || !p->tick_closed || p->vms || p->first)
		return;
	p->closed(p->closed_user);
	free(p);
}

/* Out of the list; calls that still hold it see GONE. */
static void entry_gone(struct pool_entry *x)
{
	set_state(x, GONE);
	list_remove(x);
	while (x->waiters) {
		struct waiter *w = x->waiters;

		x->waiters = w->next;
		w->cb(w->user);
		free(w);
	}
	unref(x);
}

/* --- creating --- */

int pool_check_room(const struct pool *p, struct err *e)
{
	if (p->closing)
		return err_set(e, "S300", ESHUTDOWN, "the adapter is shutting down");
	if (p->counting < p->o.sandboxes_max)
		return 0;
	return err_set(e, "S400", EBUSY,
		"there are as many sandboxes as max_concurrent_sandboxes allows: %" PRIu32
		"; stop one with sandbox::stop",
		p->o.sandboxes_max);
}

static void create_failed(struct pool_entry *x, const struct err *why, const char *tail)
{
	log_warn("sandbox could not be created", "sandbox=%s image=%s why=%s traceparent=%s", x->id,
		log_quote(x->image), log_quote(why->text), log_quote(x->trace));
	/* The slot is free before anybody hears of the failure. */
	x->refs++;
	entry_gone(x);
	x->created(NULL, why, tail, x->user);
	unref(x);
}

static void on_ready(struct sandbox *sb, void *user)
{
	struct pool_entry *x = user;

	strv_free(STEAL(x->env));
	set_state(x, LIVE);
	x->born_ms = x->active_ms = now_ms(x->pool);
	/* The list is in order of publication. */
	list_remove(x);
	list_add(x);
	log_info("sandbox is ready", "sandbox=%s image=%s vmm=%s tier=%s traceparent=%s", x->id,
		log_quote(x->image), sandbox_backend_name(sb), pool_tier(x), log_quote(x->trace));
	pool_set_trace(x, NULL);
	x->created(x, NULL, "", x->user);
}

/* The agent is gone; on_end follows. */
static void on_lost(struct sandbox *sb, const struct err *why, void *user)
{
	struct pool_entry *x = user;

	(void)sb;
	(void)why;
	if (x->state == LIVE)
		set_state(x, DEAD);
}

static void on_end(struct sandbox *sb, const struct vm_exit *end, void *user)
{
	struct pool_entry *x = user;
	struct pool *p = x->pool;
	struct err why = end->why;

	p->vms--;
	x->sb = NULL;
	switch (x->state) {
	case BOOTING:
		err_code(&why, "S300");
		create_failed(x, &why, end->tail ? end->tail : "");
		break;
	case LIVE:
	case DEAD:
		if (x->state == LIVE)
			set_state(x, DEAD);
		log_warn("the VM of a sandbox ended by itself", "sandbox=%s why=%s last=%s", x->id,
			log_quote(why.text), log_quote(end->tail));
		if (p->closing)
			entry_gone(x);
		break;
	case STOPPING:
		log_info("sandbox is stopped", "sandbox=%s traceparent=%s", x->id,
			log_quote(x->trace));
		entry_gone(x);
		break;
	case FETCHING:
	case GONE:
		assert(false);
	}
	sandbox_free(sb);
	unref(x);
	maybe_closed(p);
}

static void boot(struct pool_entry *x, struct image *img)
{
	static const struct sandbox_callbacks cb = {
		.on_ready = on_ready, .on_lost = on_lost, .on_end = on_end};
	struct sandbox_spec spec = {
		.label = x->id,
		.backend = x->pool->o.backend,
		.vcpus = x->cpus,
		.mem_mib = x->memory_mb,
		.image = img,
		.env = x->env,
		.net = x->network ? &x->pool->o.net : NULL,
	};
	struct err e = ERR_INIT;

	if (sandbox_create(x->pool->loop, &spec, &cb, x, &x->sb, &e) < 0) {
		create_failed(x, &e, "");
		return;
	}
	x->refs++;
	x->pool->vms++;
	set_state(x, BOOTING);
	log_info("sandbox is booting", "sandbox=%s image=%s vmm=%s tier=%s traceparent=%s", x->id,
		log_quote(x->image), sandbox_backend_name(x->sb), pool_tier(x),
		log_quote(x->trace));
	if (sandbox_tier(x->sb) == VM_TIER_EMULATED && x->pool->o.backend == VM_BACKEND_AUTO)
		log_warn("sandbox runs under software emulation, which is no security boundary",
			"sandbox=%s", x->id);
}

static void on_image(struct image *img, const struct err *why, void *user)
{
	struct pool_entry *x = user;
	struct pool *p = x->pool;
	struct err e = ERR_INIT;

	if (img && p->closing) {
		err_set(&e, "S300", ESHUTDOWN, "the adapter is shutting down");
		why = &e;
	}
	if (why)
		create_failed(x, why, "");
	else
		boot(x, img);
	image_close(img);
	maybe_closed(p);
}

void pool_create(struct pool *p, const struct pool_create *c, pool_created cb, void *user)
{
	struct pool_entry *x = xcalloc(1, sizeof(*x));

	assert(p->counting < p->o.sandboxes_max && !p->closing);
	*x = (struct pool_entry){
		.pool = p,
		.refs = 1,
		.image = xstrdup(c->image),
		.idle_timeout_secs = c->idle_timeout_secs,
		.cpus = c->cpus,
		.memory_mb = c->memory_mb,
		.network = c->network,
		.env = strv_dup(c->env),
		.created = cb,
		.user = user,
	};
	pool_set_trace(x, c->traceparent);
	str_uuid4(x->id);
	if (c->label) {
		x->label = xcalloc(c->label_len + 1, 1); /* it may hold NULs */
		memcpy(x->label, c->label, c->label_len);
		x->label_len = c->label_len;
	}
	p->counting++; /* FETCHING counts */
	list_add(x);
	images_get(p->o.images, c->image, c->image_ref, c->may_fetch, on_image, x);
}

/* --- working in one --- */

static bool is_published(const struct pool_entry *x)
{
	return x->state >= LIVE && x->state != GONE && !x->hidden;
}

int pool_find_any(struct pool *p, const char *id, struct pool_entry **ret, struct err *e)
{
	for (struct pool_entry *x = p->first; x; x = x->next) {
		if (is_published(x) && str_eq(x->id, id)) {
			*ret = x;
			return 0;
		}
	}
	return err_set(e, "S002", ENOENT, "there is no sandbox %s", id);
}

static int refuse_stopped(const struct pool_entry *x, struct err *e)
{
	return err_set(e, "S004", ESHUTDOWN,
		x->state == DEAD ? "the VM of sandbox %s has ended" : "sandbox %s is stopped",
		x->id);
}

int pool_find(struct pool *p, const char *id, struct pool_entry **ret, struct err *e)
{
	struct pool_entry *x;
	int r = pool_find_any(p, id, &x, e);

	if (r == 0 && x->state != LIVE)
		r = refuse_stopped(x, e);
	if (r == 0)
		*ret = x;
	return r;
}

static uint32_t *counter(struct pool_entry *x, enum pool_work work)
{
	return work == POOL_EXEC ? &x->execs : work == POOL_FS ? &x->files : &x->pumps;
}

int pool_begin(struct pool_entry *x, enum pool_work work, struct err *e)
{
	if (x->state != LIVE)
		return refuse_stopped(x, e);
	if (work == POOL_EXEC && x->execs >= x->pool->o.execs_max)
		return err_set(e, "S003", EBUSY,
			"sandbox %s runs as many commands as max_concurrent_exec_per_sandbox "
			"allows: %" PRIu32,
			x->id, x->pool->o.execs_max);
	if (work == POOL_PUMP && x->pumps >= POOL_PUMPS_MAX)
		return err_set(e, "S216", EBUSY,
			"sandbox %s has %d channels of fs::read that nobody reads to their end; "
			"read or drop some",
			x->id, POOL_PUMPS_MAX);
	++*counter(x, work);
	x->refs++;
	pool_touch(x);
	return 0;
}

/* Work may end after the pool itself has. */
void pool_touch(struct pool_entry *x)
{
	if (x->state != GONE)
		x->active_ms = now_ms(x->pool);
}

void pool_end(struct pool_entry *x, enum pool_work work)
{
	--*counter(x, work);
	if (work != POOL_PUMP)
		pool_touch(x);
	unref(x);
}

void pool_set_trace(struct pool_entry *x, const char *traceparent)
{
	free(x->trace);
	x->trace = traceparent ? xstrdup(traceparent) : NULL;
}

const char *pool_id(const struct pool_entry *x)
{
	return x->id;
}

const char *pool_image(const struct pool_entry *x)
{
	return x->image;
}

const char *pool_tier(const struct pool_entry *x)
{
	return x->sb && sandbox_tier(x->sb) == VM_TIER_HARDWARE ? "hardware" : "emulated";
}

struct guest *pool_guest(struct pool_entry *x)
{
	assert(x->state == LIVE);
	return sandbox_guest(x->sb);
}

void pool_explain(const struct pool_entry *x, enum pool_work work, struct err *e)
{
	if (x->state == STOPPING || x->state == GONE)
		err_set(e, "S004", ESHUTDOWN, "sandbox %s was stopped meanwhile", x->id);
	else if (work == POOL_EXEC && e->no == ECONNRESET && str_eq(e->code, "S300"))
		err_set(e, "S300", ECONNRESET, "the VM of sandbox %s exited while the command ran",
			x->id);
}

/* --- stopping --- */

static void add_waiter(struct pool_entry *x, pool_stopped cb, void *user)
{
	struct waiter *w = xcalloc(1, sizeof(*w));
	struct waiter **at = &x->waiters;

	w->cb = cb;
	w->user = user;
	while (*at)
		at = &(*at)->next;
	*at = w;
}

static void start_stop(struct pool_entry *x)
{
	set_state(x, STOPPING);
	if (x->sb)
		sandbox_stop(x->sb);
}

void pool_stop(struct pool_entry *x, bool wait, pool_stopped cb, void *user)
{
	if (x->state == STOPPING && !x->hidden) {
		add_waiter(x, cb, user);
		return;
	}
	if (x->state == GONE || x->hidden) {
		cb(user);
		return;
	}
	start_stop(x);
	if (!x->sb) {
		/* The VM had ended by itself. */
		entry_gone(x);
		cb(user);
	} else if (wait) {
		add_waiter(x, cb, user);
	} else {
		x->hidden = true;
		cb(user);
	}
}

/* --- reaping --- */

static void on_reaped(void *user)
{
	(void)user;
}

/* The latest of what callers and what the guest's own network traffic did. */
static uint64_t active_ms(const struct pool_entry *x)
{
	return MAX(x->active_ms, x->state == LIVE ? sandbox_net_active_ms(x->sb) : 0);
}

static void reap_one(struct pool_entry *x, uint64_t now)
{
	struct reaper_facts facts = {
		.active_ms = active_ms(x),
		.idle_timeout_secs = x->idle_timeout_secs,
		.exec_timeout_max_ms = x->pool->o.exec_timeout_max_ms,
		.working = x->execs || x->files,
	};

	if (x->state == DEAD && !x->sb) {
		entry_gone(x);
	} else if (x->state == LIVE && reaper_is_due(&facts, now)) {
		log_info("idle sandbox is stopped",
			"sandbox=%s idle_ms=%" PRIu64 " idle_timeout_secs=%" PRIu64, x->id,
			now - facts.active_ms, x->idle_timeout_secs);
		pool_stop(x, true, on_reaped, NULL);
	}
}

void pool_reap(struct pool *p)
{
	uint64_t now = now_ms(p);

	for (struct pool_entry *x = p->first, *next; x; x = next) {
		next = x->next;
		reap_one(x, now);
	}
}

static void on_tick(uv_timer_t *t)
{
	pool_reap(t->data);
}

/* --- listing --- */

static int by_age(const void *a, const void *b)
{
	const struct pool_entry *x = *(const struct pool_entry *const *)a;
	const struct pool_entry *y = *(const struct pool_entry *const *)b;

	if (x->born_ms != y->born_ms)
		return x->born_ms < y->born_ms ? -1 : 1;
	return strcmp(x->id, y->id);
}

static struct pool_row row_of(const struct pool_entry *x, uint64_t now)
{
	uint32_t max = x->pool->o.execs_max;
	bool stopped = x->state != LIVE;

	return (struct pool_row){
		.id = x->id,
		.image = x->image,
		.label = x->label,
		.label_len = x->label_len,
		.age_secs = (now - x->born_ms) / 1000,
		.execs = x->execs,
		.execs_free = stopped || x->execs >= max ? 0 : max - x->execs,
		.stopped = stopped,
	};
}

size_t pool_list(struct pool *p, struct pool_row **ret)
{
	cleanup_free struct pool_entry **found = NULL;
	uint64_t now = now_ms(p);
	struct pool_row *rows;
	size_t n = 0, i = 0;

	for (const struct pool_entry *x = p->first; x; x = x->next)
		n += is_published(x);
	found = xcalloc(n + 1, sizeof(struct pool_entry *));
	for (struct pool_entry *x = p->first; x; x = x->next)
		if (is_published(x))
			found[i++] = x;
	qsort(found, n, sizeof(struct pool_entry *), by_age);
	rows = xcalloc(n + 1, sizeof(*rows));
	for (i = 0; i < n; i++)
		rows[i] = row_of(found[i], now);
	*ret = rows;
	return n;
}

/* --- life --- */

struct pool *pool_new(uv_loop_t *loop, const struct pool_options *o)
{
	struct pool *p = xcalloc(1, sizeof(*p));

	assert(o->execs_max >= 1);
	p->loop = loop;
	p->o = *o;
	if (!p->o.now_ms)
		p->o.now_ms = host_now_ms;
	uv_timer_init(loop, &p->tick);
	p->tick.data = p;
	uv_timer_start(&p->tick, on_tick, REAPER_TICK_MS, REAPER_TICK_MS);
	return p;
}

static void on_tick_closed(uv_handle_t *h)
{
	struct pool *p = h->data;

	p->tick_closed = true;
	maybe_closed(p);
}

/* Ends an entry whatever it is doing. */
static void close_entry(struct pool_entry *x)
{
	switch (x->state) {
	case LIVE:
		start_stop(x);
		break;
	case DEAD:
		if (!x->sb)
			entry_gone(x);
		break;
	case BOOTING:
		sandbox_stop(x->sb);
		break;
	case FETCHING: /* the end of the images ends it */
	case STOPPING:
	case GONE:
		break;
	}
}

void pool_close(struct pool *p, void (*closed)(void *user), void *user)
{
	p->closing = true;
	p->closed = closed;
	p->closed_user = user;
	for (struct pool_entry *x = p->first, *next; x; x = next) {
		next = x->next;
		close_entry(x);
	}
	uv_close((uv_handle_t *)&p->tick, on_tick_closed);
}
