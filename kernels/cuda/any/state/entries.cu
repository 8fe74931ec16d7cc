/*
 * Windows and compressed entries, except attention. Entries: one thread block per token that ends one; what is open is written by later
 * kernels, because the former ones read it. Scores: key_scores.cuh; on the plain path a thread block walks over tiles of 32 entries of a
 * token, whose keys are in shared memory, and a thread has one entry and a quarter of the heads.
 */
#include "kernels/cuda/any/cache/rows.cuh"
#include "kernels/cuda/any/select/key_scores.cuh"
#include "kernels/cuda/any/state/runs.cuh"

#define THREADS 128
#define TILE 32     /* entries whose scores are made at a time */
#define SCORERS 256 /* thread blocks of a token, at most */
#define DIM_MAX 2048

/* v[0 .. n - 1] of a thread block: RMS norm, rounded to act. */
__device__ static void norm_of(float *v, int n, float eps, const void *norm, sl_dtype dtype, sl_dtype act)
{
    double sum = 0;

    for (int i = threadIdx.x; i < n; i += THREADS)
        sum += (double)v[i] * v[i];
    sum = sl_block_sum(sum);
    float inv = (float)(1.0 / sqrt(sum / n + (double)eps));
    for (int i = threadIdx.x; i < n; i += THREADS)
        v[i] = sl_actr(__fmul_rn(__fmul_rn(v[i], inv), norm ? sl_ld(norm, i, dtype) : 1.0f), act);
    __syncthreads();
}

/* Pairs of the last `rope` of n values. */
__device__ static void rotate_tail(float *v, int n, int rope, const float *cs, bool back, sl_dtype act)
{
    float *x = v + n - rope;

    for (int i = threadIdx.x; i < rope / 2; i += THREADS) {
        float a, b, sine = back ? -cs[2 * i + 1] : cs[2 * i + 1];
        sl_rotate(x[2 * i], x[2 * i + 1], cs[2 * i], sine, &a, &b);
        x[2 * i] = sl_actr(a, act), x[2 * i + 1] = sl_actr(b, act);
    }
    __syncthreads();
}

/* ---- head_rotate ---- */

__global__ static void __launch_bounds__(THREADS) rotate_kernel(sl_head_rotate_params p)
{
    extern __shared__ float v[];
    int64_t t = blockIdx.x / p.heads, h = blockIdx.x % p.heads;

    for (int i = threadIdx.x; i < p.dim; i += THREADS)
        v[i] = sl_ld(p.x, t * p.ld_x + h * p.dim + i, p.act);
    __syncthreads();
    if (p.eps > 0)
        norm_of(v, p.dim, p.eps, p.norm, p.norm_dtype, p.act);
    rotate_tail(v, p.dim, p.rope, p.cos_sin + (int64_t)p.pos[t] * p.rope, p.back, p.act);
    for (int i = threadIdx.x; i < p.dim; i += THREADS)
        sl_st(p.out, (int64_t)blockIdx.x * p.dim + i, v[i], p.out_dtype);
}

static sl_status limit(const char *op, int32_t dim, sl_err *err)
{
    if (dim > DIM_MAX)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: %s: dim %d exceeds %d", op, dim, DIM_MAX);
    return SL_OK;
}

static sl_status run_head_rotate(sl_backend *be, const void *params, sl_err *err)
{
    const sl_head_rotate_params *p = (const sl_head_rotate_params *)params;

    SL_TRY(limit("head_rotate", p->dim, err));
    return SL_LAUNCH(
        sl_cuda_of(be), rotate_kernel,
        (sl_launch{dim3(sl_blocks((int64_t)p->tokens * p->heads)), THREADS, sizeof(float) * (size_t)p->dim}),
        err, *p);
}

static sl_status ask_head_rotate(sl_backend *, const void *params, sl_err *err)
{
    return limit("head_rotate", ((const sl_head_rotate_params *)params)->dim, err);
}

const sl_op_impl sl_cuda_head_rotate = {.run = run_head_rotate, .supports = ask_head_rotate};

/* ---- entries_append ---- */

/* Pages of token t on the device and on the host; false: they do not exist, or t is padding. */
__device__ static bool pages_of(const sl_entries_append_params &p, const sl_seq_tables &s, int t,
                                uint32_t *deverr, int *seq, int *pos, uint8_t **device, uint8_t **host)
{
    if (!sl_token(&s, t, deverr, seq, pos))
        return false;
    int64_t entry = (int64_t)*seq * s.ld + *pos / SL_PAGE_TOKENS;
    int d = s.index_pages[entry], h = s.host_pages[entry];
    if ((d < 0 && !p.rows.base) || h < 0) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_PAGE);
        return false;
    }
    *device = p.device + d * p.device_stride;
    *host = p.host.base + h * p.host.page_stride;
    return true;
}

