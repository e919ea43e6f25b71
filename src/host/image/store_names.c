/* Names of the store, and what a person sees of it: the list, and removal.
 *
 * A name is a file of its own, named by the hash of the name: any text is safe, a change is one
 * rename, and reading one does not read the others.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "base/utf8.h"
#include "host/image/digest.h"
#include "host/image/store_priv.h"
#include "wire/json.h"
#include "wire/oci.h"

#define NAME_FILE_BYTES_MAX (32u << 10)

static char *name_file(const char *name)
{
	char digest[72];

	digest_of(name, strlen(name), digest);
	return xasprintf("%s.json", oci_digest_hex(digest));
}

static int read_name_file(struct store *s, const char *file, struct store_name *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	cleanup_free char *text = NULL;
	const char *name, *digest;
	size_t len;
	int r = fd_slurp_at(s->names, file, NAME_FILE_BYTES_MAX, &text, &len);

	if (r < 0)
		return err_set(e, "", -r, "cannot read names/%s: %s", file, err_str(r));
	r = json_parse_object(text, len, &o, e);
	if (r >= 0)
		r = json_get_str(o, "name", JSON_REQUIRED, &name, e);
	if (r >= 0)
		r = json_get_str(o, "digest", JSON_REQUIRED, &digest, e);
	if (r >= 0 && !oci_digest_valid(digest))
		r = err_set(e, "", EINVAL, "no digest");
	if (r < 0) {
		err_wrap(e, "names/%s is damaged", file);
		return r;
	}
	ret->name = xstrdup(name);
	memcpy(ret->digest, digest, OCI_DIGEST_LEN + 1);
	return 0;
}

int store_lookup(struct store *s, const char *name, char ret_digest[static 72], struct err *e)
{
	cleanup_free char *file = name_file(name);
	struct store_name found;
	int r = read_name_file(s, file, &found, e);

	if (r == -ENOENT)
		return err_set(e, "", ENOENT, "there is no image %s in the store", name);
	if (r < 0)
		return r;
	free(found.name);
	memcpy(ret_digest, found.digest, OCI_DIGEST_LEN + 1);
	return 0;
}

int store_set_name(struct store *s, const char *name, const char *digest, struct err *e)
{
	cleanup_json json_object *o = json_object_new_object();
	cleanup_free char *file = name_file(name);
	cleanup_fd int lock = -1;
	const char *text;
	size_t len;
	int r;

	if (strlen(name) > STORE_NAME_BYTES_MAX || !utf8_valid(name, strlen(name)))
		return err_set(e, "", EINVAL, "a name must be UTF-8 of at most %d bytes: %.100s",
			STORE_NAME_BYTES_MAX, name);
	json_add_str(o, "name", name);
	json_add_str(o, "digest", digest);
	text = json_text(o, &len);
	r = store_lock(s, &lock, e);
	if (r < 0)
		return r;
	store_step(STORE_STEP_NAME);
	r = fd_publish_at(s->names, file, text, len, 0600);
	if (r < 0)
		return err_set(
			e, "", -r, "cannot write the name %s in %s: %s", name, s->path, err_str(r));
	store_step(STORE_STEP_DONE);
	return 0;
}

int store_unlink_name(struct store *s, const char *name)
{
	cleanup_free char *file = name_file(name);

	return unlinkat(s->names, file, 0) < 0 && errno != ENOENT ? -errno : 0;
}

struct name_list {
	struct store *s;
	struct store_name *names;
	size_t n;
};

static int add_name(const char *file, void *user)
{
	struct name_list *l = user;
	struct store_name one;

	/* A damaged name is as good as none: the next fetch of that name writes it anew. */
	if (!str_ends(file, ".json") || read_name_file(l->s, file, &one, NULL) < 0)
		return 0;
	l->names = xrealloc(l->names, l->n + 1, sizeof(*l->names));
	l->names[l->n++] = one;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct store_name *)a)->name, ((const struct store_name *)b)->name);
}

int store_read_names(struct store *s, struct store_name **ret, size_t *ret_n, struct err *e)
{
	struct name_list l = {.s = s};
	int r = store_each(s->names, add_name, &l);

	if (r < 0) {
		store_names_free(l.names, l.n);
		return err_set(e, "", -r, "cannot read %s/names: %s", s->path, err_str(r));
	}
	if (l.n)
		qsort(l.names, l.n, sizeof(*l.names), by_name);
	*ret = l.names;
	*ret_n = l.n;
	return 0;
}

void store_names_free(struct store_name *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(names[i].name);
	free(names);
}

/* ---- the list ---- */

struct item_list {
	struct store *s;
	struct store_item *items;
	size_t n;
};

