/*
 * Pooled index keys. New keys: one thread block per token that completes a unit, one thread per channel; a second kernel keeps the
 * raw keys of units that stay open. Scores: key_scores.cuh; the plain path has one thread block for 32 units of a token, whose keys and the
 * token's queries are in shared memory, and a thread has one unit and a quarter of the heads.
 */
#include "kernels/cuda/any/select/key_scores.cuh"
#include "kernels/cuda/any/state/runs.cuh"

#define THREADS 128
#define UNITS 32 /* of a thread block */
#define SMEM (48 * 1024)

/* ---- append ---- */

struct unit_at {
    int t, seq; /* the unit's last token */
    int size;
};

/* Channel d of the raw key, or of the gate, of token j of the unit. */
__device__ static inline float raw_of(const sl_pool_append_params &p, const sl_seq_tables &s,
                                      const unit_at &u, int j, int d, bool gate)
{
    int back = u.size - 1 - j;

    if (sl_in_step(s, u.t, u.seq, back))
        return (gate ? p.gate : p.k)[(int64_t)(u.t - back) * p.ld + d];
    return (
        (const float *)(p.state + u.seq * p.state_stride))[(int64_t)((gate ? u.size : 0) + j) * p.dim + d];
}

__device__ static inline float pool_of(const sl_pool_append_params &p, const sl_seq_tables &s,
                                       const unit_at &u, int d)
{
    float sum = 0, all = 0, top = -INFINITY;

    for (int j = 0; p.gate && j < u.size; j++)
        top = fmaxf(top, __fadd_rn(raw_of(p, s, u, j, d, true), p.ape[(int64_t)j * p.dim + d]));
    for (int j = 0; j < u.size; j++) {
        float w = 1;
        if (p.gate)
            w = expf(__fadd_rn(raw_of(p, s, u, j, d, true), p.ape[(int64_t)j * p.dim + d]) - top);
        all = __fadd_rn(all, w);
        sum = __fadd_rn(sum, __fmul_rn(w, raw_of(p, s, u, j, d, false)));
    }
    return sl_actr(sum / all, p.act);
}

__global__ static void __launch_bounds__(THREADS)
    key_kernel(sl_pool_append_params p, sl_seq_tables s, uint32_t *deverr)
{
    extern __shared__ float key[];
    int size = 1 << p.unit_log2, pos;
    unit_at u = {(int)blockIdx.x, 0, size};

    if (!sl_token(&s, u.t, deverr, &u.seq, &pos) || (pos + 1) % size)
        return;
    int64_t entry = (int64_t)u.seq * s.ld + pos / SL_PAGE_TOKENS;
    int page = s.index_pages[entry], host_page = p.host.base ? s.host_pages[entry] : 0,
        begin = pos + 1 - size;
    if (page < 0 || host_page < 0) {
        atomicOr(deverr, SL_DEVERR_PAGE);
        return;
    }
    double sum = 0;
    for (int d = threadIdx.x; d < p.dim; d += THREADS) {
        key[d] = pool_of(p, s, u, d);
        sum += (double)key[d] * key[d];
    }
    sum = sl_block_sum(sum);
    float inv = (float)(1.0 / sqrt(sum / p.dim + (double)p.eps));
    for (int d = threadIdx.x; p.norm && d < p.dim; d += THREADS)
        key[d] = sl_actr(__fmul_rn(__fmul_rn(key[d], inv), p.norm[d]), p.act);
    __syncthreads();
    const float *cs = p.cos_sin + (int64_t)begin * p.rope;
    for (int i = threadIdx.x; i < p.rope / 2; i += THREADS) {
        float a, b;
        sl_rotate(key[i], key[i + p.rope / 2], cs[2 * i], cs[2 * i + 1], &a, &b);
        key[i] = sl_actr(a, p.act), key[i + p.rope / 2] = sl_actr(b, p.act);
    }
    __syncthreads();
    int place = begin % SL_PAGE_TOKENS >> p.unit_log2;
    float *dev = (float *)(p.base + page * p.page_stride) + (int64_t)place * p.dim;
    for (int d = threadIdx.x; d < p.dim; d += THREADS) {
        dev[d] = key[d];
        if (p.host.base)
            ((float *)(p.host.base + host_page * p.host.page_stride + place * p.host.row_stride))[d] = key[d];
    }
}

__global__ static void __launch_bounds__(THREADS)
    keep_kernel(sl_pool_append_params p, sl_seq_tables s, uint32_t *deverr)
{
    int size = 1 << p.unit_log2, t = blockIdx.x, seq, pos;

    if (!sl_token(&s, t, deverr, &seq, &pos) || sl_in_step(s, t, seq, -(size - 1 - pos % size)))
        return;
    float *state = (float *)(p.state + seq * p.state_stride) + (int64_t)(pos % size) * p.dim;
    for (int d = threadIdx.x; d < p.dim; d += THREADS) {
        state[d] = p.k[(int64_t)t * p.ld + d];
        if (p.gate)
            state[(int64_t)size * p.dim + d] = p.gate[(int64_t)t * p.ld + d];
    }
}

