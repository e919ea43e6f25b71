/* net_page - what a VM's network did, as one page of memory that its supervisor writes and the
 * daemon reads.
 *
 * A sealed memory file: nobody who has it can change its size, so reading it cannot fault. The
 * daemon makes it and has it mapped for reading; __vm-boot has it mapped for writing. VMM and
 * network helper never get it.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"

struct net_page {
	_Atomic uint64_t active_ms; /* CLOCK_MONOTONIC of the last payload; 0: none yet */
	/* For the log (SANDBOX_LOG=debug) when the VM ends. */
	_Atomic uint64_t out_bytes, in_bytes; /* payload from the guest, and to it */
	_Atomic uint64_t dropped, refused;    /* frames of the guest's */
};

/* A new page: its descriptor, and itself mapped for reading. */
int net_page_new(int *ret_fd, const struct net_page **ret, struct err *e);
/* Maps a page for writing; children do not get the mapping. */
int net_page_map(int fd, struct net_page **ret, struct err *e);
void net_page_unmap(const struct net_page *page); /* NULL allowed */
