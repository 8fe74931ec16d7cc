/*
 * Internal to topk_long.cu: the steps that the blocks of a cluster perform together, in order: compute the bound,
 * narrow the range around the cut, exchange the counts, rank the candidates around the cut, write the ids.
 */
#ifndef SL_KERNELS_CUDA_SM90_SELECT_TOPK_LONG_STEPS_CUH
#define SL_KERNELS_CUDA_SM90_SELECT_TOPK_LONG_STEPS_CUH
#include "kernels/cuda/any/select/topk_bound.cuh"
#include "kernels/cuda/any/select/topk_select.cuh"

/* Half as many as in topk.cu. The supposed reason is that the steps between barriers are shorter with fewer warps;
 * this was not measured alone. */
#define THREADS 512
#define WARPS (THREADS / 32)
#define ROUNDS 8                        /* each of four scores per thread */
#define SPAN_MAX (ROUNDS * 4 * THREADS) /* scores, or maxima of eight, per block */
#define MANY 12288                      /* candidates of a block that starts from maxima */
#define LISTED 8192                     /* groups whose scores such a block reads */
#define FEW_BITS 9 /* log2 of the number of bins that the cluster adds up, one per thread */
#define FEW (1 << FEW_BITS)
#define STEP (BINS / FEW)
#define AROUND 128 /* candidates around the cut that are ranked one by one, at most */

struct cluster_shared {
    topk_shared<THREADS> t;              /* its bins hold four histograms, which the passes use in turn */
    uint32_t low[8], high[8], counts[8]; /* of every block; counts: above the range << 16 | in the range */
    uint32_t keys[8][AROUND], around_key[AROUND], cut_key, mine, have;
    int places[8][AROUND], around_place[AROUND], cut_place;
    uint32_t taken[8], overflow;
    int passes;
};

#if __CUDA_ARCH__ >= 900
/* The address in block `rank` that corresponds to p in this block. */
__device__ static inline uint32_t peer(const void *p, int rank)
{
    return sl_cluster_addr(sl_smem_addr(p), rank);
}

/* The histogram of pass number `pass`. */
__device__ static inline uint32_t *bins_of_pass(cluster_shared &s, int pass)
{
    return s.t.hist + (pass & 3) * FEW;
}

/*
 * Adds up the blocks' histograms of this pass and finds the bin of the need-th largest key. Results, the same in all
 * blocks: s.t.bin, s.t.above, s.have, and s.t.found if such a bin exists. Contains the cluster's barrier, and clears
 * the histogram of the previous pass.
 */
template <int C> __device__ static void cluster_find(cluster_shared &s, int pass, uint32_t need)
{
    int t = threadIdx.x;
    const uint32_t *hist = bins_of_pass(s, pass) + (FEW - 1 - t);
    uint32_t n = 0;

    sl_cluster_sync();
    if (t == 0)
        s.t.found = 0;
    if (t < FEW) {
        bins_of_pass(s, pass + 3)[t] = 0;
#pragma unroll
        for (int c = 0; c < C; c++)
            n += sl_cluster_load(peer(hist, c));
    }
    uint32_t inc = sl_warp_prefix(n);
    if ((t & 31) == 31)
        s.t.scan[t >> 5] = inc;
    __syncthreads();
    uint32_t excl = __reduce_add_sync(0xffffffffu, (t & 31) < t >> 5 ? s.t.scan[t & 31] : 0) + inc - n;
    if (excl < need && need <= excl + n) {
        s.t.bin = FEW - 1 - t;
        s.t.above = excl;
        s.have = n;
        s.t.found = 1;
    }
    __syncthreads();
}

/* The smallest and largest key of the cluster, from those of each block. */
template <int C> __device__ static inline void cluster_range(cluster_shared &s, uint32_t *lo, uint32_t *hi)
{
    int t = threadIdx.x, rank = blockIdx.x % C;

    block_range(s.t, lo, hi);
    if (t < C) {
        sl_cluster_store(peer(&s.low[rank], t), *lo);
        sl_cluster_store(peer(&s.high[rank], t), *hi);
    }
    sl_cluster_sync();
    *lo = __reduce_min_sync(0xffffffffu, s.low[t % C]);
    *hi = __reduce_max_sync(0xffffffffu, s.high[t % C]);
}

