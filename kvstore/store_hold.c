/*
 * Pages of the tree as storage tiers see them (kvstore/cascade.h): which of them are to be offered to a tier, and
 * holds.
 *
 * A hold does not pin: the page stays where it is in the eviction order, can be matched, and can leave the tree. It only
 * keeps the memory from being given to another lease until the hold ends, because a write to the tier reads it.
 */
#include "kvstore/store_impl.h"

static void list_add(sl_store *s, int t, int32_t page)
{
    sl_store_tier *tier = &s->tiers[t];
    s->nodes[page].offers[t] = (sl_store_link){tier->tail, NONE};
    *(tier->tail != NONE ? &s->nodes[tier->tail].offers[t].next : &tier->head) = page;
    tier->tail = page;
    s->nodes[page].listed |= (uint8_t)(1 << t);
}

static void list_remove(sl_store *s, int t, int32_t page)
{
    sl_store_tier *tier = &s->tiers[t];
    sl_store_link *l = &s->nodes[page].offers[t];
    *(l->prev != NONE ? &s->nodes[l->prev].offers[t].next : &tier->head) = l->next;
    *(l->next != NONE ? &s->nodes[l->next].offers[t].prev : &tier->tail) = l->prev;
    s->nodes[page].listed &= (uint8_t) ~(1 << t);
}

int sl_store_add_tier(sl_store *s, sl_store_offer when)
{
    SL_CHECK(s->n_tiers < SL_STORE_TIERS, "more than %d tiers", SL_STORE_TIERS);
    s->tiers[s->n_tiers] = (sl_store_tier){.when = when, .head = NONE, .tail = NONE};
    for (int32_t p = 0; p < s->n_pages; p++)
        s->nodes[p].offered |= (uint8_t)(1 << s->n_tiers);
    return s->n_tiers++;
}

void sl_store_offer_new(sl_store *s, int32_t page)
{
    for (int t = 0; t < s->n_tiers; t++)
        if (s->tiers[t].when == SL_OFFER_NEW)
            list_add(s, t, page);
}

void sl_store_offer_used(sl_store *s, int32_t page)
{
    const sl_node *n = &s->nodes[page];
    for (int t = 0; t < s->n_tiers; t++)
        if (s->tiers[t].when == SL_OFFER_USED && !((n->listed | n->offered) >> t & 1) &&
            n->state == PAGE_TREE)
            list_add(s, t, page);
}

void sl_store_offer_end(sl_store *s, int32_t page, bool evicted)
{
    const sl_node *n = &s->nodes[page];
    for (int t = 0; t < s->n_tiers; t++) {
        sl_store_tier *tier = &s->tiers[t];
        bool listed = n->listed >> t & 1, offered = n->offered >> t & 1;
        tier->st.evicted_unoffered += evicted && listed;
        tier->st.evicted_unused += evicted && !listed && !offered && tier->when == SL_OFFER_USED;
        if (listed)
            list_remove(s, t, page);
    }
}

int32_t sl_store_offers(const sl_store *s, int tier, int32_t *pages, int32_t n)
{
    int32_t k = 0;
    for (int32_t p = s->tiers[tier].head; p != NONE && k < n; p = s->nodes[p].offers[tier].next)
        pages[k++] = p;
    return k;
}

void sl_store_has(sl_store *s, int tier, int32_t page)
{
    sl_node *n = &s->nodes[page];
    if (n->state != PAGE_TREE)
        return;
    if (n->listed >> tier & 1)
        list_remove(s, tier, page);
    n->offered |= (uint8_t)(1 << tier);
}

void sl_store_hold_page(sl_store *s, int32_t page)
{
    sl_node *n = &s->nodes[page];
    SL_CHECK(n->state == PAGE_TREE && n->holds < UINT8_MAX, "hold of page %d in state %d", page, n->state);
    s->n_held_cached += n->refs == 0 && !n->holds;
    n->holds++;
}

void sl_store_hold(sl_store *s, int tier, int32_t page, sl_store_page *out)
{
    sl_node *n = &s->nodes[page];
    SL_CHECK(n->state == PAGE_TREE && !(n->offered >> tier & 1), "hold of page %d in state %d for tier %d",
             page, n->state, tier);
    sl_store_has(s, tier, page);
    sl_store_hold_page(s, page);
    *out = sl_store_describe(s, page);
}

void sl_store_unhold(sl_store *s, int32_t page)
{
    sl_node *n = &s->nodes[page];
    SL_CHECK(n->holds, "page %d is not held", page);
    if (--n->holds)
        return;
    if (n->state == PAGE_LEAVING) {
        s->n_leaving--;
        n->state = PAGE_FREE;
        s->free_pages[s->n_free++] = page;
    } else if (n->state == PAGE_TREE && !n->refs) {
        s->n_held_cached--;
    }
}

void sl_store_tier_stats_get(const sl_store *s, int tier, sl_store_tier_stats *out)
{
    *out = s->tiers[tier].st;
}
