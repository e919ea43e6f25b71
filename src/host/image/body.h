/* body - file contents of one layer on their way to the disk.
 *
 * Goes to two unnamed scratch files: whole blocks (4 KiB, each content at a block of its own) and
 * the last partial blocks, which the disk keeps with the inodes (erofs_tail_inline). Holes stay
 * holes.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "host/image/tree.h"

struct body_sink {
	int data_fd, tail_fd;
	uint64_t data_at; /* where data[0] goes; data_at + data_len is the next byte */
	uint64_t tail_at;
	uint8_t *data, *tail;
	size_t data_len, tail_len;
	/* The content under way. */
	uint64_t size, whole, pos; /* whole: bytes that go to the data file */
	struct tree_body body;
};

/* Zeroed and with -1 as descriptors a sink is valid for body_sink_done. */
#define BODY_SINK_INIT ((struct body_sink){.data_fd = -1, .tail_fd = -1})

/* An unnamed file in the folder, open for reading and writing; where the file system has none such,
 * one that lost its name. Negative errno. */
int body_scratch_file(int dirfd);

int body_sink_open(struct body_sink *s, int scratch_dirfd, struct err *e);
void body_sink_done(struct body_sink *s);
/* Writes what is buffered and gives the buffers back; the descriptors can be read from then on. */
int body_sink_finish(struct body_sink *s);

/* One content of `size` bytes: begin, data and holes in order, end. All negative errno; body_end
 * fills what was not given with a hole. Never more than `size` bytes: -EINVAL. */
int body_begin(struct body_sink *s, uint64_t size, uint32_t xattrs_len, uint32_t source);
int body_data(struct body_sink *s, const void *data, size_t len);
int body_hole(struct body_sink *s, uint64_t len);
int body_end(struct body_sink *s, struct tree_body *ret);
