/*
 * Which page of the tree is evicted next.
 *
 * Every tenant has a line of its unpinned tree nodes, the least recently used first, and a heap has the tenants whose line
 * is not empty: those above their share before the others, and among equals the one whose first page was unpinned
 * earliest. So the next page is the first one of the first tenant's line. Adding and removing a page costs O(1) and one
 * correction of the heap, which is logarithmic in the number of tenants.
 *
 * The first page of a line has no children, for these reasons. A path is unpinned from its end towards the root, so a
 * page's children were unpinned before it. They are in the same line: whoever continues a page uses it, so the
 * children of a page that one tenant owns belong to that tenant. Only a page of several tenants (SL_QUOTA_SHARED) can
 * have children in other lines, and those are evicted first, because they were unpinned earlier - unless their tenants
 * are protected by their shares. Then the page is protected with them: it is set aside, in no line, until its last child has
 * left the tree. It then comes first in its line, because all pages that it was set aside from were used later.
 */
#include "base/log.h"
#include "kvstore/store_impl.h"

/* ---- the heap of tenants ---- */

/* Whether the next page is taken from a before b. */
static bool precedes(const sl_store *s, int a, int b)
{
    bool above_a = sl_quota_above_share(&s->quota, a), above_b = sl_quota_above_share(&s->quota, b);
    if (above_a != above_b)
        return above_a;
    return s->nodes[s->lines[a].head].stamp < s->nodes[s->lines[b].head].stamp;
}

static void place(sl_store *s, int at, int entry)
{
    s->heap[at] = entry;
    s->lines[entry].at = at;
}

/* Puts the entry, which may be anywhere in the heap, where it belongs. */
static void sift(sl_store *s, int entry)
{
    int at = s->lines[entry].at;
    for (int up; at > 0 && precedes(s, entry, s->heap[up = (at - 1) / 2]); at = up)
        place(s, at, s->heap[up]);
    for (int down; (down = 2 * at + 1) < s->n_heap; at = down) {
        if (down + 1 < s->n_heap && precedes(s, s->heap[down + 1], s->heap[down]))
            down++;
        if (!precedes(s, s->heap[down], entry))
            break;
        place(s, at, s->heap[down]);
    }
    place(s, at, entry);
}

/* The line or the number of pages of this entry has changed. */
static void changed(sl_store *s, int entry)
{
    sl_store_line *line = &s->lines[entry];
    if (line->head != NONE) {
        if (line->at == NONE)
            place(s, s->n_heap++, entry);
        sift(s, entry);
    } else if (line->at != NONE) {
        int at = line->at, last = s->heap[--s->n_heap];
        line->at = NONE;
        if (last != entry) {
            place(s, at, last);
            sift(s, last);
        }
    }
}

/* ---- lines ---- */

static void link_after(sl_store *s, sl_store_line *line, int32_t prev, int32_t page)
{
    int32_t next = prev == NONE ? line->head : s->nodes[prev].next;
    s->nodes[page].prev = prev;
    s->nodes[page].next = next;
    *(prev == NONE ? &line->head : &s->nodes[prev].next) = page;
    *(next == NONE ? &line->tail : &s->nodes[next].prev) = page;
}

static void unlink_page(sl_store *s, sl_store_line *line, int32_t page)
{
    const sl_node *n = &s->nodes[page];
    *(n->prev == NONE ? &line->head : &s->nodes[n->prev].next) = n->next;
    *(n->next == NONE ? &line->tail : &s->nodes[n->next].prev) = n->prev;
}

void sl_store_line_add(sl_store *s, int32_t page)
{
    sl_node *n = &s->nodes[page];
    sl_store_line *line = &s->lines[n->tenant];
    n->stamp = ++s->stamps;
    n->used_ns = sl_now_ns();
    link_after(s, line, line->tail, page);
    s->quota.entries[n->tenant].used++;
    changed(s, n->tenant);
    s->n_cached++;
    s->n_held_cached += n->holds != 0;
}

void sl_store_line_remove(sl_store *s, int32_t page)
{
    sl_node *n = &s->nodes[page];
    if (!n->aside)
        unlink_page(s, &s->lines[n->tenant], page);
    n->aside = false;
    s->quota.entries[n->tenant].used--;
    changed(s, n->tenant);
    s->n_cached--;
    s->n_held_cached -= n->holds != 0;
}

void sl_store_child_left(sl_store *s, int32_t parent)
{
    sl_node *n = &s->nodes[parent];
    if (!n->aside || n->children)
        return;
    n->aside = false;
    link_after(s, &s->lines[n->tenant], NONE, parent);
    changed(s, n->tenant);
}

int32_t sl_store_next_victim(sl_store *s)
{
    for (;;) {
        SL_CHECK(s->n_heap, "%d pages are cached, none can be evicted", s->n_cached);
        int entry = s->heap[0];
        int32_t page = s->lines[entry].head;
        sl_node *n = &s->nodes[page];
        if (!n->children)
            return page;
        SL_CHECK(entry == SL_QUOTA_SHARED, "the first page of a tenant's line has children");
        unlink_page(s, &s->lines[entry], page);
        n->aside = true;
        changed(s, entry);
    }
}

void sl_store_count_eviction(sl_store *s, int32_t page, sl_quota_reason why)
{
    const sl_node *n = &s->nodes[page];
    sl_quota_use_of(&s->quota, n->tenant)->evicted[why]++;
    if (!s->evicted)
        return;
    uint64_t now = sl_now_ns();
    s->evicted(s->evicted_ctx, (double)(now - n->used_ns) / 1e9, (double)(now - n->born_ns) / 1e9);
}

/* ---- what will be evicted ---- */

typedef struct cursor {
    int32_t page;
    int64_t spare; /* pages that its tenant has above its share */
} cursor;

static bool cursor_precedes(const sl_store *s, const cursor *a, const cursor *b)
{
    if ((a->spare > 0) != (b->spare > 0))
        return a->spare > 0;
    return s->nodes[a->page].stamp < s->nodes[b->page].stamp;
}

int32_t sl_store_oldest_offers(const sl_store *s, int tier, int32_t depth, int32_t *pages, int32_t n)
{
    cursor lines[SL_QUOTA_ENTRIES];
    int32_t k = 0;
    int left = s->n_heap;
    for (int i = 0; i < left; i++) {
        const sl_quota_entry *e = &s->quota.entries[s->heap[i]];
        lines[i] = (cursor){s->lines[s->heap[i]].head, e->used - e->share};
    }
    for (; left && k < n && depth > 0; depth--) {
        cursor *next = &lines[0];
        for (int i = 1; i < left; i++)
            next = cursor_precedes(s, &lines[i], next) ? &lines[i] : next;
        if (s->nodes[next->page].listed >> tier & 1)
            pages[k++] = next->page;
        next->page = s->nodes[next->page].next;
        next->spare--;
        if (next->page == NONE)
            *next = lines[--left];
    }
    return k;
}
