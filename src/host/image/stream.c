/* gzip is ISA-L's work (docs/decisions/0001-isal-for-gzip.md), zstd is libzstd's. Memory: two
 * buffers, and a decoder's window (32 KiB, zstd up to 128 MiB as its own limit says).
 */
#include "host/image/stream.h"

#include <errno.h>
#include <isa-l/igzip_lib.h>
#include <openssl/evp.h>
#include <string.h>
#include <zstd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define IN_BUF	(256u << 10)
#define OUT_BUF (256u << 10)
#define SHA256	32

enum kind {
	KIND_PLAIN,
	KIND_GZIP,
	KIND_ZSTD,
};

struct stream {
	const struct image_layer *layer;
	struct stream_shared *shared;
	enum kind kind;
	uint64_t read; /* bytes of the blob read */
	uint8_t *in, *out;
	size_t in_at, in_len;
	bool ended; /* no more tar */
	bool fresh; /* a gzip member or zstd frame may begin here */
	struct inflate_state *gzip;
	ZSTD_DStream *zstd;
	EVP_MD_CTX *blob_hash, *tar_hash;
};

static int read_more(struct stream *s, struct err *e)
{
	size_t want, keep = s->in_len - s->in_at;
	ssize_t n;

	if (s->shared->stop)
		return err_set(e, "", ECANCELED, "cancelled");
	memmove(s->in, s->in + s->in_at, keep);
	s->in_at = 0;
	s->in_len = keep;
	want = MIN((uint64_t)(IN_BUF - keep), s->layer->size - s->read);
	if (!want)
		return 0;
	n = fd_pread_full(s->layer->fd, s->in + keep, want, s->layer->offset + s->read);
	if (n < 0)
		return err_set(e, "", (int)-n, "reading: %s", err_str((int)n));
	if (n != (ssize_t)want)
		return err_set(e, "", EIO, "the blob ends after %llu of %llu bytes",
			(unsigned long long)(s->read + n), (unsigned long long)s->layer->size);
	if (s->blob_hash)
		EVP_DigestUpdate(s->blob_hash, s->in + keep, n);
	s->read += n;
	s->in_len += n;
	atomic_fetch_add(&s->shared->blob_bytes, (uint64_t)n);
	return 0;
}

static bool at_eof(const struct stream *s)
{
	return s->in_at == s->in_len && s->read == s->layer->size;
}

static bool is_gzip(const uint8_t *p, size_t len)
{
	return len >= 2 && p[0] == 0x1f && p[1] == 0x8b;
}

static bool is_zstd(const uint8_t *p, size_t len)
{
	static const uint8_t frame[] = {0x28, 0xb5, 0x2f, 0xfd}, skip[] = {0x2a, 0x4d, 0x18};

	return len >= 4 &&
	       (memcmp(p, frame, 4) == 0 || ((p[0] & 0xf0) == 0x50 && memcmp(p + 1, skip, 3) == 0));
}

static int tell_kind(struct stream *s, struct err *e)
{
	const uint8_t *p = s->in + s->in_at;
	size_t len = s->in_len - s->in_at;

	if (is_gzip(p, len)) {
		s->kind = KIND_GZIP;
		s->gzip = xmalloc(sizeof(*s->gzip));
		isal_inflate_init(s->gzip);
		s->gzip->crc_flag = ISAL_GZIP;
	} else if (is_zstd(p, len)) {
		s->kind = KIND_ZSTD;
		s->zstd = ZSTD_createDStream();
		if (!s->zstd)
			return err_set(e, "", ENOMEM, "no memory for zstd");
	} else if ((len >= 6 && memcmp(p,
					"\xfd"
					"7zXZ",
					6) == 0) ||
		   (len >= 4 && memcmp(p, "BZh", 3) == 0 && p[3] >= '1' && p[3] <= '9')) {
		return err_set(e, "", EINVAL,
			"compressed with %s; only gzip, zstd and plain tar are layers of an image",
			p[0] == 'B' ? "bzip2" : "xz");
	}
	return 0;
}

int stream_new(const struct image_layer *layer, struct stream_shared *shared, struct stream **ret,
	struct err *e)
{
	struct stream *s = xcalloc(1, sizeof(*s));
	int r;

