/* exec: one command in a live sandbox (sandbox contract §1.4).
 *
 * The guest keeps the deadline and the caps; here the command takes its slot, gets its input as
 * fast as the guest takes it, and its output is collected. The slot is free before the answer goes
 * out. run.c uses the same with other words around it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "host/api/api_priv.h"
#include "host/api/command.h"

#define TAIL_MAX 1024 /* bytes of each output that the error of a missed deadline ends with */

/* Arguments and environment as JSON that the guest takes (src/agent/exec_request.h, less what else
 * is in a request). Linux refuses long before: then the reply is its "argument list too long". */
#define REQUEST_MAX ((8u << 20) - (64u << 10))

struct exec {
	struct pool_entry *x;
	struct guest_call *call;
	struct exec_spec spec;
	size_t input_sent;
	struct buf out[2]; /* stdout, stderr */
	uint64_t start_ns;
	exec_finished cb;
	void *user;
};

void exec_spec_done(struct exec_spec *s)
{
	strv_free(s->argv);
	strv_free(s->env);
	free(s->workdir);
	free(s->input);
	*s = (struct exec_spec){0};
}

/* --- the end --- */

/* `res`: what came after the kept output, or NULL when the agent did not tell. */
static void add_tail(struct buf *more, const struct exec *ex, const struct guest_exec_result *res,
	bool is_stderr)
{
	const struct buf *kept = &ex->out[is_stderr];
	size_t late = res ? MIN(res->tail_len[is_stderr], (size_t)TAIL_MAX) : 0;
	size_t early = MIN(kept->len, TAIL_MAX - late);

	if (!early && !late)
		return;
	buf_printf(more, "\n--- the last %zu bytes of %s ---\n", early + late,
		is_stderr ? "stderr" : "stdout");
	buf_add(more, kept->data + kept->len - early, early);
	if (late)
		buf_add(more, res->tail[is_stderr] + res->tail_len[is_stderr] - late, late);
}

/* Contract Q1: a missed deadline is an error, not a reply. This is the one place that says so. */
static void finish_late(const struct exec *ex, struct exec_outcome *o, struct buf *more)
{
	add_tail(more, ex, o->result, false);
	add_tail(more, ex, o->result, true);
	o->more = more->data;
	o->more_len = more->len;
	o->result = NULL;
}

static void exec_free(struct exec *ex)
{
	exec_spec_done(&ex->spec);
	buf_done(&ex->out[0]);
	buf_done(&ex->out[1]);
	free(ex);
}

static void on_done(struct guest_call *call, const struct guest_exec_result *res,
	const struct err *why, void *user)
{
	struct exec *ex = user;
	struct exec_outcome o = {.result = res,
		.out = {&ex->out[0], &ex->out[1]},
		.duration_ms = (uv_hrtime() - ex->start_ns) / 1000000};
	struct err e = ERR_INIT;
	cleanup_buf struct buf more;

	(void)call;
	buf_init(&more, 4 * TAIL_MAX);
	if (!res) {
		e = *why;
		pool_explain(ex->x, POOL_EXEC, &e);
		o.why = &e;
	} else if (res->timed_out) {
		err_set(&e, "S200", ETIMEDOUT,
			"the command did not end within %" PRIu64 " ms and was killed",
			ex->spec.timeout_ms);
		o.why = &e;
	}
	if (o.why && str_eq(e.code, "S200"))
		finish_late(ex, &o, &more);
	pool_end(STEAL(ex->x), POOL_EXEC);
	ex->cb(&o, ex->user);
	exec_free(ex);
}

/* --- while it runs --- */

static void on_output(
	struct guest_call *call, bool is_stderr, const uint8_t *data, size_t len, void *user)
{
	struct exec *ex = user;

	(void)call;
	/* guest.h: never more than the cap that was asked for. */
	if (buf_add(&ex->out[is_stderr], data, len) < 0)
		mem_exhausted();
}

static void push_input(struct exec *ex)
{
	struct exec_spec *s = &ex->spec;

	while (ex->input_sent < s->input_len) {
		size_t n = guest_exec_stdin(
			ex->call, s->input + ex->input_sent, s->input_len - ex->input_sent);

		if (!n)
			return; /* on_room comes */
		ex->input_sent += n;
	}
	guest_exec_stdin_end(ex->call);
}

static void on_room(struct guest_call *call, void *user)
{
	struct exec *ex = user;

	(void)call;
	if (ex->input_sent < ex->spec.input_len)
		push_input(ex);
}

/* Bytes of the strings as JSON, at most. */
static size_t json_bytes(char *const *v)
{
	size_t bytes = 0;

	for (; v && *v; v++) {
		for (const unsigned char *p = (const unsigned char *)*v; *p; p++)
			bytes += *p < 0x20 ? 6 : *p == '"' || *p == '\\' ? 2 : 1;
		bytes += sizeof("\"\",");
	}
	return bytes;
}

/* What the guest's kernel would say of that many arguments. */
static void reply_too_long(struct exec *ex)
{
	cleanup_free char *reason = xasprintf("exec: %.200s: %s", ex->spec.argv[0], err_str(E2BIG));
	struct guest_exec_result res = {.exit_code = 126, .start_error = reason};

	utf8_scrub(reason);
	on_done(NULL, &res, NULL, ex);
}

