/*
 * Lists of tokens by cluster (kernels/clusters.h). The products of the queries with the centroids are those of row_dots.h, over
 * tables in which every sequence has one page, its centroids. Then one thread block per list counts the tokens of each
 * cluster, finds the score at which the budget is full by four passes of eight bits, and writes the tokens of the better
 * clusters in order. With max and mean the scores have the bits of the CPU backend, so that both take the same clusters; with
 * softmax they differ by the last bit at most.
 *
 * Limit: a list reads its centroids once, 4 * d bytes each, and its labels twice, 2 bytes per token. At 64K tokens in 820
 * clusters, 8 KV heads and d 128 these are 3.4 and 2.1 MB per request and layer; a decode step of 64 such requests reads 0.35
 * GB, 83 us at 4.2 TB/s. Not measured; counting 64K labels in the shared memory of one thread block may well take longer.
 */
#include "kernels/cuda/any/select/codes_step.h"
#include "kernels/cuda/any/select/row_dots.h"
#include "kernels/cuda/any/select/select.cuh"
#include "kernels/mass.h"

#define THREADS 512
#define WARPS (THREADS / 32)
#define EACH 8 /* labels of a thread at a time */
#define CHUNK (EACH * THREADS)
#define BINS 256
#define CHOSEN 0xffffffffu /* above the order key of every score */

struct lists_job {
    sl_cluster_lists_params p;
    sl_seq_tables s;
    int first, count; /* tokens of the slice */
    /* Of the slice: tables for the products. A token at pos - 1 sees pos clusters; sequence -1: it selects nothing. */
    int32_t *seqs, *pos, *pages;
    int ld_pages;
    /* [count][kv_heads][ld_clusters], with softmax and union [count][heads][ld_clusters] */
    float *scores;
    double *sums; /* [count][heads], with softmax */
    void *space;  /* sl_places_scratch() of each, with union */
    uint32_t *deverr;
};

/* sl_clusters_at(), except begin and before, which lists do not need. */
struct groups_at {
    int groups, end, count;
};

__device__ static inline groups_at clusters_at(const sl_cluster_rule &r, int prompt, int tokens)
{
    int first = prompt > r.budget ? prompt : r.budget;
    groups_at g = {0, 0, 0};

    if (tokens < first)
        return g;
    g.groups = 1 + (tokens - first) / r.window;
    g.end = first + (g.groups - 1) * r.window;
    g.count = (first - r.sinks + r.cluster_tokens - 1) / r.cluster_tokens + (g.groups - 1) * r.window_nlist;
    return g;
}

struct list_of { /* of one token */
    int seq, pos;
    bool all; /* its lists have everything */
    groups_at g;
};

/* False: it has an empty list, because it is padding or because something is wrong. */
__device__ static inline bool list_of_token(const lists_job &j, int i, list_of *t)
{
    const sl_cluster_lists_params &p = j.p;

    if (!sl_token(&j.s, j.first + i, j.deverr, &t->seq, &t->pos))
        return false;
    int prompt = p.prompts[t->seq], newest;
    t->g = clusters_at(p.rule, prompt, t->pos);
    t->all = t->pos < prompt || t->pos < p.dense_below || t->g.groups == 0;
    newest = t->all ? t->pos + 1 : p.rule.budget + t->pos + 1 - t->g.end;
    if (newest <= p.ld_ids && (t->all || (t->g.count <= p.ld_clusters && t->g.end <= p.ld_labels)))
        return true;
    if (threadIdx.x == 0)
        atomicOr(j.deverr, SL_DEVERR_SELECTION);
    return false;
}

/* One thread block per token. */
__global__ static void tables_kernel(lists_job j)
{
    int i = blockIdx.x;
    list_of t;
    bool selects = list_of_token(j, i, &t) && !t.all;

    if (threadIdx.x == 0) {
        j.seqs[i] = selects ? t.seq : -1;
        j.pos[i] = selects ? t.g.count - 1 : 0;
    }
    for (int s = i; s < j.s.n_seqs; s += gridDim.x)
        for (int e = threadIdx.x; e < j.ld_pages; e += blockDim.x)
            j.pages[(int64_t)s * j.ld_pages + e] = s;
}

