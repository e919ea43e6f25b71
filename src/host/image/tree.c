/* Inodes and names lie in chunked arrays and point at each other by index: 72 and 32 bytes each,
 * so that a million entries stay near 150 MB. One hash table over (folder, name) finds a child; it
 * is keyed with random bytes because the names are an attacker's. Nothing that leaves the tree
 * depends on the hash: tree_sort puts the names in byte order.
 *
 * Freed inodes, names and nodes are used again, so that a layer which replaces one file a million
 * times costs one file. Recursion goes down folders only and those are at most IMAGE_DEPTH_MAX
 * deep. The work of one path is bounded by TREE_STEPS_MAX, the work of all removals by what was
 * put before, and an emptied folder is not emptied again in the same layer.
 */
#include "host/image/tree.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "host/image/build.h"

#define CHUNK_ITEMS 4096u
#define NAME_ARENA  (64u << 10)
/* A name takes its length byte and up to 255 bytes, rounded up to 8: 32 sizes. */
#define NAME_CLASSES 33
/* What is left of a path while it is walked: itself and the symlinks met. */
#define WALK_BYTES (2 * (IMAGE_PATH_MAX + TREE_TARGET_MAX))

struct chunks {
	void **v;
	size_t item;
	uint32_t end, n, cap;
};

struct tree {
	struct chunks inodes, nodes;
	uint32_t free_inode, free_node; /* lists through next_free and next */
	uint32_t live_inodes, live_nodes, nodes_max;
	uint32_t *slots; /* node + 1, 0: empty */
	uint32_t slots_n;
	uint64_t key[2];
	void **arenas;
	size_t arenas_n;
	uint32_t arena_used;
	void *free_names[NAME_CLASSES];
	uint16_t layer;
};

enum missing {
	MISSING_MAKE, /* folders on the way are made, files on the way give way */
	MISSING_NONE, /* a missing folder is -ENOENT */
};

static void *chunks_at(const struct chunks *c, uint32_t i)
{
	assert(i < c->end);
	return (char *)c->v[i / CHUNK_ITEMS] + i % CHUNK_ITEMS * c->item;
}

static uint32_t chunks_add(struct chunks *c)
{
	if (c->end == c->n * CHUNK_ITEMS) {
		if (c->n == c->cap) {
			c->cap = c->cap ? c->cap * 2 : 16;
			c->v = xrealloc(c->v, c->cap, sizeof(*c->v));
		}
		c->v[c->n++] = xmalloc(CHUNK_ITEMS * c->item);
	}
	return c->end++;
}

static void chunks_done(struct chunks *c)
{
	for (uint32_t i = 0; i < c->n; i++)
		free(c->v[i]);
	free(c->v);
}

struct tree_inode *tree_inode(struct tree *t, uint32_t i)
{
	return chunks_at(&t->inodes, i);
}

struct tree_node *tree_node(struct tree *t, uint32_t n)
{
	return chunks_at(&t->nodes, n);
}

uint32_t tree_inode_count(const struct tree *t)
{
	return t->live_inodes;
}

uint32_t tree_inode_end(const struct tree *t)
{
	return t->inodes.end;
}

static uint32_t inode_new(struct tree *t, uint16_t mode)
{
	uint32_t i = t->free_inode;
	struct tree_inode *ino;

	if (i != TREE_NONE)
		t->free_inode = tree_inode(t, i)->next_free;
	else
		i = chunks_add(&t->inodes);
	ino = tree_inode(t, i);
	*ino = (struct tree_inode){.mode = mode};
	if (S_ISDIR(mode)) {
		ino->dir.first = ino->dir.last = ino->dir.node = TREE_NONE;
		ino->nlink = 1;
	}
	t->live_inodes++;
	return i;
}

/* Gives up one name of the inode; the last one frees it. A folder must be empty. */
static void inode_unlink(struct tree *t, uint32_t i)
{
	struct tree_inode *ino = tree_inode(t, i);

	assert(ino->nlink > 0);
	if (--ino->nlink)
		return;
	assert(!S_ISDIR(ino->mode) || ino->dir.first == TREE_NONE);
	if (S_ISLNK(ino->mode))
		free(ino->target);
	free(ino->xattrs);
	*ino = (struct tree_inode){.next_free = t->free_inode};
	t->free_inode = i;
	t->live_inodes--;
}

static uint8_t *name_new(struct tree *t, const char *name, size_t len)
{
	size_t class = (1 + len + 7) / 8;
	uint8_t *p = t->free_names[class];

	if (p) {
		memcpy(&t->free_names[class], p, sizeof(void *));
	} else {
		if (!t->arenas_n || t->arena_used + class * 8 > NAME_ARENA) {
			if ((t->arenas_n & (t->arenas_n - 1)) == 0)
				t->arenas = xrealloc(t->arenas, MAX(t->arenas_n * 2, (size_t)1),
					sizeof(*t->arenas));
			t->arenas[t->arenas_n++] = xmalloc(NAME_ARENA);
			t->arena_used = 0;
		}
		p = (uint8_t *)t->arenas[t->arenas_n - 1] + t->arena_used;
		t->arena_used += class * 8;
	}
	p[0] = (uint8_t)len;
	memcpy(p + 1, name, len);
	return p;
}

