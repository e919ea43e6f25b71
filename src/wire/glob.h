/* glob - gitignore-style patterns against relative paths (sandbox contract §5.9).
 *
 *   no `/` but a trailing one   the pattern is held against the name, at any depth
 *   any other `/`               anchored at the root; a leading `/` says nothing else
 *   trailing `/`                directories only
 *   * ?                         any run of, one character of a name; never `/`
 *   [a-z] [!a] [^a] [[:alpha:]] one character; a class that is not closed is literal text
 *   \x                          x itself; a backslash at the end is itself
 *   a/ ** /b  ** /x  x/ **      (without the blanks) any depth, zero included; behind a trailing
 *                               one there is at least one name
 *
 * A pattern that matches a directory covers everything below it. `!`, `#` and `.` at the start are
 * ordinary characters. Paths are raw bytes; a character is one of UTF-8, or one byte where that is
 * not UTF-8. Matching never recurses and takes at most length of pattern times length of path.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define GLOB_BYTES_MAX 8192 /* a longer pattern matches nothing; fs::grep and fs::sed refuse it */

struct glob; /* one compiled pattern */

/* Every text is a pattern: those that can match nothing (empty, "/") never do. */
struct glob *glob_new(const char *pattern);
void glob_free(struct glob *g); /* NULL allowed */

/* Does it match the path itself? `path` is relative, has no empty, `.` or `..` parts and no slash
 * at either end. For use in a walk that looks at each directory before what is in it. */
bool glob_match_self(const struct glob *g, const char *path, size_t len, bool is_dir);

/* Does it match the path or any directory above it? */
bool glob_match(const struct glob *g, const char *path, size_t len, bool is_dir);

/* Several patterns, any of which may match. */
struct glob_set {
	struct glob **globs;
	size_t n;
};

/* Patterns of a NULL-terminated vector; NULL is none. */
void glob_set_init(struct glob_set *s, char *const *patterns);
void glob_set_done(struct glob_set *s);
bool glob_set_match(const struct glob_set *s, const char *path, size_t len, bool is_dir);
bool glob_set_match_self(const struct glob_set *s, const char *path, size_t len, bool is_dir);
