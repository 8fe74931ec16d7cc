/*
 * The store's data, shared by its operations (store.c, store_hold.c) and its checker (store_check.c); no other file
 * includes this.
 */
#ifndef SL_KVSTORE_STORE_IMPL_H
#define SL_KVSTORE_STORE_IMPL_H

#include "kvstore/page_key.h"
#include "kvstore/store.h"

enum { PAGE = SL_KEY_PAGE_TOKENS, NONE = -1 };

typedef enum {
    PAGE_FREE,
    PAGE_PRIVATE,
    PAGE_TREE,
    PAGE_DETACHED, /* flushed while pinned */
    PAGE_LEAVING   /* free but for a hold (store_hold.c) */
} page_state;

typedef struct sl_node {
    sl_key key;
    sl_key seed;                /* of its chain of keys */
    int32_t parent;             /* page or NONE */
    int32_t children;           /* their number in the tree */
    int32_t refs;               /* leases that pin it */
    int32_t prev, next;         /* LRU, unpinned tree nodes only */
    int32_t new_prev, new_next; /* tree nodes that are not offered */
    uint8_t state;
    bool held;    /* its memory may not be given away (store_hold.c) */
    bool offered; /* to a storage tier */
} sl_node;

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
    int32_t lru_head, lru_tail, n_cached;
    int32_t n_held_cached; /* pages of the LRU list that are held */
    int32_t n_leaving;
    int32_t new_head,
        new_tail;     /* tree pages that are not offered, in the order in which they were published */
    sl_lease *leases; /* all that are not released */
    int32_t n_leases;
    uint64_t evictions, unoffered_evictions, query_tokens, hit_tokens;
};

struct sl_lease {
    sl_store *store;
    sl_key seed;
    sl_lease *prev, *next;
    int32_t *pages; /* [n_pages], room for cap */
    int32_t *
        path; /* [n_path] tree node of each published page: that page, or the one of which it is a duplicate */
    int32_t n_pages, n_path, n_matched, cap;
};

/* Where the search for a key begins in the hash table. */
static inline uint32_t sl_store_slot(const sl_store *s, sl_key k)
{
    return (uint32_t)(k.lo ^ (k.hi << 1)) & s->mask;
}

/* A lease that pins these n >= 1 pages of the tree, which are a path from its root. SL_ERR_NO_MEMORY. */
sl_status sl_store_lease_path(sl_store *s, const int32_t *path, int32_t n, sl_lease **out);
/* The tree node with this key, seed, parent and tokens, or NONE. */
int32_t sl_store_find(const sl_store *s, sl_key key, sl_key seed, int32_t parent, const int32_t *tokens);
/* Puts a page that has just entered the tree at the end of the list of new ones; takes one out, if it is in. */
void sl_store_new_add(sl_store *s, int32_t page);
void sl_store_new_remove(sl_store *s, int32_t page);

#endif
