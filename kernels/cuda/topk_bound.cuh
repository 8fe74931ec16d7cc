/*
 * Inside top-k: the lower bound that cuts a row down, from its scores or from the maxima of its groups, and
 * the candidates from the bound on, collected in row order. See topk.cu.
 */
#ifndef SL_KERNELS_CUDA_TOPK_BOUND_CUH
#define SL_KERNELS_CUDA_TOPK_BOUND_CUH

#include "kernels/cuda/topk_row.cuh"

/* How the items are dealt out to threads: a warp has consecutive ones, four a lane and round. */
struct topk_deal {
    int n, rounds, chunks;
};

template <int R> __device__ static inline int item_of(const topk_deal &d, int chunk, int i)
{
    return chunk * (R * THREADS * 4) + ((threadIdx.x >> 5) * d.rounds + i) * 128 + (threadIdx.x & 31) * 4;
}

/* May run before the row's length is known; whatever lies behind it comes along. */
template <typename K, int R>
__device__ static inline void load_chunk(const topk_row &r, const topk_deal &d, int chunk,
                                         typename K::four (&v)[R])
{
#pragma unroll
    for (int i = 0; i < R; i++)
        v[i] = i < d.rounds ? K::load(r, item_of<R>(d, chunk, i)) : K::none();
}

/* Takes out what does not count: beyond the row, and forced ones. */
template <typename K, int R>
__device__ static inline void trim_chunk(const topk_row &r, const topk_deal &d, int chunk,
                                         typename K::four (&v)[R])
{
    int last = chunk * (R * THREADS * 4) + ((threadIdx.x >> 5) + 1) * d.rounds * 128;

    if (last <= d.n && !r.gates)
        return;
#pragma unroll
    for (int i = 0; i < R; i++) {
        int left = d.n - item_of<R>(d, chunk, i);
        uint32_t drop = left >= 4 ? 0u : left <= 0 ? 15u : 15u << left & 15u;
        if (r.gates)
            drop |= forced_of<K>(r, item_of<R>(d, chunk, i));
        v[i] = K::mask(v[i], (int)drop);
    }
}

/* Calls f(maximum) for every group of the chunk: of one item (each 0) or of `each` (1, 2, 4) rounds' four. */
template <typename K, int R, typename F>
__device__ static inline void each_group(const typename K::four (&v)[R], int each, F f)
{
    if (each == 0) {
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (K::key(v[i], e))
                    f(K::key(v[i], e));
    } else if (each == 1) {
#pragma unroll
        for (int i = 0; i < R; i++) {
            uint32_t best = K::best(v[i]);
            if (best)
                f(best);
        }
    } else if (each == 2) {
#pragma unroll
        for (int i = 0; i < R; i += 2) {
            uint32_t best = max(K::best(v[i]), K::best(v[i + 1]));
            if (best)
                f(best);
        }
    } else {
#pragma unroll
        for (int i = 0; i < R; i += 4) {
            uint32_t best =
                max(max(K::best(v[i]), K::best(v[i + 1])), max(K::best(v[i + 2]), K::best(v[i + 3])));
            if (best)
                f(best);
        }
    }
}

/* A lower bound of the need-th largest key that is not forced, 0 if there is none to be had; *top: the
 * largest. */
template <typename K, int R>
__device__ static uint32_t lower_bound(topk_shared &s, const topk_row &r, const topk_deal &d,
                                       typename K::four (&v)[R], uint32_t need, uint32_t *top)
{
    int each = 4, units = (d.n + 3) / 4;
    uint32_t lo = 0xffffffffu, hi = 0;

    while (each > 1 && units / each < 2 * (int)need)
        each /= 2;
    if (units / each < (int)(need + need / 4))
        each = 0;
    clear_bins(s);
    if (threadIdx.x == 0)
        s.found = 0;
    for (int c = 0; c < d.chunks; c++) {
        if (d.chunks > 1) {
            load_chunk<K, R>(r, d, c, v);
            trim_chunk<K, R>(r, d, c, v);
        }
        each_group<K, R>(v, each, [&](uint32_t k) {
            lo = min(lo, k);
            hi = max(hi, k);
        });
    }
    block_range(s, &lo, &hi);
    *top = hi;
    if (hi < lo)
        return 0;
    int shift = range_shift(lo, hi);
    for (int c = 0; c < d.chunks; c++) {
        if (d.chunks > 1) {
            load_chunk<K, R>(r, d, c, v);
            trim_chunk<K, R>(r, d, c, v);
        }
        each_group<K, R>(v, each, [&](uint32_t k) { atomicAdd(&s.hist[(k - lo) >> shift], 1u); });
    }
    __syncthreads();
    find_bin(s, need);
    return s.found ? lo + (s.bin << shift) : 0;
}

