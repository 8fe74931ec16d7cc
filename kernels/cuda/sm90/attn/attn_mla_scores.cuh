/*
 * Inside attn_mla.cu: the warpgroup that multiplies queries with rows and turns the scores into probabilities, block by
 * block.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_SCORES_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_SCORES_CUH
#include "kernels/cuda/sm90/attn/attn_mla_impl.cuh"
#include "kernels/cuda/sm90/attn/attn_mla_rows.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* ---- queries ---- */

/* Queries of an item's heads as eight tiles, and one of R rope columns; heads that do not exist are zero. */
template <typename E, int R, int N>
__device__ static inline void load_queries(uint8_t *tile, const attn_work &w, int item, int thread)
{
    constexpr int WIDTH = LORA + R;
    const int total = HEADS * WIDTH / 8, batch = 4;
    int64_t t = item / w.groups;
    int h0 = item % w.groups * HEADS;

    for (int base = thread; base < total; base += N * batch) {
        float4 a[batch], b[batch];
#pragma unroll
        for (int u = 0; u < batch; u++) {
            int i = base + u * N, r = i / (WIDTH / 8), c = i % (WIDTH / 8);
            a[u] = b[u] = make_float4(0, 0, 0, 0);
            if (i < total && h0 + r < w.p.heads) {
                const float4 *q = (const float4 *)(w.p.ql + (t * w.p.heads + h0 + r) * WIDTH + 8 * c);
                a[u] = q[0], b[u] = q[1];
            }
        }
#pragma unroll
        for (int u = 0; u < batch; u++) {
            int i = base + u * N, r = i / (WIDTH / 8), c = i % (WIDTH / 8);
            uint4 v;
            if (c < LORA / 8)
                v = make_uint4(pack(a[u].x, a[u].y, E()), pack(a[u].z, a[u].w, E()),
                               pack(b[u].x, b[u].y, E()), pack(b[u].z, b[u].w, E()));
            else
                v = make_uint4(pack(a[u].x, a[u].y, __nv_bfloat16()), pack(a[u].z, a[u].w, __nv_bfloat16()),
                               pack(b[u].x, b[u].y, __nv_bfloat16()), pack(b[u].z, b[u].w, __nv_bfloat16()));
            if (i < total)
                *(uint4 *)(tile + c / 8 * SL_TILE + sl_swizzle(r, c % 8)) = v;
        }
    }
}

/* ---- scores ---- */

__device__ static inline uint32_t pack_prob(float a, float b, __half)
{
    __half2 v = __floats2half2_rn(a, b);

    return *(uint32_t *)&v;
}

__device__ static inline uint32_t pack_prob(float a, float b, __nv_bfloat16)
{
    return pack(a, b, __nv_bfloat16());
}

__device__ static inline void product_scores(float (&s)[32], uint64_t a, uint64_t b, bool add, __half)
{
    sl_wgmma_n64_f16(s, a, b, add);
}

__device__ static inline void product_scores(float (&s)[32], uint64_t a, uint64_t b, bool add, __nv_bfloat16)
{
    sl_wgmma_n64_bf16(s, a, b, add);
}

struct softmax_state { /* for this thread's two heads; l is its share of the sum */
    float m[2], l[2], all_m[2], all_l[2];
};

/* Turns the scores of one block into probabilities, which replace the block's rope columns in shared memory. */
template <typename E>
__device__ static inline void probabilities(float (&s)[32], softmax_state &x, uint8_t *prob, float *fix,
                                            int rows, float scale)
{
    int lane = threadIdx.x & 31, head = FIRST_HEAD(lane);

    if (rows < BLOCK) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (i / 4 * 8 + (lane & 3) * 2 + i % 2 >= rows)
                s[i] = -INFINITY;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float best = -INFINITY;
#pragma unroll
        for (int j = 0; j < 8; j++)
            best = fmaxf(best, fmaxf(s[j * 4 + r * 2], s[j * 4 + r * 2 + 1]));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
        float top = fmaxf(x.m[r], best * scale), safe = top == -INFINITY ? 0.0f : top,
              f = sl_exp2_approx(x.m[r] - safe), sum = 0, more = 0;
        x.m[r] = top;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float &a = s[j * 4 + r * 2], &b = s[j * 4 + r * 2 + 1];
            a = sl_exp2_approx(__fmaf_rn(a, scale, -safe)), b = sl_exp2_approx(__fmaf_rn(b, scale, -safe));
            sum += a, more += b;
        }
        sum += more;
        x.l[r] = __fmaf_rn(x.l[r], f, sum);
        if ((lane & 3) == 0)
            fix[head + 8 * r] = f;
    }
    sl_bar_sync(BAR_SCORES, 128); /* all warps' products have read the rope columns */
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            *(uint32_t *)(prob + sl_swizzle(head + 8 * r, j) + (lane & 3) * 4) =
                pack_prob(s[j * 4 + r * 2], s[j * 4 + r * 2 + 1], E());
}

