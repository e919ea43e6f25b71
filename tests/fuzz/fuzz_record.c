/* record: any text is a record or refused; what was read is written and read again the same. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "host/worker/record_priv.h"

#define VM_ID "wvm-0123456789abcdef0123456789abcdef"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct worker_record a, b;
	struct err e = ERR_INIT;
	struct buf one, two;

	if (record_decode((const char *)data, size, VM_ID, &a, &e) < 0) {
		assert(e.text[0] && !a.worker_name && !a.boot.instance);
		return 0;
	}
	buf_init(&one, 16u << 20);
	buf_init(&two, 16u << 20);
	assert(record_encode(&a, VM_ID, &one) == 0);
	assert(record_decode((char *)one.data, one.len, VM_ID, &b, &e) == 0);
	assert(record_encode(&b, VM_ID, &two) == 0);
	assert(one.len == two.len && memcmp(one.data, two.data, one.len) == 0);
	for (size_t i = 0; i < WORKER_HISTORY_MAX && a.history[i].instance; i++)
		assert(worker_record_find(&a, a.history[i].instance) == &a.history[i]);
	if (b.boot.instance < UINT64_MAX)
		worker_record_next(&b, UINT64_MAX, 0);
	buf_done(&one);
	buf_done(&two);
	worker_record_done(&a);
	worker_record_done(&b);
	return 0;
}
