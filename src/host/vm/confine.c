#include "host/vm/confine.h"

#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/vm/confine_priv.h"

#define KEEP_MAX   8
#define RANGES_MAX 128

int confine_limit(int what, rlim_t max)
{
	struct rlimit l;

	if (getrlimit(what, &l) < 0)
		return -errno;
	l.rlim_max = MIN(l.rlim_max, max);
	l.rlim_cur = l.rlim_max;
	return setrlimit(what, &l) < 0 ? -errno : 0;
}

static void clean_env(const char *const *keep, size_t n)
{
	char *values[KEEP_MAX] = {0};

	for (size_t i = 0; i < n && i < KEEP_MAX; i++)
		values[i] = xstrdup(getenv(keep[i]));
	clearenv();
	for (size_t i = 0; i < n && i < KEEP_MAX; i++) {
		if (values[i])
			setenv(keep[i], values[i], 1);
		free(values[i]);
	}
}

int confine_self(const char *const *keep, size_t n_keep, struct err *e)
{
	int r;

	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		return err_set(e, "S300", errno, "PR_SET_PDEATHSIG: %s", err_str(errno));
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return err_set(e, "S300", errno, "PR_SET_NO_NEW_PRIVS: %s", err_str(errno));
	if ((r = confine_limit(RLIMIT_CORE, 0)) < 0)
		return err_set(e, "S300", r, "setrlimit: %s", err_str(r));
	umask(077);
	clean_env(keep, n_keep);
	return 0;
}

int confine_files(unsigned max)
{
	return confine_limit(RLIMIT_NOFILE, max);
}

static int compare_int(const void *a, const void *b)
{
	return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

int confine_fds(const int *keep, size_t n, struct err *e)
{
	int sorted[32];
	unsigned from = 3;

	if (n > ARRAY_LEN(sorted))
		return err_set(e, "S300", EMFILE, "too many descriptors to keep");
	memcpy(sorted, keep, n * sizeof(*keep));
	qsort(sorted, n, sizeof(*sorted), compare_int);
	for (size_t i = 0; i < n; i++) {
		if (sorted[i] < (int)from)
			continue;
		if (sorted[i] > (int)from && close_range(from, (unsigned)sorted[i] - 1, 0) < 0)
			return err_set(e, "S300", errno, "close_range: %s", err_str(errno));
		from = (unsigned)sorted[i] + 1;
	}
	if (close_range(from, ~0u, 0) < 0)
		return err_set(e, "S300", errno, "close_range: %s", err_str(errno));
	return 0;
}

/* The pages of an object's segments that cannot be written. */
struct ranges {
	size_t n;
	struct {
		uintptr_t from, to;
	} r[RANGES_MAX];
};

static int note_object(struct dl_phdr_info *info, size_t size, void *user)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	struct ranges *all = user;

	(void)size;
	for (size_t i = 0; i < info->dlpi_phnum && all->n < RANGES_MAX; i++) {
		const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
		uintptr_t from = info->dlpi_addr + ph->p_vaddr, to = from + ph->p_memsz;

		/* A segment that may be written holds relocated pointers: never these. */
		if (ph->p_type != PT_LOAD || ph->p_flags & PF_W)
			continue;
		all->r[all->n].from = from & ~(page - 1);
		all->r[all->n++].to = (to + page - 1) & ~(page - 1);
	}
	return 0;
}

void confine_drop_code(void)
{
	struct ranges all = {0};

	malloc_trim(0);
	/* First all addresses, then the deed: the headers lie in what is dropped. */
	dl_iterate_phdr(note_object, &all);
	for (size_t i = 0; i < all.n; i++)
		madvise((void *)all.r[i].from, all.r[i].to - all.r[i].from, MADV_DONTNEED);
}
