/* tree: how the entries of layers become one file system. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/image/build.h"
#include "host/image/tree.h"

static struct tree *tree_with_layer(void)
{
	struct tree *t = tree_new();

	tree_begin_layer(t);
	return t;
}

static int put(struct tree *t, const char *path, uint16_t mode)
{
	struct tree_attr a = {.mode = mode, .uid = 1, .mtime = 77};

	return tree_put(t, path, &a, NULL);
}

static void file(struct tree *t, const char *path)
{
	assert_int_equal(put(t, path, S_IFREG | 0644), 0);
}

static void dir(struct tree *t, const char *path)
{
	assert_int_equal(put(t, path, S_IFDIR | 0755), 0);
}

static void sym(struct tree *t, const char *path, const char *target)
{
	struct tree_attr a = {.mode = S_IFLNK | 0777, .target = target};

	assert_int_equal(tree_put(t, path, &a, NULL), 0);
}

static struct tree_inode *at(struct tree *t, const char *path)
{
	uint32_t i = tree_find(t, path);

	return i == TREE_NONE ? NULL : tree_inode(t, i);
}

/* All paths in order, "a a/b c", hard links as names; sorts the tree. */
static void list(struct tree *t, uint32_t d, const char *prefix, char *out, size_t size)
{
	for (uint32_t n = tree_inode(t, d)->dir.first; n != TREE_NONE; n = tree_node(t, n)->next) {
		struct tree_node *node = tree_node(t, n);
		char path[IMAGE_PATH_MAX];

		snprintf(path, sizeof(path), "%s%.*s", prefix, (int)tree_name_len(node),
			tree_name(node));
		snprintf(out + strlen(out), size - strlen(out), "%s%s", *out ? " " : "", path);
		if (S_ISDIR(tree_inode(t, node->inode)->mode)) {
			snprintf(path + strlen(path), sizeof(path) - strlen(path), "/");
			list(t, node->inode, path, out, size);
		}
	}
}

static void assert_paths(struct tree *t, const char *want)
{
	char got[4096] = "";

	tree_sort(t);
	list(t, TREE_ROOT, "", got, sizeof(got));
	assert_string_equal(got, want);
}

static void paths_are_put_in_normal_form(void **state)
{
	static const struct {
		const char *raw, *clean;
	} good[] = {{"a", "a"}, {"./a", "a"}, {"a/", "a"}, {"./", ""}, {".", ""}, {"", ""},
		{".//a/./b//", "a/b"}, {"..a/b..", "..a/b.."}, {"...", "..."}};
	static const char *const bad[] = {"/", "/a", "//a", "..", "../a", "a/..", "a/../b", "./.."};
	char dst[IMAGE_PATH_MAX + 1], raw[IMAGE_PATH_MAX + 10];

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(
			tree_path_clean(good[i].raw, dst, NULL), (int)strlen(good[i].clean));
		assert_string_equal(dst, good[i].clean);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(tree_path_clean(bad[i], dst, NULL), -EINVAL);

	memset(raw, 'n', sizeof(raw));
	raw[IMAGE_NAME_MAX] = '\0';
	assert_int_equal(tree_path_clean(raw, dst, NULL), IMAGE_NAME_MAX);
	raw[IMAGE_NAME_MAX] = 'n';
	raw[IMAGE_NAME_MAX + 1] = '\0';
	assert_int_equal(tree_path_clean(raw, dst, NULL), -ENAMETOOLONG);

	/* 128 components, then one more; 4096 bytes, then one more. */
	for (size_t i = 0; i < sizeof(raw) - 1; i++)
		raw[i] = i % 2 ? '/' : 'd';
	raw[2 * IMAGE_DEPTH_MAX - 1] = '\0';
	assert_int_equal(tree_path_clean(raw, dst, NULL), 2 * IMAGE_DEPTH_MAX - 1);
	raw[2 * IMAGE_DEPTH_MAX - 1] = '/';
	raw[2 * IMAGE_DEPTH_MAX + 1] = '\0';
	assert_int_equal(tree_path_clean(raw, dst, NULL), -ENAMETOOLONG);
	memset(raw, '/', sizeof(raw));
	raw[0] = '.';
	raw[IMAGE_PATH_MAX] = '\0';
	assert_int_equal(tree_path_clean(raw, dst, NULL), 0);
	raw[IMAGE_PATH_MAX] = '/';
	raw[IMAGE_PATH_MAX + 1] = '\0';
	assert_int_equal(tree_path_clean(raw, dst, NULL), -ENAMETOOLONG);
}

