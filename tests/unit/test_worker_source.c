/* worker source: the disk has what the folder had, the folder is as it was, and the digests tell
 * what changed (worker VM specification §4.5, §4.6, W90, W92). */
#include "worker_source.h"

static bool is_kept(const char *name, enum worker_kind kind)
{
	return !str_eq(name, ".") && !str_eq(name, "..") &&
	       (kind == WORKER_BUNDLE || !worker_is_artefact(name));
}

static bool is_copied(mode_t mode)
{
	return S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode);
}

static unsigned count_copied(int fd, enum worker_kind kind)
{
	DIR *dir = fdopendir(openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	struct dirent *d;
	struct stat st;
	unsigned n = 0;

	assert_non_null(dir);
	while ((d = readdir(dir)))
		n += is_kept(d->d_name, kind) &&
		     fstatat(fd, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && is_copied(st.st_mode);
	closedir(dir);
	return n;
}

static void same_bytes(int a_dir, int b_dir, const char *name)
{
	static uint8_t a[65536], b[65536];
	cleanup_fd int fa = openat(a_dir, name, O_RDONLY | O_CLOEXEC);
	cleanup_fd int fb = openat(b_dir, name, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	assert_true(fa >= 0 && fb >= 0);
	do {
		n = fd_read_full(fa, a, sizeof(a));
		assert_int_equal(fd_read_full(fb, b, sizeof(b)), n);
		if (memcmp(a, b, (size_t)n))
			fail_msg("%s: other content", name);
	} while (n > 0);
}

static void same_tree(int src, int got, enum worker_kind kind, bool kernel);

static void same_entry(int src, int got, const char *name, enum worker_kind kind, bool kernel)
{
	char a[5000] = "", b[5000] = "";
	struct stat want, is;

	assert_int_equal(fstatat(src, name, &want, AT_SYMLINK_NOFOLLOW), 0);
	if (!is_copied(want.st_mode)) {
		assert_int_equal(fstatat(got, name, &is, AT_SYMLINK_NOFOLLOW), -1);
		return;
	}
	if (fstatat(got, name, &is, AT_SYMLINK_NOFOLLOW) < 0)
		fail_msg("%s is missing", name);
	assert_int_equal(is.st_mode, want.st_mode & ~(mode_t)06000);
	if (kernel) { /* fsck.erofs sets neither fractions nor times of folders and links */
		assert_int_equal(is.st_uid, 0);
		assert_int_equal(is.st_gid, 0);
		assert_int_equal(is.st_mtim.tv_sec, want.st_mtim.tv_sec);
		assert_int_equal(is.st_mtim.tv_nsec, want.st_mtim.tv_nsec);
	}
	if (S_ISREG(want.st_mode)) {
		assert_int_equal(is.st_size, want.st_size);
		same_bytes(src, got, name);
	} else if (S_ISLNK(want.st_mode)) {
		assert_int_equal(readlinkat(src, name, a, sizeof(a) - 1),
			readlinkat(got, name, b, sizeof(b) - 1));
		assert_string_equal(a, b);
	} else {
		cleanup_fd int x = openat(src, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		cleanup_fd int y = openat(got, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

		same_tree(x, y, kind, kernel);
	}
}

/* Path by path, both ways. */
static void same_tree(int src, int got, enum worker_kind kind, bool kernel)
{
	DIR *dir = fdopendir(openat(src, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	struct dirent *d;

	assert_non_null(dir);
	assert_int_equal(count_copied(src, kind), count_copied(got, WORKER_BUNDLE));
	while ((d = readdir(dir)))
		if (is_kept(d->d_name, kind))
			same_entry(src, got, d->d_name, kind, kernel);
	closedir(dir);
}

/* --- all kinds of things --- */

static void make_sizes(void)
{
	static const size_t sizes[] = {
		0, 1, 4031, 4032, 4033, 4095, 4096, 4097, 8192, 262143, 262144, 262145, 3000001};

	make_dir("all/sizes");
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		cleanup_free char *path = xasprintf("all/sizes/%zu", sizes[i]);
		cleanup_free uint8_t *data = noise(sizes[i] + 1);

		make_file(path, data, sizes[i]);
	}
}

static void make_holes(void)
{
	cleanup_fd int fd = -1;

	make_text("all/sparse", "begin");
	fd = openat(workfd, "all/sparse", O_RDWR | O_CLOEXEC);
	assert_int_equal(fd_pwrite_all(fd, "middle", 6, 40u << 20), 0);
	assert_int_equal(ftruncate(fd, (100 << 20) + 77), 0);
	fd_close(&fd);
	make_text("all/only-hole", "");
	fd = openat(workfd, "all/only-hole", O_RDWR | O_CLOEXEC);
	assert_int_equal(ftruncate(fd, 123456), 0);
}

static void make_others(const char *fifo, const char *sock, const char *dev)
{
	cleanup_free char *path = at(sock);
	cleanup_fd int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	assert_int_equal(mkfifoat(workfd, fifo, 0644), 0);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	assert_int_equal(bind(s, (struct sockaddr *)&addr, sizeof(addr)), 0);
	if (geteuid() == 0)
		assert_int_equal(mknodat(workfd, dev, S_IFCHR | 0666, makedev(1, 3)), 0);
}

static void make_artefacts(const char *folder)
{
	static const char *const names[] = {
		"node_modules", ".venv", "target", "dist", "__pycache__", ".pytest_cache", ".next"};
	cleanup_free char *git = NULL;

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		cleanup_free char *dir = xasprintf("%s/%s/deep", folder, names[i]);
		cleanup_free char *file = xasprintf("%s/file", dir);

		make_dir(dir);
		make_text(file, "host");
	}
	git = xasprintf("%s/.git", folder);
	make_text(git, "gitdir: elsewhere\n"); /* a work tree's is a file */
}

static void make_all(void)
{
	static const struct timespec old[2] = {{.tv_nsec = UTIME_OMIT}, {-5, 123456789}};
	char target[4096];

	make_dir("all/empty");
	make_dir("all/a/b/c");
	make_text("all/a/b/c/deep", "deep");
	make_sizes();
	make_holes();
	make_artefacts("all");
	make_artefacts("all/a/b");
	make_text("all/a/node_modules.txt", "no artefact");
	make_text("all/a/Dist", "no artefact either");
	make_text("all/mein w\xc3\xb6rker:1", "utf-8");
	make_text("all/not utf-8 \xff\xfe\n", "bytes");
	make_text("all/mode", "x");
	assert_int_equal(fchmodat(workfd, "all/mode", 06751, 0), 0);
	make_dir("all/sticky");
	assert_int_equal(fchmodat(workfd, "all/sticky", 03777, 0), 0);
	assert_int_equal(utimensat(workfd, "all/mode", old, 0), 0);
	assert_int_equal(utimensat(workfd, "all/sticky", old, 0), 0);
	assert_int_equal(symlinkat("../outside/nothing", workfd, "all/link"), 0);
	assert_int_equal(symlinkat("/etc/passwd", workfd, "all/abs"), 0);
	assert_int_equal(symlinkat("a/b", workfd, "all/dir-link"), 0);
	memset(target, 't', sizeof(target) - 1);
	target[sizeof(target) - 1] = '\0';
	if (symlinkat(target, workfd, "all/long-link") < 0)
		assert_int_equal(errno, ENAMETOOLONG); /* ext4 and others keep a block's worth */
	assert_int_equal(linkat(workfd, "all/mode", workfd, "all/hard", 0), 0);
	make_others("all/fifo", "all/socket", "all/device");
}

static enum worker_kind all_kind;

static void check_all(int dirfd, bool kernel)
{
	cleanup_fd int src = openat(workfd, "all", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat want, is;

	same_tree(src, dirfd, all_kind, kernel);
	if (!kernel)
		return;
	assert_int_equal(fstat(src, &want), 0);
	assert_int_equal(fstat(dirfd, &is), 0);
	assert_int_equal(is.st_mode, want.st_mode);
	assert_int_equal(is.st_mtim.tv_nsec, want.st_mtim.tv_nsec);
}

/* Everything that stat tells of a tree, but the access times of symlinks: reading one is use. */
static void snapshot(int parent, const char *name, struct buf *b)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOATIME | O_CLOEXEC);
	DIR *dir = fdopendir(fd);
	struct dirent *d;
	struct stat st;

	assert_non_null(dir);
	while ((d = readdir(dir))) {
		bool link;

		if (str_eq(d->d_name, ".") || str_eq(d->d_name, ".."))
			continue;
		assert_int_equal(fstatat(fd, d->d_name, &st, AT_SYMLINK_NOFOLLOW), 0);
		link = S_ISLNK(st.st_mode);
		assert_int_equal(buf_printf(b, "%s %o %u %u %lu %lld", d->d_name, st.st_mode,
					 st.st_uid, st.st_gid, st.st_nlink, (long long)st.st_size),
			0);
		assert_int_equal(
			buf_printf(b, " %ld.%09ld %ld.%09ld %ld.%09ld\n", st.st_mtim.tv_sec,
				st.st_mtim.tv_nsec, st.st_ctim.tv_sec, st.st_ctim.tv_nsec,
				link ? 0 : st.st_atim.tv_sec, link ? 0 : st.st_atim.tv_nsec),
			0);
		if (S_ISDIR(st.st_mode))
			snapshot(fd, d->d_name, b);
	}
	closedir(dir);
}

/* Puts all access times far back, where relatime would move them at the first reading. */
static void age(const char *path)
{
	static const struct timespec t[2] = {{1000000000, 0}, {.tv_nsec = UTIME_OMIT}};
	cleanup_free char *full = at(path);

	assert_int_equal(run((const char *const[]){"find", full, "-exec", "touch", "-h", "-a", "-d",
				 "@1000000000", "{}", "+", NULL}),
		0);
	assert_int_equal(utimensat(workfd, path, t, 0), 0);
}

static void the_disk_has_what_the_folder_has(void **state)
{
	char digest[WORKER_DIGEST_LEN + 1];
	struct buf before, after;
	struct job job;
	int fd;

	make_all();
	age("all");
	buf_init(&before, TEXT_MAX);
	buf_init(&after, TEXT_MAX);
	snapshot(workfd, "all", &before);
	all_kind = WORKER_LOCAL;
	job_init(&job, "all", all_kind);
	fd = write_ok(&job, digest);
	snapshot(workfd, "all", &after);
	assert_string_equal((char *)before.data, (char *)after.data);
	assert_string_equal(digest, "");
	assert_true(noted(&job, "fifo", "left out: a FIFO"));
	assert_true(noted(&job, "socket", "left out: a socket"));
	assert_int_equal(job.n_notes, geteuid() == 0 ? 3 : 2);
	read_back(fd, check_all);
	close(fd);
	job_done(&job);

	all_kind = WORKER_BUNDLE;
	job_init(&job, "all", all_kind);
	fd = write_ok(&job, digest);
	assert_int_equal(strspn(digest, "0123456789abcdef"), WORKER_DIGEST_LEN);
	read_back(fd, check_all);
	close(fd);
	job_done(&job);
	buf_done(&before);
	buf_done(&after);
}

static uint64_t disk_bytes(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

static void holes_take_no_space(void **state)
{
	char digest[WORKER_DIGEST_LEN + 1];
	cleanup_fd int big = -1, disk = -1;
	struct job job;

	make_dir("holes");
	make_text("holes/big", "x");
	big = openat(workfd, "holes/big", O_RDWR | O_CLOEXEC);
	assert_int_equal(ftruncate(big, (off_t)5 << 30), 0);
	job_init(&job, "holes", WORKER_LOCAL);
	disk = write_ok(&job, digest);
	assert_true(disk_bytes(disk) < 1u << 20);
	job_done(&job);
}

static void nothing_is_left_in_the_state_folder(void **state)
{
	struct dirent **v = NULL;
	int n = scandirat(workfd, "scratch", &v, NULL, alphasort);

	assert_int_equal(n, 2);
	for (int i = 0; i < n; i++)
		free(v[i]);
	free(v);
}

/* --- digests --- */

static void digest_of(const char *source, char digest[WORKER_DIGEST_LEN + 1])
{
	struct job job;

	job_init(&job, source, WORKER_BUNDLE);
	close(write_ok(&job, digest));
	job_done(&job);
}

static void touch(const char *path, time_t sec, long nsec)
{
	struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {sec, nsec}};

	assert_int_equal(utimensat(workfd, path, t, AT_SYMLINK_NOFOLLOW), 0);
}

/* Puts the times back that a change of names moved, so that one thing at a time is different. */
static void settle(void)
{
	touch("pkg/sub", 1000, 1);
	touch("pkg", 1000, 1);
}

static void every_change_of_a_bundle_shows(void **state)
{
	char first[WORKER_DIGEST_LEN + 1], now[WORKER_DIGEST_LEN + 1], last[WORKER_DIGEST_LEN + 1];

	make_dir("pkg/sub");
	make_text("pkg/sub/file", "one");
	assert_int_equal(symlinkat("one", workfd, "pkg/link"), 0);
	touch("pkg/sub/file", 1000, 1);
	touch("pkg/link", 1000, 1);
	settle();
	digest_of("pkg", first);
	digest_of("pkg", now);
	assert_string_equal(first, now);
#define CHANGED()                                                                                  \
	do {                                                                                       \
		settle();                                                                          \
		memcpy(last, now, sizeof(last));                                                   \
		digest_of("pkg", now);                                                             \
		assert_string_not_equal(last, now);                                                \
	} while (0)
	make_text("pkg/sub/file", "two");
	touch("pkg/sub/file", 1000, 1);
	CHANGED();
	touch("pkg/sub/file", 1000, 2);
	CHANGED();
	assert_int_equal(fchmodat(workfd, "pkg/sub/file", 0755, 0), 0);
	CHANGED();
	assert_int_equal(renameat(workfd, "pkg/sub/file", workfd, "pkg/sub/fild"), 0);
	CHANGED();
	assert_int_equal(unlinkat(workfd, "pkg/link", 0), 0);
	assert_int_equal(symlinkat("two", workfd, "pkg/link"), 0);
	touch("pkg/link", 1000, 1);
	CHANGED();
	make_dir("pkg/sub/empty");
	touch("pkg/sub/empty", 1000, 1);
	CHANGED();
	assert_int_equal(renameat(workfd, "pkg/sub/empty", workfd, "pkg/empty"), 0);
	CHANGED();
	/* Back to where it began. */
	assert_int_equal(unlinkat(workfd, "pkg/empty", AT_REMOVEDIR), 0);
	assert_int_equal(unlinkat(workfd, "pkg/link", 0), 0);
	assert_int_equal(symlinkat("one", workfd, "pkg/link"), 0);
	touch("pkg/link", 1000, 1);
	assert_int_equal(renameat(workfd, "pkg/sub/fild", workfd, "pkg/sub/file"), 0);
	assert_int_equal(fchmodat(workfd, "pkg/sub/file", 0644, 0), 0);
	make_text("pkg/sub/file", "one");
	touch("pkg/sub/file", 1000, 1);
	CHANGED();
	assert_string_equal(first, now);
	/* The same package elsewhere is another one. */
	assert_int_equal(renameat(workfd, "pkg", workfd, "pkg2"), 0);
	digest_of("pkg2", now);
	assert_string_not_equal(first, now);
#undef CHANGED
}

static void install_of(struct job *job, const char *install, char ret[WORKER_DIGEST_LEN + 1])
{
	char setup_digest[WORKER_DIGEST_LEN + 1];
	struct err e = ERR_INIT;

	source_setup_digest("sha256:abc", "setup", setup_digest);
	if (source_install_digest(&job->j, setup_digest, "source", install, ret, &e) < 0)
		fail_msg("%s", e.text);
}

static void setup_digests_tell_commands_and_images_apart(void **state)
{
	char a[WORKER_DIGEST_LEN + 1], b[WORKER_DIGEST_LEN + 1];

	source_setup_digest("sha256:abc", "x", a);
	source_setup_digest("sha256:abc", "x", b);
	assert_string_equal(a, b);
	source_setup_digest("sha256:abd", "x", b);
	assert_string_not_equal(a, b);
	source_setup_digest("sha256:abc", "y", b);
	assert_string_not_equal(a, b);
	source_setup_digest("sha256:ab", "cx", b);
	assert_string_not_equal(a, b);
	source_setup_digest("sha256:abc", NULL, a);
	source_setup_digest("sha256:abc", "", b);
	assert_string_equal(a, b);
}

static void a_changed_lock_file_installs_again(void **state)
{
	char first[WORKER_DIGEST_LEN + 1], now[WORKER_DIGEST_LEN + 1];
	struct job job;

	make_dir("lock/sub");
	job_init(&job, "lock", WORKER_LOCAL);
	install_of(&job, "npm i", first);
	make_text("lock/index.js", "x");
	make_text("lock/sub/package.json", "x");
	install_of(&job, "npm i", now);
	assert_string_equal(first, now); /* neither is a lock file at the root */
	install_of(&job, "npm ci", now);
	assert_string_not_equal(first, now);
	make_text("lock/package-lock.json", "1");
	install_of(&job, "npm i", now);
	assert_string_not_equal(first, now);
	memcpy(first, now, sizeof(now));
	touch("lock/package-lock.json", 5, 5);
	install_of(&job, "npm i", now);
	assert_string_equal(first, now); /* contents count, times do not */
	make_text("lock/package-lock.json", "2");
	install_of(&job, "npm i", now);
	assert_string_not_equal(first, now);
	memcpy(first, now, sizeof(now));
	assert_int_equal(renameat(workfd, "lock/package-lock.json", workfd, "lock/yarn.lock"), 0);
	install_of(&job, "npm i", now);
	assert_string_not_equal(first, now);
	/* Symlinks out of the source by their text, what is no file not at all. */
	assert_int_equal(symlinkat("/etc/passwd", workfd, "lock/go.mod"), 0);
	install_of(&job, "npm i", first);
	assert_string_not_equal(first, now);
	assert_int_equal(unlinkat(workfd, "lock/go.mod", 0), 0);
	make_dir("lock/go.mod");
	assert_int_equal(mkfifoat(workfd, "lock/go.sum", 0644), 0);
	install_of(&job, "npm i", first);
	assert_string_equal(first, now);
	job_done(&job);
	/* A bundle: by path and digest alone. */
	job_init(&job, "lock", WORKER_BUNDLE);
	install_of(&job, "npm i", first);
	make_text("lock/yarn.lock", "3");
	install_of(&job, "npm i", now);
	assert_string_equal(first, now);
	job.j.path = "/elsewhere";
	install_of(&job, "npm i", now);
	assert_string_not_equal(first, now);
	job_done(&job);
}

/* --- limits --- */

static void limits_are_named(void **state)
{
	char name[256];
	cleanup_fd int fd = -1, dir = -1;
	struct job job;

	make_dir("big");
	make_text("big/huge", "");
	fd = openat(workfd, "big/huge", O_RDWR | O_CLOEXEC);
	assert_int_equal(ftruncate(fd, (off_t)SOURCE_BYTES_MAX + 1), 0);
	job_init(&job, "big", WORKER_LOCAL);
	write_fails(&job, "S500", "10737418240 bytes (at \"huge\")");
	job_done(&job);

	make_dir("deep");
	dir = open_dir("deep");
	for (int i = 0; i < SOURCE_DEPTH_MAX; i++) {
		int next;

		assert_int_equal(mkdirat(dir, "d", 0755), 0);
		next = openat(dir, "d", O_PATH | O_DIRECTORY | O_CLOEXEC);
		close(dir);
		dir = next;
	}
	job_init(&job, "deep", WORKER_LOCAL);
	close(write_ok(&job, name));
	assert_int_equal(mkdirat(dir, "d", 0755), 0);
	write_fails(&job, "S500", "128 names in a path");
	job_done(&job);

	make_dir("long");
	fd_close(&dir);
	dir = open_dir("long");
	memset(name, 'n', 255);
	name[255] = '\0';
	for (int i = 0; i < 17; i++) {
		int next;

		assert_int_equal(mkdirat(dir, name, 0755), 0);
		next = openat(dir, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		close(dir);
		dir = next;
	}
	job_init(&job, "long", WORKER_LOCAL);
	write_fails(&job, "S500", "4096 bytes in a path");
	job_done(&job);
}

static void notes_are_limited(void **state)
{
	char digest[WORKER_DIGEST_LEN + 1], path[64];
	struct job job;

	make_dir("fifos");
	for (int i = 0; i < 250; i++) {
		snprintf(path, sizeof(path), "fifos/%d", i);
		assert_int_equal(mkfifoat(workfd, path, 0600), 0);
	}
	job_init(&job, "fifos", WORKER_LOCAL);
	close(write_ok(&job, digest));
	assert_int_equal(job.n_notes, SOURCE_NOTES_MAX + 1);
	assert_non_null(strstr((char *)job.notes.data, "150 more entries"));
	job_done(&job);
}

static void it_can_be_stopped(void **state)
{
	char digest[WORKER_DIGEST_LEN + 1];
	struct job job;
	unsigned asked;

	job_init(&job, "all", WORKER_BUNDLE);
	close(write_ok(&job, digest));
	asked = job.asked;
	assert_true(asked > 20);
	job_done(&job);
	for (unsigned i = 1; i <= asked; i += MAX(asked / 20, 1u)) {
		struct err e = ERR_INIT;
		int fd = -1;

		job_init(&job, "all", WORKER_BUNDLE);
		job.cancel_at = i;
		assert_int_equal(source_write(&job.j, &fd, digest, &e), -ECANCELED);
		assert_int_equal(e.no, ECANCELED);
		job_done(&job);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_disk_has_what_the_folder_has),
		cmocka_unit_test(holes_take_no_space),
		cmocka_unit_test(every_change_of_a_bundle_shows),
		cmocka_unit_test(setup_digests_tell_commands_and_images_apart),
		cmocka_unit_test(a_changed_lock_file_installs_again),
		cmocka_unit_test(limits_are_named),
		cmocka_unit_test(notes_are_limited),
		cmocka_unit_test(it_can_be_stopped),
		cmocka_unit_test(nothing_is_left_in_the_state_folder),
	};

	return cmocka_run_group_tests_name("worker_source", tests, setup, teardown);
}
