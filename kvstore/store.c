/*
 * The store. A tree node is identified by its page number: all data of nodes are arrays indexed by page number, so the
 * tree allocates nothing. Children are found in one hash table (open addressing, backward-shift deletion) by their
 * chained key.
 *
 * A lease pins the whole path from the root to its last published page, so the ancestors of a pinned node are pinned. A
 * path is unpinned from its end towards the root, so a child becomes a candidate for eviction before its parent
 * (store_evict.c).
 *
 * The store does not copy pages, read their bytes, or wait.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/store_impl.h"

/* ---- hash table ---- */

int32_t sl_store_find(const sl_store *s, sl_key key, sl_key seed, int32_t parent, const int32_t *tokens)
{
    for (uint32_t i = sl_store_slot(s, key); s->table[i] != NONE; i = (i + 1) & s->mask) {
        int32_t p = s->table[i];
        if (sl_key_eq(s->nodes[p].key, key) && s->nodes[p].parent == parent &&
            sl_key_eq(s->nodes[p].seed, seed) && memcmp(s->tokens[p], tokens, sizeof s->tokens[p]) == 0)
            return p;
    }
    return NONE;
}

static void table_add(sl_store *s, int32_t page)
{
    uint32_t i = sl_store_slot(s, s->nodes[page].key);
    while (s->table[i] != NONE)
        i = (i + 1) & s->mask;
    s->table[i] = page;
}

static void table_remove(sl_store *s, int32_t page)
{
    uint32_t i = sl_store_slot(s, s->nodes[page].key);
    while (s->table[i] != page)
        i = (i + 1) & s->mask;
    for (uint32_t j = (i + 1) & s->mask; s->table[j] != NONE; j = (j + 1) & s->mask) {
        uint32_t home = sl_store_slot(s, s->nodes[s->table[j]].key);
        if (((j - home) & s->mask) >= ((j - i) & s->mask)) { /* this entry may move to the free place */
            s->table[i] = s->table[j];
            i = j;
        }
    }
    s->table[i] = NONE;
}

/* ---- pages ---- */

/* The end of a hold frees a page that is held. */
static void free_page(sl_store *s, int32_t page)
{
    if (s->nodes[page].holds) {
        s->nodes[page].state = PAGE_LEAVING;
        s->n_leaving++;
        return;
    }
    s->nodes[page].state = PAGE_FREE;
    s->free_pages[s->n_free++] = page;
}

sl_store_page sl_store_describe(const sl_store *s, int32_t page)
{
    const sl_node *n = &s->nodes[page];
    return (sl_store_page){.key = n->key,
                           .seed = n->seed,
                           .prev = n->parent == NONE ? n->seed : s->nodes[n->parent].key,
                           .tokens = s->tokens[page],
                           .tenant = sl_quota_tenant(&s->quota, n->tenant)};
}

static void tell(const sl_store *s, sl_store_event ev, int32_t page)
{
    if (!s->event)
        return;
    sl_store_page what = sl_store_describe(s, page);
    if (ev == SL_STORE_REMOVED)
        what.tokens = NULL;
    s->event(s->event_ctx, ev, &what);
}

/* The end of being a tree node, for a page without children: the tree and the tenant forget it. */
static void leave_tree(sl_store *s, int32_t page, bool evicted)
{
    const sl_node *n = &s->nodes[page];
    tell(s, SL_STORE_REMOVED, page);
    table_remove(s, page);
    sl_store_offer_end(s, page, evicted);
    sl_quota_use_of(&s->quota, n->tenant)->pages--;
    sl_quota_leave(&s->quota, n->tenant);
    if (n->parent != NONE) {
        s->nodes[n->parent].children--;
        sl_store_child_left(s, n->parent);
    }
}

/* Takes an unpinned leaf out of the tree and frees it. */
static void drop_leaf(sl_store *s, int32_t page, bool evicted)
{
    const sl_node *n = &s->nodes[page];
    SL_CHECK(n->state == PAGE_TREE && !n->refs && !n->children, "page %d", page);
    sl_store_line_remove(s, page);
    leave_tree(s, page, evicted);
    free_page(s, page);
}

static void evict(sl_store *s, int32_t page, sl_quota_reason why)
{
    sl_store_count_eviction(s, page, why);
    drop_leaf(s, page, true);
    s->evictions++;
}

static int32_t take_page(sl_store *s)
{
    while (!s->n_free) /* an evicted page that is held does not become free now */
        evict(s, sl_store_next_victim(s), SL_QUOTA_ROOM);
    int32_t page = s->free_pages[--s->n_free];
    s->nodes[page].state = PAGE_PRIVATE;
    return page;
}

