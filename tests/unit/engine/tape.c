/* See tape.h. */
#include "tape.h"

#include <string.h>

#include "base/log.h"
#include "kernels/bounds.h"
#include "kernels/gqa.h"
#include "kernels/retained.h"
#include "kernels/window.h"

static const sl_seq_tables **seqs_of(sl_op op, void *params)
{
    switch (op) {
    case SL_OP_KV_APPEND:
        return &((sl_kv_append_params *)params)->seqs;
    case SL_OP_INDEX_APPEND:
        return &((sl_index_append_params *)params)->seqs;
    case SL_OP_INDEX_SCORES:
        return &((sl_index_scores_params *)params)->seqs;
    case SL_OP_TOPK:
        return &((sl_topk_params *)params)->seqs;
    case SL_OP_RESOLVE:
        return &((sl_resolve_params *)params)->seqs;
    case SL_OP_GQA_APPEND:
        return &((sl_gqa_append_params *)params)->seqs;
    case SL_OP_GQA_ATTN:
        return &((sl_gqa_attn_params *)params)->seqs;
    case SL_OP_BOUNDS_APPEND:
        return &((sl_bounds_append_params *)params)->seqs;
    case SL_OP_BOUNDS_SCORES:
        return &((sl_bounds_scores_params *)params)->seqs;
    case SL_OP_CLUSTER_LISTS:
        return &((sl_cluster_lists_params *)params)->seqs;
    case SL_OP_CODE_SCORES:
        return &((sl_code_scores_params *)params)->seqs;
    case SL_OP_KEPT_STORE:
        return &((sl_kept_store_params *)params)->seqs;
    case SL_OP_KEPT_LISTS:
        return &((sl_kept_lists_params *)params)->seqs;
    case SL_OP_RETAINED_APPEND:
        return &((sl_retained_append_params *)params)->seqs;
    case SL_OP_RETAINED_SCORES:
        return &((sl_retained_scores_params *)params)->seqs;
    case SL_OP_RETAINED_LISTS:
        return &((sl_retained_lists_params *)params)->seqs;
    default:
        return NULL;
    }
}

/* What the codes of a step's tokens refer to. */
static void keep_step(tape_params *t, sl_codes_params *p)
{
    if (!p->step)
        return;
    t->step = *p->step;
    t->seqs = *p->step->seqs;
    t->step.seqs = &t->seqs;
    p->step = &t->step;
}

void tape_keep(tape_params *t, sl_op op, const void *params)
{
    SL_CHECK(sl_op_params_size(op) <= TAPE_PARAMS_MAX, "parameters of op %d", (int)op);
    memcpy(t->params, params, sl_op_params_size(op));
    for (sl_linear_params *p = (void *)t->params, *to = t->chain; op == SL_OP_LINEAR && p->next; p = to++) {
        *to = *p->next;
        p->next = to;
    }
    if (op == SL_OP_CODES)
        keep_step(t, (void *)t->params);
    const sl_seq_tables **seqs = seqs_of(op, t->params);
    if (seqs && *seqs) {
        t->seqs = **seqs;
        *seqs = &t->seqs;
    }
}
