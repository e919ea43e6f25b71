/* guest_env: what a worker finds in its environment (worker VM specification §5.4, W81-W85). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/worker/guest_env.h"

static void expect_url(const char *url, const char *want)
{
	cleanup_free char *got = guest_env_rewrite_url(url);

	assert_string_equal(got, want);
}

static void engine_urls_lead_to_the_gateway(void **state)
{
	static const char *const loopback[] = {"127.0.0.1", "127.255.3.4", "127.1", "localhost",
		"LocalHost", "LOCALHOST", "localhost.", "[::1]", "[0:0:0:0:0:0:0:1]", "[::]",
		"[::ffff:127.0.0.1]", "0.0.0.0"};
	static const char *const after[] = {
		"", ":49134", ":49134/p?q", "/p", "?q=http://localhost:1/", "#f", ":1/a@b"};
	static const char *const before[] = {"ws://", "wss://", "http://", "https://", "WS://",
		"ws://u@", "ws://u:p%40ss@", "ws://u:p@s@"};

	for (size_t i = 0; i < ARRAY_LEN(loopback); i++)
		for (size_t j = 0; j < ARRAY_LEN(after); j++)
			for (size_t k = 0; k < ARRAY_LEN(before); k++) {
				cleanup_free char *url =
					xasprintf("%s%s%s", before[k], loopback[i], after[j]);
				cleanup_free char *want =
					xasprintf("%s100.96.0.1%s", before[k], after[j]);

				expect_url(url, want);
			}
}

static void engines_of_this_host(void **state)
{
	static const struct {
		const char *url, *want;
		unsigned port;
	} cases[] = {
		{"ws://127.1:49134/p?q", "ws://100.96.0.1:49134/p?q", 49134},
		{"wss://LocalHost./", "wss://100.96.0.1/", 443},
		{"ws://[::1]", "ws://100.96.0.1", 80},
		{"ws://u:p@localhost:9?a", "ws://u:p@100.96.0.1:9?a", 9},
		{"ws://192.0.2.1:7", "ws://192.0.2.1:7", 0},
		{"ws://localhost:65536", "ws://100.96.0.1:65536", 0},
		{"no url", "no url", 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		uint16_t port = 1;
		cleanup_free char *got = guest_env_find_engine(cases[i].url, &port);

		assert_string_equal(got, cases[i].want);
		assert_int_equal(port, cases[i].port);
	}
}

static void other_urls_stay(void **state)
{
	static const char *const urls[] = {"ws://10.0.0.9:1", "ws://engine:49134/p",
		"ws://localhost.example.com:1", "ws://notlocalhost:1", "ws://127.0.0.1.nip.io/",
		"ws://128.0.0.1:1", "ws://126.255.255.255:1", "ws://0.0.0.1:1", "ws://[::2]:1",
		"ws://[fe80::1]:1", "ws://[::1", "ws://[", "ws://[]", "ws://", "ws:///p", "",
		"localhost:49134", "ws://localhost:1@10.0.0.9/", "ws://127.0.0.1@evil/",
		"ws://example.com/ws://localhost:1"};

	for (size_t i = 0; i < ARRAY_LEN(urls); i++)
		expect_url(urls[i], urls[i]);
}

static void values_are_rewritten_as_urls(void **state)
{
	static const char *const cases[][2] = {
		{"postgres://u@localhost:5432/x", "postgres://u@100.96.0.1:5432/x"},
		{"http://localhost:3000", "http://100.96.0.1:3000"},
		{"http://127.0.0.1:3000/a?b=http://localhost:1",
			"http://100.96.0.1:3000/a?b=http://100.96.0.1:1"},
		{"node x.js --url=ws://localhost:1 'http://127.0.0.1:2/'",
			"node x.js --url=ws://100.96.0.1:1 'http://100.96.0.1:2/'"},
		{"redis://:p@ss@127.0.0.1:6379", "redis://:p@ss@100.96.0.1:6379"},
		{"localhost", "localhost"},
		{"localhost:80", "localhost:80"},
		{"http://localhost", "http://localhost"},
		{"http://localhost/", "http://localhost/"},
		{"http://127.0.0.10:80", "http://127.0.0.10:80"},
		{"http://localhosts:80", "http://localhosts:80"},
		{"http://localhost:80@example.com/", "http://localhost:80@example.com/"},
		{"http://example.com/ a@localhost:1", "http://example.com/ a@localhost:1"},
		{"://localhost:", "://100.96.0.1:"},
		{"://", "://"},
		{"://://localhost:1", "://://100.96.0.1:1"},
		{"", ""},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_free char *got = guest_env_rewrite(cases[i][0]);

		assert_string_equal(got, cases[i][1]);
	}
}

static char **make(
	const char *const *image, const char *const *manifest, const char *const *request)
{
	struct guest_env_parts p = {.image = (char *const *)image,
		.manifest = (char *const *)manifest,
		.request = (char *const *)request,
		.worker_name = "w1",
		.engine_url = "ws://127.0.0.1:49134/p?q"};

	return guest_env_make(&p);
}

static void expect(char *const *env, const char *name, const char *want)
{
	const char *got = strv_env_get(env, name);

	if (!str_eq(got, want))
		fail_msg("%s=%s instead of %s", name, got ? got : "(unset)",
			want ? want : "(unset)");
}

static void higher_lists_win(void **state)
{
	static const char *const image[] = {"A=image", "B=image", "C=image", "LANG=de_DE", NULL};
	static const char *const manifest[] = {"B=manifest", "C=manifest", "AB=x", NULL};
	static const char *const request[] = {"C=request", "C=again", "D=", "E=a=b", NULL};
	char **env = make(image, manifest, request);

	expect(env, "A", "image");
	expect(env, "AB", "x");
	expect(env, "B", "manifest");
	expect(env, "C", "again");
	expect(env, "D", "");
	expect(env, "E", "a=b");
	expect(env, "LANG", "de_DE");
	/* One entry a name, in their order. */
	for (size_t i = 1; env[i]; i++) {
		size_t n = strcspn(env[i], "="), before = strcspn(env[i - 1], "=");
		int c = memcmp(env[i - 1], env[i], MIN(n, before));

		assert_true(c < 0 || (c == 0 && before < n));
	}
	strv_free(env);
}

