/*
 * Store: who uses which page of an arena. Page allocator, prefix tree, leases, eviction.
 *
 * A page is free, private to one lease, or in the prefix tree. The tree has one node for each page. Children are found
 * by their chained page key, and the tokens are compared as well, so a hash collision cannot give a request the rows of
 * another prompt. The chain of keys starts from the seed of the request, and a first page keeps its seed: leases of
 * different seeds never share a page, whatever their tokens. A lease is the right of one request to a sequence of
 * pages: the first ones are shared with the tree and pinned, the others are private until they are published. Pinned
 * pages are never evicted. When pages are needed, unpinned leaves are evicted, the least recently used first.
 *
 * Tenants. A page belongs to the tenant whose lease published it first. When another tenant's lease matches it, or
 * publishes the same page, it belongs to none of them any more (SL_QUOTA_SHARED). Quotas (kvstore/quota.h) count the pages
 * of a tenant that are in the tree and unpinned: pages in use are not cache, so no lease is ever refused because of a
 * quota. Who is above its limit loses its oldest pages at the moment at which they are unpinned; shares decide whose
 * page is evicted when there is no free page.
 *
 *     sl_store_lease(s, seed, tokens, n, &l)  pins the longest cached prefix and allocates the other pages, or nothing
 *     sl_lease_grow(l, 1)                     one more private page
 *     sl_lease_publish(l, tokens, n)          pages that are full now enter the tree (their contents must be complete)
 *     sl_lease_release(l, true)               the request needs no page any more; published pages stay cached
 *
 * At least the last token of a prompt is always computed, so at most (n - 1) / 64 pages match. A page whose key is
 * already in the tree, a duplicate, stays private to its lease and is freed on release.
 *
 * The store knows page numbers, not bytes. Who publishes a page guarantees that its rows are right; kvstore/seal.h
 * keeps checksums of them. Threads: one owner thread. Lifetime: all leases are released before the store is destroyed.
 */
#ifndef SL_KVSTORE_STORE_H
#define SL_KVSTORE_STORE_H

#include "base/hash.h"
#include "kvstore/quota.h"

typedef struct sl_store sl_store;
typedef struct sl_lease sl_lease;

typedef enum { SL_STORE_STORED, SL_STORE_REMOVED, SL_STORE_CLEARED } sl_store_event;

/* What identifies a page of the tree. */
typedef struct sl_store_page {
    sl_key key, seed, prev; /* prev: key of the page before it; of a first page the seed */
    const int32_t *tokens;  /* 64, valid while the page is held or in the tree */
    uint64_t tenant;        /* to which it belongs; SL_QUOTA_SHARED_ID: to several */
} sl_store_page;

/* Called for a change of the tree. page: valid during the call; NULL when the whole tree was cleared. It must not call the
 * store. */
typedef void sl_store_event_fn(void *ctx, sl_store_event ev, const sl_store_page *page);

/* Called for a page that is evicted: seconds since it was used last (a lease that pinned it ended) and since it was published.
 * It must not call the store. */
typedef void sl_store_evicted_fn(void *ctx, double unused_s, double age_s);

typedef struct sl_store_opts {
    int32_t n_pages;
    bool prefix_cache;        /* false: nothing is ever published or matched */
    sl_store_event_fn *event; /* called for every change of the tree; may be NULL */
    void *event_ctx;
    sl_store_evicted_fn *evicted; /* may be NULL */
    void *evicted_ctx;
    const sl_quota_opts *quota; /* borrowed for the call; NULL: tenants are not told apart */
} sl_store_opts;

enum { SL_STORE_TIERS = 4 }; /* storage tiers that one store can serve */

typedef struct sl_store_stats {
    int32_t total; /* free + cached + held */
    int32_t free;
    int32_t cached; /* in the tree and unpinned */
    int32_t held;   /* pinned or private */
    int32_t leases;
    int32_t leaving; /* of those held: out of the tree, free when their hold ends */
    uint64_t evictions, query_tokens, hit_tokens; /* cumulative */
} sl_store_stats;

sl_status sl_store_create(const sl_store_opts *opts, sl_store **out, sl_err *err);
void sl_store_destroy(sl_store *s);
void sl_store_stats_get(const sl_store *s, sl_store_stats *out);

