/* verb_doctor - `sandbox-libkrun doctor`: what this host can do, in plain words.
 *
 * Every line is the outcome of doing the real thing (the KVM probe, loading the kernel, making a
 * disk), not of looking for names, and a line that is not "ok" says what to do about it. Exit
 * status 0 when at least one kind of VM can be started, else 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/config.h"
#include "host/verbs.h"
#include "host/vm/backend.h"
#include "host/vm/confine.h"
#include "host/vm/kernel.h"
#include "host/vm/kvm_probe.h"
#include "host/vm/lib.h"
#include "host/vm/net.h"
#include "host/vm/upper.h"
#include "wire/json.h"

static const char help_text[] =
	"Usage: sandbox-libkrun doctor [--json]\n"
	"\n"
	"Tries what a sandbox needs on this host and says what works, what does not, and what to\n"
	"install or change. Nothing is changed. Exit status 0 when sandboxes can run, else 1.\n"
	"\n"
	"  --json   one JSON object instead of text\n"
	"  --help   print this text and leave\n";

enum state {
	STATE_OK,
	STATE_NOTE, /* works, but the user should know */
	STATE_BAD,
};

/* One thing that was tried. */
struct finding {
	const char *name;
	enum state state;
	char text[ERR_TEXT_MAX];
};

#define FINDINGS_MAX 16

struct report {
	struct finding rows[FINDINGS_MAX];
	size_t n;
};