static sl_status run_pool_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_pool_append_params *p = (const sl_pool_append_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    sl_launch shape = {dim3((unsigned)p->seqs->n_tokens), THREADS, sizeof(float) * (size_t)p->dim};

    SL_TRY(SL_LAUNCH(cu, key_kernel, shape, err, *p, *p->seqs, cu->deverr));
    return SL_LAUNCH(cu, keep_kernel, shape, err, *p, *p->seqs, cu->deverr);
}

const sl_op_impl sl_cuda_pool_append = {.run = run_pool_append};

/* ---- scores ---- */

static size_t scores_smem(const sl_pool_scores_params *p)
{
    return sizeof(float) * ((size_t)p->heads * (size_t)p->dim + UNITS * ((size_t)p->dim + 1));
}

/* The token's complete units, and what the selection after this is told of them. */
__device__ static int units_of(const sl_pool_scores_params &p, const sl_seq_tables &s, int i, bool first,
                               int *seq, uint32_t *deverr)
{
    int pos = 0;
    bool is = sl_token(&s, p.token_first + i, deverr, seq, &pos);
    int units = is ? (pos + 1) >> p.unit_log2 : 0;

    if (first) {
        p.unit_seq[i] = units > 0 ? *seq : -1;
        p.unit_pos[i] = units > 0 ? (units << p.unit_log2) - 1 : 0;
        if (units > p.ld_scores)
            atomicOr(deverr, SL_DEVERR_POS);
    }
    return min(units, p.ld_scores);
}

struct unit_keys {
    const uint8_t *base;
    int64_t page_stride;
    const int32_t *pages; /* of the sequence */
    uint32_t *deverr;
    int per, dim; /* keys of a page */
    sl_dtype dtype;

    __device__ const uint8_t *at(int u) const
    {
        int page = pages[u / per];

        if (page < 0)
            atomicOr(deverr, SL_DEVERR_PAGE);
        return page < 0 ? NULL : base + page * page_stride + (int64_t)(u % per) * dim * 4;
    }
};

template <int H>
__global__ static void __launch_bounds__(KEY_THREADS)
    tiled_scores_kernel(sl_pool_scores_params p, sl_seq_tables s, uint32_t *deverr)
{
    __shared__ __align__(16) sl_key_tile<H> tile;
    int i = blockIdx.x, seq = -1;
    int64_t t = p.token_first + i;
    int units = units_of(p, s, i, blockIdx.y == 0 && threadIdx.x == 0, &seq, deverr);

    if (units == 0)
        return;
    unit_keys keys = {
        p.base, p.page_stride, s.index_pages + (int64_t)seq * s.ld, deverr, SL_PAGE_TOKENS >> p.unit_log2,
        p.dim,  SL_F32};
    sl_key_queries q = {p.q + t * p.heads * p.dim, p.weights ? p.weights + t * p.heads : NULL, p.heads, p.dim,
                        p.scale};
    sl_key_scores<H>(tile, keys, q, units, p.scores + (int64_t)i * p.ld_scores);
}

__global__ static void __launch_bounds__(THREADS)
    scores_kernel(sl_pool_scores_params p, sl_seq_tables s, uint32_t *deverr)
{
    extern __shared__ float q[];
    __shared__ float part[THREADS / 32][UNITS];
    float *keys = q + (int64_t)p.heads * p.dim;
    int i = blockIdx.x, t = p.token_first + i, first = blockIdx.y * UNITS,
        per = SL_PAGE_TOKENS >> p.unit_log2;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, seq = -1;
    int units = units_of(p, s, i, first == 0 && threadIdx.x == 0, &seq, deverr);

    if (first >= units)
        return;
    for (int k = threadIdx.x; k < p.heads * p.dim; k += THREADS)
        q[k] = p.q[(int64_t)t * p.heads * p.dim + k];
    for (int k = threadIdx.x; k < UNITS * p.dim; k += THREADS) {
        int u = first + k / p.dim, d = k % p.dim;
        int page = u < units ? s.index_pages[(int64_t)seq * s.ld + u / per] : 0;
        if (page < 0)
            atomicOr(deverr, SL_DEVERR_PAGE);
        keys[(k / p.dim) * (p.dim + 1) + d] =
            u < units && page >= 0
                ? ((const float *)(p.base + page * p.page_stride))[(int64_t)(u % per) * p.dim + d]
                : 0;
    }
    __syncthreads();
    float sum = 0;
    for (int h = warp; h < p.heads; h += THREADS / 32) {
        float dot = 0;
        for (int d = 0; d < p.dim; d++)
            dot = fmaf(q[h * p.dim + d], keys[lane * (p.dim + 1) + d], dot);
        dot = dot < 0 ? 0.0f : dot;
        sum += p.weights ? dot * p.weights[(int64_t)t * p.heads + h] : dot;
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && first + lane < units) {
        for (int w = 1; w < THREADS / 32; w++)
            sum += part[w][lane];
        p.scores[(int64_t)i * p.ld_scores + first + lane] = sum * p.scale;
    }
}

