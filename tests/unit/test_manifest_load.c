/* host/worker/manifest and manifest_kind: what follows from a kind, and what is read from a folder.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/path.h"
#include "manifest_calls.h"
#include "peer.h"

/* The shell takes it. */
static void is_shell(const char *text)
{
	const char *argv[] = {"sh", "-n", NULL};
	struct buf out cleanup_buf;

	if (!text)
		return;
	buf_init(&out, 4096);
	if (peer_run(argv, NULL, text, strlen(text), &out) != 0)
		fail_msg("no shell script: %s", text);
}

static bool has(const char *text, const char *part)
{
	return part ? text && strstr(text, part) : !text;
}

static void commands_follow_from_the_kind(void **state)
{
	static const struct {
		const char *runtime;
		const char *image;
		const char *setup; /* something that is in it; NULL: there is none */
		const char *install, *start;
	} cases[] = {
		{"kind: bun, entry: a.ts", "docker.io/oven/bun:latest", NULL, "bun install",
			"bun run a.ts"},
		{"kind: typescript, package_manager: bun, entry: a.ts", NODE,
			"https://bun.sh/install",
			"export PATH=\"$HOME/.bun/bin:$PATH\"\nbun install",
			"export PATH=\"$HOME/.bun/bin:$PATH\"\nbun a.ts"},
		{"kind: typescript, package_manager: npm, entry: a.ts", NODE,
			"deb.nodesource.com/setup_22.x", "npm install", "npx tsx a.ts"},
		{"kind: javascript, package_manager: pnpm, entry: a.js", NODE,
			"npm install --global pnpm", "pnpm install", "pnpm exec tsx a.js"},
		{"language: javascript, package_manager: yarn, entry: a.js", NODE,
			"npm install --global yarn", "yarn install", "yarn exec tsx a.js"},
		{"package_manager: npm, entry: a.ts", NODE, "nodejs", "npm install",
			"npx tsx a.ts"},
		{"kind: ' ', package_manager: npm, entry: a.ts", NODE, "nodejs", "npm install",
			"npx tsx a.ts"},
		{"kind: python, language: rust, entry: my.mod", "docker.io/iiidev/python:latest",
			"python3-venv python3-pip",
			"[ -x .venv/bin/python ] || python3 -m venv .venv\n"
			".venv/bin/python -m pip install -e .\n",
			".venv/bin/python -m my.mod"},
		{"kind: rust", "docker.io/library/rust:slim-bookworm", "sh.rustup.rs",
			"[ ! -f \"$HOME/.cargo/env\" ] || . \"$HOME/.cargo/env\"\ncargo build "
			"--release",
			"[ ! -f \"$HOME/.cargo/env\" ] || . \"$HOME/.cargo/env\"\ncargo run "
			"--release"},
		{"kind: go, base_image: 'golang:1', entry: ./run -x", "docker.io/library/golang:1",
			NULL, NULL, "./run -x"},
	};
	static const struct {
		const char *runtime, *want;
	} bad[] = {
		{"kind: typescript, entry: SECRET",
			M "there is no `scripts.start`, and `runtime.package_manager` is none of "
			  "npm, "
			  "yarn, pnpm, bun, from which it would follow: set `scripts.start`"},
		{"package_manager: SECRET, entry: x",
			M "there is no `scripts.start`, and `runtime.package_manager` is none of "
			  "npm, "
			  "yarn, pnpm, bun, from which it would follow: set `scripts.start`"},
		{"kind: python",
			M "there is no `scripts.start`, and no `runtime.entry` from which it would "
			  "follow: set one of them"},
		{"kind: SECRET, entry: x", M "`runtime.base_image` is missing: name an image, or "
					     "make `runtime.kind` one "
					     "of typescript, javascript, bun, python, rust"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_free char *text = xasprintf("name: w\nruntime: {%s}\n", cases[i].runtime);
		struct manifest m;

		takes(text, &local, &m);
		strings_equal(m.base_image, cases[i].image);
		if (!has(m.setup, cases[i].setup))
			fail_msg("%s: %s", cases[i].runtime, m.setup);
		strings_equal(m.install, cases[i].install);
		strings_equal(m.start, cases[i].start);
		is_shell(m.setup);
		is_shell(m.install);
		is_shell(m.start);
		manifest_done(&m);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cleanup_free char *text = xasprintf("name: w\nruntime: {%s}\n", bad[i].runtime);

		refuses(text, &local, "S500", bad[i].want);
	}
	/* A section without start is a fault, not a reason to infer. */
	refuses("name: w\nruntime: {kind: bun, entry: x}\nscripts: {}\n", &local, "S500",
		M
		"`scripts.start` is missing or blank: set it to the command that runs the worker");
}

/* --- from a folder --- */

struct folder {
	char path[40];
	int fd;
};

static int folder_setup(void **state)
{
	struct folder *f = xcalloc(1, sizeof(*f));

	snprintf(f->path, sizeof(f->path), "/tmp/test_manifest.XXXXXX");
	if (!mkdtemp(f->path))
		return -1;
	f->fd = open(f->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	*state = f;
	return f->fd < 0 ? -1 : 0;
}

static int folder_teardown(void **state)
{
	struct folder *f = *state;

	fd_close(&f->fd);
	path_remove_at(AT_FDCWD, f->path);
	free(f);
	return 0;
}

static void put(const struct folder *f, const char *name, const char *text)
{
	cleanup_fd int fd = openat(f->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

static void gone(const struct folder *f, const char *name)
{
	assert_int_equal(unlinkat(f->fd, name, 0), 0);
}

static void load(const struct folder *f, const struct manifest_query *q, struct manifest *m)
{
	struct err e = ERR_INIT;

	if (manifest_load(f->fd, q, m, &e) != 0)
		fail_msg("%s", e.text);
}

/* The text of the error; it has the code S500. */
static void cannot_load(const struct folder *f, const struct manifest_query *q, struct err *e)
{
	struct manifest m;

	*e = ERR_INIT;
	assert_true(manifest_load(f->fd, q, &m, e) < 0);
	assert_string_equal(e->code, "S500");
	assert_true(e->text[0]);
	assert_null(strstr(e->text, "SECRET"));
	manifest_done(&m);
}

static void a_manifest_is_read_from_the_folder(void **state)
{
	const struct folder *f = *state;
	struct manifest m;
	struct err e;

	put(f, MANIFEST_FILE, "name: w\nscripts: {start: x}\n");
	load(f, &bundle, &m);
	strings_equal(m.start, "x");
	manifest_done(&m);
	put(f, MANIFEST_FILE, "name: [SECRET]\n");
	cannot_load(f, &local, &e);
	assert_string_equal(e.text, M "`name` must be a string, not a list");
	put(f, MANIFEST_FILE, "");
	cannot_load(f, &local, &e);

	/* Far larger than is read. */
	cleanup_fd int fd = openat(f->fd, MANIFEST_FILE, O_WRONLY | O_CLOEXEC);

	assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
	cannot_load(f, &local, &e);
	assert_string_equal(e.text, M "the file has more than 65536 bytes");
	assert_int_equal(ftruncate(fd, MANIFEST_BYTES_MAX + 1), 0);
	cannot_load(f, &local, &e);
	assert_string_equal(e.text, M "the file has more than 65536 bytes");
}

static void what_is_no_file_of_the_folder_is_refused(void **state)
{
	const struct folder *f = *state;
	struct err e;

	assert_int_equal(symlinkat("/etc/passwd", f->fd, MANIFEST_FILE), 0);
	cannot_load(f, &local, &e);
	cannot_load(f, &bundle, &e);
	assert_null(strstr(e.text, "root:"));
	gone(f, MANIFEST_FILE);
	assert_int_equal(mkfifoat(f->fd, MANIFEST_FILE, 0600), 0);
	cannot_load(f, &local, &e);
	gone(f, MANIFEST_FILE);
	assert_int_equal(mkdirat(f->fd, MANIFEST_FILE, 0700), 0);
	cannot_load(f, &local, &e);
	assert_int_equal(unlinkat(f->fd, MANIFEST_FILE, AT_REMOVEDIR), 0);

	/* Nor is it looked past one that detection needs. */
	assert_int_equal(symlinkat("/etc/passwd", f->fd, "package.json"), 0);
	cannot_load(f, &local, &e);
	assert_non_null(strstr(e.text, "package.json"));
}

static void bundles_need_a_manifest_and_can_be_switched_off(void **state)
{
	const struct folder *f = *state;
	struct manifest m;
	struct err e;

	put(f, "package.json", "{}");
	cannot_load(f, &bundle, &e);
	assert_string_equal(e.text, "the package has no iii.worker.yaml, which every bundle needs");

	put(f, MANIFEST_FILE, "name: w\nscripts: {start: x}\n");
	setenv("III_BUNDLE_WORKERS_DISABLED", "1", 1);
	cannot_load(f, &bundle, &e);
	assert_string_equal(
		e.text, "bundle workers are disabled on this host (III_BUNDLE_WORKERS_DISABLED=1)");
	load(f, &local, &m);
	manifest_done(&m);
	setenv("III_BUNDLE_WORKERS_DISABLED", "0", 1);
	load(f, &bundle, &m);
	manifest_done(&m);
	unsetenv("III_BUNDLE_WORKERS_DISABLED");
}

static void a_project_without_a_manifest_is_looked_at(void **state)
{
	/* Each has the files of those below it, so that the order shows. */
	static const struct {
		const char *file, *image, *setup, *install, *start;
	} cases[] = {
		{"requirements.txt", "docker.io/iiidev/python:latest", "apt-get",
			"PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -r requirements.txt",
			"python3 -m iii"},
		{"pyproject.toml", "docker.io/iiidev/python:latest", "apt-get",
			"PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -e .",
			"python3 -m iii"},
		{"Cargo.toml", "docker.io/library/rust:slim-bookworm", "rustup",
			"[ ! -f \"$HOME/.cargo/env\" ] || . \"$HOME/.cargo/env\"\ncargo build "
			"--release",
			"[ ! -f \"$HOME/.cargo/env\" ] || . \"$HOME/.cargo/env\"\ncargo run "
			"--release"},
		{"package.json", NODE, "nodesource", "npm install", "npm run dev"},
		{"bun.lockb", "docker.io/oven/bun:latest", NULL, "bun install", "bun run dev"},
		{"bun.lock", "docker.io/oven/bun:latest", NULL, "bun install", "bun run dev"},
	};
	const struct manifest_query q = {.kind = WORKER_LOCAL, .run_override = "mine"};
	const struct folder *f = *state;
	struct manifest m;
	struct err e;

	cannot_load(f, &local, &e);
	assert_string_equal(e.text,
		"the folder has no iii.worker.yaml, and none of package.json, Cargo.toml, "
		"pyproject.toml and requirements.txt from which it would follow what to run: write "
		"a "
		"iii.worker.yaml");
	load(f, &q, &m);
	strings_equal(m.base_image, NODE);
	strings_equal(m.start, "mine");
	assert_null(m.setup);
	assert_null(m.install);
	manifest_done(&m);

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		put(f, cases[i].file, "");
		load(f, &local, &m);
		strings_equal(m.name, "");
		strings_equal(m.base_image, cases[i].image);
		if (!has(m.setup, cases[i].setup))
			fail_msg("%s: %s", cases[i].file, m.setup);
		strings_equal(m.install, cases[i].install);
		strings_equal(m.start, cases[i].start);
		assert_int_equal(m.cpus, MANIFEST_CPUS_DEFAULT);
		assert_int_equal(m.mem_mib, MANIFEST_MEM_DEFAULT_MIB);
		assert_null(m.env);
		is_shell(m.setup);
		is_shell(m.install);
		is_shell(m.start);
		manifest_done(&m);

		load(f, &q, &m);
		strings_equal(m.start, "mine");
		strings_equal(m.install, cases[i].install);
		manifest_done(&m);
	}
	/* bun.lock without package.json says nothing. */
	gone(f, "package.json");
	load(f, &local, &m);
	strings_equal(m.base_image, "docker.io/library/rust:slim-bookworm");
	manifest_done(&m);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(commands_follow_from_the_kind),
		IN_FOLDER(a_manifest_is_read_from_the_folder),
		IN_FOLDER(what_is_no_file_of_the_folder_is_refused),
		IN_FOLDER(bundles_need_a_manifest_and_can_be_switched_off),
		IN_FOLDER(a_project_without_a_manifest_is_looked_at),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
