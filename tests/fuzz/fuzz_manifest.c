/* manifest: any text, as the manifest of a bundle and of a local source. What is taken can be
 * booted; an error is one printable line. The first byte chooses the query. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "host/vm/vm.h"
#include "host/worker/manifest.h"
#include "wire/oci.h"

static void check_error(const struct err *e)
{
	assert(str_eq(e->code, "S500") || str_eq(e->code, "S400"));
	assert(e->text[0] && utf8_valid(e->text, strlen(e->text)));
	for (const char *p = e->text; *p; p++)
		assert((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void check_env(char *const *env)
{
	for (size_t i = 0; i < strv_len(env); i++) {
		assert(strchr(env[i], '=') > env[i]);
		assert(!str_starts(env[i], "III_URL=") && !str_starts(env[i], "III_WORKER_NAME="));
		assert(utf8_valid(env[i], strlen(env[i])));
	}
}

static void check(const struct manifest *m, const struct manifest_query *q)
{
	struct oci_ref ref;
	bool bundle = q->kind == WORKER_BUNDLE;

	assert(m->name[0] && m->name[0] != '.' && !strchr(m->name, '/') && !strstr(m->name, ".."));
	assert(!bundle || (str_eq(m->name, q->package) && !m->setup));
	assert(oci_ref_parse(m->base_image, &ref, NULL) == 0);
	assert(str_starts(m->base_image, ref.registry));
	oci_ref_done(&ref);
	assert(m->start[strspn(m->start, " \t\r\n\v\f")]);
	assert(m->cpus >= 1 && m->cpus <= (bundle ? MANIFEST_BUNDLE_CPUS_MAX : VM_VCPUS_MAX));
	assert(m->mem_mib >= MANIFEST_MEM_MIN_MIB);
	assert(!bundle || m->mem_mib <= MANIFEST_BUNDLE_MEM_MAX_MIB);
	check_env(m->env);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static const struct manifest_query queries[] = {
		{.kind = WORKER_LOCAL},
		{.kind = WORKER_LOCAL, .run_override = " run "},
		{.kind = WORKER_BUNDLE, .package = "w"},
	};
	const struct manifest_query *q;
	struct manifest m;
	struct err e = ERR_INIT;

	if (!len)
		return 0;
	q = &queries[data[0] % ARRAY_LEN(queries)];
	if (manifest_parse((const char *)data + 1, len - 1, q, &m, &e) == 0)
		check(&m, q);
	else
		check_error(&e);
	manifest_done(&m);
	return 0;
}
