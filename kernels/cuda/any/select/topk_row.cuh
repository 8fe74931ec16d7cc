/*
 * Internal to top-k: a row's scores as ordered keys, the shared memory of a block, and the block's primitives (scans,
 * histogram of BINS bins, range). See topk.cu. Its kernels have THREADS threads; all threads of a block must call
 * every function that has a barrier.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_TOPK_ROW_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_TOPK_ROW_CUH

#include "kernels/cuda/any/select/select.cuh"
#include "kernels/scratch.h"

#define BINS 2048
#define ROW_MAX SL_TOPK_ROW_MAX /* for longer rows a hint is made if there is none */
#define CAND_MAX 8192
#define LIST_MAX 8192
#define MEMBERS 64
#define AT_ONCE 16 /* loads in flight while the whole row is written */
#define KEY_FORCED 0xffffffffu
#define SMEM_BYTES (CAND_MAX * 8 + LIST_MAX * 4)

template <int N> struct topk_shared { /* for a block of N threads */
    uint32_t hist[BINS];
    uint32_t low[N / 32], high[N / 32], count[2][N / 32], scan[N / 32];
    uint32_t bin, above, found;
    uint32_t members;
    uint32_t member_key[MEMBERS];
    int member_id[MEMBERS];
};

struct topk_row {
    const float *scores;
    const float *hint;
    int limit, len; /* scores that can be read, scores that count */
    int sinks, recent_from;
    bool wide;  /* 16-byte loads of scores */
    bool gates; /* there are forced tokens */
};

/* the keys that are still undecided, lo to hi: `need` of them are wanted, `have` exist */
struct topk_range {
    uint32_t lo, hi, need, have;
};

__device__ static inline bool forced(const topk_row &r, int i)
{
    return r.gates && (i < r.sinks || i >= r.recent_from);
}

__device__ static inline uint32_t key_at(const topk_row &r, int i)
{
    return forced(r, i) ? KEY_FORCED : sl_order_key(r.scores[i]);
}

/* The score that has this key. */
__device__ static inline float score_of(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

/* Scores i .. i + 3 (i a multiple of 4); NaN from `end` on. */
__device__ static inline float4 row_scores(const topk_row &r, int i, int end)
{
    const float none = __uint_as_float(0x7fffffffu);

    if (r.wide && i + 3 < end)
        return *(const float4 *)(r.scores + i);
    return make_float4(i < end ? r.scores[i] : none, i + 1 < end ? r.scores[i + 1] : none,
                       i + 2 < end ? r.scores[i + 2] : none, i + 3 < end ? r.scores[i + 3] : none);
}

__device__ static inline float max_of(float4 v)
{
    return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)); /* NaN only if all four are NaN */
}

/* Bit e: score e of the four is at least `least`. NaN never is. */
__device__ static inline uint32_t hits_of(float4 v, float least)
{
    return (v.x >= least ? 1 : 0) | (v.y >= least ? 2 : 0) | (v.z >= least ? 4 : 0) | (v.w >= least ? 8 : 0);
}

/*
 * The items from which the bound is computed: the scores of the row, or the maxima of its groups. A thread loads four
 * at a time. Forced tokens do not count for the bound and always pass.
 */
struct topk_scores {
    static const int of = 1; /* scores that an item represents */

    __device__ static inline float4 load(const topk_row &r, int i)
    {
        return row_scores(r, i, r.limit);
    }
};

struct topk_maxima {
    static const int of = SL_HINT_GROUP;

    __device__ static inline float4 load(const topk_row &r, int i)
    {
        const float none = __uint_as_float(0x7fffffffu);
        return i * SL_HINT_GROUP < r.limit ? *(const float4 *)(r.hint + i)
                                           : make_float4(none, none, none, none);
    }
};

__device__ static inline float item_of_four(float4 v, int e)
{
    return e == 0 ? v.x : e == 1 ? v.y : e == 2 ? v.z : v.w;
}

/* Bit e: item i + e (of four) contains a forced token. */
template <typename K> __device__ static inline uint32_t forced_of(const topk_row &r, int i)
{
    uint32_t f = 0;

#pragma unroll
    for (int e = 0; e < 4; e++) {
        int first = (i + e) * K::of;
        f |= first < r.len && (first < r.sinks || first + K::of > r.recent_from) ? 1u << e : 0u;
    }
    return f;
}

/* The sum over the warps before this one; *total: over all. s.count[which] was written before the last barrier. */
template <int N>
__device__ static inline uint32_t warps_before(const topk_shared<N> &s, int which, uint32_t *total)
{
    uint32_t n = s.count[which][(threadIdx.x & 31) % (N / 32)];

    n = (threadIdx.x & 31) < N / 32 ? n : 0;

    *total = __reduce_add_sync(0xffffffffu, n);
    return __reduce_add_sync(0xffffffffu, (threadIdx.x & 31) < threadIdx.x >> 5 ? n : 0);
}

template <int N> __device__ static inline void clear_bins(topk_shared<N> &s)
{
    for (int i = threadIdx.x; i < BINS / 2; i += N)
        ((uint2 *)s.hist)[i] = make_uint2(0, 0);
}

/* Finds the bin that holds the need-th largest key: s.bin, and s.above, the number of keys above the bin; sets s.found
 * only if there are that many keys. Call it after the barrier that completes the histogram; it ends with a barrier. */
template <int N> __device__ static void find_bin(topk_shared<N> &s, uint32_t need)
{
    const int each = BINS / N;
    int t = threadIdx.x, hi = BINS - 1 - each * t;
    uint32_t v[each], sum = 0;

#pragma unroll
    for (int i = 0; i < each; i++) {
        v[i] = s.hist[hi - i];
        sum += v[i];
    }
    uint32_t inc = sl_warp_prefix(sum);
    if ((t & 31) == 31)
        s.scan[t >> 5] = inc;
    __syncthreads();
    uint32_t excl = __reduce_add_sync(0xffffffffu, (t & 31) < t >> 5 ? s.scan[t & 31] : 0) + inc - sum;
#pragma unroll
    for (int i = 0; i < each; i++) {
        if (excl < need && need <= excl + v[i]) {
            s.bin = hi - i;
            s.above = excl;
            s.found = 1;
        }
        excl += v[i];
    }
    __syncthreads();
}

/* The block's smallest and largest key, from those of each thread; contains a barrier. */
template <int N> __device__ static inline void block_range(topk_shared<N> &s, uint32_t *lo, uint32_t *hi)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t a = __reduce_min_sync(0xffffffffu, *lo), b = __reduce_max_sync(0xffffffffu, *hi);

    if (lane == 0) {
        s.low[warp] = a;
        s.high[warp] = b;
    }
    __syncthreads();
    *lo = __reduce_min_sync(0xffffffffu, s.low[lane % (N / 32)]);
    *hi = __reduce_max_sync(0xffffffffu, s.high[lane % (N / 32)]);
}

__device__ static inline int range_shift(uint32_t lo, uint32_t hi)
{
    return max(32 - __clz(hi - lo) - 11, 0);
}

/* Narrows the range to one bin of a histogram over it. Returns the shift that was used. */
template <int N> __device__ static inline int narrow(topk_shared<N> &s, topk_range *g, int shift)
{
    find_bin(s, g->need);
    g->need -= s.above;
    g->have = s.hist[s.bin];
    g->lo += s.bin << shift;
    g->hi = min(g->hi, g->lo + (uint32_t)((1ull << shift) - 1));
    return shift;
}

#endif
