/* How a host path becomes a descriptor:
 *
 *   lexical    "." , ".." and doubled slashes are taken out of the text; what is left must be below
 *              a root as given or as it is canonically. Nothing outside the roots is touched yet.
 *   resolve    the symlinks of that text are followed by reading them; where it ends must be below
 *              a canonical root. Where a look-up fails outside the roots the answer is S501 like
 *              for one that succeeds there.
 *   pin        the canonical path is opened without following any symlink: whoever swaps a
 *              component for one meanwhile gets S501.
 *   compare    the path must still name what was opened.
 *
 * Refused: everything outside the roots, with the same words whether it exists or not.
 * Limits: ROOT_PATH_MAX, SYMLINKS_MAX.
 */
#include "host/worker/roots.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"

/* Symlinks followed for one path, as Linux has it. */
#define SYMLINKS_MAX 40
/* openat2 gives up with EAGAIN when a rename goes on beside it: so often it is asked again. */
#define AGAIN_MAX 16

/* Of a root in the message of S501, so that both are in it whatever the path is. */
#define ROOT_SHOWN_MAX 450

#define PROGRAM_PREFIX "sandbox-libkrun-"

/* --- the roots --- */

/* An absolute path without ".", "..", doubled slashes and a slash at its end. */
static char *lexical(const char *path)
{
	char *out = xmalloc(strlen(path) + 2);
	size_t len = 0;

	while (*path) {
		size_t n = strcspn(path, "/");

		if (n == 2 && path[0] == '.' && path[1] == '.') {
			while (len && out[--len] != '/')
				;
		} else if (n && !(n == 1 && path[0] == '.')) {
			out[len++] = '/';
			memcpy(out + len, path, n);
			len += n;
		}
		path += n;
		path += *path == '/';
	}
	if (!len)
		out[len++] = '/';
	out[len] = '\0';
	return out;
}

static bool has_dotdot(const char *path)
{
	for (const char *p = strstr(path, ".."); p; p = strstr(p + 1, ".."))
		if ((p == path || p[-1] == '/') && (p[2] == '/' || p[2] == '\0'))
			return true;
	return false;
}

/* A root as an operator wrote it. Behind a symlink ".." leads elsewhere than its text says, so such
 * a path is resolved by the kernel. */
static char *root_of(const char *path)
{
	char *real = has_dotdot(path) ? realpath(path, NULL) : NULL;

	return real ? real : lexical(path);
}

static char *root_from_env(const char *name)
{
	const char *value = getenv(name);
	cleanup_free char *cwd = NULL, *full = NULL;

	if (!value || !*value)
		return NULL;
	if (value[0] == '/')
		return root_of(value);
	cwd = getcwd(NULL, 0);
	if (!cwd || cwd[0] != '/') {
		log_warn("host root ignored: relative, and the working folder has no path",
			"variable=%s value=%s", name, log_quote(value));
		return NULL;
	}
	full = path_join(cwd, value);
	return root_of(full);
}

/* As $PWD names it where that is true: callers write paths the same way. */
static char *working_dir(void)
{
	cleanup_free char *cwd = get_current_dir_name();
	char *root;

	if (!cwd || cwd[0] != '/')
		return NULL;
	root = root_of(cwd);
	if (str_eq(root, "/")) {
		free(root);
		return NULL;
	}
	return root;
}

/* Whether a folder's name is that of this program in a package cache: "sandbox-libkrun-1.2.3-" and
 * a target of this machine, as in "x86_64-unknown-linux-gnu". */
static bool is_package_name(const char *name)
{
	struct utsname u;
	cleanup_free char *target = NULL;

	if (!str_starts(name, PROGRAM_PREFIX))
		return false;
	name += strlen(PROGRAM_PREFIX);
	for (int part = 0; part < 3; part++) {
		size_t digits = strspn(name, "0123456789");

		if (!digits || (part < 2 && name[digits] != '.'))
			return false;
		name += digits + (part < 2);
	}
	if (uname(&u) < 0)
		return false;
	target = xasprintf("-%s", u.machine);
	return strstr(name, target) != NULL;
}

