/*
 * Lists of what an observation window has kept (kernels/window.h): kept tokens, the window, and the newest generated tokens.
 * One thread block per list; every entry, also of the padding, follows from its index.
 *
 * Limit: 4 bytes per entry, written once: 64 requests with 8 lists of 2,560 entries are 5.2 MB, 1.3 us at 4.2 TB/s.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 256

__global__ static void __launch_bounds__(THREADS)
    kept_lists_kernel(sl_kept_lists_params p, sl_seq_tables s, uint32_t *deverr)
{
    int64_t i = blockIdx.x;
    int t = p.token_first + (int)(i / p.lists), list = (int)(i % p.lists), seq, pos;
    int32_t *ids = p.ids + i * p.ld_ids;
    const int32_t *kept = p.kept;
    /* kept tokens, then the ranges [window, window + n_window) and [oldest, oldest + n_newest) */
    int n_kept = 0, window = 0, n_window = 0, oldest = 0, n_newest = 0;

    if (sl_token(&s, t, deverr, &seq, &pos)) {
        int prompt = p.prompts[2 * (int64_t)seq];
        n_newest = pos + 1;
        if (pos >= prompt && pos >= p.dense_below) {
            n_kept = p.prompts[2 * (int64_t)seq + 1];
            kept += ((int64_t)seq * p.lists + list) * p.ld_kept;
            window = prompt > p.window ? prompt - p.window : 0;
            n_window = prompt - window;
            oldest = p.output > 0 && pos - prompt >= p.output ? pos + 1 - p.output : prompt;
            n_newest = pos + 1 - oldest;
        }
        if (n_kept > p.ld_kept || (int64_t)n_kept + n_window + n_newest > p.ld_ids) {
            if (threadIdx.x == 0)
                atomicOr(deverr, SL_DEVERR_SELECTION);
            n_kept = n_window = n_newest = 0;
        }
    }
    for (int e = threadIdx.x; e < p.ld_ids; e += THREADS) {
        int w = e - n_kept, r = w - n_window;
        ids[e] = e < n_kept ? kept[e] : w < n_window ? window + w : r < n_newest ? oldest + r : -1;
    }
}

static sl_status run_kept_lists(sl_backend *be, const void *params, sl_err *err)
{
    const sl_kept_lists_params *p = (const sl_kept_lists_params *)params;
    const dim3 lists(sl_blocks((int64_t)p->token_count * p->lists));

    return SL_LAUNCH(sl_cuda_of(be), kept_lists_kernel, (sl_launch{lists, THREADS}), err, *p, *p->seqs,
                     sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_kept_lists = {.run = run_kept_lists};
