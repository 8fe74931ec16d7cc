/*
 * Grouping (token, choice) pairs by expert on the device: the steps that the ways of routed experts share
 * (moe_stream.cu, moe_grouped.cu, moe_mma.cu). One block of 1,024 threads does it, thread e for expert e;
 * each way has its own list of tiles. Inside of kernels/cuda.
 */
#ifndef SL_KERNELS_CUDA_MOE_GROUP_CUH
#define SL_KERNELS_CUDA_MOE_GROUP_CUH

#include "kernels/cuda/common.cuh"

#define SL_MOE_MAX_EXPERTS 1024

/* Counts a pair for its expert; -1 is no choice, what is too large is an error of the caller. */
__device__ static inline void sl_moe_count(int expert, int experts, int *count, uint32_t *deverr)
{
    if (expert >= experts)
        atomicOr(deverr, SL_DEVERR_ID);
    else if (expert >= 0)
        atomicAdd(&count[expert], 1);
}

/* Inclusive prefixes of both, in place; n: entries that matter. All threads, behind a barrier. */
__device__ static inline void sl_moe_prefixes(int *a, int *b, int n)
{
    int e = threadIdx.x;

    for (int o = 1; o < n; o <<= 1) {
        int x = e >= o ? a[e - o] : 0, y = e >= o ? b[e - o] : 0;
        __syncthreads();
        a[e] += x;
        b[e] += y;
        __syncthreads();
    }
}

/* Gives pair i the next row of its expert; -1 when it has none. The order in a group is nobody's promise. */
__device__ static inline int sl_moe_place(int i, int expert, int experts, int *cursor, int32_t *pair_of)
{
    int row = -1;

    if (expert >= 0 && expert < experts) {
        row = atomicAdd(&cursor[expert], 1);
        pair_of[row] = i;
    }
    return row;
}

#endif
