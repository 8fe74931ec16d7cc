/*
 * Internal to top-k: the exact cut, and the selected ids in ascending order. They come from candidates in shared
 * memory or, where more are left than fit, from the whole row by radix passes. See topk.cu.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_TOPK_SELECT_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_TOPK_SELECT_CUH

#include "kernels/cuda/any/select/topk_row.cuh"

/* Whether a candidate of the undecided range is wanted: larger keys first, and of equal keys smaller places first. */
template <int N>
__device__ static inline bool among(const topk_shared<N> &s, uint32_t key, int place, uint32_t need)
{
    uint32_t rank = 0;

    for (uint32_t m = 0; m < s.members; m++)
        rank += s.member_key[m] > key || (s.member_key[m] == key && s.member_id[m] < place);
    return rank < need;
}

/*
 * Selects `need` of the n candidates that are not forced, and all forced ones, and writes their ids in order. On entry
 * the range is [pivot, largest key] and the bins are clear. A thread has consecutive candidates, at most M.
 */
template <int M, int N>
__device__ static void select_candidates(topk_shared<N> &s, const topk_row &r, const float *vals,
                                         const int *places, int n, topk_range g, int32_t *ids)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, each = (n + N - 1) / N;
    int from = threadIdx.x * each, shift = 1;
    uint32_t key[M], own = 0, sel = 0, total;

#pragma unroll
    for (int j = 0; j < M; j++) {
        key[j] = 0;
        if (j < each && from + j < n)
            key[j] = forced(r, places[from + j]) ? KEY_FORCED : sl_order_key(vals[from + j]);
    }
    for (bool first = true;
         g.need && shift > 0 && g.have != g.need && (first || g.have > MEMBERS || g.have == (uint32_t)n);
         first = false) {
        if (!first) {
            __syncthreads();
            clear_bins(s);
            __syncthreads();
        }
        shift = range_shift(g.lo, g.hi);
#pragma unroll
        for (int j = 0; j < M; j++)
            if (j < each && key[j] >= g.lo && key[j] <= g.hi)
                atomicAdd(&s.hist[(key[j] - g.lo) >> shift], 1u);
        if (threadIdx.x == 0)
            s.members = 0;
        __syncthreads();
        narrow(s, &g, shift);
    }
    bool ties = g.have != g.need && g.lo == g.hi, ranked = g.have != g.need && !ties;
    if (ranked) {
#pragma unroll
        for (int j = 0; j < M; j++)
            if (j < each && key[j] >= g.lo && key[j] <= g.hi) {
                uint32_t m = atomicAdd(&s.members, 1u);
                s.member_key[m] = key[j];
                s.member_id[m] = places[from + j];
            }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < M; j++)
        if (j < each) {
            bool in = key[j] >= g.lo && key[j] <= g.hi, take = key[j] > g.hi || (in && !ties);
            if (in && ranked)
                take = among(s, key[j], places[from + j], g.need);
            own += (take ? 1u : 0u) + (in && ties ? 0x10000u : 0u);
            sel |= (take ? 1u : 0u) << j;
        }
    uint32_t inc = sl_warp_prefix(own);
    if (lane == 31)
        s.count[1][warp] = inc;
    __syncthreads();
    uint32_t before = warps_before(s, 1, &total) + inc - own;
    uint32_t at = before & 0xffff, equal = before >> 16;
#pragma unroll
    for (int j = 0; j < M; j++)
        if (j < each) {
            bool take = sel >> j & 1, eq = ties && key[j] == g.lo;
            if (take || (eq && equal < g.need))
                ids[at + min(equal, ties ? g.need : 0)] = places[from + j];
            at += take;
            equal += eq;
        }
}

/* Adds 1 to the bin of every lane with `in`; lanes with the same bin share one atomic, for up to
 * two different bins. All lanes call it. */
__device__ static inline void add_bins(uint32_t *hist, bool in, uint32_t bin)
{
    uint32_t mask = __ballot_sync(0xffffffffu, in);

    for (int k = 0; k < 2 && mask; k++) {
        int leader = __ffs(mask) - 1;
        uint32_t b = __shfl_sync(0xffffffffu, bin, leader), same = __ballot_sync(0xffffffffu, in && bin == b);
        if ((int)(threadIdx.x & 31) == leader)
            atomicAdd(&hist[b], __popc(same));
        in = in && bin != b;
        mask &= ~same;
    }
    if (in)
        atomicAdd(&hist[bin], 1u);
}

/* Keys i to i + 3 for the passes over the whole row; *valid has a bit for each key that exists. */
__device__ static inline uint4 row_keys(const topk_row &r, int i, int to, uint32_t *valid)
{
    float4 v = row_scores(r, i, r.len);
    uint4 k = make_uint4(sl_order_key(v.x), sl_order_key(v.y), sl_order_key(v.z), sl_order_key(v.w));
    int left = to - i;

    *valid = left >= 4 ? 15u : left <= 0 ? 0u : (1u << left) - 1;
    if (r.gates) {
        uint32_t f = forced_of<topk_scores>(r, i);
        k = make_uint4(f & 1 ? KEY_FORCED : k.x, f & 2 ? KEY_FORCED : k.y, f & 4 ? KEY_FORCED : k.z,
                       f & 8 ? KEY_FORCED : k.w);
    }
    return k;
}