/* As lower_bound() of one block: a lower bound of the need-th largest, from the row's n scores or maxima. Counts the
 * passes in s.passes. */
template <int C>
__device__ static bool cluster_bound(cluster_shared &s, int n, int rounds, const float4 (&v)[ROUNDS],
                                     uint32_t need, float *bound, float *top)
{
    int each = 4, units = (n + 3) / 4;
    const float inf = __uint_as_float(0x7f800000u);
    float low = inf, high = -inf, m[ROUNDS];
    uint32_t lo, hi, in = 0;

    while (each > 1 && units / min(each, rounds) < 2 * (int)need)
        each /= 2;
    if (units / min(each, rounds) < (int)(need + need / 4))
        each = 0;
#pragma unroll
    for (int i = 0; i < ROUNDS; i++)
        m[i] = max_of(v[i]);
    each_group<ROUNDS>(v, m, each, [&](float x) {
        low = fminf(low, x);
        high = fmaxf(high, x);
    });
    lo = sl_order_key(low);
    hi = sl_order_key(high);
    cluster_range<C>(s, &lo, &hi);
    if (hi < lo)
        return false;
    *top = score_of(hi);
    topk_bins b = make_bins(score_of(lo), *top), outer = b;
    for (int pass = 0;; pass++) {
        uint32_t *hist = bins_of_pass(s, pass);
        each_group<ROUNDS>(v, m, each, [&](float x) {
            if (x == x && (pass == 0 || bin_of(outer, x) / STEP == in))
                atomicAdd(&hist[bin_of(b, x) / STEP], 1u);
        });
        cluster_find<C>(s, pass, need);
        if (threadIdx.x == 0)
            s.passes = pass + 1;
        if (!s.t.found)
            return false;
        *bound = bin_floor(b, s.t.bin * STEP);
        if (pass == 1 || s.have <= need / 4)
            return true;
        in = s.t.bin;
        need -= s.t.above;
        b = make_bins(*bound, in == FEW - 1 ? *top : fminf(bin_floor(outer, (in + 2) * STEP), *top));
    }
}

/* Collects every score of the block's part, in order. */
__device__ static inline void collect_all(const topk_row &r, const topk_deal<THREADS> &d,
                                          const float4 (&v)[ROUNDS], float *vals, int *places)
{
#pragma unroll
    for (int i = 0; i < ROUNDS; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int at = item_of<ROUNDS>(d, 0, i) + e;
            if (i < d.rounds && at < r.len) {
                vals[at] = item_of_four(v[i], e);
                places[at] = at;
            }
        }
}

/* Narrows the range until all candidates in it are wanted, or have one value, or are few. False when the candidates of
 * some block did not fit. */
template <int C>
__device__ static bool cluster_narrow(cluster_shared &s, const float *vals, int n, int pass, topk_range *g)
{
    do {
        uint32_t *hist = bins_of_pass(s, pass);
        int shift = max(32 - __clz(g->hi - g->lo) - FEW_BITS, 0);
        for (int i = threadIdx.x; i < n; i += THREADS) {
            uint32_t key = sl_order_key(vals[i]);
            if (key >= g->lo && key <= g->hi)
                atomicAdd(&hist[(key - g->lo) >> shift], 1u);
        }
        cluster_find<C>(s, pass++, g->need);
        if (s.overflow)
            return false;
        g->need -= s.t.above;
        g->have = s.have;
        g->lo += s.t.bin << shift;
        g->hi = min(g->hi, g->lo + (uint32_t)((1ull << shift) - 1));
    } while (g->have != g->need && g->have > AROUND && g->lo != g->hi);
    return true;
}

/* Sends to every block how many of this block's candidates are above the range and in it and, if they are to be
 * ranked, those in it. */
