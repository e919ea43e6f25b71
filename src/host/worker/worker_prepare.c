/* prepare, and what it has in common with start: the manifest, and where its image comes from. */
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/image/source.h"
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

int worker_load_manifest(
	int dir_fd, const struct manifest_query *q, struct manifest *ret, struct err *e)
{
	int r = manifest_load(dir_fd, q, ret, e);

	if (r >= 0)
		r = check_image(ret->base_image, e);
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
