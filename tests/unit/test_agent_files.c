/* agent: files written and read by the real program, over a socketpair. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent_client.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"

static struct client agent;
static char scratch[64];

static void write_file(
	struct call *k, const char *path, uint32_t mode, bool parents, const void *data, size_t len)
{
	json_object *head = json_object_new_object();

	json_add_str(head, "path", path);
	json_add_u64(head, "mode", mode);
	json_add_bool(head, "parents", parents);
	call_begin(k, &agent, "/fs/write", head);
	call_data(k, data, len);
	call_complete(k);
	call_wait(k);
}

static void read_file(struct call *k, const char *path)
{
	json_object *head = json_object_new_object();

	json_add_str(head, "path", path);
	call_begin(k, &agent, "/fs/read", head);
	call_complete(k);
	call_wait(k);
}

static void write_fails(const char *path, bool parents, const char *code, const char *text)
{
	struct call k;

	write_file(&k, path, 0644, parents, "data", 4);
	assert_string_equal(end_error(&k), code);
	if (!strstr(end_error_text(&k), text))
		fail_msg("\"%s\" is not in \"%s\"", text, end_error_text(&k));
	call_done(&k);
}

static void read_fails(const char *path, const char *code)
{
	struct call k;

	read_file(&k, path);
	assert_null(k.head);
	assert_string_equal(end_error(&k), code);
	assert_true(strlen(end_error_text(&k)) > 0);
	call_done(&k);
}

static int make_scratch(void **state)
{
	snprintf(scratch, sizeof(scratch), "/tmp/sandbox-agent-XXXXXX");
	if (!mkdtemp(scratch))
		return -1;
	client_start(&agent, NULL);
	return 0;
}

static int drop_scratch(void **state)
{
	path_remove_at(AT_FDCWD, scratch);
	assert_int_equal(agent.calls, 0);
	assert_int_equal(client_stop(&agent), 0);
	return 0;
}

static size_t names_in_scratch(void)
{
	struct call k;
	cleanup_free char *script = xasprintf("ls -A %s | wc -l", scratch);
	uint32_t n = 0;

	call_shell(&k, &agent, script);
	assert_true(k.out.len > 1);
	k.out.data[k.out.len - 1] = '\0';
	assert_int_equal(str_u32((char *)k.out.data, &n), 0);
	call_done(&k);
	return n;
}

static void wait_for_names(size_t n)
{
	for (int i = 0; names_in_scratch() != n; i++) {
		if (i == GUARD_MS / 10)
			fail_msg("the folder never had %zu names", n);
		client_run_for(&agent, 10);
	}
}

static void files_are_written_and_read_back(void **state)
{
	static const size_t sizes[] = {0, 1, 4096, 65531, 65536, 5 << 20};
	cleanup_free char *path = path_join(scratch, "f");
	struct call k;
	struct stat st;

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		cleanup_free uint8_t *data = xmalloc(sizes[i] + 1);

		for (size_t j = 0; j < sizes[i]; j++)
			data[j] = (uint8_t)(j * 2654435761u >> 11);
		write_file(&k, path, 04751, false, data, sizes[i]);
		assert_int_equal(end_int(&k, "bytes_written"), sizes[i]);
		call_done(&k);
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_mode & 07777, 04751);
		read_file(&k, path);
		assert_non_null(k.head);
		uint64_t size = 0, mode = 0;
		int64_t mtime = 0;
		json_get_u64(k.head, "size", JSON_REQUIRED, &size, NULL);
		json_get_u64(k.head, "mode", JSON_REQUIRED, &mode, NULL);
		json_get_i64(k.head, "mtime", JSON_REQUIRED, &mtime, NULL);
		assert_int_equal(size, sizes[i]);
		assert_int_equal(mode, 04751);
		assert_int_equal(mtime, st.st_mtime);
		assert_int_equal(k.data.len, sizes[i]);
		if (sizes[i])
			assert_memory_equal(k.data.data, data, sizes[i]);
		assert_string_equal(end_error(&k), "");
		call_done(&k);
	}
	assert_int_equal(names_in_scratch(), 1);
}

static void write_replaces_links_and_makes_parents(void **state)
{
	cleanup_free char *target = path_join(scratch, "target"), *link = path_join(scratch, "ln");
	cleanup_free char *deep = path_join(scratch, "a/b/c.txt"), *a = path_join(scratch, "a");
	cleanup_free char *text = NULL;
	struct stat st;
	struct call k;

	write_file(&k, target, 0644, false, "old", 3);
	call_done(&k);
	assert_int_equal(symlink(target, link), 0);
	write_file(&k, link, 0600, false, "new", 3);
	assert_int_equal(end_int(&k, "bytes_written"), 3);
	call_done(&k);
	assert_int_equal(lstat(link, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	assert_int_equal(fd_slurp_at(AT_FDCWD, target, 10, &text, NULL), 0);
	assert_string_equal(text, "old");
	write_fails(deep, false, "S211", "parent not found");
	write_file(&k, deep, 0644, true, "z", 1);
	assert_int_equal(end_int(&k, "bytes_written"), 1);
	call_done(&k);
	assert_int_equal(stat(a, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
}

static void write_refuses_what_it_must(void **state)
{
	cleanup_free char *fifo = path_join(scratch, "fifo"), *dir = path_join(scratch, "dir");
	cleanup_free char *file = path_join(scratch, "file");
	cleanup_free char *slash = xasprintf("%s/none/", scratch), *dslash = xasprintf("%s/", dir);
	cleanup_free char *below = xasprintf("%s/x", file), *dots = xasprintf("%s/..", dir);
	cleanup_free char *lost = path_join(scratch, "lost"), *in_lost = path_join(lost, "x/y");
	char *longest = xasprintf("%s/%0255d", scratch, 1);
	char *too_long = xasprintf("%s/%0256d", scratch, 1);
	size_t before;
	struct call k;

	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(mkdir(dir, 0755), 0);
	write_file(&k, file, 0644, false, "keep", 4);
	call_done(&k);
	before = names_in_scratch();
	write_fails(fifo, false, "S212", fifo);
	write_fails(dir, false, "S212", dir);
	write_fails(dslash, false, "S212", dir);
	write_fails(dots, false, "S212", dir);
	write_fails("/", false, "S212", "/");
	write_fails("/dev/null", false, "S212", "/dev/null");
	write_fails(slash, true, "S210", slash);
	write_fails("relative", false, "S210", "path");
	write_fails("", false, "S210", "path");
	write_fails(below, false, "S212", file);
	write_fails(below, true, "S212", file);
	write_fails(too_long, false, "S210", "too long");
	/* S211 is said only where making folders would help. */
	assert_int_equal(symlink("nowhere", lost), 0);
	write_fails(in_lost, false, "S212", "a link to nothing");
	write_fails(in_lost, true, "S212", "a link to nothing");
	if (access("/proc/sys", F_OK) == 0) {
		write_fails("/proc/no-such-file-here", false, "S215", "/proc");
		write_fails("/proc/no/such", false, "S215", "/proc");
		write_fails("/proc/no/such", true, "S215", "/proc");
	}
	assert_int_equal(unlink(lost), 0);
	assert_int_equal(names_in_scratch(), before);
	write_file(&k, longest, 0644, false, "x", 1);
	assert_int_equal(end_int(&k, "bytes_written"), 1);
	call_done(&k);
	free(longest);
	free(too_long);
}

