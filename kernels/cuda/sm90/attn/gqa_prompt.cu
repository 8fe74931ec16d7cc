/*
 * Attention of prompts on Hopper's tensor cores: dense causal attention of several adjacent tokens of a sequence, over bf16
 * or fp8 rows, also with the rule of skip_factor. The arithmetic is that of gqa_segments.cuh, so a token's bits are those that
 * it gets when it is generated.
 */
#include "kernels/cuda/sm90/attn/gqa_prompt.cuh"
#include "kernels/cuda/maps.h"

/* Cuts the tokens of a step into tiles of at most `most` adjacent tokens of one sequence, and of one list of `of` unless that is
 * NULL: out[0] = n, the first token of
 * each, the number of tokens. One thread block. */
__global__ static void __launch_bounds__(1024)
    tiles_kernel(const int32_t *seq, const int32_t *of, int tokens, int most, int32_t *out)
{
    __shared__ int start[32], count[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, run = 0, n = 0;

    for (int base = 0; base < tokens; base += 1024) {
        int t = base + threadIdx.x, mine = -1, flags, before = 0, all = 0;

        if (t < tokens && (t == 0 || seq[t] != seq[t - 1] || (of && of[t] != of[t - 1])))
            mine = t;
        for (int d = 1; d < 32; d *= 2) { /* the newest start up to this token */
            int other = __shfl_up_sync(0xffffffffu, mine, d);
            mine = lane >= d ? max(mine, other) : mine;
        }
        if (lane == 31)
            start[warp] = mine;
        __syncthreads();
        mine = max(mine, run);
        for (int i = 0; i < 32; i++) {
            mine = i < warp ? max(mine, start[i]) : mine;
            run = max(run, start[i]);
        }
        bool first = t < tokens && (t - mine) % most == 0;
        flags = __ballot_sync(0xffffffffu, first);
        if (lane == 0)
            count[warp] = __popc(flags);
        __syncthreads();
        for (int i = 0; i < 32; i++) {
            before += i < warp ? count[i] : 0;
            all += count[i];
        }
        if (first)
            out[1 + n + before + __popc(flags & ((1u << lane) - 1))] = t;
        n += all;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        out[0] = n, out[1 + n] = tokens;
}

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

static sl_status launch(sl_cuda *cu, const gqa_prompt_work *w, sl_err *err)
{
    CUtensorMap map = {};

    if (w->g.p.format == SL_ROW_GQA_BF16)
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

sl_status sl_cuda_gqa_prompt(sl_cuda *cu, const sl_gqa_attn_params *p, sl_err *err)
{
    gqa_prompt_work w = {gqa_work_of(cu, p), NULL, NULL, 0};
    const size_t list = ((size_t)p->tokens + 2) * 4 + 255 & ~(size_t)255,
                 kept = p->dim > 128 ? (size_t)cu->sms * 2 * ROWS * p->dim * 4 : 0;
    void *mem;

    w.per = ROWS / w.g.group;
    SL_TRY(sl_cuda_scratch(cu, list + kept, &mem, err));
    w.tiles = (const int32_t *)mem;
    w.partial = (float *)((uint8_t *)mem + list);
    SL_TRY(SL_LAUNCH(cu, tiles_kernel, (sl_launch{1, 1024}), err, p->seqs->token_seq, p->prompt.of, p->tokens,
                     2 * w.per, (int32_t *)mem));
    return launch(cu, &w, err);
}
