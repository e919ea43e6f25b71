/* host/worker/manifest: what a manifest gives, what is refused and how, kinds, projects without
 * one. Values that must not be shown have the word SECRET in them. */
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

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/vm/vm.h"
#include "host/worker/manifest.h"
#include "host/worker/manifest_kind.h"
#include "peer.h"

#define NODE   "docker.io/iiidev/node:latest"
#define D64    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define DIGEST "sha256:" D64

static const struct manifest_query local = {.kind = WORKER_LOCAL};
static const struct manifest_query bundle = {.kind = WORKER_BUNDLE, .package = "w"};

/* Parses from a block of exactly `len` bytes, so that a read past the end is seen by ASan. */
static int parse(const char *text, size_t len, const struct manifest_query *q, struct manifest *m,
	struct err *e)
{
	cleanup_free char *exact = xmalloc(MAX(len, (size_t)1));

	memcpy(exact, text, len);
	*e = ERR_INIT;
	return manifest_parse(exact, len, q, m, e);
}

static void takes(const char *text, const struct manifest_query *q, struct manifest *m)
{
	struct err e;

	if (parse(text, strlen(text), q, m, &e) != 0)
		fail_msg("%s\n%s", text, e.text);
}

static void refuses(
	const char *text, const struct manifest_query *q, const char *code, const char *want)
{
	struct manifest m;
	struct err e;

	if (parse(text, strlen(text), q, &m, &e) >= 0)
		fail_msg("taken: %s", text);
	assert_string_equal(e.text, want);
	assert_string_equal(e.code, code);
	assert_null(strstr(e.text, "SECRET"));
	manifest_done(&m);
}

static void strings_equal(const char *a, const char *b)
{
	if (!str_eq(a, b))
		fail_msg("%s is not %s", a ? a : "(none)", b ? b : "(none)");
}

static void a_whole_manifest_is_taken(void **state)
{
	struct manifest m;

	takes("name: ' w-1.x_Y '\n"
	      "description: a worker\n"
	      "version: 1.0.0\n"
	      "type: vm\n"
	      "runtime: {base_image: 'python:3.12', kind: rust, language: ~, entry: x}\n"
	      "scripts:\n"
	      "  setup: apt-get install -y jq\n"
	      "  install: |\n"
	      "    a\n"
	      "    b\n"
	      "  start: ./run --no\n"
	      "env: {A: '1', B: '', 'c.d': x=y, III_URL: ws://SECRET, NONE: ~}\n"
	      "resources: {cpus: 3, memory: 512}\n"
	      "dependencies: {iii-http: ^1.0}\n"
	      "config: {port: 1, list: [1, 2]}\n",
		&local, &m);
	strings_equal(m.name, "w-1.x_Y");
	strings_equal(m.base_image, "docker.io/library/python:3.12");
	strings_equal(m.setup, "apt-get install -y jq");
	strings_equal(m.install, "a\nb\n");
	strings_equal(m.start, "./run --no");
	assert_int_equal(m.cpus, 3);
	assert_int_equal(m.mem_mib, 512);
	assert_int_equal(strv_len(m.env), 3);
	strings_equal(m.env[0], "A=1");
	strings_equal(m.env[1], "B=");
	strings_equal(m.env[2], "c.d=x=y");
	assert_null(m.warnings);
	manifest_done(&m);
	assert_null(m.name);
}

static void the_least_manifest_has_defaults(void **state)
{
	struct manifest m;

	takes("name: w\nscripts: {start: x}\n", &local, &m);
	strings_equal(m.base_image, NODE);
	assert_null(m.setup);
	assert_null(m.install);
	assert_null(m.env);
	assert_int_equal(m.cpus, MANIFEST_CPUS_DEFAULT);
	assert_int_equal(m.mem_mib, MANIFEST_MEM_DEFAULT_MIB);
	assert_int_equal(strv_len(m.warnings), 1);
	assert_non_null(strstr(m.warnings[0], "`scripts.install` is missing"));
	manifest_done(&m);

	/* An install that is there and empty is meant so; null is absent. */
	takes("name: w\nscripts: {start: x, install: '', setup: '  '}\nenv: ~\nresources:\n",
		&local, &m);
	assert_null(m.warnings);
	assert_null(m.install);
	assert_null(m.setup);
	manifest_done(&m);
	takes("name: w\nscripts: {start: x, install: ~}\n", &local, &m);
	assert_int_equal(strv_len(m.warnings), 1);
	manifest_done(&m);
}

