/* sandbox-libkrun image: get, list and remove the images that VMs boot from.
 *
 * People get a table or one line, and a bar on stderr while something long runs; programs say
 * --json and get one JSON object a line on stdout, errors included. Ctrl-C cancels a fetch, which
 * then cleans up behind itself; a second one ends the program at once (what is left then is swept
 * by the next fetch).
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/image/catalog.h"
#include "host/image/image.h"
#include "host/image/source.h"
#include "host/image/store.h"
#include "host/progress.h"
#include "host/verbs.h"
#include "wire/json.h"
#include "wire/oci.h"

#define PROGRAM		 "sandbox-libkrun image"
#define DIGEST_SHOWN	 12 /* hex digits of a digest in tables */
#define DIGEST_GIVEN_MIN 8  /* hex digits that are enough to name an image */
#define PROGRESS_MS	 100

static const char overview[] =
	"Usage: sandbox-libkrun image COMMAND [OPTION]…\n"
	"\n"
	"Gets, lists and removes the images that VMs boot from.\n"
	"\n"
	"Commands:\n"
	"  pull     get an image from a registry\n"
	"  import   get an image from a file or folder\n"
	"  list     show what is in the cache\n"
	"  rm       remove an image\n"
	"  gc       remove what is not in use\n"
	"\n"
	"'sandbox-libkrun image COMMAND --help' tells more about one of them.\n"
	"\n"
	"The cache is $III_SANDBOX_CACHE_DIR/images, else $XDG_CACHE_HOME/sandbox-libkrun/images,\n"
	"else ~/.cache/sandbox-libkrun/images. When it grows beyond III_SANDBOX_CACHE_MAX (20G),\n"
	"images that are not in use go, longest unused first.\n";

static const char pull_help[] =
	"Usage: sandbox-libkrun image pull [OPTION]… REFERENCE\n"
	"\n"
	"Gets an image from a registry and makes a disk of it.\n"
	"REFERENCE is a preset (python, node) or [REGISTRY/]NAME[:TAG][@DIGEST].\n"
	"\n"
	"Options:\n"
	"  --as NAME        store it under this name instead of the reference\n"
	"  --authfile FILE  credentials, as 'skopeo login' writes them\n"
	"  --json           progress and result as JSON lines on stdout\n"
	"  --quiet          no progress bar\n"
	"  --help           print this text\n"
	"\n"
	"Mirrors and credentials are those of skopeo and podman: registries.conf, 'skopeo login'.\n"
	"Registries without TLS: localhost, and those in III_INSECURE_REGISTRIES=HOST[:PORT],…\n"
	"\n"
	"Examples:\n"
	"  sandbox-libkrun image pull python\n"
	"  sandbox-libkrun image pull alpine:3.20 --as small\n";

static const char import_help[] =
	"Usage: sandbox-libkrun image import [OPTION]… --as NAME SOURCE\n"
	"\n"
	"Makes a disk of an image in a file or folder; no network is needed. SOURCE is\n"
	"  oci:FOLDER[:TAG or @DIGEST]      an OCI layout\n"
	"  oci-archive:FILE[:TAG]           the same as a tar file\n"
	"  docker-archive:FILE[:NAME:TAG]   what 'docker save' and 'podman save' write\n"
	"Archives may be compressed with gzip or zstd.\n"
	"\n"
	"Options:\n"
	"  --as NAME  the name to use it by: a word, a reference, or a preset (python, node)\n"
	"  --json     progress and result as JSON lines on stdout\n"
	"  --quiet    no progress bar\n"
	"  --help     print this text\n"
	"\n"
	"Example:\n"
	"  docker save -o python.tar python:3.12\n"
	"  sandbox-libkrun image import docker-archive:python.tar --as python\n";

static const char list_help[] = "Usage: sandbox-libkrun image list [OPTION]…\n"
				"\n"
				"Shows the images in the cache, most recently used first.\n"
				"\n"
				"Options:\n"
				"  --json  one JSON object a line on stdout\n"
				"  --help  print this text\n";