static char *cache_of_program(void)
{
	char exe[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	char *slash;

	if (n <= 0 || n >= (ssize_t)sizeof(exe) - 1 || exe[0] != '/')
		return NULL;
	exe[n] = '\0';
	slash = strrchr(exe, '/');
	*slash = '\0';
	slash = strrchr(exe, '/');
	if (!slash || slash == exe || !is_package_name(slash + 1))
		return NULL;
	return xstrndup(exe, (size_t)(slash - exe));
}

static char *cache_of_home(void)
{
	const char *home = getenv("HOME");
	cleanup_free char *full = NULL;

	if (!home || home[0] != '/') {
		struct passwd *pw = getpwuid(getuid());

		home = pw ? pw->pw_dir : NULL;
	}
	if (!home || home[0] != '/')
		return NULL;
	full = path_join(home, ".iii/compose/packages");
	return root_of(full);
}

void roots_init(struct roots *r)
{
	r->project = root_from_env("III_SANDBOX_PROJECT_DIR");
	if (!r->project)
		r->project = working_dir();
	r->cache = root_from_env("III_SANDBOX_PACKAGE_CACHE");
	if (!r->cache)
		r->cache = cache_of_program();
	if (!r->cache)
		r->cache = cache_of_home();
	log_info("host roots of workers", "project=%s cache=%s",
		r->project ? log_quote(r->project) : "<unset>",
		r->cache ? log_quote(r->cache) : "<unset>");
}

void roots_done(struct roots *r)
{
	free(r->project);
	free(r->cache);
	*r = (struct roots){0};
}

void root_dir_done(struct root_dir *d)
{
	fd_close(&d->fd);
	free(STEAL(d->path));
}

/* --- resolving --- */

/* Whether a path is `root` or below it, component by component. NULL has nothing below it. */
static bool is_below(const char *root, const char *path)
{
	size_t n = root ? strlen(root) : 0;

	if (!root)
		return false;
	if (n == 1)
		return true;
	return strncmp(root, path, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

/* A path being resolved: `at` has no symlink in it ("" is "/"), `rest` is still to go. */
struct resolve {
	char at[PATH_MAX], rest[2 * PATH_MAX];
	unsigned hops;
};

static void resolve_up(struct resolve *rs)
{
	char *slash = strrchr(rs->at, '/');

	if (slash)
		*slash = '\0';
}

/* Puts a symlink's target in front of what is left. */
static int resolve_follow(struct resolve *rs, const char *target)
{
	size_t len = strlen(target), rest = strlen(rs->rest);

	if (++rs->hops > SYMLINKS_MAX)
		return -ELOOP;
	if (len == 0)
		return -ENOENT;
	if (len + 1 + rest >= sizeof(rs->rest))
		return -ENAMETOOLONG;
	memmove(rs->rest + len + 1, rs->rest, rest + 1);
	memcpy(rs->rest, target, len);
	rs->rest[len] = '/';
	if (target[0] == '/')
		rs->at[0] = '\0';
	return 0;
}

/* One component, `n` bytes of `name`. */
static int resolve_step(struct resolve *rs, const char *name, size_t n)
{
	size_t len = strlen(rs->at);
	char target[PATH_MAX];
	ssize_t got;
	int r;

	if (n == 0 || (n == 1 && name[0] == '.'))
		return 0;
	if (n == 2 && name[0] == '.' && name[1] == '.') {
		resolve_up(rs);
		return 0;
	}
	if (len + 1 + n >= sizeof(rs->at))
		return -ENAMETOOLONG;
	rs->at[len] = '/';
	memcpy(rs->at + len + 1, name, n);
	rs->at[len + 1 + n] = '\0';
	got = readlink(rs->at, target, sizeof(target));
	if (got < 0 && errno == EINVAL) /* is there, and no symlink */
		return 0;
	r = got < 0 ? -errno : 0;
	rs->at[len] = '\0';
	if (r < 0)
		return r;
	if (got == (ssize_t)sizeof(target))
		return -ENAMETOOLONG;
	target[got] = '\0';
	return resolve_follow(rs, target);
}

/* Follows the symlinks of an absolute path. Also on failure *ret, the caller's, says where it got
 * to: the folder of the component that could not be looked up. */
static int resolve(const char *path, char **ret)
{
	struct resolve *rs = xcalloc(1, sizeof(*rs));
	int r = 0;

	memcpy(rs->rest, path, strlen(path) + 1);
	while (r == 0 && rs->rest[0]) {
		char name[NAME_MAX + 1];
		size_t n = strcspn(rs->rest, "/"), skip = n + (rs->rest[n] == '/');

		if (n > NAME_MAX) {
			r = -ENAMETOOLONG;
			break;
		}
		memcpy(name, rs->rest, n);
		memmove(rs->rest, rs->rest + skip, strlen(rs->rest + skip) + 1);
		r = resolve_step(rs, name, n);
	}
	*ret = xstrdup(rs->at[0] ? rs->at : "/");
	free(rs);
	return r;
}

/* --- opening --- */

static int open_how(int dir_fd, const char *path, int flags, uint64_t resolve_flags)
{
	struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .resolve = resolve_flags};
	int fd;

	for (int i = 0; i < AGAIN_MAX; i++) {
		fd = (int)syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));
		if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
			break;
	}
	return fd < 0 ? -errno : fd;
}

