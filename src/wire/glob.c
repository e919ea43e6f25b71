/* How it works
 *
 * A pattern becomes a list of parts, one a name, each either "any depth" or a run of steps: a
 * character, any character, any run, a class. A name is held against a part's steps with one place
 * to come back to (the last *), the names of a path against the parts with another one (the last
 * **). Both greedy searches are complete: what an earlier star could still take, the later one can
 * take as well. Hence no recursion and no more than |pattern| * |path| work.
 *
 * Classes keep their members as ranges of code points; bytes that are no UTF-8 are characters of
 * their own, above all code points, so that ? and [!a] can step over them.
 */
#include "wire/glob.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

enum step_type {
	STEP_CHAR,  /* one byte */
	STEP_ANY,   /* ? */
	STEP_STAR,  /* * */
	STEP_CLASS, /* [...] */
	STEP_END,   /* of the name */
};

struct step {
	enum step_type type;
	union {
		unsigned char byte;
		struct {
			uint32_t first, n; /* ranges of the class */
			bool negated;
		} class;
	};
};

struct range {
	uint32_t lo, hi;
};

#define DEPTH SIZE_MAX /* in place of a part's first step: any depth */

struct glob {
	struct step *steps;
	size_t steps_n;
	size_t *parts; /* the first step of each, or DEPTH */
	size_t parts_n;
	struct range *ranges;
	size_t ranges_n;
	bool dirs_only;
};

/* --- characters --- */

#define NOT_UTF8 0x200000u /* added to a byte that is part of no character */

/* The character at s (len > 0); *ret_n is how many bytes it takes. */
static uint32_t decode(const char *s, size_t len, size_t *ret_n)
{
	const unsigned char *u = (const unsigned char *)s;
	uint32_t c = u[0];
	size_t n = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;

	*ret_n = 1;
	if (n == 1)
		return c;
	if (n == 0 || n > len)
		return NOT_UTF8 + u[0];
	c &= 0x7fu >> n;
	for (size_t i = 1; i < n; i++) {
		if ((u[i] & 0xc0) != 0x80)
			return NOT_UTF8 + u[0];
		c = c << 6 | (u[i] & 0x3f);
	}
	if ((n == 3 && (c < 0x800 || (c >= 0xd800 && c < 0xe000))) ||
		(n == 4 && (c < 0x10000 || c > 0x10ffff)))
		return NOT_UTF8 + u[0];
	*ret_n = n;
	return c;
}

/* --- compiling --- */

static void add_step(struct glob *g, struct step s)
{
	g->steps[g->steps_n++] = s;
}

static void add_range(struct glob *g, uint32_t lo, uint32_t hi)
{
	g->ranges[g->ranges_n++] = (struct range){lo, hi};
}

/* [[:name:]]: ASCII members only, as in the C locale. The table is in pairs. */
static const struct posix_class {
	const char *name;
	const char *pairs;
} POSIX_CLASSES[] = {
	{"alnum", "09AZaz"},
	{"alpha", "AZaz"},
	{"blank", "  \t\t"},
	{"cntrl", "\x01\x1f\x7f\x7f"},
	{"digit", "09"},
	{"graph", "!~"},
	{"lower", "az"},
	{"print", " ~"},
	{"punct", "!/:@[`{~"},
	{"space", "  \t\r"},
	{"upper", "AZ"},
	{"xdigit", "09AFaf"},
};

/* p is behind "[:". Adds the members and returns the place behind ":]", or NULL. */
static const char *take_posix(struct glob *g, const char *p)
{
	for (size_t i = 0; i < ARRAY_LEN(POSIX_CLASSES); i++) {
		size_t len = strlen(POSIX_CLASSES[i].name);

		if (strncmp(p, POSIX_CLASSES[i].name, len) != 0 || p[len] != ':' ||
			p[len + 1] != ']')
			continue;
		for (const char *r = POSIX_CLASSES[i].pairs; *r; r += 2)
			add_range(g, (unsigned char)r[0], (unsigned char)r[1]);
		return p + len + 2;
	}
	return NULL;
}

