/* fs_mkdir - "/fs/mkdir": a new folder (sandbox contract §5.3).
 *
 *   request  {"path":"/abs","mode":"0755","parents":false}
 *   reply    {"created":true}      false: with parents, it was there (its mode is left alone)
 *
 * The mode is set exactly, whatever the umask or a set-group-id parent says; missing parents get
 * 0755. Of two calls that race one creates and the other finds.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fs_error.h"
#include "agent/fs_job.h"
#include "agent/fs_path.h"
#include "agent/fs_reply.h"
#include "base/fd.h"
#include "base/mem.h"

/* mkdir with exactly this mode. The folder is opened before it is changed, so that a link put in
 * its place meanwhile is not followed. */
static int make_folder(const char *path, mode_t mode)
{
	cleanup_fd int fd = -1;
	struct stat st;

	if (mkdir(path, mode & 0777) < 0)
		return -errno;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if ((st.st_mode & 07777) != mode && fchmod(fd, mode) < 0)
		return -errno;
	return 0;
}

/* Makes what is missing above the last component. */
static int make_parents(const char *path, struct err *e)
{
	cleanup_free char *prefix = xstrdup(path);
	size_t len = strlen(prefix);

	while (len > 1 && prefix[len - 1] == '/')
		prefix[--len] = '\0';
	for (char *p = prefix + 1; (p = strchr(p, '/')) != NULL; p++) {
		int r;

		*p = '\0';
		r = make_folder(prefix, 0755);
		if (r == -ENOENT)
			return fs_path_no_parent(prefix, e);
		if (r < 0 && r != -EEXIST)
			return fs_error(e, -r, "cannot make the folder", prefix);
		*p = '/';
	}
	return 0;
}

/* What there already is: 0 for a folder that may stand for the new one. */
static int judge_existing(const char *path, bool parents, struct err *e)
{
	struct stat st;

	if (!parents)
		return err_set(e, "S213", EEXIST, "%s exists already", path);
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return 0;
	return err_set(e, "S213", EEXIST, "%s exists already and is not a folder", path);
}

static int parent_missing(const char *path, struct err *e)
{
	cleanup_free char *parent = xstrdup(path);
	size_t len = strlen(parent);

	while (len > 1 && parent[len - 1] == '/')
		len--;
	while (len > 1 && parent[len - 1] != '/')
		len--;
	while (len > 1 && parent[len - 1] == '/')
		len--;
	parent[len] = '\0';
	return fs_path_no_parent(parent, e);
}

/* lstat of the path without slashes at its end, so that a dangling link is found. */
static int look(const char *path, struct err *e)
{
	cleanup_free char *bare = xstrdup(path);
	size_t len = strlen(bare);
	struct stat st;

	while (len > 1 && bare[len - 1] == '/')
		bare[--len] = '\0';
	if (lstat(bare, &st) == 0)
		return 1;
	return errno == ENOENT ? 0 : fs_error(e, errno, "cannot make the folder", path);
}

/* 1 when it was made, 0 when it was there. */
static int create(const char *path, mode_t mode, bool parents, struct err *e)
{
	int r = look(path, e);

	if (r < 0)
		return r;
	if (r > 0)
		return judge_existing(path, parents, e);
	if (parents)
		r = make_parents(path, e);
	if (r < 0)
		return r;
	r = make_folder(path, mode);
	if (r == -EEXIST)
		return judge_existing(path, parents, e);
	if (r == -ENOENT)
		return parent_missing(path, e);
	return r < 0 ? fs_error(e, -r, "cannot make the folder", path) : 1;
}

int fs_mkdir(json_object *req, struct buf *reply, struct err *e)
{
	uint32_t mode = 0755;
	bool parents = false;
	const char *path;
	int r;

	if (fs_mode_get(req, "mode", &mode, e) < 0 || fs_path_get(req, "path", &path, e) < 0 ||
		fs_bool_get(req, "parents", &parents, e) < 0)
		return -EINVAL;
	r = create(path, mode, parents, e);
	if (r < 0)
		return r;
	return buf_add_str(reply, r ? "{\"created\":true}" : "{\"created\":false}");
}
