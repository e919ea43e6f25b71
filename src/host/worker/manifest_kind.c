/* The commands run as root with /bin/sh -e in /workspace of a VM. Whatever they fetch goes to a
 * file first: a pipe into a shell would pass over a download that failed half-way. */
#include "host/worker/manifest_kind.h"

#include <errno.h>
#include <stdlib.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/worker/roots.h"

#define APT(packages)                                                                              \
	"\tapt-get update\n"                                                                       \
	"\tDEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends " packages    \
	"\n"
#define FETCH(url, file) "\tcurl -fsSL --retry 3 -o " file " " url "\n"

#define NODE_SETUP                                                                                 \
	"if ! command -v node >/dev/null 2>&1; then\n" APT("ca-certificates curl gnupg")           \
		FETCH("https://deb.nodesource.com/setup_22.x",                                     \
			"/tmp/nodesource.sh") "\tbash /tmp/nodesource.sh\n" APT("nodejs") "fi\n"
#define NODE_TOOL(tool) "command -v " tool " >/dev/null 2>&1 || npm install --global " tool "\n"

#define BUN_PATH "export PATH=\"$HOME/.bun/bin:$PATH\"\n"
#define BUN_SETUP                                                                                  \
	BUN_PATH                                                                                   \
	"if ! command -v bun >/dev/null 2>&1; then\n" APT("bash ca-certificates curl unzip")       \
		FETCH("https://bun.sh/install", "/tmp/bun.sh") "\tbash /tmp/bun.sh\nfi\n"

#define PYTHON_SETUP                                                                               \
	"if ! command -v python3 >/dev/null 2>&1; then\n" APT(                                     \
		"python3 python3-venv python3-pip") "fi\n"
#define PYTHON_VENV                                                                                \
	"[ -x .venv/bin/python ] || python3 -m venv .venv\n"                                       \
	".venv/bin/python -m pip install -e .\n"
/* The python of a distribution refuses to install beside its packages; here the VM is ours. */
#define PIP "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install "

#define CARGO_ENV "[ ! -f \"$HOME/.cargo/env\" ] || . \"$HOME/.cargo/env\"\n"
#define RUST_SETUP                                                                                 \
	CARGO_ENV "if ! command -v cargo >/dev/null 2>&1; then\n" APT(                             \
		"ca-certificates curl gcc libc6-dev") FETCH("https://sh.rustup.rs",                \
		"/tmp/rustup.sh") "\tsh /tmp/rustup.sh -y --profile minimal\nfi\n"
#define RUST_INSTALL CARGO_ENV "cargo build --release"
#define RUST_START   CARGO_ENV "cargo run --release"

static const struct {
	const char *kind, *image;
} images[] = {
	{"typescript", "docker.io/iiidev/node:latest"},
	{"javascript", "docker.io/iiidev/node:latest"},
	{"bun", "docker.io/oven/bun:latest"},
	{"python", "docker.io/iiidev/python:latest"},
	{"rust", "docker.io/library/rust:slim-bookworm"},
};

const char *manifest_kind_image(const char *kind)
{
	for (size_t i = 0; i < ARRAY_LEN(images); i++)
		if (str_eq(images[i].kind, kind))
			return images[i].image;
	return NULL;
}

enum entry {
	WITH_ENTRY, /* comes behind `start` */
	NO_ENTRY,
};

struct row {
	const char *kind;
	const char *package_manager; /* NULL: of no matter */
	const char *setup, *install, *start;
	enum entry entry;
};

static const struct row rows[] = {
	{"bun", NULL, NULL, "bun install", "bun run "},
	{"typescript", "bun", BUN_SETUP, BUN_PATH "bun install", BUN_PATH "bun "},
	{"typescript", "npm", NODE_SETUP, "npm install", "npx tsx "},
	{"typescript", "pnpm", NODE_SETUP NODE_TOOL("pnpm"), "pnpm install", "pnpm exec tsx "},
	{"typescript", "yarn", NODE_SETUP NODE_TOOL("yarn"), "yarn install", "yarn exec tsx "},
	{"python", NULL, PYTHON_SETUP, PYTHON_VENV, ".venv/bin/python -m "},
	{"rust", NULL, RUST_SETUP, RUST_INSTALL, RUST_START, NO_ENTRY},
};

static const struct row verbatim = {.start = ""};

void manifest_scripts_done(struct manifest_scripts *s)
{
	free(s->setup);
	free(s->install);
	free(s->start);
	*s = (struct manifest_scripts){0};
}

static const struct row *find_row(const char *kind, const char *package_manager)
{
	if (str_eq(kind, "javascript"))
		kind = "typescript";
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (str_eq(rows[i].kind, kind) &&
			(!rows[i].package_manager ||
				str_eq(rows[i].package_manager, package_manager)))
			return &rows[i];
	return manifest_kind_image(kind) ? NULL : &verbatim;
}

int manifest_kind_scripts(const char *kind, const char *package_manager, const char *entry,
	struct manifest_scripts *ret, struct err *e)
{
	const struct row *row = find_row(kind, package_manager);

	if (!row)
		return err_set(e, "S500", EINVAL,
			"there is no `scripts.start`, and `runtime.package_manager` is none of "
			"npm, "
			"yarn, pnpm, bun, from which it would follow: set `scripts.start`");
	*ret = (struct manifest_scripts){
		.setup = xstrdup(row->setup),
		.install = xstrdup(row->install),
	};
	if (row->entry == NO_ENTRY)
		ret->start = xstrdup(row->start);
	else if (entry)
		ret->start = xasprintf("%s%s", row->start, entry);
	return 0;
}

struct found {
	const char *file, *beside; /* with a file of that name beside it; NULL: alone */
	const char *kind;
	const char *setup, *install, *start;
};

/* The first that is there counts. */
static const struct found detected[] = {
	{"package.json", "bun.lock", "bun", NULL, "bun install", "bun run dev"},
	{"package.json", "bun.lockb", "bun", NULL, "bun install", "bun run dev"},
	{"package.json", NULL, "typescript", NODE_SETUP, "npm install", "npm run dev"},
	{"Cargo.toml", NULL, "rust", RUST_SETUP, RUST_INSTALL, RUST_START},
	{"pyproject.toml", NULL, "python", PYTHON_SETUP, PIP "-e .", "python3 -m iii"},
	{"requirements.txt", NULL, "python", PYTHON_SETUP, PIP "-r requirements.txt",
		"python3 -m iii"},
};

/* 1, 0 when there is no such file, or an error. */
static int has(int dir_fd, const char *name, struct err *e)
{
	cleanup_fd int fd = -1;
	int r = root_open_file(dir_fd, name, &fd, e);

	return r == -ENOENT ? 0 : r < 0 ? r : 1;
}

int manifest_kind_detect(
	int dir_fd, const char **ret_image, struct manifest_scripts *ret, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(detected); i++) {
		const struct found *f = &detected[i];
		int r = has(dir_fd, f->file, e);

		if (r > 0 && f->beside)
			r = has(dir_fd, f->beside, e);
		if (r < 0)
			return r;
		if (r == 0)
			continue;
		*ret_image = manifest_kind_image(f->kind);
		*ret = (struct manifest_scripts){
			.setup = xstrdup(f->setup),
			.install = xstrdup(f->install),
			.start = xstrdup(f->start),
		};
		return 1;
	}
	return 0;
}
