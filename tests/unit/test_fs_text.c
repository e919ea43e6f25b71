/* The agent's fs::grep and fs::sed (sandbox contract §5.9-5.13) on real files; ripgrep and GNU sed
 * on the same ones. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>

#include "fs_calls.h"
#include "peer.h"

#define E_ACUTE	   "\xc3\xa9"
#define E_ACUTE_UP "\xc3\x89"

/* "path:line:content" of each match below `d`, one a line; "+" behind them when truncated. */
static char *grep(const char *d, const char *text)
{
	cleanup_json json_object *reply = call_ok(fs_grep, d, text);
	json_object *matches = json_object_object_get(reply, "matches");
	struct buf out;

	buf_init(&out, 64u << 20);
	buf_add_str(&out, "");
	for (size_t i = 0; i < json_object_array_length(matches); i++) {
		json_object *m = json_object_array_get_idx(matches, i);
		const char *path = json_object_get_string(json_object_object_get(m, "path"));

		if (strncmp(path, d, strlen(d)) == 0)
			path += strlen(d) + (path[strlen(d)] == '/');
		buf_printf(&out, "%s:%s:%s\n", path,
			json_object_get_string(json_object_object_get(m, "line")),
			json_object_get_string(json_object_object_get(m, "content")));
	}
	if (json_object_get_boolean(json_object_object_get(reply, "truncated")))
		buf_add_str(&out, "+\n");
	return buf_steal(&out);
}

static void finds(const char *d, const char *text, const char *wanted)
{
	cleanup_free char *got = grep(d, text);

	if (strcmp(got ? got : "", wanted) != 0)
		fail_msg("%s:\n%s\ninstead of\n%s", text, got, wanted);
}

static char *python_tree(void)
{
	char *d = new_folder(NULL);

	make(d, "src");
	make(d, "src/sub");
	make(d, "node_modules");
	make(d, "node_modules/a");
	put(d, "src/main.py", "x\nhit 1\n");
	put(d, "src/sub/deep.py", "hit 2\n");
	put(d, "src/a.txt", "hit 3\n");
	put(d, ".hidden", "hit 4\n");
	put(d, "node_modules/a/b.js", "hit 5\n");
	put(d, ".gitignore", "src\n");
	return d;
}

/* --- grep --- */

static void grep_selects_by_globs(void **state)
{
	char *d = python_tree();

	finds(d, "{'path':'@','pattern':'hit'}",
		".hidden:1:hit 4\nnode_modules/a/b.js:1:hit 5\nsrc/a.txt:1:hit 3\n"
		"src/main.py:2:hit 1\nsrc/sub/deep.py:1:hit 2\n");
	finds(d, "{'path':'@','pattern':'hit','include_glob':['src/*.py']}",
		"src/main.py:2:hit 1\n");
	finds(d, "{'path':'@','pattern':'hit','include_glob':['*.py']}",
		"src/main.py:2:hit 1\nsrc/sub/deep.py:1:hit 2\n");
	finds(d, "{'path':'@','pattern':'hit','exclude_glob':['src/*.py','node_modules/']}",
		".hidden:1:hit 4\nsrc/a.txt:1:hit 3\nsrc/sub/deep.py:1:hit 2\n");
	finds(d,
		"{'path':'@','pattern':'hit','include_glob':['src','*.js'],'exclude_glob':['sub']}",
		"node_modules/a/b.js:1:hit 5\nsrc/a.txt:1:hit 3\nsrc/main.py:2:hit 1\n");
	finds(d, "{'path':'@/src/','pattern':'hit','include_glob':['/*.py']}",
		"src/main.py:2:hit 1\n");
	/* A single file: its base name. */
	finds(d, "{'path':'@/src/main.py','pattern':'hit','include_glob':['*.py']}",
		"src/main.py:2:hit 1\n");
	finds(d, "{'path':'@/src/main.py','pattern':'hit','exclude_glob':['main.*']}", "");
	finds(d, "{'path':'@/src/main.py','pattern':'hit','include_glob':['src/*.py']}", "");
	finds(d, "{'path':'@/src/main.py','pattern':'hit','recursive':false}",
		"src/main.py:2:hit 1\n");
	remove_folder(d);
}

