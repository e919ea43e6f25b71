/* shlex: any text ends in words or in an error; words that are quoted again split the same. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "wire/shlex.h"

static void quote_again(struct buf *out, const char *word)
{
	buf_add(out, " '", 2);
	for (; *word; word++) {
		if (*word == '\'')
			buf_add_str(out, "'\\''");
		else
			buf_add(out, word, 1);
	}
	buf_add(out, "'", 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free char *text = xstrndup((const char *)data, size);
	struct err e = ERR_INIT;
	char **v = NULL, **again = NULL;
	struct buf quoted;

	if (shlex_split(text, &v, &e) < 0) {
		assert(!v && strstr(e.text, "unbalanced"));
		return 0;
	}
	buf_init(&quoted, 16u << 20);
	buf_add_str(&quoted, "");
	for (size_t i = 0; v[i]; i++)
		quote_again(&quoted, v[i]);
	assert(shlex_split(quoted.data ? (char *)quoted.data : "", &again, &e) == 0);
	assert(strv_len(v) == strv_len(again));
	for (size_t i = 0; v[i]; i++)
		assert(strcmp(v[i], again[i]) == 0);
	buf_done(&quoted);
	strv_free(v);
	strv_free(again);
	return 0;
}
