/* agent: the parts that only compute. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

#include "agent/cmdline.h"
#include "agent/control.h"
#include "agent/env.h"
#include "agent/exec_request.h"
#include "agent/fs_error.h"
#include "agent/fs_path.h"
#include "agent/lookup.h"
#include "agent/mounts.h"
#include "agent/poweroff.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"

/* --- cmdline --- */

static void cmdline_takes_our_words_only(void **state)
{
	static const struct {
		const char *text, *base, *upper;
	} rows[] = {
		{"console=hvc0 quiet iii.base=b1 iii.upper=u1\n", "b1", "u1"},
		{"iii.upper=65024010060430 iii.base=x", "x", "65024010060430"},
		{"iii.base=a iii.base=b iii.upper=c", "a", "c"},
		{"iii.base=a -- iii.upper=b", "a", ""},
		{"iii.base=a --x iii.upper=b", "a", "b"},
		{"xiii.base=a iii.basement=b iii.base.x=c", "", ""},
		{"foo=\"a iii.base=x -- \" iii.base=\"q\" iii.upper=r", "q", "r"},
		{"iii.base=01234567890123456789", "01234567890123456789", ""},
		{"", "", ""},
		{"   \t\n", "", ""},
		{"--", "", ""},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct err e = ERR_INIT;
		struct cmdline c;

		if (cmdline_parse(rows[i].text, strlen(rows[i].text), &c, &e) < 0)
			fail_msg("row %zu: %s", i, e.text);
		assert_string_equal(c.base, rows[i].base);
		assert_string_equal(c.upper, rows[i].upper);
	}
}

static void cmdline_refuses_serials_no_disk_can_have(void **state)
{
	static const char *const rows[] = {"iii.base=", "iii.upper=\"\"", "iii.base=\"a b\"",
		"iii.base=012345678901234567890", "iii.upper=\xc3\xa9"};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct err e = ERR_INIT;
		struct cmdline c = {"old", "old"};

		assert_int_equal(cmdline_parse(rows[i], strlen(rows[i]), &c, &e), -EINVAL);
		assert_non_null(strstr(e.text, "iii."));
		assert_string_equal(c.base, "old");
	}
}

/* --- environment --- */

static void merged(const char *const *base, const char *const *extra, const char *want)
{
	cleanup_free char **v = env_merge((char *const *)base, (char *const *)extra);
	cleanup_buf struct buf b;

	buf_init(&b, 4096);
	for (size_t i = 0; v[i]; i++)
		buf_printf(&b, "%s;", v[i]);
	assert_string_equal(b.data ? (char *)b.data : "", want);
}

static void env_later_entries_win(void **state)
{
	merged(NULL, NULL, "");
	merged((const char *[]){"A=1", "B=2", NULL}, NULL, "A=1;B=2;");
	merged((const char *[]){"A=1", "B=2", NULL}, (const char *[]){"A=3", NULL}, "B=2;A=3;");
	merged(NULL, (const char *[]){"A=1", "A=2", "A=", NULL}, "A=;");
	merged(NULL, (const char *[]){"novalue", "=x", "", "A=b=c", NULL}, "A=b=c;");
	/* A name that begins another, and names that sort around '='. */
	merged((const char *[]){"AB=1", "A=2", "A.=3", NULL}, (const char *[]){"A=4", NULL},
		"AB=1;A.=3;A=4;");
}

static void env_of_many_thousands_is_exact(void **state)
{
	enum { N = 20000 };
	char **base = xcalloc(N + 1, sizeof(*base)), **extra = xcalloc(N + 1, sizeof(*extra));
	cleanup_free char **v = NULL;

	for (int i = 0; i < N; i++) {
		base[i] = xasprintf("N%d=base", i);
		extra[i] = xasprintf("N%d=extra", i * 2);
	}
	v = env_merge(base, extra);
	assert_int_equal(strv_len(v), N + N / 2);
	assert_string_equal(strv_env_get(v, "N1"), "base");
	assert_string_equal(strv_env_get(v, "N10"), "extra");
	assert_string_equal(strv_env_get(v, "N39998"), "extra");
	strv_free(base);
	strv_free(extra);
}

