/* host/worker/logs: cases W100-W112 of the worker VM specification, as far as they are the log's,
 * and its promises about memory, descriptors and a disk that is full. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "base/utf8.h"
#include "host/worker/logs.h"
#include "wire/json.h"

#define NOW 1790000000123

static char root[] = "/var/tmp/test_logs.XXXXXX";

struct fixture {
	int dir; /* of the VM */
	struct logs *l;
};

/* A fresh VM's folder with an open log. */
static int setup(void **state)
{
	static struct fixture f;
	struct err e = ERR_INIT;

	snprintf(root, sizeof(root), "/var/tmp/test_logs.XXXXXX");
	if (!mkdtemp(root))
		return -1;
	f.dir = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (logs_create(f.dir, 1, &f.l, &e) < 0)
		return -1;
	*state = &f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	logs_free(f->l);
	fd_close(&f->dir);
	return path_remove_at(AT_FDCWD, root);
}

/* The log of another boot. */
static void recreate(struct fixture *f, uint64_t instance)
{
	struct err e = ERR_INIT;

	logs_free(f->l);
	f->l = NULL;
	if (logs_create(f->dir, instance, &f->l, &e) < 0)
		fail_msg("%s", e.text);
}

/* As after a restart of the daemon. */
static void reopen(struct fixture *f, uint64_t instance)
{
	struct err e = ERR_INIT;

	logs_free(f->l);
	f->l = NULL;
	if (logs_open(f->dir, instance, &f->l, &e) < 0)
		fail_msg("%s", e.text);
}

static void add(struct fixture *f, const char *text)
{
	logs_add(f->l, LOG_CONSOLE, text, strlen(text), NOW);
}

/* --- one record, taken apart --- */

struct rec {
	uint64_t cursor, ts_ms, instance;
	char stream[8];
	char *line; /* owned */
	size_t len;
	bool partial;
};

static void parse(const char *text, size_t len, struct rec *ret)
{
	cleanup_json json_object *o = NULL;
	struct err e = ERR_INIT;
	const char *stream = "";
	json_object *line;
	struct rec r = {0};

	if (json_parse_object(text, len, &o, &e) < 0)
		fail_msg("%s in %.*s", e.text, (int)MIN(len, (size_t)200), text);
	assert_int_equal(json_get_u64(o, "cursor", JSON_REQUIRED, &r.cursor, &e), 1);
	assert_int_equal(json_get_u64(o, "ts_ms", JSON_REQUIRED, &r.ts_ms, &e), 1);
	assert_int_equal(json_get_u64(o, "instance", JSON_REQUIRED, &r.instance, &e), 1);
	assert_int_equal(json_get_str(o, "stream", JSON_REQUIRED, &stream, &e), 1);
	assert_true(json_get_bool(o, "partial", JSON_OPTIONAL, &r.partial, &e) >= 0);
	assert_true(json_object_object_get_ex(o, "line", &line));
	snprintf(r.stream, sizeof(r.stream), "%s", stream);
	r.len = (size_t)json_object_get_string_len(line);
	r.line = xmalloc(r.len + 1);
	memcpy(r.line, json_object_get_string(line), r.len + 1);
	*ret = r;
}

/* The next record; false at the end or when there is none now. */
static bool next(struct logs_reader *r, struct rec *ret)
{
	const char *text;
	size_t len;
	int rc;

	free(ret->line);
	*ret = (struct rec){0};
	rc = logs_reader_next(r, &text, &len);
	assert_true(rc == 1 || rc == 0 || rc == -ENODATA);
	if (rc == 1)
		parse(text, len, ret);
	return rc == 1;
}

static void check_next(struct logs_reader *r, const char *line)
{
	struct rec rec = {0};

	assert_true(next(r, &rec));
	assert_string_equal(rec.line, line);
	free(rec.line);
}

static void check_end(struct logs_reader *r, int want)
{
	const char *text;
	size_t len;

	assert_int_equal(logs_reader_next(r, &text, &len), want);
	assert_int_equal(logs_reader_next(r, &text, &len), want);
}