static void grep_reads_lines(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *odd = in(d, "odd");

	put(d, "crlf", "foo\r\nfoo x\r\n\r\nfoo\r");
	finds(d, "{'path':'@','pattern':'foo$'}", "crlf:1:foo\n");
	finds(d, "{'path':'@','pattern':'^$'}", "crlf:3:\n");
	put(d, "crlf", "a\n\nb");
	finds(d, "{'path':'@','pattern':'^'}", "crlf:1:a\ncrlf:2:\ncrlf:3:b\n");
	finds(d, "{'path':'@','pattern':'$'}", "crlf:1:a\ncrlf:2:\ncrlf:3:b\n");
	finds(d, "{'path':'@','pattern':'b$'}", "crlf:3:b\n");
	finds(d, "{'path':'@','pattern':''}", "crlf:1:a\ncrlf:2:\ncrlf:3:b\n");
	finds(d, "{'path':'@','pattern':'\\n'}", "");
	finds(d, "{'path':'@','pattern':'(?s)a.*b'}", "");
	put(d, "crlf", "");
	finds(d, "{'path':'@','pattern':''}", "");
	put(d, "crlf", E_ACUTE_UP "\n");
	finds(d, "{'path':'@','pattern':'" E_ACUTE "','ignore_case':true}",
		"crlf:1:" E_ACUTE_UP "\n");
	/* Lines that are not UTF-8 count but do not match. */
	put_bytes(odd, "needle\n\xff needle\nneedle\n", 23);
	finds(d, "{'path':'@','pattern':'needle'}", "odd:1:needle\nodd:3:needle\n");
	put_bytes(odd, "needle\n\0\nneedle\n", 16);
	finds(d, "{'path':'@','pattern':'needle'}", "");
	remove_folder(d);
}

static void grep_cuts_long_lines(void **state)
{
	char *d = new_folder(NULL);
	size_t n = 40u << 20;
	cleanup_free char *big = xmalloc(n), *path = in(d, "big");

	put(d, "f", E_ACUTE E_ACUTE E_ACUTE "\n");
	finds(d, "{'path':'@/f','pattern':'" E_ACUTE "','max_line_bytes':3}",
		"f:1:" E_ACUTE "\xe2\x80\xa6\n");
	finds(d, "{'path':'@/f','pattern':'" E_ACUTE "','max_line_bytes':6}",
		"f:1:" E_ACUTE E_ACUTE E_ACUTE "\n");
	finds(d, "{'path':'@/f','pattern':'" E_ACUTE "','max_line_bytes':1}", "f:1:\xe2\x80\xa6\n");
	finds(d, "{'path':'@/f','pattern':'" E_ACUTE "','max_line_bytes':0}",
		"f:1:" E_ACUTE E_ACUTE E_ACUTE "\n");
	/* One line is too long to be searched, but counted. */
	memset(big, 'a', n);
	memcpy(big + n - 5, "\nabc\n", 5);
	put_bytes(path, big, n);
	finds(d, "{'path':'@/big','pattern':'a'}", "big:2:abc\n");
	big[n - 5] = 'a';
	put_bytes(path, big, n);
	finds(d, "{'path':'@/big','pattern':'a'}", "");
	/* One that is searched. */
	put_bytes(path, big + (20u << 20), n - (20u << 20));
	finds(d, "{'path':'@/big','pattern':'bc$','max_line_bytes':2}", "big:1:aa\xe2\x80\xa6\n");
	/* Its text does not fit into a reply. */
	finds(d, "{'path':'@/big','pattern':'bc$','max_line_bytes':0}", "+\n");
	remove_folder(d);
}

static void grep_says_when_it_left_something_out(void **state)
{
	char *d = new_folder(NULL);
	struct buf b;

	buf_init(&b, 1u << 20);
	for (int i = 0; i < 10; i++)
		buf_add_str(&b, "x\n");
	put(d, "f", (char *)b.data);
	finds(d, "{'path':'@','pattern':'x','max_matches':3}", "f:1:x\nf:2:x\nf:3:x\n+\n");
	{
		cleanup_free char *all = grep(d, "{'path':'@','pattern':'x','max_matches':10}");

		assert_null(strchr(all, '+'));
	}
	/* The line that is too many is in the next file. */
	put(d, "g", "x\n");
	{
		cleanup_free char *most = grep(d, "{'path':'@','pattern':'x','max_matches':10}");
		cleanup_free char *all = grep(d, "{'path':'@','pattern':'x','max_matches':0}");

		assert_non_null(strchr(most, '+'));
		assert_null(strchr(all, '+'));
	}
	buf_done(&b);
	remove_folder(d);
}

