/*
 * Internal to top-k: the lower bound that reduces a row, computed from its scores or from the maxima of its groups,
 * and the collection of the candidates that reach the bound, in row order. See topk.cu.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_TOPK_BOUND_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_TOPK_BOUND_CUH

#include "kernels/cuda/any/select/topk_row.cuh"

/* How the items are assigned to N threads: a warp has consecutive items, four per lane and round. */
template <int N> struct topk_deal {
    int n, rounds, chunks;
};

template <int R, int N> __device__ static inline int item_of(const topk_deal<N> &d, int chunk, int i)
{
    return chunk * (R * N * 4) + ((threadIdx.x >> 5) * d.rounds + i) * 128 + (threadIdx.x & 31) * 4;
}

/* May run before the row's length is known; it then also loads the values after the row's end. */
template <typename K, int R, int N>
__device__ static inline void load_chunk(const topk_row &r, const topk_deal<N> &d, int chunk, float4 (&v)[R])
{
    const float none = __uint_as_float(0x7fffffffu);

#pragma unroll
    for (int i = 0; i < R; i++)
        v[i] = i < d.rounds ? K::load(r, item_of<R>(d, chunk, i)) : make_float4(none, none, none, none);
}

/* Replaces by NaN the values that do not count: those after the row's end, and forced ones. */
template <typename K, int R, int N>
__device__ static inline void trim_chunk(const topk_row &r, const topk_deal<N> &d, int chunk, float4 (&v)[R])
{
    const float none = __uint_as_float(0x7fffffffu);
    int last = chunk * (R * N * 4) + ((threadIdx.x >> 5) + 1) * d.rounds * 128;

    if (last <= d.n && !r.gates)
        return;
#pragma unroll
    for (int i = 0; i < R; i++) {
        int left = d.n - item_of<R>(d, chunk, i);
        uint32_t drop = left >= 4 ? 0u : left <= 0 ? 15u : 15u << left & 15u;
        if (r.gates)
            drop |= forced_of<K>(r, item_of<R>(d, chunk, i));
        v[i] = make_float4(drop & 1 ? none : v[i].x, drop & 2 ? none : v[i].y, drop & 4 ? none : v[i].z,
                           drop & 8 ? none : v[i].w);
    }
}

/* Calls f(maximum) for every group of the chunk. A group is one item (each == 0), or four items of each of `each` (1,
 * 2 or 4) rounds; m holds the maxima of each four. The maximum of a group without values is NaN. */
template <int R, typename F>
__device__ static inline void each_group(const float4 (&v)[R], const float (&m)[R], int each, F f)
{
    if (each == 0) {
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                f(item_of_four(v[i], e));
    } else if (each == 1) {
#pragma unroll
        for (int i = 0; i < R; i++)
            f(m[i]);
    } else if (each == 2) {
#pragma unroll
        for (int i = 0; i < R; i += 2)
            f(fmaxf(m[i], m[i + 1]));
    } else {
#pragma unroll
        for (int i = 0; i < R; i += 4)
            f(fmaxf(fmaxf(m[i], m[i + 1]), fmaxf(m[i + 2], m[i + 3])));
    }
}

/*
 * Bins of equal width from lo to hi. The mapping is monotonic however it is rounded, so a bin is a range of scores.
 * The bins are linear in the scores, not in their ordered keys. With bins in the keys, each bin was an eighth of a
 * power of two wide as soon as the range contained negative and positive scores, and up to twice as many candidates
 * were measured.
 */
struct topk_bins {
    float scale, shift, lo;
};

#define BIN_BASE 8388608.0f /* 2^23: floats from here on are whole numbers */

__device__ static inline topk_bins make_bins(float lo, float hi)
{
    topk_bins b;

    b.lo = lo;
    lo = fmaxf(lo, -1e38f);
    hi = fminf(hi, 1e38f);
    b.scale = fminf((float)(BINS - 1) / fmaxf(hi - lo, 1e-30f), 1e30f);
    b.shift = fmaf(-lo, b.scale, BIN_BASE);
    return b;
}

