/* How it works: one walk over the sorted tree places every inode (place_*), which fixes all sizes
 * and addresses; then the inodes are written from front to back while helpers copy the file
 * contents into their places (blocks.c); the superblock comes last, so that a torn write never
 * looks like a disk.
 *
 * An inode, its xattrs and the tail of its data lie in one block where they fit in one: the kernel
 * asks this of the tail. Inodes are packed best-fit into a few open blocks, folder by folder, so
 * that what is listed together is read together. The root comes first because its number has 16
 * bits only.
 *
 * Holes of files and blocks of zeros are holes of the disk's file: the guest reads zeros, and they
 * take no space. (Chunked files could leave them out altogether, but that is a feature that not
 * every guest kernel has been seen to mount.)
 *
 * Limits: 2^32 blocks of 4 KiB; bytes_max of the caller.
 */
#include "host/image/erofs.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/image/blocks.h"
#include "host/image/erofs_format.h"

/* Blocks that still take inodes while the tree is placed. */
#define OPEN_BLOCKS 64
#define META_BUF    (256u << 10)
/* How many inodes are written between two looks at `stop`. */
#define STOP_EVERY 1024

struct bin {
	uint32_t block, free;
};

struct writer {
	const struct erofs_write *w;
	struct tree *t;
	uint32_t *order; /* inodes as placed, later by nid */
	uint32_t n_order;
	struct bin bins[OPEN_BLOCKS];
	unsigned n_bins;
	uint64_t meta_blocks, dir_blocks, data_blocks; /* block 0 counts as metadata */
	uint64_t data_bytes;
	struct blocks_run *runs;
	size_t n_runs;
	struct erofs_stats stats;
	/* Metadata on its way out. */
	uint8_t *buf;
	uint64_t buf_at; /* offset of buf[0] in the disk */
	size_t buf_len;
	uint8_t block[EROFS_BLOCK];
};

static uint64_t blocks_of(uint64_t bytes)
{
	return (bytes + EROFS_BLOCK - 1) >> EROFS_BLOCK_BITS;
}

/* Whole blocks that the data of an inode takes outside of the metadata. */
static uint64_t outer_blocks(const struct tree_inode *ino, uint64_t size)
{
	return erofs_tail_inline(ino->xattrs_len, size) ? size >> EROFS_BLOCK_BITS
							: blocks_of(size);
}

/* Walks the names of a folder in byte order, with "." and ".." in their places. */
struct dir_iter {
	struct tree *t;
	uint32_t dir, node;
	int dots; /* how many of the two have been given */
	const char *name;
	size_t len;
	uint32_t inode;
};

static void dir_begin(struct dir_iter *it, struct tree *t, uint32_t dir)
{
	*it = (struct dir_iter){.t = t, .dir = dir, .node = tree_inode(t, dir)->dir.first};
}

static bool dir_next(struct dir_iter *it)
{
	static const char dots[] = "..";
	struct tree_node *n = it->node == TREE_NONE ? NULL : tree_node(it->t, it->node);

	if (it->dots < 2) {
		size_t len = it->dots + 1;
		int c = n ? memcmp(dots, tree_name(n), MIN(len, tree_name_len(n))) : -1;

		if (c < 0 || (c == 0 && len < tree_name_len(n))) {
			uint32_t self = tree_inode(it->t, it->dir)->dir.node;

			it->name = dots;
			it->len = len;
			it->inode = it->dir;
			if (len == 2 && self != TREE_NONE)
				it->inode = tree_node(it->t, self)->parent;
			it->dots++;
			return true;
		}
	}
	if (!n)
		return false;
	it->name = tree_name(n);
	it->len = tree_name_len(n);
	it->inode = n->inode;
	it->node = n->next;
	return true;
}

static uint64_t dir_size(struct tree *t, uint32_t dir)
{
	struct dir_iter it;
	uint64_t full = 0;
	uint32_t used = 0;

	dir_begin(&it, t, dir);
	while (dir_next(&it)) {
		uint32_t need = sizeof(struct erofs_dirent) + it.len;

		if (used + need > EROFS_BLOCK) {
			full += EROFS_BLOCK;
			used = 0;
		}
		used += need;
	}
	return full + used;
}

