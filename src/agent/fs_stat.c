/* fs_stat - "/fs/stat": one entry (sandbox contract §5.2).
 *
 *   request  {"path":"/abs"}
 *   reply    {"is_dir","is_symlink","mode":"0644","mtime","name","size"}
 *
 * A link is described, not followed, unless a slash is written behind it.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/fs_error.h"
#include "agent/fs_job.h"
#include "agent/fs_path.h"
#include "agent/fs_reply.h"

/* The last component; for "/" and what ends in "..", which name none, the path as it is. */
static const char *shown_name(const char *path, size_t *ret_len)
{
	size_t len = strlen(path), from;

	while (len && path[len - 1] == '/')
		len--;
	for (from = len; from && path[from - 1] != '/'; from--)
		;
	*ret_len = len - from;
	if (*ret_len && !(*ret_len == 2 && memcmp(path + from, "..", 2) == 0))
		return path + from;
	*ret_len = strlen(path);
	return path;
}

int fs_stat(json_object *req, struct buf *reply, struct err *e)
{
	const char *path, *name;
	struct stat st;
	size_t len;
	int r;

	if (fs_path_get(req, "path", &path, e) < 0)
		return -EINVAL;
	if (lstat(path, &st) < 0)
		return fs_error(e, errno, "cannot look at", path);
	name = shown_name(path, &len);
	r = buf_add_str(reply, "{");
	if (r == 0)
		r = fs_reply_entry(reply, name, len, &st);
	return r < 0 ? r : buf_add_str(reply, "}");
}
