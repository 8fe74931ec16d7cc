/*
 * Exact top-k with ids in ascending token order. One block per row, whatever its length; a small number of rows is
 * spread over clusters by topk_long.cu instead. A row is a token's, or where every KV head has a list, one of them.
 *
 * A lower bound of the k-th score reduces the row before anything is sorted. Scores become ordered 32-bit keys, and
 * the row is divided into groups; the k-th largest of the groups' maxima cannot exceed the k-th largest key. One
 * histogram over the range between the smallest and the largest maximum gives that bound almost exactly. The keys
 * that reach the bound (on random data a quarter more than k) are copied to shared memory in row order. There a
 * radix select over their range finds the exact cut; the keys above it, and the first of those equal to it, are
 * written in order.
 *
 * Without a hint, rows of up to ROW_MAX scores are kept in registers. Other rows start from the hint, the maxima of
 * every 8 scores (written by the score kernels, or here by a kernel on all SMs), so that one block reads only an
 * eighth of the row and then the groups that reach the bound.
 *
 * No candidate is ever dropped: when more keys reach the bound than there is room for (rows of few distinct values),
 * radix passes over the whole row find the cut. The time is mostly latency: a dozen block barriers after two or three
 * dependent loads.
 */
#include "kernels/cuda/any/select/topk_bound.cuh"
#include "kernels/cuda/sm90/select/topk_long.cuh"
#include "kernels/cuda/any/select/topk_cut.cuh"
#include "kernels/cuda/any/select/topk_select.cuh"
#include "kernels/cuda/any/select/topk_short.cuh"

#define THREADS 1024
#define WARPS (THREADS / 32)

template <typename K, int R>
__device__ static void select_row(topk_shared<THREADS> &s, const topk_row &r, topk_deal<THREADS> &d,
                                  float4 (&v)[R], uint8_t *smem, uint32_t take, int32_t *ids)
{
    float *vals = (float *)smem;
    int *places = (int *)(smem + CAND_MAX * 4), *list = (int *)(smem + CAND_MAX * 8);
    const float inf = __uint_as_float(0x7f800000u);
    float pivot = inf, top = inf;
    uint32_t need = take, n;
    bool bounded = true;

    if (r.gates)
        need -= min(r.sinks, r.len) + max(r.len - max(r.recent_from, r.sinks), 0);
    d.n = (r.len + K::of - 1) / K::of;
    d.chunks = (d.n + R * THREADS * 4 - 1) / (R * THREADS * 4);
    if (d.chunks > 1)
        d.rounds = R;
    else
        trim_chunk<K, R>(r, d, 0, v);
    if (need)
        bounded = lower_bound<K, R>(s, r, d, v, need, &pivot, &top);
    if (!bounded) {
        whole_row(s, r, 0, need, ids);
        return;
    }
    __syncthreads();
    clear_bins(s);
    if (K::of > 1) {
        n = collect<K, R>(s, r, d, v, pivot, NULL, list, LIST_MAX);
        __syncthreads();
        n = n > LIST_MAX ? CAND_MAX + 1 : collect_groups(s, r, list, (int)n, pivot, vals, places, CAND_MAX);
    } else {
        n = collect<K, R>(s, r, d, v, pivot, vals, places, CAND_MAX);
    }
    __syncthreads();
    if (n > CAND_MAX) {
        whole_row(s, r, sl_order_key(pivot), need, ids);
        return;
    }
    topk_range g = {sl_order_key(pivot), r.gates ? KEY_FORCED - 1 : sl_order_key(top), need, n};
    if (need == 0)
        g = {KEY_FORCED, KEY_FORCED, 0, 0};
    if (n <= 4 * THREADS)
        select_candidates<4>(s, r, vals, places, (int)n, g, ids);
    else
        select_candidates<CAND_MAX / THREADS>(s, r, vals, places, (int)n, g, ids);
}

/* Items of 1 << block_log2 tokens that hold this number of tokens from the first one on. */
__device__ static inline int items_of(int tokens, int block_log2)
{
    return (int)(((int64_t)tokens + (1 << block_log2) - 1) >> block_log2);
}

/* One block per row. The block's first keys are loaded before the row's length is known. D: there are several lists per
 * token, or their items are blocks of tokens. */
