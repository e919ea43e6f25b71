/* The plan frame: written by vm.c, read by boot.c.
 *
 * The reader takes nothing on trust although its writer is the daemon itself: the frame is the
 * only thing that a process started as __vm-boot by somebody else could be fed with, and every
 * value in it ends up in a VMM's argument list, a kernel command line or a descriptor table. So
 * each string has an alphabet and a length, each number a range, and descriptor numbers must be
 * distinct. The limits are in plan.h.
 */
#include "host/vm/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/vm.h"
#include "wire/guest_net.h"
#include "wire/json.h"
#include "wire/worker.h"

static const char *const formats[] = {
	[PLAN_KERNEL_ELF] = "elf",
	[PLAN_KERNEL_RAW] = "raw",
};

void plan_done(struct plan *p)
{
	free(p->vmm);
	strv_free(p->env);
	json_object_put(p->worker);
	plan_net_done(&p->net);
	*p = (struct plan){0};
}

int plan_serial(int fd, char ret[static PLAN_SERIAL_MAX + 1], struct err *e)
{
	char digits[64];
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_set(
			e, "S300", errno, "cannot stat a disk of the VM: %s", err_str(errno));
	snprintf(digits, sizeof(digits), "%llu%llu%llu", (unsigned long long)st.st_dev,
		(unsigned long long)st.st_rdev, (unsigned long long)st.st_ino);
	snprintf(ret, PLAN_SERIAL_MAX + 1, "%.*s", PLAN_SERIAL_MAX, digits);
	return 0;
}

/* --- checks --- */

/* Letters, digits and the characters of `extra`. */
static int check_word(const char *what, const char *s, size_t max, const char *extra, struct err *e)
{
	size_t len = strnlen(s, max + 1);
	bool good = len > 0 && len <= max;

	for (size_t i = 0; i < len && good; i++)
		good = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') ||
		       (s[i] >= '0' && s[i] <= '9') || strchr(extra, s[i]);
	if (!good)
		return err_set(e, "S300", EINVAL,
			"%s has to be 1 to %zu characters: letters, digits%s%s", what, max,
			*extra ? " and " : "", extra);
	return 0;
}

static int check_range(const char *what, uint64_t v, uint64_t min, uint64_t max, struct err *e)
{
	if (v < min || v > max)
		return err_set(e, "S300", EINVAL,
			"%s is %" PRIu64 ", but has to be %" PRIu64 " to %" PRIu64, what, v, min,
			max);
	return 0;
}

static int check_fd(const char *what, int fd, uint32_t *used, struct err *e)
{
	if (fd < PLAN_FD_FIRST || fd >= PLAN_FD_END)
		return err_set(e, "S300", EINVAL, "%s: descriptor %d is not one of %d to %d", what,
			fd, PLAN_FD_FIRST, PLAN_FD_END - 1);
	if (*used & 1u << fd)
		return err_set(e, "S300", EINVAL, "%s: descriptor %d is named twice", what, fd);
	*used |= 1u << fd;
	return 0;
}

static int check_disks(const struct plan *p, uint32_t *used, struct err *e)
{
	int r;

	if (p->n_disks == 0 || p->n_disks > PLAN_DISKS_MAX || !str_eq(p->disks[0].role, "boot"))
		return err_set(e, "S300", EINVAL, "disks: 1 to %d, the first with the role boot",
			PLAN_DISKS_MAX);
	for (size_t i = 0; i < p->n_disks; i++) {
		const struct plan_disk *d = &p->disks[i];

		if ((r = check_word("disk role", d->role, PLAN_WORD_MAX, "", e)) < 0)
			return r;
		r = check_word("disk serial", d->serial, PLAN_SERIAL_MAX, "", e);
		if (r < 0 || (r = check_fd(d->role, d->fd, used, e)) < 0)
			return r;
		for (size_t j = 0; j < i; j++) {
			if (str_eq(d->role, p->disks[j].role) ||
				str_eq(d->serial, p->disks[j].serial))
				return err_set(e, "S300", EINVAL,
					"the disks %s and %s cannot be told apart (serial %s)",
					p->disks[j].role, d->role, d->serial);
		}
	}
	return 0;
}

