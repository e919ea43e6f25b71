/* A folder of sources, jobs that write them with their eyes open, and the disks read back. For the
 * tests of host/worker/source.h. */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/worker/source.h"

extern char **environ;

#define TEXT_MAX (1u << 20)

static char work[] = "/var/tmp/test-worker-source-XXXXXX";
static int workfd = -1;
static bool mounts; /* the kernel may be asked too */

static inline int setup(void **state)
{
	if (!mkdtemp(work))
		return 1;
	/* What is mounted goes with this program, however it ends. */
	mounts = geteuid() == 0 && unshare(CLONE_NEWNS) == 0 &&
		 mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
	workfd = open(work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return workfd < 0 || mkdirat(workfd, "scratch", 0700) < 0;
}

static inline int teardown(void **state)
{
	close(workfd);
	return path_remove_at(AT_FDCWD, work);
}

static inline char *at(const char *path)
{
	return path_join(work, path);
}

static inline int open_dir(const char *path)
{
	int fd = openat(workfd, path, O_PATH | O_DIRECTORY | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static inline void make_dir(const char *path)
{
	cleanup_free char *p = at(path);

	assert_int_equal(path_mkdirs(p, NULL), 0);
}

static inline void make_file(const char *path, const void *data, size_t len)
{
	cleanup_fd int fd = openat(workfd, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, data, len), 0);
}

static inline void make_text(const char *path, const char *text)
{
	make_file(path, text, strlen(text));
}

static inline int run(const char *const argv[])
{
	pid_t pid;
	int status;

	assert_int_equal(posix_spawnp(&pid, argv[0], NULL, NULL, (char *const *)argv, environ), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* --- a job with its eyes open --- */

struct job {
	struct source_job j;
	char *path;
	struct buf notes; /* a line each */
	unsigned n_notes, asked;
	void (*meddle)(struct job *job); /* called when stop is asked for the asked-th time */
	unsigned cancel_at;		 /* 0: never */
};

static inline void on_note(const char *line, void *user)
{
	struct job *job = user;

	job->n_notes++;
	assert_int_equal(buf_printf(&job->notes, "%s\n", line), 0);
}

static inline bool on_stop(void *user)
{
	struct job *job = user;

	job->asked++;
	if (job->meddle)
		job->meddle(job);
	return job->cancel_at && job->asked >= job->cancel_at;
}

static inline void job_init(struct job *job, const char *source, enum worker_kind kind)
{
	*job = (struct job){.path = at(source)};
	job->j = (struct source_job){.dir_fd = open_dir(source),
		.path = job->path,
		.kind = kind,
		.scratch_dirfd = open_dir("scratch"),
		.note = on_note,
		.stop = on_stop,
		.user = job};
	buf_init(&job->notes, TEXT_MAX);
}

static inline void job_done(struct job *job)
{
	close(job->j.dir_fd);
	close(job->j.scratch_dirfd);
	buf_done(&job->notes);
	free(job->path);
}

static inline bool noted(const struct job *job, const char *path, const char *what)
{
	cleanup_free char *line = xasprintf("\"%s\" %s", path, what);

	return job->notes.len && strstr((char *)job->notes.data, line);
}

/* A disk that must come about. */
static inline int write_ok(struct job *job, char digest[WORKER_DIGEST_LEN + 1])
{
	struct err e = ERR_INIT;
	int fd = -1;

	if (source_write(&job->j, &fd, digest, &e) < 0)
		fail_msg("%s %s", e.code, e.text);
	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	return fd;
}

static inline void write_fails(struct job *job, const char *code, const char *word)
{
	char digest[WORKER_DIGEST_LEN + 1] = "untouched";
	struct err e = ERR_INIT;
	int fd = -1;

	assert_true(source_write(&job->j, &fd, digest, &e) < 0);
	if (!str_eq(e.code, code) || !strstr(e.text, word))
		fail_msg("%s \"%s\" instead of %s with \"%s\"", e.code, e.text, code, word);
	assert_int_equal(fd, -1);
	assert_string_equal(digest, "untouched");
}

/* --- reading back --- */

/* Calls `check` with what fsck.erofs extracts and, where possible, with what the kernel mounts. */
static inline void read_back(int disk, void (*check)(int dirfd, bool kernel))
{
	cleanup_free char *where = at("out"), *option = xasprintf("--extract=%s", where),
			  *copy = at("disk");
	cleanup_fd int to = open(copy, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int fd;

	assert_int_equal(fd_copy_sparse(disk, to), 0);
	path_remove_at(workfd, "out");
	assert_int_equal(run((const char *const[]){"fsck.erofs", option, copy, NULL}), 0);
	fd = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	check(fd, false);
	close(fd);
	path_remove_at(workfd, "out");
	if (!mounts)
		return;
	assert_int_equal(mkdirat(workfd, "out", 0700), 0);
	assert_int_equal(run((const char *const[]){
				 "mount", "-t", "erofs", "-o", "loop,ro", copy, where, NULL}),
		0);
	fd = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	check(fd, true);
	close(fd);
	assert_int_equal(umount2(where, 0), 0);
	rmdir(where);
}

static inline uint8_t *noise(size_t len)
{
	uint8_t *p = xmalloc(len);

	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)((len * 2654435761u + i * 40503u) >> 7);
	return p;
}