static void grep_stops_before_the_reply_is_too_large(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *path = in(d, "f");
	size_t n = 24u << 20;
	cleanup_free char *text = xmalloc(n);
	cleanup_json json_object *reply = NULL;

	for (size_t i = 0; i < n; i++)
		text[i] = i % 4096 == 4095 ? '\n' : 'x';
	put_bytes(path, text, n);
	reply = call_ok(fs_grep, d, "{'path':'@','pattern':'x','max_matches':0}");
	assert_true(json_object_get_boolean(json_object_object_get(reply, "truncated")));
	assert_true(json_object_array_length(json_object_object_get(reply, "matches")) > 2900);
	remove_folder(d);
}

static void grep_refuses_in_order(void **state)
{
	char *d = python_tree();
	cleanup_free char *fifo = in(d, "fifo");

	assert_int_equal(mkfifo(fifo, 0600), 0);
	fails(fs_grep, d, "{'path':'x','pattern':'('}", "S210", "path");
	fails(fs_grep, d, "{'path':'@/nope','pattern':'('}", "S211", "/nope");
	fails(fs_grep, d, "{'path':'@','pattern':'(','recursive':false}", "S217", "compile");
	fails(fs_grep, d, "{'path':'@','pattern':'(?=x)'}", "S217", "look-around");
	fails(fs_grep, d, "{'path':'@','pattern':'\\\\1'}", "S217", "back-ref");
	fails(fs_grep, d, "{'path':'@','pattern':'['}", "S217", "closed");
	fails(fs_grep, d, "{'path':'@','pattern':'x{1000}{1000}'}", "S217", "big");
	fails(fs_grep, d, "{'path':'@','pattern':'x','recursive':false}", "S210", "recursive");
	fails(fs_grep, d, "{'path':'@/fifo','pattern':'x'}", "S212", "/fifo");
	fails(fs_grep, d, "{'path':'/dev/zero','pattern':'x'}", "S212", "/dev/zero");
	fails(fs_grep, d, "{'path':'@/.hidden/','pattern':'x'}", "S212", "/.hidden/");
	remove_folder(d);
}

static void grep_does_not_follow_links_below(void **state)
{
	char *d = python_tree();
	cleanup_free char *fifo = in(d, "src/fifo");

	make_link(d, "src/loop", "..");
	make_link(d, "src/to", "main.py");
	make_link(d, "root", "src");
	make_link(d, "dangling", "nowhere");
	assert_int_equal(mkfifo(fifo, 0600), 0);
	finds(d, "{'path':'@/root','pattern':'hit','include_glob':['*.py']}",
		"root/main.py:2:hit 1\nroot/sub/deep.py:1:hit 2\n");
	finds(d, "{'path':'@/src/to','pattern':'hit'}", "src/to:2:hit 1\n");
	fails(fs_grep, d, "{'path':'@/dangling','pattern':'x'}", "S211", "/dangling");
	remove_folder(d);
}

static void grep_survives_proc(void **state)
{
	cleanup_free char *got = grep("/proc", "{'path':'/proc/self','pattern':'^Name:'}");

	assert_non_null(strstr(got, "self/status:1:Name:"));
	free(grep("/proc", "{'path':'/proc/sys','pattern':'.','max_matches':0}"));
}

static void grep_shows_odd_names_as_text(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *odd = in(d, "a\xff\"\n\x01");

	put_bytes(odd, "hit\t\"\x01\n", 7);
	finds(d, "{'path':'@','pattern':'hit'}", "a\xef\xbf\xbd\"\n\x01:1:hit\t\"\x01\n");
	remove_folder(d);
}

