#include "base/uuid.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#define HYPHENATED 36
#define DIGITS	   32

static const char urn[] = "urn:uuid:";

static bool has_hyphen(size_t i)
{
	return i == 8 || i == 13 || i == 18 || i == 23;
}

static int hex_lower(char c)
{
	if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))
		return c;
	return c >= 'A' && c <= 'F' ? c - 'A' + 'a' : -1;
}

static int parse(const char *s, bool hyphens, char ret[static 37])
{
	char text[37];

	for (size_t i = 0; i < HYPHENATED; i++) {
		int c = '-';

		if (!has_hyphen(i))
			c = hex_lower(*s++);
		else if (hyphens && *s++ != '-')
			return -EINVAL;
		if (c < 0)
			return -EINVAL;
		text[i] = (char)c;
	}
	text[HYPHENATED] = '\0';
	memcpy(ret, text, sizeof(text));
	return 0;
}

int uuid_parse(const char *s, char ret[static 37])
{
	size_t len = strlen(s), prefix = sizeof(urn) - 1;

	if (len == DIGITS)
		return parse(s, false, ret);
	if (len == HYPHENATED)
		return parse(s, true, ret);
	if (len == HYPHENATED + 2 && s[0] == '{' && s[len - 1] == '}')
		return parse(s + 1, true, ret);
	if (len == HYPHENATED + prefix && strncasecmp(s, urn, prefix) == 0)
		return parse(s + prefix, true, ret);
	return -EINVAL;
}