template <int R, bool D>
__global__ static void __launch_bounds__(THREADS)
    topk_kernel(sl_topk_params p, sl_seq_tables seqs, const float *hint, int ld_hint, uint32_t *deverr)
{
    extern __shared__ __align__(16) uint8_t smem[];
    __shared__ __align__(16) topk_shared<THREADS> s;
    int lists = D ? max(p.lists, 1) : 1, t = p.token_first + (D ? blockIdx.x / lists : blockIdx.x);
    const int32_t *seq_at = seqs.token_seq + t, *pos_at = seqs.token_pos + t;
    int32_t *ids = p.ids + (D ? (int64_t)p.token_first * lists + blockIdx.x : (int64_t)t) * p.ld_ids;
    bool by_hint = p.ld_scores > SL_HINT_MIN && hint;
    topk_row r;
    topk_deal<THREADS> d = {0, R, 1};
    float4 v[R];

    r.limit = p.ld_scores;
    r.scores = p.scores + (int64_t)blockIdx.x * p.ld_scores;
    r.hint = hint + (int64_t)blockIdx.x * ld_hint;
    r.wide = (uintptr_t)r.scores % 16 == 0;
    r.sinks = D ? items_of(p.sinks, p.block_log2) : p.sinks;
    r.gates = p.sinks || p.recent;
    d.rounds = min(R, (((by_hint ? ld_hint : p.ld_scores) + WARPS * 128 - 1) / (WARPS * 128)));
    sl_after_previous();
    sl_let_next_start();
    int seq = *seq_at, pos = *pos_at;
    if (by_hint)
        load_chunk<topk_maxima, R>(r, d, 0, v);
    else
        load_chunk<topk_scores, R>(r, d, 0, v);
    if (seq == -1) /* padding */
        pos = -1;
    int last = D ? pos >> p.block_log2 : pos; /* the newest item that the token sees */
    bool all = D ? last < p.k || pos < p.dense_below : pos < max(p.k, p.dense_below);
    if (seq != -1 && (pos < 0 || (!all && last >= p.ld_scores))) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_POS);
        last = -1;
        all = true;
    }
    r.len = last + 1;
    r.recent_from = D && p.recent > 0 ? (pos + 1 - p.recent) >> p.block_log2 : r.len - p.recent;
    int take = all ? r.len : p.k;
    for (int i = take + threadIdx.x; i < p.ld_ids; i += THREADS)
        ids[i] = -1;
    if (all) {
        for (int i = threadIdx.x; i < take; i += THREADS)
            ids[i] = i;
        return;
    }
    if (by_hint && r.len > SL_HINT_MIN) {
        select_row<topk_maxima, R>(s, r, d, v, smem, take, ids);
    } else {
        if (by_hint) {
            d.rounds = min(R, (r.len + WARPS * 128 - 1) / (WARPS * 128));
            load_chunk<topk_scores, R>(r, d, 0, v);
        }
        select_row<topk_scores, R>(s, r, d, v, smem, take, ids);
    }
}

/* Makes the hint: one thread per group. */
__global__ static void __launch_bounds__(256)
    hint_kernel(const float *scores, sl_seq_tables seqs, int token_first, int ld_scores, int min_len,
                float *hint, int ld_hint, int lists, int block_log2)
{
    int t = token_first + blockIdx.y / lists, g = blockIdx.x * 512 + threadIdx.x;
    topk_row r = {};

    sl_after_previous();
    sl_let_next_start();
    r.len = seqs.token_seq[t] == -1 ? 0 : min((seqs.token_pos[t] >> block_log2) + 1, ld_scores);
    if (r.len < min_len)
        return;
    r.scores = scores + (int64_t)blockIdx.y * ld_scores;
    r.wide = (uintptr_t)r.scores % 16 == 0;
    float4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = row_scores(r, (g + i / 2 * 256) * SL_HINT_GROUP + i % 2 * 4, r.len);
#pragma unroll
    for (int i = 0; i < 2; i++)
        if ((g + i * 256) * SL_HINT_GROUP < r.len)
            hint[(int64_t)blockIdx.y * ld_hint + g + i * 256] = fmaxf(max_of(v[2 * i]), max_of(v[2 * i + 1]));
}

/* The hint of `rows` rows, of which `lists` belong to each token. */
static sl_status make_hint(sl_cuda *cu, const float *scores, const sl_seq_tables *seqs, int token_first,
                           int rows, int ld_scores, int min_len, float *hint, int lists, int block_log2,
                           sl_err *err)
{
    int ld = sl_hint_ld(ld_scores);

    return SL_LAUNCH(cu, hint_kernel, (sl_launch{dim3(sl_ceil_div(ld, 512), rows), 256, 0, true}), err,
                     scores, *seqs, token_first, ld_scores, min_len, hint, ld, lists, block_log2);
}

sl_status sl_cuda_hint(sl_cuda *cu, const float *scores, const sl_seq_tables *seqs, int token_first,
                       int token_count, int ld_scores, int min_len, float *hint, sl_err *err)
{
    return make_hint(cu, scores, seqs, token_first, token_count, ld_scores, min_len, hint, 1, 0, err);
}

/* Lists that do not depend on scores, which are not read: everything, or of longer rows the forced tokens alone, which
 * are then k. One thread per id. */
