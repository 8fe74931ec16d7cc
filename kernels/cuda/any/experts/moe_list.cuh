/*
 * The list of choices of rows that other ranks sent, made by the kernel that sorts them, where there is one thread for
 * every place: a decode step saves a launch and a wait for its end. Internal to kernels/cuda.
 */
#ifndef SL_KERNELS_CUDA_ANY_EXPERTS_MOE_LIST_CUH
#define SL_KERNELS_CUDA_ANY_EXPERTS_MOE_LIST_CUH

#include "kernels/cuda/any/experts/ep.cuh"
#include "kernels/cuda/any/experts/moe_run.h"

#define SL_MOE_LIST_PLACES SL_EP_THREADS
#define SL_MOE_LIST_LOADS 8 /* that a thread which counts has in flight */

static_assert(SL_EP_COUNTED == SL_EP_THREADS, "a thread for each expert that is counted");

/* What this rank's experts have to compute: adds to the counts. One expert for each thread. */
__device__ static inline void sl_moe_count_load(const sl_moe_arrived &a)
{
    __shared__ int count[SL_EP_COUNTED], most;
    int e = threadIdx.x;

    count[e] = 0;
    if (e == 0)
        most = 0;
    __syncthreads();
    for (int from = 0; from < a.ranks; from++) {
        int came = sl_ep_count(a.count, from, a.cap);
        for (int i0 = threadIdx.x; i0 < came * a.top_k; i0 += SL_MOE_LIST_LOADS * SL_EP_THREADS) {
            int own[SL_MOE_LIST_LOADS];
#pragma unroll
            for (int j = 0; j < SL_MOE_LIST_LOADS; j++) {
                int i = i0 + j * SL_EP_THREADS;
                int64_t place = (int64_t)from * a.cap + i / a.top_k;
                own[j] = i < came * a.top_k
                             ? ((const int32_t *)(a.recv + place * a.row.bytes + a.row.ids))[i % a.top_k]
                             : -1;
            }
#pragma unroll
            for (int j = 0; j < SL_MOE_LIST_LOADS; j++)
                if (own[j] >= 0 && own[j] < a.experts)
                    atomicAdd(&count[own[j]], 1);
        }
    }
    __syncthreads();
    atomicMax(&most, count[e]);
    int rows = sl_block_sum(count[e]);
    if (e == 0) {
        atomicAdd((unsigned long long *)&a.counts->rows, (unsigned long long)rows);
        atomicAdd((unsigned long long *)&a.counts->busiest, (unsigned long long)most);
    }
}

/* The choices of a row, as far as their experts exist: their number; with `at` also stores them and their results. */
__device__ static inline int sl_moe_list_row(const sl_moe_arrived &a, int place, bool came, bool store,
                                             int at)
{
    const int32_t *own = (const int32_t *)(a.recv + (int64_t)place * a.row.bytes + a.row.ids);
    int n = 0;

#pragma unroll 8
    for (int k = 0; k < a.top_k; k++) {
        int e = came ? own[k] : -1;
        bool real = e >= 0 && e < a.experts;
        if (store)
            a.ids[place * a.top_k + k] = real ? e : -1, a.result[place * a.top_k + k] = real ? at + n : -1;
        n += real;
    }
    return n;
}

/* Blocks of a kernel that sorts: the second one only counts. */
static inline int sl_moe_sort_blocks(const sl_moe_arrived *a)
{
    return a->sort_lists && a->counts ? 2 : 1;
}

/* All threads of a block of SL_EP_THREADS call it; nothing happens unless a.sort_lists. True: this is the block that
 * counts, and it has ended. Experts that do not exist (rows of an exchange that broke off) are an error and are not
 * computed. */
__device__ static inline bool sl_moe_list(const sl_moe_arrived &a, uint32_t *deverr)
{
    __shared__ int base[SL_EP_RANKS_MAX + 1];
    int i = threadIdx.x, from = i / max(a.cap, 1), all;

    if (!a.sort_lists)
        return false;
    if (blockIdx.x > 0) {
        sl_moe_count_load(a);
        return true;
    }
    bool place = from < a.ranks, came = place && i % a.cap < sl_ep_count(a.count, from, a.cap);
    const int32_t *own = (const int32_t *)(a.recv + (int64_t)i * a.row.bytes + a.row.ids);
    for (int k = 0; came && k < a.top_k; k++)
        if (own[k] >= a.experts)
            atomicOr(deverr, SL_DEVERR_ID);
    int before = sl_ep_before(place ? sl_moe_list_row(a, i, came, false, 0) : 0, &all);
    if (place && i % a.cap == 0)
        base[from] = before;
    if (i == 0)
        base[a.ranks] = all;
    __syncthreads();
    if (place)
        sl_moe_list_row(a, i, came, true, from * a.cap * a.top_k + before - base[from]);
    if (i < a.ranks)
        a.send_count[i] = base[i + 1] - base[i];
    __syncthreads(); /* the block reads what it has stored */
    return false;
}

#endif
