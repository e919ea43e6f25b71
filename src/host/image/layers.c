/* libarchive asks for bytes (feed), a stream gives them; every entry becomes one record, a regular
 * file's data goes to the scratch files at once, so no layer is ever in memory.
 *
 * Return codes: ARCHIVE_WARN is an error here like all the others, with one exception: names in PAX
 * headers that libarchive cannot convert to the locale. It then hands out the bytes as they stand,
 * which is what we want. The thread's locale is set to "C", where this is so for every name that is
 * not ASCII; in a UTF-8 locale it would change some (Unicode normal form C).
 *
 * libarchive reads a PAX time of -1.25 as -1 + 0.25; pax_fraction_bug finds out whether this
 * version does, and the time is put right (but for the last second before 1970: its sign is lost).
 *
 * A header's memory is bounded by counting the bytes that libarchive takes while it reads one: its
 * list of a sparse file's pieces has no limit of its own.
 */
#include "host/image/layers.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/image/xattr.h"

#define WHITEOUT	".wh."
#define WHITEOUT_OPAQUE ".wh..wh..opq"
#define WHITEOUT_AUFS	".wh..wh."

struct reader {
	const struct image_layer *layer;
	struct layer_shared *sh;
	struct layer_result *ret;
	uint32_t source;
	struct stream *stream;
	struct archive *archive;
	struct buf xattrs;
	bool in_header;
	uint64_t header_bytes;
	struct err feed_error; /* why feed failed; libarchive knows only that it did */
	bool feed_failed;
};

void layer_shared_init(struct layer_shared *sh)
{
	*sh = (struct layer_shared){.file_bytes_max = IMAGE_BYTES_MAX,
		.one_file_bytes_max = IMAGE_FILE_BYTES_MAX,
		.layer_entries_max = IMAGE_ENTRIES_MAX,
		.entries_max = IMAGE_TREE_ENTRIES_MAX,
		.meta_bytes_max = LAYER_META_BYTES_MAX};
	sh->stream.tar_bytes_max = STREAM_TAR_BYTES_MAX;
}

void layer_result_init(struct layer_result *r)
{
	*r = (struct layer_result){.bodies = BODY_SINK_INIT};
	records_init(&r->records);
}

void layer_result_done(struct layer_result *r)
{
	records_done(&r->records);
	body_sink_done(&r->bodies);
}

static la_ssize_t feed(struct archive *archive, void *user, const void **ret)
{
	struct reader *rd = user;
	ssize_t n = stream_next(rd->stream, ret, &rd->feed_error);

	if (n > 0 && rd->in_header && (rd->header_bytes += n) > LAYER_HEADER_BYTES_MAX)
		n = err_set(&rd->feed_error, "", E2BIG,
			"the headers of an entry take more than %u bytes", LAYER_HEADER_BYTES_MAX);
	if (n < 0) {
		rd->feed_failed = true;
		archive_set_error(archive, rd->feed_error.no, "%s", rd->feed_error.text);
		return -1;
	}
	return n;
}

static int archive_failed(struct reader *rd, struct err *e)
{
	const char *text = archive_error_string(rd->archive);

	if (rd->feed_failed) {
		if (e)
			*e = rd->feed_error;
		return -rd->feed_error.no;
	}
	return err_set(e, "", EBADMSG, "bad tar: %s", text ? text : "unknown damage");
}

static bool only_charset(struct archive *archive)
{
	const char *text = archive_error_string(archive);

	return text && str_ends(text, " to current locale.");
}

/* Fails a limit. */
static int too_much(struct err *e, const char *what, uint64_t is, uint64_t limit)
{
	return err_set(e, "", EFBIG, "%s: %llu (limit %llu)", what, (unsigned long long)is,
		(unsigned long long)limit);
}

static int read_body(
	struct reader *rd, struct archive_entry *entry, struct tree_attr *a, struct err *e)
{
	struct body_sink *sink = &rd->ret->bodies;
	int64_t size = archive_entry_size(entry), at = 0;
	uint64_t sum;
	int r;

