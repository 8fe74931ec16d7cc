/*
 * Hashed n-gram embeddings. One thread block per token hashes its last tokens and reads its rows of the table, in host memory, over the
 * bus: 16 rows of 320 bytes for a token of the published model. A second kernel keeps the last tokens. The mix has one thread block
 * per stream of a token.
 */
#include "kernels/cuda/any/state/runs.cuh"

#define THREADS 256

/* The token `back` places before token t, -1: none. */
__device__ static inline int64_t token_before(const sl_ngram_params &p, const sl_seq_tables &s, int t,
                                              int seq, int pos, int back)
{
    if (sl_in_step(s, t, seq, back))
        return p.ids[t - back];
    return pos < back ? -1
                      : ((const int32_t *)(p.state + seq * p.state_stride))[(pos - back) % (p.order - 1)] - 1;
}

/* The row of order n and head h in the table. */
__device__ static inline int64_t row_of(const sl_ngram_params &p, const int64_t *id, int n, int h)
{
    uint64_t x = 0;

    for (int i = 0; i < n; i++)
        x ^= (uint64_t)id[i] * (uint64_t)p.multipliers[i];
    int at = (n - 2) * p.heads + h;
    int64_t size = p.sizes[at], rest = (int64_t)x % size;
    return p.offsets[at] + rest + (rest < 0 ? size : 0);
}

__global__ static void __launch_bounds__(THREADS)
    ngram_kernel(sl_ngram_params p, sl_seq_tables s, uint32_t *deverr)
{
    __shared__ const void *base[SL_NGRAM_MAX * SL_NGRAM_HEADS_MAX];
    int t = blockIdx.x, n = (p.order - 1) * p.heads, seq, pos;
    int64_t id[SL_NGRAM_MAX], size = p.table_dtype == SL_F32 ? 4 : 2;
    bool cut = false;

    if (!sl_token(&s, t, deverr, &seq, &pos))
        return;
    id[0] = p.ids[t];
    for (int back = 1; back < p.order; back++) {
        id[back] = cut ? p.eos : token_before(p, s, t, seq, pos, back);
        cut = cut || id[back] < 0 || id[back] == p.eos;
        id[back] = cut ? p.eos : id[back];
    }
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int64_t row = row_of(p, id, i / p.heads + 2, i % p.heads);
        int low = 0, high = p.n_shards - 1;
        base[i] = NULL;
        if (row < 0 || row >= p.shard_rows[high]) {
            atomicOr(deverr, SL_DEVERR_ID);
            continue;
        }
        while (low < high) {
            int mid = (low + high) / 2;
            if (row < p.shard_rows[mid])
                high = mid;
            else
                low = mid + 1;
        }
        base[i] = (const uint8_t *)p.shards[low] + (row - (low ? p.shard_rows[low - 1] : 0)) * p.dim * size;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n * p.dim; i += THREADS)
        if (base[i / p.dim])
            sl_st(p.out, (int64_t)t * n * p.dim + i, sl_ld(base[i / p.dim], i % p.dim, p.table_dtype), p.act);
}

__global__ static void keep_kernel(sl_ngram_params p, sl_seq_tables s, uint32_t *deverr)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x, keep = p.order - 1, seq, pos;

    if (t < s.n_tokens && sl_token(&s, t, deverr, &seq, &pos) && !sl_in_step(s, t, seq, -keep))
        ((int32_t *)(p.state + seq * p.state_stride))[pos % keep] = p.ids[t] + 1;
}

static sl_status run_ngram(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ngram_params *p = (const sl_ngram_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    unsigned n = (unsigned)p->seqs->n_tokens;

    if (n == 0)
        return SL_OK;
    SL_TRY(SL_LAUNCH(cu, ngram_kernel, (sl_launch{dim3(n), THREADS}), err, *p, *p->seqs, cu->deverr));
    return SL_LAUNCH(cu, keep_kernel, (sl_launch{dim3((unsigned)sl_ceil_div(n, THREADS)), THREADS}), err, *p,
                     *p->seqs, cu->deverr);
}

const sl_op_impl sl_cuda_ngram = {.run = run_ngram};

/* ---- ngram_mix ---- */

__device__ static inline float inverse_rms(double sum, int n, float eps)
{
    return (float)(1.0 / sqrt(sl_block_sum(sum) / n + (double)eps));
}

__global__ static void __launch_bounds__(THREADS) ngram_mix_kernel(sl_ngram_mix_params p)
{
    int64_t i = blockIdx.x, at = i * p.dim, gain = i % p.count * p.dim, value = i / p.count * p.dim;
    double kk = 0, xx = 0, dot = 0, oo = 0;

    for (int d = threadIdx.x; d < p.dim; d += THREADS) {
        float x = sl_ld(p.streams, at + d, p.act);
        kk += (double)p.key[at + d] * p.key[at + d], xx += (double)x * x;
    }
    float by_key = inverse_rms(kk, p.dim, p.eps), by_x = inverse_rms(xx, p.dim, p.eps);
    for (int d = threadIdx.x; d < p.dim; d += THREADS)
        dot += (double)__fmul_rn(__fmul_rn(p.key[at + d], by_key), p.key_gain[gain + d]) *
               (double)__fmul_rn(__fmul_rn(sl_ld(p.streams, at + d, p.act), by_x), p.stream_gain[gain + d]);
    float g = (float)(sl_block_sum(dot) / sqrt((double)p.dim));
    g = g == 0 ? 0.0f : copysignf(sqrtf(fmaxf(fabsf(g), 1e-6f)), g);
    float by = sl_sigmoid(g);
    for (int d = threadIdx.x; d < p.dim; d += THREADS) {
        float v = __fmul_rn(by, p.value[value + d]);
        p.out[at + d] = v;
        oo += (double)v * v;
    }
    float by_out = inverse_rms(oo, p.dim, p.eps);
    for (int d = threadIdx.x; d < p.dim; d += THREADS)
        p.normed[at + d] = __fmul_rn(__fmul_rn(p.out[at + d], by_out), p.out_gain[gain + d]);
}

static sl_status run_ngram_mix(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ngram_mix_params *p = (const sl_ngram_mix_params *)params;
    sl_launch shape = {dim3((unsigned)((int64_t)p->tokens * p->count)), THREADS};

    return SL_LAUNCH(sl_cuda_of(be), ngram_mix_kernel, shape, err, *p);
}

const sl_op_impl sl_cuda_ngram_mix = {.run = run_ngram_mix};