static const char rm_help[] =
	"Usage: sandbox-libkrun image rm [OPTION]… NAME…\n"
	"\n"
	"Removes names from the cache; the disk goes with its last name.\n"
	"NAME is what 'image list' shows: a name, a reference, or a digest (its first 8 digits\n"
	"are enough), which removes the disk with all its names.\n"
	"\n"
	"Options:\n"
	"  --force  also when a sandbox uses it (it keeps its open disk)\n"
	"  --json   the result as JSON lines on stdout\n"
	"  --help   print this text\n";

static const char gc_help[] =
	"Usage: sandbox-libkrun image gc [OPTION]…\n"
	"\n"
	"Removes leftovers, images without a name, and then, longest unused first, images that "
	"are\n"
	"not in use until the cache is within its limit.\n"
	"\n"
	"Options:\n"
	"  --max SIZE  the limit, such as 512M or 20G (default: III_SANDBOX_CACHE_MAX, else 20G)\n"
	"  --all       remove every image that is not in use, and unfinished downloads\n"
	"  --json      the result as a JSON line on stdout\n"
	"  --help      print this text\n";

struct options {
	const char *verb;
	const char *as, *auth_file, *max;
	bool json, quiet, force, all;
	char **args; /* what is not an option */
	int n_args;
};

/* ---- output ---- */

static void print_json(json_object *o)
{
	size_t len;
	const char *text = json_text(o, &len);

	fwrite(text, 1, len, stdout);
	putchar('\n');
	fflush(stdout);
}

static int fail(const struct options *o, const struct err *e)
{
	if (o->json) {
		cleanup_json json_object *line = json_object_new_object();

		json_add_str(line, "event", "error");
		json_add_str(line, "code", e->code);
		json_add_u64(line, "errno", (uint64_t)e->no);
		json_add_str(line, "message", e->text);
		print_json(line);
	} else {
		fprintf(stderr, "sandbox-libkrun: %s\n", e->text);
	}
	return EXIT_FAILED;
}

static int usage(const struct options *o, const char *what, const char *which)
{
	fprintf(stderr, PROGRAM " %s: %s%s%s\n'" PROGRAM " %s --help' tells more\n", o->verb, what,
		which ? " " : "", which ? which : "", o->verb);
	return EXIT_USAGE;
}

/* ---- pull and import ---- */

static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
	interrupted = sig;
}

/* Once: the second of the same kind has its default effect. */
static void catch_signals(void)
{
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};
	static const int sigs[] = {SIGINT, SIGTERM, SIGHUP};

	for (size_t i = 0; i < ARRAY_LEN(sigs); i++)
		sigaction(sigs[i], &sa, NULL);
}

static bool is_interrupted(void *user)
{
	return interrupted;
}

struct reporter {
	const struct options *options;
	struct progress_bar bar;
	char last_stage[16];
	uint64_t last_ms;
	bool was_whole; /* the last line said that all bytes were there */
};

static void on_progress(const struct image_progress *p, void *user)
{
	struct reporter *rep = user;
	bool fresh = !str_eq(rep->last_stage, p->stage);
	bool whole = p->total_bytes && p->done_bytes == p->total_bytes && !rep->was_whole;
	uint64_t now = (uint64_t)clock_ms();

	if (!rep->options->json) {
		progress_bar_update(p, &rep->bar);
		return;
	}
	/* The end of a stage is always told, and once. */
	if (str_eq(p->stage, "done") || (!fresh && !whole && now - rep->last_ms < PROGRESS_MS))
		return;
	rep->was_whole = p->total_bytes && p->done_bytes == p->total_bytes;
	rep->last_ms = now;
	snprintf(rep->last_stage, sizeof(rep->last_stage), "%s", p->stage);

	cleanup_json json_object *line = json_object_new_object();

	json_add_str(line, "event", "progress");
	json_add_str(line, "stage", p->stage);
	json_add_u64(line, "done_bytes", p->done_bytes);
	json_add_u64(line, "total_bytes", p->total_bytes);
	print_json(line);
}