static struct logs_reader *read_from(struct fixture *f, uint64_t cursor)
{
	return logs_reader_new(f->l, cursor, false, NULL, NULL);
}

/* The first line read from a cursor, or "" for none; the caller frees it. */
static char *first_from(struct fixture *f, uint64_t cursor)
{
	struct logs_reader *r = read_from(f, cursor);
	struct rec rec = {0};

	next(r, &rec);
	logs_reader_free(r);
	return rec.line ? rec.line : xstrdup("");
}

static void check_first(struct fixture *f, uint64_t cursor, const char *want)
{
	cleanup_free char *line = first_from(f, cursor);

	assert_string_equal(line, want);
}

static size_t count_files(struct fixture *f, uint64_t *ret_bytes)
{
	int fd = openat(f->dir, "log", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fdopendir(fd);
	struct dirent *entry;
	struct stat st;
	size_t n = 0;

	*ret_bytes = 0;
	while ((entry = readdir(d))) {
		if (entry->d_name[0] == '.')
			continue;
		assert_int_equal(fstatat(fd, entry->d_name, &st, 0), 0);
		*ret_bytes += (uint64_t)st.st_size;
		n++;
	}
	closedir(d);
	return n;
}

static size_t count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	size_t n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* `mib` MiB of lines "line NNNNNNNN …" of 64 bytes, in pieces of 64 KiB. */
static uint64_t flood(struct fixture *f, size_t mib)
{
	static char chunk[64 << 10];
	static uint64_t n;
	uint64_t sent = 0;

	for (size_t i = 0; i < mib * 16; i++) {
		for (size_t at = 0; at < sizeof(chunk); at += 64) {
			memset(chunk + at, '.', 63);
			snprintf(chunk + at, 16, "line %09" PRIu64, n++);
			chunk[at + 14] = ' ';
			chunk[at + 63] = '\n';
		}
		logs_add(f->l, LOG_CONSOLE, chunk, sizeof(chunk), NOW);
		sent += sizeof(chunk);
	}
	return sent;
}

/* --- the cases --- */

static void test_read(void **state) /* W100, W101, W102 */
{
	struct fixture *f = *state;
	struct logs_reader *r;
	struct rec rec = {0};
	uint64_t cursors[3];

	add(f, "one\ntwo\r\nthr");
	add(f, "ee\n");
	r = read_from(f, 0);
	for (int i = 0; i < 3; i++) {
		assert_true(next(r, &rec));
		assert_string_equal(rec.stream, "console");
		assert_int_equal(rec.instance, 1);
		assert_true(rec.ts_ms == NOW);
		assert_false(rec.partial);
		cursors[i] = rec.cursor;
	}
	assert_false(next(r, &rec));
	check_end(r, -ENODATA);
	logs_reader_free(r);
	assert_int_equal(cursors[0], 4);
	assert_int_equal(cursors[1], 9);
	assert_int_equal(cursors[2], 15);
	/* The table of §6.3. */
	check_first(f, 0, "one");
	check_first(f, 1, "one");
	check_first(f, 4, "two");
	check_first(f, 5, "two");
	check_first(f, 9, "three");
	check_first(f, 14, "three");
	check_first(f, 15, "");
	check_first(f, 16, "one");
	check_first(f, UINT64_MAX, "one");
}

/* A reader that does not follow ends at what was there when it came. */
static void test_snapshot(void **state)
{
	struct fixture *f = *state;
	struct logs_reader *r, *none = read_from(f, 0);

	check_end(none, -ENODATA);
	add(f, "one\n");
	check_end(none, -ENODATA);
	r = read_from(f, 0);
	add(f, "two\n");
	check_next(r, "one");
	check_end(r, -ENODATA);
	logs_reader_free(r);
	logs_reader_free(none);
}

static void count_wake(void *user)
{
	++*(int *)user;
}

static void test_follow(void **state) /* W102, W106 */
{
	struct fixture *f = *state;
	struct logs_reader *r;
	struct rec rec = {0};
	int wakes = 0;

	r = logs_reader_new(f->l, 0, true, count_wake, &wakes);
	add(f, "early\n");
	assert_int_equal(wakes, 0); /* it never said that it waits */
	check_next(r, "early");
	check_end(r, 0);
	add(f, "not yet a li");
	assert_int_equal(wakes, 0);
	add(f, "ne\nand another\n");
	assert_int_equal(wakes, 1);
	add(f, "third\n");
	assert_int_equal(wakes, 1);
	check_next(r, "not yet a line");
	check_next(r, "and another");
	check_next(r, "third");
	check_end(r, 0);
	add(f, "last wor");
	logs_end(f->l, NOW);
	assert_int_equal(wakes, 2);
	assert_true(next(r, &rec));
	assert_string_equal(rec.line, "last wor");
	assert_true(rec.partial);
	free(rec.line);
	check_end(r, -ENODATA);
	logs_reader_free(r);
	/* On a boot that has ended, following is no waiting. */
	r = logs_reader_new(f->l, 0, true, count_wake, &wakes);
	check_next(r, "early");
	logs_retire(f->l);
	check_end(r, -ENODATA);
	logs_reader_free(r);
	recreate(f, 2);
	add(f, "of the next boot\n");
	check_first(f, 0, "of the next boot");
}

/* One that waits is told of the end, and of a restart. */
static void test_wake_at_end(void **state)
{
	struct fixture *f = *state;
	int wakes = 0;
	struct logs_reader *r = logs_reader_new(f->l, 0, true, count_wake, &wakes);

	check_end(r, 0);
	logs_retire(f->l);
	assert_int_equal(wakes, 1);
	check_end(r, -ENODATA);
	logs_reader_free(r);
	recreate(f, 2);
	r = logs_reader_new(f->l, 0, true, count_wake, &wakes);
	check_end(r, 0);
	logs_end(f->l, NOW);
	assert_int_equal(wakes, 2);
	check_end(r, -ENODATA);
	logs_reader_free(r);
}

static struct logs_reader *crowd[5];

/* The first that is woken ends all the others and itself. */
static void free_crowd(void *user)
{
	++*(int *)user;
	for (size_t i = 0; i < ARRAY_LEN(crowd); i++) {
		logs_reader_free(crowd[i]);
		crowd[i] = NULL;
	}
}

static void test_wake_frees(void **state)
{
	struct fixture *f = *state;
	int wakes = 0;

	for (size_t i = 0; i < ARRAY_LEN(crowd); i++) {
		crowd[i] = logs_reader_new(f->l, 0, true, free_crowd, &wakes);
		check_end(crowd[i], 0);
	}
	add(f, "x\n");
	assert_int_equal(wakes, 1);
}

static void test_tail(void **state) /* W109 */
{
	struct fixture *f = *state;
	struct logs_reader *r = logs_reader_new(f->l, 0, true, NULL, NULL);
	struct rec rec = {0};

	logs_add(f->l, LOG_CONSOLE, "50 %", 4, NOW);
	logs_tick(f->l, NOW + LOGS_TAIL_MS - 1);
	check_end(r, 0);
	logs_tick(f->l, NOW + LOGS_TAIL_MS);
	assert_true(next(r, &rec));
	assert_string_equal(rec.line, "50 %");
	assert_true(rec.partial && rec.ts_ms == NOW);
	logs_add(f->l, LOG_CONSOLE, "100 %\n", 6, NOW + 5000);
	assert_true(next(r, &rec));
	assert_string_equal(rec.line, "100 %");
	assert_true(!rec.partial && rec.cursor == 10);
	/* A clock that was set back holds nothing up. */
	logs_add(f->l, LOG_CONSOLE, "x", 1, NOW);
	logs_tick(f->l, NOW - 1000000);
	check_next(r, "x");
	free(rec.line);
	logs_reader_free(r);
}

static void test_hard_lines(void **state) /* W109 */
{
	static char big[1u << 20];
	struct fixture *f = *state;
	struct logs_reader *r;
	struct rec rec = {0};
	size_t got = 0, records = 0;

	memset(big, 'b', sizeof(big));
	logs_add(f->l, LOG_CONSOLE, big, sizeof(big), NOW);
	logs_add(f->l, LOG_CONSOLE, "\r\na\0b\xff\r\n\nend", 12, NOW);
	logs_end(f->l, NOW);
	r = read_from(f, 0);
	do {
		assert_true(next(r, &rec));
		got += rec.len;
		records++;
	} while (rec.partial);
	assert_int_equal(got, sizeof(big));
	assert_int_equal(records, sizeof(big) / LOGREC_RAW_MAX);
	assert_true(next(r, &rec));
	assert_int_equal(rec.len, 6);
	assert_memory_equal(rec.line, "a\0b\ufffd", 6);
	check_next(r, "");
	assert_true(next(r, &rec));
	assert_string_equal(rec.line, "end");
	assert_true(rec.partial);
	assert_int_equal(rec.cursor, sizeof(big) + 12);
	assert_false(next(r, &rec));
	logs_reader_free(r);
}

static void test_say(void **state)
{
	struct fixture *f = *state;
	struct logs_reader *r = read_from(f, 0);
	struct rec rec = {0};

	logs_reader_free(r);
	logs_add(f->l, LOG_CONSOLE, "guest ", 6, NOW);
	logs_add(f->l, LOG_HOST, "vmm: half", 9, NOW);
	logs_say(f->l, NOW, "pulling %s\nlayer %d", "alpine", 1);
	logs_add(f->l, LOG_CONSOLE, "line\n", 5, NOW);
	r = read_from(f, 0);
	for (int i = 0; i < 3; i++) {
		static const char *const want[] = {"vmm: half", "pulling alpine", "layer 1"};

		assert_true(next(r, &rec));
		assert_string_equal(rec.line, want[i]);
		assert_string_equal(rec.stream, "host");
		assert_false(rec.partial);
	}
	check_next(r, "guest line");
	free(rec.line);
	logs_reader_free(r);
}

static void test_rotation(void **state) /* W104, W105 */
{
	struct fixture *f = *state;
	uint64_t sent = flood(f, 40), bytes, last = 0, first = 0, n = 0;
	struct logs_reader *r;
	struct rec rec = {0}, other = {0};

	assert_int_equal(count_files(f, &bytes), LOGS_SEGMENTS_MAX);
	assert_true(bytes > (uint64_t)(LOGS_SEGMENTS_MAX - 1) * LOGS_SEGMENT_MAX);
	assert_true(bytes <= (uint64_t)LOGS_SEGMENTS_MAX * (LOGS_SEGMENT_MAX + LOGREC_JSON_MAX));
	r = read_from(f, 64); /* rotated away */
	while (next(r, &rec)) {
		if (!first)
			first = rec.cursor;
		/* No loss and no record twice over all segments. */
		assert_true(!last || rec.cursor == last + 64);
		last = rec.cursor;
		if (n++ % 5000 == 0) {
			struct logs_reader *from = read_from(f, rec.cursor - 64);

			assert_true(next(from, &other));
			assert_true(other.cursor == rec.cursor);
			logs_reader_free(from);
		}
	}
	assert_true(first > 64);
	assert_true(last == sent);
	assert_true(n > 100000);
	logs_reader_free(r);
	free(other.line);
}

static size_t resident_kib(void)
{
	cleanup_free char *text = NULL;
	size_t kib = 0;

	assert_int_equal(fd_slurp_at(AT_FDCWD, "/proc/self/status", 65536, &text, NULL), 0);
	assert_int_equal(sscanf(strstr(text, "VmRSS:"), "VmRSS: %zu", &kib), 1);
	return kib;
}

static void test_stalled(void **state) /* W108 */
{
	struct fixture *f = *state;
	struct logs_reader *stalled, *half;
	struct rec rec = {0};
	uint64_t at, oldest, bytes, sent;
	size_t before, fds;

	sent = flood(f, 1);
	stalled = logs_reader_new(f->l, 0, true, NULL, NULL);
	half = read_from(f, 0);
	assert_true(next(stalled, &rec));
	at = rec.cursor;
	assert_true(next(half, &rec));
	before = resident_kib();
	fds = count_fds();
	sent += flood(f, 100);
	assert_true(resident_kib() < before + (8u << 10));
	/* Their segment was removed: it is not kept alive by descriptors. */
	assert_int_equal(count_fds(), fds - 2);
	assert_int_equal(count_files(f, &bytes), LOGS_SEGMENTS_MAX);
	oldest = 0;
	while (next(stalled, &rec)) {
		assert_true(rec.cursor > at);
		if (!oldest && rec.cursor != at + 64)
			oldest = rec.cursor;
		at = rec.cursor;
	}
	assert_true(at == sent);
	assert_true(oldest > 64u << 20);
	/* What it may read is gone, up to what it had in its hand. */
	while (next(half, &rec))
		assert_true(rec.cursor <= 1u << 20);
	check_end(half, -ENODATA);
	logs_reader_free(stalled);
	logs_reader_free(half);
}

static void append(struct fixture *f, const char *name, const void *data, size_t len)
{
	cleanup_free char *path = path_join("log", name);
	cleanup_fd int fd = openat(f->dir, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, data, len), 0);
}

