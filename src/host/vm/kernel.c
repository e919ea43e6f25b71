/* Where the kernel comes from, in this order:
 *
 *   III_SANDBOX_KERNEL=FILE         checked and used as it is
 *   cache/kernel/KEY.elf            KEY says which libkrunfw it was taken from
 *   libkrunfw.so.5 (lib_find)       loaded, asked for its kernel, wrapped, written to the cache
 *
 * The cache entry is published by rename, so two programs that start at once both win. It is used
 * without reading it whole, so a damaged disk shows as a kernel that does not boot, not here; an
 * entry that is not a whole ELF is written anew.
 *
 * libkrunfw has the kernel as a flat memory image with a load address. qemu finds the entry of an
 * ELF through a note (Xen's PHYS32_ENTRY, "PVH"), libkrun up to 1.19 through e_entry: both are
 * filled in, and one file serves both. The bss behind the image needs no header: guest memory is
 * zero.
 */
#include "host/vm/kernel.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/vm/lib.h"

#define NOTE_XEN_PHYS32 18
#define NOTE_NAME	"Xen"
#define ELF_DATA_OFFSET KERNEL_HEAD_BYTES
#define PIECE_BYTES	(1u << 20)
#define ELF_PHDRS_MAX	64
#define NOTES_MAX	(64u << 10)
#define KRUNFW_ENV	"III_SANDBOX_LIBKRUNFW"
#define KRUNFW_SONAME	"libkrunfw.so.5"

#if defined(__x86_64__)
#define OWN_MACHINE EM_X86_64
#define OWN_FORMAT  PLAN_KERNEL_ELF
#else
#define OWN_MACHINE EM_AARCH64
#define OWN_FORMAT  PLAN_KERNEL_RAW
#endif

/* --- the note --- */

struct xen_note {
	Elf64_Nhdr hdr; /* 12 bytes */
	char name[4];	/* "Xen\0" */
	uint8_t desc[8];
};
_Static_assert(sizeof(struct xen_note) == 24, "the note as it lies in the file");

static uint64_t load_le(const uint8_t *p, size_t n)
{
	uint64_t v = 0;

	while (n--)
		v = v << 8 | p[n];
	return v;
}

/* Is there such a note at `p` (of which `left` bytes may be read)? */
static bool read_note(const uint8_t *p, size_t left, struct xen_note *ret)
{
	struct xen_note n = {0};

	if (left < sizeof(n.hdr) + sizeof(n.name) + 4)
		return false;
	memcpy(&n, p, sizeof(n.hdr) + sizeof(n.name));
	if (n.hdr.n_namesz != sizeof(n.name) || n.hdr.n_type != NOTE_XEN_PHYS32 ||
		memcmp(n.name, NOTE_NAME, sizeof(n.name)) != 0 ||
		(n.hdr.n_descsz != 4 && n.hdr.n_descsz != 8) ||
		left < sizeof(n.hdr) + sizeof(n.name) + n.hdr.n_descsz)
		return false;
	memcpy(n.desc, p + sizeof(n.hdr) + sizeof(n.name), n.hdr.n_descsz);
	*ret = n;
	return true;
}

/* The image is a mapping of the library's file that nobody writes to: pages that were looked at
 * need not stay in our memory, or the daemon would grow by the kernel's 20 MiB. */
static void give_back(const struct kernel_image *img, size_t from, size_t to)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t begin = ((uintptr_t)img->data + from + page - 1) & ~(page - 1);
	uintptr_t end = ((uintptr_t)img->data + to) & ~(page - 1);

	if (img->mapped && end > begin)
		madvise((void *)begin, end - begin, MADV_DONTNEED); /* if not, it only stays */
}