static void print_fetched(const struct options *o, const char *name, const struct image *img)
{
	char size[16];

	if (o->json) {
		cleanup_json json_object *line = json_object_new_object();

		json_add_str(line, "event", "done");
		json_add_str(line, "name", name);
		json_add_str(line, "ref", img->ref);
		json_add_str(line, "digest", img->digest);
		json_add_u64(line, "disk_bytes", img->disk_bytes);
		print_json(line);
	} else {
		printf("%s  %s  %s\n", name, img->digest, str_human_size(img->disk_bytes, size));
	}
}

static int fetch(const struct options *o, const char *source)
{
	const char *name = o->as ? o->as : source;
	struct reporter rep = {.options = o};
	struct image *img = NULL;
	struct err e = ERR_INIT;
	int r;

	catch_signals();
	progress_bar_init(&rep.bar, name, o->quiet || o->json);
	r = image_fetch(source, o->as, on_progress, &rep, is_interrupted, &e);
	progress_bar_done(&rep.bar);
	if (r >= 0)
		r = image_open(name, &img, &e);
	if (r < 0)
		return fail(o, &e);
	print_fetched(o, name, img);
	image_close(img);
	return EXIT_OK;
}

/* Is it a source of this kind? -1: it is none at all. */
static int is_registry(const struct options *o, const char *source, int *ret_status)
{
	struct source_spec spec;
	struct err e = ERR_INIT;
	int registry;

	if (source_spec_parse(source, &spec, &e) < 0) {
		*ret_status = fail(o, &e);
		return -1;
	}
	registry = spec.kind == SOURCE_REGISTRY;
	source_spec_done(&spec);
	return registry;
}

static int run_pull(const struct options *o)
{
	int status, registry;

	if (o->n_args != 1)
		return usage(o, o->n_args ? "give one reference at a time" : "which image?", NULL);
	registry = is_registry(o, o->args[0], &status);
	if (registry < 0)
		return status;
	if (!registry)
		return usage(o, "this is a local source, use 'image import' for", o->args[0]);
	if (o->auth_file)
		setenv("REGISTRY_AUTH_FILE", o->auth_file, true);
	return fetch(o, o->args[0]);
}

static int run_import(const struct options *o)
{
	int status, registry;

	if (o->n_args != 1)
		return usage(o, o->n_args ? "give one source at a time" : "from where?", NULL);
	if (!o->as)
		return usage(o, "say with --as NAME what it is to be called", NULL);
	registry = is_registry(o, o->args[0], &status);
	if (registry < 0)
		return status;
	if (registry)
		return usage(o,
			"a source begins with oci:, oci-archive: or docker-archive:; to ask a "
			"registry, use 'image pull' for",
			o->args[0]);
	return fetch(o, o->args[0]);
}

/* ---- list ---- */

static const char *age_text(time_t then, char dst[static 32])
{
	static const struct {
		long seconds;
		const char *unit;
	} units[] = {{86400, "day"}, {3600, "hour"}, {60, "minute"}};
	long age = (long)(time(NULL) - then);

	for (size_t i = 0; i < ARRAY_LEN(units); i++) {
		long n = age / units[i].seconds;

		if (n > 0) {
			snprintf(dst, 32, "%ld %s%s ago", n, units[i].unit, n > 1 ? "s" : "");
			return dst;
		}
	}
	return "just now";
}