	if (size < 0)
		return err_set(e, "", EINVAL, "a negative size");
	if ((uint64_t)size > rd->sh->one_file_bytes_max)
		return too_much(e, "bytes of one file", size, rd->sh->one_file_bytes_max);
	sum = atomic_fetch_add(&rd->sh->file_bytes, (uint64_t)size) + size;
	if (sum > rd->sh->file_bytes_max)
		return too_much(
			e, "unpacked bytes of all layers together", sum, rd->sh->file_bytes_max);
	r = body_begin(sink, size, a->xattrs_len, rd->source);
	while (r == 0) {
		const void *data;
		size_t len;
		la_int64_t offset;
		int code = archive_read_data_block(rd->archive, &data, &len, &offset);

		if (code == ARCHIVE_EOF)
			break;
		if (code != ARCHIVE_OK)
			return archive_failed(rd, e);
		if (len == 0)
			continue;
		if (offset < at || offset > size || (uint64_t)len > (uint64_t)(size - offset))
			return err_set(
				e, "", EINVAL, "a sparse file whose pieces overlap or exceed it");
		r = body_hole(sink, offset - at);
		if (r == 0)
			r = body_data(sink, data, len);
		at = offset + (int64_t)len;
	}
	if (r == 0)
		r = body_end(sink, &a->body);
	if (r == -ENOSPC || r == -EDQUOT)
		return err_set(e, "", -r,
			"no space left for unpacking in the image cache (%s): free some or move "
			"III_SANDBOX_CACHE_DIR",
			err_str(r));
	return r < 0 ? err_set(e, "", -r, "writing a scratch file: %s", err_str(r)) : 0;
}

static int read_xattrs(
	struct reader *rd, struct archive_entry *entry, struct tree_attr *a, struct err *e)
{
	const char *name;
	const void *value;
	size_t len;

	buf_clear(&rd->xattrs);
	archive_entry_xattr_reset(entry);
	while (archive_entry_xattr_next(entry, &name, &value, &len) == ARCHIVE_OK) {
		int r = name ? xattr_pack(&rd->xattrs, name, value, len, e) : 0;

		if (r < 0)
			return r;
	}
	a->xattrs = rd->xattrs.data;
	a->xattrs_len = (uint32_t)rd->xattrs.len;
	return 0;
}

static bool pax_fraction_bug_seen;

/* Asks libarchive for the time of an entry that says mtime=-1.5. */
static void pax_fraction_probe(void)
{
	static const char pax[] = "14 mtime=-1.5\n";
	uint8_t tar[4 * 512] = {0};
	struct archive *a = archive_read_new();
	struct archive_entry *entry;

	for (int i = 0; i < 2; i++) {
		char *h = (char *)tar + i * 1024;
		unsigned sum = 8 * ' ';

		memcpy(h, "a", 1);
		memcpy(h + 100, "0000644", 7);
		memcpy(h + 124, i ? "00000000000" : "00000000016", 11);
		h[156] = i ? '0' : 'x';
		memcpy(h + 257,
			"ustar\0"
			"00",
			8);
		for (int j = 0; j < 512; j++)
			sum += (uint8_t)h[j];
		for (int j = 5; j >= 0; j--, sum /= 8)
			h[148 + j] = (char)('0' + sum % 8);
	}
	memcpy(tar + 512, pax, sizeof(pax) - 1);
	if (archive_read_support_format_tar(a) == ARCHIVE_OK &&
		archive_read_open_memory(a, tar, sizeof(tar)) == ARCHIVE_OK &&
		archive_read_next_header(a, &entry) == ARCHIVE_OK)
		pax_fraction_bug_seen = archive_entry_mtime(entry) == -1;
	archive_read_free(a);
}

static bool pax_fraction_bug(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, pax_fraction_probe);
	return pax_fraction_bug_seen;
}

static int read_attr(
	struct reader *rd, struct archive_entry *entry, struct tree_attr *a, struct err *e)
{
	int64_t uid = archive_entry_uid(entry), gid = archive_entry_gid(entry);
	long ns = archive_entry_mtime_nsec(entry);

	*a = (struct tree_attr){0};
	a->mode = archive_entry_filetype(entry) | (archive_entry_perm(entry) & 07777);
	if (uid < 0 || gid < 0 || uid >= UINT32_MAX || gid >= UINT32_MAX)
		return err_set(e, "", EINVAL, "owner %lld:%lld is not one of Linux", (long long)uid,
			(long long)gid);
	a->uid = (uint32_t)uid;
	a->gid = (uint32_t)gid;
	a->mtime = archive_entry_mtime(entry);
	a->mtime_ns = ns >= 0 && ns < 1000000000 ? (uint32_t)ns : 0;
	if (a->mtime < 0 && a->mtime_ns && pax_fraction_bug()) {
		a->mtime--;
		a->mtime_ns = 1000000000 - a->mtime_ns;
	}
	return read_xattrs(rd, entry, a, e);
}

