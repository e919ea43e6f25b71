/* host/vm/plan: what is taken as a plan is one that can be written again and read the same, and has
 * nothing in it that a command line, a kernel or a descriptor table could trip over. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/str.h"
#include "host/vm/plan.h"
#include "host/vm/qemu.h"

static void check_words(const struct plan *p)
{
	uint32_t used = 0;

	for (size_t i = 0; i < p->n_disks; i++) {
		const struct plan_disk *d = &p->disks[i];

		assert(!strpbrk(d->serial, ", =/\\\n") && !strpbrk(d->role, ", =/\\\n"));
		assert(d->fd >= PLAN_FD_FIRST && d->fd < PLAN_FD_END && !(used & 1u << d->fd));
		used |= 1u << d->fd;
	}
	assert(!(used & 1u << p->kernel_fd));
	for (size_t i = 0; p->env[i]; i++)
		assert(strchr(p->env[i], '='));
}

static void check_qemu(const struct plan *p)
{
	const struct vmm_ends ends = {4, 20, 21, 22};
	const int readable[PLAN_DISKS_MAX] = {30, 31, 32, 33, 34};
	char **argv;

	if (qemu_args(p, &ends, readable, &argv, NULL) == 0)
		strv_free(argv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_plan struct plan p = {0}, q = {0};
	cleanup_buf struct buf a = {0}, b = {0};
	struct err e = ERR_INIT;

	buf_init(&a, 2 * PLAN_FRAME_MAX);
	buf_init(&b, 2 * PLAN_FRAME_MAX);
	if (plan_decode((const char *)data, size, &p, &e) < 0) {
		assert(e.text[0] && str_eq(e.code, "S300"));
		return 0;
	}
	check_words(&p);
	check_qemu(&p);
	assert(plan_encode(&p, &a, &e) == 0);
	assert(plan_decode((const char *)a.data + PLAN_FRAME_HDR, a.len - PLAN_FRAME_HDR, &q, &e) ==
		0);
	assert(plan_encode(&q, &b, &e) == 0);
	assert(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
	buf_clear(&a);
	assert(plan_env_frame(&p, UINT64_MAX, &a, &e) == 0);
	return 0;
}