__device__ static inline uint32_t bin_of(const topk_bins &b, float v)
{
    float x = fminf(fmaxf(fmaf(v, b.scale, b.shift), BIN_BASE), BIN_BASE + (float)(BINS - 1));

    return __float_as_uint(x) - __float_as_uint(BIN_BASE);
}

/* A value not above any score of this bin, and only slightly below: one bin lower, less the error of rounding. */
__device__ static inline float bin_floor(const topk_bins &b, uint32_t bin)
{
    float v = (BIN_BASE + (float)bin - b.shift - 1.0f) / b.scale;

    return bin == 0 ? b.lo : fmaxf(v - fabsf(v) * 4.8e-7f, b.lo);
}

/* A lower bound of the need-th largest score that is not forced; false if there is none. *top: the largest score. */
template <typename K, int R, int N>
__device__ static bool lower_bound(topk_shared<N> &s, const topk_row &r, const topk_deal<N> &d,
                                   float4 (&v)[R], uint32_t need, float *bound, float *top)
{
    int each = 4, units = (d.n + 3) / 4;
    const float inf = __uint_as_float(0x7f800000u);
    float low = inf, high = -inf, m[R];
    uint32_t lo, hi, in = 0;

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
#pragma unroll
        for (int i = 0; i < R; i++)
            m[i] = max_of(v[i]);
        each_group<R>(v, m, each, [&](float x) {
            low = fminf(low, x);
            high = fmaxf(high, x);
        });
    }
    lo = sl_order_key(low);
    hi = sl_order_key(high);
    block_range(s, &lo, &hi);
    if (hi < lo)
        return false;
    *top = score_of(hi);
    topk_bins b = make_bins(score_of(lo), *top), outer = b;
    for (int pass = 0;; pass++) {
        for (int c = 0; c < d.chunks; c++) {
            if (d.chunks > 1 || (R > 4 && each == 0)) {
                load_chunk<K, R>(r, d, c, v);
                trim_chunk<K, R>(r, d, c, v);
#pragma unroll
                for (int i = 0; i < R; i++)
                    m[i] = max_of(v[i]);
            }
            each_group<R>(v, m, each, [&](float x) {
                if (x == x && (pass == 0 || bin_of(outer, x) == in))
                    atomicAdd(&s.hist[bin_of(b, x)], 1u);
            });
        }
        __syncthreads();
        find_bin(s, need);
        if (!s.found)
            return false;
        *bound = bin_floor(b, s.bin);
        if (pass == 1 || s.hist[s.bin] <= need / 4)
            return true;
        /* One bin holds many of the wanted scores, for example when few scores are far from all others: a second
         * pass divides this bin. */
        in = s.bin;
        need -= s.above;
        b = make_bins(*bound, in == BINS - 1 ? *top : fminf(bin_floor(outer, in + 2), *top));
        __syncthreads();
        clear_bins(s);
        __syncthreads();
    }
}

/*
 * Writes the items that pass, in order, to places (and scores to vals). Returns their number; stores at most `cap`.
 * Does not end with a barrier. Bit 4 i + e of a lane's hits is element e of round i; the order is by round, then
 * lane, then e.
 */