/* A path in a name may hold anything; a terminal must not see it raw. */
static char *printable(const char *s)
{
	char *copy = xstrdup(s);

	for (char *p = copy; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	return copy;
}

static char *shown_name(const char *name)
{
	const char *preset = catalog_preset_name(name);

	return preset ? xasprintf("%s (%s)", preset, name) : printable(name);
}

static void print_row(const struct store_item *item, const char *name, int width)
{
	char size[16], age[32];

	printf("%-*s  sha256:%.*s  %8s  %s%s\n", width, name, DIGEST_SHOWN,
		oci_digest_hex(item->meta.digest), str_human_size(item->meta.disk_bytes, size),
		age_text(item->used, age), item->in_use ? ", in use" : "");
}

static void print_table(const struct store_item *items, size_t n)
{
	size_t width = strlen("NAME");

	if (!n) {
		/* Not on stdout: a script that looks for a name there must not find this. */
		fputs("There are no images yet; 'sandbox-libkrun image pull python' gets one.\n",
			stderr);
		return;
	}
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; items[i].names[k]; k++) {
			cleanup_free char *name = shown_name(items[i].names[k]);

			width = MAX(width, strlen(name));
		}
	printf("%-*s  %-*s  %8s  %s\n", (int)width, "NAME", DIGEST_SHOWN + 7, "DIGEST", "SIZE",
		"USED");
	for (size_t i = 0; i < n; i++) {
		if (!items[i].names[0])
			print_row(&items[i], "-", (int)width);
		for (size_t k = 0; items[i].names[k]; k++) {
			cleanup_free char *name = shown_name(items[i].names[k]);

			print_row(&items[i], name, (int)width);
		}
	}
}

/* One line a name, as in the table; "name" is null where nothing points at the image. */
static void print_name_json(const struct store_item *item, const char *name)
{
	cleanup_json json_object *line = json_object_new_object();
	const char *preset = name ? catalog_preset_name(name) : NULL;

	if (name) {
		json_add_str(line, "name", preset ? preset : name);
		json_add_str(line, "ref", name);
	} else {
		json_object_object_add(line, "name", NULL);
		json_object_object_add(line, "ref", NULL);
	}
	json_add_str(line, "digest", item->meta.digest);
	json_add_str(line, "source", item->meta.source);
	json_add_str(line, "arch", item->meta.arch);
	json_add_u64(line, "disk_bytes", item->meta.disk_bytes);
	json_add_u64(line, "download_bytes", item->meta.download_bytes);
	json_add_u64(line, "created", item->meta.created);
	json_add_i64(line, "used", item->used);
	json_add_bool(line, "in_use", item->in_use);
	print_json(line);
}

static void print_list_json(const struct store_item *items, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (!items[i].names[0])
			print_name_json(&items[i], NULL);
		for (size_t k = 0; items[i].names[k]; k++)
			print_name_json(&items[i], items[i].names[k]);
	}
}

static int run_list(const struct options *o)
{
	struct store_item *items = NULL;
	struct store *s = NULL;
	struct err e = ERR_INIT;
	size_t n = 0;
	int r;

	if (o->n_args)
		return usage(o, "what to do with", o->args[0]);
	r = store_open(&s, &e);
	if (r >= 0)
		r = store_list(s, &items, &n, &e);
	if (r >= 0 && o->json)
		print_list_json(items, n);
	else if (r >= 0)
		print_table(items, n);
	store_list_free(items, n);
	store_close(s);
	return r < 0 ? fail(o, &e) : EXIT_OK;
}

/* ---- rm ---- */

/* The one entry whose digest begins so. -ENOENT when `text` is no digest, or of no entry. */
static int find_digest(struct store *s, const char *text, char ret[static 72], struct err *e)
{
	const char *hex = str_starts(text, "sha256:") ? text + 7 : text;
	size_t len = strlen(hex), n, found = 0;
	struct store_item *items;
	int r;

	if (len < DIGEST_GIVEN_MIN || len > 64 || strspn(hex, "0123456789abcdef") != len)
		return -ENOENT;
	r = store_list(s, &items, &n, e);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++) {
		if (!str_starts(oci_digest_hex(items[i].meta.digest), hex))
			continue;
		memcpy(ret, items[i].meta.digest, OCI_DIGEST_LEN + 1);
		found++;
	}
	store_list_free(items, n);
	if (found > 1)
		return err_set(
			e, "", EINVAL, "%zu images begin with %s: give more digits", found, text);
	return found ? 0 : -ENOENT;
}

