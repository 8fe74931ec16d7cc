/*
 * Inside gqa_decode.cu: the warps that multiply. The products are those of single warps: their 16 rows hold the query
 * heads of one KV head. Of a step each warp computes the scores of some tokens; the warps exchange the largest scores,
 * and then the weights; and each warp adds the values of some columns of the output.
 *
 * What is added, and in which order, is that of gqa_attn_multiply.cuh and gqa_attn_weights.cuh, whose products have the
 * same bits (mma.cuh). In particular four threads add the weights of a head, each those of two columns of every eight.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_DECODE_MULTIPLY_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_DECODE_MULTIPLY_CUH
#include "kernels/cuda/sm90/attn/gqa_decode_fetch.cuh"
#include "kernels/cuda/ptx.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* What a warp has of a unit. */
template <int DIM, int MODE> struct dec_walk {
    typedef dec_size<DIM, MODE> size;
    static constexpr int TOKENS = size::STEP / DEC_WARPS; /* whose scores a warp computes */
    static constexpr int COLS = DIM / DEC_WARPS;          /* of the output */
    uint32_t q[DIM / 16][4];
    float s[TOKENS / 8][4], o[COLS / 8][4];
    float m[2], fix[2], l; /* maximum of two heads, factor for the output so far; share of a sum of weights */
    float all_o[COLS / 8][4], all_m[2], all_l; /* of the merged segments */
    dec_shared<DIM> *x;
    uint32_t ring;
    float scale;
    int lane, warp, it; /* it: number of the step in the ring */

    __device__ int stage() const
    {
        return it % size::STAGES;
    }
    __device__ uint32_t side(int i) const
    {
        return ring + (stage() * 2 + i) * size::SIDE;
    }
    __device__ void wait(uint64_t *full) const
    {
        sl_mbar_wait(&full[stage()], it / size::STAGES & 1);
    }
};

template <int N> __device__ static inline void dec_clear(float (&v)[N][4])
{
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            v[j][e] = 0;
}

/* ---- queries ---- */

/* Eight values of a unit's queries: piece i of all heads of the group. */
__device__ static inline void dec_load_piece(const dec_work &w, const dec_unit &u, int i, float4 (&v)[2])
{
    const float4 *q =
        (const float4 *)(w.g.p.q + (u.t * w.g.p.heads + (int64_t)u.kv_head * w.g.group) * w.g.p.dim);

    v[0] = q[2 * i], v[1] = q[2 * i + 1];
}

/*
 * Of fp8 keys a thread receives four adjacent values of k at a time, where the product wants two and, eight further on,
 * two more. So the queries are laid out in the same other order of each sixteen: values 4 q and 4 q + 1 at 2 q, values
 * 4 q + 2 and 4 q + 3 at 8 + 2 q.
 */
template <int DIM, int MODE>
__device__ static inline void dec_store_piece(dec_shared<DIM> *x, int i, const float4 (&v)[2])
{
    uint8_t *row = x->q[i / (DIM / 8)];
    int c = i % (DIM / 8);

    if (MODE == DEC_BYTES) {
        uint8_t *to = row + c / 2 * 32 + c % 2 * 8;

        *(uint2 *)to = make_uint2(gqa_pack(v[0].x, v[0].y), gqa_pack(v[1].x, v[1].y));
        *(uint2 *)(to + 16) = make_uint2(gqa_pack(v[0].z, v[0].w), gqa_pack(v[1].z, v[1].w));
        return;
    }
    *(uint4 *)(row + c * 16) = make_uint4(gqa_pack(v[0].x, v[0].y), gqa_pack(v[0].z, v[0].w),
                                          gqa_pack(v[1].x, v[1].y), gqa_pack(v[1].z, v[1].w));
}

/* The address that a lane passes to sl_ldmatrix() for 16 rows of 32 bytes. */
__device__ static inline uint32_t dec_operand(const void *rows, int pitch, int lane)
{
    return sl_smem_addr(rows) + (lane & 15) * pitch + (lane >> 4) * 16;
}

template <int DIM, int MODE> __device__ static inline void dec_load_queries(dec_walk<DIM, MODE> &y)
{
    uint32_t at = dec_operand(y.x->q, sizeof y.x->q[0], y.lane);

#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        sl_ldmatrix(y.q[i], at + i * 32);
}

/* ---- fp8 ---- */