	s->layer = layer;
	s->shared = shared;
	s->in = xmalloc(IN_BUF);
	s->out = xmalloc(OUT_BUF);
	s->fresh = true;
	s->tar_hash = EVP_MD_CTX_new();
	s->blob_hash = layer->digest ? EVP_MD_CTX_new() : NULL;
	if (!s->tar_hash || !EVP_DigestInit_ex(s->tar_hash, EVP_sha256(), NULL) ||
		(layer->digest &&
			(!s->blob_hash || !EVP_DigestInit_ex(s->blob_hash, EVP_sha256(), NULL))))
		r = err_set(e, "", ENOMEM, "no SHA-256 from OpenSSL");
	else
		r = read_more(s, e);
	if (r == 0)
		r = tell_kind(s, e);
	if (r < 0) {
		stream_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

void stream_free(struct stream *s)
{
	if (!s)
		return;
	EVP_MD_CTX_free(s->blob_hash);
	EVP_MD_CTX_free(s->tar_hash);
	ZSTD_freeDStream(s->zstd);
	free(s->gzip);
	free(s->in);
	free(s->out);
	free(s);
}

/* At the start of a member or frame: is there another? Else all that follows is not ours. */
static int begin_member(struct stream *s, struct err *e)
{
	const uint8_t *p;
	size_t len;

	if (s->in_len - s->in_at < 4) {
		int r = read_more(s, e);

		if (r < 0)
			return r;
	}
	p = s->in + s->in_at;
	len = s->in_len - s->in_at;
	s->fresh = false;
	if (s->kind == KIND_GZIP ? is_gzip(p, len) : is_zstd(p, len)) {
		if (s->kind == KIND_GZIP)
			isal_inflate_reset(s->gzip);
		return 0;
	}
	s->ended = true;
	return 0;
}

static const char *gzip_error(int r)
{
	switch (r) {
	case ISAL_INCORRECT_CHECKSUM:
		return "the check sum is wrong";
	case ISAL_INVALID_WRAPPER:
	case ISAL_UNSUPPORTED_METHOD:
		return "a bad header";
	default:
		return "damaged data";
	}
}

/* One step of a decoder: what came out, perhaps nothing. */
static ssize_t step_gzip(struct stream *s, struct err *e)
{
	struct inflate_state *z = s->gzip;
	int r;

	z->next_in = s->in + s->in_at;
	z->avail_in = (uint32_t)(s->in_len - s->in_at);
	z->next_out = s->out;
	z->avail_out = OUT_BUF;
	r = isal_inflate(z);
	s->in_at = s->in_len - z->avail_in;
	if (r < 0)
		return err_set(e, "", EBADMSG, "gzip: %s", gzip_error(r));
	if (z->block_state == ISAL_BLOCK_FINISH)
		s->fresh = true;
	return OUT_BUF - z->avail_out;
}

static ssize_t step_zstd(struct stream *s, struct err *e)
{
	ZSTD_inBuffer in = {s->in, s->in_len, s->in_at};
	ZSTD_outBuffer out = {s->out, OUT_BUF, 0};
	size_t r = ZSTD_decompressStream(s->zstd, &out, &in);

	s->in_at = in.pos;
	if (ZSTD_isError(r))
		return err_set(e, "", EBADMSG, "zstd: %s", ZSTD_getErrorName(r));
	if (r == 0)
		s->fresh = true;
	return (ssize_t)out.pos;
}

static ssize_t step(struct stream *s, struct err *e)
{
	ssize_t n;
	int r;

	if (s->fresh && s->kind != KIND_PLAIN) {
		r = begin_member(s, e);
		if (r < 0 || s->ended)
			return r;
	}
	if (s->in_at == s->in_len) {
		r = read_more(s, e);
		if (r < 0)
			return r;
	}
	if (s->kind == KIND_PLAIN) {
		n = MIN(s->in_len - s->in_at, OUT_BUF);
		memcpy(s->out, s->in + s->in_at, n);
		s->in_at += n;
		s->ended = n == 0;
		return n;
	}
	r = at_eof(s);
	n = s->kind == KIND_GZIP ? step_gzip(s, e) : step_zstd(s, e);
	/* Nothing went in and nothing came out: the decoder waits for bytes that do not exist. */
	if (n == 0 && r && !s->fresh)
		return err_set(e, "", EBADMSG, "%s: the compressed data end too early",
			s->kind == KIND_GZIP ? "gzip" : "zstd");
	return n;
}

ssize_t stream_next(struct stream *s, const void **ret, struct err *e)
{
	ssize_t n = 0;

	while (n == 0 && !s->ended) {
		n = step(s, e);
		if (n < 0)
			return n;
	}
	if (n == 0)
		return 0;
	EVP_DigestUpdate(s->tar_hash, s->out, n);
	if (atomic_fetch_add(&s->shared->tar_bytes, (uint64_t)n) + n > s->shared->tar_bytes_max)
		return err_set(e, "", EFBIG, "the layers unpack to more than %llu bytes of tar",
			(unsigned long long)s->shared->tar_bytes_max);
	*ret = s->out;
	return n;
}

static int check_digest(
	const char *what, const char *want, const uint8_t sha[static SHA256], struct err *e)
{
	char got[8 + 2 * SHA256] = "sha256:";

	str_hex(got + 7, sha, SHA256);
	if (str_eq(want, got))
		return 0;
	return err_set(e, "", EBADMSG, "the %s is %s, not %s: the bytes are not those of the image",
		what, got, want);
}

int stream_finish(struct stream *s, uint8_t tar_sha256[static 32], struct err *e)
{
	uint8_t blob_sha[SHA256];
	const void *p;
	ssize_t n;
	int r;

	do
		n = stream_next(s, &p, e);
	while (n > 0);
	if (n < 0)
		return (int)n;
	while (!at_eof(s)) {
		s->in_at = s->in_len;
		r = read_more(s, e);
		if (r < 0)
			return r;
	}
	EVP_DigestFinal_ex(s->tar_hash, tar_sha256, NULL);
	if (s->layer->digest) {
		EVP_DigestFinal_ex(s->blob_hash, blob_sha, NULL);
		r = check_digest("digest", s->layer->digest, blob_sha, e);
		if (r < 0)
			return r;
	}
	return s->layer->diff_id ? check_digest("diff id", s->layer->diff_id, tar_sha256, e) : 0;
}
