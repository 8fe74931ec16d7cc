/*
 * Attention over keys and values on Hopper's tensor cores: bf16 activations, bf16 or fp8 rows, head dimensions 64, 128
 * and 256. One arithmetic for every call, so that a token's bits depend on its query and its list only:
 *
 * A list is cut into segments of 512 tokens, a segment into steps of 128 tokens (64 with dimension 256). A step's scores are
 * bf16 products with float32 sums; a running maximum, float32 sum and float32 output belong to the segment; weights are
 * rounded to bf16; segments are merged in their order. Of fp8 rows the values are exact in bf16, because their scales are
 * powers of two. A tile of 64 tokens that the rule of skip_factor leaves out has the weights 0.
 *
 *     gqa_decode.cu    one query token of every list or sequence: products of single warps
 *     gqa_prompt.cu    several tokens of a sequence, which share keys and values: products of warpgroups
 *
 * Here is what both share: the sizes, and how the results of two segments of a list are merged.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_SEGMENTS_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_SEGMENTS_CUH
#include "kernels/cuda/any/attn/gqa_attn.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

#define SEGMENT 512 /* tokens of a list that are added up by themselves, a multiple of every step */
#define LOG2E 1.4426950408889634f

/* The tokens that are added in one step. */
template <int DIM> struct gqa_step {
    static constexpr int TOKENS = DIM == 256 ? 64 : 128;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ static inline uint32_t gqa_pack(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);

    return *(uint32_t *)&v;
}

/* Adds segment (mc, lc) to (m, l): outputs are keep * old + take * new. */
__device__ static inline void gqa_merge_sums(float &m, float &l, float mc, float lc, float *keep, float *take)
{
    float top = fmaxf(m, mc), safe = top == -INFINITY ? 0.0f : top;

    *keep = sl_exp2_approx(m - safe);
    *take = sl_exp2_approx(mc - safe);
    l = __fmaf_rn(l, *keep, __fmul_rn(lc, *take));
    m = top;
}

__device__ static inline float gqa_merge(float old, float keep, float fresh, float take)
{
    return __fmaf_rn(old, keep, __fmul_rn(fresh, take));
}

/* The output of a row whose sum of weights is l. The zero makes -0 to +0, which a merge with nothing does too. */
__device__ static inline float gqa_output(float o, float l)
{
    return l > 0 ? __fadd_rn(__fmul_rn(o, __fdiv_rn(1.0f, l)), 0.0f) : 0.0f;
}

__device__ static inline void gqa_warp_arrive(uint64_t *b)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        sl_mbar_arrive(b);
}
#endif

#endif
