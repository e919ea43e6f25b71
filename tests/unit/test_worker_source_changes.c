/* worker source: nothing that is done to a folder while it is read does harm (worker VM
 * specification §4.5, W15). Most is done when `stop` is asked, before every entry and every piece
 * of a file, so that it comes where it should. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "worker_source.h"

#define RACES 60

/* --- things that change under it --- */

static char *changing;	     /* the path that is meddled with, or NULL */
static unsigned meddle_when; /* at which asking */

static void check_rest(int dirfd, bool kernel)
{
	struct stat st;

	assert_int_equal(fstatat(dirfd, "a", &st, 0), 0);
	assert_int_equal(fstatat(dirfd, "z", &st, 0), 0);
	assert_int_equal(fstatat(dirfd, "m", &st, AT_SYMLINK_NOFOLLOW), -1);
}

/* "m" is a file or folder between "a" and "z"; `meddle` gets at it when it was listed. */
static void with_meddling(bool folder, void (*meddle)(struct job *job), const char *what)
{
	char digest[WORKER_DIGEST_LEN + 1];
	struct job job;
	int fd;

	path_remove_at(workfd, "moving");
	make_dir("moving");
	make_text("moving/a", "a");
	if (folder) {
		make_dir("moving/m");
		make_text("moving/m/x", "x");
	} else {
		make_text("moving/m", "m");
	}
	make_text("moving/z", "z");
	job_init(&job, "moving", WORKER_BUNDLE);
	job.meddle = meddle;
	fd = write_ok(&job, digest);
	assert_true(noted(&job, "m", what));
	read_back(fd, check_rest);
	close(fd);
	job_done(&job);
}

static void remove_m(struct job *job)
{
	if (job->asked == 1)
		path_remove_at(job->j.dir_fd, "m");
}

static void m_becomes_fifo(struct job *job)
{
	if (job->asked == 1) {
		path_remove_at(job->j.dir_fd, "m");
		assert_int_equal(mkfifoat(job->j.dir_fd, "m", 0600), 0);
	}
}

static void what_vanishes_is_left_out(void **state)
{
	with_meddling(false, remove_m, "left out: it vanished");
	with_meddling(true, remove_m, "left out: it vanished");
	with_meddling(false, m_becomes_fifo, "left out: a FIFO");
}

/* The file is written to while it is read: `meddle_when` is in the middle of it. */
static void grow(struct job *job)
{
	cleanup_fd int fd = openat(workfd, changing, O_WRONLY | O_APPEND | O_CLOEXEC);

	assert_int_equal(fd_write_all(fd, "more", 4), 0);
}

static void shrink_once(struct job *job)
{
	if (job->asked == meddle_when)
		assert_int_equal(truncate(changing, 1000), 0);
}

static void shrink_always(struct job *job)
{
	struct stat st;

	assert_int_equal(stat(changing, &st), 0);
	if (job->asked >= meddle_when)
		assert_int_equal(truncate(changing, st.st_size * 9 / 10), 0);
}

static uint64_t changed_size;
static bool changed_zeros; /* whether the file may end in zeros */

static void check_changed(int dirfd, bool kernel)
{
	cleanup_fd int fd = openat(dirfd, "file", O_RDONLY | O_CLOEXEC);
	cleanup_free uint8_t *want = noise(1000000), *got = xmalloc(1000001);
	ssize_t n = fd_read_full(fd, got, 1000001);
	size_t same = 0;

	assert_true(n > 0);
	if (changed_size)
		assert_int_equal(n, changed_size);
	while (same < (size_t)n && same < 1000000 && got[same] == want[same])
		same++;
	for (; same < (size_t)n; same++)
		if (!changed_zeros || got[same])
			fail_msg("byte %zu is neither of the file nor zero", same);
}

static void with_change(void (*meddle)(struct job *), const char *note)
{
	cleanup_free uint8_t *data = noise(1000000);
	cleanup_free char *full = at("change/file");
	char digest[WORKER_DIGEST_LEN + 1];
	struct job job;
	int fd;

	make_dir("change");
	make_file("change/file", data, 1000000);
	changing = full;
	meddle_when = 3; /* the entry, the first piece, the second */
	job_init(&job, "change", WORKER_BUNDLE);
	job.meddle = meddle;
	fd = write_ok(&job, digest);
	assert_int_equal(job.n_notes, note ? 1 : 0);
	if (note)
		assert_true(noted(&job, "file", note));
	read_back(fd, check_changed);
	close(fd);
	job_done(&job);
}

static void a_file_that_changes_keeps_the_disk_whole(void **state)
{
	/* Read again, then it is as it is now. */
	changed_size = 1000;
	changed_zeros = false;
	with_change(shrink_once, NULL);
	/* Never at rest: the size at the last opening, zeros where bytes are missing. */
	changed_size = 0;
	changed_zeros = true;
	with_change(shrink_always, "changed while it was read");
}

static void check_grown(int dirfd, bool kernel)
{
	struct stat st;

	assert_int_equal(fstatat(dirfd, "file", &st, 0), 0);
	assert_true(st.st_size >= 1000000 && st.st_size < 2000000);
}

static void a_file_that_grows_comes_to_an_end(void **state)
{
	cleanup_free uint8_t *data = noise(1000000);
	cleanup_free char *full = at("change/file");
	char digest[WORKER_DIGEST_LEN + 1];
	struct job job;
	int fd;

	make_dir("change");
	make_file("change/file", data, 1000000);
	changing = full;
	job_init(&job, "change", WORKER_BUNDLE);
	job.meddle = grow;
	fd = write_ok(&job, digest);
	assert_true(noted(&job, "file", "changed while it was read"));
	read_back(fd, check_grown);
	close(fd);
	job_done(&job);
}

