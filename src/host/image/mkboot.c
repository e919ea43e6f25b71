/* mkboot OUT AGENT [PATH=HOSTFILE...] - makes the boot disk at build time.
 *
 * /init is AGENT; /dev /proc /sys /mnt /run /tmp are empty folders for PID 1 to mount on. Each
 * PATH=HOSTFILE adds a file (the shared libraries of a sanitizer build). Everything is 0755, owned
 * by root, of time 0; the same files give the same bytes.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "host/image/build.h"
#include "host/image/erofs.h"

#define EXTRA_FILES_MAX 64

struct boot {
	struct tree *tree;
	EVP_MD_CTX *hash; /* of paths and contents: the disk's UUID */
	struct erofs_source sources[EXTRA_FILES_MAX + 1];
	uint32_t n_sources;
};

static int hash_file(EVP_MD_CTX *hash, int fd, uint64_t size)
{
	cleanup_free uint8_t *buf = xmalloc(1 << 20);

	for (uint64_t at = 0; at < size;) {
		ssize_t n = fd_pread_full(fd, buf, 1 << 20, at);

		if (n <= 0)
			return n < 0 ? (int)n : -EIO;
		EVP_DigestUpdate(hash, buf, n);
		at += n;
	}
	return 0;
}

static int add_file(struct boot *b, const char *path, const char *host, struct err *e)
{
	struct tree_attr a = {.mode = S_IFREG | 0755};
	char clean[IMAGE_PATH_MAX + 1];
	struct stat st;
	int fd, r;

	if (b->n_sources == ARRAY_LEN(b->sources))
		return err_set(e, "", E2BIG, "more than %d extra files", EXTRA_FILES_MAX);
	r = tree_path_clean(path, clean, e);
	if (r < 0)
		return r;
	fd = open(host, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, "", errno, "%s: %s", host, err_str(errno));
	b->sources[b->n_sources] = (struct erofs_source){fd, fd};
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return err_set(e, "", EINVAL, "%s: not a regular file", host);
	EVP_DigestUpdate(b->hash, clean, strlen(clean) + 1);
	r = hash_file(b->hash, fd, st.st_size);
	if (r < 0)
		return err_set(e, "", -r, "reading %s: %s", host, err_str(r));
	a.body = (struct tree_body){.size = st.st_size, .source = b->n_sources++};
	a.body.tail = a.body.size & ~UINT64_C(4095);
	return tree_put(b->tree, clean, &a, e);
}

static int add_all(struct boot *b, int argc, char **argv, struct err *e)
{
	static const char *const folders[] = {"dev", "proc", "sys", "mnt", "run", "tmp"};
	struct tree_attr dir = {.mode = S_IFDIR | 0755};
	int r = add_file(b, "init", argv[2], e);

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(folders); i++)
		r = tree_put(b->tree, folders[i], &dir, e);
	for (int i = 3; r == 0 && i < argc; i++) {
		char *eq = strchr(argv[i], '=');

		if (!eq)
			return err_set(e, "", EINVAL, "%s: not PATH=HOSTFILE", argv[i]);
		*eq = '\0';
		r = add_file(b, argv[i] + strspn(argv[i], "/"), eq + 1, e);
	}
	return r;
}

static int write_disk(struct boot *b, const char *out, struct err *e)
{
	struct erofs_write w = {.tree = b->tree,
		.sources = b->sources,
		.n_sources = b->n_sources,
		.bytes_max = 1ull << 30};
	cleanup_fd int fd = open(out, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	uint8_t digest[EVP_MAX_MD_SIZE];

	if (fd < 0)
		return err_set(e, "", errno, "%s: %s", out, err_str(errno));
	EVP_DigestFinal_ex(b->hash, digest, NULL);
	memcpy(w.uuid, digest, sizeof(w.uuid));
	w.out_fd = fd;
	return erofs_write(&w, NULL, e);
}

int main(int argc, char **argv)
{
	struct boot b = {.tree = tree_new(), .hash = EVP_MD_CTX_new()};
	struct err e = ERR_INIT;
	int r;

	if (argc < 3) {
		fputs("usage: mkboot OUT AGENT [PATH=HOSTFILE...]\n", stderr);
		return 2;
	}
	EVP_DigestInit_ex(b.hash, EVP_sha256(), NULL);
	tree_begin_layer(b.tree);
	r = add_all(&b, argc, argv, &e);
	if (r == 0)
		r = write_disk(&b, argv[1], &e);
	if (r < 0) {
		fprintf(stderr, "mkboot: %s\n", e.text);
		unlink(argv[1]);
	}
	for (uint32_t i = 0; i < b.n_sources; i++)
		fd_close(&b.sources[i].data_fd);
	EVP_MD_CTX_free(b.hash);
	tree_free(b.tree);
	return r < 0;
}
