/* config: contract §2, row by row: what a configuration may hold, and the key that a refusal names.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/api/config.h"
#include "wire/json.h"

static int parse(const char *text, struct config *c, struct err *e)
{
	cleanup_json json_object *value = NULL;

	assert_int_equal(json_parse(text, strlen(text), &value, NULL), 0);
	return config_parse(value, c, e);
}

static void an_empty_object_is_the_defaults(void **state)
{
	struct config c;

	assert_int_equal(parse("{}", &c, NULL), 0);
	assert_true(c.auto_install);
	assert_true(!c.image_allowlist || !c.image_allowlist[0]);
	assert_int_equal(c.default_idle_timeout_secs, 300);
	assert_int_equal(c.max_concurrent_sandboxes, 32);
	assert_int_equal(c.max_concurrent_exec_per_sandbox, 4);
	assert_int_equal(c.max_exec_timeout_ms, 300000);
	assert_int_equal(c.default_cpus, 1);
	assert_int_equal(c.default_memory_mb, 512);
	assert_false(config_image_allowed(&c, "python"));
	config_done(&c);
}

static void nulls_count_as_absent(void **state)
{
	struct config c;

	assert_int_equal(
		parse("{\"auto_install\":null,\"image_allowlist\":null,\"default_idle_timeout_"
		      "secs\":"
		      "null,\"max_concurrent_sandboxes\":null,\"max_concurrent_exec_per_sandbox\":"
		      "null,\"max_exec_timeout_ms\":null,\"default_cpus\":null,\"default_memory_"
		      "mb\":"
		      "null,\"per_image_caps\":null,\"custom_images\":null}",
			&c, NULL),
		0);
	assert_true(c.auto_install);
	assert_int_equal(c.default_memory_mb, 512);
	config_done(&c);
}

static void the_shipped_block_allows_the_presets(void **state)
{
	struct config c;
	cleanup_free char *names = NULL;

	config_init_shipped(&c);
	assert_true(config_image_allowed(&c, "python"));
	assert_true(config_image_allowed(&c, "node"));
	names = config_allowed_names(&c);
	assert_string_equal(names, "python, node");
	config_done(&c);
}

static void everything_at_once(void **state)
{
	struct config c;
	struct config_cap cap;
	cleanup_free char *names = NULL;

	assert_int_equal(
		parse("{\"auto_install\":false,\"image_allowlist\":[\"zeta\",\"python\",\"alpha\","
		      "\"nowhere\"],\"default_idle_timeout_secs\":18446744073709551615,"
		      "\"max_concurrent_sandboxes\":0,\"max_concurrent_exec_per_sandbox\":0,"
		      "\"max_exec_timeout_ms\":0,\"default_cpus\":2,\"default_memory_mb\":64,"
		      "\"per_image_caps\":{\"python\":{\"max_cpus\":3},\"zeta\":{\"max_cpus\":null,"
		      "\"max_memory_mb\":100},\"bare\":null},\"custom_images\":{\"zeta\":\"z/z:1\","
		      "\"alpha\":\"a/a:1\"},\"zzz\":1}",
			&c, NULL),
		0);
	assert_false(c.auto_install);
	assert_true(c.default_idle_timeout_secs == UINT64_MAX);
	assert_int_equal(c.max_concurrent_sandboxes, 0);
	assert_int_equal(c.max_concurrent_exec_per_sandbox, 1); /* 0 means 1 */
	assert_int_equal(c.max_exec_timeout_ms, 1);
	assert_int_equal(c.n_images, 2);
	assert_string_equal(c.images[0].name, "alpha");
	assert_string_equal(config_image_ref(&c, "zeta"), "z/z:1");
	assert_null(config_image_ref(&c, "nowhere"));
	assert_false(config_image_allowed(&c, "nowhere"));
	assert_false(config_image_allowed(&c, "node"));
	names = config_allowed_names(&c);
	assert_string_equal(names, "python, alpha, zeta");
	cap = config_image_cap(&c, "python");
	assert_int_equal(cap.max_cpus, 3);
	assert_true(cap.max_memory_mb == UINT32_MAX);
	cap = config_image_cap(&c, "zeta");
	assert_true(cap.max_cpus == UINT32_MAX);
	assert_int_equal(cap.max_memory_mb, 100);
	cap = config_image_cap(&c, "alpha");
	assert_true(cap.max_cpus == UINT32_MAX && cap.max_memory_mb == UINT32_MAX);
	config_done(&c);
}

