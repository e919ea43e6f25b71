/* host/vm/kernel: the ELF around libkrunfw's image, and what is refused. */
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/str.h"
#include "host/vm/kernel.h"
#include "host/vm/lib.h"

#define LOAD 0x1000000u
#define SIZE 65536u

static void put_note(uint8_t *at, uint32_t descsz, uint64_t addr)
{
	const uint32_t head[3] = {4, descsz, 18};

	memcpy(at, head, sizeof(head));
	memcpy(at + 12, "Xen", 4);
	memcpy(at + 16, &addr, descsz);
}

static int wrap(const uint8_t *data, uint64_t entry, struct buf *out, struct err *e)
{
	const struct kernel_image img = {data, SIZE, LOAD, entry, false};
	uint8_t head[KERNEL_HEAD_BYTES];
	int r = kernel_elf_head(&img, head, e);

	buf_init(out, 1 << 20);
	if (r == 0)
		assert_int_equal(buf_add(out, head, sizeof(head)) | buf_add(out, data, SIZE), 0);
	return r;
}

static void wrap_and_check(uint32_t descsz)
{
	cleanup_free uint8_t *data = xcalloc(1, SIZE);
	cleanup_buf struct buf out = {0};
	cleanup_fd int fd = -1;
	Elf64_Ehdr eh;
	Elf64_Phdr ph[2];
	uint32_t note[3];
	bool pvh = false;

	for (size_t i = 0; i < SIZE; i++)
		data[i] = (uint8_t)(i * 7);
	put_note(data + 4096 + 4, descsz, LOAD + 0x10);
	assert_int_equal(wrap(data, LOAD + 0x123, &out, NULL), 0);
	assert_int_equal(out.len, 4096 + SIZE);
	memcpy(&eh, out.data, sizeof(eh));
	memcpy(ph, out.data + eh.e_phoff, sizeof(ph));
	assert_int_equal(eh.e_entry, LOAD + 0x123);
	assert_int_equal(ph[0].p_type, PT_LOAD);
	assert_int_equal(ph[0].p_paddr, LOAD);
	assert_int_equal(ph[0].p_filesz, SIZE);
	assert_memory_equal(out.data + ph[0].p_offset, data, SIZE);
	assert_int_equal(ph[1].p_type, PT_NOTE);
	assert_int_equal(ph[1].p_filesz, 16 + descsz);
	memcpy(note, out.data + ph[1].p_offset, sizeof(note));
	assert_int_equal(note[1], descsz);
	assert_int_equal(note[2], 18);
	fd = fd_sealed("kernel", out.data, out.len);
#if defined(__x86_64__)
	assert_int_equal(kernel_check_elf(fd, "kernel", &pvh, NULL), 0);
	assert_true(pvh);
#else
	assert_int_equal(kernel_check_elf(fd, "kernel", &pvh, NULL), -EINVAL);
#endif
}

static void test_wrap(void **state)
{
	(void)state;
	wrap_and_check(8);
	wrap_and_check(4);
}

static void test_wrap_bad(void **state)
{
	cleanup_free uint8_t *data = xcalloc(1, SIZE);
	struct err e = ERR_INIT;
	struct buf out;

	(void)state;
	assert_int_equal(wrap(data, LOAD, &out, &e), -EINVAL);
	assert_non_null(strstr(e.text, "0 PVH notes"));
	buf_done(&out);
	put_note(data + 64, 8, LOAD + SIZE);
	assert_int_equal(wrap(data, LOAD, &out, &e), -EINVAL);
	assert_non_null(strstr(e.text, "outside"));
	buf_done(&out);
	put_note(data + 64, 8, LOAD - 1);
	assert_int_equal(wrap(data, LOAD, &out, &e), -EINVAL);
	buf_done(&out);
	put_note(data + 64, 8, LOAD);
	put_note(data + 128, 8, LOAD);
	assert_int_equal(wrap(data, LOAD, &out, &e), -EINVAL);
	assert_non_null(strstr(e.text, "2 PVH notes"));
	buf_done(&out);
	memset(data, 0, SIZE);
	/* The last bytes of the image begin like a note and end before it does. */
	put_note(data + 64, 8, LOAD);
	memcpy(data + SIZE - 16, data + 64, 16);
	assert_int_equal(wrap(data, LOAD, &out, &e), 0);
	buf_done(&out);
	assert_int_equal(wrap(data, LOAD + SIZE, &out, &e), -EINVAL);
	assert_non_null(strstr(e.text, "entry"));
	buf_done(&out);
}

