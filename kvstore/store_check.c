/*
 * Walks over the whole store: the list of all pages for a new router, and the check that computes every count anew and
 * compares it with the one that the operations have kept.
 */
#include <stdlib.h>
#include <string.h>

#include "kvstore/store_impl.h"

/* The depth of every tree page, -1 for others. Computed path by path, so that each page is visited a constant number of
 * times. */
static void depths(const sl_store *s, int32_t *depth)
{
    for (int32_t p = 0; p < s->n_pages; p++)
        depth[p] = -1;
    for (int32_t p = 0; p < s->n_pages; p++) {
        if (s->nodes[p].state != PAGE_TREE)
            continue;
        int32_t up = 0, at = p;
        for (; at != NONE && depth[at] < 0; at = s->nodes[at].parent)
            up++;
        int32_t d = (at == NONE ? -1 : depth[at]) + up;
        for (at = p; up-- > 0; at = s->nodes[at].parent)
            depth[at] = d--;
    }
}

sl_status sl_store_walk(const sl_store *s, sl_store_event_fn *fn, void *ctx)
{
    size_t n = (size_t)s->n_pages;
    int32_t *depth = malloc(n * sizeof *depth), *start = calloc(n + 2, sizeof *start),
            *order = malloc(n * sizeof *order);
    sl_status st = SL_ERR_NO_MEMORY;
    if (!depth || !start || !order)
        goto done;
    depths(s, depth);
    for (size_t p = 0; p < n; p++) { /* counting sort by depth */
        if (depth[p] >= 0)
            start[depth[p] + 1]++;
    }
    for (size_t d = 0; d <= n; d++)
        start[d + 1] += start[d];
    int32_t total = start[n + 1];
    for (size_t p = 0; p < n; p++) {
        if (depth[p] >= 0)
            order[start[depth[p]]++] = (int32_t)p;
    }
    for (int32_t i = 0; i < total; i++) {
        sl_store_page page = sl_store_describe(s, order[i]);
        fn(ctx, SL_STORE_STORED, &page);
    }
    st = SL_OK;
done:
    free(depth);
    free(start);
    free(order);
    return st;
}

typedef struct recount {
    int32_t *refs;       /* leases that pin the page */
    int32_t *owners;     /* leases that hold it privately */
    int32_t *children;   /* tree children */
    uint8_t *listed;     /* on the free stack or in the LRU list */
    uint8_t *listed_for; /* bit t: in the list of pages to offer to tier t */
} recount;

#define BROKEN(...) return sl_fail(err, SL_ERR_INTERNAL, __VA_ARGS__)

static sl_status count_leases(const sl_store *s, recount *c, sl_err *err)
{
    int32_t n = 0;
    for (const sl_lease *l = s->leases; l; l = l->next, n++) {
        if (l->n_path > l->n_pages || l->n_matched > l->n_path)
            BROKEN("lease of %d pages has %d published, %d matched", l->n_pages, l->n_path, l->n_matched);
        for (int32_t i = 0; i < l->n_pages; i++) {
            if (i < l->n_path)
                c->refs[l->path[i]]++;
            if (i >= l->n_path || l->path[i] != l->pages[i])
                c->owners[l->pages[i]]++;
            if (i < l->n_path && s->nodes[l->path[i]].parent != (i ? l->path[i - 1] : NONE))
                BROKEN("lease path breaks at page %d", i);
        }
    }
    if (n != s->n_leases)
        BROKEN("%d leases in the list, %d counted", n, s->n_leases);
    return SL_OK;
}

/* The line of one tenant and its place in the heap. */
static sl_status check_line(const sl_store *s, int entry, recount *c, int32_t *n, sl_err *err)
{
    const sl_store_line *line = &s->lines[entry];
    int32_t prev = NONE, pages = 0;
    for (int32_t p = line->head; p != NONE; prev = p, p = s->nodes[p].next, pages++) {
        const sl_node *node = &s->nodes[p];
        if (node->state != PAGE_TREE || node->refs || node->prev != prev || node->tenant != entry ||
            node->aside || c->listed[p]++)
            BROKEN("the line of tenant %d has page %d in state %d with %d pins", entry, p, node->state,
                   node->refs);
        if (node->parent != NONE && c->listed[node->parent] && s->nodes[node->parent].tenant == entry)
            BROKEN("the line of tenant %d has page %d after its parent %d", entry, p, node->parent);
        if (prev != NONE && entry != SL_QUOTA_SHARED && node->stamp <= s->nodes[prev].stamp)
            BROKEN("the line of tenant %d is not ordered at page %d", entry, p);
    }
    if (prev != line->tail || (pages == 0) != (line->at == NONE))
        BROKEN("the line of tenant %d has %d pages and place %d in the heap", entry, pages, line->at);
    if (line->at != NONE && (line->at >= s->n_heap || s->heap[line->at] != entry))
        BROKEN("tenant %d is not at its place %d in the heap", entry, line->at);
    *n += pages;
    return SL_OK;
}

