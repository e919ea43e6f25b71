/* uuid: the spellings of an id that callers may use. */
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
#include "base/uuid.h"

#define PLAIN "0123abcd-ef45-6789-abcd-ef0123456789"

static void spellings(void **state)
{
	static const char *const rows[] = {PLAIN, "0123ABCD-EF45-6789-ABCD-EF0123456789",
		"0123abcdef456789abcdef0123456789", "0123ABCDEF456789abcdef0123456789",
		"{" PLAIN "}", "urn:uuid:" PLAIN, "urn:uuid:0123ABCD-ef45-6789-abcd-ef0123456789"};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char text[37] = "";

		assert_int_equal(uuid_parse(rows[i], text), 0);
		assert_string_equal(text, PLAIN);
	}
}

static void what_is_refused(void **state)
{
	static const char *const rows[] = {"", "x", " " PLAIN, PLAIN " ", PLAIN "\n", "{" PLAIN,
		PLAIN "}", "{0123abcdef456789abcdef0123456789}", "urn:uuid:", "uuid:" PLAIN,
		"0123abcd-ef45-6789-abcd-ef012345678", "0123abcd-ef45-6789-abcd-ef01234567890",
		"0123abcdef45-6789-abcd-ef0123456789-", "0123abcd_ef45-6789-abcd-ef0123456789",
		"g123abcd-ef45-6789-abcd-ef0123456789", "0123abcdef456789abcdef012345678",
		"0123abcdef456789abcdef012345678g", "[" PLAIN "]",
		"0123abcd-ef45-6789-abcd-ef0123456\xc3\xa9"};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char text[37] = "kept";

		if (uuid_parse(rows[i], text) != -EINVAL)
			fail_msg("taken: %s", rows[i]);
		assert_string_equal(text, "kept");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(spellings),
		cmocka_unit_test(what_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
