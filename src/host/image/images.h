/* images - images for the daemon: opened, and fetched when they are missing, beside the loop.
 *
 * Opening is quick and done by the loop's pool of threads. A fetch takes minutes, so each has a
 * thread of its own; all who want the same image while it is fetched share that one fetch and its
 * outcome. Progress goes to the log. A failure is not remembered.
 */
#pragma once

#include <stdbool.h>
#include <uv.h>

#include "base/err.h"
#include "host/image/image.h"

struct images;

struct images *images_new(uv_loop_t *loop);
/* Breaks fetches off; those who wait get ECANCELED. `closed` comes from the loop, possibly much
 * later: a thread is never left behind. */
void images_close(struct images *im, void (*closed)(void *user), void *user);

/* Exactly once, from the loop. `img` (taken by the callee) or NULL with `why`: S101 when it is
 * missing and may not be fetched, S102 when that failed; both name the image. */
typedef void (*images_got)(struct image *img, const struct err *why, void *user);

/* `name` is what people call the image, `ref` the reference behind it. */
void images_get(struct images *im, const char *name, const char *ref, bool may_fetch, images_got cb,
	void *user);

/* How far the fetch of `ref` is; false when none is under way. */
bool images_progress(const struct images *im, const char *ref, struct image_progress *ret);
