/* pull - an image from a registry, through skopeo as a process.
 *
 * In two steps, so that an image which is already in the store costs no download:
 *   resolve   the manifest for linux/<arch>, checked against its digest; its digest is the key
 *   download  the blobs that are still missing into a partial pull's folder
 *
 * Mirrors, credentials, certificates and signature policy are the user's own containers
 * configuration (registries.conf, auth.json, certs.d, policy.json), because skopeo reads it.
 * REGISTRY_AUTH_FILE must exist when it is set: skopeo would go on as nobody without a word.
 * localhost, 127.0.0.1 and the hosts of III_INSECURE_REGISTRIES (host or host:port, commas between)
 * may answer without TLS or with any certificate; a warning is logged.
 */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "host/image/image.h"
#include "host/image/source.h"
#include "host/image/store.h"

/* skopeo tries this often when the network fails; blobs that are complete are kept between. */
#define PULL_RETRIES "3"
/* A pull without one new byte for this long has failed. */
#define PULL_STALL_S 120
/* So has asking for a manifest that takes this long. */
#define PULL_INSPECT_S 180

struct pull_env {
	const char *arch;
	image_progress_fn progress;    /* may be NULL */
	bool (*cancelled)(void *user); /* may be NULL */
	void *user;
};

struct pull;

/* `spec` and `env` are borrowed until pull_free. */
int pull_resolve(const struct source_spec *spec, const struct pull_env *env, struct pull **ret,
	struct err *e);
const char *pull_digest(const struct pull *p);
uint64_t pull_bytes(const struct pull *p); /* of all layers, as stored */
/* Once per pull. The layers stay open when the folder is removed. */
int pull_download(
	struct pull *p, const struct store_partial *to, struct source_image **ret, struct err *e);
void pull_free(struct pull *p); /* NULL allowed */
