#include "wire/shlex.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

struct split {
	const char *p; /* what is still to be read */
	char *word;    /* room for the longest word there can be */
	size_t len;
	char **words;
	size_t n, cap;
};

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n';
}

static void add_word(struct split *s)
{
	/* One slot stays free for the NULL at the end. */
	if (s->n + 1 >= s->cap) {
		s->cap = s->cap ? s->cap * 2 : 8;
		s->words = xrealloc(s->words, s->cap, sizeof(*s->words));
	}
	s->words[s->n++] = xstrndup(s->word, s->len);
	s->words[s->n] = NULL;
	s->len = 0;
}

/* Skips what may stand in front of a word. A joined line is nothing at all, so it neither starts
 * a word nor hides a comment behind it. */
static void skip_gap(struct split *s)
{
	for (;;) {
		if (is_blank(*s->p)) {
			s->p++;
		} else if (s->p[0] == '\\' && s->p[1] == '\n') {
			s->p += 2;
		} else if (*s->p == '#') {
			s->p += strcspn(s->p, "\n");
		} else {
			return;
		}
	}
}

/* Behind the opening quote, up to and with the closing one. */
static bool take_single(struct split *s)
{
	size_t n = strcspn(s->p, "'");

	memcpy(s->word + s->len, s->p, n);
	s->len += n;
	s->p += n;
	return *s->p && s->p++;
}

static bool take_double(struct split *s)
{
	for (; *s->p != '"'; s->p++) {
		if (!*s->p)
			return false;
		if (*s->p == '\\') {
			if (!*++s->p)
				return false;
			if (*s->p == '\n')
				continue;
			if (!strchr("$`\"\\", *s->p))
				s->word[s->len++] = '\\';
		}
		s->word[s->len++] = *s->p;
	}
	s->p++;
	return true;
}

static bool take_backslash(struct split *s)
{
	if (!*s->p)
		return false;
	if (*s->p != '\n')
		s->word[s->len++] = *s->p;
	s->p++;
	return true;
}

static int unbalanced(struct err *e, const char *what)
{
	return err_set(e, "S001", EINVAL,
		"unbalanced command line: %s; quote it fully or pass the words as argv", what);
}

static int take_word(struct split *s, struct err *e)
{
	while (*s->p && !is_blank(*s->p)) {
		char c = *s->p++;

		if (c == '\'') {
			if (!take_single(s))
				return unbalanced(e, "a ' is never closed");
		} else if (c == '"') {
			if (!take_double(s))
				return unbalanced(e, "a \" is never closed");
		} else if (c == '\\') {
			if (!take_backslash(s))
				return unbalanced(e, "a backslash is its last character");
		} else {
			s->word[s->len++] = c;
		}
	}
	add_word(s);
	return 0;
}

int shlex_split(const char *text, char ***ret, struct err *e)
{
	cleanup_free char *word = xmalloc(strlen(text) + 1);
	struct split s = {.p = text, .word = word};
	int r = 0;

	for (skip_gap(&s); r == 0 && *s.p; skip_gap(&s))
		r = take_word(&s, e);
	if (r < 0) {
		for (size_t i = 0; i < s.n; i++)
			free(s.words[i]);
		free(s.words);
		return r;
	}
	*ret = s.words ? s.words : xcalloc(1, sizeof(char *));
	return 0;
}
