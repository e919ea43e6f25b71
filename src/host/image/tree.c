/* The rules of tree.h over the names and inodes of tree_store.c.
 *
 * Recursion goes down folders only and those are at most IMAGE_DEPTH_MAX deep. The work of one path
 * is bounded by TREE_STEPS_MAX, the work of all removals by what was put before, and an emptied
 * folder is not emptied again in the same layer.
 */
#include "host/image/tree.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "host/image/build.h"
#include "host/image/tree_store.h"

/* What is left of a path while it is walked: itself and the symlinks met. */
#define WALK_BYTES (2 * (IMAGE_PATH_MAX + TREE_TARGET_MAX))

enum missing {
	MISSING_MAKE, /* folders on the way are made, files on the way give way */
	MISSING_NONE, /* a missing folder is -ENOENT */
};

int tree_path_clean(const char *raw, char *dst, struct err *e)
{
	size_t len = 0, parts = 0;

	if (raw[0] == '/')
		return err_set(e, "", EINVAL, "an absolute path");
	if (strnlen(raw, IMAGE_PATH_MAX + 1) > IMAGE_PATH_MAX)
		return err_set(e, "", ENAMETOOLONG, "a path of more than %d bytes", IMAGE_PATH_MAX);
	while (*raw) {
		size_t n = strcspn(raw, "/");

		if (n == 2 && raw[0] == '.' && raw[1] == '.')
			return err_set(e, "", EINVAL, "\"..\" in a path");
		if (n > IMAGE_NAME_MAX)
			return err_set(e, "", ENAMETOOLONG, "a name of %zu bytes (limit %d)", n,
				IMAGE_NAME_MAX);
		if (n && !(n == 1 && raw[0] == '.')) {
			if (++parts > IMAGE_DEPTH_MAX)
				return err_set(e, "", ENAMETOOLONG, "more than %d folders deep",
					IMAGE_DEPTH_MAX);
			if (len)
				dst[len++] = '/';
			memcpy(dst + len, raw, n);
			len += n;
		}
		raw += n;
		raw += *raw == '/';
	}
	dst[len] = '\0';
	return (int)len;
}

struct walk {
	char buf[WALK_BYTES + 2];
	char *at;
	unsigned hops, steps;
};

/* Puts the symlink's target in front of what is left. */
static int walk_follow(struct walk *w, const char *target, uint32_t *dir, struct err *e)
{
	size_t target_len = strlen(target), rest = strlen(w->at);

	if (++w->hops > TREE_SYMLINKS_MAX)
		return err_set(e, "", ELOOP, "more than %d symlinks on the way", TREE_SYMLINKS_MAX);
	if (target_len + 1 + rest > WALK_BYTES)
		return err_set(e, "", ENAMETOOLONG,
			"the symlinks on the way make a path of more than %d bytes", WALK_BYTES);
	memmove(w->buf + target_len + 1, w->at, rest + 1);
	memcpy(w->buf, target, target_len);
	w->buf[target_len] = '/';
	w->at = w->buf;
	if (target[0] == '/')
		*dir = TREE_ROOT;
	return 0;
}

static uint32_t dir_parent(struct tree *t, uint32_t dir)
{
	uint32_t node = tree_inode(t, dir)->dir.node;

	return node == TREE_NONE ? TREE_ROOT : tree_node(t, node)->parent;
}

/* Makes the folder `name`, in place of a file of this name if there is one. */
static int make_parent(struct tree *t, uint32_t dir, uint32_t old, const char *name, size_t len,
	uint32_t *ret, struct err *e)
{
	uint32_t inode;
	int r;

	if (old != TREE_NONE)
		tree_child_remove(t, old);
	inode = tree_inode_new(t, S_IFDIR | 0755);
	r = tree_child_add(t, dir, name, len, inode, NULL, e);
	if (r < 0) {
		tree_inode_unlink(t, inode);
		return r;
	}
	*ret = inode;
	return 0;
}

/* The folder that `len` bytes of path name. */
static int walk_dir(struct tree *t, const char *path, size_t len, enum missing missing,
	uint32_t *ret, struct err *e)
{
	struct walk w;
	uint32_t dir = TREE_ROOT;

	assert(len <= IMAGE_PATH_MAX);
	memcpy(w.buf, path, len);
	w.buf[len] = '\0';
	w.at = w.buf;
	w.hops = w.steps = 0;
	while (*w.at) {
		const char *name = w.at;
		size_t n = strcspn(name, "/");
		uint32_t node;
		int r = 0;

		w.at += n;
		w.at += *w.at == '/';
		if (n == 0 || (n == 1 && name[0] == '.'))
			continue;
		if (++w.steps > TREE_STEPS_MAX)
			return err_set(e, "", ELOOP,
				"the symlinks on the way lead over more than %d folders",
				TREE_STEPS_MAX);
		if (n == 2 && name[0] == '.' && name[1] == '.') {
			dir = dir_parent(t, dir);
			continue;
		}
		node = tree_child_find(t, dir, name, n);
		if (node != TREE_NONE) {
			uint32_t inode = tree_node(t, node)->inode;
			struct tree_inode *ino = tree_inode(t, inode);

			if (S_ISDIR(ino->mode)) {
				dir = inode;
				continue;
			}
			if (S_ISLNK(ino->mode)) {
				r = walk_follow(&w, ino->target, &dir, e);
				if (r < 0)
					return r;
				continue;
			}
		}
		if (missing == MISSING_NONE)
			return err_set(e, "", ENOENT, "a folder on the way is not there");
		r = make_parent(t, dir, node, name, n, &dir, e);
		if (r < 0)
			return r;
	}
	*ret = dir;
	return 0;
}