/* Kernels before 5.6 have no openat2, and some containers' filters refuse it with EPERM. */
static bool no_openat2(int r)
{
	return r == -ENOSYS || r == -EPERM;
}

/* One component, no symlink. */
static int open_step(int dir_fd, const char *name, int flags)
{
	int fd = openat(dir_fd, name, flags | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd >= 0)
		return fd;
	/* O_DIRECTORY says the same of a symlink and of a file. */
	if (errno == ENOTDIR && fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		S_ISLNK(st.st_mode))
		return -ELOOP;
	return -errno;
}

/* What openat2 does, one component after the other: no symlink is followed. */
static int open_walk(int dir_fd, const char *path, int flags)
{
	cleanup_fd int at = -1;
	int fd = dir_fd;

	for (;;) {
		char name[NAME_MAX + 1];
		size_t n = strcspn(path, "/");
		bool last = path[n + strspn(path + n, "/")] == '\0';

		if (n > NAME_MAX)
			return -ENAMETOOLONG;
		memcpy(name, path, n);
		name[n] = '\0';
		if (str_eq(name, ".."))
			return -EXDEV;
		fd = open_step(fd, n ? name : ".", last ? flags : O_PATH | O_DIRECTORY);
		fd_close(&at);
		if (fd < 0 || last)
			return fd;
		at = fd;
		path += n;
		path += strspn(path, "/");
	}
}

static int pin(const char *canonical)
{
	cleanup_fd int top = -1;
	int fd = open_how(AT_FDCWD, canonical, O_PATH | O_DIRECTORY,
		RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);

	if (!no_openat2(fd))
		return fd;
	top = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return top < 0 ? -errno : open_walk(top, canonical + 1, O_PATH | O_DIRECTORY);
}

/* A root for the message: escaped like the path, without quotes. */
static void show_root(const char *root, char dst[static ROOT_SHOWN_MAX])
{
	const char *quoted = root ? log_quote(root) : "\"<unset>\"";

	snprintf(dst, ROOT_SHOWN_MAX, "%.*s", (int)strlen(quoted) - 2, quoted + 1);
}

static int outside(const struct roots *r, const char *host_path, struct err *e)
{
	char project[ROOT_SHOWN_MAX], cache[ROOT_SHOWN_MAX];

	show_root(r->project, project);
	show_root(r->cache, cache);
	return err_set(e, "S501", EPERM,
		"host_path %s is outside the host roots: project directory %s, package cache %s",
		log_quote(host_path), project, cache);
}

static int unusable(const char *host_path, int r, struct err *e)
{
	const char *quoted = log_quote(host_path);

	switch (r) {
	case -ENOENT:
		return err_set(e, "S500", ENOENT,
			"host_path %s does not exist: give the folder of a worker", quoted);
	case -ENOTDIR:
		return err_set(e, "S500", ENOTDIR,
			"host_path %s is not a folder: give the folder of a worker", quoted);
	case -EACCES:
		return err_set(e, "S500", EACCES,
			"host_path %s cannot be reached (%s): let this program's user pass all "
			"folders on the way",
			quoted, err_str(EACCES));
	default:
		return err_set(
			e, "S500", -r, "host_path %s cannot be opened: %s", quoted, err_str(r));
	}
}

/* The roots as they are canonically now. One that is not there admits nothing. */
static void canonical_roots(const struct roots *r, struct roots *ret)
{
	ret->project = r->project ? realpath(r->project, NULL) : NULL;
	ret->cache = r->cache ? realpath(r->cache, NULL) : NULL;
}

