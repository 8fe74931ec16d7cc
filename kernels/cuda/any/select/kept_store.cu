/*
 * What prompts keep, as the metadata of pages in the pinned host arena (kernels/window.h). A thread block has one list of one
 * token of the step. That of most tokens ends immediately: they neither begin a page nor end a prompt.
 *
 * The place of a gap is the number of its kept token and the entries for long gaps before it. There are at most
 * (context / 65,535) of these, so the few tokens with long gaps are collected first, in any order, and each thread adds up
 * those before its own.
 *
 * Limit: once per prompt and layer, 2 bytes of each kept token to the host: 8 lists of 2,016 tokens are 32 KB, 0.6 us
 * over the bus. In a decode step nothing is to be written for most tokens, and the op takes as long as its launch.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 256
#define MOST_LONG 64 /* long gaps of a list: contexts of up to 4M tokens */

struct long_gaps {
    int n, bad;
    int at[MOST_LONG], entries[MOST_LONG];
};

/* Whether the prompt ends after token t, in the same page, with a token of this step, which then writes the unit. */
__device__ static inline bool ends_later(const sl_seq_tables &s, int t, int seq, int pos, int last)
{
    int64_t other = (int64_t)t + last - pos;

    return last > pos && last / SL_PAGE_TOKENS == pos / SL_PAGE_TOKENS && other < s.n_tokens &&
           s.token_seq[other] == seq && s.token_pos[other] == last;
}

/* Skipped tokens before kept token i. */
__device__ static inline int gap_of(const int32_t *kept, int i)
{
    return kept[i] - (i > 0 ? kept[i - 1] + 1 : 0);
}

/* Collects the tokens with gaps of several entries; whole thread blocks call it. */
__device__ static void find_long(long_gaps &g, const int32_t *kept, int n)
{
    if (threadIdx.x == 0)
        g.n = g.bad = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int gap = gap_of(kept, i);
        if (gap < 0)
            g.bad = 1;
        if (gap < SL_KEPT_SKIP)
            continue;
        int e = atomicAdd(&g.n, 1);
        if (e < MOST_LONG)
            g.at[e] = i, g.entries[e] = gap / SL_KEPT_SKIP;
    }
    __syncthreads();
}

/* Entries for long gaps of the tokens before kept token i. */
__device__ static inline int64_t before(const long_gaps &g, int i)
{
    int64_t sum = 0;

    for (int e = 0; e < g.n; e++)
        sum += g.at[e] < i ? g.entries[e] : 0;
    return sum;
}

/* The gaps of n kept tokens, and zeros after them. False: they do not fit or do not ascend. */
__device__ static bool put_gaps(long_gaps &g, const int32_t *kept, int n, uint16_t *out, int room)
{
    find_long(g, kept, n);
    if (g.bad || g.n > MOST_LONG)
        return false;
    int64_t used = n + before(g, n);
    if (used > room)
        return false;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int gap = gap_of(kept, i);
        uint16_t *to = out + i + before(g, i);
        for (; gap >= SL_KEPT_SKIP; gap -= SL_KEPT_SKIP)
            *to++ = SL_KEPT_SKIP;
        *to = (uint16_t)gap;
    }
    for (int i = (int)used + threadIdx.x; i < room; i += THREADS)
        out[i] = 0;
    return true;
}

__global__ static void __launch_bounds__(THREADS)
    kept_store_kernel(sl_kept_store_params p, sl_seq_tables s, uint32_t *deverr)
{
    __shared__ long_gaps g;
    int t = blockIdx.x, list = blockIdx.y, seq, pos;

    if (!sl_token(&s, t, deverr, &seq, &pos))
        return;
    int prompt = p.prompts[2 * (int64_t)seq], n = p.prompts[2 * (int64_t)seq + 1];
    bool ends = pos == prompt - 1;
    if (!ends && (pos % SL_PAGE_TOKENS || ends_later(s, t, seq, pos, prompt - 1)))
        return;
    int page = s.host_pages[(int64_t)seq * s.ld + pos / SL_PAGE_TOKENS];
    if (page < 0) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_PAGE);
        return;
    }
    int32_t *unit = (int32_t *)(p.host.base + page * p.host.page_stride + (int64_t)list * p.unit_bytes);
    if (!ends) {
        for (int i = threadIdx.x; i < p.unit_bytes / 4; i += THREADS)
            unit[i] = 0;
        return;
    }
    if (threadIdx.x == 0)
        unit[0] = prompt, unit[1] = n;
    const int32_t *kept = p.kept + ((int64_t)seq * p.lists + list) * p.ld_kept;
    int room = (p.unit_bytes - SL_KEPT_HEADER) / 2;
    if (n > p.ld_kept || !put_gaps(g, kept, n, (uint16_t *)(unit + SL_KEPT_HEADER / 4), room))
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_SELECTION);
}

static sl_status run_kept_store(sl_backend *be, const void *params, sl_err *err)
{
    const sl_kept_store_params *p = (const sl_kept_store_params *)params;
    dim3 grid((unsigned)p->seqs->n_tokens, (unsigned)p->lists);

    return SL_LAUNCH(sl_cuda_of(be), kept_store_kernel, (sl_launch{grid, THREADS}), err, *p, *p->seqs,
                     sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_kept_store = {.run = run_kept_store};
