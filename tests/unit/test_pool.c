/* The pool with sandboxes, images and a clock of the test's own: what it admits, whom it lets work,
 * and how everything ends. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <uv.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/sandbox/pool.h"
#include "host/sandbox/reaper.h"

#define HANG_GUARD_MS 60000

/* --- sandboxes that do what the test says --- */

struct sandbox {
	struct sandbox *next;
	const struct sandbox_callbacks *cb;
	uint64_t net_active_ms;
	void *user;
	bool stopped;
};

static struct {
	struct sandbox *all; /* newest first; not yet freed */
	unsigned created;
	bool refuse;
} fake;

int sandbox_create(uv_loop_t *loop, const struct sandbox_spec *spec,
	const struct sandbox_callbacks *cb, void *user, struct sandbox **ret, struct err *e)
{
	struct sandbox *sb;

	assert_non_null(spec->image);
	if (fake.refuse)
		return err_set(e, "S300", ENOTSUP, "no hypervisor here");
	sb = xcalloc(1, sizeof(*sb));
	*sb = (struct sandbox){.next = fake.all, .cb = cb, .user = user};
	fake.all = sb;
	fake.created++;
	*ret = sb;
	return 0;
}

struct guest *sandbox_guest(struct sandbox *sb)
{
	return (struct guest *)sb;
}

enum vm_tier sandbox_tier(const struct sandbox *sb)
{
	return VM_TIER_EMULATED;
}

const char *sandbox_backend_name(const struct sandbox *sb)
{
	return "fake";
}

uint64_t sandbox_net_active_ms(const struct sandbox *sb)
{
	return sb->net_active_ms;
}

void sandbox_stop(struct sandbox *sb)
{
	sb->stopped = true;
}

void sandbox_free(struct sandbox *sb)
{
	struct sandbox **at = &fake.all;

	while (*at != sb)
		at = &(*at)->next;
	*at = sb->next;
	free(sb);
}

/* The end of its VM, as the loop would report it. */
static void vm_ends(struct sandbox *sb, enum vm_end end, const char *why, const char *tail)
{
	struct vm_exit x = {.end = end, .tail = tail};

	err_set(&x.why, "S300", EIO, "%s", why);
	sb->cb->on_end(sb, &x, sb->user);
}

/* --- images --- */

static struct {
	uv_mutex_t lock;
	uv_cond_t released;
	bool cached, hold, fail;
	unsigned fetches;
} store;

int image_open(const char *name, struct image **ret, struct err *e)
{
	bool cached;

	uv_mutex_lock(&store.lock);
	cached = store.cached;
	uv_mutex_unlock(&store.lock);
	if (!cached)
		return err_set(e, "S101", ENOENT, "not here");
	*ret = xcalloc(1, sizeof(**ret));
	return 0;
}

int image_fetch(const char *source, const char *as, image_progress_fn progress, void *user,
	bool (*cancelled)(void *user), struct err *e)
{
	int r = 0;

	progress(&(struct image_progress){"pull", 1, 2}, user);
	uv_mutex_lock(&store.lock);
	store.fetches++;
	while (store.hold && !cancelled(user))
		uv_cond_timedwait(&store.released, &store.lock, 20 * 1000 * 1000);
	if (cancelled(user))
		r = err_set(e, "", ECANCELED, "broken off");
	else if (store.fail)
		r = err_set(e, "S102", EIO, "the registry is on fire");
	else
		store.cached = true;
	uv_mutex_unlock(&store.lock);
	return r;
}

void image_close(struct image *img)
{
	free(img);
}

static void set_store(bool cached, bool hold, bool fail)
{
	uv_mutex_lock(&store.lock);
	store.cached = cached;
	store.hold = hold;
	store.fail = fail;
	uv_cond_broadcast(&store.released);
	uv_mutex_unlock(&store.lock);
}

/* --- the rig --- */

static uint64_t the_time_ms;

static uint64_t test_now(void)
{
	return the_time_ms;
}

/* What came of one create. */
struct created {
	unsigned calls;
	struct pool_entry *x;
	char id[37];
	struct err why;
	char tail[64];
};

static void on_created(struct pool_entry *x, const struct err *why, const char *tail, void *user)
{
	struct created *c = user;

	c->calls++;
	c->x = x;
	if (x)
		memcpy(c->id, pool_id(x), sizeof(c->id));
	else
		c->why = *why;
	snprintf(c->tail, sizeof(c->tail), "%s", tail);
}

