/* roots: what is under a root, and that nobody can swap it for something else (worker VM
 * specification §3, W07-W17, W26). Runs itself a second time with a kernel that has no openat2. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/worker/roots.h"

extern char **environ;

#define RACES 500

static char work[] = "/var/tmp/test-roots-XXXXXX";
static struct roots roots;
static bool without_openat2;

static char *at(const char *path)
{
	return path_join(work, path);
}

static void make_dir(const char *path)
{
	cleanup_free char *p = at(path);

	assert_int_equal(path_mkdirs(p, NULL), 0);
}

static void make_file(const char *path, const char *text)
{
	cleanup_free char *p = at(path);
	cleanup_fd int fd = open(p, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

static void make_link(const char *path, const char *target)
{
	cleanup_free char *p = at(path), *t = target[0] == '=' ? at(target + 1) : xstrdup(target);

	unlink(p);
	assert_int_equal(symlink(t, p), 0);
}

static int setup(void **state)
{
	if (!mkdtemp(work))
		return 1;
	make_dir("P/w/sub");
	make_dir("P/mein w\xc3\xb6rker:1");
	make_dir("P-evil/w");
	make_dir("C/b-1.0.0-bundle");
	make_dir("outside/sub");
	make_file("P/w/who", "inside");
	make_file("P/w/sub/who", "inside");
	make_file("P/mein w\xc3\xb6rker:1/who", "inside");
	make_file("C/b-1.0.0-bundle/who", "inside");
	make_file("outside/who", "OUTSIDE");
	make_file("outside/sub/who", "OUTSIDE");
	make_file("P/file", "x");
	make_link("P/link", "=P/w");
	make_link("P/relative", "w");
	make_link("P/escape", "=outside");
	make_link("P/escape-up", "../outside");
	make_link("P/dangling-in", "nothing");
	make_link("P/dangling-out", "=nothing");
	make_link("P/loop", "loop");
	make_link("P/out-and-in", "=round");
	make_link("round", "=P/w");
	make_link("alias", "=P");
	roots = (struct roots){.project = at("P"), .cache = at("C")};
	return 0;
}

static int teardown(void **state)
{
	roots_done(&roots);
	return path_remove_at(AT_FDCWD, work);
}

/* The code that opening gives, "" for success. What it opened is the folder `want`. */
static void expect(const struct roots *r, const char *path, const char *code, const char *want)
{
	cleanup_free char *full = path[0] == '/' ? xstrdup(path) : at(path);
	struct root_dir dir = ROOT_DIR_INIT;
	struct err e = ERR_INIT;
	int ret = roots_open(r, full, &dir, &e);

	if (!str_eq(e.code, code))
		fail_msg("%s: %s \"%s\" instead of \"%s\"", path, e.code, e.text, code);
	if (str_eq(code, "")) {
		cleanup_free char *expected = at(want), *real = realpath(expected, NULL);
		struct stat opened, named;

		assert_int_equal(ret, 0);
		assert_string_equal(dir.path, real);
		assert_int_equal(fstat(dir.fd, &opened), 0);
		assert_int_equal(stat(real, &named), 0);
		assert_int_equal(opened.st_ino, named.st_ino);
		assert_int_equal(fcntl(dir.fd, F_GETFD), FD_CLOEXEC);
		assert_int_equal(
			fcntl(dir.fd, F_GETFL) & (O_PATH | O_DIRECTORY), O_PATH | O_DIRECTORY);
	} else {
		assert_true(ret < 0);
		assert_int_equal(dir.fd, -1);
		assert_null(dir.path);
	}
	if (str_eq(code, "S501")) {
		assert_int_equal(ret, -EPERM);
		assert_non_null(strstr(e.text, r->project ? r->project : "<unset>"));
		assert_non_null(strstr(e.text, r->cache ? r->cache : "<unset>"));
	}
	root_dir_done(&dir);
	root_dir_done(&dir);
}

static void inside_is_accepted(void **state)
{
	expect(&roots, "P/w", "", "P/w");
	expect(&roots, "P", "", "P");
	expect(&roots, "P/", "", "P");
	expect(&roots, "P//w/./sub/../", "", "P/w");
	expect(&roots, "P/../P/w", "", "P/w");
	expect(&roots, "C/b-1.0.0-bundle", "", "C/b-1.0.0-bundle");
	expect(&roots, "P/mein w\xc3\xb6rker:1", "", "P/mein w\xc3\xb6rker:1");
	expect(&roots, "P/link", "", "P/w");
	expect(&roots, "P/link/sub", "", "P/w/sub");
	expect(&roots, "P/relative", "", "P/w");
	expect(&roots, "P/out-and-in", "", "P/w");
}

