#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "host/guest/call.h"

static int check_path(const char *op, const char *path, struct err *e)
{
	if (path[0] != '/')
		return err_set(e, "S210", EINVAL, "%s: the path must be absolute: %s", op, path);
	if (!utf8_valid(path, strlen(path)))
		return err_set(e, "S210", EINVAL, "%s: the path is not UTF-8: %s", op, path);
	return 0;
}

static json_object *new_request(const char *path)
{
	json_object *o = json_object_new_object();

	if (!o)
		mem_exhausted();
	json_add_str(o, "path", path);
	return o;
}

/* --- write --- */

struct write_call {
	struct guest_call call; /* first: freed as this */
	const struct guest_write_callbacks *cb;
	void *user;
	uint64_t written;
};

static struct write_call *to_write(struct guest_call *c)
{
	return CONTAINER_OF(c, struct write_call, call);
}

/* {"bytes_written":N} */
static int write_on_result(struct guest_call *c, json_object *o, struct err *e)
{
	struct write_call *w = to_write(c);

	if (json_get_u64(o, "bytes_written", JSON_REQUIRED, &w->written, e) < 0)
		return -EPROTO;
	/* Success means: all of it. */
	if (!c->out_ended || w->written != c->out_bytes)
		return err_set(e, "", EPROTO,
			"%" PRIu64 " bytes are said to be written, %" PRIu64 " were sent%s",
			w->written, c->out_bytes, c->out_ended ? "" : " so far");
	return 0;
}

static void write_on_room(struct guest_call *c)
{
	struct write_call *w = to_write(c);

	if (w->cb->on_ready)
		w->cb->on_ready(c, w->user);
}

static void write_done(struct guest_call *c, const struct err *why)
{
	struct write_call *w = to_write(c);

	w->cb->on_done(c, why ? 0 : w->written, why, w->user);
}

static const struct guest_call_ops write_ops = {
	.path = "/fs/write",
	.name = "fs::write",
	.lost_code = "S216",
	.on_result = write_on_result,
	.on_room = write_on_room,
	.done = write_done,
};

int guest_write(struct guest *g, const struct guest_write_req *req,
	const struct guest_write_callbacks *cb, void *user, struct guest_call **ret, struct err *e)
{
	struct write_call *w;
	json_object *o;
	int rc = check_path(write_ops.name, req->path, e);

	if (rc < 0)
		return rc;
	if (req->mode > 07777)
		return err_set(e, "S210", EINVAL, "fs::write: mode %o of %s is above 7777",
			req->mode, req->path);
	w = xcalloc(1, sizeof(*w));
	w->cb = cb;
	w->user = user;
	o = new_request(req->path);
	json_add_u64(o, "mode", req->mode);
	json_add_bool(o, "parents", req->parents);
	rc = guest_call_open(g, &w->call, &write_ops, o, strlen(req->path), e);
	if (rc == 0)
		*ret = &w->call;
	return rc;
}

size_t guest_write_data(struct guest_call *c, const void *data, size_t len)
{
	return guest_call_send(c, data, len);
}

void guest_write_end(struct guest_call *c)
{
	guest_call_send_end(c);
}

/* --- read --- */

struct read_call {
	struct guest_call call; /* first: freed as this */
	const struct guest_read_callbacks *cb;
	void *user;
};

static struct read_call *to_read(struct guest_call *c)
{
	return CONTAINER_OF(c, struct read_call, call);
}

/* {"size":N,"mode":N,"mtime":N} */
static int read_on_head(struct guest_call *c, json_object *o, struct err *e)
{
	struct read_call *r = to_read(c);
	struct guest_read_head h = {0};

	if (json_get_u64(o, "size", JSON_REQUIRED, &h.size, e) < 0 ||
		json_get_u32(o, "mode", JSON_REQUIRED, &h.mode, e) < 0 ||
		json_get_i64(o, "mtime", JSON_REQUIRED, &h.mtime, e) < 0)
		return -EPROTO;
	if (h.mode > 07777)
		return err_set(e, "", EPROTO, "mode %o is above 7777", h.mode);
	r->cb->on_head(c, &h, r->user);
	return 0;
}

static int read_on_bytes(
	struct guest_call *c, enum guest_rec type, const uint8_t *data, size_t len, struct err *e)
{
	struct read_call *r = to_read(c);

	if (type != GUEST_REC_DATA || !c->head)
		return err_set(e, "", EPROTO, "output of a program, or content before the HEAD");
	r->cb->on_data(c, data, len, r->user);
	return 0;
}

/* {} */
static int read_on_result(struct guest_call *c, json_object *o, struct err *e)
{
	return c->head ? 0 : err_set(e, "", EPROTO, "success without a HEAD");
}

static void read_done(struct guest_call *c, const struct err *why)
{
	struct read_call *r = to_read(c);

	r->cb->on_done(c, why, r->user);
}

static const struct guest_call_ops read_ops = {
	.path = "/fs/read",
	.name = "fs::read",
	.lost_code = "S216",
	.on_head = read_on_head,
	.on_bytes = read_on_bytes,
	.on_result = read_on_result,
	.done = read_done,
};

int guest_read(struct guest *g, const char *path, const struct guest_read_callbacks *cb, void *user,
	struct guest_call **ret, struct err *e)
{
	struct read_call *r;
	int rc = check_path(read_ops.name, path, e);

	if (rc < 0)
		return rc;
	r = xcalloc(1, sizeof(*r));
	r->cb = cb;
	r->user = user;
	rc = guest_call_open(g, &r->call, &read_ops, new_request(path), strlen(path), e);
	if (rc < 0)
		return rc;
	guest_call_send_end(&r->call);
	*ret = &r->call;
	return 0;
}

void guest_read_pause(struct guest_call *c, bool paused)
{
	guest_call_pause(c, paused);
}
