/* See cipher.h. */
#include "transport/cipher.h"

#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

enum { NONCE = 12 };

struct sl_cipher {
    EVP_CIPHER_CTX *ctx;
    uint64_t next; /* number of the next message */
};

sl_cipher *sl_cipher_new(const uint8_t key[SL_CIPHER_KEY], bool seal)
{
    sl_cipher *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->ctx = EVP_CIPHER_CTX_new();
    if (c->ctx && EVP_CipherInit_ex(c->ctx, EVP_aes_256_gcm(), NULL, key, NULL, seal) == 1)
        return c;
    sl_cipher_free(c);
    return NULL;
}

void sl_cipher_free(sl_cipher *c)
{
    if (!c)
        return;
    EVP_CIPHER_CTX_free(c->ctx);
    free(c);
}

/* Begins the next message: its nonce, then the bytes that stay open. */
static bool begin(sl_cipher *c, const void *open, size_t n_open)
{
    uint8_t nonce[NONCE] = {0};
    int len;
    memcpy(nonce, &c->next, sizeof c->next);
    c->next++;
    return EVP_CipherInit_ex(c->ctx, NULL, NULL, NULL, nonce, -1) == 1 &&
           (!n_open || EVP_CipherUpdate(c->ctx, NULL, &len, open, (int)n_open) == 1);
}

static bool update(sl_cipher *c, const void *data, size_t n, uint8_t *out)
{
    int len;
    return n <= INT_MAX && (!n || EVP_CipherUpdate(c->ctx, out, &len, data, (int)n) == 1);
}

bool sl_cipher_seal(sl_cipher *c, const void *open, size_t n_open, const void *data, size_t n, uint8_t *out)
{
    int len;
    return begin(c, open, n_open) && update(c, data, n, out) &&
           EVP_CipherFinal_ex(c->ctx, out + n, &len) == 1 &&
           EVP_CIPHER_CTX_ctrl(c->ctx, EVP_CTRL_GCM_GET_TAG, SL_CIPHER_TAG, out + n) == 1;
}

bool sl_cipher_open(sl_cipher *c, const void *open, size_t n_open, const uint8_t *data, size_t n,
                    uint8_t *out)
{
    uint8_t tag[SL_CIPHER_TAG], none[SL_CIPHER_TAG];
    int len;
    if (n < SL_CIPHER_TAG)
        return false;
    memcpy(tag, data + n - SL_CIPHER_TAG, sizeof tag);
    return begin(c, open, n_open) && update(c, data, n - SL_CIPHER_TAG, out) &&
           EVP_CIPHER_CTX_ctrl(c->ctx, EVP_CTRL_GCM_SET_TAG, SL_CIPHER_TAG, tag) == 1 &&
           EVP_CipherFinal_ex(c->ctx, none, &len) == 1;
}