static void outside_is_refused(void **state)
{
	static const char *const paths[] = {"/etc", "/", "P/../outside", "P/./w/../../outside",
		"P-evil/w", "P-evil", "outside", "P/escape", "P/escape-up", "P/escape/sub",
		"P/escape/nothing", "/nothing/at/all", "P/../nothing", "P/dangling-out",
		"/proc/self/cwd", "P/w/../../../../../../../../etc"};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		expect(&roots, paths[i], "S501", NULL);
	expect(&roots, "/etc/../../etc/", "S501", NULL);
}

/* The answer for a path outside does not tell whether it is there. */
static void outside_looks_the_same_there_or_not(void **state)
{
	static const char *const pairs[][2] = {{"outside", "nothing"},
		{"P/escape/sub", "P/escape/nix"}, {"P/escape/who", "P/escape/nix"}};

	for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
		struct root_dir dir = ROOT_DIR_INIT;
		struct err e[2] = {0};

		for (int k = 0; k < 2; k++) {
			cleanup_free char *full = at(pairs[i][k]);
			char *shown;

			assert_true(roots_open(&roots, full, &dir, &e[k]) < 0);
			shown = strstr(e[k].text, "outside the");
			assert_non_null(shown);
			memmove(e[k].text, shown, strlen(shown) + 1);
		}
		assert_string_equal(e[0].code, "S501");
		assert_string_equal(e[0].code, e[1].code);
		assert_string_equal(e[0].text, e[1].text);
	}
}

static void what_is_missing_inside_is_another_error(void **state)
{
	expect(&roots, "P/nothing", "S500", NULL);
	expect(&roots, "P/nothing/below", "S500", NULL);
	expect(&roots, "P/file", "S500", NULL);
	expect(&roots, "P/file/below", "S500", NULL);
	expect(&roots, "P/dangling-in", "S500", NULL);
	expect(&roots, "P/loop", "S500", NULL);
}

static void shapes_are_checked(void **state)
{
	char longest[PATH_MAX + 10] = "";
	struct root_dir dir = ROOT_DIR_INIT;
	struct err e = ERR_INIT;

	assert_true(roots_open(&roots, "", &dir, &e) < 0);
	assert_string_equal(e.code, "S501");
	assert_true(roots_open(&roots, "P/w", &dir, &e) < 0);
	assert_string_equal(e.code, "S501");
	snprintf(longest, sizeof(longest), "%s/P/", work);
	memset(longest + strlen(longest), 'x', PATH_MAX - strlen(longest));
	assert_true(roots_open(&roots, longest, &dir, &e) < 0);
	assert_string_equal(e.code, "S501");
	assert_non_null(strstr(e.text, roots.project));
	assert_non_null(strstr(e.text, roots.cache));
	longest[ROOT_PATH_MAX] = '\0';
	assert_true(roots_open(&roots, longest, &dir, &e) < 0);
	assert_string_equal(e.code, "S500");
	assert_true(roots_open(&roots, "/etc/\n\x1b[31mred\x7f", &dir, &e) < 0);
	assert_null(strchr(e.text, '\n'));
	assert_null(strchr(e.text, '\x1b'));
	assert_non_null(strstr(e.text, "\\x0a"));
}

static void a_root_may_be_behind_a_symlink(void **state)
{
	struct roots r = {.project = at("alias")};

	expect(&r, "alias/w", "", "P/w");
	expect(&r, "P/w", "", "P/w");
	expect(&r, "alias/../P-evil/w", "S501", NULL);
	expect(&r, "alias/escape", "S501", NULL);
	expect(&r, "C/b-1.0.0-bundle", "S501", NULL);
	roots_done(&r);
}

static void unset_and_missing_roots_admit_nothing(void **state)
{
	struct roots none = {0}, all = {.project = xstrdup("/")};
	struct roots missing = {.project = at("later"), .cache = at("C")};

	expect(&none, "P/w", "S501", NULL);
	expect(&none, "/", "S501", NULL);
	expect(&missing, "later/w", "S500", NULL);
	expect(&missing, "P/w", "S501", NULL);
	make_dir("later/w");
	expect(&missing, "later/w", "", "later/w");
	expect(&all, "outside", "", "outside");
	roots_done(&all);
	roots_done(&missing);
}

