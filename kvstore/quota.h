/*
 * Quotas: how much of one cache (the host store or the disk tier of one worker) each tenant may have.
 *
 * The cache is counted in units of its own: pages in the host store, segments on the disk. A tenant has two numbers, both
 * of them parts of the capacity:
 *
 *   limit   hard. The tenant never has more: what would exceed it replaces the tenant's own oldest units, even when the
 *           cache has free room
 *   share   soft. A tenant may have more than its share as long as there is room. When the cache is full, the oldest unit
 *           among the tenants that are above their share is evicted, so a tenant that is not above its share loses
 *           nothing to the others. Only when no tenant is above its share is the oldest unit of all evicted
 *
 * A unit belongs to the tenant that put it into the cache. What several tenants have used belongs to none of them (the
 * entry SL_QUOTA_SHARED, with share 0 and no limit): it could not be evicted for the sake of one without being taken from
 * another.
 *
 * This file knows tenants and numbers; which unit is the oldest is known to the caches (store_evict.c, disk_index.c).
 * Bounded memory: tenants with a rule have an entry each. At most SL_QUOTA_UNNAMED others have one at a time, as long as
 * they own something. All further tenants have the entry SL_QUOTA_OTHERS together, as if they were one tenant.
 *
 * Threads: as the cache that owns it.
 */
#ifndef SL_KVSTORE_QUOTA_H
#define SL_KVSTORE_QUOTA_H

#include "base/status.h"

enum {
    SL_QUOTA_NAME = 33, /* bytes of a tenant's name with its end, as in router.keys_file */
    SL_QUOTA_RULES = 64,
    SL_QUOTA_UNNAMED = 128,
    SL_QUOTA_SHARED = 0, /* entries that always exist; those of the rules follow */
    SL_QUOTA_OTHERS = 1,
    SL_QUOTA_ENTRIES = 2 + SL_QUOTA_RULES + SL_QUOTA_UNNAMED
};

/* What a page of the entry SL_QUOTA_SHARED has as its tenant where tenants are stored or sent. */
#define SL_QUOTA_SHARED_ID UINT64_MAX

typedef struct sl_quota_rule {
    char name[SL_QUOTA_NAME];
    uint64_t tenant;     /* sl_tenant_id(name) */
    double share, limit; /* parts of the capacity, 0 to 1 */
} sl_quota_rule;

typedef struct sl_quota_opts {
    double share, limit; /* of every tenant that has no rule */
    sl_quota_rule rules[SL_QUOTA_RULES];
    int n_rules;
    bool first; /* there was a rule "*" */
} sl_quota_opts;

/* Why something of a tenant was evicted. */
typedef enum {
    SL_QUOTA_LIMIT, /* the tenant was above its limit */
    SL_QUOTA_ROOM,  /* the cache was full */
    SL_QUOTA_REASONS
} sl_quota_reason;

/* For metrics: of SL_QUOTA_SHARED, of a rule, or of all other tenants together. */
typedef struct sl_quota_use {
    const char *name; /* "shared", "other", or the rule's */
    int64_t pages;    /* in the cache, now */
    uint64_t evicted[SL_QUOTA_REASONS];
} sl_quota_use;

typedef struct sl_quota_entry {
    uint64_t tenant;
    int64_t used;         /* units; the cache's to change */
    int64_t share, limit; /* units */
    /* of leases and units; an entry without a rule is given to another tenant when there are none */
    int32_t refs;
} sl_quota_entry;

typedef struct sl_quota {
    sl_quota_entry entries[SL_QUOTA_ENTRIES];
    sl_quota_use uses[2 + SL_QUOTA_RULES];
    char names[SL_QUOTA_RULES][SL_QUOTA_NAME];
    int64_t share, limit; /* units, without a rule */
    int n_rules, n;       /* n: entries that exist */
    int most;             /* entries that may exist */
} sl_quota;

/*
 * Adds the rule "NAME [share=X] [limit=X]" with X from 0 to 1; a part that is left out is out->share or out->limit, as
 * for tenants without a rule. These two are set by the NAME "*", which is the first rule or none. SL_ERR_INVALID says
 * what is wrong, and *out is as before.
 */
sl_status sl_quota_add_rule(sl_quota_opts *out, const char *text, sl_err *err);

/* capacity: units. unnamed: the most tenants without a rule that are distinguished, up to SL_QUOTA_UNNAMED. o NULL: no tenant is
 * distinguished, all of them are SL_QUOTA_OTHERS without a limit. */
void sl_quota_init(sl_quota *q, const sl_quota_opts *o, int64_t capacity, int unnamed);

/* The entry of a tenant, with a reference. It is SL_QUOTA_SHARED for SL_QUOTA_SHARED_ID. */
int sl_quota_enter(sl_quota *q, uint64_t tenant);
/* Another reference to this entry, and the end of one. */
void sl_quota_hold(sl_quota *q, int entry);
void sl_quota_leave(sl_quota *q, int entry);

static inline uint64_t sl_quota_tenant(const sl_quota *q, int entry)
{
    return q->entries[entry].tenant;
}

static inline bool sl_quota_above_share(const sl_quota *q, int entry)
{
    return q->entries[entry].used > q->entries[entry].share;
}

static inline bool sl_quota_above_limit(const sl_quota *q, int entry)
{
    return q->entries[entry].used > q->entries[entry].limit;
}

/* The numbers of this entry for metrics. */
static inline sl_quota_use *sl_quota_use_of(sl_quota *q, int entry)
{
    return &q->uses[entry < 2 + q->n_rules ? entry : SL_QUOTA_OTHERS];
}

/* The number of uses: 0 when no tenant is distinguished. */
static inline int sl_quota_n_uses(const sl_quota *q)
{
    return q->most > 2 ? 2 + q->n_rules : 0;
}

#endif
