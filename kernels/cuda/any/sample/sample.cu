/*
 * SL_OP_SAMPLE: one launch for all requests, a cluster of blocks for each. The clusters are as large as all of them fit
 * onto the device at once: 8 blocks for up to 16 requests, 2 for 64. The specification is kernels/sample.h.
 *
 * Limit: the logits are read once from memory (64 rows of 129,280: 33 MB, 7.5 us) and then from the L2: once more for
 * plain draws, three or four times for top_k, top_p and the n best. Such a pass takes a block of two about 4 us, and 20 with
 * exponentials. Flat and equal rows take the passes of any other; a row of few distinct logits takes two more.
 */
#include "kernels/cuda/any/sample/sample_row.cuh"

/* ---- step 1: changes ---- */

/* Whether a token is in this block's part. */
__device__ static inline bool mine(const sample_part &p, int id)
{
    int first = p.first_tile * TILE;

    return id >= first && id < p.vocab && id < first + p.tiles * TILE;
}

__device__ static inline void change(const sample_part &p, const sl_sample_row &r, int n)
{
    for (int k = threadIdx.x; k < n; k += THREADS) {
        sl_sample_entry *e = &r.list->entry[k];
        if (mine(p, e->id)) {
            float x = p.x[e->id];
            e->logit = x;
            p.x[e->id] = sl_sample_changed(x, e, &r);
        }
    }
    __syncthreads();
}

__device__ static inline void restore(const sample_part &p, const sl_sample_row &r, int n)
{
    __syncthreads();
    for (int k = threadIdx.x; k < n; k += THREADS) {
        const sl_sample_entry *e = &r.list->entry[k];
        if (mine(p, e->id))
            p.x[e->id] = e->logit;
    }
    __syncthreads();
}

/* Counts the chosen token, by one block. False: the list is full. */
__device__ static bool track(sl_sample_list *list, int n, int id)
{
    bool hit = false;

    for (int k = threadIdx.x; k < n; k += THREADS) {
        sl_sample_entry *e = &list->entry[k];
        if (e->id == id) {
            e->seen = (e->seen | SL_SAMPLE_KNOWN) + SL_SAMPLE_ONCE;
            hit = true;
        }
    }
    if (__syncthreads_or(hit))
        return true;
    if (n >= list->room)
        return false;
    if (threadIdx.x == 0) {
        sl_sample_entry *e = &list->entry[n];
        e->id = id, e->bias = 0, e->seen = SL_SAMPLE_KNOWN | SL_SAMPLE_ONCE, e->logit = 0;
        list->n = n + 1;
    }
    return true;
}

/* ---- steps 2 to 5 ---- */

template <int C>
__device__ static int choose(sample_shared &s, sample_part &p, const sl_sample_row &r, uint64_t best)
{
    sample_worth mass = {sl_sample_key_logit((uint32_t)(best >> 32)), r.inv_t, false};
    sample_worth one = {mass.max, r.inv_t, true};
    sample_cut c = {ALL, INT32_MAX};

    if (r.inv_t == 0.0f || r.top_k == 1)
        return (int)(uint32_t)best;
    bool by_k = r.top_k > 0 && r.top_k < p.vocab;
    if (by_k)
        c = find_cut<C>(s, p, one, [&](uint64_t) { return (uint64_t)r.top_k; });
    if (r.top_p < SL_SAMPLE_P_ONE) {
        uint64_t kept = by_k ? total_of<C>(s, p, mass, c) : 0;
        c = find_cut<C>(s, p, mass,
                        [&](uint64_t total) { return sl_sample_enough(by_k ? kept : total, r.top_p); });
    }
    uint64_t random = sl_sample_random(r.seed, (uint64_t)r.position);
    return first_to_reach<C>(
        s, p,
        [&](int i, float x) {
            float w = kept(c, x, i) ? sl_sample_weight(x, mass.max, mass.inv_t) : 0.0f;
            return w >= r.min_p ? sl_sample_mass(w) : 0;
        },
        [&](uint64_t total) { return sl_sample_high(random, total) + 1; });
}

/* ---- log-probabilities ---- */

/* The n best tokens of all blocks, sorted, by block 0 into out->top. */
template <int C>
__device__ static void best_tokens(sample_shared &s, sample_part &p, const sl_sample_row &r, float top,
                                   double log_total, sl_sampled *out)
{
    sample_worth one = {top, 1.0f, true};
    uint64_t want = (uint64_t)min(r.n_logprobs, p.vocab);
    sample_cut c = find_cut<C>(s, p, one, [&](uint64_t) { return want; });
    uint64_t own = ~(uint64_t)0;
    int n = 0, before = 0;

    if (threadIdx.x == 0)
        s.n_best = 0;
    __syncthreads();
    each(p, [&](int i, float x, bool in) {
        if (in && kept(c, x, i) && x > -INFINITY)
            s.best[atomicAdd(&s.n_best, 1u)] = (uint64_t)sl_sample_key(x) << 32 | (uint32_t)i;
    });
    cluster_barrier<C>();
    if (p.rank == 0 && threadIdx.x < 32) {
        int lane = threadIdx.x;
        for (int b = 0; b < C; b++) { /* at most 20 of all blocks together, so one for a lane */
            int have;
            uint64_t v;
#if __CUDA_ARCH__ >= 900
            have = (int)sl_cluster_load(sl_cluster_addr(sl_smem_addr(&s.n_best), b));
            uint32_t at =
                sl_cluster_addr(sl_smem_addr(&s.best[min(max(lane - n, 0), SL_LOGPROBS_MAX - 1)]), b);
            v = (uint64_t)sl_cluster_load(at + 4) << 32 | sl_cluster_load(at);
#else
            have = (int)s.n_best;
            v = s.best[min(lane, SL_LOGPROBS_MAX - 1)];
#endif
            if (lane >= n && lane < n + have)
                own = v;
            n += have;
        }
        for (int k = 0; k < n; k++)
            before += __shfl_sync(ALL, own, k) < own;
        if (lane < n) {
            out->top[before].id = (int32_t)(uint32_t)own;
            out->top[before].logprob =
                sl_sample_logprob(sl_sample_key_logit((uint32_t)(own >> 32)), top, log_total);
        }
        if (lane == 0)
            out->n_top = (uint32_t)n;
    }
    cluster_barrier<C>(); /* no block continues, or ends, while block 0 reads its tokens */
}