static int find_note(const struct kernel_image *img, struct xen_note *ret, struct err *e)
{
	struct xen_note n;
	size_t found = 0;
	uint64_t addr;

	for (size_t at = 0; at + 4 <= img->size; at += 4) {
		if (read_note(img->data + at, img->size - at, &n)) {
			*ret = n;
			found++;
		}
		if (at % PIECE_BYTES == 0 && at)
			give_back(img, at - PIECE_BYTES, at);
	}
	if (found != 1)
		return err_set(e, "S300", EINVAL,
			"libkrunfw's kernel has %zu PVH notes where one is expected: this version "
			"is not supported",
			found);
	addr = load_le(ret->desc, ret->hdr.n_descsz);
	if (addr < img->load || addr - img->load >= img->size)
		return err_set(e, "S300", EINVAL,
			"libkrunfw's kernel has its PVH entry at 0x%" PRIx64
			", outside its image: this version is not supported",
			addr);
	return 0;
}

/* --- the ELF file --- */

struct elf_head {
	Elf64_Ehdr eh;
	Elf64_Phdr ph[2];
	struct xen_note note;
};
_Static_assert(sizeof(struct elf_head) <= ELF_DATA_OFFSET, "headers fit in front of the data");

int kernel_elf_head(
	const struct kernel_image *img, uint8_t ret[static KERNEL_HEAD_BYTES], struct err *e)
{
	struct elf_head h = {
		.eh = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB,
			       EV_CURRENT},
			.e_type = ET_EXEC,
			.e_machine = EM_X86_64,
			.e_version = EV_CURRENT,
			.e_entry = img->entry,
			.e_phoff = offsetof(struct elf_head, ph),
			.e_ehsize = sizeof(Elf64_Ehdr),
			.e_phentsize = sizeof(Elf64_Phdr),
			.e_phnum = 2,
			.e_shentsize = sizeof(Elf64_Shdr)},
		.ph = {{.p_type = PT_LOAD,
			       .p_flags = PF_R | PF_W | PF_X,
			       .p_offset = ELF_DATA_OFFSET,
			       .p_vaddr = img->load,
			       .p_paddr = img->load,
			       .p_filesz = img->size,
			       .p_memsz = img->size,
			       .p_align = ELF_DATA_OFFSET},
			{.p_type = PT_NOTE,
				.p_flags = PF_R,
				.p_offset = offsetof(struct elf_head, note),
				.p_align = 4}},
	};
	int r;

	if (img->size == 0 || img->size > KERNEL_SIZE_MAX || img->load > UINT32_MAX)
		return err_set(e, "S300", EINVAL,
			"libkrunfw's kernel has an absurd size (%zu bytes at 0x%" PRIx64 ")",
			img->size, img->load);
	if (img->entry < img->load || img->entry - img->load >= img->size)
		return err_set(e, "S300", EINVAL,
			"libkrunfw's kernel has its entry at 0x%" PRIx64 ", outside its image",
			img->entry);
	if ((r = find_note(img, &h.note, e)) < 0)
		return r;
	h.ph[1].p_filesz = h.ph[1].p_memsz =
		sizeof(h.note.hdr) + sizeof(h.note.name) + h.note.hdr.n_descsz;
	memset(ret, 0, KERNEL_HEAD_BYTES);
	memcpy(ret, &h, sizeof(h));
	return 0;
}

/* Looks for the PVH note in one PT_NOTE segment. */
static bool segment_has_note(int fd, const Elf64_Phdr *ph)
{
	cleanup_free uint8_t *notes = NULL;
	struct xen_note n;

	if (ph->p_filesz > NOTES_MAX)
		return false;
	notes = xmalloc(ph->p_filesz + 1);
	if (fd_pread_full(fd, notes, ph->p_filesz, ph->p_offset) != (ssize_t)ph->p_filesz)
		return false;
	for (size_t at = 0; at + 4 <= ph->p_filesz; at += 4) {
		if (read_note(notes + at, ph->p_filesz - at, &n))
			return true;
	}
	return false;
}

static int not_a_kernel(const char *name, const char *what, struct err *e)
{
	return err_set(e, "S300", EINVAL, "%s is not a kernel for this machine: %s", name, what);
}

