#include "agent/fs_path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/fs_error.h"
#include "base/fd.h"
#include "base/mem.h"

int fs_path_get(json_object *head, const char *name, const char **ret, struct err *e)
{
	const char *path;

	if (json_get_str(head, name, JSON_REQUIRED, &path, e) < 0) {
		err_code(e, "S210");
		return -EINVAL;
	}
	if (path[0] != '/')
		return err_set(e, "S210", EINVAL,
			"%s must be an absolute path in the guest, not \"%s\"", name, path);
	if (strlen(path) >= PATH_MAX)
		return err_set(e, "S210", ENAMETOOLONG, "%s has %zu bytes; the guest takes %d",
			name, strlen(path), PATH_MAX - 1);
	*ret = path;
	return 0;
}

/* The folder `path`, made with what is above it. The text is cut at each slash in turn. */
static int make_folders(char *path, struct err *e)
{
	for (char *p = path + 1;; p++) {
		char saved = *p;

		if (saved && saved != '/')
			continue;
		*p = '\0';
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return fs_error(e, errno, "cannot make the folder", path);
		*p = saved;
		if (!saved)
			return 0;
	}
}

int fs_path_open_parent(
	const char *path, bool make, int *ret_fd, const char **ret_name, struct err *e)
{
	const char *slash = strrchr(path, '/');
	cleanup_free char *parent = xstrndup(path, MAX((size_t)(slash - path), (size_t)1));
	int fd = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 && errno == ENOENT && make) {
		int r = make_folders(parent, e);

		if (r < 0)
			return r;
		fd = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
	}
	if (fd < 0 && errno == ENOENT)
		return err_set(e, "S211", ENOENT, "parent not found: %s", parent);
	if (fd < 0)
		return fs_error(e, errno, "cannot open the folder", parent);
	*ret_fd = fd;
	*ret_name = slash + 1;
	return 0;
}
