#include "agent/workspace.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/disk.h"
#include "agent/fs_tree.h"
#include "agent/mounts.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define STATE_FILE ".iii-source"
#define STATE_MAX  128

/* Where the source is mounted in the namespace of its own: a folder that every guest has. */
#define MOUNT_POINT "/tmp"

enum known {
	KNOWN_NOTHING,
	KNOWN_COMPLETE,
	KNOWN_CHANGING,
	KNOWN_EMPTYING,
};

struct state {
	int var_fd;
	enum known known;
	char digest[WORKER_DIGEST_LEN + 1]; /* "-" of a local source */
};

/* --- /var/.iii-source --- */

static const char *digest_of(const struct worker_job *job)
{
	return job->kind == WORKER_BUNDLE && job->source_digest[0] ? job->source_digest : "-";
}

static void state_parse(const char *text, struct state *ret)
{
	char word[16] = "", digest[WORKER_DIGEST_LEN + 1] = "";
	int end = 0;

	ret->known = KNOWN_NOTHING;
	if (str_eq(text, "emptying\n")) {
		ret->known = KNOWN_EMPTYING;
	} else if (sscanf(text, "%15s %64s\n%n", word, digest, &end) == 2 && end > 0 &&
		   !text[end]) {
		if (str_eq(word, "complete"))
			ret->known = KNOWN_COMPLETE;
		else if (str_eq(word, "changing"))
			ret->known = KNOWN_CHANGING;
		memcpy(ret->digest, digest, sizeof(digest));
	}
}

static int state_read(int root_fd, struct state *ret, struct err *e)
{
	cleanup_fd int point = mounts_open_point(root_fd, "var", e), fd = -1;
	char text[STATE_MAX + 1];
	struct stat st;
	ssize_t n;

	if (point < 0)
		return point;
	ret->var_fd = openat(point, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ret->var_fd < 0)
		return err_set(e, "S300", errno, "cannot open /var: %s", err_str(errno));
	ret->known = KNOWN_NOTHING;
	fd = openat(ret->var_fd, STATE_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return 0;
	n = fd_read_full(fd, text, STATE_MAX);
	if (n < 0)
		return err_set(
			e, "S300", (int)-n, "cannot read /var/" STATE_FILE ": %s", err_str((int)n));
	text[n] = '\0';
	state_parse(text, ret);
	return 0;
}

static int state_write(const struct state *s, const char *word, const char *digest, struct err *e)
{
	cleanup_free char *line =
		xasprintf("%s%s%s\n", word, digest ? " " : "", digest ? digest : "");
	int r = fd_publish_at(s->var_fd, STATE_FILE, line, strlen(line), 0600);

	if (r < 0)
		return err_set(e, "S300", -r, "cannot write /var/" STATE_FILE ": %s", err_str(r));
	return 0;
}

/* --- /workspace --- */

/* The folder itself: a link to one would lead the source elsewhere. */
static int open_workspace(int root_fd, struct err *e)
{
	const char *name = &WORKSPACE_PATH[1];
	int fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP) && unlinkat(root_fd, name, 0) < 0)
		return err_set(e, "S300", errno,
			"cannot replace " WORKSPACE_PATH ", which is no folder in this image: %s",
			err_str(errno));
	if (fd < 0 && (mkdirat(root_fd, name, 0755) == 0 || errno == EEXIST))
		fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, "S300", errno, "cannot make the folder " WORKSPACE_PATH ": %s",
			err_str(errno));
	return fd;
}

static int empty_workspace(int fd, const struct state *s, struct err *e)
{
	int r, inner = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (inner < 0)
		return err_set(
			e, "S300", errno, "cannot open " WORKSPACE_PATH ": %s", err_str(errno));
	r = state_write(s, "emptying", NULL, e);
	if (r < 0) {
		fd_close(&inner);
		return r;
	}
	return fs_tree_empty(inner, WORKSPACE_PATH, e);
}

struct change_note {
	const struct state *state;
	const char *digest;
};

static int note_change(void *user, struct err *e)
{
	const struct change_note *n = user;

	return state_write(n->state, "changing", n->digest, e);
}

static int update(int fd, int src_fd, const struct state *s, const struct worker_job *job,
	struct sync_counts *ret, struct err *e)
{
	const char *digest = digest_of(job);
	struct change_note note = {s, digest};
	bool same = s->known != KNOWN_NOTHING && str_eq(s->digest, digest);
	bool empty = s->known == KNOWN_EMPTYING || (job->kind == WORKER_BUNDLE && !same);
	struct sync_options o = {
		.leave_out_artefacts = job->kind == WORKER_LOCAL,
		.trust_times = s->known == KNOWN_COMPLETE,
		/* "emptying" stays true until all is there. */
		.before_changes = empty ? NULL : note_change,
		.user = &note,
	};
	int r = empty ? empty_workspace(fd, s, e) : 0;

	if (r == 0)
		r = sync_tree(src_fd, fd, &o, ret, e);
	if (r < 0)
		return r;
	if (!ret->changed && s->known == KNOWN_COMPLETE && same)
		return 0;
	if (syncfs(fd) < 0)
		return err_set(e, "S300", errno, "cannot write " WORKSPACE_PATH " to disk: %s",
			err_str(errno));
	return state_write(s, "complete", digest, e);
}

/* An image whose /tmp is a link to /workspace would have us copy the source to itself. */
static int check_apart(int fd, int src_fd, struct err *e)
{
	struct stat a, b;

	if (fstat(fd, &a) < 0 || fstat(src_fd, &b) < 0)
		return err_set(
			e, "S300", errno, "cannot look at " WORKSPACE_PATH ": %s", err_str(errno));
	if (a.st_dev == b.st_dev && a.st_ino == b.st_ino)
		return err_set(e, "S300", ELOOP,
			"in this image " MOUNT_POINT " is a link to " WORKSPACE_PATH
			": neither can be used");
	return 0;
}

int workspace_update(int root_fd, int src_fd, const struct worker_job *job, struct sync_counts *ret,
	struct err *e)
{
	struct state s = {.var_fd = -1};
	cleanup_fd int fd = -1;
	int r = state_read(root_fd, &s, e);

	if (r == 0) {
		fd = open_workspace(root_fd, e);
		r = fd < 0 ? fd : check_apart(fd, src_fd, e);
	}
	if (r == 0)
		r = update(fd, src_fd, &s, job, ret, e);
	fd_close(&s.var_fd);
	return r;
}

/* --- the disk --- */

static int bring_from(
	const char *path, const struct worker_job *job, struct sync_counts *ret, struct err *e)
{
	cleanup_fd int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_fd int src = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (root < 0 || src < 0)
		return err_set(e, "S300", errno, "cannot open the source: %s", err_str(errno));
	return workspace_update(root, src, job, ret, e);
}

int workspace_bring(
	const char *serial, const struct worker_job *job, struct sync_counts *ret, struct err *e)
{
	char node[32];
	int r = disk_find(serial, "source", node, e);

	if (r < 0)
		return r;
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return err_set(
			e, "S300", errno, "cannot make a mount namespace: %s", err_str(errno));
	if (mount(node, MOUNT_POINT, "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) <
		0)
		return err_set(e, "S300", errno, "cannot mount the source disk (%s): %s", node,
			err_str(errno));
	r = bring_from(MOUNT_POINT, job, ret, e);
	if (umount2(MOUNT_POINT, UMOUNT_NOFOLLOW) < 0 && r == 0)
		r = err_set(e, "S300", errno, "cannot unmount the source disk (%s): %s", node,
			err_str(errno));
	return r;
}