static uint64_t inode_size(struct tree *t, uint32_t i)
{
	struct tree_inode *ino = tree_inode(t, i);

	switch (ino->mode & S_IFMT) {
	case S_IFREG:
		return ino->reg.size;
	case S_IFDIR:
		return dir_size(t, i);
	case S_IFLNK:
		return strlen(ino->target);
	default:
		return 0;
	}
}

/* Finds room for `bytes` of metadata (one block if they fit) and returns its offset. */
static uint64_t place_bytes(struct writer *wr, uint32_t bytes)
{
	struct bin *best = NULL;
	uint64_t at;

	bytes = (bytes + EROFS_SLOT - 1) & ~(EROFS_SLOT - 1);
	if (bytes > EROFS_BLOCK) {
		at = wr->meta_blocks << EROFS_BLOCK_BITS;
		wr->meta_blocks += blocks_of(bytes);
		return at;
	}
	for (unsigned i = 0; i < wr->n_bins; i++)
		if (wr->bins[i].free >= bytes && (!best || wr->bins[i].free < best->free))
			best = &wr->bins[i];
	if (!best) {
		if (wr->n_bins < OPEN_BLOCKS) {
			best = &wr->bins[wr->n_bins++];
		} else {
			best = &wr->bins[0];
			for (unsigned i = 1; i < wr->n_bins; i++)
				if (wr->bins[i].free < best->free)
					best = &wr->bins[i];
		}
		*best = (struct bin){.block = wr->meta_blocks++, .free = EROFS_BLOCK};
	}
	at = ((uint64_t)best->block << EROFS_BLOCK_BITS) + EROFS_BLOCK - best->free;
	best->free -= bytes;
	return at;
}

static void place_inode(struct writer *wr, uint32_t i)
{
	struct tree_inode *ino = tree_inode(wr->t, i);
	uint64_t size = inode_size(wr->t, i);
	uint32_t bytes = erofs_inode_bytes(ino->xattrs_len);

	if (erofs_tail_inline(ino->xattrs_len, size))
		bytes += size % EROFS_BLOCK;
	ino->nid = place_bytes(wr, bytes) >> EROFS_SLOT_BITS;
	wr->order[wr->n_order++] = i;
	if (S_ISREG(ino->mode)) {
		wr->stats.data_bytes += size;
		wr->data_blocks += outer_blocks(ino, size);
	} else {
		ino->blkaddr = wr->dir_blocks;
		wr->dir_blocks += outer_blocks(ino, size);
	}
}

/* Places what is in a folder, then what is in its folders. Recursion: IMAGE_DEPTH_MAX. */
static void place_dir(struct writer *wr, uint32_t dir)
{
	struct tree *t = wr->t;

	for (uint32_t n = tree_inode(t, dir)->dir.first; n != TREE_NONE; n = tree_node(t, n)->next)
		if (!tree_inode(t, tree_node(t, n)->inode)->nid)
			place_inode(wr, tree_node(t, n)->inode);
	for (uint32_t n = tree_inode(t, dir)->dir.first; n != TREE_NONE; n = tree_node(t, n)->next)
		if (S_ISDIR(tree_inode(t, tree_node(t, n)->inode)->mode))
			place_dir(wr, tree_node(t, n)->inode);
}

static int cmp_source(const void *pa, const void *pb, void *user)
{
	const struct tree_inode *a = tree_inode(user, *(const uint32_t *)pa);
	const struct tree_inode *b = tree_inode(user, *(const uint32_t *)pb);

	if (a->reg.source != b->reg.source)
		return a->reg.source < b->reg.source ? -1 : 1;
	return (a->reg.block > b->reg.block) - (a->reg.block < b->reg.block);
}

static int cmp_nid(const void *pa, const void *pb, void *user)
{
	uint32_t a = tree_inode(user, *(const uint32_t *)pa)->nid;
	uint32_t b = tree_inode(user, *(const uint32_t *)pb)->nid;

	return (a > b) - (a < b);
}