__global__ static void __launch_bounds__(256)
    list_kernel(sl_topk_params p, sl_seq_tables seqs, int lists, uint32_t *deverr)
{
    int t = p.token_first + blockIdx.x / lists, i = blockIdx.y * blockDim.x + threadIdx.x;

    sl_after_previous();
    sl_let_next_start();
    int pos = seqs.token_seq[t] == -1 ? -1 : seqs.token_pos[t], last = pos >> p.block_log2, take = last + 1;
    if (last >= p.k && pos >= p.dense_below)
        take = p.sinks + p.recent == p.k && p.block_log2 == 0 ? p.k : 0;
    if (i == 0 && take == 0 && seqs.token_seq[t] != -1)
        atomicOr(deverr, SL_DEVERR_POS);
    int64_t row = (int64_t)p.token_first * lists + blockIdx.x;
    if (i < p.ld_ids)
        p.ids[row * p.ld_ids + i] = i >= take ? -1 : i < p.sinks ? i : last + 1 - take + i;
}

static sl_status launch_lists(sl_cuda *cu, const sl_topk_params *p, int rows, int lists, sl_err *err)
{
    return SL_LAUNCH(cu, list_kernel, (sl_launch{dim3(rows, sl_ceil_div(p->ld_ids, 256)), 256, 0, true}), err,
                     *p, *p->seqs, lists, cu->deverr);
}

/* The rows, one per block. hint: NULL, or of all rows. */
template <bool D>
static sl_status launch(sl_cuda *cu, const sl_topk_params *p, int rows, const float *hint, sl_err *err)
{
    int ld_hint = sl_hint_ld(p->ld_scores);
    /* A block holds rounds of 4,096 items: scores of the row, or maxima of its hint. */
    int items = p->ld_scores > ROW_MAX || (p->ld_scores > SL_HINT_MIN && hint) ? ld_hint : p->ld_scores;
    void (*kernel)(sl_topk_params, sl_seq_tables, const float *, int, uint32_t *) =
        items > 4 * THREADS * 4 ? topk_kernel<8, D> : topk_kernel<4, D>;

    return SL_LAUNCH(cu, kernel, (sl_launch{dim3(rows), THREADS, SMEM_BYTES, true}), err, *p, *p->seqs, hint,
                     ld_hint, cu->deverr);
}

/* Lists of the best k. */
static sl_status select_lists(sl_cuda *cu, const sl_topk_params *p, int64_t rows, int lists, sl_err *err)
{
    const int slice = 65535;
    bool divided = lists > 1 || p->block_log2;
    sl_topk_longs clusters = divided ? sl_topk_longs{0, false} : sl_cuda_topk_longs(cu, p);
    const float *hint = (const float *)p->hint;

    if (p->k >= p->ld_scores || (p->block_log2 == 0 && p->sinks + p->recent == p->k))
        return launch_lists(cu, p, (int)rows, lists, err);
    if (divided && sl_cuda_topk_short_for(cu, p, (int)rows))
        return sl_cuda_topk_short(cu, p, (int)rows, err);
    if (clusters.size && !clusters.by_hint)
        return sl_cuda_topk_long(cu, p, clusters, NULL, err);
    if (p->ld_scores > ROW_MAX && !hint) {
        void *made = NULL;
        if (rows > slice)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: topk: %d lists at once (at most %d)", (int)rows,
                           slice);
        SL_TRY(sl_cuda_scratch(cu, sl_topk_hint_bytes((int)rows, p->ld_scores), &made, err));
        hint = (const float *)made;
        SL_TRY(make_hint(cu, p->scores, p->seqs, p->token_first, (int)rows, p->ld_scores, SL_HINT_MIN + 1,
                         (float *)made, lists, p->block_log2, err));
    }
    if (clusters.size)
        return sl_cuda_topk_long(cu, p, clusters, hint, err);
    return divided ? launch<true>(cu, p, (int)rows, hint, err) : launch<false>(cu, p, (int)rows, hint, err);
}

static sl_status run_topk(sl_backend *be, const void *params, sl_err *err)
{
    const sl_topk_params *p = (const sl_topk_params *)params;
    const int lists = p->lists > 1 ? p->lists : 1;
    const int64_t rows = (int64_t)p->token_count * lists;
    sl_cuda *cu = sl_cuda_of(be);

    if (rows > INT32_MAX)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: topk: %lld lists at once", (long long)rows);
    SL_TRY(select_lists(cu, p, rows, lists, err));
    return p->mass > 0 || p->k_of ? sl_cuda_topk_cut(cu, p, (int)rows, lists, err) : SL_OK;
}

const sl_op_impl sl_cuda_topk = {.run = run_topk};
