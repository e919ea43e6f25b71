/* wire/worker: a job survives the way, and nothing else passes for one. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "wire/json.h"
#include "wire/worker.h"

#define DIGEST_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define DIGEST_B "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const char good_text[] =
	"{\"name\":\"web\",\"kind\":\"bundle\",\"setup\":null,\"install\":\"npm "
	"ci\",\"run\":\"node "
	"x.js && echo \\u00e4\",\"setup_digest\":\"\",\"install_digest\":\"" DIGEST_A
	"\",\"source_digest\":\"" DIGEST_B
	"\",\"memory_max_bytes\":18446744073709551615,\"nofile\":65536}";

static int read_text(const char *text, struct worker_job *j, struct err *e)
{
	cleanup_json json_object *o = NULL;

	if (json_parse(text, strlen(text), &o, e) < 0)
		fail_msg("%s", e->text);
	return worker_job_from_json(o, j, e);
}

static void test_read(void **state)
{
	struct worker_job j;
	struct err e = ERR_INIT;

	(void)state;
	if (read_text(good_text, &j, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(j.kind, WORKER_BUNDLE);
	assert_string_equal(j.name, "web");
	assert_null(j.setup);
	assert_string_equal(j.install, "npm ci");
	assert_string_equal(j.run, "node x.js && echo \xc3\xa4");
	assert_string_equal(j.setup_digest, "");
	assert_string_equal(j.install_digest, DIGEST_A);
	assert_string_equal(j.source_digest, DIGEST_B);
	assert_true(j.memory_max_bytes == UINT64_MAX);
	assert_int_equal(j.nofile, 65536);
	worker_job_done(&j);
	assert_null(j.run);
	worker_job_done(&j);
}

static void test_round_trip(void **state)
{
	cleanup_json json_object *a = NULL, *b = NULL;
	struct worker_job j, k;
	struct err e = ERR_INIT;

	(void)state;
	assert_int_equal(read_text(good_text, &j, &e), 0);
	a = worker_job_to_json(&j);
	assert_int_equal(worker_job_from_json(a, &k, &e), 0);
	b = worker_job_to_json(&k);
	assert_string_equal(json_text(a, NULL), json_text(b, NULL));
	assert_string_equal(k.run, j.run);
	assert_true(k.memory_max_bytes == j.memory_max_bytes);
	worker_job_done(&j);
	worker_job_done(&k);
}

/* Each of these differs from the good text in one place. */
static void test_bad(void **state)
{
	static const struct {
		const char *old, *new, *says;
	} cases[] = {
		{"\"name\":\"web\"", "\"name\":\"\"", "name"},
		{"\"name\":\"web\"", "\"name\":7", "name"},
		{"\"name\":\"web\"", "\"name\":\"a\\u0000b\"", "name"},
		{"\"name\":\"web\",", "", "name"},
		{"\"bundle\"", "\"Bundle\"", "kind"},
		{"\"bundle\"", "null", "kind"},
		{"\"setup\":null,", "", "setup"},
		{"\"setup\":null", "\"setup\":\"\"", "setup"},
		{"\"setup\":null", "\"setup\":[]", "setup"},
		{"\"setup\":null", "\"setup\":\"x\"", "setup_digest"},
		{"\"install\":\"npm ci\"", "\"install\":\"\"", "install"},
		{"\"run\":\"node", "\"run\":null,\"run2\":\"node", "run"},
		{DIGEST_A, "aaaa", "install_digest"},
		{DIGEST_A, DIGEST_A "a", "install_digest"},
		{DIGEST_B, "0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef",
			"source_digest"},
		{DIGEST_B, "", "source_digest"},
		{"\"nofile\":65536", "\"nofile\":-1", "nofile"},
		{"\"nofile\":65536", "\"nofile\":1.5", "nofile"},
		{"\"nofile\":65536", "\"nofile\":null", "nofile"},
		{"\"nofile\":65536", "\"nofile\":65536,\"token\":\"x\"", "token"},
		{"\"memory_max_bytes\":18446744073709551615", "\"memory_max_bytes\":\"1\"",
			"memory_max_bytes"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const char *at = strstr(good_text, cases[i].old);
		cleanup_free char *text = NULL;
		struct worker_job j;
		struct err e = ERR_INIT;

		assert_non_null(at);
		text = xasprintf("%.*s%s%s", (int)(at - good_text), good_text, cases[i].new,
			at + strlen(cases[i].old));
		if (read_text(text, &j, &e) == 0)
			fail_msg("case %zu (%s) was taken", i, cases[i].new);
		if (!strstr(e.text, cases[i].says))
			fail_msg("case %zu: \"%s\" does not name %s", i, e.text, cases[i].says);
		worker_job_done(&j);
	}
}

static void test_no_object(void **state)
{
	static const char *const texts[] = {"[]", "\"x\"", "1", "null"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct worker_job j;
		struct err e = ERR_INIT;

		assert_int_equal(read_text(texts[i], &j, &e), -EINVAL);
		assert_null(j.name);
	}
}

/* Lengths are checked on both sides: before a job is sent, and when it is read. */
static void test_limits(void **state)
{
	cleanup_free char *long_text = xmalloc(WORKER_SCRIPT_MAX + 2);
	cleanup_json json_object *o = NULL;
	struct worker_job j, k;
	struct err e = ERR_INIT;
	char *run;

	(void)state;
	memset(long_text, 'x', WORKER_SCRIPT_MAX + 1);
	long_text[WORKER_SCRIPT_MAX + 1] = '\0';
	assert_int_equal(read_text(good_text, &j, &e), 0);
	run = j.run;
	j.run = long_text + 1;
	assert_int_equal(worker_job_check(&j, &e), 0);
	j.run = long_text;
	assert_int_equal(worker_job_check(&j, &e), -E2BIG);
	assert_non_null(strstr(e.text, "run"));
	o = worker_job_to_json(&j);
	assert_int_equal(worker_job_from_json(o, &k, &e), -E2BIG);
	worker_job_done(&k);
	j.run = NULL;
	assert_int_equal(worker_job_check(&j, &e), -EINVAL);
	j.run = run;
	j.kind = (enum worker_kind)2;
	assert_int_equal(worker_job_check(&j, &e), -EINVAL);
	assert_non_null(strstr(e.text, "kind"));
	j.kind = WORKER_LOCAL;
	j.source_digest[0] = '\0';
	assert_int_equal(worker_job_check(&j, &e), 0);
	worker_job_done(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_no_object),
		cmocka_unit_test(test_limits),
	};

	return cmocka_run_group_tests_name("worker_job", tests, NULL, NULL);
}
