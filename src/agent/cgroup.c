#include "agent/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

/* Cgroups that a program made below its leaf are removed down to this depth; deeper ones stay
 * (empty, in the guest's kernel memory) because walking them would let a program choose our stack
 * use. */
#define DEPTH_MAX 16

struct leftover {
	uint64_t number;
	struct leftover *next;
};

static struct {
	int root_fd, exec_fd; /* <root>, <root>/exec */
	uint64_t last;
	struct leftover *leftovers;
} cg = {.root_fd = -1, .exec_fd = -1};

static const char *leaf_name(uint64_t number, const char *file, char dst[static 64])
{
	snprintf(
		dst, 64, "%llu%s%s", (unsigned long long)number, file ? "/" : "", file ? file : "");
	return dst;
}

/* Makes the controllers usable for whoever builds cgroups in the guest. cpu also serves us: all
 * programs together then weigh as much as the agent alone, so that it answers in a fork bomb. Our
 * leaves have no controllers of their own, which keeps them cheap to make. */
static void enable_controllers(int root_fd)
{
	static const char *const wanted[] = {"+memory", "+pids", "+cpu", "+io"};

	for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
		cleanup_fd int fd = openat(root_fd, "cgroup.subtree_control", O_WRONLY | O_CLOEXEC);

		if (fd < 0 || write(fd, wanted[i], strlen(wanted[i])) < 0)
			continue; /* not in this kernel */
	}
}

int cgroup_start(int root_fd)
{
	cleanup_fd int root = root_fd, exec = -1;

	if (root < 0)
		return -ENOENT;
	enable_controllers(root);
	if (mkdirat(root, "exec", 0755) < 0 && errno != EEXIST)
		return -errno;
	exec = openat(root, "exec", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (exec < 0)
		return -errno;
	if (faccessat(exec, "cgroup.kill", F_OK, 0) < 0)
		return -errno; /* a kernel before 5.14 */
	cg.exec_fd = STEAL_FD(exec);
	cg.root_fd = STEAL_FD(root);
	return 0;
}

bool cgroup_available(void)
{
	return cg.exec_fd >= 0;
}

int cgroup_leaf_new(struct cgroup_leaf *ret, int *ret_fd)
{
	char name[64];
	int fd;

	leaf_name(++cg.last, NULL, name);
	if (mkdirat(cg.exec_fd, name, 0755) < 0)
		return -errno;
	fd = openat(cg.exec_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) {
		int r = -errno;

		unlinkat(cg.exec_fd, name, AT_REMOVEDIR);
		return r;
	}
	ret->number = cg.last;
	*ret_fd = fd;
	return 0;
}

int cgroup_leaf_kill(const struct cgroup_leaf *leaf)
{
	char name[64];
	cleanup_fd int fd = openat(
		cg.exec_fd, leaf_name(leaf->number, "cgroup.kill", name), O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "1", 1) < 0)
		return -errno;
	return 0;
}

int cgroup_leaf_populated(const struct cgroup_leaf *leaf)
{
	cleanup_free char *text = NULL;
	char name[64];
	int r = fd_slurp_at(
		cg.exec_fd, leaf_name(leaf->number, "cgroup.events", name), 4096, &text, NULL);

	if (r < 0)
		return r;
	return strstr(text, "populated 1") != NULL;
}

/* Removes the cgroups inside `fd` (consumed), deepest first. */
static void remove_inner(int fd, int depth)
{
	DIR *dir = fdopendir(fd);
	struct dirent *d;

	if (!dir) {
		close(fd);
		return;
	}
	while ((d = readdir(dir))) {
		int inner;

		if (d->d_type != DT_DIR || str_eq(d->d_name, ".") || str_eq(d->d_name, ".."))
			continue;
		inner = depth < DEPTH_MAX ? openat(dirfd(dir), d->d_name,
						    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
					  : -1;
		if (inner >= 0)
			remove_inner(inner, depth + 1);
		unlinkat(dirfd(dir), d->d_name, AT_REMOVEDIR);
	}
	closedir(dir);
}

/* True when the leaf is gone. */
static bool try_remove(uint64_t number)
{
	const struct cgroup_leaf leaf = {number};
	char name[64];
	int fd;

	leaf_name(number, NULL, name);
	if (unlinkat(cg.exec_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return true;
	if (cgroup_leaf_populated(&leaf) != 0)
		return false;
	/* Nobody lives in it, so it has cgroups inside. */
	fd = openat(cg.exec_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0)
		remove_inner(fd, 0);
	return unlinkat(cg.exec_fd, name, AT_REMOVEDIR) == 0;
}

void cgroup_leaf_release(struct cgroup_leaf *leaf)
{
	struct leftover *l;

	if (!leaf->number)
		return;
	if (!try_remove(leaf->number)) {
		l = xcalloc(1, sizeof(*l));
		*l = (struct leftover){leaf->number, cg.leftovers};
		cg.leftovers = l;
	}
	leaf->number = 0;
}

/* --- the worker --- */

int cgroup_worker_new(void)
{
	int fd;

	if (cg.root_fd < 0)
		return -ENOENT;
	if (mkdirat(cg.root_fd, "worker", 0755) < 0 && errno != EEXIST)
		return -errno;
	fd = openat(cg.root_fd, "worker", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int write_file(int dir_fd, const char *name, const char *text)
{
	cleanup_fd int fd = openat(dir_fd, name, O_WRONLY | O_CLOEXEC);

	return fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
}

int cgroup_worker_limit(int worker_fd, uint64_t memory_max_bytes)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)memory_max_bytes);
	return write_file(worker_fd, "memory.max", text);
}

int cgroup_worker_kill(int worker_fd)
{
	return write_file(worker_fd, "cgroup.kill", "1");
}

/* --- given-up leaves --- */

void cgroup_sweep(void)
{
	struct leftover **p = &cg.leftovers;

	while (*p) {
		struct leftover *l = *p;

		if (try_remove(l->number)) {
			*p = l->next;
			free(l);
		} else {
			p = &l->next;
		}
	}
}

void cgroup_stop(void)
{
	cgroup_sweep();
	while (cg.leftovers) {
		struct leftover *l = cg.leftovers;

		cg.leftovers = l->next;
		free(l);
	}
	fd_close(&cg.exec_fd);
	if (cg.root_fd >= 0)
		unlinkat(cg.root_fd, "worker", AT_REMOVEDIR);
	fd_close(&cg.root_fd);
}
