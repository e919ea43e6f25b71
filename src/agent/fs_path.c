#include "agent/fs_path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

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

/* Cuts the path to what is there of it; "/" always is. */
static void cut_to_existing(char *path)
{
	struct stat st;
	char *slash;

	while (lstat(path, &st) < 0 && (slash = strrchr(path, '/')) != NULL) {
		if (slash == path) {
			path[1] = '\0';
			return;
		}
		*slash = '\0';
	}
}

/* These hold what the kernel puts there, though their folders may say they can be written. */
static bool takes_no_folders(const struct statfs *fs)
{
	return fs->f_type == PROC_SUPER_MAGIC || fs->f_type == SYSFS_MAGIC ||
	       fs->f_type == DEVPTS_SUPER_MAGIC || (fs->f_flags & ST_RDONLY);
}

int fs_path_no_parent(const char *parent, struct err *e)
{
	cleanup_free char *there = xstrdup(parent);
	struct statfs fs;
	struct stat st;

	cut_to_existing(there);
	if (stat(there, &st) < 0)
		return err_set(e, "S212", ENOTDIR, "%s is a link to nothing, not a folder", there);
	if (statfs(there, &fs) == 0 && takes_no_folders(&fs))
		return err_set(e, "S215", EROFS,
			"nothing can be made in %s: its file system takes nothing new", there);
	return err_set(e, "S211", ENOENT, "parent not found: %s", parent);
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
			return errno == ENOENT ? fs_path_no_parent(path, e)
					       : fs_error(e, errno, "cannot make the folder", path);
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
		return fs_path_no_parent(parent, e);
	if (fd < 0)
		return fs_error(e, errno, "cannot open the folder", parent);
	*ret_fd = fd;
	*ret_name = slash + 1;
	return 0;
}
