/* command - the three shapes in which exec takes a command, made into one argv (contract §1.4). */
#pragma once

#include "base/err.h"

struct command {
	const char *cmd;   /* "" when absent */
	char *const *args; /* NULL when absent */
	char *const *argv; /* NULL when absent */
};

/* The argv as a new vector whose first word is not empty, or -EINVAL with S001. */
int command_argv(const struct command *c, char ***ret, struct err *e);