static void test_reopen(void **state) /* W71, W112 */
{
	static const char torn[] = "{\"cursor\":99,\"ts_ms\":1,\"stream\":\"console\",\"li";
	static const char zeros[5000];
	struct fixture *f = *state;
	struct logs_reader *r;
	int wakes = 0;

	add(f, "one\ntwo\nunfinished");
	reopen(f, 1);
	append(f, "00000000000000000000.jsonl", torn, sizeof(torn) - 1);
	reopen(f, 1);
	append(f, "00000000000000000000.jsonl", zeros, sizeof(zeros));
	reopen(f, 1);
	r = logs_reader_new(f->l, 0, true, count_wake, &wakes);
	check_next(r, "one");
	check_next(r, "two");
	check_end(r, -ENODATA); /* its boot is over */
	logs_reader_free(r);
	check_first(f, 4, "two");
	check_first(f, 8, "");
}

static void test_reopen_rotated(void **state)
{
	struct fixture *f = *state;
	uint64_t sent = flood(f, 20), bytes, last = 0, n = 0;
	struct logs_reader *r;
	struct rec rec = {0};
	char name[64];

	/* The newest is empty or torn from its first line on; strangers are left alone. */
	snprintf(name, sizeof(name), "%020" PRIu64 ".jsonl", sent);
	append(f, name, "{\"cur", 5);
	append(f, "notes.txt", "x", 1);
	append(f, "123.jsonl", "x", 1);
	reopen(f, 1);
	assert_int_equal(count_files(f, &bytes), LOGS_SEGMENTS_MAX + 1 + 2);
	r = read_from(f, 0);
	while (next(r, &rec)) {
		assert_true(!last || rec.cursor == last + 64);
		last = rec.cursor;
		n++;
	}
	assert_true(n > 0 && last == sent);
	logs_reader_free(r);
	recreate(f, 2);
	assert_int_equal(count_files(f, &bytes), 2);
}

