/* The fs functions that are one question to the guest and one answer: ls, stat, mkdir, rm, chmod,
 * mv, grep, sed (sandbox contract §1.8).
 *
 * Each has a table of its members, in the order in which the contract checks their rules. The
 * payload is read by it (S001), the sandbox looked up (S002, S004), then the rules of paths and
 * modes are applied (S210), and what the table knows is sent to the guest, whose answer is the
 * reply.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/api/api_priv.h"
#include "host/guest/fs_ops.h"

enum kind {
	PATH,  /* a string that has to be an absolute path */
	MODE,  /* a string of octal digits */
	TEXT,  /* any string */
	TEXTS, /* an array of strings */
	PATHS, /* the same, but U+0000 is a fault of the path (S210), not of the request */
	BOOL,
	U32,
	U64,
};

struct member {
	const char *name; /* NULL ends the table */
	enum kind kind;
	enum json_need need;
};

struct op {
	enum fs_op op;
	const struct member *members;
	/* A further rule between the id's form and the look-up. May be NULL. */
	int (*check)(json_object *request, struct err *e);
};

/* --- reading --- */

static bool has_nul(json_object *s)
{
	return strlen(json_object_get_string(s)) != (size_t)json_object_get_string_len(s);
}

/* An empty array counts as left out. */
static int read_array(json_object *o, const struct member *m, json_object **ret, struct err *e)
{
	json_object *v = NULL;
	int r = json_get_array(o, m->name, m->need, &v, e);
	size_t n = r > 0 ? json_object_array_length(v) : 0;

	if (r < 0)
		err_code(e, "S001");
	for (size_t i = 0; i < n; i++) {
		json_object *s = json_object_array_get_idx(v, i);

		if (!json_object_is_type(s, json_type_string))
			return err_set(e, "S001", EINVAL,
				"field `%s`: expected an array of strings, element %zu is none",
				m->name, i);
		if (m->kind == TEXTS && has_nul(s))
			return err_set(e, "S001", EINVAL,
				"field `%s`: element %zu must not contain U+0000", m->name, i);
	}
	if (n)
		*ret = json_object_get(v);
	return r < 0 ? r : 0;
}

/* The member as it goes to the guest (a new reference), or NULL when it was left out. */
static int read_member(json_object *o, const struct member *m, json_object **ret, struct err *e)
{
	json_object *v = NULL;
	struct text text;
	bool flag;
	uint64_t number;
	uint32_t small;
	int r;

	switch (m->kind) {
	case PATH:
	case MODE:
	case TEXT:
		r = request_text(o, m->name, m->need, &text, e);
		break;
	case TEXTS:
	case PATHS:
		return read_array(o, m, ret, e);
	case BOOL:
		r = request_bool(o, m->name, m->need, &flag, e);
		break;
	case U32:
		r = request_u32(o, m->name, m->need, &small, e);
		break;
	case U64:
		r = request_u64(o, m->name, m->need, &number, e);
		break;
	default:
		r = -EINVAL;
	}
	if (r > 0 && json_object_object_get_ex(o, m->name, &v))
		*ret = json_object_get(v);
	return r < 0 ? r : 0;
}

static int read_members(
	json_object *request, const struct member *m, json_object *out, struct err *e)
{
	for (; m->name; m++) {
		json_object *v = NULL;

		if (read_member(request, m, &v, e) < 0)
			return -EINVAL;
		if (v)
			reply_add(out, m->name, v);
	}
	return 0;
}

/* Relative ones are a failure of that file only, which the guest reports. */
static int check_paths(const struct member *m, json_object *v, struct err *e)
{
	for (size_t i = 0; i < json_object_array_length(v); i++)
		if (has_nul(json_object_array_get_idx(v, i)))
			return err_set(e, "S210", EINVAL, "%s: path %zu must not contain U+0000",
				m->name, i);
	return 0;
}

static int check_member(const struct member *m, json_object *v, struct err *e)
{
	struct text text;
	uint32_t mode;

	if (m->kind == PATHS)
		return check_paths(m, v, e);
	if (m->kind != PATH && m->kind != MODE)
		return 0;
	text = (struct text){json_object_get_string(v), (size_t)json_object_get_string_len(v)};
	return m->kind == PATH ? request_guest_path(m->name, &text, e)
			       : request_mode(m->name, &text, &mode, e);
}

/* S210, in the order of the table. */
static int check_members(json_object *out, const struct member *m, struct err *e)
{
	int r = 0;

	for (; m->name && r == 0; m++) {
		json_object *v = NULL;

		if (json_object_object_get_ex(out, m->name, &v))
			r = check_member(m, v, e);
	}
	return r;
}

/* --- one call --- */

struct fs_call {
	struct bus_call *c;
	struct pool_entry *x;
	bool parent_matters; /* mkdir without parents */
};

static void on_answer(json_object *reply, const struct err *why, void *user)
{
	struct fs_call *f = user;
	struct err e = ERR_INIT;

	if (why) {
		e = *why;
		pool_explain(f->x, POOL_FS, &e);
	}
	pool_end(f->x, POOL_FS);
	if (why)
		reply_failed(f->c,
			&(struct reply_failure){.e = &e,
				.parent_missing = f->parent_matters && str_eq(e.code, "S211")});
	else
		reply_ok(f->c, json_object_get(reply));
	free(f);
}

static bool is_true(json_object *o, const char *name)
{
	json_object *v = NULL;

	return json_object_object_get_ex(o, name, &v) && json_object_get_boolean(v);
}

