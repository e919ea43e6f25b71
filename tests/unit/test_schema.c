/* schema: what is published has the structure of the contract's own list, word for word but for the
 * descriptions; each function has one of ours. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <json-c/linkhash.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/api/schema.h"
#include "wire/json.h"

#define PREFIX "sandbox-libkrun::"

static json_object *contract(void)
{
	cleanup_free char *text = NULL;
	json_object *o = NULL;
	size_t len;

	assert_int_equal(
		fd_slurp_at(AT_FDCWD, TEST_DATA "/contract.json", 1u << 20, &text, &len), 0);
	assert_int_equal(json_parse_object(text, len, &o, NULL), 0);
	return o;
}

/* Takes the members `description` of schemas out, and counts them. A property may have that name:
 * what is below `properties` is kept. */
static size_t strip(json_object *o, bool names)
{
	size_t found = 0;

	if (json_object_is_type(o, json_type_array)) {
		for (size_t i = 0; i < json_object_array_length(o); i++)
			found += strip(json_object_array_get_idx(o, i), false);
	}
	if (!json_object_is_type(o, json_type_object))
		return found;
	if (!names && json_object_object_get_ex(o, "description", NULL)) {
		json_object_object_del(o, "description");
		found++;
	}
	json_object_object_foreach (o, key, value)
		found += strip(
			value, !names && (str_eq(key, "properties") || str_eq(key, "definitions")));
	return found;
}

static size_t count_properties(json_object *o)
{
	size_t found = 0;

	if (json_object_is_type(o, json_type_array)) {
		for (size_t i = 0; i < json_object_array_length(o); i++)
			found += count_properties(json_object_array_get_idx(o, i));
	}
	if (!json_object_is_type(o, json_type_object))
		return found;
	json_object_object_foreach (o, key, value) {
		if (str_eq(key, "properties"))
			found += (size_t)json_object_object_length(value);
		found += count_properties(value);
	}
	return found;
}

static void check_one(const char *name, const char *text, json_object *wanted)
{
	cleanup_json json_object *ours = NULL;
	size_t described;

	assert_int_equal(json_parse_object(text, strlen(text), &ours, NULL), 0);
	described = strip(ours, false);
	if (described != count_properties(ours))
		fail_msg("%s: %zu properties, %zu descriptions", name, count_properties(ours),
			described);
	if (!json_object_equal(ours, wanted))
		fail_msg("%s:\nours   %s\nwanted %s", name, json_text(ours, NULL),
			json_text(wanted, NULL));
}

static void the_structure_is_the_contracts(void **state)
{
	cleanup_json json_object *list = contract();
	json_object *functions = json_object_object_get(list, "functions");
	size_t seen = 0;

	for (size_t i = 0; i < json_object_array_length(functions); i++) {
		json_object *f = json_object_array_get_idx(functions, i);
		const char *id = json_object_get_string(json_object_object_get(f, "name"));
		const struct schema *s = schema_find(id + strlen(PREFIX));

		assert_true(str_starts(id, PREFIX));
		if (!s)
			fail_msg("no schema for %s", id);
		check_one(id, s->request, json_object_object_get(f, "request_schema"));
		check_one(id, s->response, json_object_object_get(f, "response_schema"));
		assert_true(strlen(s->description) > 10);
		seen++;
	}
	assert_int_equal(seen, 23);
	assert_int_equal(n_schemas, 23);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_structure_is_the_contracts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
