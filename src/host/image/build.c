/* Three steps. Reading: the layers are taken largest first by as many threads as there are CPUs,
 * each into its own records and scratch files; the order in which they end changes nothing.
 * Merging: the records are applied to the tree, lowest layer first, and freed. Writing: erofs.c
 * gives what is left in the tree its place and copies the contents that are still named; what an
 * upper layer hid stays behind in the scratch files and goes with them.
 *
 * The calling thread reads nothing: it reports progress and asks whether to stop.
 */
#include "host/image/build.h"

#include <errno.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "host/image/erofs.h"
#include "host/image/layers.h"

#define THREADS_MAX 16
/* How long a cancel or a step of progress may go unnoticed. */
#define POLL_MS 50
/* Entries merged between two looks at `cancelled`. */
#define STOP_EVERY 4096
/* What the disk may take beyond the file contents: inodes, names, filling of blocks. */
#define DISK_META_MAX (6ull << 30)

struct build {
	const struct image_build *b;
	struct layer_shared shared;
	struct layer_result *results;
	size_t *order; /* layers, largest first */
	pthread_mutex_t lock;
	pthread_cond_t ended;
	size_t next, running; /* of order; threads */
	struct err error;
	bool failed;
	uint64_t total_bytes;
};

static void fail(struct build *bd, const struct err *e)
{
	/* What the stop of one layer does to the others is not the reason. */
	if (!bd->failed || (bd->error.no == ECANCELED && e->no != ECANCELED))
		bd->error = *e;
	bd->failed = true;
	bd->shared.stream.stop = true;
}

static void *read_main(void *arg)
{
	struct build *bd = arg;

	pthread_mutex_lock(&bd->lock);
	while (!bd->failed && bd->next < bd->b->n_layers) {
		size_t i = bd->order[bd->next++];
		struct err e = ERR_INIT;
		int r;

		pthread_mutex_unlock(&bd->lock);
		r = layer_read(&bd->b->layers[i], (uint32_t)i, &bd->shared, bd->b->scratch_dirfd,
			&bd->results[i], &e);
		pthread_mutex_lock(&bd->lock);
		if (r < 0)
			fail(bd, &e);
	}
	bd->running--;
	pthread_cond_signal(&bd->ended);
	pthread_mutex_unlock(&bd->lock);
	return NULL;
}

static bool cancelled(void *user)
{
	const struct build *bd = user;

	return bd->b->cancelled && bd->b->cancelled(bd->b->user);
}

static void report(struct build *bd)
{
	if (bd->b->progress)
		bd->b->progress(bd->shared.stream.blob_bytes, bd->total_bytes, bd->b->user);
}

/* Waits for the readers, with the lock held; the callbacks run without it. */
static void watch(struct build *bd)
{
	while (bd->running) {
		struct timespec until;

		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += POLL_MS * 1000000;
		if (until.tv_nsec >= 1000000000) {
			until.tv_sec++;
			until.tv_nsec -= 1000000000;
		}
		pthread_cond_timedwait(&bd->ended, &bd->lock, &until);
		pthread_mutex_unlock(&bd->lock);
		report(bd);
		if (cancelled(bd)) {
			struct err e = ERR_INIT;

			err_set(&e, "", ECANCELED, "cancelled");
			pthread_mutex_lock(&bd->lock);
			fail(bd, &e);
			continue;
		}
		pthread_mutex_lock(&bd->lock);
	}
}

static unsigned cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

static unsigned thread_count(const struct image_build *b)
{
	unsigned n = b->threads ? b->threads : cpus();

	return MIN(n, (unsigned)THREADS_MAX);
}

/* Largest first, so that no big one is left for the end; of equals the lower one. */
static void order_layers(struct build *bd)
{
	const struct image_layer *l = bd->b->layers;

	for (size_t i = 0; i < bd->b->n_layers; i++) {
		size_t j = i;

		for (; j > 0 && l[bd->order[j - 1]].size < l[i].size; j--)
			bd->order[j] = bd->order[j - 1];
		bd->order[j] = i;
	}
}

static int read_layers(struct build *bd, struct err *e)
{
	unsigned want = MIN((size_t)thread_count(bd->b), bd->b->n_layers), n = 0;
	pthread_t threads[THREADS_MAX];
	int r = 0;

	order_layers(bd);
	pthread_mutex_lock(&bd->lock);
	while (n < want && (r = pthread_create(&threads[n], NULL, read_main, bd)) == 0) {
		bd->running++;
		n++;
	}
	watch(bd);
	pthread_mutex_unlock(&bd->lock);
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	if (want && !n)
		return err_set(e, "", r, "no thread to read the layers: %s", err_str(r));
	if (!bd->failed)
		return 0;
	if (e)
		*e = bd->error;
	return -bd->error.no;
}

static int apply(struct tree *t, const struct record *rec, struct err *e)
{
	switch (rec->kind) {
	case RECORD_PUT:
		return tree_put(t, rec->path, &rec->attr, e);
	case RECORD_LINK:
		return tree_link(t, rec->path, rec->target, e);
	case RECORD_WHITEOUT:
		return tree_whiteout(t, rec->path, e);
	case RECORD_OPAQUE:
		return tree_opaque(t, rec->path, e);
	}
	return -EINVAL;
}

