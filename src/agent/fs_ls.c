/* fs_ls - "/fs/ls": what lies directly in a folder (sandbox contract §5.1).
 *
 *   request  {"path":"/abs"}
 *   reply    {"entries":[{"is_dir","is_symlink","mode":"0644","mtime","name","size"}…]}
 *
 * Sorted by the bytes of the names. A link to a folder is S212 unless a slash is written behind it.
 * What vanishes meanwhile is left out; a reply over FS_REPLY_MAX is S216, found before the entries
 * are looked at one by one.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fs_error.h"
#include "agent/fs_job.h"
#include "agent/fs_path.h"
#include "agent/fs_reply.h"
#include "agent/names.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

static int open_folder(const char *path, struct err *e)
{
	bool follow = str_ends(path, "/");
	struct stat st;
	int fd;

	if (lstat(path, &st) < 0)
		return fs_error(e, errno, "cannot list", path);
	if (S_ISLNK(st.st_mode))
		return err_set(e, "S212", ENOTDIR,
			"%s is a symbolic link, not a folder; to list what it points to, write %s/",
			path, path);
	if (!S_ISDIR(st.st_mode))
		return err_set(e, "S212", ENOTDIR, "%s is not a folder", path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));
	return fd < 0 ? fs_error(e, errno, "cannot list", path) : fd;
}

static int too_large(const char *path, struct err *e)
{
	return err_set(e, "S216", EFBIG,
		"%s has too many entries for one reply (%u MiB); list parts of it with exec", path,
		FS_REPLY_MAX >> 20);
}

static int reply_entries(int fd, const struct names *names, struct buf *reply)
{
	bool first = true;
	int r = buf_add_str(reply, "{\"entries\":[");

	for (size_t i = 0; r == 0 && i < names->n && !fs_cancelled(); i++) {
		const char *name = names_at(names, i);
		struct stat st;

		if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		r = buf_add_str(reply, first ? "{" : ",{");
		if (r == 0)
			r = fs_reply_entry(reply, name, strlen(name), &st);
		if (r == 0)
			r = buf_add_str(reply, "}");
		first = false;
	}
	return r < 0 ? r : buf_add_str(reply, "]}");
}

int fs_ls(json_object *req, struct buf *reply, struct err *e)
{
	cleanup_names struct names names = {0};
	cleanup_fd int fd = -1;
	const char *path;
	int r;

	if (fs_path_get(req, "path", &path, e) < 0)
		return -EINVAL;
	fd = open_folder(path, e);
	if (fd < 0)
		return fd;
	/* The names alone must leave room for what is said about each. */
	r = names_read(&names, fd, FS_REPLY_MAX);
	if (r == -EFBIG)
		return too_large(path, e);
	if (r < 0)
		return fs_error(e, -r, "cannot list", path);
	names_sort(&names);
	r = reply_entries(fd, &names, reply);
	return r == -ENOBUFS ? too_large(path, e) : r;
}