int exec_start(
	struct pool_entry *x, struct exec_spec *s, exec_finished cb, void *user, struct err *e)
{
	static const struct guest_exec_callbacks guest_cb = {
		.on_output = on_output, .on_stdin_ready = on_room, .on_done = on_done};
	struct exec *ex;
	int r = pool_begin(x, POOL_EXEC, e);

	if (r < 0)
		return r;
	ex = xcalloc(1, sizeof(*ex));
	*ex = (struct exec){.x = x, .spec = *s, .start_ns = uv_hrtime(), .cb = cb, .user = user};
	buf_init(&ex->out[0], EXEC_OUTPUT_MAX);
	buf_init(&ex->out[1], EXEC_OUTPUT_MAX);
	if (json_bytes(s->argv) + json_bytes(s->env) > REQUEST_MAX) {
		*s = (struct exec_spec){0};
		reply_too_long(ex);
		return 0;
	}
	r = guest_exec(pool_guest(x),
		&(struct guest_exec_req){
			.argv = s->argv,
			.env = s->env,
			.workdir = s->workdir,
			.deadline_ms = s->timeout_ms,
			.stdout_cap = EXEC_OUTPUT_MAX,
			.stderr_cap = EXEC_OUTPUT_MAX,
		},
		&guest_cb, ex, &ex->call, e);
	if (r < 0) {
		err_code(e, r == -E2BIG ? "S001" : "S300");
		pool_end(x, POOL_EXEC);
		free(ex);
		return r;
	}
	*s = (struct exec_spec){0};
	push_input(ex);
	return 0;
}

/* --- the reply --- */

/* The kept bytes; a program that did not start left its reason instead of an output of its own. */
static void add_output(json_object *o, const char *name, const struct buf *out, const char *reason)
{
	cleanup_free char *line = *reason ? xasprintf("%s\n", reason) : NULL;

	if (line)
		json_add_str(o, name, line);
	else
		json_add_strn(o, name, out->len ? (const void *)out->data : "", out->len);
}

json_object *exec_reply(const struct exec_outcome *o, const char *sandbox_id)
{
	const struct guest_exec_result *res = o->result;
	json_object *reply = reply_object();

	json_add_u64(reply, "duration_ms", o->duration_ms);
	json_add_i64(reply, "exit_code", res->exit_code);
	if (sandbox_id)
		json_add_str(reply, "sandbox_id", sandbox_id);
	add_output(reply, "stderr", o->out[1], res->start_error);
	json_add_bool(reply, "stderr_truncated", res->stderr_dropped > 0);
	add_output(reply, "stdout", o->out[0], "");
	json_add_bool(reply, "stdout_truncated", res->stdout_dropped > 0);
	json_add_bool(reply, "success", res->exit_code == 0);
	json_add_bool(reply, "timed_out", false);
	return reply;
}

/* --- the function --- */

int exec_spec_read(struct api *a, json_object *request, struct exec_spec *s, struct err *e)
{
	struct text input = {0};

	s->timeout_ms = EXEC_TIMEOUT_DEFAULT_MS;
	if (request_u64(request, "timeout_ms", JSON_NULLABLE, &s->timeout_ms, e) < 0 ||
		request_env(request, &s->env, e) < 0 ||
		request_text(request, "stdin", JSON_NULLABLE, &input, e) < 0 ||
		(input.s && request_base64("stdin", &input, &s->input, &s->input_len, e) < 0))
		return -EINVAL;
	s->timeout_ms = MIN(s->timeout_ms, a->config->max_exec_timeout_ms);
	s->timeout_ms = MAX(s->timeout_ms, (uint64_t)1);
	return 0;
}

static int read_command(json_object *request, char ***ret, struct err *e)
{
	char **args = NULL, **argv = NULL;
	const char *cmd = "";
	int r = -EINVAL;

	if (request_str(request, "cmd", JSON_OPTIONAL, &cmd, e) >= 0 &&
		request_strv(request, "args", &args, e) >= 0 &&
		request_strv(request, "argv", &argv, e) >= 0)
		r = command_argv(&(struct command){cmd, args, argv}, ret, e);
	strv_free(args);
	strv_free(argv);
	return r;
}

static int read_exec(struct api *a, json_object *request, struct exec_spec *s,
	struct pool_entry **ret, struct err *e)
{
	const char *workdir = NULL;
	struct text text;
	char id[37];

	if (request_id_text(request, &text, e) < 0 ||
		request_str(request, "workdir", JSON_NULLABLE, &workdir, e) < 0 ||
		request_id(&text, id, e) < 0 || read_command(request, &s->argv, e) < 0 ||
		exec_spec_read(a, request, s, e) < 0)
		return -EINVAL;
	s->workdir = xstrdup(workdir);
	return pool_find(a->pool, id, ret, e);
}

static void on_finished(const struct exec_outcome *o, void *user)
{
	struct bus_call *c = user;

	if (o->why)
		reply_failed(c, &(struct reply_failure){
					.e = o->why, .more = o->more, .more_len = o->more_len});
	else
		reply_ok(c, exec_reply(o, NULL));
}

void api_exec(struct api *a, struct bus_call *c, json_object *request)
{
	struct exec_spec spec = {0};
	struct pool_entry *x;
	struct err e = ERR_INIT;
	int r = read_exec(a, request, &spec, &x, &e);

	if (r == 0)
		r = exec_start(x, &spec, on_finished, c, &e);
	if (r < 0)
		reply_err(c, &e);
	exec_spec_done(&spec);
}