/* Takes `out`. */
static int ask_guest(
	struct bus_call *c, struct pool_entry *x, enum fs_op op, json_object *out, struct err *e)
{
	struct fs_call *f;
	int r = pool_begin(x, POOL_FS, e);

	if (r < 0) {
		json_object_put(out);
		return r;
	}
	f = xcalloc(1, sizeof(*f));
	*f = (struct fs_call){
		.c = c, .x = x, .parent_matters = op == FS_OP_MKDIR && !is_true(out, "parents")};
	r = guest_fs(pool_guest(x), op, out, on_answer, f, e);
	if (r < 0) {
		err_code(e, "S216");
		pool_end(x, POOL_FS);
		free(f);
	}
	return r;
}

static void serve(struct api *a, struct bus_call *c, json_object *request, const struct op *op)
{
	cleanup_json json_object *out = reply_object();
	struct pool_entry *x;
	struct text text;
	struct err e = ERR_INIT;
	char id[37];
	int r = request_id_text(request, &text, &e);

	if (r >= 0)
		r = read_members(request, op->members, out, &e);
	if (r >= 0)
		r = request_id(&text, id, &e);
	if (r >= 0 && op->check)
		r = op->check(out, &e);
	if (r >= 0)
		r = pool_find(a->pool, id, &x, &e);
	if (r >= 0)
		r = check_members(out, op->members, &e);
	if (r >= 0)
		r = ask_guest(c, x, op->op, STEAL(out), &e);
	if (r < 0)
		reply_err(c, &e);
}

/* --- the functions --- */

#define END                                                                                        \
	{                                                                                          \
		NULL, TEXT, JSON_OPTIONAL                                                          \
	}

void api_fs_ls(struct api *a, struct bus_call *c, json_object *request)
{
	static const struct member members[] = {{"path", PATH, JSON_REQUIRED}, END};

	serve(a, c, request, &(struct op){FS_OP_LS, members});
}

void api_fs_stat(struct api *a, struct bus_call *c, json_object *request)
{
	static const struct member members[] = {{"path", PATH, JSON_REQUIRED}, END};

	serve(a, c, request, &(struct op){FS_OP_STAT, members});
}

void api_fs_mkdir(struct api *a, struct bus_call *c, json_object *request)
{
	static const struct member members[] = {{"mode", MODE, JSON_OPTIONAL},
		{"path", PATH, JSON_REQUIRED}, {"parents", BOOL, JSON_OPTIONAL}, END};

	serve(a, c, request, &(struct op){FS_OP_MKDIR, members});
}

void api_fs_rm(struct api *a, struct bus_call *c, json_object *request)
{
	static const struct member members[] = {
		{"path", PATH, JSON_REQUIRED}, {"recursive", BOOL, JSON_OPTIONAL}, END};

	serve(a, c, request, &(struct op){FS_OP_RM, members});
}

void api_fs_chmod(struct api *a, struct bus_call *c, json_object *request)
{
	static const struct member members[] = {{"mode", MODE, JSON_REQUIRED},
		{"path", PATH, JSON_REQUIRED}, {"uid", U32, JSON_NULLABLE},
		{"gid", U32, JSON_NULLABLE}, {"recursive", BOOL, JSON_OPTIONAL}, END};

	serve(a, c, request, &(struct op){FS_OP_CHMOD, members});
}

void api_fs_mv(struct api *a, struct bus_call *c, json_object *request)
{
	static const struct member members[] = {{"src", PATH, JSON_REQUIRED},
		{"dst", PATH, JSON_REQUIRED}, {"overwrite", BOOL, JSON_OPTIONAL}, END};

	serve(a, c, request, &(struct op){FS_OP_MV, members});
}

void api_fs_grep(struct api *a, struct bus_call *c, json_object *request)
{
	static const struct member members[] = {{"path", PATH, JSON_REQUIRED},
		{"pattern", TEXT, JSON_REQUIRED}, {"recursive", BOOL, JSON_OPTIONAL},
		{"ignore_case", BOOL, JSON_OPTIONAL}, {"include_glob", TEXTS, JSON_OPTIONAL},
		{"exclude_glob", TEXTS, JSON_OPTIONAL}, {"max_matches", U64, JSON_OPTIONAL},
		{"max_line_bytes", U64, JSON_OPTIONAL}, END};

	serve(a, c, request, &(struct op){FS_OP_GREP, members});
}

/* An empty `files` was dropped when it was read: it counts as absent. */
static int check_sed_form(json_object *out, struct err *e)
{
	bool files = json_object_object_get_ex(out, "files", NULL);
	bool path = json_object_object_get_ex(out, "path", NULL);

	if (files && path)
		return err_set(e, "S210", EINVAL,
			"files and path are both set, but not both can be used: pass one of them");
	if (!files && !path)
		return err_set(e, "S210", EINVAL,
			"neither files nor path is set: exactly one of them is needed");
	return 0;
}

void api_fs_sed(struct api *a, struct bus_call *c, json_object *request)
{
	static const struct member members[] = {{"files", PATHS, JSON_OPTIONAL},
		{"path", PATH, JSON_NULLABLE}, {"recursive", BOOL, JSON_OPTIONAL},
		{"include_glob", TEXTS, JSON_OPTIONAL}, {"exclude_glob", TEXTS, JSON_OPTIONAL},
		{"pattern", TEXT, JSON_REQUIRED}, {"replacement", TEXT, JSON_REQUIRED},
		{"regex", BOOL, JSON_OPTIONAL}, {"first_only", BOOL, JSON_OPTIONAL},
		{"ignore_case", BOOL, JSON_OPTIONAL}, END};

	serve(a, c, request, &(struct op){FS_OP_SED, members, check_sed_form});
}