/* Two of the four e4m3 values in v as bf16, exactly: the bytes that `which` names (of __byte_perm(v, 0, which)) come to
 * the upper halves, where sign, exponent and fraction are moved to their places in a bf16; what is then wrong is the
 * exponent's bias, by a factor of 2^120. The scales of fp8 rows are applied to scores and weights. (A byte 0x7f, which
 * no row contains, is 480 here.) */
__device__ static inline uint32_t dec_bf16(uint32_t v, uint32_t which)
{
    uint32_t x = __byte_perm(v, 0, which), r = (x >> 4 & 0x07f007f0) | (x & 0x80008000);
    __nv_bfloat162 y = *(__nv_bfloat162 *)&r, f;

    r = 0x7b807b80; /* 2^120, twice */
    f = *(__nv_bfloat162 *)&r;
    y = __hmul2(y, f);
    return *(uint32_t *)&y;
}

/* The scores of the warp's tokens, times the scales of their keys. */
template <int DIM, int MODE> __device__ static inline void dec_multiply_key_bytes(dec_walk<DIM, MODE> &y)
{
    const int step = dec_size<DIM, MODE>::STEP, tokens = dec_walk<DIM, MODE>::TOKENS;
    /* four matrices, each 16 of k for eight tokens: two of k for each of two blocks of tokens, or four for one block */
    const int blocks = tokens / 8, per = 4 / blocks;
    int r = y.warp * tokens + (blocks == 2 ? y.lane / 16 * 8 : 0) + y.lane % 8;
    int c = blocks == 2 ? y.lane / 8 % 2 : y.lane / 8;
    uint32_t at = y.side(0);

#pragma unroll
    for (int i = 0; i < DIM / 16; i += per) {
        uint32_t k[4];

        sl_ldmatrix(k, at + dec_byte<DIM, step>(r, i + c));
#pragma unroll
        for (int j = 0; j < blocks; j++)
#pragma unroll
            for (int n = 0; n < per; n++)
                sl_mma_bf16(y.s[j], y.q[i + n], dec_bf16(k[j * per + n], 0x1404),
                            dec_bf16(k[j * per + n], 0x3424));
    }
    const float *scale = y.x->scale[y.stage()][0] + y.warp * tokens + y.lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < blocks; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            y.s[j][e] = __fmul_rn(y.s[j][e], scale[j * 8 + e % 2]);
}

/* The first of the columns of the output in y.o[j][e] of this lane. Of fp8 values a thread receives two adjacent columns
 * at a time, so the even columns of 16 are one block of y.o, and the odd ones the next. */
template <int DIM, int MODE>
__device__ static inline int dec_column(const dec_walk<DIM, MODE> &y, int j, int e)
{
    int b = y.warp * (DIM / DEC_WARPS / 8) + j;

    return MODE == DEC_BYTES ? b / 2 * 16 + y.lane % 4 * 4 + e % 2 * 2 + b % 2
                             : b * 8 + y.lane % 4 * 2 + e % 2;
}

/* Adds the weighted values to the warp's columns; the weights contain the scales of the values. */
template <int DIM, int MODE> __device__ static inline void dec_multiply_value_bytes(dec_walk<DIM, MODE> &y)
{
    const int step = dec_size<DIM, MODE>::STEP, blocks = dec_walk<DIM, MODE>::COLS / 8;
    uint32_t p_at = dec_operand(y.x->p, sizeof y.x->p[0], y.lane), v_at = y.side(1);

#pragma unroll
    for (int i = 0; i < step / 16; i += 2) {
        uint32_t p[2][4];

        sl_ldmatrix(p[0], p_at + i * 32);
        sl_ldmatrix(p[1], p_at + (i + 1) * 32);
#pragma unroll
        for (int j = 0; j < (blocks + 1) / 2; j++) { /* chunks of 16 columns, or half of one */
            int b = y.warp * blocks + j * 2;
            uint32_t v[4];

            sl_ldmatrix_trans(v, v_at + dec_byte<DIM, step>(i * 16 + y.lane, b / 2));
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    if (blocks == 1 && odd != b % 2)
                        continue;
                    uint32_t which = odd ? 0x3414 : 0x2404;
                    sl_mma_bf16(y.o[blocks == 1 ? 0 : j * 2 + odd], p[n], dec_bf16(v[2 * n], which),
                                dec_bf16(v[2 * n + 1], which));
                }
        }
    }
}

