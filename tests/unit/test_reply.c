/* reply: the seven members of an error, by code (contract §3). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <json-c/json_object_iterator.h>

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "host/api/reply.h"
#include "wire/json.h"

static const char *const members[] = {
	"code", "docs_url", "fix", "fix_note", "message", "retryable", "type"};

static const char *str(json_object *o, const char *name)
{
	json_object *v = NULL;

	assert_true(json_object_object_get_ex(o, name, &v));
	return json_object_get_string(v);
}

/* Exactly the seven, in order. */
static void check_members(json_object *o)
{
	struct json_object_iterator it = json_object_iter_begin(o), end = json_object_iter_end(o);
	size_t n = 0;

	for (; !json_object_iter_equal(&it, &end); json_object_iter_next(&it))
		assert_string_equal(json_object_iter_peek_name(&it), members[n++]);
	assert_int_equal(n, ARRAY_LEN(members));
}

static void codes(void **state)
{
	static const struct {
		const char *code, *type, *note;
		bool retryable;
	} rows[] = {
		{"S001", "validation", "message", false},
		{"S002", "validation", "create", false},
		{"S003", "validation", "foreground", false},
		{"S003", "validation", "nohup", false},
		{"S003", "validation", "sandbox::stop", false},
		{"S004", "validation", "create", false},
		{"S100", "config", "list", false},
		{"S101", "internal", "operator", false},
		{"S102", "transient", "again", true},
		{"S200", "execution", "timeout_ms", false},
		{"S210", "filesystem", NULL, false},
		{"S211", "filesystem", NULL, false},
		{"S212", "filesystem", NULL, false},
		{"S213", "filesystem", NULL, false},
		{"S214", "filesystem", NULL, false},
		{"S215", "filesystem", NULL, false},
		{"S216", "filesystem", NULL, false},
		{"S217", "filesystem", NULL, false},
		{"S218", "transient", NULL, true},
		{"S219", "filesystem", NULL, false},
		{"S300", "platform", "host", false},
		{"S400", "config", "limit", false},
		{"S500", "config", "iii.worker.yaml", false},
		{"S501", "validation", "folders", false},
		{"S502", "validation", "worker::stop", false},
		{"S503", "validation", "start", false},
		{"S504", "internal", "state folder", false},
		{"S505", "validation", "auth", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		cleanup_json json_object *o = NULL;
		struct err e = ERR_INIT;

		err_set(&e, rows[i].code, EIO, "what happened");
		o = reply_failure_new(&(struct reply_failure){.e = &e});
		check_members(o);
		assert_string_equal(str(o, "code"), rows[i].code);
		assert_string_equal(str(o, "type"), rows[i].type);
		assert_string_equal(str(o, "message"), "what happened");
		assert_true(str_ends(str(o, "docs_url"), rows[i].code));
		assert_true(str_starts(
			str(o, "docs_url"), "https://iii.dev/docs/creating-workers/sandboxes#"));
		assert_string_equal(str(o, "retryable"), rows[i].retryable ? "true" : "false");
		assert_null(json_object_object_get(o, "fix"));
		if (rows[i].note)
			assert_non_null(strstr(str(o, "fix_note"), rows[i].note));
		else
			assert_null(json_object_object_get(o, "fix_note"));
	}
}

static void an_error_without_a_code_is_the_platforms(void **state)
{
	cleanup_json json_object *o = NULL;
	struct err e = ERR_INIT;

	err_set(&e, "", EIO, "x");
	o = reply_failure_new(&(struct reply_failure){.e = &e});
	assert_string_equal(str(o, "code"), "S300");
	assert_true(str_ends(str(o, "docs_url"), "#S300"));
}

static void the_cure_of_a_missing_parent(void **state)
{
	cleanup_json json_object *o = NULL;
	struct err e = ERR_INIT;

	err_set(&e, "S211", ENOENT, "parent not found: /no");
	o = reply_failure_new(&(struct reply_failure){.e = &e, .parent_missing = true});
	check_members(o);
	assert_string_equal(str(o, "fix"), "{ \"parents\": true }");
	assert_non_null(strstr(str(o, "fix_note"), "merge"));
	assert_non_null(strstr(str(o, "fix_note"), "parents: true"));
}

static void the_worker_vm_in_the_way(void **state)
{
	cleanup_json json_object *o = NULL, *other = NULL;
	struct err e = ERR_INIT;

	err_set(&e, "S502", EBUSY, "busy");
	o = reply_failure_new(
		&(struct reply_failure){.e = &e, .busy_vm = "wvm-1", .busy_instance = UINT64_MAX});
	check_members(o);
	assert_string_equal(json_object_to_json_string_ext(
				    json_object_object_get(o, "fix"), JSON_C_TO_STRING_PLAIN),
		"{\"instance\":18446744073709551615,\"vm_id\":\"wvm-1\"}");
	other = reply_failure_new(&(struct reply_failure){.e = &e, .busy_vm = "wvm-1"});
	assert_string_equal(str(other, "fix"), "{ \"vm_id\": \"wvm-1\" }");
}

static void a_step_of_run(void **state)
{
	struct reply_step step = {"fs::write (code)", "the-id"};
	cleanup_json json_object *o = NULL;
	struct err e = ERR_INIT;
	json_object *fix;

	err_set(&e, "S218", EIO, "inner words");
	o = reply_failure_new(&(struct reply_failure){.e = &e, .step = &step});
	check_members(o);
	fix = json_object_object_get(o, "fix");
	assert_string_equal(str(fix, "context"), "during sandbox::run step `fs::write (code)`");
	assert_string_equal(str(fix, "inner_code"), "S218");
	assert_string_equal(str(fix, "sandbox_id"), "the-id");
	assert_int_equal(json_object_object_length(fix), 3);
	assert_null(json_object_object_get(o, "fix_note"));
	assert_string_equal(str(o, "retryable"), "true");
	assert_non_null(strstr(str(o, "message"), "sandbox::run"));
	assert_non_null(strstr(str(o, "message"), "fs::write (code)"));
	assert_non_null(strstr(str(o, "message"), "the-id"));
	assert_true(str_ends(str(o, "message"), "inner words"));
}

static void more_is_put_behind_and_made_valid(void **state)
{
	cleanup_free char *more = xmalloc(4000);
	cleanup_json json_object *o = NULL;
	struct err e = ERR_INIT;
	json_object *message;

	memset(more, 0xff, 4000);
	err_set(&e, "S200", ETIMEDOUT, "late");
	o = reply_failure_new(&(struct reply_failure){.e = &e, .more = more, .more_len = 4000});
	message = json_object_object_get(o, "message");
	assert_int_equal(json_object_get_string_len(message), 4 + 3 * 4000);
	assert_true(utf8_valid(
		json_object_get_string(message), (size_t)json_object_get_string_len(message)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(codes),
		cmocka_unit_test(an_error_without_a_code_is_the_platforms),
		cmocka_unit_test(the_cure_of_a_missing_parent),
		cmocka_unit_test(the_worker_vm_in_the_way),
		cmocka_unit_test(a_step_of_run),
		cmocka_unit_test(more_is_put_behind_and_made_valid),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
