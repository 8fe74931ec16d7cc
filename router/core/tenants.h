/*
 * Tenants: the clients of router.keys_file, found by the hash of their key, and the limits of each.
 *
 * The file has one tenant per line; empty lines and lines that begin with # are skipped:
 *
 *   NAME sha256=HEX [weight=N] [requests_per_minute=N] [tokens_per_minute=N] [concurrency=N] [admin]
 *
 * NAME is 1 to 32 letters, digits, - and _. HEX is the SHA-256 of the key (printf %s KEY | sha256sum). A limit that is
 * left out does not exist. admin: may use FlushCache, SubscribeKvEvents, Abort of other tenants' requests, and
 * /workers.
 *
 * Threads: the loop's thread. Ownership: the caller frees a table; what an account has used lives in the lane of the
 * tenant (queue.c), by its name, and so survives a reload of the file.
 */
#ifndef SL_ROUTER_CORE_TENANTS_H
#define SL_ROUTER_CORE_TENANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { SL_TENANTS_MAX = 256, SL_TENANT_NAME = 33 };

typedef struct sl_tenant {
    char name[SL_TENANT_NAME];
    uint8_t hash[32];
    uint32_t weight;                                 /* of its turns, >= 1 */
    uint32_t requests_per_minute, tokens_per_minute; /* 0 = no limit */
    uint32_t concurrency;                            /* requests that have not ended, 0 = no limit */
    bool admin;
} sl_tenant;

typedef struct sl_tenants {
    sl_tenant *list;
    size_t n;
} sl_tenants;

/*
 * IO: the file cannot be read. INVALID: a line is wrong, a name or a key occurs twice; err names file, line and reason.
 */
sl_status sl_tenants_load(const char *path, sl_tenants *out, sl_err *err);
void sl_tenants_free(sl_tenants *t);
/* The tenant of this key, or NULL. The time depends only on the length of the key and on the number of tenants. */
const sl_tenant *sl_tenants_of_key(const sl_tenants *t, const char *key);
const sl_tenant *sl_tenants_find(const sl_tenants *t, const char *name);

/*
 * What a tenant has used lately: two buckets that fill at the rate of the tenant, up to what one minute gives. Output
 * tokens may take a bucket below zero.
 */
typedef struct sl_account {
    double requests, tokens; /* in the buckets */
    uint64_t filled_ns;      /* 0: never, the buckets are full */
} sl_account;

/*
 * Takes n requests of `tokens` prompt tokens in all. `active`: requests of the tenant that have not ended. EXHAUSTED:
 * not now, *retry_s says in how many seconds; INVALID: never.
 */
sl_status sl_account_take(sl_account *a, const sl_tenant *t, uint32_t n, uint64_t tokens, uint32_t active,
                          uint64_t now_ns, uint32_t *retry_s, sl_err *err);

/*
 * Whether a call may begin whose requests and tokens are not counted yet: at least one request, `tokens` at least. take:
 * one request is taken at once; sl_account_give_back() returns it before sl_account_take() takes them all. Errors as of
 * sl_account_take().
 */
sl_status sl_account_begin(sl_account *a, const sl_tenant *t, uint64_t tokens, uint32_t active, bool take,
                           uint64_t now_ns, uint32_t *retry_s, sl_err *err);
void sl_account_give_back(sl_account *a, const sl_tenant *t);

#endif