static void reserved_names_are_ours(void **state)
{
	static const char *const mine[] = {"III_URL=ws://evil:1", "III_ENGINE_URL=x",
		"III_WORKER_NAME=other", "III_ISOLATION=none", "III_NAMESPACE=n",
		"III_CONFIG=/host/path", NULL};
	char **env = make(mine, mine, mine);

	expect(env, "III_URL", "ws://100.96.0.1:49134/p?q");
	expect(env, "III_ENGINE_URL", "ws://100.96.0.1:49134/p?q");
	expect(env, "III_WORKER_NAME", "w1");
	expect(env, "III_ISOLATION", "libkrun");
	expect(env, "III_NAMESPACE", "n");
	expect(env, "III_CONFIG", "/host/path");
	strv_free(env);
}

static void loopback_urls_in_values_are_rewritten(void **state)
{
	static const char *const image[] = {"I=http://localhost:1", NULL};
	static const char *const manifest[] = {"M=http://127.0.0.1:2/x", NULL};
	static const char *const request[] = {
		"DB=postgres://u@localhost:5432/x", "N=localhost", NULL};
	char **env = make(image, manifest, request);

	expect(env, "I", "http://100.96.0.1:1");
	expect(env, "M", "http://100.96.0.1:2/x");
	expect(env, "DB", "postgres://u@100.96.0.1:5432/x");
	expect(env, "N", "localhost");
	strv_free(env);
}

#define SIX "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

static void paths_are_put_together(void **state)
{
	static const char *const image[] = {"PATH=/usr/local/cargo/bin:/usr/bin:/bin", NULL};
	static const char *const manifest[] = {"PATH=/opt/m", NULL};
	static const char *const request[] = {"PATH=/home/u/bin:/usr/bin::/home/u/bin:", NULL};
	char **env = make(NULL, NULL, NULL);

	expect(env, "PATH", SIX);
	expect(env, "LANG", "C.UTF-8");
	strv_free(env);
	env = make(image, NULL, NULL);
	expect(env, "PATH",
		"/usr/local/cargo/bin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/"
		"sbin");
	strv_free(env);
	env = make(image, manifest, request);
	expect(env, "PATH",
		"/home/u/bin:/usr/bin:/opt/m:/usr/local/cargo/bin:/bin:/usr/local/sbin:"
		"/usr/local/bin:/usr/sbin:/sbin");
	strv_free(env);
}

/* Two long PATHs together are no more than what Linux starts a program with. */
static void a_merged_path_is_bounded(void **state)
{
	char *image[] = {xmalloc(120000), NULL}, *request[] = {xmalloc(120000), NULL};
	char *const lists[] = {image[0], request[0]};
	const char *path;
	char **env;

	for (int i = 0; i < 2; i++) {
		int n = snprintf(lists[i], 120000, "PATH=");

		for (int k = 0; n < 119000; k++)
			n += snprintf(lists[i] + n, 1000, "/%d/folder%d:", i, k);
	}
	env = make((const char *const *)image, NULL, (const char *const *)request);
	path = strv_env_get(env, "PATH");
	assert_non_null(path);
	assert_true(strlen(path) > 120000);
	assert_true(strlen("PATH=") + strlen(path) + 1 <= GUEST_ENV_VALUE_MAX);
	assert_true(str_starts(path, "/1/folder0:/1/folder1:"));
	strv_free(env);
	free(image[0]);
	free(request[0]);
}

static void entries_no_program_can_have_are_left_out(void **state)
{
	char *huge = xmalloc(200000);
	const char *const image[] = {huge, "=x", "NOEQUALS", "A=1", NULL};
	char **env;

	memset(huge, 'x', 199999);
	memcpy(huge, "H=", 2);
	huge[199999] = '\0';
	env = make(image, NULL, NULL);
	expect(env, "H", NULL);
	expect(env, "A", "1");
	for (size_t i = 0; env[i]; i++)
		assert_true(strchr(env[i], '=') > env[i]);
	strv_free(env);
	free(huge);
}

