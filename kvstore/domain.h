/*
 * Domain: which requests may share pages (kvstore.share and the client's cache_salt). Router and workers use it.
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
 * Pure functions, any thread.
 */
#ifndef SL_KVSTORE_DOMAIN_H
#define SL_KVSTORE_DOMAIN_H

#include "base/hash.h"

/* Whose requests reuse each other's pages (kvstore.share). */
typedef enum { SL_SHARE_ALL, SL_SHARE_TENANT, SL_SHARE_NONE } sl_share;

typedef struct sl_share_domain {
    uint8_t hash[32];
} sl_share_domain;

/* tenant: its name, "" for a caller that is none. salt: n_salt bytes, 0 for none. False: no memory for a hash, or no
 * random numbers. */
bool sl_share_domain_of(sl_share how, const char *tenant, const char *salt, size_t n_salt,
                        sl_share_domain *out);
/* The seed of the page keys of a domain, for workers with this fingerprint; zero: no memory for a hash. */
sl_key sl_share_seed(sl_key fingerprint, const sl_share_domain *d);
/* The seed of requests without a salt where everybody shares (SL_SHARE_ALL): the only pages whose keys follow from public
 * knowledge alone. Zero as above. */
sl_key sl_share_seed_of_everybody(sl_key fingerprint);

/* The number of a tenant in messages, stores and quotas: the first 8 bytes of SHA-256 of its name, little-endian; never 0,
 * which means that a request has no tenant. */
uint64_t sl_tenant_id(const char *name);

#endif