static sl_status check_lists(const sl_store *s, recount *c, sl_err *err)
{
    for (int32_t i = 0; i < s->n_free; i++) {
        int32_t p = s->free_pages[i];
        if (s->nodes[p].state != PAGE_FREE || c->listed[p]++)
            BROKEN("free stack holds page %d in state %d", p, s->nodes[p].state);
    }
    int32_t n = 0;
    for (int e = 0; e < SL_QUOTA_ENTRIES; e++)
        SL_TRY(check_line(s, e, c, &n, err));
    for (int32_t p = 0; p < s->n_pages; p++) {
        const sl_node *node = &s->nodes[p];
        if (!node->aside)
            continue;
        if (node->state != PAGE_TREE || node->refs || !node->children || node->tenant != SL_QUOTA_SHARED ||
            c->listed[p]++)
            BROKEN("page %d in state %d with %d pins is set aside", p, node->state, node->refs);
        n++;
    }
    if (n != s->n_cached)
        BROKEN("%d pages can be evicted, %d counted", n, s->n_cached);
    return SL_OK;
}

static sl_status check_offers(const sl_store *s, int t, recount *c, sl_err *err)
{
    int32_t prev = NONE;
    for (int32_t p = s->tiers[t].head; p != NONE; prev = p, p = s->nodes[p].offers[t].next) {
        const sl_node *n = &s->nodes[p];
        if (n->state != PAGE_TREE || (n->offered >> t & 1) || n->offers[t].prev != prev ||
            (c->listed_for[p] >> t & 1))
            BROKEN("list of pages for tier %d has page %d in state %d", t, p, n->state);
        c->listed_for[p] |= (uint8_t)(1 << t);
    }
    if (prev != s->tiers[t].tail)
        BROKEN("list of pages for tier %d ends with %d, not %d", t, prev, s->tiers[t].tail);
    return SL_OK;
}

static sl_status check_held(const sl_store *s, const recount *c, sl_err *err)
{
    int32_t cached = 0, leaving = 0;
    for (int32_t p = 0; p < s->n_pages; p++) {
        const sl_node *n = &s->nodes[p];
        bool may_hold = n->state == PAGE_TREE || n->state == PAGE_DETACHED || n->state == PAGE_LEAVING;
        if (n->holds && !may_hold)
            BROKEN("page %d in state %d is held", p, n->state);
        cached += n->holds && n->state == PAGE_TREE && !n->refs;
        leaving += n->state == PAGE_LEAVING;
        for (int t = 0; t < s->n_tiers && n->state == PAGE_TREE; t++) {
            bool listed = n->listed >> t & 1, offered = n->offered >> t & 1;
            if (listed != (c->listed_for[p] >> t & 1) ||
                (s->tiers[t].when == SL_OFFER_NEW && listed == offered))
                BROKEN("tree page %d is %s the list of tier %d", p, listed ? "not in" : "in", t);
        }
    }
    if (cached != s->n_held_cached || leaving != s->n_leaving)
        BROKEN("%d held and cached pages, %d counted; %d leaving, %d counted", s->n_held_cached, cached,
               s->n_leaving, leaving);
    return SL_OK;
}

static sl_status check_page(const sl_store *s, const recount *c, int32_t p, sl_err *err)
{
    const sl_node *n = &s->nodes[p];
    switch (n->state) {
    case PAGE_LEAVING:
        if (!n->holds || c->listed[p] || c->refs[p] || c->owners[p])
            BROKEN("page %d leaves but is used", p);
        return SL_OK;
    case PAGE_FREE:
        if (!c->listed[p] || c->refs[p] || c->owners[p])
            BROKEN("page %d is free but used", p);
        return SL_OK;
    case PAGE_PRIVATE:
        if (c->owners[p] != 1 || c->refs[p])
            BROKEN("private page %d has %d owners, %d pins", p, c->owners[p], c->refs[p]);
        return SL_OK;
    case PAGE_DETACHED:
        if (!c->refs[p] || c->refs[p] != n->refs || c->owners[p])
            BROKEN("detached page %d has %d pins, %d counted", p, c->refs[p], n->refs);
        return SL_OK;
    default:
        break;
    }
    if (c->refs[p] != n->refs || c->owners[p] || c->children[p] != n->children)
        BROKEN("tree page %d: %d pins (%d counted), %d children (%d counted), %d owners", p, c->refs[p],
               n->refs, c->children[p], n->children, c->owners[p]);
    if ((n->refs == 0) != (c->listed[p] == 1))
        BROKEN("tree page %d with %d pins is %s a line", p, n->refs, c->listed[p] ? "in" : "not in");
    if (!sl_key_eq(n->key, sl_page_key(sl_store_describe(s, p).prev, s->tokens[p])))
        BROKEN("tree page %d has a key that is not its tokens'", p);
    if (n->parent != NONE && !sl_key_eq(n->seed, s->nodes[n->parent].seed))
        BROKEN("tree page %d has another seed than its parent", p);
    if (sl_store_find(s, n->key, n->seed, n->parent, s->tokens[p]) != p)
        BROKEN("tree page %d is not found by its key", p);
    return SL_OK;
}

