/*
 * Lists of the retained tokens in a query's pages (kernels/retained.h). One thread block per list; every entry, also of the
 * padding, follows from its index: the pages ascend, and only the last one can be open, so that all before it are full.
 *
 * Limit: 4 bytes per entry, written once, and as many read for the kept tokens: 64 requests with 8 lists of 256 entries are
 * 1 MB, so that the op takes as long as its launch.
 */
#include "kernels/cuda/any/select/retained.cuh"

#define THREADS 256

/* Tokens of page j of the list up to the query's own; 0 after the last page. */
__device__ static inline int tokens_of(const sl_retained &r, const int32_t *pages, int j, int end)
{
    return pages[j] < 0 ? 0 : max(0, min(1 << r.page_log2, end + 1 - (pages[j] << r.page_log2)));
}

__global__ static void __launch_bounds__(THREADS)
    retained_lists_kernel(sl_retained_lists_params p, sl_seq_tables s, uint32_t *deverr)
{
    int64_t i = blockIdx.x;
    int t = p.token_first + (int)(i / p.r.kv_heads), head = (int)(i % p.r.kv_heads), seq, pos, n = 0, end = 0;
    const int32_t *pages = p.pages + i * p.select;
    int32_t *ids = p.ids + i * p.ld_ids;
    bool all = true;

    if (sl_token(&s, t, deverr, &seq, &pos)) {
        all = sl_kept_reads_all(p.r, seq, pos, p.dense_below);
        n = pos + 1;
        if (!all) { /* the same for the whole thread block */
            int mine = 0;
            end = sl_kept_index(p.r, seq, pos);
            for (int j = threadIdx.x; j < p.select; j += THREADS)
                mine += tokens_of(p.r, pages, j, end);
            n = sl_block_sum(mine);
        }
        if (n > p.ld_ids) {
            if (threadIdx.x == 0)
                atomicOr(deverr, SL_DEVERR_SELECTION);
            n = 0;
        }
    }
    for (int e = threadIdx.x; e < p.ld_ids; e += THREADS) {
        int id = e;
        if (e >= n)
            id = -1;
        else if (!all)
            id = sl_kept_pos(p.r, seq, head,
                             (pages[e >> p.r.page_log2] << p.r.page_log2) + (e & ((1 << p.r.page_log2) - 1)));
        ids[e] = id;
    }
}

static sl_status run_retained_lists(sl_backend *be, const void *params, sl_err *err)
{
    const sl_retained_lists_params *p = (const sl_retained_lists_params *)params;
    const dim3 lists(sl_blocks((int64_t)p->token_count * p->r.kv_heads));

    return SL_LAUNCH(sl_cuda_of(be), retained_lists_kernel, (sl_launch{lists, THREADS}), err, *p, *p->seqs,
                     sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_retained_lists = {.run = run_retained_lists};
