/* Lists are merged by sorting: every entry is known by its name, the rank of its list and its place
 * in it; of equal names the last one counts. So a list of a million bytes costs n log n, whatever
 * is in it.
 *
 * PATH is the one variable that is put together: the request's folders, then the manifest's, then
 * the image's, then the standard ones, each once. The request brings the host's PATH, which knows
 * nothing of what an image has in /usr/local/cargo/bin.
 *
 * Rewriting looks at URLs only: an authority begins behind "://" and ends before a character that
 * cannot stand in one. A bare "localhost" stays; /etc/hosts of the guest knows it.
 */
#include "host/worker/guest_env.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/here.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "wire/guest_net.h"

#define STANDARD_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define DEFAULT_LANG  "C.UTF-8"
#define ISOLATION     "libkrun"

/* A text that only gets longer by "localhost" becoming an address: a character in ten. */
#define REWRITTEN_MAX(len) ((len)*2 + 64)

/* --- rewriting --- */

/* Bytes of the authority that begins at `s`: what RFC 3986 puts an end to, and what ends a URL in a
 * command or a list. */
static size_t authority_len(const char *s)
{
	size_t n = 0;

	while ((unsigned char)s[n] > ' ' && s[n] != 0x7f && !strchr("/?#\"'<>\\`|", s[n]))
		n++;
	return n;
}

/* Bytes of "user:password@" at the begin of an authority. */
static size_t userinfo_len(const char *s, size_t len)
{
	const char *at = memrchr(s, '@', len);

	return at ? (size_t)(at - s) + 1 : 0;
}

/* Bytes of the host that begins at `s`, of `len` that are left of the authority. */
static size_t host_len(const char *s, size_t len)
{
	const char *end = s[0] == '[' ? memchr(s, ']', len) : NULL;

	if (end)
		return (size_t)(end - s) + 1;
	end = memchr(s, ':', len);
	return end ? (size_t)(end - s) : len;
}

static bool is_plain_loopback(const char *host, size_t len)
{
	return (len == 9 && memcmp(host, "localhost", 9) == 0) ||
	       (len == 9 && memcmp(host, "127.0.0.1", 9) == 0);
}

static void must_add(struct buf *b, const char *s, size_t len)
{
	if (buf_add(b, s, len) < 0)
		mem_exhausted();
}

char *guest_env_rewrite(const char *text)
{
	const char *from = text, *url;
	struct buf b;

	buf_init(&b, REWRITTEN_MAX(strlen(text)));
	for (url = strstr(text, "://"); url; url = strstr(url, "://")) {
		size_t len, user, host;

		url += 3;
		len = authority_len(url);
		user = userinfo_len(url, len);
		host = host_len(url + user, len - user);
		if (!is_plain_loopback(url + user, host) || url[user + host] != ':')
			continue;
		must_add(&b, from, (size_t)(url + user - from));
		must_add(&b, GUEST_NET_GATEWAY, strlen(GUEST_NET_GATEWAY));
		from = url = url + user + host;
	}
	must_add(&b, from, strlen(from));
	return buf_steal(&b);
}

/* The host in an URL's authority; NULL without one. */
static const char *find_host(const char *url, size_t *ret_len)
{
	const char *host = strstr(url, "://");
	size_t len, user;

	if (!host)
		return NULL;
	host += 3;
	len = authority_len(host);
	user = userinfo_len(host, len);
	*ret_len = host_len(host + user, len - user);
	return host + user;
}

static char *lead_to_gateway(const char *url, const char *host, size_t len)
{
	return xasprintf("%.*s%s%s", (int)(host - url), url, GUEST_NET_GATEWAY, host + len);
}

char *guest_env_rewrite_url(const char *url)
{
	size_t len = 0;
	const char *host = find_host(url, &len);

	if (!host || here_literal(host, len) != HERE_LOOPBACK)
		return xstrdup(url);
	return lead_to_gateway(url, host, len);
}

static uint16_t port_of(const char *url, const char *behind)
{
	bool tls = strncasecmp(url, "wss:", 4) == 0 || strncasecmp(url, "https:", 6) == 0;
	cleanup_free char *digits = NULL;
	uint32_t port;

	if (*behind != ':' || !strcspn(behind + 1, "/?#"))
		return tls ? 443 : 80;
	digits = xstrndup(behind + 1, strcspn(behind + 1, "/?#"));
	return str_u32(digits, &port) == 0 && port <= UINT16_MAX ? (uint16_t)port : 0;
}

char *guest_env_find_engine(const char *url, uint16_t *ret_port)
{
	size_t len = 0;
	const char *host = find_host(url, &len);
	enum here where = host ? here_find(host, len) : HERE_NOT;

	*ret_port = where == HERE_NOT ? 0 : port_of(url, host + len);
	return where == HERE_LOOPBACK ? lead_to_gateway(url, host, len) : xstrdup(url);
}

