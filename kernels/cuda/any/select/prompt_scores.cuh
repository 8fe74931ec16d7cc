/*
 * Inside prompt_scores.cu and prompt_scores_tensor.cu: the work of a launch, and where a block of 64 tokens and its keys are.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_PROMPT_SCORES_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_PROMPT_SCORES_CUH
#include "kernels/cuda/any/attn/gqa_attn.cuh"

enum {
    STRIP = SL_PROMPT_STRIP,
    STRIPS = SL_STRIPS, /* of a page */
    THREADS = 256,
    WARPS = THREADS / 32
};

/* A slice of the blocks of an op; `first` and `scores` of `p` are those of the slice. */
struct scores_job {
    sl_prompt_scores_params p;
    gqa_work w; /* of the same rows */
    int n, pages, group;
};

struct block_at {
    int t, seq, pos; /* of the first token; seq -1: there is none */
};

__device__ static inline block_at block_of(const scores_job &j, int i)
{
    block_at b = {0, -1, 0};
    int seq, pos;

    if (i >= j.n)
        return b;
    b.t = j.p.first[i];
    if (!sl_token(&j.w.s, b.t, j.w.deverr, &seq, &pos))
        return b;
    if (pos % SL_PAGE_TOKENS || pos / SL_PAGE_TOKENS >= j.pages) {
        atomicOr(j.w.deverr, SL_DEVERR_POS);
        return b;
    }
    b.seq = seq, b.pos = pos;
    return b;
}

__device__ static inline gqa_list list_of(const scores_job &j, int seq, int kv_head)
{
    gqa_list l = {j.w.s.row_pages + (int64_t)seq * j.w.s.ld, NULL, kv_head, 0};
    return l;
}

sl_status sl_cuda_prompt_scores_tensor(sl_cuda *cu, scores_job j, sl_err *err);

#endif