/*
 * Items that pass, in order, to places (and scores to vals). Returns how many there are; stores at most
 * `cap`. Ends without a barrier. A lane's hits are bits 4 i + e for round i; order is by round, then lane,
 * then e.
 */
template <typename K, int R>
__device__ static uint32_t collect(topk_shared &s, const topk_row &r, const topk_deal &d,
                                   typename K::four (&v)[R], uint32_t pivot, float *vals, int *places,
                                   uint32_t cap)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t done = 0;

    for (int c = 0; c < d.chunks; c++) {
        uint32_t hit = 0, total;
        if (d.chunks > 1) {
            __syncthreads(); /* counts of the chunk before have been read */
            load_chunk<K, R>(r, d, c, v);
            trim_chunk<K, R>(r, d, c, v);
        }
#pragma unroll
        for (int i = 0; i < R; i++)
            hit |= K::hits(v[i], pivot) << 4 * i;
        if (r.gates)
            for (int i = 0; i < d.rounds; i++)
                hit |= forced_of<K>(r, item_of<R>(d, c, i)) << 4 * i;
        /* Counts of rounds 0, 2, 4, 6 and 1, 3, 5, 7 in bytes: at most 128 a warp. */
        uint32_t n = hit - (hit >> 1 & 0x55555555u);
        n = (n & 0x33333333u) + (n >> 2 & 0x33333333u);
        uint32_t even = n & 0x0f0f0f0fu, odd = n >> 4 & 0x0f0f0f0fu;
        uint32_t even_inc = warp_inclusive(even), odd_inc = warp_inclusive(odd);
        uint32_t even_all = __shfl_sync(0xffffffffu, even_inc, 31),
                 odd_all = __shfl_sync(0xffffffffu, odd_inc, 31);
        if (lane == 0)
            s.count[0][warp] = __dp4a(even_all, 0x01010101u, __dp4a(odd_all, 0x01010101u, 0u));
        __syncthreads();
        uint32_t base = done + warps_before(s, 0, &total);
        done += total;
        if (done > cap)
            continue;     /* only counted from here on */
        even_inc -= even; /* exclusive from here on */
        odd_inc -= odd;
#pragma unroll
        for (int i = 0; i < R; i++) {
            uint32_t to = base + (((i & 1 ? odd_inc : even_inc) >> i / 2 * 8) & 0xff);
            int at = item_of<R>(d, c, i);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (hit >> (4 * i + e) & 1) {
                    if (K::of == 1)
                        vals[to] = K::value(v[i], e);
                    places[to] = at + e;
                    to++;
                }
            base += (i & 1 ? odd_all : even_all) >> i / 2 * 8 & 0xff;
        }
    }
    return done;
}

/* Keys from pivot on of n listed groups, in order, to places; returns how many, stores at most `cap`. */
__device__ static uint32_t collect_groups(topk_shared &s, const topk_row &r, const int *list, int n,
                                          uint32_t pivot, float *vals, int *places, uint32_t cap)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, each = min(4, (n + THREADS - 1) / THREADS);
    uint32_t done = 0, parity = 0;

    for (int first = 0; first < n; first += each * THREADS, parity ^= 1) {
        float4 v[8];
        uint32_t hit = 0, total;
        int at = first + threadIdx.x * each, count = min(max(n - at, 0), each);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = e < count ? list[at + e] * SL_HINT_GROUP : 0;
            v[2 * e] = e < count ? row_scores(r, i, r.len) : topk_scores::none();
            v[2 * e + 1] = e < count ? row_scores(r, i + 4, r.len) : topk_scores::none();
        }
#pragma unroll
        for (int e = 0; e < 8; e++)
            hit |= topk_scores::hits(v[e], pivot) << 4 * e;
        if (r.gates)
            for (int e = 0; e < 2 * count; e++)
                hit = (hit & ~(15u << 4 * e)) |
                      (forced_of<topk_scores>(r, list[at + e / 2] * SL_HINT_GROUP + e % 2 * 4) |
                       (hit >> 4 * e & 15))
                          << 4 * e;
        uint32_t own = __popc(hit), inc = warp_inclusive(own);
        if (lane == 31)
            s.count[parity][warp] = inc;
        __syncthreads();
        uint32_t to = done + warps_before(s, (int)parity, &total) + inc - own;
        done += total;
        if (done > cap)
            continue;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (e >= each)
                break;
            int i = e < count ? list[at + e] * SL_HINT_GROUP : 0;
#pragma unroll
            for (int c = 0; c < 8; c++)
                if (hit >> (8 * e + c) & 1) {
                    vals[to] = topk_scores::value(v[2 * e + c / 4], c % 4);
                    places[to] = i + c;
                    to++;
                }
        }
    }
    return done;
}

#endif
