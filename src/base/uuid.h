/* uuid - the spellings of an id that callers use, brought into one (RFC 9562 §4). */
#pragma once

/* Accepts hyphenated, 32 digits, {hyphenated} and urn:uuid:hyphenated, letters in either case;
 * gives lower case with hyphens. -EINVAL for everything else, *ret untouched. */
int uuid_parse(const char *s, char ret[static 37]);
