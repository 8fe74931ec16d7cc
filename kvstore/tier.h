/*
 * Storage tier seam: where pages may live beyond the host store (disk, remote stores). Pages are opaque
 * blocks of one fixed size, named by their page key, so a tier never knows models or layouts.
 *
 * Everything is asynchronous: a call takes a request over and returns; its `done` runs inside sl_tier_poll()
 * on the owner thread, never inside the call. Requests of one tier complete in the order they were made.
 * Buffers and key arrays stay untouched by the caller until then.
 *
 * Promises that every implementation keeps (tests/unit/kvstore/test_tier.c runs against all of them):
 *   - exists answers how many keys from the first on are there, and protects those from eviction until the
 * lease ends, so that a following get finds them. A lease that has ended is a miss, not an error.
 *   - get delivers a prefix: the first page that is missing, short or damaged ends it. A page that is counted
 * is exactly what was set. Buffers beyond the count have undefined contents.
 *   - set of a key that is there changes nothing (keys name content). When there is no room, unleased pages
 * go, least recently used first; what still does not fit is not stored, which is not an error.
 *   - destroy completes what is pending with SL_ERR_CANCELLED first.
 *
 * A tier belongs to one thread. Implementations: "memory" (kvstore/tier_memory.c), the template and the test
 * double.
 */
#ifndef SL_KVSTORE_TIER_H
#define SL_KVSTORE_TIER_H

#include "base/hash.h"

typedef struct sl_tier_ops sl_tier_ops;

/* Public prefix of every implementation's object. */
typedef struct sl_tier {
    const sl_tier_ops *ops;
} sl_tier;

typedef struct sl_tier_opts {
    size_t page_bytes;
    uint64_t capacity_bytes; /* at most this much is kept */
} sl_tier_opts;

/* n: exists - leading keys that are there; get - leading pages that arrived; set, remove - pages stored,
 * removed. */
typedef void sl_tier_done_fn(void *cookie, sl_status st, int32_t n);

typedef struct sl_tier_stats {
    uint64_t pages, bytes, capacity_bytes; /* now */
    uint64_t leased;                       /* pages under a lease that has not ended */
    uint64_t hits, misses, sets, evictions, damaged;
} sl_tier_stats;

struct sl_tier_ops {
    const char *name, *description;
    bool persistent; /* pages survive destroy and create */
    sl_status (*create)(const sl_tier_opts *opts, sl_tier **out, sl_err *err);
    void (*destroy)(sl_tier *t);
    sl_status (*exists)(sl_tier *t, const sl_key *keys, int32_t n, uint32_t lease_ms, sl_tier_done_fn *done,
                        void *cookie);
    sl_status (*get)(sl_tier *t, const sl_key *keys, int32_t n, void *const *pages, sl_tier_done_fn *done,
                     void *cookie);
    sl_status (*set)(sl_tier *t, const sl_key *keys, int32_t n, const void *const *pages,
                     sl_tier_done_fn *done, void *cookie);
    sl_status (*remove)(sl_tier *t, const sl_key *keys, int32_t n, sl_tier_done_fn *done, void *cookie);
    void (*release)(sl_tier *t, const sl_key *keys, int32_t n);
    int (*poll)(sl_tier *t);
    void (*stats)(const sl_tier *t, sl_tier_stats *out);
    /* For tests: the stored bytes of this page change. False: no such page. */
    bool (*damage)(sl_tier *t, sl_key key);
};

extern const sl_tier_ops sl_tier_memory_ops;

/* The registry: the i-th implementation (NULL after the last), by name (NULL: unknown), all names (ends with NULL). */
const sl_tier_ops *sl_tier_at(size_t i);
const sl_tier_ops *sl_tier_find(const char *name);
const char *const *sl_tier_names(void);

/* All return SL_OK (done will run), SL_ERR_INVALID (n < 1) or SL_ERR_NO_MEMORY (done will not run). */
static inline sl_status sl_tier_batch_exists(sl_tier *t, const sl_key *keys, int32_t n, uint32_t lease_ms,
                                             sl_tier_done_fn *done, void *cookie)
{
    return t->ops->exists(t, keys, n, lease_ms, done, cookie);
}

static inline sl_status sl_tier_batch_get(sl_tier *t, const sl_key *keys, int32_t n, void *const *pages,
                                          sl_tier_done_fn *done, void *cookie)
{
    return t->ops->get(t, keys, n, pages, done, cookie);
}

static inline sl_status sl_tier_batch_set(sl_tier *t, const sl_key *keys, int32_t n, const void *const *pages,
                                          sl_tier_done_fn *done, void *cookie)
{
    return t->ops->set(t, keys, n, pages, done, cookie);
}

/* Leased pages too: whoever removes them knows that they are wrong. */
static inline sl_status sl_tier_remove(sl_tier *t, const sl_key *keys, int32_t n, sl_tier_done_fn *done,
                                       void *cookie)
{
    return t->ops->remove(t, keys, n, done, cookie);
}

/* Ends the leases of these keys now; at once. */
static inline void sl_tier_release(sl_tier *t, const sl_key *keys, int32_t n)
{
    t->ops->release(t, keys, n);
}

/* Runs what is complete; returns how many requests that were. */
static inline int sl_tier_poll(sl_tier *t)
{
    return t->ops->poll(t);
}

static inline void sl_tier_get_stats(const sl_tier *t, sl_tier_stats *out)
{
    t->ops->stats(t, out);
}

/* NULL is fine. */
static inline void sl_tier_destroy(sl_tier *t)
{
    if (t)
        t->ops->destroy(t);
}

#endif
