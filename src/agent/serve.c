/* How bytes travel
 *
 *   port readable -> mux_feed -> on_data -> guest_reader -> type->start / type->data
 *   type->pull <- on_pull <- mux_pull <- before the loop sleeps (uv_prepare) <- op_wake
 *
 * Everything that one turn of the loop produced is sent in few writes just before the loop sleeps.
 * While the port does not take all of it, nothing more is pulled, so a slow host stops the
 * operations by their own flow control and the agent holds at most one piece of output.
 *
 * Refused with an answer: unknown paths (S219), heads that are not JSON objects or too long,
 * records out of order. Refused by nghttp2: streams over MUX_STREAMS_MAX, header lists over
 * MUX_HEADERS_MAX. There is one server per process.
 */
#include "agent/serve.h"

#include <errno.h>
#include <string.h>

#include "agent/op.h"
#include "agent/port.h"
#include "base/mem.h"
#include "base/str.h"

/* Records waiting in an op: HEAD, END, and the spill of one small pull. */
#define OP_OUT_MAX 65536

static const struct op_type *const TYPES[] = {
	&op_hello,
	&op_exec,
	&op_fs_write,
	&op_fs_read,
	&op_fs_ls,
	&op_fs_stat,
	&op_fs_mkdir,
	&op_fs_rm,
	&op_fs_chmod,
	&op_fs_mv,
	&op_fs_grep,
	&op_fs_sed,
};

/* What a stream gets whose path nobody serves. */
static const struct op_type UNKNOWN = {.path = ""};

static struct {
	uv_loop_t *loop;
	struct serve_config config;
	struct port port;
	uv_prepare_t flush;
	struct mux *mux;
	bool closing; /* no new operations */
} serve;

static void end_job(struct op *o)
{
	void *job = STEAL(o->job);

	if (job)
		o->type->close(job);
}

/* Answers with o->why and ends the job. */
static void refuse(struct op *o, int r)
{
	if (!o->why.text[0])
		err_set(&o->why, "", -r, "%s: %s", o->type->path, err_str(r));
	o->deaf = true;
	end_job(o);
	op_fail(o, &o->why);
}

/* --- records of the request --- */

static int on_json(void *user, enum guest_rec type, const char *text, size_t len)
{
	cleanup_json json_object *head = NULL;
	struct op *o = user;
	void *job = NULL;
	int r;

	r = json_parse_object(text, len, &head, &o->why);
	if (r < 0) {
		err_wrap(&o->why, "%s: the head of the request", o->type->path);
		return r;
	}
	r = o->type->start(o, head, &job, &o->why);
	if (r < 0)
		return r;
	o->job = job;
	return 0;
}

static int on_bytes(void *user, enum guest_rec type, const uint8_t *data, size_t len)
{
	struct op *o = user;
	ssize_t kept;

	if (!o->job || !o->type->data)
		return 0;
	kept = o->type->data(o->job, data, len, &o->why);
	if (kept < 0)
		return (int)kept;
	o->fed += kept;
	return 0;
}

static const struct guest_reader_callbacks reader_callbacks = {
	.on_json = on_json,
	.on_bytes = on_bytes,
};

/* --- streams --- */

static const struct op_type *find_type(const char *path)
{
	for (size_t i = 0; i < ARRAY_LEN(TYPES); i++)
		if (str_eq(TYPES[i]->path, path))
			return TYPES[i];
	return &UNKNOWN;
}

static int on_open(struct mux *m, struct mux_stream *s, const char *path, void *mux_user)
{
	struct op *o = xcalloc(1, sizeof(*o));

	o->type = find_type(path);
	o->stream = s;
	buf_init(&o->out, OP_OUT_MAX);
	guest_reader_init(&o->reader, GUEST_SIDE_AGENT, o->type->head_max, &reader_callbacks, o);
	mux_stream_set_user(s, o);
	if (o->type == &UNKNOWN) {
		err_set(&o->why, "S219", ENOSYS,
			"the guest's supervisor does not know the operation %.*s", GUEST_PATH_MAX,
			path);
		refuse(o, -ENOSYS);
	} else if (serve.closing) {
		err_set(&o->why, "S004", ESHUTDOWN, "the sandbox is going down");
		refuse(o, -ESHUTDOWN);
	}
	return 0;
}

