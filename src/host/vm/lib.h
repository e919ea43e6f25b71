/* lib - where a shared library or a helper program of the VMM is. */
#pragma once

#include "base/err.h"

/* The full path of `file` (libkrun.so.1, libkrunfw.so.5) as a new string, or NULL with an error
 * that lists where it was looked for. Order: the path in the variable `env` (which then has to
 * exist), lib/sandbox-libkrun beside the program's own bin, $XDG_DATA_HOME/sandbox-libkrun/lib
 * (else ~/.local/share/sandbox-libkrun/lib), LD_LIBRARY_PATH, the system's library folders. */
char *lib_find(const char *env, const char *file, struct err *e);

/* The full path of a program in PATH, or NULL. */
char *lib_find_program(const char *name);

/* The full path of a helper program: what `env` names (which then has to exist), else one in PATH;
 * or NULL. */
char *lib_find_helper(const char *env, const char *name);
