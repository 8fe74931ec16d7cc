/*
 * Leases of the store (see store.h): which pages of the tree a request shares, which are its own, and how these enter the tree.
 * store.c has the tree itself.
 *
 * A lease pins the whole path from the root to its last published page, so the ancestors of a pinned node are pinned. A
 * path is unpinned from its end towards the root, so a child becomes a candidate for eviction before its parent
 * (store_evict.c).
 */
#include <stdlib.h>
#include <string.h>

#include "kvstore/store_impl.h"

/* ---- matching ---- */

/* Follows the tree along tokens for at most max pages; path (if not NULL) gets the nodes. *unpinned: the number
 * of those that could be evicted. */
static int32_t walk_match(const sl_store *s, sl_key seed, const int32_t *tokens, int32_t max, int32_t *path,
                          int32_t *unpinned)
{
    sl_key key = seed;
    int32_t parent = NONE, n = 0;
    *unpinned = 0;
    for (; n < max; n++) {
        key = sl_page_key(key, tokens + n * PAGE);
        int32_t p = sl_store_find(s, key, seed, parent, tokens + n * PAGE);
        if (p == NONE)
            break;
        *unpinned += s->nodes[p].refs == 0 && !s->nodes[p].holds;
        if (path)
            path[n] = p;
        parent = p;
    }
    return n;
}

static int32_t matchable(const sl_store *s, int32_t n_tokens)
{
    return s->prefix_cache && n_tokens > 0 ? (n_tokens - 1) / PAGE : 0;
}

int32_t sl_store_match(const sl_store *s, sl_key seed, const int32_t *tokens, int32_t n_tokens)
{
    int32_t unpinned;
    return walk_match(s, seed, tokens, matchable(s, n_tokens), NULL, &unpinned);
}

int32_t sl_store_match_pages(const sl_store *s, sl_key seed, const int32_t *tokens, int32_t n_pages)
{
    int32_t unpinned;
    return walk_match(s, seed, tokens, s->prefix_cache ? n_pages : 0, NULL, &unpinned);
}

/* ---- making, growing, publishing, releasing ---- */

static bool lease_reserve(sl_lease *l, int32_t n)
{
    if (n <= l->cap)
        return true;
    int32_t cap = l->cap ? l->cap : 8;
    while (cap < n)
        cap *= 2;
    int32_t *pages = realloc(l->pages, (size_t)cap * sizeof *pages);
    if (pages)
        l->pages = pages;
    int32_t *path = realloc(l->path, (size_t)cap * sizeof *path);
    if (path)
        l->path = path;
    if (!pages || !path)
        return false;
    l->cap = cap;
    return true;
}

static void lease_free(sl_lease *l)
{
    free(l->pages);
    free(l->path);
    free(l);
}

/* Pins the m pages of the lease's path, takes pages for the others, and lists the lease. tenant: its entry in the quota;
 * SL_QUOTA_SHARED: the lease is no use of the pages by a tenant. */
static void enlist(sl_store *s, sl_lease *l, int tenant, sl_key seed, int32_t n_pages, int32_t m)
{
    for (int32_t i = 0; i < m; i++) {
        sl_store_pin(s, l->path[i]);
        if (tenant != SL_QUOTA_SHARED)
            sl_store_use_by(s, l->path[i], tenant);
        l->pages[i] = l->path[i];
    }
    for (int32_t i = m; i < n_pages; i++)
        l->pages[i] = sl_store_take_page(s);
    l->store = s;
    l->seed = seed;
    l->tenant = tenant;
    l->n_pages = n_pages;
    l->n_path = l->n_matched = m;
    sl_quota_hold(&s->quota, tenant);
    l->next = s->leases;
    if (s->leases)
        s->leases->prev = l;
    s->leases = l;
    s->n_leases++;
}

/* A lease of n_pages, of which at most `most` are matched. */
static sl_status make_lease(sl_store *s, uint64_t tenant, sl_key seed, const int32_t *tokens, int32_t n_pages,
                            int32_t most, sl_lease **out)
{
    sl_lease *l = calloc(1, sizeof *l);
    if (!l || !lease_reserve(l, n_pages)) {
        if (l)
            lease_free(l);
        return SL_ERR_NO_MEMORY;
    }
    int32_t unpinned;
    int32_t m = walk_match(s, seed, tokens, most, l->path, &unpinned);
    if (n_pages - m > sl_store_available(s) - unpinned) {
        lease_free(l);
        return SL_ERR_EXHAUSTED;
    }
    int entry = sl_quota_enter(&s->quota, tenant);
    enlist(s, l, entry, seed, n_pages, m);
    sl_quota_leave(&s->quota, entry); /* the lease has its own reference */
    *out = l;
    return SL_OK;
}

sl_status sl_store_lease_path(sl_store *s, const int32_t *path, int32_t n, sl_lease **out)
{
    sl_lease *l = calloc(1, sizeof *l);
    if (!l || !lease_reserve(l, n)) {
        if (l)
            lease_free(l);
        return SL_ERR_NO_MEMORY;
    }
    memcpy(l->path, path, (size_t)n * sizeof *path);
    enlist(s, l, SL_QUOTA_SHARED, s->nodes[path[0]].seed, n, n);
    *out = l;
    return SL_OK;
}

sl_status sl_store_lease(sl_store *s, sl_key seed, const int32_t *tokens, int32_t n_tokens, sl_lease **out)
{
    return sl_store_lease_for(s, 0, seed, tokens, n_tokens, out);
}

sl_status sl_store_lease_for(sl_store *s, uint64_t tenant, sl_key seed, const int32_t *tokens,
                             int32_t n_tokens, sl_lease **out)
{
    return sl_store_lease_part(s, tenant, seed, tokens, n_tokens, n_tokens, out);
}

