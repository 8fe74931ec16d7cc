/* Internal to top-k: many short rows (topk_short.cu). */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_TOPK_SHORT_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_TOPK_SHORT_CUH

#include "kernels/cuda/common.cuh"

/* Whether this kernel is the faster one: rows of at most SL_TOPK_SHORT scores, more of them than multiprocessors. */
#define SL_TOPK_SHORT 8192
static inline bool sl_cuda_topk_short_for(const sl_cuda *cu, const sl_topk_params *p, int rows)
{
    return p->ld_scores <= SL_TOPK_SHORT && rows > cu->sms;
}

/* p->lists rows for every token. */
sl_status sl_cuda_topk_short(sl_cuda *cu, const sl_topk_params *p, int rows, sl_err *err);

#endif
