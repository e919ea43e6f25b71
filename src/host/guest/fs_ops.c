/* Replies are checked by tables: each object has the members of its table and no other. */
#include "host/guest/fs_ops.h"

#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/guest/call.h"

enum kind {
	BOOL,
	TRUE, /* a bool that is never false in a success */
	U64,
	I64,
	TEXT,
	MODE,	 /* four octal digits */
	OBJECTS, /* an array of objects of `of` */
};

struct member {
	const char *name; /* NULL ends the table */
	enum kind kind;
	bool optional;
	const struct member *of;
};

static const struct member ENTRY[] = {
	{"is_dir", BOOL},
	{"is_symlink", BOOL},
	{"mode", MODE},
	{"mtime", I64},
	{"name", TEXT},
	{"size", U64},
	{NULL},
};
static const struct member MATCH[] = {{"content", TEXT}, {"line", U64}, {"path", TEXT}, {NULL}};
static const struct member RESULT[] = {
	{"error", TEXT, true},
	{"path", TEXT},
	{"replacements", U64},
	{"success", BOOL},
	{NULL},
};

static const struct member LS[] = {{"entries", OBJECTS, false, ENTRY}, {NULL}};
static const struct member MKDIR[] = {{"created", BOOL}, {NULL}};
static const struct member RM[] = {{"removed", TRUE}, {NULL}};
static const struct member CHMOD[] = {{"updated", U64}, {NULL}};
static const struct member MV[] = {{"moved", TRUE}, {NULL}};
static const struct member GREP[] = {
	{"matches", OBJECTS, false, MATCH}, {"truncated", BOOL}, {NULL}};
static const struct member SED[] = {
	{"results", OBJECTS, false, RESULT}, {"total_replacements", U64}, {NULL}};

static int check_object(json_object *o, const struct member *table, struct err *e);

static int check_objects(json_object *o, const struct member *m, struct err *e)
{
	json_object *array = NULL;
	int rc = json_get_array(o, m->name, JSON_REQUIRED, &array, e);

	for (size_t i = 0; rc >= 0 && i < json_object_array_length(array); i++) {
		json_object *one = json_object_array_get_idx(array, i);

		if (!json_object_is_type(one, json_type_object))
			return err_set(
				e, "", EPROTO, "%s holds something else than objects", m->name);
		rc = check_object(one, m->of, e);
	}
	return rc;
}

static int check_mode(const char *mode, struct err *e)
{
	uint32_t v;

	if (strlen(mode) == 4 && str_octal(mode, 07777, &v) == 0)
		return 0;
	return err_set(e, "", EPROTO, "\"%s\" is no mode", mode);
}

/* A text may hold U+0000 (a file's content), so json_get_str is not for it. */
static int check_text(json_object *o, const struct member *m, struct err *e)
{
	json_object *v = NULL;

	if (!json_object_object_get_ex(o, m->name, &v))
		return m->optional ? 0 : err_set(e, "", EPROTO, "%s is missing", m->name);
	if (!json_object_is_type(v, json_type_string))
		return err_set(e, "", EPROTO, "%s is no text", m->name);
	return 1;
}

/* 1 when it is there, 0 when it is rightly missing. */
static int check_member(json_object *o, const struct member *m, struct err *e)
{
	const char *mode;
	uint64_t u;
	int64_t i;
	bool b;
	int rc;

	switch (m->kind) {
	case BOOL:
	case TRUE:
		rc = json_get_bool(o, m->name, JSON_REQUIRED, &b, e);
		if (rc > 0 && m->kind == TRUE && !b)
			return err_set(e, "", EPROTO, "%s is false in a success", m->name);
		return rc;
	case U64:
		return json_get_u64(o, m->name, JSON_REQUIRED, &u, e);
	case I64:
		return json_get_i64(o, m->name, JSON_REQUIRED, &i, e);
	case TEXT:
		return check_text(o, m, e);
	case MODE:
		rc = json_get_str(o, m->name, JSON_REQUIRED, &mode, e);
		return rc > 0 && check_mode(mode, e) < 0 ? -EPROTO : rc;
	case OBJECTS:
		return check_objects(o, m, e) < 0 ? -EPROTO : 1;
	}
	return -EPROTO;
}

static int check_object(json_object *o, const struct member *table, struct err *e)
{
	int members = 0;

	for (const struct member *m = table; m->name; m++) {
		int rc = check_member(o, m, e);

		if (rc < 0)
			return -EPROTO;
		members += rc;
	}
	if (json_object_object_length(o) != members)
		return err_set(e, "", EPROTO, "a reply has members that are not known");
	return 0;
}

/* --- calls --- */

struct fs_call {
	struct guest_call call; /* first: freed as this */
	const struct member *reply_members;
	json_object *reply; /* the call's own, once it is checked */
	guest_fs_done done;
	void *user;
};

static struct fs_call *from_call(struct guest_call *c)
{
	return CONTAINER_OF(c, struct fs_call, call);
}

static int on_result(struct guest_call *c, json_object *o, struct err *e)
{
	struct fs_call *f = from_call(c);

	f->reply = o;
	return check_object(o, f->reply_members, e);
}

static void done(struct guest_call *c, const struct err *why)
{
	struct fs_call *f = from_call(c);

	f->done(why ? NULL : f->reply, why, f->user);
}

#define OPS(path_, name_)                                                                          \
	{                                                                                          \
		.path = path_, .name = name_, .lost_code = "S216", .on_result = on_result,         \
		.done = done                                                                       \
	}

static const struct {
	struct guest_call_ops ops;
	const struct member *reply;
	bool long_reply; /* up to GUEST_REC_JSON_MAX, whatever the request was */
} KINDS[] = {
	[FS_OP_LS] = {OPS("/fs/ls", "fs::ls"), LS, true},
	[FS_OP_STAT] = {OPS("/fs/stat", "fs::stat"), ENTRY, false},
	[FS_OP_MKDIR] = {OPS("/fs/mkdir", "fs::mkdir"), MKDIR, false},
	[FS_OP_RM] = {OPS("/fs/rm", "fs::rm"), RM, false},
	[FS_OP_CHMOD] = {OPS("/fs/chmod", "fs::chmod"), CHMOD, false},
	[FS_OP_MV] = {OPS("/fs/mv", "fs::mv"), MV, false},
	[FS_OP_GREP] = {OPS("/fs/grep", "fs::grep"), GREP, true},
	[FS_OP_SED] = {OPS("/fs/sed", "fs::sed"), SED, true},
};

int guest_fs_start(struct guest *g, enum fs_op op, json_object *request, guest_fs_done cb,
	void *user, struct guest_call **ret, struct err *e)
{
	struct fs_call *f;
	size_t len;
	int rc;

	json_text(request, &len);
	if (len > FS_REQUEST_MAX) {
		json_object_put(request);
		return err_set(e, "S210", E2BIG,
			"%s: the request has %zu bytes, and %u KiB are allowed: name fewer files, "
			"or shorten pattern and globs",
			KINDS[op].ops.name, len, FS_REQUEST_MAX >> 10);
	}
	f = xcalloc(1, sizeof(*f));
	f->reply_members = KINDS[op].reply;
	f->done = cb;
	f->user = user;
	rc = guest_call_open(g, &f->call, &KINDS[op].ops, request,
		KINDS[op].long_reply ? GUEST_REC_JSON_MAX : len, e);
	if (rc < 0)
		return rc;
	guest_call_send_end(&f->call);
	if (ret)
		*ret = &f->call;
	return 0;
}