/* The number of pages that can be allocated now: free and cached ones. */
int32_t sl_store_available(const sl_store *s);
/* The number of pages that a lease of this seed and these tokens would share with the tree. Changes nothing. */
int32_t sl_store_match(const sl_store *s, sl_key seed, const int32_t *tokens, int32_t n_tokens);
/* The same for sl_store_lease_pages(). */
int32_t sl_store_match_pages(const sl_store *s, sl_key seed, const int32_t *tokens, int32_t n_pages);

/*
 * A lease of the pages for n_tokens, ceil(n_tokens / 64): those of the longest cached prefix are pinned, the others are
 * allocated. SL_ERR_EXHAUSTED: there are not enough pages, nothing has changed. SL_ERR_NO_MEMORY.
 */
sl_status sl_store_lease(sl_store *s, sl_key seed, const int32_t *tokens, int32_t n_tokens, sl_lease **out);
/* As sl_store_lease(), for a tenant (sl_tenant_id(); 0, which sl_store_lease() takes, means all callers that have none). */
sl_status sl_store_lease_for(sl_store *s, uint64_t tenant, sl_key seed, const int32_t *tokens,
                             int32_t n_tokens, sl_lease **out);
/* As sl_store_lease_for(), of which at most (n_match - 1) / 64 pages match: those that a request of n_match tokens could share. */
sl_status sl_store_lease_part(sl_store *s, uint64_t tenant, sl_key seed, const int32_t *tokens,
                              int32_t n_tokens, int32_t n_match, sl_lease **out);
/* As sl_store_lease_for(), for the n_pages full pages of tokens, all of which may match; for pages that are loaded from a
 * storage tier, so it does not count as a query. */
sl_status sl_store_lease_pages(sl_store *s, uint64_t tenant, sl_key seed, const int32_t *tokens,
                               int32_t n_pages, sl_lease **out);
/* A lease of n_pages private pages, for what no prompt's tokens name. */
sl_status sl_store_lease_private(sl_store *s, uint64_t tenant, sl_key seed, int32_t n_pages, sl_lease **out);
/*
 * The pages of l, all private, continue the first n pages of another lease of its seed: these are pinned by l as well and come
 * before its own. SL_ERR_NOT_FOUND: `of` has not published them, or they have left the tree. SL_ERR_NO_MEMORY.
 */
sl_status sl_lease_follow(sl_lease *l, const sl_lease *of, int32_t n);
/* Adds n private pages at the end, all or nothing. SL_ERR_EXHAUSTED, SL_ERR_NO_MEMORY. */
sl_status sl_lease_grow(sl_lease *l, int32_t n);
/*
 * The rows of tokens[0..n_tokens) are complete: publishes those of their full pages that are not published yet. The
 * tokens of pages that were matched or published before must be the same as then; they are not read.
 */
void sl_lease_publish(sl_lease *l, const int32_t *tokens, int32_t n_tokens);
/*
 * Ends the lease; NULL is allowed. keep: published pages stay cached. Otherwise they leave the tree, except those that
 * another lease pins or that other pages continue.
 */
void sl_lease_release(sl_lease *l, bool keep);

/*
 * The contents of page i of the lease are wrong: removes its page, and every page that continues it, from the tree
 * (SL_STORE_REMOVED for each, continuations first). Unpinned pages become free; pinned ones stay with their leases, are
 * not matched any more, and are freed with them. Returns the number of pages that have left the tree; 0 when page i is
 * not published.
 */
int32_t sl_lease_drop(sl_lease *l, int32_t i);

/* Page numbers in order; valid until the next grow. */
const int32_t *sl_lease_pages(const sl_lease *l);
int32_t sl_lease_n_pages(const sl_lease *l);
/* The place of this page in the lease; -1: it is not in it. */
int32_t sl_lease_index_of(const sl_lease *l, int32_t page);
/* The number of pages that were shared with the tree when the lease was made. */
int32_t sl_lease_matched(const sl_lease *l);

/* Removes all pages from the tree. Pinned pages stay with their leases, are not matched any more, and are freed with
 * them. */
void sl_store_flush(sl_store *s);
/* Reports every page of the tree as SL_STORE_STORED, parents first. SL_ERR_NO_MEMORY: nothing was reported. */
sl_status sl_store_walk(const sl_store *s, sl_store_event_fn *fn, void *ctx);

