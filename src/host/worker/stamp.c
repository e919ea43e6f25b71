#include "host/worker/stamp.h"

#include <assert.h>
#include <endian.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

void stamp_init(struct stamp *s)
{
	s->ctx = EVP_MD_CTX_new();
	if (!s->ctx || EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) != 1)
		mem_exhausted();
}

void stamp_done(struct stamp *s)
{
	EVP_MD_CTX_free(s->ctx);
	s->ctx = NULL;
}

void stamp_piece(struct stamp *s, const void *data, size_t len)
{
	int ok = EVP_DigestUpdate(s->ctx, data, len);

	assert(ok == 1);
}

void stamp_begin(struct stamp *s, uint64_t len)
{
	uint64_t le = htole64(len);

	stamp_piece(s, &le, sizeof(le));
}

void stamp_bytes(struct stamp *s, const void *data, size_t len)
{
	stamp_begin(s, len);
	stamp_piece(s, data, len);
}

void stamp_text(struct stamp *s, const char *text)
{
	stamp_bytes(s, text ? text : "", text ? strlen(text) : 0);
}

void stamp_u64(struct stamp *s, uint64_t v)
{
	uint64_t le = htole64(v);

	stamp_bytes(s, &le, sizeof(le));
}

void stamp_zeros(struct stamp *s, uint64_t len)
{
	static const uint8_t zeros[4096];

	while (len) {
		size_t n = MIN(len, (uint64_t)sizeof(zeros));

		stamp_piece(s, zeros, n);
		len -= n;
	}
}

void stamp_end(struct stamp *s, char ret[static WORKER_DIGEST_LEN + 1])
{
	uint8_t sum[WORKER_DIGEST_LEN / 2];
	int ok = EVP_DigestFinal_ex(s->ctx, sum, NULL);

	assert(ok == 1);
	str_hex(ret, sum, sizeof(sum));
	stamp_done(s);
}
