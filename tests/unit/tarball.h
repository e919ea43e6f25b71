/* Tars made by hand, so that also what no tool writes can be written, and the same bytes as gzip or
 * zstd. For tests. */
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

struct tar_entry {
	const char *name;
	char type; /* 0: a regular file */
	const char *link;
	const void *data;
	size_t len;
	uint64_t size; /* what the header says, when it is not len */
	uint32_t mode;
	uint32_t uid, gid;
	bool gnu;
};

static inline void tar_number(char *field, size_t width, uint64_t v)
{
	if (v >> (3 * (width - 1)) == 0) {
		for (size_t i = width - 1; i-- > 0; v >>= 3)
			field[i] = (char)('0' + (v & 7));
		return;
	}
	for (size_t i = width; i-- > 0; v >>= 8)
		field[i] = (char)(v & 0xff);
	field[0] = (char)((uint8_t)field[0] | 0x80);
}

static inline void tar_pad(struct buf *t)
{
	static const uint8_t zeros[512];

	buf_add(t, zeros, -t->len & 511);
}

/* Names longer than the field are cut: give them in a PAX header. */
static inline void tar_add(struct buf *t, const struct tar_entry *e)
{
	char h[512] = {0};
	unsigned sum = 8 * ' ';

	memcpy(h, e->name, MIN(strlen(e->name), (size_t)100));
	tar_number(h + 100, 8, e->mode ? e->mode : 0644);
	tar_number(h + 108, 8, e->uid);
	tar_number(h + 116, 8, e->gid);
	tar_number(h + 124, 12, e->size ? e->size : e->len);
	tar_number(h + 136, 12, 1600000000);
	h[156] = e->type ? e->type : '0';
	if (e->link)
		memcpy(h + 157, e->link, MIN(strlen(e->link), (size_t)100));
	if (e->gnu)
		memcpy(h + 257, "ustar  ", 8);
	else
		memcpy(h + 257,
			"ustar\0"
			"00",
			8);
	for (size_t i = 0; i < sizeof(h); i++)
		sum += (uint8_t)h[i];
	tar_number(h + 148, 7, sum);
	h[155] = ' ';
	buf_add(t, h, sizeof(h));
	if (e->len)
		buf_add(t, e->data, e->len);
	tar_pad(t);
}

static inline void tar_file(struct buf *t, const char *name, const char *text)
{
	tar_add(t, &(struct tar_entry){.name = name, .data = text, .len = strlen(text)});
}

static inline void tar_dir(struct buf *t, const char *name)
{
	tar_add(t, &(struct tar_entry){.name = name, .type = '5', .mode = 0755});
}

static inline void tar_link(struct buf *t, const char *name, char type, const char *target)
{
	tar_add(t, &(struct tar_entry){.name = name, .type = type, .link = target});
}

/* Appends "LEN key=value\n" to the body of a PAX header. */
static inline void tar_record(struct buf *body, const char *key, const void *value, size_t len)
{
	size_t bare = strlen(key) + len + 3, n = bare;

	for (int i = 0; i < 3; i++)
		n = bare + (size_t)snprintf(NULL, 0, "%zu", n);
	buf_printf(body, "%zu %s=", n, key);
	buf_add(body, value, len);
	buf_add(body, "\n", 1);
}

/* A PAX header of one record for the entry that follows. */
static inline void tar_pax(struct buf *t, const char *key, const char *value)
{
	struct buf body;

	buf_init(&body, 2 << 20);
	tar_record(&body, key, value, strlen(value));
	tar_add(t, &(struct tar_entry){
			   .name = "pax", .type = 'x', .data = body.data, .len = body.len});
	buf_done(&body);
}

static inline void tar_end(struct buf *t)
{
	static const uint8_t zeros[1024];

	buf_add(t, zeros, sizeof(zeros));
}

static inline la_ssize_t tar_sink(struct archive *a, void *user, const void *data, size_t len)
{
	return buf_add(user, data, len) == 0 ? (la_ssize_t)len : -1;
}

/* The bytes as one gzip member or zstd frame, appended to `out`. */
static inline void tar_compress(const void *data, size_t len, bool zstd, struct buf *out)
{
	struct archive *a = archive_write_new();
	struct archive_entry *entry = archive_entry_new();

	archive_write_set_format_raw(a);
	if (zstd)
		archive_write_add_filter_zstd(a);
	else
		archive_write_add_filter_gzip(a);
	archive_write_set_bytes_in_last_block(a, 1);
	archive_write_open(a, out, NULL, tar_sink, NULL);
	archive_entry_set_filetype(entry, AE_IFREG);
	archive_write_header(a, entry);
	archive_write_data(a, data, len);
	archive_entry_free(entry);
	archive_write_close(a);
	archive_write_free(a);
}