/* Ends a part of the list: adds up its sums over the columns, and computes the factors that merge it with the
 * earlier parts. */
template <typename W>
__device__ static inline void end_part(attn_shared *x, softmax_state &s, int part, int slot, const W &w,
                                       int h0)
{
    bool in_cluster = w.parts > 1;
    int lane = threadIdx.x & 31, head = FIRST_HEAD(lane);

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float l = s.l[r], keep = 0, take = 1;
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (part == 0)
            s.all_m[r] = s.m[r], s.all_l[r] = l;
        else
            merge_sums(s.all_m[r], s.all_l[r], s.m[r], l, &keep, &take);
        if ((lane & 3) == 0) {
            if (in_cluster)
                x->max[head + 8 * r] = s.m[r], x->sum[head + 8 * r] = l;
            x->keep[slot][head + 8 * r] = keep;
            x->take[slot][head + 8 * r] = take;
            x->inv[slot][head + 8 * r] = inverse_with_sink(w, h0 + head + 8 * r, s.all_m[r], s.all_l[r]);
        }
        s.m[r] = -INFINITY;
        s.l[r] = 0;
    }
}

template <typename E, int R, typename W>
__device__ static inline void score_blocks(uint8_t *smem, const W &w, attn_shared *x, bool some)
{
    uint32_t kv = sl_smem_addr(smem), q = kv + SMEM_Q;
    float scale = w.p.scale * 1.4426950408889634f;
    softmax_state st = {{-INFINITY, -INFINITY}, {0, 0}, {}, {}};
    int it = 0, ended = 0, step = w.parts > 1 ? w.items : (int)gridDim.x;

    for (int item = w.parts > 1 ? blockIdx.y : blockIdx.x; item < w.items && some; item += step) {
        bool last = false;
        if (it) {
            load_queries<E, R, 128>(smem + SMEM_Q, w, item, threadIdx.x & 127);
            sl_fence_async();
            sl_bar_sync(BAR_SCORES, 128);
        }
        for (int part = 0; !last; part++) {
            for (int b = 0; b < SPLIT && !last; b++, it++) {
                float s[32];
                int at = it & 1;
                uint32_t rows_tile = kv + at * STAGE;
                sl_mbar_wait(&x->full[at], it >> 1 & 1);
                sl_fence_async();
                last = x->last[at];
                sl_wgmma_fence();
#pragma unroll
                for (int i = 0; i < (LORA + R) / 16; i++) {
                    uint64_t da = sl_desc_k(q + i / 4 * SL_TILE + i % 4 * 32),
                             db = sl_desc_k(rows_tile + i / 4 * SL_TILE + i % 4 * 32);
                    if (i < LORA / 16)
                        product_scores(s, da, db, i > 0, E());
                    else
                        product_scores(s, da, db, true, __nv_bfloat16());
                }
                sl_wgmma_finish();
                probabilities<E>(s, st, smem + at * STAGE + 8 * SL_TILE, x->fix[at], x->rows[at], scale);
                sl_fence_async();
                __syncwarp();
                if ((threadIdx.x & 31) == 0)
                    sl_mbar_arrive(&x->prob[at]);
            }
            end_part(x, st, part, ended & 1, w, item % w.groups * HEADS);
            __syncwarp();
            if ((threadIdx.x & 31) == 0)
                sl_mbar_arrive(&x->merge[ended & 1]);
            ended++;
        }
    }
}

#endif

#endif
