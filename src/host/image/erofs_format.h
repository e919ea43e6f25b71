/* erofs_format - the on-disk structures of EROFS that the writer uses, as the kernel documents them
 * (Documentation/filesystems/erofs.rst and fs/erofs/erofs_fs.h). All numbers little-endian.
 *
 * Only what every kernel since 5.4 mounts: no compression, no chunks, no incompatible feature.
 */
#pragma once

#include <assert.h>
#include <endian.h>
#include <stddef.h>
#include <stdint.h>

#define EROFS_BLOCK_BITS 12
#define EROFS_BLOCK	 (1u << EROFS_BLOCK_BITS)
#define EROFS_SB_OFFSET	 1024
#define EROFS_SB_MAGIC	 0xE0F5E1E2u

#define EROFS_COMPAT_SB_CHKSUM 0x1u

/* An inode is found at nid * 32 bytes from the start of the metadata. */
#define EROFS_SLOT_BITS 5
#define EROFS_SLOT	(1u << EROFS_SLOT_BITS)

struct erofs_sb {
	uint32_t magic;
	uint32_t checksum; /* crc32c, seed ~0, not inverted, from here's block's byte 1024 to its
			      end, with 0 in this field */
	uint32_t feature_compat;
	uint8_t block_bits;
	uint8_t ext_slots;
	uint16_t root_nid;
	uint64_t inodes;
	uint64_t build_time;
	uint32_t build_time_ns;
	uint32_t blocks;
	uint32_t meta_blkaddr;
	uint32_t xattr_blkaddr;
	uint8_t uuid[16];
	uint8_t volume_name[16];
	uint32_t feature_incompat;
	uint16_t compression;
	uint16_t extra_devices;
	uint16_t devices_slot;
	uint8_t dir_block_bits;
	uint8_t xattr_prefixes;
	uint32_t xattr_prefix_start;
	uint64_t packed_nid;
	uint8_t xattr_filter;
	uint8_t reserved[23];
};
static_assert(sizeof(struct erofs_sb) == 128, "superblock");
static_assert(offsetof(struct erofs_sb, uuid) == 48, "superblock");
static_assert(offsetof(struct erofs_sb, feature_incompat) == 80, "superblock");
static_assert(offsetof(struct erofs_sb, packed_nid) == 96, "superblock");

/* i_format: bit 0 = extended inode, bits 1-3 = layout of the data. */
#define EROFS_INODE_EXTENDED 1u
enum erofs_layout {
	EROFS_FLAT_PLAIN = 0,  /* all in whole blocks */
	EROFS_FLAT_INLINE = 2, /* whole blocks, the rest behind the inode */
};

struct erofs_inode {
	uint16_t format;
	uint16_t xattr_count; /* 0, or 1 + bytes of the entries / 4 */
	uint16_t mode;
	uint16_t reserved;
	uint64_t size;
	uint32_t u; /* first block, or device number */
	uint32_t ino;
	uint32_t uid, gid;
	uint64_t mtime;
	uint32_t mtime_ns;
	uint32_t nlink;
	uint8_t reserved2[16];
};
static_assert(sizeof(struct erofs_inode) == 64, "inode");
static_assert(offsetof(struct erofs_inode, mtime) == 32, "inode");

/* In front of an inode's own xattrs. */
struct erofs_xattr_header {
	uint32_t name_filter;
	uint8_t shared_count;
	uint8_t reserved[7];
};
static_assert(sizeof(struct erofs_xattr_header) == 12, "xattr header");

/* Followed by the name without its prefix and the value, padded to 4 bytes. */
struct erofs_xattr_entry {
	uint8_t name_len;
	uint8_t name_index;
	uint16_t value_size;
};
static_assert(sizeof(struct erofs_xattr_entry) == 4, "xattr entry");

enum erofs_xattr_index {
	EROFS_XATTR_USER = 1,
	EROFS_XATTR_SECURITY = 6,
};

/* A folder's block: these, sorted by name, then the names in the same order. */
struct erofs_dirent {
	uint64_t nid;
	uint16_t name_offset;
	uint8_t file_type;
	uint8_t reserved;
} __attribute__((packed));
static_assert(sizeof(struct erofs_dirent) == 12, "dirent");

enum erofs_file_type {
	EROFS_FT_REG = 1,
	EROFS_FT_DIR = 2,
	EROFS_FT_CHR = 3,
	EROFS_FT_BLK = 4,
	EROFS_FT_FIFO = 5,
	EROFS_FT_SYMLINK = 7,
};

/* Bytes of an inode with its xattrs (packed entries of xattrs_len bytes, see xattr.h). */
static inline uint32_t erofs_inode_bytes(uint32_t xattrs_len)
{
	return sizeof(struct erofs_inode) +
	       (xattrs_len ? sizeof(struct erofs_xattr_header) + xattrs_len : 0);
}

/* True when the last partial block of `size` bytes of data goes behind the inode. The readers of
 * layers and the writer of the disk must agree, so both ask here. */
static inline int erofs_tail_inline(uint32_t xattrs_len, uint64_t size)
{
	uint32_t tail = size % EROFS_BLOCK;

	return tail && erofs_inode_bytes(xattrs_len) + tail <= EROFS_BLOCK;
}