/* ---- for other workers, which know pages by their keys (store_keys.c) ---- */

/*
 * A lease that pins the leading ones of these n consecutive pages of a chain of keys, and the pages before them, which the
 * tree needs; it allocates nothing and does not count as a query. The page of keys[i] is page *first + i of the lease.
 * SL_ERR_NOT_FOUND: keys[0] is not in the tree, or belongs to another seed. SL_ERR_NO_MEMORY.
 */
sl_status sl_store_lease_keys(sl_store *s, sl_key seed, const sl_key *keys, int32_t n, int32_t *first,
                              sl_lease **out);

/* Whether the page with this key is in the tree. */
bool sl_store_has_key(const sl_store *s, sl_key seed, sl_key key);

/* ---- for those who look into a running store (store_list.c) ---- */

/* A page of the tree. */
typedef struct sl_store_entry {
    sl_key key, seed;
    int32_t page, before; /* before: pages of its chain before it */
    bool pinned;          /* a request uses it */
    uint64_t used_ns;     /* when its last use ended; of no meaning while it is pinned */
} sl_store_entry;

/*
 * At most n pages of the tree, from page number *cursor on (0: from the beginning); returns their number, and moves *cursor to
 * where the next part begins; -1: there is none. The work of a part is bounded, so it can be short, or empty, before the end.
 */
int32_t sl_store_list(const sl_store *s, int32_t *cursor, sl_store_entry *out, int32_t n);
/* Keeps the memory of this page of the tree from being used for other rows until sl_store_unhold(), as sl_store_hold() does;
 * for a reader that is no tier. */
void sl_store_hold_page(sl_store *s, int32_t page);

/* ---- for storage tiers, to each of which every page of the tree is offered at most once (store_hold.c) ---- */

/* When a page is to be offered to a tier. */
typedef enum {
    SL_OFFER_NEVER,
    SL_OFFER_NEW, /* as soon as it is in the tree */
    SL_OFFER_USED /* when a request finds it in the tree, or computes it a second time */
} sl_store_offer;

typedef struct sl_store_tier_stats {
    uint64_t evicted_unoffered; /* pages that were to be offered to the tier, and were evicted before */
    uint64_t evicted_unused;    /* SL_OFFER_USED: pages that were evicted without a second use */
} sl_store_tier_stats;

/* Adds a tier and returns its number, from 0 on; at most SL_STORE_TIERS. Pages that are in the tree now are not offered to it. */
int sl_store_add_tier(sl_store *s, sl_store_offer when);
/* At most n pages of the tree that are to be offered to the tier, in the order in which they became so: with SL_OFFER_NEW a
 * page comes after the page that it continues. Returns their number. */
int32_t sl_store_offers(const sl_store *s, int tier, int32_t *pages, int32_t n);
/* At most n of them among the `depth` pages that are evicted next when the store is full. Limits of tenants are not foreseen. */
int32_t sl_store_oldest_offers(const sl_store *s, int tier, int32_t depth, int32_t *pages, int32_t n);
/* What identifies this page of the tree. */
sl_store_page sl_store_describe(const sl_store *s, int32_t page);
/* Counts a page of the tree as offered to the tier, and keeps its memory from being used for other rows until unhold, even
 * when the page leaves the tree meanwhile. There is one hold for each tier at most. */
void sl_store_hold(sl_store *s, int tier, int32_t page, sl_store_page *out);
void sl_store_unhold(sl_store *s, int32_t page);
/* The tier has this page, which is not offered to it any more. A page that is not in the tree is allowed. */
void sl_store_has(sl_store *s, int tier, int32_t page);
void sl_store_tier_stats_get(const sl_store *s, int tier, sl_store_tier_stats *out);

/* What tenants have, for metrics; out has room for 2 + SL_QUOTA_RULES. Returns their number, 0 when tenants are not told apart. */
int sl_store_quota_uses(const sl_store *s, sl_quota_use *out);

/* Checks every invariant (page sums, references, tree, eviction order); SL_ERR_INTERNAL says which is broken.
 * Slow: for tests. */
sl_status sl_store_check(const sl_store *s, sl_err *err);

#endif
