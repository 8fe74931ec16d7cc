/*
 * Scores of tokens by their codes (kernels/codes.h). Per query head the products with all centroids are a table; a token's
 * product is a look-up for each part, added in their order; row_softmax.cu makes exponentials and their sums of the products;
 * the last kernel adds the weights of the query heads of a KV head. Products have the bits of the CPU backend, weights differ
 * from its by the last bit at most.
 *
 * Limit: codes are `parts` bytes per token and KV head, at 64K tokens with 2 parts and 8 KV heads 1 MB per request and layer.
 * The products in scratch memory are what counts: 4 bytes per token and query head, written twice and read three times, with 32
 * query heads 42 MB per request and layer; 64 requests 2.7 GB, 640 us at 4.2 TB/s without the L2 cache. Not measured.
 */
#include "kernels/cuda/any/select/codes_step.h"
#include "kernels/cuda/any/select/row_dots.cuh"

#define THREADS 256

struct scores_job {
    sl_code_scores_params p;
    sl_seq_tables s;
    int first, count; /* tokens of the slice */
    int group;
    /* Of the slice: a token at pos - 1 has pos candidates; sequence -1: none, or it selects everything. */
    int32_t *seqs, *pos;
    float *tables;   /* [count][heads][parts][k] */
    float *products; /* [count][heads][ld] */
    int64_t ld;
    double *sums; /* [count][heads] */
    uint32_t *deverr;
};

struct scored_token {
    int seq, pos, n; /* n: candidates, from the sinks on; may be less than 1 */
};

/* False: its scores are not written. */
__device__ static inline bool scored(const scores_job &j, int i, scored_token *t)
{
    const sl_code_scores_params &p = j.p;

    if (!sl_token(&j.s, j.first + i, j.deverr, &t->seq, &t->pos) || t->pos < p.from_pos)
        return false;
    t->n = t->pos + 1 - p.recent - p.sinks;
    if (t->pos < p.ld_scores && (t->n < 1 || p.sinks + t->n <= p.ld_codes))
        return true;
    if (threadIdx.x == 0)
        atomicOr(j.deverr, SL_DEVERR_POS);
    return false;
}

/* A thread block per token and query head: the products with the centroids, in the canonical order. */
__global__ static void __launch_bounds__(THREADS) tables_kernel(scores_job j)
{
    const sl_code_scores_params &p = j.p;
    int i = blockIdx.x, h = blockIdx.y, width = p.dim / p.parts;
    const float *q = p.q + ((int64_t)(j.first + i) * p.heads + h) * p.dim;
    float *table = j.tables + ((int64_t)i * p.heads + h) * p.parts * p.k;
    scored_token t;
    bool selects = scored(j, i, &t) && t.n > 0;

    if (h == 0 && threadIdx.x == 0) {
        j.seqs[i] = selects ? t.seq : -1;
        j.pos[i] = selects ? t.n - 1 : 0;
    }
    if (!selects)
        return;
    const float *book = p.centroids + ((int64_t)t.seq * p.kv_heads + h / j.group) * p.k * p.dim;
    for (int e = threadIdx.x; e < p.parts * p.k; e += THREADS) {
        const float *c = book + (int64_t)(e % p.k) * p.dim + e / p.k * width, *x = q + e / p.k * width;
        float l[8] = {};
        for (int d = 0; d < width; d += 8)
#pragma unroll
            for (int lane = 0; lane < 8; lane++)
                if (d + lane < width)
                    l[lane] = fmaf(c[d + lane], x[d + lane], l[lane]);
        table[e] = __fadd_rn(__fadd_rn(__fadd_rn(l[0], l[4]), __fadd_rn(l[2], l[6])),
                             __fadd_rn(__fadd_rn(l[1], l[5]), __fadd_rn(l[3], l[7])));
    }
}

