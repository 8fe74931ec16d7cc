/*
 * The store's data, shared by its operations (store.c: the tree; store_lease.c; store_evict.c: what is evicted next; store_hold.c,
 * store_keys.c) and its checker (store_check.c); no other file includes this.
 */
#ifndef SL_KVSTORE_STORE_IMPL_H
#define SL_KVSTORE_STORE_IMPL_H

#include "kvstore/page_key.h"
#include "kvstore/quota.h"
#include "kvstore/store.h"

enum { PAGE = SL_KEY_PAGE_TOKENS, NONE = -1 };

typedef enum {
    PAGE_FREE,
    PAGE_PRIVATE,
    PAGE_TREE,
    PAGE_DETACHED, /* flushed while pinned */
    PAGE_LEAVING   /* free but for a hold (store_hold.c) */
} page_state;

typedef struct sl_store_link {
    int32_t prev, next;
} sl_store_link;

typedef struct sl_node {
    sl_key key;
    sl_key seed;               /* of its chain of keys */
    int32_t parent;            /* page or NONE */
    int32_t children;          /* their number in the tree */
    int32_t refs;              /* leases that pin it */
    int32_t prev, next;        /* in the line of its tenant; unpinned tree nodes that are not set aside */
    uint64_t stamp;            /* grows with each page that is unpinned */
    uint64_t used_ns, born_ns; /* when it was unpinned last, and published */
    sl_store_link offers[SL_STORE_TIERS]; /* in the list of pages to offer to each tier */
    uint8_t state;
    uint8_t holds;   /* as long as there are any, its memory may not be given away (store_hold.c) */
    uint8_t listed;  /* bit t: in the list of tier t */
    uint8_t offered; /* bit t: was offered to tier t */
    uint8_t tenant;  /* of a tree node: its entry in the quota */
    bool aside;      /* store_evict.c */
} sl_node;

/* The unpinned tree nodes of one tenant, the least recently used first. */
typedef struct sl_store_line {
    int32_t head, tail;
    int32_t at; /* its place in the heap; NONE: it is empty */
} sl_store_line;

/* A storage tier, as the store sees it. */
typedef struct sl_store_tier {
    sl_store_offer when;
    int32_t head, tail; /* tree pages to offer to it, in the order in which they became ready for that */
    sl_store_tier_stats st;
} sl_store_tier;

struct sl_store {
    bool prefix_cache;
    sl_store_event_fn *event;
    void *event_ctx;
    int32_t n_pages;
    sl_node *nodes;          /* [n_pages] */
    int32_t (*tokens)[PAGE]; /* [n_pages]; valid for tree pages */
    int32_t *free_pages;     /* stack */
    int32_t n_free;
    int32_t *table; /* [mask + 1] page or NONE */
    uint32_t mask;
    sl_quota quota;
    sl_store_line lines[SL_QUOTA_ENTRIES];
    int heap[SL_QUOTA_ENTRIES]; /* the entries whose line is not empty; the first one gives the next page */
    int n_heap;
    uint64_t stamps;
    sl_store_evicted_fn *evicted;
    void *evicted_ctx;
    int32_t n_cached;
    int32_t n_held_cached; /* unpinned tree nodes that are held */
    int32_t n_leaving;
    sl_store_tier tiers[SL_STORE_TIERS];
    int n_tiers;
    sl_lease *leases; /* all that are not released */
    int32_t n_leases;
    uint64_t evictions, query_tokens, hit_tokens;
};

struct sl_lease {
    sl_store *store;
    sl_key seed;
    sl_lease *prev, *next;
    int32_t *pages; /* [n_pages], room for cap */
    /* [n_path] tree node of each published page: that page, or the one of which it is a duplicate */
    int32_t *path;
    int32_t n_pages, n_path, n_matched, cap;
    int tenant; /* entry in the quota */
};

/* Where the search for a key begins in the hash table. */
static inline uint32_t sl_store_slot(const sl_store *s, sl_key k)
{
    return (uint32_t)sl_key_place(k) & s->mask;
}

/*
 * store.c. A free page for a lease, evicting others if there is none; there are enough (sl_store_available()). A private page, or
 * one that has left the tree, becomes free; the end of a hold frees a page that is held.
 */
int32_t sl_store_take_page(sl_store *s);
void sl_store_free_page(sl_store *s, int32_t page);
/* A private page becomes a node of the tree, pinned by its lease; what: key, seed, parent and tenant. */
void sl_store_enter(sl_store *s, int32_t page, const sl_node *what, const int32_t *tokens);
/* A lease begins and ends to use a tree node; a lease of this tenant uses it, while it is pinned. keep: see sl_lease_release(). */
void sl_store_pin(sl_store *s, int32_t page);
void sl_store_unpin(sl_store *s, int32_t page, bool keep);
void sl_store_use_by(sl_store *s, int32_t page, int tenant);

/* store_evict.c: a tree node is not pinned any more, is pinned, or leaves the tree unpinned; a child of `parent` (NONE is
 * allowed) has left the tree. */
void sl_store_line_add(sl_store *s, int32_t page);
void sl_store_line_remove(sl_store *s, int32_t page);
void sl_store_child_left(sl_store *s, int32_t parent);
/* The page to evict next, which is unpinned and has no children; at least one page is unpinned. */
int32_t sl_store_next_victim(sl_store *s);
/* Counts the eviction of this page, which is still in the tree. */
void sl_store_count_eviction(sl_store *s, int32_t page, sl_quota_reason why);

/* A lease that pins these n >= 1 pages of the tree, which are a path from its root. SL_ERR_NO_MEMORY. */
sl_status sl_store_lease_path(sl_store *s, const int32_t *path, int32_t n, sl_lease **out);
/* The tree node with this key, seed, parent and tokens, or NONE. */
int32_t sl_store_find(const sl_store *s, sl_key key, sl_key seed, int32_t parent, const int32_t *tokens);
/* A page has just entered the tree; a request has found a page of the tree; a page leaves the tree, evicted or not. */
void sl_store_offer_new(sl_store *s, int32_t page);
void sl_store_offer_used(sl_store *s, int32_t page);
void sl_store_offer_end(sl_store *s, int32_t page, bool evicted);

#endif
