/*
 * Exact top-k of many short rows: lists of blocks, one for each KV head of each token. A row of at most 8,192 scores stays in
 * the registers of 256 threads, so that a multiprocessor has several rows at once; topk.cu has one or two, and its time for
 * such rows is that of its barriers.
 *
 * Histograms over the range of the undecided keys narrow it, from [smallest, largest] on, until it holds no more keys than
 * are wanted, or so few that each can count the better ones among them, or one value only. Then the ids are written in
 * order. Forced items are left out of the histograms and always taken.
 *
 * Limit: a decode step of 120 requests with 8 lists of 4,096 blocks reads 15.7 MB, 3.4 us; a row takes about ten barriers of
 * 8 warps, some 8 us, and 960 rows are one or two waves of what 132 multiprocessors hold.
 */
#include "kernels/cuda/any/select/topk_select.cuh"
#include "kernels/cuda/any/select/topk_short.cuh"

#define THREADS 256
#define BLOCKS 4 /* of a multiprocessor */

typedef topk_shared<THREADS> short_shared;

/* Keys of this thread: four of each round; a warp has consecutive items. A key of 0 that is no item has no bit in `valid`. */
template <int R> struct short_keys {
    uint32_t key[4 * R];
    uint32_t valid, forced; /* a bit each */
    int rounds;
};

template <int R> __device__ static inline int item_of(const short_keys<R> &k, int i)
{
    return ((threadIdx.x >> 5) * k.rounds + i) * 128 + (threadIdx.x & 31) * 4;
}

template <int R> __device__ static inline void load_keys(const topk_row &r, short_keys<R> *k)
{
    k->rounds = (r.len + THREADS * 4 - 1) / (THREADS * 4);
    k->valid = k->forced = 0;
#pragma unroll
    for (int i = 0; i < R; i++) {
        int first = item_of(*k, i), left = i < k->rounds ? r.len - first : 0;
        float4 v = row_scores(r, left > 0 ? first : r.len, r.len);
        uint32_t in = left >= 4 ? 15u : left <= 0 ? 0u : (1u << left) - 1;

        k->valid |= in << 4 * i;
        if (r.gates && in)
            k->forced |= (forced_of<topk_scores>(r, first) & in) << 4 * i;
#pragma unroll
        for (int e = 0; e < 4; e++)
            k->key[4 * i + e] = sl_order_key(item_of_four(v, e));
    }
    k->valid &= ~k->forced;
}

/* Whether key i is undecided. */
template <int R> __device__ static inline bool inside(const short_keys<R> &k, int i, const topk_range &g)
{
    return (k.valid >> i & 1) && k.key[i] >= g.lo && k.key[i] <= g.hi;
}

/* Narrows the range until the keys in it are decided, or few, or equal. */
template <int R>
__device__ static inline void narrow_keys(short_shared &s, const short_keys<R> &k, topk_range *g)
{
    uint32_t lo = 0xffffffffu, hi = 0;

#pragma unroll
    for (int i = 0; i < 4 * R; i++)
        if (k.valid >> i & 1)
            lo = min(lo, k.key[i]), hi = max(hi, k.key[i]);
    clear_bins(s);
    block_range(s, &lo, &hi); /* has a barrier */
    g->lo = lo, g->hi = hi;
    for (bool first = true; first || (g->have > MEMBERS && g->have != g->need && g->lo < g->hi);
         first = false) {
        if (!first) {
            __syncthreads(); /* every thread has read the bins */
            clear_bins(s);
            __syncthreads();
        }
        int shift = range_shift(g->lo, g->hi);
#pragma unroll
        for (int i = 0; i < 4 * R; i++)
            if (inside(k, i, *g))
                atomicAdd(&s.hist[(k.key[i] - g->lo) >> shift], 1u);
        if (threadIdx.x == 0)
            s.members = 0;
        __syncthreads();
        narrow(s, g, shift);
    }
}

/* A bit for every item that is taken. Where some but not all items of one value are, they have their bits in *equal. */
template <int R>
__device__ static inline uint32_t taken(short_shared &s, const short_keys<R> &k, const topk_range &g,
                                        uint32_t *equal)
{
    bool ties = g.have != g.need && g.lo == g.hi, ranked = g.have != g.need && !ties;
    uint32_t take = k.forced;

    *equal = 0;
    if (ranked) {
#pragma unroll
        for (int i = 0; i < 4 * R; i++)
            if (inside(k, i, g)) {
                uint32_t m = atomicAdd(&s.members, 1u);
                s.member_key[m] = k.key[i];
                s.member_id[m] = item_of(k, i / 4) + i % 4;
            }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4 * R; i++) {
        bool in = inside(k, i, g), above = (k.valid >> i & 1) && k.key[i] > g.hi;

        if (in && ranked)
            above = among(s, k.key[i], item_of(k, i / 4) + i % 4, g.need);
        take |= (above || (in && !ranked && !ties) ? 1u : 0u) << i;
        *equal |= (in && ties ? 1u : 0u) << i;
    }
    return take;
}

