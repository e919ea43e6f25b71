/* How it works: a request opens the image in a thread of the loop's pool. When it is not there, the
 * request joins the flight of that reference, or starts one: a thread that fetches. When a flight
 * lands, the loop is told through its uv_async; each request of it then opens the image again, or
 * is given the failure.
 *
 *   request: OPENING -> done
 *            OPENING -> in a flight -> OPENING (once more) -> done
 *
 * Everything but fetch_thread() and open_work() runs on the loop.
 */
#include "host/image/images.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#define PROGRESS_LOG_MS 5000 /* between two log lines of one stage */
#define FETCH_STACK	(1u << 20)

struct request {
	struct images *im;
	struct request *next; /* in a flight */
	uv_work_t work;
	char *name, *ref;
	bool may_fetch;
	images_got cb;
	void *user;
	/* of the work */
	struct image *img;
	struct err why;
	int r;
};

struct flight {
	struct images *im;
	struct flight *next;
	char *name, *ref;
	struct request *waiting;
	uv_thread_t thread;
	uv_async_t landed;
	/* of the thread */
	int r;
	struct err why;
	uint64_t logged_ms;
	_Atomic(const char *) stage; /* a literal; NULL: nothing was heard yet */
	atomic_ullong done_bytes, total_bytes;
};

struct images {
	uv_loop_t *loop;
	struct flight *flights;
	unsigned busy; /* works and flights under way */
	atomic_bool closing;
	void (*closed)(void *user);
	void *user;
};

static void maybe_closed(struct images *im)
{
	if (!im->closed || im->busy)
		return;
	im->closed(im->user);
	free(im);
}

static void request_end(struct request *rq, struct image *img, const struct err *why)
{
	rq->cb(img, why, rq->user);
	free(rq->name);
	free(rq->ref);
	free(rq);
}

/* --- fetching --- */

static bool is_cancelled(void *user)
{
	struct flight *f = user;

	return atomic_load(&f->im->closing);
}

static void on_progress(const struct image_progress *p, void *user)
{
	struct flight *f = user;
	uint64_t now = uv_hrtime() / 1000000;
	const char *stage = atomic_exchange(&f->stage, p->stage);

	atomic_store(&f->done_bytes, p->done_bytes);
	atomic_store(&f->total_bytes, p->total_bytes);
	if (stage && str_eq(stage, p->stage) && now - f->logged_ms < PROGRESS_LOG_MS)
		return;
	f->logged_ms = now;
	log_info("fetching image", "image=%s stage=%s bytes=%llu total=%llu", log_quote(f->name),
		p->stage, (unsigned long long)p->done_bytes, (unsigned long long)p->total_bytes);
}

static void fetch_thread(void *arg)
{
	struct flight *f = arg;

	f->r = image_fetch(f->ref, NULL, on_progress, f, is_cancelled, &f->why);
	uv_async_send(&f->landed);
}

static void open_start(struct request *rq);

static void on_flight_closed(uv_handle_t *h)
{
	struct flight *f = h->data;
	struct images *im = f->im;

	free(f->name);
	free(f->ref);
	free(f);
	im->busy--;
	maybe_closed(im);
}

static void flight_unlink(struct flight *f)
{
	struct flight **at = &f->im->flights;

	while (*at != f)
		at = &(*at)->next;
	*at = f->next;
}

static void on_landed(uv_async_t *async)
{
	struct flight *f = async->data;
	struct request *rq = f->waiting;

	uv_thread_join(&f->thread);
	flight_unlink(f);
	if (f->r < 0)
		log_warn("image could not be fetched", "image=%s why=%s", log_quote(f->name),
			log_quote(f->why.text));
	while (rq) {
		struct request *next = rq->next;

		if (f->r < 0) {
			struct err e = f->why;

			err_wrap(&e, "image %s", rq->name);
			err_code(&e, "S102");
			request_end(rq, NULL, &e);
		} else {
			rq->may_fetch = false;
			open_start(rq);
		}
		rq = next;
	}
	uv_close((uv_handle_t *)&f->landed, on_flight_closed);
}