#define M MANIFEST_FILE ": "

static void a_bundle_has_rules_of_its_own(void **state)
{
	const struct manifest_query other = {.kind = WORKER_BUNDLE, .package = "a"};
	const struct manifest_query hostile = {.kind = WORKER_BUNDLE, .package = "\x1b[2J\n"};
	const struct manifest_query overridden = {
		.kind = WORKER_BUNDLE, .package = "w", .run_override = "y"};
	struct manifest m;

	takes("name: w\nscripts: {start: x, setup: ' ', install: i}\n"
	      "runtime: {base_image: alpine, later: 1}\nlater: {}\n",
		&bundle, &m);
	strings_equal(m.base_image, "docker.io/library/alpine:latest");
	strings_equal(m.install, "i");
	manifest_done(&m);
	takes("name: w\nscripts: {start: x}\n", &overridden, &m);
	strings_equal(m.start, "x");
	manifest_done(&m);

	refuses("name: b\nscripts: {start: x}\n", &other, "S500",
		M "`name` is b, but the package that was asked for is a");
	refuses("name: b\nscripts: {start: x}\n", &hostile, "S500",
		M "`name` is b, but the package that was asked for is [2J");
	refuses("name: w\nscripts: {start: x, setup: SECRET}\n", &bundle, "S500",
		M "`scripts.setup` is not allowed in a bundle: what it needs belongs into its base "
		  "image");
	/* Nothing is inferred, and there is no run_override. */
	refuses("name: w\nruntime: {kind: bun, entry: x}\n", &overridden, "S500",
		M
		"`scripts.start` is missing or blank: set it to the command that runs the worker");
	refuses("name: w\nscripts: {start: ' '}\n", &bundle, "S500",
		M
		"`scripts.start` is missing or blank: set it to the command that runs the worker");
}

static void wrong_types_are_told_together(void **state)
{
	refuses("[SECRET]", &local, "S500", M "the top level must be a mapping, not a list");
	refuses("SECRET", &local, "S500", M "the top level must be a mapping, not a string");
	refuses("", &local, "S500", M "the top level must be a mapping, not nothing");
	refuses("name: w\nruntime: SECRET\n", &local, "S500",
		M "`runtime` must be a mapping, not a string");
	refuses("name: w\nscripts: {start: [SECRET, b]}\n", &bundle, "S500",
		M "`scripts.start` must be one command as a string, not a list");
	refuses("name: w\nscripts: {start: x}\nenv: {PORT: 8080}\n", &local, "S500",
		M "`env.PORT` must be a string, not a number: put it in quotes");
	refuses("name: 1.5\n"
		"description: {}\n"
		"runtime: {base_image: [], kind: true, package_manager: 1}\n"
		"scripts: {setup: 1, install: {}, start: \"SECRET\\0\"}\n"
		"env: {'': x, 'A=B': SECRET, C: [SECRET], D: no, E: false}\n"
		"resources: {cpus: two, memory: [1]}\n"
		"dependencies: {a: 1}\n",
		&local, "S500",
		M
		"`name` must be a string, not a number: put it in quotes; "
		"`description` must be a string, not a mapping; "
		"`runtime.base_image` must be a string, not a list; "
		"`runtime.kind` must be a string, not true or false: put it in quotes; "
		"`runtime.package_manager` must be a string, not a number: put it in quotes; "
		"`scripts.setup` must be one command as a string, not a number: put it in quotes; "
		"`scripts.install` must be one command as a string, not a mapping; "
		"`scripts.start` must not have a character U+0000 in it; "
		"`env.(empty)` is no name of an environment variable: it must not be empty nor "
		"have "
		"a '=' in it; "
		"`env.A=B` is no name of an environment variable: it must not be empty nor have a "
		"'=' in it; "
		"`env.C` must be a string, not a list; "
		"`env.E` must be a string, not true or false: put it in quotes; "
		"`resources.cpus` must be a whole number from 1 to 4294967295, not a string; "
		"`resources.memory` must be a whole number from 1 to 4294967295, not a list; "
		"`dependencies.a` must be a string, not a number: put it in quotes");
}

