/*
 * Shared by the two paths of routed experts that work on rows sorted by expert (moe_few.cu, moe_grouped.cu):
 * the quantisation of the tokens before the products, and the sum over experts after them. Internal to
 * kernels/cuda.
 */
#ifndef SL_KERNELS_CUDA_ANY_EXPERTS_MOE_ROWS_CUH
#define SL_KERNELS_CUDA_ANY_EXPERTS_MOE_ROWS_CUH

#include "kernels/cuda/any/experts/moe_run.h"
#include "kernels/cuda/sm90/ring.cuh"

/* Quantises x of each token to e4m3 with a scale per 128 values, into the rows of the token's choices: q [rows][n],
 * scale [n / 128][ld]. One warp per group of 128. */
__global__ static void sl_moe_quantise(const __nv_bfloat16 *x, int n, int top_k, const int32_t *row_of,
                                       uint8_t *q, float *scale, int ld)
{
    int t = blockIdx.x, g = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;

    sl_let_next_start();
    if (g >= n / 128)
        return;
    uint2 raw = *(const uint2 *)(x + (int64_t)t * n + g * 128 + lane * 4);
    const __nv_bfloat162 *b = (const __nv_bfloat162 *)&raw;
    float2 lo = __bfloat1622float2(b[0]), hi = __bfloat1622float2(b[1]);
    float amax = fmaxf(fmaxf(fabsf(lo.x), fabsf(lo.y)), fmaxf(fabsf(hi.x), fabsf(hi.y)));
    float s = sl_scale_act_d(sl_warp_max(amax)), m = sl_inverse_pow2(s);
    uint32_t packed = sl_e4m3x4(lo.x, lo.y, hi.x, hi.y, m);
    for (int k = 0; k < top_k; k++) {
        int r = row_of[(int64_t)t * top_k + k];
        if (r < 0)
            continue;
        *(uint32_t *)(q + (int64_t)r * n + g * 128 + lane * 4) = packed;
        if (lane == 0)
            scale[(int64_t)g * ld + r] = s;
    }
}

/* The same for rows that arrived quantised: copies them. A row's `pair`, by which the products address its result,
 * becomes the place from which the result is sent. */
__global__ static void sl_moe_take_f8(sl_moe_arrived a, const int32_t *row_of, int32_t *pair, uint8_t *q,
                                      float *scale, int ld)
{
    int i = blockIdx.x, g = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;

    sl_let_next_start();
    if (g >= a.hidden / 128 || i % a.cap >= a.count[i / a.cap])
        return;
    const uint8_t *row = a.recv + i * a.row.bytes;
    uint32_t v = *(const uint32_t *)(row + g * 128 + lane * 4);
    float s = ((const float *)(row + a.row.scales))[g];
    for (int k = 0; k < a.top_k; k++) {
        int64_t slot = (int64_t)i * a.top_k + k;
        int r = row_of[slot];
        if (r < 0)
            continue;
        *(uint32_t *)(q + (int64_t)r * a.hidden + g * 128 + lane * 4) = v;
        if (lane == 0)
            scale[(int64_t)g * ld + r] = s;
        if (lane == 0 && g == 0)
            pair[r] = a.result[slot];
    }
}

/* The quantised inputs of all pairs, in the order of their rows. */
static inline sl_status sl_moe_rows_f8(sl_cuda *cu, const sl_moe_run *r, const int32_t *row_of, int32_t *pair,
                                       uint8_t *q, float *scale, int ld, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    dim3 grid((unsigned)p->tokens, sl_ceil_div(p->hidden / 128, 8));

    if (r->arrived.recv)
        SL_TRY(SL_LAUNCH(cu, sl_moe_take_f8, (sl_launch{grid, 256}), err, r->arrived, row_of, pair, q, scale,
                         ld));
    else
        SL_TRY(SL_LAUNCH(cu, sl_moe_quantise, (sl_launch{grid, 256}), err, (const __nv_bfloat16 *)p->x,
                         p->hidden, p->top_k, row_of, q, scale, ld));
    return SL_OK;
}

/* bf16: copies x of each token to the rows of its choices, 16 bytes per thread. */
__global__ static void sl_moe_copy_bf16(const uint4 *x, int quads, int top_k, const int32_t *row_of,
                                        uint4 *out)
{
    int t = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;

    if (i >= quads)
        return;
    uint4 v = x[(int64_t)t * quads + i];
    for (int k = 0; k < top_k; k++) {
        int r = row_of[(int64_t)t * top_k + k];
        if (r >= 0)
            out[(int64_t)r * quads + i] = v;
    }
}

