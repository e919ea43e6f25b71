#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "host/guest/call.h"

struct exec_call {
	struct guest_call call; /* first: freed as this */
	const struct guest_exec_callbacks *cb;
	void *user;
	uint64_t left[2]; /* bytes of stdout and stderr that the agent may still send */
	struct guest_exec_result result;
};

static struct exec_call *from_call(struct guest_call *c)
{
	return CONTAINER_OF(c, struct exec_call, call);
}

static int on_bytes(
	struct guest_call *c, enum guest_rec type, const uint8_t *data, size_t len, struct err *e)
{
	struct exec_call *x = from_call(c);
	bool is_stderr = type == GUEST_REC_ERR;

	if (type == GUEST_REC_DATA)
		return err_set(e, "", EPROTO, "file content in the reply of an exec");
	if (len > x->left[is_stderr])
		return err_set(e, "", EPROTO, "more output than the cap that was set");
	x->left[is_stderr] -= len;
	x->cb->on_output(c, is_stderr, data, len, x->user);
	return 0;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The member is left out when there is nothing to tell. */
static int read_tail(json_object *o, const char *name, uint8_t *ret, size_t *ret_len, struct err *e)
{
	const char *hex = "";
	size_t len;

	if (json_get_str(o, name, JSON_OPTIONAL, &hex, e) < 0)
		return -EPROTO;
	len = strlen(hex);
	if (len % 2 || len / 2 > GUEST_TAIL_MAX)
		return err_set(e, "", EPROTO, "%s has %zu characters", name, len);
	for (size_t i = 0; i < len / 2; i++) {
		int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);

		if (high < 0 || low < 0)
			return err_set(e, "", EPROTO, "%s is not in hex", name);
		ret[i] = (uint8_t)(high << 4 | low);
	}
	*ret_len = len / 2;
	return 0;
}

/* {"exit_code":N,"signal":N,"timed_out":bool,"stdout_dropped":N,"stderr_dropped":N,
 *  "start_error":"","stdout_tail":HEX,"stderr_tail":HEX} */
static int on_result(struct guest_call *c, json_object *o, struct err *e)
{
	struct guest_exec_result r = {0};
	uint32_t exit_code, signal;

	if (json_get_u32(o, "exit_code", JSON_REQUIRED, &exit_code, e) < 0 ||
		json_get_u32(o, "signal", JSON_REQUIRED, &signal, e) < 0 ||
		json_get_bool(o, "timed_out", JSON_REQUIRED, &r.timed_out, e) < 0 ||
		json_get_u64(o, "stdout_dropped", JSON_REQUIRED, &r.stdout_dropped, e) < 0 ||
		json_get_u64(o, "stderr_dropped", JSON_REQUIRED, &r.stderr_dropped, e) < 0 ||
		json_get_str(o, "start_error", JSON_REQUIRED, &r.start_error, e) < 0 ||
		read_tail(o, "stdout_tail", r.tail[0], &r.tail_len[0], e) < 0 ||
		read_tail(o, "stderr_tail", r.tail[1], &r.tail_len[1], e) < 0)
		return -EPROTO;
	if (exit_code > 255)
		return err_set(e, "", EPROTO, "exit_code %u is above 255", exit_code);
	if (signal > 64)
		return err_set(e, "", EPROTO, "signal %u is above 64", signal);
	r.exit_code = (int)exit_code;
	r.signal = (int)signal;
	from_call(c)->result = r;
	return 0;
}

static void on_room(struct guest_call *c)
{
	struct exec_call *x = from_call(c);

	if (x->cb->on_stdin_ready)
		x->cb->on_stdin_ready(c, x->user);
}

static void done(struct guest_call *c, const struct err *why)
{
	struct exec_call *x = from_call(c);

	x->cb->on_done(c, why ? NULL : &x->result, why, x->user);
}

static const struct guest_call_ops exec_ops = {
	.path = "/exec",
	.name = "exec",
	.lost_code = "S300",
	.on_bytes = on_bytes,
	.on_result = on_result,
	.on_room = on_room,
	.done = done,
};

/* JSON carries text only: a name that is not UTF-8 must not reach the guest as another one. */
static int check_text(const char *what, size_t i, const char *s, struct err *e)
{
	if (utf8_valid(s, strlen(s)))
		return 0;
	return err_set(e, "S001", EINVAL, "exec: %s %zu is not UTF-8", what, i);
}

static int check_request(const struct guest_exec_req *req, struct err *e)
{
	int rc = 0;

	if (!req->argv || !req->argv[0] || !req->argv[0][0])
		return err_set(e, "S001", EINVAL, "exec: no program is given");
	if (req->deadline_ms == 0)
		return err_set(e, "S001", EINVAL, "exec: the deadline must be above 0 ms");
	for (size_t i = 0; req->argv[i] && rc == 0; i++)
		rc = check_text("argument", i, req->argv[i], e);
	for (size_t i = 0; req->env && req->env[i] && rc == 0; i++)
		rc = check_text("environment entry", i, req->env[i], e);
	if (rc == 0 && req->workdir)
		rc = check_text("workdir", 0, req->workdir, e);
	return rc;
}

static json_object *new_request(const struct guest_exec_req *req)
{
	json_object *o = json_object_new_object();

	if (!o)
		mem_exhausted();
	json_add_strv(o, "argv", req->argv);
	json_add_strv(o, "env", req->env);
	json_add_str(o, "workdir", req->workdir && req->workdir[0] ? req->workdir : "/");
	json_add_u64(o, "deadline_ms", req->deadline_ms);
	json_add_u64(o, "stdout_cap", req->stdout_cap);
	json_add_u64(o, "stderr_cap", req->stderr_cap);
	return o;
}

static void set_deadline(struct guest_call *c, uint64_t deadline_ms)
{
	struct err late = ERR_INIT;
	uint64_t after;

	err_set(&late, "S200", ETIMEDOUT,
		"exec did not end within its deadline of %" PRIu64
		" ms, and the VM's agent did not end it %d ms later either",
		deadline_ms, GUEST_EXEC_LATE_MS);
	if (__builtin_add_overflow(deadline_ms, (uint64_t)GUEST_EXEC_LATE_MS, &after))
		after = UINT64_MAX;
	guest_call_set_deadline(c, after, &late);
}

int guest_exec(struct guest *g, const struct guest_exec_req *req,
	const struct guest_exec_callbacks *cb, void *user, struct guest_call **ret, struct err *e)
{
	struct exec_call *x;
	int rc = check_request(req, e);

	if (rc < 0)
		return rc;
	x = xcalloc(1, sizeof(*x));
	x->cb = cb;
	x->user = user;
	x->left[0] = req->stdout_cap;
	x->left[1] = req->stderr_cap;
	rc = guest_call_open(g, &x->call, &exec_ops, new_request(req),
		strlen(req->argv[0]) + (req->workdir ? strlen(req->workdir) : 0), e);
	if (rc < 0)
		return rc;
	set_deadline(&x->call, req->deadline_ms);
	*ret = &x->call;
	return 0;
}

size_t guest_exec_stdin(struct guest_call *c, const void *data, size_t len)
{
	return guest_call_send(c, data, len);
}

void guest_exec_stdin_end(struct guest_call *c)
{
	guest_call_send_end(c);
}

void guest_exec_pause(struct guest_call *c, bool paused)
{
	guest_call_pause(c, paused);
}