/* A tree with text in many shapes: our sources, and lines that are long, odd or foreign. */
static void make_corpus(const char *d)
{
	static const char *const words[] = {"static", "int", "foo", "foobar", " ", "  ", "\t", "(",
		")", "return", E_ACUTE "t" E_ACUTE, "\xce\xb1\xce\xb2", "x", "42", "", "Foo"};
	uint32_t seed = 42;

	for (int i = 0; i < 40; i++) {
		cleanup_free char *name = xasprintf("d%d/f%d.%s", i % 5, i, i % 3 ? "c" : "txt");
		cleanup_free char *dir = xasprintf("d%d", i % 5);
		struct buf b;

		if (!exists(d, dir))
			make(d, dir);
		buf_init(&b, 4u << 20);
		for (int k = 0; k < (i == 7 ? 60000 : 300); k++) {
			seed = seed * 1664525u + 1013904223u;
			buf_add_str(&b, words[(seed >> 16) % ARRAY_LEN(words)]);
			if ((seed >> 8) % 7 == 0)
				buf_add_str(&b, "\n");
		}
		if (i % 4 == 0)
			buf_add_str(&b, "\n");
		put(d, name, (char *)b.data);
		buf_done(&b);
	}
}

static void ripgrep_finds_the_same_lines(void **state)
{
	static const char *const patterns[] = {"foo", "\\bfoo\\b", "^static", "foo\\s+\\w",
		"(?i)FOO", "[^a-z \\t]{3}", "return|int", E_ACUTE, "\\w+\\(\\)", "x.*42", "^\\s*$",
		"\\d+$", "(foo|bar)+", "\\p{Greek}", "t" E_ACUTE "\\b", ".", "nothing at all"};
	char *d = new_folder(NULL);

	make_corpus(d);
	for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
		const char *argv[] = {"rg", "--no-config", "-j1", "--no-ignore", "--hidden", "-n",
			"--sort", "path", "--no-heading", "--color=never", "-e", patterns[i], "-g",
			"!f9.c", ".", NULL};
		cleanup_json json_object *req = request(d,
			"{'path':'@','max_matches':0,'max_line_bytes':0,'exclude_glob':['f9.c']}");
		cleanup_free char *text = NULL, *got = NULL, *want = NULL;
		struct buf theirs;

		json_add_str(req, "pattern", patterns[i]);
		buf_init(&theirs, 64u << 20);
		buf_add_str(&theirs, "");
		assert_true(peer_run(argv, d, "", 0, &theirs) >= 0);
		text = xstrdup(json_text(req, NULL));
		got = grep(d, text);
		/* "./path:" is "path:" here. */
		want = buf_steal(&theirs);
		{
			char *w = want;

			for (const char *p = want ? want : ""; *p; p++) {
				if (p[0] == '.' && p[1] == '/' && (p == want || p[-1] == '\n'))
					p++;
				else
					*w++ = *p;
			}
			if (w)
				*w = 0;
		}
		if (strcmp(got ? got : "", want ? want : "") != 0) {
			size_t k = 0;

			while (got[k] && got[k] == want[k])
				k++;
			fail_msg("%s: at %zu: %.80s instead of %.80s", patterns[i], k,
				got + k - MIN(k, (size_t)30), want + k - MIN(k, (size_t)30));
		}
	}
	remove_folder(d);
}

/* --- sed --- */

static void sed_replaces_line_by_line(void **state)
{
	static const struct {
		const char *before, *request, *after;
		int n;
	} rows[] = {
		{"name: al, name: bo", "'pattern':'name: (\\\\w+)','replacement':'user=$1'",
			"user=al, user=bo", 2},
		{"a.b axb", "'pattern':'A.B','replacement':'$1','regex':false,'ignore_case':true",
			"$1 axb", 1},
		{"a  \r\nb \n", "'pattern':'\\\\s+$','replacement':''", "a\r\nb\n", 2},
		{"baac", "'pattern':'a*','replacement':'X'", "XbXcX", 3},
		{"aa\naa\n", "'pattern':'a','replacement':'b','first_only':true", "ba\nba\n", 2},
		{"a\n\nb", "'pattern':'^','replacement':'> '", "> a\n> \n> b", 3},
		{"a\n\nb\n", "'pattern':'$','replacement':';'", "a;\n;\nb;\n", 3},
		{"foo\r\nfoo\r", "'pattern':'foo$','replacement':'x'", "x\r\nfoo\r", 1},
		{"a\r\nb\n", "'pattern':'(?s).','replacement':'.'", ".\r\n.\n", 2},
		{"a\nb\n", "'pattern':'a\\nb','replacement':'x','regex':false", "a\nb\n", 0},
		{"one\ntwo\n", "'pattern':'two','replacement':'2\\n3'", "one\n2\n3\n", 1},
		{"", "'pattern':'','replacement':'x'", "", 0},
		{E_ACUTE "x", "'pattern':'\\\\b','replacement':'|'", "|" E_ACUTE "x|", 2},
		{"x\\1", "'pattern':'(x)','replacement':'\\\\1$$${1}y$1y'", "\\1$xy\\1", 1},
	};
	char *d = new_folder(NULL);

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		cleanup_free char *req = xasprintf("{'files':['@/f'],%s}", rows[i].request);
		cleanup_free char *reply =
			xasprintf("{'results':[{'path':'@/f','replacements':%d,'success':true}],"
				  "'total_replacements':%d}",
				rows[i].n, rows[i].n);

		put(d, "f", rows[i].before);
		replies(fs_sed, d, req, reply);
		holds(d, "f", rows[i].after);
	}
	remove_folder(d);
}