static void pin(sl_store *s, int32_t page)
{
    if (s->nodes[page].refs++ == 0)
        sl_store_line_remove(s, page);
}

/* A lease of this tenant uses the page, which is pinned. */
static void use_by(sl_store *s, int32_t page, int tenant)
{
    sl_node *n = &s->nodes[page];
    if (n->tenant == tenant || n->tenant == SL_QUOTA_SHARED)
        return;
    sl_quota_use_of(&s->quota, n->tenant)->pages--;
    sl_quota_leave(&s->quota, n->tenant);
    n->tenant = SL_QUOTA_SHARED;
    sl_quota_use_of(&s->quota, n->tenant)->pages++;
    sl_quota_hold(&s->quota, n->tenant);
}

static void unpin(sl_store *s, int32_t page, bool keep)
{
    sl_node *n = &s->nodes[page];
    int tenant = n->tenant;
    if (--n->refs)
        return;
    if (n->state == PAGE_DETACHED) {
        free_page(s, page);
        return;
    }
    sl_store_line_add(s, page);
    if (!keep && !n->children)
        drop_leaf(s, page, false);
    else if (sl_quota_above_limit(&s->quota, tenant))
        evict(s, s->lines[tenant].head, SL_QUOTA_LIMIT);
}

/* ---- store ---- */

sl_status sl_store_create(const sl_store_opts *opts, sl_store **out, sl_err *err)
{
    if (opts->n_pages < 1 || opts->n_pages > (1 << 29))
        return sl_fail(err, SL_ERR_INVALID, "a store of %d pages is not possible", opts->n_pages);
    sl_store *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    size_t n = (size_t)opts->n_pages, slots = 4;
    while (slots < 2 * n)
        slots *= 2;
    *s = (sl_store){.prefix_cache = opts->prefix_cache,
                    .event = opts->event,
                    .event_ctx = opts->event_ctx,
                    .evicted = opts->evicted,
                    .evicted_ctx = opts->evicted_ctx,
                    .n_pages = opts->n_pages,
                    .mask = (uint32_t)slots - 1};
    sl_quota_init(&s->quota, opts->quota, opts->n_pages, SL_QUOTA_UNNAMED);
    for (int i = 0; i < SL_QUOTA_ENTRIES; i++)
        s->lines[i] = (sl_store_line){NONE, NONE, NONE};
    s->nodes = calloc(n, sizeof *s->nodes);
    s->tokens = calloc(n, sizeof *s->tokens);
    s->free_pages = calloc(n, sizeof *s->free_pages);
    s->table = malloc(slots * sizeof *s->table);
    if (!s->nodes || !s->tokens || !s->free_pages || !s->table) {
        sl_store_destroy(s);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for the tables of %d pages", opts->n_pages);
    }
    memset(s->table, 0xff, slots * sizeof *s->table);
    for (int32_t p = opts->n_pages - 1; p >= 0; p--) /* low numbers are taken first */
        free_page(s, p);
    *out = s;
    return SL_OK;
}

void sl_store_destroy(sl_store *s)
{
    if (!s)
        return;
    SL_CHECK(!s->leases, "store destroyed with %d leases", s->n_leases);
    free(s->nodes);
    free(s->tokens);
    free(s->free_pages);
    free(s->table);
    free(s);
}

void sl_store_stats_get(const sl_store *s, sl_store_stats *out)
{
    *out = (sl_store_stats){.total = s->n_pages,
                            .free = s->n_free,
                            .cached = s->n_cached,
                            .held = s->n_pages - s->n_free - s->n_cached,
                            .leases = s->n_leases,
                            .leaving = s->n_leaving,
                            .evictions = s->evictions,
                            .query_tokens = s->query_tokens,
                            .hit_tokens = s->hit_tokens};
}

int sl_store_quota_uses(const sl_store *s, sl_quota_use *out)
{
    int n = sl_quota_n_uses(&s->quota);
    memcpy(out, s->quota.uses, (size_t)n * sizeof *out);
    return n;
}

int32_t sl_store_available(const sl_store *s)
{
    return s->n_free + s->n_cached - s->n_held_cached;
}

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
        pin(s, l->path[i]);
        if (tenant != SL_QUOTA_SHARED)
            use_by(s, l->path[i], tenant);
        l->pages[i] = l->path[i];
    }
    for (int32_t i = m; i < n_pages; i++)
        l->pages[i] = take_page(s);
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
    SL_CHECK(n_tokens > 0, "%d tokens", n_tokens);
    SL_TRY(make_lease(s, tenant, seed, tokens, (n_tokens + PAGE - 1) / PAGE, matchable(s, n_tokens), out));
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