/* --- checking --- */

/* A name for a message: it may be long and have anything in it. */
static const char *shown_name(const char *name, size_t len, char dst[static 64])
{
	size_t n = MIN(len, (size_t)48);

	memcpy(dst, name, n);
	dst[n] = '\0';
	return log_quote(dst);
}

/* What an entry takes in the guest: rewriting makes it longer. */
static int check_size(const char *name, size_t name_len, const char *value, size_t n, size_t *total,
	struct err *e)
{
	cleanup_free char *rewritten = guest_env_rewrite(value);
	size_t bytes = name_len + 1 + strlen(rewritten) + 1;
	char dst[64];

	if (n >= GUEST_ENV_COUNT_MAX)
		return err_set(
			e, "S001", E2BIG, "env: more than %d variables", GUEST_ENV_COUNT_MAX);
	if (bytes > GUEST_ENV_VALUE_MAX)
		return err_set(e, "S001", E2BIG,
			"env: the variable %s takes %zu bytes; at most %d are possible",
			shown_name(name, name_len, dst), bytes, GUEST_ENV_VALUE_MAX);
	*total += bytes;
	if (*total > GUEST_ENV_TOTAL_MAX)
		return err_set(e, "S001", E2BIG,
			"env: with the variable %s all variables take more than %u bytes together",
			shown_name(name, name_len, dst), GUEST_ENV_TOTAL_MAX);
	return 0;
}

void guest_env_done(struct guest_env *g)
{
	strv_free(g->v);
	*g = (struct guest_env){0};
}

int guest_env_add(struct guest_env *g, const char *name, size_t name_len, const char *value,
	size_t value_len, struct err *e)
{
	char dst[64], *entry;
	int r;

	if (name_len == 0)
		return err_set(e, "S001", EINVAL, "env: a variable without a name");
	if (memchr(name, '=', name_len) || memchr(name, '\0', name_len))
		return err_set(e, "S001", EINVAL,
			"env: the variable %s has an equals sign or U+0000 in its name",
			shown_name(name, name_len, dst));
	if (memchr(value, '\0', value_len))
		return err_set(e, "S001", EINVAL, "env: the variable %s has U+0000 in its value",
			shown_name(name, name_len, dst));
	r = check_size(name, name_len, value, g->n, &g->bytes, e);
	if (r < 0)
		return r;
	if (g->n + 1 >= g->cap) {
		g->cap = MAX(g->cap * 2, (size_t)32);
		g->v = xrealloc(g->v, g->cap, sizeof(*g->v));
	}
	entry = xmalloc(name_len + 1 + value_len + 1);
	memcpy(entry, name, name_len);
	entry[name_len] = '=';
	memcpy(entry + name_len + 1, value, value_len);
	entry[name_len + 1 + value_len] = '\0';
	g->v[g->n++] = entry;
	g->v[g->n] = NULL;
	return 0;
}

