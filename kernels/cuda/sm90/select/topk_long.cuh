/* Top-k with one cluster per row; see topk_long.cu. */
#ifndef SL_KERNELS_CUDA_SM90_SELECT_TOPK_LONG_CUH
#define SL_KERNELS_CUDA_SM90_SELECT_TOPK_LONG_CUH

#include "kernels/cuda/common.cuh"

typedef struct sl_topk_longs {
    int size; /* blocks per row; 0 where one block per row is faster or the only possibility */
    bool by_hint;
} sl_topk_longs;

sl_topk_longs sl_cuda_topk_longs(const sl_cuda *cu, const sl_topk_params *p);
/* hint: of all rows, where they start from it; otherwise unused. */
sl_status sl_cuda_topk_long(sl_cuda *cu, const sl_topk_params *p, sl_topk_longs c, const float *hint,
                            sl_err *err);

#endif
