/* The agent's file operations ls, stat, mkdir, rm, chmod, mv (sandbox contract §5.1-5.6) on real
 * file systems: one on disk, one on tmpfs. */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "fs_calls.h"

#include "base/str.h"

/* Owners, devices and mounts are for root only: tests/skips.txt allows as_root_* to skip. */
static void need_root(void)
{
	if (geteuid() != 0)
		skip();
}

/* --- ls, stat --- */

static void ls_sorts_by_bytes_and_shows_all(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *link = in(d, "link"), *odd = in(d, "\xff");
	json_object *reply, *entries, *name;
	static const char *const names[] = {".h", "B", "a", "link", "sub", "\xef\xbf\xbd"};

	put(d, "a", "12345");
	put(d, "B", "");
	put(d, ".h", "");
	put_bytes(odd, "", 0);
	make(d, "sub");
	assert_int_equal(symlink("sub", link), 0);
	reply = call_ok(fs_ls, d, "{'path':'@'}");
	entries = json_object_object_get(reply, "entries");
	assert_int_equal(json_object_array_length(entries), ARRAY_LEN(names));
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		name = json_object_object_get(json_object_array_get_idx(entries, i), "name");
		assert_string_equal(json_object_get_string(name), names[i]);
	}
	json_object_put(reply);
	/* The members, on a file whose time is known. */
	put(d, "sub/f", "abc");
	{
		cleanup_free char *f = in(d, "sub/f");
		const struct timespec t[2] = {{.tv_sec = 5}, {.tv_sec = -7, .tv_nsec = 1}};

		assert_int_equal(chmod(f, 04751), 0);
		assert_int_equal(utimensat(AT_FDCWD, f, t, 0), 0);
	}
	replies(fs_ls, d, "{'path':'@/sub'}",
		"{'entries':[{'is_dir':false,'is_symlink':false,'mode':'4751','mtime':-7,'name':'f'"
		","
		"'size':3}]}");
	replies(fs_ls, d, "{'path':'@/link/'}",
		"{'entries':[{'is_dir':false,'is_symlink':false,'mode':'4751','mtime':-7,'name':'f'"
		","
		"'size':3}]}");
	make(d, "empty");
	replies(fs_ls, d, "{'path':'@/empty'}", "{'entries':[]}");
	remove_folder(d);
}

static void ls_refuses_what_is_no_folder(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *link = in(d, "link"), *fifo = in(d, "fifo");

	put(d, "f", "");
	assert_int_equal(symlink(".", link), 0);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	fails(fs_ls, d, "{'path':'@/f'}", "S212", "/f");
	fails(fs_ls, d, "{'path':'@/fifo'}", "S212", "/fifo");
	fails(fs_ls, d, "{'path':'@/link'}", "S212", "/link/");
	fails(fs_ls, d, "{'path':'@/nope'}", "S211", "/nope");
	fails(fs_ls, d, "{'path':'@/f/x'}", "S212", "/f/x");
	fails(fs_ls, d, "{'path':'tmp'}", "S210", "path");
	fails(fs_ls, d, "{'path':''}", "S210", "path");
	fails(fs_ls, d, "{'path':'/tmp\\u0000x'}", "S210", "path");
	fails(fs_ls, d, "{}", "S210", "path");
	remove_folder(d);
}