static void a_root_swapped_for_a_symlink_is_judged_anew(void **state)
{
	cleanup_free char *w = at("P/swap"), *aside = at("P/swap.old"), *out = at("outside");

	make_dir("P/swap");
	expect(&roots, "P/swap", "", "P/swap");
	assert_int_equal(rename(w, aside), 0);
	assert_int_equal(symlink(out, w), 0);
	expect(&roots, "P/swap", "S501", NULL);
	expect(&roots, "P/swap/sub", "S501", NULL);
	assert_int_equal(unlink(w), 0);
}

/* --- races --- */

struct flipper {
	char *a, *b;
	atomic_bool stop;
	pthread_t thread;
};

static void *flip(void *arg)
{
	struct flipper *f = arg;

	while (!f->stop)
		syscall(SYS_renameat2, AT_FDCWD, f->a, AT_FDCWD, f->b, 2 /* RENAME_EXCHANGE */);
	return NULL;
}

/* Opens P/race/… while another thread exchanges P/race with a symlink that leads out. */
static void race(const char *below)
{
	struct flipper f = {.a = at("P/race"), .b = at("P/race.other")};
	cleanup_free char *full = xasprintf("%s%s", f.a, below);
	unsigned ok = 0, escaped = 0, missing = 0;

	make_dir("P/race/sub");
	make_file("P/race/who", "inside");
	make_file("P/race/sub/who", "inside");
	make_link("P/race.other", "=outside");
	assert_int_equal(pthread_create(&f.thread, NULL, flip, &f), 0);
	for (int i = 0; i < RACES; i++) {
		struct root_dir dir = ROOT_DIR_INIT;
		struct err e = ERR_INIT;
		cleanup_free char *text = NULL;

		if (roots_open(&roots, full, &dir, &e) < 0) {
			assert_true(str_eq(e.code, "S501") || str_eq(e.code, "S500"));
			escaped += str_eq(e.code, "S501");
			missing += str_eq(e.code, "S500");
			continue;
		}
		ok++;
		assert_int_equal(fd_slurp_at(dir.fd, "who", 100, &text, NULL), 0);
		assert_string_equal(text, "inside");
		root_dir_done(&dir);
	}
	f.stop = true;
	pthread_join(f.thread, NULL);
	print_message("# opened %u, outside %u, missing %u\n", ok, escaped, missing);
	path_remove_at(AT_FDCWD, f.a);
	path_remove_at(AT_FDCWD, f.b);
	free(f.a);
	free(f.b);
}

static void no_race_leads_out(void **state)
{
	race("");
	race("/sub");
}

/* --- files --- */

static void expect_file(int dir_fd, const char *name, int want, const char *text)
{
	struct err e = ERR_INIT;
	cleanup_fd int fd = -1;
	int r = root_open_file(dir_fd, name, &fd, &e);
	char got[16] = "";

	if (r != want)
		fail_msg("%s: %d \"%s\" instead of %d", name, r, e.text, want);
	if (r < 0) {
		assert_int_equal(fd, -1);
		assert_string_equal(e.code, "S500");
		assert_non_null(strstr(e.text, name));
		assert_null(strstr(e.text, "OUTSIDE"));
		return;
	}
	assert_true(fd_read_full(fd, got, sizeof(got) - 1) >= 0);
	assert_string_equal(got, text);
}

static void files_are_opened_below_the_folder_only(void **state)
{
	cleanup_free char *folder = at("P/files"), *fifo = at("P/files/fifo"),
			  *sock = at("P/files/socket"), *dev = at("P/files/device");
	cleanup_fd int fd = -1, s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int follow = without_openat2 ? -ELOOP : 0, leave = without_openat2 ? -ELOOP : -EXDEV;

	make_dir("P/files/sub");
	make_file("P/files/plain", "text");
	make_file("P/files/sub/plain", "below");
	make_link("P/files/near", "sub/plain");
	make_link("P/files/up-and-down", "sub/../plain");
	make_link("P/files/far", "=outside/who");
	make_link("P/files/far-up", "../../outside/who");
	make_link("P/files/nowhere", "nothing");
	make_link("P/files/magic", "/proc/self/exe");
	assert_int_equal(mkfifo(fifo, 0644), 0);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", sock);
	assert_int_equal(bind(s, (struct sockaddr *)&addr, sizeof(addr)), 0);
	fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	expect_file(fd, "plain", 0, "text");
	expect_file(fd, "sub/plain", 0, "below");
	expect_file(fd, "near", follow, "below");
	expect_file(fd, "up-and-down", follow, "text");
	expect_file(fd, "nowhere", without_openat2 ? -ELOOP : -ENOENT, NULL);
	expect_file(fd, "far", leave, NULL);
	expect_file(fd, "far-up", leave, NULL);
	expect_file(fd, "magic", leave, NULL);
	expect_file(fd, "../w/who", -EXDEV, NULL);
	expect_file(fd, "missing", -ENOENT, NULL);
	expect_file(fd, "sub/missing", -ENOENT, NULL);
	expect_file(fd, "fifo", -ENXIO, NULL);
	expect_file(fd, "socket", -ENXIO, NULL);
	expect_file(fd, "sub", -ENXIO, NULL);
	if (mknod(dev, S_IFCHR | 0666, makedev(1, 3)) == 0)
		expect_file(fd, "device", -ENXIO, NULL);
}