static void refusals_name_the_key(void **state)
{
	static const struct {
		const char *text, *part;
	} rows[] = {
		{"[]", "object"},
		{"null", "object"},
		{"7", "object"},
		{"\"x\"", "object"},
		{"{\"sandbox\":{}}", "sandbox"},
		{"{\"sandbox\":null,\"auto_install\":true}", "top level"},
		{"{\"auto_install\":\"yes\"}", "auto_install"},
		{"{\"auto_install\":1}", "auto_install"},
		{"{\"image_allowlist\":\"python\"}", "image_allowlist"},
		{"{\"image_allowlist\":[\"python\",7]}", "image_allowlist"},
		{"{\"image_allowlist\":{}}", "image_allowlist"},
		{"{\"default_idle_timeout_secs\":-1}", "default_idle_timeout_secs"},
		{"{\"default_idle_timeout_secs\":1.0}", "default_idle_timeout_secs"},
		{"{\"max_concurrent_sandboxes\":\"32\"}", "max_concurrent_sandboxes"},
		{"{\"max_concurrent_sandboxes\":-1}", "max_concurrent_sandboxes"},
		{"{\"max_concurrent_sandboxes\":4294967296}", "max_concurrent_sandboxes"},
		{"{\"max_concurrent_exec_per_sandbox\":1e1}", "max_concurrent_exec_per_sandbox"},
		{"{\"max_exec_timeout_ms\":true}", "max_exec_timeout_ms"},
		{"{\"default_cpus\":0}", "default_cpus"},
		{"{\"default_memory_mb\":63}", "default_memory_mb"},
		{"{\"per_image_caps\":[]}", "per_image_caps"},
		{"{\"per_image_caps\":{\"python\":4}}", "per_image_caps"},
		{"{\"per_image_caps\":{\"python\":{\"max_cpus\":-1}}}", "per_image_caps"},
		{"{\"per_image_caps\":{\"python\":{\"max_memory_mb\":\"1\"}}}", "max_memory_mb"},
		{"{\"custom_images\":[\"a\"]}", "custom_images"},
		{"{\"custom_images\":{\"\":\"x/y:1\"}}", "custom_images"},
		{"{\"custom_images\":{\"python\":\"x/y:1\"}}", "python"},
		{"{\"custom_images\":{\"node\":\"x/y:1\"}}", "custom_images"},
		{"{\"custom_images\":{\"a\":\"\"}}", "custom_images"},
		{"{\"custom_images\":{\"a\":null}}", "custom_images"},
		{"{\"custom_images\":{\"b\":\"x/y:1\",\"a\":7}}", "custom_images"},
		{"{\"custom_images\":{\"a\":\"x\\u0000y\"}}", "custom_images"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct config c;
		struct err e = ERR_INIT;

		if (parse(rows[i].text, &c, &e) != -EINVAL)
			fail_msg("taken: %s", rows[i].text);
		if (!strstr(e.text, rows[i].part) || strchr(e.text, '\n'))
			fail_msg("%s: %s", rows[i].text, e.text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_object_is_the_defaults),
		cmocka_unit_test(nulls_count_as_absent),
		cmocka_unit_test(the_shipped_block_allows_the_presets),
		cmocka_unit_test(everything_at_once),
		cmocka_unit_test(refusals_name_the_key),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
