#include "host/image/digest.h"

#include <assert.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/str.h"

void digest_of(const void *data, size_t len, char dst[static 72])
{
	unsigned char sum[32];
	int ok = EVP_Digest(data, len, sum, NULL, EVP_sha256(), NULL);

	/* Fails only without SHA-256 in the library or without memory: no going on then. */
	assert(ok == 1);
	memcpy(dst, "sha256:", 7);
	str_hex(dst + 7, sum, sizeof(sum));
}
