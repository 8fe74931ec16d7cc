/*
 * One head of a query or of a key (kernels/gqa.h): bias, norm and RoPE, by one warp on values in its shared memory.
 * Every product and sum is rounded as in kernels/cpu/gqa.c, so that the cached bytes are the same.
 */
#ifndef SL_KERNELS_CUDA_ANY_ATTN_GQA_HEAD_CUH
#define SL_KERNELS_CUDA_ANY_ATTN_GQA_HEAD_CUH

#include "kernels/cuda/common.cuh"

#define SL_GQA_WARPS 4 /* heads that a thread block works on */

/* v = x + bias, rounded to act; bias may be NULL. */
__device__ static inline void sl_gqa_bias(const float *x, const float *bias, int dim, sl_dtype act, float *v)
{
    for (int i = threadIdx.x & 31; i < dim; i += 32)
        v[i] = sl_actr(bias ? __fadd_rn(x[i], bias[i]) : x[i], act);
    __syncwarp();
}

/* Head h at position pos, from x to v: bias, norm, and RoPE in halves. */
__device__ static inline void sl_gqa_head(const sl_gqa_head_params &p, const float *x, int h, int dim,
                                          int pos, sl_dtype act, float *v)
{
    int lane = threadIdx.x & 31, rope = p.rope ? p.rope : dim, half = rope / 2;
    const float *cs = p.cos_sin + (int64_t)pos * rope;

    sl_gqa_bias(x, p.bias ? p.bias + (int64_t)h * dim : NULL, dim, act, v);
    if (p.norm) {
        double sum = 0;
        for (int i = lane; i < dim; i += 32)
            sum += (double)v[i] * v[i];
        float inv = (float)(1.0 / sqrt(sl_warp_sum(sum) / dim + (double)p.eps));
        for (int i = lane; i < dim; i += 32)
            v[i] = sl_actr(__fmul_rn(__fmul_rn(v[i], inv), p.norm[i]), act);
        __syncwarp();
    }
    for (int i = lane; i < half; i += 32) {
        float a, b;
        sl_rotate(v[i], v[i + half], cs[2 * i], cs[2 * i + 1], &a, &b);
        v[i] = sl_actr(a, act);
        v[i + half] = sl_actr(b, act);
    }
    __syncwarp();
}

#endif