static void name_free(struct tree *t, uint8_t *name)
{
	size_t class = (1 + name[0] + 7) / 8;

	memcpy(name, &t->free_names[class], sizeof(void *));
	t->free_names[class] = name;
}

static uint64_t rotl(uint64_t v, int n)
{
	return v << n | v >> (64 - n);
}

static void sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = rotl(v[1], 13) ^ v[0];
	v[0] = rotl(v[0], 32);
	v[2] += v[3];
	v[3] = rotl(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = rotl(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = rotl(v[1], 17) ^ v[2];
	v[2] = rotl(v[2], 32);
}

/* SipHash-1-3 of the folder's number and the name: nobody without the key can make names that
 * collide. */
static uint32_t name_hash(const struct tree *t, uint32_t dir, const char *name, size_t len)
{
	uint64_t v[4] = {t->key[0] ^ 0x736f6d6570736575, t->key[1] ^ 0x646f72616e646f6d,
		t->key[0] ^ 0x6c7967656e657261, t->key[1] ^ 0x7465646279746573};
	uint64_t word = dir;
	size_t have = 4;

	for (size_t i = 0; i <= len; i++) {
		/* SipHash ends with the length. */
		uint64_t byte = i < len ? (uint8_t)name[i] : len;

		word |= byte << (8 * have++);
		if (have < 8 && i < len)
			continue;
		v[3] ^= word;
		sip_round(v);
		v[0] ^= word;
		word = 0;
		have = 0;
	}
	v[2] ^= 0xff;
	sip_round(v);
	sip_round(v);
	sip_round(v);
	return (uint32_t)(v[0] ^ v[1] ^ v[2] ^ v[3]);
}

static void slots_put(struct tree *t, uint32_t n)
{
	uint32_t mask = t->slots_n - 1, s = tree_node(t, n)->hash & mask;

	while (t->slots[s])
		s = (s + 1) & mask;
	t->slots[s] = n + 1;
}

static void slots_grow(struct tree *t)
{
	uint32_t *old = t->slots, old_n = t->slots_n;

	t->slots_n = old_n ? old_n * 2 : 1024;
	t->slots = xcalloc(t->slots_n, sizeof(*t->slots));
	for (uint32_t i = 0; i < old_n; i++)
		if (old[i])
			slots_put(t, old[i] - 1);
	free(old);
}

/* Empties the slot and moves what was pushed behind it back, so that no tombstones are needed. */
static void slots_drop(struct tree *t, uint32_t n)
{
	uint32_t mask = t->slots_n - 1, hole = tree_node(t, n)->hash & mask, s;

	while (t->slots[hole] != n + 1)
		hole = (hole + 1) & mask;
	for (s = (hole + 1) & mask; t->slots[s]; s = (s + 1) & mask) {
		uint32_t home = tree_node(t, t->slots[s] - 1)->hash & mask;

		/* It may move into the hole unless its home lies between hole and here. */
		if (((s - home) & mask) < ((s - hole) & mask))
			continue;
		t->slots[hole] = t->slots[s];
		hole = s;
	}
	t->slots[hole] = 0;
}

static uint32_t child_find(struct tree *t, uint32_t dir, const char *name, size_t len)
{
	uint32_t hash = name_hash(t, dir, name, len), mask = t->slots_n - 1;

	for (uint32_t s = hash & mask; t->slots[s]; s = (s + 1) & mask) {
		struct tree_node *n = tree_node(t, t->slots[s] - 1);

		if (n->hash == hash && n->parent == dir && tree_name_len(n) == len &&
			memcmp(tree_name(n), name, len) == 0)
			return t->slots[s] - 1;
	}
	return TREE_NONE;
}

/* A new name for an inode. Takes a link of it; the folder must not have the name. */
static int child_add(struct tree *t, uint32_t dir, const char *name, size_t len, uint32_t inode,
	uint32_t *ret, struct err *e)
{
	struct tree_inode *d = tree_inode(t, dir), *ino = tree_inode(t, inode);
	uint32_t i = t->free_node;
	struct tree_node *n;

	if (len > IMAGE_NAME_MAX)
		return err_set(
			e, "", ENAMETOOLONG, "a name of %zu bytes (limit %d)", len, IMAGE_NAME_MAX);
	if (d->dir.depth + 1u > IMAGE_DEPTH_MAX)
		return err_set(e, "", ENAMETOOLONG, "more than %d folders deep (symlinks followed)",
			IMAGE_DEPTH_MAX);
	if (t->live_nodes >= t->nodes_max)
		return err_set(e, "", E2BIG, "the image has more than %u names", t->nodes_max);
	if (i != TREE_NONE)
		t->free_node = tree_node(t, i)->next;
	else
		i = chunks_add(&t->nodes);
	n = tree_node(t, i);
	*n = (struct tree_node){.name = name_new(t, name, len),
		.inode = inode,
		.parent = dir,
		.next = TREE_NONE,
		.prev = d->dir.last,
		.hash = name_hash(t, dir, name, len)};
	if (d->dir.last != TREE_NONE)
		tree_node(t, d->dir.last)->next = i;
	else
		d->dir.first = i;
	d->dir.last = i;
	d->dir.children++;
	if (S_ISDIR(ino->mode)) {
		d->dir.subdirs++;
		ino->dir.node = i;
		ino->dir.depth = d->dir.depth + 1;
	} else {
		ino->nlink++;
	}
	t->live_nodes++;
	if (t->live_nodes >= t->slots_n / 4 * 3)
		slots_grow(t);
	slots_put(t, i);
	if (ret)
		*ret = i;
	return 0;
}

/* Removes a name and, if it is a folder, all below it. */
static void child_remove(struct tree *t, uint32_t i)
{
	struct tree_node *n = tree_node(t, i);
	struct tree_inode *d = tree_inode(t, n->parent), *ino = tree_inode(t, n->inode);

	if (S_ISDIR(ino->mode)) {
		while (ino->dir.first != TREE_NONE)
			child_remove(t, ino->dir.first);
		d->dir.subdirs--;
	}
	slots_drop(t, i);
	if (n->prev != TREE_NONE)
		tree_node(t, n->prev)->next = n->next;
	else
		d->dir.first = n->next;
	if (n->next != TREE_NONE)
		tree_node(t, n->next)->prev = n->prev;
	else
		d->dir.last = n->prev;
	d->dir.children--;
	inode_unlink(t, n->inode);
	name_free(t, n->name);
	n->next = t->free_node;
	t->free_node = i;
	t->live_nodes--;
}

struct tree *tree_new(void)
{
	struct tree *t = xcalloc(1, sizeof(*t));

	t->inodes.item = sizeof(struct tree_inode);
	t->nodes.item = sizeof(struct tree_node);
	t->free_inode = t->free_node = TREE_NONE;
	t->nodes_max = IMAGE_TREE_ENTRIES_MAX;
	/* Without randomness the key is the address of the heap: weaker, never wrong. */
	if (getrandom(t->key, sizeof(t->key), 0) != sizeof(t->key))
		t->key[0] = (uintptr_t)t;
	slots_grow(t);
	inode_new(t, S_IFDIR | 0755);
	return t;
}

void tree_free(struct tree *t)
{
	if (!t)
		return;
	for (uint32_t i = 0; i < t->inodes.end; i++) {
		struct tree_inode *ino = tree_inode(t, i);

		if (ino->nlink && S_ISLNK(ino->mode))
			free(ino->target);
		free(ino->xattrs);
	}
	for (size_t i = 0; i < t->arenas_n; i++)
		free(t->arenas[i]);
	free(t->arenas);
	free(t->slots);
	chunks_done(&t->inodes);
	chunks_done(&t->nodes);
	free(t);
}

void tree_limit_entries(struct tree *t, uint32_t max)
{
	t->nodes_max = max;
}

void tree_begin_layer(struct tree *t)
{
	t->layer++;
}

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
		child_remove(t, old);
	inode = inode_new(t, S_IFDIR | 0755);
	r = child_add(t, dir, name, len, inode, NULL, e);
	if (r < 0) {
		inode_unlink(t, inode);
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
		node = child_find(t, dir, name, n);
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
	node = child_find(t, dir, base, strlen(base));
	if (node != TREE_NONE && S_ISDIR(a->mode)) {
		struct tree_inode *old = tree_inode(t, tree_node(t, node)->inode);

		if (S_ISDIR(old->mode)) {
			set_meta(old, a);
			touch(t, node);
			return 0;
		}
	}
	if (node != TREE_NONE)
		child_remove(t, node);
	inode = inode_new(t, a->mode);
	set_meta(tree_inode(t, inode), a);
	set_content(tree_inode(t, inode), a);
	r = child_add(t, dir, base, strlen(base), inode, &node, e);
	if (r < 0) {
		tree_inode(t, inode)->nlink = 1;
		inode_unlink(t, inode);
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
	return child_find(t, dir, base, strlen(base));
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
	node = child_find(t, dir, base, strlen(base));
	if (node != TREE_NONE && node == find_node(t, target, NULL) &&
		!S_ISDIR(tree_inode(t, tree_node(t, node)->inode)->mode)) {
		touch(t, node);
		return 0;
	}
	if (node != TREE_NONE)
		child_remove(t, node);
	to = find_node(t, target, NULL);
	if (to == TREE_NONE)
		return err_set(e, "", ENOENT, "a hard link to something that is not there");
	inode = tree_node(t, to)->inode;
	if (S_ISDIR(tree_inode(t, inode)->mode))
		return err_set(e, "", EPERM, "a hard link to a folder");
	r = child_add(t, dir, base, strlen(base), inode, &node, e);
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
			child_remove(t, i);
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
	node = child_find(t, dir, base, strlen(base));
	if (node == TREE_NONE)
		return 0;
	if (tree_node(t, node)->layer != t->layer)
		child_remove(t, node);
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
