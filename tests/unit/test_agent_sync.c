/* agent: a worker's source comes into /workspace. On plain folders, against a model of what has to
 * be there afterwards. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/marker.h"
#include "agent/sync.h"
#include "agent/workspace.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "wire/worker.h"

/* --- a room with src/ and root/workspace --- */

static char room[64];
static int src_fd, root_fd;

static char *at(const char *path)
{
	static char text[4][PATH_MAX + sizeof(room)];
	static unsigned turn;
	char *s = text[turn++ % ARRAY_LEN(text)];

	snprintf(s, sizeof(text[0]), "%s/%s", room, path);
	return s;
}

static int setup(void **state)
{
	/* Each test syncs often; a real disk would wait for everybody's data. */
	snprintf(room, sizeof(room), "%s/test_agent_sync.XXXXXX",
		access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	assert_non_null(mkdtemp(room));
	assert_int_equal(mkdir(at("src"), 0755), 0);
	assert_int_equal(mkdir(at("root"), 0755), 0);
	assert_int_equal(mkdir(at("root/workspace"), 0755), 0);
	src_fd = open(at("src"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	root_fd = open(at("root"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return 0;
}

static int teardown(void **state)
{
	fd_close(&src_fd);
	fd_close(&root_fd);
	assert_int_equal(path_remove_at(AT_FDCWD, room), 0);
	return 0;
}

static void put(const char *path, const char *text)
{
	cleanup_fd int fd = open(at(path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

static void folder(const char *path)
{
	assert_int_equal(mkdir(at(path), 0755), 0);
}

static void stamp(const char *path, time_t sec, long nsec)
{
	const struct timespec times[2] = {{0, UTIME_OMIT}, {sec, nsec}};

	assert_int_equal(utimensat(AT_FDCWD, at(path), times, AT_SYMLINK_NOFOLLOW), 0);
}

static struct stat facts(const char *path)
{
	struct stat st;

	if (lstat(at(path), &st) < 0)
		fail_msg("%s: %s", path, err_str(errno));
	return st;
}

static bool there(const char *path)
{
	struct stat st;

	return lstat(at(path), &st) == 0;
}

static void assert_text(const char *path, const char *want)
{
	cleanup_free char *text = NULL;

	if (fd_slurp_at(AT_FDCWD, at(path), 1 << 20, &text, NULL) < 0)
		fail_msg("%s cannot be read", path);
	assert_string_equal(text, want);
}

static struct worker_job local = {.kind = WORKER_LOCAL, .name = (char *)"w"};
static struct worker_job bundle = {.kind = WORKER_BUNDLE, .name = (char *)"w"};

static void set_digest(char c)
{
	memset(bundle.source_digest, c, WORKER_DIGEST_LEN);
}

static struct sync_counts update(const struct worker_job *job)
{
	struct sync_counts counts = {0};
	struct err e = ERR_INIT;

	if (workspace_update(root_fd, src_fd, job, &counts, &e) < 0)
		fail_msg("%s", e.text);
	return counts;
}

/* --- single facts --- */

static void a_fresh_copy_has_everything(void **state)
{
	char target[16];
	struct stat st;

	folder("src/a");
	folder("src/a/empty");
	put("src/a/one", "1");
	put("src/run.sh", "#!/bin/sh\n");
	put("src/odd \n\xff name", "odd");
	assert_int_equal(chmod(at("src/run.sh"), 06755), 0);
	assert_int_equal(chmod(at("src/a/empty"), 01777), 0);
	assert_int_equal(chmod(at("src/a"), 0555), 0);
	assert_int_equal(symlink("../nowhere", at("src/a/link")), 0);
	stamp("src/a/link", 1000, 7);
	stamp("src/a/one", 1234567890, 123456789);
	stamp("src/a", 99, 1);
	stamp("src", 98, 2);
	assert_int_equal(mkfifo(at("src/pipe"), 0644), 0);
	stamp("src", 98, 2);

	struct sync_counts c = update(&local);

	assert_true(c.changed);
	assert_int_equal(c.copied, 6);
	assert_int_equal(c.left_out, 1);
	assert_text("root/workspace/a/one", "1");
	assert_text("root/workspace/odd \n\xff name", "odd");
	st = facts("root/workspace/a/one");
	assert_int_equal(st.st_mtim.tv_sec, 1234567890);
	assert_int_equal(st.st_mtim.tv_nsec, 123456789);
	assert_int_equal(facts("root/workspace/run.sh").st_mode & 07777, 0755);
	assert_int_equal(facts("root/workspace/a/empty").st_mode & 07777, 01777);
	st = facts("root/workspace/a");
	assert_int_equal(st.st_mode & 07777, 0555);
	assert_int_equal(st.st_mtim.tv_sec, 99);
	assert_int_equal(st.st_mtim.tv_nsec, 1);
	assert_int_equal(facts("root/workspace").st_mtim.tv_sec, 98);
	assert_int_equal(readlink(at("root/workspace/a/link"), target, sizeof(target)), 10);
	assert_memory_equal(target, "../nowhere", 10);
	assert_int_equal(facts("root/workspace/a/link").st_mtim.tv_nsec, 7);
	assert_false(there("root/workspace/pipe"));
	assert_text("root/var/.iii-source", "complete -\n");
	assert_int_equal(chmod(at("src/a"), 0755), 0);
	assert_int_equal(chmod(at("root/workspace/a"), 0755), 0);
}

static void what_is_alike_is_left_alone(void **state)
{
	folder("src/a");
	put("src/a/one", "1");
	put("src/two", "2");
	assert_int_equal(symlink("a", at("src/link")), 0);
	update(&local);

	const char *const paths[] = {"root/workspace/a/one", "root/workspace/two",
		"root/workspace/link", "root/workspace/a", "root/workspace",
		"root/var/.iii-source"};
	struct stat before[ARRAY_LEN(paths)];

	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		before[i] = facts(paths[i]);

	struct sync_counts c = update(&local);

	assert_false(c.changed);
	assert_int_equal(c.copied + c.removed, 0);
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		struct stat now = facts(paths[i]);

		assert_int_equal(now.st_ino, before[i].st_ino);
		assert_int_equal(now.st_ctim.tv_sec, before[i].st_ctim.tv_sec);
		assert_int_equal(now.st_ctim.tv_nsec, before[i].st_ctim.tv_nsec);
	}

	/* Only a mode: the copy stays the same file. */
	assert_int_equal(chmod(at("src/two"), 0700), 0);
	c = update(&local);
	assert_true(c.changed);
	assert_int_equal(c.copied, 0);
	assert_int_equal(facts("root/workspace/two").st_ino, before[1].st_ino);
	assert_int_equal(facts("root/workspace/two").st_mode & 07777, 0700);
	/* What the worker did to it is undone, set-id bits too. */
	assert_int_equal(chmod(at("root/workspace/two"), 04700), 0);
	update(&local);
	assert_int_equal(facts("root/workspace/two").st_mode & 07777, 0700);
	/* Same size, another time. */
	put("root/workspace/two", "X");
	stamp("root/workspace/two", 5, 5);
	update(&local);
	assert_text("root/workspace/two", "2");
}

static void a_changed_type_is_replaced(void **state)
{
	folder("src/dir");
	put("src/dir/inside", "i");
	put("src/file", "f");
	assert_int_equal(symlink("file", at("src/link")), 0);
	/* In the workspace every one of them is something else, in turns. */
	for (int turn = 0; turn < 4; turn++) {
		static const char *const names[] = {"dir", "file", "link"};

		for (int i = 0; i < 3; i++) {
			cleanup_free char *path = xasprintf("root/workspace/%s", names[i]);
			cleanup_free char *deep = xasprintf("%s/node_modules", path);

			assert_int_equal(path_remove_at(AT_FDCWD, at(path)), 0);
			if (turn == 0) {
				assert_int_equal(mkfifo(at(path), 0600), 0);
			} else if (turn == 1) {
				assert_int_equal(symlink("/etc", at(path)), 0);
			} else if (turn == 2) {
				folder(path);
				if (i)
					folder(deep);
			} else {
				put(path, "other");
			}
		}
		update(&local);
		assert_text("root/workspace/dir/inside", "i");
		assert_text("root/workspace/file", "f");
		assert_true(S_ISLNK(facts("root/workspace/link").st_mode));
		assert_true(S_ISREG(facts("root/workspace/file").st_mode));
		assert_true(S_ISDIR(facts("root/workspace/dir").st_mode));
	}
}

static void deletions_spare_artefacts(void **state)
{
	folder("src/packages");
	folder("src/packages/a");
	put("src/packages/a/code.js", "x");
	put("src/stays", "x");
	update(&local);
	folder("root/workspace/packages/a/node_modules");
	put("root/workspace/packages/a/node_modules/m.js", "m");
	folder("root/workspace/packages/a/tmp");
	put("root/workspace/packages/a/tmp/f", "f");
	folder("root/workspace/own");
	folder("root/workspace/own/deep");
	put("root/workspace/own/deep/f", "f");
	folder("root/workspace/own/.venv");
	folder("root/workspace/own/gone");
	put("root/workspace/target", "a file called so");
	put("root/workspace/own/note", "n");
	update(&local);
	assert_text("root/workspace/packages/a/node_modules/m.js", "m");
	assert_false(there("root/workspace/packages/a/tmp"));
	assert_true(there("root/workspace/own/.venv"));
	assert_false(there("root/workspace/own/deep"));
	assert_false(there("root/workspace/own/gone"));
	assert_false(there("root/workspace/own/note"));
	assert_text("root/workspace/target", "a file called so");
	/* The package goes from the source, what was installed in it stays reachable. */
	assert_int_equal(path_remove_at(AT_FDCWD, at("src/packages")), 0);
	update(&local);
	assert_text("root/workspace/packages/a/node_modules/m.js", "m");
	assert_false(there("root/workspace/packages/a/code.js"));
	assert_false(update(&local).changed);
}

static void artefacts_of_the_host_are_not_copied(void **state)
{
	folder("src/dist");
	put("src/dist/app.js", "host");
	folder("root/workspace/dist");
	put("root/workspace/dist/app.js", "guest");
	update(&local);
	assert_text("root/workspace/dist/app.js", "guest");
	/* In a bundle they belong to it, and to what install adds. */
	set_digest('a');
	update(&bundle);
	assert_text("root/workspace/dist/app.js", "host");
	put("root/workspace/dist/more.js", "guest");
	folder("root/workspace/.venv");
	put("root/workspace/other", "gone next time");
	update(&bundle);
	assert_text("root/workspace/dist/more.js", "guest");
	assert_true(there("root/workspace/.venv"));
	assert_false(there("root/workspace/other"));
	assert_text("root/workspace/dist/app.js", "host");
}

static void hard_links_and_holes(void **state)
{
	cleanup_fd int fd = -1;

	put("src/one", "same");
	assert_int_equal(link(at("src/one"), at("src/two")), 0);
	folder("src/z");
	assert_int_equal(link(at("src/one"), at("src/z/three")), 0);
	fd = open(at("src/sparse"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	assert_int_equal(ftruncate(fd, 64 << 20), 0);
	assert_int_equal(fd_pwrite_all(fd, "end", 3, (64 << 20) - 3), 0);
	update(&local);
	assert_int_equal(facts("root/workspace/one").st_nlink, 3);
	assert_int_equal(
		facts("root/workspace/one").st_ino, facts("root/workspace/z/three").st_ino);
	assert_int_equal(facts("root/workspace/sparse").st_size, 64 << 20);
	if (facts("src/sparse").st_blocks * 512 < 1 << 20)
		assert_true(facts("root/workspace/sparse").st_blocks * 512 < 1 << 20);
	/* A link that the worker made to the old copy keeps the old content. */
	folder("root/workspace/target");
	assert_int_equal(link(at("root/workspace/one"), at("root/workspace/target/mine")), 0);
	put("src/one", "news");
	stamp("src/one", 77, 0);
	update(&local);
	assert_text("root/workspace/target/mine", "same");
	assert_text("root/workspace/two", "news");
}

static void errors_name_the_path(void **state)
{
	struct rlimit old, low = {1000, RLIM_INFINITY};
	char text[5000];
	struct sync_counts counts;
	struct err e = ERR_INIT;

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	folder("src/some");
	folder("src/some/where");
	put("src/some/where/big.bin", text);
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	low.rlim_max = old.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
	int r = workspace_update(root_fd, src_fd, &local, &counts, &e);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_int_equal(r, -EFBIG);
	assert_non_null(strstr(e.text, "some/where/big.bin"));
	assert_non_null(strstr(e.text, "File too large"));
	/* And the next time it goes on. */
	assert_text("root/var/.iii-source", "changing -\n");
	update(&local);
	assert_text("root/workspace/some/where/big.bin", text);
}

/* --- deep trees --- */

/* Makes folders below `fd` and a file at the bottom; returns to where it was by descriptors. */
static void make_deep(const char *below, unsigned depth, const char *leaf)
{
	int fd = open(at(below), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	for (unsigned i = 0; i < depth; i++) {
		int next;

		assert_int_equal(mkdirat(fd, "d", 0755), 0);
		next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		close(fd);
		fd = next;
	}
	close(openat(fd, leaf, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	close(fd);
}

static unsigned depth_of(const char *below, const char *leaf)
{
	int fd = open(at(below), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	unsigned depth = 0;
	struct stat st;

	while (fstatat(fd, leaf, &st, 0) < 0) {
		int next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

		close(fd);
		fd = next;
		if (fd < 0)
			return 0;
		depth++;
	}
	close(fd);
	return depth;
}

static void any_depth_with_few_descriptors(void **state)
{
	struct rlimit old, low;

	make_deep("src", 2500, "leaf");
	folder("root/workspace/e");
	make_deep("root/workspace/e", 2500, "leaf");
	folder("root/workspace/f");
	make_deep("root/workspace/f", 2500, ".git");
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	low = (struct rlimit){160, old.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	update(&local);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	assert_int_equal(depth_of("root/workspace", "leaf"), 2500);
	assert_false(there("root/workspace/e"));
	assert_int_equal(depth_of("root/workspace/f", ".git"), 2500);
}

/* --- random trees and the model --- */

static uint64_t seed = 1;

static unsigned rnd(unsigned n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (unsigned)(seed >> 33) % n;
}

struct node {
	char *path;
	char type; /* d f l */
	mode_t mode;
	struct timespec mtime;
	char *text; /* content or target */
};

struct tree {
	struct node *nodes;
	size_t n, cap;
};

static void tree_done(struct tree *t)
{
	for (size_t i = 0; i < t->n; i++) {
		free(t->nodes[i].path);
		free(t->nodes[i].text);
	}
	free(t->nodes);
	*t = (struct tree){0};
}

static void tree_add(struct tree *t, struct node node)
{
	if (t->n == t->cap) {
		t->cap = t->cap ? t->cap * 2 : 64;
		t->nodes = xrealloc(t->nodes, t->cap, sizeof(*t->nodes));
	}
	t->nodes[t->n++] = node;
}

static const struct node *tree_find(const struct tree *t, const char *path, size_t len)
{
	for (size_t i = 0; i < t->n; i++)
		if (strlen(t->nodes[i].path) == len && memcmp(t->nodes[i].path, path, len) == 0)
			return &t->nodes[i];
	return NULL;
}

static void tree_read(struct tree *t, const char *root, const char *below)
{
	cleanup_free char *whole = xasprintf("%s/%s", root, below);
	DIR *dir = opendir(at(whole));
	struct dirent *d;

	assert_non_null(dir);
	while ((d = readdir(dir))) {
		cleanup_free char *path = NULL, *shown = NULL;
		struct node node = {0};
		struct stat st;
		char target[PATH_MAX];
		ssize_t n;

		if (str_eq(d->d_name, ".") || str_eq(d->d_name, ".."))
			continue;
		path = *below ? xasprintf("%s/%s", below, d->d_name) : xstrdup(d->d_name);
		shown = xasprintf("%s/%s", root, path);
		st = facts(shown);
		node = (struct node){
			.path = xstrdup(path), .mode = st.st_mode & 07777, .mtime = st.st_mtim};
		if (S_ISDIR(st.st_mode)) {
			node.type = 'd';
		} else if (S_ISLNK(st.st_mode)) {
			node.type = 'l';
			n = readlink(at(shown), target, sizeof(target));
			node.text = xstrndup(target, n);
		} else {
			node.type = 'f';
			assert_int_equal(
				fd_slurp_at(AT_FDCWD, at(shown), 1 << 20, &node.text, NULL), 0);
		}
		tree_add(t, node);
		if (node.type == 'd')
			tree_read(t, root, path);
	}
	closedir(dir);
}

/* One random entry somewhere below `root`: made, changed or removed. */
static void mutate(const char *root)
{
	static const char *const names[] = {
		"a", "b", "c", "node_modules", "dist", "x.js", ".git", "lib"};
	char path[PATH_MAX];
	size_t len = (size_t)snprintf(path, sizeof(path), "%s", root);
	unsigned depth = 1 + rnd(4), what = rnd(10);
	struct stat st;

	for (unsigned i = 0; i < depth; i++) {
		len += (size_t)snprintf(
			path + len, sizeof(path) - len, "/%s", names[rnd(ARRAY_LEN(names))]);
		if (i + 1 < depth && lstat(at(path), &st) < 0)
			mkdir(at(path), 0755);
		else if (i + 1 < depth && !S_ISDIR(st.st_mode))
			return;
	}
	if (what < 2)
		path_remove_at(AT_FDCWD, at(path));
	else if (what < 3 && lstat(at(path), &st) == 0 && !S_ISLNK(st.st_mode))
		chmod(at(path), (S_ISDIR(st.st_mode) ? 0700 : 0400) | rnd(2) * 055);
	else if (what < 5)
		mkdir(at(path), 0755);
	else if (what < 6)
		(void)!symlink(rnd(2) ? "a" : "../b", at(path));
	else if (lstat(at(path), &st) < 0 || S_ISREG(st.st_mode)) {
		char text[64];

		snprintf(text, sizeof(text), "%u", rnd(1000000));
		put(path, text);
		stamp(path, 1000 + rnd(3), rnd(2));
	}
}

static bool is_artefact_below(const char *path)
{
	for (const char *s = path; s; s = strchr(s, '/') ? strchr(s, '/') + 1 : NULL) {
		cleanup_free char *name = xstrndup(s, strcspn(s, "/"));

		if (worker_is_artefact(name))
			return true;
	}
	return false;
}

/* Every folder on the way to `path` may be one in the source. */
static bool is_reachable(const struct tree *src, const char *path)
{
	for (const char *s = strchr(path, '/'); s; s = strchr(s + 1, '/')) {
		const struct node *n = tree_find(src, path, s - path);

		if (n && n->type != 'd')
			return false;
	}
	return true;
}

static void assert_node(const struct node *have, const struct node *want, bool way)
{
	if (have->type != want->type)
		fail_msg("%s is '%c', not '%c'", want->path, have->type, want->type);
	if (way)
		return;
	if (want->text && !str_eq(have->text, want->text))
		fail_msg("%s holds %s, not %s", want->path, have->text, want->text);
	if (want->type != 'l' && have->mode != want->mode)
		fail_msg("%s has mode %o, not %o", want->path, have->mode, want->mode);
	if (have->mtime.tv_sec != want->mtime.tv_sec || have->mtime.tv_nsec != want->mtime.tv_nsec)
		fail_msg("%s has another time", want->path);
}

static void assert_model(
	const struct tree *src, const struct tree *before, const struct tree *after, bool is_bundle)
{
	size_t expected = 0;

	for (size_t i = 0; i < src->n; i++) {
		const struct node *n = &src->nodes[i], *have;

		if (!is_bundle && is_artefact_below(n->path))
			continue;
		have = tree_find(after, n->path, strlen(n->path));
		if (!have)
			fail_msg("%s is missing", n->path);
		assert_node(have, n, false);
		expected++;
	}
	for (size_t i = 0; i < after->n; i++) {
		const struct node *n = &after->nodes[i], *old, *s;
		bool holds = false;

		s = tree_find(src, n->path, strlen(n->path));
		if (s && (is_bundle || !is_artefact_below(n->path)))
			continue;
		old = tree_find(before, n->path, strlen(n->path));
		if (!old)
			fail_msg("%s came from nowhere", n->path);
		/* Artefacts as they were; else a folder that leads to one. */
		for (size_t k = 0; k < after->n && !holds; k++)
			holds = str_starts(after->nodes[k].path, n->path) &&
				after->nodes[k].path[strlen(n->path)] == '/' &&
				is_artefact_below(after->nodes[k].path);
		if (!is_artefact_below(n->path) && !(n->type == 'd' && holds))
			fail_msg("%s should be gone", n->path);
		assert_node(n, old, n->type == 'd');
	}
	for (size_t i = 0; i < before->n; i++) {
		const struct node *n = &before->nodes[i];

		if (is_artefact_below(n->path) &&
			is_reachable(is_bundle ? src : &(struct tree){0}, n->path) &&
			is_reachable(src, n->path) && !tree_find(after, n->path, strlen(n->path)))
			fail_msg("%s was not spared", n->path);
	}
	assert_true(expected <= after->n);
}

static void random_trees(bool is_bundle, unsigned rounds)
{
	for (unsigned round = 0; round < rounds; round++) {
		struct tree src = {0}, before = {0}, after = {0};

		for (unsigned i = rnd(25); i > 0; i--)
			mutate("src");
		for (unsigned i = rnd(12); i > 0; i--)
			mutate("root/workspace");
		tree_read(&src, "src", "");
		tree_read(&before, "root/workspace", "");
		update(is_bundle ? &bundle : &local);
		tree_read(&after, "root/workspace", "");
		assert_model(&src, &before, &after, is_bundle);
		if (rnd(4) == 0)
			assert_false(update(is_bundle ? &bundle : &local).changed);
		tree_done(&src);
		tree_done(&before);
		tree_done(&after);
	}
}

/* Same size and time but other content is not told apart, here as in rsync: the trees above never
 * make it, since the worker's changes get times that the source may have too. So the workspace is
 * made distrusted where that could happen. */
static void distrust(void)
{
	put("root/var/.iii-source", "changing -\n");
}

static void random_local_trees(void **state)
{
	update(&local);
	for (int i = 0; i < 60; i++) {
		distrust();
		seed = 77 + i;
		random_trees(false, 1);
	}
}

static void random_bundle_trees(void **state)
{
	set_digest('b');
	update(&bundle);
	for (int i = 0; i < 60; i++) {
		cleanup_free char *line = xasprintf("changing %s\n", bundle.source_digest);

		put("root/var/.iii-source", line);
		seed = 7777 + i;
		random_trees(true, 1);
	}
}

/* --- what is known of the last time --- */

static void a_new_bundle_empties_first(void **state)
{
	put("src/code", "1");
	put("root/workspace/of the image", "x");
	set_digest('1');
	update(&bundle);
	assert_false(there("root/workspace/of the image"));
	folder("root/workspace/node_modules");
	update(&bundle);
	assert_true(there("root/workspace/node_modules"));
	set_digest('2');
	update(&bundle);
	assert_false(there("root/workspace/node_modules"));
	assert_text("root/workspace/code", "1");
	/* Interrupted: nothing has run since, so it begins anew, whoever comes next. */
	put("root/var/.iii-source", "emptying\n");
	folder("root/workspace/node_modules");
	update(&local);
	assert_false(there("root/workspace/node_modules"));
	assert_text("root/var/.iii-source", "complete -\n");
	/* From a local source to a bundle. */
	folder("root/workspace/node_modules");
	update(&bundle);
	assert_false(there("root/workspace/node_modules"));
}

static void an_unreadable_state_is_no_state(void **state)
{
	static const char *const texts[] = {"", "complete", "complete \n", "done -\n",
		"complete -\nmore\n", "\n\n", "emptying", "\xff\xff"};

	put("src/f", "right");
	stamp("src/f", 50, 50);
	update(&local);
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		put("root/var/.iii-source", texts[i]);
		put("root/workspace/f", "wrong");
		stamp("root/workspace/f", 50, 50);
		update(&local);
		assert_text("root/workspace/f", "right");
		assert_text("root/var/.iii-source", "complete -\n");
	}
	/* Whatever the worker put there. */
	for (int i = 0; i < 3; i++) {
		assert_int_equal(path_remove_at(AT_FDCWD, at("root/var/.iii-source")), 0);
		if (i == 0)
			assert_int_equal(mkfifo(at("root/var/.iii-source"), 0600), 0);
		else if (i == 1)
			assert_int_equal(symlink("/dev/zero", at("root/var/.iii-source")), 0);
		else
			put("root/var/.iii-source", "complete -\n");
		update(&local);
		assert_text("root/var/.iii-source", "complete -\n");
	}
}

static void strange_images(void **state)
{
	put("src/f", "1");
	put("root/elsewhere", "untouched");
	assert_int_equal(rmdir(at("root/workspace")), 0);
	update(&local); /* none */
	assert_text("root/workspace/f", "1");
	assert_int_equal(path_remove_at(AT_FDCWD, at("root/workspace")), 0);
	put("root/workspace", "a file");
	update(&local);
	assert_text("root/workspace/f", "1");
	assert_int_equal(path_remove_at(AT_FDCWD, at("root/workspace")), 0);
	folder("root/home");
	put("root/home/mine", "m");
	assert_int_equal(symlink("home", at("root/workspace")), 0);
	assert_int_equal(path_remove_at(AT_FDCWD, at("root/var")), 0);
	assert_int_equal(symlink("/no/where", at("root/var")), 0);
	update(&local);
	assert_true(S_ISDIR(facts("root/workspace").st_mode));
	assert_text("root/workspace/f", "1");
	assert_text("root/home/mine", "m");
	assert_text("root/elsewhere", "untouched");
	assert_true(S_ISDIR(facts("root/var").st_mode));
	/* Source and target are one folder. */
	struct sync_counts counts;
	struct err e = ERR_INIT;
	cleanup_fd int same = open(at("root/workspace"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(workspace_update(root_fd, same, &local, &counts, &e), -ELOOP);
	assert_non_null(strstr(e.text, "/workspace"));
}

/* --- crashes --- */

/* Ends as a crash of the VM would leave it: what was just copied has size and time, but no bytes.
 */
static void lose_data(const char *below)
{
	struct tree t = {0};

	tree_read(&t, below, "");
	for (size_t i = 0; i < t.n; i++) {
		cleanup_free char *path = xasprintf("%s/%s", below, t.nodes[i].path);
		cleanup_free char *zeros = NULL;

		if (t.nodes[i].type != 'f' || !rnd(2))
			continue;
		zeros = xstrdup(t.nodes[i].text);
		memset(zeros, '0', strlen(zeros));
		put(path, zeros);
		stamp(path, t.nodes[i].mtime.tv_sec, t.nodes[i].mtime.tv_nsec);
	}
	tree_done(&t);
}

static void crash_points(void **state)
{
	for (int i = 0; i < 400; i++) {
		cleanup_free char *path = xasprintf("src/f%d", i % 200);

		put(path, "content of some length");
		stamp(path, 1000 + i, 0);
	}
	set_digest('c');
	for (int turn = 0; turn < 60; turn++) {
		const struct worker_job *job = turn % 3 ? &local : &bundle;
		struct tree src = {0}, after = {0};
		struct sync_counts counts;
		int status;
		pid_t pid;

		seed = 100 + turn;
		if (turn % 5 == 0)
			set_digest((char)('0' + turn % 10));
		for (int k = 0; k < 200; k++) {
			cleanup_free char *path = xasprintf("src/f%u", rnd(200));
			char text[32];

			snprintf(text, sizeof(text), "turn %d of %d", turn, k);
			put(path, text);
		}
		pid = fork();
		if (pid == 0)
			_exit(workspace_update(root_fd, src_fd, job, &counts, NULL) < 0);
		/* Not a measure of anything: any moment will do. */
		struct timespec some = {0, (long)rnd(12) * 1000000};
		nanosleep(&some, NULL);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (WIFSIGNALED(status) && facts("root/workspace").st_mode) {
			cleanup_free char *text = NULL;

			/* Only what was announced can have been lost. */
			if (fd_slurp_at(AT_FDCWD, at("root/var/.iii-source"), 200, &text, NULL) ==
					0 &&
				!str_starts(text, "complete"))
				lose_data("root/workspace");
		}
		update(job);
		tree_read(&src, "src", "");
		tree_read(&after, "root/workspace", "");
		assert_int_equal(src.n, after.n);
		for (size_t n = 0; n < src.n; n++)
			assert_node(tree_find(&after, src.nodes[n].path, strlen(src.nodes[n].path)),
				&src.nodes[n], false);
		tree_done(&src);
		tree_done(&after);
	}
}

/* --- the marker --- */

static struct worker_job scripts = {
	.name = (char *)"w", .setup = (char *)"s", .install = (char *)"i", .run = (char *)"r"};

static void assert_todo(bool run_setup, bool install, bool write)
{
	struct marker_verdict v;
	struct marker m;

	marker_read(root_fd, &m);
	v = marker_compare(&m, &scripts);
	assert_int_equal(v.setup, run_setup);
	assert_int_equal(v.install, install);
	assert_int_equal(v.write, write);
}

static void marker_decides(void **state)
{
	struct err e = ERR_INIT;

	memset(scripts.setup_digest, 'a', WORKER_DIGEST_LEN);
	memset(scripts.install_digest, 'b', WORKER_DIGEST_LEN);
	assert_todo(true, true, true);
	put("root/var/.iii-prepared", ""); /* legacy */
	assert_todo(true, true, true);
	assert_int_equal(marker_write(root_fd, &scripts, &e), 0);
	assert_todo(false, false, false);
	memset(scripts.install_digest, 'c', WORKER_DIGEST_LEN);
	assert_todo(false, true, true);
	memset(scripts.setup_digest, 'd', WORKER_DIGEST_LEN);
	assert_todo(true, true, true);
	scripts.setup = NULL;
	assert_todo(false, true, true);
	scripts.install = NULL;
	assert_todo(false, false, true);
	scripts.setup_digest[0] = scripts.install_digest[0] = '\0';
	assert_int_equal(marker_write(root_fd, &scripts, &e), 0);
	assert_todo(false, false, false);
	scripts.setup = (char *)"s";
	scripts.install = (char *)"i";
}

static void marker_takes_nothing_but_digests(void **state)
{
	char good[131], text[160];
	struct marker m;

	for (int i = 0; i < 130; i++)
		good[i] = i == 64 || i == 129 ? '\n' : "0123456789abcdef"[i % 16];
	good[130] = '\0';
	marker_parse(good, 130, &m);
	assert_int_equal(strlen(m.setup), 64);
	assert_memory_equal(m.install, good + 65, 64);
	for (size_t i = 0; i < 130; i++) {
		memcpy(text, good, 130);
		text[i] = 'G';
		marker_parse(text, 130, &m);
		assert_string_equal(m.setup, "");
		assert_string_equal(m.install, "");
		marker_parse(good, i, &m);
		assert_string_equal(m.setup, "");
	}
	snprintf(text, sizeof(text), "%s\n", good);
	marker_parse(text, 131, &m);
	assert_string_equal(m.setup, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_fresh_copy_has_everything, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_alike_is_left_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(a_changed_type_is_replaced, setup, teardown),
		cmocka_unit_test_setup_teardown(deletions_spare_artefacts, setup, teardown),
		cmocka_unit_test_setup_teardown(
			artefacts_of_the_host_are_not_copied, setup, teardown),
		cmocka_unit_test_setup_teardown(hard_links_and_holes, setup, teardown),
		cmocka_unit_test_setup_teardown(errors_name_the_path, setup, teardown),
		cmocka_unit_test_setup_teardown(any_depth_with_few_descriptors, setup, teardown),
		cmocka_unit_test_setup_teardown(random_local_trees, setup, teardown),
		cmocka_unit_test_setup_teardown(random_bundle_trees, setup, teardown),
		cmocka_unit_test_setup_teardown(a_new_bundle_empties_first, setup, teardown),
		cmocka_unit_test_setup_teardown(an_unreadable_state_is_no_state, setup, teardown),
		cmocka_unit_test_setup_teardown(strange_images, setup, teardown),
		cmocka_unit_test_setup_teardown(crash_points, setup, teardown),
		cmocka_unit_test_setup_teardown(marker_decides, setup, teardown),
		cmocka_unit_test_setup_teardown(marker_takes_nothing_but_digests, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