/* The part of the row that this warp reads: from *from to *to - 1. */
template <int N> __device__ static inline void warp_part(const topk_row &r, int *from, int *to)
{
    int seg = ((r.len + N / 32 - 1) / (N / 32) + 127) / 128 * 128;

    *from = min((int)(threadIdx.x >> 5) * seg, r.len);
    *to = min(*from + seg, r.len);
}

/* Writes to s.count how many keys of each warp's part are above the range and in it; narrows the range to the
 * smallest and largest key in it. */
template <int N> __device__ static void survey(topk_shared<N> &s, const topk_row &r, topk_range *g)
{
    int lane = threadIdx.x & 31, from, to;
    uint32_t gt = 0, in = 0, lo = 0xffffffffu, hi = 0, valid;

    warp_part<N>(r, &from, &to);
#pragma unroll 4
    for (int i = from + lane * 4; i < to; i += 128) {
        uint4 v = row_keys(r, i, to, &valid);
        const uint32_t k[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            bool there = valid >> c & 1, inside = there && k[c] >= g->lo && k[c] <= g->hi;
            gt += there && k[c] > g->hi;
            in += inside;
            lo = inside ? min(lo, k[c]) : lo;
            hi = inside ? max(hi, k[c]) : hi;
        }
    }
    gt = __reduce_add_sync(0xffffffffu, gt);
    in = __reduce_add_sync(0xffffffffu, in);
    if (lane == 0) {
        s.count[0][threadIdx.x >> 5] = gt;
        s.count[1][threadIdx.x >> 5] = in;
    }
    block_range(s, &lo, &hi);
    warps_before(s, 1, &g->have);
    if (lo <= hi) {
        g->lo = lo;
        g->hi = hi;
    }
}

/* Writes the selected ids of the row in order, after a survey: the whole range is wanted, or it is one value. */
template <int N>
__device__ static void write_row(topk_shared<N> &s, const topk_row &r, topk_range g, int32_t *ids)
{
    int lane = threadIdx.x & 31, from, to;
    uint32_t total, gt = warps_before(s, 0, &total), in = warps_before(s, 1, &total),
                    last = gt + s.count[0][threadIdx.x >> 5], below = (1u << lane) - 1;

    warp_part<N>(r, &from, &to);
    for (int base = from; base < to && (in < g.need || gt < last); base += 32 * AT_ONCE) {
        uint32_t k[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = base + j * 32 + lane;
            k[j] = i < to ? key_at(r, i) : 0;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = base + j * 32 + lane;
            bool is_gt = i < to && k[j] > g.hi, is_in = i < to && k[j] >= g.lo && k[j] <= g.hi;
            uint32_t mg = __ballot_sync(0xffffffffu, is_gt), me = __ballot_sync(0xffffffffu, is_in);
            uint32_t e = in + __popc(me & below), at = gt + __popc(mg & below) + min(e, g.need);
            if (is_gt || (is_in && e < g.need))
                ids[at] = i;
            gt += __popc(mg);
            in += __popc(me);
        }
    }
}

/* For few distinct values: surveys and radix passes over the row, from the lower bound on. A separate function,
 * because inlined it would cost its callers registers that they need. */
template <int N>
__device__ static __noinline__ void whole_row(topk_shared<N> &s, const topk_row &r, uint32_t pivot,
                                              uint32_t need, int32_t *ids)
{
    topk_range g = {pivot, KEY_FORCED - 1, need, 0};
    int from, to;
    uint32_t valid;

    if (need == 0)
        g = {KEY_FORCED, KEY_FORCED, KEY_FORCED, 0}; /* only the forced tokens */
    warp_part<N>(r, &from, &to);
    for (;;) {
        __syncthreads();
        survey(s, r, &g);
        if (g.have <= g.need || g.lo == g.hi)
            break;
        int shift = range_shift(g.lo, g.hi);
        __syncthreads();
        clear_bins(s);
        __syncthreads();
#pragma unroll 2
        for (int i = from + (threadIdx.x & 31) * 4; i - (int)(threadIdx.x & 31) * 4 < to; i += 128) {
            uint4 v = row_keys(r, i, to, &valid);
            const uint32_t k[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int c = 0; c < 4; c++)
                add_bins(s.hist, (valid >> c & 1) && k[c] >= g.lo && k[c] <= g.hi, (k[c] - g.lo) >> shift);
        }
        __syncthreads();
        narrow(s, &g, shift);
    }
    write_row(s, r, g, ids);
}

#endif