/* The same for bf16 rows that arrived, which need not be aligned to more than 4 bytes; see sl_moe_take_f8(). */
__global__ static void sl_moe_take_bf16(sl_moe_arrived a, const int32_t *row_of, int32_t *pair, uint8_t *out)
{
    int i = blockIdx.x, at = blockIdx.y * blockDim.x + threadIdx.x, quads = a.hidden / 8;

    if (at >= quads || i % a.cap >= a.count[i / a.cap])
        return;
    const uint32_t *w = (const uint32_t *)(a.recv + i * a.row.bytes) + 4 * at;
    uint4 v = make_uint4(w[0], w[1], w[2], w[3]);
    for (int k = 0; k < a.top_k; k++) {
        int64_t slot = (int64_t)i * a.top_k + k;
        int r = row_of[slot];
        if (r < 0)
            continue;
        ((uint4 *)out)[(int64_t)r * quads + at] = v;
        if (at == 0)
            pair[r] = a.result[slot];
    }
}

/* The inputs of all pairs in bf16, in the order of their rows. */
static inline sl_status sl_moe_rows_bf16(sl_cuda *cu, const sl_moe_run *r, const int32_t *row_of,
                                         int32_t *pair, void *x, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    int quads = p->hidden / 8;
    dim3 grid((unsigned)p->tokens, sl_ceil_div(quads, 256));

    if (r->arrived.recv)
        return SL_LAUNCH(cu, sl_moe_take_bf16, (sl_launch{grid, 256}), err, r->arrived, row_of, pair,
                         (uint8_t *)x);
    return SL_LAUNCH(cu, sl_moe_copy_bf16, (sl_launch{grid, 256}), err, (const uint4 *)p->x, quads, p->top_k,
                     row_of, (uint4 *)x);
}

/* out[t] = sum over the choices, in order, of weight * result. Eight outputs per thread; the results of eight
 * choices are loaded together. */
__global__ static void __launch_bounds__(128) sl_moe_sum_kernel(sl_moe_params p, const __nv_bfloat16 *res)
{
    int64_t t = blockIdx.x;
    int o = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    float sum[8] = {};

    if (o >= p.hidden)
        return;
    for (int k0 = 0; k0 < p.top_k; k0 += 8) {
        uint4 v[8];
        float w[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            int64_t pair = t * p.top_k + k0 + k;
            int e = k0 + k < p.top_k ? p.expert_ids[pair] : -1;
            bool in = e >= 0 && e < p.experts;
            w[k] = in ? p.weights[pair] : 0;
            v[k] = in ? *(const uint4 *)(res + pair * p.hidden + o) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int k = 0; k < 8; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 f = __bfloat1622float2(((const __nv_bfloat162 *)&v[k])[i]);
                sum[2 * i] = __fadd_rn(sum[2 * i], __fmul_rn(w[k], f.x));
                sum[2 * i + 1] = __fadd_rn(sum[2 * i + 1], __fmul_rn(w[k], f.y));
            }
    }
    uint4 out;
#pragma unroll
    for (int i = 0; i < 4; i++)
        ((__nv_bfloat162 *)&out)[i] = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
    *(uint4 *)((__nv_bfloat16 *)p.out + t * p.hidden + o) = out;
}

/* The sum of SL_OP_MOE. Results of rows that arrived lie where they are sent from: nothing is left to do. */
static inline sl_status sl_moe_finish(sl_cuda *cu, const sl_moe_run *r, const __nv_bfloat16 *res, sl_err *err)
{
    const sl_moe_params *p = &r->p;

    if (r->arrived.recv)
        return SL_OK;
    return SL_LAUNCH(cu, sl_moe_sum_kernel,
                     (sl_launch{dim3((unsigned)p->tokens, sl_ceil_div(p->hidden, 1024)), 128}), err, *p, res);
}

/* Device descriptors and tensor maps of n experts; see sl_cuda_table() and sl_cuda_maps(). */
static inline sl_status sl_moe_weights(sl_cuda *cu, const sl_weight *w, int n, const sl_weight **table,
                                       const CUtensorMap **maps, sl_err *err)
{
    SL_TRY(sl_cuda_table(cu, w, n, table, err));
    return sl_cuda_maps(cu, w, n, maps, err);
}

static inline int64_t sl_moe_up256(int64_t n)
{
    return (n + 255) / 256 * 256;
}

#endif
