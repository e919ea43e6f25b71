#include "host/vm/net_page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

#define PAGE_SIZE_ 4096

int net_page_new(int *ret_fd, const struct net_page **ret, struct err *e)
{
	cleanup_fd int fd = memfd_create("net", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *page;

	if (fd < 0 || ftruncate(fd, PAGE_SIZE_) < 0 ||
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return err_set(e, "S300", errno, "cannot make a page of memory to share: %s",
			err_str(errno));
	page = mmap(NULL, PAGE_SIZE_, PROT_READ, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return err_set(
			e, "S300", errno, "cannot map a page of shared memory: %s", err_str(errno));
	*ret = page;
	*ret_fd = STEAL_FD(fd);
	return 0;
}

int net_page_map(int fd, struct net_page **ret, struct err *e)
{
	const int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;
	void *page;

	/* A file of a disk has no seals at all, which is -1. */
	if (fstat(fd, &st) < 0 || st.st_size != PAGE_SIZE_ || seals < 0 || !(seals & F_SEAL_SHRINK))
		return err_set(e, "S300", EINVAL, "the network's page is not one of ours");
	page = mmap(NULL, PAGE_SIZE_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED || madvise(page, PAGE_SIZE_, MADV_DONTFORK) < 0)
		return err_set(
			e, "S300", errno, "cannot map the network's page: %s", err_str(errno));
	*ret = page;
	return 0;
}

void net_page_unmap(const struct net_page *page)
{
	if (page)
		munmap((void *)page, PAGE_SIZE_);
}