/* However many there are, the error ends, and says how many it left out. */
static void very_many_faults_are_counted(void **state)
{
	struct buf text cleanup_buf;
	struct manifest m;
	struct err e;

	buf_init(&text, MANIFEST_BYTES_MAX);
	buf_add_str(&text, "name: w\nenv:\n");
	for (int i = 0; i < 1000; i++)
		assert_int_equal(buf_printf(&text, "  NAME_%d: %d\n", i, i), 0);
	assert_int_equal(parse((char *)text.data, text.len, &local, &m, &e), -EINVAL);
	assert_non_null(strstr(e.text, "`env.NAME_0` must be a string"));
	assert_true(str_ends(e.text, " more"));
	manifest_done(&m);
}

static void unknown_keys_are_refused_in_local_sources(void **state)
{
	static const char unknown[] =
		"name: w\nscripts: {start: x, install: '', instal: SECRET}\n"
		"runtime: {base-image: SECRET}\nresources: {cpu: 2}\n"
		"\"x\\e[31m\\u202ey\": SECRET\nenv: {anything: x}\ndependencies: {any: '*'}\n";
	static const char known[] =
		"name: w\nscripts: {start: x, install: ''}\n"
		"iii: v1\nversion: 1.0.0\ntype: binary\nbin: b\nrepo: r\n"
		"license: l\nauthor: {a: b}\ntags: [a]\ndeploy: x\nmanifest: 1\n"
		"config: [x]\nlanguage: rust\nentry: y\nsupported_targets: [z]\n";
	struct manifest m;

	refuses(unknown, &local, "S500",
		M "`scripts.instal` is not known (known here: setup, install, start); "
		  "`runtime.base-image` is not known (known here: base_image, kind, language, "
		  "package_manager, entry); "
		  "`resources.cpu` is not known (known here: cpus, memory); "
		  "`x[31my` is not known (known here: name, description, runtime, scripts, env, "
		  "resources, dependencies, config)");
	takes(unknown, &bundle, &m);
	manifest_done(&m);
	takes(known, &local, &m);
	strings_equal(m.base_image, NODE);
	assert_null(m.warnings);
	manifest_done(&m);
}

static void yaml_faults_name_the_place(void **state)
{
	struct manifest m;
	struct err e;

	refuses("name: w\nscripts: {start: x\n", &bundle, "S500",
		M "not valid YAML: line 3, column 1: did not find expected ',' or '}'");
	refuses("name: w\nscripts:\n  start: SECRET\n  start: y\n", &bundle, "S500",
		M "not valid YAML: line 4, column 3: `scripts.start` is there twice");
	refuses("name: w\n---\nname: w\n", &local, "S500",
		M "not valid YAML: line 2, column 1: there is more than one document");
	assert_int_equal(parse("name: \xff", 7, &local, &m, &e), -EINVAL);
	assert_string_equal(e.text, M "not valid YAML: line 1, column 7: a byte is not UTF-8");
	manifest_done(&m);
}

