#include "host/worker/token.h"

#include <assert.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

#define SUM_LEN 32 /* SHA-256 */

/* Sums have one length, so comparing them says nothing of the token's length; and what a core dump
 * or a stray read of this memory gives away is not the token. */
static unsigned char token_sum[SUM_LEN];
static bool token_known;

/* OpenSSL wipes what it copied of the text when it gives its context back. */
static bool sum_of(const char *text, unsigned char ret[static SUM_LEN])
{
	return EVP_Digest(text, strlen(text), ret, NULL, EVP_sha256(), NULL) == 1;
}

void token_take(void)
{
	bool found = false;

	token_known = false;
	OPENSSL_cleanse(token_sum, sizeof(token_sum));
	/* A name may stand in the environment twice; unsetenv removes all of them, so all are
	 * wiped. The first counts, as for getenv. */
	for (char **v = environ; v && *v; v++) {
		char *value = *v + strlen(TOKEN_ENV "=");

		if (!str_starts(*v, TOKEN_ENV "="))
			continue;
		if (!found && *value) {
			bool ok = sum_of(value, token_sum);

			/* Fails only without SHA-256 in the library or without memory: no going on
			 * then. */
			assert(ok);
			token_known = ok;
		}
		found = true;
		OPENSSL_cleanse(value, strlen(value));
	}
	unsetenv(TOKEN_ENV);
}

bool token_set(void)
{
	return token_known;
}

bool token_matches(const char *offered)
{
	unsigned char sum[SUM_LEN] = {0};
	bool summed = sum_of(offered ? offered : "", sum);
	bool same = CRYPTO_memcmp(sum, token_sum, SUM_LEN) == 0;

	return (int)same & (int)summed & (int)token_known & (offered != NULL);
}
