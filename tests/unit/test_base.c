/* base: errors, text, buffers, numbers, descriptors, folders. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "base/utf8.h"

static void err_carries_code_and_context(void **state)
{
	struct err e = ERR_INIT;

	assert_int_equal(err_set(&e, "S102", ENOSPC, "layer %d: no room", 3), -ENOSPC);
	err_wrap(&e, "image %s", "python");
	assert_string_equal(e.text, "image python: layer 3: no room");
	assert_string_equal(e.code, "S102");
	err_code(&e, "S300");
	assert_string_equal(e.code, "S102");
	assert_int_equal(err_set(NULL, "", 0, "nobody listens"), -EIO);
}

static void err_cuts_long_text_at_a_character(void **state)
{
	struct err e = ERR_INIT;
	char text[ERR_TEXT_MAX * 2];

	for (size_t i = 0; i + 2 < sizeof(text); i += 2)
		memcpy(text + i, "\xc3\xa9", 3);
	err_set(&e, "", EIO, "x%s", text);
	assert_true(utf8_valid(e.text, strlen(e.text)));
	assert_true(str_ends(e.text, "\xe2\x80\xa6"));
	err_wrap(&e, "%s", text);
	assert_true(utf8_valid(e.text, strlen(e.text)));
	assert_true(strlen(e.text) < ERR_TEXT_MAX);
}

static void utf8_follows_rfc3629(void **state)
{
	static const char *const good[] = {"", "abc", "\xc2\x80", "\xed\x9f\xbf", "\xee\x80\x80",
		"\xf4\x8f\xbf\xbf", "\xf0\x90\x80\x80"};
	static const char *const bad[] = {"\x80", "\xc1\x81", "\xed\xa0\x80", "\xf4\x90\x80\x80",
		"\xf0\x8f\xbf\xbf", "\xe2\x82", "\xff", "abcdefgh\xc3"};

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		assert_true(utf8_valid(good[i], strlen(good[i])));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(utf8_valid(bad[i], strlen(bad[i])));
}

static void utf8_repairs_maximal_pieces(void **state)
{
	static const struct {
		const char *in, *out;
	} rows[] = {
		{"a\xff"
		 "b",
			"a\xef\xbf\xbd"
			"b"},
		{"\xe2\x82", "\xef\xbf\xbd"},
		{"\xf0\x9f\x98", "\xef\xbf\xbd"},
		{"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xe2\x82\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},
		{"plain", "plain"},
	};
	char scrubbed[] = "a\xe2\x82z\xff";
	size_t len;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		cleanup_free char *text = utf8_lossy(rows[i].in, strlen(rows[i].in), &len);

		assert_string_equal(text, rows[i].out);
		assert_int_equal(len, strlen(rows[i].out));
	}
	utf8_scrub(scrubbed);
	assert_string_equal(scrubbed, "a??z?");
	assert_int_equal(utf8_cut("a\xc3\xa9", 2), 1);
	assert_int_equal(utf8_cut("a\xc3\xa9", 3), 3);
}

static void buf_stops_at_its_ceiling(void **state)
{
	cleanup_buf struct buf b;

	buf_init(&b, 10);
	assert_int_equal(buf_add_str(&b, "12345"), 0);
	assert_int_equal(buf_printf(&b, "%d", 67890), 0);
	assert_int_equal(buf_add_str(&b, "x"), -ENOBUFS);
	assert_string_equal((char *)b.data, "1234567890");
	buf_drop(&b, 4);
	assert_string_equal((char *)b.data, "567890");
	assert_int_equal(buf_add(&b, NULL, 0), 0);
	assert_null(buf_room(&b, 5));
	assert_non_null(buf_room(&b, 4));
	cleanup_free char *text = buf_steal(&b);
	assert_string_equal(text, "567890");
	assert_int_equal(b.len, 0);
	cleanup_free char *empty = buf_steal(&b);
	assert_string_equal(empty, "");
}

static void numbers_are_read_strictly(void **state)
{
	uint64_t v = 7;
	uint32_t w = 7;

	assert_int_equal(str_u64("18446744073709551615", &v), 0);
	assert_true(v == UINT64_MAX);
	assert_int_equal(str_u64("18446744073709551616", &v), -ERANGE);
	assert_int_equal(str_u64("", &v), -EINVAL);
	assert_int_equal(str_u64("-1", &v), -EINVAL);
	assert_int_equal(str_u64("1 ", &v), -EINVAL);
	assert_int_equal(str_u32("4294967296", &w), -ERANGE);
	assert_int_equal(w, 7);
	assert_int_equal(str_octal("0644", 07777, &w), 0);
	assert_int_equal(w, 0644);
	assert_int_equal(str_octal("10000", 07777, &w), -EINVAL);
	assert_int_equal(str_octal("8", 07777, &w), -EINVAL);
	assert_int_equal(str_size("10g", &v), 0);
	assert_true(v == 10ull << 30);
	assert_int_equal(str_size("99999999999T", &v), -ERANGE);
	assert_int_equal(str_size("K", &v), -EINVAL);
	assert_int_equal(str_size("", &v), -EINVAL);
}

static void names_and_sizes_print(void **state)
{
	char size[16], id[37], hex[9];

	assert_string_equal(str_human_size(999, size), "999 B");
	assert_string_equal(str_human_size(1024, size), "1.0 KiB");
	assert_string_equal(str_human_size(550ull << 20, size), "550 MiB");
	str_uuid4(id);
	assert_int_equal(strlen(id), 36);
	assert_int_equal(id[14], '4');
	assert_non_null(strchr("89ab", id[19]));
	str_hex(hex, "\x00\xff\x10\xab", 4);
	assert_string_equal(hex, "00ff10ab");
}

static void strv_grows_and_answers(void **state)
{
	char **v = NULL;

	for (int i = 0; i < 100; i++) {
		cleanup_free char *s = xasprintf("N%d=%d", i, i);

		strv_add(&v, s);
	}
	strv_add(&v, "N7=last");
	assert_int_equal(strv_len(v), 101);
	assert_string_equal(strv_env_get(v, "N7"), "last");
	assert_string_equal(strv_env_get(v, "N70"), "70");
	assert_null(strv_env_get(v, "N"));
	char **w = strv_dup(v);
	assert_int_equal(strv_len(w), 101);
	strv_free(v);
	strv_free(w);
	strv_free(NULL);
}

static int temp_dir(char *path)
{
	snprintf(path, 64, "/tmp/sandbox-base-XXXXXX");
	assert_non_null(mkdtemp(path));
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static void files_are_published_whole(void **state)
{
	char dir[64], *text;
	cleanup_fd int fd = temp_dir(dir);
	size_t len;

	assert_int_equal(fd_publish_at(fd, "f", "one", 3, 0600), 0);
	assert_int_equal(fd_publish_at(fd, "f", "second", 6, 0600), 0);
	assert_int_equal(fd_slurp_at(fd, "f", 6, &text, &len), 0);
	assert_string_equal(text, "second");
	assert_int_equal(len, 6);
	free(text);
	assert_int_equal(fd_slurp_at(fd, "f", 5, &text, &len), -EFBIG);
	assert_int_equal(fd_slurp_at(fd, "none", 5, &text, &len), -ENOENT);
	assert_int_equal(path_remove_at(AT_FDCWD, dir), 0);
	assert_int_equal(access(dir, F_OK), -1);
}

static void copies_keep_holes(void **state)
{
	char dir[64], got[5];
	cleanup_fd int d = temp_dir(dir);
	cleanup_fd int a = openat(d, "a", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cleanup_fd int b = openat(d, "b", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct stat st;

	assert_int_equal(ftruncate(a, 64 << 20), 0);
	assert_int_equal(fd_pwrite_all(a, "hello", 5, 32 << 20), 0);
	assert_int_equal(fd_copy_sparse(a, b), 0);
	assert_int_equal(fstat(b, &st), 0);
	assert_int_equal(st.st_size, 64 << 20);
	assert_true(st.st_blocks * 512 < 4 << 20);
	assert_int_equal(fd_pread_full(b, got, 5, 32 << 20), 5);
	assert_memory_equal(got, "hello", 5);
	path_remove_at(AT_FDCWD, dir);
}

static void sealed_files_cannot_change(void **state)
{
	cleanup_fd int fd = fd_sealed("t", "data", 4);
	char got[4];

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fd_pread_full(fd, got, 4, 0), 4);
	assert_memory_equal(got, "data", 4);
}

static void removal_does_not_follow_links(void **state)
{
	char dir[64], keep[64];
	cleanup_fd int d = temp_dir(dir);
	cleanup_fd int k = temp_dir(keep);

	assert_int_equal(fd_publish_at(k, "canary", "x", 1, 0600), 0);
	assert_int_equal(symlinkat(keep, d, "link"), 0);
	assert_int_equal(mkdirat(d, "sub", 0700), 0);
	assert_int_equal(path_remove_at(AT_FDCWD, dir), 0);
	assert_int_equal(faccessat(k, "canary", F_OK, 0), 0);
	path_remove_at(AT_FDCWD, keep);
}

static void folders_come_from_the_environment(void **state)
{
	char dir[64];
	cleanup_fd int d = temp_dir(dir);
	struct err e = ERR_INIT;

	setenv("III_SANDBOX_CACHE_DIR", dir, 1);
	cleanup_free char *a = path_cache_dir("images", &e);
	cleanup_free char *want = path_join(dir, "images");
	assert_string_equal(a, want);
	setenv("III_SANDBOX_CACHE_DIR", "relative", 1);
	assert_null(path_cache_dir(NULL, &e));
	assert_non_null(strstr(e.text, "III_SANDBOX_CACHE_DIR"));
	unsetenv("III_SANDBOX_CACHE_DIR");
	setenv("XDG_CACHE_HOME", dir, 1);
	cleanup_free char *b = path_cache_dir(NULL, &e);
	assert_true(str_ends(b, "/sandbox-libkrun"));
	unsetenv("XDG_CACHE_HOME");
	path_remove_at(AT_FDCWD, dir);
	cleanup_free char *root = path_join("/", "/x");
	assert_string_equal(root, "/x");
}

static void log_quotes_cannot_forge_lines(void **state)
{
	assert_string_equal(log_quote("a\"b\\\nc"), "\"a\\\"b\\\\\\x0ac\"");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(err_carries_code_and_context),
		cmocka_unit_test(err_cuts_long_text_at_a_character),
		cmocka_unit_test(utf8_follows_rfc3629),
		cmocka_unit_test(utf8_repairs_maximal_pieces),
		cmocka_unit_test(buf_stops_at_its_ceiling),
		cmocka_unit_test(numbers_are_read_strictly),
		cmocka_unit_test(names_and_sizes_print),
		cmocka_unit_test(strv_grows_and_answers),
		cmocka_unit_test(files_are_published_whole),
		cmocka_unit_test(copies_keep_holes),
		cmocka_unit_test(sealed_files_cannot_change),
		cmocka_unit_test(removal_does_not_follow_links),
		cmocka_unit_test(folders_come_from_the_environment),
		cmocka_unit_test(log_quotes_cannot_forge_lines),
	};

	return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
