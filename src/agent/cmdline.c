#include "agent/cmdline.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

/* The next word from *pos on: its start and length, quotes included. False at the end. */
static bool next_word(
	const char *text, size_t len, size_t *pos, const char **ret_word, size_t *ret_len)
{
	size_t i = *pos, start;
	bool quoted = false;

	while (i < len && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n'))
		i++;
	if (i == len || text[i] == '\0')
		return false;
	start = i;
	for (; i < len && text[i]; i++) {
		if (text[i] == '"')
			quoted = !quoted;
		else if (!quoted && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n'))
			break;
	}
	*ret_word = text + start;
	*ret_len = i - start;
	*pos = i;
	return true;
}

static int take_serial(const char *name, const char *value, size_t len, char *dst, struct err *e)
{
	if (dst[0])
		return 0;
	if (len >= 2 && value[0] == '"' && value[len - 1] == '"') {
		value++;
		len -= 2;
	}
	if (len == 0 || len > CMDLINE_SERIAL_MAX)
		return err_set(e, "S300", EINVAL,
			"the kernel command line gives %s a value of %zu bytes; a disk serial has "
			"1 to %d",
			name, len, CMDLINE_SERIAL_MAX);
	for (size_t i = 0; i < len; i++)
		if (value[i] <= ' ' || value[i] > '~')
			return err_set(e, "S300", EINVAL,
				"the kernel command line gives %s a value that is not printable "
				"ASCII",
				name);
	memcpy(dst, value, len);
	dst[len] = '\0';
	return 0;
}

int cmdline_parse(const char *text, size_t len, struct cmdline *ret, struct err *e)
{
	struct cmdline c = {0};
	const struct {
		const char *name;
		char *dst;
	} ours[] = {{"iii.base", c.base}, {"iii.upper", c.upper}, {"iii.source", c.source}};
	const char *word;
	size_t n, pos = 0;
	int r = 0;

	while (r == 0 && next_word(text, len, &pos, &word, &n)) {
		if (n == 2 && memcmp(word, "--", 2) == 0)
			break;
		for (size_t i = 0; i < ARRAY_LEN(ours); i++) {
			size_t name = strlen(ours[i].name);

			if (n <= name || word[name] != '=' || memcmp(word, ours[i].name, name) != 0)
				continue;
			r = take_serial(
				ours[i].name, word + name + 1, n - name - 1, ours[i].dst, e);
			break;
		}
	}
	if (r == 0)
		*ret = c;
	return r;
}
