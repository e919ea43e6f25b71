/* image-disk [--threads N] OUT LAYER... - layers in, disk out, without a store or a network: for
 * tests and benchmarks. Not installed.
 *
 * LAYER is FILE[,DIGEST[,DIFF-ID]], lowest first; an empty digest is not checked. Scratch files lie
 * beside OUT. Prints one JSON line.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/image/build.h"

/* The most memory that this program had; getrusage would count what our parent had at the fork. */
static uint64_t memory_peak_kib(void)
{
	cleanup_free char *text = NULL;
	uint64_t kib = 0;
	char *at;

	if (fd_slurp_at(AT_FDCWD, "/proc/self/status", 64 << 10, &text, NULL) < 0)
		return 0;
	at = strstr(text, "VmHWM:");
	if (!at)
		return 0;
	at += strcspn(at, "0123456789");
	at[strspn(at, "0123456789")] = '\0';
	return str_u64(at, &kib) == 0 ? kib : 0;
}

/* Takes the argument apart in place. */
static int open_layer(char *arg, struct image_layer *l, struct err *e)
{
	char *digest = strchr(arg, ','), *diff_id = digest ? strchr(digest + 1, ',') : NULL;
	struct stat st;

	if (digest)
		*digest++ = '\0';
	if (diff_id)
		*diff_id++ = '\0';
	l->fd = open(arg, O_RDONLY | O_CLOEXEC);
	if (l->fd < 0 || fstat(l->fd, &st) < 0)
		return err_set(e, "", errno, "%s: %s", arg, err_str(errno));
	l->size = (uint64_t)st.st_size;
	l->name = arg;
	l->digest = digest && *digest ? digest : NULL;
	l->diff_id = diff_id && *diff_id ? diff_id : NULL;
	return 0;
}

static int build(
	const char *out, struct image_build *b, struct image_build_stats *stats, struct err *e)
{
	cleanup_free char *copy = xstrdup(out);
	cleanup_fd int dir = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_fd int fd = open(out, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (dir < 0 || fd < 0)
		return err_set(e, "", errno, "%s: %s", out, err_str(errno));
	b->out_fd = fd;
	b->scratch_dirfd = dir;
	return image_build(b, stats, e);
}

int main(int argc, char **argv)
{
	struct image_layer layers[IMAGE_LAYERS_MAX + 1] = {0};
	struct image_build b = {.layers = layers};
	struct image_build_stats stats = {0};
	struct err e = ERR_INIT;
	uint32_t threads = 0;
	int r = 0, at = 1;

	if (argc > 2 && str_eq(argv[1], "--threads")) {
		r = str_u32(argv[2], &threads);
		at = 3;
	}
	if (r < 0 || argc - at < 1 || argc - at - 1 > IMAGE_LAYERS_MAX + 1) {
		fputs("usage: image-disk [--threads N] OUT FILE[,DIGEST[,DIFF-ID]]...\n", stderr);
		return 2;
	}
	b.threads = threads;
	for (int i = at + 1; r == 0 && i < argc; i++)
		r = open_layer(argv[i], &layers[b.n_layers++], &e);
	if (r == 0)
		r = build(argv[at], &b, &stats, &e);
	for (size_t i = 0; i < b.n_layers; i++)
		fd_close(&layers[i].fd);
	if (r < 0) {
		fprintf(stderr, "image-disk: %s\n", e.text);
		unlink(argv[at]);
		return 1;
	}
	printf("{\"entries\":%llu,\"inodes\":%llu,\"data_bytes\":%llu,\"disk_bytes\":%llu,"
	       "\"max_rss_kib\":%llu}\n",
		(unsigned long long)stats.entries, (unsigned long long)stats.inodes,
		(unsigned long long)stats.data_bytes, (unsigned long long)stats.disk_bytes,
		(unsigned long long)memory_peak_kib());
	return 0;
}
