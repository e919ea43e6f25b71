/* Connecting: the name is looked up on libuv's threads (libwebsockets would block the loop), then
 * its addresses are tried one after another until one opens, the time is over, or a server answers
 * with something that is not an upgrade. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "host/bus/ws_priv.h"

/* libwebsockets decides by vhost whether it maps IPv4 addresses into IPv6 ones, which fails where
 * the host has no IPv6: so one vhost for each family. */
static struct lws_vhost *client_vhost(struct ws_hub *h, int family)
{
	struct lws_vhost **slot = family == AF_INET6 ? &h->client6 : &h->client4;
	struct lws_context_creation_info info = {
		.port = CONTEXT_PORT_NO_LISTEN,
		.protocols = ws_protocols,
		.vhost_name = family == AF_INET6 ? "client6" : "client4",
		.user = h,
		.retry_and_idle_policy = &ws_no_pings,
		.timeout_secs = WS_CONNECT_MS / 1000,
		/* Not the proxy of the environment: the engine is near. */
		.http_proxy_address = "none:0",
	};

	if (family != AF_INET6)
		info.options |= LWS_SERVER_OPTION_DISABLE_IPV6;
	if (h->tls)
		info.options |= LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT;
	if (!*slot)
		*slot = lws_create_vhost(h->lws, &info);
	return *slot;
}

static bool try_address(struct ws *w, const struct addrinfo *a)
{
	char address[INET6_ADDRSTRLEN + 1];
	struct lws_client_connect_info i = {
		.context = w->hub->lws,
		.address = address,
		.port = w->url.port,
		.path = w->url.path,
		.host = w->host_header,
		.local_protocol_name = "iii",
		.ietf_version_or_minus_one = -1,
		.ssl_connection = LCCSCF_HTTP_NO_FOLLOW_REDIRECT,
		.alpn = "http/1.1",
		.retry_and_idle_policy = &ws_no_pings,
		.opaque_user_data = w,
		.pwsi = &w->wsi,
	};

	if (uv_ip_name(a->ai_addr, address, sizeof(address)) < 0)
		return false;
	i.vhost = client_vhost(w->hub, a->ai_family);
	if (!i.vhost)
		return false;
	if (w->url.tls)
		i.ssl_connection |= LCCSCF_USE_SSL;
	w->state = WS_CONNECTING;
	if (!lws_client_connect_via_info(&i)) {
		w->wsi = NULL;
		return false;
	}
	return true;
}

void ws_connect_next(struct ws *w)
{
	while (w->addr) {
		const struct addrinfo *a = w->addr;

		w->addr = a->ai_next;
		if (try_address(w, a))
			return;
	}
	ws_finish(w, WS_END_UNREACHABLE, 0, w->why[0] ? w->why : "cannot connect");
}

void ws_connect_failed(struct ws *w, struct lws *wsi, const char *why)
{
	unsigned status = lws_http_client_http_response(wsi);

	lws_set_opaque_user_data(wsi, NULL);
	w->wsi = NULL;
	if (w->failed) {
		ws_finish(w, w->end, 0, w->why);
		return;
	}
	if (status && status != 101) {
		snprintf(w->why, sizeof(w->why), "the server answered with HTTP status %u", status);
		ws_finish(w, WS_END_REFUSED, (int)status, w->why);
		return;
	}
	snprintf(w->why, sizeof(w->why), "%s", why);
	w->retry = true;
	ws_hub_kick(w->hub);
}

int ws_add_headers(struct ws *w, struct lws *wsi, uint8_t **p, uint8_t *end)
{
	cleanup_free char *value = NULL;

	if (!w->bearer)
		return 0;
	value = xasprintf("Bearer %s", w->bearer);
	return lws_add_http_header_by_name(wsi,
		       (const uint8_t *)"Authorization:", (const uint8_t *)value,
		       (int)strlen(value), p, end)
		       ? -1
		       : 0;
}

static void looked_up(uv_getaddrinfo_t *req, int status, struct addrinfo *res)
{
	struct ws *w = req->data;
	char why[256];

	w->looking_up = false;
	w->addrs = w->addr = res;
	if (w->state == WS_GONE) {
		ws_maybe_free(w);
		return;
	}
	if (status < 0) {
		snprintf(why, sizeof(why), "cannot find %s: %s", w->url.host, uv_strerror(status));
		ws_finish(w, WS_END_UNREACHABLE, 0, why);
		return;
	}
	ws_connect_next(w);
}

static void too_slow(uv_timer_t *timer)
{
	struct ws *w = timer->data;

	if (w->wsi) {
		ws_kill(w, WS_END_UNREACHABLE, "no answer in time");
		return;
	}
	if (w->looking_up)
		uv_cancel((uv_req_t *)&w->lookup);
	ws_finish(w, WS_END_UNREACHABLE, 0, "no answer in time");
}

static void no_lookup(uv_timer_t *timer)
{
	ws_finish(timer->data, WS_END_UNREACHABLE, 0, "cannot start a name look-up");
}

static char *host_header(const struct bus_url *u)
{
	const char *open = strchr(u->host, ':') ? "[" : "", *close = *open ? "]" : "";

	if (u->port == (u->tls ? 443 : 80))
		return xasprintf("%s%s%s", open, u->host, close);
	return xasprintf("%s%s%s:%u", open, u->host, close, u->port);
}

struct ws *ws_connect(
	struct ws_hub *h, const struct ws_target *t, const struct ws_events *ev, void *user)
{
	const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct ws *w = ws_new(h, ev, user);

	w->url = (struct bus_url){
		.tls = t->url->tls,
		.port = t->url->port,
		.host = xstrdup(t->url->host),
		.path = xstrdup(t->url->path),
	};
	w->bearer = xstrdup(t->bearer);
	w->host_header = host_header(&w->url);
	w->queue_max = t->queue_max;
	w->frame_max = t->frame_max;
	w->read_only = t->read_only;
	w->lookup.data = w;
	if (uv_getaddrinfo(h->loop, &w->lookup, looked_up, w->url.host, NULL, &hints) < 0) {
		uv_timer_start(&w->timer, no_lookup, 0, 0);
		return w;
	}
	w->looking_up = true;
	uv_timer_start(&w->timer, too_slow, t->timeout_ms ? t->timeout_ms : WS_CONNECT_MS, 0);
	return w;
}