static bool in_roots(const struct roots *r, const char *path)
{
	return is_below(r->project, path) || is_below(r->cache, path);
}

/* Whether a text is below a root that is not there (yet): it is not outside, it does not exist. */
static bool in_missing_root(const struct roots *r, const struct roots *canonical, const char *text)
{
	return (!canonical->project && is_below(r->project, text)) ||
	       (!canonical->cache && is_below(r->cache, text));
}

/* Opens what the canonical path names, and makes sure that it still names it then. */
static int open_canonical(const struct roots *r, const char *host_path, const char *canonical,
	int *ret_fd, struct err *e)
{
	struct stat opened, named;
	cleanup_fd int fd = pin(canonical);

	if (fd == -ELOOP)
		return outside(r, host_path, e);
	if (fd < 0)
		return unusable(host_path, fd, e);
	if (fstat(fd, &opened) < 0 || stat(canonical, &named) < 0)
		return unusable(host_path, -errno, e);
	if (opened.st_dev != named.st_dev || opened.st_ino != named.st_ino)
		return outside(r, host_path, e);
	*ret_fd = STEAL_FD(fd);
	return 0;
}

int roots_open(const struct roots *r, const char *host_path, struct root_dir *ret, struct err *e)
{
	struct roots canonical;
	cleanup_free char *text = NULL, *path = NULL;
	int fd = -1, n;

	if (host_path[0] != '/' || strnlen(host_path, ROOT_PATH_MAX + 1) > ROOT_PATH_MAX)
		return outside(r, host_path, e);
	text = lexical(host_path);
	canonical_roots(r, &canonical);
	if (!in_roots(r, text) && !in_roots(&canonical, text)) {
		roots_done(&canonical);
		return outside(r, host_path, e);
	}
	n = resolve(text, &path);
	if (n < 0 && in_missing_root(r, &canonical, text))
		n = unusable(host_path, n, e);
	else if (!in_roots(&canonical, path))
		n = outside(r, host_path, e);
	else if (n < 0)
		n = unusable(host_path, n, e);
	else
		n = open_canonical(r, host_path, path, &fd, e);
	roots_done(&canonical);
	if (n < 0)
		return n;
	*ret = (struct root_dir){.fd = fd, .path = STEAL(path)};
	return 0;
}

static int open_beneath(int dir_fd, const char *name, int flags)
{
	int fd = open_how(dir_fd, name, flags, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);

	return no_openat2(fd) ? open_walk(dir_fd, name, flags) : fd;
}

/* Opens without opening, so to speak: opening a device can already do something. */
static int probe_regular(int dir_fd, const char *name)
{
	cleanup_fd int fd = open_beneath(dir_fd, name, O_PATH);
	struct stat st;

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (S_ISLNK(st.st_mode)) /* O_PATH|O_NOFOLLOW opens the symlink itself */
		return -ELOOP;
	return S_ISREG(st.st_mode) ? 0 : -ENXIO;
}

static int file_error(const char *name, int r, struct err *e)
{
	const char *quoted = log_quote(name);

	switch (r) {
	case -ENOENT:
		return err_set(e, "S500", ENOENT, "%s is not in the source", quoted);
	case -EXDEV:
		return err_set(e, "S500", EXDEV,
			"%s is a symlink that leads out of the source: put the file itself there",
			quoted);
	case -ELOOP:
		return err_set(e, "S500", ELOOP,
			"%s is a symlink that cannot be followed: put the file itself there",
			quoted);
	case -ENXIO:
		return err_set(e, "S500", ENXIO, "%s is not a regular file", quoted);
	case -EACCES:
		return err_set(e, "S500", EACCES,
			"%s cannot be read (%s): let this program's user read it", quoted,
			err_str(EACCES));
	default:
		return err_set(e, "S500", -r, "%s cannot be opened: %s", quoted, err_str(r));
	}
}

int root_open_file(int dir_fd, const char *name, int *ret_fd, struct err *e)
{
	int r = probe_regular(dir_fd, name);
	cleanup_fd int fd =
		r < 0 ? r : open_beneath(dir_fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	if (fd < 0)
		return file_error(name, fd, e);
	if (fstat(fd, &st) < 0)
		return file_error(name, -errno, e);
	if (!S_ISREG(st.st_mode))
		return file_error(name, -ENXIO, e);
	*ret_fd = STEAL_FD(fd);
	return 0;
}