struct rig {
	uv_loop_t loop;
	uv_timer_t guard;
	struct pool *pool;
	struct images *images;
	unsigned n_closed; /* pool and images */
	bool hung, closed;
};

static void on_guard(uv_timer_t *t)
{
	*(bool *)t->data = true;
}

static void turn(struct rig *r)
{
	uv_run(&r->loop, UV_RUN_ONCE);
	if (r->hung)
		fail_msg("the awaited event never came");
}

static int set_up(void **state)
{
	struct rig *r = xcalloc(1, sizeof(*r));

	the_time_ms = 1000000;
	fake.refuse = false;
	fake.created = 0;
	store.fetches = 0;
	set_store(true, false, false);
	uv_loop_init(&r->loop);
	uv_timer_init(&r->loop, &r->guard);
	r->guard.data = &r->hung;
	uv_timer_start(&r->guard, on_guard, HANG_GUARD_MS, 0);
	r->images = images_new(&r->loop);
	r->pool = pool_new(&r->loop, &(struct pool_options){.sandboxes_max = 2,
					     .images = r->images,
					     .execs_max = 2,
					     .exec_timeout_max_ms = 5000,
					     .now_ms = test_now});
	*state = r;
	return 0;
}

static void on_closed(void *user)
{
	struct rig *r = user;

	r->closed = ++r->n_closed == 2;
}

static void close_pool(struct rig *r)
{
	pool_close(r->pool, on_closed, r);
	images_close(r->images, on_closed, r);
}

/* Sandboxes that were told to stop do. */
static void end_stopped(void)
{
	struct sandbox *sb = fake.all, *next;

	for (; sb; sb = next) {
		next = sb->next;
		if (sb->stopped)
			vm_ends(sb, VM_END_STOPPED, "stopped", "");
	}
}

static int tear_down(void **state)
{
	struct rig *r = *state;

	set_store(true, false, false);
	if (r->pool)
		close_pool(r);
	while (!r->closed) {
		end_stopped();
		turn(r);
	}
	assert_null(fake.all);
	uv_close((uv_handle_t *)&r->guard, NULL);
	uv_run(&r->loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&r->loop), 0);
	free(r);
	return 0;
}

static void create_as(struct rig *r, struct created *c, const struct pool_create *spec)
{
	*c = (struct created){0};
	assert_int_equal(pool_check_room(r->pool, NULL), 0);
	pool_create(r->pool, spec, on_created, c);
}

static struct pool_create spec_of(uint64_t idle_timeout_secs)
{
	return (struct pool_create){.image = "python",
		.image_ref = "docker.io/iiidev/python:latest",
		.may_fetch = true,
		.cpus = 1,
		.memory_mb = 64,
		.idle_timeout_secs = idle_timeout_secs};
}

static void create(struct rig *r, struct created *c)
{
	struct pool_create spec = spec_of(300);

	create_as(r, c, &spec);
}

static void wait_for_boots(struct rig *r, unsigned n)
{
	while (fake.created < n)
		turn(r);
}

/* A live sandbox, and its fake. */
static struct sandbox *live(struct rig *r, struct created *c, uint64_t idle_timeout_secs)
{
	struct pool_create spec = spec_of(idle_timeout_secs);
	unsigned before = fake.created;

	create_as(r, c, &spec);
	wait_for_boots(r, before + 1);
	fake.all->cb->on_ready(fake.all, fake.all->user);
	assert_int_equal(c->calls, 1);
	assert_non_null(c->x);
	return fake.all;
}

static size_t listed(struct rig *r)
{
	struct pool_row *rows;
	size_t n = pool_list(r->pool, &rows);

	free(rows);
	return n;
}

static void expect_code(int r, const struct err *e, const char *code, const char *part)
{
	assert_true(r < 0);
	assert_string_equal(e->code, code);
	if (!strstr(e->text, part))
		fail_msg("'%s' is not in '%s'", part, e->text);
}

static void count(void *user)
{
	++*(unsigned *)user;
}

/* --- admission --- */