static void parents_are_implied(void **state)
{
	struct tree *t = tree_with_layer();

	file(t, "a/b/c");
	assert_int_equal(at(t, "a/b")->mode, S_IFDIR | 0755);
	assert_int_equal(at(t, "a/b")->mtime, 0);
	assert_int_equal(at(t, "a/b")->uid, 0);
	dir(t, "a/b");
	assert_int_equal(at(t, "a/b")->mtime, 77);
	assert_paths(t, "a a/b a/b/c");
	tree_free(t);
}

static void names_are_sorted_by_bytes(void **state)
{
	struct tree *t = tree_with_layer();
	static const char *const names[] = {"b", "a", "aa", "\xff", "B", "a-", "a.b", "-", "..."};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		file(t, names[i]);
	assert_paths(t, "- ... B a a- a.b aa b \xff");
	tree_free(t);
}

static void the_root_keeps_its_type(void **state)
{
	struct tree *t = tree_with_layer();

	assert_int_equal(put(t, "", S_IFDIR | 0711), 0);
	assert_int_equal(tree_inode(t, TREE_ROOT)->mode, S_IFDIR | 0711);
	assert_int_equal(put(t, "", S_IFREG), -EINVAL);
	file(t, "a");
	assert_int_equal(tree_link(t, "", "a", NULL), -EINVAL);
	assert_int_equal(tree_whiteout(t, "", NULL), 0);
	assert_paths(t, "a");
	tree_free(t);
}

static void the_last_entry_wins(void **state)
{
	struct tree *t = tree_with_layer();

	dir(t, "d");
	file(t, "d/in");
	file(t, "d"); /* a folder becomes a file: what was in it goes */
	assert_paths(t, "d");
	dir(t, "d");
	assert_paths(t, "d");
	file(t, "d/new");
	dir(t, "d"); /* a folder over a folder keeps it */
	assert_paths(t, "d d/new");
	sym(t, "d", "nowhere");
	assert_paths(t, "d");
	file(t, "f");
	file(t, "f/below"); /* a file as parent gives way */
	assert_paths(t, "d f f/below");
	assert_int_equal(tree_inode_count(t), 4);
	tree_free(t);
}

static void symlinks_are_followed_inside_the_tree(void **state)
{
	struct tree *t = tree_with_layer();

	dir(t, "usr/lib");
	sym(t, "lib", "usr/lib");
	sym(t, "abs", "/usr");
	sym(t, "out", "../../../../../usr");
	sym(t, "chain", "abs/lib");
	file(t, "lib/a");
	file(t, "abs/b");
	file(t, "out/c");
	file(t, "chain/d");
	sym(t, "dangling", "to/here");
	file(t, "dangling/e");
	assert_paths(t, "abs chain dangling lib out to to/here to/here/e usr usr/b usr/c usr/lib "
			"usr/lib/a usr/lib/d");
	dir(t, "lib"); /* the name itself is never followed: the symlink gives way */
	assert_paths(t, "abs chain dangling lib out to to/here to/here/e usr usr/b usr/c usr/lib "
			"usr/lib/a usr/lib/d");
	assert_true(S_ISDIR(at(t, "lib")->mode));
	tree_free(t);
}

static void symlink_loops_end(void **state)
{
	struct tree *t = tree_with_layer();
	struct err e = ERR_INIT;
	struct tree_attr a = {.mode = S_IFREG};
	char name[16], target[16];

	sym(t, "x", "y");
	sym(t, "y", "x");
	sym(t, "self", "self/self");
	assert_int_equal(tree_put(t, "x/f", &a, &e), -ELOOP);
	assert_non_null(strstr(e.text, "40 symlinks"));
	assert_int_equal(tree_put(t, "self/f", &a, &e), -ELOOP);
	assert_int_equal(tree_whiteout(t, "x/f", &e), -ELOOP);
	assert_int_equal(tree_opaque(t, "x", &e), -ELOOP);
	/* Forty in a row are fine, one more is not. */
	dir(t, "end");
	for (int i = 0; i <= TREE_SYMLINKS_MAX; i++) {
		snprintf(name, sizeof(name), "s%d", i);
		snprintf(target, sizeof(target), i ? "s%d" : "end", i - 1);
		sym(t, name, target);
	}
	file(t, "s39/f");
	assert_int_equal(tree_put(t, "s40/f", &a, &e), -ELOOP);
	tree_free(t);
}

