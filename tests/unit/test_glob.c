/* glob: the table of sandbox contract §5.9, edge cases, cost, and git's opinion on the same
 * patterns. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "peer.h"
#include "wire/glob.h"

static bool matches(const char *pattern, const char *path)
{
	struct glob *g = glob_new(pattern);
	size_t len = strlen(path);
	bool is_dir = len && path[len - 1] == '/';
	bool m = glob_match(g, path, len - is_dir, is_dir);

	glob_free(g);
	return m;
}

static void follows_the_contract(void **state)
{
	static const struct {
		const char *pattern, *path; /* a directory ends in a slash */
		bool match;
	} rows[] = {
		{"*.py", "src/main.py", true},
		{"src/*.py", "src/main.py", true},
		{"src/*.py", "src/sub/deep.py", false},
		{"**/*.py", "main.py", true},
		{"**/*.py", "src/main.py", true},
		{"node_modules", "node_modules/a/b.js", true},
		{"skip/*", "skip/b.py", true},
		{"skip/*", "skip/x/c.py", true},
		/* anchors */
		{"/a", "a", true},
		{"/a", "x/a", false},
		{"a/b", "x/a/b", false},
		{"a/b/", "a/b", false},
		{"a/b/", "a/b/", true},
		{"a/", "x/a/f", true},
		{"a/", "x/a", false},
		{"", "a", false},
		{"/", "a/", false},
		{"//a", "a", false},
		{"a//b", "a/b", false},
		/* depth */
		{"**", "a/b", true},
		{"/**", "a", true},
		{"x/**", "x/", false},
		{"x/**", "x/a/b", true},
		{"a/**/b", "a/b", true},
		{"a/**/b", "a/x/y/b", true},
		{"a/**/b", "a/xb", false},
		{"a/**/**/b", "a/b", true},
		{"**/a/**", "a", false},
		{"**/a/**", "x/a/b", true},
		{"**/", "a", false},
		{"**/", "a/", true},
		{"a**b", "axxb", true},
		{"a**b", "a/b", false},
		{"**/a/*/b", "a/a/x/b", true},
		{"**/a/**/a/b", "x/a/y/a/a/b", true},
		/* classes */
		{"[a-c]", "b", true},
		{"[!a-c]", "b", false},
		{"[^a-c]", "d", true},
		{"[]x]", "]", true},
		{"[!]x]", "]", false},
		{"[a-]", "-", true},
		{"[\\]a]", "]", true},
		{"[[:digit:]x]", "7", true},
		{"[[:digit:]", "7", false},
		{"[ab", "[ab", true},
		{"[ab", "a", false},
		{"a[", "a[", true},
		{"x[!/]y", "x/y", false},
		{"[z-a]", "m", false},
		{"[\xc3\xa4-\xc3\xbc]", "\xc3\xa9", true},
		{"[!a]", "\xc3\xa9", true},
		/* one character is one of UTF-8, or a byte that is none */
		{"?", "\xc3\xa9", true},
		{"??", "\xc3\xa9", false},
		{"?", "\xf0\x9f\x92\xa5", true},
		{"?", "\xff", true},
		{"a?b",
			"a\xc3"
			"b",
			true},
		{"??", "\xed\xa0", true},
		{"\xff*", "\xff\xfe", true},
		/* quoting; no character is special at the start */
		{"\\*", "*", true},
		{"\\*", "a", false},
		{"a\\", "a\\", true},
		{"!a", "!a", true},
		{"!a", "b", false},
		{"#a", "#a", true},
		{"*", ".hidden", true},
		{"?x", ".x", true},
		{"A", "a", false},
		{"a ", "a ", true},
		{"a*a*a", "aXaYa", true},
		{"*a*b", "xaxbxa", false},
		{"*", "", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (matches(rows[i].pattern, rows[i].path) != rows[i].match)
			fail_msg("%s against %s: not %d", rows[i].pattern, rows[i].path,
				rows[i].match);
}

static void self_does_not_look_above(void **state)
{
	struct glob *g = glob_new("a");

	assert_true(glob_match(g, "a/b", 3, false));
	assert_false(glob_match_self(g, "a/b", 3, false));
	assert_true(glob_match_self(g, "a", 1, true));
	glob_free(g);
}

static void a_set_matches_by_any(void **state)
{
	char x[] = "x", c[] = "*.c";
	struct glob_set s;

	glob_set_init(&s, (char *[]){x, c, NULL});
	assert_true(glob_set_match_self(&s, "d/f.c", 5, false));
	assert_false(glob_set_match_self(&s, "d/f.h", 5, false));
	glob_set_done(&s);
	glob_set_init(&s, NULL);
	assert_false(glob_set_match_self(&s, "a", 1, false));
	glob_set_done(&s);
}

/* Patterns that send a backtracking matcher away for good. */
static void hostile_patterns_end(void **state)
{
	size_t n = 4000;
	cleanup_free char *path = xcalloc(1, n + 1), *pattern = xcalloc(1, GLOB_BYTES_MAX + 2);

	memset(path, 'a', n);
	for (size_t i = 0; i + 2 < 4096; i += 2)
		memcpy(pattern + i, "*a", 2);
	pattern[4094] = 'b';
	assert_false(matches(pattern, path));
	for (size_t i = 1; i < n; i += 2)
		path[i] = '/';
	path[n - 1] = 0;
	memset(pattern, 0, GLOB_BYTES_MAX);
	for (size_t i = 0; i + 5 < 4096; i += 5)
		memcpy(pattern + i, "**/a/", 5);
	memcpy(pattern + 4095, "b", 2);
	assert_false(matches(pattern, path));
	for (size_t i = 0; i < GLOB_BYTES_MAX; i += 8)
		memcpy(pattern + i, "[[:al-[[", 8);
	assert_false(matches(pattern, path));
	memset(pattern, 'a', GLOB_BYTES_MAX + 1);
	assert_false(matches(pattern, pattern));
}

/* --- git check-ignore --- */

static const char *const NAMES[] = {"a", "b", "ab", "a.c", "]", "a-b"};

/* Makes NAMES/NAMES/NAMES below `root`: directories on two levels, files on the third, and some
 * files above. Collects the paths, NUL-terminated. */
static void make_tree(const char *root, struct buf *paths)
{
	for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
		char d1[256], d2[300], f[400];

		snprintf(d1, sizeof(d1), "%s/%s", root, NAMES[i]);
		assert_int_equal(mkdir(d1, 0755), 0);
		buf_printf(paths, "%s", NAMES[i]);
		buf_add(paths, "", 1);
		for (size_t j = 0; j < ARRAY_LEN(NAMES); j++) {
			snprintf(d2, sizeof(d2), "%s/%s", d1, NAMES[j]);
			if (j & 1) {
				close(open(d2, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
				buf_printf(paths, "%s/%s", NAMES[i], NAMES[j]);
				buf_add(paths, "", 1);
				continue;
			}
			assert_int_equal(mkdir(d2, 0755), 0);
			buf_printf(paths, "%s/%s", NAMES[i], NAMES[j]);
			buf_add(paths, "", 1);
			for (size_t k = 0; k < ARRAY_LEN(NAMES); k++) {
				snprintf(f, sizeof(f), "%s/%s", d2, NAMES[k]);
				close(open(f, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
				buf_printf(paths, "%s/%s/%s", NAMES[i], NAMES[j], NAMES[k]);
				buf_add(paths, "", 1);
			}
		}
	}
}

static void random_pattern(uint32_t *seed, char dst[static 32])
{
	static const char *const bits[] = {"a", "b", "c", ".", "*", "**", "?", "/", "/**/", "**/",
		"[ab]", "[!a]", "[^b", "\\a", "-", "[]-b]", "]", "a/", "\\*"};
	size_t n = 0;

	dst[0] = 0;
	*seed = *seed * 1664525u + 1013904223u;
	for (uint32_t k = 1 + (*seed >> 16) % 5; k; k--) {
		*seed = *seed * 1664525u + 1013904223u;
		n += snprintf(dst + n, 32 - n, "%s", bits[(*seed >> 16) % ARRAY_LEN(bits)]);
	}
}

/* What git does otherwise: a class that does not close makes the whole pattern void, and so do
 * names that are empty. Its ** crosses slashes also behind a literal beginning of a name ("x**")
 * and when there are more of them ("***"), against its own manual. */
static bool git_differs(const char *pattern)
{
	const char *open = strstr(pattern, "[^b"), *p = pattern;

	while ((p = strstr(p, "**")) != NULL) {
		if (p > pattern && p[-1] != '/')
			return true;
		p += 2;
		if (*p && *p != '/')
			return true;
	}
	return (open && !strchr(open + 4, ']')) || (open && strchr(open, '/')) ||
	       strstr(pattern, "//");
}

static bool tree_path_matches(const char *root, const char *pattern, const char *path)
{
	cleanup_free char *full = xasprintf("%s/%s", root, path);
	struct glob *g = glob_new(pattern);
	struct stat st;
	bool m;

	assert_int_equal(lstat(full, &st), 0);
	m = glob_match(g, path, strlen(path), S_ISDIR(st.st_mode));
	glob_free(g);
	return m;
}

static void git_matches_the_same(void **state)
{
	const char *tmp = getenv("TMPDIR");
	cleanup_free char *root = xasprintf("%s/glob-git.XXXXXX", tmp ? tmp : "/tmp");
	cleanup_free char *exclude = NULL;
	struct buf paths, ours, theirs;
	uint32_t seed = 3;
	int compared = 0, said = 0;

	assert_non_null(mkdtemp(root));
	buf_init(&paths, 1u << 20);
	buf_init(&ours, 1u << 20);
	buf_init(&theirs, 1u << 20);
	assert_int_equal(
		peer_run((const char *[]){"git", "init", "-q", NULL}, root, "", 0, &theirs), 0);
	make_tree(root, &paths);
	exclude = path_join(root, ".git/info/exclude");
	while (compared < 300) {
		const char *argv[] = {"git", "-c", "core.excludesFile=/dev/null", "check-ignore",
			"--no-index", "-z", "--stdin", NULL};
		char pattern[32];
		int fd, status;

		random_pattern(&seed, pattern);
		if (git_differs(pattern))
			continue;
		compared++;
		fd = open(exclude, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		assert_true(fd >= 0);
		assert_int_equal(fd_write_all(fd, pattern, strlen(pattern)), 0);
		close(fd);
		buf_clear(&ours);
		buf_clear(&theirs);
		status = peer_run(argv, root, paths.data, paths.len, &theirs);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
		for (size_t at = 0; at < paths.len; at += strlen((char *)paths.data + at) + 1) {
			const char *path = (char *)paths.data + at;

			if (tree_path_matches(root, pattern, path))
				buf_add(&ours, path, strlen(path) + 1);
		}
		said += ours.len > 0;
		if (ours.len != theirs.len ||
			(ours.len && memcmp(ours.data, theirs.data, ours.len)))
			fail_msg("%s: we say %s (%zu), git says %s (%zu)", pattern,
				ours.len ? (char *)ours.data : "", ours.len,
				theirs.len ? (char *)theirs.data : "", theirs.len);
	}
	assert_true(said > 100); /* the comparison is not one of nothing with nothing */
	buf_done(&paths);
	buf_done(&ours);
	buf_done(&theirs);
	assert_int_equal(path_remove_at(AT_FDCWD, root), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(follows_the_contract),
		cmocka_unit_test(self_does_not_look_above),
		cmocka_unit_test(a_set_matches_by_any),
		cmocka_unit_test(hostile_patterns_end),
		cmocka_unit_test(git_matches_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