/* A token that begins a page makes its entries zero. */
__global__ static void __launch_bounds__(THREADS)
    clear_kernel(sl_entries_append_params p, sl_seq_tables s, int per_page, uint32_t *deverr)
{
    int seq, pos;
    uint8_t *device, *host;

    if (!pages_of(p, s, blockIdx.x, deverr, &seq, &pos, &device, &host) || pos % SL_PAGE_TOKENS)
        return;
    for (int i = threadIdx.x; i < per_page * p.dim; i += THREADS) {
        int e = i / p.dim, c = i % p.dim;
        if (!p.rows.base)
            sl_st(device, i, 0, p.dtype);
        sl_st(host + e * p.host.row_stride, c, 0, p.dtype);
    }
}

/* Sums of channel c over the tokens of the open entry up to token t: maximum, weights, products. */
__device__ static void plain_sums(const sl_entries_append_params &p, const sl_seq_tables &s, int t, int seq,
                                  int pos, int c, float *top, float *sum, float *all)
{
    const float *open = (const float *)(p.open + seq * p.open_stride);
    int back = pos % p.rate; /* tokens of the entry before t */

    while (back > 0 && !sl_in_step(s, t, seq, back))
        back--;
    bool fresh = back == pos % p.rate;
    *top = fresh ? 0 : open[c], *sum = fresh ? 0 : open[p.dim + c], *all = fresh ? 0 : open[2 * p.dim + c];
    for (; back >= 0; back--) {
        int64_t at = (int64_t)(t - back) * p.dim + c;
        float g = __fadd_rn(p.gate[at], p.bias[(int64_t)((pos - back) % p.rate) * p.dim + c]);
        float max = fresh || g > *top ? g : *top, keep = fresh ? 0 : expf(*top - max), w = expf(g - max);
        *sum = __fadd_rn(keep == 0 ? 0 : __fmul_rn(*sum, keep), w);
        *all = __fadd_rn(keep == 0 ? 0 : __fmul_rn(*all, keep), __fmul_rn(w, p.kv[at]));
        *top = max, fresh = false;
    }
}

/* Value and gate of channel c of the token `back` before t, with overlap. */
__device__ static inline void overlap_at(const sl_entries_append_params &p, const sl_seq_tables &s, int t,
                                         int seq, int pos, int back, int c, float *kv, float *gate)
{
    int n = 2 * p.dim, i = (back < p.rate ? p.dim : 0) + c;
    if (sl_in_step(s, t, seq, back)) {
        int64_t at = (int64_t)(t - back) * n + i;
        *kv = p.kv[at], *gate = __fadd_rn(p.gate[at], p.bias[(int64_t)((pos - back) % p.rate) * n + i]);
        return;
    }
    const float *open =
        (const float *)(p.open + seq * p.open_stride) + (int64_t)((pos - back) % (2 * p.rate)) * 2 * n;
    *kv = open[i], *gate = open[n + i];
}

__device__ static float overlap_of(const sl_entries_append_params &p, const sl_seq_tables &s, int t, int seq,
                                   int pos, int c)
{
    int first = 2 * p.rate - 1 < pos ? 2 * p.rate - 1 : pos;
    float top = -INFINITY, sum = 0, all = 0, kv, gate;

    for (int back = first; back >= 0; back--) {
        overlap_at(p, s, t, seq, pos, back, c, &kv, &gate);
        top = fmaxf(top, gate);
    }
    for (int back = first; back >= 0; back--) {
        overlap_at(p, s, t, seq, pos, back, c, &kv, &gate);
        float w = expf(gate - top);
        sum = __fadd_rn(sum, w);
        all = __fadd_rn(all, __fmul_rn(w, kv));
    }
    return all / sum;
}

/* The device address of the entry that ends with token t; NULL: it is on the host alone. */
__device__ static uint8_t *device_of(const sl_entries_append_params &p, const sl_seq_tables &s,
                                     const sl_rows &shape, int t, int seq, int pos, uint8_t *page, int place,
                                     uint32_t *deverr)
{
    sl_new_row at;

    if (!p.rows.base)
        return page + (int64_t)place * p.dim * (p.dtype == SL_F32 ? 4 : 2);
    uint32_t bad = sl_new_row_of(s, p.rows, shape, p.host, t, seq, pos, 0, &at);
    if (bad && threadIdx.x == 0)
        atomicOr(deverr, bad);
    return bad ? NULL : at.device;
}