static void exactly_as_many_as_there_is_room_for(void **state)
{
	struct rig *r = *state;
	struct pool_create spec = spec_of(300);
	static struct created c[5];
	struct err e = ERR_INIT;
	unsigned refused = 0;

	for (int i = 0; i < 5; i++) {
		if (pool_check_room(r->pool, &e) < 0)
			refused++;
		else
			pool_create(r->pool, &spec, on_created, &c[i]);
	}
	assert_int_equal(refused, 3);
	expect_code(-1, &e, "S400", "max_concurrent_sandboxes");
	expect_code(-1, &e, "S400", "2");
	wait_for_boots(r, 2);
	assert_int_equal(listed(r), 0); /* not before the agent is ready */
	assert_true(pool_check_room(r->pool, &e) < 0);
	for (struct sandbox *sb = fake.all; sb; sb = sb->next)
		sb->cb->on_ready(sb, sb->user);
	assert_int_equal(listed(r), 2);
	assert_true(pool_check_room(r->pool, &e) < 0);
}

static void a_failed_boot_gives_its_place_back(void **state)
{
	struct rig *r = *state;
	static struct created c[2];

	create(r, &c[0]);
	create(r, &c[1]);
	wait_for_boots(r, 2);
	vm_ends(fake.all, VM_END_BOOT_TIMEOUT, "no agent after 30000 ms", "last words");
	assert_int_equal(c[0].calls + c[1].calls, 1);
	struct created *failed = c[0].calls ? &c[0] : &c[1];
	assert_null(failed->x);
	expect_code(-1, &failed->why, "S300", "30000");
	assert_string_equal(failed->tail, "last words");
	assert_int_equal(pool_check_room(r->pool, NULL), 0);
}

static void no_hypervisor_is_told_at_once(void **state)
{
	struct rig *r = *state;
	static struct created c;

	fake.refuse = true;
	create(r, &c);
	while (!c.calls)
		turn(r);
	expect_code(-1, &c.why, "S300", "no hypervisor");
	assert_int_equal(pool_check_room(r->pool, NULL), 0);
}

/* --- images --- */

static void one_fetch_serves_all_who_wait(void **state)
{
	struct rig *r = *state;
	static struct created c[2];

	set_store(false, true, false);
	create(r, &c[0]);
	create(r, &c[1]);
	/* Both are waiting for the fetch when the loop has nothing else to do. */
	for (int i = 0; i < 4; i++)
		uv_run(&r->loop, UV_RUN_NOWAIT);
	assert_true(pool_check_room(r->pool, NULL) < 0);
	set_store(false, false, false);
	wait_for_boots(r, 2);
	assert_int_equal(store.fetches, 1);
}

static void a_failed_fetch_fails_all_and_is_not_remembered(void **state)
{
	struct rig *r = *state;
	static struct created c[2];

	set_store(false, false, true);
	create(r, &c[0]);
	create(r, &c[1]);
	while (!c[0].calls || !c[1].calls)
		turn(r);
	expect_code(-1, &c[0].why, "S102", "python");
	expect_code(-1, &c[1].why, "S102", "on fire");
	assert_int_equal(pool_check_room(r->pool, NULL), 0);
	set_store(false, false, false);
	create(r, &c[0]);
	wait_for_boots(r, 1);
}

static void without_auto_install_nothing_is_fetched(void **state)
{
	struct rig *r = *state;
	struct pool_create spec = spec_of(300);
	static struct created c;

	set_store(false, false, false);
	spec.may_fetch = false;
	create_as(r, &c, &spec);
	while (!c.calls)
		turn(r);
	expect_code(-1, &c.why, "S101", "python");
	assert_int_equal(store.fetches, 0);
}

/* --- working --- */

static void slots_are_exact(void **state)
{
	struct rig *r = *state;
	static struct created c;
	struct pool_row *rows;
	struct err e = ERR_INIT;

	live(r, &c, 300);
	assert_int_equal(pool_begin(c.x, POOL_EXEC, &e), 0);
	assert_int_equal(pool_begin(c.x, POOL_EXEC, &e), 0);
	expect_code(pool_begin(c.x, POOL_EXEC, &e), &e, "S003", c.id);
	expect_code(-1, &e, "S003", "max_concurrent_exec_per_sandbox");
	for (int i = 0; i < 100; i++)
		assert_int_equal(pool_begin(c.x, POOL_FS, &e), 0);
	assert_int_equal(pool_list(r->pool, &rows), 1);
	assert_int_equal(rows[0].execs, 2);
	assert_int_equal(rows[0].execs_free, 0);
	free(rows);
	pool_end(c.x, POOL_EXEC);
	assert_int_equal(pool_begin(c.x, POOL_EXEC, &e), 0);
	pool_end(c.x, POOL_EXEC);
	pool_end(c.x, POOL_EXEC);
	for (int i = 0; i < 100; i++)
		pool_end(c.x, POOL_FS);
	assert_int_equal(pool_list(r->pool, &rows), 1);
	assert_int_equal(rows[0].execs_free, 2);
	free(rows);
}

