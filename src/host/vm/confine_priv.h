/* confine_priv - the mechanisms behind confine_vmm(), one file each. All return 0 or a negative
 * errno, and when they fail the process is as it was before. */
#pragma once

#include <sys/resource.h>

#include "host/vm/confine.h"

/* confine_ns.c: namespaces and the file tree. */
/* After CLONE_NEWUSER: the ids that the process had are mapped to themselves. */
int confine_ns_map(uid_t own_uid, gid_t own_gid);
int confine_ns_root(const struct confine *c, const struct confine_policy *policy);

/* confine_uid.c: another user id than the host's root. */
#define CONFINE_UID_BASE 0x70000000u /* above what distributions and containers give out */
#define CONFINE_UID_SPAN 0x01000000u /* as many are used from there on */

/* A user namespace that maps this user to `uid`, to show files by. A descriptor or -errno. */
int confine_uid_map(uid_t uid);

/* What was swapped, to put it back. */
struct confine_uid_swap {
	int original[PLAN_DISKS_MAX + 1]; /* of the kernel and the disks; -1: not swapped */
};
/* Replaces the plan's descriptors by ones that `uid` may open again. Best effort: confine_uid_drop
 * finds out. */
void confine_uid_swap(
	const struct confine *c, const struct plan *p, int console, struct confine_uid_swap *ret);
/* Becomes c->uid if that user can open all it needs; else puts the descriptors back. Takes what
 * is in `swap`. */
int confine_uid_drop(const struct confine *c, const struct plan *p, bool kvm, int console,
	struct confine_uid_swap *swap);
/* No capabilities from here on. */
int confine_caps_drop(void);
/* None but CAP_KILL, if there was that: a VMM may have another user id. */
int confine_caps_waiter(void);

/* confine.c */

/* Lowers both limits of a resource to at most `max`. 0 or a negative errno. */
int confine_limit(int what, rlim_t max);

/* confine_landlock.c */
int confine_landlock(const struct confine_policy *policy, const struct plan *p, uint8_t *ret_abi);

/* No file can be opened, no TCP port reached. */
int confine_landlock_waiter(void);

/* confine_seccomp.c */
int confine_seccomp(enum confine_filter filter, int failure);
int confine_seccomp_waiter(void);
