/* shlex - one command line cut into words, as sandbox contract §1.4 defines it.
 *
 * It is quoting only, not a shell: $HOME, &&, |, > and globs stay text.
 *
 *   between words   space, tab, newline; nothing else (CR and U+00A0 are ordinary characters)
 *   '…'             literal
 *   "…"             backslash escapes $ ` " \ and joins a newline; other backslashes stay
 *   \x              x; backslash-newline vanishes, as if it had not been written
 *   #               at the start of a word: a comment up to the newline
 *
 * Adjacent parts form one word; '' is an empty word.
 */
#pragma once

#include "base/err.h"

/* The words as a new NULL-terminated vector (strv_free), possibly without any word. -EINVAL with
 * S001 and a text that says "unbalanced" for an open quote or a backslash at the end. Time and
 * memory are linear in the text. */
int shlex_split(const char *text, char ***ret, struct err *e);
