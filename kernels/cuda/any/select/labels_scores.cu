/*
 * Scores of tokens from their labels: products of the same channels of the queries, reduced over the query heads of a list
 * (row_dots.h, row_softmax.cu). With max and mean the scores have the bits of the CPU backend, so that both select the same
 * tokens; with softmax they differ by the last bit at most.
 *
 * Limit: labels of 32 channels in bf16 are 64 bytes per token and KV head, one eighth of the bytes of K and V with d 128.
 * At 64K tokens and 8 KV heads they are 33.6 MB per request and layer, 8 us at 4.2 TB/s; a decode step of 64 such requests
 * reads 2.15 GB, 511 us.
 */
#include "kernels/cuda/any/select/row_dots.h"

static sl_status run_labels_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_labels_scores_params *p = (const sl_labels_scores_params *)params;
    sl_row_dots d = {};

    d.base = p->base;
    d.page_stride = p->page_stride;
    d.row_stride = sl_labels_unit_bytes(p->count, p->dtype) / SL_PAGE_TOKENS;
    d.head_stride = sl_labels_unit_bytes(p->count, p->dtype);
    d.page_log2 = SL_PAGE_LOG2;
    d.n = p->count;
    d.type = p->dtype;
    d.q = p->q;
    d.channels = p->channels;
    d.heads = p->heads, d.kv_heads = p->kv_heads, d.dim = p->dim;
    d.seqs = p->seqs;
    d.token_first = p->token_first, d.token_count = p->token_count;
    d.from_pos = p->from_pos;
    d.plus = 1; /* a token has a score from its own position */
    d.out = p->scores;
    d.lists = p->lists, d.ld_out = p->ld_scores;
    return sl_cuda_group_scores(sl_cuda_of(be), &d, p->reduce, p->scale, err);
}

const sl_op_impl sl_cuda_labels_scores = {.run = run_labels_scores};