/* Splits a path and finds its folder; the base name is what follows the last slash. */
static int walk_parent(struct tree *t, const char *path, enum missing missing, uint32_t *ret_dir,
	const char **ret_base, struct err *e)
{
	const char *slash = strrchr(path, '/');

	*ret_base = slash ? slash + 1 : path;
	return walk_dir(t, path, slash ? (size_t)(slash - path) : 0, missing, ret_dir, e);
}

/* Marks a name and the folders above as brought by this layer. */
static void touch(struct tree *t, uint32_t node)
{
	while (node != TREE_NONE) {
		struct tree_node *n = tree_node(t, node);

		if (n->layer == t->layer)
			return;
		n->layer = t->layer;
		node = tree_inode(t, n->parent)->dir.node;
	}
}

static void set_meta(struct tree_inode *ino, const struct tree_attr *a)
{
	ino->mode = a->mode;
	ino->uid = a->uid;
	ino->gid = a->gid;
	ino->mtime = a->mtime;
	ino->mtime_ns = a->mtime_ns;
	free(ino->xattrs);
	ino->xattrs = NULL;
	ino->xattrs_len = a->xattrs_len;
	if (a->xattrs_len) {
		ino->xattrs = xmalloc(a->xattrs_len);
		memcpy(ino->xattrs, a->xattrs, a->xattrs_len);
	}
}

static void set_content(struct tree_inode *ino, const struct tree_attr *a)
{
	switch (a->mode & S_IFMT) {
	case S_IFREG:
		ino->reg.size = a->body.size;
		ino->reg.tail = a->body.tail;
		ino->reg.block = a->body.block;
		ino->reg.source = a->body.source;
		break;
	case S_IFLNK:
		ino->target = xstrdup(a->target);
		break;
	case S_IFCHR:
	case S_IFBLK:
		ino->dev.major = a->rdev_major;
		ino->dev.minor = a->rdev_minor;
		break;
	default:
		break;
	}
}

static int check_attr(const struct tree_attr *a, struct err *e)
{
	size_t len;

	if (!S_ISLNK(a->mode))
		return 0;
	len = strlen(a->target);
	if (len == 0)
		return err_set(e, "", EINVAL, "a symlink without a target");
	if (len > TREE_TARGET_MAX)
		return err_set(e, "", ENAMETOOLONG, "a symlink's target of %zu bytes (limit %d)",
			len, TREE_TARGET_MAX);
	return 0;
}

int tree_put(struct tree *t, const char *path, const struct tree_attr *a, struct err *e)
{
	uint32_t dir, node, inode;
	const char *base;
	int r;

	if (!*path) {
		if (!S_ISDIR(a->mode))
			return err_set(e, "", EINVAL, "the root would not be a folder");
		set_meta(tree_inode(t, TREE_ROOT), a);
		return 0;
	}
	r = check_attr(a, e);
	if (r < 0)
		return r;
	r = walk_parent(t, path, MISSING_MAKE, &dir, &base, e);
	if (r < 0)
		return r;
	node = tree_child_find(t, dir, base, strlen(base));
	if (node != TREE_NONE && S_ISDIR(a->mode)) {
		struct tree_inode *old = tree_inode(t, tree_node(t, node)->inode);

		if (S_ISDIR(old->mode)) {
			set_meta(old, a);
			touch(t, node);
			return 0;
		}
	}
	if (node != TREE_NONE)
		tree_child_remove(t, node);
	inode = tree_inode_new(t, a->mode);
	set_meta(tree_inode(t, inode), a);
	set_content(tree_inode(t, inode), a);
	r = tree_child_add(t, dir, base, strlen(base), inode, &node, e);
	if (r < 0) {
		tree_inode(t, inode)->nlink = 1;
		tree_inode_unlink(t, inode);
		return r;
	}
	touch(t, node);
	return 0;
}

static uint32_t find_node(struct tree *t, const char *path, struct err *e)
{
	uint32_t dir;
	const char *base;

	if (!*path || walk_parent(t, path, MISSING_NONE, &dir, &base, e) < 0)
		return TREE_NONE;
	return tree_child_find(t, dir, base, strlen(base));
}

