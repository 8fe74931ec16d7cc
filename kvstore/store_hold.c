/*
 * Pages of the tree as a storage tier sees them (kvstore/cascade.h): which of them have not been offered to the tier yet,
 * which will be evicted next, and holds.
 *
 * A hold does not pin: the page stays where it is in the eviction order, can be matched, and can leave the tree. It only
 * keeps the memory from being given to another lease until the hold ends, because a write to the tier reads it.
 */
#include "kvstore/store_impl.h"

void sl_store_new_add(sl_store *s, int32_t page)
{
    sl_node *n = &s->nodes[page];
    n->new_prev = s->new_tail;
    n->new_next = NONE;
    *(s->new_tail != NONE ? &s->nodes[s->new_tail].new_next : &s->new_head) = page;
    s->new_tail = page;
}

void sl_store_new_remove(sl_store *s, int32_t page)
{
    sl_node *n = &s->nodes[page];
    if (n->offered)
        return;
    *(n->new_prev != NONE ? &s->nodes[n->new_prev].new_next : &s->new_head) = n->new_next;
    *(n->new_next != NONE ? &s->nodes[n->new_next].new_prev : &s->new_tail) = n->new_prev;
    n->offered = true;
}

int32_t sl_store_new_pages(const sl_store *s, int32_t *pages, int32_t n)
{
    int32_t k = 0;
    for (int32_t p = s->new_head; p != NONE && k < n; p = s->nodes[p].new_next)
        pages[k++] = p;
    return k;
}

int32_t sl_store_oldest_pages(const sl_store *s, int32_t depth, int32_t *pages, int32_t n)
{
    int32_t k = 0;
    for (int32_t p = s->lru_head; p != NONE && k < n && depth > 0; p = s->nodes[p].next, depth--) {
        if (!s->nodes[p].offered)
            pages[k++] = p;
    }
    return k;
}

void sl_store_hold(sl_store *s, int32_t page, sl_store_page *out)
{
    sl_node *n = &s->nodes[page];
    SL_CHECK(n->state == PAGE_TREE && !n->held, "hold of page %d in state %d", page, n->state);
    sl_store_new_remove(s, page);
    n->held = true;
    s->n_held_cached += n->refs == 0;
    *out = sl_store_describe(s, page);
}

void sl_store_unhold(sl_store *s, int32_t page)
{
    sl_node *n = &s->nodes[page];
    SL_CHECK(n->held, "page %d is not held", page);
    n->held = false;
    if (n->state == PAGE_LEAVING) {
        s->n_leaving--;
        n->state = PAGE_FREE;
        s->free_pages[s->n_free++] = page;
    } else if (n->state == PAGE_TREE && !n->refs) {
        s->n_held_cached--;
    }
}
