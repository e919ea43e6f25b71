/* sandbox - a VM over an image, with a writable disk of its own and its agent at hand.
 *
 * Ties together what a caller means by "a sandbox": the image's read-only disk, an unnamed writable
 * disk that vanishes with the last descriptor, the VM (vm/vm.h) and the client of its agent
 * (guest/guest.h).
 *
 *   state     legal calls             left when
 *   BOOTING   stop                    the agent is ready -> RUNNING; the VM ended -> ENDED
 *   RUNNING   guest, stop             stop, agent lost -> STOPPING; the VM ended -> ENDED
 *   STOPPING  -                       the VM ended -> ENDED
 *   ENDED     -                       sandbox_free
 *
 * All functions are for the loop's thread. Callbacks come from the loop, and none after
 * sandbox_free().
 */
#pragma once

#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "host/guest/guest.h"
#include "host/image/image.h"
#include "host/vm/vm.h"

struct sandbox;

struct sandbox_spec {
	const char *label; /* as vm_spec.label */
	enum vm_backend_choice backend;
	uint32_t vcpus;
	uint32_t mem_mib;
	struct image *image;	  /* borrowed until sandbox_create returns */
	char *const *env;	  /* on top of the image's environment; NAME=value, may be NULL */
	const struct vm_net *net; /* NULL: no network; borrowed until sandbox_create returns */
	uint64_t disk_bytes;	  /* size of the writable disk, within upper.h's limits; 0: 8 GiB */
};

struct sandbox_callbacks {
	void (*on_ready)(struct sandbox *sb, void *user);
	/* The agent's connection is gone although nobody stopped the sandbox: every call on it has
	 * ended, new ones fail, the VM is being ended and on_end follows. May be NULL. */
	void (*on_lost)(struct sandbox *sb, const struct err *why, void *user);
	/* The end: no process or file of the sandbox is left. `x->why` says what happened; after
	 * sandbox_stop() x->end is VM_END_STOPPED or VM_END_CLEAN. */
	void (*on_end)(struct sandbox *sb, const struct vm_exit *x, void *user);
};

/* Makes the disk and starts the boot. Short blocking file work (a sparse copy of a template of a
 * few hundred KiB). 0 or a negative errno with an S-code; then nothing was started. */
int sandbox_create(uv_loop_t *loop, const struct sandbox_spec *spec,
	const struct sandbox_callbacks *cb, void *user, struct sandbox **ret, struct err *e);

/* The client of the agent, from on_ready until on_end; calls under way when the VM ends get their
 * end callback before on_end. Borrowed. */
struct guest *sandbox_guest(struct sandbox *sb);

enum vm_tier sandbox_tier(const struct sandbox *sb);
const char *sandbox_backend_name(const struct sandbox *sb);
/* As vm_net_active_ms. */
uint64_t sandbox_net_active_ms(const struct sandbox *sb);

/* Ends the VM at once; its disk is thrown away. on_end follows. */
void sandbox_stop(struct sandbox *sb);
/* NULL allowed; stops first. The loop has to run once more before it can be closed. */
void sandbox_free(struct sandbox *sb);
