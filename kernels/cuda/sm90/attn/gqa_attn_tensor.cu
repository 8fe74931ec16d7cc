/*
 * Attention over keys and values on Hopper's tensor cores: bf16 activations, bf16 or fp8 rows, head dimensions 64, 128
 * and 256, for lists of rows and for dense causal attention.
 *
 * One arithmetic for every call, so that a token's bits depend on its query and its list only: a list is cut into
 * segments of 512 tokens, a segment into steps of 128 tokens (64 with dimension 256). A step's scores are bf16 products
 * with float32 sums; a running maximum, float32 sum and float32 output belong to the segment; weights are rounded to
 * bf16; segments are merged in their order. What a row of queries gets does not depend on the other 63 rows that a
 * warpgroup multiplies with it. These are the query heads of one KV head of one token; or, of dense causal attention, of
 * as many adjacent tokens as fit, and two warpgroups share the keys and values. Where few tokens have long lists, the
 * segments are units of work of their own and a second kernel merges them.
 *
 * One query token of every list or sequence is computed by gqa_decode.cu, with the same bits; here are those calls with
 * the rule of skip_factor, and fp8 rows that do not begin at multiples of 16 bytes. Causal attention of many tokens over
 * bf16 rows is gqa_prompt.cuh; over fp8 rows it is here, with two multiplying warpgroups.
 *
 *     gqa_attn_fetch.cuh      the warpgroup that brings keys and values into a ring of steps
 *     gqa_attn_multiply.cuh   the warpgroups that multiply
 *     gqa_attn_kernel.cuh     both together
 */
#include "kernels/cuda/sm90/attn/gqa_attn_tensor.cuh"

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

/* Merges the segments of a query head, in their order: one thread for each column. The loads of a batch of segments are
 * in flight together. */
__global__ static void combine_kernel(const __grid_constant__ gqa_tensor_work w)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const int batch = 16;
    int dim = w.g.p.dim, c = threadIdx.x;
    const float *part = w.partial + (int64_t)blockIdx.x * w.parts * (dim + 4);
    float o = 0, m = -INFINITY, l = 0;

    sl_after_previous();
    for (int base = 0; base < w.parts; base += batch) {
        float v[batch], mc[batch], lc[batch];

#pragma unroll
        for (int u = 0; u < batch; u++) {
            const float *next = part + min(base + u, w.parts - 1) * (dim + 4);

            v[u] = next[c], mc[u] = base + u < w.parts ? next[dim] : -INFINITY, lc[u] = next[dim + 1];
        }
#pragma unroll
        for (int u = 0; u < batch; u++) {
            float keep, take;

            if (mc[u] == -INFINITY) /* no token */
                continue;
            if (base + u == 0) {
                o = v[u], m = mc[u], l = lc[u];
                continue;
            }
            gqa_merge_sums(m, l, mc[u], lc[u], &keep, &take);
            o = gqa_merge(o, keep, v[u], take);
        }
    }
    ((__nv_bfloat16 *)w.g.p.out)[(int64_t)blockIdx.x * dim + c] = __float2bfloat16_rn(gqa_output(o, l));
#endif
}

static sl_status launch(sl_cuda *cu, const gqa_tensor_work *w, int groups, int grid, sl_err *err)
{
    switch (w->g.p.dim) {
    case 64:
        return sl_cuda_gqa_launch_64(cu, w, groups, grid, err);
    case 128:
        return sl_cuda_gqa_launch_128(cu, w, groups, grid, err);
    default:
        return sl_cuda_gqa_launch_256(cu, w, groups, grid, err);
    }
}

/* Dense causal attention whose tokens share tiles. */
static sl_status run_tiles(sl_cuda *cu, gqa_tensor_work *w, sl_err *err)
{
    const sl_gqa_attn_params *p = &w->g.p;
    size_t list = ((size_t)p->tokens + 2) * 4 + 255 & ~(size_t)255;
    int most = 2 * w->per, grid = cu->sms;
    void *mem;

    SL_TRY(sl_cuda_scratch(cu, list + (size_t)grid * 2 * ROWS * p->dim * 4, &mem, err));
    w->tiles = (const int32_t *)mem;
    w->partial = (float *)((uint8_t *)mem + list);
    SL_TRY(SL_LAUNCH(cu, tiles_kernel, (sl_launch{1, 1024}), err, p->seqs->token_seq, p->prompt.of, p->tokens,
                     most, (int32_t *)mem));
    return p->format == SL_ROW_GQA_BF16 ? sl_cuda_gqa_prompt(cu, w, err) : launch(cu, w, 2, grid, err);
}

/* Whether the segments of lists are units of their own: where that needs fewer rounds. The rule of skip_factor needs the
 * maximum of all earlier segments. */
static int parts_for(const sl_cuda *cu, const sl_gqa_attn_params *p)
{
    int64_t parts = ((int64_t)p->k << p->rows.block_log2) / SEGMENT + 1,
            items = (int64_t)p->tokens * p->kv_heads;

    if ((int64_t)p->k << p->rows.block_log2 <= SEGMENT || p->skip_factor > 0 || items > 16 * cu->sms)
        return 1;
    parts = sl_ceil_div((int64_t)p->k << p->rows.block_log2, SEGMENT);
    return (sl_ceil_div(items * parts, cu->sms) + 1) < sl_ceil_div(items, cu->sms) * parts ? (int)parts : 1;
}

sl_status sl_cuda_gqa_tensor(sl_cuda *cu, const sl_gqa_attn_params *p, sl_err *err)
{
    gqa_tensor_work w = {gqa_work_of(cu, p), NULL, NULL, 1, 1};
    int64_t units;
    void *mem;

    if (p->seqs && p->tokens > p->seqs->n_seqs) {
        w.per = ROWS / w.g.group;
        return run_tiles(cu, &w, err);
    }
    w.parts = parts_for(cu, p);
    units = (int64_t)p->tokens * p->kv_heads * w.parts;
    SL_TRY(sl_cuda_scratch(cu,
                           w.parts > 1 ? (size_t)p->tokens * p->heads * w.parts * (p->dim + 4) * 4
                                       : (size_t)cu->sms * ROWS * p->dim * 4,
                           &mem, err));
    w.partial = (float *)mem;
    SL_TRY(launch(cu, &w, 1, (int)min(units, (int64_t)cu->sms), err));
    return w.parts == 1 ? SL_OK
                        : SL_LAUNCH(cu, combine_kernel,
                                    (sl_launch{dim3(p->tokens * p->heads), (int)(p->dim), 0, true}), err, w);
}
