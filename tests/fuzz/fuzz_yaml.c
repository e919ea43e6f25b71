/* wire/yaml: what is taken is JSON that reads back as the same; an error shows nothing unprintable.
 */
#include <assert.h>
#include <json-c/linkhash.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "wire/yaml.h"

#define NODES_MAX 2000

static size_t count_nodes(json_object *o)
{
	size_t n = 1;

	if (json_object_is_type(o, json_type_array)) {
		for (size_t i = 0; i < json_object_array_length(o); i++)
			n += count_nodes(json_object_array_get_idx(o, i));
	} else if (json_object_is_type(o, json_type_object)) {
		json_object_object_foreach (o, name, member) {
			assert(utf8_valid(name, strlen(name)));
			n += 1 + count_nodes(member);
		}
	}
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	cleanup_json json_object *o = NULL, *again = NULL;
	struct err e = ERR_INIT;
	const char *text;
	size_t text_len;

	if (yaml_parse((const char *)data, len, NODES_MAX, &o, &e) < 0) {
		assert(!o && e.text[0] && utf8_valid(e.text, strlen(e.text)));
		for (const char *p = e.text; *p; p++)
			assert((unsigned char)*p >= 0x20 && *p != 0x7f);
		return 0;
	}
	assert(count_nodes(o) <= NODES_MAX);
	text = json_text(o, &text_len);
	assert(json_parse(text, text_len, &again, &e) == 0);
	assert(json_object_equal(o, again));
	return 0;
}