/* A damaged line in the middle costs that line. */
static void test_damage(void **state)
{
	struct fixture *f = *state;
	struct logs_reader *r;

	add(f, "one\n");
	append(f, "00000000000000000000.jsonl", "\xff\xfe{}\n{\"cursor\":2,}\n\n", 19);
	append(f, "00000000000000000000.jsonl", "{\"cursor\":9,\"instance\":1}\n", 26);
	reopen(f, 1);
	r = read_from(f, 0);
	check_next(r, "one");
	const char *text;
	size_t len;
	assert_int_equal(logs_reader_next(r, &text, &len), 1);
	assert_int_equal(len, 25);
	check_end(r, -ENODATA);
	logs_reader_free(r);
}

/* A megabyte without a line end is passed over, not collected. */
static void test_damage_long(void **state)
{
	static char junk[1u << 20];
	struct fixture *f = *state;
	struct logs_reader *r;

	memset(junk, 'j', sizeof(junk));
	add(f, "one\n");
	append(f, "00000000000000000000.jsonl", junk, sizeof(junk));
	append(f, "00000000000000000000.jsonl", "\n{\"cursor\":9,\"instance\":1}\n", 27);
	reopen(f, 1);
	r = read_from(f, 4);
	const char *text;
	size_t len;
	assert_int_equal(logs_reader_next(r, &text, &len), 1);
	assert_int_equal(len, 25);
	check_end(r, -ENODATA);
	logs_reader_free(r);
}