static void names_are_one_path_segment(void **state)
{
	static const char *const bad[] = {
		"a/b", ".a", "a..b", "..", "a b", "caf\xc3\xa9", "a:b", "a\\tb", "-\\n-"};
	static const char *const good[] = {"a", "A.b_c-9", "-", "_", "a.", "0"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cleanup_free char *text = xasprintf("name: \"%s\"\nscripts: {start: x}\n", bad[i]);

		refuses(text, &local, "S500",
			M "`name` must be 1 to 255 of the characters A-Z a-z 0-9 . _ -, not begin "
			  "with a dot and not have two dots in a row");
	}
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		cleanup_free char *text = xasprintf("name: '%s'\nscripts: {start: x}\n", good[i]);
		struct manifest m;

		takes(text, &local, &m);
		strings_equal(m.name, good[i]);
		manifest_done(&m);
	}
	refuses("scripts: {start: x}\n", &local, "S500", M "`name` is missing");
	refuses("name: ' '\nscripts: {start: x}\n", &bundle, "S500", M "`name` is missing");
}

static void images_are_plausible_and_whole(void **state)
{
	static const struct {
		const char *text, *want;
	} good[] = {
		{"alpine", "docker.io/library/alpine:latest"},
		{" oven/bun:1 ", "docker.io/oven/bun:1"},
		{"ghcr.io/acme/x:1.2", "ghcr.io/acme/x:1.2"},
		{"localhost:5000/x@" DIGEST, "localhost:5000/x@" DIGEST},
		{"x:1@" DIGEST, "docker.io/library/x:1@" DIGEST},
		/* No way to a file of this host. */
		{"oci:folder", "docker.io/library/oci:folder"},
		{"docker-archive:file.tar", "docker.io/library/docker-archive:file.tar"},
		{"", NODE},
		{" ", NODE},
	};
	static const char *const bad[] = {"SECRET", "/etc/passwd", "oci:/etc", "../x", "a b", "a;b",
		"docker://alpine", "http://x/y", "x:", "x@sha256:12", "$(id)", "x+y", "-x", D64};
	struct manifest m;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		cleanup_free char *text =
			xasprintf("name: w\nruntime: {base_image: '%s'}\nscripts: {start: x}\n",
				good[i].text);

		takes(text, &bundle, &m);
		strings_equal(m.base_image, good[i].want);
		manifest_done(&m);
	}
	for (size_t i = 0; i < 2 * ARRAY_LEN(bad); i++) {
		cleanup_free char *text = xasprintf(
			"name: w\nruntime: {base_image: '%s', kind: bun}\nscripts: {start: "
			"x}\n",
			bad[i / 2]);

		refuses(text, i % 2 ? &local : &bundle, "S500",
			M
			"`runtime.base_image` is not the reference of an image in a registry: the "
			"form is [registry/]repository[:tag][@sha256:digest] with a lower-case "
			"repository, at most 512 bytes");
	}
}

