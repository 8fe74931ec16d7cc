/*
 * Inside resolve.cu: which entries of the hot buffer the misses of a token replace. There are two ways for CLOCK,
 * all entries at once or in chunks from the hand on, and one for LRU, by its list. The maps between tokens and
 * entries are updated at the same time.
 */
#ifndef SL_KERNELS_CUDA_ANY_CACHE_RESOLVE_VICTIMS_CUH
#define SL_KERNELS_CUDA_ANY_CACHE_RESOLVE_VICTIMS_CUH
#include "kernels/cuda/any/cache/resolve_block.cuh"

/* Gives the entry `at`, which held token `old` (-1: none), to the m-th miss. */
template <class C>
__device__ static inline void place(resolve_shared<C> &s, const token_of_block &b, uint32_t m, int at,
                                    int old)
{
    int id = s.miss_id[m];

    if (old >= 0) {
        b.h.slot_of[old] = NO_SLOT;
        atomicAdd(&s.evictions, 1u);
    }
    b.h.token_of[at] = id;
    b.h.slot_of[id] = (uint16_t)at;
    b.h.stamp[at] = b.mark;
    b.phys[s.miss_at[m]] = b.hot0 + at;
    s.victim[m] = (uint16_t)at;
}

/*
 * CLOCK for buffers of at most ENTRIES entries per thread; a thread has neighbouring entries in the order in which the
 * hand passes them. Victims are the entries that are not in use and do not have the reference bit, then those that have
 * it. Entries that the hand passes lose the bit. Contains a barrier between the writing of the list of misses and its
 * use.
 */
template <class C>
__device__ static void clock_at_once(resolve_shared<C> &s, const sl_resolve_params &p,
                                     const token_of_block &b, uint32_t misses)
{
    int n = hot_rows<C>(p, b), hand = *b.h.cursor, at[ENTRIES], old[ENTRIES];
    uint32_t st[ENTRIES], mine = 0, all;

#pragma unroll
    for (int j = 0; j < ENTRIES; j++) {
        int i = ENTRIES * threadIdx.x + j;
        at[j] = i < n ? hand + i - (hand + i >= n ? n : 0) : -1;
        st[j] = i < n ? b.h.stamp[at[j]] : 0;
        old[j] = i < n ? b.h.token_of[at[j]] : -1;
    }
#pragma unroll
    for (int j = 0; j < ENTRIES; j++) {
        bool in = at[j] >= 0 && !(s.hit[at[j] >> 5] >> (at[j] & 31) & 1) && (st[j] & ~REFERENCED) != b.step;
        at[j] = in ? at[j] : -1;
        mine += in ? st[j] & REFERENCED ? 1u << 16 : 1 : 0;
    }
    uint32_t before = block_scan<C::threads / 32>(s.sums[2], mine, &all), plain = before & 0xffff,
             marked = before >> 16;
    bool twice = (all & 0xffff) < misses; /* the hand makes a second turn */
    int last = -1;
#pragma unroll
    for (int j = 0; j < ENTRIES; j++) {
        if (at[j] < 0)
            continue;
        bool bit = (st[j] & REFERENCED) != 0;
        uint32_t m = bit ? twice ? (all & 0xffff) + marked++ : ~0u : plain++;
        if (m < misses) {
            place(s, b, m, at[j], old[j]);
            if (m + 1 == misses) {
                last = ENTRIES * (int)threadIdx.x + j;
                *b.h.cursor = at[j] + 1 == n ? 0 : at[j] + 1;
            }
        } else if (bit && twice) {
            b.h.stamp[at[j]] = st[j] & ~REFERENCED;
        }
    }
    if (twice)
        return;
    if (last >= 0)
        s.stop = last;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ENTRIES; j++)
        if (at[j] >= 0 && (st[j] & REFERENCED) && ENTRIES * (int)threadIdx.x + j < s.stop)
            b.h.stamp[at[j]] = st[j] & ~REFERENCED;
}

