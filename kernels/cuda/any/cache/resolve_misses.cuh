/*
 * Inside resolve.cu: the misses of a token in the order of their host rows, so that gather reads ascending addresses,
 * written to the list that gather reads.
 */
#ifndef SL_KERNELS_CUDA_ANY_CACHE_RESOLVE_MISSES_CUH
#define SL_KERNELS_CUDA_ANY_CACHE_RESOLVE_MISSES_CUH
#include "kernels/cuda/any/cache/resolve_block.cuh"

/* Sorts n different keys: the place of a key is the number of smaller keys, which all threads count together. */
template <class C> __device__ static void sort_few(resolve_shared<C> &s, uint32_t n)
{
    uint64_t *sorted = s.key + C::threads;
    uint32_t *rank = (uint32_t *)(s.key + 2 * C::threads), per = C::threads / n, slice = threadIdx.x / n,
             i = threadIdx.x % n, count = 0;

    rank[threadIdx.x] = 0;
    __syncthreads();
    if (slice < per) {
        uint64_t mine = s.key[i];
        for (uint32_t j = slice * n / per; j < (slice + 1) * n / per; j++)
            count += s.key[j] < mine;
        atomicAdd(&rank[i], count);
    }
    __syncthreads();
    if (threadIdx.x < n)
        sorted[rank[threadIdx.x]] = s.key[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < n)
        s.key[threadIdx.x] = sorted[threadIdx.x];
    __syncthreads();
}

/* Bitonic sort; n is the power of two to which the keys are padded. */
template <class C> __device__ static void sort_many(resolve_shared<C> &s, uint32_t n)
{
    for (uint32_t size = 2; size <= n; size <<= 1)
        for (uint32_t step = size >> 1; step; step >>= 1) {
            for (uint32_t i = threadIdx.x; i < n / 2; i += C::threads) {
                uint32_t a = 2 * i - (i & (step - 1)), b = a + step;
                uint64_t x = s.key[a], y = s.key[b];
                if ((x > y) == ((a & size) == 0)) {
                    s.key[a] = y;
                    s.key[b] = x;
                }
            }
            __syncthreads();
        }
}

/* Host row of the m-th miss. */
template <class C>
__device__ static inline int64_t host_row(const resolve_shared<C> &s, const token_of_block &b, uint32_t m)
{
    if (C::divided)
        return sl_pool_row(b.rows, max(s.miss_page[m], 0), s.miss_id[m], b.head);
    return (int64_t)max(s.miss_page[m], 0) * SL_PAGE_TOKENS + s.miss_id[m] % SL_PAGE_TOKENS;
}

/* Sorts the keys of all misses. */
template <class C>
__device__ static void sort_misses(resolve_shared<C> &s, const token_of_block &b, uint32_t misses)
{
    uint32_t n = 1;

    while (n < misses)
        n <<= 1;
    for (uint32_t m = threadIdx.x; m < n; m += C::threads)
        s.key[m] = m < misses ? (uint64_t)host_row(s, b, m) << 16 | m : ~0ull;
    __syncthreads();
    if (misses <= C::threads)
        sort_few(s, misses);
    else
        sort_many(s, n);
}

/* Writes the block's misses to the list, from entry s.first on, in ascending order of host rows. */
template <class C>
__device__ static void emit(resolve_shared<C> &s, const sl_resolve_params &p, const token_of_block &b,
                            uint32_t misses, uint32_t *deverr)
{
    bool ascending = true;

    for (uint32_t m = threadIdx.x; m < misses; m += C::threads) {
        if (s.miss_page[m] < 0)
            atomicOr(deverr, SL_DEVERR_PAGE);
        ascending &= m == 0 || host_row(s, b, m) > host_row(s, b, m - 1);
    }
    ascending = __syncthreads_and(ascending);
    if (!ascending)
        sort_misses(s, b, misses);
    for (uint32_t i = threadIdx.x; i < misses; i += C::threads) {
        uint32_t m = ascending ? i : (uint32_t)(s.key[i] & 0xffff);
        int64_t to = (int64_t)s.first + i;
        if (to >= p.miss_cap)
            continue;
        p.miss_src[to] = host_row(s, b, m);
        p.miss_dst[to] = b.hot0 + s.victim[m];
        if (p.miss_block)
            p.miss_block[to] = b.list * p.ld_blocks + s.miss_at[m] / SL_PAGE_TOKENS;
    }
}

#endif
