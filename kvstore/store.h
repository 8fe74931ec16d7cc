/*
 * Store: who uses which page of an arena. Page allocator, prefix tree, leases, eviction.
 *
 * A page is free, private to one lease, or in the prefix tree. The tree has one node per page; children are
 * found by chained page key, and the tokens are compared too, so a hash collision cannot hand out another
 * prompt's rows. The chain of keys starts from the request's seed, and first pages keep theirs: leases of different
 * seeds never share a page, whatever their tokens. A lease is one request's hold on a run of pages: the first are shared with the tree and
 * pinned, the rest are private until they are published. Pinned pages are never evicted; unpinned ones are,
 * least recently used leaves first, when pages are needed.
 *
 *     sl_store_lease(s, seed, tokens, n, &l)  matches the longest cached prefix, allocates the rest; all or nothing
 *     sl_lease_grow(l, 1)                     one more private page
 *     sl_lease_publish(l, tokens, n)          pages that are full now enter the tree (their content must be complete)
 *     sl_lease_release(l, true)               everything is given back; published pages stay cached
 *
 * At least the last token of a prompt is always computed, so at most (n - 1) / 64 pages match. A page whose
 * key is already in the tree stays private to its lease (a duplicate); it is freed on release.
 *
 * The store knows page numbers, never bytes: that a published page holds the right rows is the publisher's
 * duty; kvstore/seal.h keeps checksums of them. Threads: one owner thread. Lifetime: leases are released before the store is destroyed.
 */
#ifndef SL_KVSTORE_STORE_H
#define SL_KVSTORE_STORE_H

#include "base/hash.h"

typedef struct sl_store sl_store;
typedef struct sl_lease sl_lease;

typedef enum { SL_STORE_STORED, SL_STORE_REMOVED, SL_STORE_CLEARED } sl_store_event;

/* A change of the tree. parent is zero for first pages. tokens: the 64 of a stored page, borrowed for the
 * call, NULL for the other events. Must not call the store. */
typedef void sl_store_event_fn(void *ctx, sl_store_event ev, sl_key parent, sl_key key,
                               const int32_t *tokens);

typedef struct sl_store_opts {
    int32_t n_pages;
    bool prefix_cache;        /* false: nothing is ever published or matched */
    sl_store_event_fn *event; /* called for every change of the tree; may be NULL */
    void *event_ctx;
} sl_store_opts;

typedef struct sl_store_stats {
    int32_t total, free, cached,
        held; /* cached: in the tree, unpinned; held: pinned or private. They add up to total */
    int32_t leases;
    uint64_t evictions, query_tokens, hit_tokens; /* cumulative */
} sl_store_stats;

sl_status sl_store_create(const sl_store_opts *opts, sl_store **out, sl_err *err);
void sl_store_destroy(sl_store *s);
void sl_store_stats_get(const sl_store *s, sl_store_stats *out);

/* Pages that could be allocated now: free and cached. */
int32_t sl_store_available(const sl_store *s);
/* Pages that a lease of this seed and these tokens would share with the tree. Changes nothing. */
int32_t sl_store_match(const sl_store *s, sl_key seed, const int32_t *tokens, int32_t n_tokens);

/*
 * A lease with room for n_tokens (ceil(n_tokens / 64) pages): the longest cached prefix pinned, the rest
 * allocated. SL_ERR_EXHAUSTED when they are not available (nothing changed), SL_ERR_NO_MEMORY.
 */
sl_status sl_store_lease(sl_store *s, sl_key seed, const int32_t *tokens, int32_t n_tokens, sl_lease **out);
/* Adds n private pages at the end, all or nothing. SL_ERR_EXHAUSTED, SL_ERR_NO_MEMORY. */
sl_status sl_lease_grow(sl_lease *l, int32_t n);
/*
 * The rows of tokens[0..n_tokens) are complete: publishes the full pages that are not yet. tokens must agree
 * with what was published or matched before (only pages from there on are read).
 */
void sl_lease_publish(sl_lease *l, const int32_t *tokens, int32_t n_tokens);
/*
 * Ends the lease. Published pages stay cached (keep) or leave the tree unless another lease pins them or
 * other pages continue them (!keep). NULL is allowed.
 */
void sl_lease_release(sl_lease *l, bool keep);

/*
 * The contents of page i of the lease are wrong: its page of the tree, and every page that continues it, are forgotten
 * (SL_STORE_REMOVED for each, continuations first). Unpinned ones are free; pinned ones stay with their leases, are not
 * matched any more, and are freed with them. Returns the number of pages that left the tree; 0 when page i is not
 * published.
 */
int32_t sl_lease_drop(sl_lease *l, int32_t i);

/* Page numbers in order; valid until the next grow. */
const int32_t *sl_lease_pages(const sl_lease *l);
int32_t sl_lease_n_pages(const sl_lease *l);
/* Pages that were shared from the tree when the lease was made. */
int32_t sl_lease_matched(const sl_lease *l);

/* Forgets everything cached. Pinned pages stay with their leases but are not matched any more and are freed
 * with them. */
void sl_store_flush(sl_store *s);
/* Reports every page of the tree as SL_STORE_STORED, parents first. SL_ERR_NO_MEMORY: nothing was reported. */
sl_status sl_store_walk(const sl_store *s, sl_store_event_fn *fn, void *ctx);

/* Checks every invariant (page sums, references, tree, eviction order); SL_ERR_INTERNAL says which is broken.
 * Slow: for tests. */
sl_status sl_store_check(const sl_store *s, sl_err *err);

#endif