static int check_env(char *const *env, struct err *e)
{
	size_t n = strv_len(env);

	if (n > PLAN_ENV_MAX)
		return err_set(e, "S300", E2BIG, "%zu environment variables, at most %d fit", n,
			PLAN_ENV_MAX);
	for (size_t i = 0; i < n; i++) {
		if (env[i][0] == '=' || !strchr(env[i], '='))
			return err_set(e, "S300", EINVAL,
				"environment entry %zu is not of the form NAME=value", i);
	}
	return 0;
}

/* A job and the disk with its source come together. */
static int check_worker(const struct plan *p, struct err *e)
{
	const struct plan_disk *source = NULL;
	struct worker_job job;
	int r;

	for (size_t i = 0; i < p->n_disks; i++) {
		if (str_eq(p->disks[i].role, "source"))
			source = &p->disks[i];
	}
	if (!p->worker != !source || (source && !source->readonly))
		return err_set(e, "S300", EINVAL,
			"worker: it needs a disk with the role source, read-only, which nothing "
			"else may have");
	if (!p->worker)
		return 0;
	r = worker_job_from_json(p->worker, &job, e);
	worker_job_done(&job);
	if (r < 0)
		err_wrap(e, "worker");
	err_code(e, "S300");
	return r;
}

/* Words of the kernel's command line: nothing that could end it early or hide ours. */
static int check_kernel_args(const char *args, struct err *e)
{
	for (const char *c = args; *c; c++)
		if (*c < ' ' || *c > '~')
			return err_set(e, "S300", EINVAL,
				"kernel_args: only printable ASCII fits on a kernel's command "
				"line");
	if (strstr(args, "--") || strstr(args, "iii."))
		return err_set(
			e, "S300", EINVAL, "kernel_args: '--' and 'iii.' belong to the agent");
	return 0;
}

int plan_check(const struct plan *p, struct err *e)
{
	uint32_t used = 0;
	int r;

	if ((r = check_word("label", p->label, PLAN_LABEL_MAX, "._-", e)) < 0 ||
		(r = check_word("backend", p->backend, PLAN_WORD_MAX, "-", e)) < 0 ||
		(r = check_word("hostname", p->hostname, PLAN_HOSTNAME_MAX, ".-", e)) < 0 ||
		(r = check_kernel_args(p->kernel_args, e)) < 0)
		return r;
	if (!p->vmm || !p->vmm[0])
		return err_set(e, "S300", EINVAL, "vmm: empty");
	if ((r = check_range("vcpus", p->vcpus, 1, VM_VCPUS_MAX, e)) < 0 ||
		(r = check_range("mem_mib", p->mem_mib, VM_MEM_MIB_MIN, INT32_MAX, e)) < 0 ||
		(r = check_range("boot_timeout_ms", p->boot_timeout_ms, 1, INT32_MAX, e)) < 0 ||
		(r = check_range("tsc_khz", p->tsc_khz, 0, 100000000, e)) < 0)
		return r;
	if ((r = check_fd("kernel_fd", p->kernel_fd, &used, e)) < 0 ||
		(r = check_disks(p, &used, e)) < 0 ||
		(p->log_fd && (r = check_fd("log_fd", p->log_fd, &used, e)) < 0) ||
		(p->net.passt &&
			((r = plan_net_check(&p->net, e)) < 0 ||
				(r = check_fd("net.page_fd", p->net.page_fd, &used, e)) < 0)) ||
		(r = check_worker(p, e)) < 0)
		return r;
	return check_env(p->env, e);
}

bool plan_has_kept_disk(const struct plan *p)
{
	for (size_t i = 0; i < p->n_disks; i++) {
		if (!p->disks[i].readonly && !p->disks[i].throwaway)
			return true;
	}
	return false;
}

/* --- writing --- */

