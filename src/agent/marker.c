#include "agent/marker.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/mounts.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define NAME (strrchr(MARKER_PATH, '/') + 1)
#define SIZE (2 * (WORKER_DIGEST_LEN + 1))

/* One line of hex digits. */
static bool take_digest(const char *line, char dst[static WORKER_DIGEST_LEN + 1])
{
	if (strspn(line, "0123456789abcdef") != WORKER_DIGEST_LEN ||
		line[WORKER_DIGEST_LEN] != '\n')
		return false;
	memcpy(dst, line, WORKER_DIGEST_LEN);
	dst[WORKER_DIGEST_LEN] = '\0';
	return true;
}

void marker_parse(const char *text, size_t len, struct marker *ret)
{
	char whole[SIZE + 1];

	*ret = (struct marker){"", ""};
	if (len != SIZE)
		return;
	memcpy(whole, text, len);
	whole[len] = '\0';
	if (!take_digest(whole, ret->setup) ||
		!take_digest(whole + WORKER_DIGEST_LEN + 1, ret->install))
		*ret = (struct marker){"", ""};
}

/* A job without the script may have no digest for it. */
static const char *line_of(const char *digest)
{
	static const char none[] =
		"0000000000000000000000000000000000000000000000000000000000000000";

	_Static_assert(sizeof(none) - 1 == WORKER_DIGEST_LEN, "a digest's length");
	return digest[0] ? digest : none;
}

static int open_var(int root_fd, struct err *e)
{
	cleanup_fd int point = mounts_open_point(root_fd, "var", e);
	int fd = point < 0 ? -1 : openat(point, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (point >= 0 && fd < 0)
		return err_set(e, "S300", errno, "cannot open /var: %s", err_str(errno));
	return fd < 0 ? point : fd;
}

void marker_read(int root_fd, struct marker *ret)
{
	cleanup_fd int var = open_var(root_fd, NULL), fd = -1;
	char text[SIZE + 1];
	struct stat st;
	ssize_t n;

	*ret = (struct marker){"", ""};
	if (var < 0)
		return;
	fd = openat(var, NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return;
	n = fd_read_full(fd, text, sizeof(text));
	if (n > 0)
		marker_parse(text, (size_t)n, ret);
}

struct marker_verdict marker_compare(const struct marker *m, const struct worker_job *job)
{
	bool setup = !str_eq(m->setup, line_of(job->setup_digest));
	bool install = setup || !str_eq(m->install, line_of(job->install_digest));

	return (struct marker_verdict){
		.setup = setup && job->setup,
		.install = install && job->install,
		.write = install,
	};
}

int marker_write(int root_fd, const struct worker_job *job, struct err *e)
{
	cleanup_free char *text =
		xasprintf("%s\n%s\n", line_of(job->setup_digest), line_of(job->install_digest));
	cleanup_fd int var = open_var(root_fd, e);
	int r;

	if (var < 0)
		return var;
	r = syncfs(var) < 0 ? -errno : fd_publish_at(var, NAME, text, strlen(text), 0644);
	if (r == 0 && syncfs(var) < 0)
		r = -errno;
	if (r < 0)
		return err_set(e, "S300", -r, "cannot write " MARKER_PATH ": %s", err_str(r));
	return 0;
}
