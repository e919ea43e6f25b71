/* wire/json: what is taken prints to a text that is taken again and means the same. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "wire/json.h"

static void read_fields(json_object *o)
{
	static const char *const names[] = {"a", "b", "argv", "exit_code", "error"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct err e = ERR_INIT;
		const char *s = NULL;
		bool b;
		uint64_t u64;
		uint32_t u32;
		int64_t i64;
		json_object *v;
		char **strv = NULL;

		if (json_get_str(o, names[i], JSON_REQUIRED, &s, &e) == 1)
			assert(utf8_valid(s, strlen(s)));
		json_get_bool(o, names[i], JSON_OPTIONAL, &b, &e);
		if (json_get_u32(o, names[i], JSON_NULLABLE, &u32, &e) == 1) {
			assert(json_get_u64(o, names[i], JSON_REQUIRED, &u64, &e) == 1);
			assert(json_get_i64(o, names[i], JSON_REQUIRED, &i64, &e) == 1);
			assert(u32 == u64 && u32 == i64);
		}
		json_get_object(o, names[i], JSON_REQUIRED, &v, &e);
		json_get_array(o, names[i], JSON_REQUIRED, &v, &e);
		if (json_get_strv(o, names[i], JSON_REQUIRED, &strv, &e) == 1)
			strv_free(strv);
		assert(utf8_valid(e.text, strlen(e.text)));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	cleanup_json json_object *o = NULL, *again = NULL;
	struct err e = ERR_INIT;
	const char *text;
	size_t text_len;

	if (json_parse((const char *)data, len, &o, &e) < 0) {
		assert(!o && e.text[0]);
		return 0;
	}
	text = json_text(o, &text_len);
	assert(utf8_valid(text, text_len));
	assert(json_parse(text, text_len, &again, &e) == 0);
	assert(json_object_equal(o, again));
	if (json_object_is_type(o, json_type_object))
		read_fields(o);
	return 0;
}