static void interrupted_writes_leave_the_old_file(void **state)
{
	cleanup_free char *path = path_join(scratch, "f"), *text = NULL;
	cleanup_free uint8_t *big = xcalloc(1, 300000);
	json_object *head = json_object_new_object();
	struct call k;

	write_file(&k, path, 0644, false, "old", 3);
	call_done(&k);
	json_add_str(head, "path", path);
	call_begin(&k, &agent, "/fs/write", head);
	call_data(&k, big, 300000);
	wait_for_names(2);
	call_reset(&k);
	call_wait(&k);
	call_done(&k);
	wait_for_names(1);
	/* Cut in the middle of a record: refused, not published. */
	head = json_object_new_object();
	json_add_str(head, "path", path);
	call_begin(&k, &agent, "/fs/write", head);
	buf_add(&k.request,
		"\x02\x00\x00\x00\x0a"
		"12345",
		10);
	call_complete(&k);
	call_wait(&k);
	assert_true(strlen(end_error_text(&k)) > 0);
	call_done(&k);
	assert_int_equal(names_in_scratch(), 1);
	assert_int_equal(fd_slurp_at(AT_FDCWD, path, 10, &text, NULL), 0);
	assert_string_equal(text, "old");
}

static void a_full_disk_is_reported_and_cleaned_up(void **state)
{
	cleanup_free uint8_t *big = xcalloc(1, 1 << 20);
	cleanup_free char *mount_it = xasprintf("mount -t tmpfs -o size=256k none %s", scratch);
	cleanup_free char *unmount = xasprintf("umount %s", scratch);
	cleanup_free char *path = path_join(scratch, "big");
	struct call k;

	call_shell(&k, &agent, mount_it);
	bool mounted = end_int(&k, "exit_code") == 0;
	call_done(&k);
	if (!mounted) {
		print_message("skipped: no right to mount a tmpfs here\n");
		skip();
	}
	write_file(&k, path, 0644, false, big, 1 << 20);
	cleanup_free char *code = xstrdup(end_error(&k));
	cleanup_free char *text = xstrdup(end_error_text(&k));
	call_done(&k);
	size_t left = names_in_scratch();
	call_shell(&k, &agent, unmount);
	call_done(&k);
	assert_string_equal(code, "S216");
	assert_non_null(strstr(text, "No space left"));
	assert_int_equal(left, 0);
}

