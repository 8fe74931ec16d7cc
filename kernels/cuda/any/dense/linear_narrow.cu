/*
 * Linear layers of few outputs: float32 weights, bf16 activations, at most SL_LINEAR_NARROW_MOST outputs. Such are the gates of
 * residual streams ([24][16384] in DeepSeek-V4), routers and the weights of index heads, which checkpoints keep in float32.
 *
 * The inputs are cut into slices of 1,024, whatever the number of tokens. A warp sums an output of eight tokens over a slice, 32 lanes
 * with four neighbouring inputs at a time; the lanes are added in a tree, and the slices one after the other. With few tokens every
 * slice has a thread block of its own, and a second kernel adds; with many a thread block goes over all slices. The bits are the same.
 */
#include "kernels/cuda/any/dense/linear_narrow.h"
#include "kernels/cuda/common.cuh"
#include "kernels/scratch.h"

#define SLICE 1024
#define TOKENS 8
#define OUTPUTS 32 /* of a thread block */
#define THREADS 256
#define WARPS (THREADS / 32)
#define PER_WARP (OUTPUTS / WARPS)
#define FEW_TOKENS SL_LINEAR_NARROW_FEW /* up to which slices have thread blocks of their own */

/* Inputs k0 .. k0 + SLICE - 1 of eight tokens; what does not exist is zero. */
__device__ static void load_inputs(float (*xs)[SLICE], const sl_linear_params &p, int t0, int k0)
{
    for (int i = threadIdx.x; i < TOKENS * SLICE / 4; i += THREADS) {
        int t = i / (SLICE / 4), k = i % (SLICE / 4) * 4;
        float4 v = make_float4(0, 0, 0, 0);
        if (t0 + t < p.tokens && k0 + k < p.w.in) {
            uint2 raw = *(const uint2 *)((const __nv_bfloat16 *)p.x + (int64_t)(t0 + t) * p.ld_x + k0 + k);
            float2 a = __bfloat1622float2(*(__nv_bfloat162 *)&raw.x),
                   b = __bfloat1622float2(*(__nv_bfloat162 *)&raw.y);
            v = make_float4(a.x, a.y, b.x, b.y);
        }
        *(float4 *)&xs[t][k] = v;
    }
}

/* sums[t]: output o of the eight tokens over the slice, in every lane. */
__device__ static void sum_slice(float (&sums)[TOKENS], const float (*xs)[SLICE], const sl_linear_params &p,
                                 int o, int k0)
{
    const float4 *w = (const float4 *)((const float *)p.w.data + (int64_t)o * p.w.in + k0);
    int lane = threadIdx.x & 31, quads = min(SLICE, p.w.in - k0) / 4;

#pragma unroll
    for (int t = 0; t < TOKENS; t++)
        sums[t] = 0;
#pragma unroll
    for (int j = 0; j < SLICE / 128; j++) {
        int i = j * 32 + lane;
        if (i >= quads)
            continue;
        float4 a = w[i];
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            float4 x = *(const float4 *)&xs[t][4 * i];
            sums[t] = fmaf(a.w, x.w, fmaf(a.z, x.z, fmaf(a.y, x.y, fmaf(a.x, x.x, sums[t]))));
        }
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
        sums[t] = sl_warp_sum(sums[t]);
}

/* part NULL: all slices, to the output; else slice blockIdx.y, to part[slice][token][output]. */
__global__ static void __launch_bounds__(THREADS) narrow_kernel(sl_linear_params p, float *part)
{
    __shared__ __align__(16) float xs[TOKENS][SLICE];
    int t0 = blockIdx.x * TOKENS, o0 = blockIdx.z * OUTPUTS + (threadIdx.x >> 5) * PER_WARP,
        lane = threadIdx.x & 31, first = part ? blockIdx.y : 0,
        end = part ? first + 1 : (p.w.in + SLICE - 1) / SLICE;
    float all[PER_WARP] = {}; /* of token `lane` of the eight */

    for (int s = first; s < end; s++) {
        __syncthreads();
        load_inputs(xs, p, t0, s * SLICE);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < PER_WARP; j++) {
            float sums[TOKENS], mine = 0;
            if (o0 + j >= p.w.out)
                continue;
            sum_slice(sums, xs, p, o0 + j, s * SLICE);
#pragma unroll
            for (int t = 0; t < TOKENS; t++)
                mine = lane == t ? sums[t] : mine;
            all[j] = s == first ? mine : __fadd_rn(all[j], mine);
        }
    }
    for (int j = 0; j < PER_WARP && lane < TOKENS && t0 + lane < p.tokens; j++) {
        int64_t t = t0 + lane, o = o0 + j;
        if (o >= p.w.out)
            return;
        if (part)
            part[(blockIdx.y * (int64_t)p.tokens + t) * p.w.out + o] = all[j];
        else
            sl_st(p.out, t * p.ld_out + o, all[j], p.out_dtype);
    }
}

__global__ static void __launch_bounds__(THREADS)
    add_slices_kernel(sl_linear_params p, const float *part, int slices)
{
    int i = blockIdx.x * THREADS + threadIdx.x, n = p.tokens * p.w.out;

    if (i >= n)
        return;
    float sum = part[i];
    for (int s = 1; s < slices; s++)
        sum = __fadd_rn(sum, part[(int64_t)s * n + i]);
    sl_st(p.out, (int64_t)(i / p.w.out) * p.ld_out + i % p.w.out, sum, p.out_dtype);
}

sl_status sl_cuda_linear_narrow(sl_cuda *cu, const sl_linear_params *p, sl_err *err)
{
    const int slices = sl_ceil_div(p->w.in, SLICE), tiles = sl_ceil_div(p->tokens, TOKENS),
              outs = sl_ceil_div(p->w.out, OUTPUTS);
    void *mem = NULL;

    if (p->tokens > FEW_TOKENS || slices == 1)
        return SL_LAUNCH(cu, narrow_kernel, (sl_launch{dim3(tiles, 1, outs), THREADS}), err, *p,
                         (float *)NULL);
    /* slices * out * 4 bytes of a token are at most `in`: sl_linear_scratch() */
    SL_TRY(sl_cuda_scratch(cu, sl_linear_scratch(p->tokens, p->w.in, p->w.out), &mem, err));
    SL_TRY(
        SL_LAUNCH(cu, narrow_kernel, (sl_launch{dim3(tiles, slices, outs), THREADS}), err, *p, (float *)mem));
    return SL_LAUNCH(cu, add_slices_kernel,
                     (sl_launch{dim3(sl_ceil_div((int64_t)p->tokens * p->w.out, THREADS)), THREADS}), err, *p,
                     (const float *)mem, slices);
}
