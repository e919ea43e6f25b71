#include "host/vm/backend.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/str.h"
#include "host/vm/kvm_probe.h"

const struct vm_backend *const vm_backends[] = {&vm_backend_krun, &vm_backend_qemu, NULL};

const struct vm_backend *vm_backend_find(const struct vm_backend *const *list, const char *name)
{
	for (; *list; list++) {
		if (str_eq((*list)->name, name))
			return *list;
	}
	return NULL;
}

int vm_backend_parse(const char *word, enum vm_backend_choice *ret)
{
	static const char *const words[] = {
		[VM_BACKEND_KRUN] = "krun",
		[VM_BACKEND_QEMU] = "qemu",
		[VM_BACKEND_AUTO] = "auto",
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (str_eq(word, words[i])) {
			*ret = (enum vm_backend_choice)i;
			return 0;
		}
	}
	return -EINVAL;
}

/* AUTO takes krun only where KVM really virtualises, also when somebody named a kernel. */
static int choose_auto(const struct vm_backend **ret, struct err *e)
{
	struct err krun = ERR_INIT, qemu = ERR_INIT;

	if (kvm_probe()->verdict == KVM_USABLE && vm_backend_krun.probe(&krun) == 0) {
		*ret = &vm_backend_krun;
		return 0;
	}
	if (!krun.text[0])
		krun = kvm_probe()->why;
	if (vm_backend_qemu.probe(&qemu) == 0) {
		*ret = &vm_backend_qemu;
		return 0;
	}
	return err_set(e, "S300", ENOTSUP, "no way to run a VM: %s; and %s", krun.text, qemu.text);
}

int vm_backend_choose(enum vm_backend_choice choice, const struct vm_backend **ret, struct err *e)
{
	static bool warned;
	struct err why = ERR_INIT;
	int r;

	switch (choice) {
	case VM_BACKEND_QEMU:
		r = vm_backend_qemu.probe(e);
		if (r == 0)
			*ret = &vm_backend_qemu;
		return r;
	case VM_BACKEND_AUTO:
		return choose_auto(ret, e);
	case VM_BACKEND_KRUN:
		break;
	}
	r = vm_backend_krun.probe(&why);
	if (r < 0)
		return err_set(e, "S300", -r,
			"%s; or take software emulation, slower and no security boundary by "
			"QEMU's own words: --vmm qemu or III_SANDBOX_VMM=qemu (auto: only where "
			"there is nothing better)",
			why.text);
	if (kvm_probe()->verdict == KVM_SLOW && !warned) {
		log_warn("KVM emulates, but III_SANDBOX_KERNEL names a kernel: using it",
			"backend=krun best_us=%u", kvm_probe()->best_us);
		warned = true;
	}
	*ret = &vm_backend_krun;
	return 0;
}