/* CLOCK for larger buffers, in chunks of a block's size from the hand on, at most two turns, so that the cost
 * grows with the misses and not with the buffer. The hand passes entries in use, clears the bit of referenced
 * ones and takes the others as victims. */
template <class C>
__device__ static void clock_by_chunks(resolve_shared<C> &s, const sl_resolve_params &p,
                                       const token_of_block &b, uint32_t misses)
{
    int n = hot_rows<C>(p, b), hand = *b.h.cursor;

    __syncthreads();
    for (int done = 0, chunk; done < 2 * n && s.victims < misses; done += chunk) {
        uint32_t found = s.victims, need = misses - found;
        int at = (hand + done + threadIdx.x) % n;
        /* a chunk ends where a turn ends: no chunk contains an entry twice */
        chunk = min(C::threads, n - done % n);
        bool in = (int)threadIdx.x < chunk;
        uint32_t st = in ? b.h.stamp[at] : 0;
        bool used = (st & ~REFERENCED) == b.step, cand = in && !used && !(st & REFERENCED);
        uint32_t total, rank = block_scan<C::threads / 32>(s.sums[2], cand, &total);
        bool last = cand && rank + 1 == need;
        if (cand && rank < need) {
            s.victim[found + rank] = (uint16_t)at;
            b.h.stamp[at] = b.mark; /* in use from now on: the second turn passes it */
        }
        if (threadIdx.x == 0)
            s.stop = C::threads;
        __syncthreads();
        if (last)
            s.stop = threadIdx.x;
        __syncthreads();
        if (in && !used && (st & REFERENCED) && (int)threadIdx.x < s.stop)
            b.h.stamp[at] = st & ~REFERENCED;
        if (threadIdx.x == 0) {
            s.victims = found + min(total, need);
            if (s.stop < C::threads)
                s.hand = (hand + done + s.stop + 1) % n;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *b.h.cursor = s.hand; /* the entry after the last victim */
}

/* LRU by its list, with one thread, for comparison with CLOCK: victims come from the least recent end; afterwards
 * lru_touch() moves everything in use to the most recent end, in token order. */
template <class C>
__device__ static void lru_victims(resolve_shared<C> &s, const token_of_block &b, int head, uint32_t misses)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        int at = b.h.next[head];
        while (s.victims < misses && at != head) {
            if (b.h.stamp[at] != b.step)
                s.victim[s.victims++] = (uint16_t)at;
            at = b.h.next[at];
        }
    }
    __syncthreads();
}

template <class C>
__device__ static void lru_touch(const sl_resolve_params &p, const token_of_block &b, int head)
{
    for (int i = 0; i < p.ld_ids && b.phys[i] >= 0; i++) {
        int at = b.phys[i] - b.hot0;
        if (at >= hot_rows<C>(p, b)) /* in the tail */
            continue;
        b.h.next[b.h.prev[at]] = b.h.next[at];
        b.h.prev[b.h.next[at]] = b.h.prev[at];
        int last = b.h.prev[head];
        b.h.prev[at] = (uint16_t)last;
        b.h.next[at] = (uint16_t)head;
        b.h.next[last] = (uint16_t)at;
        b.h.prev[head] = (uint16_t)at;
    }
}

/* Chooses a victim for every miss and updates the maps between tokens and entries. */
template <class C>
__device__ static void make_room(resolve_shared<C> &s, const sl_resolve_params &p, const token_of_block &b,
                                 uint32_t misses)
{
    if (p.policy == SL_EVICT_CLOCK && hot_rows<C>(p, b) <= ENTRIES * C::threads) {
        clock_at_once(s, p, b, misses);
        return;
    }
    if (p.policy == SL_EVICT_CLOCK)
        clock_by_chunks(s, p, b, misses);
    else
        lru_victims(s, b, hot_rows<C>(p, b), misses);
    for (uint32_t m = threadIdx.x; m < misses; m += C::threads)
        place(s, b, m, s.victim[m], b.h.token_of[s.victim[m]]);
}

#endif