/* Gives the contents their addresses, in the order of the sources, and lists what to copy. */
static void place_data(struct writer *wr)
{
	cleanup_free uint32_t *v = xcalloc(wr->n_order, sizeof(*v));
	uint64_t at = wr->meta_blocks + wr->dir_blocks;
	struct blocks_run *run = NULL;
	uint32_t n = 0;

	for (uint32_t i = 0; i < wr->n_order; i++) {
		struct tree_inode *ino = tree_inode(wr->t, wr->order[i]);

		if (!S_ISREG(ino->mode))
			ino->blkaddr += wr->meta_blocks;
		else if (outer_blocks(ino, ino->reg.size))
			v[n++] = wr->order[i];
	}
	qsort_r(v, n, sizeof(*v), cmp_source, wr->t);
	wr->runs = xcalloc(n, sizeof(*wr->runs));
	for (uint32_t i = 0; i < n; i++) {
		struct tree_inode *ino = tree_inode(wr->t, v[i]);
		uint64_t whole = outer_blocks(ino, ino->reg.size),
			 bytes = whole << EROFS_BLOCK_BITS;
		int fd = wr->w->sources[ino->reg.source].data_fd;
		uint64_t from = (uint64_t)ino->reg.block << EROFS_BLOCK_BITS;

		assert(ino->reg.source < wr->w->n_sources);
		ino->blkaddr = at;
		if (run && run->fd == fd &&
			from == run->from + (blocks_of(run->len) << EROFS_BLOCK_BITS)) {
			run->len = from - run->from;
		} else {
			run = &wr->runs[wr->n_runs++];
			*run = (struct blocks_run){
				.from = from, .to = at << EROFS_BLOCK_BITS, .fd = fd};
		}
		run->len += MIN(bytes, ino->reg.size);
		at += whole;
	}
}

static int place_all(struct writer *wr, struct err *e)
{
	uint64_t blocks;
	char size[16];

	tree_sort(wr->t);
	wr->order = xcalloc(tree_inode_count(wr->t), sizeof(*wr->order));
	for (uint32_t i = 0; i < tree_inode_end(wr->t); i++)
		tree_inode(wr->t, i)->nid = tree_inode(wr->t, i)->blkaddr = 0;
	wr->meta_blocks = 1;
	place_inode(wr, TREE_ROOT);
	place_dir(wr, TREE_ROOT);
	blocks = wr->meta_blocks + wr->dir_blocks + wr->data_blocks;
	wr->stats.inodes = wr->n_order;
	wr->stats.disk_bytes = blocks << EROFS_BLOCK_BITS;
	if (blocks > UINT32_MAX || wr->stats.disk_bytes > wr->w->bytes_max)
		return err_set(e, "", EFBIG,
			"the disk of the image would take %s (limit %llu bytes)",
			str_human_size(wr->stats.disk_bytes, size),
			(unsigned long long)wr->w->bytes_max);
	place_data(wr);
	qsort_r(wr->order, wr->n_order, sizeof(*wr->order), cmp_nid, wr->t);
	return 0;
}

static int out_error(int r, struct err *e)
{
	if (r == -ENOSPC || r == -EDQUOT)
		return err_set(e, "", -r,
			"no space left for the disk of the image (%s): free some or move "
			"III_SANDBOX_CACHE_DIR",
			err_str(r));
	return err_set(e, "", -r, "writing the disk of the image: %s", err_str(r));
}

static int meta_flush(struct writer *wr)
{
	int r = fd_pwrite_all(wr->w->out_fd, wr->buf, wr->buf_len, wr->buf_at);

	wr->buf_at += wr->buf_len;
	wr->buf_len = 0;
	return r;
}

/* Writes at `at`, which is never before what was written last. */
static int meta_emit(struct writer *wr, uint64_t at, const void *data, size_t len)
{
	const uint8_t *p = data;

	assert(at >= wr->buf_at + wr->buf_len);
	if (at > wr->buf_at + META_BUF) {
		int r = meta_flush(wr);

		if (r < 0)
			return r;
		wr->buf_at = at;
	}
	memset(wr->buf + wr->buf_len, 0, at - wr->buf_at - wr->buf_len);
	wr->buf_len = at - wr->buf_at;
	while (len) {
		size_t n = MIN(len, META_BUF - wr->buf_len);

		memcpy(wr->buf + wr->buf_len, p, n);
		wr->buf_len += n;
		p += n;
		len -= n;
		if (wr->buf_len == META_BUF) {
			int r = meta_flush(wr);

			if (r < 0)
				return r;
		}
	}
	return 0;
}