int guest_env_check(char *const *env, struct err *e)
{
	size_t total = 0;

	for (size_t i = 0; env && env[i]; i++) {
		const char *equals = strchr(env[i], '=');
		char dst[64];
		int r;

		if (!equals)
			return err_set(e, "S001", EINVAL,
				"env: %s is no variable: an equals sign is missing",
				shown_name(env[i], strlen(env[i]), dst));
		if (equals == env[i])
			return err_set(e, "S001", EINVAL, "env: a variable without a name");
		r = check_size(env[i], (size_t)(equals - env[i]), equals + 1, i, &total, e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* --- merging --- */

enum rank {
	RANK_DEFAULT,
	RANK_IMAGE,
	RANK_MANIFEST,
	RANK_REQUEST,
	RANK_RESERVED,
};

struct entry {
	const char *name, *value;
	size_t name_len;
	enum rank rank;
	size_t at; /* of all entries */
};

struct merge {
	struct entry *v;
	size_t n;
	const char *path[RANK_RESERVED]; /* PATH of each list; NULL: it has none */
};

static void merge_add(
	struct merge *m, const char *name, size_t name_len, const char *value, enum rank rank)
{
	m->v[m->n] = (struct entry){name, value, name_len, rank, m->n};
	m->n++;
}

static void merge_list(struct merge *m, char *const *list, enum rank rank)
{
	for (size_t i = 0; list && list[i]; i++) {
		const char *equals = strchr(list[i], '=');

		if (!equals || equals == list[i])
			continue;
		if (str_starts(list[i], "PATH="))
			m->path[rank] = equals + 1;
		else
			merge_add(m, list[i], (size_t)(equals - list[i]), equals + 1, rank);
	}
}

static int entry_cmp(const void *pa, const void *pb)
{
	const struct entry *a = pa, *b = pb;
	int c = memcmp(a->name, b->name, MIN(a->name_len, b->name_len));

	if (c == 0)
		c = (a->name_len > b->name_len) - (a->name_len < b->name_len);
	if (c == 0)
		c = (int)a->rank - (int)b->rank;
	return c ? c : (a->at > b->at) - (a->at < b->at);
}

static bool same_name(const struct entry *a, const struct entry *b)
{
	return a->name_len == b->name_len && memcmp(a->name, b->name, a->name_len) == 0;
}

/* A folder of a PATH. */
struct folder {
	const char *text;
	size_t len, at;
	bool first; /* of those with this text */
};

static int folder_cmp(const void *pa, const void *pb)
{
	const struct folder *a = pa, *b = pb;
	int c = memcmp(a->text, b->text, MIN(a->len, b->len));

	if (c == 0)
		c = (a->len > b->len) - (a->len < b->len);
	return c ? c : (a->at > b->at) - (a->at < b->at);
}

static int folder_cmp_at(const void *pa, const void *pb)
{
	const struct folder *a = pa, *b = pb;

	return (a->at > b->at) - (a->at < b->at);
}

/* Adds the folders of one PATH to the list. Empty ones, which mean the working folder, are not
 * taken: they are slips of the pen, and dangerous ones. */
static size_t folders_add(struct folder *v, size_t n, const char *path)
{
	while (path && *path) {
		size_t len = strcspn(path, ":");

		if (len) {
			v[n] = (struct folder){.text = path, .len = len, .at = n};
			n++;
		}
		path += len;
		path += *path == ':';
	}
	return n;
}

static size_t folders_max(const char *path)
{
	size_t n = 1;

	for (; path && *path; path++)
		n += *path == ':';
	return n;
}

/* Each folder once, where it comes first. */
static char *merge_path(const struct merge *m)
{
	const char *const from[] = {
		m->path[RANK_REQUEST], m->path[RANK_MANIFEST], m->path[RANK_IMAGE], STANDARD_PATH};
	cleanup_free struct folder *v = NULL;
	size_t max = 0, n = 0;
	struct buf b;

	for (size_t i = 0; i < ARRAY_LEN(from); i++)
		max += folders_max(from[i]);
	v = xcalloc(max, sizeof(*v));
	for (size_t i = 0; i < ARRAY_LEN(from); i++)
		n = folders_add(v, n, from[i]);
	qsort(v, n, sizeof(*v), folder_cmp);
	for (size_t i = 0; i < n; i++)
		v[i].first = i == 0 || v[i].len != v[i - 1].len ||
			     memcmp(v[i].text, v[i - 1].text, v[i].len) != 0;
	qsort(v, n, sizeof(*v), folder_cmp_at);
	buf_init(&b, GUEST_ENV_VALUE_MAX - sizeof("PATH="));
	for (size_t i = 0; i < n; i++) {
		if (!v[i].first || b.len + 1 + v[i].len > b.max)
			continue;
		must_add(&b, ":", b.len > 0);
		must_add(&b, v[i].text, v[i].len);
	}
	return buf_steal(&b);
}

char **guest_env_make(const struct guest_env_parts *p)
{
	cleanup_free char *url = guest_env_rewrite_url(p->engine_url), *path = NULL;
	const struct {
		const char *name, *value;
	} reserved[] = {{"III_WORKER_NAME", p->worker_name}, {"III_URL", url},
		{"III_ENGINE_URL", url}, {"III_ISOLATION", ISOLATION}};
	size_t max = strv_len(p->image) + strv_len(p->manifest) + strv_len(p->request) +
		     ARRAY_LEN(reserved) + 2,
	       kept = 0;
	cleanup_free struct entry *entries = xcalloc(max, sizeof(*entries));
	struct merge m = {.v = entries};
	char **ret = xcalloc(max + 1, sizeof(*ret));

	merge_add(&m, "LANG", 4, DEFAULT_LANG, RANK_DEFAULT);
	merge_list(&m, p->image, RANK_IMAGE);
	merge_list(&m, p->manifest, RANK_MANIFEST);
	merge_list(&m, p->request, RANK_REQUEST);
	path = merge_path(&m);
	merge_add(&m, "PATH", 4, path, RANK_RESERVED);
	for (size_t i = 0; i < ARRAY_LEN(reserved); i++)
		merge_add(&m, reserved[i].name, strlen(reserved[i].name), reserved[i].value,
			RANK_RESERVED);
	qsort(m.v, m.n, sizeof(*m.v), entry_cmp);
	for (size_t i = 0; i < m.n; i++) {
		const struct entry *x = &m.v[i];
		cleanup_free char *value = NULL;

		if (i + 1 < m.n && same_name(x, x + 1))
			continue;
		value = x->rank == RANK_RESERVED ? xstrdup(x->value) : guest_env_rewrite(x->value);
		if (x->name_len + 1 + strlen(value) + 1 <= GUEST_ENV_VALUE_MAX)
			ret[kept++] = xasprintf("%.*s=%s", (int)x->name_len, x->name, value);
	}
	return ret;
}
