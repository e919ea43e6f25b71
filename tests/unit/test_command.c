/* command: the shapes of exec's cmd, args and argv (contract §1.4). */
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
#include "host/api/command.h"

struct row {
	const char *cmd, *args[4], *argv[4];
	const char *wanted[6], *error;
};

static const struct row rows[] = {
	{.cmd = "echo", .wanted = {"echo"}},
	{.cmd = "echo", .args = {"a b", "", "$HOME"}, .wanted = {"echo", "a b", "", "$HOME"}},
	{.cmd = "", .argv = {"printf", "%s;", ""}, .wanted = {"printf", "%s;", ""}},
	{.cmd = "echo a  'b c' \"d\\\"e\" #x y", .wanted = {"echo", "a", "b c", "d\"e"}},
	{.cmd = "it's", .wanted = {"it's"}}, /* no white space: quotes are text */
	{.cmd = "a\tb", .wanted = {"a", "b"}},
	{.cmd = "a\xc2\xa0"
		"b",
		.wanted = {"a\xc2\xa0"
			   "b"}}, /* selects the line, separates nothing */
	{.cmd = "'a\xe3\x80\x80"
		"b'",
		.wanted = {"a\xe3\x80\x80"
			   "b"}},
	{.cmd = "'a\xe2\x80\x8a"
		"b'",
		.wanted = {"a\xe2\x80\x8a"
			   "b"}},
	{.cmd = "'a\xe2\x80\x8b"
		"b'",
		.wanted = {"'a\xe2\x80\x8b"
			   "b'"}}, /* U+200B is no space */
	{.cmd = "'\xe2\x80", .wanted = {"'\xe2\x80"}},
	{.cmd = "", .error = "cmd is required"},
	{.cmd = "", .args = {"x"}, .error = "cmd is required"},
	{.cmd = "", .argv = {""}, .error = "required"},
	{.cmd = "   ", .error = "empty"},
	{.cmd = " # x", .error = "empty"},
	{.cmd = "'' x", .error = "required"},
	{.cmd = "sh -c 'oops", .error = "unbalanced"},
	{.cmd = "echo x\\", .error = "unbalanced"},
	{.cmd = "echo hi", .args = {"x"}, .error = "ambiguous"},
	{.cmd = "echo", .argv = {"echo"}, .error = "argv"},
	{.cmd = "", .args = {"x"}, .argv = {"echo"}, .error = "argv"},
};

static void shapes(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct row *row = &rows[i];
		struct command c = {row->cmd, (char *const *)row->args, (char *const *)row->argv};
		struct err e = ERR_INIT;
		char **argv = NULL;
		size_t n = 0;
		int r = command_argv(&c, &argv, &e);

		if ((r < 0) != (row->error != NULL))
			fail_msg("row %zu: %s", i, e.text);
		if (r < 0) {
			assert_string_equal(e.code, "S001");
			if (!strstr(e.text, row->error))
				fail_msg("row %zu: %s", i, e.text);
			continue;
		}
		for (; row->wanted[n]; n++)
			assert_string_equal(argv[n], row->wanted[n]);
		assert_null(argv[n]);
		strv_free(argv);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shapes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
