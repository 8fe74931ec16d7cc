/*
 * Shared by index keys and index queries: RoPE on the first `rope` values, the Hadamard transform, and the
 * official convention's rounding points (kernels/params.h). One warp works on one vector of at most 256
 * values in shared memory.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_INDEX_KEY_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_INDEX_KEY_CUH

#include "kernels/cuda/common.cuh"

#define SL_INDEX_DIM_MAX 256

struct sl_index_vec {
    int dim, rope;
    bool interleaved, official;
    sl_dtype act;
};

__device__ static inline float sl_index_round(const sl_index_vec &c, float v)
{
    return c.official ? sl_bf16r(v) : sl_actr(v, c.act);
}

/* Rotates v[0..rope) by cs ([rope/2][2]). The pairs are half-split (j, j + rope/2) or interleaved (2j, 2j + 1). */
__device__ static inline void sl_index_rope(float *v, const float *cs, const sl_index_vec &c)
{
    for (int j = threadIdx.x & 31; j < c.rope / 2; j += 32) {
        int a = c.interleaved ? 2 * j : j, b = c.interleaved ? 2 * j + 1 : j + c.rope / 2;
        float ra, rb;
        sl_rotate(v[a], v[b], cs[2 * j], cs[2 * j + 1], &ra, &rb);
        v[a] = sl_index_round(c, ra);
        v[b] = sl_index_round(c, rb);
    }
    __syncwarp();
}

/* Sylvester Hadamard transform: float32 butterflies, stride 1 first, times dim^-0.5, rounded to bf16. dim is a
 * power of two. */
__device__ static inline void sl_index_hadamard(float *v, int dim)
{
    float norm = (float)(1.0 / sqrt((double)dim));

    for (int h = 1; h < dim; h <<= 1) {
        for (int i = threadIdx.x & 31; i < dim / 2; i += 32) {
            int a = (i / h) * 2 * h + i % h, b = a + h;
            float x = v[a], y = v[b];
            v[a] = __fadd_rn(x, y);
            v[b] = __fsub_rn(x, y);
        }
        __syncwarp();
    }
    for (int i = threadIdx.x & 31; i < dim; i += 32)
        v[i] = sl_bf16r(__fmul_rn(v[i], norm));
    __syncwarp();
}

/* Power-of-two scale of a whole vector (official convention: dim <= 128 has one scale). */
__device__ static inline float sl_index_scale(const float *v, int dim)
{
    float amax = 0;

    for (int i = threadIdx.x & 31; i < dim; i += 32)
        amax = fmaxf(amax, fabsf(v[i]));
    return sl_scale_act_d(sl_warp_max(amax));
}

#endif
