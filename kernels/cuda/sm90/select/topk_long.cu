/*
 * Exact top-k of few rows. A row is spread over the blocks of a cluster, so that several SMs read it concurrently and
 * it stays in their registers. The method is that of topk.cu, but the shared state is in distributed shared memory:
 * the range of the maxima, their histogram, then histograms of the candidates' keys, until every block knows the few
 * candidates around the cut. Each block then writes its own part of the ids.
 *
 * Rows that fit into the registers of a cluster are read once. A block has room for all scores of its part, so rows
 * of few distinct values only take more passes. Longer rows start from the hint, as in topk.cu; when the candidates
 * of a block do not fit, the first block of the cluster computes the whole row. topk.cu does the rows with forced
 * tokens, and launches with more rows than there are clusters of two.
 *
 * The time is mostly latency: four or five cluster barriers, each followed by a chain of dependent steps.
 */
#include <type_traits>

#include "kernels/cuda/sm90/select/topk_long.cuh"
#include "kernels/cuda/sm90/select/topk_long_steps.cuh"

#if __CUDA_ARCH__ >= 900
/* A row with too many candidates: the first block computes it alone. */
template <int C>
__device__ static void one_block(cluster_shared &s, const topk_row &row, uint32_t from, int k, int32_t *ids)
{
    sl_cluster_sync(); /* from here on no block reads the bins of another one */
    if (blockIdx.x % C == 0)
        whole_row(s.t, row, from, (uint32_t)k, ids);
}

/* Selects k of the scores of a row. v holds this block's part: the scores from `first` on, or their maxima. */
template <typename K, int C>
__device__ static void cluster_select(cluster_shared &s, const topk_row &row, topk_deal<THREADS> d,
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

/* Loads this block's part of the row, or of its maxima; returns the index of the part's first score. */
template <typename K, int C>
__device__ static inline int cluster_load(const topk_row &row, const topk_deal<THREADS> &d,
                                          float4 (&v)[ROUNDS])
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

/* One cluster per row. A block uses `rounds` rounds of its registers, for the row's scores or (H) for its hint. Rows
 * of no more than SL_HINT_MIN scores have no hint. */
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
    topk_deal<THREADS> d = {0, rounds, 1};
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
    sl_cluster_wait(); /* all blocks have started, and their bins are clear */
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
    int ld_hint = sl_hint_ld(p->ld_scores), rounds = sl_ceil_div(H ? ld_hint : p->ld_scores, C * 4 * THREADS);

    return SL_LAUNCH(cu, (cluster_kernel<C, H>),
                     (sl_launch{dim3(p->token_count * C), THREADS, SPAN_MAX * 8, true, C}), err, *p, *p->seqs,
                     hint, ld_hint, rounds, cu->deverr);
}

sl_topk_longs sl_cuda_topk_longs(const sl_cuda *cu, const sl_topk_params *p)
{
    /* The largest clusters of which enough for all rows run concurrently, given GPCs of 16 or 18 SMs. */
    int c = p->token_count <= cu->sms / 12 ? 8 : p->token_count <= cu->sms / 6 ? 4 : 2;

    if (!cu->gpu.bulk || p->sinks || p->recent || p->token_count * c > cu->sms)
        return {0, false};
    if (c == 8 && p->ld_scores <= 4 * SPAN_MAX)
        c = 4;
    if (p->ld_scores <= c * SPAN_MAX)
        return {c, false};
    return {p->ld_scores <= c * SPAN_MAX * SL_HINT_GROUP ? c : 0, true};
}

sl_status sl_cuda_topk_long(sl_cuda *cu, const sl_topk_params *p, sl_topk_longs c, const float *hint,
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
