/* record_priv - what the parts of record.h share: record.c (the record), vmdir.c (the folder) and
 * vmdir_recover.c (the start). */
#pragma once

#include "base/buf.h"
#include "host/worker/record.h"

bool worker_boot_ended(const struct worker_boot *b);

/* The text of record.json. */
int record_encode(const struct worker_record *r, const char *vm_id, struct buf *ret);
/* -EINVAL with a reason when it is no record of that VM. A pid of before the host's last boot is
 * left out. *ret is zeroed first. */
int record_decode(
	const char *text, size_t len, const char *vm_id, struct worker_record *ret, struct err *e);

/* Removes *.partial and what else of ours is half-made in a VM's folder. */
void vmdir_sweep(struct vmdir *d);