__global__ static void __launch_bounds__(THREADS)
    entry_kernel(sl_entries_append_params p, sl_seq_tables s, sl_rows shape, uint32_t *deverr)
{
    extern __shared__ float v[];
    int t = blockIdx.x, seq, pos;
    uint8_t *device, *host;

    if (!pages_of(p, s, t, deverr, &seq, &pos, &device, &host) || (pos + 1) % p.rate)
        return;
    for (int c = threadIdx.x; c < p.dim; c += THREADS) {
        float top, sum, all;
        if (p.overlap) {
            v[c] = overlap_of(p, s, t, seq, pos, c);
            continue;
        }
        plain_sums(p, s, t, seq, pos, c, &top, &sum, &all);
        v[c] = all / sum;
    }
    __syncthreads();
    int w = pos / p.rate, place = w - (int)((int64_t)(pos / SL_PAGE_TOKENS) * SL_PAGE_TOKENS / p.rate);
    norm_of(v, p.dim, p.eps, p.norm, p.norm_dtype, SL_F32);
    rotate_tail(v, p.dim, p.rope, p.cos_sin + (int64_t)w * p.rate * p.rope, false, SL_F32);
    uint8_t *to = device_of(p, s, shape, t, seq, pos, device, place, deverr);
    for (int c = threadIdx.x; c < p.dim; c += THREADS) {
        if (to)
            sl_st(to, c, v[c], p.dtype);
        sl_st(host + place * p.host.row_stride, c, v[c], p.dtype);
    }
}

/* The last tokens of a sequence leave what is open of the next entries. */
__global__ static void __launch_bounds__(THREADS)
    open_kernel(sl_entries_append_params p, sl_seq_tables s, uint32_t *deverr)
{
    int t = blockIdx.x, seq, pos, n = 2 * p.dim, later = p.overlap ? 2 * p.rate : 1;

    if (!sl_token(&s, t, deverr, &seq, &pos) || sl_in_step(s, t, seq, -later))
        return;
    float *open = (float *)(p.open + seq * p.open_stride);
    for (int c = threadIdx.x; p.overlap && c < n; c += THREADS) {
        float *to = open + (int64_t)(pos % (2 * p.rate)) * 2 * n;
        to[c] = p.kv[(int64_t)t * n + c];
        to[n + c] = __fadd_rn(p.gate[(int64_t)t * n + c], p.bias[(int64_t)(pos % p.rate) * n + c]);
    }
    for (int c = threadIdx.x; !p.overlap && c < p.dim; c += THREADS) {
        float top, sum, all;
        plain_sums(p, s, t, seq, pos, c, &top, &sum, &all);
        open[c] = top, open[p.dim + c] = sum, open[n + c] = all;
    }
}

static sl_status run_entries_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_entries_append_params *p = (const sl_entries_append_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    sl_launch shape = {dim3((unsigned)p->seqs->n_tokens), THREADS, sizeof(float) * (size_t)p->dim};

    SL_TRY(limit("entries_append", p->dim, err));
    SL_TRY(
        SL_LAUNCH(cu, clear_kernel, shape, err, *p, *p->seqs, (int)sl_entries_per_page(p->rate), cu->deverr));
    SL_TRY(SL_LAUNCH(cu, entry_kernel, shape, err, *p, *p->seqs, sl_rows_of(&p->rows), cu->deverr));
    return SL_LAUNCH(cu, open_kernel, shape, err, *p, *p->seqs, cu->deverr);
}

static sl_status ask_entries_append(sl_backend *, const void *params, sl_err *err)
{
    return limit("entries_append", ((const sl_entries_append_params *)params)->dim, err);
}

const sl_op_impl sl_cuda_entries_append = {.run = run_entries_append, .supports = ask_entries_append};

/* ---- entry_scores ---- */

/* Where entry w of a sequence is; NULL: its page does not exist. */
__device__ static const uint8_t *entry_of(const sl_entries_view &e, const sl_seq_tables &s, int seq, int w,
                                          int *place)
{
    int page = (int)((((int64_t)w + 1) * e.rate - 1) / SL_PAGE_TOKENS),
        at = s.index_pages[(int64_t)seq * s.ld + page];

    *place = w - (int)((int64_t)page * SL_PAGE_TOKENS / e.rate);
    return at < 0 ? NULL : e.base + at * e.page_stride;
}

/* The entries that the token sees, and what the selection after this is told of them; 0 if they are more than the scores. */
__device__ static int seen_by(const sl_entry_scores_params &p, const sl_seq_tables &s, int t, bool first,
                              int *seq, uint32_t *deverr)
{
    int pos, n = sl_token(&s, t, deverr, seq, &pos) ? (pos + 1) / p.entries.rate : 0;

    if (first) {
        p.seen_seq[t] = n ? *seq : -1;
        p.seen_pos[t] = n ? n - 1 : 0;
        if (n > p.ld_scores)
            atomicOr(deverr, SL_DEVERR_POS);
    }
    return n > p.ld_scores ? 0 : n;
}

struct entry_keys {
    const sl_entries_view &e;
    const sl_seq_tables &s;
    uint32_t *deverr;
    int seq;
    sl_dtype dtype;

