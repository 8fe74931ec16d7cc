/*
 * Device code that the ops of expert parallelism share: positions in the blocks of an exchange. A row or result lies
 * after those of earlier tokens for the same rank, so its position is a prefix sum over the tokens; one thread block
 * computes those of one rank. Internal to kernels/cuda.
 */
#ifndef SL_KERNELS_CUDA_ANY_EXPERTS_EP_CUH
#define SL_KERNELS_CUDA_ANY_EXPERTS_EP_CUH

#include "kernels/cuda/common.cuh"

#define SL_EP_THREADS 1024

/* The first expert of each rank, as a parameter of kernels. */
struct sl_ep_first {
    int32_t of[SL_EP_RANKS_MAX + 1];
};

static inline sl_ep_first sl_ep_first_of(const sl_ep_layout *l)
{
    sl_ep_first f = {};

    for (int32_t r = 0; r <= l->ranks; r++)
        f.of[r] = l->first[r];
    return f;
}

/* The sum of v over the threads before this one; *all: over all threads. Every thread of a block of SL_EP_THREADS
 * calls it. */
__device__ static inline int sl_ep_before(int v, int *all)
{
    __shared__ int part[SL_EP_THREADS / 32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sum = sl_warp_prefix(v), before = 0, total = 0;

    __syncthreads(); /* the values of the previous call have been read */
    if (lane == 31)
        part[warp] = sum;
    __syncthreads();
    for (int w = 0; w < SL_EP_THREADS / 32; w++) {
        before += w < warp ? part[w] : 0;
        total += part[w];
    }
    *all = total;
    return before + sum - v;
}

/* A count that came from another rank, or from an exchange that broke. */
__device__ static inline int sl_ep_count(const int32_t *count, int rank, int most)
{
    return max(0, min(count[rank], most));
}

#endif