static int add(
	struct guest_env *g, const char *name, size_t n, const char *value, size_t v, struct err *e)
{
	return guest_env_add(g, name, n, value, v, e);
}

static void bad_variables_are_named(void **state)
{
	struct guest_env g = {0};
	struct err e = ERR_INIT;

	assert_true(add(&g, "A=B", 3, "secret", 6, &e) < 0);
	assert_string_equal(e.code, "S001");
	assert_non_null(strstr(e.text, "A=B"));
	assert_null(strstr(e.text, "secret"));
	assert_true(add(&g, "", 0, "secret", 6, &e) < 0);
	assert_true(add(&g, "A\0B", 3, "secret", 6, &e) < 0);
	assert_string_equal(e.code, "S001");
	assert_true(add(&g, "KEY", 3, "sec\0ret", 7, &e) < 0);
	assert_non_null(strstr(e.text, "KEY"));
	assert_null(strstr(e.text, "sec"));
	assert_int_equal(g.n, 0);
	assert_int_equal(add(&g, "KEY", 3, "a=b", 3, &e), 0);
	assert_int_equal(add(&g, "\xc3\xa4", 2, "", 0, &e), 0);
	assert_string_equal(g.v[0], "KEY=a=b");
	assert_string_equal(g.v[1], "\xc3\xa4=");
	assert_null(g.v[2]);
	assert_int_equal(guest_env_check(g.v, &e), 0);
	guest_env_done(&g);
	assert_true(guest_env_check((char *[]){(char *)"A=1", (char *)"=x", NULL}, &e) < 0);
	assert_true(guest_env_check((char *[]){(char *)"NOEQUALS", NULL}, &e) < 0);
	assert_int_equal(guest_env_check(NULL, &e), 0);
}

static void sizes_are_limited(void **state)
{
	cleanup_free char *value = xmalloc(200001);
	size_t most = GUEST_ENV_VALUE_MAX - strlen("KEY=") - 1;
	struct guest_env g = {0};
	struct err e = ERR_INIT;
	int n = 0, r;

	memset(value, 'v', 200000);
	value[200000] = '\0';
	assert_true(add(&g, "KEY", 3, value, 200000, &e) < 0);
	assert_string_equal(e.code, "S001");
	assert_non_null(strstr(e.text, "KEY"));
	assert_null(strstr(e.text, "vvv"));
	value[most + 1] = '\0';
	assert_true(add(&g, "KEY", 3, value, most + 1, &e) < 0);
	value[most] = '\0';
	assert_int_equal(add(&g, "KEY", 3, value, most, &e), 0);
	/* What rewriting makes of it counts. */
	memcpy(value, "://localhost:", 13);
	assert_true(add(&g, "KEY", 3, value, most, &e) < 0);
	value[most - 1] = '\0';
	assert_int_equal(add(&g, "KEY", 3, value, most - 1, &e), 0);
	guest_env_done(&g);
	value[1000] = '\0';
	do {
		char name[16];
		int len = snprintf(name, sizeof(name), "K%d", n++);

		r = add(&g, name, (size_t)len, value, 1000, &e);
	} while (r == 0 && n < 5000);
	assert_true(r < 0);
	assert_string_equal(e.code, "S001");
	assert_true(n > 1000 && n < 1100);
	guest_env_done(&g);
}

static void many_variables_are_merged(void **state)
{
	struct guest_env g = {0};
	struct err e = ERR_INIT;
	char **env, name[16];
	size_t n = 0;
	int len;

	do
		len = snprintf(name, sizeof(name), "%zx", n++);
	while (add(&g, name, (size_t)len, "", 0, &e) == 0);
	assert_int_equal(g.n, GUEST_ENV_COUNT_MAX);
	assert_string_equal(e.code, "S001");
	assert_int_equal(guest_env_check(g.v, &e), 0);
	env = make(NULL, (const char *const *)g.v, (const char *const *)g.v);
	assert_int_equal(strv_len(env), g.n + 6);
	strv_free(env);
	guest_env_done(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(engine_urls_lead_to_the_gateway),
		cmocka_unit_test(engines_of_this_host),
		cmocka_unit_test(other_urls_stay),
		cmocka_unit_test(values_are_rewritten_as_urls),
		cmocka_unit_test(higher_lists_win),
		cmocka_unit_test(reserved_names_are_ours),
		cmocka_unit_test(loopback_urls_in_values_are_rewritten),
		cmocka_unit_test(paths_are_put_together),
		cmocka_unit_test(a_merged_path_is_bounded),
		cmocka_unit_test(entries_no_program_can_have_are_left_out),
		cmocka_unit_test(bad_variables_are_named),
		cmocka_unit_test(sizes_are_limited),
		cmocka_unit_test(many_variables_are_merged),
	};

	return cmocka_run_group_tests_name("guest_env", tests, NULL, NULL);
}
