/*
 * Inside gqa_attn_tensor.cu: the queries of a unit, and how the scores of a step become weights: what a row does not see,
 * the rule of skip_factor, the running maximum and the sum of a segment.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_ATTN_WEIGHTS_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_ATTN_WEIGHTS_CUH
#include "kernels/cuda/sm90/attn/gqa_attn_fetch.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* One of the two rows of a thread, in a unit. */
struct gqa_row_state {
    int64_t head;      /* of all tokens' heads; -1: the row is empty */
    int limit;         /* tokens of the list that it sees */
    float below, seen; /* the rule of skip_factor, in powers of 2: the difference, the maximum so far */
    float m, l, all_m, all_l;       /* maximum and this thread's share of the sum; of the merged segments */
    unsigned int tiles, out, first; /* counts of the first head of a group; the row of that head */
};

/* The queries of a unit as tiles; empty rows are zero. */
template <int DIM>
__device__ static inline void gqa_load_queries(const gqa_tensor_work &w, const gqa_unit &u, uint8_t *tile,
                                               int wg)
{
    for (int i = threadIdx.x & 127; i < ROWS * DIM / 8; i += 128) {
        int r = i / (DIM / 8), c = i % (DIM / 8), token = wg * w.per + r / w.g.group;
        uint4 v = make_uint4(0, 0, 0, 0);

        if (r < w.per * w.g.group && token < u.count) {
            const float4 *q =
                (const float4 *)(w.g.p.q +
                                 ((u.t + token) * w.g.p.heads + u.kv_head * w.g.group + r % w.g.group) * DIM +
                                 8 * c);
            float4 a = q[0], b = q[1];

            v = make_uint4(gqa_pack(a.x, a.y), gqa_pack(a.z, a.w), gqa_pack(b.x, b.y), gqa_pack(b.z, b.w));
        }
        *(uint4 *)(tile + c / 8 * SL_TILE + sl_swizzle(r, c % 8)) = v;
    }
    sl_fence_async();
}

__device__ static inline gqa_row_state gqa_start_row(const gqa_tensor_work &w, const gqa_unit &u, int gone,
                                                     int wg, int r)
{
    int token = wg * w.per + r / w.g.group;
    gqa_row_state x = {-1, 0, -INFINITY, -INFINITY, -INFINITY, 0, -INFINITY, 0, 0, 0, 0};

    if (r >= w.per * w.g.group || token >= u.count)
        return x;
    x.head = (u.t + token) * w.g.p.heads + u.kv_head * w.g.group + r % w.g.group;
    x.first = r - r % w.g.group;
    x.limit = !w.g.p.seqs                        ? INT_MAX
              : w.g.s.token_seq[u.t + token] < 0 ? 0
                                                 : (int)min((int64_t)w.g.s.token_pos[u.t + token] + 1,
                                                            (int64_t)w.g.p.k << w.g.p.rows.block_log2) -
                                                       gone;
    x.below = gqa_skip_below(w.g, u.t + token) * LOG2E;
    return x;
}

/* ---- scores to weights ---- */

/* The largest of N scores of row r (0 or 1) of this thread and the three others that hold the row, from s[first] on. */
template <int N, int ALL> __device__ static inline float gqa_largest(const float (&s)[ALL], int first, int r)
{
    float best = -INFINITY;

#pragma unroll
    for (int j = 0; j < N / 4; j++)
        best = fmaxf(best, fmaxf(s[first + j * 4 + r * 2], s[first + j * 4 + r * 2 + 1]));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
    return fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
}

/* Scores of tokens that a row does not see become -INFINITY. */
template <int ALL> __device__ static inline void gqa_mask(float (&s)[ALL], const int (&left)[2])
{
    int c = (threadIdx.x & 3) * 2;

#pragma unroll
    for (int i = 0; i < ALL; i++)
        if (i / 4 * 8 + c + i % 2 >= left[i / 2 % 2])
            s[i] = -INFINITY;
}

/*
 * The rule of skip_factor for the tiles of a step: each row votes, and the tile is left out for a token if all rows of the
 * group want that. Scores of such tiles become -INFINITY. Returns the tiles that all rows of the warpgroup leave out.
 */
template <int ALL>
__device__ static inline uint32_t gqa_leave_out(float (&s)[ALL], gqa_row_state (&x)[2], uint8_t *vote,
                                                const gqa_tensor_work &w, int at, float scale, int wg)
{
    const int tiles = ALL / 32;
    int lane = threadIdx.x & 31, row = (threadIdx.x & 127) / 32 * 16 + lane / 4;
    uint32_t all = ~0u;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t mine = 0;

#pragma unroll
        for (int j = 0; j < tiles; j++) {
            float best = gqa_largest<32>(s, j * 32, r) * scale;
            mine |= x[r].head < 0 || best - x[r].seen < x[r].below ? 1u << j : 0;
            x[r].seen = fmaxf(x[r].seen, best);
        }
        if ((lane & 3) == 0)
            vote[row + 8 * r] = (uint8_t)mine;
    }
    sl_bar_sync(1 + wg, 128);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t out = x[r].head < 0 ? 0 : ~0u;

        for (int h = 0; x[r].head >= 0 && h < w.g.group; h++)
            out &= vote[x[r].first + h];
#pragma unroll
        for (int j = 0; j < tiles; j++) {
            bool leave = out >> j & 1, exists = at + j * GQA_TILE < x[r].limit;

            if (leave) {
#pragma unroll
                for (int i = 0; i < 32; i++)
                    if (i / 2 % 2 == r)
                        s[j * 32 + i] = -INFINITY;
            }
            if (exists && x[r].below > -INFINITY)
                x[r].tiles++, x[r].out += leave;
        }
    }
    for (int i = 0; i < ROWS / 4; i++)
        all &= ((const uint32_t *)vote)[i];
    all &= all >> 16;
    return all & all >> 8 & ((1u << tiles) - 1);
}

/* Adds the scores of a step to maximum and sum, and makes them weights. fix: the factor for the output so far. */
template <int ALL>
__device__ static inline void gqa_soften(float (&s)[ALL], gqa_row_state (&x)[2], float scale, float (&fix)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = fmaxf(x[r].m, __fmul_rn(gqa_largest<ALL>(s, 0, r), scale)), sum = 0, more = 0;
        float safe = top == -INFINITY ? 0.0f : top;

        fix[r] = sl_exp2_approx(x[r].m - safe);
        x[r].m = top;
#pragma unroll
        for (int j = 0; j < ALL / 4; j++) {
            float &a = s[j * 4 + r * 2], &b = s[j * 4 + r * 2 + 1];

            a = sl_exp2_approx(__fmaf_rn(a, scale, -safe)), b = sl_exp2_approx(__fmaf_rn(b, scale, -safe));
            sum = __fadd_rn(sum, a), more = __fadd_rn(more, b);
        }
        x[r].l = __fmaf_rn(x[r].l, fix[r], __fadd_rn(sum, more));
    }
}
#endif

#endif