/* Runs check() as a user who may not do everything; without that right it is that user already. */
static void as_nobody(void (*check)(void))
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		if (geteuid() == 0 &&
			(setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0))
			_exit(9);
		check();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void check_denied(void)
{
	cleanup_free char *locked = at("P/locked/w");
	cleanup_fd int fd = -1, file = -1;
	struct root_dir dir = ROOT_DIR_INIT;
	struct err e = ERR_INIT;

	if (roots_open(&roots, locked, &dir, &e) != -EACCES || !str_eq(e.code, "S500"))
		_exit(1);
	fd = open(work, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root_open_file(fd, "P/unreadable", &file, &e) != -EACCES || !str_eq(e.code, "S500"))
		_exit(2);
}

static void what_may_not_be_read_is_said(void **state)
{
	cleanup_free char *locked = at("P/locked"), *file = at("P/unreadable");

	make_dir("P/locked/w");
	make_file("P/unreadable", "x");
	assert_int_equal(chmod(work, 0755), 0);
	assert_int_equal(chmod(roots.project, 0755), 0);
	assert_int_equal(chmod(locked, 0), 0);
	assert_int_equal(chmod(file, 0), 0);
	as_nobody(check_denied);
	assert_int_equal(chmod(locked, 0700), 0);
}

/* --- the environment --- */

static void init_with(const char *project, const char *cache, const char *home, struct roots *r)
{
	if (project)
		setenv("III_SANDBOX_PROJECT_DIR", project, 1);
	else
		unsetenv("III_SANDBOX_PROJECT_DIR");
	if (cache)
		setenv("III_SANDBOX_PACKAGE_CACHE", cache, 1);
	else
		unsetenv("III_SANDBOX_PACKAGE_CACHE");
	setenv("HOME", home, 1);
	roots_init(r);
}

static void roots_come_from_the_environment(void **state)
{
	cleanup_free char *p = at("P"), *c = at("C"), *alias = at("alias"), *pw = at("P/w");
	cleanup_free char *cwd = getcwd(NULL, 0);
	struct roots r;

	init_with(p, c, "/home/u", &r);
	assert_string_equal(r.project, p);
	assert_string_equal(r.cache, c);
	roots_done(&r);
	init_with("/srv//app/./", NULL, "/home/u", &r);
	assert_string_equal(r.project, "/srv/app");
	assert_string_equal(r.cache, "/home/u/.iii/compose/packages");
	roots_done(&r);
	init_with("/", "", "/home/u/", &r);
	assert_string_equal(r.project, "/");
	assert_string_equal(r.cache, "/home/u/.iii/compose/packages");
	roots_done(&r);
	/* The working folder, as PWD names it if that is true. */
	assert_int_equal(chdir(p), 0);
	setenv("PWD", alias, 1);
	init_with(NULL, NULL, "/home/u", &r);
	assert_string_equal(r.project, alias);
	roots_done(&r);
	setenv("PWD", "/etc", 1);
	init_with("", NULL, "/home/u", &r);
	assert_string_equal(r.project, p);
	roots_done(&r);
	init_with("w/../w", NULL, "/home/u", &r);
	assert_string_equal(r.project, pw);
	roots_done(&r);
	assert_int_equal(chdir("/"), 0);
	init_with(NULL, NULL, "/home/u", &r);
	assert_null(r.project);
	roots_done(&r);
	assert_int_equal(chdir(cwd), 0);
}

