#include "base/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

char *path_join(const char *a, const char *b)
{
	size_t len = strlen(a);

	while (len > 1 && a[len - 1] == '/')
		len--;
	while (*b == '/')
		b++;
	return xasprintf("%.*s%s%s", (int)len, a, len && a[len - 1] == '/' ? "" : "/", b);
}

int path_mkdirs(const char *path, struct err *e)
{
	cleanup_free char *copy = xstrdup(path);

	for (char *p = copy + 1;; p++) {
		char saved = *p;

		if (saved != '/' && saved != '\0')
			continue;
		*p = '\0';
		if (mkdir(copy, 0700) < 0 && errno != EEXIST)
			return err_set(e, "", errno, "cannot make the folder %s: %s", copy,
				err_str(errno));
		*p = saved;
		if (!saved)
			return 0;
	}
}

static const char *home_dir(void)
{
	const char *home = getenv("HOME");

	if (home && home[0] == '/')
		return home;
	/* Static programs have no NSS, but the agent never asks for a home folder. */
	struct passwd *pw = getpwuid(getuid());

	return pw && pw->pw_dir && pw->pw_dir[0] == '/' ? pw->pw_dir : NULL;
}

static char *base_dir(const char *own_var, const char *xdg_var, const char *under_home,
	const char *sub, struct err *e)
{
	const char *own = getenv(own_var), *xdg = getenv(xdg_var), *home;
	cleanup_free char *base = NULL, *full = NULL;

	if (own && *own) {
		if (own[0] != '/') {
			err_set(e, "", EINVAL, "%s must be an absolute path, not %s", own_var, own);
			return NULL;
		}
		base = xstrdup(own);
	} else if (xdg && xdg[0] == '/') {
		base = path_join(xdg, "sandbox-libkrun");
	} else {
		home = home_dir();
		if (!home) {
			err_set(e, "", ENOENT, "no home folder is known: set %s", own_var);
			return NULL;
		}
		base = path_join(home, under_home);
	}
	full = sub ? path_join(base, sub) : STEAL(base);
	if (path_mkdirs(full, e) < 0) {
		err_wrap(e, "%s", own_var);
		return NULL;
	}
	return STEAL(full);
}

char *path_cache_dir(const char *sub, struct err *e)
{
	return base_dir(
		"III_SANDBOX_CACHE_DIR", "XDG_CACHE_HOME", ".cache/sandbox-libkrun", sub, e);
}

char *path_state_dir(const char *sub, struct err *e)
{
	return base_dir(
		"III_SANDBOX_STATE_DIR", "XDG_STATE_HOME", ".local/state/sandbox-libkrun", sub, e);
}

int path_open_dir(const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return err_set(e, "", errno, "cannot open the folder %s: %s", path, err_str(errno));
	return fd;
}

static int remove_children(int fd)
{
	DIR *dir = fdopendir(fd);
	struct dirent *d;
	int r = 0;

	if (!dir) {
		r = -errno;
		close(fd);
		return r;
	}
	while ((d = readdir(dir))) {
		int one;

		if (str_eq(d->d_name, ".") || str_eq(d->d_name, ".."))
			continue;
		one = path_remove_at(dirfd(dir), d->d_name);
		if (one < 0 && r == 0)
			r = one;
	}
	closedir(dir);
	return r;
}

int path_remove_at(int dirfd, const char *name)
{
	int fd, r;

	if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = remove_children(fd);
	if (unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && r == 0)
		r = -errno;
	return r;
}
