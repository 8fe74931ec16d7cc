/*
 * Lists that are shorter than k: after top-k has selected, one thread block per list keeps the part that its share of the scores
 * (sl_topk_params.mass) or its own limit (k_of) needs, and moves that to the front. Lists of different lengths thus come from one
 * launch.
 *
 * Four passes of eight bits over the keys of the list's scores find the key of the last entry that is kept: histograms count
 * entries and sum their weights in whole numbers (kernels/mass.h), whose sums have no order. Then the list is compacted chunk by
 * chunk; an entry never moves back, so that this needs no memory of its own.
 *
 * Limit: the scores of a row are read once for their sum (mass only), and those of its entries five times. A row of 4,096 blocks is
 * 16 KiB; 960 rows of a decode step are 15.7 MB, 3.4 us at 4.6 TB/s; the passes have about 12 block barriers, some 10 us a wave.
 * Not measured.
 */
#include "kernels/cuda/any/select/select.cuh"
#include "kernels/cuda/any/select/topk_cut.cuh"
#include "kernels/mass.h"

#define THREADS 256
#define WARPS (THREADS / 32)
#define BINS 256

struct cut_shared {
    int count[BINS];
    unsigned long long units[BINS];
    unsigned long long sums[WARPS], total;
    float tops[WARPS];
    int ints[WARPS];
    /* Before the bin that is looked into: entries and units of better ones. */
    int have, left, bin, ends;
    unsigned long long have_units;
};

struct cut_row {
    const float *scores;
    int32_t *ids;
    int n, count;           /* blocks that the token sees; entries of its list */
    int sinks, recent_from; /* forced: ids below the one, from the other on */
    float best;
    unsigned long long need; /* units; all ones: no share is asked for */
    int most;
};

__device__ static inline bool is_forced(const cut_row &r, int id)
{
    return id < r.sinks || id >= r.recent_from;
}

__device__ static inline unsigned long long units_of(const cut_row &r, int id)
{
    return r.best > 0 ? sl_mass_units(r.scores[id], r.best) : 0;
}

/* Sums over the block; every thread receives them. */
__device__ static inline unsigned long long block_units(cut_shared &s, unsigned long long v)
{
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_down_sync(0xffffffffu, v, o);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        s.sums[threadIdx.x >> 5] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < WARPS; w++)
        v += s.sums[w];
    return v;
}

__device__ static inline float block_best(cut_shared &s, const cut_row &r)
{
    float best = 0;

    for (int i = threadIdx.x; i < r.n; i += THREADS)
        best = fmaxf(best, r.scores[i]);
    best = sl_warp_max(best);
    if ((threadIdx.x & 31) == 0)
        s.tops[threadIdx.x >> 5] = best;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        best = fmaxf(best, s.tops[w]);
    return best;
}

/* How many v of the threads before this one are set, and of all. */
__device__ static inline int block_before(cut_shared &s, bool v, int *all)
{
    uint32_t mask = __ballot_sync(0xffffffffu, v);
    int before = __popc(mask & ((1u << (threadIdx.x & 31)) - 1));

    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        s.ints[threadIdx.x >> 5] = __popc(mask);
    __syncthreads();
    *all = 0;
    for (int w = 0; w < WARPS; w++) {
        before += w < (int)(threadIdx.x >> 5) ? s.ints[w] : 0;
        *all += s.ints[w];
    }
    return before;
}

/* Whether a list with these entries and units is complete. */
__device__ static inline bool full(const cut_row &r, int entries, unsigned long long units)
{
    return entries >= r.most || units >= r.need;
}

/* From the best bin on: the one in which the list becomes complete; s.ends stays 0 if there is none. Warp 0. */
__device__ static void walk_bins(cut_shared &s, const cut_row &r)
{
    const int of_lane = BINS / 32;
    const int had = s.have;
    const unsigned long long had_units = s.have_units;
    int lane = threadIdx.x, top = BINS - 1 - of_lane * lane, count = 0;
    unsigned long long units = 0;

    for (int b = 0; b < of_lane; b++)
        count += s.count[top - b], units += s.units[top - b];
    int before = count;
    unsigned long long units_before = units;
    for (int o = 1; o < 32; o <<= 1) {
        int c = __shfl_up_sync(0xffffffffu, before, o);
        unsigned long long u = __shfl_up_sync(0xffffffffu, units_before, o);
        before += lane >= o ? c : 0;
        units_before += lane >= o ? u : 0;
    }
    bool here = full(r, had + before, had_units + units_before);
    uint32_t who = __ballot_sync(0xffffffffu, here);
    before += had - count;
    units_before += had_units - units;
    if (who == 0 || lane != __ffs(who) - 1)
        return;
    int b = top;
    while (!full(r, before + s.count[b], units_before + s.units[b]))
        before += s.count[b], units_before += s.units[b], b--;
    s.bin = b, s.ends = 1;
    s.left = s.count[b];
    s.have = before, s.have_units = units_before;
}

/*
 * The key of the last entry that is kept, and how many of its equals are; false: every entry is kept. Entries that are forced
 * count, but are not in the histograms.
 */
