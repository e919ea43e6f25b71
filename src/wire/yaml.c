/* How it works: libyaml gives events; a stack of the collections that are open builds the tree. A
 * collection is put into its parent when it ends. No recursion.
 *
 * An anchor keeps its node, and how many nodes, bytes and levels it has, so that an alias costs one
 * reference however much it stands for, and is counted in full: a text whose aliases name each
 * other a billion times over ends at the limit of nodes. libyaml itself takes time and memory in
 * proportion to the text (its own depth ends at 1000).
 *
 * Limits: YAML_BYTES_MAX, YAML_DEPTH_MAX, YAML_ANCHORS_MAX, and the caller's number of nodes.
 */
#include "wire/yaml.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"

#define NO_ANCHOR      -1
#define PATH_BYTES_MAX 256 /* of a path in an error; a longer one is left out */
#define ERR_WHAT_MAX   (PATH_BYTES_MAX + 128)

/* What a node costs, with everything below it. */
struct cost {
	size_t nodes, bytes;
	unsigned height; /* collections in each other; 0 for a scalar */
};

struct anchor {
	char *name;
	json_object *value; /* a reference; NULL for null */
	struct cost cost;
	bool complete;
};

/* A collection that is open. */
struct frame {
	json_object *o; /* owned */
	char *key;	/* mapping: the key that waits for its value; owned */
	int anchor;
	struct cost before; /* of the whole tree, when it began */
	unsigned height;    /* so far */
};

struct build {
	yaml_parser_t parser;
	struct frame stack[YAML_DEPTH_MAX];
	unsigned depth;
	struct anchor anchors[YAML_ANCHORS_MAX];
	int n_anchors;
	size_t nodes, nodes_max, bytes;
	unsigned documents;
	json_object *root; /* owned */
	struct err *e;
};

static void build_done(struct build *b)
{
	for (unsigned i = 0; i < b->depth; i++) {
		json_object_put(b->stack[i].o);
		free(b->stack[i].key);
	}
	for (int i = 0; i < b->n_anchors; i++) {
		json_object_put(b->anchors[i].value);
		free(b->anchors[i].name);
	}
	json_object_put(b->root);
	yaml_parser_delete(&b->parser);
}