/* One member's character, possibly quoted. NULL at the end of the text. */
static const char *take_member(const char *p, uint32_t *ret_c)
{
	size_t n;

	if (*p == '\\')
		p++;
	if (!*p)
		return NULL;
	*ret_c = decode(p, strlen(p) < 4 ? strlen(p) : 4, &n);
	return p + n;
}

/* p is behind "[". Adds a class and returns the place behind "]", or NULL (and adds nothing) when
 * this is no class. */
static const char *take_class(struct glob *g, const char *p)
{
	struct step s = {.type = STEP_CLASS, .class.first = (uint32_t)g->ranges_n};
	bool first = true;

	if (*p == '!' || *p == '^') {
		s.class.negated = true;
		p++;
	}
	for (; p && (*p != ']' || first); first = false) {
		uint32_t lo, hi;

		if (p[0] == '[' && p[1] == ':') {
			p = take_posix(g, p + 2);
			continue;
		}
		p = take_member(p, &lo);
		if (!p)
			break;
		hi = lo;
		if (p[0] == '-' && p[1] != ']' && p[1]) {
			p = take_member(p + 1, &hi);
			if (!p)
				break;
		}
		add_range(g, lo, hi);
	}
	if (!p) {
		g->ranges_n = s.class.first;
		return NULL;
	}
	s.class.n = (uint32_t)g->ranges_n - s.class.first;
	add_step(g, s);
	return p + 1;
}

static bool is_slash(const char *p)
{
	return p[0] == '/' || (p[0] == '\\' && p[1] == '/');
}

/* Compiles one step at p, which is no border; returns the place behind it. */
static const char *take(struct glob *g, const char *p)
{
	const char *next;

	if (*p == '*') {
		add_step(g, (struct step){.type = STEP_STAR});
		return p + strspn(p, "*");
	}
	if (*p == '?') {
		add_step(g, (struct step){.type = STEP_ANY});
		return p + 1;
	}
	if (*p == '[' && (next = take_class(g, p + 1)) != NULL)
		return next;
	if (*p == '\\' && p[1])
		p++;
	add_step(g, (struct step){.type = STEP_CHAR, .byte = (unsigned char)*p});
	return p + 1;
}

/* One name of the pattern; returns the place of the slash or NUL behind it. */
static const char *take_part(struct glob *g, const char *p)
{
	if (p[0] == '*' && p[1] == '*' && (!p[2] || is_slash(p + 2))) {
		g->parts[g->parts_n++] = DEPTH;
		return p + 2;
	}
	g->parts[g->parts_n++] = g->steps_n;
	while (*p && !is_slash(p))
		p = take(g, p);
	add_step(g, (struct step){.type = STEP_END});
	return p;
}

static void compile(struct glob *g, const char *p)
{
	const char *slash = strchr(p, '/');

	if (!slash || !slash[1]) /* none but a trailing one */
		g->parts[g->parts_n++] = DEPTH;
	else if (is_slash(p))
		p += *p == '/' ? 1 : 2;
	for (;;) {
		p = take_part(g, p);
		if (!*p)
			return;
		p += *p == '/' ? 1 : 2;
		if (!*p) {
			g->dirs_only = true;
			return;
		}
	}
}

struct glob *glob_new(const char *pattern)
{
	struct glob *g = xcalloc(1, sizeof(*g));
	size_t len = strlen(pattern);

	if (len > GLOB_BYTES_MAX)
		return g; /* without parts: matches no path */
	/* A step takes at least one byte of the pattern, and each part ends in one more. A posix
	 * class gives up to four ranges for nine bytes, any other member one for one. */
	g->steps = xcalloc(2 * len + 2, sizeof(*g->steps));
	g->parts = xcalloc(len + 2, sizeof(*g->parts));
	g->ranges = xcalloc(len + 1, sizeof(*g->ranges));
	compile(g, pattern);
	return g;
}

void glob_free(struct glob *g)
{
	if (!g)
		return;
	free(g->steps);
	free(g->parts);
	free(g->ranges);
	free(g);
}

/* --- matching --- */

static bool in_class(const struct glob *g, const struct step *s, uint32_t c)
{
	const struct range *r = g->ranges + s->class.first;

	for (uint32_t i = 0; i < s->class.n; i++)
		if (c >= r[i].lo && c <= r[i].hi)
			return !s->class.negated;
	return s->class.negated;
}

