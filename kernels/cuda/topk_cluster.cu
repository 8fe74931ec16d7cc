/*
 * Exact top-k of few rows: a row over the blocks of a cluster, so that it is read by several SMs at once and
 * stays in their registers. The same cut as in topk.cu, but what is shared goes through distributed shared
 * memory: the range of the maxima, their histogram, then histograms of the candidates' keys until the few
 * around the cut are known to every block; each block then writes its own part of the ids.
 *
 * Rows that fit the registers of a cluster are read once; a block has room for all of its part, so rows of
 * few distinct values only take more passes. Longer ones start from the hint, as in topk.cu; where the
 * candidates of a block do not fit, the first block takes the whole row. Forced tokens, and more rows than
 * clusters of two, are topk.cu's.
 *
 * Bound by latency: four or five cluster barriers with a chain of loads from shared memory behind each.
 */
#include <type_traits>

#define THREADS 512 /* half as many warps as in topk.cu: the steps between barriers are shorter */

#include "kernels/cuda/topk_bound.cuh"
#include "kernels/cuda/topk_cluster.cuh"
#include "kernels/cuda/topk_select.cuh"
#include "kernels/cuda/wgmma.cuh"

#define ROUNDS 8                        /* four scores a thread each */
#define SPAN_MAX (ROUNDS * 4 * THREADS) /* scores, or maxima of eight, of a block */
#define MANY 12288                      /* candidates of a block that starts from maxima */
#define LISTED 8192                     /* groups that it looks at */
#define FEW_BITS 9                      /* of the number of bins that the cluster adds up, one a thread */
#define FEW (1 << FEW_BITS)
#define STEP (BINS / FEW)
#define AROUND 128 /* candidates around the cut that are ranked one by one */

struct cluster_shared {
    topk_shared t;                       /* its bins: four histograms in turns */
    uint32_t low[8], high[8], counts[8]; /* of every block; counts: above the range << 16 | in it */
    uint32_t keys[8][AROUND], around_key[AROUND], cut_key, mine, have;
    int places[8][AROUND], around_place[AROUND], cut_place;
    uint32_t taken[8], overflow;
    int passes;
};

#if __CUDA_ARCH__ >= 900
/* Where block `rank` has what lies at p here. */
__device__ static inline uint32_t peer(const void *p, int rank)
{
    return sl_cluster_addr(sl_smem_addr(p), rank);
}

/* The histogram of the next pass; clear. */
__device__ static inline uint32_t *bins_of_pass(cluster_shared &s, int pass)
{
    return s.t.hist + (pass & 3) * FEW;
}

/*
 * Adds up the pass's histograms and finds the bin of the need-th largest: s.t.bin, s.t.above, s.have, and
 * s.t.found if there is one. All blocks get the same. Contains the cluster's barrier and clears what the pass
 * before this one has used.
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
    uint32_t inc = warp_inclusive(n);
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

/* Smallest and largest of the cluster, from each block's. */
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

/* As lower_bound() of one block: a lower bound of the need-th largest, from the row's n scores or maxima.
 * Counts the passes. */
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

/* Every score of the block's part, in order. */
__device__ static inline void collect_all(const topk_row &r, const topk_deal &d, const float4 (&v)[ROUNDS],
                                          float *vals, int *places)
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

/* Narrows the range until all in it are wanted, or are one value, or are few. False when the candidates of
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

/* Lets every block know how many of this one's candidates lie above the range and in it and, if they are to
 * be ranked, which. */
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

/* Ranks what lies around the cut: the last one that is wanted, and how many are of each block. */
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

/* A row whose candidates are too many: the first block, alone. */
template <int C>
__device__ static void one_block(cluster_shared &s, const topk_row &row, uint32_t from, int k, int32_t *ids)
{
    sl_cluster_sync(); /* nobody reads anybody's bins any more */
    if (blockIdx.x % C == 0)
        whole_row(s.t, row, from, (uint32_t)k, ids);
}

/* Selects k of the scores of a row, of which this block holds those from `first` on, or their maxima, in v.
 */
