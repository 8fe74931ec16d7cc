/* The cache of domains and seeds, as share.h describes it. */
#include "router/core/share.h"

#include <string.h>
#include <xxhash.h>

static bool compute(sl_share how, const char *tenant, const char *salt, size_t n_salt, sl_key fingerprint,
                    sl_share_domain *domain, sl_key *seed)
{
    if (!sl_share_domain_of(how, tenant, salt, n_salt, domain))
        return false;
    *seed = sl_share_seed(fingerprint, domain);
    return seed->lo | seed->hi;
}

bool sl_router_share_find(sl_share_cache *cache, sl_share how, const char *tenant, const char *salt,
                          size_t n_salt, sl_key fingerprint, sl_share_domain *domain, sl_key *seed)
{
    const char *name = how == SL_SHARE_TENANT ? tenant : "";
    size_t n = strlen(name);
    size_t i = XXH3_64bits(name, n) % SL_SHARE_CACHED;
    bool cacheable = how != SL_SHARE_NONE && !n_salt && n < sizeof cache->slots[i].tenant;
    if (cacheable && cache->slots[i].used && cache->slots[i].how == how &&
        !strcmp(cache->slots[i].tenant, name) && sl_key_eq(cache->slots[i].fingerprint, fingerprint)) {
        *domain = cache->slots[i].domain;
        *seed = cache->slots[i].seed;
        return true;
    }
    if (!compute(how, tenant, salt, n_salt, fingerprint, domain, seed))
        return false;
    if (cacheable) {
        cache->slots[i].used = true;
        cache->slots[i].how = how;
        memcpy(cache->slots[i].tenant, name, n + 1);
        cache->slots[i].fingerprint = fingerprint;
        cache->slots[i].domain = *domain;
        cache->slots[i].seed = *seed;
    }
    return true;
}