static uint64_t log_bytes(struct fixture *f)
{
	uint64_t bytes;

	count_files(f, &bytes);
	return bytes;
}

/* Who opens it to read is not alone: another daemon may be writing it. */
static void test_open_changes_nothing(void **state)
{
	struct fixture *f = *state;
	struct logs *writer = f->l, *l = NULL;
	struct err e = ERR_INIT;
	uint64_t bytes;

	add(f, "of boot 1\n");
	append(f, "00000000000000000000.jsonl", "{\"cur", 5);
	bytes = log_bytes(f);
	assert_int_equal(logs_open(f->dir, 2, &f->l, &e), 0);
	check_first(f, 0, "");
	logs_free(f->l);
	assert_int_equal(logs_open(f->dir, 1, &f->l, &e), 0);
	check_first(f, 0, "of boot 1");
	logs_free(f->l);
	f->l = writer;
	assert_int_equal(log_bytes(f), bytes);
	/* Nor does it make a folder. */
	recreate(f, 3);
	assert_int_equal(unlinkat(f->dir, "log", AT_REMOVEDIR), 0);
	assert_int_equal(logs_open(f->dir, 3, &l, &e), 0);
	assert_int_equal(faccessat(f->dir, "log", F_OK, 0), -1);
	logs_free(l);
}