static void concurrent_writers_never_mix(void **state)
{
	enum { N = 64, LEN = 200000 };
	cleanup_free char *path = path_join(scratch, "f"), *text = NULL;
	struct call *k = xcalloc(N, sizeof(*k));
	cleanup_free uint8_t *data = xmalloc(LEN);
	size_t len;

	for (size_t i = 0; i < N; i++) {
		json_object *head = json_object_new_object();

		memset(data, 'A' + (int)i % 26, LEN);
		json_add_str(head, "path", path);
		call_begin(&k[i], &agent, "/fs/write", head);
		call_data(&k[i], data, LEN);
		call_complete(&k[i]);
	}
	for (size_t i = 0; i < N; i++) {
		call_wait(&k[i]);
		assert_int_equal(end_int(&k[i], "bytes_written"), LEN);
		call_done(&k[i]);
	}
	free(k);
	assert_int_equal(fd_slurp_at(AT_FDCWD, path, LEN, &text, &len), 0);
	assert_int_equal(len, LEN);
	for (size_t i = 1; i < LEN; i++)
		assert_int_equal(text[i], text[0]);
	assert_int_equal(names_in_scratch(), 1);
}

static void read_refuses_what_is_no_file(void **state)
{
	cleanup_free char *fifo = path_join(scratch, "fifo"), *dangling = path_join(scratch, "ln");
	cleanup_free char *self = path_join(scratch, "self");

	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(symlink("/no/such", dangling), 0);
	assert_int_equal(symlink("self", self), 0);
	read_fails(scratch, "S212");
	read_fails(fifo, "S212");
	read_fails("/dev/zero", "S212");
	read_fails("/no/such", "S211");
	read_fails(dangling, "S211");
	read_fails(self, "S216");
	read_fails("relative", "S210");
	read_fails("/etc/passwd/", "S212");
}

static void read_follows_links_and_trusts_no_size(void **state)
{
	cleanup_free char *link = path_join(scratch, "ln"), *f = path_join(scratch, "f");
	struct call k;
	uint64_t size = 1;

	write_file(&k, f, 0640, false, "text", 4);
	call_done(&k);
	assert_int_equal(symlink("f", link), 0);
	read_file(&k, link);
	assert_string_equal(call_text(&k.data), "text");
	call_done(&k);
	read_file(&k, "/proc/version");
	assert_int_equal(json_get_u64(k.head, "size", JSON_REQUIRED, &size, NULL), 1);
	assert_int_equal(size, 0);
	assert_true(k.data.len > 10);
	call_done(&k);
}

static void unread_files_hold_nobody_up(void **state)
{
	enum { N = 20 };
	cleanup_free char *path = path_join(scratch, "big");
	cleanup_free uint8_t *big = xcalloc(1, 5 << 20);
	struct call k[N], other;
	json_object *head;

	write_file(&other, path, 0644, false, big, 5 << 20);
	call_done(&other);
	for (size_t i = 0; i < N; i++) {
		head = json_object_new_object();
		json_add_str(head, "path", path);
		call_begin(&k[i], &agent, "/fs/read", head);
		call_complete(&k[i]);
		call_pause(&k[i], true);
	}
	client_run_for(&agent, 200);
	call_shell(&other, &agent, "echo ok");
	assert_out(&other, "ok\n");
	call_done(&other);
	for (size_t i = 0; i < N; i++) {
		call_reset(&k[i]);
		call_wait(&k[i]);
		call_done(&k[i]);
	}
}

#define F(f) cmocka_unit_test_setup_teardown(f, make_scratch, drop_scratch)

int main(void)
{
	const struct CMUnitTest tests[] = {
		F(files_are_written_and_read_back),
		F(write_replaces_links_and_makes_parents),
		F(write_refuses_what_it_must),
		F(interrupted_writes_leave_the_old_file),
		F(a_full_disk_is_reported_and_cleaned_up),
		F(concurrent_writers_never_mix),
		F(read_refuses_what_is_no_file),
		F(read_follows_links_and_trusts_no_size),
		F(unread_files_hold_nobody_up),
	};

	return cmocka_run_group_tests_name("agent_files", tests, NULL, NULL);
}
