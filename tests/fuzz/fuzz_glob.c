/* glob: "pattern\0path" in any bytes. The pattern with every byte quoted matches its own text, and
 * what matches a directory itself matches what is in it. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "wire/glob.h"

static char *quote(const char *text)
{
	char *q = xcalloc(2, strlen(text) + 1), *p = q;

	for (; *text; text++) {
		if (*text != '/')
			*p++ = '\\';
		*p++ = *text;
	}
	return q;
}

/* A path as a walk would give it: no empty names. */
static bool is_walkable(const char *path)
{
	size_t len = strlen(path);

	return len && path[0] != '/' && path[len - 1] != '/' && !strstr(path, "//");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free char *text = xcalloc(1, size + 2), *quoted = NULL, *below = NULL;
	const char *pattern = text, *path;
	struct glob *g;

	if (size > 4096)
		return 0;
	memcpy(text, data, size);
	path = text + strlen(pattern) + 1;
	g = glob_new(pattern);
	if (glob_match_self(g, path, strlen(path), true)) {
		below = xasprintf("%s/x", path);
		assert(glob_match(g, path, strlen(path), true));
		assert(glob_match(g, below, strlen(below), false));
	} else if (!glob_match(g, path, strlen(path), true)) {
		assert(!glob_match_self(g, path, strlen(path), false));
	}
	glob_free(g);
	if (is_walkable(path) && strlen(path) * 2 < GLOB_BYTES_MAX) {
		quoted = quote(path);
		g = glob_new(quoted);
		assert(glob_match_self(g, path, strlen(path), false));
		glob_free(g);
	}
	return 0;
}
