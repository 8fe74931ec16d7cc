/*
 * Inside gqa_decode.cu: the warps that multiply. The products are those of single warps: their 16 rows hold the query
 * heads of one KV head. Of a step each warp computes the scores of some tokens; the warps exchange the largest scores,
 * and then the weights; and each warp adds the values of some columns of the output.
 *
 * What is added, and in which order, is that of gqa_prompt_kernel.cuh and gqa_prompt_weights.cuh, whose products have the
 * same bits. In particular four threads add the weights of a head, each those of two columns of every eight.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_DECODE_MULTIPLY_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_DECODE_MULTIPLY_CUH
#include "kernels/cuda/sm90/attn/gqa_decode_products.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* ---- a step ---- */

/* Scores of tokens from `rows` on become -INFINITY. */
template <int DIM, int MODE> __device__ static inline void dec_mask(dec_walk<DIM, MODE> &y, int rows)
{
    const int tokens = dec_walk<DIM, MODE>::TOKENS;
    int left = rows - y.warp * tokens - y.lane % 4 * 2;

#pragma unroll
    for (int j = 0; j < tokens / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (j * 8 + e % 2 >= left)
                y.s[j][e] = -INFINITY;
}

/* Tells the other warps the largest scores of this warp's tokens. */
template <int DIM, int MODE> __device__ static inline void dec_tell_most(dec_walk<DIM, MODE> &y)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float best = -INFINITY;

#pragma unroll
        for (int j = 0; j < dec_walk<DIM, MODE>::TOKENS / 8; j++)
            best = fmaxf(best, fmaxf(y.s[j][r * 2], y.s[j][r * 2 + 1]));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
        if (y.lane % 4 == 0)
            y.x->most[y.lane / 4 + 8 * r][y.warp] = best;
    }
}

/* The largest scaled scores of the tiles of a step, of query head `head`. Only the first is used if a step is one tile. */
template <int DIM, int MODE>
__device__ static inline void dec_tops(const dec_walk<DIM, MODE> &y, int head, float (&top)[2])
{
    const float4 *most = (const float4 *)y.x->most[head];
    float4 a = most[0], b = most[1];
    float low = fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), high = fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w));
    bool one = dec_size<DIM, MODE>::STEP == GQA_TILE;

    top[0] = __fmul_rn(one ? fmaxf(low, high) : low, y.scale);
    top[1] = one ? -INFINITY : __fmul_rn(high, y.scale);
}

/*
 * The rule of skip_factor for the tiles of a step of `rows` tokens: those that all heads of the group leave out. Every warp
 * comes to the same result. The warp's scores of such a tile become -INFINITY, and the tile's largest ones too. A tile after the
 * end of the list may be in the result, and is not counted.
 */
template <int DIM, int MODE>
__device__ static inline uint32_t dec_leave_out(dec_walk<DIM, MODE> &y, int group, int rows,
                                                float (&top)[2][2])
{
    const int tiles = dec_size<DIM, MODE>::STEP / GQA_TILE;
    uint32_t out = 0;

#pragma unroll
    for (int i = 0; i < tiles; i++) {
        bool leave = true;

#pragma unroll
        for (int r = 0; r < 2; r++) {
            leave &= y.lane / 4 + 8 * r >= group || top[r][i] - y.seen[r] < y.below;
            y.seen[r] = fmaxf(y.seen[r], top[r][i]);
        }
        if (!__all_sync(0xffffffffu, leave)) {
            y.tiles += i * GQA_TILE < rows;
            continue;
        }
        out |= 1u << i;
        y.tiles += i * GQA_TILE < rows, y.out += i * GQA_TILE < rows;
        top[0][i] = top[1][i] = -INFINITY;
        if (y.warp * tiles / DEC_WARPS == i)
#pragma unroll
            for (int e = 0; e < dec_walk<DIM, MODE>::TOKENS / 2; e++)
                y.s[e / 4][e % 4] = -INFINITY;
    }
    return out;
}

/* Adds the largest scores to the maximum, and makes the warp's scores weights. Returns the tiles that are left out. */
template <int DIM, int MODE, bool SKIP>
__device__ static inline uint32_t dec_soften(dec_walk<DIM, MODE> &y, int group, int rows)
{
    const int tokens = dec_walk<DIM, MODE>::TOKENS;
    const float *scale = y.x->scale[y.stage()][1];
    float best[2][2];
    uint32_t out = 0;

    dec_tops(y, y.lane / 4, best[0]);
    dec_tops(y, y.lane / 4 + 8, best[1]);
    if (SKIP)
        out = dec_leave_out(y, group, rows, best);

#pragma unroll
    for (int r = 0; r < 2; r++) {
        int head = y.lane / 4 + 8 * r, c = y.warp * tokens + y.lane % 4 * 2;
        float top = fmaxf(y.m[r], fmaxf(best[r][0], best[r][1])), safe = top == -INFINITY ? 0.0f : top;

        y.fix[r] = sl_exp2_approx(y.m[r] - safe);
        y.m[r] = top;
#pragma unroll
        for (int j = 0; j < tokens / 8; j++) {
            float v = sl_exp2_approx(__fmaf_rn(y.s[j][r * 2], y.scale, -safe));
            float u = sl_exp2_approx(__fmaf_rn(y.s[j][r * 2 + 1], y.scale, -safe));

            *(float2 *)&y.x->weight[head][c + j * 8] = make_float2(v, u);
            if (MODE == DEC_BYTES)
                v = __fmul_rn(v, scale[c + j * 8]), u = __fmul_rn(u, scale[c + j * 8 + 1]);
            *(uint32_t *)&y.x->p[head][(c + j * 8) * 2] = gqa_pack(v, u);
        }
    }
    return out;
}