static void sed_keeps_mode_owner_links_and_attributes(void **state)
{
	char *d = new_folder(NULL), value[8] = "";
	cleanup_free char *f = in(d, "sub/f");
	struct stat before, after;

	make(d, "sub");
	put(d, "sub/f", "a\nb\n");
	make_link(d, "ln", "sub/f");
	if (geteuid() == 0)
		assert_int_equal(chown(f, 1234, 5678), 0);
	assert_int_equal(chmod(f, 04751), 0);
	if (setxattr(f, "user.note", "kept", 4, 0) < 0)
		assert_int_equal(errno, EOPNOTSUPP);
	before = look_at(d, "sub/f");
	replies(fs_sed, d, "{'files':['@/ln'],'pattern':'a','replacement':'b'}",
		"{'results':[{'path':'@/ln','replacements':1,'success':true}],"
		"'total_replacements':1}");
	assert_true(S_ISLNK(look_at(d, "ln").st_mode));
	holds(d, "sub/f", "b\nb\n");
	after = look_at(d, "sub/f");
	assert_int_equal(after.st_mode, before.st_mode);
	assert_int_equal(after.st_uid, before.st_uid);
	assert_int_equal(after.st_gid, before.st_gid);
	if (getxattr(f, "user.note", value, sizeof(value)) > 0)
		assert_string_equal(value, "kept");
	else
		assert_int_equal(errno, EOPNOTSUPP);
	/* Nothing changed: not rewritten, also when what is put in is what was there. */
	before = after;
	replies(fs_sed, d, "{'files':['@/sub/f','@/sub/f'],'pattern':'b','replacement':'b'}",
		"{'results':[{'path':'@/sub/f','replacements':2,'success':true},"
		"{'path':'@/sub/f','replacements':2,'success':true}],'total_replacements':4}");
	after = look_at(d, "sub/f");
	assert_int_equal(after.st_ino, before.st_ino);
	remove_folder(d);
}