static int add_frame(struct buf *out, json_object *o, struct err *e)
{
	size_t len;
	const char *text = json_text(o, &len);
	uint8_t hdr[PLAN_FRAME_HDR] = {len >> 24, len >> 16, len >> 8, len};
	int r;

	if (len > PLAN_FRAME_MAX)
		return err_set(e, "S300", E2BIG,
			"the environment is too large: %zu bytes with it, at most %u fit", len,
			PLAN_FRAME_MAX);
	if ((r = buf_add(out, hdr, sizeof(hdr))) < 0 || (r = buf_add(out, text, len)) < 0)
		return err_set(e, "S300", r, "no room for a frame of %zu bytes", len);
	return 0;
}

int plan_encode(const struct plan *p, struct buf *out, struct err *e)
{
	cleanup_json json_object *o = json_object_new_object();
	json_object *disks = json_object_new_array();
	int r = plan_check(p, e);

	json_object_object_add(o, "disks", disks);
	if (r < 0)
		return r;
	json_add_str(o, "label", p->label);
	json_add_str(o, "backend", p->backend);
	json_add_str(o, "vmm", p->vmm);
	json_add_u64(o, "vcpus", p->vcpus);
	json_add_u64(o, "mem_mib", p->mem_mib);
	json_add_u64(o, "boot_timeout_ms", p->boot_timeout_ms);
	json_add_u64(o, "tsc_khz", p->tsc_khz);
	json_add_u64(o, "kernel_fd", p->kernel_fd);
	json_add_str(o, "kernel_format", formats[p->kernel_format]);
	if (p->kernel_args[0])
		json_add_str(o, "kernel_args", p->kernel_args);
	json_add_str(o, "hostname", p->hostname);
	json_add_strv(o, "env", p->env);
	for (size_t i = 0; i < p->n_disks; i++) {
		json_object *d = json_object_new_object();

		json_add_str(d, "role", p->disks[i].role);
		json_add_u64(d, "fd", p->disks[i].fd);
		json_add_str(d, "serial", p->disks[i].serial);
		json_add_bool(d, "readonly", p->disks[i].readonly);
		json_add_bool(d, "throwaway", p->disks[i].throwaway);
		json_object_array_add(disks, d);
	}
	if (p->net.passt)
		json_object_object_add(o, "net", plan_net_to_json(&p->net));
	if (p->log_fd)
		json_add_u64(o, "log_fd", (uint64_t)p->log_fd);
	if (p->worker)
		json_object_object_add(o, "worker", json_object_get(p->worker));
	if (p->nested_virt)
		json_add_bool(o, "nested_virt", true);
	if (p->hyperthreads)
		json_add_bool(o, "hyperthreads", true);
	return add_frame(out, o, e);
}

int plan_env_frame(const struct plan *p, uint64_t time_ns, struct buf *out, struct err *e)
{
	cleanup_json json_object *o = json_object_new_object();
	struct guest_net net;

	json_add_strv(o, "env", p->env);
	json_add_str(o, "hostname", p->hostname);
	json_add_u64(o, "time_ns", time_ns);
	if (p->worker)
		json_object_object_add(o, "worker", json_object_get(p->worker));
	if (p->net.passt) {
		guest_net_default(&net, p->net.ipv6);
		json_object_object_add(o, "net", guest_net_to_json(&net));
	}
	return add_frame(out, o, e);
}

int plan_cmdline(const struct plan *p, const char *first, struct buf *out, struct err *e)
{
	int r = buf_printf(out,
		"%s console=hvc0 quiet root=/dev/vda ro rootfstype=erofs init=/init panic=-1",
		first);

	for (size_t i = 1; i < p->n_disks && r == 0; i++)
		r = buf_printf(out, " iii.%s=%s", p->disks[i].role, p->disks[i].serial);
	if (r == 0 && p->kernel_args[0])
		r = buf_printf(out, " %s", p->kernel_args);
	if (r == 0 && out->len > PLAN_CMDLINE_MAX)
		r = -E2BIG;
	if (r < 0)
		return err_set(e, "S300", r, "the kernel command line is too long");
	return 0;
}

