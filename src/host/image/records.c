#include "host/image/records.h"

#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"

#define CHUNK_BYTES (256u << 10)

/* Followed by the new end of the path, the target with its NUL, and the xattrs. `total` counts all
 * of it; 0 ends a chunk. */
struct head {
	int64_t mtime;
	uint64_t size, tail; /* regular files; tail holds the device number else */
	uint32_t total;
	uint32_t block, source;
	uint32_t mtime_ns, uid, gid, xattrs_len;
	uint16_t mode, prefix, suffix, target;
	uint8_t kind;
};

void records_init(struct records *r)
{
	*r = (struct records){0};
}

void records_done(struct records *r)
{
	for (size_t i = 0; i < r->n; i++)
		free(r->chunks[i]);
	free(r->chunks);
	*r = (struct records){0};
}

static uint8_t *room(struct records *r, size_t bytes)
{
	uint8_t *p;

	if (r->used + bytes > r->size) {
		r->size = MAX(bytes, (size_t)CHUNK_BYTES);
		r->used = 0;
		if ((r->n & (r->n - 1)) == 0)
			r->chunks =
				xrealloc(r->chunks, MAX(r->n * 2, (size_t)1), sizeof(*r->chunks));
		/* Behind the last record there is always a `total` of 0, or the chunk ends. */
		r->chunks[r->n++] = xcalloc(1, r->size + sizeof(struct head));
	}
	p = r->chunks[r->n - 1] + r->used;
	r->used += bytes;
	r->bytes += bytes;
	return p;
}

void records_add(struct records *r, const struct record *rec)
{
	const struct tree_attr *a = &rec->attr;
	const char *target = rec->kind == RECORD_LINK			   ? rec->target
			     : rec->kind == RECORD_PUT && S_ISLNK(a->mode) ? a->target
									   : NULL;
	struct head h = {.kind = (uint8_t)rec->kind,
		.mtime = a->mtime,
		.mtime_ns = a->mtime_ns,
		.uid = a->uid,
		.gid = a->gid,
		.mode = a->mode,
		.xattrs_len = a->xattrs_len,
		.size = a->body.size,
		.tail = a->body.tail,
		.block = a->body.block,
		.source = a->body.source};
	size_t len = strlen(rec->path), same = 0;
	uint8_t *p;

	if (S_ISCHR(a->mode) || S_ISBLK(a->mode)) {
		h.tail = a->rdev_major;
		h.block = a->rdev_minor;
	}
	while (same < len && r->path[same] == rec->path[same])
		same++;
	h.prefix = (uint16_t)same;
	h.suffix = (uint16_t)(len - same);
	h.target = target ? (uint16_t)(strlen(target) + 1) : 0;
	h.total = (uint32_t)(sizeof(h) + h.suffix + h.target + h.xattrs_len);
	p = room(r, h.total);
	memcpy(p, &h, sizeof(h));
	p += sizeof(h);
	memcpy(p, rec->path + same, h.suffix);
	p += h.suffix;
	if (target)
		memcpy(p, target, h.target);
	p += h.target;
	if (h.xattrs_len)
		memcpy(p, a->xattrs, h.xattrs_len);
	memcpy(r->path + same, rec->path + same, h.suffix + 1);
}

void records_begin(struct records_iter *it, const struct records *r)
{
	it->r = r;
	it->chunk = it->at = 0;
	it->path[0] = '\0';
}

bool records_next(struct records_iter *it, struct record *ret)
{
	const uint8_t *p;
	struct head h;

	for (;;) {
		if (it->chunk == it->r->n)
			return false;
		if (it->chunk + 1 == it->r->n && it->at == it->r->used)
			return false;
		p = it->r->chunks[it->chunk] + it->at;
		memcpy(&h, p, sizeof(h));
		if (h.total)
			break;
		it->chunk++;
		it->at = 0;
	}
	it->at += h.total;
	p += sizeof(h);
	memcpy(it->path + h.prefix, p, h.suffix);
	it->path[h.prefix + h.suffix] = '\0';
	p += h.suffix;
	*ret = (struct record){.kind = h.kind,
		.path = it->path,
		.attr = {.mode = h.mode,
			.uid = h.uid,
			.gid = h.gid,
			.mtime = h.mtime,
			.mtime_ns = h.mtime_ns,
			.xattrs_len = h.xattrs_len}};
	if (h.target)
		ret->target = ret->attr.target = (const char *)p;
	p += h.target;
	ret->attr.xattrs = p;
	if (S_ISCHR(h.mode) || S_ISBLK(h.mode)) {
		ret->attr.rdev_major = (uint32_t)h.tail;
		ret->attr.rdev_minor = h.block;
	} else {
		ret->attr.body = (struct tree_body){
			.size = h.size, .tail = h.tail, .block = h.block, .source = h.source};
	}
	return true;
}
