/*
 * Lists the pages of the prefix tree in parts of bounded work, for those who look into a running store (decode/pages/inspect.c,
 * decode/pages/audit.c). The order is that of page numbers, so pages that enter or leave between two parts may be missing; no page
 * is listed twice unless it has left the tree and entered it again.
 */
#include "kvstore/store_impl.h"

enum { STEPS = 1 << 14 /* pages that one part looks at, the parents that it follows included */ };

/* The number of pages before this one in its chain. previous: the page that was listed last and its number, which is often
 * the parent, because the pages of one prompt are allocated together. */
static int32_t depth_of(const sl_store *s, int32_t page, const sl_store_entry *previous, int32_t *steps)
{
    int32_t n = 0;
    for (int32_t p = s->nodes[page].parent; p != NONE; p = s->nodes[p].parent) {
        n++;
        if (previous && p == previous->page)
            return n + previous->before;
        ++*steps;
    }
    return n;
}

int32_t sl_store_list(const sl_store *s, int32_t *cursor, sl_store_entry *out, int32_t n)
{
    int32_t k = 0, steps = 0, p = *cursor;
    if (p < 0 || p > s->n_pages)
        p = s->n_pages;
    for (; p < s->n_pages && k < n && steps < STEPS; p++, steps++) {
        const sl_node *node = &s->nodes[p];
        if (node->state != PAGE_TREE)
            continue;
        out[k] = (sl_store_entry){.key = node->key,
                                  .seed = node->seed,
                                  .page = p,
                                  .before = depth_of(s, p, k ? &out[k - 1] : NULL, &steps),
                                  .pinned = node->refs != 0,
                                  .used_ns = node->used_ns};
        k++;
    }
    *cursor = p < s->n_pages ? p : -1;
    return k;
}
