/*
 * Codes of the tokens that leave the recent window with a step's tokens (kernels/codes.h), with the bytes of the CPU backend.
 * One thread block per token and part of a KV head, a thread per centroid: the product has the canonical order of
 * kernels/cpu/vec.h, the length that of the channels. The key is read from the row pool, or directly from the pinned host
 * arena if the sequence is hierarchical.
 *
 * Limit: a step reads its requests' codebooks, 4 * k * d bytes per KV head: with 64 codes, 8 KV heads and d 128 0.26 MB, for 64
 * requests 16.8 MB per layer, 4 us at 4.2 TB/s; and one key of 256 bytes each, 131 KB over the bus, 3 us. Not measured.
 */
#include "kernels/cuda/any/select/codes_step.h"
#include "kernels/cuda/any/cache/key_rows.cuh"

#define THREADS 128

struct code_of {
    float score;
    int code;
};

/* The better one; of equals the smaller code. A score that is not a number never wins against another thread's. */
__device__ static inline code_of better(code_of a, code_of b)
{
    return b.score > a.score || (b.score == a.score && b.code < a.code) ? b : a;
}

struct step_job {
    sl_codes_params p;
    sl_codes_step step;
    sl_seq_tables s;
    sl_key_rows keys;
    uint32_t *deverr;
};

/* The row of the token that leaves the window when token t of the step is appended, and its number; NULL: there is none. */
__device__ static inline const uint8_t *leaving_row(const step_job &j, int t, int head, int *seq, int *token)
{
    int pos, row_head = j.keys.shape.heads > 1 ? head : 0;

    if (!sl_token(&j.s, t, j.deverr, seq, &pos) || pos < j.step.trained[*seq] || pos < j.step.recent)
        return NULL;
    *token = pos - j.step.recent;
    bool hot = j.s.hot_slot[*seq] >= 0;
    const int32_t *table = hot ? j.s.host_pages : j.s.row_pages;
    int page = hot && !j.keys.host.base ? -1 : table[(int64_t)*seq * j.s.ld + *token / SL_PAGE_TOKENS];
    if (page < 0 || *token >= j.p.ld_codes) {
        atomicOr(j.deverr, page < 0 ? SL_DEVERR_PAGE : SL_DEVERR_POS);
        return NULL;
    }
    if (hot)
        return j.keys.host.base + page * j.keys.host.page_stride +
               *token % SL_PAGE_TOKENS * j.keys.host.row_stride + row_head * j.keys.rows.row_bytes;
    return j.keys.rows.base + sl_pool_row(j.keys.shape, page, *token, row_head) * j.keys.rows.row_bytes;
}

/* The product with a centroid minus half of its squared length. */
__device__ static inline float score_of(const float *key, const float *centroid, int width)
{
    float l[8] = {};
    double square = 0;

    for (int i = 0; i < width; i += 8)
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (i + e < width) {
                double c = (double)centroid[i + e];
                l[e] = fmaf(centroid[i + e], key[i + e], l[e]);
                square = __dadd_rn(square, __dmul_rn(c, c));
            }
    float dot = __fadd_rn(__fadd_rn(__fadd_rn(l[0], l[4]), __fadd_rn(l[2], l[6])),
                          __fadd_rn(__fadd_rn(l[1], l[5]), __fadd_rn(l[3], l[7])));
    return __fsub_rn(dot, (float)(square / 2));
}

__global__ static void __launch_bounds__(THREADS) codes_step_kernel(step_job j)
{
    extern __shared__ float key[]; /* [width] */
    __shared__ code_of part_best[THREADS / 32];
    const sl_codes_params &p = j.p;
    int head = blockIdx.y / p.parts, part = blockIdx.y % p.parts, dim = p.keys.dim, width = dim / p.parts,
        seq, token;
    sl_key_at at = {leaving_row(j, blockIdx.x, head, &seq, &token), j.keys.in_row > 1 ? head : 0};
    code_of best = {-INFINITY, 0};

    if (!at.row)
        return;
    for (int i = threadIdx.x; i < width; i += THREADS)
        key[i] = sl_key_value(j.keys, at, part * width + i);
    __syncthreads();
    const int64_t list = (int64_t)seq * p.keys.heads + head;
    const float *book = p.centroids + list * p.k * dim + part * width;
    for (int c = threadIdx.x; c < p.k; c += THREADS)
        best = better(best, {score_of(key, book + (int64_t)c * dim, width), c});
    for (int o = 16; o; o >>= 1)
        best = better(
            best, {__shfl_xor_sync(0xffffffffu, best.score, o), __shfl_xor_sync(0xffffffffu, best.code, o)});
    if ((threadIdx.x & 31) == 0)
        part_best[threadIdx.x >> 5] = best;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int w = 1; w < THREADS / 32; w++)
        best = better(best, part_best[w]);
    p.codes[(list * p.ld_codes + token) * p.parts + part] = (uint8_t)best.code;
}

sl_status sl_cuda_codes_step(sl_cuda *cu, const sl_codes_params *p, sl_err *err)
{
    const sl_key_source *k = &p->keys;
    dim3 grid((unsigned)p->tokens, (unsigned)(k->heads * p->parts));
    step_job j = {*p, *p->step, *p->step->seqs,
                  sl_key_rows_of(&k->rows, &k->host, k->heads, k->dim, k->format), cu->deverr};

    return SL_LAUNCH(cu, codes_step_kernel, (sl_launch{grid, THREADS, 4 * (size_t)(k->dim / p->parts)}), err,
                     j);
}
