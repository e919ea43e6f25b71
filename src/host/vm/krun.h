/* krun - libkrun as data: its entry points, and the calls that make a VM up to entering it.
 * The backend itself is vm_backend_krun (backend.h). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "host/vm/backend.h"

struct krun_api {
	void *handle;
	int32_t (*set_log_level)(uint32_t level);
	int32_t (*init_log)(int target, uint32_t level, uint32_t style, uint32_t options);
	int32_t (*has_feature)(uint64_t feature);
	int32_t (*create_ctx)(void);
	int32_t (*free_ctx)(uint32_t ctx);
	int32_t (*set_vm_config)(uint32_t ctx, uint8_t vcpus, uint32_t mem_mib);
	int32_t (*disable_implicit_vsock)(uint32_t ctx);
	int32_t (*set_nested_virt)(uint32_t ctx, bool enabled);
	int32_t (*set_kernel)(uint32_t ctx, const char *path, uint32_t format,
		const char *initramfs, const char *cmdline);
	int32_t (*add_disk3)(uint32_t ctx, const char *id, const char *path, uint32_t format,
		bool read_only, bool direct_io, uint32_t sync_mode);
	int32_t (*set_console_output)(uint32_t ctx, const char *path);
	int32_t (*add_virtio_console_multiport)(uint32_t ctx);
	int32_t (*add_console_port_inout)(
		uint32_t ctx, uint32_t console, const char *name, int in, int out);
	int32_t (*add_net_unixstream)(uint32_t ctx, const char *path, int fd, uint8_t *mac,
		uint32_t features, uint32_t flags); /* NULL: no networking with this library */
	int32_t (*start_enter)(uint32_t ctx);
};

/* Loads the library and checks it: S300 names what is missing and the version that brought it. */
int krun_load(const char *path, struct krun_api *ret, struct err *e);
void krun_unload(struct krun_api *k);

/* Every call of a VM but the last; *ret_ctx can be entered. The failed call is named in *e. */
int krun_configure(const struct krun_api *k, const struct plan *p, const struct vmm_ends *ends,
	uint32_t *ret_ctx, struct err *e);
