/* Locates the members of a tar archive.
 *
 * libarchive parses the headers (ustar, PAX, GNU); after each header the number of bytes its
 * format reader has consumed is the place of the data. Every place is checked against the size of
 * the file. Wrong content behind a place cannot go unnoticed: all that is read through this table
 * is compared with a digest, but for the entry documents, whose content is the archive's own say.
 *
 * Refused: absolute names and names with "..", (they are left out of the table), sparse members
 * (their data is not in one piece), archives with more than MEMBERS_MAX entries, bzip2 and xz.
 */
#include "host/image/members.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define READ_BLOCK   65536
#define UNPACK_CHUNK (1 << 20)
/* Entries with longer names are left out of the table: no image format has such names. */
#define NAME_BYTES_MAX 1024

struct entry {
	char *name; /* normal form: no ./, no slash at the ends */
	char *link; /* normal form of what it points at, or NULL */
	uint64_t offset, size;
	size_t order;
};

struct members {
	int fd;
	struct entry *list; /* sorted by name, then order */
	size_t n;
};

/* Normal form of `name` below `base` (a folder, "" for the root); NULL for what leads outside. */
static char *normalise(const char *base, size_t base_len, const char *name)
{
	cleanup_free char *out = NULL;
	size_t len = base_len;

	if (*name == '/')
		return NULL;
	out = xmalloc(base_len + strlen(name) + 2);
	memcpy(out, base, base_len);
	while (*name) {
		size_t n = strcspn(name, "/");

		if (n == 2 && name[0] == '.' && name[1] == '.') {
			if (!len)
				return NULL;
			while (len && out[len - 1] != '/')
				len--;
			if (len)
				len--;
		} else if (n > 0 && !(n == 1 && name[0] == '.')) {
			if (len)
				out[len++] = '/';
			memcpy(out + len, name, n);
			len += n;
		}
		name += n + (name[n] == '/');
	}
	out[len] = '\0';
	return STEAL(out);
}

static size_t dir_len(const char *name)
{
	const char *slash = strrchr(name, '/');

	return slash ? (size_t)(slash - name) : 0;
}

/* Names inside an archive must not climb at all; link targets may, as long as they stay inside. */
static bool climbs(const char *name)
{
	while (*name) {
		size_t n = strcspn(name, "/");

		if (n == 2 && name[0] == '.' && name[1] == '.')
			return true;
		name += n + (name[n] == '/');
	}
	return false;
}

static int add_entry(
	struct members *m, struct archive *a, struct archive_entry *ae, uint64_t file_size)
{
	const char *name = archive_entry_pathname(ae), *hard = archive_entry_hardlink(ae),
		   *soft = archive_entry_symlink(ae), *link = hard ? hard : soft;
	struct entry one = {.order = m->n, .size = (uint64_t)archive_entry_size(ae)};

	if (!name || strlen(name) > NAME_BYTES_MAX || climbs(name) ||
		(link && strlen(link) > NAME_BYTES_MAX) ||
		(one.name = normalise("", 0, name)) == NULL)
		return 0;
	if (hard) {
		one.link = normalise("", 0, hard);
	} else if (archive_entry_filetype(ae) == AE_IFLNK) {
		one.link = soft ? normalise(one.name, dir_len(one.name), soft) : NULL;
	} else if (archive_entry_filetype(ae) == AE_IFREG && archive_entry_sparse_count(ae) == 0) {
		one.offset = (uint64_t)archive_filter_bytes(a, 0);
		if (one.offset > file_size || one.size > file_size - one.offset) {
			free(one.name);
			return -ENODATA;
		}
	} else {
		free(one.name); /* a folder, a device, a sparse file: nothing we read */
		return 0;
	}
	if (link && !one.link) {
		free(one.name);
		return 0;
	}
	if ((m->n & (m->n - 1)) == 0)
		m->list = xrealloc(m->list, m->n ? 2 * m->n : 1, sizeof(*m->list));
	m->list[m->n++] = one;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	int r = strcmp(x->name, y->name);

	if (r)
		return r;
	return x->order < y->order ? -1 : 1;
}

static int damaged(struct archive *a, const char *path, struct err *e)
{
	const char *why = archive_error_string(a);

	return err_set(
		e, "", EINVAL, "%s is not a whole tar archive: %s", path, why ? why : "unreadable");
}

static int read_headers(
	struct members *m, const char *path, bool (*cancelled)(void *), void *user, struct err *e)
{
	struct archive *a = archive_read_new();
	struct archive_entry *ae;
	struct stat st;
	size_t seen = 0;
	int r = 0;

	if (!a)
		return err_set(e, "", ENOMEM, "out of memory");
	archive_read_support_format_tar(a);
	if (fstat(m->fd, &st) < 0 || lseek(m->fd, 0, SEEK_SET) < 0 ||
		archive_read_open_fd(a, m->fd, READ_BLOCK) != ARCHIVE_OK)
		r = damaged(a, path, e);
	while (r == 0) {
		int s = archive_read_next_header(a, &ae);

		if (s == ARCHIVE_EOF)
			break;
		if (s != ARCHIVE_OK && s != ARCHIVE_WARN)
			r = damaged(a, path, e);
		else if (++seen > MEMBERS_MAX)
			r = err_set(
				e, "", EINVAL, "%s has more than %d entries", path, MEMBERS_MAX);
		else if (cancelled && cancelled(user))
			r = err_set(e, "", ECANCELED, "cancelled");
		else if (add_entry(m, a, ae, (uint64_t)st.st_size) < 0)
			r = err_set(e, "", EINVAL, "%s is cut short: %.200s reaches beyond its end",
				path, archive_entry_pathname(ae));
	}
	archive_read_free(a);
	if (r == 0 && m->n)
		qsort(m->list, m->n, sizeof(*m->list), by_name);
	return r;
}

