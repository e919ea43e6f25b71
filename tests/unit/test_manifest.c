/* host/worker/manifest: what a text gives, what is refused and how. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/fd.h"
#include "host/vm/vm.h"
#include "manifest_calls.h"

#define D64    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define DIGEST "sha256:" D64

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

/* The one of this program is published metadata: no worker in a VM, but every key is known. */
static void variables_are_counted(void **state)
{
	char text[16384] =
		"name: w\nruntime: {base_image: a}\nscripts: {start: x, install: ''}\nenv:\n";
	size_t at = strlen(text);
	struct manifest m;

	for (int i = 0; i < MANIFEST_ENV_MAX; i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "  V%d: SECRET\n", i);
	takes(text, &local, &m);
	assert_int_equal(strv_len(m.env), MANIFEST_ENV_MAX);
	manifest_done(&m);
	snprintf(text + at, sizeof(text) - at, "  MORE: SECRET\n");
	refuses(text, &local, "S500", M "`env` has more than 256 variables");
}

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
		cmocka_unit_test(sizes_have_limits),
		cmocka_unit_test(variables_are_counted),
		cmocka_unit_test(our_own_manifest_is_readable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
