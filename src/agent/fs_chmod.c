/* fs_chmod - "/fs/chmod": mode and owner of an entry or a tree (sandbox contract §5.5).
 *
 *   request  {"path":"/abs","mode":"0644","uid":N|null,"gid":N|null,"recursive":false}
 *   reply    {"updated":N}
 *
 * The path itself may be a link: its target is changed. Links met below it are not followed: they
 * get the owner, if one is given, and count; else they are left alone and do not. The owner goes
 * first, since giving a file away clears its set-id bits.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fs_error.h"
#include "agent/fs_job.h"
#include "agent/fs_path.h"
#include "agent/fs_reply.h"
#include "agent/walk.h"
#include "base/fd.h"
#include "base/mem.h"

#define KEEP UINT32_MAX /* chown's "leave this one" */

struct change {
	const char *root;
	mode_t mode;
	uint32_t uid, gid; /* KEEP */
	uint64_t updated;
};

static bool has_owner(const struct change *c)
{
	return c->uid != KEEP || c->gid != KEEP;
}

static int fail_below(const struct change *c, const struct walk_entry *w, int no, struct err *e)
{
	cleanup_free char *path =
		xasprintf("%s/%.*s", c->root, (int)MIN(w->path_len, (size_t)PATH_MAX), w->path);

	return fs_error(e, no, "cannot change", path);
}

static int change_fd(const struct change *c, int fd)
{
	if (has_owner(c) && fchown(fd, c->uid, c->gid) < 0)
		return -errno;
	return fchmod(fd, c->mode) < 0 ? -errno : 0;
}

/* What is no directory; 1 when it was changed, 0 for a link that is left alone. */
static int change_entry(const struct change *c, const struct walk_entry *w)
{
	if (has_owner(c) && fchownat(w->dir_fd, w->name, c->uid, c->gid, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (w->type == DT_LNK)
		return has_owner(c);
	if (fchmodat(w->dir_fd, w->name, c->mode, AT_SYMLINK_NOFOLLOW) == 0)
		return 1;
	/* It has become a link since the directory was read. */
	return errno == EOPNOTSUPP || errno == ELOOP ? has_owner(c) : -errno;
}

static int on_entry(const struct walk_entry *w, void *user, struct err *e)
{
	struct change *c = user;
	int r;

	if (w->type == DT_DIR) {
		r = change_fd(c, w->fd);
		if (r == 0)
			r = 1;
	} else {
		r = change_entry(c, w);
	}
	if (r == -ENOENT)
		return WALK_ON;
	if (r < 0)
		return fail_below(c, w, -r, e);
	c->updated += (uint64_t)r;
	return WALK_ON;
}

static int on_error(const struct walk_entry *w, int r, void *user, struct err *e)
{
	return fail_below(user, w, -r, e);
}

static int change_path(struct change *c, struct err *e)
{
	if (has_owner(c) && chown(c->root, c->uid, c->gid) < 0)
		return fs_error(e, errno, "cannot change the owner of", c->root);
	if (chmod(c->root, c->mode) < 0)
		return fs_error(e, errno, "cannot change the mode of", c->root);
	c->updated = 1;
	return 0;
}

static int change_tree(struct change *c, struct err *e)
{
	static const struct walk_callbacks callbacks = {.on_entry = on_entry, .on_error = on_error};
	/* Open before it is changed, so that no mode keeps us out. */
	int r, fd = open(c->root, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0 && errno == ENOTDIR)
		return change_path(c, e);
	if (fd < 0)
		return fs_error(e, errno, "cannot change", c->root);
	r = change_fd(c, fd);
	if (r < 0) {
		fd_close(&fd);
		return fs_error(e, -r, "cannot change", c->root);
	}
	c->updated = 1;
	return walk(fd, WALK_SORTED, &callbacks, c, e);
}

static int get_id(json_object *req, const char *name, uint32_t *ret, struct err *e)
{
	int r = json_get_u32(req, name, JSON_NULLABLE, ret, e);

	if (r < 0) {
		err_code(e, "S210");
		return r;
	}
	if (r > 0 && *ret == KEEP)
		return err_set(e, "S210", EINVAL, "%s %u is no id", name, KEEP);
	return 0;
}

int fs_chmod(json_object *req, struct buf *reply, struct err *e)
{
	struct change c = {.uid = KEEP, .gid = KEEP};
	bool recursive = false;
	uint32_t mode = UINT32_MAX;
	int r;

	if (fs_mode_get(req, "mode", &mode, e) < 0)
		return -EINVAL;
	if (mode == UINT32_MAX)
		return err_set(e, "S210", EINVAL, "mode is missing");
	if (fs_path_get(req, "path", &c.root, e) < 0 || get_id(req, "uid", &c.uid, e) < 0 ||
		get_id(req, "gid", &c.gid, e) < 0 ||
		fs_bool_get(req, "recursive", &recursive, e) < 0)
		return -EINVAL;
	c.mode = mode;
	r = recursive ? change_tree(&c, e) : change_path(&c, e);
	return r < 0 ? r : buf_printf(reply, "{\"updated\":%" PRIu64 "}", c.updated);
}