/* Runs a copy of this program from `folder` of the cache; it prints the cache that it finds. */
static void expect_cache_of(const char *folder, const char *want)
{
	cleanup_free char *exe = xasprintf("%s/cache/%s/sandbox-libkrun", work, folder);
	cleanup_free char *dir = xasprintf("cache/%s", folder), *out = at("printed");
	cleanup_fd int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = -1;
	cleanup_free char *text = NULL;
	char *argv[] = {exe, (char *)"--print", out, NULL};
	int status;
	pid_t pid;

	make_dir(dir);
	to = open(exe, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
	assert_int_equal(fd_copy_sparse(from, to), 0);
	fd_close(&to);
	unsetenv("III_SANDBOX_PACKAGE_CACHE");
	setenv("HOME", "/home/u", 1);
	assert_int_equal(posix_spawn(&pid, exe, NULL, NULL, argv, environ), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(fd_slurp_at(AT_FDCWD, out, 4096, &text, NULL), 0);
	assert_string_equal(text, want);
}

static void the_cache_is_where_the_program_lies(void **state)
{
	static const char home[] = "/home/u/.iii/compose/packages";
	cleanup_free char *cache = at("cache"), *good = NULL, *rc = NULL;
	struct utsname u;

	uname(&u);
	good = xasprintf("sandbox-libkrun-0.2.2-%s-unknown-linux-gnu", u.machine);
	rc = xasprintf("sandbox-libkrun-10.20.30-rc.1-%s-unknown-linux-musl", u.machine);
	expect_cache_of(good, cache);
	expect_cache_of(rc, cache);
	expect_cache_of("sandbox-libkrun-0.2.2", home);
	expect_cache_of("sandbox-libkrun-0.2.2-src", home);
	expect_cache_of("sandbox-libkrun-main", home);
	expect_cache_of("bin", home);
}

static int print_cache(const char *file)
{
	struct roots r;
	bool failed;

	roots_init(&r);
	failed = fd_publish_at(AT_FDCWD, file, r.cache, strlen(r.cache), 0600) < 0;
	roots_done(&r);
	return failed;
}

/* --- a kernel without openat2 --- */

static void refuse_openat2(int no)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)no),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {ARRAY_LEN(filter), filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
		_exit(8);
	without_openat2 = true;
}

static void openat2_is_as_this_run_wants_it(void **state)
{
	long r = syscall(SYS_openat2, -1, "", NULL, 0);

	assert_int_equal(r, -1);
	if (without_openat2)
		assert_true(errno == ENOSYS || errno == EPERM);
	else
		assert_true(errno != ENOSYS && errno != EPERM);
}

static void all_holds_without_openat2(void **state)
{
	static const char *const modes[] = {"--enosys", "--eperm"};

	for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
		char *argv[] = {(char *)"test_roots", (char *)modes[i], NULL};
		posix_spawn_file_actions_t fa;
		int status;
		pid_t pid;

		posix_spawn_file_actions_init(&fa);
		posix_spawn_file_actions_adddup2(&fa, STDERR_FILENO, STDOUT_FILENO);
		assert_int_equal(posix_spawn(&pid, "/proc/self/exe", &fa, NULL, argv, environ), 0);
		posix_spawn_file_actions_destroy(&fa);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(openat2_is_as_this_run_wants_it),
		cmocka_unit_test(inside_is_accepted),
		cmocka_unit_test(outside_is_refused),
		cmocka_unit_test(outside_looks_the_same_there_or_not),
		cmocka_unit_test(what_is_missing_inside_is_another_error),
		cmocka_unit_test(shapes_are_checked),
		cmocka_unit_test(a_root_may_be_behind_a_symlink),
		cmocka_unit_test(unset_and_missing_roots_admit_nothing),
		cmocka_unit_test(a_root_swapped_for_a_symlink_is_judged_anew),
		cmocka_unit_test(no_race_leads_out),
		cmocka_unit_test(files_are_opened_below_the_folder_only),
		cmocka_unit_test(what_may_not_be_read_is_said),
	};
	const struct CMUnitTest once[] = {
		cmocka_unit_test(roots_come_from_the_environment),
		cmocka_unit_test(the_cache_is_where_the_program_lies),
		cmocka_unit_test(all_holds_without_openat2),
	};
	struct CMUnitTest all[ARRAY_LEN(tests) + ARRAY_LEN(once)];

	if (argc > 2)
		return print_cache(argv[2]);
	if (argc > 1) {
		refuse_openat2(str_eq(argv[1], "--eperm") ? EPERM : ENOSYS);
		return cmocka_run_group_tests_name("roots without openat2", tests, setup, teardown);
	}
	memcpy(all, tests, sizeof(tests));
	memcpy(all + ARRAY_LEN(tests), once, sizeof(once));
	return cmocka_run_group_tests_name("roots", all, setup, teardown);
}
