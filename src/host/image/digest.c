#include "host/image/digest.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

void digest_of(const void *data, size_t len, char dst[static 72])
{
	unsigned char sum[32];

	/* Fails only when the library has no SHA-256 (or no memory): nothing can be trusted then.
	 */
	if (EVP_Digest(data, len, sum, NULL, EVP_sha256(), NULL) != 1)
		abort();
	memcpy(dst, "sha256:", 7);
	str_hex(dst + 7, sum, sizeof(sum));
}
