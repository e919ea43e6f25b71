/* tree_store - what a tree is made of: inodes, names, and the table that finds a name in a folder.
 * For tree.c, which knows the rules. */
#pragma once

#include "host/image/tree.h"

/* A name takes its length byte and up to 255 bytes, rounded up to 8: 32 sizes, from 1. */
#define TREE_NAME_CLASSES 33

struct tree_chunks {
	void **v;
	size_t item;
	uint32_t end, n, cap;
};

struct tree {
	struct tree_chunks inodes, nodes;
	uint32_t free_inode, free_node; /* lists through next_free and next */
	uint32_t live_inodes, live_nodes, nodes_max;
	uint32_t *slots; /* node + 1, 0: empty */
	uint32_t slots_n;
	uint64_t key[2];
	void **arenas;
	size_t arenas_n;
	uint32_t arena_used;
	void *free_names[TREE_NAME_CLASSES];
	uint16_t layer;
};

/* A folder has one link from birth; what has none by tree_child_add must get one or be unlinked. */
uint32_t tree_inode_new(struct tree *t, uint16_t mode);
/* Gives up one name of the inode; the last one frees it. A folder must be empty. */
void tree_inode_unlink(struct tree *t, uint32_t inode);

/* The node of the name in the folder, or TREE_NONE. */
uint32_t tree_child_find(struct tree *t, uint32_t dir, const char *name, size_t len);

/* A new name for an inode: one link more, but for a folder. The folder `dir` must not have the
 * name. Fails at the limits on names, depth and their number; *ret may be NULL. */
int tree_child_add(struct tree *t, uint32_t dir, const char *name, size_t len, uint32_t inode,
	uint32_t *ret, struct err *e);

/* Removes a name and, if it is a folder, all below it. Recursion: IMAGE_DEPTH_MAX. */
void tree_child_remove(struct tree *t, uint32_t node);