static void unread_channels_have_a_limit(void **state)
{
	struct rig *r = *state;
	static struct created c;
	struct err e = ERR_INIT;

	live(r, &c, 300);
	for (int i = 0; i < POOL_PUMPS_MAX; i++)
		assert_int_equal(pool_begin(c.x, POOL_PUMP, &e), 0);
	expect_code(pool_begin(c.x, POOL_PUMP, &e), &e, "S216", c.id);
	for (int i = 0; i < POOL_PUMPS_MAX; i++)
		pool_end(c.x, POOL_PUMP);
}

static void ids_are_looked_up_whole(void **state)
{
	struct rig *r = *state;
	struct pool_entry *x;
	static struct created c;
	struct err e = ERR_INIT;

	live(r, &c, 300);
	assert_int_equal(pool_find(r->pool, c.id, &x, &e), 0);
	assert_ptr_equal(x, c.x);
	expect_code(pool_find(r->pool, "00000000-0000-0000-0000-000000000000", &x, &e), &e, "S002",
		"00000000-0000-0000-0000-000000000000");
}

/* --- the list --- */

static void the_list_is_oldest_first(void **state)
{
	struct rig *r = *state;
	static struct created c[2];
	struct pool_row *rows;
	struct pool_create spec = spec_of(300);

	spec.label = "x\0y";
	spec.label_len = 3;
	create(r, &c[0]);
	create_as(r, &c[1], &spec);
	wait_for_boots(r, 2);
	/* The one that was asked for last is ready first. */
	fake.all->cb->on_ready(fake.all, fake.all->user);
	struct created *first = c[0].calls ? &c[0] : &c[1];
	the_time_ms += 2500;
	fake.all->next->cb->on_ready(fake.all->next, fake.all->next->user);
	assert_int_equal(pool_list(r->pool, &rows), 2);
	assert_string_equal(rows[0].id, first->id);
	assert_int_equal(rows[0].age_secs, 2);
	assert_int_equal(rows[1].age_secs, 0);
	const struct pool_row *labelled = rows[0].label ? &rows[0] : &rows[1];
	assert_int_equal(labelled->label_len, 3);
	assert_memory_equal(labelled->label, "x\0y", 3);
	assert_false(rows[0].stopped);
	free(rows);
}

/* --- stopping --- */

static void a_stop_that_nobody_waits_for(void **state)
{
	struct rig *r = *state;
	static struct created c, other;
	struct pool_entry *x;
	struct err e = ERR_INIT;
	unsigned stopped = 0;
	struct sandbox *sb = live(r, &c, 300);

	create(r, &other);
	assert_true(pool_check_room(r->pool, NULL) < 0);
	pool_stop(c.x, false, count, &stopped);
	assert_int_equal(stopped, 1);
	assert_true(sb->stopped);
	assert_int_equal(listed(r), 0);
	assert_int_equal(pool_check_room(r->pool, NULL), 0);
	expect_code(pool_find_any(r->pool, c.id, &x, &e), &e, "S002", c.id);
	expect_code(pool_find(r->pool, c.id, &x, &e), &e, "S002", c.id);
	vm_ends(sb, VM_END_STOPPED, "stopped", "");
	wait_for_boots(r, 2);
}

static void stops_that_wait_end_together(void **state)
{
	struct rig *r = *state;
	struct pool_entry *x;
	static struct created c;
	struct pool_row *rows;
	struct err e = ERR_INIT;
	unsigned stopped = 0;
	struct sandbox *sb = live(r, &c, 300);

	pool_stop(c.x, true, count, &stopped);
	assert_int_equal(pool_find_any(r->pool, c.id, &x, &e), 0);
	pool_stop(x, false, count, &stopped);
	assert_int_equal(stopped, 0);
	expect_code(pool_find(r->pool, c.id, &x, &e), &e, "S004", c.id);
	expect_code(pool_begin(c.x, POOL_FS, &e), &e, "S004", c.id);
	assert_int_equal(pool_list(r->pool, &rows), 1);
	assert_true(rows[0].stopped);
	assert_int_equal(rows[0].execs_free, 0);
	free(rows);
	assert_int_equal(pool_check_room(r->pool, NULL), 0);
	vm_ends(sb, VM_END_STOPPED, "stopped", "");
	assert_int_equal(stopped, 2);
	assert_int_equal(listed(r), 0);
	expect_code(pool_find_any(r->pool, c.id, &x, &e), &e, "S002", c.id);
}

