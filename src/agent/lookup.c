#include "agent/lookup.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

/* Errors after which the next folder is tried, as execvp does. */
static bool is_absence(int no)
{
	return no == ENOENT || no == ENOTDIR || no == ESTALE || no == ENODEV || no == ETIMEDOUT;
}

int lookup_program(const char *name, const char *path, lookup_try try, void *user)
{
	char file[PATH_MAX];
	size_t name_len = strlen(name);
	bool refused = false;
	int no = ENOENT;

	if (strchr(name, '/'))
		return try(name, user);
	if (!name_len)
		return ENOENT;
	if (name_len > NAME_MAX)
		return ENAMETOOLONG;
	if (!path)
		path = "/bin:/usr/bin";
	for (;; path++) {
		size_t dir_len = strcspn(path, ":");

		/* A folder too long to open cannot hold the program. */
		if (dir_len + 1 + name_len < sizeof(file)) {
			memcpy(file, path, dir_len);
			if (dir_len)
				file[dir_len] = '/';
			memcpy(file + dir_len + (dir_len ? 1 : 0), name, name_len + 1);
			no = try(file, user);
			if (no == EACCES)
				refused = true;
			else if (!is_absence(no))
				return no;
		}
		path += dir_len;
		if (!*path)
			return refused ? EACCES : no;
	}
}