/* The value that the threads of head 2 * warp + lane / 8 % 2 have in v. */
template <int DIM, int MODE>
__device__ static inline float dec_of_head(const dec_walk<DIM, MODE> &y, const float (&v)[2])
{
    int head = 2 * y.warp + y.lane / 8 % 2;

    return __shfl_sync(0xffffffffu, y.warp < DEC_WARPS / 2 ? v[0] : v[1], head % 8 * 4);
}

/* Adds the weights of the step: eight lanes for each of two heads, each one column of every eight. */
template <int DIM, int MODE> __device__ static inline void dec_sum_weights(dec_walk<DIM, MODE> &y)
{
    const float *weight = y.x->weight[2 * y.warp + y.lane / 8 % 2] + y.lane % 8;
    float sum = 0, fix = dec_of_head(y, y.fix);

#pragma unroll
    for (int j = 0; j < dec_size<DIM, MODE>::STEP / 8; j++)
        sum = __fadd_rn(sum, weight[j * 8]);
    y.l = __fmaf_rn(y.l, fix, __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1)));
}

template <int DIM, int MODE> __device__ static inline void dec_scale(dec_walk<DIM, MODE> &y)
{
#pragma unroll
    for (int j = 0; j < dec_walk<DIM, MODE>::COLS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            y.o[j][e] = __fmul_rn(y.o[j][e], y.fix[e / 2]);
}

/* Clears the values of a unit's last step from token `rows` on: their weights are 0, but what lies there may be
 * anything. */
template <int DIM, int MODE>
__device__ static inline void dec_clear_values(const dec_walk<DIM, MODE> &y, int rows)
{
    const int step = dec_size<DIM, MODE>::STEP;

    for (int i = threadIdx.x; i < (step - rows) * 8; i += DEC_MULTIPLIERS)
#pragma unroll
        for (int half = 0; half < DIM / 64; half++)
            sl_store16_shared(y.side(1) + half * (step * 128) + rows * 128 + i * 16, make_uint4(0, 0, 0, 0));
    sl_fence_async(); /* before the copy engine writes there again */
}

/* One step; returns whether it was the unit's last one. group: query heads. */
template <int DIM, int MODE, bool SKIP>
__device__ static inline bool dec_step(dec_walk<DIM, MODE> &y, int group)
{
    dec_shared<DIM> *x = y.x;

    y.wait(x->full_k);
    bool last = x->last[y.stage()];
    int rows = x->rows[y.stage()];
    dec_clear(y.s);
    if constexpr (MODE == DEC_BYTES)
        dec_multiply_key_bytes(y);
    else
        dec_multiply_keys(y);
    gqa_warp_arrive(&x->empty_k[y.stage()]);
    if (rows < dec_size<DIM, MODE>::STEP)
        dec_mask(y, rows);
    dec_tell_most(y);
    sl_bar_sync(1, DEC_MULTIPLIERS);
    y.wait(x->full_v); /* with it the scales of fp8 values */
    uint32_t out = dec_soften<DIM, MODE, SKIP>(y, group, rows);
    if (MODE == DEC_BOXES && rows < dec_size<DIM, MODE>::STEP)
        dec_clear_values(y, rows);
    sl_bar_sync(1, DEC_MULTIPLIERS);
    dec_scale(y);
    if constexpr (MODE == DEC_BYTES)
        dec_multiply_value_bytes(y, SKIP ? out : 0);
    else
        dec_multiply_values(y, SKIP ? out : 0);
    dec_sum_weights(y);
    gqa_warp_arrive(&x->empty_v[y.stage()]);
    y.it++;
    return last;
}

/* ---- a unit ---- */

/* Merges the segment that is complete with the earlier ones, and begins the next. */
template <int DIM, int MODE> __device__ static inline void dec_end_segment(dec_walk<DIM, MODE> &y, bool first)
{
    float keep[2] = {0, 0}, take[2] = {1, 1};
    float l = __fadd_rn(y.l, __shfl_xor_sync(0xffffffffu, y.l, 2));

    l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 4));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float none = 0;

        if (first)
            y.all_m[r] = y.m[r];
        else
            gqa_merge_sums(y.all_m[r], none, y.m[r], 0, &keep[r], &take[r]);
    }
    y.all_l = first ? l : __fmaf_rn(y.all_l, dec_of_head(y, keep), __fmul_rn(l, dec_of_head(y, take)));