int tree_link(struct tree *t, const char *path, const char *target, struct err *e)
{
	uint32_t dir, node, to, inode;
	const char *base;
	int r;

	if (!*path)
		return err_set(e, "", EINVAL, "the root would not be a folder");
	r = walk_parent(t, path, MISSING_MAKE, &dir, &base, e);
	if (r < 0)
		return r;
	node = tree_child_find(t, dir, base, strlen(base));
	if (node != TREE_NONE && node == find_node(t, target, NULL) &&
		!S_ISDIR(tree_inode(t, tree_node(t, node)->inode)->mode)) {
		touch(t, node);
		return 0;
	}
	if (node != TREE_NONE)
		tree_child_remove(t, node);
	to = find_node(t, target, NULL);
	if (to == TREE_NONE)
		return err_set(e, "", ENOENT, "a hard link to something that is not there");
	inode = tree_node(t, to)->inode;
	if (S_ISDIR(tree_inode(t, inode)->mode))
		return err_set(e, "", EPERM, "a hard link to a folder");
	r = tree_child_add(t, dir, base, strlen(base), inode, &node, e);
	if (r < 0)
		return r;
	touch(t, node);
	return 0;
}

/* Removes below a folder what this layer did not bring. */
static void clear_lower(struct tree *t, uint32_t dir)
{
	uint32_t next;

	if (tree_inode(t, dir)->dir.opaque == t->layer)
		return;
	tree_inode(t, dir)->dir.opaque = t->layer;
	for (uint32_t i = tree_inode(t, dir)->dir.first; i != TREE_NONE; i = next) {
		struct tree_node *n = tree_node(t, i);

		next = n->next;
		if (n->layer != t->layer)
			tree_child_remove(t, i);
		else if (S_ISDIR(tree_inode(t, n->inode)->mode))
			clear_lower(t, n->inode);
	}
}

int tree_whiteout(struct tree *t, const char *path, struct err *e)
{
	uint32_t dir, node;
	const char *base;
	int r;

	r = walk_parent(t, path, MISSING_NONE, &dir, &base, e);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	node = tree_child_find(t, dir, base, strlen(base));
	if (node == TREE_NONE)
		return 0;
	if (tree_node(t, node)->layer != t->layer)
		tree_child_remove(t, node);
	else if (S_ISDIR(tree_inode(t, tree_node(t, node)->inode)->mode))
		clear_lower(t, tree_node(t, node)->inode);
	return 0;
}

int tree_opaque(struct tree *t, const char *path, struct err *e)
{
	uint32_t dir;
	int r = walk_dir(t, path, strlen(path), MISSING_NONE, &dir, e);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	clear_lower(t, dir);
	return 0;
}

uint32_t tree_find(struct tree *t, const char *path)
{
	uint32_t node;

	if (!*path)
		return TREE_ROOT;
	node = find_node(t, path, NULL);
	return node == TREE_NONE ? TREE_NONE : tree_node(t, node)->inode;
}

struct named {
	const uint8_t *name;
	uint32_t node;
};

static int named_cmp(const void *pa, const void *pb)
{
	const struct named *a = pa, *b = pb;
	int c = memcmp(a->name + 1, b->name + 1, MIN(a->name[0], b->name[0]));

	return c ? c : (int)a->name[0] - (int)b->name[0];
}

static void sort_dir(struct tree *t, struct tree_inode *d, struct named *v)
{
	uint32_t n = 0, prev = TREE_NONE;

	for (uint32_t i = d->dir.first; i != TREE_NONE; i = tree_node(t, i)->next)
		v[n++] = (struct named){tree_node(t, i)->name, i};
	qsort(v, n, sizeof(*v), named_cmp);
	d->dir.first = n ? v[0].node : TREE_NONE;
	for (uint32_t i = 0; i < n; i++) {
		struct tree_node *node = tree_node(t, v[i].node);

		node->prev = prev;
		node->next = i + 1 < n ? v[i + 1].node : TREE_NONE;
		prev = v[i].node;
	}
	d->dir.last = prev;
}

void tree_sort(struct tree *t)
{
	cleanup_free struct named *v = NULL;
	uint32_t most = 0;

	for (uint32_t i = 0; i < t->inodes.end; i++) {
		struct tree_inode *ino = tree_inode(t, i);

		if (ino->nlink && S_ISDIR(ino->mode))
			most = MAX(most, ino->dir.children);
	}
	v = xcalloc(most, sizeof(*v));
	for (uint32_t i = 0; i < t->inodes.end; i++) {
		struct tree_inode *ino = tree_inode(t, i);

		if (ino->nlink && S_ISDIR(ino->mode))
			sort_dir(t, ino, v);
	}
}
