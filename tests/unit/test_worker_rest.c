/* VMs at rest in a state folder that several daemons share: `w` is one, and the test plays another
 * with the functions that it would call. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/worker/worker_priv.h"

#define HANG_GUARD_MS 60000
#define NOW	      1790000000123

struct rig {
	uv_loop_t loop;
	uv_timer_t guard;
	struct images *images;
	struct workers *w;
	char dir[64], vm_id[WORKER_ID_LEN + 1];
	int root;
	unsigned closed;
	/* the other daemon */
	struct vmdir other;
	struct worker_record record;
	struct logs *log;
};

static void on_guard(uv_timer_t *t)
{
	fail_msg("hung");
}

static void on_closed(void *user)
{
	((struct rig *)user)->closed++;
}

static int set_up(void **state)
{
	struct rig *r = xcalloc(1, sizeof(*r));
	struct err e = ERR_INIT;

	snprintf(r->dir, sizeof(r->dir), "/var/tmp/test_worker_rest.XXXXXX");
	assert_non_null(mkdtemp(r->dir));
	setenv("III_SANDBOX_STATE_DIR", r->dir, 1);
	setenv("III_SANDBOX_CACHE_DIR", r->dir, 1);
	worker_vm_id("k", r->vm_id);
	if (vmdir_root(&r->root, &e) < 0)
		fail_msg("%s", e.text);
	r->other.fd = r->other.lock_fd = -1;
	uv_loop_init(&r->loop);
	uv_timer_init(&r->loop, &r->guard);
	uv_timer_start(&r->guard, on_guard, HANG_GUARD_MS, 0);
	*state = r;
	return 0;
}

static void open_daemon(struct rig *r)
{
	r->images = images_new(&r->loop);
	r->w = workers_new(&r->loop, &(struct workers_options){.images = r->images});
}

static int tear_down(void **state)
{
	struct rig *r = *state;

	workers_close(r->w, on_closed, r);
	images_close(r->images, on_closed, r);
	while (r->closed < 2)
		uv_run(&r->loop, UV_RUN_ONCE);
	workers_free(r->w);
	uv_close((uv_handle_t *)&r->guard, NULL);
	uv_run(&r->loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&r->loop), 0);
	logs_free(r->log);
	worker_record_done(&r->record);
	vmdir_close(&r->other);
	fd_close(&r->root);
	assert_int_equal(path_remove_at(AT_FDCWD, r->dir), 0);
	free(r);
	return 0;
}

/* --- the other daemon --- */

static void other_saves(struct rig *r, enum worker_state state)
{
	struct err e = ERR_INIT;

	r->record.boot.state = state;
	r->record.boot.ended_at_ms =
		state == WORKER_EXITED || state == WORKER_STOPPED ? NOW + 1 : 0;
	if (vmdir_save(&r->other, &r->record, &e) < 0)
		fail_msg("%s", e.text);
}

static void other_starts(struct rig *r)
{
	struct err e = ERR_INIT;
	uint64_t instance = 0;

	if (vmdir_open(r->root, r->vm_id, true, &r->other, &e) < 0 ||
		vmdir_next_instance(&r->other, 0, &instance, &e) < 0)
		fail_msg("%s", e.text);
	worker_record_next(&r->record, instance, NOW);
	other_saves(r, WORKER_RUNNING);
	logs_free(r->log);
	if (logs_create(r->other.fd, instance, &r->log, &e) < 0)
		fail_msg("%s", e.text);
	logs_say(r->log, NOW, "boot %d", (int)instance);
}

static void other_ends(struct rig *r)
{
	logs_end(r->log, NOW);
	other_saves(r, WORKER_STOPPED);
	vmdir_close(&r->other);
}

static void other_destroys(struct rig *r)
{
	struct err e = ERR_INIT;

	if (vmdir_open(r->root, r->vm_id, false, &r->other, &e) < 0 ||
		vmdir_destroy(&r->other, &e) < 0)
		fail_msg("%s", e.text);
}