int kernel_check_elf(int fd, const char *name, bool *ret_pvh, struct err *e)
{
	Elf64_Phdr ph[ELF_PHDRS_MAX];
	Elf64_Ehdr eh;
	struct stat st;
	bool load = false, pvh = false;

	if (fstat(fd, &st) < 0)
		return err_set(e, "S300", errno, "%s: %s", name, err_str(errno));
	if (!S_ISREG(st.st_mode) || st.st_size > (off_t)KERNEL_SIZE_MAX)
		return not_a_kernel(name, "not a file of at most 256 MiB", e);
	if (fd_pread_full(fd, &eh, sizeof(eh), 0) != sizeof(eh) ||
		memcmp(eh.e_ident, ELFMAG, SELFMAG) != 0)
		return not_a_kernel(name,
			"not an ELF file (the uncompressed vmlinux is needed, not bzImage)", e);
	if (eh.e_ident[EI_CLASS] != ELFCLASS64 || eh.e_ident[EI_DATA] != ELFDATA2LSB ||
		eh.e_machine != OWN_MACHINE || eh.e_type != ET_EXEC)
		return not_a_kernel(name, "not a 64-bit executable of its kind", e);
	if (eh.e_phentsize != sizeof(ph[0]) || eh.e_phnum == 0 || eh.e_phnum > ELF_PHDRS_MAX ||
		fd_pread_full(fd, ph, eh.e_phnum * sizeof(ph[0]), eh.e_phoff) !=
			(ssize_t)(eh.e_phnum * sizeof(ph[0])))
		return not_a_kernel(name, "its program headers cannot be read", e);
	for (size_t i = 0; i < eh.e_phnum; i++) {
		if (ph[i].p_offset > (uint64_t)st.st_size ||
			ph[i].p_filesz > (uint64_t)st.st_size - ph[i].p_offset)
			return not_a_kernel(name, "it is cut off", e);
		load |= ph[i].p_type == PT_LOAD;
		pvh |= ph[i].p_type == PT_NOTE && segment_has_note(fd, &ph[i]);
	}
	if (!load)
		return not_a_kernel(name, "it has nothing to load", e);
	*ret_pvh = pvh;
	return 0;
}

/* --- libkrunfw --- */

struct entry {
	const struct kernel_image *img;
	uint8_t head[KERNEL_HEAD_BYTES];
	size_t head_len;
};

static int fill_entry(int fd, const void *user)
{
	const struct entry *entry = user;
	int r = fd_write_all(fd, entry->head, entry->head_len);

	for (size_t at = 0, n; r == 0 && at < entry->img->size; at += n) {
		n = MIN(entry->img->size - at, (size_t)PIECE_BYTES);
		r = fd_write_all(fd, entry->img->data + at, n);
		give_back(entry->img, at, at + n);
	}
	return r;
}

/* Writes the library's kernel into the cache folder. */
static int publish(int dir, const char *name, const struct kernel_image *img, struct err *e)
{
	struct entry entry = {.img = img};
	int r;

	if (OWN_FORMAT == PLAN_KERNEL_ELF) {
		if ((r = kernel_elf_head(img, entry.head, e)) < 0)
			return r;
		entry.head_len = KERNEL_HEAD_BYTES;
	}
	r = fd_publish_filled_at(dir, name, 0600, fill_entry, &entry);
	return r < 0 ? err_set(e, "S300", r, "cannot write the kernel to the cache: %s", err_str(r))
		     : 0;
}

static int extract(const char *lib, int dir, const char *name, struct err *e)
{
	char *(*get_kernel)(uint64_t * load, uint64_t * entry, size_t * size);
	struct kernel_image img = {.mapped = true};
	void *h = dlopen(lib, RTLD_LAZY | RTLD_LOCAL);
	int r;

	if (!h)
		return err_set(e, "S300", ENOEXEC, "cannot load %s: %s", lib, dlerror());
	*(void **)&get_kernel = dlsym(h, "krunfw_get_kernel");
	if (!get_kernel) {
		r = err_set(e, "S300", ENOEXEC, "%s has no krunfw_get_kernel: not libkrunfw", lib);
	} else {
		img.data = (const uint8_t *)get_kernel(&img.load, &img.entry, &img.size);
		r = img.data ? publish(dir, name, &img, e)
			     : err_set(e, "S300", EIO, "%s gives no kernel", lib);
	}
	dlclose(h);
	if (r < 0)
		err_wrap(e, "%s", lib);
	return r;
}