/* Takes one step that is not a star over the begin of name; how many bytes it took, 0 for no match.
 */
static size_t take_step(const struct glob *g, const struct step *s, const char *name, size_t len)
{
	size_t n;
	uint32_t c;

	if (!len)
		return 0;
	if (s->type == STEP_CHAR)
		return (unsigned char)*name == s->byte;
	c = decode(name, len, &n);
	if (s->type == STEP_CLASS && !in_class(g, s, c))
		return 0;
	return n;
}

/* Holds a whole name against the steps of a part. */
static bool match_name(const struct glob *g, const struct step *s, const char *name, size_t len)
{
	const struct step *star = NULL;
	size_t at = 0, star_at = 0;

	for (;;) {
		size_t n = 0;

		if (s->type == STEP_STAR) {
			star = s++;
			star_at = at;
			continue;
		}
		if (s->type == STEP_END) {
			if (at == len)
				return true;
		} else {
			n = take_step(g, s, name + at, len - at);
		}
		if (n) {
			at += n;
			s++;
			continue;
		}
		if (!star || star_at == len)
			return false;
		/* Let the last star take one more character. */
		decode(name + star_at, len - star_at, &n);
		star_at += n;
		at = star_at;
		s = star + 1;
	}
}

/* The name behind the one at p, or NULL when that is the path's last. */
static const char *next_name(const char *p, const char *end)
{
	const char *slash = memchr(p, '/', (size_t)(end - p));

	return slash ? slash + 1 : NULL;
}

static bool match_part(const struct glob *g, size_t part, const char *p, const char *end)
{
	const char *next = next_name(p, end);
	size_t len = (size_t)(next ? next - 1 - p : end - p);

	return match_name(g, g->steps + g->parts[part], p, len);
}

bool glob_match_self(const struct glob *g, const char *path, size_t len, bool is_dir)
{
	const char *end = path + len, *p = len ? path : NULL, *depth_p = NULL;
	size_t i = 0, depth = 0; /* depth: the part behind the last **, 0 before there was one */

	if (g->dirs_only && !is_dir)
		return false;
	for (;;) {
		if (i < g->parts_n && g->parts[i] == DEPTH) {
			/* The last part takes all that is left, but at least one name. */
			if (++i == g->parts_n)
				return p != NULL;
			depth = i;
			depth_p = p;
			continue;
		}
		if (i == g->parts_n && !p)
			return len > 0;
		if (i < g->parts_n && p && match_part(g, i, p, end)) {
			i++;
			p = next_name(p, end);
			continue;
		}
		/* Let the last ** take one more name. */
		if (!depth || !depth_p)
			return false;
		depth_p = next_name(depth_p, end);
		p = depth_p;
		i = depth;
	}
}

bool glob_match(const struct glob *g, const char *path, size_t len, bool is_dir)
{
	for (size_t i = 0; i < len; i++)
		if (path[i] == '/' && glob_match_self(g, path, i, true))
			return true;
	return glob_match_self(g, path, len, is_dir);
}

void glob_set_init(struct glob_set *s, char *const *patterns)
{
	size_t n = strv_len(patterns);

	*s = (struct glob_set){.n = n};
	if (!n)
		return;
	s->globs = xcalloc(n, sizeof(struct glob *));
	for (size_t i = 0; i < n; i++)
		s->globs[i] = glob_new(patterns[i]);
}

void glob_set_done(struct glob_set *s)
{
	for (size_t i = 0; i < s->n; i++)
		glob_free(s->globs[i]);
	free(s->globs);
	*s = (struct glob_set){0};
}

bool glob_set_match(const struct glob_set *s, const char *path, size_t len, bool is_dir)
{
	for (size_t i = 0; i < s->n; i++)
		if (glob_match(s->globs[i], path, len, is_dir))
			return true;
	return false;
}

bool glob_set_match_self(const struct glob_set *s, const char *path, size_t len, bool is_dir)
{
	for (size_t i = 0; i < s->n; i++)
		if (glob_match_self(s->globs[i], path, len, is_dir))
			return true;
	return false;
}
