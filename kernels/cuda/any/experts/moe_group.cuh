/*
 * Sorting (token, choice) pairs by expert on the device, for the tensor core paths of routed experts
 * (moe_pipeline.cuh). One block of 1,024 threads sorts; thread e serves expert e. Internal to kernels/cuda.
 */
#ifndef SL_KERNELS_CUDA_ANY_EXPERTS_MOE_GROUP_CUH
#define SL_KERNELS_CUDA_ANY_EXPERTS_MOE_GROUP_CUH

#include "kernels/cuda/common.cuh"

#define SL_MOE_MAX_EXPERTS 1024 /* one thread per expert */

/* Counts a pair for its expert. -1 means no choice; an id that is too large is an error of the caller. */
__device__ static inline void sl_moe_count(int expert, int experts, int *count, uint32_t *deverr)
{
    if (expert >= experts)
        atomicOr(deverr, SL_DEVERR_ID);
    else if (expert >= 0)
        atomicAdd(&count[expert], 1);
}

/* Inclusive prefix sums of both arrays, in place; n: entries in use. All threads call it after a barrier. */
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

/* Gives pair i the next row of its expert, or -1 if it has no expert. The order of an expert's rows is undefined. */
__device__ static inline int sl_moe_place(int i, int expert, int experts, int *cursor, int32_t *pair_of)
{
    int row = -1;

    if (expert >= 0 && expert < experts) {
        row = atomicAdd(&cursor[expert], 1);
        pair_of[row] = i;
    }
    return row;
}

/*
 * The whole sort. An expert's rows begin at a multiple of ALIGN and are cut into tiles of at most TILE rows. One
 * block of SL_MOE_MAX_EXPERTS threads. It reports through:
 *
 *   | tile(e, at, first, rows, base, of) | tile number `at` has `rows` rows of expert e, from row `first` on; |
 *   |                                    | the expert has `of` tiles, and the first of them is number `base`  |
 *   | placed(i, row)                     | pair i has row `row`, or none (-1)                                 |
 *   | pair_of [rows]                     | the pair of each row, -1 for padding                               |
 */
template <int TILE, int ALIGN, int UNROLL, typename F, typename G>
__device__ static inline void sl_moe_group(const int32_t *ids, int pairs, int experts, int32_t *pair_of,
                                           int32_t *n_tiles, uint32_t *deverr, F tile, G placed)
{
    __shared__ int count[SL_MOE_MAX_EXPERTS], end[SL_MOE_MAX_EXPERTS], tiles[SL_MOE_MAX_EXPERTS],
        cursor[SL_MOE_MAX_EXPERTS];
    int e = threadIdx.x;

    count[e] = 0;
    __syncthreads();
#pragma unroll UNROLL
    for (int i = e; i < pairs; i += SL_MOE_MAX_EXPERTS)
        sl_moe_count(ids[i], experts, count, deverr);
    __syncthreads();
    int n = count[e], padded = (n + ALIGN - 1) & ~(ALIGN - 1), mine = (n + TILE - 1) / TILE;
    end[e] = padded;
    tiles[e] = mine;
    __syncthreads();
    sl_moe_prefixes(end, tiles, experts);
    int first = end[e] - padded, base = tiles[e] - mine;
    cursor[e] = first;
    for (int k = 0; k < mine; k++)
        tile(e, base + k, first + k * TILE, min(TILE, n - k * TILE), base, mine);
    for (int k = n; k < padded; k++)
        pair_of[first + k] = -1;
    if (e == experts - 1)
        *n_tiles = tiles[e];
    __syncthreads();
#pragma unroll UNROLL
    for (int i = e; i < pairs; i += SL_MOE_MAX_EXPERTS) {
        placed(i, sl_moe_place(i, ids[i], experts, cursor, pair_of));
    }
}

#endif