/* --- what this one says --- */

static void wait_for_state(struct rig *r, uint64_t instance, enum worker_state want)
{
	struct worker_boot b;

	for (;;) {
		workers_status(r->w, r->vm_id, instance, &b);
		if (b.state == want)
			return;
		uv_run(&r->loop, UV_RUN_ONCE);
	}
}

struct opened {
	bool told;
	struct logs *l;
	struct err why;
};

static void on_opened(struct logs *l, const struct err *why, void *user)
{
	struct opened *o = user;

	assert_false(o->told);
	*o = (struct opened){.told = true, .l = l};
	if (why)
		o->why = *why;
}

static struct opened open_logs(struct rig *r)
{
	struct opened o = {0};

	workers_logs(r->w, r->vm_id, on_opened, &o);
	while (!o.told)
		uv_run(&r->loop, UV_RUN_ONCE);
	return o;
}

static void expect_log(struct rig *r, const char *line)
{
	struct opened o = open_logs(r);
	struct logs_reader *lr;
	const char *text;
	size_t len;

	if (!o.l)
		fail_msg("%s", o.why.text);
	lr = logs_reader_new(o.l, 0, true, NULL, NULL);
	assert_int_equal(logs_reader_next(lr, &text, &len), 1);
	assert_non_null(memmem(text, len, line, strlen(line)));
	assert_int_equal(logs_reader_next(lr, &text, &len), -ENODATA);
	logs_reader_free(lr);
	workers_logs_release(r->w, o.l);
}

static void expect_no_log(struct rig *r)
{
	struct opened o = open_logs(r);

	assert_null(o.l);
	assert_string_equal(o.why.code, "S503");
}

/* --- cases --- */

static void a_log_is_read_while_another_writes_it(void **state)
{
	struct rig *r = *state;

	other_starts(r);
	other_ends(r);
	open_daemon(r);
	expect_log(r, "boot 1");
	other_starts(r);
	expect_log(r, "boot 2");
	/* Nothing was taken from under the writer. */
	expect_log(r, "boot 2");
	other_ends(r);
	expect_log(r, "boot 2");
}

static void what_another_does_is_noticed(void **state)
{
	struct rig *r = *state;

	open_daemon(r);
	expect_no_log(r);
	other_starts(r);
	wait_for_state(r, 1, WORKER_RUNNING);
	other_ends(r);
	wait_for_state(r, 1, WORKER_STOPPED);
	other_starts(r);
	wait_for_state(r, 2, WORKER_RUNNING);
	other_ends(r);
	other_destroys(r);
	wait_for_state(r, 2, WORKER_UNKNOWN);
	expect_no_log(r);
}

/* It still held its locks when this one was started. */
static void a_predecessor_that_dies_is_settled(void **state)
{
	struct rig *r = *state;
	struct worker_boot b;

	other_starts(r);
	open_daemon(r);
	wait_for_state(r, 1, WORKER_RUNNING);
	vmdir_close(&r->other);
	wait_for_state(r, 1, WORKER_EXITED);
	workers_status(r->w, r->vm_id, 1, &b);
	assert_true(b.ended_at_ms > NOW && !b.has_exit_code && !b.has_signal);
}

/* The disk had no room for the end of a boot, and still says that it runs. */
static void an_end_that_was_told_stays(void **state)
{
	struct rig *r = *state;
	struct worker_record on_disk = {0};
	struct worker_boot b;
	struct err e = ERR_INIT;
	bool written = false;

	other_starts(r);
	other_ends(r);
	open_daemon(r);
	wait_for_state(r, 1, WORKER_STOPPED);
	assert_int_equal(vmdir_open(r->root, r->vm_id, false, &r->other, &e), 0);
	other_saves(r, WORKER_RUNNING);
	vmdir_close(&r->other);
	expect_log(r, "boot 1");
	workers_status(r->w, r->vm_id, 1, &b);
	assert_int_equal(b.state, WORKER_STOPPED);
	assert_int_equal(b.ended_at_ms, NOW + 1);
	/* And there it is written when there is room. */
	while (!written) {
		uv_run(&r->loop, UV_RUN_ONCE);
		assert_int_equal(
			vmdir_peek(r->root, r->vm_id, &(struct vmdir_mark){0}, &on_disk, &e), 1);
		written = on_disk.boot.state == WORKER_STOPPED;
		worker_record_done(&on_disk);
	}
	workers_status(r->w, r->vm_id, 1, &b);
	assert_int_equal(b.ended_at_ms, NOW + 1);
}

