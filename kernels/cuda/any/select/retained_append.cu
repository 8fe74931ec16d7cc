/*
 * Bounds of the pages of retained tokens that become complete with a step's tokens (kernels/retained.h). A thread block has
 * one KV head and every BLOCKS-th page; all of its threads first find out which tokens of the step complete pages, THREADS
 * tokens at a time, so that the many tokens of a chunk that complete none cost no thread block of their own.
 *
 * Limit: the last token of a prompt reads the keys of all retained tokens from the host: 8 heads of 2,048 keys of 256
 * bytes are 4.2 MB, 76 us over the bus; each of 32 blocks of a head loads 16 pages one after another, at 2 us each. In a
 * decode step a page of every fourth request is complete, 8 heads of 4 keys: one wait for the bus, and the launch.
 */
#include "kernels/cuda/any/select/retained.cuh"

#define THREADS 128
#define BLOCKS 32

struct pages_done {
    int seq[THREADS], from[THREADS], to[THREADS]; /* pages from .. to - 1 */
};

/* The pages that token t completes. */
__device__ static inline void find_pages(const sl_kept_pages &j, int t, pages_done &d)
{
    int i = threadIdx.x, seq, pos;

    d.from[i] = d.to[i] = 0;
    if (t >= j.s.n_tokens || !sl_token(&j.s, t, j.deverr, &seq, &pos))
        return;
    int prompt = j.r.prompts[2 * (int64_t)seq];
    if (prompt < 1 || pos < prompt - 1)
        return;
    int end = sl_kept_index(j.r, seq, pos) + 1, pages = end >> j.r.page_log2;
    if (pos >= prompt && end & ((1 << j.r.page_log2) - 1))
        return;
    if (pages > sl_kept_most_pages(j)) {
        atomicOr(j.deverr, SL_DEVERR_POS);
        return;
    }
    d.seq[i] = seq;
    d.from[i] = pos >= prompt ? pages - 1 : 0;
    d.to[i] = pages;
}

__global__ static void __launch_bounds__(THREADS) retained_append_kernel(sl_kept_pages j)
{
    __shared__ pages_done d;
    int head = blockIdx.x, size = 1 << j.r.page_log2;

    for (int base = 0; base < j.s.n_tokens; base += THREADS) {
        __syncthreads(); /* no thread reads the tokens before these any more */
        find_pages(j, base + threadIdx.x, d);
        if (!__syncthreads_or(d.to[threadIdx.x] > d.from[threadIdx.x]))
            continue;
        for (int i = 0; i < THREADS; i++) {
            /* the first page of this block: page + base + i is a multiple of BLOCKS, plus the block */
            int skip = (blockIdx.y + 2 * BLOCKS - (d.from[i] + i) % BLOCKS) % BLOCKS;
            for (int p = d.from[i] + skip; p < d.to[i]; p += BLOCKS)
                for (int c = threadIdx.x; c < j.r.dim; c += THREADS)
                    sl_make_bounds(j, d.seq[i], head, p * size, (p + 1) * size - 1, c,
                                   sl_kept_unit(j, d.seq[i], head, p));
        }
    }
}

static sl_status run_retained_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_retained_append_params *p = (const sl_retained_append_params *)params;
    sl_cuda *cu = sl_cuda_of(be);

    return SL_LAUNCH(cu, retained_append_kernel, (sl_launch{dim3(p->r.kv_heads, BLOCKS), THREADS}), err,
                     sl_kept_pages_of(cu, &p->r, p->seqs));
}

const sl_op_impl sl_cuda_retained_append = {.run = run_retained_append};
