#include <errno.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "host/worker/roots.h"
#include "host/worker/source.h"
#include "host/worker/stamp.h"

/* Another number runs everybody's setup again. */
#define FORMAT "sandbox-libkrun/worker-provision/v1"
#define PIECE  (256u << 10)

/* What decides which dependencies are installed, at the root of a project (specification §4.6). */
static const char *const lock_files[] = {"package.json", "package-lock.json", "pnpm-lock.yaml",
	"yarn.lock", "bun.lock", "bun.lockb", "requirements.txt", "pyproject.toml", "poetry.lock",
	"Pipfile", "Pipfile.lock", "uv.lock", "Cargo.toml", "Cargo.lock", "go.mod", "go.sum",
	"Gemfile", "Gemfile.lock", "mix.exs", "mix.lock", "pom.xml", "build.gradle",
	"build.gradle.kts", "packages.config"};

void source_setup_digest(
	const char *image_digest, const char *setup, char ret[WORKER_DIGEST_LEN + 1])
{
	struct stamp s;

	stamp_init(&s);
	stamp_text(&s, FORMAT);
	stamp_text(&s, image_digest);
	stamp_text(&s, setup);
	stamp_end(&s, ret);
}

/* The bytes that the file has now; what is written to it meanwhile does not make this longer. */
static int stamp_file(
	struct stamp *s, const struct source_job *j, int fd, const char *name, struct err *e)
{
	cleanup_free uint8_t *buf = xmalloc(PIECE);
	uint64_t at = 0, size;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_set(e, "S500", errno, "%s: %s", log_quote(name), err_str(errno));
	size = (uint64_t)st.st_size;
	if (size > SOURCE_BYTES_MAX)
		return err_set(e, "S500", EFBIG, "%s has more than %llu bytes", log_quote(name),
			(unsigned long long)SOURCE_BYTES_MAX);
	stamp_begin(s, size);
	while (at < size) {
		ssize_t n = fd_pread_full(fd, buf, MIN(size - at, (uint64_t)PIECE), at);

		if (j->stop && j->stop(j->user))
			return err_set(e, "", ECANCELED, "cancelled");
		if (n < 0)
			return err_set(e, "S500", (int)-n, "reading %s: %s", log_quote(name),
				err_str((int)n));
		if (n == 0)
			break;
		stamp_piece(s, buf, (size_t)n);
		at += (uint64_t)n;
	}
	stamp_zeros(s, size - at);
	return 0;
}

/* A symlink whose target is not to be had, by its text. False when it is none. */
static bool stamp_symlink(struct stamp *s, const struct source_job *j, const char *name)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(j->dir_fd, name, target, sizeof(target));

	if (n <= 0)
		return false;
	stamp_text(s, name);
	stamp_text(s, "symlink");
	stamp_bytes(s, target, (size_t)n);
	return true;
}

static int stamp_lock_file(
	struct stamp *s, const struct source_job *j, const char *name, struct err *e)
{
	cleanup_fd int fd = -1;
	struct err why = ERR_INIT;
	int r = root_open_file(j->dir_fd, name, &fd, &why);

	if (r == -ENXIO) /* a folder of that name, a socket */
		return 0;
	if (r < 0 && stamp_symlink(s, j, name))
		return 0;
	if (r == -ENOENT)
		return 0;
	if (r < 0) {
		if (e)
			*e = why;
		return r;
	}
	stamp_text(s, name);
	stamp_text(s, "file");
	return stamp_file(s, j, fd, name, e);
}

int source_install_digest(const struct source_job *j, const char *setup_digest,
	const char *source_digest, const char *install, char ret[WORKER_DIGEST_LEN + 1],
	struct err *e)
{
	struct stamp s;

	stamp_init(&s);
	stamp_text(&s, FORMAT);
	stamp_text(&s, setup_digest);
	stamp_text(&s, install);
	if (j->kind == WORKER_BUNDLE) {
		stamp_text(&s, j->path);
		stamp_text(&s, source_digest);
	}
	for (size_t i = 0; j->kind == WORKER_LOCAL && i < ARRAY_LEN(lock_files); i++) {
		int r = stamp_lock_file(&s, j, lock_files[i], e);

		if (r < 0) {
			stamp_done(&s);
			return r;
		}
	}
	stamp_end(&s, ret);
	return 0;
}