/* The store name that `text` means. -ENOENT when there is none. */
static int find_name(struct store *s, const char *text, char **ret)
{
	char **names = NULL, digest[72];
	int r = catalog_candidates(text, &names, NULL) < 0 ? -ENOENT : 0;

	for (size_t i = 0; r == 0 && names[i]; i++) {
		if (store_lookup(s, names[i], digest, NULL) < 0)
			continue;
		*ret = xstrdup(names[i]);
		strv_free(names);
		return 0;
	}
	strv_free(names);
	return -ENOENT;
}

static int remove_one(struct store *s, const struct options *o, const char *text, struct err *e)
{
	cleanup_free char *name = NULL;
	char digest[72];
	bool disk_gone = true;
	int r = find_name(s, text, &name);

	if (r == 0) {
		r = store_remove_name(s, name, o->force, e);
		disk_gone = r == 1;
	} else {
		r = find_digest(s, text, digest, e);
		if (r == -ENOENT)
			return err_set(e, "S101", ENOENT,
				"%s is not in the cache; '" PROGRAM " list' shows what is", text);
		if (r == 0)
			r = store_remove_digest(s, digest, o->force, e);
	}
	if (r < 0)
		return r;
	if (o->json) {
		cleanup_json json_object *line = json_object_new_object();

		json_add_str(line, "event", "removed");
		json_add_str(line, "name", text);
		json_add_bool(line, "disk", disk_gone);
		print_json(line);
	} else {
		printf("%s removed%s\n", text,
			disk_gone ? "" : " (its disk stays: it has another name)");
	}
	return 0;
}

static int run_rm(const struct options *o)
{
	struct store *s = NULL;
	struct err e = ERR_INIT;
	int status = EXIT_OK;

	if (!o->n_args)
		return usage(o, "which image?", NULL);
	if (store_open(&s, &e) < 0)
		return fail(o, &e);
	for (int i = 0; i < o->n_args; i++)
		if (remove_one(s, o, o->args[i], &e) < 0)
			status = fail(o, &e);
	store_close(s);
	return status;
}

/* ---- gc ---- */

static void print_gc(const struct options *o, const struct store_gc_result *res)
{
	char freed[16], kept[16];

	if (o->json) {
		cleanup_json json_object *line = json_object_new_object();

		json_add_str(line, "event", "done");
		json_add_u64(line, "removed", res->entries);
		json_add_u64(line, "freed_bytes", res->bytes);
		json_add_u64(line, "kept_bytes", res->kept_bytes);
		json_add_u64(line, "in_use_skipped", res->in_use_skipped);
		print_json(line);
		return;
	}
	printf("%u image%s removed, %s freed, %s left", res->entries, res->entries == 1 ? "" : "s",
		str_human_size(res->bytes, freed), str_human_size(res->kept_bytes, kept));
	if (res->in_use_skipped)
		printf(" (%u in use)", res->in_use_skipped);
	putchar('\n');
}

static int run_gc(const struct options *o)
{
	struct store_gc_result res;
	struct store *s = NULL;
	struct err e = ERR_INIT;
	uint64_t max;
	int r;

	if (o->n_args)
		return usage(o, "what to do with", o->args[0]);
	if (o->max && o->all)
		return usage(o, "--max and --all exclude each other", NULL);
	if (o->max && str_size(o->max, &max) < 0)
		return usage(o, "--max takes a size such as 512M or 20G, not", o->max);
	r = o->max ? 0 : store_max_bytes(&max, &e);
	if (r >= 0)
		r = store_open(&s, &e);
	if (r >= 0) {
		store_sweep(s, o->all);
		r = store_gc(s, o->all ? 0 : max, true, &res, &e);
	}
	store_close(s);
	if (r < 0)
		return fail(o, &e);
	print_gc(o, &res);
	return EXIT_OK;
}

/* ---- the verb ---- */