#pragma unroll
    for (int j = 0; j < dec_walk<DIM, MODE>::COLS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            y.all_o[j][e] = first ? y.o[j][e] : gqa_merge(y.all_o[j][e], keep[e / 2], y.o[j][e], take[e / 2]);
    y.m[0] = y.m[1] = -INFINITY, y.l = 0;
    dec_clear(y.o);
}

/* The results of a unit: the output; or of a part of a list, sums and what belongs to them. */
template <int DIM, int MODE>
__device__ static inline void dec_store(const dec_work &w, const dec_unit &u, dec_walk<DIM, MODE> &y)
{
    int64_t first = u.t * w.g.p.heads + u.kv_head * w.g.group;
    int summed = 2 * y.warp + y.lane / 8 % 2;
    float l = y.all_l, m = dec_of_head(y, y.all_m);

    if (w.parts > 1 && y.lane < 16 && y.lane % 8 == 0 && summed < w.g.group)
        *(float2 *)(w.partial + ((first + summed) * w.parts + u.part) * (DIM + 4) + DIM) = make_float2(m, l);
    if (w.parts == 1) {
        if (y.lane < 16 && y.lane % 8 == 0)
            y.x->l[summed] = l;
        sl_bar_sync(1, DEC_MULTIPLIERS);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int head = y.lane / 4 + 8 * r;

        if (head >= w.g.group)
            continue;
        float *part = w.partial + ((first + head) * w.parts + u.part) * (DIM + 4);
#pragma unroll
        for (int j = 0; j < dec_walk<DIM, MODE>::COLS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int c = dec_column(y, j, e);

                if (w.parts > 1)
                    part[c] = y.all_o[j][r * 2 + e];
                else
                    ((__nv_bfloat16 *)w.g.p.out)[(first + head) * DIM + c] =
                        __float2bfloat16_rn(gqa_output(y.all_o[j][r * 2 + e], y.x->l[head]));
            }
    }
}

template <int DIM, int MODE> __device__ static inline void dec_begin(dec_walk<DIM, MODE> &y)
{
    dec_load_queries(y);
    y.m[0] = y.m[1] = y.seen[0] = y.seen[1] = -INFINITY, y.l = 0, y.tiles = y.out = 0;
    dec_clear(y.o);
}

template <int DIM, int MODE, bool SKIP>
__device__ static inline void dec_multiply(const dec_work &w, uint8_t *smem, dec_shared<DIM> *x)
{
    const int steps = SEGMENT / dec_size<DIM, MODE>::STEP;
    int units = dec_units(w), pieces = w.g.group * (DIM / 8), i = blockIdx.x;
    dec_walk<DIM, MODE> y;
    float4 first[2] = {};

    y.x = x, y.ring = sl_smem_addr(smem), y.scale = w.g.p.scale * LOG2E, y.it = 0;
    y.lane = threadIdx.x & 31, y.warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
    for (int j = threadIdx.x; j < (int)sizeof x->q / 16; j += DEC_MULTIPLIERS)
        ((uint4 *)x->q)[j] = make_uint4(0, 0, 0, 0); /* rows that hold no head remain zero */
    if (i < units && (int)threadIdx.x < pieces)
        dec_load_piece(w, dec_unit_at(w, i), threadIdx.x, first);
    sl_bar_sync(1, DEC_MULTIPLIERS);
    for (; i < units; i += gridDim.x) {
        dec_unit u = dec_unit_at(w, i);

        if ((int)threadIdx.x < pieces)
            dec_store_piece<DIM, MODE>(x, threadIdx.x, first);
        for (int j = threadIdx.x + DEC_MULTIPLIERS; j < pieces; j += DEC_MULTIPLIERS) {
            float4 v[2];

            dec_load_piece(w, u, j, v);
            dec_store_piece<DIM, MODE>(x, j, v);
        }
        sl_bar_sync(1, DEC_MULTIPLIERS);
        dec_begin(y);
        /* the first piece of the next unit: its latency passes during this one */
        if (i + (int)gridDim.x < units && (int)threadIdx.x < pieces)
            dec_load_piece(w, dec_unit_at(w, i + gridDim.x), threadIdx.x, first);
        if (SKIP)
            y.below = gqa_skip_below(w.g, u.t) * LOG2E;
        bool last = false;
        for (int n = 1; !last; n++) {
            last = dec_step<DIM, MODE, SKIP>(y, w.g.group);
            if (last || n % steps == 0)
                dec_end_segment(y, n <= steps);
        }
        dec_store(w, u, y);
        if (SKIP && threadIdx.x == 0 && y.below > -INFINITY) {
            atomicAdd((unsigned long long *)w.g.p.tiles, (unsigned long long)y.tiles);
            atomicAdd((unsigned long long *)w.g.p.tiles + 1, (unsigned long long)y.out);
        }
    }
}
#endif

#endif
