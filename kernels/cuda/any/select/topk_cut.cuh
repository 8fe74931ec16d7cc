/* Inside topk*.cu: lists that top-k has made, cut by their share of the scores or by a limit of their own. */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_TOPK_CUT_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_TOPK_CUT_CUH
#include "kernels/cuda/common.cuh"

/* Enqueued directly after the op that wrote the lists. */
sl_status sl_cuda_topk_cut(sl_cuda *cu, const sl_topk_params *p, int rows, int lists, sl_err *err);

#endif
