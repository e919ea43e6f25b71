#include "agent/fs_select.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fs_error.h"
#include "agent/fs_path.h"
#include "agent/fs_reply.h"
#include "agent/walk.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

static int get_globs(json_object *req, const char *name, struct glob_set *ret, struct err *e)
{
	char **patterns = NULL;
	int r = json_get_strv(req, name, JSON_OPTIONAL, &patterns, e);

	if (r < 0)
		err_code(e, "S210");
	for (size_t i = 0; r > 0 && patterns[i]; i++)
		if (strlen(patterns[i]) > GLOB_BYTES_MAX)
			r = err_set(e, "S210", EINVAL, "%s: a pattern has more than %d bytes", name,
				GLOB_BYTES_MAX);
	if (r > 0)
		glob_set_init(ret, patterns);
	strv_free(patterns);
	return MIN(r, 0);
}

static int refuse_type(const char *path, struct err *e)
{
	return err_set(e, "S212", EINVAL, "%s is neither a folder nor a regular file", path);
}

int fs_select_init(struct fs_select *s, json_object *req, struct err *e)
{
	struct stat st;

	*s = (struct fs_select){.recursive = true};
	if (fs_path_get(req, "path", &s->root, e) < 0 ||
		fs_bool_get(req, "recursive", &s->recursive, e) < 0 ||
		get_globs(req, "include_glob", &s->include, e) < 0 ||
		get_globs(req, "exclude_glob", &s->exclude, e) < 0)
		return -EINVAL;
	if (stat(s->root, &st) < 0)
		return fs_error(e, errno, "cannot search", s->root);
	s->is_dir = S_ISDIR(st.st_mode);
	if (!s->is_dir && !S_ISREG(st.st_mode))
		return refuse_type(s->root, e);
	return 0;
}

void fs_select_done(struct fs_select *s)
{
	glob_set_done(&s->include);
	glob_set_done(&s->exclude);
}

int fs_select_check_recursive(const struct fs_select *s, struct err *e)
{
	if (!s->is_dir || s->recursive)
		return 0;
	return err_set(e, "S210", EINVAL,
		"path %s is a folder and recursive is false; name a file, or leave recursive out",
		s->root);
}

/* --- the walk --- */

struct each {
	const struct fs_select *s;
	fs_select_cb cb;
	void *user;
	struct buf path; /* root, "/", and what is below */
	size_t root_len;
};

static bool is_included(const struct fs_select *s, const char *path, size_t len)
{
	return !s->include.n || glob_set_match(&s->include, path, len, false);
}

static int on_entry(const struct walk_entry *w, void *user, struct err *e)
{
	struct each *x = user;
	struct fs_selected f = {.dir_fd = w->dir_fd, .name = w->name};

	if (w->type != DT_REG && w->type != DT_DIR)
		return WALK_ON;
	if (glob_set_match_self(&x->s->exclude, w->path, w->path_len, w->type == DT_DIR))
		return WALK_PRUNE;
	if (w->type == DT_DIR || !is_included(x->s, w->path, w->path_len))
		return WALK_ON;
	x->path.len = x->root_len;
	if (buf_add(&x->path, w->path, w->path_len) < 0)
		return WALK_ON;
	f.path = (char *)x->path.data;
	f.path_len = x->path.len;
	return x->cb(&f, x->user, e);
}

static int on_error(const struct walk_entry *w, int r, void *user, struct err *e)
{
	return 0;
}

static int each_below(const struct fs_select *s, fs_select_cb cb, void *user, struct err *e)
{
	static const struct walk_callbacks callbacks = {.on_entry = on_entry, .on_error = on_error};
	struct each x = {.s = s, .cb = cb, .user = user};
	int r, fd = open(s->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return fs_error(e, errno, "cannot search", s->root);
	buf_init(&x.path, 128u << 20);
	buf_add_str(&x.path, s->root);
	while (x.path.len && x.path.data[x.path.len - 1] == '/')
		x.path.len--;
	buf_add_str(&x.path, "/");
	x.root_len = x.path.len;
	r = walk(fd, WALK_SORTED, &callbacks, &x, e);
	buf_done(&x.path);
	return r;
}

int fs_select_each(const struct fs_select *s, fs_select_cb cb, void *user, struct err *e)
{
	struct fs_selected f = {.dir_fd = AT_FDCWD, .name = s->root, .is_root = true};
	const char *base;
	size_t len;

	if (s->is_dir)
		return each_below(s, cb, user, e);
	f.path = s->root;
	f.path_len = strlen(s->root);
	base = strrchr(s->root, '/') + 1;
	len = strlen(base);
	if (!is_included(s, base, len) || glob_set_match_self(&s->exclude, base, len, false))
		return 0;
	return cb(&f, user, e);
}

int fs_selected_open(const struct fs_selected *f, size_t *ret_size)
{
	cleanup_fd int fd = -1;
	struct stat st;
	int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (f->is_root ? 0 : O_NOFOLLOW);

	/* Opening a device can do something already, so look first where that was not done yet. */
	if (f->is_root && stat(f->name, &st) == 0 && !S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	fd = openat(f->dir_fd, f->name, flags);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	*ret_size = st.st_size > 0 ? (size_t)st.st_size : 0;
	return STEAL_FD(fd);
}
