/* Single flight by key, between threads and between processes.
 *
 * A lock file per key and flight. Who lands writes the outcome into it (a first line that says it
 * is one, then the error as JSON, or nothing for success) and unlinks it before letting go. Those
 * who waited have the file open and read the outcome there; who comes later makes a new file, so a
 * failure is not remembered. A lock that comes free on a file without outcome is that of a holder
 * that died (the file is still there: the work is ours) or was cancelled (it is not: once more).
 *
 * flock has no timeout, so waiting is trying again every WAIT_MS; that keeps it cancellable.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/image/digest.h"
#include "host/image/store_priv.h"
#include "wire/json.h"
#include "wire/oci.h"

#define WAIT_MS		  50
#define OUTCOME_BYTES_MAX (16u << 10)

static const char outcome_line[] = "outcome\n";
#define OUTCOME_LINE_LEN (sizeof(outcome_line) - 1)

struct store_flight {
	struct store *s;
	char name[72];
	int fd;
};

static bool has_outcome(int fd)
{
	char line[OUTCOME_LINE_LEN];

	return fd_pread_full(fd, line, sizeof(line), 0) == sizeof(line) &&
	       memcmp(line, outcome_line, sizeof(line)) == 0;
}

/* 1: it was a success; negative: the failure it was. */
static int read_outcome(int fd, struct err *e)
{
	char text[OUTCOME_BYTES_MAX];
	ssize_t n = fd_pread_full(fd, text, sizeof(text), OUTCOME_LINE_LEN);
	cleanup_json json_object *o = NULL;
	const char *code = "", *words = "";
	uint64_t no = EIO;

	if (n <= 0)
		return 1;
	if (json_parse_object(text, (size_t)n, &o, e) < 0)
		return err_set(e, "", EIO, "it failed in another process");
	json_get_str(o, "code", JSON_NULLABLE, &code, NULL);
	json_get_str(o, "text", JSON_NULLABLE, &words, NULL);
	json_get_u64(o, "errno", JSON_NULLABLE, &no, NULL);
	if (no == 0 || no > 4095)
		no = EIO;
	return err_set(e, code, (int)no, "%s", words);
}

static int open_lock(struct store *s, const char *name, struct err *e)
{
	int fd = openat(s->locks, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	if (fd < 0)
		return err_set(e, "", errno, "cannot open a lock file in %s/locks: %s", s->path,
			err_str(errno));
	return fd;
}

/* A sweep may have removed the file between our open and our lock. */
static bool still_linked(struct store *s, const char *name, int fd)
{
	struct stat have, named;

	return fstat(fd, &have) == 0 && fstatat(s->locks, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
	       have.st_ino == named.st_ino && have.st_dev == named.st_dev;
}

static int acquire(int fd, bool (*cancelled)(void *), void *user, struct err *e)
{
	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return err_set(e, "", errno, "cannot lock: %s", err_str(errno));
		if (cancelled && cancelled(user))
			return err_set(e, "", ECANCELED, "cancelled");
		poll(NULL, 0, WAIT_MS);
	}
	return 0;
}

int store_flight_start(struct store *s, const char *key, bool (*cancelled)(void *), void *user,
	struct store_flight **ret, struct err *e)
{
	cleanup_fd int fd = -1;
	const char *name;
	char digest[72];
	bool linked;
	int r;

	digest_of(key, strlen(key), digest);
	name = oci_digest_hex(digest);
	do {
		fd_close(&fd);
		r = fd = open_lock(s, name, e);
		if (r >= 0)
			r = acquire(fd, cancelled, user, e);
		if (r < 0)
			return r;
		linked = still_linked(s, name, fd);
		if (!linked && has_outcome(fd))
			return read_outcome(fd, e);
	} while (!linked);
	/* Of a holder that died between writing and unlinking: it is nobody's now. */
	if (ftruncate(fd, 0) < 0)
		return err_set(e, "", errno, "cannot clear a lock file: %s", err_str(errno));
	*ret = xcalloc(1, sizeof(**ret));
	(*ret)->s = s;
	memcpy((*ret)->name, name, OCI_DIGEST_LEN - 7 + 1);
	(*ret)->fd = STEAL_FD(fd);
	return 0;
}

/* The first line goes in last: without it there is no outcome. */
static void write_outcome(int fd, const struct err *failure)
{
	cleanup_json json_object *o = json_object_new_object();
	const char *text;
	size_t len;

	if (failure) {
		json_add_str(o, "code", failure->code);
		json_add_u64(o, "errno", failure->no > 0 ? (uint64_t)failure->no : EIO);
		json_add_str(o, "text", failure->text);
		text = json_text(o, &len);
		/* With the disk full there is no outcome: those who wait try for themselves. */
		if (fd_pwrite_all(fd, text, len, OUTCOME_LINE_LEN) < 0)
			return;
	}
	fd_pwrite_all(fd, outcome_line, OUTCOME_LINE_LEN, 0);
}

void store_flight_leave(struct store_flight *f)
{
	if (!f)
		return;
	if (still_linked(f->s, f->name, f->fd))
		unlinkat(f->s->locks, f->name, 0);
	fd_close(&f->fd);
	free(f);
}

void store_flight_land(struct store_flight *f, const struct err *failure)
{
	if (f && (!failure || failure->no != ECANCELED))
		write_outcome(f->fd, failure);
	store_flight_leave(f);
}