static void long_symlink_walks_are_refused(void **state)
{
	struct tree *t = tree_with_layer();
	char target[TREE_TARGET_MAX + 2] = "";
	struct tree_attr a = {.mode = S_IFREG};
	struct err e = ERR_INIT;

	dir(t, "d");
	for (int i = 0; i < 600; i++)
		memcpy(target + 5 * i, "d/../", 6);
	sym(t, "far", target);
	assert_int_equal(tree_put(t, "far/f", &a, &e), -ELOOP);
	assert_non_null(strstr(e.text, "1024"));

	memset(target, 't', sizeof(target) - 1);
	a = (struct tree_attr){.mode = S_IFLNK, .target = target};
	assert_int_equal(tree_put(t, "l", &a, &e), -ENAMETOOLONG);
	a.target = "";
	assert_int_equal(tree_put(t, "l", &a, &e), -EINVAL);
	tree_free(t);
}

static void depth_is_bounded_also_through_symlinks(void **state)
{
	struct tree *t = tree_with_layer();
	char path[2 * IMAGE_DEPTH_MAX + 8] = "";
	struct tree_attr a = {.mode = S_IFREG};
	struct err e = ERR_INIT;

	for (int i = 0; i < 2 * IMAGE_DEPTH_MAX - 3; i++)
		path[i] = i % 2 ? '/' : 'd';
	dir(t, path);
	sym(t, "deep", path);
	file(t, "deep/ok");
	assert_int_equal(tree_put(t, "deep/one/more", &a, &e), -ENAMETOOLONG);
	assert_non_null(strstr(e.text, "128"));
	tree_free(t);
}

static void hard_links_share_an_inode(void **state)
{
	struct tree *t = tree_with_layer();

	file(t, "a");
	dir(t, "d");
	assert_int_equal(tree_link(t, "b", "a", NULL), 0);
	assert_int_equal(tree_link(t, "new/c", "b", NULL), 0);
	assert_int_equal(tree_find(t, "a"), tree_find(t, "new/c"));
	assert_int_equal(at(t, "a")->nlink, 3);

	tree_begin_layer(t);
	assert_int_equal(tree_link(t, "upper", "a", NULL), 0);
	assert_int_equal(at(t, "a")->nlink, 4);
	file(t, "a"); /* the other names keep the old inode */
	assert_int_equal(at(t, "b")->nlink, 3);
	assert_int_equal(at(t, "a")->nlink, 1);
	assert_int_equal(tree_whiteout(t, "b", NULL), 0);
	assert_int_equal(at(t, "upper")->nlink, 2);

	assert_int_equal(tree_link(t, "x", "d", NULL), -EPERM);
	assert_int_equal(tree_link(t, "x", "not/there", NULL), -ENOENT);
	assert_int_equal(tree_link(t, "x", "b", NULL), -ENOENT); /* whited out */
	assert_int_equal(tree_link(t, "x", "x", NULL), -ENOENT); /* itself, not there */
	assert_int_equal(tree_link(t, "a", "a", NULL), 0);	 /* itself, there */
	assert_non_null(at(t, "a"));
	tree_free(t);
}

static void a_link_into_what_it_replaces_fails(void **state)
{
	struct tree *t = tree_with_layer();

	file(t, "d/inside");
	assert_int_equal(tree_link(t, "d", "d/inside", NULL), -ENOENT);
	sym(t, "s", "nowhere");
	assert_int_equal(tree_link(t, "s2", "s", NULL), 0); /* the symlink itself gets a name */
	assert_int_equal(at(t, "s")->nlink, 2);
	assert_true(S_ISLNK(at(t, "s2")->mode));
	tree_free(t);
}

static void whiteouts_hide_lower_layers_only(void **state)
{
	struct tree *t = tree_with_layer();

	file(t, "d/old");
	file(t, "d/sub/old");
	file(t, "gone/deep/x");
	file(t, "f");
	tree_begin_layer(t);
	file(t, "d/sub/new");
	assert_int_equal(tree_whiteout(t, "d", NULL), 0);
	assert_int_equal(tree_whiteout(t, "gone", NULL), 0);
	file(t, "f");
	assert_int_equal(tree_whiteout(t, "f", NULL), 0);
	assert_int_equal(tree_whiteout(t, "never/was", NULL), 0);
	assert_int_equal(tree_whiteout(t, "f/below/a/file", NULL), 0);
	assert_paths(t, "d d/sub d/sub/new f");
	tree_begin_layer(t);
	assert_int_equal(tree_whiteout(t, "f", NULL), 0);
	assert_paths(t, "d d/sub d/sub/new");
	tree_free(t);
}