static size_t count_entries(const char *path)
{
	DIR *d = opendir(path);
	size_t n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

static void sed_fails_file_by_file(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *odd = in(d, "odd"), *fifo = in(d, "fifo");
	cleanup_json json_object *reply = NULL;
	json_object *results;

	put(d, "f", "a\n");
	put_bytes(odd, "a\n\xff\na\n", 6);
	make(d, "dir");
	assert_int_equal(mkfifo(fifo, 0600), 0);
	reply = call_ok(fs_sed, d,
		"{'files':['@/nope','f','@/odd','@/dir','@/fifo','/dev/zero','@/f','','/'],"
		"'pattern':'a','replacement':'b'}");
	results = json_object_object_get(reply, "results");
	assert_int_equal(json_object_array_length(results), 9);
	for (size_t i = 0; i < 9; i++) {
		json_object *one = json_object_array_get_idx(results, i), *error;
		bool success = json_object_get_boolean(json_object_object_get(one, "success"));

		assert_int_equal(success, i == 6);
		assert_int_equal(
			json_object_get_int(json_object_object_get(one, "replacements")), i == 6);
		assert_int_equal(json_object_object_get_ex(one, "error", &error), i != 6);
		if (i != 6)
			assert_true(json_object_get_string_len(error) > 0);
	}
	assert_int_equal(
		json_object_get_int(json_object_object_get(reply, "total_replacements")), 1);
	holds(d, "f", "b\n");
	holds(d, "odd", "a\n\xff\na\n");
	assert_int_equal(count_entries(d), 4);
	remove_folder(d);
}

static void sed_of_a_tree_reports_each_selected_file(void **state)
{
	char *d = python_tree();
	cleanup_free char *bin = in(d, "src/bin.py");

	put_bytes(bin, "hit\0", 4);
	make_link(d, "src/ln.py", "main.py");
	replies(fs_sed, d,
		"{'path':'@/src/','include_glob':['*.py','a.*'],'pattern':'hit "
		"1','replacement':'HIT'}",
		"{'results':[{'path':'@/src/a.txt','replacements':0,'success':true},"
		"{'path':'@/src/main.py','replacements':1,'success':true},"
		"{'path':'@/src/sub/deep.py','replacements':0,'success':true}],"
		"'total_replacements':1}");
	holds(d, "src/main.py", "x\nHIT\n");
	replies(fs_sed, d,
		"{'files':[],'path':'@','exclude_glob':['*.py','.*'],'pattern':'hit','replacement':"
		"'\\u0000','regex':false}",
		"{'results':[{'path':'@/node_modules/a/b.js','replacements':1,'success':true},"
		"{'path':'@/src/a.txt','replacements':1,'success':true}],'total_replacements':2}");
	replies(fs_sed, d, "{'path':'@/src/ln.py','pattern':'HIT','replacement':'hit'}",
		"{'results':[{'path':'@/src/ln.py','replacements':1,'success':true}],"
		"'total_replacements':1}");
	assert_true(S_ISLNK(look_at(d, "src/ln.py").st_mode));
	holds(d, "src/main.py", "x\nhit\n");
	replies(fs_sed, d, "{'path':'@/src/bin.py','pattern':'hit','replacement':''}",
		"{'results':[],'total_replacements':0}");
	remove_folder(d);
}

static void sed_refuses_without_touching(void **state)
{
	char *d = python_tree();

	fails(fs_sed, d, "{'path':'@','pattern':'hit','replacement':'b','recursive':false}", "S210",
		"recursive");
	fails(fs_sed, d, "{'path':'@','pattern':'(','replacement':'b','recursive':false}", "S210",
		"recursive");
	fails(fs_sed, d, "{'path':'@/nope','pattern':'(','replacement':'b'}", "S211", "/nope");
	fails(fs_sed, d, "{'path':'@','pattern':'(','replacement':'b'}", "S217", "compile");
	fails(fs_sed, d, "{'files':['@/src/main.py'],'pattern':'','replacement':'b','regex':false}",
		"S210", "empty");
	holds(d, "src/main.py", "x\nhit 1\n");
	remove_folder(d);
}

static void sed_stops_a_line_that_explodes(void **state)
{
	char *d = new_folder(NULL);
	cleanup_free char *path = in(d, "f"), *text = xmalloc(1u << 20);
	cleanup_json json_object *reply = NULL;
	json_object *one;

	memset(text, 'a', 1u << 20);
	put_bytes(path, text, 1u << 20);
	reply = call_ok(fs_sed, d,
		"{'files':['@/f'],'pattern':'a','replacement':"
		"'0123456789012345678901234567890123456789012345678901234567890123456789$0'}");
	one = json_object_array_get_idx(json_object_object_get(reply, "results"), 0);
	assert_false(json_object_get_boolean(json_object_object_get(one, "success")));
	assert_int_equal(look_at(d, "f").st_size, 1u << 20);
	assert_int_equal(count_entries(d), 1);
	remove_folder(d);
}

/* At whatever moment the process is killed, the file is whole, old or new. */
static void sed_is_atomic_under_kill(void **state)
{
	char *d = new_folder(NULL);
	size_t n = 4u << 20, seen_old = 0, seen_new = 0;
	cleanup_free char *path = in(d, "f"), *old = xmalloc(n + 1), *new = xmalloc(n + 1);

	for (size_t i = 0; i < n; i++) {
		old[i] = i % 64 == 63 ? '\n' : 'a';
		new[i] = i % 64 == 63 ? '\n' : 'b';
	}
	old[n] = new[n] = 0;
	for (unsigned round = 0; round < 24; round++) {
		cleanup_free char *got = NULL;
		const struct timespec delay = {.tv_nsec = round * 9L * 1000 * 1000};
		size_t len;
		pid_t pid;

		put_bytes(path, old, n);
		pid = fork();
		if (pid == 0) {
			cleanup_json json_object *req =
				request(d, "{'files':['@/f'],'pattern':'a+'}");
			struct buf reply;

			buf_init(&reply, FS_REPLY_MAX);
			new[63] = 0;
			json_add_str(req, "replacement", new);
			_exit(fs_sed(req, &reply, NULL) < 0);
		}
		nanosleep(&delay, NULL);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		assert_int_equal(fd_slurp_at(AT_FDCWD, path, n * 2, &got, &len), 0);
		assert_int_equal(len, n);
		if (memcmp(got, old, n) == 0)
			seen_old++;
		else if (memcmp(got, new, n) == 0)
			seen_new++;
		else
			fail_msg("neither old nor new in round %u", round);
	}
	assert_true(seen_old > 0);
	print_message("old %zu, new %zu\n", seen_old, seen_new);
	remove_folder(d);
}

static void gnu_sed_does_the_same(void **state)
{
	static const char *const rules[][3] = {
		{"foo", "[$0]", "s/foo/[&]/g"},
		{"(s)(t)", "$2$1", "s/(s)(t)/\\2\\1/g"},
		{"[ \\t]+$", "", "s/[ \\t]+$//g"},
		{"^", "> ", "s/^/> /g"},
		{"[ot]+", "-", "s/[ot]+/-/g"},
		{"x|foo|$", "_", "s/x|foo|$/_/g"},
	};
	char *d = new_folder(NULL);

	for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
		const char *argv[] = {
			"env", "LC_ALL=C.UTF-8", "sed", "-E", rules[i][2], "f.txt", NULL};
		cleanup_free char *got = NULL, *ours = NULL, *path = in(d, "d0/f0.txt"),
				  *copy = in(d, "f.txt");
		cleanup_json json_object *req = request(d, "{'files':['@/d0/f0.txt']}");
		struct buf theirs, reply;
		size_t len;

		make_corpus(d);
		assert_int_equal(fd_slurp_at(AT_FDCWD, path, 1u << 20, &got, &len), 0);
		put_bytes(copy, got, len);
		json_add_str(req, "pattern", rules[i][0]);
		json_add_str(req, "replacement", rules[i][1]);
		buf_init(&reply, FS_REPLY_MAX);
		assert_int_equal(fs_sed(req, &reply, NULL), 0);
		buf_done(&reply);
		buf_init(&theirs, 4u << 20);
		assert_int_equal(peer_run(argv, d, "", 0, &theirs), 0);
		if (fd_slurp_at(AT_FDCWD, path, 1u << 20, &ours, &len) < 0 || len != theirs.len ||
			memcmp(ours, theirs.data, len) != 0)
			fail_msg("%s: otherwise than sed's %s", rules[i][0], rules[i][2]);
		buf_done(&theirs);
	}
	remove_folder(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grep_selects_by_globs),
		cmocka_unit_test(grep_reads_lines),
		cmocka_unit_test(grep_cuts_long_lines),
		cmocka_unit_test(grep_says_when_it_left_something_out),
		cmocka_unit_test(grep_stops_before_the_reply_is_too_large),
		cmocka_unit_test(grep_refuses_in_order),
		cmocka_unit_test(grep_does_not_follow_links_below),
		cmocka_unit_test(grep_survives_proc),
		cmocka_unit_test(grep_shows_odd_names_as_text),
		cmocka_unit_test(ripgrep_finds_the_same_lines),
		cmocka_unit_test(sed_replaces_line_by_line),
		cmocka_unit_test(sed_keeps_mode_owner_links_and_attributes),
		cmocka_unit_test(sed_fails_file_by_file),
		cmocka_unit_test(sed_of_a_tree_reports_each_selected_file),
		cmocka_unit_test(sed_refuses_without_touching),
		cmocka_unit_test(sed_stops_a_line_that_explodes),
		cmocka_unit_test(sed_is_atomic_under_kill),
		cmocka_unit_test(gnu_sed_does_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