static void work_that_a_stop_ends_is_told_so(void **state)
{
	struct rig *r = *state;
	static struct created c;
	struct err e = ERR_INIT;
	unsigned stopped = 0;
	struct sandbox *sb = live(r, &c, 300);

	assert_int_equal(pool_begin(c.x, POOL_EXEC, &e), 0);
	pool_stop(c.x, true, count, &stopped);
	err_set(&e, "S300", ECONNRESET, "the agent is gone");
	pool_explain(c.x, POOL_EXEC, &e);
	expect_code(-1, &e, "S004", c.id);
	/* Still held when the VM is gone. */
	vm_ends(sb, VM_END_STOPPED, "stopped", "");
	pool_touch(c.x);
	pool_end(c.x, POOL_EXEC);
}

static void a_vm_that_dies_by_itself(void **state)
{
	struct rig *r = *state;
	struct pool_entry *x;
	static struct created c;
	struct pool_row *rows;
	struct err e = ERR_INIT, why = ERR_INIT;
	struct sandbox *sb = live(r, &c, 300);

	assert_int_equal(pool_begin(c.x, POOL_EXEC, &e), 0);
	err_set(&e, "S300", ECONNRESET, "the agent is gone");
	pool_explain(c.x, POOL_EXEC, &e);
	expect_code(-1, &e, "S300", "exited");
	err_set(&e, "S216", ECONNRESET, "the agent is gone");
	pool_explain(c.x, POOL_FS, &e);
	expect_code(-1, &e, "S216", "gone");
	pool_end(c.x, POOL_EXEC);
	err_set(&why, "S300", ECONNRESET, "gone");
	sb->cb->on_lost(sb, &why, sb->user);
	expect_code(pool_find(r->pool, c.id, &x, &e), &e, "S004", c.id);
	pool_reap(r->pool); /* nothing to take away while the VM is ending */
	assert_int_equal(pool_list(r->pool, &rows), 1);
	assert_true(rows[0].stopped);
	free(rows);
	vm_ends(sb, VM_END_GUEST_CRASH, "panic", "");
	expect_code(pool_find(r->pool, c.id, &x, &e), &e, "S004", c.id);
	assert_int_equal(pool_check_room(r->pool, NULL), 0);
	pool_reap(r->pool);
	expect_code(pool_find(r->pool, c.id, &x, &e), &e, "S002", c.id);
}

static void a_dead_one_can_be_stopped(void **state)
{
	struct rig *r = *state;
	struct pool_entry *x;
	static struct created c[2];
	struct err e = ERR_INIT, why = ERR_INIT;
	unsigned stopped = 0;
	struct sandbox *sb = live(r, &c[0], 300), *second;

	vm_ends(sb, VM_END_GUEST_CRASH, "panic", "");
	pool_stop(c[0].x, true, count, &stopped);
	assert_int_equal(stopped, 1);
	expect_code(pool_find_any(r->pool, c[0].id, &x, &e), &e, "S002", c[0].id);

	/* The agent is gone, the VM not yet. */
	second = live(r, &c[1], 300);
	second->cb->on_lost(second, &why, second->user);
	pool_stop(c[1].x, true, count, &stopped);
	assert_int_equal(stopped, 1);
	vm_ends(second, VM_END_STOPPED, "stopped", "");
	assert_int_equal(stopped, 2);
}

/* --- reaping --- */

static void idle_ones_are_reaped(void **state)
{
	struct rig *r = *state;
	static struct created c;
	struct err e = ERR_INIT;
	struct sandbox *sb = live(r, &c, 10);

	the_time_ms += 10000;
	pool_reap(r->pool);
	assert_false(sb->stopped); /* strictly more */
	the_time_ms += 1;
	pool_touch(c.x);
	the_time_ms += 9999;
	pool_reap(r->pool);
	assert_false(sb->stopped);
	assert_int_equal(pool_begin(c.x, POOL_EXEC, &e), 0);
	the_time_ms += 70000;
	pool_reap(r->pool);
	assert_false(sb->stopped); /* a command runs */
	pool_end(c.x, POOL_EXEC);
	the_time_ms += 10001;
	pool_reap(r->pool);
	assert_true(sb->stopped);
	assert_int_equal(listed(r), 1);
	vm_ends(sb, VM_END_STOPPED, "stopped", "");
	assert_int_equal(listed(r), 0);
}