static int fail(const struct build *b, yaml_mark_t at, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static int fail(const struct build *b, yaml_mark_t at, const char *fmt, ...)
{
	char what[ERR_WHAT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return err_set(b->e, "", EINVAL, "not valid YAML: line %zu, column %zu: %s", at.line + 1,
		at.column + 1, what);
}

/* For an offset in bytes that libyaml or the check of UTF-8 gives instead of a mark. */
static int fail_at_byte(
	const char *text, size_t len, size_t offset, const char *what, struct err *e)
{
	size_t line = 1, column = 1;

	for (size_t i = 0; i < MIN(offset, len); i++) {
		if (text[i] == '\n') {
			line++;
			column = 1;
		} else if (((unsigned char)text[i] & 0xc0) != 0x80) {
			column++;
		}
	}
	return err_set(
		e, "", EINVAL, "not valid YAML: line %zu, column %zu: %s", line, column, what);
}

static int count(struct build *b, yaml_mark_t at, const struct cost *c)
{
	/* A cost is of a part of this text, so that no sum comes near an overflow. */
	b->nodes += c->nodes;
	b->bytes += c->bytes;
	if (b->nodes > b->nodes_max)
		return fail(
			b, at, "there are more than %zu values, aliases counted in", b->nodes_max);
	if (b->bytes > YAML_BYTES_MAX)
		return fail(b, at, "the values have more than %u bytes, aliases counted in",
			YAML_BYTES_MAX);
	return 0;
}

/* The number of a new anchor, or NO_ANCHOR when the node has none; or an error below that. */
static int anchor_begin(struct build *b, yaml_mark_t at, const yaml_char_t *name)
{
	if (!name)
		return NO_ANCHOR;
	if (b->n_anchors == YAML_ANCHORS_MAX)
		return fail(b, at, "there are more than %d anchors", YAML_ANCHORS_MAX);
	for (int i = 0; i < b->n_anchors; i++)
		if (strcmp(b->anchors[i].name, (const char *)name) == 0)
			return fail(b, at, "an anchor of this name was there before");
	b->anchors[b->n_anchors].name = xstrdup((const char *)name);
	return b->n_anchors++;
}

static void anchor_end(struct build *b, int anchor, json_object *o, const struct cost *c)
{
	if (anchor == NO_ANCHOR)
		return;
	b->anchors[anchor].value = json_object_get(o);
	b->anchors[anchor].cost = *c;
	b->anchors[anchor].complete = true;
}

/* "a.b[3].key", or NULL when it is too long. The caller frees it. */
static char *path_of(const struct build *b, const char *key)
{
	struct buf path cleanup_buf;
	int rc = 0;

	buf_init(&path, PATH_BYTES_MAX);
	for (unsigned i = 0; i < b->depth && rc == 0; i++) {
		const struct frame *f = &b->stack[i];
		const char *name = i + 1 == b->depth ? key : f->key;

		if (json_object_is_type(f->o, json_type_array)) {
			rc = buf_printf(&path, "[%zu]", json_object_array_length(f->o));
		} else {
			cleanup_free char *shown = yaml_key_shown(name);

			rc = buf_printf(&path, "%s%s", i ? "." : "", shown);
		}
	}
	return rc == 0 ? buf_steal(&path) : NULL;
}

/* The innermost open collection is a mapping, and what comes is a key of it. */
static bool wants_key(const struct build *b)
{
	const struct frame *f = b->depth ? &b->stack[b->depth - 1] : NULL;

	return f && json_object_is_type(f->o, json_type_object) && !f->key;
}

/* Puts a complete node (taken) where it belongs. */
static void put(struct build *b, json_object *o, unsigned height)
{
	struct frame *f;
	int rc;

	if (!b->depth) {
		b->root = o;
		return;
	}
	f = &b->stack[b->depth - 1];
	f->height = MAX(f->height, height + 1);
	if (json_object_is_type(f->o, json_type_array)) {
		rc = json_object_array_add(f->o, o);
	} else {
		rc = json_object_object_add(f->o, f->key, o);
		free(STEAL(f->key));
	}
	if (rc < 0)
		mem_exhausted();
}

static int on_key(struct build *b, const yaml_event_t *ev)
{
	struct frame *f = &b->stack[b->depth - 1];
	const char *text = (const char *)ev->data.scalar.value;
	json_object *plain = NULL;
	bool is_string;

	if (ev->data.scalar.anchor)
		return fail(b, ev->start_mark, "a key has an anchor, which is not supported");
	if (strlen(text) != ev->data.scalar.length)
		return fail(b, ev->start_mark, "a key has a character U+0000 in it");
	if (ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
		is_string = yaml_plain(text, &plain) == 0 &&
			    json_object_is_type(plain, json_type_string);
		json_object_put(plain);
		if (!is_string)
			return fail(b, ev->start_mark,
				"a key is not a string: put it in quotes, or a value is missing");
	}
	if (json_object_object_get_ex(f->o, text, NULL)) {
		cleanup_free char *path = path_of(b, text);

		return fail(b, ev->start_mark, "`%s` is there twice", path ? path : "a key");
	}
	f->key = xstrdup(text);
	return 0;
}

static int on_scalar(struct build *b, const yaml_event_t *ev)
{
	struct cost c = {.nodes = 1, .bytes = ev->data.scalar.length};
	const char *text = (const char *)ev->data.scalar.value;
	json_object *o = NULL;
	int anchor, rc;

	if (ev->data.scalar.tag)
		return fail(b, ev->start_mark, "a value has a tag, which is not supported");
	rc = count(b, ev->start_mark, &c);
	if (rc < 0)
		return rc;
	if (wants_key(b))
		return on_key(b, ev);
	anchor = anchor_begin(b, ev->start_mark, ev->data.scalar.anchor);
	if (anchor < NO_ANCHOR)
		return anchor;
	if (ev->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) {
		o = json_object_new_string_len(text, (int)ev->data.scalar.length);
		if (!o)
			mem_exhausted();
	} else if (yaml_plain(text, &o) < 0) {
		return fail(b, ev->start_mark,
			"a number is infinite, not a number or too large; a text needs quotes");
	}
	anchor_end(b, anchor, o, &c);
	put(b, o, 0);
	return 0;
}

static int on_begin(struct build *b, yaml_mark_t at, const yaml_char_t *anchor_name,
	const yaml_char_t *tag, json_object *empty)
{
	cleanup_json json_object *o = empty;
	const struct cost one = {.nodes = 1}, before = {.nodes = b->nodes, .bytes = b->bytes};
	int anchor, rc;

	if (!o)
		mem_exhausted();
	if (tag)
		return fail(b, at, "a value has a tag, which is not supported");
	if (wants_key(b))
		return fail(b, at, "a key is a list or a mapping, not a string");
	if (b->depth == YAML_DEPTH_MAX)
		return fail(b, at, "it is nested more than %d levels deep", YAML_DEPTH_MAX);
	rc = count(b, at, &one);
	if (rc < 0)
		return rc;
	anchor = anchor_begin(b, at, anchor_name);
	if (anchor < NO_ANCHOR)
		return anchor;
	b->stack[b->depth++] =
		(struct frame){.o = STEAL(o), .anchor = anchor, .before = before, .height = 1};
	return 0;
}

static int on_end(struct build *b)
{
	struct frame f;
	struct cost c;

	assert(b->depth > 0);
	f = b->stack[--b->depth];
	assert(!f.key);
	c = (struct cost){.nodes = b->nodes - f.before.nodes,
		.bytes = b->bytes - f.before.bytes,
		.height = f.height};
	anchor_end(b, f.anchor, f.o, &c);
	put(b, f.o, f.height);
	return 0;
}

static int on_alias(struct build *b, const yaml_event_t *ev)
{
	const char *name = (const char *)ev->data.alias.anchor;
	const struct anchor *a = NULL;
	int rc;

	if (wants_key(b))
		return fail(b, ev->start_mark, "a key is an alias, which is not supported");
	for (int i = 0; i < b->n_anchors && !a; i++)
		if (strcmp(b->anchors[i].name, name) == 0)
			a = &b->anchors[i];
	if (!a || !a->complete)
		return fail(b, ev->start_mark,
			a ? "an alias is inside the value that it names"
			  : "an alias names no anchor before it");
	if (b->depth + a->cost.height > YAML_DEPTH_MAX)
		return fail(
			b, ev->start_mark, "it is nested more than %d levels deep", YAML_DEPTH_MAX);
	rc = count(b, ev->start_mark, &a->cost);
	if (rc < 0)
		return rc;
	put(b, json_object_get(a->value), a->cost.height);
	return 0;
}

static int on_event(struct build *b, const yaml_event_t *ev)
{
	switch (ev->type) {
	case YAML_DOCUMENT_START_EVENT:
		if (b->documents++)
			return fail(b, ev->start_mark, "there is more than one document");
		return 0;
	case YAML_SCALAR_EVENT:
		return on_scalar(b, ev);
	case YAML_SEQUENCE_START_EVENT:
		return on_begin(b, ev->start_mark, ev->data.sequence_start.anchor,
			ev->data.sequence_start.tag, json_object_new_array());
	case YAML_MAPPING_START_EVENT:
		return on_begin(b, ev->start_mark, ev->data.mapping_start.anchor,
			ev->data.mapping_start.tag, json_object_new_object());
	case YAML_SEQUENCE_END_EVENT:
	case YAML_MAPPING_END_EVENT:
		return on_end(b);
	case YAML_ALIAS_EVENT:
		return on_alias(b, ev);
	default:
		return 0;
	}
}

/* libyaml's own words are fixed texts: nothing of the document is in them. */
static int fail_in_parser(const struct build *b, const char *text, size_t len)
{
	const yaml_parser_t *p = &b->parser;
	const char *what = p->problem ? p->problem : "it cannot be read";

	if (p->error == YAML_MEMORY_ERROR)
		mem_exhausted();
	if (p->error == YAML_READER_ERROR)
		return fail_at_byte(text, len, p->problem_offset, what, b->e);
	return fail(b, p->problem_mark, "%s", what);
}

static int run(struct build *b, const char *text, size_t len)
{
	bool end = false;
	int rc = 0;

	while (rc == 0 && !end) {
		yaml_event_t ev;

		if (!yaml_parser_parse(&b->parser, &ev))
			return fail_in_parser(b, text, len);
		rc = on_event(b, &ev);
		end = ev.type == YAML_STREAM_END_EVENT;
		yaml_event_delete(&ev);
	}
	return rc;
}

int yaml_parse(const char *text, size_t len, size_t nodes_max, json_object **ret, struct err *e)
{
	__attribute__((cleanup(build_done))) struct build b = {.nodes_max = nodes_max, .e = e};
	size_t valid;
	int rc;

	if (!yaml_parser_initialize(&b.parser))
		mem_exhausted();
	if (len > YAML_BYTES_MAX)
		return err_set(e, "", EINVAL, "the YAML text has %zu bytes: at most %u are read",
			len, YAML_BYTES_MAX);
	valid = utf8_valid_prefix(text, len);
	if (valid < len)
		return fail_at_byte(text, len, valid, "a byte is not UTF-8", e);
	yaml_parser_set_encoding(&b.parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&b.parser, (const unsigned char *)text, len);
	rc = run(&b, text, len);
	if (rc == 0)
		*ret = STEAL(b.root);
	return rc;
}
