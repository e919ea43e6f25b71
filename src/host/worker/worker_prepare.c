/* prepare, and what it has in common with start: the manifest, and where its image comes from. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/image/source.h"
#include "host/worker/guest_env.h"
#include "host/worker/worker_priv.h"

/* What is in a manifest is not the operator's word: it names images of registries or of the cache,
 * never files of the host. */
static int check_image(const char *text, struct err *e)
{
	struct source_spec spec;
	int r = source_spec_parse(text, &spec, e);

	if (r == 0) {
		r = spec.kind == SOURCE_REGISTRY ? 0 : -EINVAL;
		source_spec_done(&spec);
	}
	if (r < 0)
		return err_set(e, "S500", EINVAL,
			"runtime.base_image is no image reference: %.200s", text);
	return 0;
}

/* What this host has, which a pure reader of manifests cannot know. */
static int check_memory(const struct manifest *m, struct err *e)
{
	long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
	uint64_t host_mib = ((uint64_t)pages * (uint64_t)size) >> 20;

	if (pages <= 0 || size <= 0 || m->mem_mib <= host_mib)
		return 0;
	return err_set(e, "S400", ERANGE,
		MANIFEST_FILE ": `resources.memory` is %" PRIu32 " MiB, more than the %" PRIu64
			      " MiB of this host: ask for less",
		m->mem_mib, host_mib);
}

/* Leading to the gateway makes it longer. */
static int check_start(const struct manifest *m, struct err *e)
{
	cleanup_free char *run = guest_env_rewrite(m->start);

	if (strlen(run) <= WORKER_SCRIPT_MAX)
		return 0;
	return err_set(e, "S500", E2BIG,
		"the start command has more than %d bytes once its URLs lead to the guest's "
		"gateway: put it into a file",
		WORKER_SCRIPT_MAX);
}

int worker_load_manifest(
	int dir_fd, const struct manifest_query *q, struct manifest *ret, struct err *e)
{
	int r = manifest_load(dir_fd, q, ret, e);

	if (r >= 0)
		r = check_image(ret->base_image, e);
	if (r >= 0)
		r = check_memory(ret, e);
	if (r >= 0)
		r = check_start(ret, e);
	if (r < 0)
		err_code(e, "S500");
	return r;
}

struct prepare {
	struct worker_work work;
	struct workers *w;
	enum worker_kind kind;
	char *host_path, *package, *run_override, *image;
	int r;
	struct err why;
	workers_done cb;
	void *user;
};

static void prepare_end(struct prepare *p, const struct err *why)
{
	struct workers *w = p->w;

	p->cb(why, p->user);
	free(p->host_path);
	free(p->package);
	free(p->run_override);
	free(p->image);
	free(p);
	worker_unbusy(w);
}

static void prepare_run(struct worker_work *work)
{
	struct prepare *p = CONTAINER_OF(work, struct prepare, work);
	const struct manifest_query q = {
		.kind = p->kind, .package = p->package, .run_override = p->run_override};
	struct manifest m = {0};
	struct root_dir root = {.fd = -1};

	p->r = roots_open(&p->w->roots, p->host_path, &root, &p->why);
	err_code(&p->why, "S501");
	if (p->r < 0)
		return;
	p->r = worker_load_manifest(root.fd, &q, &m, &p->why);
	p->image = STEAL(m.base_image);
	manifest_done(&m);
	root_dir_done(&root);
}

static void on_prepared(struct image *img, const struct err *why, void *user)
{
	image_close(img);
	prepare_end(user, why);
}

static void prepare_after(struct worker_work *work)
{
	struct prepare *p = CONTAINER_OF(work, struct prepare, work);

	if (p->w->closing)
		p->r = worker_refuse(p->w, &p->why);
	if (p->r < 0)
		prepare_end(p, &p->why);
	else
		images_get(p->w->o.images, p->image, p->image, true, on_prepared, p);
}

void workers_prepare(struct workers *w, const struct worker_source *s, workers_done cb, void *user)
{
	struct prepare *p;
	struct err e = ERR_INIT;

	if (worker_refuse(w, &e) < 0) {
		cb(&e, user);
		return;
	}
	p = xcalloc(1, sizeof(*p));
	*p = (struct prepare){.work = {.run = prepare_run, .after = prepare_after},
		.w = w,
		.kind = s->kind,
		.host_path = xstrdup(s->host_path),
		.package = xstrdup(s->package),
		.run_override = xstrdup(s->run_override),
		.cb = cb,
		.user = user};
	w->busy++;
	worker_queue(w, NULL, &p->work);
}