/* A thread per candidate, token and KV head. */
__global__ static void __launch_bounds__(THREADS) look_up_kernel(scores_job j)
{
    const sl_code_scores_params &p = j.p;
    int c = blockIdx.x * THREADS + threadIdx.x, list = blockIdx.y, i = blockIdx.z, seq = j.seqs[i];

    if (seq < 0 || c > j.pos[i])
        return;
    const uint8_t *code = p.codes + (((int64_t)seq * p.kv_heads + list) * p.ld_codes + p.sinks + c) * p.parts;
    for (int h = list * j.group; h < (list + 1) * j.group; h++) {
        const float *table = j.tables + ((int64_t)i * p.heads + h) * p.parts * p.k;
        float sum = table[code[0]];
        for (int s = 1; s < p.parts; s++)
            sum = __fadd_rn(sum, table[s * p.k + code[s]]);
        j.products[((int64_t)i * p.heads + h) * j.ld + c] = sum;
    }
}

/* A thread per token of the cache. */
__global__ static void __launch_bounds__(THREADS) weights_kernel(scores_job j)
{
    const sl_code_scores_params &p = j.p;
    int x = blockIdx.x * THREADS + threadIdx.x, list = blockIdx.y, i = blockIdx.z, c = x - p.sinks;
    float score = 0;
    scored_token t;

    if (!scored(j, i, &t) || x > t.pos)
        return;
    for (int h = list * j.group; h < (list + 1) * j.group && c >= 0 && c < t.n; h++) {
        int64_t row = (int64_t)i * p.heads + h;
        float v = (float)((double)j.products[row * j.ld + c] / j.sums[row]);
        score = h == list * j.group ? v : __fadd_rn(score, v);
    }
    p.scores[((int64_t)(j.first - p.token_first + i) * p.kv_heads + list) * p.ld_scores + x] = score;
}

/* The pointers to scratch memory for `most` tokens. */
static void place(scores_job *j, const sl_codes_space *s, int most, uint8_t *base)
{
    j->sums = (double *)base;
    j->seqs = (int32_t *)(base + s->places);
    j->pos = j->seqs + most;
    j->tables = (float *)(base + s->tables);
    j->products = (float *)(base + s->products);
}

/* The products become exponentials; their sums. */
static sl_status exponentials(sl_cuda *cu, const scores_job *j, sl_err *err)
{
    sl_seq_tables s = j->s;
    sl_row_dots d = {};

    s.n_tokens = j->count, s.token_seq = j->seqs, s.token_pos = j->pos;
    d.seqs = &s;
    d.heads = j->p.heads;
    d.token_count = j->count;
    d.plus = 1;
    d.out = j->products;
    d.ld_out = (int32_t)j->ld;
    return sl_cuda_row_exp(cu, &d, j->p.scale, j->sums, err);
}

static sl_status slice(sl_cuda *cu, const scores_job *j, sl_err *err)
{
    unsigned blocks = (unsigned)sl_ceil_div(j->ld, THREADS), lists = j->p.kv_heads;

    SL_TRY(SL_LAUNCH(cu, tables_kernel, (sl_launch{dim3(j->count, j->p.heads), THREADS}), err, *j));
    SL_TRY(SL_LAUNCH(cu, look_up_kernel, (sl_launch{dim3(blocks, lists, j->count), THREADS}), err, *j));
    SL_TRY(exponentials(cu, j, err));
    return SL_LAUNCH(cu, weights_kernel, (sl_launch{dim3(blocks, lists, j->count), THREADS}), err, *j);
}

static sl_status run_code_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_code_scores_params *p = (const sl_code_scores_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    scores_job j = {};
    void *scratch;

    j.p = *p, j.s = *p->seqs;
    j.group = p->heads / p->kv_heads;
    j.ld = p->ld_scores;
    j.deverr = cu->deverr;
    const int most =
        sl_slice_of(sl_codes_space_of(1, p->heads, p->parts, p->k, p->ld_scores).bytes, p->token_count);
    const sl_codes_space space = sl_codes_space_of(most, p->heads, p->parts, p->k, p->ld_scores);
    SL_TRY(sl_cuda_scratch(cu, space.bytes, &scratch, err));
    place(&j, &space, most, (uint8_t *)scratch);
    for (int done = 0; done < p->token_count; done += most) {
        j.first = p->token_first + done;
        j.count = p->token_count - done < most ? p->token_count - done : most;
        SL_TRY(slice(cu, &j, err));
    }
    return SL_OK;
}

const sl_op_impl sl_cuda_code_scores = {.run = run_code_scores};
