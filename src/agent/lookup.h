/* lookup - which file a program's name means: the search of execvp, without its shell fallback. */
#pragma once

/* Tries one candidate; returns a positive errno, or does not return (execve). 0 ends the search. */
typedef int (*lookup_try)(const char *file, void *user);

/* A name with a slash is tried as it is; any other in every folder of `path` (NULL: /bin:/usr/bin;
 * an empty element is the current folder). Returns 0 when a try did, else the positive errno to
 * report: EACCES if any candidate was refused, else the last one. Async-signal-safe, since it runs
 * between fork and exec. */
int lookup_program(const char *name, const char *path, lookup_try try, void *user);