static int flight_start(struct images *im, struct request *rq, struct err *e)
{
	struct flight *f = xcalloc(1, sizeof(*f));
	uv_thread_options_t o = {.flags = UV_THREAD_HAS_STACK_SIZE, .stack_size = FETCH_STACK};
	int r;

	f->im = im;
	f->name = xstrdup(rq->name);
	f->ref = xstrdup(rq->ref);
	f->landed.data = f;
	r = uv_async_init(im->loop, &f->landed, on_landed);
	if (r < 0) {
		free(f->name);
		free(f->ref);
		free(f);
		return err_set(e, "S102", -r, "image %s: cannot start to fetch it: %s", rq->name,
			err_str(r));
	}
	im->busy++;
	r = uv_thread_create_ex(&f->thread, &o, fetch_thread, f);
	if (r < 0) {
		uv_close((uv_handle_t *)&f->landed, on_flight_closed);
		return err_set(
			e, "S102", -r, "image %s: no thread to fetch it: %s", rq->name, err_str(r));
	}
	f->waiting = rq;
	f->next = im->flights;
	im->flights = f;
	return 0;
}

static void join_flight(struct request *rq)
{
	struct images *im = rq->im;
	struct flight *f = im->flights;
	struct err e = ERR_INIT;

	while (f && !str_eq(f->ref, rq->ref))
		f = f->next;
	if (f) {
		rq->next = f->waiting;
		f->waiting = rq;
	} else if (flight_start(im, rq, &e) < 0) {
		request_end(rq, NULL, &e);
	}
}

/* --- opening --- */

static void open_work(uv_work_t *work)
{
	struct request *rq = work->data;

	rq->r = image_open(rq->ref, &rq->img, &rq->why);
}

static void explain(struct request *rq)
{
	if (rq->r == -ENOENT)
		err_set(&rq->why, "S101", ENOENT,
			"image %s (%s) is not in the cache, and auto_install is off", rq->name,
			rq->ref);
	else
		err_wrap(&rq->why, "image %s", rq->name);
	err_code(&rq->why, "S102");
}

static void on_open_done(uv_work_t *work, int status)
{
	struct request *rq = work->data;
	struct images *im = rq->im;

	if (status < 0)
		rq->r = err_set(&rq->why, "S102", ECANCELED, "the adapter is shutting down");
	if (rq->r == -ENOENT && rq->may_fetch && !atomic_load(&im->closing)) {
		join_flight(rq);
	} else {
		if (rq->r < 0)
			explain(rq);
		request_end(rq, rq->r < 0 ? NULL : rq->img, rq->r < 0 ? &rq->why : NULL);
	}
	im->busy--;
	maybe_closed(im);
}

static void open_start(struct request *rq)
{
	rq->work.data = rq;
	rq->im->busy++;
	uv_queue_work(rq->im->loop, &rq->work, open_work, on_open_done);
}

/* --- life --- */

void images_get(struct images *im, const char *name, const char *ref, bool may_fetch, images_got cb,
	void *user)
{
	struct request *rq = xcalloc(1, sizeof(*rq));

	assert(!atomic_load(&im->closing));
	*rq = (struct request){.im = im,
		.name = xstrdup(name),
		.ref = xstrdup(ref),
		.may_fetch = may_fetch,
		.cb = cb,
		.user = user};
	open_start(rq);
}

bool images_progress(const struct images *im, const char *ref, struct image_progress *ret)
{
	const struct flight *f = im->flights;

	while (f && !str_eq(f->ref, ref))
		f = f->next;
	if (!f || !atomic_load(&f->stage))
		return false;
	*ret = (struct image_progress){.stage = atomic_load(&f->stage),
		.done_bytes = atomic_load(&f->done_bytes),
		.total_bytes = atomic_load(&f->total_bytes)};
	return true;
}

struct images *images_new(uv_loop_t *loop)
{
	struct images *im = xcalloc(1, sizeof(*im));

	im->loop = loop;
	return im;
}

/* A turn of the pool, so that `closed` never comes from inside images_close(). */
static void no_work(uv_work_t *work)
{
	(void)work;
}

static void on_no_work(uv_work_t *work, int status)
{
	struct images *im = work->data;

	(void)status;
	free(work);
	im->busy--;
	maybe_closed(im);
}

void images_close(struct images *im, void (*closed)(void *user), void *user)
{
	uv_work_t *work = xcalloc(1, sizeof(*work));

	atomic_store(&im->closing, true);
	im->closed = closed;
	im->user = user;
	im->busy++;
	work->data = im;
	uv_queue_work(im->loop, work, no_work, on_no_work);
}