template <typename K, int R, int N>
__device__ static uint32_t collect(topk_shared<N> &s, const topk_row &r, const topk_deal<N> &d,
                                   float4 (&v)[R], float pivot, float *vals, int *places, uint32_t cap)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t done = 0;

    for (int c = 0; c < d.chunks; c++) {
        uint32_t hit = 0, total;
        if (c > 0)
            __syncthreads(); /* the counts of the previous chunk have been read */
        if (d.chunks > 1) {
            load_chunk<K, R>(r, d, c, v);
            trim_chunk<K, R>(r, d, c, v);
        }
#pragma unroll
        for (int i = 0; i < R; i++)
            hit |= hits_of(v[i], pivot) << 4 * i;
        if (r.gates)
            for (int i = 0; i < d.rounds; i++)
                hit |= forced_of<K>(r, item_of<R>(d, c, i)) << 4 * i;
        /* The counts of the rounds are bytes, four rounds per word: a warp has at most 128 hits per round. */
        uint32_t own[R / 4], inc[R / 4], all[R / 4], sum = 0;
#pragma unroll
        for (int h = 0; h < R / 4; h++) {
            uint32_t n = hit >> 16 * h & 0xffffu;
            n = n - (n >> 1 & 0x5555u);
            n = (n & 0x3333u) + (n >> 2 & 0x3333u);
            own[h] = (n & 15) | (n & 0xf0) << 4 | (n & 0xf00) << 8 | (n & 0xf000) << 12;
            inc[h] = sl_warp_prefix(own[h]);
            all[h] = __shfl_sync(0xffffffffu, inc[h], 31);
            sum = __dp4a(all[h], 0x01010101u, sum);
        }
        if (lane == 0)
            s.count[0][warp] = sum;
        __syncthreads();
        uint32_t base = done + warps_before(s, 0, &total);
        done += total;
        if (done > cap)
            continue; /* there is no room: the rest is only counted */
#pragma unroll
        for (int i = 0; i < R; i++) {
            uint32_t to = base + ((inc[i / 4] - own[i / 4]) >> i % 4 * 8 & 0xff);
            int at = item_of<R>(d, c, i);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (hit >> (4 * i + e) & 1) {
                    if (K::of == 1)
                        vals[to] = item_of_four(v[i], e);
                    places[to] = at + e;
                    to++;
                }
            base += all[i / 4] >> i % 4 * 8 & 0xff;
        }
    }
    return done;
}

#define GROUPS 3 /* groups that a thread holds at once; other values were not measured */

/* Writes the scores >= pivot of n listed groups, in order, to vals and places; returns their number, stores at most
 * `cap`. */
template <int N>
__device__ static uint32_t collect_groups(topk_shared<N> &s, const topk_row &r, const int *list, int n,
                                          float pivot, float *vals, int *places, uint32_t cap)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, each = min(GROUPS, (n + N - 1) / N);
    bool whole = r.wide && r.limit % SL_HINT_GROUP == 0;
    uint32_t done = 0, parity = 0;

    for (int first = 0; first < n; first += each * N, parity ^= 1) {
        float4 v[2 * GROUPS];
        int group[GROUPS];
        uint32_t hit = 0, total;
        int at = first + threadIdx.x * each, count = min(max(n - at, 0), each);
#pragma unroll
        for (int e = 0; e < GROUPS; e++)
            if (e < each) { /* unconditional loads, all in flight; surplus hits are cleared below */
                group[e] = list[min(at + e, n - 1)] * SL_HINT_GROUP;
                if (whole) {
                    v[2 * e] = *(const float4 *)(r.scores + group[e]);
                    v[2 * e + 1] = *(const float4 *)(r.scores + group[e] + 4);
                } else {
                    v[2 * e] = row_scores(r, group[e], r.len);
                    v[2 * e + 1] = row_scores(r, group[e] + 4, r.len);
                }
            }
#pragma unroll
        for (int e = 0; e < GROUPS; e++)
            if (e < each) {
                uint32_t h = hits_of(v[2 * e], pivot) | hits_of(v[2 * e + 1], pivot) << 4;
                if (r.gates)
                    h |= forced_of<topk_scores>(r, group[e]) | forced_of<topk_scores>(r, group[e] + 4) << 4;
                if (group[e] + SL_HINT_GROUP > r.len) /* the last group: without the values after the end */
                    h &= (1u << (r.len - group[e])) - 1;
                hit |= (e < count ? h : 0) << 8 * e;
            }
        uint32_t own = __popc(hit), inc = sl_warp_prefix(own);
        if (lane == 31)
            s.count[parity][warp] = inc;
        __syncthreads();
        uint32_t to = done + warps_before(s, (int)parity, &total) + inc - own;
        done += total;
        if (done > cap)
            continue;
#pragma unroll
        for (int e = 0; e < GROUPS; e++) {
            if (e >= each)
                break;
#pragma unroll
            for (int c = 0; c < 8; c++)
                if (hit >> (8 * e + c) & 1) {
                    vals[to] = item_of_four(v[2 * e + c / 4], c % 4);
                    places[to] = group[e] + c;
                    to++;
                }
        }
    }
    return done;
}

#endif
