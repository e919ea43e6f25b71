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
#include "agent/net_files.h"
#include "agent/poweroff.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "wire/json.h"

/* --- cmdline --- */

static void cmdline_takes_our_words_only(void **state)
{
	static const struct {
		const char *text, *base, *upper, *source;
	} rows[] = {
		{"iii.source=s iii.base=b iii.sourcery=x iii.source=t", "b", "", "s"},
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
		assert_string_equal(c.source, rows[i].source ? rows[i].source : "");
	}
}

static void cmdline_refuses_serials_no_disk_can_have(void **state)
{
	static const char *const rows[] = {"iii.base=", "iii.upper=\"\"", "iii.base=\"a b\"",
		"iii.base=012345678901234567890", "iii.upper=\xc3\xa9", "iii.source="};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct err e = ERR_INIT;
		struct cmdline c = {"old", "old", "old"};

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

static void env_frame_brings_network_and_worker(void **state)
{
	cleanup_json json_object *o = json_object_new_object();
	struct worker_job job = {
		.kind = WORKER_BUNDLE, .name = (char *)"w", .run = (char *)"./run"};
	struct guest_net net;
	struct env_frame f = {0};
	struct err e = ERR_INIT;

	assert_int_equal(frame("{\"net\":null,\"worker\":null}", &f, &e), 0);
	assert_false(f.has_net || f.has_worker);
	env_frame_done(&f);
	guest_net_default(&net, true);
	memset(job.source_digest, 'a', WORKER_DIGEST_LEN);
	json_object_object_add(o, "net", guest_net_to_json(&net));
	json_object_object_add(o, "worker", worker_job_to_json(&job));
	if (frame(json_text(o, NULL), &f, &e) < 0)
		fail_msg("%s", e.text);
	assert_true(f.has_net && f.has_worker && f.net.has6);
	assert_int_equal(f.net.mtu, GUEST_NET_MTU);
	assert_string_equal(f.worker.run, "./run");
	assert_int_equal(f.worker.kind, WORKER_BUNDLE);
	env_frame_done(&f);
	assert_true(frame("{\"net\":{}}", &f, &e) < 0);
	assert_non_null(strstr(e.text, "net"));
	assert_true(frame("{\"worker\":{}}", &f, &e) < 0);
	assert_non_null(strstr(e.text, "worker"));
	assert_string_equal(e.code, "S300");
	/* What was read before the failure is given back. */
	json_add_u64(o, "hostname", 7);
	assert_true(frame(json_text(o, NULL), &f, &e) < 0);
}

static void worker_env_fits_the_guest(void **state)
{
	static const struct {
		const char *in[6], *out[6];
	} rows[] = {
		{{NULL}, {"HOME=/root", "LANG=C.UTF-8"}},
		{{"HOME=/tmp", "LANG=de_DE.UTF-8", "A=b"},
			{"HOME=/tmp", "LANG=de_DE.UTF-8", "A=b"}},
		{{"A=b", "HOME=/no/such", "TMPDIR=/no/such", "SHELL=/no/such", "LANG="},
			{"A=b", "HOME=/root", "LANG="}},
		{{"HOME=/bin/sh", "TMPDIR=/bin/sh", "SHELL=/bin", "LANGUAGE=x"},
			{"HOME=/root", "LANGUAGE=x", "LANG=C.UTF-8"}},
		{{"HOME=tmp", "TMPDIR=/tmp", "SHELL=/bin/sh", "HOMER=/no", "LANG=C"},
			{"HOME=/root", "TMPDIR=/tmp", "SHELL=/bin/sh", "HOMER=/no", "LANG=C"}},
		{{"HOME=", "TMPDIR=", "SHELL=", "LANG=C"}, {"HOME=/root", "LANG=C"}},
		{{"SHELL=/etc/passwd", "LANG=C", "HOME=/"}, {"LANG=C", "HOME=/"}},
	};

	assert_int_equal(chdir("/"), 0);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		cleanup_free char **v = env_for_worker((char *const *)rows[i].in);
		size_t n = strv_len(v);

		for (size_t k = 0; k < n; k++)
			if (!str_eq(v[k], rows[i].out[k]))
				fail_msg("row %zu: %s, not %s", i, v[k], rows[i].out[k]);
		assert_int_equal(n, strv_len((char *const *)rows[i].out));
	}
}

/* --- /etc of a guest --- */

static char *etc_text(int root, const char *name)
{
	cleanup_free char *path = xasprintf("etc/%s", name);
	char *text = NULL;

	if (fd_slurp_at(root, path, 4096, &text, NULL) < 0)
		fail_msg("%s cannot be read", path);
	return text;
}

