#include "agent/env.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "wire/json.h"

#define HOSTNAME_MAX 64 /* __NEW_UTS_LEN */

static char *const ENV_DEFAULTS[] = {
	(char *)"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	(char *)"HOME=/root",
	NULL,
};

struct entry {
	char *text;
	size_t name_len;
	size_t at; /* place in the joined lists */
};

static int compare_names(const void *va, const void *vb)
{
	const struct entry *a = va, *b = vb;
	int r = memcmp(a->text, b->text, a->name_len < b->name_len ? a->name_len : b->name_len);

	if (r)
		return r;
	if (a->name_len != b->name_len)
		return a->name_len < b->name_len ? -1 : 1;
	return a->at < b->at ? -1 : 1;
}

static size_t collect(struct entry *dst, size_t n, char *const *list)
{
	for (size_t i = 0; list && list[i]; i++) {
		const char *eq = strchr(list[i], '=');

		if (!eq || eq == list[i])
			continue;
		dst[n] = (struct entry){list[i], (size_t)(eq - list[i]), n};
		n++;
	}
	return n;
}

/* Sorting finds the doubles in n log n: a list of many thousand variables is legal. */
char **env_merge(char *const *base, char *const *extra)
{
	size_t most = strv_len(base) + strv_len(extra), n, kept = 0;
	cleanup_free struct entry *all = xcalloc(most + 1, sizeof(*all));
	char **merged = xcalloc(most + 1, sizeof(*merged));

	n = collect(all, 0, base);
	n = collect(all, n, extra);
	qsort(all, n, sizeof(*all), compare_names);
	for (size_t i = 0; i < n; i++) {
		bool last = i + 1 == n || all[i].name_len != all[i + 1].name_len ||
			    memcmp(all[i].text, all[i + 1].text, all[i].name_len) != 0;

		if (last)
			merged[all[i].at] = all[i].text;
	}
	for (size_t i = 0; i < n; i++)
		if (merged[i])
			merged[kept++] = merged[i];
	merged[kept] = NULL;
	return merged;
}

int env_frame_parse(const char *json, size_t len, struct env_frame *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	const char *hostname = "sandbox";
	char **given = NULL, **merged;
	uint64_t time_ns = 0;

	if (json_parse_object(json, len, &o, e) < 0 ||
		json_get_str(o, "hostname", JSON_NULLABLE, &hostname, e) < 0 ||
		json_get_u64(o, "time_ns", JSON_OPTIONAL, &time_ns, e) < 0 ||
		json_get_strv(o, "env", JSON_OPTIONAL, &given, e) < 0) {
		err_wrap(e, "port iii.env");
		err_code(e, "S300");
		return -EINVAL;
	}
	if (!*hostname || strlen(hostname) > HOSTNAME_MAX) {
		strv_free(given);
		return err_set(e, "S300", EINVAL,
			"port iii.env: the hostname must have 1 to %d bytes", HOSTNAME_MAX);
	}
	merged = env_merge(ENV_DEFAULTS, given);
	*ret = (struct env_frame){
		.env = strv_dup(merged), .hostname = xstrdup(hostname), .time_ns = time_ns};
	free(merged);
	strv_free(given);
	return 0;
}

void env_frame_done(struct env_frame *f)
{
	strv_free(f->env);
	free(f->hostname);
	*f = (struct env_frame){0};
}