static int frame(const char *json, struct env_frame *f, struct err *e)
{
	return env_frame_parse(json, strlen(json), f, e);
}

static void env_frame_is_read(void **state)
{
	struct env_frame f;
	struct err e = ERR_INIT;

	assert_int_equal(frame("{\"env\":[\"PATH=/x\",\"LANG=C\"],\"hostname\":\"box\","
			       "\"time_ns\":1700000000000000000,\"more\":[]}",
				 &f, &e),
		0);
	assert_string_equal(strv_env_get(f.env, "PATH"), "/x");
	assert_string_equal(strv_env_get(f.env, "HOME"), "/root");
	assert_string_equal(strv_env_get(f.env, "LANG"), "C");
	assert_int_equal(strv_len(f.env), 3);
	assert_string_equal(f.hostname, "box");
	assert_true(f.time_ns == 1700000000000000000ull);
	env_frame_done(&f);
	assert_int_equal(frame("{}", &f, &e), 0);
	assert_string_equal(f.hostname, "sandbox");
	assert_string_equal(strv_env_get(f.env, "PATH"),
		"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
	env_frame_done(&f);
	assert_true(frame("", &f, &e) < 0);
	assert_true(frame("{\"env\":7}", &f, &e) < 0);
	assert_true(frame("{\"env\":[7]}", &f, &e) < 0);
	assert_true(frame("{\"hostname\":\"\"}", &f, &e) < 0);
	assert_true(frame("{\"hostname\":\"x\",\"time_ns\":-1}", &f, &e) < 0);
	assert_string_equal(e.code, "S300");
}

/* --- lookup --- */

struct tries {
	char log[1024];
	const char *hit; /* this one gives 0 */
	const char *refused;
	const char *broken; /* this one gives ENOEXEC */
};

static int try(const char *file, void *user)
{
	struct tries *t = user;
	size_t n = strlen(t->log);

	snprintf(t->log + n, sizeof(t->log) - n, "%s;", file);
	if (str_eq(file, t->hit))
		return 0;
	if (str_eq(file, t->refused))
		return EACCES;
	return str_eq(file, t->broken) ? ENOEXEC : ENOENT;
}

static void lookup_searches_as_execvp_does(void **state)
{
	struct tries t = {.hit = "/b/ls"};

	assert_int_equal(lookup_program("ls", "/a:/b:/c", try, &t), 0);
	assert_string_equal(t.log, "/a/ls;/b/ls;");
	t = (struct tries){0};
	assert_int_equal(lookup_program("ls", NULL, try, &t), ENOENT);
	assert_string_equal(t.log, "/bin/ls;/usr/bin/ls;");
	t = (struct tries){0};
	assert_int_equal(lookup_program("ls", "/a::/b:", try, &t), ENOENT);
	assert_string_equal(t.log, "/a/ls;ls;/b/ls;ls;");
	t = (struct tries){0};
	assert_int_equal(lookup_program("ls", "", try, &t), ENOENT);
	assert_string_equal(t.log, "ls;");
	t = (struct tries){0};
	assert_int_equal(lookup_program("./ls", "/a", try, &t), ENOENT);
	assert_string_equal(t.log, "./ls;");
	t = (struct tries){0};
	assert_int_equal(lookup_program("", "/a", try, &t), ENOENT);
	assert_string_equal(t.log, "");
}

static void lookup_reports_what_stood_in_the_way(void **state)
{
	struct tries t = {.refused = "/a/ls"};
	char name[NAME_MAX + 2], dir[PATH_MAX + 8];

	/* A later hit wins over a refusal, a refusal over absence, another error ends it. */
	assert_int_equal(lookup_program("ls", "/a:/b", try, &t), EACCES);
	t = (struct tries){.refused = "/a/ls", .hit = "/b/ls"};
	assert_int_equal(lookup_program("ls", "/a:/b", try, &t), 0);
	t = (struct tries){.broken = "/a/ls", .hit = "/b/ls"};
	assert_int_equal(lookup_program("ls", "/a:/b", try, &t), ENOEXEC);
	assert_string_equal(t.log, "/a/ls;");
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(lookup_program(name, "/a", try, &t), ENAMETOOLONG);
	memset(dir, 'd', sizeof(dir));
	memcpy(dir + PATH_MAX, ":/b", 4);
	t = (struct tries){.hit = "/b/ls"};
	assert_int_equal(lookup_program("ls", dir, try, &t), 0);
	assert_string_equal(t.log, "/b/ls;");
}

/* --- exec request --- */

static int request(const char *json, struct exec_request *r, struct err *e)
{
	cleanup_json json_object *o = NULL;

	assert_int_equal(json_parse_object(json, strlen(json), &o, e), 0);
	return exec_request_parse(o, r, e);
}

static void exec_request_has_defaults(void **state)
{
	struct exec_request r;
	struct err e = ERR_INIT;

	assert_int_equal(request("{\"argv\":[\"a\",\"\"],\"deadline_ms\":0}", &r, &e), 0);
	assert_int_equal(strv_len(r.argv), 2);
	assert_null(r.env);
	assert_string_equal(r.workdir, "/");
	assert_true(r.deadline_ms == 1);
	assert_true(r.caps[0] == UINT64_MAX && r.caps[1] == UINT64_MAX);
	exec_request_done(&r);
	assert_int_equal(request("{\"argv\":[\"a\"],\"env\":[\"A=b\"],\"workdir\":\"\","
				 "\"deadline_ms\":18446744073709551615,\"stdout_cap\":0,"
				 "\"stderr_cap\":18446744073709551615}",
				 &r, &e),
		0);
	assert_true(r.deadline_ms == UINT64_MAX);
	assert_true(r.caps[0] == 0 && r.caps[1] == UINT64_MAX);
	assert_string_equal(r.env[0], "A=b");
	assert_string_equal(r.workdir, "/");
	exec_request_done(&r);
	assert_true(request("{\"argv\":[\"a\"],\"deadline_ms\":1.5}", &r, &e) < 0);
	assert_string_equal(e.code, "S001");
	assert_non_null(strstr(e.text, "deadline_ms"));
}

/* --- control lines --- */

static void control_lines_are_read_strictly(void **state)
{
	uint64_t grace = 7;
	static const char *const nothing[] = {"", "{}", "[]", "null", "x", "{\"cmd\":7}",
		"{\"cmd\":\"reboot\"}", "{\"cmd\":\"ack\"} x"};

	for (size_t i = 0; i < ARRAY_LEN(nothing); i++)
		assert_int_equal(
			control_parse(nothing[i], strlen(nothing[i]), &grace), CONTROL_NONE);
	assert_int_equal(grace, 7);
	assert_int_equal(control_parse("{\"cmd\":\"ack\"}", 13, &grace), CONTROL_ACK);
	assert_int_equal(control_parse("{\"cmd\":\"shutdown\"}", 18, &grace), CONTROL_SHUTDOWN);
	assert_int_equal(grace, POWEROFF_GRACE_DEFAULT_MS);
	assert_int_equal(control_parse("{\"cmd\":\"shutdown\",\"grace_ms\":0}", 31, &grace),
		CONTROL_SHUTDOWN);
	assert_int_equal(grace, 0);
	assert_int_equal(control_parse("{\"cmd\":\"shutdown\",\"grace_ms\":\"x\"}", 33, &grace),
		CONTROL_SHUTDOWN);
	assert_int_equal(grace, POWEROFF_GRACE_DEFAULT_MS);
}

/* --- files --- */

static void errno_maps_to_codes(void **state)
{
	static const struct {
		int no;
		const char *code;
	} rows[] = {{ENOENT, "S211"}, {ENOTDIR, "S212"}, {EISDIR, "S212"}, {EEXIST, "S213"},
		{ENOTEMPTY, "S214"}, {EACCES, "S215"}, {EPERM, "S215"}, {EROFS, "S215"},
		{ENAMETOOLONG, "S210"}, {ELOOP, "S216"}, {EBUSY, "S216"}, {ENOSPC, "S216"},
		{EDQUOT, "S216"}, {EIO, "S216"}, {EFBIG, "S216"}, {EMFILE, "S216"},
		{ENOMEM, "S216"}, {EINVAL, "S216"}, {9999, "S216"}};
	struct err e = ERR_INIT;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		assert_string_equal(fs_error_code(rows[i].no), rows[i].code);
	assert_int_equal(fs_error(&e, ENOSPC, "cannot write", "/f"), -ENOSPC);
	assert_string_equal(e.text, "cannot write /f: No space left on device");
}

static void path_member(const char *json, int want, const char *text)
{
	cleanup_json json_object *o = NULL;
	struct err e = ERR_INIT;
	const char *path = NULL;

	assert_int_equal(json_parse_object(json, strlen(json), &o, &e), 0);
	assert_int_equal(fs_path_get(o, "path", &path, &e), want);
	if (want < 0) {
		assert_string_equal(e.code, "S210");
		assert_non_null(strstr(e.text, "path"));
	} else {
		assert_string_equal(path, text);
	}
}

static void paths_are_absolute(void **state)
{
	char longest[PATH_MAX + 32];

	path_member("{\"path\":\"/a/../b\"}", 0, "/a/../b");
	path_member("{\"path\":\"a\"}", -EINVAL, NULL);
	path_member("{\"path\":\"\"}", -EINVAL, NULL);
	path_member("{\"path\":\"/a\\u0000b\"}", -EINVAL, NULL);
	path_member("{\"path\":null}", -EINVAL, NULL);
	path_member("{}", -EINVAL, NULL);
	snprintf(longest, sizeof(longest), "{\"path\":\"/%0*d\"}", PATH_MAX - 1, 0);
	path_member(longest, -ENAMETOOLONG, NULL);
}

/* --- mount points in a hostile root --- */

static void mount_points_stay_inside_the_root(void **state)
{
	char dir[] = "/tmp/sandbox-agent-XXXXXX";
	static const char *const points[] = {"plain", "missing", "file", "dangling", "absolute",
		"upwards", "loop", "absolute/below"};

	assert_non_null(mkdtemp(dir));
	cleanup_free char *root = path_join(dir, "root"), *outside = path_join(dir, "outside");
	assert_int_equal(mkdir(root, 0755), 0);
	assert_int_equal(mkdir(outside, 0755), 0);
	cleanup_fd int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(mkdirat(fd, "plain", 0755), 0);
	assert_int_equal(mkdirat(fd, "inner", 0755), 0);
	assert_int_equal(fd_publish_at(fd, "file", "x", 1, 0644), 0);
	assert_int_equal(symlinkat("/no/such", fd, "dangling"), 0);
	assert_int_equal(symlinkat("/inner", fd, "absolute"), 0);
	assert_int_equal(symlinkat("../../../outside", fd, "upwards"), 0);
	assert_int_equal(symlinkat("loop", fd, "loop"), 0);
	for (size_t i = 0; i < ARRAY_LEN(points); i++) {
		struct err e = ERR_INIT;
		cleanup_fd int point = mounts_open_point(fd, points[i], &e);
		cleanup_free char *link = xasprintf("/proc/self/fd/%d", point);
		char where[PATH_MAX];
		ssize_t n;

		if (point < 0)
			fail_msg("%s: %s", points[i], e.text);
		n = readlink(link, where, sizeof(where) - 1);
		assert_true(n > 0);
		where[n] = '\0';
		assert_true(str_starts(where, root));
	}
	assert_int_equal(unlinkat(fd, "inner/below", AT_REMOVEDIR), 0);
	assert_int_equal(rmdir(outside), 0); /* still there, still empty */
	path_remove_at(AT_FDCWD, dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cmdline_takes_our_words_only),
		cmocka_unit_test(cmdline_refuses_serials_no_disk_can_have),
		cmocka_unit_test(env_later_entries_win),
		cmocka_unit_test(env_of_many_thousands_is_exact),
		cmocka_unit_test(env_frame_is_read),
		cmocka_unit_test(lookup_searches_as_execvp_does),
		cmocka_unit_test(lookup_reports_what_stood_in_the_way),
		cmocka_unit_test(exec_request_has_defaults),
		cmocka_unit_test(control_lines_are_read_strictly),
		cmocka_unit_test(errno_maps_to_codes),
		cmocka_unit_test(paths_are_absolute),
		cmocka_unit_test(mount_points_stay_inside_the_root),
	};

	return cmocka_run_group_tests_name("agent_parts", tests, NULL, NULL);
}
