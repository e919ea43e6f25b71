/* lang - which interpreter runs a piece of code, and the file it is written to (contract §1.7). */
#pragma once

struct lang {
	const char *program; /* looked up in the sandbox's PATH unless it has a slash */
	const char *file;    /* where the code goes; the program's only argument */
};

/* `name` is taken as it is, case and all; a name that is not built in is itself the program. Its
 * text is borrowed. */
struct lang lang_find(const char *name);