static int on_data(struct mux_stream *s, const uint8_t *data, size_t len, void *user)
{
	struct op *o = user;
	int r = 0;

	o->fed = 0;
	if (!o->deaf)
		r = guest_reader_feed(&o->reader, data, len);
	if (r < 0) {
		o->fed = 0;
		refuse(o, r);
	}
	mux_stream_consume(s, len - o->fed);
	return 0;
}

static void on_end(struct mux_stream *s, void *user)
{
	struct op *o = user;
	int r;

	if (o->deaf)
		return;
	r = guest_reader_eof(&o->reader);
	o->deaf = true;
	if (r < 0) {
		err_set(&o->why, "", EPROTO, "%s: the request ended inside a record",
			o->type->path);
		refuse(o, r);
	} else if (o->job && o->type->end) {
		o->type->end(o->job);
	}
}

static void on_close(struct mux_stream *s, uint32_t h2_error, void *user)
{
	struct op *o = user;

	end_job(o);
	guest_reader_done(&o->reader);
	buf_done(&o->out);
	free(o);
}

static ssize_t on_pull(struct mux_stream *s, uint8_t *buf, size_t cap, bool *ret_eof, void *user)
{
	struct op *o = user;
	size_t n = 0;

	if (!o->out.len && !o->finished && o->job && o->type->pull) {
		uint8_t small[OP_PULL_MIN];

		if (cap >= OP_PULL_MIN) {
			n = o->type->pull(o->job, buf, cap);
			if (n)
				return (ssize_t)n;
		} else {
			/* The window leaves room for less than a record: it goes out in parts. */
			n = o->type->pull(o->job, small, sizeof(small));
			if (buf_add(&o->out, small, n) < 0)
				return -ENOMEM;
		}
	}
	n = MIN(cap, o->out.len);
	if (n) {
		memcpy(buf, o->out.data, n);
		buf_drop(&o->out, n);
	}
	*ret_eof = o->finished && !o->out.len;
	return (ssize_t)n;
}

static const struct mux_callbacks mux_callbacks = {
	.on_open = on_open,
	.on_data = on_data,
	.on_end = on_end,
	.on_close = on_close,
	.on_pull = on_pull,
};

/* --- the port --- */

/* Gives the connection up, with everything that ran on it. A new one is begun when bytes arrive,
 * not now: its first frame would be taken for part of the old one. */
static void start_over(void)
{
	const uint8_t *data;
	ssize_t n = mux_pull(serve.mux, &data, NULL);

	if (n > 0) /* a GOAWAY that says why */
		port_write(&serve.port, data, n);
	mux_free(STEAL(serve.mux));
}

static void send_what_there_is(uv_prepare_t *prepare)
{
	while (serve.mux && port_is_idle(&serve.port) && mux_wants_write(serve.mux)) {
		const uint8_t *data;
		ssize_t n = mux_pull(serve.mux, &data, NULL);

		if (n < 0)
			start_over();
		if (n <= 0 || port_write(&serve.port, data, n) < 0)
			return;
	}
}

static void on_port_bytes(struct port *p, const uint8_t *data, size_t len, void *user)
{
	if (!serve.mux)
		serve.mux = mux_new(MUX_SERVER, &mux_callbacks, NULL);
	if (mux_feed(serve.mux, data, len, NULL) < 0)
		start_over();
}

static void on_port_lost(struct port *p, void *user)
{
	if (serve.config.on_lost)
		serve.config.on_lost(serve.config.user);
}

static const struct port_callbacks port_callbacks = {
	.on_bytes = on_port_bytes,
	.on_lost = on_port_lost,
};

int serve_start(uv_loop_t *loop, const struct serve_config *config)
{
	int r;

	serve.loop = loop;
	serve.config = *config;
	r = port_start(&serve.port, loop, config->fd, config->is_socket, &port_callbacks, NULL);
	if (r < 0)
		return r;
	uv_prepare_init(loop, &serve.flush);
	uv_prepare_start(&serve.flush, send_what_there_is);
	return 0;
}

void serve_close_doors(void)
{
	serve.closing = true;
}

void serve_stop(void)
{
	uv_close((uv_handle_t *)&serve.flush, NULL);
	mux_free(STEAL(serve.mux));
	port_stop(&serve.port);
}

uv_loop_t *serve_loop(void)
{
	return serve.loop;
}

char *const *serve_base_env(void)
{
	return serve.config.env;
}
