/*
 * Device helpers shared by the ops: typed loads and stores, reductions, fp8 conversion, addressing of pages
 * and rows. Kernels are C-style functions with templates only where a type must be known at compile time;
 * launchers are the C functions of instance.h.
 */
#ifndef SL_KERNELS_CUDA_COMMON_CUH
#define SL_KERNELS_CUDA_COMMON_CUH

#include "kernels/cuda/instance.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

/* The value of an e2m1 code in the low half of a byte: a sign, and twice the value as one digit. */
__device__ static inline float sl_e2m1f(uint32_t code)
{
    float v = (float)(0xc8643210u >> (code & 7) * 4 & 15) * 0.5f;

    return code & 8 ? -v : v;
}

__device__ static inline float sl_e8m0f(uint32_t b)
{
    return __uint_as_float(b == 255 ? 0x7fc00000u : b ? b << 23 : 0x400000u);
}

__device__ static inline float sl_ld(const void *p, int64_t i, sl_dtype d)
{
    switch (d) {
    case SL_F32:
        return ((const float *)p)[i];
    case SL_BF16:
        return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    case SL_F16:
        return __half2float(((const __half *)p)[i]);
    case SL_F8_E4M3:
        return __half2float(__half(__nv_cvt_fp8_to_halfraw(((const uint8_t *)p)[i], __NV_E4M3)));
    case SL_I4:
        return (float)((((const uint8_t *)p)[i >> 1] >> (i & 1) * 4 & 15) - 8);
    case SL_F4_E2M1:
        return sl_e2m1f(((const uint8_t *)p)[i >> 1] >> (i & 1) * 4 & 15);
    default:
        return 0.0f;
    }
}

/* What value i of an output of a weight is multiplied with; 1 without multipliers. */
__device__ static inline float sl_multiplier(const sl_weight &w, int64_t row, int64_t i)
{
    if (w.scale_type == SL_SCALE_BLOCKS)
        return w.scale ? w.scale[row / 128 * ((w.in + 127) / 128) + i / 128] : 1.0f;
    int64_t at = row * ((w.in + w.group - 1) / w.group) + i / w.group;

    switch (w.scale_type) {
    case SL_SCALE_BF16:
        return __bfloat162float(((const __nv_bfloat16 *)w.multiplier)[at]);
    case SL_SCALE_E8M0:
        return sl_e8m0f(w.multiplier[at]);
    case SL_SCALE_E4M3:
        return __fmul_rn(sl_ld(w.multiplier, at, SL_F8_E4M3), w.global);
    default:
        return ((const float *)w.multiplier)[at];
    }
}

__device__ static inline void sl_st(void *p, int64_t i, float v, sl_dtype d)
{
    if (d == SL_F32)
        ((float *)p)[i] = v;
    else
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(v);
}

__device__ static inline float sl_bf16r(float v)
{
    return __bfloat162float(__float2bfloat16_rn(v));
}

/* v rounded to act: the rounding points of kernels/params.h. */
__device__ static inline float sl_actr(float v, sl_dtype act)
{
    return act == SL_BF16 ? sl_bf16r(v) : v;
}

__device__ static inline uint8_t sl_e4m3(float v)
{
    return (uint8_t)__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
}

__device__ static inline float sl_e4m3f(uint8_t b)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(b, __NV_E4M3)));
}

/* Smallest power of two >= t (t normal, positive). */
__device__ static inline float sl_pow2_ceil_d(float t)
{
    uint32_t u = __float_as_uint(t);

    return __uint_as_float(((u >> 23) + ((u & 0x7fffffu) != 0)) << 23);
}

__device__ static inline float sl_scale_act_d(float amax)
{
    return sl_pow2_ceil_d(__fmul_rn(fmaxf(amax, 1e-4f), 1.0f / 448.0f));
}

__device__ static inline float sl_scale_row_d(float amax)
{
    return sl_pow2_ceil_d(fmaxf(__fmul_rn(amax, 1.0f / 448.0f), 1e-4f));
}

/* 1 / s, exact because s is a power of two: a multiplication by it equals the division by s. */
__device__ static inline float sl_inverse_pow2(float s)
{
    return __uint_as_float((254u << 23) - __float_as_uint(s));
}

