/*
 * A decode step that is cut into groups of tokens: the rows of one group are fetched on the side stream while other
 * groups select and attend. See sparse.h.
 */
#include "sparse/coordinator_impl.h"

/* With groups = 0, a step of fewer than AUTO_TOKENS tokens is not cut (measured on an H200). WAVE: tokens of 128 heads
 * that one wave of the attention kernel computes there. */
enum { AUTO_TOKENS = 32, WAVE = 33 };

/* The first token of group g. While the second of two groups attends, nothing else runs. Therefore its number of
 * tokens is rounded to whole waves of attention, as long as this moves at most an eighth of its tokens. Runs of `per` tokens
 * are not divided. */
static int32_t group_begin(int32_t total, int32_t per, int32_t g, int32_t groups)
{
    if (per > 1)
        return (int32_t)((int64_t)(total / per) * g / groups) * per;
    int32_t half = total / 2, waves = (half + WAVE / 2) / WAVE * WAVE, off = waves - half;
    if (groups == 2 && g == 1 && half >= WAVE - 1 && (off < 0 ? -off : off) * 8 <= half)
        return total - waves;
    return (int32_t)((int64_t)total * g / groups);
}

sl_selection sl_coord_group(const sl_coord *c, const sl_algo_call *a, int32_t total, int32_t g,
                            int32_t groups)
{
    int32_t first = group_begin(total, c->per, g, groups), end = group_begin(total, c->per, g + 1, groups);
    return (sl_selection){
        .ids = c->ids + sl_coord_lists_at(a, first), .first = first, .count = end - first, .k = a->k};
}

/* Groups that the options want for a step; 1: the step is computed as a whole. */
static int32_t wanted_groups(const sl_coord *c, int32_t total)
{
    int32_t want = c->o.groups > 0                                    ? c->o.groups
                   : !c->async || c->rows_free || total < AUTO_TOKENS ? 1
                                                                      : SL_COORD_AUTO_GROUPS;
    return total / c->per < want ? total / c->per : want;
}

sl_attend_seam sl_coord_seam(sl_coord *c)
{
    bool grouped = c->tracker.shaped && c->o.hot_slots > 0 && wanted_groups(c, c->tracker.step_tokens) > 1;
    return (sl_attend_seam){.attend = sl_coord_attend, .ctx = c, .late = grouped ? c->may_be_late : NULL};
}

int32_t sl_coord_groups_of(const sl_coord *c, const sl_attn_call *call, const sl_algo_call *a)
{
    const int32_t total = call->seqs->n_tokens;
    int32_t n = wanted_groups(c, total);
    bool can = c->tracker.shaped && c->z.algo->groupable && !c->is_dense[call->layer] &&
               !c->layers[call->layer].resident && c->o.hot_slots > 0 &&
               sl_coord_lists_at(a, total) <= c->z.slice;
    return can && n > 1 ? n : 1;
}

/*
 * Selects and fetches the rows group by group. *begun receives the number of groups that must be waited for, also
 * after an error. New rows are appended after the first group's fetch: that op is short and leaves multiprocessors
 * to the gather that runs concurrently. (They exist already if the algorithm's update reads them.) Queries are made
 * after the last group's fetch, so that its rows are requested as early as possible.
 */
static sl_status fetch_groups(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t groups,
                              int32_t *begun, sl_err *err)
{
    for (int32_t g = 0; g < groups; g++) {
        sl_selection sel = sl_coord_group(c, a, call->seqs->n_tokens, g, groups);
        SL_TRY(sl_coord_select_kept(c, call, a, sel.first, sel.count, err));
        sl_swapin_group(c->swapin, g);
        *begun = g + 1; /* also if the fetch fails: the side stream must be waited for */
        SL_TRY(c->z.adaptor->fetch(c->swapin, call, &sel, c->phys + sl_coord_lists_at(a, sel.first), true,
                                   &c->swap_ns, err));
        if (g == 0 && !c->z.algo->reads_rows)
            SL_TRY(sl_coord_capture_rows(c, call, err));
    }
    SL_TRY(sl_coord_make_queries(call, err));
    return sl_coord_fetch_ahead(c, call, a, groups, err);
}

sl_status sl_coord_attend_fetched(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a,
                                  int32_t groups, int32_t begun, sl_status before, sl_err *err)
{
    sl_status st = before;
    for (int32_t g = 0; g < begun; g++) {
        sl_selection sel = sl_coord_group(c, a, call->seqs->n_tokens, g, groups);
        const int32_t number = sl_coord_group_number(c, call->layer, g);
        sl_status wait = sl_swapin_wait(c->swapin, call->layer, number, st == SL_OK ? err : NULL);
        st = st == SL_OK ? wait : st;
        sl_swapin_group(c->swapin, number);
        if (st == SL_OK)
            st =
                c->z.adaptor->attend(c->be, c->swapin, &c->layers[call->layer], call, &sel,
                                     sl_coord_phys_of(c, call->layer) + sl_coord_lists_at(a, sel.first), err);
    }
    sl_swapin_group(c->swapin, -1);
    return st;
}

sl_status sl_coord_attend_groups(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t groups,
                                 sl_err *err)
{
    int32_t begun = 0;
    sl_status st = fetch_groups(c, call, a, groups, &begun, err);
    return sl_coord_attend_fetched(c, call, a, groups, begun, st, err);
}
