/* fs_mv - "/fs/mv": gives an entry another full path (sandbox contract §5.6).
 *
 *   request  {"src":"/abs","dst":"/abs","overwrite":false}
 *   reply    {"moved":true}
 *
 * Within a file system this is one rename, without overwrite one that refuses an existing target
 * (RENAME_NOREPLACE), so no race can lose a file. Where the kernel answers EXDEV (another file
 * system; a folder of the image below an overlay) the tree is copied to a temporary name beside
 * dst, synced, renamed, and then the source removed. Until that rename any failure or cancellation
 * removes the copy and leaves the source whole; after it, the rest of the source is removed
 * whatever happens to the call.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fs_error.h"
#include "agent/fs_job.h"
#include "agent/fs_path.h"
#include "agent/fs_reply.h"
#include "agent/fs_tree.h"
#include "agent/names.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

struct move {
	char *src, *dst; /* without slashes at the end */
	bool overwrite;
	bool dst_slash; /* dst was written with one */
	struct stat src_st, dst_st;
	bool dst_exists;
};

static char *without_slashes(const char *path)
{
	size_t len = strlen(path);

	while (len > 1 && path[len - 1] == '/')
		len--;
	return xstrndup(path, len);
}

static char *parent_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return xstrndup(path, MAX((size_t)(slash - path), (size_t)1));
}

static int dst_exists(const struct move *m, struct err *e)
{
	return err_set(e, "S213", EEXIST,
		"%s exists already; with overwrite a file replaces a file and a folder an empty "
		"one",
		m->dst);
}

static int into_itself(const struct move *m, struct err *e)
{
	return err_set(e, "S210", EINVAL, "%s cannot be moved into itself, to %s", m->src, m->dst);
}

/* Are both names the same entry of one folder? */
static bool same_entry(const struct move *m)
{
	cleanup_free char *a = parent_of(m->src), *b = parent_of(m->dst);
	struct stat x, y;

	return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
	       x.st_ino == y.st_ino && str_eq(strrchr(m->src, '/') + 1, strrchr(m->dst, '/') + 1);
}

/* Would dst lie below src? */
static bool is_into_itself(const struct move *m)
{
	cleanup_free char *parent = parent_of(m->dst);
	char real_parent[PATH_MAX], real_src[PATH_MAX];
	size_t len;

	if (!S_ISDIR(m->src_st.st_mode) || !realpath(parent, real_parent) ||
		!realpath(m->src, real_src))
		return false;
	len = strlen(real_src);
	return strncmp(real_parent, real_src, len) == 0 &&
	       (!real_parent[len] || real_parent[len] == '/' || len == 1);
}

static int look(struct move *m, struct err *e)
{
	if (lstat(m->src, &m->src_st) < 0)
		return fs_error(e, errno, "cannot move", m->src);
	m->dst_exists = lstat(m->dst, &m->dst_st) == 0;
	if (!m->dst_exists && errno != ENOENT)
		return fs_error(e, errno, "cannot move to", m->dst);
	if (m->dst_exists && !m->overwrite)
		return dst_exists(m, e);
	if (m->dst_slash && !S_ISDIR(m->src_st.st_mode))
		return err_set(e, "S212", ENOTDIR, "%s/ ends in a slash, but %s is not a folder",
			m->dst, m->src);
	return 0;
}

static int clash(const struct move *m, int no, struct err *e)
{
	if (no == EISDIR)
		return err_set(e, "S212", no, "%s is a folder, %s is not", m->dst, m->src);
	if (no == ENOTDIR && m->dst_exists)
		return err_set(e, "S212", no, "%s is not a folder, %s is", m->dst, m->src);
	if (no == ENOTEMPTY || no == EEXIST)
		return err_set(e, "S214", ENOTEMPTY, "%s is a folder with entries", m->dst);
	if (no == ENOENT)
		return err_set(
			e, "S211", no, "the folder that %s would be in does not exist", m->dst);
	return fs_error(e, no, "cannot move to", m->dst);
}

/* --- one rename --- */

/* For a file system that cannot refuse an existing target by itself: a link or an empty folder in
 * its place does. */
static int rename_by_link(const struct move *m)
{
	if (S_ISDIR(m->src_st.st_mode)) {
		if (mkdir(m->dst, 0700) < 0)
			return -errno;
		if (rename(m->src, m->dst) == 0)
			return 0;
		rmdir(m->dst);
		return -EXDEV;
	}
	if (linkat(AT_FDCWD, m->src, AT_FDCWD, m->dst, 0) < 0)
		return errno == EEXIST ? -EEXIST : -EXDEV;
	return unlink(m->src) < 0 ? -errno : 0;
}

