#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "wire/bus.h"
#include "wire/json.h"

#define HOST_MAX 255  /* RFC 1035 §2.3.4 */
#define URL_MAX	 2048 /* longer URLs are refused */

static int bad_url(const char *url, const char *why, struct err *e)
{
	return err_set(e, "", EINVAL,
		"not an engine URL: %s: %s (give ws://HOST:PORT or wss://HOST:PORT)", url, why);
}

static bool host_ok(const char *host, size_t len)
{
	if (len == 0 || len > HOST_MAX)
		return false;
	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)host[i]) && !strchr(".-_:%", host[i]))
			return false;
	return true;
}

/* "host", "host:1", "[v6]", "[v6]:1". */
static int parse_authority(
	const char *url, const char *p, size_t len, struct bus_url *u, struct err *e)
{
	const char *host = p, *end = p + len, *host_end, *port = NULL;
	cleanup_free char *digits = NULL;
	uint32_t n;

	if (memchr(p, '@', len))
		return bad_url(url, "a user name or password has no place in it", e);
	if (len && *p == '[') {
		host++;
		host_end = memchr(p, ']', len);
		if (!host_end)
			return bad_url(url, "no ] behind the address", e);
		if (host_end + 1 < end && host_end[1] != ':')
			return bad_url(url, "text behind the address", e);
		if (host_end + 1 < end)
			port = host_end + 2;
	} else {
		host_end = memchr(p, ':', len);
		if (host_end)
			port = host_end + 1;
		else
			host_end = end;
	}
	if (!host_ok(host, (size_t)(host_end - host)))
		return bad_url(url, "no valid host name", e);
	u->port = u->tls ? 443 : 80;
	if (port) {
		digits = xstrndup(port, (size_t)(end - port));
		if (str_u32(digits, &n) < 0 || n == 0 || n > 65535)
			return bad_url(url, "the port must be from 1 to 65535", e);
		u->port = (uint16_t)n;
	}
	u->host = xstrndup(host, (size_t)(host_end - host));
	return 0;
}

int bus_url_parse(const char *url, struct bus_url *ret, struct err *e)
{
	struct bus_url u = {0};
	const char *p, *path;
	int rc;

	if (strlen(url) > URL_MAX)
		return err_set(e, "", EINVAL, "an engine URL of more than %d bytes", URL_MAX);
	for (p = url; *p; p++)
		if ((unsigned char)*p <= ' ' || (unsigned char)*p > '~')
			return bad_url(url, "blanks and bytes outside ASCII must be encoded", e);
	if (strncasecmp(url, "ws://", 5) == 0)
		p = url + 5;
	else if (strncasecmp(url, "wss://", 6) == 0)
		p = url + 6;
	else
		return bad_url(url, "it does not start with ws:// or wss://", e);
	u.tls = p == url + 6;
	if (strchr(p, '#'))
		return bad_url(url, "a fragment has no place in it", e);
	path = p + strcspn(p, "/?");
	rc = parse_authority(url, p, (size_t)(path - p), &u, e);
	if (rc < 0) {
		bus_url_done(&u);
		return rc;
	}
	u.path = *path == '/' ? xstrdup(path) : xasprintf("/%s", path);
	*ret = u;
	return 0;
}

void bus_url_done(struct bus_url *u)
{
	free(u->host);
	free(u->path);
	*u = (struct bus_url){0};
}

int bus_channel_ref_read(
	json_object *o, struct bus_channel_ref *ret, bool *ret_write, struct err *e)
{
	const char *id, *key, *direction;
	int rc;

	if (!json_object_is_type(o, json_type_object))
		return err_set(e, "", EINVAL, "a channel reference must be an object");
	rc = json_get_str(o, "channel_id", JSON_REQUIRED, &id, e);
	if (rc >= 0)
		rc = json_get_str(o, "access_key", JSON_REQUIRED, &key, e);
	if (rc >= 0)
		rc = json_get_str(o, "direction", JSON_REQUIRED, &direction, e);
	if (rc < 0)
		return rc;
	if (!str_eq(direction, "read") && !str_eq(direction, "write"))
		return err_set(e, "", EINVAL, "field `direction`: expected \"read\" or \"write\"");
	if (!*id || strlen(id) > BUS_ID_MAX)
		return err_set(
			e, "", EINVAL, "field `channel_id`: expected 1 to %d bytes", BUS_ID_MAX);
	for (const char *p = id; *p; p++)
		if ((unsigned char)*p <= ' ' || *p == 0x7f || strchr("/\\%", *p))
			return err_set(e, "", EINVAL,
				"field `channel_id`: no id of a channel has such characters");
	if (!*key || strlen(key) > BUS_ID_MAX)
		return err_set(
			e, "", EINVAL, "field `access_key`: expected 1 to %d bytes", BUS_ID_MAX);
	memcpy(ret->id, id, strlen(id) + 1);
	memcpy(ret->key, key, strlen(key) + 1);
	if (ret_write)
		*ret_write = str_eq(direction, "write");
	return 0;
}

json_object *bus_channel_ref_new(const struct bus_channel_ref *ref, bool write)
{
	json_object *o = json_object_new_object();

	if (!o)
		mem_exhausted();
	json_add_str(o, "access_key", ref->key);
	json_add_str(o, "channel_id", ref->id);
	json_add_str(o, "direction", write ? "write" : "read");
	return o;
}

/* RFC 3986 §2.3: what is not unreserved becomes %XX, so no id can leave its place in the URL. */
static void add_encoded(struct buf *b, const char *s)
{
	int rc = 0;

	for (; *s && rc == 0; s++) {
		if (isalnum((unsigned char)*s) || strchr("-._~", *s))
			rc = buf_add(b, s, 1);
		else
			rc = buf_printf(b, "%%%02X", (unsigned char)*s);
	}
	if (rc < 0)
		mem_exhausted();
}

char *bus_channel_url(const char *base, const struct bus_channel_ref *ref, bool write)
{
	size_t path = strcspn(base, "?");
	const char *query = base[path] ? base + path + 1 : "";
	struct buf b;

	buf_init(&b, strlen(base) + 6 * BUS_ID_MAX + 64);
	while (path > 0 && base[path - 1] == '/')
		path--;
	if (buf_add(&b, base, path) < 0 || buf_add_str(&b, "/ws/channels/") < 0)
		mem_exhausted();
	add_encoded(&b, ref->id);
	if (buf_printf(&b, "?%s%skey=", query, *query ? "&" : "") < 0)
		mem_exhausted();
	add_encoded(&b, ref->key);
	if (buf_add_str(&b, write ? "&dir=write" : "&dir=read") < 0)
		mem_exhausted();
	return buf_steal(&b);
}