static uint8_t file_type(uint16_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR:
		return EROFS_FT_DIR;
	case S_IFLNK:
		return EROFS_FT_SYMLINK;
	case S_IFCHR:
		return EROFS_FT_CHR;
	case S_IFBLK:
		return EROFS_FT_BLK;
	case S_IFIFO:
		return EROFS_FT_FIFO;
	default:
		return EROFS_FT_REG;
	}
}

/* Fills one block with names, as many as `probe` counted, and leaves `it` behind the last. */
static uint32_t dir_fill(struct writer *wr, struct dir_iter *it, uint32_t count)
{
	uint32_t name_at = count * sizeof(struct erofs_dirent);

	memset(wr->block, 0, sizeof(wr->block));
	for (uint32_t i = 0; i < count && dir_next(it); i++) {
		struct tree_inode *ino = tree_inode(it->t, it->inode);
		struct erofs_dirent d = {.nid = htole64(ino->nid),
			.name_offset = htole16(name_at),
			.file_type = file_type(ino->mode)};

		memcpy(wr->block + i * sizeof(d), &d, sizeof(d));
		memcpy(wr->block + name_at, it->name, it->len);
		name_at += it->len;
	}
	return name_at;
}

/* Writes a folder: whole blocks to their place, a tail that is kept with the inode to tail_at. */
static int write_dir(struct writer *wr, uint32_t dir, uint64_t size, uint64_t tail_at)
{
	const struct tree_inode *ino = tree_inode(wr->t, dir);
	uint64_t whole = outer_blocks(ino, size), block = 0;
	struct dir_iter probe, it;
	bool more;

	dir_begin(&probe, wr->t, dir);
	it = probe;
	more = dir_next(&probe);
	while (more) {
		uint32_t used = 0, count = 0, len;
		int r;

		while (more && used + sizeof(struct erofs_dirent) + probe.len <= EROFS_BLOCK) {
			used += sizeof(struct erofs_dirent) + probe.len;
			count++;
			more = dir_next(&probe);
		}
		len = dir_fill(wr, &it, count);
		assert(len == used);
		if (block < whole)
			r = fd_pwrite_all(wr->w->out_fd, wr->block, EROFS_BLOCK,
				(ino->blkaddr + block) << EROFS_BLOCK_BITS);
		else
			r = meta_emit(wr, tail_at, wr->block, len);
		if (r < 0)
			return r;
		block++;
	}
	return 0;
}

static int write_symlink(
	struct writer *wr, const struct tree_inode *ino, uint64_t size, uint64_t tail_at)
{
	if (outer_blocks(ino, size))
		return fd_pwrite_all(wr->w->out_fd, ino->target, size,
			(uint64_t)ino->blkaddr << EROFS_BLOCK_BITS);
	return meta_emit(wr, tail_at, ino->target, size);
}

static int write_tail(struct writer *wr, const struct tree_inode *ino, uint64_t tail_at)
{
	uint32_t tail = ino->reg.size % EROFS_BLOCK;
	ssize_t n;

	if (!erofs_tail_inline(ino->xattrs_len, ino->reg.size))
		return 0;
	n = fd_pread_full(wr->w->sources[ino->reg.source].tail_fd, wr->block, tail, ino->reg.tail);
	if (n < 0)
		return (int)n;
	if (n != tail)
		return -EIO;
	return meta_emit(wr, tail_at, wr->block, tail);
}

/* Linux's encoding of a device number in 32 bits: 12 bits major, 20 bits minor. */
static uint32_t device_number(const struct tree_inode *ino)
{
	return (ino->dev.minor & 0xff) | ino->dev.major << 8 | (ino->dev.minor & ~0xffu) << 12;
}

