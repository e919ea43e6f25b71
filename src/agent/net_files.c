#include "agent/net_files.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/mounts.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define TEMP ".iii-net.tmp"

static int fail(const char *name, int no, struct err *e)
{
	return err_set(e, "S300", no, "cannot write /etc/%s: %s", name, err_str(no));
}

static bool says_so(int etc, const char *name, const char *text)
{
	cleanup_fd int fd = openat(etc, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	cleanup_free char *have = xcalloc(1, strlen(text) + 1);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
		st.st_size != (off_t)strlen(text))
		return false;
	return fd_read_full(fd, have, strlen(text)) == (ssize_t)strlen(text) && str_eq(have, text);
}

static int replace(int etc, const char *name)
{
	if (renameat(etc, TEMP, etc, name) == 0)
		return 0;
	/* A container runtime leaves empty folders where files were to be mounted. */
	if (errno == EISDIR && unlinkat(etc, name, AT_REMOVEDIR) == 0 &&
		renameat(etc, TEMP, etc, name) == 0)
		return 0;
	return -errno;
}

static int write_text(int etc, const char *name, const char *text, struct err *e)
{
	cleanup_fd int fd = -1;
	int r;

	if (says_so(etc, name, text))
		return 0;
	if (unlinkat(etc, TEMP, 0) < 0 && errno != ENOENT)
		return fail(name, errno, e);
	fd = openat(etc, TEMP, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return fail(name, errno, e);
	r = fd_write_all(fd, text, strlen(text));
	if (r == 0)
		r = replace(etc, name);
	if (r < 0) {
		unlinkat(etc, TEMP, 0);
		return fail(name, -r, e);
	}
	return 0;
}

/* One word of a line; the host's own check is stricter. */
static bool is_word(const char *s)
{
	for (; *s; s++)
		if (*s <= ' ' || *s == '#' || *s == 0x7f)
			return false;
	return true;
}

static int open_etc(int root_fd, struct err *e)
{
	cleanup_fd int point = mounts_open_point(root_fd, "etc", e);
	int fd;

	if (point < 0)
		return point;
	fd = openat(point, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? err_set(e, "S300", errno, "cannot open /etc: %s", err_str(errno)) : fd;
}

int net_files_write(int root_fd, const struct guest_net *net, enum net_localhost localhost,
	const char *hostname, struct err *e)
{
	char gateway[INET_ADDRSTRLEN], dns[INET_ADDRSTRLEN];
	cleanup_free char *hosts = NULL, *resolv = NULL;
	cleanup_fd int etc = open_etc(root_fd, e);
	int r;

	if (etc < 0)
		return etc;
	inet_ntop(AF_INET, net->gateway, gateway, sizeof(gateway));
	inet_ntop(AF_INET, net->dns, dns, sizeof(dns));
	hosts = xasprintf("%s localhost\n%s host.iii.internal\n%s%s%s",
		localhost == NET_LOCALHOST_HOST ? gateway : "127.0.0.1", gateway,
		is_word(hostname) ? "127.0.0.1 " : "", is_word(hostname) ? hostname : "",
		is_word(hostname) ? "\n" : "");
	/* Longer answers by UDP: the resolver is not there by TCP. */
	resolv = xasprintf("nameserver %s\noptions edns0\n", dns);
	r = write_text(etc, "hosts", hosts, e);
	return r < 0 ? r : write_text(etc, "resolv.conf", resolv, e);
}

int net_files_write_local(int root_fd, const char *hostname, struct err *e)
{
	cleanup_fd int etc = openat(root_fd, "etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_free char *hosts = NULL;
	struct stat st;

	if (etc < 0 || fstatat(etc, "hosts", &st, AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	hosts = xasprintf("127.0.0.1 localhost%s%s\n", is_word(hostname) ? " " : "",
		is_word(hostname) ? hostname : "");
	return write_text(etc, "hosts", hosts, e);
}
