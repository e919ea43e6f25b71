/* b64: every group of the last bytes there can be, and what is no base64. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/b64.h"
#include "base/mem.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* One group, made the slow way round. */
static void encode(const uint8_t *data, size_t len, char out[static 5])
{
	uint32_t v = (uint32_t)data[0] << 16 | (len > 1 ? (uint32_t)data[1] << 8 : 0) |
		     (len > 2 ? data[2] : 0);

	for (size_t i = 0; i < 4; i++)
		out[i] = i <= len ? alphabet[v >> (18 - 6 * i) & 63] : '=';
	out[4] = '\0';
}

static void expect(const char *text, size_t text_len, const void *data, size_t len)
{
	cleanup_free uint8_t *out = NULL;
	size_t n;

	assert_int_equal(b64_decode(text, text_len, &out, &n), 0);
	assert_int_equal(n, len);
	assert_memory_equal(out, data, len);
}

static void every_end_comes_back(void **state)
{
	char text[5];

	for (unsigned v = 0; v < 0x10000; v++) {
		uint8_t data[3] = {(uint8_t)(v >> 8), (uint8_t)v, (uint8_t)(v * 7)};

		for (size_t len = 1; len <= 3; len++) {
			encode(data, len, text);
			expect(text, 4, data, len);
		}
	}
}

static void known_texts(void **state)
{
	expect("", 0, "", 0);
	expect("aGk=", 4, "hi", 2);
	expect("AP8=", 4, "\0\xff", 2);
	expect("aGVsbG8gd29ybGQ=", 16, "hello world", 11);
	expect("////", 4, "\xff\xff\xff", 3);
}

static void what_is_refused(void **state)
{
	static const char *const rows[] = {"a", "aG", "aGk", "aGk==", "====", "a===", "=aGk",
		"aG=k", "aGk=aGk=", "-_-_", "%%%%", "!!!!", "aGk=\n", "\naGk=", "aG k",
		"aGl=" /* spare bit */, "aR==" /* likewise */, "aGk=AAAA", "\xc3\xa9==", "aGk\x80"};
	uint8_t *out = NULL;
	size_t n;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (b64_decode(rows[i], strlen(rows[i]), &out, &n) != -EINVAL)
			fail_msg("taken: %s", rows[i]);
	assert_int_equal(b64_decode("aG\0=", 4, &out, &n), -EINVAL);
	assert_null(out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_end_comes_back),
		cmocka_unit_test(known_texts),
		cmocka_unit_test(what_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
