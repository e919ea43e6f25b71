/* net_link - the network of one VM as its supervisor holds it: helper, relay, firewall.
 *
 * One object from before the VMM's start to its end; it outlives a boot that is repeated. It waits
 * for nothing: its user polls NET_LINK_POLLS descriptors along with its own.
 */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "host/vm/plan.h"

#define NET_LINK_POLLS 3

struct net_link;

/* Opens all of it and starts passt, which ends by itself right after this process. Call it while
 * processes may still be started and sockets be opened; the page's descriptor is closed. */
int net_link_start(const struct plan *p, struct net_link **ret, struct err *e);

/* Kills passt, collects it, frees all. NULL allowed. */
void net_link_free(struct net_link *n);

/* Connects a VMM that is about to be started; takes `fd`. */
void net_link_set_vmm(struct net_link *n, int fd);

/* Where passt says something, to be polled; -1 when that has ended. */
int net_link_words(const struct net_link *n);
/* Reads once what passt says, and keeps the end of it. A count, or 0 when there is nothing for now.
 */
size_t net_link_hear(struct net_link *n, void *dst, size_t size);
/* Adds the end of what passt said to a report. */
void net_link_tail(const struct net_link *n, struct buf *out);

void net_link_polls(const struct net_link *n, struct pollfd ret[static NET_LINK_POLLS]);

/* After poll. 0, or a negative errno with S300 in *e: the VM cannot go on. */
int net_link_move(struct net_link *n, const struct pollfd p[static NET_LINK_POLLS], uint64_t now_ms,
	struct err *e);

/* True once, when passt has ended; it is then collected, and *e says how and what its words were.
 */
bool net_link_ended(struct net_link *n, struct err *e);

/* The arguments for passt, NULL-terminated (strv_free). `uid`: whom it becomes; 0: nothing is said
 * of that. */
char **net_link_passt_args(const struct plan_net *p, int fd, uid_t uid);