/* The unchanged logit of a token, in all blocks. */
template <int C> __device__ static inline float logit_of(sample_shared &s, sample_part &p, int id)
{
    uint64_t bits = mine(p, id) ? __float_as_uint(p.x[id]) : 0;

    return __uint_as_float((uint32_t)cluster_sum<C>(s, p, bits));
}

/* ---- a request ---- */

__device__ static void clear(sl_sampled *out)
{
    uint32_t *word = (uint32_t *)out;

    for (int i = threadIdx.x; i < (int)(sizeof *out / 4); i += THREADS)
        word[i] = 0;
    __syncthreads();
}

/* Everything of a request; returns its fault. Block 0 writes. */
template <int C>
__device__ static uint32_t sample_row(sample_shared &s, sample_part &p, const sl_sample_row &r,
                                      sl_sampled *out)
{
    uint64_t raw = best_of<C>(s, p), best = raw;
    float max = sl_sample_key_logit((uint32_t)(raw >> 32));
    int n = r.list ? r.list->n : 0;
    double log_total = 0;

    if (!raw)
        return SL_SAMPLE_NOT_FINITE;
    if (max == -INFINITY)
        return SL_SAMPLE_ALL_INFINITE;
    if (r.n_logprobs >= 0) {
        sample_worth mass = {max, 1.0f, false};
        sample_cut all = {ALL, INT32_MAX};
        log_total = sl_sample_log(total_of<C>(s, p, mass, all));
    }
    if (r.n_logprobs > 0)
        best_tokens<C>(s, p, r, max, log_total, out);
    if (r.list)
        change(p, r, n);
    p.mask = r.mask;
    if (r.list || r.mask)
        best = best_of<C>(s, p);
    bool none = !best || (uint32_t)(best >> 32) == sl_sample_key(-INFINITY);
    int id = none ? -1 : choose<C>(s, p, r, best);
    if (r.list)
        restore(p, r, n);
    if (none)
        return SL_SAMPLE_NONE_LEFT;
    float logit = r.n_logprobs >= 0 ? logit_of<C>(s, p, id) : 0;
    if (p.rank == 0 && r.list && r.track && !track(r.list, n, id))
        return SL_SAMPLE_LIST_FULL;
    if (p.rank == 0 && threadIdx.x == 0) {
        out->id = id;
        if (r.n_logprobs >= 0)
            out->logprob = sl_sample_logprob(logit, max, log_total);
    }
    return SL_SAMPLE_FINE;
}

template <int C>
__global__ static void __launch_bounds__(THREADS, 1) sample_kernel(sl_sample_params p, uint32_t *deverr)
{
    __shared__ sample_shared s;
    int at = blockIdx.x / C, tiles = (p.vocab + TILE - 1) / TILE, share = (tiles + C - 1) / C;
    sl_sample_row r = p.rows[at];
    sl_sampled *out = p.out + at;
    sample_part part = {};

    part.rank = (int)(blockIdx.x % C);
    if (r.row < 0 || r.row >= p.n_logits) { /* the whole cluster */
        if (threadIdx.x == 0 && part.rank == 0)
            atomicOr(deverr, SL_DEVERR_ID);
        return;
    }
    part.x = p.logits + (int64_t)r.row * p.ld;
    part.vocab = p.vocab;
    part.first_tile = min(part.rank * share, tiles);
    part.tiles = min(share, tiles - part.first_tile);
    cluster_barrier<C>(); /* the mail of every block exists */
    if (part.rank == 0)
        clear(out);
    uint32_t fault = sample_row<C>(s, part, r, out);
    if (fault && part.rank == 0) {
        __syncthreads();
        clear(out);
        if (threadIdx.x == 0)
            out->id = -1, out->fault = fault;
    }
    if (p.next && part.rank == 0 && threadIdx.x == 0)
        p.next[at] = fault ? 0 : out->id; /* written by this thread */
    cluster_barrier<C>();                 /* no block ends while another one writes into its mail */
}

template <int C> static sl_status launch(sl_cuda *cu, const sl_sample_params *p, sl_err *err)
{
    return SL_LAUNCH(cu, sample_kernel<C>, (sl_launch{dim3(p->n * C), THREADS, 0, false, C > 1 ? C : 0}), err,
                     *p, cu->deverr);
}

static sl_status run_sample(sl_backend *be, const void *params, sl_err *err)
{
    const sl_sample_params *p = (const sl_sample_params *)params;
    sl_cuda *cu = sl_cuda_of(be);

    if (!cu->gpu.bulk || p->n > cu->sms / 2)
        return launch<1>(cu, p, err);
    if (p->n > cu->sms / 5) /* of GPCs with 16 or 18 multiprocessors not all can form clusters of 4 */
        return launch<2>(cu, p, err);
    return p->n > cu->sms / 9 ? launch<4>(cu, p, err) : launch<8>(cu, p, err);
}

const sl_op_impl sl_cuda_sample = {.run = run_sample};
