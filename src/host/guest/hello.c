#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "host/guest/call.h"

struct hello_call {
	struct guest_call call; /* first: freed as this */
	void (*on_done)(const struct guest_hello *h, const struct err *why, void *user);
	void *user;
	struct guest_hello hello;
};

static struct hello_call *from_call(struct guest_call *c)
{
	return CONTAINER_OF(c, struct hello_call, call);
}

/* {"agent_version":"0.2.2","boot_us":N,"rss_kib":N} */
static int on_result(struct guest_call *c, json_object *o, struct err *e)
{
	struct guest_hello *h = &from_call(c)->hello;

	if (json_get_str(o, "agent_version", JSON_REQUIRED, &h->agent_version, e) < 0 ||
		json_get_u64(o, "boot_us", JSON_REQUIRED, &h->boot_us, e) < 0 ||
		json_get_u64(o, "rss_kib", JSON_REQUIRED, &h->rss_kib, e) < 0)
		return -EPROTO;
	return 0;
}

static void done(struct guest_call *c, const struct err *why)
{
	struct hello_call *x = from_call(c);

	x->on_done(why ? NULL : &x->hello, why, x->user);
}

static const struct guest_call_ops hello_ops = {
	.path = "/hello",
	.name = "hello",
	.lost_code = "S300",
	.on_result = on_result,
	.done = done,
};

int guest_hello(struct guest *g,
	void (*on_done)(const struct guest_hello *h, const struct err *why, void *user), void *user,
	struct err *e)
{
	struct hello_call *x = xcalloc(1, sizeof(*x));
	json_object *request = json_object_new_object();
	int rc;

	if (!request)
		mem_exhausted();
	x->on_done = on_done;
	x->user = user;
	rc = guest_call_open(g, &x->call, &hello_ops, request, 0, e);
	if (rc == 0)
		guest_call_send_end(&x->call);
	return rc;
}
