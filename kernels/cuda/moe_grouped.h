/* Routed experts of many tokens at once: moe_grouped.cu. Internal to kernels/cuda. */
#ifndef SL_KERNELS_CUDA_MOE_GROUPED_H
#define SL_KERNELS_CUDA_MOE_GROUPED_H

#include "kernels/cuda/stream.h"

/* fp8: from this average number of pairs per expert on, this path is the faster one; both give the same bits. */
#ifndef SL_MOE_GROUPED_ROWS
#define SL_MOE_GROUPED_ROWS 24
#endif

/* fp8 experts (as in moe_stream.cu) with enough rows; bf16 experts with bf16 activations, any number of rows. */
bool sl_cuda_moe_grouped_fits(const sl_cuda *cu, const sl_moe_params *p);
sl_status sl_cuda_moe_grouped(sl_cuda *cu, const sl_moe_params *p, sl_err *err);

#endif