static void resources_have_bounds(void **state)
{
	static const struct {
		const char *resources;
		const struct manifest_query *q;
		uint32_t cpus, mem_mib;
		const char *warning;
	} good[] = {
		{"{cpus: 1, memory: 128}", &local, 1, 128, NULL},
		{"{cpus: 0x8}", &local, 8, 2048, NULL},
		{"{cpus: 64, memory: 1048576}", &local, VM_VCPUS_MAX, 1048576, NULL},
		{"{cpus: 4, memory: 4096}", &bundle, 4, 4096, NULL},
		{"{cpus: 64, memory: 1048576}", &bundle, 4, 4096,
			"the bundle asks for 64 vCPUs and 1048576 MiB of memory: a bundle gets at "
			"most 4 and 4096 MiB"},
		{"{cpus: 4294967295}", &bundle, 4, 2048,
			"the bundle asks for 4294967295 vCPUs and 2048 MiB of memory: a bundle "
			"gets "
			"at most 4 and 4096 MiB"},
		{"{memory: 1}", &local, 2, 128,
			"`resources.memory` is 1 MiB: it was raised to 128 MiB, the least that a "
			"worker gets"},
		{"{memory: 127}", &bundle, 2, 128,
			"`resources.memory` is 127 MiB: it was raised to 128 MiB, the least that a "
			"worker gets"},
	};
	static const struct {
		const char *resources, *want;
	} bad[] = {
		{"{cpus: 0}", M "`resources.cpus` must be a whole number from 1 to 4294967295"},
		{"{memory: 0}", M "`resources.memory` must be a whole number from 1 to 4294967295"},
		{"{cpus: -1}", M "`resources.cpus` must be a whole number from 1 to 4294967295"},
		{"{memory: 4294967296}",
			M "`resources.memory` must be a whole number from 1 to 4294967295"},
		{"{memory: 18446744073709551615}",
			M "`resources.memory` must be a whole number from 1 to 4294967295"},
		{"{memory: 18446744073709551616}",
			M "`resources.memory` must be a whole number from 1 to 4294967295, not a "
			  "fraction or a larger one"},
		{"{cpus: 1.5}", M "`resources.cpus` must be a whole number from 1 to 4294967295, "
				  "not a fraction or a larger one"},
		{"{cpus: '2'}", M "`resources.cpus` must be a whole number from 1 to 4294967295, "
				  "not a string"},
		{"[]", M "`resources` must be a mapping, not a list"},
	};

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		cleanup_free char *text =
			xasprintf("name: w\nscripts: {start: x, install: ''}\nresources: %s\n",
				good[i].resources);
		struct manifest m;

		takes(text, good[i].q, &m);
		assert_int_equal(m.cpus, good[i].cpus);
		assert_int_equal(m.mem_mib, good[i].mem_mib);
		assert_int_equal(strv_len(m.warnings), good[i].warning ? 1 : 0);
		if (good[i].warning)
			strings_equal(m.warnings[0], good[i].warning);
		manifest_done(&m);
	}
	for (size_t i = 0; i < 2 * ARRAY_LEN(bad); i++) {
		cleanup_free char *text = xasprintf(
			"name: w\nscripts: {start: x}\nresources: %s\n", bad[i / 2].resources);

		refuses(text, i % 2 ? &local : &bundle, "S500", bad[i / 2].want);
	}
	refuses("name: w\nscripts: {start: x}\nresources: {cpus: 300}\n", &local, "S400",
		M "`resources.cpus` is 300: a VM has at most 64 vCPUs, ask for fewer");
}

static void run_override_replaces_the_command_alone(void **state)
{
	const struct manifest_query q = {.kind = WORKER_LOCAL, .run_override = " node x.js\n"},
				    blank = {.kind = WORKER_LOCAL, .run_override = " \t\n"};
	struct manifest m;

	takes("name: w\nscripts: {setup: s, install: i}\n", &q, &m);
	strings_equal(m.start, "node x.js");
	strings_equal(m.setup, "s");
	strings_equal(m.install, "i");
	manifest_done(&m);
	takes("name: w\nscripts: {start: y}\n", &q, &m);
	strings_equal(m.start, "node x.js");
	manifest_done(&m);
	takes("name: w\nscripts: {start: y}\n", &blank, &m);
	strings_equal(m.start, "y");
	manifest_done(&m);
	/* Without scripts: setup and install of the kind, as far as they follow. */
	takes("name: w\nruntime: {kind: bun}\n", &q, &m);
	strings_equal(m.start, "node x.js");
	strings_equal(m.install, "bun install");
	manifest_done(&m);
	takes("name: w\n", &q, &m);
	strings_equal(m.start, "node x.js");
	assert_null(m.install);
	manifest_done(&m);

	refuses("name: w\nscripts: {install: i}\n", &blank, "S500",
		M
		"`scripts.start` is missing or blank: set it to the command that runs the worker");
	refuses("name: w\nscripts: SECRET\n", &q, "S500",
		M "`scripts` must be a mapping, not a string");

	cleanup_free char *long_text = xmalloc(WORKER_SCRIPT_MAX + 2);
	struct manifest_query long_q = {.kind = WORKER_LOCAL, .run_override = long_text};

	memset(long_text, 'x', WORKER_SCRIPT_MAX + 1);
	long_text[WORKER_SCRIPT_MAX + 1] = '\0';
	refuses("name: w\n", &long_q, "S500",
		"run_override has more than 65536 bytes: put it into a file of the project");
	long_text[WORKER_SCRIPT_MAX] = '\0';
	takes("name: w\n", &long_q, &m);
	assert_int_equal(strlen(m.start), WORKER_SCRIPT_MAX);
	manifest_done(&m);
}

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

