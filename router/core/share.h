/*
 * Share: which requests may reuse each other's pages (kvstore.share and the client's cache_salt).
 *
 * Every request has a domain, 32 bytes. Requests of one domain share pages, others never do:
 *
 *   all       SHA-256 of the salt: everybody who sends the same salt, or none
 *   tenant    SHA-256 of tenant and salt; callers that are no tenant of router.keys_file are one tenant together
 *   none      random for each client call: its choices (n) and its attempts share, nothing else
 *
 * The seed of the page keys is SHA-256 of the model's fingerprint and the domain, cut to 16 bytes. Lengths are hashed
 * with the texts and the mode is hashed too, so that no salt imitates another tenant's name. The names of tenants come
 * from the keys file, never from the client.
 *
 * Without a salt, domain and seed depend on mode, tenant and fingerprint alone, so a cache saves both hashes of a
 * request. A cache belongs to one thread; the other functions are pure and run on any.
 */
#ifndef SL_ROUTER_CORE_SHARE_H
#define SL_ROUTER_CORE_SHARE_H

#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "router/core.h"
#include "router/router.h"

typedef struct sl_share_domain {
    uint8_t hash[32];
} sl_share_domain;

/* tenant: its name, "" for a caller that is none. salt: n_salt bytes, 0 for none. False: no memory for a hash, or no
 * random numbers. */
bool sl_share_domain_of(sl_share how, const char *tenant, const char *salt, size_t n_salt,
                        sl_share_domain *out);
/* The seed of the page keys of a domain, for workers with this fingerprint; zero: no memory for a hash. */
sl_key sl_share_seed(sl_key fingerprint, const sl_share_domain *d);

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

/* Domain and seed of a request, as the functions above compute them; an entry is used only if mode, the whole name of
 * the tenant and the fingerprint are equal. False as above, and then the outputs have no meaning. */
bool sl_share_find(sl_share_cache *cache, sl_share how, const char *tenant, const char *salt, size_t n_salt,
                   sl_key fingerprint, sl_share_domain *domain, sl_key *seed);

#endif