static int check_bytes(const void *data, size_t len, struct err *e)
{
	cleanup_fd int fd = fd_sealed("kernel", data, len);
	bool pvh;

	return kernel_check_elf(fd, "FILE", &pvh, e);
}

static void test_check_elf_bad(void **state)
{
	struct {
		Elf64_Ehdr eh;
		Elf64_Phdr ph;
	} k = {.eh = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, 1},
		       .e_type = ET_EXEC,
		       .e_machine = EM_X86_64,
		       .e_phoff = sizeof(Elf64_Ehdr),
		       .e_phentsize = sizeof(Elf64_Phdr),
		       .e_phnum = 1},
		.ph = {.p_type = PT_LOAD, .p_filesz = sizeof(k)}},
	  bad;
	struct err e = ERR_INIT;

	(void)state;
#if defined(__aarch64__)
	k.eh.e_machine = EM_AARCH64;
#endif
	assert_int_equal(check_bytes(&k, sizeof(k), &e), 0);
	assert_int_equal(check_bytes("MZ", 2, &e), -EINVAL);
	assert_non_null(strstr(e.text, "FILE"));
	assert_non_null(strstr(e.text, "bzImage"));
	assert_int_equal(check_bytes("", 0, &e), -EINVAL);
	assert_int_equal(check_bytes(&k, sizeof(k.eh), &e), -EINVAL);
	bad = k;
	bad.eh.e_machine = EM_386;
	assert_int_equal(check_bytes(&bad, sizeof(bad), &e), -EINVAL);
	bad = k;
	bad.eh.e_phnum = 65535;
	assert_int_equal(check_bytes(&bad, sizeof(bad), &e), -EINVAL);
	bad = k;
	bad.eh.e_phoff = UINT64_MAX - 8;
	assert_int_equal(check_bytes(&bad, sizeof(bad), &e), -EINVAL);
	bad = k;
	bad.ph.p_offset = 64;
	assert_int_equal(check_bytes(&bad, sizeof(bad), &e), -EINVAL);
	assert_non_null(strstr(e.text, "cut off"));
	bad = k;
	bad.ph.p_offset = UINT64_MAX;
	assert_int_equal(check_bytes(&bad, sizeof(bad), &e), -EINVAL);
	bad = k;
	bad.ph.p_type = PT_NOTE;
	assert_int_equal(check_bytes(&bad, sizeof(bad), &e), -EINVAL);
	assert_non_null(strstr(e.text, "nothing to load"));
}

static void test_chosen(void **state)
{
	char path[] = "/tmp/test_kernel.XXXXXX";
	cleanup_fd int fd = mkstemp(path);
	struct kernel k;
	struct err e = ERR_INIT;

	(void)state;
	assert_true(fd >= 0);
	setenv("III_SANDBOX_KERNEL", path, 1);
#if defined(__x86_64__)
	assert_int_equal(kernel_open(&k, &e), -EINVAL);
	assert_non_null(strstr(e.text, path));
#endif
	unlink(path);
	assert_int_equal(kernel_open(&k, &e), -ENOENT);
	assert_non_null(strstr(e.text, "III_SANDBOX_KERNEL"));
	assert_string_equal(e.code, "S300");
	unsetenv("III_SANDBOX_KERNEL");
}