/* ---- compressed archives ---- */

enum packing {
	PACKING_NONE,
	PACKING_READABLE, /* gzip, zstd */
	PACKING_OTHER,
};

static enum packing packing_of(int fd)
{
	uint8_t head[6] = {0};

	fd_pread_full(fd, head, sizeof(head), 0);
	if ((head[0] == 0x1f && head[1] == 0x8b) || memcmp(head, "\x28\xb5\x2f\xfd", 4) == 0)
		return PACKING_READABLE;
	if (memcmp(head, "BZh", 3) == 0 || memcmp(head,
						   "\xfd"
						   "7zXZ",
						   5) == 0)
		return PACKING_OTHER;
	return PACKING_NONE;
}

static int copy_unpacked(struct archive *a, int to, const char *path, bool (*cancelled)(void *),
	void *user, struct err *e)
{
	cleanup_free char *chunk = xmalloc(UNPACK_CHUNK);
	uint64_t total = 0;

	for (;;) {
		la_ssize_t n = archive_read_data(a, chunk, UNPACK_CHUNK);
		int r;

		if (n == 0)
			return 0;
		if (n < 0)
			return damaged(a, path, e);
		total += (uint64_t)n;
		if (total > MEMBERS_BYTES_MAX)
			return err_set(e, "", EFBIG, "%s unpacks to more than %llu GiB", path,
				MEMBERS_BYTES_MAX >> 30);
		if (cancelled && cancelled(user))
			return err_set(e, "", ECANCELED, "cancelled");
		r = fd_write_all(to, chunk, (size_t)n);
		if (r < 0)
			return err_set(e, "", -r, "cannot unpack %s to a temporary file: %s", path,
				err_str(r));
	}
}

/* The archive without its compression, in an unnamed file. */
static int unpack(int fd, const char *path, int scratch_dirfd, bool (*cancelled)(void *),
	void *user, int *ret, struct err *e)
{
	cleanup_fd int temp = openat(scratch_dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	struct archive *a;
	struct archive_entry *ae;
	int r;

	if (temp < 0)
		return err_set(e, "", errno, "cannot make a temporary file for %s: %s", path,
			err_str(errno));
	a = archive_read_new();
	if (!a)
		return err_set(e, "", ENOMEM, "out of memory");
	archive_read_support_filter_gzip(a);
	archive_read_support_filter_zstd(a);
	archive_read_support_format_raw(a);
	if (archive_read_open_fd(a, fd, READ_BLOCK) != ARCHIVE_OK ||
		archive_read_next_header(a, &ae) != ARCHIVE_OK)
		r = damaged(a, path, e);
	else
		r = copy_unpacked(a, temp, path, cancelled, user, e);
	archive_read_free(a);
	if (r == 0)
		*ret = STEAL_FD(temp);
	return r;
}

int members_open(const char *path, int scratch_dirfd, bool (*cancelled)(void *), void *user,
	struct members **ret, struct err *e)
{
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct members *m;
	struct stat st;
	int r = 0;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(e, "", errno, "cannot open %s: %s", path, err_str(errno));
	if (!S_ISREG(st.st_mode))
		return err_set(e, "", EINVAL, "%s is not a file%s", path,
			S_ISDIR(st.st_mode) ? ": a layout folder is named oci:PATH" : "");
	switch (packing_of(fd)) {
	case PACKING_OTHER:
		return err_set(e, "", EINVAL,
			"%s is compressed with bzip2 or xz: unpack it first (archives may be "
			"plain, gzip or zstd)",
			path);
	case PACKING_READABLE: {
		int plain = -1;

		r = unpack(fd, path, scratch_dirfd, cancelled, user, &plain, e);
		if (r < 0)
			return r;
		fd_close(&fd);
		fd = plain;
		break;
	}
	case PACKING_NONE:
		break;
	}
	m = xcalloc(1, sizeof(*m));
	m->fd = STEAL_FD(fd);
	r = read_headers(m, path, cancelled, user, e);
	if (r < 0) {
		members_close(m);
		return r;
	}
	*ret = m;
	return 0;
}

void members_close(struct members *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->n; i++) {
		free(m->list[i].name);
		free(m->list[i].link);
	}
	free(m->list);
	fd_close(&m->fd);
	free(m);
}

/* The last entry of that name; *ret_many when there are several. */
static const struct entry *lookup(const struct members *m, const char *name, bool *ret_many)
{
	size_t low = 0, high = m->n; /* the first entry beyond `name` */

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (strcmp(m->list[mid].name, name) <= 0)
			low = mid + 1;
		else
			high = mid;
	}
	if (!low || !str_eq(m->list[low - 1].name, name))
		return NULL;
	*ret_many = low > 1 && str_eq(m->list[low - 2].name, name);
	return &m->list[low - 1];
}

int members_find(
	const struct members *m, const char *name, bool unique, struct member *ret, struct err *e)
{
	cleanup_free char *normal = climbs(name) ? NULL : normalise("", 0, name);
	const char *at = normal;

	for (int i = 0; at && i <= MEMBERS_LINKS_MAX; i++) {
		bool many = false;
		const struct entry *found = lookup(m, at, &many);

		if (!found)
			break;
		if (many && unique)
			return err_set(e, "", EINVAL, "it holds %.200s twice", at);
		if (!found->link) {
			*ret = (struct member){m->fd, found->offset, found->size};
			return 0;
		}
		at = found->link;
	}
	return err_set(e, "", ENOENT, "it has no file %.200s", name);
}
