/*
 * Share: a cache of domains and seeds, which kvstore/domain.h computes. Without a salt they depend on mode, tenant and
 * fingerprint alone, so the cache saves both hashes of a request. A cache belongs to one thread.
 */
#ifndef SL_ROUTER_CORE_SHARE_H
#define SL_ROUTER_CORE_SHARE_H

#include <stddef.h>
#include <stdint.h>

#include "kvstore/domain.h"
#include "router/core.h"
#include "router/router.h"

#define SL_SHARE_CACHED 64

/* The domains and seeds of callers that sent no salt, each at the slot of its tenant's name. Zeroed memory is an empty
 * cache; it owns nothing else. */
typedef struct sl_share_cache {
    struct {
        bool used;
        sl_share how;
        char tenant[SL_CLIENT_MAX]; /* "" with SL_SHARE_ALL */
        sl_key fingerprint;
        sl_share_domain domain;
        sl_key seed;
    } slots[SL_SHARE_CACHED];
} sl_share_cache;

/* Domain and seed of a request, as kvstore/domain.h computes them; an entry is used only if mode, the whole name of
 * the tenant and the fingerprint are equal. False: no memory for a hash, or no random
 * numbers; then the outputs have no meaning. */
bool sl_router_share_find(sl_share_cache *cache, sl_share how, const char *tenant, const char *salt,
                          size_t n_salt, sl_key fingerprint, sl_share_domain *domain, sl_key *seed);

#endif
