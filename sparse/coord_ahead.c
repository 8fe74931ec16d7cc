/*
 * Layers that share a list: the rows of the layers after the one that selects are fetched with its list, while it and the layers
 * between them compute. See sparse.h.
 *
 * A row enters the cache of its layer earlier, and nothing else changes: the same lists are resolved against the same residency in
 * the same order of steps, and resolve reads neither rows nor the projections of its layer. So all bits, hits and misses are those of
 * a step that fetches layer by layer. Each layer ahead has physical lists and miss lists of its own (sl_swapin_group() counts them on:
 * layer l + i and group g have number i * groups + g), and its gathers follow those of the layer before on the side stream.
 */
#include "sparse/coordinator_impl.h"

static int32_t base_groups(const sl_coord *c)
{
    return c->o.groups > 0 ? c->o.groups : c->async ? SL_COORD_AUTO_GROUPS : 1;
}

int32_t sl_coord_group_number(const sl_coord *c, int32_t layer, int32_t g)
{
    return sl_coord_is_ahead(c, layer) ? (layer - c->ahead.owner) * base_groups(c) + g : g;
}

int32_t *sl_coord_phys_of(const sl_coord *c, int32_t layer)
{
    return sl_coord_is_ahead(c, layer) ? c->ahead.phys + (layer - c->ahead.owner - 1) * c->z.ahead_room
                                       : c->phys;
}

/* Layers directly after this one that read its list. */
static int32_t followers(const sl_coord *c, int32_t layer)
{
    int32_t n = 0;
    while (n < c->z.ahead && layer + n + 1 < c->o.n_layers && c->shares[layer + n + 1])
        n++;
    return n;
}

static bool can_fetch(const sl_coord *c, const sl_attn_call *call, const sl_algo_call *a)
{
    return c->z.ahead > 0 && c->async && !c->rows_free && c->tracker.shaped && !c->o.probe.seen &&
           !c->is_dense[call->layer] && sl_coord_selects(c, call->layer) &&
           sl_coord_lists_at(a, call->seqs->n_tokens) <= c->z.ahead_room;
}

sl_status sl_coord_fetch_ahead(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t groups,
                               sl_err *err)
{
    const int32_t n = can_fetch(c, call, a) ? followers(c, call->layer) : 0;
    sl_status st = SL_OK;
    c->ahead.owner = call->layer, c->ahead.groups = groups;
    for (int32_t i = 1; i <= n && st == SL_OK; i++) {
        sl_attn_call later = *call; /* of which tables and layer are read */
        later.layer = c->ahead.last = call->layer + i;
        for (int32_t g = 0; g < groups && st == SL_OK; g++) {
            sl_selection sel = sl_coord_group(c, a, call->seqs->n_tokens, g, groups);
            sl_swapin_group(c->swapin, sl_coord_group_number(c, later.layer, g));
            st = c->z.adaptor->fetch(c->swapin, &later, &sel,
                                     sl_coord_phys_of(c, later.layer) + sl_coord_lists_at(a, sel.first), true,
                                     &c->swap_ns, err);
        }
    }
    sl_swapin_group(c->swapin, -1);
    return st;
}

sl_status sl_coord_attend_ahead(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, sl_err *err)
{
    SL_TRY(sl_coord_capture_rows(c, call, err));
    SL_TRY(sl_coord_make_queries(call, err));
    if (c->z.algo->update)
        SL_TRY(c->z.algo->update(c->algo, a, err));
    return sl_coord_attend_fetched(c, call, a, c->ahead.groups, c->ahead.groups, SL_OK, err);
}

void sl_coord_step_settle(sl_coord *c)
{
    for (int32_t l = c->ahead.owner + 1; l <= c->ahead.last; l++)
        for (int32_t g = 0; g < c->ahead.groups; g++)
            (void)sl_swapin_wait(c->swapin, l, sl_coord_group_number(c, l, g), NULL);
    c->ahead.owner = c->ahead.last = -1;
}
