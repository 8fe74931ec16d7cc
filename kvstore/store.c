/*
 * The store. A tree node is identified by its page number: all data of nodes are arrays indexed by page number, so the
 * tree allocates nothing. Children are found in one hash table (open addressing, backward-shift deletion) by their
 * chained key. store_lease.c has the leases, store_evict.c the order of eviction.
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
void sl_store_free_page(sl_store *s, int32_t page)
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
    s->event(s->event_ctx, ev, &what);
}

void sl_store_enter(sl_store *s, int32_t page, const sl_node *what, const int32_t *tokens)
{
    sl_node *n = &s->nodes[page];
    *n = *what;
    n->refs = 1;
    n->prev = n->next = NONE;
    n->born_ns = sl_now_ns();
    n->state = PAGE_TREE;
    sl_quota_use_of(&s->quota, n->tenant)->pages++;
    sl_quota_hold(&s->quota, n->tenant);
    memcpy(s->tokens[page], tokens, sizeof s->tokens[page]);
    if (n->parent != NONE)
        s->nodes[n->parent].children++;
    table_add(s, page);
    sl_store_offer_new(s, page);
    tell(s, SL_STORE_STORED, page);
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
    sl_store_free_page(s, page);
}

static void evict(sl_store *s, int32_t page, sl_quota_reason why)
{
    sl_store_count_eviction(s, page, why);
    drop_leaf(s, page, true);
    s->evictions++;
}

int32_t sl_store_take_page(sl_store *s)
{
    while (!s->n_free) /* an evicted page that is held does not become free now */
        evict(s, sl_store_next_victim(s), SL_QUOTA_ROOM);
    int32_t page = s->free_pages[--s->n_free];
    s->nodes[page].state = PAGE_PRIVATE;
    return page;
}

void sl_store_pin(sl_store *s, int32_t page)
{
    if (s->nodes[page].refs++ == 0)
        sl_store_line_remove(s, page);
}

/* A lease of this tenant uses the page, which is pinned. */
void sl_store_use_by(sl_store *s, int32_t page, int tenant)
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

void sl_store_unpin(sl_store *s, int32_t page, bool keep)
{
    sl_node *n = &s->nodes[page];
    int tenant = n->tenant;
    if (--n->refs)
        return;
    if (n->state == PAGE_DETACHED) {
        sl_store_free_page(s, page);
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
        sl_store_free_page(s, p);
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
    sl_store_free_page(s, page);
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
