/*
 * Inside resolve.cu: what a thread block knows of its token and keeps in shared memory, and the prefix sum over the
 * block.
 */
#ifndef SL_KERNELS_CUDA_RESOLVE_BLOCK_CUH
#define SL_KERNELS_CUDA_RESOLVE_BLOCK_CUH
#include "kernels/cuda/common.cuh"

#define THREADS 1024
#define MAX_K 4096
#define NO_SLOT 0xffffu
#define REFERENCED 0x80000000u
#define IDS 2     /* list entries that a thread loads at a time */
#define ENTRIES 4 /* entries of a hot buffer that a thread loads at a time */

struct resolve_shared {
    int32_t miss_id[MAX_K];   /* token of the m-th miss */
    int32_t miss_page[MAX_K]; /* its host page */
    uint16_t miss_at[MAX_K];  /* its index in ids */
    uint16_t victim[MAX_K];   /* LRU index that it takes */
    uint64_t key[MAX_K];      /* host row << 16 | m, for the sort */
    uint32_t hit[65536 / 32]; /* a bit for each LRU index in use */
    uint32_t sums[3][32];
    uint32_t tail_hits, used, evictions, victims;
    int hand, stop, first; /* first: where the block's misses begin in the list */
    int32_t need[MAX_K / SL_PAGE_TOKENS];
};

/* What a thread knows of its block's token. */
struct slot_state { /* one hot slot's part of sl_hot_state */
    uint16_t *slot_of, *prev, *next;
    int32_t *token_of, *cursor;
    uint32_t *stamp, *counters;
};

struct token_of_block {
    slot_state h;
    const int32_t *ids, *pages; /* the token's list; its sequence's host pages */
    int32_t *phys, hot0;
    int pos;
    uint32_t step, mark; /* mark: the stamp of an entry in use */
    /* The number of blocks that have added their misses, and the sum of the misses << 32; 0 before and after the
     * kernel. */
    unsigned long long *meet;
};

/* Exclusive prefix sum of v over the block; *total gets the sum. Contains one barrier; the 32 words of sums must not be
 * used for anything else until the next barrier. */
__device__ static uint32_t block_scan(uint32_t *sums, uint32_t v, uint32_t *total)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, inc = v;

    for (int o = 1; o < 32; o <<= 1) {
        uint32_t n = __shfl_up_sync(0xffffffffu, inc, o);
        if (lane >= o)
            inc += n;
    }
    if (lane == 31)
        sums[warp] = inc;
    __syncthreads();
    uint32_t w = sums[lane], all = w;
    for (int o = 1; o < 32; o <<= 1) {
        uint32_t n = __shfl_up_sync(0xffffffffu, all, o);
        if (lane >= o)
            all += n;
    }
    *total = __shfl_sync(0xffffffffu, all, 31);
    return __shfl_sync(0xffffffffu, all - w, warp) + inc - v;
}

__device__ static slot_state slot_state_of(const sl_resolve_params &p, int slot)
{
    slot_state h;
    int64_t hot = (int64_t)slot * p.rows.hot_rows;

    h.slot_of = p.hot.slot_of + (int64_t)slot * p.hot.max_tokens;
    h.token_of = p.hot.token_of + hot;
    h.stamp = p.hot.stamp + hot;
    h.prev = p.hot.prev + hot + slot;
    h.next = p.hot.next + hot + slot;
    h.cursor = p.hot.cursor + slot;
    h.counters = p.hot.counters + 4 * (int64_t)slot;
    return h;
}

#endif
