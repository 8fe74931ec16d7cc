/* Scores of a step, slice by slice, and top-k of them; see by_scores.h. */
#include "sparse/algorithms/by_scores.h"

#include "kernels/bounds.h"
#include "sparse/algorithms/rows.h"

const char *const sl_row_scopes[] = {"kv_head", "request", NULL};

int64_t sl_by_scores_floats(const sl_algo_dims *d, int32_t lists, int32_t block_log2)
{
    int64_t one = (int64_t)sl_blocks_for(d->max_context, block_log2) * lists;
    int64_t most = one * d->max_step_tokens, fit = d->workspace_bytes / 4;
    return most < fit ? most : fit > one ? fit : one;
}

sl_status sl_by_scores_open(sl_by_scores *s, sl_backend *be, int64_t floats, sl_err *err)
{
    *s = (sl_by_scores){.be = be, .capacity = floats};
    return sl_be_alloc(be, SL_MEM_DEVICE, (size_t)floats * 4, (void **)&s->scores, err);
}

void sl_by_scores_close(sl_by_scores *s)
{
    if (s->be)
        sl_be_free(s->be, SL_MEM_DEVICE, s->scores);
}

static sl_status take_best(const sl_by_scores *s, const sl_best *best, const sl_algo_call *call,
                           const sl_score_slice *slice, int32_t k, int32_t *ids, sl_err *err)
{
    sl_seq_tables seqs = sl_seq_tables_slice(call->attn->seqs, slice->first, slice->count);
    sl_topk_params t = {.scores = s->scores,
                        .seqs = &seqs,
                        .ids = ids,
                        .token_count = slice->count,
                        .k = k,
                        .ld_scores = slice->ld,
                        .ld_ids = call->k,
                        .dense_below = call->dense_below,
                        .lists = call->lists,
                        .block_log2 = call->block_log2,
                        .mass = (float)best->mass,
                        .k_of = best->limits};
    /* Otherwise the step is so short that everything is selected. */
    if (sl_forced_blocks(best->sinks, best->recent, call->block_log2) <= k)
        t.sinks = best->sinks, t.recent = best->recent;
    else
        t.mass = 0, t.k_of = NULL;
    return sl_be_run(s->be, SL_OP_TOPK, &t, err);
}

sl_status sl_by_scores_retrieve(const sl_by_scores *s, const sl_best *best, sl_algo *a,
                                const sl_algo_call *call, int32_t first, int32_t count, int32_t *ids,
                                sl_err *err)
{
    const int32_t k = best->budget < call->k ? best->budget : call->k, all = k << call->block_log2;
    sl_score_slice slice = {.ld = (call->max_pos >> call->block_log2) + 1,
                            .from_pos = all > call->dense_below ? all : call->dense_below};
    if (best->mass > 0 || best->limits) /* lists of everything are cut, too */
        slice.from_pos = call->dense_below;
    const int64_t fit = s->capacity / ((int64_t)slice.ld * call->lists);
    for (int32_t done = 0; done < count; done += slice.count) {
        slice.first = first + done;
        slice.count = count - done < fit ? count - done : (int32_t)fit;
        SL_TRY(best->score(a, call, &slice, err));
        SL_TRY(take_best(s, best, call, &slice, k, ids + (int64_t)done * call->lists * call->k, err));
    }
    if (call->scores)
        *call->scores = (sl_algo_scores){.at = s->scores,
                                         .first = slice.first,
                                         .count = slice.count,
                                         .ld = slice.ld,
                                         .from_pos = slice.from_pos,
                                         .sinks = best->sinks,
                                         .recent = best->recent};
    return SL_OK;
}

sl_status sl_algo_mass_check(double list_mass, int reduction, sl_err *err)
{
    if (list_mass <= 0 || reduction == SL_GROUP_SOFTMAX)
        return SL_OK;
    return sl_fail(err, SL_ERR_INVALID,
                   "list_mass %g is a share of weights, which gqa_reduction softmax alone gives", list_mass);
}

int32_t sl_budget_width(const sl_algo_dims *d, int64_t budget, int32_t dense_below)
{
    int64_t w = budget > dense_below ? budget : dense_below;
    return w < d->max_context ? (int32_t)w : d->max_context;
}

sl_dtype sl_exact_key_type(const sl_cache_dims *d)
{
    return d->rows && d->rows->format == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16;
}

int32_t sl_log2_of(int32_t power_of_two)
{
    int32_t n = 0;
    while (1 << n < power_of_two)
        n++;
    return n;
}