    __device__ const uint8_t *at(int w) const
    {
        int place;
        const uint8_t *page = entry_of(e, s, seq, w, &place);

        if (!page)
            atomicOr(deverr, SL_DEVERR_PAGE);
        return page ? page + (int64_t)place * e.dim * (dtype == SL_F32 ? 4 : 2) : NULL;
    }
};

template <int H>
__global__ static void __launch_bounds__(KEY_THREADS)
    tiled_scores_kernel(sl_entry_scores_params p, sl_seq_tables s, uint32_t *deverr)
{
    __shared__ __align__(16) sl_key_tile<H> tile;
    int t = p.token_first + (int)blockIdx.x, seq = -1, dim = p.entries.dim;
    int n = seen_by(p, s, t, blockIdx.y == 0 && threadIdx.x == 0, &seq, deverr);

    if (n == 0)
        return;
    entry_keys keys = {p.entries, s, deverr, seq, p.entries.dtype};
    sl_key_queries q = {p.q + (int64_t)t * p.heads * dim, p.weights + (int64_t)t * p.heads, p.heads, dim, 1};
    sl_key_scores<H>(tile, keys, q, n, p.scores + (int64_t)blockIdx.x * p.ld_scores);
}

__global__ static void __launch_bounds__(THREADS)
    scores_kernel(sl_entry_scores_params p, sl_seq_tables s, uint32_t *deverr)
{
    extern __shared__ float keys[]; /* [TILE][dim + 1], then the partial sums */
    int t = p.token_first + (int)blockIdx.y, seq = -1, dim = p.entries.dim, lane = threadIdx.x % TILE,
        part = threadIdx.x / TILE;
    float *parts = keys + TILE * (dim + 1);
    int n = seen_by(p, s, t, blockIdx.x == 0 && threadIdx.x == 0, &seq, deverr);

    for (int first = (int)blockIdx.x * TILE; first < n; first += (int)gridDim.x * TILE) {
        int here = min(TILE, n - first);
        __syncthreads();
        for (int i = threadIdx.x; i < here * dim; i += THREADS) {
            int place;
            const uint8_t *at = entry_of(p.entries, s, seq, first + i / dim, &place);
            if (!at)
                atomicOr(deverr, SL_DEVERR_PAGE);
            keys[i / dim * (dim + 1) + i % dim] =
                at ? sl_ld(at, (int64_t)place * dim + i % dim, p.entries.dtype) : 0;
        }
        __syncthreads();
        float sum = 0;
        for (int h = part; lane < here && h < p.heads; h += THREADS / TILE) {
            const float *q = p.q + ((int64_t)t * p.heads + h) * dim;
            float dot = 0;
            for (int c = 0; c < dim; c++)
                dot = fmaf(q[c], keys[lane * (dim + 1) + c], dot);
            sum = __fadd_rn(sum, __fmul_rn(dot < 0 ? 0.0f : dot, p.weights[(int64_t)t * p.heads + h]));
        }
        parts[part * TILE + lane] = sum;
        __syncthreads();
        if (part == 0 && lane < here) {
            for (int k = 1; k < THREADS / TILE; k++)
                sum = __fadd_rn(sum, parts[k * TILE + lane]);
            p.scores[(int64_t)blockIdx.y * p.ld_scores + first + lane] = sum;
        }
    }
}

enum { KEY_MAX = 256 };

static sl_status ask_entry_scores(sl_backend *, const void *params, sl_err *err)
{
    const sl_entry_scores_params *p = (const sl_entry_scores_params *)params;
    if (sl_path_entry_scores(p) == SL_KEYS_PLAIN && p->entries.dim > KEY_MAX)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: entry_scores: dim %d exceeds %d", p->entries.dim,
                       KEY_MAX);
    return SL_OK;
}

static sl_status run_entry_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_entry_scores_params *p = (const sl_entry_scores_params *)params;
    const int tiles = sl_ceil_div(p->ld_scores, TILE);

    SL_TRY(ask_entry_scores(be, params, err));
    if (sl_path_entry_scores(p) == SL_KEYS_TILED)
        return SL_LAUNCH(sl_cuda_of(be), SL_KEY_HEADS(p->heads, tiled_scores_kernel),
                         (sl_launch{sl_key_grid(p->token_count, p->heads, p->ld_scores), KEY_THREADS}), err,
                         *p, *p->seqs, sl_cuda_of(be)->deverr);
    return SL_LAUNCH(sl_cuda_of(be), scores_kernel,
                     (sl_launch{dim3((unsigned)(tiles < SCORERS ? tiles : SCORERS), (unsigned)p->token_count),
                                THREADS, sizeof(float) * (size_t)(TILE * (p->entries.dim + 1) + THREADS)}),
                     err, *p, *p->seqs, sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_entry_scores = {.run = run_entry_scores, .supports = ask_entry_scores};