static void ls_of_many_entries_is_answered_or_refused_whole(void **state)
{
	char *d = new_folder("/dev/shm");
	cleanup_fd int fd = open(d, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char name[256];
	json_object *reply;

	for (int i = 0; i < 20000; i++) {
		snprintf(name, sizeof(name), "%0*d", 20, i);
		close(openat(fd, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	}
	reply = call_ok(fs_ls, d, "{'path':'@'}");
	assert_int_equal(json_object_array_length(json_object_object_get(reply, "entries")), 20000);
	json_object_put(reply);
	for (int i = 0; i < 60000; i++) {
		snprintf(name, sizeof(name), "%0*d", 250, i);
		assert_int_equal(linkat(fd, "00000000000000000000", fd, name, 0), 0);
	}
	fails(fs_ls, d, "{'path':'@'}", "S216", "too many entries");
	remove_folder(d);
}

static void stat_describes_links_themselves(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *link = in(d, "link"), *dirlink = in(d, "dl");
	json_object *reply;

	assert_int_equal(symlink("nowhere", link), 0);
	assert_int_equal(symlink(".", dirlink), 0);
	reply = call_ok(fs_stat, d, "{'path':'@/link'}");
	assert_true(json_object_get_boolean(json_object_object_get(reply, "is_symlink")));
	assert_false(json_object_get_boolean(json_object_object_get(reply, "is_dir")));
	assert_string_equal(json_object_get_string(json_object_object_get(reply, "mode")), "0777");
	assert_string_equal(json_object_get_string(json_object_object_get(reply, "name")), "link");
	assert_int_equal(json_object_object_length(reply), 6);
	json_object_put(reply);
	reply = call_ok(fs_stat, d, "{'path':'@/dl/'}");
	assert_true(json_object_get_boolean(json_object_object_get(reply, "is_dir")));
	assert_string_equal(json_object_get_string(json_object_object_get(reply, "name")), "dl");
	json_object_put(reply);
	fails(fs_stat, d, "{'path':'@/nope'}", "S211", "/nope");
	fails(fs_stat, d, "{'path':'@/nope/x'}", "S211", "/nope/x");
	remove_folder(d);
}

static void stat_names_the_last_component(void **state)
{
	static const char *const rows[][2] = {{"/tmp/", "tmp"}, {"/tmp//", "tmp"}, {"/", "/"},
		{"//", "//"}, {"/tmp/..", "/tmp/.."}, {"/tmp/../", "/tmp/../"}, {"/tmp/.", "."},
		{"/proc/self/", "self"}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		json_object *reply = call_ok(fs_stat, rows[i][0], "{'path':'@'}");

		assert_string_equal(
			json_object_get_string(json_object_object_get(reply, "name")), rows[i][1]);
		json_object_put(reply);
	}
}

/* --- mkdir --- */

static void mkdir_sets_modes_exactly(void **state)
{
	char *d = new_folder(NULL);
	mode_t old = umask(077);

	replies(fs_mkdir, d, "{'path':'@/d'}", "{'created':true}");
	assert_int_equal(look_at(d, "d").st_mode & 07777, 0755);
	replies(fs_mkdir, d, "{'path':'@/p/q','parents':true,'mode':'0700'}", "{'created':true}");
	assert_int_equal(look_at(d, "p").st_mode & 07777, 0755);
	assert_int_equal(look_at(d, "p/q").st_mode & 07777, 0700);
	replies(fs_mkdir, d, "{'path':'@/m/','mode':'1777'}", "{'created':true}");
	assert_int_equal(look_at(d, "m").st_mode & 07777, 01777);
	replies(fs_mkdir, d, "{'path':'@/g','mode':'2770'}", "{'created':true}");
	replies(fs_mkdir, d, "{'path':'@/g/x/y','mode':'000755','parents':true}",
		"{'created':true}");
	assert_int_equal(look_at(d, "g/x").st_mode & 07777, 0755);
	assert_int_equal(look_at(d, "g/x/y").st_mode & 07777, 0755);
	umask(old);
	remove_folder(d);
}

static void mkdir_of_what_exists(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *link = in(d, "link"), *dangling = in(d, "dangling");

	make(d, "d");
	put(d, "f", "");
	assert_int_equal(symlink("d", link), 0);
	assert_int_equal(symlink("nowhere", dangling), 0);
	fails(fs_mkdir, d, "{'path':'@/d'}", "S213", "/d");
	replies(fs_mkdir, d, "{'path':'@/d','parents':true,'mode':'0700'}", "{'created':false}");
	assert_int_equal(look_at(d, "d").st_mode & 07777, 0755);
	replies(fs_mkdir, d, "{'path':'@/link','parents':true}", "{'created':false}");
	replies(fs_mkdir, d, "{'path':'@/d/.','parents':true}", "{'created':false}");
	fails(fs_mkdir, d, "{'path':'@/link'}", "S213", "/link");
	fails(fs_mkdir, d, "{'path':'@/f','parents':true}", "S213", "not a folder");
	fails(fs_mkdir, d, "{'path':'@/dangling','parents':true}", "S213", "/dangling");
	fails(fs_mkdir, d, "{'path':'@/dangling/','parents':true}", "S213", "/dangling");
	fails(fs_mkdir, d, "{'path':'@/f/x'}", "S212", "/f/x");
	fails(fs_mkdir, d, "{'path':'@/f/x','parents':true}", "S212", "/f");
	fails(fs_mkdir, d, "{'path':'@/no/x'}", "S211", "parent not found: ");
	fails(fs_mkdir, d, "{'path':'@/no/x//'}", "S211", "/no");
	/* S211 is said only where making folders would help. */
	fails(fs_mkdir, d, "{'path':'@/dangling/x'}", "S212", "/dangling is a link to nothing");
	fails(fs_mkdir, d, "{'path':'@/dangling/x','parents':true}", "S212", "/dangling is a link");
	if (access("/proc/sys", F_OK) == 0) {
		fails(fs_mkdir, d, "{'path':'/proc/no'}", "S215", "in /proc:");
		fails(fs_mkdir, d, "{'path':'/proc/no/x'}", "S215", "in /proc:");
		fails(fs_mkdir, d, "{'path':'/proc/no/x','parents':true}", "S215", "in /proc:");
	}
	fails(fs_mkdir, d, "{'path':'/'}", "S213", "/");
	replies(fs_mkdir, d, "{'path':'/','parents':true}", "{'created':false}");
	remove_folder(d);
}

static void modes_are_octal_digits(void **state)
{
	static const char *const bad[] = {"0o755", "", "8", "+755", " 755", "755 ", "10000", "u+x",
		"-1", "0x1ff", "77777777777777777777777"};
	char *d = new_folder(NULL);

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cleanup_free char *req = xasprintf("{'path':'@/x','mode':'%s'}", bad[i]);

		fails(fs_mkdir, d, req, "S210", "mode");
		fails(fs_mkdir, d, req, "S210", bad[i]);
		fails(fs_chmod, d, req, "S210", "mode");
	}
	assert_false(exists(d, "x"));
	/* The mode is looked at before the path. */
	fails(fs_mkdir, d, "{'path':'x','mode':'9'}", "S210", "mode");
	remove_folder(d);
}

static void racing_mkdirs_create_once(void **state)
{
	char *d = new_folder(NULL);

	for (int round = 0; round < 100; round++) {
		cleanup_free char *text = xasprintf("{'path':'@/r%d/a/b/c','parents':true}", round);
		int created = 0;
		pid_t pids[4];

		for (size_t i = 0; i < ARRAY_LEN(pids); i++) {
			pids[i] = fork();
			if (pids[i] == 0) {
				json_object *reply = call_ok(fs_mkdir, d, text);

				_exit(json_object_get_boolean(
					json_object_object_get(reply, "created")));
			}
		}
		for (size_t i = 0; i < ARRAY_LEN(pids); i++) {
			int status;

			assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
			assert_true(WIFEXITED(status));
			created += WEXITSTATUS(status);
		}
		assert_int_equal(created, 1);
	}
	remove_folder(d);
}

/* --- rm --- */

static void rm_removes_and_never_follows(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *link = in(d, "link"), *inner = in(d, "tree/link"), *fifo = in(d, "fifo");

	make(d, "target");
	put(d, "target/f", "keep");
	assert_int_equal(symlink("target", link), 0);
	replies(fs_rm, d, "{'path':'@/link/','recursive':true}", "{'removed':true}");
	assert_false(exists(d, "link"));
	make(d, "tree");
	make(d, "tree/sub");
	put(d, "tree/sub/f", "");
	assert_int_equal(symlink("../target", inner), 0);
	fails(fs_rm, d, "{'path':'@/tree'}", "S214", "/tree");
	assert_true(exists(d, "tree/sub/f"));
	replies(fs_rm, d, "{'path':'@/tree','recursive':true}", "{'removed':true}");
	assert_false(exists(d, "tree"));
	holds(d, "target/f", "keep");
	replies(fs_rm, d, "{'path':'@/target/f','recursive':true}", "{'removed':true}");
	replies(fs_rm, d, "{'path':'@/target'}", "{'removed':true}");
	assert_int_equal(mkfifo(fifo, 0600), 0);
	replies(fs_rm, d, "{'path':'@/fifo'}", "{'removed':true}");
	make(d, "dot");
	make(d, "dot/x");
	replies(fs_rm, d, "{'path':'@/dot/x/..','recursive':true}", "{'removed':true}");
	assert_false(exists(d, "dot"));
	fails(fs_rm, d, "{'path':'@/nope'}", "S211", "/nope");
	fails(fs_rm, d, "{'path':'@/nope','recursive':true}", "S211", "/nope");
	remove_folder(d);
}

static void rm_never_removes_the_root(void **state)
{
	fails(fs_rm, "", "{'path':'/','recursive':true}", "S210", "/");
	fails(fs_rm, "", "{'path':'///','recursive':true}", "S210", "/");
	fails(fs_rm, "", "{'path':'/tmp/..','recursive':true}", "S210", "/");
	fails(fs_rm, "", "{'path':'/.','recursive':true}", "S210", "/");
	fails(fs_rm, "", "{'path':'/proc/self/root/.','recursive':true}", "S210", "/");
}

/* Folders in each other, `levels` of them. */
static void make_deep(const char *d, const char *name, int levels)
{
	cleanup_fd int at = open(d, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	for (int i = 0; i < levels; i++) {
		int next;

		assert_int_equal(mkdirat(at, name, 0755), 0);
		next = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		assert_true(next >= 0);
		close(at);
		at = next;
		if (i % 50 == 0)
			close(openat(at, "f", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	}
}

static size_t count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	size_t n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void deep_trees_are_no_matter(void **state)
{
	char *d = new_folder(NULL);
	size_t fds = count_fds();
	json_object *reply;

	make_deep(d, "deep", 10000);
	reply = call_ok(fs_chmod, d, "{'path':'@/deep','mode':'0700','recursive':true}");
	assert_int_equal(
		json_object_get_int64(json_object_object_get(reply, "updated")), 10000 + 200);
	json_object_put(reply);
	replies(fs_grep, d, "{'path':'@','pattern':'x'}", "{'matches':[],'truncated':false}");
	replies(fs_rm, d, "{'path':'@/deep','recursive':true}", "{'removed':true}");
	assert_false(exists(d, "deep"));
	assert_int_equal(count_fds(), fds);
	remove_folder(d);
}

static void wide_folders_are_no_matter(void **state)
{
	char *d = new_folder("/dev/shm");
	cleanup_fd int fd = open(d, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char name[32];
	json_object *reply;

	for (int i = 0; i < 100000; i++) {
		snprintf(name, sizeof(name), "%d", i);
		if (i % 2)
			assert_int_equal(mkdirat(fd, name, 0755), 0);
		else
			assert_int_equal(symlinkat(".", fd, name), 0);
	}
	reply = call_ok(fs_chmod, d, "{'path':'@','mode':'0711','recursive':true}");
	assert_int_equal(json_object_get_int64(json_object_object_get(reply, "updated")), 50001);
	json_object_put(reply);
	remove_folder(d);
}

/* While one process swaps a folder for a link to a precious one, no removal reaches through it. */
static void swapped_links_are_not_followed(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *a = in(d, "tree/a"), *b = in(d, "b"), *precious = in(d, "precious");
	pid_t swapper;

	make(d, "precious");
	put(d, "precious/f", "keep");
	make(d, "tree");
	swapper = fork();
	if (swapper == 0) {
		for (;;) {
			mkdir(a, 0755);
			if (symlink(precious, b) < 0)
				rmdir(b);
			renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
		}
	}
	for (int i = 0; i < 2000; i++) {
		cleanup_json json_object *req = request(d, "{'path':'@/tree/a','recursive':true}");
		struct buf reply;

		buf_init(&reply, 1000);
		fs_rm(req, &reply, NULL); /* any outcome but a loss is right */
		buf_done(&reply);
	}
	kill(swapper, SIGKILL);
	waitpid(swapper, NULL, 0);
	holds(d, "precious/f", "keep");
	remove_folder(d);
}

/* --- chmod --- */

static void as_root_chmod_changes_modes_and_owners(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *link = in(d, "link"), *dangling = in(d, "dangling");
	struct stat st;

	need_root();
	put(d, "f", "");
	assert_int_equal(symlink("f", link), 0);
	assert_int_equal(symlink("nowhere", dangling), 0);
	replies(fs_chmod, d, "{'path':'@/f','mode':'4755','uid':1000,'gid':1001}", "{'updated':1}");
	st = look_at(d, "f");
	assert_int_equal(st.st_mode & 07777, 04755);
	assert_int_equal(st.st_uid, 1000);
	assert_int_equal(st.st_gid, 1001);
	replies(fs_chmod, d, "{'path':'@/link','mode':'0600','uid':null,'gid':7}", "{'updated':1}");
	st = look_at(d, "f");
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_uid, 1000);
	assert_int_equal(st.st_gid, 7);
	fails(fs_chmod, d, "{'path':'@/dangling','mode':'0600'}", "S211", "/dangling");
	fails(fs_chmod, d, "{'path':'@/nope','mode':'0600'}", "S211", "/nope");
	fails(fs_chmod, d, "{'path':'@/nope','mode':'0600','recursive':true}", "S211", "/nope");
	fails(fs_chmod, d, "{'path':'@/f','mode':'0600','uid':4294967295}", "S210", "uid");
	fails(fs_chmod, d, "{'path':'@/f'}", "S210", "mode");
	replies(fs_chmod, d, "{'path':'@/f','mode':'0600','recursive':true}", "{'updated':1}");
	remove_folder(d);
}

static void as_root_chmod_of_a_tree_leaves_links_alone(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *link = in(d, "t/link"), *root_link = in(d, "rl");

	need_root();
	put(d, "outside", "");
	make(d, "t");
	make(d, "t/s");
	put(d, "t/s/f", "");
	assert_int_equal(symlink("../outside", link), 0);
	assert_int_equal(symlink("t", root_link), 0);
	replies(fs_chmod, d, "{'path':'@/rl','mode':'0000','recursive':true}", "{'updated':3}");
	assert_int_equal(look_at(d, "t").st_mode & 07777, 0);
	assert_int_equal(look_at(d, "t/s").st_mode & 07777, 0);
	assert_int_equal(look_at(d, "t/s/f").st_mode & 07777, 0);
	assert_int_equal(look_at(d, "outside").st_mode & 07777, 0644);
	replies(fs_chmod, d, "{'path':'@/t','mode':'6755','recursive':true,'uid':5}",
		"{'updated':4}");
	assert_int_equal(look_at(d, "t/link").st_uid, 5);
	assert_int_equal(look_at(d, "t/s/f").st_mode & 07777, 06755);
	assert_int_equal(look_at(d, "outside").st_uid, 0);
	remove_folder(d);
}

/* --- mv --- */

static void mv_within_a_file_system(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *h1 = in(d, "h1"), *h2 = in(d, "h2");

	put(d, "a", "A");
	put(d, "b", "B");
	fails(fs_mv, d, "{'src':'@/a','dst':'@/b'}", "S213", "/b");
	holds(d, "a", "A");
	holds(d, "b", "B");
	fails(fs_mv, d, "{'src':'@/a','dst':'@/a'}", "S213", "/a");
	replies(fs_mv, d, "{'src':'@/a','dst':'@/a','overwrite':true}", "{'moved':true}");
	holds(d, "a", "A");
	replies(fs_mv, d, "{'src':'@/a','dst':'@/b','overwrite':true}", "{'moved':true}");
	holds(d, "b", "A");
	assert_false(exists(d, "a"));
	replies(fs_mv, d, "{'src':'@/b','dst':'@/c'}", "{'moved':true}");
	make_link(d, "link", "c");
	replies(fs_mv, d, "{'src':'@/link','dst':'@/link2'}", "{'moved':true}");
	assert_true(S_ISLNK(look_at(d, "link2").st_mode));
	fails(fs_mv, d, "{'src':'@/nope','dst':'@/x'}", "S211", "/nope");
	fails(fs_mv, d, "{'src':'@/nope','dst':'@/c'}", "S211", "/nope");
	fails(fs_mv, d, "{'src':'@/c','dst':'@/no/x'}", "S211", "/no/x");
	fails(fs_mv, d, "{'src':'@/c','dst':'@/c/x'}", "S212", "/c/x");
	fails(fs_mv, d, "{'src':'@/c','dst':'x'}", "S210", "dst");
	fails(fs_mv, d, "{'src':'','dst':'@/x'}", "S210", "src");
	fails(fs_mv, d, "{'src':'@/c','dst':'@/new/'}", "S212", "/new/");
	/* A dangling link is something, too. */
	drop(d, "c");
	fails(fs_mv, d, "{'src':'@/link2','dst':'@/link2'}", "S213", "/link2");
	/* Two names of one file: the first goes. */
	put(d, "h1", "H");
	assert_int_equal(link(h1, h2), 0);
	replies(fs_mv, d, "{'src':'@/h1','dst':'@/h2','overwrite':true}", "{'moved':true}");
	assert_false(exists(d, "h1"));
	holds(d, "h2", "H");
	remove_folder(d);
}

static void mv_of_folders(void **state)
{
	char *d = new_folder(NULL);

	make(d, "d1");
	put(d, "d1/f", "1");
	make(d, "empty");
	make(d, "full");
	put(d, "full/x", "");
	put(d, "file", "F");
	fails(fs_mv, d, "{'src':'@/d1','dst':'@/full','overwrite':true}", "S214", "/full");
	fails(fs_mv, d, "{'src':'@/d1','dst':'@/file','overwrite':true}", "S212", "/file");
	fails(fs_mv, d, "{'src':'@/file','dst':'@/d1','overwrite':true}", "S212", "/d1");
	fails(fs_mv, d, "{'src':'@/file','dst':'@/empty','overwrite':true}", "S212", "/empty");
	fails(fs_mv, d, "{'src':'@/d1','dst':'@/empty'}", "S213", "/empty");
	fails(fs_mv, d, "{'src':'@/d1','dst':'@/d1/in'}", "S210", "into itself");
	fails(fs_mv, d, "{'src':'@/d1','dst':'@/d1/in','overwrite':true}", "S210", "into itself");
	fails(fs_mv, d, "{'src':'@/d1/f','dst':'@/d1','overwrite':true}", "S212", "/d1");
	replies(fs_mv, d, "{'src':'@/d1','dst':'@/empty','overwrite':true}", "{'moved':true}");
	holds(d, "empty/f", "1");
	replies(fs_mv, d, "{'src':'@/empty/','dst':'@/new/'}", "{'moved':true}");
	holds(d, "new/f", "1");
	holds(d, "file", "F");
	remove_folder(d);
}

/* A tree with one of everything. */
static void make_zoo(const char *d)
{
	cleanup_free char *zoo = in(d, "zoo"), *link = in(d, "zoo/link"), *fifo = in(d, "zoo/fifo"),
			  *f = in(d, "zoo/f"), *hard = in(d, "zoo/sub/hard"),
			  *dev = in(d, "zoo/dev"), *odd = in(d, "zoo/\xfe"),
			  *holes = in(d, "zoo/holes"), *sub = in(d, "zoo/sub");
	const struct timespec t[2] = {{.tv_sec = 1000}, {.tv_sec = 2000, .tv_nsec = 77}};

	make(d, "zoo");
	make(d, "zoo/sub");
	put(d, "zoo/f", "content");
	put_bytes(odd, "odd", 3);
	assert_int_equal(chown(f, 12, 34), 0);
	assert_int_equal(chmod(f, 06751), 0);
	assert_int_equal(setxattr(f, "user.note", "hi", 2, 0) == 0 || errno == EOPNOTSUPP, 1);
	assert_int_equal(linkat(AT_FDCWD, f, AT_FDCWD, hard, 0), 0);
	assert_int_equal(symlink("f", link), 0);
	assert_int_equal(mkfifo(fifo, 0640), 0);
	assert_int_equal(mknod(dev, S_IFCHR | 0600, makedev(1, 3)), 0);
	{
		cleanup_fd int fd = open(holes, O_CREAT | O_RDWR | O_CLOEXEC, 0644);

		assert_int_equal(pwrite(fd, "end", 3, 50 << 20), 3);
	}
	assert_int_equal(utimensat(AT_FDCWD, f, t, 0), 0);
	assert_int_equal(chmod(sub, 01711), 0);
	assert_int_equal(utimensat(AT_FDCWD, link, t, AT_SYMLINK_NOFOLLOW), 0);
	assert_int_equal(utimensat(AT_FDCWD, sub, t, 0), 0);
	assert_int_equal(utimensat(AT_FDCWD, zoo, t, 0), 0);
}

static void check_zoo(const char *d, const char *name)
{
	cleanup_free char *zoo = in(d, name);
	struct stat st, hard;

	holds(zoo, "f", "content");
	holds(zoo, "\xfe", "odd");
	st = look_at(zoo, "f");
	hard = look_at(zoo, "sub/hard");
	assert_int_equal(st.st_ino, hard.st_ino);
	assert_int_equal(st.st_mode & 07777, 06751);
	assert_int_equal(st.st_uid, 12);
	assert_int_equal(st.st_gid, 34);
	assert_int_equal(st.st_mtim.tv_sec, 2000);
	assert_true(S_ISLNK(look_at(zoo, "link").st_mode));
	assert_int_equal(look_at(zoo, "link").st_mtim.tv_sec, 2000);
	assert_true(S_ISFIFO(look_at(zoo, "fifo").st_mode));
	assert_int_equal(look_at(zoo, "fifo").st_mode & 07777, 0640);
	assert_int_equal(look_at(zoo, "dev").st_rdev, makedev(1, 3));
	st = look_at(zoo, "holes");
	assert_int_equal(st.st_size, (50 << 20) + 3);
	assert_true(st.st_blocks < 1000);
	st = look_at(zoo, "sub");
	assert_int_equal(st.st_mode & 07777, 01711);
	assert_int_equal(st.st_mtim.tv_sec, 2000);
	assert_int_equal(look_at(d, name).st_mtim.tv_sec, 2000);
}

static size_t count_entries(const char *path)
{
	DIR *d = opendir(path);
	size_t n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

static void as_root_mv_across_file_systems(void **state)
{
	char *d = new_folder(NULL), *shm = new_folder("/dev/shm");
	cleanup_free char *there = xasprintf("{'src':'@/zoo','dst':'%s/zoo2'}", shm),
			  *back = xasprintf("{'src':'%s/zoo2','dst':'@/back'}", shm),
			  *over = xasprintf("{'src':'@/f','dst':'%s/f','overwrite':true}", shm),
			  *refused = xasprintf("{'src':'@/f','dst':'%s/f'}", shm),
			  *full = xasprintf("{'src':'@/dir','dst':'%s/dir','overwrite':true}", shm),
			  *lost = xasprintf("{'src':'@/f','dst':'%s/no/f'}", shm);

	need_root();
	if (look_at("/", "tmp").st_dev == look_at("/dev", "shm").st_dev)
		skip();
	make_zoo(d);
	replies(fs_mv, d, there, "{'moved':true}");
	assert_false(exists(d, "zoo"));
	check_zoo(shm, "zoo2");
	assert_int_equal(count_entries(shm), 1);
	replies(fs_mv, d, back, "{'moved':true}");
	check_zoo(d, "back");
	assert_int_equal(count_entries(shm), 0);
	put(d, "f", "new");
	put(shm, "f", "old");
	fails(fs_mv, d, refused, "S213", "/f");
	holds(d, "f", "new");
	replies(fs_mv, d, over, "{'moved':true}");
	holds(shm, "f", "new");
	put(d, "f", "x");
	fails(fs_mv, d, lost, "S211", "/no/f");
	holds(d, "f", "x");
	make(d, "dir");
	put(d, "dir/a", "");
	make(shm, "dir");
	put(shm, "dir/b", "");
	fails(fs_mv, d, full, "S214", "/dir");
	drop(shm, "dir/b");
	replies(fs_mv, d, full, "{'moved':true}");
	assert_true(exists(shm, "dir/a"));
	assert_int_equal(count_entries(shm), 2);
	remove_folder(d);
	remove_folder(shm);
}

/* Of many movers to one name exactly one wins, and no file is lost. */
static void racing_moves_lose_nothing(void **state)
{
	char *d = new_folder(NULL);

	for (int round = 0; round < 100; round++) {
		cleanup_free char *dst = xasprintf("dst%d", round);
		pid_t pids[4];
		int moved = 0;

		for (int i = 0; i < 4; i++) {
			cleanup_free char *src = xasprintf("src%d-%d", round, i);
			cleanup_free char *text =
				xasprintf("{'src':'@/%s','dst':'@/%s'}", src, dst);

			put(d, src, src);
			pids[i] = fork();
			if (pids[i] == 0) {
				cleanup_json json_object *req = request(d, text);
				struct err e = ERR_INIT;
				struct buf reply;

				buf_init(&reply, 1000);
				_exit(fs_mv(req, &reply, &e) == 0     ? 1
					: strcmp(e.code, "S213") == 0 ? 0
								      : 9);
			}
		}
		for (int i = 0; i < 4; i++) {
			int status;

			assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
			assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
			moved += WEXITSTATUS(status);
		}
		assert_int_equal(moved, 1);
	}
	assert_int_equal(count_entries(d), 400);
	remove_folder(d);
}

/* --- mounts: in a namespace of their own, so these come last --- */

static void own_mounts(void)
{
	need_root();
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		skip();
}

static void as_root_rm_empties_a_mount_point(void **state)
{
	char *d;
	cleanup_free char *point = NULL;

	own_mounts();
	d = new_folder(NULL);
	point = in(d, "t/m");
	make(d, "t");
	make(d, "t/m");
	assert_int_equal(mount("none", point, "tmpfs", 0, NULL), 0);
	put(d, "t/m/f", "");
	fails(fs_rm, d, "{'path':'@/t','recursive':true}", "S216", "/t/m");
	assert_true(exists(d, "t/m"));
	assert_false(exists(d, "t/m/f"));
	assert_int_equal(umount(point), 0);
	remove_folder(d);
}

/* The guest's root is an overlay: its lower folders cannot be renamed, only copied. */
static void as_root_an_overlay_is_a_file_system_like_any(void **state)
{
	char *d = new_folder("/dev/shm");
	cleanup_free char *merged = in(d, "merged"),
			  *options = xasprintf(
				  "lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", d, d, d),
			  *at = in(d, "lower");

	own_mounts();
	make(d, "lower");
	make(d, "upper");
	make(d, "work");
	make(d, "merged");
	make_zoo(at);
	put(at, "file", "one\ntwo\n");
	if (mount("overlay", merged, "overlay", 0, options) < 0) {
		remove_folder(d);
		skip();
	}
	replies(fs_mv, merged, "{'src':'@/zoo','dst':'@/there'}", "{'moved':true}");
	check_zoo(merged, "there");
	assert_false(exists(merged, "zoo"));
	replies(fs_mkdir, merged, "{'path':'@/zoo'}", "{'created':true}");
	fails(fs_mv, merged, "{'src':'@/there','dst':'@/zoo'}", "S213", "/zoo");
	fails(fs_mv, merged, "{'src':'@/there','dst':'@/there/x'}", "S210", "into itself");
	replies(fs_sed, merged, "{'files':['@/file'],'pattern':'two','replacement':'2'}",
		"{'results':[{'path':'@/file','replacements':1,'success':true}],"
		"'total_replacements':1}");
	holds(merged, "file", "one\n2\n");
	holds(d, "lower/file", "one\ntwo\n");
	replies(fs_rm, merged, "{'path':'@/there','recursive':true}", "{'removed':true}");
	assert_int_equal(count_entries(merged), 2);
	assert_int_equal(umount(merged), 0);
	remove_folder(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ls_sorts_by_bytes_and_shows_all),
		cmocka_unit_test(ls_refuses_what_is_no_folder),
		cmocka_unit_test(ls_of_many_entries_is_answered_or_refused_whole),
		cmocka_unit_test(stat_describes_links_themselves),
		cmocka_unit_test(stat_names_the_last_component),
		cmocka_unit_test(mkdir_sets_modes_exactly),
		cmocka_unit_test(mkdir_of_what_exists),
		cmocka_unit_test(modes_are_octal_digits),
		cmocka_unit_test(racing_mkdirs_create_once),
		cmocka_unit_test(rm_removes_and_never_follows),
		cmocka_unit_test(rm_never_removes_the_root),
		cmocka_unit_test(deep_trees_are_no_matter),
		cmocka_unit_test(wide_folders_are_no_matter),
		cmocka_unit_test(swapped_links_are_not_followed),
		cmocka_unit_test(as_root_chmod_changes_modes_and_owners),
		cmocka_unit_test(as_root_chmod_of_a_tree_leaves_links_alone),
		cmocka_unit_test(mv_within_a_file_system),
		cmocka_unit_test(mv_of_folders),
		cmocka_unit_test(as_root_mv_across_file_systems),
		cmocka_unit_test(racing_moves_lose_nothing),
		cmocka_unit_test(as_root_rm_empties_a_mount_point),
		cmocka_unit_test(as_root_an_overlay_is_a_file_system_like_any),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