template <typename K, int C>
__device__ static void cluster_select(cluster_shared &s, const topk_row &row, topk_deal d,
                                      float4 (&v)[ROUNDS], int k, int first, uint8_t *smem, int32_t *ids)
{
    const uint32_t room = K::of == 1 ? SPAN_MAX : MANY;
    float *vals = (float *)smem, pivot = 0, top = 0;
    int *places = (int *)(vals + room), *list = places + room;
    topk_range g = {0, KEY_FORCED - 1, (uint32_t)k, 0};
    topk_row r = row;
    uint32_t have;

    r.scores += first;
    r.hint += first / SL_HINT_GROUP;
    r.limit = min(max(row.limit - first, 0), d.rounds * 4 * THREADS * K::of);
    r.len = min(max(row.len - first, 0), d.rounds * 4 * THREADS * K::of);
    d.n = (r.len + K::of - 1) / K::of;
    trim_chunk<K, ROUNDS>(r, d, 0, v);
    bool bounded = cluster_bound<C>(s, (row.len + K::of - 1) / K::of, d.rounds, v, (uint32_t)k, &pivot, &top);
    if (bounded) {
        g.lo = sl_order_key(pivot);
        g.hi = sl_order_key(top);
    }
    if (K::of > 1) {
        if (!bounded) {
            one_block<C>(s, row, 0, k, ids);
            return;
        }
        have = collect<K, ROUNDS>(s.t, r, d, v, pivot, NULL, list, LISTED);
        __syncthreads();
        have = have > LISTED ? room + 1 : collect_groups(s.t, r, list, (int)have, pivot, vals, places, room);
        if (have > room) {
            if (threadIdx.x < C)
                sl_cluster_store(peer(&s.overflow, threadIdx.x), 1);
            have = 0;
        }
    } else if (bounded) {
        have = collect<K, ROUNDS>(s.t, r, d, v, pivot, vals, places, room);
    } else {
        have = r.len;
        collect_all(r, d, v, vals, places);
    }
    __syncthreads();
    if (!cluster_narrow<C>(s, vals, (int)have, s.passes, &g)) {
        one_block<C>(s, row, sl_order_key(pivot), k, ids);
        return;
    }
    bool ranked = g.have != g.need && g.lo != g.hi;
    cluster_tell<C>(s, vals, places, (int)have, g, ranked, first);
    if (ranked)
        cluster_rank<C>(s, g);
    cluster_write<C>(s, vals, places, (int)have, g, ranked, first, ids);
}

/* Loads this block's part of the row, or of its maxima; returns where it begins. */
template <typename K, int C>
__device__ static inline int cluster_load(const topk_row &row, const topk_deal &d, float4 (&v)[ROUNDS])
{
    int first = (int)(blockIdx.x % C) * d.rounds * 4 * THREADS * K::of;
    topk_row r = row;

    r.scores += first;
    r.hint += first / SL_HINT_GROUP;
    r.limit = min(max(row.limit - first, 0), d.rounds * 4 * THREADS * K::of);
    load_chunk<K, ROUNDS>(r, d, 0, v);
    return first;
}
#endif

/* A cluster a row; `rounds` of a block's registers are used: for the row's scores, or for its hint. Rows of
 * no more than SL_HINT_MIN have no hint. */