/* ---- which clusters ---- */

__device__ static inline float score_of(const lists_job &j, int i, int list, int c)
{
    const sl_cluster_lists_params &p = j.p;
    int group = p.heads / p.kv_heads;
    float score = 0;

    if (p.reduce != SL_GROUP_SOFTMAX && p.reduce != SL_GROUP_UNION)
        return j.scores[((int64_t)i * p.kv_heads + list) * p.ld_clusters + c];
    for (int h = list * group; h < (list + 1) * group; h++) {
        int64_t row = (int64_t)i * p.heads + h;
        float v = j.scores[row * p.ld_clusters + c];
        if (p.reduce == SL_GROUP_SOFTMAX) {
            v = (float)((double)v / j.sums[row]);
            score = h == list * group ? v : __fadd_rn(score, v);
        } else {
            score = h == list * group ? v : fmaxf(score, v);
        }
    }
    return score;
}

/* What a list may take: tokens, and units of weight (kernels/mass.h; all ones: as many as there are). */
struct room_of {
    int tokens;
    unsigned long long need;
    float best; /* the largest score; read with need only */
};

__device__ static inline float score_of_key(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* Units of all tokens of a cluster with this key. */
__device__ static inline unsigned long long units_of(const room_of &r, uint32_t key, int tokens)
{
    return r.need == ~0ull ? 0 : (unsigned long long)tokens * sl_mass_units(score_of_key(key), r.best);
}

struct chosen_of {
    uint32_t above; /* clusters with a larger key are taken whole */
    int part;       /* of this cluster the `limit` oldest tokens; -1: of none */
    int limit;
};

/* What the clusters before the bin that is looked into have. */
struct taken_of {
    int bins[BINS], tokens, bin, ends;
    unsigned long long unit_bins[BINS], units;
    chosen_of chosen;
};

__device__ static inline bool is_full(const room_of &r, int tokens, unsigned long long units)
{
    return tokens >= r.tokens || units >= r.need;
}

/* From the best bin on: the one in which the list becomes full; ends stays 0 if there is none. Warp 0. */
__device__ static inline void find_bin(taken_of &s, const room_of &r)
{
    const int of_lane = BINS / 32, had = s.tokens;
    const unsigned long long had_units = s.units;
    int lane = threadIdx.x, mine = 0, top = BINS - 1 - of_lane * lane;
    unsigned long long units = 0;

    for (int b = 0; b < of_lane; b++)
        mine += s.bins[top - b], units += s.unit_bins[top - b];
    int before = mine;
    unsigned long long units_before = units;
    for (int o = 1; o < 32; o <<= 1) {
        int other = __shfl_up_sync(0xffffffffu, before, o);
        unsigned long long more = __shfl_up_sync(0xffffffffu, units_before, o);
        before += lane >= o ? other : 0;
        units_before += lane >= o ? more : 0;
    }
    uint32_t who = __ballot_sync(0xffffffffu, is_full(r, had + before, had_units + units_before));
    before += had - mine;
    units_before += had_units - units;
    if (who == 0 || lane != __ffs(who) - 1)
        return;
    while (!is_full(r, before + s.bins[top], units_before + s.unit_bins[top]))
        before += s.bins[top], units_before += s.unit_bins[top], top--;
    s.bin = top, s.ends = 1;
    s.tokens = before, s.units = units_before;
}

/* Clusters whose key is the limit, in their order, until the list is full. Warp 0. */
__device__ static inline void take_equals(taken_of &s, const room_of &r, uint32_t *key, const int *tokens,
                                          int n, uint32_t limit)
{
    int lane = threadIdx.x, have = s.tokens;
    unsigned long long units = s.units;

    for (int base = 0; base < n && !is_full(r, have, units); base += 32) {
        int c = base + lane, mine = c < n && key[c] == limit ? tokens[c] : 0, before = mine;
        unsigned long long own = units_of(r, limit, mine), units_before = own;
        for (int o = 1; o < 32; o <<= 1) {
            int other = __shfl_up_sync(0xffffffffu, before, o);
            unsigned long long more = __shfl_up_sync(0xffffffffu, units_before, o);
            before += lane >= o ? other : 0;
            units_before += lane >= o ? more : 0;
        }
        int all = __shfl_sync(0xffffffffu, before, 31);
        unsigned long long all_units = __shfl_sync(0xffffffffu, units_before, 31);
        before += have - mine;
        units_before += units - own;
        if (mine > 0 && !is_full(r, before, units_before)) {
            if (before + mine <= r.tokens)
                key[c] = CHOSEN;
            else
                s.chosen.part = c, s.chosen.limit = r.tokens - before;
        }
        have += all, units += all_units;
    }
}

/* The clusters that fill a list: changes keys. Every thread receives the result. */
__device__ static chosen_of choose(uint32_t *key, const int *tokens, int n, const room_of &r)
{
    __shared__ taken_of s;
    uint32_t limit = 0;

    if (threadIdx.x == 0)
        s.tokens = 0, s.units = 0, s.chosen = {0, -1, 0};
    for (int shift = 24; shift >= 0 && r.tokens > 0; shift -= 8) {
        __syncthreads();
        for (int b = threadIdx.x; b < BINS; b += THREADS)
            s.bins[b] = 0, s.unit_bins[b] = 0;
        if (threadIdx.x == 0)
            s.ends = 0;
        __syncthreads();
        for (int c = threadIdx.x; c < n; c += THREADS)
            if (shift == 24 || key[c] >> (shift + 8) == limit >> (shift + 8)) {
                atomicAdd(&s.bins[key[c] >> shift & (BINS - 1)], tokens[c]);
                if (r.need != ~0ull)
                    atomicAdd(&s.unit_bins[key[c] >> shift & (BINS - 1)], units_of(r, key[c], tokens[c]));
            }
        __syncthreads();
        if (threadIdx.x < 32)
            find_bin(s, r);
        __syncthreads();
        if (!s.ends) /* all clusters together do not fill it, which is an error of the caller's */
            break;
        limit |= (uint32_t)s.bin << shift;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        s.chosen.above = r.tokens > 0 ? limit : CHOSEN;
    __syncthreads();
    if (threadIdx.x < 32 && r.tokens > 0)
        take_equals(s, r, key, tokens, n, limit);
    __syncthreads();
    return s.chosen;
}

/* What a list of n clusters may take. */
__device__ static room_of room_for(const sl_cluster_lists_params &p, int list, const uint32_t *key,
                                   const int *tokens, int n)
{
    __shared__ uint32_t best;
    __shared__ unsigned long long all;
    int most = p.take_of ? min(p.take_of[list], p.rule.budget) : p.rule.budget;
    room_of r = {max(most - p.rule.sinks, 0), ~0ull, 0};

    if (p.mass <= 0)
        return r;
    if (threadIdx.x == 0)
        best = 0, all = 0;
    __syncthreads();
    for (int c = threadIdx.x; c < n; c += THREADS)
        atomicMax(&best, key[c]);
    __syncthreads();
    r.best = score_of_key(best), r.need = 0;
    for (int c = threadIdx.x; c < n; c += THREADS)
        atomicAdd(&all, units_of(r, key[c], tokens[c]));
    __syncthreads();
    r.need = sl_mass_need(p.mass, all);
    r.need = r.need > 0 ? r.need : 1;
    return r;
}

/* ---- which tokens ---- */

/* The sums of v of all threads before this one, and of all threads. */
__device__ static inline int block_before(int v, int *all)
{
    __shared__ int totals[WARPS];
    int before = sl_warp_prefix(v);

    __syncthreads(); /* no thread reads the sums before these any more */
    if ((threadIdx.x & 31) == 31)
        totals[threadIdx.x >> 5] = before;
    __syncthreads();
    before -= v;
    *all = 0;
    for (int w = 0; w < WARPS; w++) {
        before += w < (int)(threadIdx.x >> 5) ? totals[w] : 0;
        *all += totals[w];
    }
    return before;
}

/*
 * Writes the chosen tokens of positions from .. to - 1, ascending; returns their number. A thread has EACH neighbouring
 * labels of a chunk. Before a token there are as many ids as tokens of whole clusters, and tokens of the last cluster up to its
 * limit: whole ones are counted in the low half of a sum, those of the last cluster in the high half.
 */
__device__ static int put_tokens(const uint16_t *labels, int from, int to, const uint32_t *key, int n,
                                 const chosen_of &c, int32_t *ids)
{
    int whole = 0, part = 0; /* in the chunks before */

    for (int base = from; base < to; base += CHUNK) {
        int first = base + EACH * threadIdx.x, mine = 0, all;
        uint32_t is_whole = 0, is_part = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int label = first + e < to ? labels[first + e] : n;
            if (label >= n)
                continue;
            is_whole |= (key[label] > c.above ? 1u : 0u) << e;
            is_part |= (label == c.part ? 1u : 0u) << e;
        }
        mine = __popc(is_whole) | __popc(is_part) << 16;
        int before = block_before(mine, &all), w = whole + (before & 0xffff), p = part + (before >> 16);
        for (int e = 0; e < EACH; e++) {
            bool one = is_whole >> e & 1, other = is_part >> e & 1;
            if (one || (other && p < c.limit))
                ids[w + (p < c.limit ? p : c.limit)] = first + e;
            w += one, p += other;
        }
        whole += all & 0xffff;
        part += all >> 16;
    }
    return whole + (part < c.limit ? part : c.limit);
}

/* The list of a token that selects; false if clusters do not have the tokens that they should have. */
__device__ static bool put_list(const lists_job &j, int i, int list, const list_of &t, uint32_t *key,
                                int *tokens, int32_t *ids)
{
    const sl_cluster_lists_params &p = j.p;
    const uint16_t *labels = p.labels + ((int64_t)t.seq * p.kv_heads + list) * p.ld_labels;
    int sinks = p.rule.sinks, n = t.g.count;

    for (int c = threadIdx.x; c < n; c += THREADS) {
        key[c] = sl_order_key(score_of(j, i, list, c));
        tokens[c] = 0;
    }
    __syncthreads();
    for (int e = sinks + threadIdx.x; e < t.g.end; e += THREADS)
        if (labels[e] < n)
            atomicAdd(&tokens[labels[e]], 1);
    __syncthreads();
    room_of room = room_for(p, list, key, tokens, n);
    chosen_of c = choose(key, tokens, n, room);
    for (int e = threadIdx.x; e < sinks; e += THREADS)
        ids[e] = e;
    int put = put_tokens(labels, sinks, t.g.end, key, n, c, ids + sinks);
    int newest = t.pos + 1 - t.g.end, from = sinks + put;
    for (int e = from + threadIdx.x; e < p.ld_ids; e += THREADS)
        ids[e] = e - from < newest ? t.g.end + e - from : -1;
    return put == room.tokens || (room.need != ~0ull && put < room.tokens);
}

__global__ static void __launch_bounds__(THREADS) lists_kernel(lists_job j)
{
    extern __shared__ uint32_t smem[]; /* keys, then numbers of tokens, of the clusters */
    const sl_cluster_lists_params &p = j.p;
    int i = blockIdx.x / p.kv_heads, list = blockIdx.x % p.kv_heads, n = 0;
    int32_t *ids = p.ids + ((int64_t)(j.first - p.token_first) * p.kv_heads + blockIdx.x) * p.ld_ids;
    list_of t;

    if (list_of_token(j, i, &t)) {
        if (!t.all) {
            if (put_list(j, i, list, t, smem, (int *)(smem + p.ld_clusters), ids))
                return;
            if (threadIdx.x == 0)
                atomicOr(j.deverr, SL_DEVERR_SELECTION);
            __syncthreads();
        } else {
            n = t.pos + 1;
        }
    }
    for (int e = threadIdx.x; e < p.ld_ids; e += THREADS)
        ids[e] = e < n ? e : -1;
}

/* ---- launches ---- */

/* The products of the slice, into j->scores. */
static sl_status products(sl_cuda *cu, const lists_job *j, sl_err *err)
{
    const sl_cluster_lists_params *p = &j->p;
    sl_seq_tables s = {};
    sl_row_dots d = {};

    s.n_tokens = j->count, s.n_seqs = j->s.n_seqs, s.ld = j->ld_pages;
    s.token_seq = j->seqs, s.token_pos = j->pos, s.index_pages = j->pages;
    d.base = (const uint8_t *)p->centroids;
    d.row_stride = 4 * (int64_t)p->dim;
    d.head_stride = d.row_stride * p->ld_clusters;
    d.page_stride = d.head_stride * p->kv_heads;
    d.page_log2 = 30;
    d.n = p->dim;
    d.type = SL_F32;
    d.q = p->q + (int64_t)j->first * p->heads * p->dim;
    d.mean = p->reduce == SL_GROUP_MEAN;
    d.heads = p->heads, d.kv_heads = p->kv_heads, d.dim = p->dim;
    d.seqs = &s;
    d.token_count = j->count;
    d.plus = 1;
    d.out = j->scores;
    d.lists = p->kv_heads, d.ld_out = p->ld_clusters;
    d.raw = p->reduce == SL_GROUP_SOFTMAX || p->reduce == SL_GROUP_UNION;
    SL_TRY(sl_cuda_row_dots(cu, &d, err));
    if (p->reduce == SL_GROUP_UNION)
        return sl_cuda_row_places(cu, &d, j->space, err);
    return d.raw ? sl_cuda_row_exp(cu, &d, p->scale, j->sums, err) : SL_OK;
}

/* The pointers to scratch memory for `most` tokens. */
static void place(lists_job *j, const sl_clusters_space *s, int most, uint8_t *base)
{
    j->sums = (double *)base, j->space = base; /* one of the two */
    j->pages = (int32_t *)(base + s->pages);
    j->seqs = (int32_t *)(base + s->tables);
    j->pos = j->seqs + most;
    j->scores = (float *)(base + s->scores);
}

static sl_clusters_space space_of(const sl_cluster_lists_params *p, int tokens)
{
    return sl_clusters_space_of(tokens, p->seqs->n_seqs, p->heads, p->kv_heads, p->ld_clusters, p->reduce);
}

static sl_status slice(sl_cuda *cu, const lists_job *j, size_t smem, sl_err *err)
{
    SL_TRY(SL_LAUNCH(cu, tables_kernel, (sl_launch{dim3(j->count), 32}), err, *j));
    SL_TRY(products(cu, j, err));
    return SL_LAUNCH(cu, lists_kernel,
                     (sl_launch{dim3(sl_blocks((int64_t)j->count * j->p.kv_heads)), THREADS, smem}), err, *j);
}

static sl_status run_cluster_lists(sl_backend *be, const void *params, sl_err *err)
{
    const sl_cluster_lists_params *p = (const sl_cluster_lists_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    size_t smem = 8 * (size_t)p->ld_clusters;
    lists_job j = {};
    void *scratch;

    if (smem + 8192 > cu->gpu.smem)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: cluster_lists: %d clusters exceed the shared memory",
                       p->ld_clusters);
    j.p = *p, j.s = *p->seqs;
    j.ld_pages = sl_ceil_div(p->ld_clusters, SL_PAGE_TOKENS);
    j.deverr = cu->deverr;
    const int most = sl_slice_of(space_of(p, 1).bytes, p->token_count);
    const sl_clusters_space space = space_of(p, most);
    SL_TRY(sl_cuda_scratch(cu, space.bytes, &scratch, err));
    place(&j, &space, most, (uint8_t *)scratch);
    for (int done = 0; done < p->token_count; done += most) {
        j.first = p->token_first + done;
        j.count = p->token_count - done < most ? p->token_count - done : most;
        SL_TRY(slice(cu, &j, smem, err));
    }
    return SL_OK;
}

const sl_op_impl sl_cuda_cluster_lists = {.run = run_cluster_lists};