sl_status sl_lease_grow(sl_lease *l, int32_t n)
{
    sl_store *s = l->store;
    if (n > sl_store_available(s))
        return SL_ERR_EXHAUSTED;
    if (!lease_reserve(l, l->n_pages + n))
        return SL_ERR_NO_MEMORY;
    for (int32_t i = 0; i < n; i++)
        l->pages[l->n_pages++] = take_page(s);
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
        pin(s, twin);
        use_by(s, twin, l->tenant);
        sl_store_offer_used(s, twin); /* two requests have computed it */
        l->path[l->n_path++] = twin;
        return;
    }
    s->nodes[page] = (sl_node){.key = key,
                               .seed = l->seed,
                               .parent = parent,
                               .refs = 1,
                               .prev = NONE,
                               .next = NONE,
                               .born_ns = sl_now_ns(),
                               .tenant = (uint8_t)l->tenant,
                               .state = PAGE_TREE};
    sl_quota_use_of(&s->quota, l->tenant)->pages++;
    sl_quota_hold(&s->quota, l->tenant);
    memcpy(s->tokens[page], tokens + i * PAGE, sizeof s->tokens[page]);
    if (parent != NONE)
        s->nodes[parent].children++;
    table_add(s, page);
    sl_store_offer_new(s, page);
    l->path[l->n_path++] = page;
    tell(s, SL_STORE_STORED, page);
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

/* For each tree page: whether it is `top` or continues `top`. Each path is walked once. */
enum { UNKNOWN, INSIDE, OUTSIDE };

static void mark_subtree(const sl_store *s, int32_t top, uint8_t *mark)
{
    mark[top] = INSIDE;
    for (int32_t p = 0; p < s->n_pages; p++) {
        if (s->nodes[p].state != PAGE_TREE)
            continue;
        int32_t at = p;
        while (at != NONE && mark[at] == UNKNOWN)
            at = s->nodes[at].parent;
        uint8_t found = at == NONE ? OUTSIDE : mark[at];
        for (at = p; at != NONE && mark[at] == UNKNOWN; at = s->nodes[at].parent)
            mark[at] = found;
    }
}

/* Takes a page without children out of the tree, whether it is pinned or not. */
static void forget(sl_store *s, int32_t page)
{
    sl_node *n = &s->nodes[page];
    if (!n->refs) {
        drop_leaf(s, page, false);
        return;
    }
    leave_tree(s, page, false);
    n->state = PAGE_DETACHED;
}

int32_t sl_lease_drop(sl_lease *l, int32_t i)
{
    sl_store *s = l->store;
    if (i >= l->n_path || s->nodes[l->path[i]].state != PAGE_TREE)
        return 0;
    uint8_t *mark = calloc((size_t)s->n_pages, 1);
    if (!mark) { /* out of memory: drop all pages, so that the damaged one is among them */
        int32_t all = s->n_pages - s->n_free;
        sl_store_flush(s);
        return all;
    }
    mark_subtree(s, l->path[i], mark);
    int32_t dropped = 0;
    for (int32_t p = 0; p < s->n_pages; p++) {
        for (int32_t at = p; at != NONE && mark[at] == INSIDE && !s->nodes[at].children;) {
            int32_t parent = s->nodes[at].parent;
            mark[at] = OUTSIDE;
            forget(s, at);
            dropped++;
            at = parent;
        }
    }
    free(mark);
    return dropped;
}

void sl_lease_release(sl_lease *l, bool keep)
{
    if (!l)
        return;
    sl_store *s = l->store;
    for (int32_t i = l->n_pages - 1; i >= 0; i--) {
        bool in_path = i < l->n_path;
        if (!in_path || l->path[i] != l->pages[i])
            free_page(s, l->pages[i]);
        if (in_path)
            unpin(s, l->path[i], keep);
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

int32_t sl_lease_matched(const sl_lease *l)
{
    return l->n_matched;
}

/* All nodes leave the tree at once, whatever their children. */
static void flush_page(sl_store *s, int32_t page)
{
    sl_node *n = &s->nodes[page];
    sl_store_offer_end(s, page, false);
    sl_quota_use_of(&s->quota, n->tenant)->pages--;
    sl_quota_leave(&s->quota, n->tenant);
    n->children = 0;
    if (n->refs) {
        n->state = PAGE_DETACHED;
        return;
    }
    sl_store_line_remove(s, page);
    free_page(s, page);
}

void sl_store_flush(sl_store *s)
{
    for (uint32_t i = 0; i <= s->mask; i++) {
        if (s->table[i] != NONE)
            flush_page(s, s->table[i]);
        s->table[i] = NONE;
    }
    if (s->event)
        s->event(s->event_ctx, SL_STORE_CLEARED, NULL);
}
