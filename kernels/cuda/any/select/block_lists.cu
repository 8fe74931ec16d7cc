/*
 * Lists of the best blocks (kernels/blocks.h). A thread block makes one list. There are few blocks (1,024 of 128 tokens in 128K)
 * and few of them are selected, so the worst one that is selected is found by taking the next best k times; then the blocks
 * that are not below it are written in their order.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 128

/* The order of scores as in kernels/cpu/group.h. */
__device__ static inline uint32_t score_key(float score)
{
    uint32_t u = __float_as_uint(score);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0;
    if (u == 0x80000000u)
        u = 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* By rank: the key of the score above, the older block below. */
__device__ static inline uint64_t rank_of(const sl_block_lists_params &p, const float *scores, int pos, int b)
{
    const int64_t first = (int64_t)b * p.block_tokens, end = first + p.block_tokens;
    const bool forced = first < p.sinks || (p.recent > 0 && end > (int64_t)pos + 1 - p.recent);

    /* below ~0, with which worst_of() begins, also for a forced block 0 */
    return (uint64_t)(forced ? 0xffffffffu : score_key(scores[b])) << 32 | (0xfffffffeu - (uint32_t)b);
}

__device__ static inline uint64_t block_max(uint64_t v, uint64_t *part)
{
    for (int o = 16; o; o >>= 1)
        v = max(v, __shfl_xor_sync(0xffffffffu, v, o));
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < THREADS / 32; w++)
        v = max(v, part[w]);
    return v;
}

/* The rank of the worst of the k best of n > k blocks. */
__device__ static uint64_t worst_of(const sl_block_lists_params &p, const float *scores, int pos, int n,
                                    uint64_t *part)
{
    uint64_t below = ~0ull;

    for (int i = 0; i < p.k; i++) {
        uint64_t best = 0;
        for (int b = threadIdx.x; b < n; b += THREADS) {
            const uint64_t rank = rank_of(p, scores, pos, b);
            best = rank < below ? max(best, rank) : best;
        }
        below = block_max(best, part);
    }
    return below;
}

__global__ static void __launch_bounds__(THREADS)
    block_lists_kernel(sl_block_lists_params p, sl_seq_tables s, uint32_t *deverr)
{
    __shared__ uint64_t part[THREADS / 32];
    __shared__ int taken[THREADS / 32];
    const int t = p.token_first + blockIdx.x / p.lists, list = blockIdx.x % p.lists, warp = threadIdx.x >> 5;
    int32_t *ids = p.ids + ((int64_t)t * p.lists + list) * p.ld_ids;
    int seq, pos, used = 0;
    const bool there = sl_token(&s, t, deverr, &seq, &pos);
    const int n = there ? pos / p.block_tokens + 1 : 0, rows = there ? (pos >> p.block_log2) + 1 : 0;
    const int each = p.block_tokens >> p.block_log2;
    const bool all = n <= p.k || pos < p.dense_below;

    if (!all && n > p.ld_scores) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_POS);
        return;
    }
    const float *scores =
        p.scores + ((int64_t)(t - p.token_first) * p.heads + list / (p.lists / p.heads)) * p.ld_scores;
    const uint64_t worst = all ? 0 : worst_of(p, scores, pos, n, part);
    for (int base = 0; base < n; base += THREADS) {
        const int b = base + threadIdx.x;
        const bool take = b < n && (all || rank_of(p, scores, pos, b) >= worst);
        const uint32_t mask = __ballot_sync(0xffffffffu, take);

        __syncthreads();
        if ((threadIdx.x & 31) == 0)
            taken[warp] = __popc(mask);
        __syncthreads();
        int before = __popc(mask & ((1u << (threadIdx.x & 31)) - 1)), sum = 0;
        for (int w = 0; w < THREADS / 32; w++) {
            before += w < warp ? taken[w] : 0;
            sum += taken[w];
        }
        /* only the last block may have fewer rows, and nothing follows it */
        const int64_t at = ((int64_t)used + before) * each;
        for (int i = 0; take && i < each && (int64_t)b * each + i < rows; i++) {
            if (at + i < p.ld_ids)
                ids[at + i] = b * each + i;
            else
                atomicOr(deverr, SL_DEVERR_SELECTION);
        }
        used += sum;
    }
    /* the last block is open: its rows after pos are not there */
    const bool last = n > 0 && (all || rank_of(p, scores, pos, n - 1) >= worst);
    const int64_t filled = (int64_t)used * each - (last ? (int64_t)n * each - rows : 0);
    for (int64_t i = filled + threadIdx.x; i < p.ld_ids; i += THREADS)
        ids[i] = -1;
}

static sl_status run_block_lists(sl_backend *be, const void *params, sl_err *err)
{
    const sl_block_lists_params *p = (const sl_block_lists_params *)params;
    sl_cuda *c = sl_cuda_of(be);

    if (p->token_count == 0)
        return SL_OK;
    return SL_LAUNCH(c, block_lists_kernel,
                     (sl_launch{dim3(sl_blocks((int64_t)p->token_count * p->lists)), THREADS}), err, *p,
                     *p->seqs, c->deverr);
}

const sl_op_impl sl_cuda_block_lists = {.run = run_block_lists};
