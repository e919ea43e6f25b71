/* image.h's two calls: from a name to an open disk, and from a source to a stored one. */
#include "host/image/image.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/image/build.h"
#include "host/image/catalog.h"
#include "host/image/pull.h"
#include "host/image/source.h"
#include "host/image/store.h"

int image_open(const char *name, struct image **ret, struct err *e)
{
	struct store *s = NULL;
	char **names = NULL;
	struct err why = ERR_INIT;
	int r = catalog_candidates(name, &names, e);

	if (r >= 0)
		r = store_open(&s, e);
	if (r < 0) {
		strv_free(names);
		err_wrap(e, "image %s", name);
		err_code(e, "S102");
		return r;
	}
	r = -ENOENT;
	for (size_t i = 0; names[i] && r == -ENOENT; i++)
		r = store_get(s, names[i], ret, &why);
	if (r == -ENOENT)
		err_set(e, "S101", ENOENT,
			"image %s is not in the cache%s: get it with 'sandbox-libkrun image pull "
			"%s', or from a file with 'sandbox-libkrun image import SOURCE --as %s'",
			name, strstr(why.text, "damaged") ? " (its entry is damaged)" : "", name,
			catalog_preset_ref(name) ? name : "NAME");
	else if (r < 0)
		err_set(e, "S102", -r, "image %s: %s", name, why.text);
	strv_free(names);
	store_close(s);
	return r;
}

/* One image_fetch. */
struct fetch {
	const char *source;
	struct source_spec spec;
	char *name; /* store name it is to get */
	struct store *store;
	image_progress_fn progress;
	bool (*cancelled)(void *user);
	void *user;
};

static void report(struct fetch *f, const char *stage, uint64_t done, uint64_t total)
{
	struct image_progress p = {stage, done, total};

	if (f->progress)
		f->progress(&p, f->user);
}

static void on_build_progress(uint64_t done, uint64_t total, void *user)
{
	report(user, "unpack", done, total);
}

static bool on_build_cancelled(void *user)
{
	struct fetch *f = user;

	return f->cancelled && f->cancelled(f->user);
}

/* Layers to a published entry. */
static int build(struct fetch *f, struct source_image *src, struct err *e)
{
	struct store_draft *draft = NULL;
	struct store_meta meta = {
		.created = (uint64_t)time(NULL), .download_bytes = src->layer_bytes};
	int r = store_draft_new(f->store, &draft, e);

	if (r >= 0) {
		struct image_build b = {.layers = src->layers,
			.n_layers = src->n_layers,
			.out_fd = draft->disk_fd,
			.scratch_dirfd = draft->dirfd,
			.progress = on_build_progress,
			.cancelled = on_build_cancelled,
			.user = f};

		report(f, "unpack", 0, src->layer_bytes);
		r = image_build(&b, NULL, e);
	}
	if (r >= 0) {
		report(f, "write", 0, 0);
		memcpy(meta.digest, src->digest, sizeof(src->digest));
		meta.source = xstrdup(f->spec.name);
		meta.arch = xstrdup(src->config.platform.arch);
		meta.config = (struct image_config){.env = strv_dup(src->config.env),
			.entrypoint = strv_dup(src->config.entrypoint),
			.cmd = strv_dup(src->config.cmd),
			.workdir = xstrdup(src->config.workdir),
			.user = xstrdup(src->config.user)};
		r = store_draft_publish(draft, &meta, e);
	}
	/* The name is given while the draft's lock still protects the entry. */
	if (r >= 0)
		r = store_set_name(f->store, f->name, src->digest, e);
	store_draft_free(draft);
	store_meta_done(&meta);
	return r;
}

/* Names an entry that is there already. -ENOENT when it is not. */
static int adopt(struct fetch *f, const char *digest, struct err *e)
{
	struct image *img;
	int r = store_get_digest(f->store, digest, f->name, &img, NULL);

	if (r < 0)
		return -ENOENT;
	r = store_set_name(f->store, f->name, digest, e);
	image_close(img);
	return r;
}

/* Alone with this digest: adopts what another made meanwhile, or calls `make`. Without an outcome
 * for those who wait: the failure of another source of this image says nothing about theirs. */
