/* guest_env: any texts make a list that a program can be started with: names once and in order,
 * ours as they should be, and nothing left to rewrite. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/worker/guest_env.h"

static void check_rewriting(const char *text)
{
	cleanup_free char *once = guest_env_rewrite(text), *twice = guest_env_rewrite(once);
	cleanup_free char *url = guest_env_rewrite_url(text), *again = guest_env_rewrite_url(url);

	assert(str_eq(once, twice));
	assert(str_eq(url, again));
	assert(strlen(once) <= 2 * strlen(text) + 64);
}

static void check_list(char *const *env, const char *url)
{
	cleanup_free char *want = guest_env_rewrite_url(url);

	for (size_t i = 0; env[i]; i++) {
		size_t n = strcspn(env[i], "="), before = i ? strcspn(env[i - 1], "=") : 0;
		int c = i ? memcmp(env[i - 1], env[i], MIN(n, before)) : -1;

		assert(n && env[i][n] == '=');
		assert(c < 0 || (c == 0 && before < n));
		assert(strlen(env[i]) + 1 <= GUEST_ENV_VALUE_MAX);
	}
	assert(str_eq(strv_env_get(env, "III_URL"), want));
	assert(str_eq(strv_env_get(env, "III_ENGINE_URL"), want));
	assert(str_eq(strv_env_get(env, "III_WORKER_NAME"), "w"));
	assert(strv_env_get(env, "PATH") && strv_env_get(env, "LANG"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free char *text = NULL;
	char **lists[3] = {NULL, NULL, NULL}, **env;
	const char *url = "";
	struct guest_env g = {0};

	if (size > 4096)
		return 0;
	text = xmalloc(size + 1);
	memcpy(text, data, size);
	text[size] = '\0';
	/* Pieces between NULs, to the lists in turn. */
	for (size_t at = 0, i = 0; at <= size; at += strlen(text + at) + 1, i++) {
		const char *equals = strchr(text + at, '=');

		check_rewriting(text + at);
		url = text + at;
		strv_add(&lists[i % 3], text + at);
		if (equals)
			guest_env_add(&g, text + at, (size_t)(equals - text) - at, equals + 1,
				strlen(equals + 1), NULL);
	}
	assert(guest_env_check(g.v, NULL) == 0);
	env = guest_env_make(&(struct guest_env_parts){.image = lists[0],
		.manifest = lists[1],
		.request = lists[2],
		.worker_name = "w",
		.engine_url = url});
	check_list(env, url);
	strv_free(env);
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		strv_free(lists[i]);
	guest_env_done(&g);
	return 0;
}
