/*
 * Scores of blocks (kernels/blocks.h). A thread block takes one block of one tile of tokens: eight lanes read a key
 * together, keep it in registers, and multiply it with the queries of the tile, which are in shared memory. So a key is read
 * once for all heads and for the neighbouring tokens of its request.
 *
 * Limit: keys of 128 values in f32 are 512 bytes per token. At 128K tokens they are 67 MB per request and layer, 16 us at
 * 4.2 TB/s.
 */
#include "kernels/cuda/common.cuh"

#define LANES 8          /* that share a key */
#define GROUPS 32        /* of such lanes, in a thread block */
#define TILE 4           /* tokens */
#define CHUNK 32         /* values of a key in one lane, at most */
#define HEADS_AT_ONCE 16 /* queries of the tile in shared memory at once */

/* The tokens of a tile that begins at t: neighbours of one request that have scores. */
__device__ static inline int tile_of(const sl_block_scores_params &p, const sl_seq_tables &s, int t,
                                     uint32_t *deverr, int *seq, int *pos)
{
    int n = 0, end = min(t + TILE, p.token_first + p.token_count);

    for (; t + n < end; n++) {
        int q, at;
        if (!sl_token(&s, t + n, deverr, &q, &at))
            break;
        if (n > 0 && q != *seq)
            break;
        *seq = q;
        pos[n] = at;
    }
    return n;
}

/* Products of one key with `n` queries in shared memory; most[i] becomes the largest for query i of a position that sees it. */
template <int N>
__device__ static inline void multiply(const float *key, const float *q, int dim, int lane, float *out, int n,
                                       const int *limit, int per, int at)
{
    float k[N];

    for (int i = 0; i < N; i++)
        k[i] = lane + LANES * i < dim ? key[lane + LANES * i] : 0.0f;
    for (int j = 0; j < n; j++) {
        float sum = 0;
        for (int i = 0; i < N; i++)
            if (lane + LANES * i < dim)
                sum = fmaf(k[i], q[j * dim + lane + LANES * i], sum);
        for (int o = LANES / 2; o; o >>= 1)
            sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (at <= limit[j / per] && sum > out[j]) /* NaN does not count */
            out[j] = sum;
    }
}

/* One tile of tokens, from a token of a request on, and `heads` of its heads from `head` on. */
template <int N>
__device__ static void score_tile(const sl_block_scores_params &p, const sl_seq_tables &s, int t, int n,
                                  int seq, const int *pos, int block, float *shared, uint32_t *deverr)
{
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, from = block * p.block_tokens;
    const int per = min(p.heads, HEADS_AT_ONCE / TILE), last = min(pos[n - 1], from + p.block_tokens - 1);
    const int32_t *pages = s.index_pages + (int64_t)seq * s.ld;
    float *q = shared, *most = shared + HEADS_AT_ONCE * p.dim;

    for (int head = 0; head < p.heads; head += per) {
        const int heads = min(per, p.heads - head), rows = n * heads;
        float best[HEADS_AT_ONCE];

        __syncthreads();
        for (int i = threadIdx.x; i < rows * p.dim; i += blockDim.x) {
            const int row = i / p.dim;
            q[i] = p.q[((int64_t)(t + row / heads) * p.heads + head + row % heads) * p.dim + i % p.dim];
        }
        __syncthreads();
        for (int j = 0; j < HEADS_AT_ONCE; j++)
            best[j] = -INFINITY;
        for (int base = from; base <= last; base += GROUPS) { /* all lanes take part in every shuffle */
            const int at = base + group, page = at <= last ? pages[at / SL_PAGE_TOKENS] : 0;
            if (page < 0 && lane == 0)
                atomicOr(deverr, SL_DEVERR_PAGE);
            const bool there = at <= last && page >= 0;
            const float *key =
                (const float *)(p.index_base + (int64_t)(there ? page : 0) * p.index_page_stride) +
                (there ? at % SL_PAGE_TOKENS : 0) * p.dim;
            multiply<N>(key, q, p.dim, lane, best, rows, pos, heads, there ? at : INT_MAX);
        }
        for (int j = 0; j < rows; j++)
            if (lane == 0)
                most[j * GROUPS + group] = best[j];
        __syncthreads();
        for (int j = threadIdx.x; j < rows; j += blockDim.x) {
            float m = -INFINITY;
            const int token = j / heads;
            for (int g = 0; g < GROUPS; g++)
                m = fmaxf(m, most[j * GROUPS + g]);
            if (pos[token] >= from && pos[token] >= p.from_pos)
                p.scores[((int64_t)(t + token - p.token_first) * p.heads + head + j % heads) * p.ld_scores +
                         block] = m;
        }
    }
}

template <int N>
__global__ static void __launch_bounds__(LANES *GROUPS)
    block_scores_kernel(sl_block_scores_params p, sl_seq_tables s, uint32_t *deverr)
{
    extern __shared__ __align__(16) float shared[];
    const int end = min(p.token_first + (int)(blockIdx.y + 1) * TILE, p.token_first + p.token_count);

    for (int t = p.token_first + blockIdx.y * TILE; t < end;) {
        int seq = 0, pos[TILE];
        const int n = tile_of(p, s, t, deverr, &seq, pos);
        if (n == 0) {
            t++;
            continue;
        }
        const int in = min(n, end - t), blocks = pos[in - 1] / p.block_tokens + 1;
        if (blocks > p.ld_scores) {
            if (threadIdx.x == 0)
                atomicOr(deverr, SL_DEVERR_POS);
        } else if (pos[in - 1] >= p.from_pos) {
            for (int b = blockIdx.x; b < blocks; b += gridDim.x)
                score_tile<N>(p, s, t, in, seq, pos, b, shared, deverr);
        }
        t += in;
    }
}

template <int N> static sl_status launch(sl_cuda *c, const sl_block_scores_params *p, sl_err *err)
{
    const size_t smem = 4 * (HEADS_AT_ONCE * (size_t)p->dim + HEADS_AT_ONCE * GROUPS);
    const dim3 grid(p->ld_scores < 4096 ? p->ld_scores : 4096, sl_ceil_div(p->token_count, TILE));

    return SL_LAUNCH(c, block_scores_kernel<N>, (sl_launch{grid, (int)(LANES * GROUPS), smem}), err, *p,
                     *p->seqs, c->deverr);
}

static sl_status run_block_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_block_scores_params *p = (const sl_block_scores_params *)params;
    sl_cuda *c = sl_cuda_of(be);

    if (p->token_count == 0)
        return SL_OK;
    if (sl_ceil_div(p->token_count, TILE) > 65535)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: block_scores: %d tokens at once", p->token_count);
    return p->dim <= 128 ? launch<CHUNK / 2>(c, p, err) : launch<CHUNK>(c, p, err);
}

const sl_op_impl sl_cuda_block_scores = {.run = run_block_scores};
