/* fs_rm - "/fs/rm": removes an entry, or with recursive a whole tree (sandbox contract §5.4).
 *
 *   request  {"path":"/abs","recursive":false}
 *   reply    {"removed":true}
 *
 * Slashes at the end are dropped, so a link is always removed itself. What resolves to / is S210. A
 * tree is removed from the leaves up and stops at the first failure (a mount point is emptied, then
 * EBUSY: S216).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fs_error.h"
#include "agent/fs_job.h"
#include "agent/fs_path.h"
#include "agent/fs_reply.h"
#include "agent/fs_tree.h"
#include "agent/walk.h"
#include "base/mem.h"
#include "base/str.h"

static int fail_below(const char *root, const struct walk_entry *w, int no, struct err *e)
{
	cleanup_free char *path =
		xasprintf("%s/%.*s", root, (int)MIN(w->path_len, (size_t)PATH_MAX), w->path);

	return fs_error(e, no, "cannot remove", path);
}

static int remove_entry(const struct walk_entry *w, void *user, struct err *e)
{
	if (w->type == DT_DIR || unlinkat(w->dir_fd, w->name, 0) == 0 || errno == ENOENT)
		return WALK_ON;
	return fail_below(user, w, errno, e);
}

static int remove_emptied(const struct walk_entry *w, void *user, struct err *e)
{
	if (unlinkat(w->dir_fd, w->name, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return 0;
	return fail_below(user, w, errno, e);
}

static int fail_entry(const struct walk_entry *w, int r, void *user, struct err *e)
{
	return fail_below(user, w, -r, e);
}

int fs_tree_empty(int fd, const char *shown, struct err *e)
{
	static const struct walk_callbacks removing = {
		.on_entry = remove_entry,
		.on_leave = remove_emptied,
		.on_error = fail_entry,
	};

	return walk(fd, WALK_REMOVING, &removing, (void *)shown, e);
}

int fs_tree_remove_at(int dir_fd, const char *name, const char *shown, struct err *e)
{
	int fd, r;

	fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
		return unlinkat(dir_fd, name, 0) < 0 ? fs_error(e, errno, "cannot remove", shown)
						     : 0;
	if (fd < 0)
		return fs_error(e, errno, "cannot remove", shown);
	r = fs_tree_empty(fd, shown, e);
	if (r == 0 && unlinkat(dir_fd, name, AT_REMOVEDIR) < 0)
		r = fs_error(e, errno, "cannot remove", shown);
	return r;
}

int fs_tree_remove(const char *path, struct err *e)
{
	return fs_tree_remove_at(AT_FDCWD, path, path, e);
}

static bool is_root(const struct stat *st)
{
	struct stat root;

	return lstat("/", &root) == 0 && S_ISDIR(st->st_mode) && st->st_dev == root.st_dev &&
	       st->st_ino == root.st_ino;
}

static int remove_path(const char *path, bool recursive, struct err *e)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return fs_error(e, errno, "cannot remove", path);
	if (is_root(&st))
		return err_set(e, "S210", EINVAL, "path %s is /, which is never removed", path);
	if (!S_ISDIR(st.st_mode))
		return unlink(path) < 0 ? fs_error(e, errno, "cannot remove", path) : 0;
	if (recursive)
		return fs_tree_remove(path, e);
	if (rmdir(path) == 0)
		return 0;
	if (errno == ENOTEMPTY || errno == EEXIST)
		return err_set(e, "S214", ENOTEMPTY,
			"%s is a folder with entries; with recursive they are removed too", path);
	return fs_error(e, errno, "cannot remove", path);
}

int fs_rm(json_object *req, struct buf *reply, struct err *e)
{
	char resolved[PATH_MAX];
	cleanup_free char *bare = NULL;
	bool recursive = false;
	const char *path;
	size_t len;
	int r;

	if (fs_path_get(req, "path", &path, e) < 0 ||
		fs_bool_get(req, "recursive", &recursive, e) < 0)
		return -EINVAL;
	bare = xstrdup(path);
	for (len = strlen(bare); len > 1 && bare[len - 1] == '/'; len--)
		bare[len - 1] = '\0';
	/* "." and ".." name no entry of their own: what they mean is removed by its name. */
	if (str_ends(bare, "/.") || str_ends(bare, "/..")) {
		if (!realpath(bare, resolved))
			return fs_error(e, errno, "cannot remove", path);
		free(bare);
		bare = xstrdup(resolved);
	}
	r = remove_path(bare, recursive, e);
	return r < 0 ? r : buf_add_str(reply, "{\"removed\":true}");
}