enum option_id {
	OPT_AS = 1,
	OPT_AUTHFILE,
	OPT_JSON,
	OPT_QUIET,
	OPT_FORCE,
	OPT_MAX,
	OPT_ALL,
	OPT_HELP,
};

#define OPTION_AS                                                                                  \
	{                                                                                          \
		"as", required_argument, NULL, OPT_AS                                              \
	}
#define OPTION_AUTHFILE                                                                            \
	{                                                                                          \
		"authfile", required_argument, NULL, OPT_AUTHFILE                                  \
	}
#define OPTION_JSON                                                                                \
	{                                                                                          \
		"json", no_argument, NULL, OPT_JSON                                                \
	}
#define OPTION_QUIET                                                                               \
	{                                                                                          \
		"quiet", no_argument, NULL, OPT_QUIET                                              \
	}
#define OPTION_FORCE                                                                               \
	{                                                                                          \
		"force", no_argument, NULL, OPT_FORCE                                              \
	}
#define OPTION_MAX                                                                                 \
	{                                                                                          \
		"max", required_argument, NULL, OPT_MAX                                            \
	}
#define OPTION_ALL                                                                                 \
	{                                                                                          \
		"all", no_argument, NULL, OPT_ALL                                                  \
	}
#define OPTION_HELP                                                                                \
	{                                                                                          \
		"help", no_argument, NULL, OPT_HELP                                                \
	}

static const struct command {
	const char *name, *help;
	int (*run)(const struct options *o);
	struct option options[6];
} commands[] = {
	{"pull", pull_help, run_pull,
		{OPTION_AS, OPTION_AUTHFILE, OPTION_JSON, OPTION_QUIET, OPTION_HELP}},
	{"import", import_help, run_import, {OPTION_AS, OPTION_JSON, OPTION_QUIET, OPTION_HELP}},
	{"list", list_help, run_list, {OPTION_JSON, OPTION_HELP}},
	{"rm", rm_help, run_rm, {OPTION_FORCE, OPTION_JSON, OPTION_HELP}},
	{"gc", gc_help, run_gc, {OPTION_MAX, OPTION_ALL, OPTION_JSON, OPTION_HELP}},
};

static int run_command(const struct command *c, int argc, char **argv)
{
	struct options o = {.verb = c->name};
	int id;

	optind = 0; /* glibc: start over, options and arguments may be mixed */
	opterr = 0;
	while ((id = getopt_long(argc, argv, ":h", c->options, NULL)) != -1) {
		switch (id) {
		case OPT_AS:
			o.as = optarg;
			break;
		case OPT_AUTHFILE:
			o.auth_file = optarg;
			break;
		case OPT_JSON:
			o.json = true;
			break;
		case OPT_QUIET:
			o.quiet = true;
			break;
		case OPT_FORCE:
			o.force = true;
			break;
		case OPT_MAX:
			o.max = optarg;
			break;
		case OPT_ALL:
			o.all = true;
			break;
		case OPT_HELP:
		case 'h':
			fputs(c->help, stdout);
			return EXIT_OK;
		case ':':
			return usage(&o, "a value is missing after", argv[optind - 1]);
		default:
			return usage(&o, "unknown option", argv[optind - 1]);
		}
	}
	o.args = argv + optind;
	o.n_args = argc - optind;
	return c->run(&o);
}

int verb_image(int argc, char **argv)
{
	if (argc < 2) {
		fputs(overview, stderr);
		return EXIT_USAGE;
	}
	if (str_eq(argv[1], "--help") || str_eq(argv[1], "-h") || str_eq(argv[1], "help")) {
		fputs(overview, stdout);
		return EXIT_OK;
	}
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (str_eq(argv[1], commands[i].name))
			return run_command(&commands[i], argc - 1, argv + 1);
	fprintf(stderr, PROGRAM ": there is no command '%s'; '" PROGRAM " --help' lists them\n",
		argv[1]);
	return EXIT_USAGE;
}
