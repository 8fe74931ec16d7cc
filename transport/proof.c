/* See proof.h. */
#include "transport/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string.h>

#include "base/status.h"

enum { DATA_MAX = 256 };

void sl_proof_make(const char *secret, const char *label, const void *data, size_t n,
                   uint8_t out[SL_PROOF_BYTES])
{
    uint8_t text[DATA_MAX];
    size_t head = strlen(label) + 1;
    unsigned len = 0;
    SL_CHECK(head + n <= sizeof text, "a proof over %zu bytes", n);
    memcpy(text, label, head);
    memcpy(text + head, data, n);
    SL_CHECK(HMAC(EVP_sha256(), secret, (int)strlen(secret), text, head + n, out, &len) &&
                 len == SL_PROOF_BYTES,
             "HMAC-SHA256 failed");
}

bool sl_proof_equal(const uint8_t a[SL_PROOF_BYTES], const uint8_t b[SL_PROOF_BYTES])
{
    return CRYPTO_memcmp(a, b, SL_PROOF_BYTES) == 0;
}

void sl_proof_nonce(uint8_t out[SL_PROOF_BYTES])
{
    SL_CHECK(RAND_bytes(out, SL_PROOF_BYTES) == 1, "cannot make random bytes");
}