static int rename_new(const struct move *m, const char *from)
{
	if (renameat2(AT_FDCWD, from, AT_FDCWD, m->dst, RENAME_NOREPLACE) == 0)
		return 0;
	return -errno;
}

/* Two names of one file: rename would leave both. */
static int drop_other_name(const struct move *m, struct err *e)
{
	if (same_entry(m))
		return 0;
	return unlink(m->src) < 0 ? fs_error(e, errno, "cannot move", m->src) : 0;
}

/* --- copying --- */

static bool is_empty(const char *folder)
{
	cleanup_fd int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	cleanup_names struct names names = {0};

	return fd >= 0 && names_read_some(&names, fd, 1024) == 0 && names.n == 0;
}

/* One is a folder and the other is not. The kernel would see it, too, but not first. */
static int check_types(const struct move *m, struct err *e)
{
	bool src_dir = S_ISDIR(m->src_st.st_mode), dst_dir = S_ISDIR(m->dst_st.st_mode);

	if (!m->dst_exists || src_dir == dst_dir)
		return 0;
	return clash(m, dst_dir ? EISDIR : ENOTDIR, e);
}

/* What rename would find out too late. */
static int check_before_copy(const struct move *m, struct err *e)
{
	if (is_into_itself(m))
		return into_itself(m, e);
	if (m->dst_exists && S_ISDIR(m->dst_st.st_mode) && !is_empty(m->dst))
		return clash(m, ENOTEMPTY, e);
	return 0;
}

static int copy_and_rename(const struct move *m, struct err *e)
{
	cleanup_free char *parent = parent_of(m->dst), *temp = NULL;
	char name[FS_TEMP_NAME_SIZE];
	struct err ignored = ERR_INIT;
	int r;

	fs_temp_name(name, "mv");
	temp = xasprintf("%s/%s", str_eq(parent, "/") ? "" : parent, name);
	r = fs_tree_copy(m->src, temp, e);
	if (r == 0) {
		r = m->overwrite ? (rename(temp, m->dst) < 0 ? -errno : 0) : rename_new(m, temp);
		if (r == -EEXIST && !m->overwrite)
			dst_exists(m, e);
		else if (r < 0)
			clash(m, -r, e);
	}
	if (r < 0) {
		fs_cancel_no_more();
		fs_tree_remove(temp, &ignored);
	}
	return r;
}

static int move_by_copy(const struct move *m, struct err *e)
{
	int r = check_before_copy(m, e);

	if (r == 0)
		r = copy_and_rename(m, e);
	if (r < 0)
		return r;
	fs_cancel_no_more();
	r = fs_tree_remove(m->src, e);
	if (r < 0)
		err_wrap(e, "%s is complete, but the source could not be removed whole", m->dst);
	return r;
}

/* --- the whole --- */

static int move(struct move *m, struct err *e)
{
	bool one_file;
	int r = look(m, e);

	if (r < 0)
		return r;
	one_file = m->dst_exists && m->src_st.st_dev == m->dst_st.st_dev &&
		   m->src_st.st_ino == m->dst_st.st_ino;
	if (one_file && !S_ISDIR(m->src_st.st_mode))
		return drop_other_name(m, e);
	r = check_types(m, e);
	if (r < 0)
		return r;
	if (m->overwrite)
		r = rename(m->src, m->dst) < 0 ? -errno : 0;
	else
		r = rename_new(m, m->src);
	if (r == -EINVAL && is_into_itself(m))
		return into_itself(m, e);
	if (r == -EINVAL && !m->overwrite)
		r = rename_by_link(m);
	if (r == -EXDEV)
		return move_by_copy(m, e);
	if (r == -EEXIST && !m->overwrite)
		return dst_exists(m, e);
	if (r == -EINVAL)
		return into_itself(m, e);
	return r < 0 ? clash(m, -r, e) : 0;
}

int fs_mv(json_object *req, struct buf *reply, struct err *e)
{
	struct move m = {0};
	const char *src, *dst;
	int r;

	if (fs_path_get(req, "src", &src, e) < 0 || fs_path_get(req, "dst", &dst, e) < 0 ||
		fs_bool_get(req, "overwrite", &m.overwrite, e) < 0)
		return -EINVAL;
	m.src = without_slashes(src);
	m.dst = without_slashes(dst);
	m.dst_slash = dst[1] && str_ends(dst, "/");
	r = move(&m, e);
	free(m.src);
	free(m.dst);
	return r < 0 ? r : buf_add_str(reply, "{\"moved\":true}");
}