__device__ static bool find_cut(cut_shared &s, const cut_row &r, uint32_t *cut, int *ties)
{
    uint32_t key = 0;

    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        for (int b = threadIdx.x; b < BINS; b += THREADS)
            s.count[b] = 0, s.units[b] = 0;
        if (threadIdx.x == 0)
            s.ends = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < r.count; i += THREADS) {
            int id = r.ids[i];
            uint32_t k = sl_order_key(r.scores[id]);
            if (is_forced(r, id) || (shift < 24 && k >> (shift + 8) != key >> (shift + 8)))
                continue;
            atomicAdd(&s.count[k >> shift & (BINS - 1)], 1);
            atomicAdd(&s.units[k >> shift & (BINS - 1)], units_of(r, id));
        }
        __syncthreads();
        if (threadIdx.x < 32)
            walk_bins(s, r);
        __syncthreads();
        if (!s.ends)
            return false;
        key |= (uint32_t)s.bin << shift;
    }
    /* All of one score: the fewest with which the list is complete. */
    unsigned long long each = s.left > 0 ? s.units[s.bin] / (unsigned)s.left : 0;
    int take = max(r.most - s.have, 0);
    if (each > 0 && r.need != ~0ull) {
        unsigned long long want = r.need > s.have_units ? r.need - s.have_units : 0;
        unsigned long long some = (want + each - 1) / each;
        take = some < (unsigned long long)take ? (int)some : take;
    }
    *cut = key;
    *ties = take;
    return true;
}

/* Moves what is kept to the front, and -1 after it. */
__device__ static void compact(cut_shared &s, const cut_row &r, uint32_t cut, int ties)
{
    int out = 0, equals = 0;

    for (int base = 0; base < r.count; base += THREADS) {
        int i = base + threadIdx.x, id = i < r.count ? r.ids[i] : -1, all, all_equal;
        uint32_t k = id >= 0 ? sl_order_key(r.scores[id]) : 0;
        bool forced = id >= 0 && is_forced(r, id), equal = id >= 0 && !forced && k == cut;
        int rank = block_before(s, equal, &all_equal);
        bool kept = forced || (id >= 0 && k > cut) || (equal && equals + rank < ties);
        int at = block_before(s, kept, &all);
        if (kept)
            r.ids[out + at] = id;
        out += all, equals += all_equal;
    }
    __syncthreads();
    for (int i = out + threadIdx.x; i < r.count; i += THREADS)
        r.ids[i] = -1;
}

/* The row and its list; false: it stays as it is. */
__device__ static bool open_row(const sl_topk_params &p, const sl_seq_tables &seqs, int lists, cut_row *r)
{
    int t = p.token_first + blockIdx.x / lists, pos = seqs.token_seq[t] == -1 ? -1 : seqs.token_pos[t];

    if (pos < 0 || pos < p.dense_below || pos >> p.block_log2 >= p.ld_scores)
        return false;
    r->scores = p.scores + (int64_t)blockIdx.x * p.ld_scores;
    r->ids = p.ids + ((int64_t)p.token_first * lists + blockIdx.x) * p.ld_ids;
    r->n = (pos >> p.block_log2) + 1;
    r->count = min(r->n, p.k);
    r->sinks = (int)(((int64_t)p.sinks + (1 << p.block_log2) - 1) >> p.block_log2);
    r->recent_from = p.recent > pos ? 0 : p.recent > 0 ? (pos + 1 - p.recent) >> p.block_log2 : r->n;
    r->most = p.k_of ? p.k_of[blockIdx.x % lists] : r->count;
    return true;
}

__global__ static void __launch_bounds__(THREADS) cut_kernel(sl_topk_params p, sl_seq_tables seqs, int lists)
{
    __shared__ cut_shared s;
    cut_row r = {};
    unsigned long long units = 0;
    uint32_t cut;
    int forced = 0, ties;

    sl_after_previous();
    sl_let_next_start();
    if (!open_row(p, seqs, lists, &r))
        return;
    r.need = ~0ull;
    if (p.mass > 0) {
        r.best = block_best(s, r);
        for (int i = threadIdx.x; i < r.n; i += THREADS)
            units += units_of(r, i);
        r.need = sl_mass_need(p.mass, block_units(s, units));
    }
    units = 0;
    for (int i = threadIdx.x; i < r.count; i += THREADS)
        if (is_forced(r, r.ids[i]))
            forced++, units += units_of(r, r.ids[i]);
    units = block_units(s, units);
    forced = (int)block_units(s, (unsigned long long)forced);
    if (forced == 0 && r.need == 0) /* a list has one entry at least */
        r.most = 1, r.need = ~0ull;
    if (forced == 0)
        r.most = max(r.most, 1);
    if (threadIdx.x == 0)
        s.have = forced, s.have_units = units;
    __syncthreads();
    if (full(r, forced, units)) {
        compact(s, r, 0xffffffffu, 0);
        return;
    }
    if (find_cut(s, r, &cut, &ties))
        compact(s, r, cut, ties);
}

sl_status sl_cuda_topk_cut(sl_cuda *cu, const sl_topk_params *p, int rows, int lists, sl_err *err)
{
    return SL_LAUNCH(cu, cut_kernel, (sl_launch{dim3(rows), THREADS, 0, true}), err, *p, *p->seqs, lists);
}