static sl_status supports_scores(sl_backend *, const void *params, sl_err *err)
{
    const sl_pool_scores_params *p = (const sl_pool_scores_params *)params;
    if (sl_path_pool_scores(p) == SL_KEYS_PLAIN && scores_smem(p) + sizeof(float) * THREADS > SMEM)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: pool_scores: %d heads of %d values do not fit",
                       p->heads, p->dim);
    return SL_OK;
}

static sl_status run_pool_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_pool_scores_params *p = (const sl_pool_scores_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    sl_launch shape = {dim3((unsigned)p->token_count, (unsigned)sl_ceil_div(p->ld_scores, UNITS)), THREADS,
                       scores_smem(p)};

    SL_TRY(supports_scores(be, params, err));
    if (sl_path_pool_scores(p) == SL_KEYS_TILED)
        return SL_LAUNCH(cu, SL_KEY_HEADS(p->heads, tiled_scores_kernel),
                         (sl_launch{sl_key_grid(p->token_count, p->heads, p->ld_scores), KEY_THREADS}), err,
                         *p, *p->seqs, cu->deverr);
    return SL_LAUNCH(cu, scores_kernel, shape, err, *p, *p->seqs, cu->deverr);
}

const sl_op_impl sl_cuda_pool_scores = {.run = run_pool_scores, .supports = supports_scores};

/* ---- open_units ---- */

__global__ static void __launch_bounds__(THREADS)
    open_kernel(sl_open_units_params p, sl_seq_tables s, uint32_t *deverr)
{
    int t = blockIdx.x * THREADS + threadIdx.x, low = 0, high = p.ld_ids, seq, pos;

    if (t >= s.n_tokens || !sl_token(&s, t, deverr, &seq, &pos) ||
        ((pos + 1) & ((1 << p.unit_log2) - 1)) == 0)
        return;
    int32_t *list = p.ids + (int64_t)t * p.ld_ids;
    while (low < high) { /* the first -1 */
        int mid = (low + high) / 2;
        if (list[mid] < 0)
            high = mid;
        else
            low = mid + 1;
    }
    if (low > 0 && list[low - 1] == pos >> p.unit_log2)
        return;
    if (low == p.ld_ids)
        atomicOr(deverr, SL_DEVERR_SELECTION);
    else
        list[low] = pos >> p.unit_log2;
}

/* The tokens of the units of a list, in their place: from the last ones on, since a unit lies before its tokens. */
__global__ static void __launch_bounds__(THREADS)
    tokens_kernel(sl_open_units_params p, sl_seq_tables s, uint32_t *deverr)
{
    __shared__ int n;
    int t = blockIdx.x, size = 1 << p.unit_log2, seq, pos;
    int32_t *list = p.ids + (int64_t)t * p.ld_ids;

    if (!sl_token(&s, t, deverr, &seq, &pos))
        return;
    if (threadIdx.x == 0)
        n = p.ld_ids;
    __syncthreads();
    for (int i = threadIdx.x; i < p.ld_ids; i += THREADS)
        if (list[i] < 0)
            atomicMin(&n, i);
    __syncthreads();
    if (n == 0)
        return;
    int last = list[n - 1] << p.unit_log2, count = (n - 1) * size + min(size, pos + 1 - last);
    if (count > p.ld_ids) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_SELECTION);
        return;
    }
    for (int end = (count + THREADS - 1) / THREADS * THREADS; end > 0; end -= THREADS) {
        int i = end - THREADS + threadIdx.x, id = 0;
        if (i < count)
            id = (list[i >> p.unit_log2] << p.unit_log2) + (i & (size - 1));
        __syncthreads();
        if (i < count)
            list[i] = id;
        __syncthreads();
    }
}

static sl_status run_open_units(sl_backend *be, const void *params, sl_err *err)
{
    const sl_open_units_params *p = (const sl_open_units_params *)params;
    sl_cuda *cu = sl_cuda_of(be);

    SL_TRY(SL_LAUNCH(cu, open_kernel,
                     (sl_launch{dim3((unsigned)sl_ceil_div(p->seqs->n_tokens, THREADS)), THREADS}), err, *p,
                     *p->seqs, cu->deverr));
    if (!p->by_token)
        return SL_OK;
    return SL_LAUNCH(cu, tokens_kernel, (sl_launch{dim3((unsigned)p->seqs->n_tokens), THREADS}), err, *p,
                     *p->seqs, cu->deverr);
}

const sl_op_impl sl_cuda_open_units = {.run = run_open_units};