struct told {
	uint64_t instance;
	struct err why;
};

static void on_refused(
	bool existed, const struct worker_started *busy, const struct err *why, void *user)
{
	struct told *t = user;

	assert_false(existed);
	assert_non_null(busy);
	*t = (struct told){busy->instance, *why};
}

static void on_not_stopped(const struct worker_boot *b, const struct err *why, void *user)
{
	struct told *t = user;

	assert_non_null(why);
	*t = (struct told){b->instance, *why};
}

static void what_another_runs_is_busy(void **state)
{
	struct rig *r = *state;
	struct told t = {0};

	open_daemon(r);
	other_starts(r);
	wait_for_state(r, 1, WORKER_RUNNING);
	workers_destroy(r->w, "k", on_refused, &t);
	while (!t.why.text[0])
		uv_run(&r->loop, UV_RUN_ONCE);
	assert_string_equal(t.why.code, "S502");
	assert_int_equal(t.instance, 1);
	assert_non_null(strstr(t.why.text, "another adapter"));
	t = (struct told){0};
	workers_stop(r->w, r->vm_id, 1, 0, on_not_stopped, &t);
	assert_string_equal(t.why.code, "S504");
	assert_int_equal(t.instance, 1);
}

static void on_destroyed(
	bool existed, const struct worker_started *busy, const struct err *why, void *user)
{
	assert_true(existed);
	assert_null(why);
	*(bool *)user = true;
}

/* While a destroy is under way there is no log, and that is no failure. */
static void a_log_that_is_being_destroyed(void **state)
{
	struct rig *r = *state;
	struct opened o = {0};
	bool destroyed = false;

	other_starts(r);
	other_ends(r);
	open_daemon(r);
	workers_destroy(r->w, "k", on_destroyed, &destroyed);
	workers_logs(r->w, r->vm_id, on_opened, &o);
	while (!o.told || !destroyed)
		uv_run(&r->loop, UV_RUN_ONCE);
	assert_null(o.l);
	assert_string_equal(o.why.code, "S503");
}

/* Who reads while the VM is destroyed comes to the end. */
static void a_reader_of_what_is_destroyed(void **state)
{
	struct rig *r = *state;
	bool destroyed = false;
	struct logs_reader *lr;
	struct opened o;
	const char *text;
	size_t len;

	other_starts(r);
	other_ends(r);
	open_daemon(r);
	o = open_logs(r);
	assert_non_null(o.l);
	lr = logs_reader_new(o.l, 0, true, NULL, NULL);
	workers_destroy(r->w, "k", on_destroyed, &destroyed);
	while (!destroyed)
		uv_run(&r->loop, UV_RUN_ONCE);
	assert_int_equal(logs_reader_next(lr, &text, &len), -ENODATA);
	logs_reader_free(lr);
	workers_logs_release(r->w, o.l);
}

#define WITH_RIG(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_RIG(a_log_is_read_while_another_writes_it),
		WITH_RIG(what_another_does_is_noticed),
		WITH_RIG(a_predecessor_that_dies_is_settled),
		WITH_RIG(an_end_that_was_told_stays),
		WITH_RIG(what_another_runs_is_busy),
		WITH_RIG(a_log_that_is_being_destroyed),
		WITH_RIG(a_reader_of_what_is_destroyed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