static void test_no_library(void **state)
{
	struct kernel k;
	struct err e = ERR_INIT;

	(void)state;
	setenv("III_SANDBOX_LIBKRUNFW", "/nonexistent/libkrunfw.so.5", 1);
	assert_int_equal(kernel_open(&k, &e), -ENOENT);
	assert_non_null(strstr(e.text, "/nonexistent/libkrunfw.so.5"));
	unsetenv("III_SANDBOX_LIBKRUNFW");
}

static off_t size_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_size;
}

static int count_entries(const char *dir)
{
	cleanup_free char *path = path_join(dir, "kernel");
	DIR *d = opendir(path);
	struct dirent *de;
	int n = 0;

	assert_non_null(d);
	while ((de = readdir(d)))
		n += de->d_name[0] != '.';
	closedir(d);
	return n;
}

/* The most memory this process ever had, counted from the last reset. */
static uint32_t peak_kib(void)
{
	cleanup_free char *text = NULL;
	char *line;
	uint32_t kib;

	assert_int_equal(fd_slurp_at(AT_FDCWD, "/proc/self/status", 65536, &text, NULL), 0);
	line = strstr(text, "VmHWM:");
	assert_non_null(line);
	line += strcspn(line, "0123456789");
	line[strspn(line, "0123456789")] = '\0';
	assert_int_equal(str_u32(line, &kib), 0);
	return kib;
}

static void reset_peak(void)
{
	int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, "5", 1), 1);
	close(fd);
}

/* The real library, where it is installed: taken out once, found again, made anew when damaged. */
static void test_real(void **state)
{
	char dir[] = "/tmp/test_kernel.XXXXXX";
	cleanup_free char *lib = NULL;
	struct kernel a, b;
	struct err e = ERR_INIT;
	uint32_t before;
	off_t size;
	char link[64], target[256];
	ssize_t n;

	(void)state;
	lib = lib_find("III_SANDBOX_LIBKRUNFW", "libkrunfw.so.5", &e);
	if (!lib) {
		print_message("skipped: %s\n", e.text);
		skip();
	}
	assert_non_null(mkdtemp(dir));
	setenv("III_SANDBOX_CACHE_DIR", dir, 1);
	reset_peak();
	before = peak_kib();
	if (kernel_open(&a, &e) < 0)
		fail_msg("%s", e.text);
	/* Not by the kernel itself. */
	assert_in_range(peak_kib() - before, 0, 8192);
	assert_false(a.chosen);
	size = size_of(a.fd);
	assert_true(size > 16 << 20);
#if defined(__x86_64__)
	assert_int_equal(a.format, PLAN_KERNEL_ELF);
	assert_true(a.pvh);
#endif
	snprintf(link, sizeof(link), "/proc/self/fd/%d", a.fd);
	n = readlink(link, target, sizeof(target) - 1);
	assert_true(n > 0);
	target[n] = '\0';
	assert_int_equal(kernel_open(&b, &e), 0);
	assert_int_equal(size_of(b.fd), size);
	assert_int_equal(count_entries(dir), 1);
#if defined(__x86_64__)
	/* Torn by a crash of the host: it is written anew, whoever has the old one keeps it. */
	close(b.fd);
	assert_int_equal(truncate(target, 1000), 0);
	assert_int_equal(kernel_open(&b, &e), 0);
	assert_int_equal(size_of(b.fd), size);
#endif
	close(a.fd);
	close(b.fd);
	path_remove_at(AT_FDCWD, dir);
	unsetenv("III_SANDBOX_CACHE_DIR");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wrap),
		cmocka_unit_test(test_wrap_bad),
		cmocka_unit_test(test_check_elf_bad),
		cmocka_unit_test(test_chosen),
		cmocka_unit_test(test_no_library),
		cmocka_unit_test(test_real),
	};

	unsetenv("III_SANDBOX_KERNEL");
	return cmocka_run_group_tests_name("kernel", tests, NULL, NULL);
}