/* The counts of the quota, and that the heap gives the right tenant. */
static sl_status check_quota(const sl_store *s, sl_err *err)
{
    int64_t used[SL_QUOTA_ENTRIES] = {0}, pages[SL_QUOTA_ENTRIES] = {0};
    int32_t refs[SL_QUOTA_ENTRIES] = {0};
    for (int32_t p = 0; p < s->n_pages; p++) {
        const sl_node *n = &s->nodes[p];
        if (n->state != PAGE_TREE)
            continue;
        used[n->tenant] += !n->refs;
        refs[n->tenant]++;
        pages[sl_quota_use_of((sl_quota *)&s->quota, n->tenant) - s->quota.uses]++;
        int above = n->parent == NONE ? SL_QUOTA_SHARED : s->nodes[n->parent].tenant;
        if (above != SL_QUOTA_SHARED && above != n->tenant)
            BROKEN("page %d of tenant %d continues a page of tenant %d", p, n->tenant, above);
    }
    for (const sl_lease *l = s->leases; l; l = l->next)
        refs[l->tenant]++;
    for (int e = 0; e < SL_QUOTA_ENTRIES; e++) {
        const sl_quota_entry *q = &s->quota.entries[e];
        if (used[e] != q->used || refs[e] != q->refs || q->used > q->limit)
            BROKEN("tenant %d has %d of %d pages and %d references, %d and %d counted", e, (int)q->used,
                   (int)q->limit, q->refs, (int)used[e], refs[e]);
        if (e < 2 + s->quota.n_rules && pages[e] != s->quota.uses[e].pages)
            BROKEN("tenant %d is told to have %d pages, %d counted", e, (int)s->quota.uses[e].pages,
                   (int)pages[e]);
    }
    for (int i = 1; i < s->n_heap; i++) {
        const sl_quota *q = &s->quota;
        int up = s->heap[(i - 1) / 2], e = s->heap[i];
        bool above_up = sl_quota_above_share(q, up), above = sl_quota_above_share(q, e);
        if (above > above_up ||
            (above == above_up && s->nodes[s->lines[e].head].stamp < s->nodes[s->lines[up].head].stamp))
            BROKEN("tenant %d is after tenant %d in the heap", e, up);
    }
    return SL_OK;
}

static sl_status check_pages(const sl_store *s, recount *c, sl_err *err)
{
    SL_TRY(count_leases(s, c, err));
    SL_TRY(check_lists(s, c, err));
    for (int t = 0; t < s->n_tiers; t++)
        SL_TRY(check_offers(s, t, c, err));
    SL_TRY(check_held(s, c, err));
    SL_TRY(check_quota(s, err));
    int32_t in_table = 0, in_tree = 0;
    for (uint32_t i = 0; i <= s->mask; i++)
        in_table += s->table[i] != NONE;
    for (int32_t p = 0; p < s->n_pages; p++) {
        SL_TRY(check_page(s, c, p, err));
        in_tree += s->nodes[p].state == PAGE_TREE;
    }
    if (in_table != in_tree)
        BROKEN("%d pages in the table, %d in the tree", in_table, in_tree);
    return SL_OK;
}

sl_status sl_store_check(const sl_store *s, sl_err *err)
{
    size_t n = (size_t)s->n_pages;
    int32_t *counts = calloc(3 * n, sizeof *counts);
    uint8_t *listed = calloc(2 * n, 1);
    sl_status st = SL_ERR_NO_MEMORY;
    if (!counts || !listed)
        goto free_counts;
    recount c = {counts, counts + n, counts + 2 * n, listed, listed + n};
    for (size_t p = 0; p < n; p++) {
        if (s->nodes[p].state == PAGE_TREE && s->nodes[p].parent != NONE)
            c.children[s->nodes[p].parent]++;
    }
    st = check_pages(s, &c, err);
free_counts:
    free(counts);
    free(listed);
    return st;
}