__device__ static inline float sl_sigmoid(float v)
{
    return 1.0f / (1.0f + expf(-v));
}

/* What kernels get: no limit is infinity, and alpha is set. */
static inline sl_glu sl_glu_full(sl_glu g)
{
    g.limit = g.limit > 0 ? g.limit : INFINITY;
    g.alpha = g.alpha > 0 ? g.alpha : 1.0f;
    return g;
}

/* The gated activation of sl_glu_full(). Comparisons leave NaN as it is; without a variant these are the bits of silu(g) * u. */
__device__ static inline float sl_glu_mul(float g, float u, const sl_glu &v)
{
    g = g > v.limit ? v.limit : g;
    u = u > v.limit ? v.limit : u < -v.limit ? -v.limit : u;
    u = v.offset != 0.0f ? __fadd_rn(u, v.offset) : u;
    return __fmul_rn(g / (1.0f + expf(-__fmul_rn(v.alpha, g))), u);
}

/* Four values times m as e4m3, the first in the lowest byte. */
__device__ static inline uint32_t sl_e4m3x4(float a, float b, float c, float d, float m)
{
    return (uint32_t)sl_e4m3(a * m) | (uint32_t)sl_e4m3(b * m) << 8 | (uint32_t)sl_e4m3(c * m) << 16 |
           (uint32_t)sl_e4m3(d * m) << 24;
}

template <typename T> __device__ static inline T sl_warp_sum(T v)
{
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

/* The sum of a value over the lanes up to this one, with its own. */
template <typename T> __device__ static inline T sl_warp_prefix(T v)
{
    int lane = threadIdx.x & 31;

#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        T other = __shfl_up_sync(0xffffffffu, v, o);
        v += lane >= o ? other : 0;
    }
    return v;
}

__device__ static inline float sl_warp_max(float v)
{
    for (int o = 16; o; o >>= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

/* Sum over the block (a multiple of 32 threads, at most 1024); every thread receives it. */
template <typename T> __device__ static inline T sl_block_sum(T v)
{
    __shared__ T part[32];
    int warp = threadIdx.x >> 5, n = (int)(blockDim.x + 31) >> 5;

    v = sl_warp_sum(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[warp] = v;
    __syncthreads();
    v = (int)(threadIdx.x & 31) < n ? part[threadIdx.x & 31] : (T)0;
    return sl_warp_sum(v);
}

/* Pair rotation with products and sums separately rounded, as the CPU twin does it. */
__device__ static inline void sl_rotate(float a, float b, float c, float s, float *ra, float *rb)
{
    *ra = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
    *rb = __fadd_rn(__fmul_rn(a, s), __fmul_rn(b, c));
}

/* Physical row where token pos of sequence seq is written: its row-pool page, or its tail row. -1: no page.
 */
__device__ static inline int64_t sl_row_of(const sl_seq_tables *s, const sl_row_view *r, int seq, int pos)
{
    int slot = s->hot_slot[seq];

    if (slot >= 0)
        return (int64_t)r->hot_base + (int64_t)slot * (r->hot_rows + r->tail_rows) + r->hot_rows +
               pos % r->tail_rows;
    int page = s->row_pages[(int64_t)seq * s->ld + pos / SL_PAGE_TOKENS];
    return page < 0 ? -1 : (int64_t)page * SL_PAGE_TOKENS + pos % SL_PAGE_TOKENS;
}

/* Sequence and position of token t, checked; false for padding, and (with the error bit set) when out of
 * range. */
__device__ static inline bool sl_token(const sl_seq_tables *s, int t, uint32_t *deverr, int *seq, int *pos)
{
    *seq = s->token_seq[t];
    *pos = s->token_pos[t];
    if (*seq == -1)
        return false;
    uint32_t bad = (*seq < 0 || *seq >= s->n_seqs ? SL_DEVERR_SEQ : 0) |
                   (*pos < 0 || *pos >= (int64_t)s->ld * SL_PAGE_TOKENS ? SL_DEVERR_POS : 0);
    if (bad)
        atomicOr(deverr, bad);
    return bad == 0;
}

/* -1: more than an int has, which as a number of blocks is refused. */
static inline int sl_ceil_div(int64_t a, int64_t b)
{
    return (int)sl_blocks((a + b - 1) / b);
}

#endif