static void test_other_boot(void **state)
{
	struct fixture *f = *state;
	uint64_t bytes;

	add(f, "of boot 1\n");
	recreate(f, 2);
	assert_int_equal(count_files(f, &bytes), 0);
	check_first(f, 0, "");
}

/* Files taken away below a reader and the writer: no crash, and the log goes on. */
static void test_files_vanish(void **state)
{
	struct fixture *f = *state;
	struct logs_reader *r;

	add(f, "one\n");
	r = logs_reader_new(f->l, 0, true, NULL, NULL);
	logs_end(f->l, NOW); /* closes the segment */
	assert_int_equal(unlinkat(f->dir, "log/00000000000000000000.jsonl", 0), 0);
	check_end(r, -ENODATA);
	add(f, "two\n");
	check_next(r, "two");
	logs_reader_free(r);
}

static void test_not_a_folder(void **state)
{
	struct fixture *f = *state;
	struct logs *l = NULL;
	struct err e = ERR_INIT;

	assert_int_equal(renameat(f->dir, "log", f->dir, "moved"), 0);
	assert_int_equal(symlinkat("moved", f->dir, "log"), 0);
	assert_true(logs_open(f->dir, 1, &l, &e) < 0);
	assert_string_equal(e.code, "S504");
	assert_true(logs_create(f->dir, 1, &l, &e) < 0);
	assert_string_equal(e.code, "S504");
	assert_null(l);
}

/* --- a disk that is full: the largest file that this process may write --- */

static void allow_bytes(rlim_t bytes)
{
	struct rlimit lim;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &lim), 0);
	lim.rlim_cur = MIN(bytes, lim.rlim_max);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &lim), 0);
}