static void sizes_have_limits(void **state)
{
	struct buf text cleanup_buf;
	struct manifest m;
	struct err e;

	buf_init(&text, 1 << 20);
	buf_add_str(&text, "name: w\nscripts: {start: x}\n#");
	while (text.len < MANIFEST_BYTES_MAX)
		buf_add(&text, "#", 1);
	assert_int_equal(parse((char *)text.data, text.len, &local, &m, &e), 0);
	manifest_done(&m);
	buf_add(&text, "#", 1);
	assert_int_equal(parse((char *)text.data, text.len, &local, &m, &e), -EINVAL);
	assert_string_equal(e.text, M "the file has more than 65536 bytes");
	manifest_done(&m);

	/* Escapes that become longer than they are written. */
	buf_clear(&text);
	buf_add_str(&text, "name: w\nscripts: {start: \"");
	for (int i = 0; i < 22000; i++)
		buf_add_str(&text, "\\L");
	buf_add_str(&text, "\"}\n");
	assert_int_equal(parse((char *)text.data, text.len, &local, &m, &e), -EINVAL);
	assert_string_equal(e.text,
		M "`scripts.start` has more than 65536 bytes: put it into a file of the project");
	manifest_done(&m);

	buf_clear(&text);
	buf_add_str(&text, "name: w\nscripts: {start: x}\nconfig:\n");
	for (int i = 0; i < 5000; i++)
		buf_printf(&text, " a%d: 1\n", i);
	assert_int_equal(parse((char *)text.data, text.len, &bundle, &m, &e), -EINVAL);
	assert_non_null(strstr(e.text, "more than 10000 values"));
	manifest_done(&m);
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

/* The one of this program is published metadata: no worker in a VM, but every key is known. */
static void our_own_manifest_is_readable(void **state)
{
	const struct manifest_query q = {.kind = WORKER_LOCAL, .run_override = "x"};
	const struct manifest_query b = {.kind = WORKER_BUNDLE, .package = "sandbox-libkrun"};
	cleanup_free char *text = NULL;
	struct manifest m;
	size_t len;
	struct err e;

	assert_int_equal(fd_slurp_at(AT_FDCWD, TEST_DATA "/../../iii.worker.yaml",
				 MANIFEST_BYTES_MAX, &text, &len),
		0);
	takes(text, &q, &m);
	strings_equal(m.name, "sandbox-libkrun");
	manifest_done(&m);
	assert_int_equal(parse(text, len, &b, &m, &e), -EINVAL);
	assert_string_equal(e.text, M
		"`scripts.start` is missing or blank: set it to the command that runs the worker");
	manifest_done(&m);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_whole_manifest_is_taken),
		cmocka_unit_test(the_least_manifest_has_defaults),
		cmocka_unit_test(a_bundle_has_rules_of_its_own),
		cmocka_unit_test(wrong_types_are_told_together),
		cmocka_unit_test(very_many_faults_are_counted),
		cmocka_unit_test(unknown_keys_are_refused_in_local_sources),
		cmocka_unit_test(yaml_faults_name_the_place),
		cmocka_unit_test(names_are_one_path_segment),
		cmocka_unit_test(images_are_plausible_and_whole),
		cmocka_unit_test(resources_have_bounds),
		cmocka_unit_test(run_override_replaces_the_command_alone),
		cmocka_unit_test(commands_follow_from_the_kind),
		cmocka_unit_test(sizes_have_limits),
		IN_FOLDER(a_manifest_is_read_from_the_folder),
		IN_FOLDER(what_is_no_file_of_the_folder_is_refused),
		IN_FOLDER(bundles_need_a_manifest_and_can_be_switched_off),
		IN_FOLDER(a_project_without_a_manifest_is_looked_at),
		cmocka_unit_test(our_own_manifest_is_readable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
