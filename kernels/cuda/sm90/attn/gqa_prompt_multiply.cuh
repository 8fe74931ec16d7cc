/*
 * Inside gqa_prompt*.cu: the products of a warpgroup, its accumulators, and the output of a unit.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_MULTIPLY_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_MULTIPLY_CUH
#include "kernels/cuda/sm90/attn/gqa_prompt_weights.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ static inline void gqa_product(float (&s)[64], uint64_t a, uint64_t b, bool add)
{
    sl_wgmma_n128_bf16(s, a, b, add);
}

__device__ static inline void gqa_product(float (&s)[32], uint64_t a, uint64_t b, bool add)
{
    sl_wgmma_n64_bf16(s, a, b, add);
}

/* The accumulators of a thread: instructions of at most 128 columns. */
template <int DIM> struct gqa_sum {
    static constexpr int COLS = DIM < 128 ? DIM : 128, N = DIM / COLS;
    float o[N][COLS / 2];
};

template <int DIM> __device__ static inline void gqa_scale(gqa_sum<DIM> &o, const float (&fix)[2])
{
    const int n = gqa_sum<DIM>::COLS / 2;

#pragma unroll
    for (int i = 0; i < DIM / 2; i++)
        o.o[i / n][i % n] = __fmul_rn(o.o[i / n][i % n], fix[i / 2 % 2]);
}

/* The products that add to o are complete. */
template <int DIM> __device__ static inline void gqa_arrived(gqa_sum<DIM> &o)
{
#pragma unroll
    for (int n = 0; n < gqa_sum<DIM>::N; n++)
        sl_wgmma_results(o.o[n]);
}

/* Writes two values of a row's output: column c of the head. */
template <int DIM>
__device__ static inline void gqa_store2(const gqa_prompt_work &w, const gqa_row_state &x, int c, float a,
                                         float b)
{
    a = gqa_output(a, x.all_l), b = gqa_output(b, x.all_l);
    *(uint32_t *)((__nv_bfloat16 *)w.g.p.out + x.head * DIM + c) = gqa_pack(a, b);
}

/* The output of a unit, and what it counts. */
template <int DIM>
__device__ static inline void gqa_store(const gqa_prompt_work &w, const gqa_sum<DIM> &o,
                                        const gqa_row_state (&x)[2])
{
    const int n = gqa_sum<DIM>::COLS / 8;
    int c = (threadIdx.x & 3) * 2;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (x[r].head < 0)
            continue;
#pragma unroll
        for (int j = 0; j < DIM / 8; j++)
            gqa_store2<DIM>(w, x[r], j * 8 + c, o.o[j / n][j % n * 4 + r * 2],
                            o.o[j / n][j % n * 4 + r * 2 + 1]);
        if (x[r].below > -INFINITY && c == 0 && x[r].head % w.g.group == 0) {
            atomicAdd((unsigned long long *)w.g.p.tiles, (unsigned long long)x[r].tiles);
            atomicAdd((unsigned long long *)w.g.p.tiles + 1, (unsigned long long)x[r].out);
        }
    }
}
#endif

#endif
