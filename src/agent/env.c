#include "agent/env.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static int parse_parts(json_object *o, struct env_frame *ret, struct err *e)
{
	json_object *net = NULL, *worker = NULL;
	int r;

	r = json_get_object(o, "net", JSON_NULLABLE, &net, e);
	if (r == 1) {
		ret->has_net = true;
		r = guest_net_from_json(net, &ret->net, e);
		err_wrap(r < 0 ? e : NULL, "net");
	}
	if (r >= 0)
		r = json_get_object(o, "worker", JSON_NULLABLE, &worker, e);
	if (r == 1) {
		ret->has_worker = true;
		r = worker_job_from_json(worker, &ret->worker, e);
		err_wrap(r < 0 ? e : NULL, "worker");
	}
	return MIN(r, 0);
}

int env_frame_parse(const char *json, size_t len, struct env_frame *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	const char *hostname = "sandbox";
	char **given = NULL, **merged;
	struct env_frame f = {0};

	if (json_parse_object(json, len, &o, e) < 0 ||
		json_get_str(o, "hostname", JSON_NULLABLE, &hostname, e) < 0 ||
		json_get_u64(o, "time_ns", JSON_OPTIONAL, &f.time_ns, e) < 0 ||
		parse_parts(o, &f, e) < 0 ||
		json_get_strv(o, "env", JSON_OPTIONAL, &given, e) < 0) {
		err_wrap(e, "port iii.env");
		err_code(e, "S300");
		env_frame_done(&f);
		return -EINVAL;
	}
	if (!*hostname || strlen(hostname) > HOSTNAME_MAX) {
		strv_free(given);
		env_frame_done(&f);
		return err_set(e, "S300", EINVAL,
			"port iii.env: the hostname must have 1 to %d bytes", HOSTNAME_MAX);
	}
	merged = env_merge(ENV_DEFAULTS, given);
	f.env = strv_dup(merged);
	f.hostname = xstrdup(hostname);
	*ret = f;
	free(merged);
	strv_free(given);
	return 0;
}

void env_frame_done(struct env_frame *f)
{
	strv_free(f->env);
	free(f->hostname);
	worker_job_done(&f->worker);
	*f = (struct env_frame){0};
}

/* --- a worker's --- */

static bool is_folder(const char *path)
{
	struct stat st;

	return path[0] == '/' && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool is_program(const char *path)
{
	struct stat st;

	return path[0] == '/' && stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
	       access(path, X_OK) == 0;
}

char **env_for_worker(char *const *env)
{
	static char home[] = "HOME=/root", lang[] = "LANG=C.UTF-8";
	char **v = xcalloc(strv_len(env) + 3, sizeof(*v));
	bool has_home = false, has_lang = false;
	size_t n = 0;

	for (size_t i = 0; env[i]; i++) {
		char *entry = env[i];

		if (str_starts(entry, "HOME=")) {
			has_home = true;
			if (!is_folder(entry + strlen("HOME=")))
				entry = home;
		} else if (str_starts(entry, "LANG=")) {
			has_lang = true;
		} else if ((str_starts(entry, "TMPDIR=") &&
				   !is_folder(entry + strlen("TMPDIR="))) ||
			   (str_starts(entry, "SHELL=") && !is_program(entry + strlen("SHELL=")))) {
			continue;
		}
		v[n++] = entry;
	}
	if (!has_home)
		v[n++] = home;
	if (!has_lang)
		v[n++] = lang;
	v[n] = NULL;
	return v;
}
