#include "host/run_options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

#define RUN_TIMEOUT_MS 300000 /* contract §1.7 */
#define RUN_MEM_MIB    512    /* contract §2 */

static const char help_text[] =
	"Usage: sandbox-libkrun run --image IMAGE --lang LANG --code CODE [OPTION]…\n"
	"       sandbox-libkrun run --image IMAGE [OPTION]… -- PROGRAM [ARGUMENT]…\n"
	"\n"
	"Boots a fresh VM, runs the code or the program in it, prints what it prints, and\n"
	"removes the VM. Nothing the code does outlives it.\n"
	"\n"
	"What to run:\n"
	"  --image IMAGE     preset (python, node), name given with 'image import --as', or an\n"
	"                    image reference; one that is not in the cache is fetched first\n"
	"  --lang LANG       python, node, shell, or an interpreter in the image (a name or path)\n"
	"  --code CODE       the code; '-' reads it from standard input\n"
	"  --file FILE       the code, from a file\n"
	"  -- PROGRAM …      a program of the image with its arguments, instead of code\n"
	"\n"
	"How:\n"
	"  --env NAME=VALUE  set a variable for the code (repeatable)\n"
	"  --workdir DIR     start in DIR (default /)\n"
	"  -i, --stdin       pass standard input on to the code (default: empty)\n"
	"  --timeout TIME    kill it after TIME: 500ms, 30s, 5m, or a number of ms (default 5m)\n"
	"  --output-cap SIZE pass on at most SIZE of stdout and of stderr each (default: all)\n"
	"  --memory SIZE     memory of the VM: 512M, 2G, or a number of MiB (default 512M)\n"
	"  --cpus N          virtual CPUs (default 1)\n"
	"  --vmm VMM         krun (libkrun on KVM), qemu (software emulation, slower and no\n"
	"                    security boundary by qemu's own word), or auto (default; also\n"
	"                    III_SANDBOX_VMM)\n"
	"  --network         let the code reach the network (outbound; of this host only the\n"
	"                    ports in III_SANDBOX_HOST_PORTS)\n"
	"  --no-pull         fail rather than fetch an image\n"
	"  -q, --quiet       do not tell the kind of VM on standard error\n"
	"  --help            print this text and leave\n"
	"\n"
	"Exit status: the code's own; 124 time limit passed; 125 the sandbox failed;\n"
	"126 not executable; 127 not found; 128+N killed by signal N; 2 wrong usage.\n"
	"\n"
	"Example:\n"
	"  sandbox-libkrun run --image python --lang python --code 'print(6*7)'\n";

static int usage_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int usage_error(const char *fmt, ...)
{
	va_list ap;

	fputs("sandbox-libkrun run: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputs("\nTry 'sandbox-libkrun run --help'.\n", stderr);
	return -EINVAL;
}

/* "500ms", "30s", "5m", "1h" or a plain number of milliseconds. */
static int parse_duration(const char *s, uint64_t *ret_ms)
{
	static const struct {
		const char *unit;
		uint64_t ms;
	} units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"", 1}};

	for (size_t i = 0; i < ARRAY_LEN(units); i++) {
		cleanup_free char *digits = NULL;
		uint64_t v;

		if (!str_ends(s, units[i].unit))
			continue;
		digits = xstrndup(s, strlen(s) - strlen(units[i].unit));
		if (str_u64(digits, &v) < 0 || v == 0 || v > UINT64_MAX / units[i].ms)
			return -EINVAL;
		*ret_ms = v * units[i].ms;
		return 0;
	}
	return -EINVAL;
}

/* A size with a unit, or a plain number of MiB. */
static int parse_memory(const char *s, uint32_t *ret_mib)
{
	uint64_t v;
	size_t len = strlen(s);

	if (str_size(s, &v) < 0)
		return -EINVAL;
	if (len && s[len - 1] >= '0' && s[len - 1] <= '9')
		v = v > UINT64_MAX >> 20 ? UINT64_MAX : v << 20;
	if (v >> 20 > UINT32_MAX)
		return -EINVAL;
	*ret_mib = (uint32_t)(v >> 20);
	return 0;
}

enum {
	OPT_IMAGE = 256,
	OPT_LANG,
	OPT_CODE,
	OPT_FILE,
	OPT_ENV,
	OPT_WORKDIR,
	OPT_TIMEOUT,
	OPT_OUTPUT_CAP,
	OPT_MEMORY,
	OPT_CPUS,
	OPT_VMM,
	OPT_NETWORK,
	OPT_NO_PULL,
	OPT_HELP,
};

