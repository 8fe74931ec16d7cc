/*
 * Scores of pages of retained tokens (kernels/retained.h): the products of a group's queries with the pages' bounds, then
 * softmax over pages and the sum over the group (row_softmax.cu). The products have the bits of the CPU backend; the scores
 * differ from its by the last bit at most, where an exponential is rounded differently.
 *
 * A thread block has one KV head of one token and every gridDim.x-th tile of 16 pages. Eight neighbouring threads have the
 * eight lanes of a page's canonical product, so that they read neighbouring bounds. The block with the open page first
 * makes its bounds in shared memory, from the keys of at most a page of tokens in host memory.
 *
 * Limit: with e5m2 and d 128 a page is 256 bytes per KV head. 64 requests of 2,048 retained tokens in pages of 4, and 8 KV
 * heads, are 67 MB, 16 us at 4.2 TB/s, and with 4 query heads 268e6 multiply-adds, 9 us at 29.6e12 per second; the keys of
 * the open pages take two or three microseconds over the bus in any case. Prediction: 40 to 60 us, because each value is
 * loaded and converted alone, by about four instructions for each multiply-add.
 *
 * Measured on one H200, 64 requests of 600 to 660 retained tokens (conformance --op retained_scores --perf): 55.2 us, and
 * 52.5 us with all keys in device memory. So the open pages cost 2.7 us of a layer's step where their keys are; reading them
 * from the rows of the tail would save that, and need the tables of hot slots here.
 */
#include "kernels/cuda/any/select/retained.cuh"
#include "kernels/cuda/any/select/row_dots.h"

#define THREADS 128
#define LANES 8
#define PAGES (THREADS / LANES) /* of a tile */
#define QUERIES 4               /* whose products a thread adds at a time */

struct scores_job {
    sl_kept_pages j;
    const float *q; /* of the step's first token */
    float *each;    /* [tokens of the slice][heads][ld] */
    int32_t *place;
    int token_first, done, count; /* the slice begins with token token_first + done; tokens of the op */
    int heads, group, padded, ld; /* padded: group as a multiple of QUERIES */
    int dense_below, top_r, select;
};

/* A query token that has scores. */
struct scores_token {
    int t, seq, end, last; /* end: its own retained token; last: the open page */
};

/* Token i of the slice. Writes its place; false: it has no scores. */
__device__ static inline bool find_token(const scores_job &s, int i, bool write, scores_token *out)
{
    int pos, end = 0, seq = -1, t = s.token_first + s.done + i;
    bool reads =
        sl_token(&s.j.s, t, s.j.deverr, &seq, &pos) && !sl_kept_reads_all(s.j.r, seq, pos, s.dense_below);

    if (reads)
        end = sl_kept_index(s.j.r, seq, pos);
    if (write) {
        s.place[s.done + i] = reads ? seq : -1;
        s.place[s.count + s.done + i] = end;
    }
    int last = end >> s.j.r.page_log2;
    if (!reads || last < s.select)
        return false;
    if (last >= s.ld || last > sl_kept_most_pages(s.j)) {
        atomicOr(s.j.deverr, SL_DEVERR_POS);
        return false;
    }
    *out = {t, seq, end, last};
    return true;
}

/* The number of channels that are better than channel c by their sums of |q|. */
__device__ static inline int rank_of(const float *size, int dim, int c)
{
    int n = 0;

    for (int i = 0; i < dim; i++)
        n += size[i] > size[c] || (size[i] == size[c] && i < c);
    return n;
}

/* x[padded][2 * dim] = the group's queries as [where max is taken | where min is]. size: scratch of dim values. */
__device__ static void make_queries(const scores_job &s, const float *q, float *x, float *size)
{
    int dim = s.j.r.dim;

    for (int c = threadIdx.x; c < dim; c += THREADS) {
        size[c] = 0;
        for (int h = 0; h < s.group; h++)
            size[c] = __fadd_rn(size[c], fabsf(q[(int64_t)h * dim + c]));
    }
    __syncthreads();
    for (int c = threadIdx.x; c < dim; c += THREADS) {
        bool in = s.top_r >= dim || rank_of(size, dim, c) < s.top_r;
        float sum = 0;
        for (int h = 0; h < s.group; h++)
            sum = __fadd_rn(sum, q[(int64_t)h * dim + c]);
        for (int h = 0; h < s.padded; h++) {
            float v = in && h < s.group ? q[(int64_t)h * dim + c] : 0;
            x[2 * h * dim + c] = sum > 0 ? v : 0;
            x[2 * h * dim + dim + c] = sum > 0 ? 0 : v;
        }
    }
}

/* The products of all queries of the group with one page; eight threads call it together. store: the page exists. */
__device__ static inline void score_page(const scores_job &s, const float *x, const uint8_t *unit, bool store,
                                         float *out)
{
    int lane = threadIdx.x % LANES, n = 2 * s.j.r.dim;

    for (int first = 0; first < s.padded; first += QUERIES) {
        float sum[QUERIES] = {};
        for (int k = lane; k < n; k += LANES) {
            float v = sl_get_bound(s.j, unit, k);
#pragma unroll
            for (int h = 0; h < QUERIES; h++)
                sum[h] = fmaf(v, x[(first + h) * n + k], sum[h]);
        }
#pragma unroll
        for (int h = 0; h < QUERIES; h++) {
            for (int far = LANES / 2; far; far /= 2) /* the canonical order of the lanes */
                sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(0xffffffffu, sum[h], far));
            if (store && lane == 0 && first + h < s.group)
                out[(int64_t)(first + h) * s.ld] = sum[h];
        }
    }
}

