/* Single flight by key, between threads and between processes.
 *
 * A lock file per key. Its content is the outcome of the last flight: a random id in the first
 * line, then the error as JSON (nothing after the id: success). Who finds the lock held remembers
 * the id of that moment; when the lock comes free, another id means that the holder finished while
 * we waited, and its outcome is ours. The same id means that the holder died or was cancelled, and
 * the work is ours. An outcome is never used by somebody who did not wait for it, so a failure is
 * not remembered.
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
#define ID_LEN		  36 /* a UUID */

struct store_flight {
	int fd;
};

/* The id of the last outcome; all zero when there was none. */
static void read_id(int fd, char dst[static ID_LEN + 1])
{
	memset(dst, 0, ID_LEN + 1);
	if (fd_pread_full(fd, dst, ID_LEN, 0) != ID_LEN)
		memset(dst, 0, ID_LEN + 1);
}

/* 1: it was a success; negative: the failure it was. */
static int read_outcome(int fd, struct err *e)
{
	char text[OUTCOME_BYTES_MAX];
	ssize_t n = fd_pread_full(fd, text, sizeof(text), ID_LEN + 1);
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

/* One lock file until it is ours. *ret_waited: another finished meanwhile. */
static int acquire(int fd, bool (*cancelled)(void *), void *user, bool *ret_finished, struct err *e)
{
	char before[ID_LEN + 1], after[ID_LEN + 1];
	bool waited = false;

	read_id(fd, before);
	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return err_set(e, "", errno, "cannot lock: %s", err_str(errno));
		if (cancelled && cancelled(user))
			return err_set(e, "", ECANCELED, "cancelled");
		waited = true;
		poll(NULL, 0, WAIT_MS);
	}
	read_id(fd, after);
	*ret_finished = waited && memcmp(before, after, ID_LEN) != 0;
	return 0;
}

int store_flight_start(struct store *s, const char *key, bool (*cancelled)(void *), void *user,
	struct store_flight **ret, struct err *e)
{
	cleanup_fd int fd = -1;
	const char *name;
	char digest[72];
	bool finished = false;
	int r;

	digest_of(key, strlen(key), digest);
	name = oci_digest_hex(digest);
	do {
		fd_close(&fd);
		r = fd = open_lock(s, name, e);
		if (r >= 0)
			r = acquire(fd, cancelled, user, &finished, e);
		if (r < 0)
			return r;
	} while (!still_linked(s, name, fd));
	if (finished)
		return read_outcome(fd, e);
	*ret = xcalloc(1, sizeof(**ret));
	(*ret)->fd = STEAL_FD(fd);
	return 0;
}

/* The id goes in last: who reads the file before it sees the old outcome's id. */
static void write_outcome(int fd, const struct err *failure)
{
	cleanup_json json_object *o = json_object_new_object();
	char id[ID_LEN + 1];
	const char *text;
	size_t len;

	str_uuid4(id);
	id[ID_LEN] = '\n';
	if (ftruncate(fd, ID_LEN + 1) < 0)
		return;
	if (failure) {
		json_add_str(o, "code", failure->code);
		json_add_u64(o, "errno", failure->no > 0 ? (uint64_t)failure->no : EIO);
		json_add_str(o, "text", failure->text);
		text = json_text(o, &len);
		/* With the disk full the waiting ones take "it failed in another process". */
		if (fd_pwrite_all(fd, text, len, ID_LEN + 1) < 0 && ftruncate(fd, ID_LEN + 2) < 0)
			return;
	}
	fd_pwrite_all(fd, id, ID_LEN + 1, 0);
}

void store_flight_leave(struct store_flight *f)
{
	if (!f)
		return;
	fd_close(&f->fd);
	free(f);
}

void store_flight_land(struct store_flight *f, const struct err *failure)
{
	if (f && (!failure || failure->no != ECANCELED))
		write_outcome(f->fd, failure);
	store_flight_leave(f);
}