template <int C>
__device__ static void cluster_tell(cluster_shared &s, const float *vals, const int *places, int n,
                                    topk_range g, bool ranked, int first)
{
    int rank = blockIdx.x % C;
    uint32_t count = 0;

    for (int i = threadIdx.x; i < n; i += THREADS) {
        uint32_t key = sl_order_key(vals[i]);
        bool in = key >= g.lo && key <= g.hi;
        count += key > g.hi ? 0x10000u : in ? 1u : 0u;
        if (in && ranked) {
            uint32_t m = atomicAdd(&s.t.members, 1u);
            for (int c = 0; c < C; c++) {
                sl_cluster_store(peer(&s.keys[rank][m], c), key);
                sl_cluster_store(peer(&s.places[rank][m], c), (uint32_t)(first + places[i]));
            }
        }
    }
    count = __reduce_add_sync(0xffffffffu, count);
    if ((threadIdx.x & 31) == 0 && count)
        atomicAdd(&s.mine, count);
    __syncthreads();
    if (threadIdx.x < C)
        sl_cluster_store(peer(&s.counts[rank], threadIdx.x), s.mine);
    sl_cluster_sync();
}

/* Ranks the candidates around the cut: finds the last one that is wanted, and how many each block contributes. */
template <int C> __device__ static void cluster_rank(cluster_shared &s, topk_range g)
{
    int t = threadIdx.x, c = t / AROUND, m = t % AROUND;
    uint32_t before;

    for (; c < C; c += THREADS / AROUND)
        if (m < (int)(s.counts[c] & 0xffff)) {
            before = 0;
            for (int b = 0; b < c; b++)
                before += s.counts[b] & 0xffff;
            s.around_key[before + m] = s.keys[c][m];
            s.around_place[before + m] = s.places[c][m];
        }
    __syncthreads();
    for (uint32_t i = t >> 5; i < g.have; i += WARPS) {
        uint32_t key = s.around_key[i], better = 0;
        int place = s.around_place[i];
        for (uint32_t j = 0; j < g.have; j += 32) {
            uint32_t at = j + (t & 31);
            bool ahead = at < g.have &&
                         (s.around_key[at] > key || (s.around_key[at] == key && s.around_place[at] < place));
            better += __popc(__ballot_sync(0xffffffffu, ahead));
        }
        if ((t & 31) == 0 && better < g.need) {
            uint32_t seen = 0;
            for (c = 0; c < C - 1 && (seen += s.counts[c] & 0xffff) <= i; c++)
                ;
            atomicAdd(&s.taken[c], 1u);
            if (better == g.need - 1) {
                s.cut_key = key;
                s.cut_place = place;
            }
        }
    }
    __syncthreads();
}

/* Writes the ids of this block's candidates that are selected, in order. */
template <int C>
__device__ static void cluster_write(cluster_shared &s, const float *vals, const int *places, int n,
                                     topk_range g, bool ranked, int first, int32_t *ids)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = blockIdx.x % C;
    uint32_t at = 0, equal = 0, below = (1u << lane) - 1, parity = 0;
    bool ties = !ranked && g.have != g.need;

    for (int c = 0; c < rank; c++) {
        at += (s.counts[c] >> 16) + (ranked ? s.taken[c] : ties ? 0 : s.counts[c] & 0xffff);
        equal += s.counts[c] & 0xffff;
    }
    for (int i0 = 0; i0 < n; i0 += THREADS, parity ^= 1) {
        int i = i0 + (int)threadIdx.x;
        uint32_t key = i < n ? sl_order_key(vals[i]) : 0, total;
        int place = i < n ? first + places[i] : 0;
        bool in = i < n && key >= g.lo && key <= g.hi, eq = in && ties, take = i < n && key > g.hi;
        if (in && !ties)
            take = !ranked || key > s.cut_key || (key == s.cut_key && place <= s.cut_place);
        uint32_t mt = __ballot_sync(0xffffffffu, take), me = __ballot_sync(0xffffffffu, eq);
        if (lane == 0)
            s.t.count[parity][warp] = __popc(mt) | __popc(me) << 16;
        __syncthreads();
        uint32_t b = warps_before(s.t, (int)parity, &total);
        uint32_t to = at + (b & 0xffff) + __popc(mt & below), e = equal + (b >> 16) + __popc(me & below);
        if (take || (eq && e < g.need))
            ids[to + (ties ? min(e, g.need) : 0)] = place;
        at += total & 0xffff;
        equal += total >> 16;
    }
}
#endif

#endif
