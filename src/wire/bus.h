/* bus - the messages between an iii engine and its workers: JSON text in, JSON objects out.
 *
 * No socket, no clock. The envelope rules are those of the iii worker protocol as engines 0.21 to
 * 0.26 speak it: members nobody knows are ignored, `null` in an optional member counts as absent,
 * and nothing optional is ever sent as `null`.
 *
 * Text from a peer is hostile. bus_decode() is strict (wire/json.h); when it refuses a call,
 * bus_salvage() still finds the ids in what is left, so that the caller can be told.
 */
#pragma once

#include <json-c/json_object.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define BUS_MESSAGE_MAX	 (64u << 20) /* bytes of a message; engines drop a sender of more */
#define BUS_FRAME_MAX	 (16u << 20) /* bytes of a frame, likewise */
#define BUS_VALUES_MAX	 262144	     /* JSON values in one message; more is refused with an error */
#define BUS_ID_MAX	 128 /* bytes of an invocation id; a call with a longer one is dropped */
#define BUS_FUNCTION_MAX 256 /* bytes of a function id; a call of a longer one is dropped */

enum bus_type {
	BUS_UNKNOWN, /* a type this program has no use for: ignore it */
	BUS_WORKER_REGISTERED,
	BUS_REATTACH,
	BUS_REGISTER_FUNCTION,
	BUS_UNREGISTER_FUNCTION,
	BUS_REGISTRATION_REJECTED,
	BUS_REGISTER_TRIGGER,
	BUS_INVOKE,
	BUS_RESULT,
	BUS_PING,
	BUS_PONG,
	BUS_ERROR,
};

/* What a call asks the engine to do with its answer. */
enum bus_action {
	BUS_ACTION_NONE,
	BUS_ACTION_VOID,
	BUS_ACTION_OTHER, /* "enqueue" and what may come */
};

/* A decoded message. Strings and objects belong to `root`; a member that was absent or null is
 * NULL. Which ones are set depends on `type`; those marked * are never NULL for it. */
struct bus_msg {
	enum bus_type type;
	json_object *root;

	const char *worker_id;	    /* WORKER_REGISTERED*, REATTACH* (the previous one) */
	const char *reattach_token; /* WORKER_REGISTERED, REATTACH */

	const char *id;		  /* REGISTER_FUNCTION*, UNREGISTER_FUNCTION*, REGISTER_TRIGGER* */
	const char *description;  /* REGISTER_FUNCTION */
	json_object *metadata;	  /* REGISTER_FUNCTION, INVOKE */
	const char *trigger_type; /* REGISTER_TRIGGER */

	const char *invocation_id; /* INVOKE, RESULT* */
	const char *function_id;   /* INVOKE*, RESULT*, REGISTRATION_REJECTED, REGISTER_TRIGGER */
	json_object *data;	   /* INVOKE */
	bool has_data;		   /* INVOKE: the member is there, maybe null */
	enum bus_action action;	   /* INVOKE */
	const char *traceparent, *baggage; /* INVOKE */
	const char *ns;			   /* INVOKE, REGISTRATION_REJECTED */

	json_object *result;	/* RESULT */
	bool failed;		/* RESULT: `error` is there */
	const char *code;	/* RESULT that failed*, REGISTRATION_REJECTED*, ERROR */
	const char *message;	/* RESULT that failed*, ERROR */
	const char *stacktrace; /* RESULT that failed */

	const char *worker_name, *owner; /* REGISTRATION_REJECTED */
};

/* 0 and *ret (free it with bus_msg_done), or -EINVAL with the reason. A type that is not known is
 * BUS_UNKNOWN, not an error. */
int bus_decode(const char *text, size_t len, struct bus_msg *ret, struct err *e);
void bus_msg_done(struct bus_msg *m);

/* What could be read of a message that bus_decode() refused. */
struct bus_salvage {
	enum bus_type type;
	char invocation_id[BUS_ID_MAX + 1];	/* "" when it was not found or makes no sense */
	char function_id[BUS_FUNCTION_MAX + 1]; /* likewise */
};

/* Looks for `type`, `invocation_id` and `function_id` among the members of the outermost object of
 * any bytes, whole or cut, and never fails. The first of equal names counts. Ids are only taken
 * when they are printable ASCII without escapes. */
void bus_salvage(const char *text, size_t len, struct bus_salvage *ret);

/* Building. Each returns a new object for json_text(). "takes" means the reference is handed over;
 * NULL stands for JSON null there. Strings may hold any bytes (wire/json.h repairs them). */
struct bus_call_envelope {
	const char *invocation_id; /* NULL: a void call */
	const char *function_id;
	json_object *data; /* takes */
	bool is_void;
	const char *traceparent, *baggage, *ns; /* NULL: left out */
	json_object *metadata;			/* takes; NULL: left out */
};
json_object *bus_new_call(const struct bus_call_envelope *c);
json_object *bus_new_result(const char *invocation_id, const char *function_id,
	json_object *result /* takes; NULL: neither result nor error */);
json_object *bus_new_error(const char *invocation_id, const char *function_id, const char *code,
	const char *message, const char *stacktrace /* NULL: left out */);
json_object *bus_new_register(const char *id, const char *description, json_object *request_format,
	json_object *response_format /* both takes */);
json_object *bus_new_unregister(const char *id);
json_object *bus_new_reattach(const char *worker_id, const char *token /* NULL: left out */);
json_object *bus_new_bare(const char *type); /* "ping", "pong" */

/* How a worker introduces itself (`engine::workers::register`). NULL members are left out. */
struct bus_identity {
	const char *name, *version, *description, *os, *language, *ns, *isolation;
	uint32_t pid;
};
json_object *bus_new_announce(const struct bus_identity *who);

/* The engine's side. */
json_object *bus_new_worker_registered(const char *worker_id, const char *token);
json_object *bus_new_function_rejected(const char *ns, const char *function_id, const char *owner);
json_object *bus_new_worker_rejected(const char *ns, const char *name, const char *owner);
json_object *bus_new_trigger_refused(const struct bus_msg *trigger, const char *message);

/* Text with the members of every object in byte order of their names, as engines forward
 * payloads. -ENOBUFS when it does not fit the buffer. */
struct buf;
int bus_text_sorted(json_object *o, struct buf *out);

/* Where an engine is. */
struct bus_url {
	bool tls;
	char *host; /* without brackets */
	uint16_t port;
	char *path; /* with query, starts with '/' */
};

/* ws:// or wss://, host, optional port, optional path and query; no user, no fragment. -EINVAL with
 * a reason that names the URL. */
int bus_url_parse(const char *url, struct bus_url *ret, struct err *e);
void bus_url_done(struct bus_url *u);

/* One end of a channel, as payloads carry it. */
struct bus_channel_ref {
	char id[BUS_ID_MAX + 1];
	char key[BUS_ID_MAX + 1];
};

/* From {"channel_id","access_key","direction":"read"|"write"}; *ret_write (may be NULL) says which.
 * -EINVAL with a reason, also for ids that could mean another place to some server: with slashes,
 * backslashes, per cent signs, blanks or control characters. */
int bus_channel_ref_read(
	json_object *o, struct bus_channel_ref *ret, bool *ret_write, struct err *e);
json_object *bus_channel_ref_new(const struct bus_channel_ref *ref, bool write);

/* The URL of that end: /ws/channels/ID behind the path of `base`, which loses its last slashes, and
 * key=KEY&dir=… behind its query; ids percent-encoded. The caller frees it. */
char *bus_channel_url(const char *base, const struct bus_channel_ref *ref, bool write);