static int take_option(struct run_options *o, int opt, const char *arg)
{
	switch (opt) {
	case OPT_IMAGE:
		o->image = arg;
		return 0;
	case OPT_LANG:
		o->lang = arg;
		return *arg ? 0 : usage_error("--lang is empty");
	case OPT_CODE:
		o->code = arg;
		return 0;
	case OPT_FILE:
		o->file = arg;
		return 0;
	case OPT_ENV:
		if (!strchr(arg, '=') || arg[0] == '=')
			return usage_error("--env %s: NAME=VALUE is expected", arg);
		strv_add(&o->env, arg);
		return 0;
	case OPT_WORKDIR:
		o->workdir = arg;
		return 0;
	case OPT_TIMEOUT:
		if (parse_duration(arg, &o->timeout_ms) < 0)
			return usage_error(
				"--timeout %s: a time such as 500ms, 30s or 5m is expected", arg);
		return 0;
	case OPT_OUTPUT_CAP:
		if (str_size(arg, &o->output_cap) < 0)
			return usage_error(
				"--output-cap %s: a size such as 64K or 1M is expected", arg);
		return 0;
	case OPT_MEMORY:
		if (parse_memory(arg, &o->mem_mib) < 0 || o->mem_mib < VM_MEM_MIB_MIN)
			return usage_error(
				"--memory %s: a size of at least %d MiB such as 512M is expected",
				arg, VM_MEM_MIB_MIN);
		return 0;
	case OPT_CPUS:
		if (str_u32(arg, &o->cpus) < 0 || o->cpus < 1 || o->cpus > VM_VCPUS_MAX)
			return usage_error(
				"--cpus %s: a number from 1 to %d is expected", arg, VM_VCPUS_MAX);
		return 0;
	case OPT_VMM:
		if (vm_backend_parse(arg, &o->backend) < 0)
			return usage_error("--vmm %s: krun, qemu or auto is expected", arg);
		return 0;
	case OPT_NETWORK:
		o->network = true;
		return 0;
	case OPT_NO_PULL:
		o->no_pull = true;
		return 0;
	case 'i':
		o->use_stdin = true;
		return 0;
	case 'q':
		o->quiet = true;
		return 0;
	default:
		/* getopt_long has said what is wrong. */
		fputs("Try 'sandbox-libkrun run --help'.\n", stderr);
		return -EINVAL;
	}
}

static int check_options(const struct run_options *o)
{
	if (!o->image)
		return usage_error("--image is missing");
	if (o->argv) {
		if (o->code || o->file || o->lang)
			return usage_error(
				"give either code (--lang with --code or --file) or a program "
				"behind --, not both");
		return 0;
	}
	if (!o->code && !o->file)
		return usage_error("nothing to run: give --code, --file, or a program behind --");
	if (o->code && o->file)
		return usage_error("--code and --file exclude each other");
	if (!o->lang)
		return usage_error(
			"--lang is missing: python, node, shell, or an interpreter's name");
	if (o->use_stdin && o->code && str_eq(o->code, "-"))
		return usage_error("--stdin and --code - both read standard input");
	return 0;
}

int run_options_parse(struct run_options *o, int argc, char **argv)
{
	static const struct option longs[] = {
		{"image", required_argument, NULL, OPT_IMAGE},
		{"lang", required_argument, NULL, OPT_LANG},
		{"code", required_argument, NULL, OPT_CODE},
		{"file", required_argument, NULL, OPT_FILE},
		{"env", required_argument, NULL, OPT_ENV},
		{"workdir", required_argument, NULL, OPT_WORKDIR},
		{"stdin", no_argument, NULL, 'i'},
		{"timeout", required_argument, NULL, OPT_TIMEOUT},
		{"output-cap", required_argument, NULL, OPT_OUTPUT_CAP},
		{"memory", required_argument, NULL, OPT_MEMORY},
		{"cpus", required_argument, NULL, OPT_CPUS},
		{"vmm", required_argument, NULL, OPT_VMM},
		{"network", no_argument, NULL, OPT_NETWORK},
		{"no-pull", no_argument, NULL, OPT_NO_PULL},
		{"quiet", no_argument, NULL, 'q'},
		{"help", no_argument, NULL, OPT_HELP},
		{NULL, 0, NULL, 0},
	};
	const char *vmm = getenv("III_SANDBOX_VMM");
	int opt;

	*o = (struct run_options){
		.backend = VM_BACKEND_AUTO,
		.timeout_ms = RUN_TIMEOUT_MS,
		.output_cap = UINT64_MAX,
		.mem_mib = RUN_MEM_MIB,
		.cpus = 1,
	};
	if (vmm && *vmm && vm_backend_parse(vmm, &o->backend) < 0)
		return usage_error("III_SANDBOX_VMM=%s: krun, qemu or auto is expected", vmm);
	while ((opt = getopt_long(argc, argv, "+iqh", longs, NULL)) != -1) {
		if (opt == OPT_HELP || opt == 'h') {
			fputs(help_text, stdout);
			return 1;
		}
		if (take_option(o, opt, optarg) < 0)
			return -EINVAL;
	}
	if (optind < argc)
		o->argv = argv + optind;
	return check_options(o);
}

void run_options_done(struct run_options *o)
{
	strv_free(STEAL(o->env));
}
