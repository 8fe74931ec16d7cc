/*
 * Storage tier seam: where pages can be stored outside of the host store (disk, remote stores). Pages are opaque blocks
 * of one fixed size, identified by their page key, so a tier knows neither models nor layouts.
 *
 * Everything is asynchronous: a call accepts a request and returns; its `done` runs inside sl_tier_poll() on the owner
 * thread, never inside the call. Requests of one tier complete in the order in which they were made. Until then the
 * caller does not change the buffers and the arrays of keys.
 *
 * What every implementation guarantees (tests/unit/kvstore/test_tier.c runs against all of them):
 *
 *   exists    answers how many keys, from the first on, are stored, and protects their pages from eviction until the
 *             lease ends, so that a following get finds them. After the end of the lease a page may be missing, which
 *             is no error
 *   get       delivers a prefix, which ends before the first page that is missing, short or damaged. A page that is
 *             counted has exactly the bytes that were set. Buffers after the count have undefined contents
 *   set       changes nothing for a key that is stored already, since equal keys mean equal contents. When there is no
 *             room, pages without a lease are evicted, the least recently used first; a page for which there is still
 *             no room is not stored, which is no error
 *   destroy   first completes pending requests with SL_ERR_CANCELLED
 *
 * A tier belongs to one thread. Implementations: "memory" (kvstore/tier_memory.c), which is the example for others and
 * the test double.
 */
#ifndef SL_KVSTORE_TIER_H
#define SL_KVSTORE_TIER_H

#include "base/hash.h"

typedef struct sl_tier_ops sl_tier_ops;

/* The first member of every implementation's object. */
typedef struct sl_tier {
    const sl_tier_ops *ops;
} sl_tier;

typedef struct sl_tier_opts {
    size_t page_bytes;
    uint64_t capacity_bytes; /* upper bound of the pages that are stored */
} sl_tier_opts;

/* n: for exists the number of leading keys that are stored; for get that of leading pages that arrived; for set and
 * remove that of pages stored or removed. */
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
    /* For tests: changes the stored bytes of this page. False: there is no such page. */
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

/* Removes also leased pages, because the caller knows that they are wrong. */
static inline sl_status sl_tier_remove(sl_tier *t, const sl_key *keys, int32_t n, sl_tier_done_fn *done,
                                       void *cookie)
{
    return t->ops->remove(t, keys, n, done, cookie);
}

/* Ends the leases of these keys, before it returns. */
static inline void sl_tier_release(sl_tier *t, const sl_key *keys, int32_t n)
{
    t->ops->release(t, keys, n);
}

/* Calls `done` of the requests that are complete; returns their number. */
static inline int sl_tier_poll(sl_tier *t)
{
    return t->ops->poll(t);
}

static inline void sl_tier_get_stats(const sl_tier *t, sl_tier_stats *out)
{
    t->ops->stats(t, out);
}

/* NULL is allowed. */
static inline void sl_tier_destroy(sl_tier *t)
{
    if (t)
        t->ops->destroy(t);
}

#endif