struct flipper {
	atomic_bool stop;
	pthread_t thread;
};

static void *flip(void *arg)
{
	struct flipper *f = arg;

	while (!f->stop) {
		syscall(SYS_renameat2, workfd, "flip/d", workfd, "flip.d", 2 /* EXCHANGE */);
		syscall(SYS_renameat2, workfd, "flip/f", workfd, "flip.f", 2);
	}
	return NULL;
}

/* Looks for the bytes of the file outside in the raw disk. */
static bool has_outside(int disk)
{
	cleanup_free uint8_t *p = NULL;
	struct stat st;
	bool found;

	assert_int_equal(fstat(disk, &st), 0);
	p = xmalloc((size_t)st.st_size);
	assert_int_equal(fd_pread_full(disk, p, (size_t)st.st_size, 0), st.st_size);
	found = memmem(p, (size_t)st.st_size, "OUTSIDE-CANARY", 14);
	return found;
}

static void no_race_brings_in_what_is_outside(void **state)
{
	cleanup_free char *out = at("secret"), *file = at("secret/x");
	char digest[WORKER_DIGEST_LEN + 1];
	struct flipper f = {0};
	unsigned found = 0;

	make_dir("secret");
	make_text("secret/x", "OUTSIDE-CANARY");
	make_dir("flip/d");
	make_text("flip/d/x", "inside");
	make_text("flip/f", "inside");
	assert_int_equal(symlinkat(out, workfd, "flip.d"), 0);
	assert_int_equal(symlinkat(file, workfd, "flip.f"), 0);
	assert_int_equal(pthread_create(&f.thread, NULL, flip, &f), 0);
	for (int i = 0; i < RACES; i++) {
		struct job job;
		int fd;

		job_init(&job, "flip", WORKER_LOCAL);
		fd = write_ok(&job, digest);
		found += has_outside(fd);
		close(fd);
		job_done(&job);
	}
	f.stop = true;
	pthread_join(f.thread, NULL);
	assert_int_equal(found, 0);
}

/* --- failures --- */

static void check_unreadable(void)
{
	char digest[WORKER_DIGEST_LEN + 1];
	struct err e = ERR_INIT;
	struct job job;
	int fd = -1;

	job_init(&job, "locked", WORKER_LOCAL);
	if (source_write(&job.j, &fd, digest, &e) != -EACCES)
		_exit(1);
	if (!str_eq(e.code, "S500") || !strstr(e.text, "\"sub/secret\""))
		_exit(2);
	if (fchmodat(workfd, "locked/sub/secret", 0644, 0) < 0)
		_exit(3);
	if (source_write(&job.j, &fd, digest, &e) != 0 || close(fd) < 0)
		_exit(4);
	if (fchmodat(workfd, "locked/sub", 0, 0) < 0)
		_exit(5);
	if (source_write(&job.j, &fd, digest, &e) != -EACCES || !strstr(e.text, "\"sub\""))
		_exit(6);
	if (fchmodat(workfd, "locked/sub", 0755, 0) < 0)
		_exit(7);
	job_done(&job);
}

static void what_cannot_be_read_is_named(void **state)
{
	pid_t pid;
	int status;

	make_dir("locked/sub");
	make_text("locked/sub/secret", "x");
	assert_int_equal(fchmodat(workfd, "locked/sub/secret", 0, 0), 0);
	assert_int_equal(fchmod(workfd, 0755), 0);
	if (geteuid() == 0) {
		assert_int_equal(fchmodat(workfd, "scratch", 0777, 0), 0);
		assert_int_equal(fchownat(workfd, "locked", 65534, 65534, 0), 0);
		assert_int_equal(fchownat(workfd, "locked/sub", 65534, 65534, 0), 0);
		assert_int_equal(fchownat(workfd, "locked/sub/secret", 65534, 65534, 0), 0);
	}
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		if (geteuid() == 0 &&
			(setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0))
			_exit(9);
		check_unreadable();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void a_full_disk_is_another_error(void **state)
{
	cleanup_free uint8_t *data = noise(3 << 20);
	cleanup_free char *small = at("small");
	char digest[WORKER_DIGEST_LEN + 1];
	struct job job;

	if (!mounts)
		skip();
	make_dir("small");
	make_dir("full");
	make_file("full/file", data, 3 << 20);
	assert_int_equal(mount("tmpfs", small, "tmpfs", 0, "size=1m"), 0);
	job_init(&job, "full", WORKER_LOCAL);
	close(job.j.scratch_dirfd);
	job.j.scratch_dirfd = open_dir("small");
	write_fails(&job, "S504", "no space left");
	/* Room for the contents, not for the disk. */
	assert_int_equal(mount("tmpfs", small, "tmpfs", MS_REMOUNT, "size=5m"), 0);
	write_fails(&job, "S504", "no space left");
	assert_int_equal(mount("tmpfs", small, "tmpfs", MS_REMOUNT, "size=8m"), 0);
	close(write_ok(&job, digest));
	job_done(&job);
	assert_int_equal(umount2(small, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_vanishes_is_left_out),
		cmocka_unit_test(a_file_that_changes_keeps_the_disk_whole),
		cmocka_unit_test(a_file_that_grows_comes_to_an_end),
		cmocka_unit_test(no_race_brings_in_what_is_outside),
		cmocka_unit_test(what_cannot_be_read_is_named),
		cmocka_unit_test(a_full_disk_is_another_error),
	};

	return cmocka_run_group_tests_name("worker_source_changes", tests, setup, teardown);
}
