#include "host/vm/lib.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"

#define LOOKED_MAX 1024 /* of the list in the error; the rest is not told */

#if defined(__x86_64__)
#define TRIPLET "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define TRIPLET "aarch64-linux-gnu"
#endif

static const char *const system_dirs[] = {
	"/usr/local/lib",
	"/usr/local/lib64",
#ifdef TRIPLET
	"/usr/local/lib/" TRIPLET,
	"/usr/lib/" TRIPLET,
	"/lib/" TRIPLET,
#endif
	"/usr/lib64",
	"/usr/lib",
	"/lib64",
	"/lib",
	"/opt/homebrew/lib",
	"/home/linuxbrew/.linuxbrew/lib",
};

static char *try_dir(const char *dir, const char *file, struct buf *looked)
{
	char *path = path_join(dir, file);

	if (access(path, R_OK) == 0)
		return path;
	buf_printf(looked, "%s%s", looked->len ? ", " : "", dir);
	free(path);
	return NULL;
}

/* PREFIX/lib/sandbox-libkrun for a program at PREFIX/bin/…. */
static char *own_lib_dir(void)
{
	char exe[4096];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	for (int i = 0; i < 2 && n > 0; i++) {
		while (n > 0 && exe[n - 1] != '/')
			n--;
		if (n > 0)
			n--;
	}
	if (n <= 0)
		return NULL;
	exe[n] = '\0';
	return path_join(exe, "lib/sandbox-libkrun");
}

static char *data_lib_dir(void)
{
	const char *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");

	if (xdg && xdg[0] == '/')
		return path_join(xdg, "sandbox-libkrun/lib");
	return home && home[0] == '/' ? path_join(home, ".local/share/sandbox-libkrun/lib") : NULL;
}

/* Each absolute folder of a colon-separated list. */
static char *try_list(const char *list, const char *file, struct buf *looked)
{
	cleanup_free char *copy = xstrdup(list);
	char *rest = copy, *dir, *path;

	while ((dir = strsep(&rest, ":"))) {
		if (dir[0] == '/' && (path = try_dir(dir, file, looked)))
			return path;
	}
	return NULL;
}

char *lib_find(const char *env, const char *file, struct err *e)
{
	cleanup_buf struct buf looked = {0};
	cleanup_free char *own = own_lib_dir(), *data = data_lib_dir();
	const char *given = getenv(env), *ld = getenv("LD_LIBRARY_PATH");
	char *path = NULL;

	if (given && *given) {
		if (given[0] == '/' && access(given, R_OK) == 0)
			return xstrdup(given);
		err_set(e, "S300", ENOENT, "%s=%s: %s", env, given,
			given[0] == '/' ? err_str(errno) : "has to be an absolute path");
		return NULL;
	}
	buf_init(&looked, LOOKED_MAX);
	if ((own && (path = try_dir(own, file, &looked))) ||
		(data && (path = try_dir(data, file, &looked))) ||
		(ld && (path = try_list(ld, file, &looked))))
		return path;
	for (size_t i = 0; i < ARRAY_LEN(system_dirs); i++) {
		if ((path = try_dir(system_dirs[i], file, &looked)))
			return path;
	}
	err_set(e, "S300", ENOENT,
		"%s is not installed: install it from your distribution, or get it with tools/%s "
		"of "
		"the source tree, or name it with %s=FILE (looked in %s)",
		file, str_starts(file, "libkrunfw") ? "fetch-libkrunfw" : "build-libkrun", env,
		looked.data ? (char *)looked.data : "no folder");
	return NULL;
}

char *lib_find_program(const char *name)
{
	const char *path = getenv("PATH");
	cleanup_free char *copy =
		xstrdup(path && *path ? path : "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
	char *rest = copy, *dir;

	while ((dir = strsep(&rest, ":"))) {
		cleanup_free char *full = dir[0] == '/' ? path_join(dir, name) : NULL;

		if (full && access(full, X_OK) == 0)
			return STEAL(full);
	}
	/* mke2fs lives where an ordinary user's PATH does not look. */
	for (size_t i = 0; i < 2; i++) {
		cleanup_free char *full =
			path_join(((const char *[]){"/usr/sbin", "/sbin"})[i], name);

		if (access(full, X_OK) == 0)
			return STEAL(full);
	}
	return NULL;
}

char *lib_find_helper(const char *env, const char *name)
{
	const char *given = getenv(env);

	if (!given || !*given)
		return lib_find_program(name);
	return given[0] == '/' && access(given, X_OK) == 0 ? xstrdup(given) : NULL;
}