/* A name that changes whenever the library is another file or was replaced. */
static int cache_name(const char *lib, char ret[static 64], struct err *e)
{
	cleanup_free char *real = realpath(lib, NULL), *text = NULL;
	uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
	struct stat st;

	if (!real || stat(real, &st) < 0)
		return err_set(e, "S300", errno, "%s: %s", lib, err_str(errno));
	text = xasprintf("%s %lld %lld.%09ld %llu", real, (long long)st.st_size,
		(long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (unsigned long long)st.st_ino);
	for (const char *p = text; *p; p++)
		hash = (hash ^ (uint8_t)*p) * 0x100000001b3u;
	snprintf(ret, 64, "%016" PRIx64 ".%s", hash, OWN_FORMAT == PLAN_KERNEL_ELF ? "elf" : "raw");
	return 0;
}

static bool is_entry(const char *name)
{
	return str_ends(name, ".elf") || str_ends(name, ".raw");
}

/* Removes the oldest entry; false when there are few enough. */
static bool prune_one(int dir)
{
	cleanup_free char *oldest = NULL;
	int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct timespec age = {0};
	struct dirent *de;
	size_t n = 0;

	if (!d) {
		fd_close(&fd);
		return false;
	}
	while ((de = readdir(d))) {
		struct stat st;

		if (!is_entry(de->d_name) || fstatat(dir, de->d_name, &st, 0) < 0)
			continue;
		n++;
		if (oldest && (st.st_mtim.tv_sec > age.tv_sec ||
				      (st.st_mtim.tv_sec == age.tv_sec &&
					      st.st_mtim.tv_nsec >= age.tv_nsec)))
			continue;
		free(oldest);
		oldest = xstrdup(de->d_name);
		age = st.st_mtim;
	}
	closedir(d);
	return n > KERNEL_CACHE_MAX && unlinkat(dir, oldest, 0) == 0;
}

/* Opens the entry if it is whole. */
static int open_entry(int dir, const char *name, struct kernel *ret, struct err *e)
{
	cleanup_fd int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	int r = 0;

	if (fd < 0)
		return err_set(e, "S300", errno, "kernel cache: %s: %s", name, err_str(errno));
	if (OWN_FORMAT == PLAN_KERNEL_ELF)
		r = kernel_check_elf(fd, name, &ret->pvh, e);
	if (r < 0)
		return r;
	ret->format = OWN_FORMAT;
	ret->fd = STEAL_FD(fd);
	return 0;
}

static int open_krunfw(struct kernel *ret, struct err *e)
{
	cleanup_free char *lib = lib_find(KRUNFW_ENV, KRUNFW_SONAME, e), *path = NULL;
	cleanup_fd int dir = -1;
	char name[64];
	int r;

	if (!lib) {
		err_wrap(e, "no guest kernel");
		return -ENOENT;
	}
	if ((r = cache_name(lib, name, e)) < 0)
		return r;
	path = path_cache_dir("kernel", e);
	if (!path) {
		err_code(e, "S300");
		return -EIO;
	}
	dir = path_open_dir(path, e);
	if (dir < 0)
		return dir;
	if (open_entry(dir, name, ret, NULL) == 0)
		return 0;
	if ((r = extract(lib, dir, name, e)) < 0)
		return r;
	while (prune_one(dir))
		;
	return open_entry(dir, name, ret, e);
}

static int open_chosen(const char *path, struct kernel *ret, struct err *e)
{
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	int r = 0;

	if (fd < 0)
		return err_set(e, "S300", errno, "III_SANDBOX_KERNEL=%s: %s", path, err_str(errno));
	if (OWN_FORMAT == PLAN_KERNEL_ELF)
		r = kernel_check_elf(fd, path, &ret->pvh, e);
	if (r < 0) {
		err_wrap(e, "III_SANDBOX_KERNEL");
		return r;
	}
	ret->format = OWN_FORMAT;
	ret->chosen = true;
	ret->fd = STEAL_FD(fd);
	return 0;
}

int kernel_open(struct kernel *ret, struct err *e)
{
	const char *path = getenv("III_SANDBOX_KERNEL");

	*ret = (struct kernel){.fd = -1};
	return path && *path ? open_chosen(path, ret, e) : open_krunfw(ret, e);
}
