/*
 * Scores of blocks from their bounds: the product of [max(q, 0) | min(q, 0)] with [max | min], reduced over the query
 * heads of a list (row_dots.h, row_softmax.cu). With max and mean the scores have the bits of the CPU backend, so that
 * both select the same blocks; with softmax they differ by the last bit at most.
 *
 * Limit: bounds of blocks of 16 tokens in bf16 are 4 * d bytes per block and KV head, one sixteenth of the bytes of K and
 * V. At 64K tokens, 8 KV heads and d 128 they are 16.8 MB per request and layer, 4 us at 4.2 TB/s; a decode step of 64
 * such requests reads 1.07 GB, 256 us.
 */
#include "kernels/cuda/any/select/row_dots.h"

static sl_status run_bounds_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_bounds_scores_params *p = (const sl_bounds_scores_params *)params;
    int64_t unit = sl_bounds_unit_bytes(p->dim, p->dtype);
    sl_row_dots d = {};

    d.base = p->base;
    d.page_stride = p->page_stride;
    d.row_stride = p->kv_heads * unit;
    d.head_stride = unit;
    d.page_log2 = SL_PAGE_LOG2 - p->block_log2;
    d.n = 2 * p->dim;
    d.type = p->dtype;
    d.q = p->q;
    d.split = true;
    d.heads = p->heads, d.kv_heads = p->kv_heads, d.dim = p->dim;
    d.seqs = p->seqs;
    d.token_first = p->token_first, d.token_count = p->token_count;
    d.from_pos = p->from_pos;
    d.pos_log2 = p->block_log2;
    d.plus = 0; /* the block of pos itself has no score */
    d.out = p->scores;
    d.lists = p->lists, d.ld_out = p->ld_scores;
    return sl_cuda_group_scores(sl_cuda_of(be), &d, p->reduce, p->scale, err);
}

const sl_op_impl sl_cuda_bounds_scores = {.run = run_bounds_scores};
