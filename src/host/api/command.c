#include "host/api/command.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "wire/shlex.h"

/* Unicode White_Space beyond ASCII, as UTF-8. U+2000..U+200A are found by their last byte. */
static bool starts_with_wide_space(const char *s)
{
	static const char *const spaces[] = {"\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\xa8",
		"\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

	for (size_t i = 0; i < ARRAY_LEN(spaces); i++)
		if (str_starts(s, spaces[i]))
			return true;
	return str_starts(s, "\xe2\x80") && (unsigned char)s[2] >= 0x80 &&
	       (unsigned char)s[2] <= 0x8a;
}

static bool has_space(const char *s)
{
	for (; *s; s++) {
		if (*s == ' ' || (*s >= '\t' && *s <= '\r'))
			return true;
		if ((unsigned char)*s >= 0x80 && starts_with_wide_space(s))
			return true;
	}
	return false;
}

static int of_line(const struct command *c, char ***ret, struct err *e)
{
	char **words = NULL;
	int r;

	if (c->args && c->args[0])
		return err_set(e, "S001", EINVAL,
			"cmd with white space together with args is ambiguous: put the whole line "
			"into cmd, or the program alone into cmd and the rest into args");
	r = shlex_split(c->cmd, &words, e);
	if (r < 0) {
		err_wrap(e, "cmd");
		return r;
	}
	if (!words || !words[0]) {
		strv_free(words);
		return err_set(e, "S001", EINVAL, "cmd is empty: it holds no word");
	}
	*ret = words;
	return 0;
}

/* cmd and args, each as it is. Long lists come this way: linear. */
static char **of_words(const struct command *c)
{
	size_t n = strv_len(c->args);
	char **words = xcalloc(n + 2, sizeof(*words));

	words[0] = xstrdup(c->cmd);
	for (size_t i = 0; i < n; i++)
		words[i + 1] = xstrdup(c->args[i]);
	return words;
}

static int pick(const struct command *c, char ***ret, struct err *e)
{
	if (c->argv && c->argv[0]) {
		if (*c->cmd || (c->args && c->args[0]))
			return err_set(e, "S001", EINVAL,
				"argv cannot be combined with cmd or args: pass one of them");
		*ret = strv_dup(c->argv);
		return 0;
	}
	if (has_space(c->cmd))
		return of_line(c, ret, e);
	*ret = of_words(c);
	return 0;
}

int command_argv(const struct command *c, char ***ret, struct err *e)
{
	char **words = NULL;
	int r = pick(c, &words, e);

	if (r < 0)
		return r;
	if (!words[0][0]) {
		strv_free(words);
		return err_set(e, "S001", EINVAL,
			"cmd is required: the name of the program to run is empty");
	}
	*ret = words;
	return 0;
}