/* What the tar says of an entry that is not a hard link and not a whiteout. */
static int read_put(struct reader *rd, struct archive_entry *entry, const char *path, struct err *e)
{
	struct record rec = {.kind = RECORD_PUT, .path = path};
	struct tree_attr *a = &rec.attr;
	int r = read_attr(rd, entry, a, e);

	if (r < 0)
		return r;
	switch (a->mode & S_IFMT) {
	case S_IFREG:
		r = read_body(rd, entry, a, e);
		if (r < 0)
			return r;
		break;
	case S_IFLNK:
		a->mode |= 0777; /* Linux knows no other mode of a symlink */
		a->target = archive_entry_symlink(entry);
		if (!a->target || !*a->target)
			return err_set(e, "", EINVAL, "a symlink without a target");
		if (strlen(a->target) > TREE_TARGET_MAX)
			return too_much(e, "bytes of a symlink's target", strlen(a->target),
				TREE_TARGET_MAX);
		break;
	case S_IFCHR:
	case S_IFBLK:
		a->rdev_major = (uint32_t)archive_entry_rdevmajor(entry);
		a->rdev_minor = (uint32_t)archive_entry_rdevminor(entry);
		if (a->rdev_major > 0xfff || a->rdev_minor > 0xfffff)
			return err_set(e, "", EINVAL, "device %u:%u is not one of Linux",
				a->rdev_major, a->rdev_minor);
		break;
	case S_IFDIR:
	case S_IFIFO:
		break;
	default:
		return err_set(e, "", EINVAL,
			"neither file, folder, link, device nor fifo (mode %o)", a->mode);
	}
	records_add(&rd->ret->records, &rec);
	return 0;
}

static int read_link(struct reader *rd, struct archive_entry *entry, const char *path,
	const char *raw_target, struct err *e)
{
	char target[IMAGE_PATH_MAX + 1];
	struct record rec = {.kind = RECORD_LINK, .path = path, .target = target};
	int r = tree_path_clean(raw_target, target, e);

	if (r < 0) {
		err_wrap(e, "target %s of the hard link", log_quote(raw_target));
		return r;
	}
	/* POSIX lets a hard link bring content; no image tool writes it, readers disagree on it. */
	if (archive_entry_size(entry) > 0)
		return err_set(e, "", EINVAL, "a hard link with content");
	records_add(&rd->ret->records, &rec);
	return 0;
}

enum name_kind {
	NAME_PLAIN,
	NAME_WHITEOUT,
	NAME_OPAQUE,
	NAME_SKIP,
};

/* Looks for whiteouts in a path in normal form. For one, the path is turned into the one that goes
 * away (or the opaque folder). */
static int name_kind(char *path, enum name_kind *ret, struct err *e)
{
	char *base = strrchr(path, '/');
	const char *part = path;

	base = base ? base + 1 : path;
	*ret = NAME_PLAIN;
	for (; part < base; part = strchr(part, '/') + 1) {
		if (!str_starts(part, WHITEOUT))
			continue;
		if (!str_starts(part, WHITEOUT_AUFS))
			return err_set(e, "", EINVAL, "an entry below a whiteout");
		*ret = NAME_SKIP;
		return 0;
	}
	if (!str_starts(base, WHITEOUT))
		return 0;
	if (str_eq(base, WHITEOUT_OPAQUE)) {
		*ret = NAME_OPAQUE;
		base[base > path ? -1 : 0] = '\0';
		return 0;
	}
	if (str_starts(base, WHITEOUT_AUFS)) {
		*ret = NAME_SKIP;
		return 0;
	}
	part = base + strlen(WHITEOUT);
	if (!*part || str_eq(part, ".") || str_eq(part, ".."))
		return err_set(e, "", EINVAL, "a whiteout of no name");
	memmove(base, part, strlen(part) + 1);
	*ret = NAME_WHITEOUT;
	return 0;
}