__global__ static void __launch_bounds__(THREADS) retained_scores_kernel(scores_job s)
{
    extern __shared__ __align__(16) uint8_t smem[];
    int i = blockIdx.z, head = blockIdx.y, dim = s.j.r.dim;
    float *x = (float *)smem, *size = x + 2 * s.padded * dim;
    uint8_t *open = (uint8_t *)(size + dim);
    scores_token at;

    if (!find_token(s, i, blockIdx.x == 0 && head == 0 && threadIdx.x == 0, &at) ||
        (int)blockIdx.x * PAGES > at.last)
        return;
    make_queries(s, s.q + ((int64_t)at.t * s.heads + (int64_t)head * s.group) * dim, x, size);
    if (at.last / PAGES % gridDim.x == blockIdx.x)
        for (int c = threadIdx.x; c < dim; c += THREADS)
            sl_make_bounds(s.j, at.seq, head, at.last << s.j.r.page_log2, at.end, c, open);
    __syncthreads();
    float *out = s.each + ((int64_t)i * s.heads + (int64_t)head * s.group) * s.ld;
    for (int tile = blockIdx.x; tile * PAGES <= at.last; tile += gridDim.x) {
        int page = min(tile * PAGES + (int)threadIdx.x / LANES, at.last);
        bool mine = tile * PAGES + (int)threadIdx.x / LANES == page;
        const uint8_t *unit = page == at.last ? open : sl_kept_unit(s.j, at.seq, head, page);
        score_page(s, x, unit, mine, out + page);
    }
}

static sl_status run_products(sl_cuda *cu, const scores_job *s, int tokens, sl_err *err)
{
    size_t smem = 4 * (2 * (size_t)s->padded + 1) * s->j.r.dim + 2 * (size_t)s->j.r.dim * s->j.value_bytes;
    int tiles = sl_ceil_div(s->ld, PAGES), fill = sl_ceil_div(8 * cu->sms, (int64_t)s->j.r.kv_heads * tokens);
    dim3 grid(tiles < fill ? tiles : fill, s->j.r.kv_heads, tokens);

    if (smem > cu->gpu.smem)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cuda: retained_scores: %d queries of %d channels exceed the shared memory", s->group,
                       s->j.r.dim);
    return SL_LAUNCH(cu, retained_scores_kernel, (sl_launch{grid, THREADS, smem}), err, *s);
}

/* The job of row_softmax.cu: tokens are the places that the products' kernel has written. */
static sl_row_dots softmax_job(const sl_retained_scores_params *p, const sl_seq_tables *places)
{
    int64_t from = (int64_t)p->select << p->r.page_log2;
    sl_row_dots d = {};

    d.heads = p->heads, d.kv_heads = p->r.kv_heads, d.dim = p->r.dim;
    d.seqs = places;
    d.pos_log2 = p->r.page_log2;
    d.plus = 1;
    d.from_pos = from < INT32_MAX ? (int)from : INT32_MAX;
    d.lists = p->heads, d.ld_out = p->ld_scores;
    d.raw = true;
    return d;
}

static sl_status run_retained_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_retained_scores_params *p = (const sl_retained_scores_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    sl_seq_tables places = *p->seqs;
    int group = p->heads / p->r.kv_heads;
    void *scratch;

    places.n_tokens = p->token_count;
    places.token_seq = p->place, places.token_pos = p->place + p->token_count;
    sl_row_dots d = softmax_job(p, &places);
    const size_t each = sl_raw_scratch(d.heads, d.ld_out);
    const int most = sl_slice_of(each, p->token_count);
    SL_TRY(sl_cuda_scratch(cu, (size_t)most * each, &scratch, err));
    double *sums = (double *)scratch;
    d.out = (float *)(sums + (int64_t)most * p->heads);
    scores_job s = {sl_kept_pages_of(cu, &p->r, p->seqs),
                    p->q,
                    d.out,
                    p->place,
                    p->token_first,
                    0,
                    p->token_count,
                    p->heads,
                    group,
                    (group + QUERIES - 1) / QUERIES * QUERIES,
                    p->ld_scores,
                    p->dense_below,
                    p->top_r,
                    p->select};
    for (; s.done < p->token_count; s.done += most) {
        d.token_first = s.done;
        d.token_count = p->token_count - s.done < most ? p->token_count - s.done : most;
        SL_TRY(run_products(cu, &s, d.token_count, err));
        SL_TRY(sl_cuda_row_exp(cu, &d, p->scale, sums, err));
        SL_TRY(sl_cuda_row_add(cu, &d, sums, p->r.kv_heads, p->ld_scores,
                               p->scores + (int64_t)s.done * p->r.kv_heads * p->ld_scores, err));
    }
    return SL_OK;
}

const sl_op_impl sl_cuda_retained_scores = {.run = run_retained_scores};
