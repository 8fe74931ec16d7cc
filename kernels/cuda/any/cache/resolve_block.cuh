/*
 * Inside resolve.cu: what a thread block knows of its token and keeps in shared memory, and the prefix sum over the
 * block.
 */
#ifndef SL_KERNELS_CUDA_ANY_CACHE_RESOLVE_BLOCK_CUH
#define SL_KERNELS_CUDA_ANY_CACHE_RESOLVE_BLOCK_CUH
#include "kernels/cuda/any/cache/rows.cuh"

#define NO_SLOT 0xffffu
#define REFERENCED 0x80000000u
#define IDS 2     /* list entries that a thread loads at a time */
#define ENTRIES 4 /* entries of a hot buffer that a thread loads at a time */

/* Kinds of lists: threads of a block, most misses of a list, and whether rows are divided by KV head or into blocks of
 * tokens. Where they are not, everything that follows from the division is a constant. */
struct whole_rows {
    static const int threads = 1024, max_k = 4096;
    static const bool divided = false;
};

struct divided_rows {
    static const int threads = 1024, max_k = 4096;
    static const bool divided = true;
};

struct divided_rows_short { /* several blocks fit a multiprocessor */
    static const int threads = 256, max_k = 1024;
    static const bool divided = true;
};

/* Of a block that resolves one list. In divided rows "token" stands for a block of tokens. */
template <class C> struct resolve_shared {
    int32_t miss_id[C::max_k];   /* token of the m-th miss */
    int32_t miss_page[C::max_k]; /* its host page */
    uint16_t miss_at[C::max_k];  /* its index in ids */
    uint16_t victim[C::max_k];   /* LRU index that it takes */
    uint64_t key[C::max_k];      /* host row << 16 | m, for the sort */
    uint32_t hit[65536 / 32];    /* a bit for each LRU index in use */
    uint32_t sums[3][32];
    uint32_t tail_hits, used, evictions, victims;
    uint32_t again;        /* of used: entries that an earlier token of the run uses too */
    uint32_t in_use;       /* different entries that the run uses so far */
    int hand, stop, first; /* first: where the block's misses begin in the list */
    int32_t need[C::max_k / SL_PAGE_TOKENS];
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
    int32_t *phys, hot0;        /* hot0: row of the list's first hot row */
    int pos;                    /* in divided rows its block */
    int in_tail;                /* ids from here on are tail hits */
    bool several;               /* tokens of its run */
    uint32_t step, mark;        /* mark: the stamp of an entry in use */
    int list;                   /* the number of the token's list */
    /* The number of blocks that have added their misses, and the sum of the misses << 32; 0 before and after the
     * kernel. */
    unsigned long long *meet;
    sl_rows rows;    /* divided rows only */
    int head, slot0; /* divided rows only; slot0: first row of the hot slot */
};

/* Hot rows of one list, and the entry of an id in the page table. */
template <class C> __device__ static inline int hot_rows(const sl_resolve_params &p, const token_of_block &b)
{
    return C::divided ? b.rows.hot : p.rows.hot_rows;
}

template <class C> __device__ static inline int page_of(const token_of_block &b, int id)
{
    return C::divided ? id >> b.rows.page_log2 : id / SL_PAGE_TOKENS;
}

/* Exclusive prefix sum of v over the block of WARPS warps; *total gets the sum. Contains one barrier; the 32 words of sums must not be
 * used for anything else until the next barrier. */
template <uint32_t WARPS> __device__ static uint32_t block_scan(uint32_t *sums, uint32_t v, uint32_t *total)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, inc = sl_warp_prefix(v);

    if (lane == 31)
        sums[warp] = inc;
    __syncthreads();
    uint32_t w = lane < WARPS ? sums[lane] : 0, all = sl_warp_prefix(w);
    *total = __shfl_sync(0xffffffffu, all, 31);
    return __shfl_sync(0xffffffffu, all - w, warp) + inc - v;
}

/* slot: of the list, rows: its hot rows. */
__device__ static slot_state slot_state_of(const sl_resolve_params &p, int slot, int rows)
{
    slot_state h;
    int64_t hot = (int64_t)slot * rows;

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
