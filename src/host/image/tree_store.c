/* Inodes and names lie in chunked arrays and point at each other by index: 72 and 32 bytes each,
 * so that a million entries stay near 150 MB. One hash table over (folder, name) finds a child; it
 * is keyed with random bytes because the names are an attacker's. Nothing that leaves the tree
 * depends on the hash: tree_sort puts the names in byte order.
 *
 * Freed inodes, names and nodes are used again, so that a layer which replaces one file a million
 * times costs one file.
 */
#include "host/image/tree_store.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "host/image/build.h"

#define CHUNK_ITEMS 4096u
#define NAME_ARENA  (64u << 10)

static void *chunks_at(const struct tree_chunks *c, uint32_t i)
{
	assert(i < c->end);
	return (char *)c->v[i / CHUNK_ITEMS] + i % CHUNK_ITEMS * c->item;
}

static uint32_t chunks_add(struct tree_chunks *c)
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

static void chunks_done(struct tree_chunks *c)
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

uint32_t tree_inode_new(struct tree *t, uint16_t mode)
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

void tree_inode_unlink(struct tree *t, uint32_t i)
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

uint32_t tree_child_find(struct tree *t, uint32_t dir, const char *name, size_t len)
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

int tree_child_add(struct tree *t, uint32_t dir, const char *name, size_t len, uint32_t inode,
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

void tree_child_remove(struct tree *t, uint32_t i)
{
	struct tree_node *n = tree_node(t, i);
	struct tree_inode *d = tree_inode(t, n->parent), *ino = tree_inode(t, n->inode);

	if (S_ISDIR(ino->mode)) {
		while (ino->dir.first != TREE_NONE)
			tree_child_remove(t, ino->dir.first);
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
	tree_inode_unlink(t, n->inode);
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
	tree_inode_new(t, S_IFDIR | 0755);
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