/* --- reading --- */

/* Copies a string member into a fixed array; too long is an error, never a cut. */
static int get_word(json_object *o, const char *name, char *dst, size_t size, struct err *e)
{
	const char *s;
	int r = json_get_str(o, name, JSON_REQUIRED, &s, e);

	if (r < 0)
		return r;
	if (strlen(s) >= size)
		return err_set(e, "S300", EINVAL, "%s: longer than %zu characters", name, size - 1);
	memcpy(dst, s, strlen(s) + 1);
	return 0;
}

static int get_fd(json_object *o, const char *name, int *ret, struct err *e)
{
	uint32_t v;
	int r = json_get_u32(o, name, JSON_REQUIRED, &v, e);

	if (r < 0)
		return r;
	if (v >= PLAN_FD_END)
		return err_set(e, "S300", EINVAL, "%s: no such descriptor: %u", name, v);
	*ret = (int)v;
	return 0;
}

static int decode_disk(json_object *o, struct plan_disk *d, struct err *e)
{
	static const char *const names[] = {"role", "fd", "serial", "readonly", "throwaway"};
	int r;

	if (!json_object_is_type(o, json_type_object))
		return err_set(e, "S300", EINVAL, "not an object");
	if ((r = json_only_members(o, names, ARRAY_LEN(names), e)) < 0 ||
		(r = get_word(o, "role", d->role, sizeof(d->role), e)) < 0 ||
		(r = get_word(o, "serial", d->serial, sizeof(d->serial), e)) < 0 ||
		(r = get_fd(o, "fd", &d->fd, e)) < 0 ||
		(r = json_get_bool(o, "readonly", JSON_REQUIRED, &d->readonly, e)) < 0)
		return r;
	r = json_get_bool(o, "throwaway", JSON_REQUIRED, &d->throwaway, e);
	return r < 0 ? r : 0;
}

static int decode_disks(json_object *o, struct plan *p, struct err *e)
{
	json_object *a;
	int r = json_get_array(o, "disks", JSON_REQUIRED, &a, e);
	size_t n;

	if (r < 0)
		return r;
	n = json_object_array_length(a);
	if (n > PLAN_DISKS_MAX)
		return err_set(e, "S300", EINVAL, "disks: %zu, at most %d fit", n, PLAN_DISKS_MAX);
	for (size_t i = 0; i < n; i++) {
		r = decode_disk(json_object_array_get_idx(a, i), &p->disks[i], e);
		if (r < 0) {
			err_wrap(e, "disk %zu", i);
			return r;
		}
	}
	p->n_disks = n;
	return 0;
}

static int decode_kernel_format(json_object *o, enum plan_kernel_format *ret, struct err *e)
{
	char word[PLAN_WORD_MAX + 1];
	int r = get_word(o, "kernel_format", word, sizeof(word), e);

	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
		if (str_eq(word, formats[i])) {
			*ret = (enum plan_kernel_format)i;
			return 0;
		}
	}
	return err_set(e, "S300", EINVAL, "kernel_format: unknown word %s", word);
}

/* What only worker VMs have. */
static int decode_worker(json_object *o, struct plan *p, struct err *e)
{
	json_object *job = NULL;
	int r;

	if (json_object_object_get_ex(o, "log_fd", NULL) &&
		(r = get_fd(o, "log_fd", &p->log_fd, e)) < 0)
		return r;
	if ((r = json_get_object(o, "worker", JSON_OPTIONAL, &job, e)) < 0 ||
		(r = json_get_bool(o, "nested_virt", JSON_OPTIONAL, &p->nested_virt, e)) < 0 ||
		(r = json_get_bool(o, "hyperthreads", JSON_OPTIONAL, &p->hyperthreads, e)) < 0)
		return r;
	p->worker = json_object_get(job);
	return 0;
}

