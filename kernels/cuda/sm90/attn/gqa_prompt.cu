/*
 * Attention of prompts on Hopper's tensor cores: dense causal attention of many adjacent tokens of a sequence over bf16
 * rows. It is the arithmetic of gqa_attn_tensor.cu, and a token's bits are those that it gets there.
 */
#include "kernels/cuda/sm90/attn/gqa_prompt.cuh"
#include "kernels/cuda/maps.h"

/* The rows as an array [block][side][KV head][token of the block][dim]; a box is a page of one side of one head, 64 of its
 * columns. The number of blocks is not known here and not needed: pages of sequences exist. */
static sl_status map_rows(sl_cuda *cu, const gqa_work *g, CUtensorMap *map, sl_err *err)
{
    const sl_row_view *r = &g->p.rows;
    const uint64_t token = (uint64_t)g->p.dim * 2, row = (uint64_t)r->row_bytes;
    const uint32_t per_row = 1u << r->block_log2;
    sl_cuda_box b = {};

    b.dims = 5;
    b.size[0] = (uint64_t)g->p.dim, b.box[0] = 64;
    b.size[1] = per_row, b.box[1] = per_row, b.pitch[0] = (uint64_t)g->heads * token;
    b.size[2] = (uint64_t)g->p.kv_heads, b.box[2] = 1, b.pitch[1] = g->lists > 1 ? row : token;
    b.size[3] = 2, b.box[3] = 1, b.pitch[2] = (uint64_t)g->slots * token;
    b.size[4] = INT32_MAX, b.box[4] = SL_PAGE_TOKENS / per_row, b.pitch[3] = (uint64_t)g->lists * row;
    return sl_cuda_map_bf16(cu, r->base, &b, map, err);
}

sl_status sl_cuda_gqa_prompt(sl_cuda *cu, const gqa_tensor_work *w, sl_err *err)
{
    CUtensorMap map;

    SL_TRY(map_rows(cu, &w->g, &map, err));
    switch (w->g.p.dim) {
    case 64:
        return sl_cuda_gqa_prompt_64(cu, w, &map, err);
    case 128:
        return sl_cuda_gqa_prompt_128(cu, w, &map, err);
    default:
        return sl_cuda_gqa_prompt_256(cu, w, &map, err);
    }
}