static int add_item(const char *entry, void *user)
{
	struct item_list *l = user;
	struct store_item item = {0};
	cleanup_free char *expected = NULL;
	struct stat st;
	cleanup_fd int dir =
		openat(l->s->entries, entry, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (dir < 0 || fstat(dir, &st) < 0 || store_read_entry(dir, &item.meta, NULL, NULL) < 0)
		return 0;
	expected = store_entry_name(item.meta.digest);
	if (!str_eq(expected, entry)) { /* of a program with another disk format */
		store_meta_done(&item.meta);
		return 0;
	}
	item.used = st.st_mtime;
	item.in_use = flock(dir, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
	l->items = xrealloc(l->items, l->n + 1, sizeof(*l->items));
	l->items[l->n++] = item;
	return 0;
}

static int by_use(const void *a, const void *b)
{
	const struct store_item *x = a, *y = b;

	if (x->used != y->used)
		return x->used < y->used ? 1 : -1;
	return strcmp(x->meta.digest, y->meta.digest);
}

int store_list(struct store *s, struct store_item **ret, size_t *ret_n, struct err *e)
{
	struct item_list l = {.s = s};
	struct store_name *names = NULL;
	size_t n_names = 0;
	int r = store_read_names(s, &names, &n_names, e);

	if (r < 0)
		return r;
	r = store_each(s->entries, add_item, &l);
	for (size_t i = 0; i < l.n; i++) {
		l.items[i].names = xcalloc(1, sizeof(char *));
		for (size_t k = 0; k < n_names; k++)
			if (str_eq(names[k].digest, l.items[i].meta.digest))
				strv_add(&l.items[i].names, names[k].name);
	}
	store_names_free(names, n_names);
	if (r < 0) {
		store_list_free(l.items, l.n);
		return err_set(e, "", -r, "cannot read %s/entries: %s", s->path, err_str(r));
	}
	if (l.n)
		qsort(l.items, l.n, sizeof(*l.items), by_use);
	*ret = l.items;
	*ret_n = l.n;
	return 0;
}

void store_list_free(struct store_item *items, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		store_meta_done(&items[i].meta);
		strv_free(items[i].names);
	}
	free(items);
}

/* ---- removal ---- */

static int in_use_error(const char *what, struct err *e)
{
	return err_set(e, "", EBUSY,
		"%s is in use by a running sandbox: stop it first, or use --force (what runs keeps "
		"its disk)",
		what);
}

/* Hides the entry, if there is one, and removes its names (all, or only `one`). */
static int remove_entry(struct store *s, const char *digest, const char *what, bool force,
	const struct store_name *names, size_t n, struct err *e)
{
	cleanup_free char *entry = store_entry_name(digest), *trash = NULL;
	int r = store_hide_entry(s, entry, force, &trash);

	if (r == -EBUSY)
		return in_use_error(what, e);
	if (r < 0 && r != -ENOENT)
		return err_set(e, "", -r, "cannot remove %s: %s", what, err_str(r));
	for (size_t i = 0; i < n; i++)
		if (str_eq(names[i].digest, digest))
			store_unlink_name(s, names[i].name);
	if (trash)
		path_remove_at(s->tmp, trash);
	return 0;
}

int store_remove_name(struct store *s, const char *name, bool force, struct err *e)
{
	struct store_name *names = NULL;
	cleanup_fd int lock = -1;
	size_t n = 0, sharing = 0;
	char digest[72];
	int r = store_lock(s, &lock, e);

	if (r >= 0)
		r = store_lookup(s, name, digest, e);
	if (r >= 0)
		r = store_read_names(s, &names, &n, e);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++)
		sharing += str_eq(names[i].digest, digest);
	if (sharing > 1) {
		r = store_unlink_name(s, name);
		if (r < 0)
			err_set(e, "", -r, "cannot remove the name %s: %s", name, err_str(r));
	} else {
		r = remove_entry(s, digest, name, force, names, n, e);
		if (r >= 0)
			r = 1;
	}
	store_names_free(names, n);
	return r;
}

int store_remove_digest(struct store *s, const char *digest, bool force, struct err *e)
{
	cleanup_free char *entry = store_entry_name(digest);
	struct store_name *names = NULL;
	cleanup_fd int lock = -1;
	struct stat st;
	size_t n = 0;
	int r = store_lock(s, &lock, e);

	if (r < 0)
		return r;
	if (fstatat(s->entries, entry, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_set(e, "", ENOENT, "there is no image %s in the store", digest);
	r = store_read_names(s, &names, &n, e);
	if (r >= 0)
		r = remove_entry(s, digest, digest, force, names, n, e);
	store_names_free(names, n);
	return r;
}