static int decode_members(json_object *o, struct plan *p, struct err *e)
{
	static const char *const names[] = {"label", "backend", "vmm", "vcpus", "mem_mib",
		"boot_timeout_ms", "tsc_khz", "kernel_fd", "kernel_format", "hostname", "env",
		"disks", "kernel_args", "log_fd", "worker", "nested_virt", "hyperthreads", "net"};
	json_object *net;
	const char *vmm;
	int r;

	if ((r = json_only_members(o, names, ARRAY_LEN(names), e)) < 0 ||
		(r = get_word(o, "label", p->label, sizeof(p->label), e)) < 0 ||
		(r = get_word(o, "backend", p->backend, sizeof(p->backend), e)) < 0 ||
		(r = json_get_str(o, "vmm", JSON_REQUIRED, &vmm, e)) < 0)
		return r;
	p->vmm = xstrdup(vmm);
	if ((r = json_get_u32(o, "vcpus", JSON_REQUIRED, &p->vcpus, e)) < 0 ||
		(r = json_get_u32(o, "mem_mib", JSON_REQUIRED, &p->mem_mib, e)) < 0 ||
		(r = json_get_u32(o, "boot_timeout_ms", JSON_REQUIRED, &p->boot_timeout_ms, e)) <
			0 ||
		(r = json_get_u32(o, "tsc_khz", JSON_REQUIRED, &p->tsc_khz, e)) < 0)
		return r;
	if ((r = get_fd(o, "kernel_fd", &p->kernel_fd, e)) < 0 ||
		(r = decode_kernel_format(o, &p->kernel_format, e)) < 0 ||
		(r = get_word(o, "hostname", p->hostname, sizeof(p->hostname), e)) < 0 ||
		(json_object_object_get(o, "kernel_args") &&
			(r = get_word(o, "kernel_args", p->kernel_args, sizeof(p->kernel_args),
				 e)) < 0) ||
		(r = json_get_strv(o, "env", JSON_REQUIRED, &p->env, e)) < 0)
		return r;
	if ((r = decode_disks(o, p, e)) < 0 || (r = decode_worker(o, p, e)) < 0)
		return r;
	r = json_get_object(o, "net", JSON_OPTIONAL, &net, e);
	return r > 0 ? plan_net_from_json(net, &p->net, e) : r;
}

int plan_decode(const char *text, size_t len, struct plan *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	int r;

	*ret = (struct plan){0};
	if (len > PLAN_FRAME_MAX)
		return err_set(e, "S300", EINVAL, "the plan is too large: %zu bytes", len);
	if ((r = json_parse_object(text, len, &o, e)) < 0 || (r = decode_members(o, ret, e)) < 0 ||
		(r = plan_check(ret, e)) < 0) {
		err_wrap(e, "plan of the VM");
		err_code(e, "S300");
		return r;
	}
	return 0;
}

int plan_read(int fd, struct plan *ret, struct err *e)
{
	cleanup_free char *text = NULL;
	uint8_t hdr[PLAN_FRAME_HDR], behind;
	ssize_t n = fd_read_full(fd, hdr, sizeof(hdr));
	uint32_t len;

	*ret = (struct plan){0};
	if (n < 0)
		return err_set(
			e, "S300", (int)-n, "cannot read the plan of the VM: %s", err_str((int)n));
	if (n < (ssize_t)sizeof(hdr))
		return err_set(e, "S300", EINVAL,
			"there is no plan on stdin: __vm-boot is started by the program itself");
	len = (uint32_t)hdr[0] << 24 | (uint32_t)hdr[1] << 16 | (uint32_t)hdr[2] << 8 | hdr[3];
	if (len > PLAN_FRAME_MAX)
		return err_set(e, "S300", EINVAL, "the plan is too large: %u bytes", len);
	text = xmalloc((size_t)len + 1);
	n = fd_read_full(fd, text, len);
	if (n < 0 || (uint32_t)n < len)
		return err_set(e, "S300", EINVAL, "the plan ends after %zd of %u bytes", n, len);
	if (fd_read_full(fd, &behind, 1) != 0)
		return err_set(e, "S300", EINVAL, "there are bytes behind the plan");
	return plan_decode(text, len, ret, e);
}