/* Of a warp's items before this lane's ones of each round, and of all in the rounds: bits of `hit`. */
template <int R>
__device__ static inline void count_rounds(uint32_t hit, uint32_t (&before)[R], uint32_t *all)
{
    uint32_t sum = 0;

#pragma unroll
    for (int i = 0; i < R; i++) {
        uint32_t own = __popc(hit >> 4 * i & 15), inc = sl_warp_prefix(own);
        before[i] = sum + inc - own;
        sum += __shfl_sync(0xffffffffu, inc, 31);
    }
    *all = sum;
}

/* Writes the items in order: those taken, and the first `need` of the equal ones. */
template <int R>
__device__ static inline void write_ids(short_shared &s, const short_keys<R> &k, uint32_t take,
                                        uint32_t equal, uint32_t need, int32_t *ids)
{
    uint32_t takes[R], equals[R] = {}, all, all_equal = 0, total;
    int warp = threadIdx.x >> 5;

    count_rounds(take, takes, &all);
    if (__syncthreads_or(equal != 0))
        count_rounds(equal, equals, &all_equal);
    if ((threadIdx.x & 31) == 0)
        s.count[0][warp] = all, s.count[1][warp] = all_equal;
    __syncthreads();
    uint32_t at_take = warps_before(s, 0, &total), at_equal = warps_before(s, 1, &total);
#pragma unroll
    for (int i = 0; i < R; i++) {
        uint32_t at = at_take + takes[i], eq = at_equal + equals[i];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            bool is = take >> (4 * i + e) & 1, same = equal >> (4 * i + e) & 1;
            if (is || (same && eq < need))
                ids[at + min(eq, need)] = item_of(k, i) + e;
            at += is, eq += same;
        }
    }
}

/* The row's length and its forced items; true if everything is selected. */
__device__ static inline bool open_row(const sl_topk_params &p, const sl_seq_tables &seqs, int t,
                                       uint32_t *deverr, topk_row *r)
{
    bool padding = seqs.token_seq[t] == -1;
    int pos = padding ? -1 : seqs.token_pos[t], last = pos >> p.block_log2;
    bool all = last < p.k || pos < p.dense_below;

    if (!padding && (pos < 0 || (!all && last >= p.ld_scores))) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_POS);
        last = -1;
        all = true;
    }
    r->len = last + 1;
    r->sinks = (int)(((int64_t)p.sinks + (1 << p.block_log2) - 1) >> p.block_log2);
    r->recent_from = p.recent > 0 ? (pos + 1 - p.recent) >> p.block_log2 : r->len;
    r->gates = p.sinks || p.recent;
    return all;
}

template <int R>
__global__ static void __launch_bounds__(THREADS, R == 4   ? BLOCKS
                                                  : R == 5 ? 3
                                                           : 2)
    short_kernel(sl_topk_params p, sl_seq_tables seqs, uint32_t *deverr)
{
    __shared__ __align__(16) short_shared s;
    int lists = max(p.lists, 1), t = p.token_first + blockIdx.x / lists;
    int32_t *ids = p.ids + ((int64_t)p.token_first * lists + blockIdx.x) * p.ld_ids;
    topk_row r = {};
    short_keys<R> k;

    sl_after_previous();
    sl_let_next_start();
    bool all = open_row(p, seqs, t, deverr, &r);
    int take = all ? r.len : p.k;
    for (int i = take + threadIdx.x; i < p.ld_ids; i += THREADS)
        ids[i] = -1;
    for (int i = threadIdx.x; all && i < take; i += THREADS)
        ids[i] = i;
    if (all)
        return;
    r.scores = p.scores + (int64_t)blockIdx.x * p.ld_scores;
    r.wide = (uintptr_t)r.scores % 16 == 0;
    load_keys(r, &k);
    topk_range g = {1, 0, (uint32_t)p.k, 0};
    uint32_t equal = 0;
    if (r.gates)
        g.need -= min(r.sinks, r.len) + max(r.len - max(r.recent_from, r.sinks), 0);
    uint32_t hit = k.forced;
    if (g.need) {
        narrow_keys(s, k, &g);
        hit = taken(s, k, g, &equal);
    }
    write_ids(s, k, hit, equal, g.need, ids);
}

sl_status sl_cuda_topk_short(sl_cuda *cu, const sl_topk_params *p, int rows, sl_err *err)
{
    void (*kernel)(sl_topk_params, sl_seq_tables, uint32_t *) =
        p->ld_scores <= 4 * THREADS * 4   ? short_kernel<4>
        : p->ld_scores <= 5 * THREADS * 4 ? short_kernel<5>
                                          : short_kernel<8>;

    return SL_LAUNCH(cu, kernel, (sl_launch{dim3(rows), THREADS, 0, true}), err, *p, *p->seqs, cu->deverr);
}
