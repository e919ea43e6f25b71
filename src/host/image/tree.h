/* tree - the merged file system of an image, in memory, without file contents.
 *
 * Layers are applied lowest first, entry by entry, as an unpacker would apply them to a folder, but
 * nothing is ever opened: a path is resolved inside the tree only, so a symlink cannot lead out.
 *
 * Rules (image-spec layer.md; where it is silent: what `umoci unpack` does)
 *   parents      missing ones are made: 0755, owner 0:0, time 0. A symlink as a parent is followed
 *                inside the tree ("/" and ".." stop at the root); one that dangles leads to folders
 *                made at its target. A file as a parent is replaced by a folder, as an overlay of
 *                the layers would show it.
 *   put          a folder over a folder takes the new owner, mode, times and xattrs and keeps what
 *                is in it; everything else replaces what was there, whole; the last entry wins.
 *   link         another name of the same inode; the link's own metadata is not used. The target
 *                must exist at that moment and not be a folder.
 *   whiteout     removes what lower layers brought below the name, never what this layer brought.
 *   opaque       the same for all that is in a folder, the folder itself stays.
 *   root         may get metadata, but never another type.
 *
 * The struct is open to this folder (erofs.c walks it); others use the functions.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Symlinks followed for one path, as Linux has it; more is ELOOP. */
#define TREE_SYMLINKS_MAX 40
/* Components walked for one path with those of the symlinks on the way; more is ELOOP. Bounds the
 * work that one entry can cause. */
#define TREE_STEPS_MAX 1024
/* Bytes of a symlink's target: Linux reads no longer one. */
#define TREE_TARGET_MAX 4095

#define TREE_NONE UINT32_MAX /* no node, no inode */
#define TREE_ROOT 0u	     /* inode of the root */

/* Where the bytes of a regular file lie until the disk is written: see body.h. */
struct tree_body {
	uint64_t size;
	uint64_t tail;	/* offset of the last partial block in the source's tail file */
	uint32_t block; /* first whole block in the source's data file, in blocks of 4 KiB */
	uint32_t source;
};

/* What an entry says about an inode. */
struct tree_attr {
	uint16_t mode; /* type and permission bits */
	uint32_t uid, gid;
	int64_t mtime;
	uint32_t mtime_ns;
	uint32_t rdev_major, rdev_minor; /* S_IFCHR, S_IFBLK */
	const char *target;		 /* S_IFLNK */
	struct tree_body body;		 /* S_IFREG */
	const void *xattrs;		 /* packed, see xattr.h */
	uint32_t xattrs_len;
};

struct tree_inode {
	int64_t mtime;
	uint8_t *xattrs;
	union {
		struct {
			uint64_t size, tail;
			uint32_t block, source;
		} reg;
		struct {
			uint32_t first, last; /* nodes */
			uint32_t node;	      /* its own name; TREE_NONE: the root */
			uint32_t children, subdirs;
			uint16_t depth;	 /* components from the root */
			uint16_t opaque; /* the layer that last emptied it of lower layers */
		} dir;
		char *target;
		struct {
			uint32_t major, minor;
		} dev;
		uint32_t next_free;
	};
	uint32_t xattrs_len;
	uint32_t mtime_ns;
	uint32_t uid, gid;
	uint32_t nlink; /* names of a non-folder; 0: free */
	uint16_t mode;
	uint16_t pad;
	/* Set by the writer: place in units of 32 bytes, first block of the data. */
	uint32_t nid, blkaddr;
};

/* A name in a folder. */
struct tree_node {
	uint8_t *name; /* length byte, then the bytes */
	uint32_t inode;
	uint32_t parent; /* inode of the folder */
	uint32_t next, prev;
	uint32_t hash;
	uint16_t layer; /* the layer that last put something here or below */
};

struct tree;

struct tree *tree_new(void);
void tree_free(struct tree *t); /* NULL allowed */

/* A lower bound for tests; the default is IMAGE_TREE_ENTRIES_MAX. */
void tree_limit_entries(struct tree *t, uint32_t max);

/* Entries after this belong to the next layer. At least once, at most IMAGE_LAYERS_MAX times. */
void tree_begin_layer(struct tree *t);

/* Checks a path as an archive gives it and writes it in normal form: no leading "./", no empty or
 * "." components, no slash at an end, "" for the root. Refused with -EINVAL: absolute paths, "..";
 * with -ENAMETOOLONG: a path or component over the limit, more than IMAGE_DEPTH_MAX components.
 * `dst` has room for IMAGE_PATH_MAX + 1 bytes. Returns the length. */
int tree_path_clean(const char *raw, char *dst, struct err *e);

/* Paths are in normal form. 0 or a negative errno; an error says why, the caller adds where. After
 * a failure the tree is valid but holds a part of the entry's effects. */
int tree_put(struct tree *t, const char *path, const struct tree_attr *a, struct err *e);
int tree_link(struct tree *t, const char *path, const char *target, struct err *e);
int tree_whiteout(struct tree *t, const char *path, struct err *e);
int tree_opaque(struct tree *t, const char *path, struct err *e);

/* Puts the names of every folder in byte order, as EROFS wants them. */
void tree_sort(struct tree *t);

/* The inode that a path names (symlinks on the way followed, not the last), or TREE_NONE. */
uint32_t tree_find(struct tree *t, const char *path);

uint32_t tree_inode_count(const struct tree *t); /* live ones */
uint32_t tree_inode_end(const struct tree *t);	 /* every index is below; free ones have nlink 0 */
struct tree_inode *tree_inode(struct tree *t, uint32_t i);
struct tree_node *tree_node(struct tree *t, uint32_t n);

static inline size_t tree_name_len(const struct tree_node *n)
{
	return n->name[0];
}

static inline const char *tree_name(const struct tree_node *n)
{
	return (const char *)n->name + 1;
}