sl_status sl_store_lease_part(sl_store *s, uint64_t tenant, sl_key seed, const int32_t *tokens,
                              int32_t n_tokens, int32_t n_match, sl_lease **out)
{
    SL_CHECK(n_tokens > 0 && n_match <= n_tokens, "%d of %d tokens", n_match, n_tokens);
    SL_TRY(make_lease(s, tenant, seed, tokens, (n_tokens + PAGE - 1) / PAGE, matchable(s, n_match), out));
    s->query_tokens += (uint64_t)n_tokens;
    s->hit_tokens += (uint64_t)(*out)->n_matched * PAGE;
    for (int32_t i = 0; i < (*out)->n_matched; i++)
        sl_store_offer_used(s, (*out)->path[i]);
    return SL_OK;
}

sl_status sl_store_lease_pages(sl_store *s, uint64_t tenant, sl_key seed, const int32_t *tokens,
                               int32_t n_pages, sl_lease **out)
{
    SL_CHECK(n_pages > 0, "%d pages", n_pages);
    return make_lease(s, tenant, seed, tokens, n_pages, s->prefix_cache ? n_pages : 0, out);
}

sl_status sl_store_lease_private(sl_store *s, uint64_t tenant, sl_key seed, int32_t n_pages, sl_lease **out)
{
    SL_CHECK(n_pages > 0, "%d pages", n_pages);
    return make_lease(s, tenant, seed, NULL, n_pages, 0, out);
}

sl_status sl_lease_follow(sl_lease *l, const sl_lease *of, int32_t n)
{
    sl_store *s = l->store;
    SL_CHECK(l->n_path == 0 && sl_key_eq(l->seed, of->seed), "a lease that has published pages");
    if (n > of->n_path || (n > 0 && s->nodes[of->path[n - 1]].state != PAGE_TREE))
        return SL_ERR_NOT_FOUND;
    if (!lease_reserve(l, l->n_pages + n))
        return SL_ERR_NO_MEMORY;
    memmove(l->pages + n, l->pages, (size_t)l->n_pages * sizeof *l->pages);
    for (int32_t i = 0; i < n; i++) {
        sl_store_pin(s, of->path[i]);
        l->pages[i] = l->path[i] = of->path[i];
    }
    l->n_pages += n;
    l->n_path = n;
    return SL_OK;
}

sl_status sl_lease_grow(sl_lease *l, int32_t n)
{
    sl_store *s = l->store;
    if (n > sl_store_available(s))
        return SL_ERR_EXHAUSTED;
    if (!lease_reserve(l, l->n_pages + n))
        return SL_ERR_NO_MEMORY;
    for (int32_t i = 0; i < n; i++)
        l->pages[l->n_pages++] = sl_store_take_page(s);
    return SL_OK;
}

/* Adds the next page of the lease to the tree, or finds the node of which it is a duplicate. That node is pinned and
 * becomes the next of the lease's path. */
static void publish_one(sl_lease *l, const int32_t *tokens)
{
    sl_store *s = l->store;
    int32_t i = l->n_path, page = l->pages[i];
    int32_t parent = i ? l->path[i - 1] : NONE;
    sl_key prev = parent == NONE ? l->seed : s->nodes[parent].key;
    sl_key key = sl_page_key(prev, tokens + i * PAGE);
    int32_t twin = sl_store_find(s, key, l->seed, parent, tokens + i * PAGE);
    if (twin != NONE) {
        sl_store_pin(s, twin);
        sl_store_use_by(s, twin, l->tenant);
        sl_store_offer_used(s, twin); /* two requests have computed it */
        l->path[l->n_path++] = twin;
        return;
    }
    sl_store_enter(s, page,
                   &(sl_node){.key = key, .seed = l->seed, .parent = parent, .tenant = (uint8_t)l->tenant},
                   tokens + i * PAGE);
    l->path[l->n_path++] = page;
}

void sl_lease_publish(sl_lease *l, const int32_t *tokens, int32_t n_tokens)
{
    sl_store *s = l->store;
    int32_t full = n_tokens / PAGE;
    SL_CHECK(full <= l->n_pages, "%d tokens in %d pages", n_tokens, l->n_pages);
    if (!s->prefix_cache)
        return;
    while (l->n_path < full) {
        int32_t last = l->n_path ? l->path[l->n_path - 1] : NONE;
        if (last != NONE && s->nodes[last].state == PAGE_DETACHED)
            return; /* the pages before it have left the tree, so it cannot be added */
        publish_one(l, tokens);
    }
}

void sl_lease_release(sl_lease *l, bool keep)
{
    if (!l)
        return;
    sl_store *s = l->store;
    for (int32_t i = l->n_pages - 1; i >= 0; i--) {
        bool in_path = i < l->n_path;
        if (!in_path || l->path[i] != l->pages[i])
            sl_store_free_page(s, l->pages[i]);
        if (in_path)
            sl_store_unpin(s, l->path[i], keep);
    }
    if (l->prev)
        l->prev->next = l->next;
    else
        s->leases = l->next;
    if (l->next)
        l->next->prev = l->prev;
    s->n_leases--;
    sl_quota_leave(&s->quota, l->tenant);
    lease_free(l);
}

const int32_t *sl_lease_pages(const sl_lease *l)
{
    return l->pages;
}

int32_t sl_lease_n_pages(const sl_lease *l)
{
    return l->n_pages;
}

int32_t sl_lease_index_of(const sl_lease *l, int32_t page)
{
    for (int32_t i = 0; i < l->n_pages; i++) {
        if (l->pages[i] == page)
            return i;
    }
    return -1;
}

int32_t sl_lease_matched(const sl_lease *l)
{
    return l->n_matched;
}