/* ---- a step ---- */

/* The scores of the warp's tokens. */
template <int DIM, int MODE> __device__ static inline void dec_multiply_keys(dec_walk<DIM, MODE> &y)
{
    const int step = dec_size<DIM, MODE>::STEP, tokens = dec_walk<DIM, MODE>::TOKENS;
    /* four matrices: two of k for each of two blocks of eight tokens, or four of k for one block */
    const int blocks = tokens / 8, per = 2 / blocks;
    int r = y.warp * tokens + (blocks == 2 ? y.lane / 16 * 8 : 0) + y.lane % 8;
    int c = blocks == 2 ? y.lane / 8 % 2 : y.lane / 8;
    uint32_t at = y.side(0);

#pragma unroll
    for (int i = 0; i < DIM / 16; i += per) {
        uint32_t k[4];

        sl_ldmatrix(k, at + i / 4 * (step * 128) + sl_swizzle(r, i % 4 * 2 + c));
#pragma unroll
        for (int j = 0; j < 2; j++)
            sl_mma_bf16(y.s[blocks == 2 ? j : 0], y.q[blocks == 2 ? i : i + j], k[2 * j], k[2 * j + 1]);
    }
}

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

/* Adds the largest scores to the maximum, and makes the warp's scores weights. */
template <int DIM, int MODE> __device__ static inline void dec_soften(dec_walk<DIM, MODE> &y)
{
    const int tokens = dec_walk<DIM, MODE>::TOKENS;
    const float *scale = y.x->scale[y.stage()][1];

#pragma unroll
    for (int r = 0; r < 2; r++) {
        int head = y.lane / 4 + 8 * r, c = y.warp * tokens + y.lane % 4 * 2;
        const float4 *most = (const float4 *)y.x->most[head];
        float4 a = most[0], b = most[1];
        float best = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
        float top = fmaxf(y.m[r], __fmul_rn(best, y.scale)), safe = top == -INFINITY ? 0.0f : top;

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

/* Adds the weighted values to the warp's columns. */
template <int DIM, int MODE> __device__ static inline void dec_multiply_values(dec_walk<DIM, MODE> &y)
{
    const int step = dec_size<DIM, MODE>::STEP, blocks = dec_walk<DIM, MODE>::COLS / 8;
    const int wide = blocks < 2 ? 1 : 2,
              per = 2 / wide; /* blocks of columns, and of 16 tokens, of four matrices */
    uint32_t p_at = dec_operand(y.x->p, sizeof y.x->p[0], y.lane), v_at = y.side(1);
    int r = wide == 2 ? y.lane % 16 : y.lane;

#pragma unroll
    for (int i = 0; i < step / 16; i += per) {
        uint32_t p[2][4];

#pragma unroll
        for (int n = 0; n < per; n++)
            sl_ldmatrix(p[n], p_at + (i + n) * 32);
#pragma unroll
        for (int j = 0; j < blocks; j += wide) {
            int c = y.warp * blocks + j + (wide == 2 ? y.lane / 16 : 0);
            uint32_t v[4];

            sl_ldmatrix_trans(v, v_at + c / 8 * (step * 128) + sl_swizzle(i * 16 + r, c % 8));
#pragma unroll
            for (int n = 0; n < 2; n++)
                sl_mma_bf16(y.o[wide == 2 ? j + n : j], p[wide == 2 ? 0 : n], v[2 * n], v[2 * n + 1]);
        }
    }
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

/* One step; returns whether it was the unit's last one. */
template <int DIM, int MODE> __device__ static inline bool dec_step(dec_walk<DIM, MODE> &y)
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
    dec_soften(y);
    if (MODE == DEC_BOXES && rows < dec_size<DIM, MODE>::STEP)
        dec_clear_values(y, rows);
    sl_bar_sync(1, DEC_MULTIPLIERS);
    dec_scale(y);
    if constexpr (MODE == DEC_BYTES)
        dec_multiply_value_bytes(y);
    else
        dec_multiply_values(y);
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
    y.m[0] = y.m[1] = -INFINITY, y.l = 0;
    dec_clear(y.o);
}

template <int DIM, int MODE>
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
        bool last = false;
        for (int n = 1; !last; n++) {
            last = dec_step(y);
            if (last || n % steps == 0)
                dec_end_segment(y, n <= steps);
        }
        dec_store(w, u, y);
    }
}
#endif

#endif
