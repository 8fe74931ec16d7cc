/*
 * Steps. The ranks of a group compute together (docs/groups.md): a step of a group begins when one of them has something to
 * compute and ends for all when the slowest has ended, so work that comes meanwhile waits for it. A worker without a group is a
 * group of one.
 */
#include <stdlib.h>

#include "simulate/sim_impl.h"

sl_status sl_sim_groups_make(sl_sim *s, sl_err *err)
{
    s->groups = calloc((size_t)s->n_workers, sizeof *s->groups);
    if (!s->groups)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < s->n_workers;) {
        int32_t n = i < s->o.prefills ? s->o.prefill_ranks : s->o.decode_ranks;
        sl_sim_group *g = &s->groups[s->n_groups++];
        *g = (sl_sim_group){.s = s, .first = &s->workers[i], .n = n > 1 ? n : 1};
        for (int32_t k = 0; k < g->n; k++, i++)
            s->workers[i].group = g;
    }
    return SL_OK;
}

static void on_end(void *arg, uint64_t began_ns)
{
    sl_sim_group *g = arg;
    for (int32_t i = 0; i < g->n; i++) {
        sl_sim_worker *w = &g->first[i];
        if (sl_sim_decodes(w))
            sl_sim_decode_stepped(w, began_ns);
        else
            sl_sim_prefill_stepped(w, began_ns);
    }
    g->stepping = false;
    sl_sim_step(g->first);
    for (int32_t i = 0; i < g->n; i++) {
        if (sl_sim_decodes(&g->first[i]))
            sl_sim_pages_turn(&g->first[i]);
        else
            sl_sim_beat(&g->first[i]);
    }
}

void sl_sim_step(sl_sim_worker *w)
{
    sl_sim_group *g = w->group;
    double longest = 0;
    if (g->stepping)
        return;
    for (int32_t i = 0; i < g->n; i++) {
        sl_sim_worker *rank = &g->first[i];
        double ns = sl_sim_decodes(rank) ? sl_sim_decode_step(rank) : sl_sim_prefill_step(rank);
        longest = ns > longest ? ns : longest;
    }
    if (!(longest > 0))
        return;
    g->stepping = true;
    if (g->n > 1)
        longest += g->s->c->exchange_us * 1e3;
    sl_sim_after(g->s, longest, on_end, g, g->s->now_ns);
}
