/* run: create, write files, execute, stop, in one call (sandbox contract §1.7).
 *
 *   step                        ends in       next
 *   create                      on_created    the files
 *   fs::write (sibling file)    on_put        the next file, then the code
 *   fs::write (code)            on_put        exec
 *   exec                        on_executed   stop
 *
 * Each step looks the sandbox up by its id, so one that is gone meanwhile is an ordinary error. The
 * answer goes out when the stop is under way.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/api/api_priv.h"
#include "host/sandbox/lang.h"

#define RUN_FILE_MODE 0644

static const char step_create[] = "create";
static const char step_file[] = "fs::write (sibling file)";
static const char step_code[] = "fs::write (code)";
static const char step_exec[] = "exec";

struct run_file {
	const char *path;
	struct text content;
};

struct run {
	struct api *a;
	struct bus_call *c;
	json_object *request; /* the texts below point into it */
	struct run_file *files;
	size_t n_files, written;
	struct run_file code;
	struct exec_spec spec;
	bool keep;
	char id[37]; /* "" until created */
	const char *step;
};

static void run_free(struct run *run)
{
	exec_spec_done(&run->spec);
	free(run->files);
	json_object_put(run->request);
	free(run);
}

static void on_stopped(void *user)
{
	(void)user;
}

static void stop_sandbox(struct run *run)
{
	struct pool_entry *x;

	if (run->id[0] && !run->keep && pool_find_any(run->a->pool, run->id, &x, NULL) == 0) {
		pool_set_trace(x, bus_call_traceparent(run->c));
		pool_stop(x, false, on_stopped, NULL);
	}
}

/* --- the steps --- */

static void run_failed(struct run *run, const struct reply_failure *inner)
{
	struct reply_step step = {run->step, run->id};
	struct reply_failure f = *inner;

	stop_sandbox(run);
	f.step = &step;
	reply_failed(run->c, &f);
	run_free(run);
}

static void on_executed(const struct exec_outcome *o, void *user)
{
	struct run *run = user;

	if (o->why) {
		run_failed(run, &(struct reply_failure){
					.e = o->why, .more = o->more, .more_len = o->more_len});
		return;
	}
	stop_sandbox(run);
	reply_ok(run->c, exec_reply(o, run->keep ? run->id : NULL));
	run_free(run);
}

static void next_step(struct run *run);

static void on_put(uint64_t bytes, const struct err *why, void *user)
{
	struct run *run = user;

	(void)bytes;
	if (why) {
		run_failed(run, &(struct reply_failure){.e = why});
		return;
	}
	run->written++;
	next_step(run);
}

static int start_put(struct run *run, struct pool_entry *x, struct err *e)
{
	const struct run_file *f =
		run->written < run->n_files ? &run->files[run->written] : &run->code;

	run->step = run->written < run->n_files ? step_file : step_code;
	return put_start(x,
		&(struct put_spec){.path = f->path,
			.mode = RUN_FILE_MODE,
			.parents = true,
			.data = f->content.s,
			.len = f->content.len},
		on_put, run, e);
}

static void next_step(struct run *run)
{
	struct pool_entry *x;
	struct err e = ERR_INIT;
	bool write = run->written <= run->n_files;
	int r;

	if (!write)
		run->step = step_exec;
	r = pool_find(run->a->pool, run->id, &x, &e);
	if (r == 0)
		r = write ? start_put(run, x, &e) : exec_start(x, &run->spec, on_executed, run, &e);
	if (r < 0)
		run_failed(run, &(struct reply_failure){.e = &e});
}

static void on_created(struct pool_entry *x, const struct err *why, const char *tail, void *user)
{
	struct run *run = user;

	if (!x) {
		cleanup_free char *words = create_last_words(tail);

		run_failed(run, &(struct reply_failure){
					.e = why, .more = words, .more_len = strlen(words)});
		return;
	}
	memcpy(run->id, pool_id(x), sizeof(run->id));
	log_debug("run has its sandbox", "sandbox=%s image=%s", run->id, log_quote(pool_image(x)));
	/* Its name while no step has begun: a stop may come between. */
	run->step = run->n_files ? step_file : step_code;
	next_step(run);
}

/* --- the request --- */

static void choose_program(struct run *run, const char *name)
{
	struct lang lang = lang_find(name);

	run->code.path = lang.file;
	strv_add(&run->spec.argv, lang.program);
	strv_add(&run->spec.argv, lang.file);
}

static int read_file(json_object *o, struct run_file *f, struct err *e)
{
	if (!json_object_is_type(o, json_type_object))
		return err_set(e, "S001", EINVAL, "expected an object with path and content");
	if (request_str(o, "path", JSON_REQUIRED, &f->path, e) < 0 ||
		request_text(o, "content", JSON_REQUIRED, &f->content, e) < 0)
		return -EINVAL;
	if (f->path[0] != '/')
		return err_set(e, "S001", EINVAL,
			"path must be an absolute path in the sandbox, not \"%s\"", f->path);
	return 0;
}

static int read_files(json_object *request, struct run *run, struct err *e)
{
	json_object *files;
	int r = json_get_array(request, "files", JSON_OPTIONAL, &files, e);
	size_t n;

	if (r < 0)
		err_code(e, "S001");
	if (r <= 0)
		return r;
	n = json_object_array_length(files);
	run->files = xcalloc(n + 1, sizeof(*run->files));
	for (size_t i = 0; i < n; i++) {
		r = read_file(json_object_array_get_idx(files, i), &run->files[i], e);
		if (r < 0) {
			err_wrap(e, "field `files`: element %zu", i);
			return r;
		}
	}
	run->n_files = n;
	return 0;
}

static int read_run(json_object *request, struct run *run, struct create_request *rq, struct err *e)
{
	const char *lang;

	if (request_str(request, "image", JSON_REQUIRED, &rq->image, e) < 0 ||
		request_text(request, "code", JSON_REQUIRED, &run->code.content, e) < 0 ||
		request_str(request, "lang", JSON_REQUIRED, &lang, e) < 0 ||
		request_bool(request, "keep_sandbox", JSON_OPTIONAL, &run->keep, e) < 0 ||
		exec_spec_read(run->a, request, &run->spec, e) < 0 ||
		create_check_env(run->spec.env, e) < 0 || read_files(request, run, e) < 0)
		return -EINVAL;
	if (!*lang)
		return err_set(e, "S001", EINVAL,
			"lang is empty: say node, python, shell, or the interpreter's path");
	choose_program(run, lang);
	rq->env = run->spec.env;
	return 0;
}

void api_run(struct api *a, struct bus_call *c, json_object *request)
{
	struct run *run = xcalloc(1, sizeof(*run));
	struct create_request rq = {0};
	struct err e = ERR_INIT;

	run->a = a;
	run->c = c;
	run->request = json_object_get(request);
	run->step = step_create;
	rq.traceparent = bus_call_traceparent(c);
	if (read_run(request, run, &rq, &e) < 0) {
		reply_err(c, &e);
		run_free(run);
	} else if (create_start(a, &rq, on_created, run, &e) < 0) {
		run_failed(run, &(struct reply_failure){.e = &e});
	}
}