static void test_full(void **state)
{
	struct fixture *f = *state;
	struct logs_reader *r;
	struct rec rec = {0};
	uint64_t sent, last = 0, lost = 0, lost_bytes = 0, seen = 0, bytes;
	char want[32];

	signal(SIGXFSZ, SIG_IGN);
	allow_bytes(100001); /* in the middle of a record */
	sent = flood(f, 2);
	allow_bytes(RLIM_INFINITY);
	assert_int_equal(count_files(f, &bytes), 1);
	assert_true(bytes < 100001);
	/* Not tried again at once; then the loss is told, and all goes on. */
	add(f, "lost too\n");
	logs_add(f->l, LOG_CONSOLE, "back\n", 5, NOW + LOGS_RETRY_MS);
	r = read_from(f, 0);
	while (next(r, &rec) && str_eq(rec.stream, "console")) {
		assert_true(rec.cursor == last + 64);
		last = rec.cursor;
		seen++;
	}
	assert_string_equal(rec.stream, "host");
	assert_int_equal(sscanf(rec.line, "%" SCNu64 " log records (%" SCNu64 " bytes) were lost",
				 &lost, &lost_bytes),
		2);
	assert_true(seen > 100);
	assert_true(seen + lost == sent / 64 + 1);
	assert_true(last + lost_bytes == sent + 9);
	assert_true(rec.cursor == last + lost_bytes + rec.len + 1);
	last = rec.cursor;
	assert_true(next(r, &rec));
	assert_string_equal(rec.line, "back");
	assert_true(rec.cursor == last + 5);
	free(rec.line);
	logs_reader_free(r);
	/* And after a restart of the daemon. */
	reopen(f, 1);
	snprintf(want, sizeof(want), "%s", "back");
	check_first(f, last, want);
}

/* No room from the start, for an hour, until the end: told once, at the end. */
static void test_full_to_the_end(void **state)
{
	struct fixture *f = *state;
	struct logs_reader *r;
	struct rec rec = {0};

	signal(SIGXFSZ, SIG_IGN);
	allow_bytes(0);
	for (int i = 0; i < 3600; i++) {
		logs_add(f->l, LOG_CONSOLE, "tick\n", 5, NOW + (uint64_t)i * 1000);
		logs_tick(f->l, NOW + (uint64_t)i * 1000);
	}
	allow_bytes(RLIM_INFINITY);
	logs_end(f->l, NOW);
	r = read_from(f, 0);
	assert_true(next(r, &rec));
	assert_true(str_starts(rec.line, "3600 log records (18000 bytes) were lost"));
	assert_true(rec.cursor == 18000 + rec.len + 1);
	assert_false(next(r, &rec));
	logs_reader_free(r);
}

/* A segment that cannot be made: the same. */
static void test_no_segment(void **state)
{
	struct fixture *f = *state;
	struct logs_reader *r;
	struct rec rec = {0};

	assert_int_equal(mkdirat(f->dir, "log/00000000000000000000.jsonl", 0700), 0);
	add(f, "lost\n");
	logs_tick(f->l, NOW + LOGS_RETRY_MS);
	add(f, "kept\n");
	r = read_from(f, 0);
	assert_true(next(r, &rec));
	assert_true(str_starts(rec.line, "1 log records (5 bytes) were lost"));
	check_next(r, "kept");
	free(rec.line);
	logs_reader_free(r);
}

static void test_descriptors(void **state)
{
	struct fixture *f = *state;
	size_t before = count_fds();

	for (int i = 0; i < 20; i++) {
		struct logs_reader *r = read_from(f, 0);
		struct rec rec = {0};

		add(f, "x\n");
		logs_end(f->l, NOW);
		while (next(r, &rec))
			;
		logs_reader_free(r);
		reopen(f, 1);
		recreate(f, 1);
	}
	assert_int_equal(count_fds(), before);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_read),
		TEST(test_snapshot),
		TEST(test_follow),
		TEST(test_wake_at_end),
		TEST(test_wake_frees),
		TEST(test_tail),
		TEST(test_hard_lines),
		TEST(test_say),
		TEST(test_rotation),
		TEST(test_stalled),
		TEST(test_reopen),
		TEST(test_reopen_rotated),
		TEST(test_damage),
		TEST(test_damage_long),
		TEST(test_open_changes_nothing),
		TEST(test_other_boot),
		TEST(test_files_vanish),
		TEST(test_not_a_folder),
		TEST(test_full),
		TEST(test_full_to_the_end),
		TEST(test_no_segment),
		TEST(test_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