static void add(struct report *r, const char *name, enum state state, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static void add(struct report *r, const char *name, enum state state, const char *fmt, ...)
{
	struct finding *f = &r->rows[r->n++];
	va_list ap;

	f->name = name;
	f->state = state;
	va_start(ap, fmt);
	vsnprintf(f->text, sizeof(f->text), fmt, ap);
	va_end(ap);
}

static void check_kvm(struct report *r)
{
	const struct kvm_probe *p = kvm_probe();

	if (p->verdict == KVM_USABLE)
		add(r, "KVM", STATE_OK, "/dev/kvm virtualises (probe: %u us)", p->best_us);
	else
		add(r, "KVM", STATE_BAD, "%s", p->why.text);
}

static bool check_vmm(struct report *r, const char *name, const struct vm_backend *be)
{
	struct err e = ERR_INIT;
	cleanup_free char *path = be->vmm(&e);

	if (path)
		add(r, name, STATE_OK, "%s", path);
	else
		add(r, name, STATE_BAD, "%s", e.text);
	return path != NULL;
}

static bool check_kernel(struct report *r)
{
	struct err e = ERR_INIT;
	struct kernel k;

	if (kernel_open(&k, &e) < 0) {
		add(r, "guest kernel", STATE_BAD, "%s", e.text);
		return false;
	}
	fd_close(&k.fd);
	if (k.chosen)
		add(r, "guest kernel", STATE_NOTE, "%s (III_SANDBOX_KERNEL)",
			getenv("III_SANDBOX_KERNEL"));
	else
		add(r, "guest kernel", STATE_OK, "taken from libkrunfw");
	return true;
}

static bool check_disk(struct report *r)
{
	struct err e = ERR_INIT;
	cleanup_fd int fd = -1;

	if (upper_new(UPPER_SIZE_DEFAULT, &fd, &e) < 0) {
		add(r, "writable disk", STATE_BAD, "%s", e.text);
		return false;
	}
	add(r, "writable disk", STATE_OK, "an 8 GiB ext4 can be made");
	return true;
}

static bool check_folder(
	struct report *r, const char *name, char *(*get)(const char *, struct err *))
{
	struct err e = ERR_INIT;
	cleanup_free char *path = get(NULL, &e);
	struct statvfs v;
	char size[16];

	if (!path || statvfs(path, &v) < 0) {
		add(r, name, STATE_BAD, "%s", path ? err_str(errno) : e.text);
		return false;
	}
	uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
	bool tight = room < (uint64_t)2 << 30;

	add(r, name, tight ? STATE_NOTE : STATE_OK, "%s, %s free%s", path,
		str_human_size(room, size), tight ? ": little for images and disks" : "");
	return true;
}

static void check_skopeo(struct report *r)
{
	cleanup_free char *path = lib_find_program("skopeo");

	if (path)
		add(r, "image pulls", STATE_OK, "%s", path);
	else
		add(r, "image pulls", STATE_NOTE,
			"skopeo is not installed: images can be imported, not pulled "
			"(Debian: apt install skopeo)");
}

static void check_confinement(struct report *r)
{
	struct err e = ERR_INIT;
	struct confine_report c;
	char active[256], refused[512];

	if (confine_try(&c, &e) < 0) {
		add(r, "confinement", STATE_BAD, "%s", e.text);
		return;
	}
	confine_active_text(&c, active, sizeof(active));
	confine_refused_text(&c, refused, sizeof(refused));
	if (!refused[0])
		add(r, "confinement", STATE_OK, "%s (landlock ABI %d)", active, c.landlock_abi);
	else
		add(r, "confinement", STATE_NOTE,
			"the host refuses %s; active: %s. VMs start all the same, "
			"unless " CONFINE_REQUIRE "=1",
			refused, active[0] ? active : "none");
}

static void check_network(struct report *r)
{
	struct err e = ERR_INIT;
	struct net_facts f;

	net_facts_get(&f);
	if (net_facts_check(&f, &e) < 0) {
		add(r, "network", STATE_NOTE, "sandboxes run without: %s", e.text);
	} else {
		const char *routes = f.route4 ? (f.route6 ? "IPv4, IPv6" : "IPv4") : "IPv6";

		if (net_passt_is_old(f.passt))
			add(r, "network", STATE_NOTE,
				"%s is of before 2024: what a guest is sent can stall once the "
				"guest has closed its half of the connection (passt of 2024 or "
				"newer does not; " NET_PASST " names another one); default "
				"route: %s",
				f.passt, routes);
		else
			add(r, "network", STATE_OK, "%s; default route: %s", f.passt, routes);
	}
	net_facts_done(&f);
}

/* What `run` would do here, in one sentence. */
static bool check_outcome(struct report *r, bool common, bool libkrun, bool qemu)
{
	struct err e = ERR_INIT;
	bool hardware = common && libkrun && vm_backend_krun.probe(&e) == 0;

	if (hardware) {
		add(r, "verdict", STATE_OK, "sandboxes run on KVM (tier=hardware)");
		return true;
	}
	if (common && qemu) {
		add(r, "verdict", STATE_NOTE,
			"sandboxes run only in software emulation (tier=emulated), with --vmm qemu "
			"or "
			"auto: slower, and no security boundary. See the lines above for what "
			"KVM needs");
		return true;
	}
	add(r, "verdict", STATE_BAD, "no sandbox can run here; see the lines above");
	return false;
}

static void print_text(const struct report *r)
{
	static const char *const words[] = {"ok", "note", "MISSING"};
	bool color = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
	static const char *const tints[] = {"\033[32m", "\033[33m", "\033[31m"};

	for (size_t i = 0; i < r->n; i++) {
		const struct finding *f = &r->rows[i];

		printf("%s%-8s%s %-14s %s\n", color ? tints[f->state] : "", words[f->state],
			color ? "\033[0m" : "", f->name, f->text);
	}
}

static void print_json(const struct report *r, bool works)
{
	static const char *const words[] = {"ok", "note", "missing"};
	cleanup_json json_object *o = json_object_new_object();
	json_object *rows = json_object_new_array();

	for (size_t i = 0; i < r->n; i++) {
		json_object *row = json_object_new_object();

		json_add_str(row, "name", r->rows[i].name);
		json_add_str(row, "state", words[r->rows[i].state]);
		json_add_str(row, "text", r->rows[i].text);
		json_object_array_add(rows, row);
	}
	json_add_str(o, "version", SANDBOX_VERSION);
	json_add_bool(o, "can_run", works);
	json_object_object_add(o, "findings", rows);
	puts(json_text(o, NULL));
}

static bool examine(struct report *r)
{
	struct utsname u;
	bool libkrun, qemu, kernel, disk, cache, state;

	uname(&u);
	add(r, "host", STATE_OK, "%s %s, %s, sandbox-libkrun " SANDBOX_VERSION, u.sysname,
		u.release, u.machine);
	check_kvm(r);
	libkrun = check_vmm(r, "libkrun", &vm_backend_krun);
	qemu = check_vmm(r, "qemu", &vm_backend_qemu);
	kernel = check_kernel(r);
	cache = check_folder(r, "cache", path_cache_dir);
	state = check_folder(r, "state", path_state_dir);
	disk = check_disk(r);
	check_skopeo(r);
	check_network(r);
	check_confinement(r);
	return check_outcome(r, kernel && disk && cache && state, libkrun, qemu);
}

int verb_doctor(int argc, char **argv)
{
	static const struct option longs[] = {
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	struct report report = {.n = 0};
	bool json = false, works;
	int opt;

	while ((opt = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		if (opt == 'h') {
			fputs(help_text, stdout);
			return EXIT_OK;
		}
		if (opt != 'j')
			return EXIT_USAGE;
		json = true;
	}
	if (optind < argc) {
		fprintf(stderr, "sandbox-libkrun doctor: '%s' is not expected\n", argv[optind]);
		return EXIT_USAGE;
	}
	works = examine(&report);
	if (json)
		print_json(&report, works);
	else
		print_text(&report);
	return works ? EXIT_OK : EXIT_FAILED;
}
