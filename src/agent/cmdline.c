#include "agent/cmdline.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

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

static int take_serial(const char *name, const char *value, size_t len,
	char dst[static CMDLINE_SERIAL_MAX + 1], struct err *e)
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
	static const char base[] = "iii.base=", upper[] = "iii.upper=";
	struct cmdline c = {0};
	const char *word;
	size_t n, pos = 0;
	int r = 0;

	while (r == 0 && next_word(text, len, &pos, &word, &n)) {
		if (n == 2 && memcmp(word, "--", 2) == 0)
			break;
		if (n >= sizeof(base) - 1 && memcmp(word, base, sizeof(base) - 1) == 0)
			r = take_serial("iii.base", word + sizeof(base) - 1, n - sizeof(base) + 1,
				c.base, e);
		else if (n >= sizeof(upper) - 1 && memcmp(word, upper, sizeof(upper) - 1) == 0)
			r = take_serial("iii.upper", word + sizeof(upper) - 1,
				n - sizeof(upper) + 1, c.upper, e);
	}
	if (r == 0)
		*ret = c;
	return r;
}