/* Makes /etc/NAME what an image may have there. */
static void etc_spoil(int root, const char *name, int how)
{
	cleanup_free char *path = xasprintf("etc/%s", name);

	path_remove_at(root, path);
	if (how == 0)
		assert_int_equal(
			symlinkat("../run/systemd/resolve/stub-resolv.conf", root, path), 0);
	else if (how == 1)
		assert_int_equal(symlinkat("victim", root, path), 0);
	else if (how == 2)
		assert_int_equal(mkdirat(root, path, 0755), 0);
	else if (how == 3)
		assert_int_equal(mkfifoat(root, path, 0644), 0);
	else
		assert_int_equal(fd_publish_at(root, path, "old", 3, 0400), 0);
}

static void net_files_replace_whatever_is_there(void **state)
{
	static const char hosts[] = "100.96.0.1 localhost\n100.96.0.1 host.iii.internal\n"
				    "127.0.0.1 box\n";
	char dir[] = "/tmp/sandbox-agent-XXXXXX";
	struct err e = ERR_INIT;
	struct guest_net net;
	struct stat before, after;

	guest_net_default(&net, false);
	assert_non_null(mkdtemp(dir));
	cleanup_fd int root = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int how = -1; how < 5; how++) {
		/* The first time /etc is missing, the second a dangling link. */
		if (how == 0) {
			path_remove_at(root, "etc");
			assert_int_equal(symlinkat("/no/etc", root, "etc"), 0);
			assert_int_equal(
				net_files_write(root, &net, NET_LOCALHOST_HOST, "box", &e), 0);
			assert_int_equal(fd_publish_at(root, "etc/victim", "mine", 4, 0644), 0);
		}
		if (how >= 0) {
			etc_spoil(root, "hosts", how);
			etc_spoil(root, "resolv.conf", how);
		}
		if (net_files_write(root, &net, NET_LOCALHOST_HOST, "box", &e) < 0)
			fail_msg("%d: %s", how, e.text);
		cleanup_free char *h = etc_text(root, "hosts"), *r = etc_text(root, "resolv.conf");
		assert_string_equal(h, hosts);
		assert_string_equal(r, "nameserver 100.96.0.1\noptions edns0\n");
		assert_int_equal(fstatat(root, "etc/hosts", &after, AT_SYMLINK_NOFOLLOW), 0);
		assert_true(S_ISREG(after.st_mode));
		assert_int_equal(after.st_mode & 0777, 0644);
	}
	cleanup_free char *victim = etc_text(root, "victim");
	assert_string_equal(victim, "mine");
	/* Nothing to change: nothing is written. */
	assert_int_equal(fstatat(root, "etc/hosts", &before, 0), 0);
	assert_int_equal(net_files_write(root, &net, NET_LOCALHOST_HOST, "box", &e), 0);
	assert_int_equal(fstatat(root, "etc/hosts", &after, 0), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	assert_int_equal(net_files_write(root, &net, NET_LOCALHOST_GUEST, "box", &e), 0);
	cleanup_free char *own = etc_text(root, "hosts");
	assert_int_equal(strncmp(own, "127.0.0.1 localhost\n100.96.0.1 host", 35), 0);
	/* A folder with something in it is not ours to remove. */
	etc_spoil(root, "hosts", 2);
	assert_int_equal(mkdirat(root, "etc/hosts/x", 0755), 0);
	assert_true(net_files_write(root, &net, NET_LOCALHOST_HOST, "box", &e) < 0);
	assert_non_null(strstr(e.text, "/etc/hosts"));
	assert_int_equal(faccessat(root, "etc/.iii-net.tmp", F_OK, 0), -1);
	path_remove_at(AT_FDCWD, dir);
}

static void net_files_without_a_network(void **state)
{
	char dir[] = "/tmp/sandbox-agent-XXXXXX";
	struct err e = ERR_INIT;

	assert_non_null(mkdtemp(dir));
	cleanup_fd int root = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(net_files_write_local(root, "box", &e), 0);
	assert_int_equal(faccessat(root, "etc", F_OK, 0), -1);
	assert_int_equal(mkdirat(root, "etc", 0755), 0);
	assert_int_equal(symlinkat("nowhere", root, "etc/hosts"), 0);
	assert_int_equal(net_files_write_local(root, "box", &e), 0);
	assert_int_equal(faccessat(root, "etc/hosts", F_OK, 0), -1); /* the image's own, as it is */
	assert_int_equal(unlinkat(root, "etc/hosts", 0), 0);
	assert_int_equal(net_files_write_local(root, "box", &e), 0);
	cleanup_free char *text = etc_text(root, "hosts");
	assert_string_equal(text, "127.0.0.1 localhost box\n");
	assert_int_equal(unlinkat(root, "etc/hosts", 0), 0);
	assert_int_equal(net_files_write_local(root, "a\n1.2.3.4 evil", &e), 0);
	cleanup_free char *plain = etc_text(root, "hosts");
	assert_string_equal(plain, "127.0.0.1 localhost\n");
	path_remove_at(AT_FDCWD, dir);
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
		cmocka_unit_test(env_frame_brings_network_and_worker),
		cmocka_unit_test(worker_env_fits_the_guest),
		cmocka_unit_test(net_files_replace_whatever_is_there),
		cmocka_unit_test(net_files_without_a_network),
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
