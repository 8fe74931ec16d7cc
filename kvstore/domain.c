/* Domains and seeds, as domain.h describes them. */
#include "kvstore/domain.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <string.h>

/* Hashes begin with what they are for, so that a domain is never equal to a seed or to a hash of a key. */
static const char domain_label[] = "sluice page domain 1", seed_label[] = "sluice page seed 1";

static bool add(EVP_MD_CTX *c, const void *bytes, size_t n)
{
    uint64_t length = n;
    return EVP_DigestUpdate(c, &length, sizeof length) && EVP_DigestUpdate(c, bytes, n);
}

bool sl_share_domain_of(sl_share how, const char *tenant, const char *salt, size_t n_salt,
                        sl_share_domain *out)
{
    if (how == SL_SHARE_NONE)
        return RAND_bytes(out->hash, sizeof out->hash) == 1;
    uint8_t mode = (uint8_t)how;
    size_t n_tenant = how == SL_SHARE_TENANT ? strlen(tenant) : 0;
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    bool ok = c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) && add(c, domain_label, sizeof domain_label) &&
              add(c, &mode, 1) && add(c, tenant, n_tenant) && add(c, salt, n_salt) &&
              EVP_DigestFinal_ex(c, out->hash, NULL);
    EVP_MD_CTX_free(c);
    return ok;
}

sl_key sl_share_seed(sl_key fingerprint, const sl_share_domain *d)
{
    uint8_t hash[32];
    sl_key seed = {0, 0};
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) && add(c, seed_label, sizeof seed_label) &&
        add(c, &fingerprint, sizeof fingerprint) && add(c, d->hash, sizeof d->hash) &&
        EVP_DigestFinal_ex(c, hash, NULL))
        memcpy(&seed, hash, sizeof seed);
    EVP_MD_CTX_free(c);
    return seed;
}

sl_key sl_share_seed_of_everybody(sl_key fingerprint)
{
    sl_share_domain d;
    if (!sl_share_domain_of(SL_SHARE_ALL, "", "", 0, &d))
        return (sl_key){0, 0};
    return sl_share_seed(fingerprint, &d);
}

uint64_t sl_tenant_id(const char *name)
{
    uint8_t hash[EVP_MAX_MD_SIZE];
    uint64_t id = 0;
    if (!EVP_Digest(name, strlen(name), hash, NULL, EVP_sha256(), NULL))
        return 1;
    for (int i = 7; i >= 0; i--)
        id = id << 8 | hash[i];
    return id ? id : 1;
}