static int read_entry(struct reader *rd, struct archive_entry *entry, struct err *e)
{
	const char *raw = archive_entry_pathname(entry), *target = archive_entry_hardlink(entry);
	char path[IMAGE_PATH_MAX + 1];
	enum name_kind kind = NAME_PLAIN;
	struct record rec = {.path = path};
	int r;

	if (!raw || !*raw)
		return err_set(e, "", EINVAL, "an entry without a name");
	r = tree_path_clean(raw, path, e);
	if (r >= 0)
		r = name_kind(path, &kind, e);
	if (r < 0)
		return r;
	switch (kind) {
	case NAME_SKIP:
		return 0;
	case NAME_WHITEOUT:
	case NAME_OPAQUE:
		rec.kind = kind == NAME_OPAQUE ? RECORD_OPAQUE : RECORD_WHITEOUT;
		records_add(&rd->ret->records, &rec);
		return 0;
	default:
		return target ? read_link(rd, entry, path, target, e)
			      : read_put(rd, entry, path, e);
	}
}

static int count_entry(struct reader *rd, size_t new_bytes, struct err *e)
{
	uint64_t all = atomic_fetch_add(&rd->sh->entries, 1) + 1;
	uint64_t bytes = atomic_fetch_add(&rd->sh->meta_bytes, new_bytes) + new_bytes;

	if (++rd->ret->entries > rd->sh->layer_entries_max)
		return too_much(
			e, "entries of one layer", rd->ret->entries, rd->sh->layer_entries_max);
	if (all > rd->sh->entries_max)
		return too_much(e, "entries of all layers together", all, rd->sh->entries_max);
	if (bytes > rd->sh->meta_bytes_max)
		return too_much(e, "bytes of names, link targets and extended attributes", bytes,
			rd->sh->meta_bytes_max);
	return 0;
}

static int read_entries(struct reader *rd, struct err *e)
{
	struct archive_entry *entry;

	for (;;) {
		size_t before = rd->ret->records.bytes;
		int code, r;

		rd->in_header = true;
		rd->header_bytes = 0;
		code = archive_read_next_header(rd->archive, &entry);
		rd->in_header = false;
		if (code == ARCHIVE_EOF)
			return 0;
		if (code != ARCHIVE_OK && !(code == ARCHIVE_WARN && only_charset(rd->archive)))
			return archive_failed(rd, e);
		r = read_entry(rd, entry, e);
		if (r == 0 && archive_read_data_skip(rd->archive) < ARCHIVE_OK)
			r = archive_failed(rd, e);
		if (r == 0)
			r = count_entry(rd, rd->ret->records.bytes - before, e);
		if (r < 0) {
			const char *name = archive_entry_pathname(entry);

			if (!rd->feed_failed)
				err_wrap(e, "entry %s", log_quote(name ? name : ""));
			return r;
		}
	}
}

static int open_archive(struct reader *rd, struct err *e)
{
	rd->archive = archive_read_new();
	if (!rd->archive)
		return err_set(e, "", ENOMEM, "no memory for libarchive");
	if (archive_read_support_format_tar(rd->archive) != ARCHIVE_OK ||
		archive_read_support_format_empty(rd->archive) != ARCHIVE_OK ||
		archive_read_open(rd->archive, rd, NULL, feed, NULL) != ARCHIVE_OK)
		return archive_failed(rd, e);
	return 0;
}

static int read_layer(struct reader *rd, int scratch_dirfd, struct err *e)
{
	int r = body_sink_open(&rd->ret->bodies, scratch_dirfd, e);

	if (r == 0)
		r = stream_new(rd->layer, &rd->sh->stream, &rd->stream, e);
	if (r == 0)
		r = open_archive(rd, e);
	if (r == 0)
		r = read_entries(rd, e);
	if (r == 0)
		r = stream_finish(rd->stream, rd->ret->tar_sha256, e);
	if (r == 0) {
		r = body_sink_finish(&rd->ret->bodies);
		if (r < 0)
			err_set(e, "", -r, "writing a scratch file: %s", err_str(r));
	}
	return r;
}

int layer_read(const struct image_layer *layer, uint32_t source, struct layer_shared *sh,
	int scratch_dirfd, struct layer_result *ret, struct err *e)
{
	struct reader rd = {.layer = layer, .sh = sh, .ret = ret, .source = source};
	locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), old;
	int r;

	if (!c)
		return err_set(e, "", errno, "the C locale: %s", err_str(errno));
	old = uselocale(c);
	buf_init(&rd.xattrs, 2 * IMAGE_XATTRS_MAX);
	r = read_layer(&rd, scratch_dirfd, e);
	if (r < 0)
		err_wrap(e, "layer %s", layer->name);
	archive_read_free(rd.archive);
	stream_free(rd.stream);
	buf_done(&rd.xattrs);
	uselocale(old);
	freelocale(c);
	return r;
}