static void network_payload_keeps_a_sandbox(void **state)
{
	struct rig *r = *state;
	static struct created c;
	struct sandbox *sb = live(r, &c, 10);

	the_time_ms += 10001;
	sb->net_active_ms = the_time_ms - 1;
	pool_reap(r->pool);
	assert_false(sb->stopped);
	the_time_ms += 10000;
	pool_reap(r->pool);
	assert_true(sb->stopped);
}

static void a_channel_that_nobody_reads_keeps_nothing_alive(void **state)
{
	struct rig *r = *state;
	static struct created c;
	struct err e = ERR_INIT;
	struct sandbox *sb = live(r, &c, 10);

	assert_int_equal(pool_begin(c.x, POOL_PUMP, &e), 0);
	the_time_ms += 10001;
	pool_reap(r->pool);
	assert_true(sb->stopped);
	pool_end(c.x, POOL_PUMP);
}

static void when_it_is_due(void **state)
{
	static const struct {
		struct reaper_facts facts;
		uint64_t now_ms;
		bool due;
	} rows[] = {
		{{0, 0, 1000, false}, 0, false}, {{0, 0, 1000, false}, 1, true},
		{{5, 1, 1000, false}, 1005, false}, {{5, 1, 1000, false}, 1006, true},
		{{5, 1, 1000, true}, 1006, false},
		{{0, 1, 1000, true}, 1000 + 1000 + REAPER_WORK_GRACE_MS, false},
		{{0, 1, 1000, true}, 1000 + 1000 + REAPER_WORK_GRACE_MS + 1, true},
		{{0, UINT64_MAX, 1000, false}, UINT64_MAX, false},
		{{0, UINT64_MAX / 1000 + 1, 1000, true}, UINT64_MAX, false},
		{{0, 1, UINT64_MAX, true}, UINT64_MAX, false},
		{{10, 0, 0, false}, 5, false}, /* a clock that is asked too early */
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (reaper_is_due(&rows[i].facts, rows[i].now_ms) != rows[i].due)
			fail_msg("row %zu", i);
}

/* --- closing --- */

static void closing_ends_everything(void **state)
{
	struct rig *r = *state;
	static struct created c[2];
	struct err e = ERR_INIT;

	live(r, &c[0], 300);
	set_store(false, true, false);
	create(r, &c[1]);
	for (int i = 0; i < 4; i++)
		uv_run(&r->loop, UV_RUN_NOWAIT);
	close_pool(r);
	expect_code(pool_check_room(r->pool, &e), &e, "S300", "shutting down");
	r->pool = NULL;
	while (!r->closed) {
		end_stopped();
		turn(r);
	}
	assert_int_equal(c[1].calls, 1);
	assert_null(c[1].x);
}

static void closing_ends_a_boot(void **state)
{
	struct rig *r = *state;
	static struct created c;

	create(r, &c);
	wait_for_boots(r, 1);
	close_pool(r);
	r->pool = NULL;
	assert_true(fake.all->stopped);
	while (!r->closed) {
		end_stopped();
		turn(r);
	}
	assert_int_equal(c.calls, 1);
	assert_null(c.x);
}

#define WITH_RIG(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_RIG(exactly_as_many_as_there_is_room_for),
		WITH_RIG(a_failed_boot_gives_its_place_back),
		WITH_RIG(no_hypervisor_is_told_at_once),
		WITH_RIG(one_fetch_serves_all_who_wait),
		WITH_RIG(a_failed_fetch_fails_all_and_is_not_remembered),
		WITH_RIG(without_auto_install_nothing_is_fetched),
		WITH_RIG(slots_are_exact),
		WITH_RIG(unread_channels_have_a_limit),
		WITH_RIG(ids_are_looked_up_whole),
		WITH_RIG(the_list_is_oldest_first),
		WITH_RIG(a_stop_that_nobody_waits_for),
		WITH_RIG(stops_that_wait_end_together),
		WITH_RIG(work_that_a_stop_ends_is_told_so),
		WITH_RIG(a_vm_that_dies_by_itself),
		WITH_RIG(a_dead_one_can_be_stopped),
		WITH_RIG(idle_ones_are_reaped),
		WITH_RIG(network_payload_keeps_a_sandbox),
		WITH_RIG(a_channel_that_nobody_reads_keeps_nothing_alive),
		cmocka_unit_test(when_it_is_due),
		WITH_RIG(closing_ends_everything),
		WITH_RIG(closing_ends_a_boot),
	};

	uv_mutex_init(&store.lock);
	uv_cond_init(&store.released);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