static int merge_layer(struct build *bd, struct tree *t, size_t i, struct err *e)
{
	struct records_iter it;
	struct record rec;
	uint64_t n = 0;

	tree_begin_layer(t);
	records_begin(&it, &bd->results[i].records);
	while (records_next(&it, &rec)) {
		int r;

		if (n++ % STOP_EVERY == 0 && cancelled(bd))
			return err_set(e, "", ECANCELED, "cancelled");
		r = apply(t, &rec, e);
		if (r < 0) {
			if (rec.kind == RECORD_LINK)
				err_wrap(e, "entry %s (to %s)", log_quote(rec.path),
					log_quote(rec.target));
			else
				err_wrap(e, "entry %s", log_quote(rec.path));
			err_wrap(e, "layer %s", bd->b->layers[i].name);
			return r;
		}
	}
	records_done(&bd->results[i].records);
	return 0;
}

/* The disk's UUID: of the layers' contents, marked as a version 8 one (RFC 9562). */
static int make_uuid(const struct build *bd, uint8_t uuid[static 16])
{
	EVP_MD_CTX *hash = EVP_MD_CTX_new();
	uint8_t digest[EVP_MAX_MD_SIZE];
	bool ok = hash && EVP_DigestInit_ex(hash, EVP_sha256(), NULL);

	for (size_t i = 0; ok && i < bd->b->n_layers; i++)
		ok = EVP_DigestUpdate(hash, bd->results[i].tar_sha256, 32);
	ok = ok && EVP_DigestFinal_ex(hash, digest, NULL);
	EVP_MD_CTX_free(hash);
	if (!ok)
		return -ENOMEM;
	memcpy(uuid, digest, 16);
	uuid[6] = (uuid[6] & 0x0f) | 0x80;
	uuid[8] = (uuid[8] & 0x3f) | 0x80;
	return 0;
}

static int write_disk(
	struct build *bd, struct tree *t, struct image_build_stats *stats, struct err *e)
{
	cleanup_free struct erofs_source *sources = xcalloc(bd->b->n_layers, sizeof(*sources));
	struct erofs_write w = {.tree = t,
		.sources = sources,
		.n_sources = (uint32_t)bd->b->n_layers,
		.out_fd = bd->b->out_fd,
		.bytes_max = bd->b->bytes_max ? bd->b->bytes_max : IMAGE_BYTES_MAX + DISK_META_MAX,
		.threads = thread_count(bd->b),
		.stop = cancelled,
		.user = bd};
	struct erofs_stats written;
	int r;

	for (size_t i = 0; i < bd->b->n_layers; i++)
		sources[i] = (struct erofs_source){
			bd->results[i].bodies.data_fd, bd->results[i].bodies.tail_fd};
	r = make_uuid(bd, w.uuid);
	if (r < 0)
		return err_set(e, "", -r, "no SHA-256 from OpenSSL");
	r = erofs_write(&w, &written, e);
	if (r < 0 || !stats)
		return r;
	*stats = (struct image_build_stats){.inodes = written.inodes,
		.data_bytes = written.data_bytes,
		.disk_bytes = written.disk_bytes};
	for (size_t i = 0; i < bd->b->n_layers; i++)
		stats->entries += bd->results[i].entries;
	return 0;
}

static int build(struct build *bd, struct image_build_stats *stats, struct err *e)
{
	struct tree *t;
	int r;

	r = read_layers(bd, e);
	if (r < 0)
		return r;
	t = tree_new();
	for (size_t i = 0; r == 0 && i < bd->b->n_layers; i++)
		r = merge_layer(bd, t, i, e);
	if (r == 0)
		r = write_disk(bd, t, stats, e);
	if (r == 0)
		report(bd);
	tree_free(t);
	return r;
}

int image_build(const struct image_build *b, struct image_build_stats *stats, struct err *e)
{
	struct build *bd;
	pthread_condattr_t attr;
	int r;

	if (b->n_layers > IMAGE_LAYERS_MAX)
		return err_set(e, "", E2BIG, "the image has %zu layers (limit %d)", b->n_layers,
			IMAGE_LAYERS_MAX);
	bd = xcalloc(1, sizeof(*bd));
	bd->b = b;
	layer_shared_init(&bd->shared);
	bd->results = xcalloc(b->n_layers, sizeof(*bd->results));
	bd->order = xcalloc(b->n_layers, sizeof(*bd->order));
	for (size_t i = 0; i < b->n_layers; i++) {
		layer_result_init(&bd->results[i]);
		bd->total_bytes += b->layers[i].size;
	}
	pthread_mutex_init(&bd->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&bd->ended, &attr);
	pthread_condattr_destroy(&attr);
	r = build(bd, stats, e);
	pthread_cond_destroy(&bd->ended);
	pthread_mutex_destroy(&bd->lock);
	for (size_t i = 0; i < b->n_layers; i++)
		layer_result_done(&bd->results[i]);
	free(bd->results);
	free(bd->order);
	free(bd);
	return r;
}
