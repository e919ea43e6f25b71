/* api_priv - what the families share. */
#pragma once

#include <json-c/json_object.h>

#include "host/api/api.h"
#include "host/api/reply.h"
#include "host/api/request.h"
#include "host/guest/guest.h"

/* Something under way that has to be broken off before the bus closes. */
struct api_transfer {
	struct api_transfer *prev, *next;
	void (*abort)(struct api_transfer *t);
};

struct api {
	struct bus *bus;
	struct pool *pool;
	struct workers *workers;
	const struct config *config;
	const char *version;
	struct api_transfer *transfers;
	struct api_transfer *pumps; /* of worker::logs: they outlast the VMs */
	size_t n_pumps;
	bool stopped;
	uv_timer_t last_words; /* for pumps, once the VMs have ended */
	void (*closed)(void *user);
	void *closed_user;
};

void api_add_transfer(struct api *a, struct api_transfer *t, void (*abort)(struct api_transfer *));
void api_remove_transfer(struct api *a, struct api_transfer *t);
/* The same for what api_close() waits for. */
void api_add_pump(struct api *a, struct api_transfer *t, void (*abort)(struct api_transfer *));
void api_remove_pump(struct api *a, struct api_transfer *t);

/* --- the handlers; each owes the call an answer --- */

typedef void (*api_handler)(struct api *a, struct bus_call *c, json_object *request);

void api_info(struct api *a, struct bus_call *c, json_object *request);
void api_catalog_list(struct api *a, struct bus_call *c, json_object *request);
void api_create(struct api *a, struct bus_call *c, json_object *request);
void api_list(struct api *a, struct bus_call *c, json_object *request);
void api_stop_sandbox(struct api *a, struct bus_call *c, json_object *request);
void api_exec(struct api *a, struct bus_call *c, json_object *request);
void api_run(struct api *a, struct bus_call *c, json_object *request);
void api_fs_ls(struct api *a, struct bus_call *c, json_object *request);
void api_fs_stat(struct api *a, struct bus_call *c, json_object *request);
void api_fs_mkdir(struct api *a, struct bus_call *c, json_object *request);
void api_fs_rm(struct api *a, struct bus_call *c, json_object *request);
void api_fs_chmod(struct api *a, struct bus_call *c, json_object *request);
void api_fs_mv(struct api *a, struct bus_call *c, json_object *request);
void api_fs_grep(struct api *a, struct bus_call *c, json_object *request);
void api_fs_sed(struct api *a, struct bus_call *c, json_object *request);
void api_fs_write(struct api *a, struct bus_call *c, json_object *request);
void api_fs_read(struct api *a, struct bus_call *c, json_object *request);
void api_worker_prepare(struct api *a, struct bus_call *c, json_object *request);
void api_worker_start(struct api *a, struct bus_call *c, json_object *request);
void api_worker_status(struct api *a, struct bus_call *c, json_object *request);
void api_worker_stop(struct api *a, struct bus_call *c, json_object *request);
void api_worker_destroy(struct api *a, struct bus_call *c, json_object *request);
void api_worker_logs(struct api *a, struct bus_call *c, json_object *request);

/* --- creating (sandbox.c), for create and run --- */

struct create_request {
	const char *image;
	bool has_cpus, has_memory_mb, has_idle_timeout;
	uint32_t cpus, memory_mb;
	uint64_t idle_timeout_secs;
	struct text name; /* s == NULL: none */
	bool network;
	char **env;		 /* may be NULL */
	const char *traceparent; /* NULL: none */
};
/* S001 unless the start of a VM can carry it. */
int create_check_env(char *const *env, struct err *e);
/* Capacity, image, ceilings (§1.3 steps 2-4), then the pool. */
int create_start(
	struct api *a, const struct create_request *rq, pool_created cb, void *user, struct err *e);
/* What is put behind the message when a boot failed; "" without last words. Caller frees. */
char *create_last_words(const char *tail);

/* --- commands (exec.c), for exec and run --- */

#define EXEC_TIMEOUT_DEFAULT_MS 300000
#define EXEC_OUTPUT_MAX		GUEST_EXEC_CAP_DEFAULT /* of each stream; the rest is counted */

struct exec_spec {
	char **argv, **env;
	char *workdir; /* NULL: / */
	uint64_t timeout_ms;
	uint8_t *input;
	size_t input_len;
};
void exec_spec_done(struct exec_spec *s);
/* Members env, stdin and timeout_ms of a request. */
int exec_spec_read(struct api *a, json_object *request, struct exec_spec *s, struct err *e);

struct exec_outcome {
	const struct guest_exec_result *result; /* NULL: why */
	const struct buf *out[2];
	uint64_t duration_ms;
	const struct err *why;
	const void *more; /* as in struct reply_failure */
	size_t more_len;
};
typedef void (*exec_finished)(const struct exec_outcome *o, void *user);

/* Takes a slot of x (S003) and starts; takes `s` on success. */
int exec_start(
	struct pool_entry *x, struct exec_spec *s, exec_finished cb, void *user, struct err *e);
/* The reply of exec, and of run with its sandbox_id (NULL: left out). */
json_object *exec_reply(const struct exec_outcome *o, const char *sandbox_id);

/* --- writing from memory (fs_write.c), for fs::write and run --- */

struct put_spec {
	const char *path; /* checked */
	uint32_t mode;
	bool parents;
	const void *data; /* borrowed until the end */
	size_t len;
};
typedef void (*put_finished)(uint64_t bytes_written, const struct err *why, void *user);
int put_start(
	struct pool_entry *x, const struct put_spec *s, put_finished cb, void *user, struct err *e);

/* --- for the families --- */

/* S505 unless the member `auth` is the project's token. */
int worker_check_token(json_object *request, struct err *e);

/* sandbox_id of a request, looked up: S001, S002, S004. */
int api_find(struct api *a, json_object *request, struct pool_entry **ret, struct err *e);