static int once_per_digest(struct fetch *f, const char *digest,
	int (*make)(struct fetch *f, void *what, struct err *e), void *what, struct err *e)
{
	struct store_flight *flight = NULL;
	int r = store_flight_start(f->store, digest, f->cancelled, f->user, &flight, e);

	if (r < 0)
		return r;
	r = adopt(f, digest, e);
	if (r == -ENOENT)
		r = make(f, what, e);
	store_flight_leave(flight);
	return r;
}

static int make_local(struct fetch *f, void *what, struct err *e)
{
	return build(f, what, e);
}

static int fetch_local(struct fetch *f, struct err *e)
{
	struct source_env env = {.arch = oci_host_arch(),
		.scratch_dirfd = store_scratch_dirfd(f->store),
		.cancelled = f->cancelled,
		.user = f->user};
	struct source_image *src;
	int r = source_open(&f->spec, &env, &src, e);

	if (r < 0)
		return r;
	r = once_per_digest(f, src->digest, make_local, src, e);
	source_close(src);
	return r;
}

/* What a failed download has got is of use to the next try; what a failed build has read is not to
 * be trusted, and a full disk or a cancel wants its room back. */
static int make_pulled(struct fetch *f, void *what, struct err *e)
{
	struct pull *pull = what;
	struct store_partial *partial = NULL;
	struct source_image *src = NULL;
	bool keep = false;
	int r = store_partial_open(f->store, pull_digest(pull), &partial, e);

	if (r < 0)
		return r;
	r = pull_download(pull, partial, &src, e);
	if (r < 0)
		keep = r != -ENOSPC && r != -ECANCELED;
	else
		r = build(f, src, e);
	source_close(src);
	store_partial_close(partial, keep);
	return r;
}

static int fetch_remote(struct fetch *f, struct err *e)
{
	struct pull_env env = {.arch = oci_host_arch(),
		.progress = f->progress,
		.cancelled = f->cancelled,
		.user = f->user};
	struct pull *pull;
	int r = pull_resolve(&f->spec, &env, &pull, e);

	if (r < 0)
		return r;
	r = once_per_digest(f, pull_digest(pull), make_pulled, pull, e);
	pull_free(pull);
	return r;
}

/* Until the name points at a whole entry, or a failure that is ours. */
static int fetch(struct fetch *f, struct image **ret, struct err *e)
{
	for (;;) {
		struct store_flight *flight = NULL;
		int r = store_flight_start(
			f->store, f->spec.name, f->cancelled, f->user, &flight, e);

		if (r < 0)
			return r;
		if (flight) {
			r = f->spec.kind == SOURCE_REGISTRY ? fetch_remote(f, e)
							    : fetch_local(f, e);
			store_flight_land(flight, r < 0 ? e : NULL);
			if (r < 0)
				return r;
		}
		/* Whom we waited for may have given it another name: then it is our turn. */
		r = store_get(f->store, f->name, ret, e);
		if (r != -ENOENT || flight)
			return r;
	}
}

static int run_fetch(struct fetch *f, const char *as, struct err *e)
{
	struct image *img = NULL;
	uint64_t max;
	int r = source_spec_parse(f->source, &f->spec, e);

	if (r >= 0 && as)
		r = catalog_name_as(as, &f->name, e);
	else if (r >= 0)
		f->name = xstrdup(f->spec.name);
	if (r >= 0)
		r = store_max_bytes(&max, e);
	if (r >= 0)
		r = store_open(&f->store, e);
	if (r < 0)
		return r;
	store_sweep(f->store, false);
	r = fetch(f, &img, e);
	if (r < 0)
		return r;
	/* The new image is held meanwhile, so it is never the one to go. That an older one could
	 * not be removed is no failure of this fetch. */
	store_gc(f->store, max, false, NULL, NULL);
	report(f, "done", img->disk_bytes, img->disk_bytes);
	image_close(img);
	return 0;
}

int image_fetch(const char *source, const char *as, image_progress_fn progress, void *user,
	bool (*cancelled)(void *user), struct err *e)
{
	struct fetch f = {
		.source = source, .progress = progress, .cancelled = cancelled, .user = user};
	struct err why = ERR_INIT;
	int r = run_fetch(&f, as, &why);

	if (r < 0) {
		err_wrap(&why, "image %s", source);
		err_code(&why, "S102");
		if (e)
			*e = why;
	}
	store_close(f.store);
	source_spec_done(&f.spec);
	free(f.name);
	return r < 0 ? r : 0;
}
