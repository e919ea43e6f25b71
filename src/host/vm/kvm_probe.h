/* kvm_probe - does /dev/kvm really virtualise, or does it only open.
 *
 * Some hosts offer /dev/kvm although every instruction of a guest's kernel is emulated: an ordinary
 * kernel then does not come up in any useful time. A loop of 20,000 turns in a guest of one page
 * tells them apart: well under a millisecond where hardware does it, 50 ms and more where not.
 */
#pragma once

#include <stdint.h>

#include "base/err.h"

#define KVM_PROBE_SLOW_US 5000 /* a best run longer than this: not usable */
#define KVM_PROBE_RUNS                                                                             \
	3 /* at most; 1 where III_SANDBOX_KERNEL names a kernel for slow ones too                  \
	   */
#define KVM_PROBE_GUARD_MS 1000 /* a probe that takes longer is killed: not usable */

enum kvm_verdict {
	KVM_USABLE,
	KVM_SLOW,      /* opens and runs, but emulates; or did not come back in time */
	KVM_ABSENT,    /* no /dev/kvm */
	KVM_FORBIDDEN, /* this user may not open it */
	KVM_BROKEN,    /* it opens, but a call that every KVM has failed */
};

struct kvm_probe {
	enum kvm_verdict verdict;
	uint32_t best_us; /* of the runs that ended; 0 when none did */
	struct err why;	  /* empty for KVM_USABLE; else what and what to do */
};

/* Runs the probe in a short-lived child. The verdicts USABLE and SLOW are remembered for the life
 * of the process; the others are looked at anew, since they are repaired while it runs. */
const struct kvm_probe *kvm_probe(void);

/* The text and verdict for a measurement (exposed for the test). failed_call NULL: it ran. */
void kvm_probe_judge(struct kvm_probe *p, uint32_t best_us, const char *failed_call, int failed_no);