static int write_inode(struct writer *wr, uint32_t i, uint32_t number)
{
	static const struct erofs_xattr_header header;
	const struct tree_inode *ino = tree_inode(wr->t, i);
	uint64_t size = inode_size(wr->t, i), at = (uint64_t)ino->nid << EROFS_SLOT_BITS;
	bool tail = erofs_tail_inline(ino->xattrs_len, size);
	uint32_t u = outer_blocks(ino, size) ? ino->blkaddr : 0;
	struct erofs_inode d = {.mode = htole16(ino->mode),
		.size = htole64(size),
		.ino = htole32(number),
		.uid = htole32(ino->uid),
		.gid = htole32(ino->gid),
		.mtime = htole64((uint64_t)ino->mtime),
		.mtime_ns = htole32(ino->mtime_ns)};
	int r;

	d.format =
		htole16(EROFS_INODE_EXTENDED | (tail ? EROFS_FLAT_INLINE : EROFS_FLAT_PLAIN) << 1);
	d.nlink = htole32(S_ISDIR(ino->mode) ? 2 + ino->dir.subdirs : ino->nlink);
	if (S_ISCHR(ino->mode) || S_ISBLK(ino->mode))
		u = device_number(ino);
	d.u = htole32(u);
	if (ino->xattrs_len)
		d.xattr_count = htole16(1 + ino->xattrs_len / 4);
	r = meta_emit(wr, at, &d, sizeof(d));
	if (r == 0 && ino->xattrs_len) {
		r = meta_emit(wr, at + sizeof(d), &header, sizeof(header));
		if (r == 0)
			r = meta_emit(
				wr, at + sizeof(d) + sizeof(header), ino->xattrs, ino->xattrs_len);
	}
	if (r < 0)
		return r;
	at += erofs_inode_bytes(ino->xattrs_len);
	if (S_ISDIR(ino->mode))
		return write_dir(wr, i, size, at);
	if (S_ISLNK(ino->mode))
		return write_symlink(wr, ino, size, at);
	if (S_ISREG(ino->mode))
		return write_tail(wr, ino, at);
	return 0;
}

static int write_meta(struct writer *wr, struct err *e)
{
	int r;

	wr->buf = xmalloc(META_BUF);
	wr->buf_at = EROFS_BLOCK;
	for (uint32_t i = 0; i < wr->n_order; i++) {
		if (i % STOP_EVERY == 0 && wr->w->stop && wr->w->stop(wr->w->user))
			return err_set(e, "", ECANCELED, "cancelled");
		r = write_inode(wr, wr->order[i], i + 1);
		if (r < 0)
			return out_error(r, e);
	}
	r = meta_flush(wr);
	return r < 0 ? out_error(r, e) : 0;
}

static uint32_t crc32c(const uint8_t *p, size_t len)
{
	uint32_t crc = ~0u;

	while (len--) {
		crc ^= *p++;
		for (int i = 0; i < 8; i++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
	}
	return crc;
}

static int write_super(struct writer *wr)
{
	struct erofs_sb sb = {.magic = htole32(EROFS_SB_MAGIC),
		.feature_compat = htole32(EROFS_COMPAT_SB_CHKSUM),
		.block_bits = EROFS_BLOCK_BITS,
		.root_nid = htole16(tree_inode(wr->t, TREE_ROOT)->nid),
		.inodes = htole64(wr->n_order),
		.blocks = htole32(wr->stats.disk_bytes >> EROFS_BLOCK_BITS)};

	memcpy(sb.uuid, wr->w->uuid, sizeof(sb.uuid));
	memset(wr->block, 0, sizeof(wr->block));
	memcpy(wr->block + EROFS_SB_OFFSET, &sb, sizeof(sb));
	sb.checksum = htole32(crc32c(wr->block + EROFS_SB_OFFSET, EROFS_BLOCK - EROFS_SB_OFFSET));
	memcpy(wr->block + EROFS_SB_OFFSET, &sb, sizeof(sb));
	return fd_pwrite_all(wr->w->out_fd, wr->block, EROFS_BLOCK, 0);
}

int erofs_write(const struct erofs_write *w, struct erofs_stats *stats, struct err *e)
{
	struct writer *wr = xcalloc(1, sizeof(*wr));
	struct blocks *copy;
	int r;

	wr->w = w;
	wr->t = w->tree;
	r = place_all(wr, e);
	if (r == 0 && ftruncate(w->out_fd, wr->stats.disk_bytes) < 0)
		r = out_error(-errno, e);
	if (r == 0) {
		copy = blocks_start(
			w->out_fd, wr->runs, wr->n_runs, w->threads > 1 ? w->threads - 1 : 0);
		r = write_meta(wr, e);
		if (r < 0)
			blocks_finish(copy, true, NULL, NULL, NULL);
		else
			r = blocks_finish(copy, false, w->stop, w->user, e);
	}
	if (r == 0) {
		r = write_super(wr);
		if (r < 0)
			r = out_error(r, e);
	}
	if (r == 0 && stats)
		*stats = wr->stats;
	free(wr->runs);
	free(wr->order);
	free(wr->buf);
	free(wr);
	return r;
}