static void whiteouts_follow_parents_but_not_the_name(void **state)
{
	struct tree *t = tree_with_layer();

	file(t, "usr/lib/a");
	sym(t, "lib", "usr/lib");
	sym(t, "link", "usr");
	tree_begin_layer(t);
	assert_int_equal(tree_whiteout(t, "lib/a", NULL), 0);
	assert_int_equal(tree_whiteout(t, "link", NULL), 0);
	assert_paths(t, "lib usr usr/lib");
	tree_free(t);
}

static void opaque_works_in_any_position(void **state)
{
	for (int when = 0; when < 3; when++) {
		struct tree *t = tree_with_layer();

		file(t, "d/old");
		file(t, "d/sub/old");
		file(t, "d/both");
		tree_begin_layer(t);
		if (when == 0)
			assert_int_equal(tree_opaque(t, "d", NULL), 0);
		file(t, "d/sub/new");
		if (when == 1)
			assert_int_equal(tree_opaque(t, "d", NULL), 0);
		file(t, "d/both");
		if (when == 2)
			assert_int_equal(tree_opaque(t, "d", NULL), 0);
		assert_int_equal(tree_opaque(t, "not/there", NULL), 0);
		assert_int_equal(tree_opaque(t, "d/both", NULL), 0);
		assert_paths(t, "d d/both d/sub d/sub/new");
		tree_begin_layer(t);
		assert_int_equal(tree_opaque(t, "", NULL), 0);
		assert_paths(t, "");
		assert_int_equal(tree_inode_count(t), 1);
		tree_free(t);
	}
}

static void names_have_a_limit(void **state)
{
	struct tree *t = tree_with_layer();
	struct tree_attr a = {.mode = S_IFREG};
	struct err e = ERR_INIT;

	tree_limit_entries(t, 3);
	file(t, "a/b/c");
	assert_int_equal(tree_put(t, "d", &a, &e), -E2BIG);
	assert_non_null(strstr(e.text, "3 names"));
	assert_int_equal(tree_whiteout(t, "a/b/c", NULL), 0); /* of this layer: stays */
	file(t, "a/b/c");				      /* replaced: no name more */
	tree_free(t);
}

/* Many names, replaced many times: memory and links stay right (ASan and the asserts look). */
static void a_big_tree_stays_whole(void **state)
{
	struct tree *t = tree_new();
	char path[64], other[64];
	uint32_t n = 0;

	for (int layer = 0; layer < 3; layer++) {
		tree_begin_layer(t);
		for (int i = 0; i < 20000; i++) {
			snprintf(path, sizeof(path), "d%d/e%d/%d", i % 7, i % 131, i);
			file(t, path);
			if (i % 5 == layer) {
				snprintf(other, sizeof(other), "links/%d/%d", i % 3, i);
				assert_int_equal(tree_link(t, other, path, NULL), 0);
			}
		}
		for (int i = layer; i < 131; i += 3) {
			snprintf(path, sizeof(path), "d%d/e%d", i % 7, i);
			assert_int_equal(tree_whiteout(t, path, NULL), 0);
		}
	}
	tree_sort(t);
	for (uint32_t i = 0; i < tree_inode_end(t); i++)
		n += tree_inode(t, i)->nlink != 0;
	assert_int_equal(n, tree_inode_count(t));
	tree_begin_layer(t);
	assert_int_equal(tree_opaque(t, "", NULL), 0);
	assert_int_equal(tree_inode_count(t), 1);
	tree_free(t);
	tree_free(NULL);
}

static void sizes_stay_small(void **state)
{
	/* A million entries in 300 MB: names and records have to fit beside these. */
	assert_true(sizeof(struct tree_inode) <= 72);
	assert_true(sizeof(struct tree_node) <= 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(paths_are_put_in_normal_form),
		cmocka_unit_test(parents_are_implied),
		cmocka_unit_test(names_are_sorted_by_bytes),
		cmocka_unit_test(the_root_keeps_its_type),
		cmocka_unit_test(the_last_entry_wins),
		cmocka_unit_test(symlinks_are_followed_inside_the_tree),
		cmocka_unit_test(symlink_loops_end),
		cmocka_unit_test(long_symlink_walks_are_refused),
		cmocka_unit_test(depth_is_bounded_also_through_symlinks),
		cmocka_unit_test(hard_links_share_an_inode),
		cmocka_unit_test(a_link_into_what_it_replaces_fails),
		cmocka_unit_test(whiteouts_hide_lower_layers_only),
		cmocka_unit_test(whiteouts_follow_parents_but_not_the_name),
		cmocka_unit_test(opaque_works_in_any_position),
		cmocka_unit_test(names_have_a_limit),
		cmocka_unit_test(a_big_tree_stays_whole),
		cmocka_unit_test(sizes_stay_small),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
