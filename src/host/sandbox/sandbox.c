#include "host/sandbox/sandbox.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/upper.h"

enum sandbox_state {
	SANDBOX_BOOTING,
	SANDBOX_RUNNING,
	SANDBOX_STOPPING,
	SANDBOX_ENDED,
};

/* A VM whose agent is gone gets this long to report its own end, which says more than the loss. */
#define LOST_GRACE_MS 1000

struct sandbox {
	enum sandbox_state state;
	uv_timer_t grace;
	uv_loop_t *loop;
	struct vm *vm;
	struct guest *guest;
	struct err lost; /* why the agent's connection went, when that ended the sandbox */
	const struct sandbox_callbacks *cb;
	void *user;
};

/* The only place where the state changes. */
static void set_state(struct sandbox *sb, enum sandbox_state to)
{
	static const unsigned char legal[] = {
		[SANDBOX_BOOTING] =
			1 << SANDBOX_RUNNING | 1 << SANDBOX_STOPPING | 1 << SANDBOX_ENDED,
		[SANDBOX_RUNNING] = 1 << SANDBOX_STOPPING | 1 << SANDBOX_ENDED,
		[SANDBOX_STOPPING] = 1 << SANDBOX_ENDED,
		[SANDBOX_ENDED] = 0,
	};

	assert(legal[sb->state] & 1 << to);
	sb->state = to;
}

static void on_grace_over(uv_timer_t *timer)
{
	struct sandbox *sb = timer->data;

	vm_kill(sb->vm);
}

static void on_guest_lost(struct guest *g, const struct err *why, void *user)
{
	struct sandbox *sb = user;

	if (sb->state != SANDBOX_RUNNING)
		return;
	sb->lost = *why;
	set_state(sb, SANDBOX_STOPPING);
	/* The end of its stream usually means that the VM is ending: its own report follows. An
	 * agent that broke the protocol ends nothing by itself. */
	if (why->no == ECONNRESET)
		uv_timer_start(&sb->grace, on_grace_over, LOST_GRACE_MS, 0);
	else
		vm_kill(sb->vm);
	if (sb->cb->on_lost)
		sb->cb->on_lost(sb, why, sb->user);
}

static void on_vm_ready(struct vm *vm, void *user)
{
	static const struct guest_callbacks guest_cb = {.on_lost = on_guest_lost};
	struct sandbox *sb = user;
	struct err e = ERR_INIT;

	if (sb->state != SANDBOX_BOOTING)
		return;
	if (guest_new(sb->loop, vm_take_agent_fd(vm), &guest_cb, sb, &sb->guest, &e) < 0) {
		sb->lost = e;
		set_state(sb, SANDBOX_STOPPING);
		vm_kill(vm);
		return;
	}
	set_state(sb, SANDBOX_RUNNING);
	sb->cb->on_ready(sb, sb->user);
}

static void on_vm_exit(struct vm *vm, const struct vm_exit *x, void *user)
{
	struct sandbox *sb = user;
	struct vm_exit told = *x;

	/* We killed it because the agent was lost: that is the cause to tell. */
	if (sb->lost.text[0] && x->end == VM_END_STOPPED) {
		told.end = VM_END_GUEST_CRASH;
		told.why = sb->lost;
		err_code(&told.why, "S300");
	}
	set_state(sb, SANDBOX_ENDED);
	uv_timer_stop(&sb->grace);
	guest_free(STEAL(sb->guest));
	sb->cb->on_end(sb, &told, sb->user);
}

/* Contract §1.3: defaults, then the image's environment, then the caller's. */
static char **base_env(const struct image_config *config, char *const *env)
{
	char **all = NULL;

	strv_add(&all, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
	strv_add(&all, "HOME=/root");
	for (size_t i = 0; config->env && config->env[i]; i++)
		strv_add(&all, config->env[i]);
	for (size_t i = 0; env && env[i]; i++)
		strv_add(&all, env[i]);
	return all;
}

int sandbox_create(uv_loop_t *loop, const struct sandbox_spec *spec,
	const struct sandbox_callbacks *cb, void *user, struct sandbox **ret, struct err *e)
{
	static const struct vm_callbacks vm_cb = {.on_ready = on_vm_ready, .on_exit = on_vm_exit};
	struct sandbox *sb = xcalloc(1, sizeof(*sb));
	char **env = base_env(&spec->image->config, spec->env);
	cleanup_fd int upper = -1;
	int r;

	sb->loop = loop;
	sb->cb = cb;
	sb->user = user;
	r = upper_new(spec->disk_bytes ? spec->disk_bytes : UPPER_SIZE_DEFAULT, &upper, e);
	if (r == 0) {
		struct vm_spec vs = {
			.label = spec->label,
			.backend = spec->backend,
			.vcpus = spec->vcpus,
			.mem_mib = spec->mem_mib,
			.base_fd = spec->image->disk_fd,
			.upper_fd = upper,
			.env = env,
			.net = spec->net,
		};

		r = vm_start(loop, &vs, &vm_cb, sb, &sb->vm, e);
	}
	strv_free(env);
	if (r < 0) {
		err_code(e, "S300");
		free(sb);
		return r;
	}
	uv_timer_init(loop, &sb->grace);
	sb->grace.data = sb;
	*ret = sb;
	return 0;
}

struct guest *sandbox_guest(struct sandbox *sb)
{
	return sb->guest;
}

enum vm_tier sandbox_tier(const struct sandbox *sb)
{
	return vm_tier(sb->vm);
}

const char *sandbox_backend_name(const struct sandbox *sb)
{
	return vm_backend_name(sb->vm);
}

uint64_t sandbox_net_active_ms(const struct sandbox *sb)
{
	return vm_net_active_ms(sb->vm);
}

void sandbox_stop(struct sandbox *sb)
{
	if (sb->state == SANDBOX_STOPPING || sb->state == SANDBOX_ENDED)
		return;
	set_state(sb, SANDBOX_STOPPING);
	vm_kill(sb->vm);
}

static void on_grace_closed(uv_handle_t *timer)
{
	free(timer->data);
}

void sandbox_free(struct sandbox *sb)
{
	if (!sb)
		return;
	guest_free(sb->guest);
	vm_free(sb->vm);
	uv_close((uv_handle_t *)&sb->grace, on_grace_closed);
}