template <int C, bool H>
__global__ static void __launch_bounds__(THREADS, 1)
    cluster_kernel(sl_topk_params p, sl_seq_tables seqs, const float *hint, int ld_hint, int rounds,
                   uint32_t *deverr)
{
#if __CUDA_ARCH__ >= 900
    typedef typename std::conditional<H, topk_maxima, topk_scores>::type K;
    extern __shared__ __align__(16) uint8_t smem[];
    __shared__ __align__(16) cluster_shared s;
    int at = blockIdx.x / C, t = p.token_first + at, first;
    const int32_t *seq_at = seqs.token_seq + t, *pos_at = seqs.token_pos + t;
    int32_t *ids = p.ids + (int64_t)t * p.ld_ids;
    topk_row row = {};
    topk_deal d = {0, rounds, 1};
    float4 v[ROUNDS];

    row.limit = p.ld_scores;
    row.scores = p.scores + (int64_t)at * p.ld_scores;
    row.hint = hint + (int64_t)at * ld_hint;
    row.wide = (uintptr_t)row.scores % 16 == 0;
    clear_bins(s.t);
    if (threadIdx.x < 8)
        s.taken[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        s.t.members = s.mine = s.passes = s.overflow = 0;
    sl_cluster_arrive();
    sl_after_previous();
    sl_let_next_start();
    int seq = *seq_at, pos = *pos_at;
    first = cluster_load<K, C>(row, d, v);
    sl_cluster_wait(); /* all blocks are there, their bins are clear */
    if (seq == -1)     /* padding */
        pos = -1;
    bool all = pos < max(p.k, p.dense_below);
    if (seq != -1 && (pos < 0 || (!all && pos >= p.ld_scores))) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_POS);
        pos = -1;
        all = true;
    }
    int take = all ? pos + 1 : p.k, from = (int)(blockIdx.x % C) * THREADS + threadIdx.x;
    for (int i = take + from; i < p.ld_ids; i += C * THREADS)
        ids[i] = -1;
    if (all) {
        for (int i = from; i < take; i += C * THREADS)
            ids[i] = i;
        return;
    }
    row.len = row.recent_from = pos + 1;
    if (H && row.len <= SL_HINT_MIN) {
        d.rounds = (row.len + C * 4 * THREADS - 1) / (C * 4 * THREADS);
        first = cluster_load<topk_scores, C>(row, d, v);
        cluster_select<topk_scores, C>(s, row, d, v, take, first, smem, ids);
    } else {
        cluster_select<K, C>(s, row, d, v, take, first, smem, ids);
    }
#endif
}

template <int C, bool H>
static sl_status launch(sl_cuda *cu, const sl_topk_params *p, const float *hint, sl_err *err)
{
    cudaLaunchAttribute at[2] = {};
    cudaLaunchConfig_t cfg = {};
    int ld_hint = sl_hint_ld(p->ld_scores), rounds = sl_ceil_div(H ? ld_hint : p->ld_scores, C * 4 * THREADS);
    sl_status st = SL_CU(
        cudaFuncSetAttribute(cluster_kernel<C, H>, cudaFuncAttributeMaxDynamicSharedMemorySize, SPAN_MAX * 8),
        err);

    if (st != SL_OK)
        return st;
    at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[0].val.programmaticStreamSerializationAllowed = 1;
    at[1].id = cudaLaunchAttributeClusterDimension;
    at[1].val.clusterDim.x = C, at[1].val.clusterDim.y = at[1].val.clusterDim.z = 1;
    cfg.gridDim = dim3(p->token_count * C), cfg.blockDim = dim3(THREADS);
    cfg.dynamicSmemBytes = SPAN_MAX * 8, cfg.stream = cu->stream;
    cfg.attrs = at, cfg.numAttrs = 2;
    return SL_CU(
        cudaLaunchKernelEx(&cfg, cluster_kernel<C, H>, *p, *p->seqs, hint, ld_hint, rounds, cu->deverr), err);
}

sl_topk_clusters sl_cuda_topk_clusters(const sl_cuda *cu, const sl_topk_params *p)
{
    /* As many side by side as there is room for in the groups of 16 or 18 SMs. */
    int c = p->token_count <= cu->sms / 12 ? 8 : p->token_count <= cu->sms / 6 ? 4 : 2;

    if (cu->cc != 90 || p->sinks || p->recent || p->token_count * c > cu->sms)
        return {0, false};
    if (c == 8 && p->ld_scores <= 4 * SPAN_MAX)
        c = 4;
    if (p->ld_scores <= c * SPAN_MAX)
        return {c, false};
    return {p->ld_scores <= c * SPAN_MAX * SL_HINT_GROUP ? c : 0, true};
}

sl_status sl_cuda_topk_cluster(sl_cuda *cu, const sl_topk_params *p, sl_topk_clusters c, const float *hint,
                               sl_err *err)
{
    if (c.by_hint)
        return c.size == 8   ? launch<8, true>(cu, p, hint, err)
               : c.size == 4 ? launch<4, true>(cu, p, hint, err)
                             : launch<2, true>(cu, p, hint, err);
    return c.size == 8   ? launch<8, false>(cu, p, NULL, err)
           : c.size == 4 ? launch<4, false>(cu, p, NULL, err)
                         : launch<2, false>(cu, p, NULL, err);
}
