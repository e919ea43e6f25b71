/* wire/worker: what is taken as a job can be written and read again as the same. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/str.h"
#include "wire/json.h"
#include "wire/worker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_json json_object *o = NULL, *a = NULL, *b = NULL;
	struct worker_job j, k = {0};
	struct err e = ERR_INIT;

	if (json_parse((const char *)data, size, &o, &e) < 0)
		return 0;
	if (worker_job_from_json(o, &j, &e) < 0) {
		assert(e.text[0]);
		worker_job_done(&j);
		return 0;
	}
	assert(worker_job_check(&j, &e) == 0);
	a = worker_job_to_json(&j);
	assert(worker_job_from_json(a, &k, &e) == 0);
	b = worker_job_to_json(&k);
	assert(str_eq(json_text(a, NULL), json_text(b, NULL)));
	worker_job_done(&j);
	worker_job_done(&k);
	return 0;
}
